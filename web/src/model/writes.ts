// What a copy of the run would write outside a second time, told from its log as the engine tells it
// (`fork --at`): what was written later, what was under way, and what the copy does not keep. What children
// wrote is in their own logs; here it is known only that they start again.

import { shownStep } from "./step";
import type { Json, LogEvent } from "./types";

export interface Write {
  /** The step as it is shown, or the call. */
  id: string;
  /** What was called; null for a step. */
  tool: string | null;
  /** Where it was announced. */
  seq: number;
  outcome: "finished" | "failed" | "unknown";
  /** Where that is said; 0 when nobody knows. */
  ended: number;
}

export interface Outlook {
  /** Written after the point. */
  again: Write[];
  /** Under way at the point: it may have happened, and is done again. */
  open: Write[];
  /** Finished at the point, and not kept. */
  forgotten: Write[];
  /** They start again from their beginning, with whatever they wrote. */
  children: { run: string; step: string }[];
}

/** As much of an event as decides. */
interface Noted {
  seq: number;
  what: "announced" | "finished" | "failed" | "child" | "forked";
  id: string;
  /** The tool, or the child's run. */
  name: string | null;
}

const text = (value: Json | undefined): string => (typeof value === "string" ? value : "");

export class Writes {
  private noted: Noted[] = [];
  /** Steps and calls whose end matters. */
  private known = new Set<string>();

  apply(event: LogEvent): void {
    const body = event.body ?? {};
    const note = (what: Noted["what"], id: string, name: string | null = null): void => {
      this.noted.push({ seq: event.seq, what, id, name });
    };
    const step = (): string => `s ${shownStep(body.step)}`;
    const call = (): string => `c ${text(body.call)}`;
    const ended = (id: string, what: "finished" | "failed"): void => {
      if (this.known.has(id)) note(what, id);
    };
    const resolved = (id: string): void => {
      const it = body.resolution;
      if (typeof it === "object" && it !== null) ended(id, "failed" in it ? "failed" : "finished");
    };
    switch (event.kind) {
      case "step.started":
      case "tool.called": {
        if (body.effect !== "write") return;
        const id = event.kind === "step.started" ? step() : call();
        this.known.add(id);
        return note("announced", id, event.kind === "step.started" ? null : text(body.name));
      }
      case "child.started":
        this.known.add(step());
        return note("child", step(), text(body.child));
      case "step.finished":
        return ended(step(), "finished");
      case "step.failed":
        return ended(step(), "failed");
      case "tool.returned":
        return ended(call(), "finished");
      case "tool.failed":
        return ended(call(), "failed");
      case "step.resolved":
        return resolved(step());
      case "tool.resolved":
        return resolved(call());
      case "run.forked":
        return note("forked", "");
      default:
        return;
    }
  }

  /** What a copy that leaves after event `at` does again; `anew`: its conversation begins again. */
  outlook(at: number, anew: boolean): Outlook {
    const found = new Map<string, Write & { early: boolean }>();
    const children = new Map<string, string>();
    for (const { seq, what, id, name } of this.noted) {
      const early = seq <= at;
      const known = found.get(id);
      if (what === "announced") {
        // Tried again later: it is the same write.
        if (known !== undefined && known.early && !early) {
          if (known.outcome !== "finished") Object.assign(known, { outcome: "unknown", ended: 0 });
        } else found.set(id, { id: id.slice(2), tool: name, seq, outcome: "unknown", ended: 0, early });
      } else if (what === "child") {
        children.set(name ?? "", id);
      } else if (what === "forked") {
        if (!early) continue;
        // What was under way where this run left another one is not its own.
        for (const [key, write] of found) if (write.outcome !== "finished") found.delete(key);
        if (!anew) children.clear();
      } else {
        const kept = early && !(what === "finished" && anew);
        if (kept && what === "finished") for (const [run, of] of children) if (of === id) children.delete(run);
        if (kept) found.delete(id);
        else if (known !== undefined) Object.assign(known, { outcome: what, ended: seq });
      }
    }
    const outlook: Outlook = { again: [], open: [], forgotten: [], children: [] };
    for (const { early, ...write } of found.values()) {
      if (!early) outlook.again.push(write);
      else if (write.outcome === "finished" && write.ended <= at) outlook.forgotten.push(write);
      else outlook.open.push(write);
    }
    for (const list of [outlook.again, outlook.open, outlook.forgotten]) list.sort((a, b) => a.seq - b.seq);
    for (const [run, step] of children) outlook.children.push({ run, step: step.slice(2) });
    return outlook;
  }
}
