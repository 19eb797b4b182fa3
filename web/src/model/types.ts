// The shapes of the API (INTERFACES C), as far as the page looks at them. Values are unknown: they
// come from models and tools.

export type Json = null | boolean | number | string | Json[] | { [key: string]: Json };

export interface LogEvent {
  run: string;
  seq: number;
  at: string;
  caller_at: string | null;
  epoch: number;
  kind: string;
  late: boolean;
  format: number;
  /** Null when it was erased. */
  body: { [key: string]: Json } | null;
  body_digest: string | null;
  digest: string;
  origin: string | null;
}

export type Status =
  | "created"
  | "planning"
  | "executing"
  | "verifying"
  | "waiting"
  | "completed"
  | "failed"
  | "cancelled";

export type WaitKind =
  | "approval"
  | "signal"
  | "timer"
  | "retry"
  | "child"
  | "paused"
  | "in_doubt"
  | "budget"
  | "crash_loop";

export interface Wait {
  id: string;
  kind: WaitKind;
  step: string | null;
  call: string | null;
  name: string | null;
  prompt: string | null;
  tool: string | null;
  arguments: Json;
  since: string;
  deadline: string | null;
  on_deadline: string | null;
}

export interface Cause {
  kind: string;
  message: string;
  step: string | null;
  retryable: boolean;
}

export interface Usage {
  input_tokens: number;
  output_tokens: number;
  cache_read_tokens: number;
  cache_write_tokens: number;
  reasoning_tokens: number;
  usd: number | null;
  model_calls: number;
  tool_calls: number;
}

export interface Used {
  tokens: number;
  usd: number;
  wall_ms: number | null;
  tool_calls: number;
  children: number;
}

export interface Budget {
  tokens: number | null;
  usd: number | null;
  wall_ms: number | null;
  tool_calls: number | null;
  children: number | null;
  used: Used;
  set_aside: Used;
}

export interface Check {
  name: string;
  verdict: "passed" | "failed" | "needs_review" | "skipped";
  required: boolean;
  message: string | null;
}

export interface StepView {
  id: string;
  status: "pending" | "running" | "waiting" | "finished" | "failed" | "skipped" | "in_doubt";
  attempts: number;
  effect: string | null;
  started_at: string | null;
  finished_at: string | null;
  output: Json;
  error: Cause | null;
}

export interface Run {
  id: string;
  session: string | null;
  kind: "agent" | "workflow" | "task" | "external" | "record";
  agent: string;
  status: Status;
  spec_digest: string;
  git: { commit: string; branch: string | null; dirty: boolean } | null;
  dir: string | null;
  input: Json;
  output: Json;
  error: Cause | null;
  created_at: string;
  updated_at: string;
  finished_at: string | null;
  event_count: number;
  head_digest: string;
  final_state_digest: string | null;
  verification: { verdict: Check["verdict"]; checks: Check[] } | null;
  labels: { [key: string]: string };
  parent: { run: string; seq: number; relation: "child" | "fork" | "retry" } | null;
  usage: Usage;
  state: Json;
  reason: string | null;
  erased: boolean;
  read_only: boolean;
  provenance: { host: string | null; logreel: string | null; models: string[]; tools: string[] };
  budget: Budget;
  waiting: Wait[];
  active_tools: { call: string; name: string; since: string }[];
  driver: { host: string; pid: number; since: string } | null;
  orphaned: boolean;
  durability: "full" | "relaxed";
  /** Only where they were asked for. */
  steps?: StepView[];
}

export interface Page<T> {
  items: T[];
  next: string | number | null;
  has_more: boolean;
}

export const isTerminal = (status: Status): boolean =>
  status === "completed" || status === "failed" || status === "cancelled";

/** Whether this ends its run: a late one does not. */
export const endsRun = (event: { kind: string; late: boolean }): boolean =>
  !event.late &&
  (event.kind === "run.completed" || event.kind === "run.failed" || event.kind === "run.cancelled");

/** Whether only a person can end the wait. */
export function needsPerson(wait: Wait): boolean {
  switch (wait.kind) {
    case "approval":
    case "signal":
    case "paused":
    case "in_doubt":
    case "budget":
    case "crash_loop":
      return true;
    case "retry":
      // Something outside the run is away, and nobody looks for it any more.
      return wait.step === null && wait.call === null && wait.deadline === null;
    case "timer":
    case "child":
      return false;
  }
}

/** The reference that stands for a value over 64 KiB. */
export interface BlobRef {
  blob: string;
  bytes: number;
  media_type: string;
}

export function asBlobRef(value: Json | undefined): BlobRef | null {
  if (value === null || typeof value !== "object" || Array.isArray(value)) return null;
  const { blob, bytes, media_type } = value;
  const isReference =
    Object.keys(value).length === 3 &&
    typeof blob === "string" &&
    typeof bytes === "number" &&
    typeof media_type === "string";
  return isReference ? { blob, bytes, media_type } : null;
}
