// The conversation: which events are said, by whom, and what belongs together. An item knows where its
// words are in the log, not the words, so that a long run costs little.

import { shownStep } from "./step";
import type { Json, LogEvent } from "./types";
import { endsRun } from "./types";

export type Item =
  /** Said by someone: its words are in the event, or in the blob of a context node. */
  | { type: "message"; role: string; seq: number; node: string | null; label: string; call: string }
  | { type: "tool"; call: string; name: string; called: number; ended: number; state: Outcome }
  | { type: "step"; step: string; started: number; ended: number; state: Outcome; attempts: number }
  | { type: "child"; step: string; run: string; seq: number; state: Outcome }
  | { type: "wait"; wait: string; kind: string; seq: number; ended: number }
  | { type: "queued"; seq: number; taken: boolean }
  | { type: "error"; seq: number }
  | { type: "output"; stream: string; seq: number; to: number; events: number[] }
  | { type: "mark"; what: string; seq: number }
  | { type: "end"; seq: number }
  /** A fact that came after the end. */
  | { type: "late"; seq: number };

export type Outcome = "running" | "ok" | "failed" | "doubt" | "denied" | "waiting" | "skipped";

/** Output that comes line by line is shown in blocks of at most so many events. */
const BLOCK_MAX = 200;

const text = (value: Json | undefined): string => (typeof value === "string" ? value : "");

export class Transcript {
  readonly items: Item[] = [];
  /** Calls of models that are open: where live text goes. */
  readonly asking = new Map<string, number>();

  private tools = new Map<string, Extract<Item, { type: "tool" }>>();
  private steps = new Map<string, Extract<Item, { type: "step" }>>();
  private children = new Map<string, Extract<Item, { type: "child" }>>();
  private waits = new Map<string, Extract<Item, { type: "wait" }>>();
  private queued = new Map<number, Extract<Item, { type: "queued" }>>();
  /** An answer that the message after it repeats. */
  private answered: Extract<Item, { type: "message" }> | null = null;
  private lastAnswer: Extract<Item, { type: "message" }> | null = null;
  /** Calls that a person is asked about, by the wait. */
  private asked = new Map<string, Extract<Item, { type: "tool" }>>();
  private toolsSinceAnswer = 0;

  apply(event: LogEvent): void {
    const body = event.body ?? {};
    const { kind, seq } = event;
    if (endsRun(event)) {
      this.asking.clear();
      this.items.push({ type: "end", seq });
      return;
    }
    if (event.late) return this.late(kind, body, seq);
    switch (kind) {
      case "model.called":
        this.asking.set(text(body.call), typeof body.attempt === "number" ? body.attempt : 1);
        return;
      case "model.answered": {
        const call = text(body.call);
        this.asking.delete(call);
        this.answered = { type: "message", role: "assistant", seq, node: null, label: "", call };
        this.lastAnswer = this.answered;
        this.toolsSinceAnswer = 0;
        this.items.push(this.answered);
        return;
      }
      case "model.failed":
        this.asking.delete(text(body.call));
        this.items.push({ type: "error", seq });
        return;
      case "message.added":
        return this.message(body, seq);
      case "plan.made": {
        if (this.lastAnswer !== null) this.lastAnswer.label = "plan";
        return;
      }
      case "tool.called": {
        const item = this.tool(text(body.call), text(body.name), seq);
        item.called = seq;
        item.state = "running";
        return;
      }
      case "tool.returned":
        return this.toolEnded(body, seq, "ok");
      case "tool.failed": {
        const error = (body.error ?? {}) as { [key: string]: Json };
        return this.toolEnded(body, seq, error.kind === "denied" ? "denied" : "failed");
      }
      case "tool.in_doubt":
        return this.toolEnded(body, seq, "doubt");
      case "tool.resolved":
        return this.toolEnded(body, seq, "ok");
      case "step.started": {
        const item = this.step(body.step, seq);
        item.state = "running";
        item.attempts = Math.max(item.attempts, Number(body.attempt) || 1);
        return;
      }
      case "step.finished":
        return this.stepEnded(body, seq, "ok");
      case "step.failed":
        return this.stepEnded(body, seq, "failed");
      case "step.skipped":
        return this.stepEnded(body, seq, "skipped");
      case "step.in_doubt":
        return this.stepEnded(body, seq, "doubt");
      case "step.resolved":
        return this.stepEnded(body, seq, "ok");
      case "child.started": {
        const step = shownStep(body.step);
        const run = text(body.child);
        const item = { type: "child", step, run, seq, state: "running" } as const;
        const kept: Extract<Item, { type: "child" }> = { ...item };
        this.children.set(run, kept);
        this.items.push(kept);
        return;
      }
      case "child.finished": {
        const item = this.children.get(text(body.child));
        if (item !== undefined) item.state = body.status === "completed" ? "ok" : "failed";
        return;
      }
      case "wait.started":
        return this.waitStarted(body, seq);
      case "wait.ended": {
        const item = this.waits.get(text(body.wait));
        if (item !== undefined) item.ended = seq;
        const tool = this.asked.get(text(body.wait));
        if (tool?.state === "waiting" && body.approved === true) tool.state = "running";
        this.asked.delete(text(body.wait));
        return;
      }
      case "message.queued": {
        const item: Extract<Item, { type: "queued" }> = { type: "queued", seq, taken: false };
        this.queued.set(seq, item);
        this.items.push(item);
        return;
      }
      case "output.written": {
        const stream = text(body.stream);
        const last = this.items[this.items.length - 1];
        if (last?.type === "output" && last.stream === stream && last.events.length < BLOCK_MAX) {
          last.to = seq;
          last.events.push(seq);
        } else this.items.push({ type: "output", stream, seq, to: seq, events: [seq] });
        return;
      }
      case "context.compacted":
      case "run.forked":
      case "run.resumed":
      case "verification.finished":
      case "custom":
      case "signal.received":
        this.items.push({ type: "mark", what: kind, seq });
        return;
      default:
        return;
    }
  }

  /** It tells what became of a call or step, and changes nothing else. */
  private late(kind: string, body: { [key: string]: Json }, seq: number): void {
    this.items.push({ type: "late", seq });
    if (kind === "tool.returned" && this.tools.has(text(body.call))) this.toolEnded(body, seq, "ok");
    if (kind === "tool.failed" && this.tools.has(text(body.call))) this.toolEnded(body, seq, "failed");
    if (kind === "step.finished" && this.steps.has(shownStep(body.step))) this.stepEnded(body, seq, "ok");
    if (kind === "step.failed" && this.steps.has(shownStep(body.step))) this.stepEnded(body, seq, "failed");
  }

  private message(body: { [key: string]: Json }, seq: number): void {
    const role = text(body.role);
    const node = text(body.node);
    if (role === "assistant" && this.answered !== null) {
      // The answer, again, as the conversation keeps it.
      this.answered.node = node;
      this.answered = null;
      return;
    }
    // What the tools said is shown with their calls.
    if (role === "tool" && this.toolsSinceAnswer > 0) return;
    const taken = typeof body.queued === "number" ? this.queued.get(body.queued) : undefined;
    if (taken !== undefined) {
      taken.taken = true;
      return;
    }
    this.items.push({ type: "message", role, seq, node, label: "", call: "" });
  }

  private tool(call: string, name: string, seq: number): Extract<Item, { type: "tool" }> {
    this.toolsSinceAnswer += 1;
    const known = this.tools.get(call);
    if (known !== undefined) return known;
    const item: Extract<Item, { type: "tool" }> = {
      type: "tool",
      call,
      name,
      called: seq,
      ended: 0,
      state: "running",
    };
    this.tools.set(call, item);
    this.items.push(item);
    return item;
  }

  private toolEnded(body: { [key: string]: Json }, seq: number, state: Outcome): void {
    const item = this.tool(text(body.call), "tool", seq);
    item.ended = seq;
    item.state = state;
  }

  private step(id: Json | undefined, seq: number): Extract<Item, { type: "step" }> {
    const step = shownStep(id);
    const known = this.steps.get(step);
    if (known !== undefined) return known;
    const item: Extract<Item, { type: "step" }> = {
      type: "step",
      step,
      started: seq,
      ended: 0,
      state: "running",
      attempts: 1,
    };
    this.steps.set(step, item);
    this.items.push(item);
    return item;
  }

  private stepEnded(body: { [key: string]: Json }, seq: number, state: Outcome): void {
    const item = this.step(body.step, seq);
    item.ended = seq;
    item.state = state;
    item.attempts = Math.max(item.attempts, Number(body.attempt) || 1);
  }

  private waitStarted(body: { [key: string]: Json }, seq: number): void {
    const kind = text(body.kind);
    if (typeof body.call === "string" && kind === "approval") {
      const item = this.tool(body.call, text(body.tool), seq);
      item.state = "waiting";
      this.asked.set(text(body.wait), item);
    }
    // Waits for time and children are not said to anyone.
    if (kind === "child" || kind === "retry" || kind === "timer") return;
    const item: Extract<Item, { type: "wait" }> = {
      type: "wait",
      wait: text(body.wait),
      kind,
      seq,
      ended: 0,
    };
    this.waits.set(item.wait, item);
    this.items.push(item);
  }
}
