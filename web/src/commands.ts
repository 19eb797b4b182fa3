// What a person can ask of a run, as data: the request that the page sends, the command line that does
// the same, and the curl that does.

import type { Json, Run, Wait } from "./model/types";
import { isTerminal } from "./model/types";
import { segment } from "./api-path";

export interface Command {
  /** Below `/v1/`. */
  path: string;
  body: { [key: string]: Json };
  /** The same on a command line; null when there is no verb for it. */
  cli: string | null;
}

/** A word that a shell takes as it is. */
export function quote(word: string): string {
  return /^[A-Za-z0-9_@%+=:,./-]+$/.test(word) ? word : `'${word.replace(/'/g, `'\\''`)}'`;
}

const command = (run: string, verb: string, body: { [key: string]: Json }, cli: string[]): Command => ({
  path: `runs/${segment(run)}/${verb}`,
  body,
  cli: ["logreel", ...cli].map(quote).join(" "),
});

const given = (flag: string, value: string): string[] => (value === "" ? [] : [flag, value]);
const maybe = (key: string, value: string): { [key: string]: Json } => (value === "" ? {} : { [key]: value });

export const cancel = (run: string, reason: string): Command =>
  command(run, "cancel", maybe("reason", reason), ["cancel", run, ...given("--reason", reason)]);

export const pause = (run: string): Command => command(run, "pause", {}, ["pause", run]);

export const resume = (run: string): Command => command(run, "resume", {}, ["resume", run]);

export const retry = (run: string): Command => command(run, "retry", {}, ["retry", run]);

export const answer = (run: string, wait: Wait, approve: boolean, reason: string): Command =>
  command(run, "answer", { wait: wait.id, ...(approve ? { approve: true } : { deny: true }), ...maybe("reason", reason) }, [
    "answer",
    run,
    wait.id,
    approve ? "--approve" : "--deny",
    ...given("--reason", reason),
  ]);

export const answerValue = (run: string, wait: Wait, value: Json): Command =>
  command(run, "answer", { wait: wait.id, value }, ["answer", run, wait.id, "--value", JSON.stringify(value)]);

export type Became = { returned: Json } | { failed: string } | { retry: true };

export function resolve(run: string, call: string, became: Became): Command {
  const flags =
    "returned" in became
      ? ["--returned", JSON.stringify(became.returned)]
      : "failed" in became
        ? ["--failed", became.failed]
        : ["--retry"];
  return command(run, "resolve", { call, ...became }, ["resolve", run, call, ...flags]);
}

export const say = (run: string, text: string, requestId: string): Command =>
  command(run, "messages", { text, request_id: requestId }, ["say", run, text]);

export function addBudget(run: string, add: { [limit: string]: number }): Command {
  const flags = Object.entries(add).map(([limit, amount]) =>
    limit === "wall_ms" ? `wall=${amount}ms` : `${limit}=${amount}`,
  );
  return command(run, "resume", { add_budget: add }, ["resume", run, ...flags.flatMap((flag) => ["--add-budget", flag])]);
}

export const fork = (run: string, at: number, changes: { input?: Json; model?: string; message?: string }): Command =>
  command(run, "fork", { at, ...changes }, [
    "fork",
    run,
    "--at",
    String(at),
    ...(changes.input === undefined ? [] : ["--input", typeof changes.input === "string" ? changes.input : JSON.stringify(changes.input)]),
    ...(changes.model === undefined ? [] : ["--model", changes.model]),
    ...(changes.message === undefined ? [] : ["--message", changes.message]),
    "--yes",
  ]);

/** The same with curl; a token is named, never shown. */
export function curl(origin: string, command: Command, key: string, withToken: boolean): string {
  const lines = [
    `curl -X POST ${quote(`${origin}v1/${command.path}`)}`,
    ...(withToken ? [`-H "Authorization: Bearer $LOGREEL_TOKEN"`] : []),
    `-H 'Content-Type: application/json'`,
    `-H ${quote(`Idempotency-Key: ${key}`)}`,
    `-d ${quote(JSON.stringify(command.body))}`,
  ];
  return lines.join(" \\\n  ");
}

/** What applies to a run as it is; the server decides. */
export interface Possible {
  cancel: boolean;
  pause: boolean;
  resume: boolean;
  retry: boolean;
  say: boolean;
  budget: boolean;
  fork: boolean;
}

export function possible(run: Run): Possible {
  const ended = isTerminal(run.status);
  const may = !run.read_only && !run.erased;
  const stopped = run.waiting.some((wait) => wait.kind === "paused" || wait.kind === "crash_loop");
  const away = run.waiting.some((wait) => wait.kind === "retry" && wait.step === null);
  return {
    cancel: !ended && may,
    pause: !ended && may && !stopped,
    resume: !ended && may && (stopped || away),
    retry: may && (run.status === "failed" || run.status === "cancelled"),
    say: !ended && may && run.kind === "agent",
    budget: !ended && may,
    fork: may && run.event_count > 1,
  };
}
