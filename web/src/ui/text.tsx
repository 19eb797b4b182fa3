// Text of others, as text: pieces in nodes, hidden characters named, long ones cut until asked for.

import { useState } from "preact/hooks";
import { bytes } from "../model/time";
import { beginning, oneLine, visible } from "../model/visible";

const FIRST_CHARS = 4000;
const FIRST_LINES = 60;
/** Each "show more" gives so much; a megabyte is not laid out at once. */
const MORE_CHARS = 64_000;

/** A text in full width, whatever is in it. */
export function Text(props: { value: string; mono?: boolean; lines?: number }) {
  const [extra, setExtra] = useState(0);
  const lines = extra === 0 ? (props.lines ?? FIRST_LINES) : Infinity;
  const shown = beginning(props.value, FIRST_CHARS + extra, lines);
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
