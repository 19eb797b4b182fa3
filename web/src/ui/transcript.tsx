// The run as a conversation: what was said, what was called in between (folded), and what a model says
// right now. Words are asked for when they come in sight of the reader.

import { useEffect, useRef, useState } from "preact/hooks";
import { getBlob, Problem } from "../api";
import { callsOf, inline, summary, wordsOf } from "../model/summary";
import { duration, shortId } from "../model/time";
import type { Item, Outcome } from "../model/transcript";
import type { Json, LogEvent, Run } from "../model/types";
import type { OpenRun, Said } from "../open-run";
import { keepNode, nodes } from "../nodes";
import { runPath } from "../route";
import { Value } from "./json";
import { Empty } from "./runs";
import { Line, Text } from "./text";

/** Items that are laid out at once; earlier ones when they are asked for. */
const WINDOW = 120;

export function TranscriptView(props: { open: OpenRun; run: Run; select: (seq: number | null) => void }) {
  const { open, run } = props;
  void open.version.value;
  void open.cache.version.value;
  const { items } = open.model.transcript;
  const [from, setFrom] = useState<number | null>(null);
  const box = useRef<HTMLDivElement>(null);
  const stuck = useRef(true);
  const first = from ?? Math.max(0, items.length - WINDOW);
  const shown = items.slice(first, first + WINDOW * 2);
  const hidden = items.length - first - shown.length;
  const said = [...open.said.value];
  useEffect(() => {
    const element = box.current;
    if (element !== null && stuck.current && run.finished_at === null) element.scrollTop = element.scrollHeight;
  });
  if (items.length === 0 && said.length === 0)
    return <Empty title="Nothing was said yet" detail={open.link.value.is === "reading" ? "Reading…" : ""} />;
  return (
    <div
      ref={box}
      class="transcript"
      role="log"
      aria-label="Transcript"
      tabIndex={0}
      onScroll={(event) => {
        const it = event.currentTarget;
        stuck.current = it.scrollTop + it.clientHeight >= it.scrollHeight - 60;
      }}
    >
      <div class="transcript-items">
        {first > 0 && (
          <button type="button" class="small earlier" onClick={() => setFrom(Math.max(0, first - WINDOW))}>
            Show earlier ({first})
          </button>
        )}
        {shown.map((item) => (
          <ItemView key={keyOf(item)} item={item} {...props} />
        ))}
        {hidden > 0 && (
          <button type="button" class="small earlier" onClick={() => setFrom(first + WINDOW)}>
            Show later ({hidden})
          </button>
        )}
        {hidden === 0 && said.map(([call, words]) => <Saying key={call} words={words} />)}
      </div>
    </div>
  );
}

const keyOf = (item: Item): string =>
  item.type === "tool" ? `t ${item.call}` : item.type === "step" ? `s ${item.step}` : `${item.type} ${item.seq}`;

interface ItemProps {
  item: Item;
  open: OpenRun;
  run: Run;
  select: (seq: number | null) => void;
}

function ItemView(props: ItemProps) {
  const { item, open, select } = props;
  switch (item.type) {
    case "message":
      return <Message item={item} open={open} select={select} />;
    case "tool":
      return <Tool item={item} open={open} select={select} />;
    case "step":
      return <Step item={item} open={open} select={select} />;
    case "child":
      return (
        <div class="t-line">
          <Sign state={item.state} /> <Line value={item.step} class="mono" max={80} /> runs as{" "}
          <a class="mono" href={runPath(item.run)}>
            {shortId(item.run)}
          </a>
        </div>
      );
    case "wait":
      return <Waited item={item} open={open} select={select} />;
    case "queued": {
      const event = open.cache.peek(item.seq);
      return (
        <article class="said user">
          <Who name={text(event?.body?.by) || "someone"} note={item.taken ? "said to the agent" : "not taken yet"} seq={item.seq} select={select} />
          <Text value={text(event?.body?.text)} />
        </article>
      );
    }
    case "error": {
      const error = body(open.cache.peek(item.seq)?.body?.error);
      return (
        <div class="t-line bad" onClick={() => select(item.seq)}>
          ✗ the model call failed: <Line value={`${text(error.kind)}: ${text(error.message)}`} class="grow" />
        </div>
      );
    }
    case "output":
      return <Output item={item} open={open} />;
    case "mark":
      return <Mark item={item} open={open} select={select} />;
    case "end":
      return <End item={item} open={open} run={props.run} />;
    case "late": {
      const event = open.cache.peek(item.seq);
      return (
        <div class="t-line late" onClick={() => select(item.seq)}>
          <span class="tag">late</span>
          <Line value={open.model.kindOf(item.seq) ?? ""} class="mono" max={60} />
          <Line value={event === null ? "" : summary(event)} class="dim grow" />
        </div>
      );
    }
  }
}

const text = (value: Json | undefined): string => (typeof value === "string" ? value : "");
const body = (value: Json | undefined): { [key: string]: Json } =>
  typeof value === "object" && value !== null && !Array.isArray(value) ? value : {};

function Who(props: { name: string; note?: string; seq: number; select: (seq: number) => void }) {
  return (
    <header class="who">
      <Line value={props.name} class="strong" max={60} />
      {props.note !== undefined && props.note !== "" && <span class="tag">{props.note}</span>}
      <span class="grow" />
      <button type="button" class="plain mono dim" title="Show the event" onClick={() => props.select(props.seq)}>
        {props.seq}
      </button>
    </header>
  );
}

const ROLES: { [role: string]: string } = { user: "User", assistant: "Assistant", tool: "Tools", system: "System" };

/** A role of a newer build, or of someone who plays with us, is not a class. */
const roleClass = (role: string): string => (role in ROLES ? role : "other");

function Message(props: { item: Extract<Item, { type: "message" }>; open: OpenRun; select: (seq: number) => void }) {
  const { item, open } = props;
  const event = open.cache.peek(item.seq);
  const message = useMessage(item, event);
  const name = ROLES[item.role] ?? item.role;
  if (message === null) {
    return (
      <article class={`said ${roleClass(item.role)}`}>
        <Who name={name} note={item.label} seq={item.seq} select={props.select} />
        <div class="skeleton" aria-busy="true" />
      </article>
    );
  }
  const words = wordsOf(message);
  const calls = callsOf(message);
  if (words === "" && calls.length > 0 && item.role === "assistant") return null;
  return (
    <article class={`said ${roleClass(item.role)}`}>
      <Who name={name} note={item.label} seq={item.seq} select={props.select} />
      {words === "" ? <span class="dim">{message === "" ? "not to be read any more" : "no words"}</span> : <Text value={words} lines={40} />}
    </article>
  );
}

/** How long until a message is asked for again that could not be read. */
const ASK_AGAIN_MS = 3000;

/** A message from its event, or from the blob of its node; null until it is here. */
function useMessage(item: Extract<Item, { type: "message" }>, event: LogEvent | null): Json {
  const inside = event?.kind === "model.answered" ? (event.body?.message ?? null) : null;
  const isApart = inside !== null && typeof inside === "object" && !Array.isArray(inside) && "blob" in inside;
  const digest = isApart ? text(inside.blob) : inside === null ? item.node : null;
  const [, again] = useState(0);
  useEffect(() => {
    if (digest === null || nodes.has(digest)) return;
    let stale = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const ask = (): void => {
      getBlob(digest)
        .then((read) => JSON.parse(read) as Json)
        .catch((error: unknown) => {
          // Only what is gone stays unread: a server that is away comes back.
          if (error instanceof Problem && error.status !== 404) throw error;
          if (error instanceof TypeError) throw error;
          return "" as Json;
        })
        .then((node) => {
          keepNode(digest, body(node).message ?? node);
          if (!stale) again((n) => n + 1);
        })
        .catch(() => {
          if (!stale) timer = setTimeout(ask, ASK_AGAIN_MS);
        });
    };
    ask();
    return () => {
      stale = true;
      clearTimeout(timer);
    };
  }, [digest]);
  if (digest !== null) return nodes.get(digest) ?? null;
  return inside;
}

const SIGNS: { [state in Outcome]: string } = {
  running: "•",
  ok: "✓",
  failed: "✗",
  doubt: "?",
  denied: "✗",
  waiting: "…",
  skipped: "–",
};

function Sign(props: { state: Outcome }) {
  return (
    <span class={`sign ${props.state}`} aria-label={props.state}>
      {SIGNS[props.state]}
    </span>
  );
}

function Folding(props: { summary: preact.ComponentChildren; children: () => preact.ComponentChildren; class: string }) {
  const [open, setOpen] = useState(false);
  return (
    <details class={`folding ${props.class}`} open={open} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{props.summary}</summary>
      {open && <div class="folded">{props.children()}</div>}
    </details>
  );
}

function Tool(props: { item: Extract<Item, { type: "tool" }>; open: OpenRun; select: (seq: number) => void }) {
  const { item, open } = props;
  const called = open.cache.peek(item.called);
  const took = useTook(open, item.called, item.ended);
  return (
    <Folding
      class={`tool ${item.state}`}
      summary={
        <>
          <Sign state={item.state} />
          <Line value={item.name} class="mono strong" max={80} />
          <Line value={inline(called?.body?.arguments, 200)} class="mono dim grow" />
          <span class="dim nowrap">{item.state === "denied" ? "denied" : took}</span>
        </>
      }
    >
      {() => <ToolBody {...props} called={called} />}
    </Folding>
  );
}

function ToolBody(props: { item: Extract<Item, { type: "tool" }>; open: OpenRun; called: LogEvent | null; select: (seq: number) => void }) {
  const { item, open, called } = props;
  const ended = item.ended === 0 ? null : open.cache.peek(item.ended);
  const error = body(ended?.body?.error);
  return (
    <>
      <h3>
        Arguments{" "}
        <button type="button" class="plain mono dim" onClick={() => props.select(item.called)}>
          {item.called}
        </button>
      </h3>
      <Value value={called?.body?.arguments ?? null} mono />
      {ended !== null && (
        <>
          <h3>
            {ended.kind === "tool.returned" ? "Result" : "Outcome"}{" "}
            <button type="button" class="plain mono dim" onClick={() => props.select(item.ended)}>
              {item.ended}
            </button>
          </h3>
          {ended.kind === "tool.failed" ? (
            <div class="bad">
              <Line value={text(error.kind)} class="strong" max={120} /> <Text value={text(error.message)} mono />
            </div>
          ) : (
            <Value value={ended.body?.output ?? ended.body?.resolution ?? ended.body?.reason ?? null} mono />
          )}
        </>
      )}
    </>
  );
}

function useTook(open: OpenRun, from: number, to: number): string {
  const start = open.model.timeOf(from);
  const end = open.model.timeOf(to);
  return start === null || end === null ? "" : duration(end - start);
}

function Step(props: { item: Extract<Item, { type: "step" }>; open: OpenRun; select: (seq: number) => void }) {
  const { item, open } = props;
  const ended = item.ended === 0 ? null : open.cache.peek(item.ended);
  const error = body(ended?.body?.error);
  const gist = ended === null ? "" : ended.kind === "step.failed" ? text(error.message) : inline(ended.body?.output ?? ended.body?.reason, 200);
  return (
    <Folding
      class={`step ${item.state}`}
      summary={
        <>
          <Sign state={item.state} />
          <Line value={item.step} class="mono strong" max={120} />
          {item.attempts > 1 && <span class="tag">attempt {item.attempts}</span>}
          <Line value={gist} class={`grow ${item.state === "failed" ? "bad" : "dim"}`} />
        </>
      }
    >
      {() => (
        <>
          <button type="button" class="plain mono dim" onClick={() => props.select(item.ended || item.started)}>
            event {item.ended || item.started}
          </button>
          {ended?.kind === "step.failed" ? (
            <div class="bad">
              <Line value={text(error.kind)} class="strong" max={120} /> <Text value={text(error.message)} mono />
            </div>
          ) : (
            <Value value={ended?.body?.output ?? ended?.body?.reason ?? null} mono />
          )}
        </>
      )}
    </Folding>
  );
}

function Waited(props: { item: Extract<Item, { type: "wait" }>; open: OpenRun; select: (seq: number) => void }) {
  const { item, open } = props;
  const started = open.cache.peek(item.seq);
  const ended = item.ended === 0 ? null : open.cache.peek(item.ended);
  const asked = text(started?.body?.prompt) || text(started?.body?.tool) || text(started?.body?.name) || item.kind;
  const said = ended?.body?.approved === true ? "approved" : ended?.body?.approved === false ? "denied" : text(ended?.body?.outcome).replace("_", " ");
  return (
    <div class="t-line waited">
      <Sign state={item.ended === 0 ? "waiting" : ended?.body?.approved === false ? "denied" : "ok"} />
      <Line value={item.kind.replace("_", " ")} class="strong" max={40} /> <Line value={asked} class="grow" />
      {ended !== null && (
        <span class="dim nowrap">
          <Line value={said} max={40} />
          {text(ended.body?.by) !== "" && (
            <>
              {" by "}
              <Line value={text(ended.body?.by)} max={40} />
            </>
          )}
        </span>
      )}
      <button type="button" class="plain mono dim" onClick={() => props.select(item.seq)}>
        {item.seq}
      </button>
    </div>
  );
}

function Output(props: { item: Extract<Item, { type: "output" }>; open: OpenRun }) {
  const { item, open } = props;
  const pieces = item.events.map((seq) => {
    const event = open.cache.peek(seq);
    return event === null ? "" : typeof event.body?.text === "string" ? event.body.text : "[bytes that are no text]";
  });
  return (
    <article class={`said output ${item.stream === "stderr" ? "stderr" : "stdout"}`}>
      <Text value={pieces.join("")} mono />
    </article>
  );
}

function Mark(props: { item: Extract<Item, { type: "mark" }>; open: OpenRun; select: (seq: number) => void }) {
  const { item, open } = props;
  const event = open.cache.peek(item.seq);
  const told = event === null ? "" : markText(event);
  return (
    <div class="t-mark">
      <button type="button" class="plain dim" onClick={() => props.select(item.seq)}>
        <Line value={told === "" ? item.what : told} />
      </button>
    </div>
  );
}

function markText(event: LogEvent): string {
  const it = event.body ?? {};
  switch (event.kind) {
    case "run.resumed":
      return `taken over (${text(it.reason)}): ${text(it.owner)}`;
    case "run.forked":
      return `forked from ${shortId(text(body(it.parent).run))} at ${String(body(it.parent).seq)}`;
    case "context.compacted":
      return "the conversation before this was made shorter";
    case "verification.finished":
      return `checks: ${text(it.verdict).replace("_", " ")}`;
    case "signal.received":
      return `signal ${text(it.name)} ${inline(it.value, 80)}`;
    case "custom":
      return `${text(it.name)} ${inline(it.data, 120)}`;
    default:
      return event.kind;
  }
}

function End(props: { item: Extract<Item, { type: "end" }>; open: OpenRun; run: Run }) {
  const kind = props.open.model.kindOf(props.item.seq) ?? "";
  const tone = kind === "run.completed" ? "good" : kind === "run.failed" ? "bad" : "";
  return <div class={`t-end ${tone}`}>{kind.replace("run.", "")}</div>;
}

/** What a model says right now; the sealed message replaces it. */
function Saying(props: { words: Said }) {
  const { words } = props;
  return (
    <article class="said assistant live" aria-live="off" data-live="true">
      <header class="who">
        <span class="strong">Assistant</span>
        {words.attempt > 1 && <span class="tag">attempt {words.attempt}</span>}
        <span class="pulse" aria-label="is answering" />
      </header>
      {words.thinking !== "" && words.text === "" && (
        <div class="dim thinking">
          <Text value={words.thinking.slice(-2000)} lines={400} />
        </div>
      )}
      {words.text !== "" && <Text value={words.text.slice(-20_000)} lines={400} />}
      {words.tools.map((tool, i) => (
        <div key={i} class="dim mono">
          calls <Line value={tool} max={80} />
        </div>
      ))}
    </article>
  );
}
