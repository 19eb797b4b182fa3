// What the page folds from logs of real runs is what the engine says of them.

import assert from "node:assert/strict";
import { test } from "node:test";
import { setFlagsFromString } from "node:v8";
import { runInNewContext } from "node:vm";
import { Axis } from "../src/model/axis";
import { Documents } from "../src/model/document";
import { OutOfOrder, RunModel } from "../src/model/model";
import { extent, stateOf, type Row } from "../src/model/spans";
import { summary } from "../src/model/summary";
import type { Json, LogEvent } from "../src/model/types";
import { NAMES, eventsOf, fold, golden, runOf } from "./logs";

const all = (rows: Row[]): Row[] => rows.flatMap((row) => [row, ...all(row.children)]);
const goldenEvents = (): LogEvent[] => golden().filter((event) => event.seq !== undefined);

for (const name of NAMES) {
  test(`steps, usage and length of the ${name} log are those of show`, () => {
    const model = fold(eventsOf(name));
    const run = runOf(name);
    assert.equal(model.seq, run.event_count);
    assert.equal(model.ended, run.finished_at !== null);
    const { usd, ...usage } = run.usage;
    const { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens } = model.spent;
    const { reasoning_tokens, model_calls, tool_calls } = model.spent;
    assert.deepEqual(
      { input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens, model_calls, tool_calls },
      usage,
    );
    assert.equal(model.spent.usd, usd);
    const told = (run.steps ?? []).filter((step) => step.status !== "pending");
    const steps = [...model.steps.lines.values()];
    assert.deepEqual(
      steps.map((step) => `${step.id} ${step.status} ${step.attempts}`).sort(),
      told.map((step) => `${step.id} ${step.status} ${step.attempts}`).sort(),
    );
  });

  test(`every bar of the ${name} log has an end, inside the run`, () => {
    const { spans } = fold(eventsOf(name));
    const rows = all(spans.top);
    assert.equal(rows.length, spans.size);
    assert.ok(spans.idle);
    for (const row of rows) {
      assert.ok(row.kind === "group" || row.bars.length > 0, row.name);
      assert.ok(row.to >= row.from || row.kind === "group", `${row.name} ${row.from}..${row.to}`);
      for (const bar of row.bars) {
        assert.ok(bar.end !== null && bar.state !== "running", `${row.kind} ${row.name} goes on`);
        assert.ok(spans.start <= bar.start && bar.start <= bar.end && bar.end <= spans.last, row.name);
      }
    }
  });

  test(`every event of the ${name} log has a line`, () => {
    for (const event of eventsOf(name)) assert.equal(typeof summary(event), "string");
  });
}

test("every kind of event folds and has a line", () => {
  const model = fold(goldenEvents());
  assert.equal(model.seq, 50);
  for (const event of goldenEvents()) assert.equal(typeof summary(event), "string");
  assert.deepEqual(model.documents.latest, { seen: 1 });
});

test("a phase begins no later than what it holds", () => {
  for (const name of NAMES) {
    const { spans } = fold(eventsOf(name));
    for (const phase of spans.top.filter((row) => row.kind === "phase"))
      for (const row of all(phase.children))
        for (const bar of row.bars) assert.ok((phase.bars[0]?.start ?? 0) <= bar.start, `${name}: ${row.name}`);
  }
});

test("the agent's waterfall is phases, turns, and what was called in them", () => {
  const { spans } = fold(eventsOf("agent"));
  assert.deepEqual(
    spans.top.map((row) => `${row.kind} ${row.name}`),
    ["phase planning", "phase executing", "phase verifying"],
  );
  const turns = spans.top[1]?.children ?? [];
  assert.deepEqual(turns.map((row) => row.name), ["turn 1", "turn 2", "turn 3", "turn 4", "turn 5", "turn 6"]);
  const fourth = turns[3]?.children ?? [];
  assert.deepEqual(fourth.map((row) => `${row.kind} ${row.name}`), ["model scripted/answers.jsonl", "tool fs.edit"]);
  // The edit waited for a yes, and then was made: one row, two bars.
  assert.deepEqual(fourth[1]?.bars.map((bar) => [bar.state, bar.idle]), [["waiting", true], ["ok", false]]);
});

test("a workflow's waterfall groups the items of a map, shows attempts, and what was skipped", () => {
  const { spans } = fold(eventsOf("workflow"));
  const rows = spans.top[0]?.children ?? [];
  const by = (name: string): Row => rows.find((row) => row.name === name) as Row;
  assert.deepEqual(by("lint").children.map((row) => row.name), ["a.py", "b.py", "c.py"]);
  assert.equal(stateOf(by("lint")), "ok");
  assert.ok((extent(by("lint")).end ?? 0) > extent(by("lint")).start);
  assert.deepEqual(by("flaky").bars.map((bar) => bar.state), ["failed", "ok"]);
  assert.equal(stateOf(by("never")), "skipped");
  assert.equal(by("review").kind, "child");
  assert.match(by("review").ref, /^run_/);
  assert.deepEqual(by("approve").bars.map((bar) => bar.idle), [true]);
});

test("what a killed driver had under way is lost, and the time until the next one is a pause", () => {
  const { spans } = fold(eventsOf("killed"));
  const long = spans.top[0]?.children.find((row) => row.name === "long") as Row;
  assert.deepEqual(long.bars.map((bar) => bar.state), ["lost", "ok"]);
  assert.ok(spans.marks.some((mark) => mark.kind === "run.resumed"));
});

test("the wait for a person is folded on the axis, and every time keeps its place", () => {
  const { spans } = fold(eventsOf("workflow"));
  const axis = new Axis(spans.start, spans.last, spans.gaps);
  assert.equal(axis.folds.length, 1);
  const [pause] = axis.folds;
  assert.ok(pause !== undefined && pause.t1 - pause.t0 > 1500);
  assert.ok((pause.u1 - pause.u0) * 5 < pause.t1 - pause.t0);
  for (let i = 0; i <= 100; i += 1) {
    const time = spans.start + ((spans.last - spans.start) * i) / 100;
    assert.ok(Math.abs(axis.time(axis.at(time)) - time) < 0.01);
  }
  assert.ok(axis.ticks(0, axis.length, 8).length >= 3);
});

test("the transcript tells the conversation once", () => {
  const { items } = fold(eventsOf("agent")).transcript;
  const told = items.map((item) => {
    if (item.type === "message") return `${item.role}${item.label === "" ? "" : ` ${item.label}`}`;
    if (item.type === "tool") return `tool ${item.name} ${item.state}`;
    return item.type;
  });
  assert.deepEqual(told, [
    "user",
    "assistant plan",
    "user",
    "assistant",
    "tool fresh_copy ok",
    "assistant",
    "tool test ok",
    "assistant",
    "tool fs.search ok",
    "tool fs.read ok",
    "assistant",
    "tool fs.edit ok",
    "wait",
    "mark",
    "assistant",
    "tool test ok",
    "tool shell ok",
    "assistant",
    "step",
    "mark",
    "end",
  ]);
});

test("what a program printed is one block", () => {
  const { items } = fold(eventsOf("recorded")).transcript;
  assert.deepEqual(items.map((item) => item.type), ["output", "mark", "end"]);
  assert.ok(items[0]?.type === "output" && items[0].events.length === 4);
});

test("an event that is not the next one is refused", () => {
  const [first, second, third] = eventsOf("agent") as [LogEvent, LogEvent, LogEvent];
  const model = new RunModel();
  model.apply(first);
  assert.throws(() => model.apply(third), OutOfOrder);
  model.apply(second);
  assert.throws(() => model.apply(second), OutOfOrder);
  assert.equal(model.seq, 2);
});

test("the document is known at every event, though few of them are kept", async () => {
  const template = goldenEvents()[0] as LogEvent;
  const patch = (seq: number, ops: Json): LogEvent => ({ ...template, seq, kind: "state.patched", body: { patch: ops } });
  const events = [patch(1, [{ op: "add", path: "", value: { n: 0, list: [] } }])];
  for (let seq = 2; seq <= 2000; seq += 1)
    events.push(patch(seq, [{ op: "replace", path: "/n", value: seq }, { op: "add", path: "/list/0", value: seq }]));
  const documents = new Documents();
  for (const event of events) documents.apply(event);
  let asked = 0;
  const get = (seq: number): Promise<LogEvent | null> => {
    asked += 1;
    return Promise.resolve(events[seq - 1] ?? null);
  };
  for (const index of [0, 1, 2, 77, 1000, 1999, 2000]) {
    const document = (await documents.after(index, get)) as { n: number; list: number[] } | null;
    if (index === 0) assert.equal(document, null);
    else {
      assert.equal(document?.n, index === 1 ? 0 : index);
      assert.equal(document?.list.length, index - 1);
    }
  }
  assert.ok(asked < 200, `asked for ${asked} events`);
  assert.equal(documents.indexAt(77), 77);
});

test("a run of 100,000 events of a kilobyte each is folded without keeping their bodies", () => {
  setFlagsFromString("--expose_gc");
  const collect = runInNewContext("gc") as () => void;
  const [started] = eventsOf("workflow") as [LogEvent];
  const finished = eventsOf("workflow").find((event) => event.kind === "step.finished") as LogEvent;
  const model = new RunModel();
  model.apply(started);
  collect();
  const before = process.memoryUsage().heapUsed;
  const began = process.cpuUsage();
  for (let seq = 2; seq <= 100_000; seq += 1) {
    const body = { ...finished.body, step: ["work", String(seq)], output: "x".repeat(1000) + seq };
    model.apply({ ...finished, seq, body });
  }
  const took = process.cpuUsage(began).user / 1000;
  collect();
  const grew = (process.memoryUsage().heapUsed - before) / 1e6;
  console.log(`100,000 events folded in ${took.toFixed(0)} ms of CPU; the heap grew by ${grew.toFixed(0)} MB`);
  assert.ok(grew < 90, `${grew} MB`);
  assert.ok(model.spans.rows().length <= 2, "a large group begins folded");
});
