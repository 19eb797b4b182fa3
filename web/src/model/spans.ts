// The waterfall: events folded into rows with bars. A row is a phase, turn, call, step or wait; its
// bars are its attempts and the time it waited. Only what is drawn is kept, never a body.

import { shownStep, stepPath } from "./step";
import { parseTime } from "./time";
import type { Json, LogEvent } from "./types";
import { endsRun } from "./types";

export type RowKind = "phase" | "turn" | "model" | "tool" | "step" | "group" | "child" | "wait";
export type BarState = "running" | "ok" | "failed" | "waiting" | "doubt" | "lost" | "skipped";

export interface Bar {
  start: number;
  /** Null while it goes on. */
  end: number | null;
  state: BarState;
  /** Whether it is time that nobody worked. */
  idle: boolean;
  epoch: number;
}

export interface Row {
  kind: RowKind;
  name: string;
  /** The call, wait or child that it is, for those who ask. */
  ref: string;
  bars: Bar[];
  /** The events that it began and ended with; 0 while it goes on. */
  from: number;
  to: number;
  depth: number;
  children: Row[];
  /** Of a group: whether its rows are shown. */
  open: boolean;
}

export interface Mark {
  at: number;
  seq: number;
  kind: string;
}

export interface Gap {
  start: number;
  end: number;
}

/** Marks are a few; a log full of them is told by its events. */
const MARKS_MAX = 500;
/** Pauses shorter than this are never worth folding away. */
const GAP_MIN_MS = 1000;
/** A group of more rows than this begins folded. */
const GROUP_OPEN_MAX = 30;

/** Most rows have nothing below them, and share this. */
const NOBODY: Row[] = [];

const MARKED = new Set([
  "run.resumed",
  "run.forked",
  "signal.received",
  "message.queued",
  "budget.changed",
  "spec.changed",
  "checkpoint.saved",
  "checkpoint.restored",
  "context.compacted",
  "custom",
]);

const text = (value: Json | undefined): string => (typeof value === "string" ? value : "");
const num = (value: Json | undefined): number => (typeof value === "number" ? value : 0);

export class Spans {
  readonly top: Row[] = [];
  readonly marks: Mark[] = [];
  readonly gaps: Gap[] = [];
  start = 0;
  last = 0;
  ended = false;
  /** How many rows there are, groups included. */
  size = 0;

  private phase: Row | null = null;
  private turn: Row | null = null;
  private steps = new Map<string, Row>();
  private calls = new Map<string, Row>();
  private waits = new Map<string, { row: Row; bar: Bar }>();
  private children = new Map<string, Row>();
  private groups = new Map<string, Row>();
  /** Rows with a bar that goes on. */
  private open = new Set<Row>();
  private working = 0;
  private epoch = 0;

  apply(event: LogEvent): void {
    const at = parseTime(event.at);
    if (this.start === 0) this.start = at;
    const body = event.body ?? {};
    this.passTime(at, body, event.epoch > this.epoch);
    if (event.epoch > this.epoch) {
      // What the driver before had under way ended with it.
      this.interrupt(this.last || at);
      this.epoch = event.epoch;
    }
    this.last = Math.max(this.last, at);
    if (event.late) {
      this.late(event.kind, body, event.seq);
      return;
    }
    this.fold(event, at, body);
    if (MARKED.has(event.kind) && this.marks.length < MARKS_MAX)
      this.marks.push({ at, seq: event.seq, kind: event.kind });
    if (endsRun(event)) this.end(event, at);
  }

  /** Whether nobody works on it: what passes from now on is a pause. */
  get idle(): boolean {
    return this.working === 0;
  }

  /** The rows that are shown, in order. */
  rows(): Row[] {
    const shown: Row[] = [];
    const visit = (row: Row): void => {
      shown.push(row);
      if (row.open) for (const child of row.children) visit(child);
    };
    for (const row of this.top) visit(row);
    return shown;
  }

  /** The row that an event begins or ends, else the innermost one around it. */
  find(seq: number): Row | null {
    let around: Row | null = null;
    const visit = (rows: Row[]): Row | null => {
      for (const row of rows) {
        if (row.kind !== "group") {
          if (row.from === seq || row.to === seq) return row;
          const holds = row.from < seq && (row.to === 0 || seq < row.to);
          if (holds && (around === null || row.depth >= around.depth)) around = row;
        }
        const found = visit(row.children);
        if (found !== null) return found;
      }
      return null;
    };
    return visit(this.top) ?? around;
  }

  /** Nobody worked since the last event when nothing was under way, or when its driver was gone. */
  private passTime(at: number, body: { [key: string]: Json }, takenOver: boolean): void {
    if (this.last === 0 || (this.working > 0 && !takenOver)) return;
    // A short step was not announced: work began when it says, not when it was appended.
    const began = typeof body.started_at === "string" ? parseTime(body.started_at) : at;
    const end = Math.min(at, Math.max(began, this.last));
    if (end - this.last >= GAP_MIN_MS) this.gaps.push({ start: this.last, end });
  }

  private fold(event: LogEvent, at: number, body: { [key: string]: Json }): void {
    const { kind, seq } = event;
    switch (kind) {
      case "phase.entered": {
        if (this.turn !== null) this.close(this.turn, at, seq, "ok");
        this.turn = null;
        if (this.phase !== null) this.close(this.phase, at, seq, "ok");
        this.phase = this.row(null, "phase", text(body.phase), "", seq);
        this.bar(this.phase, at, "running", false, false);
        return;
      }
      case "turn.started": {
        this.turn = this.row(this.phase, "turn", `turn ${num(body.turn)}`, "", seq);
        this.bar(this.turn, at, "running", false, false);
        return;
      }
      case "turn.finished": {
        if (this.turn !== null) this.close(this.turn, at, seq, "ok");
        this.turn = null;
        return;
      }
      case "model.called": {
        const row = this.call(text(body.call), "model", text(body.model), seq);
        this.close(row, at, seq, "lost");
        this.bar(row, at, "running", false);
        return;
      }
      case "model.answered":
        return this.closeCall(body, at, seq, "ok");
      case "model.failed":
        return this.closeCall(body, at, seq, "failed");
      case "tool.called": {
        const row = this.call(text(body.call), "tool", text(body.name), seq);
        this.close(row, at, seq, "lost");
        this.bar(row, at, "running", false);
        return;
      }
      case "tool.returned":
        return this.closeCall(body, at, seq, "ok");
      case "tool.failed": {
        const row = this.call(text(body.call), "tool", "tool", seq);
        if (!this.open.has(row)) this.bar(row, at, "running", false);
        this.close(row, at, seq, "failed");
        return;
      }
      case "tool.in_doubt":
        return this.closeCall(body, at, seq, "doubt");
      case "step.started": {
        const row = this.step(body.step, seq);
        this.close(row, at, seq, "lost");
        this.bar(row, at, "running", false);
        return;
      }
      case "step.finished":
      case "step.failed": {
        const row = this.step(body.step, seq);
        const began = typeof body.started_at === "string" ? parseTime(body.started_at) : null;
        // The bar of its child says it all.
        if (row.kind === "child" && !this.open.has(row)) return this.settle(row, seq);
        if (!this.open.has(row)) this.bar(row, Math.min(began ?? at, at), "running", false);
        this.close(row, at, seq, kind === "step.finished" ? "ok" : "failed");
        return;
      }
      case "step.retrying":
        return;
      case "step.skipped": {
        const row = this.step(body.step, seq);
        this.bar(row, at, "running", true);
        this.close(row, at, seq, "skipped");
        return;
      }
      case "step.in_doubt": {
        const row = this.step(body.step, seq);
        if (!this.open.has(row)) this.bar(row, at, "running", false);
        this.close(row, at, seq, "doubt");
        return;
      }
      case "child.started": {
        const row = this.step(body.step, seq);
        row.kind = "child";
        row.ref = text(body.child);
        this.children.set(row.ref, row);
        this.bar(row, at, "running", false);
        return;
      }
      case "child.finished": {
        const row = this.children.get(text(body.child)) ?? this.step(body.step, seq);
        this.close(row, at, seq, body.status === "completed" ? "ok" : "failed");
        return;
      }
      case "wait.started": {
        const row = this.waitRow(body, seq);
        if (body.suspends === true || body.kind === "in_doubt") this.close(row, at, seq, "lost");
        // A step that waits for its child shows the child's own bar.
        if (body.kind === "child" && this.open.has(row)) return;
        const bar = this.bar(row, at, "waiting", true);
        this.waits.set(text(body.wait), { row, bar });
        return;
      }
      case "wait.ended": {
        const wait = this.waits.get(text(body.wait));
        if (wait === undefined) return;
        this.waits.delete(text(body.wait));
        if (wait.bar.end === null) wait.bar.end = at;
        this.settle(wait.row, seq);
        return;
      }
      case "run.forked":
        this.interrupt(at);
        // Its epochs begin anew, and so does everything that had not ended.
        this.epoch = event.epoch;
        this.phase = null;
        this.turn = null;
        return;
      default:
        return;
    }
  }

  private row(parent: Row | null, kind: RowKind, name: string, ref: string, seq: number): Row {
    const depth = parent === null ? 0 : parent.depth + 1;
    const row: Row = { kind, name, ref, bars: [], from: seq, to: 0, depth, children: NOBODY, open: true };
    if (parent === null) this.top.push(row);
    else if (parent.children === NOBODY) parent.children = [row];
    else parent.children.push(row);
    if (parent?.kind === "group" && parent.children.length === GROUP_OPEN_MAX + 1) parent.open = false;
    this.size += 1;
    return row;
  }

  private call(ref: string, kind: RowKind, name: string, seq: number): Row {
    const known = this.calls.get(ref);
    if (known !== undefined) return known;
    const row = this.row(this.turn ?? this.phase, kind, name, ref, seq);
    this.calls.set(ref, row);
    return row;
  }

  private step(id: Json | undefined, seq: number): Row {
    const shown = shownStep(id);
    const known = this.steps.get(shown);
    if (known !== undefined) return known;
    const path = stepPath(id);
    const outer = path.outer === null ? null : this.steps.get(shownStep(path.outer));
    let parent: Row | null = outer ?? this.turn ?? this.phase;
    let name = outer ? (path.key === null ? path.name : `${path.name}[${path.key}]`) : shown;
    if (path.key !== null) {
      const place = `${path.outer === null ? "" : shownStep(path.outer)}/${path.name}`;
      let group = this.groups.get(place);
      if (group === undefined) {
        group = this.row(parent, "group", path.name, place, seq);
        this.groups.set(place, group);
      }
      parent = group;
      name = path.key;
    }
    const row = this.row(parent, "step", name, shown, seq);
    this.steps.set(shown, row);
    return row;
  }

  private waitRow(body: { [key: string]: Json }, seq: number): Row {
    if (body.step !== null && body.step !== undefined) return this.step(body.step, seq);
    if (typeof body.call === "string")
      return this.call(body.call, "tool", text(body.tool) || "tool", seq);
    const kind = text(body.kind).replace("_", " ");
    return this.row(null, "wait", kind, text(body.wait), seq);
  }

  private bar(row: Row, start: number, state: BarState, idle: boolean, work = !idle): Bar {
    const bar: Bar = { start, end: null, state, idle, epoch: this.epoch };
    row.bars.push(bar);
    row.to = 0;
    // A short step says only at its end when it began, which may be before its phase was recorded.
    for (const around of [this.turn, this.phase]) {
      const outer = around?.bars[0];
      if (outer !== undefined && outer !== bar && start < outer.start) outer.start = Math.max(start, this.start);
    }
    this.open.add(row);
    if (work) this.working += 1;
    return bar;
  }

  /** Ends what goes on in a row; waits end by themselves. */
  private close(row: Row, at: number, seq: number, state: BarState): void {
    if (!this.open.has(row)) return;
    for (const bar of row.bars) {
      if (bar.end !== null || bar.state === "waiting") continue;
      bar.end = at;
      bar.state = state;
      if (!bar.idle && row.kind !== "phase" && row.kind !== "turn") this.working -= 1;
    }
    this.settle(row, seq);
  }

  private closeCall(body: { [key: string]: Json }, at: number, seq: number, state: BarState): void {
    const row = this.calls.get(text(body.call));
    if (row !== undefined) this.close(row, at, seq, state);
  }

  private settle(row: Row, seq: number): void {
    if (row.bars.some((bar) => bar.end === null)) return;
    row.to = seq;
    this.open.delete(row);
  }

  /** A driver is gone: what it had under way stopped at its last sign of life. */
  private interrupt(at: number): void {
    for (const row of [...this.open]) {
      if (row.kind === "phase" || row.kind === "turn" || row.kind === "child") continue;
      this.close(row, at, row.from, "lost");
    }
  }

  private end(event: LogEvent, at: number): void {
    this.ended = true;
    const state: BarState = event.kind === "run.completed" ? "ok" : "lost";
    for (const row of [...this.open]) {
      for (const bar of row.bars) {
        if (bar.end !== null) continue;
        bar.end = at;
        if (bar.state !== "waiting")
          bar.state = row.kind === "phase" || row.kind === "turn" ? endOf(event.kind) : state;
      }
      row.to = event.seq;
    }
    this.open.clear();
    this.waits.clear();
    this.working = 0;
  }

  private late(kind: string, body: { [key: string]: Json }, seq: number): void {
    const row = kind.startsWith("step.")
      ? this.steps.get(shownStep(body.step))
      : this.calls.get(text(body.call));
    if (row === undefined) return;
    const bar = row.bars[row.bars.length - 1];
    if (bar?.state === "lost" && (kind.endsWith(".finished") || kind.endsWith(".returned")))
      bar.state = "ok";
    row.to = seq;
  }
}

const endOf = (kind: string): BarState =>
  kind === "run.completed" ? "ok" : kind === "run.failed" ? "failed" : "lost";

/** The state that a row shows: that of its last bar, and of a group the worst that is not over. */
export function stateOf(row: Row): BarState {
  if (row.kind !== "group") return row.bars[row.bars.length - 1]?.state ?? "running";
  let state: BarState = "ok";
  for (const child of row.children) {
    const its = stateOf(child);
    if (its === "running" || its === "waiting" || its === "doubt") return its;
    if (its === "failed") state = "failed";
  }
  return state;
}

/** From the first start to the last end of a row and all below it; null while it goes on. */
export function extent(row: Row): { start: number; end: number | null } {
  if (row.kind !== "group") {
    const first = row.bars[0];
    const last = row.bars[row.bars.length - 1];
    return { start: first?.start ?? 0, end: last === undefined ? 0 : last.end };
  }
  let start = Infinity;
  let end: number | null = 0;
  for (const child of row.children) {
    const its = extent(child);
    start = Math.min(start, its.start);
    if (end !== null) end = its.end === null ? null : Math.max(end, its.end);
  }
  return { start, end };
}
