// One line for one event: what a reader of the list wants to know of it.

import { shownStep } from "./step";
import { count, duration, shortDigest, shortId } from "./time";
import type { Json, LogEvent } from "./types";
import { asBlobRef } from "./types";
import { oneLine } from "./visible";

type Body = { [key: string]: Json };
const text = (value: Json | undefined): string => (typeof value === "string" ? value : "");

/** A value on one line. */
export function inline(value: Json | undefined, max = 160): string {
  if (value === undefined || value === null) return "";
  if (typeof value === "string") return oneLine(value, max);
  const reference = asBlobRef(value);
  if (reference !== null) return `[${count(reference.bytes)} bytes]`;
  return oneLine(JSON.stringify(value), max);
}

const cause = (value: Json | undefined): string => {
  const error = (value ?? {}) as Body;
  return `${text(error.kind)}: ${oneLine(text(error.message), 160)}`;
};

/** The words of a message, without calls and results. */
export function wordsOf(message: Json | undefined): string {
  if (typeof message === "string") return message;
  if (message === null || typeof message !== "object" || Array.isArray(message)) return "";
  const parts = message.parts ?? message.content;
  if (typeof parts === "string") return parts;
  if (!Array.isArray(parts)) return "";
  const words = parts.map((part) =>
    typeof part === "string" ? part : isBody(part) ? text(part.text) : "",
  );
  return words.join("");
}

/** The calls that a message makes. */
export function callsOf(message: Json | undefined): { call: string; name: string }[] {
  if (!isBody(message) || !Array.isArray(message.parts)) return [];
  const calls: { call: string; name: string }[] = [];
  for (const part of message.parts)
    if (isBody(part) && isBody(part.tool_call))
      calls.push({ call: text(part.tool_call.call), name: text(part.tool_call.name) });
  return calls;
}

const isBody = (value: Json | undefined): value is Body =>
  typeof value === "object" && value !== null && !Array.isArray(value);

/** Bodies are of others: whatever is in one, it is a line. */
export const summary = (event: LogEvent): string => oneLine(told(event), 600);

function told(event: LogEvent): string {
  const body = event.body;
  if (body === null) return "erased";
  const step = (): string => oneLine(shownStep(body.step), 80);
  const attempt = (): string =>
    typeof body.attempt === "number" && body.attempt > 1 ? ` · attempt ${body.attempt}` : "";
  switch (event.kind) {
    case "run.started":
      return `${text(body.kind)} ${oneLine(text(body.agent), 60)} ${inline(body.input, 120)}`;
    case "run.resumed":
      return `${text(body.reason)} · ${oneLine(text(body.owner), 80)}`;
    case "run.completed":
      return inline(body.output);
    case "run.failed":
      return cause(body.error);
    case "run.cancelled":
      return oneLine(text(body.reason));
    case "run.forked": {
      const parent = (body.parent ?? {}) as Body;
      return `${text(parent.relation)} of ${shortId(text(parent.run))} at ${String(parent.seq)}`;
    }
    case "phase.entered":
      return text(body.phase);
    case "plan.made":
      return inline(body.plan);
    case "turn.started":
    case "turn.finished":
      return `turn ${String(body.turn)}`;
    case "step.started":
      return `${step()}${attempt()}`;
    case "step.finished":
      return `${step()}${attempt()} → ${inline(body.output)}`;
    case "step.failed":
      return `${step()}${attempt()} · ${cause(body.error)}`;
    case "step.retrying":
      return `${step()} · attempt ${String(body.attempt)} in ${duration(Number(body.delay_ms))}`;
    case "step.skipped":
    case "step.in_doubt":
      return `${step()} · ${oneLine(text(body.reason))}`;
    case "step.resolved":
      return `${step()} · ${inline(body.resolution)} by ${oneLine(text(body.by), 60)}`;
    case "model.called":
      return `${text(body.call)} · ${oneLine(text(body.model), 80)}${attempt()}`;
    case "model.answered": {
      const calls = callsOf(body.message).map((call) => call.name);
      const words = oneLine(wordsOf(body.message), 160);
      return `${text(body.call)} · ${[words, ...calls.map((name) => `⟶ ${oneLine(name, 40)}`)].filter(Boolean).join(" ")}`;
    }
    case "model.failed":
      return `${text(body.call)} · ${cause(body.error)}`;
    case "tool.called":
      return `${oneLine(text(body.name), 60)} ${inline(body.arguments)}${attempt()}`;
    case "tool.returned":
      return `${oneLine(text(body.call), 40)} → ${inline(body.output)}`;
    case "tool.failed":
      return `${oneLine(text(body.call), 40)} · ${cause(body.error)}`;
    case "tool.in_doubt":
      return `${oneLine(text(body.call), 40)} · ${oneLine(text(body.reason))}`;
    case "tool.resolved":
      return `${oneLine(text(body.call), 40)} · ${inline(body.resolution)} by ${oneLine(text(body.by), 60)}`;
    case "message.added":
      return `${oneLine(text(body.role), 20)} · ${count(Number(body.length))} bytes · ${shortDigest(text(body.node))}`;
    case "message.queued":
      return `${oneLine(text(body.by), 40)} · ${oneLine(text(body.text))}`;
    case "state.patched":
      return inline(body.patch);
    case "checkpoint.saved":
    case "checkpoint.restored":
    case "checkpoint.deleted":
      return oneLine(text(body.checkpoint), 80);
    case "wait.started": {
      const about = text(body.prompt) || text(body.tool) || text(body.name) || shownOr(body.step);
      return `${text(body.wait)} ${text(body.kind)} · ${oneLine(about)}`;
    }
    case "wait.ended": {
      const said = body.approved === true ? " yes" : body.approved === false ? " no" : "";
      const by = text(body.by) === "" ? "" : ` by ${oneLine(text(body.by), 60)}`;
      return `${text(body.wait)} ${text(body.outcome)}${said}${by}`;
    }
    case "signal.received":
      return `${oneLine(text(body.name), 60)} ${inline(body.value)}`;
    case "child.started":
      return `${step()} → ${shortId(text(body.child))}`;
    case "child.finished":
      return `${step()} → ${shortId(text(body.child))} ${text(body.status)}`;
    case "budget.changed":
      return inline(body.budget);
    case "verification.finished": {
      const checks = Array.isArray(body.checks) ? body.checks.length : 0;
      return `${text(body.verdict)} · ${checks} ${checks === 1 ? "check" : "checks"}`;
    }
    case "output.written":
      return `${oneLine(text(body.stream), 20)} · ${oneLine(text(body.text) || "[bytes]")}`;
    case "custom":
      return `${oneLine(text(body.name), 60)} ${inline(body.data)}`;
    default:
      return inline(body);
  }
}

const shownOr = (step: Json | undefined): string =>
  step === null || step === undefined ? "" : shownStep(step);

/** What a kind is about, for its colour. */
export type Family = "run" | "phase" | "step" | "model" | "tool" | "wait" | "state" | "child" | "other";

export function family(kind: string): Family {
  const noun = kind.split(".")[0];
  switch (noun) {
    case "run":
    case "verification":
    case "spec":
    case "budget":
      return "run";
    case "phase":
    case "turn":
    case "plan":
      return "phase";
    case "step":
      return "step";
    case "model":
    case "message":
    case "context":
      return "model";
    case "tool":
      return "tool";
    case "wait":
    case "signal":
      return "wait";
    case "state":
    case "checkpoint":
      return "state";
    case "child":
      return "child";
    default:
      return "other";
  }
}
