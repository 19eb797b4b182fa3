// The client of AG-UI 1.0 at work: node client.mjs URL SCENARIO... Each scenario must end with a terminal event,
// with nothing refused and nothing warned about, and with our state.

import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import { createInterface } from "node:readline/promises";
import { HttpAgent } from "@ag-ui/client";

const [given, ...scenarios] = process.argv.slice(2);
let base = given;

/** Whatever the client complains about. */
const complaints = [];
for (const level of ["warn", "error"]) {
  console[level] = (...said) => complaints.push(said.map(String).join(" "));
}

const user = (id, content) => ({ id, role: "user", content });

function agent(spec, threadId, initialMessages = []) {
  return new HttpAgent({ url: `${base}/v1/agui/${spec}`, threadId, initialMessages });
}

/** One run of theirs; what came of it. `on` sees each event. */
async function run(agent, parameters = {}, on = () => {}) {
  const events = [];
  const onEvent = async ({ event }) => {
    events.push(event);
    await on(event);
  };
  const { result } = await agent.runAgent(parameters, { onEvent });
  return { events, result, types: events.map((event) => event.type), last: events.at(-1) };
}

const ours = (told) => told.events[0].metadata.logreel.run;

async function get(path) {
  const response = await fetch(base + path);
  assert.equal(response.status, 200, path);
  return response.json();
}

async function post(path, body) {
  const response = await fetch(base + path, {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body),
  });
  return { status: response.status, body: await response.json() };
}

/** The run as the API has it is the run as the client was told. */
async function same(agent, told, status) {
  const run = await get(`/v1/runs/${ours(told)}`);
  assert.equal(run.status, status);
  assert.deepEqual(agent.state, run.state);
  assert.equal(told.types[0], "RUN_STARTED");
  return run;
}

const roles = (agent) => agent.messages.map((message) => message.role);
const outcome = (told) => told.last.outcome?.type;

/** Answers a wait from two pages at the same moment; the run at its end. */
async function twice(it, spec, answer) {
  const other = agent(spec, it.threadId);
  const parameters = () => ({ runId: "again", resume: [answer] });
  const told = await Promise.all([run(it, parameters()), run(other, parameters())]);
  assert.deepEqual(told.map(outcome), ["success", "success"]);
  assert.equal(ours(told[0]), ours(told[1]));
  // And once more, when all is over.
  assert.equal(outcome(await run(agent(spec, it.threadId), parameters())), "success");
  assert.deepEqual(other.messages, it.messages);
  await same(other, told[1], "completed");
  return same(it, told[0], "completed");
}

async function kinds(run, kind) {
  const { items } = await get(`/v1/runs/${run}/events?limit=1000`);
  return items.map((event) => event.kind).filter((it) => it === kind);
}

const all = {
  async plain() {
    const it = agent("talk", "plain", [user("u1", "hello")]);
    const told = await run(it, { runId: "r1" });
    assert.equal(outcome(told), "success");
    const ended = await same(it, told, "completed");
    assert.equal(told.result, ended.output);
    assert.deepEqual(roles(it), ["user", "assistant"]);
    assert.equal(it.messages[1].content, ended.output);
    assert.equal(ended.input, "hello");
    assert.ok(told.types.filter((type) => type === "TEXT_MESSAGE_CONTENT").length > 1, "it is live");
    assert.ok(told.last.usage[0].outputTokens >= 0);
    // The conversation goes on, in a run of its own.
    it.addMessage(user("u2", "and now?"));
    const more = await run(it);
    assert.equal(outcome(more), "success");
    assert.notEqual(ours(more), ours(told));
    assert.deepEqual(roles(it), ["user", "assistant", "user", "assistant"]);
    // Whoever comes late is told the whole of it, and its end.
    const late = agent("talk", "plain");
    const again = await run(late, { runId: "r1" });
    assert.deepEqual(again.types.slice(0, 3), ["RUN_STARTED", "STATE_SNAPSHOT", "MESSAGES_SNAPSHOT"]);
    assert.equal(outcome(again), "success");
    assert.deepEqual(late.messages, it.messages.slice(0, 2));
    assert.equal(ours(again), ours(told));
  },

  async tools() {
    const it = agent("tools", "tools", [user("u1", "look it up")]);
    const told = await run(it);
    await same(it, told, "completed");
    assert.deepEqual(roles(it), ["user", "assistant", "tool", "tool", "assistant"]);
    const [, asked, first, second, last] = it.messages;
    assert.deepEqual(asked.toolCalls.map((call) => call.function.name), ["look", "look"]);
    assert.deepEqual(JSON.parse(asked.toolCalls[1].function.arguments), { n: 2 });
    assert.deepEqual([first, second].map((message) => message.toolCallId).sort(), asked.toolCalls.map((call) => call.id).sort());
    assert.match(first.content, /found/);
    assert.equal(last.content, "done");
  },

  async interrupt() {
    const it = agent("asks", "interrupt", [user("u1", "publish")]);
    const told = await run(it);
    assert.equal(outcome(told), "interrupt");
    await same(it, told, "waiting");
    const [interrupt] = it.pendingInterrupts;
    assert.equal(it.pendingInterrupts.length, 1);
    assert.equal(interrupt.id, "w1");
    assert.equal(interrupt.reason, "approval");
    assert.equal(interrupt.toolCallId, it.messages.at(-1).toolCalls[0].id);
    const wrong = await post("/v1/agui/asks", {
      threadId: "interrupt", runId: "x", messages: [], resume: [{ interruptId: "w1", status: "resolved" }],
    });
    assert.deepEqual([wrong.status, wrong.body.kind], [422, "invalid"]);
    const resume = [{ interruptId: interrupt.id, status: "resolved", payload: { approved: true } }];
    const more = await run(it, { runId: "second", resume });
    assert.equal(outcome(more), "success");
    assert.equal(ours(more), ours(told));
    await same(it, more, "completed");
    assert.deepEqual(roles(it), ["user", "assistant", "tool", "assistant"]);
    assert.equal(it.pendingInterrupts.length, 0);
    // The same answer again is the same; another one comes too late.
    const again = agent("asks", "interrupt");
    assert.equal(outcome(await run(again, { runId: "second", resume })), "success");
    assert.deepEqual(again.messages, it.messages);
    // What they called it then is kept: without the answer it leads to the same run.
    const back = agent("asks", "interrupt", it.messages);
    const later = await run(back, { runId: "second" });
    assert.equal(ours(later), ours(told));
    assert.equal(outcome(later), "success");
    await same(back, later, "completed");
    assert.deepEqual(back.messages, it.messages);
    const other = await post("/v1/agui/asks", {
      threadId: "interrupt", runId: "x", messages: [],
      resume: [{ interruptId: "w1", status: "resolved", payload: { approved: false } }],
    });
    assert.equal(other.status, 409, JSON.stringify(other.body));
  },

  async denied() {
    const it = agent("asks", "denied", [user("u1", "publish")]);
    await run(it);
    const resume = [{ interruptId: "w1", status: "cancelled" }];
    const told = await run(it, { resume });
    assert.equal(outcome(told), "success");
    await same(it, told, "completed");
    assert.match(it.messages.find((message) => message.role === "tool").content, /denied/);
  },

  async cancel() {
    const it = agent("stuck", "cancel", [user("u1", "go")]);
    const told = await run(it, {}, async (event) => {
      if (event.type === "TOOL_CALL_END") {
        const busy = await post("/v1/agui/stuck", {
          threadId: "cancel", runId: "other", messages: [user("u2", "me too")],
        });
        assert.deepEqual([busy.status, busy.body.kind], [409, "busy"]);
        const answer = await post("/v1/sessions/cancel/cancel", { reason: "enough" });
        assert.equal(answer.status, 200);
      }
    });
    assert.equal(outcome(told), "cancelled");
    assert.ok(told.types.lastIndexOf("STEP_FINISHED") > told.types.lastIndexOf("STEP_STARTED"));
    await same(it, told, "cancelled");
  },

  async rejoin() {
    const it = agent("slow", "rejoin", [user("u1", "go")]);
    let begun;
    const broken = await run(it, { runId: "r" }, (event) => {
      begun ??= event.metadata?.logreel.run;
      if (event.type === "TOOL_CALL_END") it.abortRun();
    }).catch((error) => error);
    assert.ok(begun);
    assert.equal((await get(`/v1/runs/${begun}`)).finished_at, null, String(broken));
    // With what it has, and on another page with nothing.
    for (const messages of [it.messages, []]) {
      const back = agent("slow", "rejoin", messages);
      let left = false;
      const halfway = await run(back, { runId: "r" }, (event) => {
        left ||= event.type === "STEP_STARTED";
        if (left) back.abortRun();
      }).catch((error) => error);
      assert.ok(left, String(halfway));
      assert.deepEqual(roles(back), ["user", "assistant"]);
    }
    const back = agent("slow", "rejoin", it.messages);
    let went = false;
    const told = await run(back, { runId: "r" }, (event) => {
      // Once: there is nobody who reads it in the next turn.
      if (event.type === "STEP_STARTED" && !went) writeFileSync("go", "go\n");
      went ||= event.type === "STEP_STARTED";
    });
    assert.deepEqual(told.types.slice(0, 4), ["RUN_STARTED", "STATE_SNAPSHOT", "MESSAGES_SNAPSHOT", "STEP_STARTED"]);
    assert.equal(ours(told), begun);
    assert.equal(outcome(told), "success");
    await same(back, told, "completed");
    assert.deepEqual(roles(back), ["user", "assistant", "tool", "assistant"]);
  },

  /** A limit, raised by the same answer from two pages at once: once. */
  async budget() {
    const it = agent("poor", "budget", [user("u1", "go")]);
    const told = await run(it);
    assert.equal(outcome(told), "interrupt");
    assert.equal((await same(it, told, "waiting")).budget.tool_calls, 1);
    const [{ id: interruptId, reason, responseSchema }] = it.pendingInterrupts;
    assert.equal(reason, "budget");
    assert.ok(responseSchema.properties.tool_calls);
    const wrong = await post("/v1/agui/poor", {
      threadId: "budget", runId: "x", messages: [], resume: [{ interruptId, status: "resolved", payload: "much" }],
    });
    assert.deepEqual([wrong.status, wrong.body.kind], [422, "invalid"]);
    const ended = await twice(it, "poor", { interruptId, status: "resolved", payload: { tool_calls: 5 } });
    assert.equal(ended.status, "completed");
    assert.equal(ended.budget.tool_calls, 6);
    assert.deepEqual(await kinds(ended.id, "budget.changed"), ["budget.changed"]);
  },

  /** A write that nobody knows the outcome of. */
  async doubt() {
    const it = agent("doubt", "doubt", [user("u1", "go")]);
    const told = await run(it);
    assert.equal(outcome(told), "interrupt");
    const [{ id: interruptId, reason }] = it.pendingInterrupts;
    assert.equal(reason, "in_doubt");
    const ended = await twice(it, "doubt", { interruptId, status: "resolved", payload: { returned: 7 } });
    assert.deepEqual([ended.status, ended.output], ["completed", 7]);
    assert.deepEqual(await kinds(ended.id, "step.resolved"), ["step.resolved"]);
    // Whoever has no answer gives the run up, with all else that was said at once.
    const other = agent("doubt", "gives up", [user("u1", "go")]);
    await run(other);
    const cancelled = { interruptId, status: "cancelled" };
    const more = await run(other, { resume: [cancelled, { ...cancelled, status: "resolved", payload: { returned: 1 } }] });
    assert.equal(outcome(more), "cancelled");
    await same(other, more, "cancelled");
  },

  async paused() {
    const it = agent("paused", "paused", [user("u1", "go")]);
    const told = await run(it, {}, async (event) => {
      if (event.type !== "TOOL_CALL_END") return;
      const [{ id }] = (await get("/v1/runs?session=paused")).items;
      assert.equal((await post(`/v1/runs/${id}/pause`, { reason: "lunch" })).status, 200);
    });
    assert.equal(outcome(told), "interrupt");
    await same(it, told, "waiting");
    const [{ id: interruptId, reason, message }] = it.pendingInterrupts;
    assert.deepEqual([reason, message], ["paused", "It is paused: lunch"]);
    writeFileSync("paused.open", "");
    const ended = await twice(it, "paused", { interruptId, status: "resolved" });
    assert.equal(ended.status, "completed");
    assert.deepEqual(roles(it), ["user", "assistant", "tool", "assistant"]);
  },

  /** The server is killed in the middle, and another one goes on. Between the two an earlier run becomes unreadable. */
  async restart() {
    const lines = createInterface({ input: process.stdin });
    const before = agent("talk", "restart", [user("u0", "hello")]);
    console.log(`begins: ${ours(await run(before))}`);
    const it = agent("held", "restart", [...before.messages, user("u1", "go")]);
    let begun;
    // The client tells of a lost connection, and throws it once more beside.
    const lost = () => {};
    process.on("uncaughtException", lost);
    const broken = await run(it, { runId: "r" }, (event) => {
      begun ??= event.metadata?.logreel.run;
      if (event.type === "TOOL_CALL_END") console.log("begun");
    }).catch((error) => error);
    assert.deepEqual(roles(it), ["user", "assistant", "user", "assistant"]);
    base = (await lines[Symbol.asyncIterator]().next()).value;
    process.off("uncaughtException", lost);
    assert.match(String(broken), /terminated/);
    complaints.length = 0;
    const back = agent("held", "restart", it.messages);
    const told = await run(back, { runId: "r" }, (event) => {
      if (event.type === "STEP_STARTED") writeFileSync("held.open", "");
    });
    assert.deepEqual(told.types.slice(0, 4), ["RUN_STARTED", "STATE_SNAPSHOT", "MESSAGES_SNAPSHOT", "STEP_STARTED"]);
    assert.equal(ours(told), begun);
    assert.equal(outcome(told), "success");
    const ended = await same(back, told, "completed");
    assert.deepEqual(roles(back), ["user", "assistant", "user", "assistant", "tool", "assistant"]);
    assert.equal(told.result, ended.output);
    // Whoever comes with nothing has the same of it, but for the run that nobody can read.
    const late = agent("held", "restart");
    await same(late, await run(late, { runId: "r" }), "completed");
    assert.deepEqual(late.messages, back.messages.slice(2));
    lines.close();
  },

  async flow() {
    const it = agent("flow", "flow", [user("u1", "text")]);
    const told = await run(it, { forwardedProps: { input: { n: 1 } } });
    assert.equal(outcome(told), "interrupt");
    assert.ok(told.types.includes("SUBAGENT_STARTED") && told.types.includes("SUBAGENT_FINISHED"), told.types);
    assert.equal(it.pendingInterrupts[0].message, "Go on?");
    const [{ id: interruptId }] = it.pendingInterrupts;
    const more = await run(it, { resume: [{ interruptId, status: "resolved", payload: true }] });
    assert.equal(outcome(more), "success");
    const ended = await same(it, more, "completed");
    assert.deepEqual(ended.input, { n: 1 });
    assert.deepEqual(more.result, ended.output);
    assert.ok(more.events.some((event) => event.stepName === "last"));
  },

  async failed() {
    const it = agent("fails", "failed", [user("u1", "x")]);
    const told = await run(it);
    assert.equal(told.last.type, "RUN_ERROR");
    const ended = await same(it, told, "failed");
    assert.equal(told.last.message, ended.error.message);
  },

  /** A task with a document, which waits in the middle. */
  async state() {
    const it = agent("remember", "state", [user("u1", "x")]);
    const input = { forwardedProps: { input: 3 } };
    const told = await run(it, input);
    assert.equal(outcome(told), "interrupt");
    assert.equal((await same(it, told, "waiting")).state.count, 3);
    assert.ok(told.types.includes("STATE_DELTA"));
    const other = agent("remember", "state");
    const resume = [{ interruptId: "w1", status: "resolved", payload: { approved: true } }];
    const more = await run(other, { resume });
    assert.equal(outcome(more), "success");
    const ended = await same(other, more, "completed");
    assert.equal(ended.state.count, 6);
    assert.deepEqual(roles(other), ["user", "assistant"]);
    assert.equal(other.messages[1].content, "so far 3");
    // The next run of the thread has a document of its own.
    it.pendingInterrupts = [];
    it.addMessage(user("u2", "again"));
    await same(it, await run(it, input), "waiting");
  },
};

for (const name of scenarios) {
  await all[name]();
  assert.deepEqual(complaints, [], name);
  console.log(`${name}: as it should be`);
}
process.exit(0);
