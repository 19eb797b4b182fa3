// An open run that is erased holds nothing of what was erased.

import assert from "node:assert/strict";
import { test } from "node:test";
import { OpenRun } from "../src/open-run";

test("what was folded from bodies that are erased is folded again without them", async () => {
  let erased = false;
  const event = (seq: number, kind: string, body: object): object => ({
    seq,
    kind,
    at: "2026-01-01T00:00:00.000000Z",
    epoch: 1,
    late: false,
    digest: `d${seq}`,
    body: erased ? null : body,
  });
  const log = (): object[] => [
    event(1, "state.patched", { patch: [{ op: "add", path: "", value: { secret: 1 } }] }),
    event(2, "run.completed", { output: null }),
  ];
  Object.assign(globalThis, {
    document: { baseURI: "http://page/", hidden: false },
    requestAnimationFrame: (act: () => void) => setImmediate(act),
    fetch: (address: string) => {
      const url = new URL(address);
      const from = Number(url.searchParams.get("from") ?? 1);
      const answer = url.pathname.endsWith("/events")
        ? { items: log().slice(from - 1), next: null, has_more: false }
        : { id: "r", status: "completed", event_count: 2, erased, waiting: [] };
      return Promise.resolve(new Response(JSON.stringify(answer), { headers: { ETag: String(erased) } }));
    },
  });
  const open = new OpenRun("r");
  const folded = async (): Promise<void> => {
    while (open.model.seq < 2) await new Promise((resolve) => setImmediate(resolve));
  };
  await folded();
  assert.deepEqual(open.model.documents.latest, { secret: 1 });
  erased = true;
  await open.snapshot();
  await folded();
  assert.equal(open.model.documents.latest, null);
  assert.equal(open.isAnother.value, false);
  open.stop();
});
