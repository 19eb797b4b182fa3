// Whatever comes, changes and goes while a list is read, it ends equal to the server's.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Unreachable, type Filter } from "../src/api";
import type { Page, Run } from "../src/model/types";
import { Refresher } from "../src/refresher";
import { RunList } from "../src/run-list";

/** Mulberry32: the same numbers for the same seed. */
function chance(seed: number): () => number {
  let state = seed;
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
}

interface Row {
  place: number;
  run: Run;
}

/** A store of runs, newest first, whose pages end where it likes. */
class FakeServer {
  rows: Row[] = [];
  reads = 0;
  /** Rows that fit into a page. */
  fits = 1000;
  failing = 0;
  /** What happens while a page is read. */
  meanwhile: () => void = () => undefined;
  tell: (run: string) => void = () => undefined;
  private last = 0;

  add(status: string): void {
    this.last += 1;
    this.rows.unshift({ place: this.last, run: { id: `r${this.last}`, status, event_count: 1 } as unknown as Run });
    this.tell(`r${this.last}`);
  }

  change(at: number, status: string): void {
    const row = this.rows[at];
    if (row === undefined) return;
    row.run = { ...row.run, status, event_count: row.run.event_count + 1 } as unknown as Run;
    this.tell(row.run.id);
  }

  /** Nobody is told. */
  prune(at: number, many: number): void {
    this.rows.splice(at, many);
  }

  list(filter: Filter): Run[] {
    return this.rows.filter((row) => filter.status === undefined || row.run.status === filter.status).map((row) => row.run);
  }

  readonly read = async (filter: Filter, limit: number, cursor: string | null): Promise<Page<Run>> => {
    this.reads += 1;
    await new Promise((resolve) => setImmediate(resolve));
    this.meanwhile();
    if (this.failing > 0) {
      this.failing -= 1;
      throw new Unreachable();
    }
    const behind = this.rows.filter((row) => cursor === null || row.place < Number(cursor));
    const matching = behind.filter((row) => filter.status === undefined || row.run.status === filter.status);
    const items = matching.slice(0, Math.min(limit, this.fits));
    const more = items.length < matching.length;
    return { items: items.map((row) => row.run), next: more ? String(items[items.length - 1]?.place) : null, has_more: more };
  };
}

/** A list that looks again when it is told to, and whether it has nothing more to look at. */
function kept(server: FakeServer, filter: Filter): { list: RunList; refresher: Refresher; quiet: () => Promise<void> } {
  const list = new RunList(filter, server.read);
  let planned = 0;
  const look = async (runs: ReadonlySet<string> | null): Promise<boolean> => {
    const seen = await list.look(runs);
    planned -= 1;
    return seen;
  };
  const refresher = new Refresher(look, {
    now: () => 0,
    after: (_, act) => {
      planned += 1;
      const timer = setImmediate(act);
      return () => {
        planned -= 1;
        clearImmediate(timer);
      };
    },
  });
  const quiet = async (): Promise<void> => {
    do await list.look(new Set());
    while (planned > 0);
  };
  return { list, refresher, quiet };
}

const shown = (runs: readonly Run[]): string[] => runs.map((run) => `${run.id} ${run.status} ${run.event_count}`);

/** What nobody tells of, and a look at everything mends. */
type Untold = "nothing" | "reconnects" | "prunes";

async function one(seed: number, filter: Filter, untold: Untold): Promise<void> {
  const random = chance(seed);
  const upTo = (n: number): number => Math.floor(random() * n);
  const status = (): string => (random() < 0.6 ? "waiting" : "completed");
  const server = new FakeServer();
  for (let i = upTo(2000); i >= 0; i -= 1) server.add(status());
  const { list, refresher, quiet } = kept(server, filter);
  let connected = true;
  server.tell = (run) => {
    if (connected) refresher.soon(run);
  };
  const reconnect = (): void => {
    connected = true;
    refresher.soon(null);
  };
  const act = (): void => {
    const it = random();
    if (it < 0.3) for (let i = upTo(random() < 0.1 ? 700 : 4); i >= 0; i -= 1) server.add(status());
    else if (it < 0.7) for (let i = upTo(4); i >= 0; i -= 1) server.change(upTo(server.rows.length), status());
    else if (it < 0.78) server.fits = random() < 0.5 ? 1000 : 30 + upTo(200);
    else if (it < 0.84) server.failing = upTo(3);
    else if (it < 0.92) {
      if (!connected) reconnect();
      else if (untold !== "nothing") connected = false;
    } else if (untold === "prunes") server.prune(upTo(server.rows.length), 1 + upTo(random() < 0.2 ? 600 : 5));
  };
  server.meanwhile = () => {
    if (random() < 0.3) act();
  };
  for (let i = 0; i < 60; i += 1) {
    act();
    if (random() < 0.3) void list.loadMore();
    if (random() < 0.4) await new Promise((resolve) => setImmediate(resolve));
    if (random() < 0.1) await list.look(new Set());
  }
  server.meanwhile = () => undefined;
  if (!connected || untold === "prunes") reconnect();
  await quiet();
  const name = `seed ${seed} ${JSON.stringify(filter)} ${untold}`;
  const all = shown(server.list(filter));
  assert.deepEqual(shown(list.rows.value), all.slice(0, list.rows.value.length), name);
  assert.equal(list.more.value, list.rows.value.length < all.length, name);
  while (list.more.value) await list.loadMore();
  assert.deepEqual(shown(list.rows.value), all, `${name}, scrolled to its end`);
}

test("new runs, changes, prunes, short pages, failures and reconnects: the list ends equal to the server's", async () => {
  for (let seed = 1; seed <= 8; seed += 1)
    for (const filter of [{}, { status: "waiting" }])
      for (const untold of ["nothing", "reconnects", "prunes"] as const) await one(seed, filter, untold);
});

test("what changed is read, and little else", async () => {
  const server = new FakeServer();
  for (let i = 0; i < 2000; i += 1) server.add("completed");
  const { list, refresher, quiet } = kept(server, {});
  await list.look(null);
  for (let i = 0; i < 3; i += 1) await list.loadMore();
  assert.equal(list.rows.value.length, 1600);
  server.tell = (run) => refresher.soon(run);
  const reads = async (act: () => void): Promise<number> => {
    await quiet();
    const before = server.reads;
    act();
    await new Promise((resolve) => setImmediate(resolve));
    await quiet();
    // One look of `quiet` itself.
    return server.reads - before - 1;
  };
  assert.equal(await reads(() => server.change(1300, "failed")), 2);
  assert.equal(await reads(() => server.change(3, "failed")), 1);
  // The first page, and what was pushed out of it.
  assert.equal(await reads(() => server.add("failed")), 2);
  server.prune(700, 300);
  assert.ok((await reads(() => refresher.soon(null))) <= 6);
  assert.deepEqual(shown(list.rows.value), shown(server.list({})).slice(0, list.rows.value.length));
});
