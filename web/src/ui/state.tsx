// The run's document at any point: a scrubber over its patches, and what each of them changed.

import { useEffect, useState } from "preact/hooks";
import { difference, type Difference } from "../model/patch";
import { summary } from "../model/summary";
import { offset } from "../model/time";
import type { Json, Run } from "../model/types";
import type { OpenRun } from "../open-run";
import { Tree, Value } from "./json";
import { useKeys } from "./keys";
import { Empty } from "./runs";
import { Line, Text } from "./text";

interface Shown {
  index: number;
  document: Json;
  changes: Difference[];
}

export function State(props: { open: OpenRun; run: Run; selected: number | null; select: (seq: number | null) => void }) {
  const { open, run, selected, select } = props;
  void open.version.value;
  const { documents } = open.model;
  const last = documents.seqs.length;
  const index = selected === null ? last : documents.indexAt(selected);
  const [shown, setShown] = useState<Shown | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  useEffect(() => {
    let stale = false;
    const get = (seq: number) => open.cache.load(seq);
    Promise.all([documents.after(index, get), documents.after(Math.max(0, index - 1), get)]).then(
      ([document, before]) => {
        if (!stale) setShown({ index, document, changes: index === 0 ? [] : difference(before, document) });
        if (!stale) setProblem(null);
      },
      (error: unknown) => {
        if (!stale) setProblem(error instanceof Error ? error.message : String(error));
      },
    );
    return () => {
      stale = true;
    };
  }, [open, index, last]);
  const to = (next: number): void => {
    const seq = documents.seqs[Math.max(0, Math.min(last, next)) - 1];
    select(seq ?? 1);
  };
  useKeys({
    j: () => to(index + 1),
    k: () => to(index - 1),
    ArrowRight: () => to(index + 1),
    ArrowLeft: () => to(index - 1),
  });
  if (last === 0) {
    if (run.erased) return <Empty title="The document was erased" detail="What its patches held is gone; that they were made stays in the log." />;
    if (run.state === null)
      return <Empty title="This run keeps no document" detail="A task keeps one with ctx.state, a program over HTTP with state.patched." />;
    return <div class="state-tree"><Value value={run.state} mono /></div>;
  }
  const seq = documents.seqs[index - 1] ?? null;
  const event = seq === null ? null : open.cache.peek(seq);
  const time = seq === null ? null : open.model.timeOf(seq);
  const start = open.model.timeOf(1);
  const marks = new Map((shown?.changes ?? []).map((change) => [change.pointer, change.what]));
  return (
    <div class="state">
      <div class="view-bar scrubber">
        <button type="button" class="icon" aria-label="Earlier" disabled={index === 0} onClick={() => to(index - 1)}>
          ‹
        </button>
        <input
          type="range"
          min="0"
          max={last}
          value={index}
          aria-label="Patch"
          aria-valuetext={`after patch ${index} of ${last}`}
          onInput={(event) => to(Number(event.currentTarget.value))}
        />
        <button type="button" class="icon" aria-label="Later" disabled={index === last} onClick={() => to(index + 1)}>
          ›
        </button>
        <span class="nowrap">
          {index} <span class="dim">/ {last}</span>
        </span>
        {seq !== null && (
          <span class="dim nowrap mono">
            event {seq}
            {time !== null && start !== null && ` · ${offset(time - start)}`}
          </span>
        )}
        {event !== null && <Line value={summary(event)} class="dim mono grow" />}
      </div>
      {documents.broken !== null && (
        <div class="banner bad">
          Event {documents.broken.seq} could not be applied (<Line value={documents.broken.why} />); the document is as it was before it.
        </div>
      )}
      {problem !== null && <div class="banner bad">
          <Text value={problem} lines={6} />
        </div>}
      {shown !== null && (
        <div class="state-panes">
          <section aria-label="Document" class="tree mono state-tree">
            <Tree value={shown.document} marks={marks} />
          </section>
          <section aria-label="Changes" class="changes">
            <h2>{shown.index === 0 ? "Before the first patch" : `Changed by patch ${shown.index}`}</h2>
            {shown.changes.length === 0 && shown.index > 0 && <p class="dim">Nothing: it patched what was there already.</p>}
            {shown.changes.map((change) => (
              <Change key={change.pointer} change={change} />
            ))}
          </section>
        </div>
      )}
    </div>
  );
}

function Change(props: { change: Difference }) {
  const { change } = props;
  return (
    <div class={`change ${change.what}`}>
      <Line value={change.pointer === "" ? "(the whole document)" : change.pointer} class="mono" />
      <span class="tag">{change.what}</span>
      {change.what !== "added" && (
        <div class="before">
          <Value value={change.before} mono lines={6} />
        </div>
      )}
      {change.what !== "removed" && (
        <div class="after">
          <Value value={change.after} mono lines={6} />
        </div>
      )}
    </div>
  );
}
