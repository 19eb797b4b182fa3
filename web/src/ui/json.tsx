// A value as a tree: folded where it is deep or long, strings as hostile text.

import { useState } from "preact/hooks";
import { getBlob } from "../api";
import { asBlobRef, type BlobRef, type Json } from "../model/types";
import { pointerPart } from "../model/patch";
import { bytes } from "../model/time";
import { oneLine } from "../model/visible";
import { Line, Pieces, Text } from "./text";

const OPEN_DEPTH = 2;
const MEMBERS_FIRST = 100;

interface Props {
  value: Json;
  name?: string;
  depth?: number;
  /** Pointers that are marked, and where this value is. */
  marks?: ReadonlyMap<string, string>;
  pointer?: string;
}

export function Tree(props: Props) {
  const { value, marks } = props;
  const depth = props.depth ?? 0;
  const pointer = props.pointer ?? "";
  const inside = marks === undefined ? false : hasBelow(marks, pointer);
  const [open, setOpen] = useState<boolean | null>(null);
  const [limit, setLimit] = useState(MEMBERS_FIRST);
  const mark = marks?.get(pointer);
  const label = props.name === undefined ? null : <span class="j-key">{oneLine(props.name, 200)}: </span>;
  const reference = asBlobRef(value);
  if (reference !== null) {
    return (
      <div class={`j-line ${mark ?? ""}`}>
        {label}
        <Blob reference={reference} />
      </div>
    );
  }
  if (value === null || typeof value !== "object") {
    return (
      <div class={`j-line ${mark ?? ""}`}>
        {label}
        <Scalar value={value} />
      </div>
    );
  }
  const entries: [string, Json][] = Array.isArray(value)
    ? value.slice(0, limit).map((member, i) => [String(i), member])
    : Object.entries(value).slice(0, limit);
  const size = Array.isArray(value) ? value.length : Object.keys(value).length;
  const isOpen = open ?? (depth < OPEN_DEPTH || inside || (size <= 4 && depth < 6));
  const brackets = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  if (size === 0) {
    return (
      <div class={`j-line ${mark ?? ""}`}>
        {label}
        <span class="dim">{brackets.join("")}</span>
      </div>
    );
  }
  return (
    <div class={`j-node ${mark ?? ""}`}>
      <button type="button" class="j-fold" aria-expanded={isOpen} onClick={() => setOpen(!isOpen)}>
        <span class="caret" aria-hidden="true" />
        {label}
        <span class="dim">
          {brackets[0]}
          {isOpen ? "" : ` ${size} ${brackets[1]}`}
        </span>
      </button>
      {isOpen && (
        <div class="j-members">
          {entries.map(([name, member]) => (
            <Tree
              key={name}
              value={member}
              name={name}
              depth={depth + 1}
              pointer={`${pointer}/${pointerPart(name)}`}
              {...(marks === undefined ? {} : { marks })}
            />
          ))}
          {size > limit && (
            <button type="button" class="link" onClick={() => setLimit(limit * 4)}>
              {size - limit} more
            </button>
          )}
        </div>
      )}
      {isOpen && <span class="dim j-close">{brackets[1]}</span>}
    </div>
  );
}

function hasBelow(marks: ReadonlyMap<string, string>, pointer: string): boolean {
  for (const marked of marks.keys()) if (marked.startsWith(`${pointer}/`)) return true;
  return false;
}

function Scalar(props: { value: null | boolean | number | string }) {
  const { value } = props;
  if (typeof value !== "string") return <span class="j-atom">{String(value)}</span>;
  if (value.length > 120 || value.includes("\n")) {
    return (
      <div class="j-text">
        <Text value={value} mono lines={16} />
      </div>
    );
  }
  return (
    <span class="j-string" dir="auto">
      <Pieces value={value} />
    </span>
  );
}

/** A large value that is stored apart: loaded when someone wants it. */
export function Blob(props: { reference: BlobRef }) {
  const { reference } = props;
  const [state, setState] = useState<{ text: string } | { error: string } | "loading" | null>(null);
  if (state !== null && state !== "loading" && "text" in state) return <Text value={state.text} mono />;
  const load = (): void => {
    setState("loading");
    getBlob(reference.blob).then(
      (text) => setState({ text }),
      (error: unknown) => setState({ error: error instanceof Error ? error.message : String(error) }),
    );
  };
  return (
    <span class="blob">
      <button type="button" class="link" onClick={load} disabled={state === "loading"}>
        {state === "loading" ? "Loading…" : `Show ${bytes(reference.bytes)}`}
      </button>{" "}
      <span class="dim mono">{oneLine(reference.media_type, 60)}</span>
      {state !== null && state !== "loading" && <span class="bad"> <Line value={state.error} /></span>}
    </span>
  );
}

/** A value as people read it: text as text, anything else as a tree. */
export function Value(props: { value: Json; mono?: boolean; lines?: number }) {
  const { value } = props;
  if (typeof value === "string")
    return <Text value={value} mono={props.mono ?? false} {...(props.lines === undefined ? {} : { lines: props.lines })} />;
  const reference = asBlobRef(value);
  if (reference !== null) return <Blob reference={reference} />;
  return (
    <div class="tree mono">
      <Tree value={value} />
    </div>
  );
}
