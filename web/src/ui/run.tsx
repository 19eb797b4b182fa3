// One run: what it is, how it stands, what it waits for, and the views of its log.

import { useEffect, useState } from "preact/hooks";
import * as commands from "../commands";
import { isTerminal, needsPerson, type Run } from "../model/types";
import { inline } from "../model/summary";
import { oneLine } from "../model/visible";
import { count, duration, money, parseTime, shortId } from "../model/time";
import { OpenRun } from "../open-run";
import { go, route, runPath, setQuery, TABS, type Tab } from "../route";
import { serverNow } from "../world";
import { acting, Actions, asking, lastForkable, performNow, type Act } from "./act";
import { Details } from "./details";
import { Events } from "./events";
import { Inspector } from "./inspector";
import { useKeys } from "./keys";
import { Value } from "./json";
import { Empty } from "./runs";
import { runLink } from "./shell";
import { State } from "./state";
import { Status, tookMs } from "./status";
import { Steps } from "./steps";
import { Line, Text } from "./text";
import { copy } from "./toast";
import { TranscriptView } from "./transcript";
import { WaitCard } from "./wait";
import { Waterfall } from "./waterfall";

export function RunPage(props: { id: string }) {
  const [open, setOpen] = useState<OpenRun | null>(null);
  useEffect(() => {
    const fresh = new OpenRun(props.id);
    setOpen(fresh);
    return () => {
      fresh.stop();
      runLink.value = null;
      asking.value = null;
    };
  }, [props.id]);
  if (open === null || open.id !== props.id) return <main class="run"><div class="loading" aria-busy="true" /></main>;
  return <Opened open={open} />;
}

const LABELS: { [tab in Tab]: string } = {
  timeline: "Timeline",
  transcript: "Transcript",
  events: "Events",
  state: "State",
  steps: "Steps",
  details: "Details",
};

/** What is shown first: what was said for an agent or a program, what ran for the rest. */
const firstTab = (run: Run): Tab => (run.kind === "record" ? "transcript" : "timeline");

function Opened(props: { open: OpenRun }) {
  const { open } = props;
  const run = open.run.value;
  const at = route.value;
  const link = open.link.value;
  useEffect(() => {
    runLink.value = link;
  }, [link]);
  useEffect(() => {
    if (run !== null) document.title = `${oneLine(run.agent, 60)} ${shortId(run.id)} · ${run.status} · Logreel`;
  }, [run?.status, run?.agent]);
  useEffect(() => {
    // Named by a short id or `@last`: the address gets the whole one.
    if (run !== null && run.id !== open.id) location.replace(runPath(run.id));
  }, [run?.id]);
  const tab = at.page === "run" && at.tab !== null ? at.tab : run === null ? "timeline" : firstTab(run);
  const selected = Number(at.query.get("seq") ?? 0) || null;
  const select = (seq: number | null): void => setQuery({ seq: seq === null ? null : String(seq) });
  const show = (to: Tab): void => go(`${runPath(open.id, to)}${selected === null ? "" : `?seq=${selected}`}`);
  useRunKeys(open, run, selected, select, show);
  useEffect(() => {
    // On a narrow screen not all of them are in sight.
    document.getElementById(`tab-${tab}`)?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [tab, run === null]);
  if (run === null) {
    return open.error.value === null ? (
      <main class="run"><div class="loading" aria-busy="true" /></main>
    ) : (
      <main class="run"><Empty title="This run cannot be shown" detail={open.error.value} /></main>
    );
  }
  // The state tells what its event changed by itself.
  const inspected = tab === "state" ? null : selected;
  return (
    <main class="run">
      <div class="run-main">
        <Header open={open} run={run} />
        <nav class="tabs" role="tablist" aria-label="Views">
          {TABS.map((it, i) => (
            <button
              key={it}
              type="button"
              role="tab"
              id={`tab-${it}`}
              aria-selected={it === tab}
              aria-controls="view"
              title={`${LABELS[it]} (${i + 1})`}
              onClick={() => show(it)}
            >
              {LABELS[it]}
              <TabCount open={open} run={run} tab={it} />
            </button>
          ))}
          <span class="grow" />
          <Reading open={open} run={run} />
        </nav>
        <div class="view" id="view" role="tabpanel" aria-labelledby={`tab-${tab}`}>
          {tab === "timeline" && <Waterfall open={open} selected={selected} select={select} />}
          {tab === "transcript" && <TranscriptView open={open} run={run} select={select} />}
          {tab === "events" && <Events open={open} run={run} selected={selected} select={select} />}
          {tab === "state" && <State open={open} run={run} selected={selected} select={select} />}
          {tab === "steps" && <Steps open={open} run={run} select={select} />}
          {tab === "details" && <Details run={run} />}
        </div>
      </div>
      {inspected !== null && <Inspector open={open} run={run} seq={inspected} select={select} />}
    </main>
  );
}

function useRunKeys(
  open: OpenRun,
  run: Run | null,
  selected: number | null,
  select: (seq: number | null) => void,
  show: (tab: Tab) => void,
): void {
  const can = run === null ? null : commands.possible(run);
  const ask = (act: Act): void => {
    asking.value = { open: acting(open), act };
  };
  const press = (button: string): void => document.querySelector<HTMLButtonElement>(`.wait-card ${button}`)?.click();
  useKeys({
    ...Object.fromEntries(TABS.map((tab, i) => [String(i + 1), () => show(tab)])),
    Escape: () => (selected === null ? go("#/runs") : select(null)),
    c: () => {
      if (can?.cancel) ask({ verb: "cancel" });
    },
    s: () => {
      if (can?.say) ask({ verb: "say" });
    },
    p: () => {
      if (run === null) return;
      if (can?.resume) void performNow(open, commands.resume(run.id), "Resumed");
      else if (can?.pause) void performNow(open, commands.pause(run.id), "Paused");
    },
    f: () => {
      if (run !== null && can?.fork) ask({ verb: "fork", at: selected ?? lastForkable(open, run) });
    },
    a: () => press(".approve"),
    d: () => press(".deny"),
  });
}

function TabCount(props: { open: OpenRun; run: Run; tab: Tab }) {
  const { open, run, tab } = props;
  void open.version.value;
  const n =
    tab === "events"
      ? Math.max(run.event_count, open.model.seq)
      : tab === "steps"
        ? open.model.steps.lines.size
        : tab === "state"
          ? open.model.documents.seqs.length
          : 0;
  return n === 0 ? null : <span class="tab-count">{count(n)}</span>;
}

/** How much of a long log was read so far. */
function Reading(props: { open: OpenRun; run: Run }) {
  void props.open.version.value;
  const { seq } = props.open.model;
  const length = props.run.event_count;
  if (seq >= length || length < 2000) return null;
  return (
    <span class="reading dim" role="status">
      reading {count(seq)} of {count(length)}
      <progress max={length} value={seq} />
    </span>
  );
}

function Header(props: { open: OpenRun; run: Run }) {
  const { open, run } = props;
  const link = open.link.value;
  const asked = isTerminal(run.status) ? [] : run.waiting.filter(needsPerson);
  const others = isTerminal(run.status) ? [] : run.waiting.filter((wait) => !needsPerson(wait));
  return (
    <header class="run-head">
      {link.is === "gone" && (
        <div class="banner bad" role="alert">
          <strong>This run is not in the store any more.</strong> {link.why} What you see is what was read before.
        </div>
      )}
      {open.isAnother.value && (
        <div class="banner" role="alert">
          <strong>The log of this run is not the one that was shown before.</strong> The server has another store, or an older
          copy of it; everything was read again.
        </div>
      )}
      {run.erased && (
        <div class="banner" role="alert">
          <strong>This run was erased.</strong> Its headers and its chain are kept; what it held is gone.
        </div>
      )}
      {run.orphaned && (
        <div class="banner bad">
          <strong>Its driver is gone.</strong> A worker takes it over, or <code>logreel resume {shortId(run.id)}</code> does.
        </div>
      )}
      {run.read_only && (
        <div class="banner">
          <strong>Imported, and read-only.</strong> <code>logreel resume --take-over</code> takes it over.
        </div>
      )}
      <div class="run-title">
        <a class="back dim" href="#/runs" aria-label="All runs">
          ←
        </a>
        <h1>
          <Line value={run.agent} max={120} />
        </h1>
        <Status run={run} pill />
        <button type="button" class="plain mono dim id" title={`${run.id} (copy)`} onClick={() => void copy(run.id, "the id")}>
          {shortId(run.id)}
        </button>
        <span class="grow" />
        <Actions open={open} run={run} />
      </div>
      <Facts run={run} />
      {run.input !== null && (
        <div class="run-input">
          <span class="dim">Input</span>
          <Line value={inline(run.input, 400)} />
        </div>
      )}
      <Budgets run={run} />
      {run.error !== null && (
        <div class="result bad">
          <div class="result-head">
            <Line value={run.error.kind.replace(/_/g, " ")} class="strong" max={120} />
            {run.error.step !== null && (
              <>
                <span class="dim">in</span>
                <Line value={run.error.step} class="mono dim" max={160} />
              </>
            )}
          </div>
          <Text value={run.error.message} lines={6} />
        </div>
      )}
      {run.status === "cancelled" && run.reason !== null && (
        <div class="result">
          <strong>Cancelled</strong>
          <Text value={run.reason} lines={4} />
        </div>
      )}
      {run.status === "completed" && run.output !== null && (
        <div class="result good">
          <Value value={run.output} lines={4} />
        </div>
      )}
      <LateFacts open={open} />
      {asked.map((wait) => (
        <WaitCard key={wait.id} open={acting(open)} run={run} wait={wait} />
      ))}
      {others.length > 0 && (
        <div class="dim waits-line">
          Waits for{" "}
          {others.slice(0, 4).map((wait, i) => (
            <span key={wait.id}>
              {i > 0 && ", "}
              {wait.kind.replace("_", " ")} <Line value={wait.step ?? wait.name ?? ""} class="mono" max={60} />
              {wait.deadline !== null && ` (${duration(Math.max(0, parseTime(wait.deadline) - serverNow()))})`}
            </span>
          ))}
          {others.length > 4 && ` and ${others.length - 4} more`}
        </div>
      )}
    </header>
  );
}

/** They change nothing of how it ended. */
function LateFacts(props: { open: OpenRun }) {
  const { open } = props;
  void open.version.value;
  const { late, lateFrom } = open.model;
  if (late === 0) return null;
  return (
    <div class="dim waits-line late-facts">
      <a href={`${runPath(open.id, "events")}?seq=${lateFrom}`}>{late === 1 ? "One fact" : `${late} facts`}</a> came after the end.
    </div>
  );
}

function Facts(props: { run: Run }) {
  const { run } = props;
  const { usage } = run;
  const tokens = usage.input_tokens + usage.output_tokens;
  return (
    <dl class="facts">
      <div>
        <dt>Took</dt>
        <dd>{duration(tookMs(run, serverNow(), parseTime))}</dd>
      </div>
      {tokens > 0 && (
        <div>
          <dt>Tokens</dt>
          <dd title={`${usage.input_tokens} in, ${usage.output_tokens} out, ${usage.cache_read_tokens} from cache`}>
            {count(usage.input_tokens)} in · {count(usage.output_tokens)} out
          </dd>
        </div>
      )}
      {usage.model_calls > 0 && (
        <div>
          <dt>Cost</dt>
          <dd title={usage.usd === null ? "The price of a model is not known" : ""}>{money(usage.usd)}</dd>
        </div>
      )}
      {usage.model_calls + usage.tool_calls > 0 && (
        <div>
          <dt>Calls</dt>
          <dd>
            {usage.model_calls} model · {usage.tool_calls} tool
          </dd>
        </div>
      )}
      {run.session !== null && (
        <div>
          <dt>Session</dt>
          <dd>
            <a href={`#/runs?session=${encodeURIComponent(run.session)}`}>
              <Line value={run.session} max={60} />
            </a>
          </dd>
        </div>
      )}
      {run.parent !== null && (
        <div>
          <dt>{run.parent.relation === "child" ? "Child of" : run.parent.relation === "retry" ? "Retry of" : "Fork of"}</dt>
          <dd>
            <a class="mono" href={`${runPath(run.parent.run)}?seq=${run.parent.seq}`}>
              {shortId(run.parent.run)}
            </a>{" "}
            <span class="dim">at {run.parent.seq}</span>
          </dd>
        </div>
      )}
      {run.git !== null && (
        <div>
          <dt>Git</dt>
          <dd class="mono" title={run.git.commit}>
            {oneLine(run.git.commit, 8).replace("…", "")}
            {run.git.dirty && <span class="dim"> dirty</span>}
          </dd>
        </div>
      )}
      {run.verification !== null && (
        <div>
          <dt>Checks</dt>
          <dd>
            <a href={runPath(run.id, "details")} class={`verdict ${run.verification.verdict}`}>
              {run.verification.verdict.replace("_", " ")}
            </a>
          </dd>
        </div>
      )}
      {run.driver !== null && (
        <div>
          <dt>Driven by</dt>
          <dd>
            <Line value={run.driver.host} max={40} /> <span class="dim mono">{run.driver.pid}</span>
          </dd>
        </div>
      )}
      {Object.entries(run.labels).map(([key, value]) => (
        <div key={key}>
          <dt>
            <Line value={key} max={40} />
          </dt>
          <dd>
            <a href={`#/runs?label=${encodeURIComponent(`${key}=${value}`)}`}>
              <Line value={value} max={60} />
            </a>
          </dd>
        </div>
      ))}
      {run.durability === "relaxed" && (
        <div>
          <dt>Durability</dt>
          <dd>relaxed</dd>
        </div>
      )}
    </dl>
  );
}

const SHOWN = {
  tokens: count,
  usd: (n: number): string => money(n),
  wall_ms: duration,
  tool_calls: count,
  children: count,
} as const;

function Budgets(props: { run: Run }) {
  const { budget } = props.run;
  const limits = (["tokens", "usd", "wall_ms", "tool_calls", "children"] as const).filter((key) => budget[key] !== null);
  if (limits.length === 0) return null;
  return (
    <div class="budgets">
      {limits.map((key) => {
        const limit = budget[key] ?? 0;
        const used = budget.used[key] ?? 0;
        const aside = budget.set_aside[key] ?? 0;
        const part = (n: number): number => (limit === 0 ? 100 : Math.min(100, (n / limit) * 100));
        const name = key === "wall_ms" ? "time" : key.replace("_", " ");
        return (
          <div key={key} class="budget" title={`${used} used, ${aside} set aside, of ${limit}`}>
            <span class="dim">{name}</span>
            <span
              class={`meter ${part(used + aside) >= 90 ? "near" : ""}`}
              role="meter"
              aria-label={`Budget: ${name}`}
              aria-valuemin={0}
              aria-valuemax={limit}
              aria-valuenow={Math.min(used, limit)}
            >
              <span style={{ width: `${part(used)}%` }} />
              <span class="aside" style={{ width: `${Math.min(part(aside), 100 - part(used))}%` }} />
            </span>
            <span>
              {SHOWN[key](used)} <span class="dim">/ {SHOWN[key](limit)}</span>
            </span>
          </div>
        );
      })}
    </div>
  );
}
