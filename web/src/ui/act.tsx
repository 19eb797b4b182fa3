// Acting on a run: the buttons of its header, and what each asks first.

import { signal } from "@preact/signals";
import { useState } from "preact/hooks";
import { headers, intention, post } from "../api";
import * as commands from "../commands";
import type { OpenRun } from "../open-run";
import type { Json, Run, Wait } from "../model/types";
import { shortId } from "../model/time";
import { oneLine } from "../model/visible";
import { go, runPath } from "../route";
import { refreshSoon } from "../runs-store";
import { AnswerAsk, Over, ResolveAsk, type Doubt, type Said } from "./answer";
import { useAgain } from "./again";
import { Ask, CopyAs, Dialog } from "./dialog";
import { copy, toast, toastError } from "./toast";

export type Act =
  | { verb: "cancel" }
  | { verb: "retry" }
  | { verb: "say" }
  /** For a wait when it was asked where that is shown. */
  | { verb: "budget"; wait?: Wait }
  | { verb: "copy" }
  | { verb: "answer"; wait: Wait; said: Said }
  | { verb: "resolve"; wait: Wait; became: Doubt }
  | { verb: "fork"; at: number };

/** A run that can be asked something: the open one, or one of the inbox. */
export interface Actable {
  run: { readonly value: Run | null };
  /** Looks at it again. */
  snapshot(): Promise<void>;
  /** Its log, where that is read. */
  readonly log?: OpenRun;
}

/** The open run, with its log. */
export const acting = (open: OpenRun): Actable => ({ run: open.run, snapshot: () => open.snapshot(), log: open });

/** The question that is open. */
export const asking = signal<{ open: Actable; act: Act } | null>(null);

/** Sends a command; the answer is the run as it is after. */
export async function perform(command: commands.Command, key: string): Promise<Run> {
  const run = await post<Run>(command.path, command.body, key);
  refreshSoon(null);
  return run;
}

/** Without a question: it can be undone. */
export async function performNow(open: Actable, command: commands.Command, done: string): Promise<void> {
  try {
    await perform(command, intention());
    toast("good", done);
  } catch (error) {
    toastError(error);
  }
  await open.snapshot();
}

/** JSON when it is an object or a list, else text: as the command line reads INPUT. */
export function readInput(text: string): Json {
  try {
    const value = JSON.parse(text) as Json;
    if (typeof value === "object" && value !== null) return value;
  } catch {
    // Then it is text.
  }
  return text;
}

export function Actions(props: { open: OpenRun; run: Run }) {
  const { open, run } = props;
  const can = commands.possible(run);
  const ask = (act: Act): void => {
    asking.value = { open: acting(open), act };
  };
  return (
    <div class="actions" role="toolbar" aria-label="Actions">
      {can.resume && (
        <button type="button" class="primary" onClick={() => void performNow(open, commands.resume(run.id), "Resumed")}>
          Resume
        </button>
      )}
      {can.retry && (
        <button type="button" class="primary" onClick={() => ask({ verb: "retry" })}>
          Retry
        </button>
      )}
      {can.say && (
        <button type="button" onClick={() => ask({ verb: "say" })}>
          Say
        </button>
      )}
      {can.pause && (
        <button type="button" onClick={() => void performNow(open, commands.pause(run.id), "Paused")}>
          Pause
        </button>
      )}
      {can.cancel && (
        <button type="button" class="danger quiet" onClick={() => ask({ verb: "cancel" })}>
          Cancel
        </button>
      )}
      <More open={open} run={run} ask={ask} />
    </div>
  );
}

function More(props: { open: OpenRun; run: Run; ask: (act: Act) => void }) {
  const { open, run } = props;
  const [shown, setShown] = useState(false);
  const can = commands.possible(run);
  const item = (label: string, act: () => void) => (
    <button
      type="button"
      role="menuitem"
      onClick={() => {
        setShown(false);
        act();
      }}
    >
      {label}
    </button>
  );
  return (
    <div
      class="menu"
      onKeyDown={(event) => {
        if (event.key === "Escape") setShown(false);
      }}
      onFocusOut={(event) => {
        if (!(event.currentTarget as HTMLElement).contains(event.relatedTarget as Node | null)) setShown(false);
      }}
    >
      <button type="button" class="icon" aria-label="More" aria-haspopup="menu" aria-expanded={shown} onClick={() => setShown(!shown)}>
        ⋯
      </button>
      {shown && (
        <div class="menu-items" role="menu">
          {can.budget && item("Raise a budget…", () => props.ask({ verb: "budget" }))}
          {can.fork && item("Fork…", () => props.ask({ verb: "fork", at: lastForkable(open, run) }))}
          {item("Download (JSON Lines)", () => void download(open, "jsonl"))}
          {item("Download (reel)", () => void download(open, "reel"))}
          {item("Copy id", () => void copy(run.id, "the id"))}
          {item("Copy as CLI or curl…", () => props.ask({ verb: "copy" }))}
        </div>
      )}
    </div>
  );
}

/** A fork must leave before the end. */
export const lastForkable = (open: OpenRun, run: Run): number => {
  const end = [...open.model.seqsOf(new Set(["run.completed", "run.failed", "run.cancelled"]))][0];
  return Math.max(1, (end ?? run.event_count + 1) - 1);
};

async function download(open: OpenRun, format: string): Promise<void> {
  try {
    const response = await fetch(open.exportAddress(format), { headers: headers() });
    if (!response.ok) throw new Error(`The server answered ${response.status}.`);
    const link = document.createElement("a");
    link.href = URL.createObjectURL(await response.blob());
    link.download = `${open.id}.${format}`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
  } catch (error) {
    toastError(error);
  }
}

/** Whatever question is open. */
export function Asking() {
  const now = asking.value;
  const run = now?.open.run.value;
  if (now === null || run === undefined || run === null) return null;
  const close = (): void => {
    asking.value = null;
  };
  const done = async (command: commands.Command, key: string, said: string): Promise<void> => {
    try {
      await perform(command, key);
      toast("good", said);
    } finally {
      // When it was refused, the page shows how the run stands by now.
      await now.open.snapshot();
    }
  };
  const props = { run, open: now.open, close, done };
  switch (now.act.verb) {
    case "cancel":
      return <CancelAsk {...props} />;
    case "retry":
      return <RetryAsk {...props} />;
    case "say":
      return <SayAsk {...props} />;
    case "budget":
      return <BudgetAsk {...props} wait={now.act.wait ?? null} />;
    case "copy":
      return <CopyList {...props} />;
    case "answer":
      return <AnswerAsk {...props} wait={now.act.wait} said={now.act.said} />;
    case "resolve":
      return <ResolveAsk {...props} wait={now.act.wait} became={now.act.became} />;
    case "fork":
      return <ForkAsk {...props} at={now.act.at} />;
  }
}

export interface AskProps {
  run: Run;
  open: Actable;
  close: () => void;
  done: (command: commands.Command, key: string, said: string) => Promise<void>;
}

function CancelAsk(props: AskProps) {
  const [reason, setReason] = useState("");
  return (
    <Ask
      title={`Cancel ${oneLine(props.run.agent, 60)}?`}
      verb="Cancel the run"
      danger
      command={() => commands.cancel(props.run.id, reason)}
      send={(command, key) => props.done(command, key, "Cancelled")}
      onClose={props.close}
    >
      <p>
        Its work is stopped, and so are its children. <strong>This cannot be undone</strong>; a retry goes on
        as a new run.
      </p>
      <label>
        Reason <span class="dim">(kept in the log)</span>
        <input type="text" value={reason} autoFocus onInput={(event) => setReason(event.currentTarget.value)} />
      </label>
    </Ask>
  );
}

function RetryAsk(props: AskProps) {
  const again = useAgain(props.run.id, commands.retry(props.run.id));
  return (
    <Ask
      title="Retry as a new run?"
      verb="Retry"
      keep="Close"
      danger={again.writes}
      command={() => again.command}
      send={async (command, key) => opened(await perform(command, key), "Retried as")}
      onClose={props.close}
    >
      <p>What finished is kept and not done again; what failed or was open starts again.</p>
      {again.list}
    </Ask>
  );
}

const opened = (run: Run, said: string): void => {
  toast("good", `${said} ${shortId(run.id)}`);
  go(runPath(run.id));
};

function SayAsk(props: AskProps) {
  const [text, setText] = useState("");
  const [request] = useState(intention);
  return (
    <Ask
      title="Say something to the agent"
      verb="Say it"
      keep="Close"
      command={() => (text.trim() === "" ? null : commands.say(props.run.id, text, request))}
      send={(command, key) => props.done(command, key, "Said; it is taken at the next turn")}
      onClose={props.close}
    >
      <label>
        Message <span class="dim">(taken at its next turn)</span>
        <textarea rows={4} value={text} autoFocus onInput={(event) => setText(event.currentTarget.value)} />
      </label>
    </Ask>
  );
}

const LIMITS = [
  { key: "tokens", label: "Tokens", step: "1" },
  { key: "usd", label: "US dollars", step: "any" },
  { key: "wall_ms", label: "Milliseconds of driven time", step: "1" },
  { key: "tool_calls", label: "Tool calls", step: "1" },
  { key: "children", label: "Child runs", step: "1" },
] as const;

function BudgetAsk(props: AskProps & { wait: Wait | null }) {
  const limited = LIMITS.filter(({ key }) => props.run.budget[key] !== null);
  const [amounts, setAmounts] = useState<{ [key: string]: number }>({});
  const add = Object.fromEntries(Object.entries(amounts).filter(([, amount]) => amount > 0));
  return (
    <Ask
      title="Raise a budget"
      verb="Add"
      keep="Close"
      command={() => (Object.keys(add).length === 0 ? null : commands.addBudget(props.run.id, add, props.wait?.id))}
      send={(command, key) => props.done(command, key, "Raised")}
      onClose={props.close}
    >
      {props.wait !== null && (
        <Over run={props.run} wait={props.wait} why="Someone else raised the budget, or the run ended: nothing is added for it twice." />
      )}
      {limited.length === 0 && <p>This run has no limits.</p>}
      {limited.length > 0 && <p>Added to the run and to every run above it. A raise cannot be taken back.</p>}
      {limited.map(({ key, label, step }) => (
        <label key={key}>
          {label} <span class="dim">(now {String(props.run.budget[key])}, used {String(props.run.budget.used[key] ?? 0)})</span>
          <input
            type="number"
            min="0"
            step={step}
            placeholder="add"
            onInput={(event) => setAmounts({ ...amounts, [key]: Number(event.currentTarget.value) })}
          />
        </label>
      ))}
    </Ask>
  );
}

function ForkAsk(props: AskProps & { at: number }) {
  const { run, open } = props;
  const [at, setAt] = useState(props.at);
  const [input, setInput] = useState("");
  const [model, setModel] = useState("");
  const [message, setMessage] = useState("");
  const most = open.log === undefined ? 1 : lastForkable(open.log, run);
  const valid = Number.isInteger(at) && at >= 1 && at <= most;
  const changes = {
    ...(input === "" ? {} : { input: readInput(input) }),
    ...(model === "" ? {} : { model }),
    ...(message === "" ? {} : { message }),
  };
  const again = useAgain(run.id, valid ? commands.fork(run.id, at, changes) : null);
  return (
    <Ask
      title="Fork into a new run"
      verb="Fork"
      keep="Close"
      danger={again.writes}
      command={() => again.command}
      send={async (command, key) => opened(await perform(command, key), "Forked as")}
      onClose={props.close}
    >
      <p>
        The new run shares the log up to this event and goes on from there. This run stays as it is.
      </p>
      <label>
        At event <span class="dim">(1 to {most})</span>
        <input type="number" min="1" max={most} value={at} autoFocus onInput={(event) => setAt(Number(event.currentTarget.value))} />
      </label>
      <label>
        Another input <span class="dim">(empty = as it was)</span>
        <textarea rows={2} value={input} onInput={(event) => setInput(event.currentTarget.value)} />
      </label>
      {run.kind === "agent" && (
        <>
          <label>
            Say to it <span class="dim">(taken at its next turn)</span>
            <textarea rows={2} value={message} onInput={(event) => setMessage(event.currentTarget.value)} />
          </label>
          <label>
            Another model <span class="dim">(empty = as it was)</span>
            <input type="text" value={model} onInput={(event) => setModel(event.currentTarget.value)} />
          </label>
        </>
      )}
      {again.list}
    </Ask>
  );
}

/** What is done without a question, and what only reads, as commands for a shell. */
function CopyList(props: AskProps) {
  const { run } = props;
  const can = commands.possible(run);
  const [key] = useState(intention);
  const rows: [string, commands.Command][] = [
    ["Show it", commands.show(run.id)],
    ["Follow its events", commands.follow(run.id)],
    ...(can.pause ? [["Pause", commands.pause(run.id)] as [string, commands.Command]] : []),
    ...(can.resume ? [["Resume", commands.resume(run.id)] as [string, commands.Command]] : []),
    ["Download (JSON Lines)", commands.download(run.id, "jsonl")],
    ["Download (reel)", commands.download(run.id, "reel")],
  ];
  return (
    <Dialog title="Copy as CLI or curl" onClose={props.close}>
      <dl class="table copies">
        {rows.map(([name, command]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>
              <CopyAs command={command} commandKey={key} />
            </dd>
          </div>
        ))}
      </dl>
      <p class="dim">Whatever asks first can be copied where it asks.</p>
    </Dialog>
  );
}
