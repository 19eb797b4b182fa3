// A list of runs as far as it was scrolled, kept equal to the server's. A server's cursor is a place in
// its order that nobody here can compare, so that the list is kept in parts, each with the cursor it was
// read from: a part is read again until the first row of the next, whatever came or went between.

import { signal } from "@preact/signals";
import { Problem, type Filter } from "./api";
import type { Page, Run } from "./model/types";

/** The first page is there soon; whoever scrolls on wants many. */
export const PAGE = 100;
export const PAGE_ON = 500;
/** What is read beyond what is missing, so that the next part's first row is met. */
const BEYOND = 20;

export type ReadRuns = (filter: Filter, limit: number, cursor: string | null) => Promise<Page<Run>>;

/** The rows from a cursor to the next part's. */
interface Part {
  cursor: string | null;
  rows: Run[];
}

const nextOf = (page: Page<Run>): string | null =>
  page.has_more && page.next !== null ? String(page.next) : null;

/** A cursor of another store. */
const isStrange = (error: unknown): boolean => error instanceof Problem && error.status === 400;
/** Asked again, the server would refuse it again. */
const isFinal = (error: unknown): boolean => error instanceof Problem && error.status < 500 && error.status !== 429;

export class RunList {
  readonly rows = signal<Run[]>([]);
  readonly state = signal<"loading" | "ready" | "failed">("loading");
  readonly error = signal("");
  readonly more = signal(false);
  private parts: Part[] = [];
  private next: string | null = null;
  private loadingMore = false;
  private stopped = false;
  /** One at a time: each begins with the parts that the one before left. */
  private turn: Promise<unknown> = Promise.resolve();

  constructor(
    readonly filter: Filter,
    private readonly read: ReadRuns,
  ) {
    void this.look(null);
  }

  stop(): void {
    this.stopped = true;
  }

  /** Looks again at whatever these runs are on, or at all that was loaded; false when it could not be read
   * and is to be asked for again. */
  look(runs: ReadonlySet<string> | null): Promise<boolean> {
    return this.inTurn(async () => {
      try {
        await this.lookOr(runs);
        return true;
      } catch (error) {
        if (this.stopped) return true;
        this.error.value = error instanceof Error ? error.message : String(error);
        if (this.state.value === "loading") this.state.value = "failed";
        return isFinal(error);
      }
    });
  }

  async loadMore(): Promise<void> {
    if (this.loadingMore) return;
    this.loadingMore = true;
    await this.inTurn(async () => {
      const cursor = this.next;
      if (cursor === null || this.stopped) return;
      try {
        const page = await this.read(this.filter, PAGE_ON, cursor);
        this.put(this.parts, [{ cursor, rows: page.items }], []);
        this.ends(nextOf(page));
      } catch (error) {
        // Scrolling on asks again; but not from a place that this store does not know.
        if (isStrange(error)) await this.lookOr(null).catch(() => undefined);
      }
    });
    this.loadingMore = false;
  }

  private inTurn<T>(act: () => Promise<T>): Promise<T> {
    const done = this.turn.then(act);
    this.turn = done.catch(() => undefined);
    return done;
  }

  /** As far as the places are this store's; else from the newest, and nothing else. */
  private async lookOr(runs: ReadonlySet<string> | null): Promise<void> {
    try {
      await this.lookAt(runs);
    } catch (error) {
      if (!isStrange(error) || this.parts.length < 2) throw error;
      this.parts = [];
      await this.lookAt(null);
    }
  }

  private async lookAt(runs: ReadonlySet<string> | null): Promise<void> {
    const known = new Set(this.rows.value.map((run) => run.id));
    const fresh = new Set<Part>();
    // What is new is there.
    await this.again(this.parts[0] ?? { cursor: null, rows: [] }, fresh);
    for (const part of fresh) for (const run of part.rows) known.add(run.id);
    // What did not match before may match now, anywhere.
    const isFiltered = Object.values(this.filter).some((value) => value !== undefined && value !== "");
    const isAnywhere = runs === null || (isFiltered && [...runs].some((run) => !known.has(run)));
    for (const part of [...this.parts]) {
      if (fresh.has(part) || !this.parts.includes(part)) continue;
      if (isAnywhere || part.rows.some((run) => runs.has(run.id))) await this.again(part, fresh);
    }
    this.merge();
    if (!this.stopped) this.state.value = "ready";
  }

  /** Reads a part again, up to where the next one begins. */
  private async again(part: Part, fresh: Set<Part>): Promise<void> {
    const at = Math.max(0, this.parts.indexOf(part));
    const before = this.parts.slice(0, at);
    const later = this.parts.slice(at + 1);
    const places = new Map(later.flatMap((it, i) => it.rows.map((run) => [run.id, i] as const)));
    // Further than this nothing of the later parts is met, because it is gone: the list ends sooner.
    const most = this.rows.value.length + PAGE_ON;
    const got: Part[] = [];
    let { cursor } = part;
    let limit = at === 0 ? PAGE : PAGE_ON;
    let count = 0;
    for (;;) {
      const page = await this.read(this.filter, limit, cursor);
      if (this.stopped) return;
      const met = page.items.findIndex((run) => places.has(run.id));
      const rows = met === -1 ? page.items : page.items.slice(0, met);
      got.push({ cursor, rows });
      fresh.add(got[got.length - 1] as Part);
      count += rows.length;
      const next = nextOf(page);
      const meeting = page.items[met];
      if (meeting !== undefined) {
        const rest = later.slice(places.get(meeting.id));
        const [first] = rest;
        // What stood before it and was not read is not there any more.
        if (first !== undefined) first.rows = first.rows.slice(first.rows.findIndex((run) => run.id === meeting.id));
        return this.put(before, got, rest);
      }
      if (next !== null && next === later[0]?.cursor) return this.put(before, got, later);
      if (next === null || count >= (later.length === 0 ? part.rows.length : most)) {
        this.put(before, got, []);
        return this.ends(next);
      }
      cursor = next;
      limit = Math.min(PAGE_ON, Math.max(0, part.rows.length - count) + BEYOND);
    }
  }

  private put(before: readonly Part[], got: readonly Part[], rest: readonly Part[]): void {
    const read = new Set(got.flatMap((part) => part.rows.map((run) => run.id)));
    for (const part of before) part.rows = part.rows.filter((run) => !read.has(run.id));
    this.parts = [...before, ...got, ...rest];
    this.rows.value = this.parts.flatMap((part) => part.rows);
  }

  private ends(next: string | null): void {
    this.next = next;
    this.more.value = next !== null;
  }

  /** New rows push others out of the first page, a few at a time: small parts become one. */
  private merge(): void {
    const merged: Part[] = [];
    for (const part of this.parts) {
      const last = merged[merged.length - 1];
      if (last !== undefined && merged.length > 1 && last.rows.length + part.rows.length <= PAGE_ON)
        merged[merged.length - 1] = { cursor: last.cursor, rows: [...last.rows, ...part.rows] };
      else merged.push(part);
    }
    this.parts = merged;
  }
}
