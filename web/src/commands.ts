// What a person can ask of a run, as data: the request that the page sends, the command line that does
// the same, and the curl that does.

import type { Json, Run, Wait } from "./model/types";
import { isTerminal } from "./model/types";
import { segment } from "./api-path";
import { escaped, isHiding } from "./model/visible";

export interface Command {
  /** Below `/v1/`. */
  path: string;
  /** Null for what is only read. */
  body: { [key: string]: Json } | null;
  /** The same on a command line; null when there is no verb for it. */
  cli: string | null;
}

/** A word that a shell takes as it is. Whoever pastes it shall see what it is: what cannot be seen, and what
 * a terminal would take for a key, is written as an escape (bash, zsh and newer shells read those). */
export function quote(word: string): string {
  if (/^[A-Za-z0-9_@%+:,./-][A-Za-z0-9_@%+=:,./-]*$/.test(word)) return word;
  const inside = (it: string): string => it.replace(/[\\']/g, "\\$&").replace(/\n/g, "\\n").replace(/\t/g, "\\t");
  if (/\t/.test(word) || isHiding(word)) return `$'${escaped(inside(word), shellEscape)}'`;
  return `'${word.replace(/'/g, `'\\''`)}'`;
}

const shellEscape = (code: number): string =>
  code < 0x80 ? `\\x${hex(code, 2)}` : code < 0x10000 ? `\\u${hex(code, 4)}` : `\\U${hex(code, 8)}`;

const hex = (code: number, digits: number): string => code.toString(16).padStart(digits, "0");

/** JSON in which every character can be seen. */
const visibleJson = (value: Json): string =>
  escaped(JSON.stringify(value), (code) =>
    String.fromCodePoint(code)
      .split("")
      .map((half) => `\\u${hex(half.charCodeAt(0), 4)}`)
      .join(""),
  );

/** Words of a command line: flags before the rest, and a `--` where the rest could be taken for one. */
function line(verb: string, rest: string[], flags: string[] = []): string {
  const words = rest.some((word) => word.startsWith("-")) ? [verb, ...flags, "--", ...rest] : [verb, ...rest, ...flags];
  return ["logreel", ...words].map(quote).join(" ");
}

const command = (run: string, verb: string, body: { [key: string]: Json }, cli: string): Command => ({
  path: `runs/${segment(run)}/${verb}`,
  body,
  cli,
});

/** A flag with a value, whatever that begins with. */
const flag = (name: string, value: string): string[] => (value.startsWith("-") ? [`${name}=${value}`] : [name, value]);
const given = (name: string, value: string): string[] => (value === "" ? [] : flag(name, value));
const maybe = (key: string, value: string): { [key: string]: Json } => (value === "" ? {} : { [key]: value });

export const cancel = (run: string, reason: string): Command =>
  command(run, "cancel", maybe("reason", reason), line("cancel", [run], given("--reason", reason)));

export const pause = (run: string): Command => command(run, "pause", {}, line("pause", [run]));

export const resume = (run: string): Command => command(run, "resume", {}, line("resume", [run]));

export const retry = (run: string): Command => command(run, "retry", {}, line("retry", [run], ["--yes"]));

export const answer = (run: string, wait: Wait, approve: boolean, reason: string): Command =>
  command(
    run,
    "answer",
    { wait: wait.id, ...(approve ? { approve: true } : { deny: true }), ...maybe("reason", reason) },
    line("answer", [run, wait.id], [approve ? "--approve" : "--deny", ...given("--reason", reason)]),
  );

export const answerValue = (run: string, wait: Wait, value: Json, reason = ""): Command =>
  command(
    run,
    "answer",
    { wait: wait.id, value, ...maybe("reason", reason) },
    line("answer", [run, wait.id], [...flag("--value", visibleJson(value)), ...given("--reason", reason)]),
  );

export type Became = { returned: Json } | { failed: string } | { retry: true };

export function resolve(run: string, call: string, became: Became): Command {
  const flags =
    "returned" in became
      ? flag("--returned", visibleJson(became.returned))
      : "failed" in became
        ? flag("--failed", became.failed)
        : ["--retry"];
  return command(run, "resolve", { call, ...became }, line("resolve", [run, call], flags));
}

export const say = (run: string, text: string, requestId: string): Command =>
  command(run, "messages", { text, request_id: requestId }, line("say", [run, text], ["--request-id", requestId]));

/** For a wait it is raised once, whoever else raises for it; the command line has no word for that. */
export function addBudget(run: string, add: { [limit: string]: number }, wait: string | null = null): Command {
  const flags = Object.entries(add).map(([limit, amount]) =>
    limit === "wall_ms" ? `wall=${amount}ms` : `${limit}=${amount}`,
  );
  return command(run, "resume", { add_budget: add, ...maybe("wait", wait ?? "") }, line("resume", [run], flags.flatMap((it) => ["--add-budget", it])));
}

export function fork(run: string, at: number, changes: { input?: Json; model?: string; message?: string }): Command {
  const input = changes.input === undefined ? null : typeof changes.input === "string" ? changes.input : visibleJson(changes.input);
  // `@` would name a file, and `-` is what comes in.
  const piped = input !== null && /^(@|-$)/.test(input);
  const flags = [
    ...flag("--at", String(at)),
    ...(input === null ? [] : piped ? ["--input", "-"] : flag("--input", input)),
    ...(changes.model === undefined ? [] : flag("--model", changes.model)),
    ...(changes.message === undefined ? [] : flag("--message", changes.message)),
    "--yes",
  ];
  const cli = line("fork", [run], flags);
  return command(run, "fork", { at, ...changes }, piped ? `printf %s ${quote(input ?? "")} | ${cli}` : cli);
}

/** What only reads: a path below the run's, and the words of the command line. */
const read = (run: string, path: string, cli: string): Command => ({ path: `runs/${segment(run)}${path}`, body: null, cli });

export const show = (run: string): Command => read(run, "", line("show", [run]));
export const showAt = (run: string, seq: number): Command => read(run, `?at=${seq}`, line("show", [run], ["--at", String(seq)]));
export const follow = (run: string): Command => read(run, "/events", line("log", [run], ["--follow"]));
export const download = (run: string, format: "jsonl" | "reel"): Command =>
  read(run, `/export?format=${format}`, line("export", [run], ["--format", format, "-o", `${run}.${format}`]));

/** The same with curl; a token is named, never shown. */
export function curl(origin: string, command: Command, key: string, withToken: boolean): string {
  const address = quote(`${origin}v1/${command.path}`);
  const auth = withToken ? [`-H "Authorization: Bearer $LOGREEL_TOKEN"`] : [];
  if (command.body === null) {
    const file = /\/export\?/.test(command.path) ? ["-OJ"] : [];
    const stream = command.path.endsWith("/events") ? ["-N", `-H 'Accept: text/event-stream'`] : [];
    return [`curl -f ${address}`, ...auth, ...file, ...stream].join(" \\\n  ");
  }
  const lines = [
    `curl -X POST ${address}`,
    ...auth,
    `-H 'Content-Type: application/json'`,
    `-H ${quote(`Idempotency-Key: ${key}`)}`,
    `-d ${quote(visibleJson(command.body))}`,
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
