// Text of models and tools is hostile. What would move the cursor, hide, or turn the line around is
// shown as a name; everything else stays the text it is. Nothing here makes markup.

export interface Piece {
  text: string;
  /** A stand-in for a character that cannot be seen. */
  stands: boolean;
}

// C0 and C1 controls, soft hyphen, Arabic letter mark, zero-width and bidi marks, invisible
// operators, deprecated formatting, byte order mark, interlinear annotation, tags, lone surrogates.
const HIDDEN =
  /[\u0000-\u0008\u000B-\u001F\u007F-\u009F\u00AD\u061C\u115F\u1160\u17B4\u17B5\u180B-\u180F\u200B-\u200F\u2028-\u202E\u2060-\u206F\u3164\uFEFF\uFFA0\uFFF0-\uFFFB\u{E0000}-\u{E0FFF}]|\p{Surrogate}/u;

const JOINER = "\u200D";
const PICTOGRAPH_BEFORE = /[\p{Extended_Pictographic}\u{1F3FB}-\u{1F3FF}\uFE0F]$/u;
const PICTOGRAPH_AFTER = /^\p{Extended_Pictographic}/u;

/** The text as pieces; characters that cannot be seen are pieces of their own. */
export function visible(text: string): Piece[] {
  if (!HIDDEN.test(text)) return [{ text, stands: false }];
  const pieces: Piece[] = [];
  let plain = "";
  let place = 0;
  for (const character of text) {
    const after = place + character.length;
    if (!HIDDEN.test(character)) {
      plain += character;
    } else if (character === "\r" && text[after] === "\n") {
      // A line end of other systems.
    } else if (
      character === JOINER &&
      PICTOGRAPH_BEFORE.test(text.slice(Math.max(0, place - 2), place)) &&
      PICTOGRAPH_AFTER.test(text.slice(after, after + 2))
    ) {
      plain += character; // joins two pictographs into one
    } else {
      if (plain !== "") pieces.push({ text: plain, stands: false });
      plain = "";
      pieces.push({ text: nameOf(character), stands: true });
    }
    place = after;
  }
  if (plain !== "") pieces.push({ text: plain, stands: false });
  return pieces;
}

/** Their names, because many fonts lack their pictures. */
const CONTROLS = (
  "NUL SOH STX ETX EOT ENQ ACK BEL BS TAB LF VT FF CR SO SI " +
  "DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US"
).split(" ");

function nameOf(character: string): string {
  const code = character.codePointAt(0) ?? 0;
  if (code < 0x20) return CONTROLS[code] ?? "?";
  if (code === 0x7f) return "DEL";
  return `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

/** Whether a text holds what cannot be seen. */
export const isHiding = (text: string): boolean => HIDDEN.test(text);

/** The text with what cannot be seen written as an escape. */
export const escaped = (text: string, escape: (code: number) => string): string =>
  HIDDEN.test(text)
    ? [...text].map((it) => (HIDDEN.test(it) ? escape(it.codePointAt(0) ?? 0) : it)).join("")
    : text;

/** The same as plain text, for wherever no markup can be: titles, labels, the name of the window. */
export const named = (text: string): string =>
  HIDDEN.test(text)
    ? visible(text)
        .map((piece) => piece.text)
        .join("")
    : text;

/** On one line, for titles and tables: line ends and tabs are blanks, hidden characters named. */
export function oneLine(text: string, max = 300): string {
  const cut = cutAt(text, max);
  const line = named(cut.replace(/[\r\n\t]+/g, " "));
  return cut.length < text.length ? `${line}…` : line;
}

/** The beginning of a text, never half of a character. */
export function cutAt(text: string, max: number): string {
  if (text.length <= max) return text;
  const code = text.charCodeAt(max - 1);
  return text.slice(0, code >= 0xd800 && code <= 0xdbff ? max - 1 : max);
}

/** The beginning of a text by characters and lines, whichever comes first. */
export function beginning(text: string, chars: number, lines: number): string {
  const cut = cutAt(text, chars);
  let at = -1;
  for (let n = 0; n < lines; n += 1) {
    at = cut.indexOf("\n", at + 1);
    if (at === -1) return cut;
  }
  return cut.slice(0, at);
}
