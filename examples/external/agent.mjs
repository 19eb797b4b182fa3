// An agent of its own that has its run recorded by Logreel, over HTTP and with nothing but Node's `fetch`.
// Start `logreel serve`, then
//
//     node agent.mjs job-1 [http://127.0.0.1:7717]
//
// Kill it in the middle and start it again: it claims the same run and goes on from its last checkpoint.
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";

/** A run that we drive: the whole client. */
class Run {
  static async start(base, key, spec, input) {
    const run = Object.assign(new Run(), { base });
    const started = { spec, input, key, driver: "external" };
    let { status, answer } = await run.call("POST", "/v1/runs", started);
    if (status >= 400) throw new Error(answer.detail);
    run.path = `/v1/runs/${answer.run.id}`;
    while (!answer.lease) { // It was there already: a process before us began it.
      ({ status, answer } = await run.call("POST", `${run.path}/lease`));
      if (status >= 400 && answer.kind !== "driven") throw new Error(answer.detail);
      if (status >= 400) await sleep(500); // Until the lease of that process has run out.
    }
    return Object.assign(run, { lease: answer.lease, head: answer.head, checkpoint: answer.checkpoint });
  }

  async call(method, path, body) {
    const headers = { "Content-Type": "application/json" };
    if (this.lease) headers["Logreel-Lease"] = this.lease.secret;
    const response = await fetch(this.base + path, { method, headers, body: body && JSON.stringify(body) });
    return { status: response.status, answer: await response.json() };
  }

  /** Records all of these, or none of them. */
  async record(...events) {
    const append_id = randomUUID();
    events = events.map(([kind, body]) => ({ kind, body }));
    for (;;) {
      const append = { epoch: this.lease.epoch, expect: this.head, append_id, events };
      // No answer: the same append again is done once.
      const told = await this.call("POST", `${this.path}/events`, append).catch(() => sleep(500));
      if (!told) continue;
      const { status, answer } = told;
      if (status >= 400 && answer.kind !== "conflict") throw new Error(answer.detail);
      this.head = answer.head;
      if (status < 400) return answer.events;
      for (const { kind } of answer.events) { // Someone else wrote to our run: see what, and go on.
        console.log("meanwhile:", kind);
        if (kind === "run.cancelled") throw new Error("cancelled");
      }
    }
  }
}

/** A model would be asked here. */
async function think(messages) {
  await sleep(1000 * Number(process.env.THINK ?? "0.1"));
  const text = `something about ${messages.at(-1).content}`;
  return [text, { input_tokens: 10, output_tokens: 5 }];
}

const [key, base = "http://127.0.0.1:7717"] = process.argv.slice(2);
const topics = ["tides", "clouds", "dunes"];
const run = await Run.start(base, key, { name: "essayist", version: 1 }, { topics });
const { done, messages } = run.checkpoint?.data ?? { done: 0, messages: [] };
for (const [at, topic] of [...topics.entries()].slice(done)) {
  messages.push({ role: "user", content: topic });
  const call = `${topic}-${run.lease.epoch}`; // A call that was cut off is made again under another name.
  await run.record(
    ["step.started", { step: topic, effect: "read" }],
    ["model.called", { call, model: "example/echo", messages }],
  );
  const [text, spent] = await think(messages);
  messages.push({ role: "assistant", content: text });
  await run.record(
    ["model.answered", { call, message: text, spent }],
    ["step.finished", { step: topic, effect: "read", output: text }],
    ["state.patched", { patch: [{ op: "add", path: "", value: { written: at + 1 } }] }],
    ["checkpoint.saved", { checkpoint: `after ${topic}`, data: { done: at + 1, messages } }],
  );
  console.log("wrote about", topic);
  if (process.env.DIE_AFTER === topic) process.exit(9); // As if it were killed: nothing is said to anyone.
}
await run.record(["run.completed", { output: { essays: topics.length } }]);
await run.call("DELETE", `${run.path}/lease`);
console.log("done:", run.path);
