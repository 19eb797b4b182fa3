// Whatever happens to the connection, every event is given once and in order.

import assert from "node:assert/strict";
import { test } from "node:test";
import { AllFollower, RunFollower, SILENT_MAX_MS, type Link, type World } from "../src/live";
import { SseParser } from "../src/sse";

interface E {
  seq: number;
  kind: string;
  late: boolean;
  digest: string;
}

const event = (seq: number, end: number): E => ({
  seq,
  kind: seq === end ? "run.completed" : "custom",
  late: seq > end,
  digest: `d${seq}`,
});
const sse = (e: E): string => `id: ${e.seq}\nevent: ${e.kind}\ndata: ${JSON.stringify(e)}\n\n`;

/** Begins, and neither goes on nor ends. */
const hanging = (signal: AbortSignal, begun: string): Response =>
  new Response(
    new ReadableStream<Uint8Array>({
      start(controller) {
        controller.enqueue(new TextEncoder().encode(begun));
        signal.addEventListener("abort", () => controller.error(new Error("aborted")));
      },
    }),
  );

/** A server whose log grows, and whose answers go wrong as a script says. */
class FakeServer {
  log: E[] = [];
  calls: string[] = [];
  clock = 0;
  /** So many pages begin and do not go on. */
  hangsInPages = 0;
  constructor(
    readonly end: number,
    private readonly script: (stream: number, server: FakeServer, since: number) => string | Response | "hang" | "silent",
  ) {}
  private streams = 0;

  grow(to: number): void {
    for (let seq = this.log.length + 1; seq <= to; seq += 1) this.log.push(event(seq, this.end));
  }

  world(): World {
    return {
      fetch: (path, headers, signal) => {
        const since = Number(headers["Last-Event-ID"] ?? 0);
        if (headers.Accept === "application/json") {
          const query = new URLSearchParams(path.split("?")[1]);
          const from = Number(query.get("from"));
          this.calls.push(`page ${from}`);
          if (this.hangsInPages > 0) {
            this.hangsInPages -= 1;
            return Promise.resolve(hanging(signal, '{"items": ['));
          }
          const items = this.log.slice(from - 1, from - 1 + 3);
          return Promise.resolve(Response.json({ items, next: null, has_more: from - 1 + 3 < this.log.length }));
        }
        this.calls.push(`stream ${since}`);
        this.streams += 1;
        const answer = this.script(this.streams, this, since);
        if (answer === "silent")
          return new Promise((_, reject) => signal.addEventListener("abort", () => reject(new Error("aborted"))));
        if (answer instanceof Response) return Promise.resolve(answer);
        if (answer === "hang") return Promise.resolve(hanging(signal, ""));
        return Promise.resolve(new Response(answer));
      },
      sleep: async (ms) => {
        this.clock += ms;
        await new Promise((resolve) => setImmediate(resolve));
      },
      random: () => 0.5,
      now: () => this.clock,
      unlocked: () => Promise.resolve(),
      awake: () => Promise.resolve(),
      hidden: () => false,
    };
  }
}

async function follow(server: FakeServer): Promise<{ seqs: number[]; links: string[]; said: string; follower: RunFollower<E> }> {
  const seqs: number[] = [];
  const links: Link[] = [];
  let said = "";
  const follower = new RunFollower<E>(
    server.world(),
    "runs/r/events",
    0,
    null,
    {
      events: (events) => seqs.push(...events.map((e) => e.seq)),
      delta: (_call, _attempt, text) => (said += text),
      reset: () => (said = ""),
      anew: () => seqs.push(0),
      link: (link) => links.push(link),
    },
    (e) => !e.late && e.kind === "run.completed",
  );
  await follower.run();
  return { seqs, links: links.map((link) => link.is), said, follower };
}

const upTo = (n: number): number[] => Array.from({ length: n }, (_, i) => i + 1);

test("pages first, then the stream, to the end and what came late", async () => {
  const server = new FakeServer(6, (_, s) => {
    s.grow(8);
    return s.log.slice(4, 6).map(sse).join("");
  });
  server.grow(4);
  const { seqs, links } = await follow(server);
  assert.deepEqual(seqs, upTo(8));
  assert.deepEqual(server.calls, ["page 1", "page 4", "stream 4", "page 7"]);
  assert.deepEqual(links, ["reading", "live", "ended"]);
});

test("drops, restarts, doubled and missing events: each event once", async () => {
  const server = new FakeServer(12, (stream, s, since) => {
    if (stream === 1) {
      s.grow(6);
      return s.log.slice(4, 5).map(sse).join("") + sse(s.log[5] as E).slice(0, 20); // cut in the middle
    }
    if (stream === 2) return new Response(null, { status: 503 });
    if (stream === 3) {
      s.grow(8);
      return s.log.slice(0, 8).map(sse).join(""); // sends everything again
    }
    if (stream === 4) {
      s.grow(11);
      return sse(s.log[10] as E); // leaves out what is between
    }
    s.grow(12);
    return s.log.slice(since).map(sse).join("");
  });
  server.grow(4);
  const { seqs, links, follower } = await follow(server);
  assert.deepEqual(seqs, upTo(12));
  assert.ok(follower.doubled >= 6 && follower.gaps === 1, `${follower.doubled} ${follower.gaps}`);
  assert.ok(links.includes("lost"));
  assert.equal(links[links.length - 1], "ended");
});

test("a log that is not the one before is read again from its beginning, and said to be", async () => {
  const server = new FakeServer(5, (stream, s) => {
    if (stream === 1) {
      // Restarted on an older copy of the store, which went another way since.
      s.log = s.log.slice(0, 2);
      s.grow(4);
      s.log.slice(2).forEach((e) => (e.digest = `other ${e.seq}`));
      return "";
    }
    s.grow(5);
    return s.log.slice(4).map(sse).join("");
  });
  server.grow(4);
  const { seqs, links } = await follow(server);
  assert.deepEqual(seqs, [1, 2, 3, 4, 0, 1, 2, 3, 4, 5]);
  assert.equal(links[links.length - 1], "ended");
});

test("facts that come after the end was seen are read when someone knows of them", async () => {
  const server = new FakeServer(3, (_, s) => {
    s.grow(3);
    return s.log.slice(2).map(sse).join("");
  });
  server.grow(2);
  const { seqs, follower } = await follow(server);
  assert.deepEqual(seqs, upTo(3));
  server.grow(5);
  await Promise.all([follower.readLate(), follower.readLate()]);
  assert.deepEqual(seqs, upTo(5));
});

test("a place of another store is let go: everything is looked at again, and the stream goes on", async () => {
  for (const refusal of ["answer", "stream"] as const) {
    const told: string[] = [];
    const sent: (string | undefined)[] = [];
    const world = new FakeServer(1, () => "").world();
    const follower: AllFollower = new AllFollower(
      {
        ...world,
        fetch: (_path, headers) => {
          sent.push(headers["Last-Event-ID"]);
          if (sent.length === 1) return Promise.resolve(new Response('id: 70\n\nid: 71\ndata: {"run":"a","kind":"k"}\n\n'));
          if (headers["Last-Event-ID"] !== undefined) {
            const problem = '{"status":400,"kind":"usage"}';
            if (refusal === "answer") return Promise.resolve(new Response(problem, { status: 400 }));
            return Promise.resolve(new Response(`event: problem\ndata: ${problem}\n\n`));
          }
          follower.stop();
          return Promise.resolve(new Response('id: 3\ndata: {"run":"b","kind":"k"}\n\n'));
        },
      },
      (run) => told.push(run),
      () => told.push("everything"),
      () => told.push("another store"),
      () => undefined,
    );
    await follower.run();
    assert.deepEqual(sent, [undefined, "71", undefined], refusal);
    assert.deepEqual(told.slice(told.indexOf("another store")), ["another store", "everything", "b"], refusal);
  }
});

test("a stream that is lost before its first event comes back to where it began", async () => {
  const sent: (string | undefined)[] = [];
  const follower: AllFollower = new AllFollower(
    {
      ...new FakeServer(1, () => "").world(),
      fetch: (_path, headers) => {
        sent.push(headers["Last-Event-ID"]);
        if (sent.length === 2) follower.stop();
        return Promise.resolve(new Response("retry: 1000\nid: 70\n\n: alive\n\n"));
      },
    },
    () => undefined,
    () => undefined,
    () => undefined,
    () => undefined,
  );
  await follower.run();
  assert.deepEqual(sent, [undefined, "70"]);
});

test("a reconnect at the end is 204, and the end was read from a page", async () => {
  const server = new FakeServer(3, (_, s) => {
    s.grow(4);
    return new Response(null, { status: 204 });
  });
  server.grow(2);
  const { seqs, links } = await follow(server);
  assert.deepEqual(seqs, upTo(4));
  assert.equal(links[links.length - 1], "ended");
});

for (const silence of ["in its stream", "before its answer", "in a page"] as const)
  test(`a connection that is silent for too long is dead: ${silence}`, async () => {
    const server = new FakeServer(5, (stream, s) => {
      if (stream === 1 && silence === "in its stream") return "hang";
      if (stream === 1 && silence === "before its answer") return "silent";
      s.grow(5);
      return s.log.slice(2).map(sse).join("");
    });
    server.hangsInPages = silence === "in a page" ? 1 : 0;
    server.grow(2);
    const { seqs } = await follow(server);
    assert.deepEqual(seqs, upTo(5));
    assert.ok(server.clock > SILENT_MAX_MS);
  });

test("a run that is gone is said so, a missing token is waited for", async () => {
  const gone = new FakeServer(9, () => new Response(null, { status: 404 }));
  gone.grow(1);
  assert.deepEqual((await follow(gone)).links, ["reading", "live", "gone"].filter((it) => it !== "live"));
  const locked = new FakeServer(2, (stream, s) => {
    if (stream === 1) return new Response(null, { status: 401 });
    s.grow(2);
    return s.log.slice(1).map(sse).join("");
  });
  locked.grow(1);
  const { seqs, links } = await follow(locked);
  assert.deepEqual(seqs, [1, 2]);
  assert.ok(links.includes("locked"));
});

test("live text is shown until a new attempt begins", async () => {
  const delta = (text: string): string => `event: delta\ndata: ${JSON.stringify({ call: "m1", attempt: 1, text })}\n\n`;
  const server = new FakeServer(2, (_, s) => {
    s.grow(2);
    const reset = `event: reset\ndata: {"call":"m1","attempt":2}\n\n`;
    return delta("wrong") + reset + delta("Hello, ") + ": keep-alive\n\n" + delta("you") + sse(s.log[1] as E);
  });
  server.grow(1);
  assert.equal((await follow(server)).said, "Hello, you");
});

test("the parser takes a stream in any pieces", () => {
  const text = 'id: 1\r\nevent: a\r\ndata: {"x":\r\ndata: 1}\r\n\r\n: comment\n\nid: 2\ndata: two\n\ndata\n\nretry: 5\n\nid: 3\n\n';
  const whole = new SseParser().push(text);
  assert.deepEqual(whole, [
    { id: "1", event: "a", data: '{"x":\n1}' },
    { id: "2", event: "message", data: "two" },
    { id: null, event: "message", data: "" },
    { id: "3", event: "message", data: "" },
  ]);
  for (let size = 1; size < 12; size += 1) {
    const parser = new SseParser();
    const sent = [];
    for (let at = 0; at < text.length; at += size) sent.push(...parser.push(text.slice(at, at + size)));
    assert.deepEqual(sent, whole, `in pieces of ${size}`);
  }
});
