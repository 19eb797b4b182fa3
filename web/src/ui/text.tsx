// Text of others, as text: pieces in nodes, hidden characters named, long ones cut until asked for.

import { options, type VNode } from "preact";
import { useState } from "preact/hooks";
import { bytes } from "../model/time";
import { beginning, named, oneLine, visible } from "../model/visible";

const READ_ALOUD = ["title", "aria-label", "aria-valuetext"] as const;

/** The one place where text becomes part of the page: what cannot be seen is named there, so that nobody
 * can forget it. Components below name it prettier, and keep its length and direction in bounds. */
export function guardText(): void {
  const before = options.vnode;
  options.vnode = (vnode: VNode) => {
    const { type, props } = vnode as { type: unknown; props: unknown };
    if (type === null) {
      if (typeof props === "string") (vnode as { props: unknown }).props = named(props);
    } else if (typeof type === "string") {
      const attributes = props as { [name: string]: unknown };
      for (const name of READ_ALOUD) {
        const value = attributes[name];
        if (typeof value === "string") attributes[name] = oneLine(value, 1000);
      }
    }
    before?.(vnode);
  };
}

const FIRST_CHARS = 4000;
const FIRST_LINES = 60;
const LINE_CHARS = 100;
/** Each "show more" gives so much; a megabyte is not laid out at once. */
const MORE_CHARS = 64_000;

/** A text in full width, whatever is in it. */
export function Text(props: { value: string; mono?: boolean; lines?: number }) {
  const [extra, setExtra] = useState(0);
  const lines = extra === 0 ? (props.lines ?? FIRST_LINES) : Infinity;
  // A line of a megabyte is as many lines as it fills.
  const chars = Math.min(FIRST_CHARS, lines * LINE_CHARS);
  const shown = beginning(props.value, chars + extra, lines);
  const rest = props.value.length - shown.length;
  return (
    <div class={props.mono ? "text mono" : "text"} dir="auto">
      <Pieces value={shown} />
      {rest > 0 && (
        <button type="button" class="link more" onClick={() => setExtra(extra + MORE_CHARS)}>
          Show more ({bytes(rest)} left)
        </button>
      )}
    </div>
  );
}

export function Pieces(props: { value: string }) {
  return (
    <>
      {visible(props.value).map((piece) =>
        piece.stands ? <span class="stands">{piece.text}</span> : piece.text,
      )}
    </>
  );
}

/** A text on one line, cut by the layout. */
export function Line(props: { value: string; class?: string; max?: number }) {
  const line = oneLine(props.value, props.max ?? 300);
  return (
    <span class={`line ${props.class ?? ""}`} dir="auto" title={line}>
      {line}
    </span>
  );
}

/** What was refused, in the server's words. */
export function Refusal(props: { title: string; detail: string | null }) {
  return (
    <div class="refused" role="alert">
      <strong>
        <Text value={props.title} lines={6} />
      </strong>
      {props.detail !== null && <Text value={props.detail} lines={6} />}
    </div>
  );
}
