// The list of runs: live, filtered by what is in the address.

import { useEffect, useRef, useState } from "preact/hooks";
import { listRuns, type Filter } from "../api";
import type { Run } from "../model/types";
import { inline } from "../model/summary";
import { age, count, duration, money, parseTime, shortId } from "../model/time";
import { go, route, runPath, setQuery } from "../route";
import { RunList } from "../run-list";
import { currentList } from "../runs-store";
import { serverNow } from "../world";
import { useKeys } from "./keys";
import { Status, tookMs } from "./status";
import { Line, Text } from "./text";
import { Virtual } from "./virtual";

const ROW = 52;

const STATUSES: { label: string; value: string }[] = [
  { label: "All", value: "" },
  { label: "Active", value: "created,planning,executing,verifying" },
  { label: "Waiting", value: "waiting" },
  { label: "Completed", value: "completed" },
  { label: "Failed", value: "failed" },
  { label: "Cancelled", value: "cancelled" },
];

const filterOf = (query: URLSearchParams): Filter => {
  const filter: Filter = {};
  for (const key of ["status", "agent", "session", "label", "search"] as const) {
    const value = query.get(key);
    if (value !== null && value !== "") filter[key] = value;
  }
  return filter;
};

export function Runs() {
  const query = route.value.query;
  const filter = filterOf(query);
  const filterKey = JSON.stringify(filter);
  const [list, setList] = useState<RunList | null>(null);
  const [selected, setSelected] = useState(-1);
  const search = useRef<HTMLInputElement>(null);
  useEffect(() => {
    const fresh = new RunList(filter, listRuns);
    setList(fresh);
    setSelected(-1);
    currentList.value = fresh;
    return () => {
      fresh.stop();
      if (currentList.value === fresh) currentList.value = null;
    };
  }, [filterKey]);
  useEffect(() => {
    document.title = "Runs · Logreel";
  }, []);
  const rows = list?.rows.value ?? [];
  const move = (by: number): void => setSelected(Math.max(0, Math.min(rows.length - 1, selected + by)));
  useKeys({
    j: () => move(1),
    k: () => move(-1),
    ArrowDown: () => move(1),
    ArrowUp: () => move(-1),
    Enter: () => {
      const run = rows[selected];
      if (run !== undefined) go(runPath(run.id));
    },
    "/": () => search.current?.focus(),
    Escape: () => setQuery({ status: null, agent: null, session: null, label: null, search: null }),
  });
  return (
    <main class="runs">
      <h1 class="sr-only">Runs</h1>
      <div class="filters">
        <SearchBox input={search} value={filter.search ?? ""} />
        <div class="segments" role="group" aria-label="Status">
          {STATUSES.map((it) => (
            <button
              key={it.label}
              type="button"
              aria-pressed={(filter.status ?? "") === it.value}
              onClick={() => setQuery({ status: it.value })}
            >
              {it.label}
            </button>
          ))}
        </div>
        {(["agent", "session", "label"] as const).map((key) => {
          const value = filter[key];
          return value === undefined ? null : (
            <button key={key} type="button" class="chip" onClick={() => setQuery({ [key]: null })} aria-label={`Drop the filter ${key}`}>
              {key}: <Line value={value} /> ×
            </button>
          );
        })}
      </div>
      <List list={list} rows={rows} selected={selected} />
    </main>
  );
}

/** Asks when typing pauses, not at every key. */
function SearchBox(props: { value: string; input: preact.RefObject<HTMLInputElement> }) {
  const timer = useRef<ReturnType<typeof setTimeout>>();
  return (
    <input
      ref={props.input}
      type="search"
      class="search"
      placeholder="Search runs   /"
      aria-label="Search runs"
      defaultValue={props.value}
      onInput={(event) => {
        const text = event.currentTarget.value;
        clearTimeout(timer.current);
        timer.current = setTimeout(() => setQuery({ search: text }), 200);
      }}
    />
  );
}

function List(props: { list: RunList | null; rows: Run[]; selected: number }) {
  const { list, rows } = props;
  const state = list?.state.value ?? "loading";
  if (state === "failed") return <Empty title="The runs cannot be listed" detail={list?.error.value ?? ""} />;
  if (state === "loading") return <div class="loading" aria-busy="true" />;
  if (rows.length === 0) {
    const filtered = Object.keys(list?.filter ?? {}).length > 0;
    return filtered ? (
      <Empty title="No run matches" detail="Esc drops every filter." />
    ) : (
      <Empty title="No runs yet" detail="Start one with the button above, or with: logreel run SPEC" />
    );
  }
  return (
    <Virtual
      class="run-list"
      role="grid"
      label="Runs"
      count={rows.length}
      height={ROW}
      reveal={props.selected >= 0 ? props.selected : null}
      onEnd={() => void list?.loadMore()}
      header={
        <div class="run-row head" role="row">
          <span role="columnheader">Status</span>
          <span role="columnheader">Run</span>
          <span role="columnheader" class="wide-only">Session and labels</span>
          <span role="columnheader" class="num">Took</span>
          <span role="columnheader" class="num wide-only">Tokens</span>
          <span role="columnheader" class="num wide-only">Cost</span>
          <span role="columnheader" class="num">Started</span>
        </div>
      }
      row={(i) => {
        const run = rows[i];
        return run === undefined ? null : <RunRow key={run.id} run={run} selected={i === props.selected} />;
      }}
    />
  );
}

export function Empty(props: { title: string; detail: string }) {
  return (
    <div class="empty">
      <strong>{props.title}</strong>
      <span class="dim">
        <Text value={props.detail} lines={6} />
      </span>
    </div>
  );
}

/** What a reader wants to know of a run in one line. */
function gist(run: Run): { text: string; tone: string } {
  if (run.erased) return { text: "erased", tone: "dim" };
  if (run.error !== null) return { text: `${run.error.kind}: ${run.error.message}`, tone: "bad" };
  const asked = run.waiting.find((wait) => wait.prompt !== null || wait.tool !== null);
  if (run.status === "waiting" && asked !== undefined) return { text: asked.prompt ?? asked.tool ?? "", tone: "waits" };
  const tool = run.active_tools[0];
  if (tool !== undefined && run.finished_at === null) return { text: `calls ${tool.name}`, tone: "dim" };
  if (run.status === "cancelled" && run.reason !== null) return { text: run.reason, tone: "dim" };
  if (run.output !== null) return { text: inline(run.output), tone: "dim" };
  return { text: inline(run.input), tone: "dim" };
}

function RunRow(props: { run: Run; selected: boolean }) {
  const { run } = props;
  const { text, tone } = gist(run);
  const usage = run.usage;
  const tokens = usage.input_tokens + usage.output_tokens;
  const labels = Object.entries(run.labels);
  return (
    <div
      class={`run-row ${props.selected ? "selected" : ""}`}
      role="row"
      aria-selected={props.selected}
      data-run={run.id}
      onClick={(event) => {
        const on = event.target as HTMLElement;
        if (on.closest("a, button") === null && getSelection()?.isCollapsed !== false) go(runPath(run.id));
      }}
    >
      <span role="gridcell">
        <Status run={run} />
      </span>
      <span role="gridcell" class="run-what">
        <span class="run-name">
          <a href={runPath(run.id)} class="strong">
            <Line value={run.agent} max={80} />
          </a>{" "}
          <span class="mono dim">{shortId(run.id)}</span>
          {run.parent !== null && <span class="tag">{run.parent.relation}</span>}
          {run.durability === "relaxed" && <span class="tag">relaxed</span>}
        </span>
        <Line value={text} class={tone} />
      </span>
      <span role="gridcell" class="run-labels wide-only">
        {run.session !== null && <Filtering name="session" value={run.session} />}
        <span class="labels">
          {labels.slice(0, 3).map(([key, value]) => (
            <Filtering key={key} name="label" value={`${key}=${value}`} />
          ))}
        </span>
      </span>
      <span role="gridcell" class="num">{duration(tookMs(run, serverNow(), parseTime))}</span>
      <span role="gridcell" class="num wide-only">{tokens === 0 ? "–" : count(tokens)}</span>
      <span role="gridcell" class="num wide-only">{tokens === 0 ? "–" : money(usage.usd)}</span>
      <span role="gridcell" class="num dim" title={run.created_at}>{age(serverNow() - parseTime(run.created_at))}</span>
    </div>
  );
}

/** A value that filters the list when it is clicked. */
function Filtering(props: { name: string; value: string }) {
  return (
    <button
      type="button"
      class={props.name === "label" ? "label" : "plain"}
      title={`Only ${props.name} ${props.value}`}
      onClick={(event) => {
        event.preventDefault();
        setQuery({ [props.name]: props.value });
      }}
    >
      <Line value={props.value} max={60} />
    </button>
  );
}
