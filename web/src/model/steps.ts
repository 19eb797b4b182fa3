// The steps of a run: how each stands, and which event holds its result.

import { shownStep } from "./step";
import { parseTime } from "./time";
import type { Json, LogEvent, StepView } from "./types";
import { endsRun } from "./types";

export interface StepLine {
  id: string;
  status: StepView["status"];
  attempts: number;
  effect: string | null;
  started: number | null;
  finished: number | null;
  /** The last event of it: where its result, error or wait is. */
  seq: number;
  /** The run that does its work. */
  child: string | null;
}

const text = (value: Json | undefined): string => (typeof value === "string" ? value : "");

export class Steps {
  readonly lines = new Map<string, StepLine>();
  private waits = new Map<string, string>();

  apply(event: LogEvent): void {
    const body = event.body ?? {};
    const at = parseTime(event.at);
    if (endsRun(event)) return this.end();
    if (event.kind === "run.forked") return this.forked(body);
    if (event.kind === "wait.ended") {
      const step = this.waits.get(text(body.wait));
      const line = step === undefined ? undefined : this.lines.get(step);
      if (line === undefined) return;
      line.seq = event.seq;
      // An approval, signal or timer is the step's own work.
      if (line.status === "waiting") {
        line.status = line.effect === null ? "finished" : "pending";
        if (line.status === "finished") line.finished = at;
      }
      return;
    }
    const about = event.kind.startsWith("step.") || event.kind.startsWith("child.");
    const waits = event.kind === "wait.started" && body.step !== null && body.step !== undefined;
    if (!about && !waits) return;
    const line = this.line(body.step, event.seq);
    line.seq = event.seq;
    if (typeof body.effect === "string") line.effect = body.effect;
    if (typeof body.attempt === "number") line.attempts = Math.max(line.attempts, body.attempt);
    const began = typeof body.started_at === "string" ? parseTime(body.started_at) : null;
    switch (event.kind) {
      case "step.started":
        line.status = "running";
        line.started = at;
        line.finished = null;
        return;
      case "step.finished":
      case "step.failed":
        line.status = event.kind === "step.finished" ? "finished" : "failed";
        line.started = began ?? line.started ?? at;
        line.finished = at;
        return;
      case "step.retrying":
        line.status = "pending";
        line.finished = null;
        return;
      case "step.skipped":
        line.status = "skipped";
        line.attempts = Math.max(line.attempts, 1);
        return;
      case "step.in_doubt":
        line.status = "in_doubt";
        return;
      case "step.resolved": {
        const resolution = body.resolution ?? null;
        const failed = typeof resolution === "object" && resolution !== null && "failed" in resolution;
        line.status = resolution === "retry" ? "pending" : failed ? "failed" : "finished";
        if (line.status !== "pending") line.finished = at;
        return;
      }
      case "child.started":
        line.child = text(body.child);
        line.status = "waiting";
        line.effect = "child";
        line.attempts += 1;
        line.started = at;
        return;
      case "child.finished":
        line.status = body.status === "completed" ? "finished" : "failed";
        line.finished = at;
        return;
      case "wait.started":
        this.waits.set(text(body.wait), line.id);
        if (line.status !== "in_doubt") line.status = "waiting";
        line.started ??= at;
        line.attempts = Math.max(line.attempts, 1);
        return;
      default:
        return;
    }
  }

  private line(id: Json | undefined, seq: number): StepLine {
    const shown = shownStep(id);
    let line = this.lines.get(shown);
    if (line === undefined) {
      const nothing = { effect: null, started: null, finished: null, child: null };
      line = { id: shown, status: "pending", attempts: 0, seq, ...nothing };
      this.lines.set(shown, line);
    }
    return line;
  }

  /** After the end nothing runs and nothing waits. */
  private end(): void {
    for (const line of this.lines.values()) {
      if (line.status === "running") line.status = line.effect === "write" ? "in_doubt" : "failed";
      else if (line.status === "waiting") line.status = line.child === null ? "skipped" : "failed";
    }
  }

  /** A copy keeps what finished; everything else starts again. */
  private forked(body: { [key: string]: Json }): void {
    const forgotten = Array.isArray(body.forgotten) ? body.forgotten.map((id) => shownStep(id)) : [];
    for (const id of forgotten) this.lines.delete(id);
    for (const [id, line] of this.lines) if (line.status !== "finished") this.lines.delete(id);
  }
}
