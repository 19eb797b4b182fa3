// What the page sends and what it lets people copy is the same command.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { test } from "node:test";
import * as commands from "../src/commands";
import { isHiding } from "../src/model/visible";
import { needsPerson, type Run, type Wait } from "../src/model/types";
import { runOf } from "./logs";

const RUN = "run_01a1e11f-5c75-773e-95b7-e574f4ecf0f5";
const wait = (kind: Wait["kind"], more: Partial<Wait> = {}): Wait => ({
  id: "w1",
  kind,
  step: null,
  call: null,
  name: null,
  prompt: null,
  tool: null,
  arguments: null,
  since: "2026-11-15T21:31:31.342480Z",
  deadline: null,
  on_deadline: null,
  ...more,
});

/** As bash takes it apart. */
const words = (line: string | null): string[] =>
  spawnSync("bash", ["-c", `set -- ${line}; printf '%s\\0' "$@"`], { encoding: "utf8", env: { ...process.env, LC_ALL: "C.UTF-8" } })
    .stdout.split("\0")
    .slice(0, -1);

test("a copied command line is one that a shell takes apart as it was meant", () => {
  const hostile = `it's $(touch /tmp/x) \`id\` "quoted" \\ \n !! ; rm -rf ~`;
  const command = commands.cancel(RUN, hostile);
  assert.deepEqual(words(command.cli), ["logreel", "cancel", RUN, "--reason", hostile]);
  assert.deepEqual(command.body, { reason: hostile });
  for (const word of ["", "=ls", "~", "a b", "\t", "*", "\u001b[201~rm\r", "x\u202ey", "tag\u{E0041}", "it's\\u0041\u0007"])
    assert.deepEqual(words(commands.quote(word)), [word], JSON.stringify(word));
});

test("whoever pastes a command sees all of it, whatever a model put into a name", () => {
  const call = "-x\u001b]0;\u202eevil\u200b";
  const command = commands.resolve(RUN, call, { returned: "a\u202eb" });
  for (const text of [command.cli ?? "", commands.curl("http://h/", command, "k", false)])
    assert.ok(!isHiding(text), text);
  assert.deepEqual(words(command.cli), ["logreel", "resolve", "--returned", '"a\\u202eb"', "--", RUN, call]);
  assert.deepEqual(words(commands.cancel(RUN, "-v").cli), ["logreel", "cancel", RUN, "--reason=-v"]);
});

test("an input that looks like a file is still text", () => {
  const { cli } = commands.fork(RUN, 3, { input: "@notes.txt" });
  assert.equal(cli, `printf %s @notes.txt | logreel fork ${RUN} --at 3 --input - --yes`);
});

test("a copied curl names the token and does not hold it, and sends what the page sends", () => {
  const command = commands.say(RUN, "it's done", "r1");
  const curl = commands.curl("http://127.0.0.1:7717/", command, "k1", true);
  const ran = spawnSync("sh", ["-c", `curl() { printf '%s\\0' "$@"; }; ${curl}`], {
    encoding: "utf8",
    env: { LOGREEL_TOKEN: "secret" },
  });
  const args = ran.stdout.split("\0");
  assert.ok(!curl.includes("secret"));
  assert.equal(args[2], `http://127.0.0.1:7717/v1/runs/${RUN}/messages`);
  assert.ok(args.includes("Authorization: Bearer secret") && args.includes("Idempotency-Key: k1"));
  assert.deepEqual(JSON.parse(args[args.indexOf("-d") + 1] ?? ""), { text: "it's done", request_id: "r1" });
});

test("each command has the body that the API takes", () => {
  const approve = commands.answer(RUN, wait("approval"), true, "");
  assert.deepEqual(approve.body, { wait: "w1", approve: true });
  assert.equal(approve.cli, `logreel answer ${RUN} w1 --approve`);
  assert.deepEqual(commands.answer(RUN, wait("approval"), false, "no").body, { wait: "w1", deny: true, reason: "no" });
  assert.deepEqual(commands.answerValue(RUN, wait("signal"), { a: 1 }).body, { wait: "w1", value: { a: 1 } });
  assert.deepEqual(commands.resolve(RUN, "call", { returned: null }).body, { call: "call", returned: null });
  assert.deepEqual(commands.resolve(RUN, "call", { retry: true }).body, { call: "call", retry: true });
  assert.deepEqual(commands.addBudget(RUN, { tokens: 5, wall_ms: 60000 }).body, { add_budget: { tokens: 5, wall_ms: 60000 } });
  assert.deepEqual(commands.addBudget(RUN, { tokens: 5 }, "w3").body, { add_budget: { tokens: 5 }, wait: "w3" });
  assert.equal(commands.addBudget(RUN, { tokens: 5 }).cli, `logreel resume ${RUN} --add-budget tokens=5`);
  assert.deepEqual(commands.fork(RUN, 12, { input: { a: 1 } }).body, { at: 12, input: { a: 1 } });
});

test("what is offered fits how the run stands", () => {
  const run = runOf("agent");
  const as = (more: Partial<Run>): commands.Possible => commands.possible({ ...run, ...more });
  assert.deepEqual(as({}), { cancel: false, pause: false, resume: false, retry: false, say: false, budget: false, fork: true });
  assert.equal(as({ status: "failed" }).retry, true);
  assert.equal(as({ status: "executing" }).say, true);
  assert.deepEqual([as({ status: "waiting", waiting: [wait("paused")] })].map((it) => [it.pause, it.resume]), [[false, true]]);
  assert.equal(as({ status: "executing", read_only: true }).cancel, false);
});

test("the inbox has what only a person can end", () => {
  const kinds = ["approval", "signal", "timer", "retry", "child", "paused", "in_doubt", "budget", "crash_loop"] as const;
  assert.deepEqual(
    kinds.filter((kind) => needsPerson(wait(kind, { step: "s" }))),
    ["approval", "signal", "paused", "in_doubt", "budget", "crash_loop"],
  );
  assert.ok(needsPerson(wait("retry", { name: "server" })), "something is away and nobody looks for it");
});
