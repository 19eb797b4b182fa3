// What a copy of a run would write again, as the engine tells it.

import assert from "node:assert/strict";
import { test } from "node:test";
import type { Json, LogEvent } from "../src/model/types";
import { Writes } from "../src/model/writes";

function log(...events: [string, { [key: string]: Json }][]): Writes {
  const writes = new Writes();
  events.forEach(([kind, body], i) => writes.apply({ seq: i + 1, kind, body, late: false } as LogEvent));
  return writes;
}

const ids = (writes: Writes, at: number, anew = false): { [part: string]: string[] } => {
  const { again, open, forgotten, children } = writes.outlook(at, anew);
  const names = (list: { id: string; outcome: string }[]): string[] => list.map((it) => `${it.id} ${it.outcome}`);
  return { again: names(again), open: names(open), forgotten: names(forgotten), children: children.map((it) => it.run) };
};

const NOTHING = { again: [], open: [], forgotten: [], children: [] };
const call = (it: string, effect = "write"): [string, { [key: string]: Json }] => ["tool.called", { call: it, name: "send", effect }];

test("writes after the point come again, those under way may have happened, those with a result are kept", () => {
  const writes = log(
    call("a"),
    ["tool.returned", { call: "a" }],
    call("b"),
    ["step.started", { step: "pay", effect: "write" }],
    ["tool.failed", { call: "b" }],
    ["step.finished", { step: "pay" }],
    call("look", "read"),
  );
  assert.deepEqual(ids(writes, 7), NOTHING);
  assert.deepEqual(ids(writes, 4), { ...NOTHING, open: ["b failed", "pay finished"] });
  assert.deepEqual(ids(writes, 2), { ...NOTHING, again: ["b failed", "pay finished"] });
  assert.deepEqual(ids(writes, 7, true), { ...NOTHING, forgotten: ["a finished", "pay finished"] });
});

test("what nobody knows of is told, until someone says what became of it", () => {
  const begun: [string, { [key: string]: Json }][] = [["step.started", { step: "pay", effect: "write" }], ["step.in_doubt", { step: "pay" }]];
  assert.deepEqual(ids(log(...begun), 2), { ...NOTHING, open: ["pay unknown"] });
  assert.deepEqual(ids(log(...begun, ["step.resolved", { step: "pay", resolution: { returned: 1 } }]), 3), NOTHING);
  assert.deepEqual(ids(log(...begun, ["step.resolved", { step: "pay", resolution: "retry" }]), 3), { ...NOTHING, open: ["pay unknown"] });
});

test("a write that is tried again later is one write; a fork's own log begins where it left", () => {
  const again = log(["step.started", { step: "pay", effect: "write" }], ["step.started", { step: "pay", effect: "write" }], ["step.finished", { step: "pay" }]);
  assert.deepEqual(ids(again, 1), { ...NOTHING, open: ["pay finished"] });
  assert.deepEqual(ids(log(call("a"), ["run.forked", {}], call("b")), 3), { ...NOTHING, open: ["b unknown"] });
});

test("children of steps without a result start again", () => {
  const writes = log(["child.started", { step: "sub", child: "r1" }], ["child.finished", { step: "sub", child: "r1" }], ["step.finished", { step: "sub" }]);
  assert.deepEqual(ids(writes, 2), { ...NOTHING, children: ["r1"] });
  assert.deepEqual(ids(writes, 3), NOTHING);
});
