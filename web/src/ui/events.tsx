// The log itself: every event a row, of which only those in sight exist.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { family, summary } from "../model/summary";
import { count, offset, parseTime } from "../model/time";
import { oneLine } from "../model/visible";
import { isTerminal, type Run } from "../model/types";
import type { OpenRun } from "../open-run";
import { route, setQuery } from "../route";
import { LogSearch } from "../search";
import { useKeys } from "./keys";
import { Empty } from "./runs";
import { Line } from "./text";
import { Virtual } from "./virtual";

const ROW = 26;

export function Events(props: { open: OpenRun; run: Run; selected: number | null; select: (seq: number | null) => void }) {
  const { open, run, selected, select } = props;
  const version = open.version.value;
  const query = route.value.query;
  const kinds = query.get("kinds") ?? "";
  const text = query.get("find") ?? "";
  const length = Math.max(run.event_count, open.model.seq);
  const ended = isTerminal(run.status);
  const [tail, setTail] = useState(!ended && selected === null);
  const input = useRef<HTMLInputElement>(null);
  const search = useSearch(open, text, length);
  const wanted = useMemo(() => new Set(kinds === "" ? [] : kinds.split(",")), [kinds]);
  const seqs = useMemo(() => {
    if (search !== null) {
      const found = search.found;
      return wanted.size === 0 ? found.slice() : found.filter((seq) => wanted.has(open.model.kindOf(seq) ?? ""));
    }
    return wanted.size === 0 ? null : open.model.seqsOf(wanted);
  }, [wanted, version, search, search?.version.value]);
  const size = seqs === null ? length : seqs.length;
  const seqAt = (i: number): number => (seqs === null ? i + 1 : (seqs[i] ?? 0));
  const at = selected === null ? -1 : seqs === null ? selected - 1 : seqs.indexOf(selected);
  const move = (by: number): void => {
    setTail(false);
    const i = Math.max(0, Math.min(size - 1, at === -1 ? (by > 0 ? 0 : size - 1) : at + by));
    if (size > 0) select(seqAt(i));
  };
  useKeys({
    j: () => move(1),
    k: () => move(-1),
    ArrowDown: () => move(1),
    ArrowUp: () => move(-1),
    "/": () => input.current?.focus(),
    G: () => select(seqAt(size - 1)),
  });
  return (
    <div class="events">
      <div class="view-bar">
        <Kinds open={open} wanted={wanted} />
        <input
          ref={input}
          type="search"
          class="search"
          placeholder="Find in events   /"
          aria-label="Find in events"
          defaultValue={text}
          onChange={(event) => setQuery({ find: event.currentTarget.value })}
          onKeyDown={(event) => {
            if (event.key === "Enter") setQuery({ find: event.currentTarget.value });
          }}
        />
        <span class="dim nowrap" role="status">
          {seqs === null ? `${count(length)} events` : `${count(size)} of ${count(length)}`}
          {search !== null && search.upTo < length && search.error.value === null && ` · looked at ${count(search.upTo)}`}
          {search?.error.value !== null && search?.error.value !== undefined && (
            <>
              {" · "}
              <Line value={search.error.value} max={120} />
            </>
          )}
        </span>
        <span class="grow" />
        {!ended && (
          <button type="button" class="small" aria-pressed={tail} onClick={() => setTail(!tail)}>
            {tail ? "Pause the tail" : "Follow the tail"}
          </button>
        )}
      </div>
      {size === 0 ? (
        <Empty title="No event matches" detail="" />
      ) : (
        <Virtual
          class="event-list"
          role="grid"
          label="Events"
          count={size}
          height={ROW}
          reveal={at >= 0 ? at : null}
          stick={tail}
          onStick={(atEnd) => {
            if (!atEnd && tail) setTail(false);
          }}
          row={(i) => {
            const seq = seqAt(i);
            return <EventRow key={seq} open={open} seq={seq} selected={seq === selected} select={select} />;
          }}
        />
      )}
    </div>
  );
}

function useSearch(open: OpenRun, text: string, length: number): LogSearch | null {
  const [search, setSearch] = useState<LogSearch | null>(null);
  useEffect(() => {
    if (text === "") {
      setSearch(null);
      return;
    }
    const fresh = new LogSearch(open.id, text);
    setSearch(fresh);
    return () => fresh.stop();
  }, [open, text]);
  useEffect(() => {
    void search?.on(length);
  }, [search, length]);
  return text === "" ? null : search;
}

/** Which kinds are shown. */
function Kinds(props: { open: OpenRun; wanted: ReadonlySet<string> }) {
  const { open, wanted } = props;
  void open.version.value;
  const { kinds, counts } = open.model;
  const known = kinds.map((kind, i) => ({ kind, n: counts[i] ?? 0 })).sort((a, b) => (a.kind < b.kind ? -1 : 1));
  const toggle = (kind: string): void => {
    const next = new Set(wanted);
    if (!next.delete(kind)) next.add(kind);
    setQuery({ kinds: [...next].join(",") });
  };
  return (
    <details class="picker">
      <summary>{wanted.size === 0 ? "All kinds" : wanted.size === 1 ? <Line value={[...wanted][0] ?? ""} max={60} /> : `${wanted.size} kinds`}</summary>
      <div class="picker-items" role="group" aria-label="Kinds">
        <button type="button" class="link" onClick={() => setQuery({ kinds: null })} disabled={wanted.size === 0}>
          All kinds
        </button>
        {known.map(({ kind, n }) => (
          <label key={kind}>
            <input type="checkbox" checked={wanted.has(kind)} onChange={() => toggle(kind)} />
            <Line value={kind} class={`kind ${family(kind)}`} max={60} />
            <span class="dim num">{count(n)}</span>
          </label>
        ))}
      </div>
    </details>
  );
}

function EventRow(props: { open: OpenRun; seq: number; selected: boolean; select: (seq: number | null) => void }) {
  const { open, seq } = props;
  void open.cache.version.value;
  const event = open.cache.peek(seq);
  // Kind and time are known from the fold before the body is here, so that a row is never blank.
  const kind = event?.kind ?? open.model.kindOf(seq);
  const time = event === null ? open.model.timeOf(seq) : parseTime(event.at);
  const start = open.model.timeOf(1);
  return (
    <div
      class={`event-row ${props.selected ? "selected" : ""} ${event?.late === true ? "late" : ""}`}
      role="row"
      aria-selected={props.selected}
      data-seq={seq}
      onClick={() => props.select(props.selected ? null : seq)}
    >
      <span role="gridcell" class="num dim mono">{seq}</span>
      <span role="gridcell" class="num dim mono">{time === null || start === null ? "" : offset(time - start)}</span>
      <span role="gridcell" class={`kind mono ${kind === null ? "" : family(kind)}`}>{oneLine(kind ?? "…", 60)}</span>
      <span role="gridcell" class="line" dir="auto">
        {event?.late === true && <span class="tag">late</span>}
        {event === null ? "" : summary(event)}
      </span>
    </div>
  );
}
