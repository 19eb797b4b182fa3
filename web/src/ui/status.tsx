// How a run stands, in a word and a colour that are the same everywhere.

import type { Run } from "../model/types";
import { isTerminal } from "../model/types";

export interface Standing {
  word: string;
  tone: "busy" | "wait" | "good" | "bad" | "off" | "new";
}

export function standing(run: Run): Standing {
  if (run.orphaned) return { word: "orphaned", tone: "bad" };
  switch (run.status) {
    case "created":
      return { word: "queued", tone: "new" };
    case "planning":
    case "executing":
    case "verifying":
      return { word: run.status, tone: "busy" };
    case "waiting": {
      const kinds = new Set(run.waiting.map((wait) => wait.kind));
      const first = (["in_doubt", "approval", "crash_loop", "paused", "budget", "signal"] as const).find((kind) => kinds.has(kind));
      const word = (first ?? run.waiting[0]?.kind ?? "waiting").replace("_", " ");
      return { word, tone: first === "in_doubt" || first === "crash_loop" ? "bad" : "wait" };
    }
    case "completed":
      return { word: "completed", tone: "good" };
    case "failed":
      return { word: "failed", tone: "bad" };
    case "cancelled":
      return { word: "cancelled", tone: "off" };
  }
}

export function Status(props: { run: Run; pill?: boolean }) {
  const { word, tone } = standing(props.run);
  return (
    <span class={`status is-${tone} ${props.pill ? "pill" : ""}`} data-status={props.run.status}>
      <span class="dot" aria-hidden="true" />
      {word}
    </span>
  );
}

/** From its beginning to its end, or to now. */
export function tookMs(run: Run, now: number, parse: (text: string) => number): number {
  const end = run.finished_at === null ? now : parse(run.finished_at);
  return Math.max(0, (isTerminal(run.status) ? end : now) - parse(run.created_at));
}
