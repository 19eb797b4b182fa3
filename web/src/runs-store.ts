// The list of runs, and what waits for a person, kept true by the stream over all runs: that says which
// run changed, and what is shown of it is asked for again.

import { computed, effect, signal } from "@preact/signals";
import { listRuns, Problem, token, tokenWanted, type Filter } from "./api";
import { AllFollower, type Link } from "./live";
import { needsPerson, type Run, type Wait } from "./model/types";
import { listen, world } from "./world";

/** The first page is there soon; whoever scrolls on wants many. */
const PAGE = 100;
const PAGE_ON = 500;
/** Changes that come together are looked at together, and a slow server less often. */
const REFRESH_MS = 300;
const REFRESH_MAX_MS = 5000;
const AGAIN_MS = 30_000;
const POLL_MS = 2000;

interface PageOf {
  cursor: string | null;
  ids: Set<string>;
}

/** A cursor of another store. */
const isStrange = (error: unknown): boolean => error instanceof Problem && error.status === 400;

/** A list of runs that matches a filter, as far as it was scrolled. */
export class RunList {
  readonly rows = signal<Run[]>([]);
  readonly state = signal<"loading" | "ready" | "failed">("loading");
  readonly error = signal("");
  readonly more = signal(false);
  private next: string | null = null;
  private pages: PageOf[] = [];
  private loadingMore = false;
  private stopped = false;

  constructor(readonly filter: Filter) {
    void this.first();
  }

  stop(): void {
    this.stopped = true;
  }

  /** Asks for the newest again; what is further down stays. */
  async first(): Promise<void> {
    try {
      const page = await listRuns(this.filter, PAGE, null);
      if (this.stopped) return;
      const ids = new Set(page.items.map((run) => run.id));
      const old = this.rows.value;
      let last = -1;
      old.forEach((run, i) => {
        if (ids.has(run.id)) last = i;
      });
      const rest = page.has_more && last >= 0 && this.pages.length > 1 ? old.slice(last + 1) : [];
      this.rows.value = [...page.items, ...rest];
      if (rest.length === 0) {
        this.pages = [{ cursor: null, ids }];
        this.next = page.next === null ? null : String(page.next);
        this.more.value = page.has_more;
      } else this.pages[0] = { cursor: null, ids };
      this.state.value = "ready";
    } catch (error) {
      if (this.stopped) return;
      this.error.value = error instanceof Error ? error.message : String(error);
      if (this.state.value === "loading") this.state.value = "failed";
    }
  }

  /** From the newest, and nothing else. */
  private async anew(): Promise<void> {
    this.pages = [];
    this.next = null;
    this.more.value = false;
    await this.first();
  }

  async loadMore(): Promise<void> {
    if (this.loadingMore || !this.more.value || this.next === null) return;
    this.loadingMore = true;
    try {
      const cursor = this.next;
      const page = await listRuns(this.filter, PAGE_ON, cursor);
      if (this.stopped) return;
      const known = new Set(this.rows.value.map((run) => run.id));
      this.rows.value = [...this.rows.value, ...page.items.filter((run) => !known.has(run.id))];
      this.pages.push({ cursor, ids: new Set(page.items.map((run) => run.id)) });
      this.next = page.next === null ? null : String(page.next);
      this.more.value = page.has_more;
    } catch (error) {
      // Scrolling on asks again; but not from a place that this store does not know.
      if (isStrange(error)) await this.anew();
    } finally {
      this.loadingMore = false;
    }
  }

  /** Looks again at whatever these runs are on. */
  async changed(runs: ReadonlySet<string>): Promise<void> {
    await this.first();
    for (const page of this.pages.slice(1)) {
      if (![...runs].some((run) => page.ids.has(run))) continue;
      const fresh = await listRuns(this.filter, PAGE_ON, page.cursor).catch((error: unknown) => {
        if (isStrange(error)) void this.anew();
        return null;
      });
      if (fresh === null || this.stopped) return;
      const now = new Map(fresh.items.map((run) => [run.id, run]));
      this.rows.value = this.rows.value.flatMap((run) => {
        if (!page.ids.has(run.id)) return [run];
        const it = now.get(run.id);
        return it === undefined ? [] : [it];
      });
      page.ids = new Set(now.keys());
    }
  }
}

export interface Asked {
  run: Run;
  wait: Wait;
}

const waiting = signal<Run[]>([]);
export const waitingKnown = signal(false);

/** What waits for a person, longest first. */
export const inbox = computed<Asked[]>(() =>
  waiting.value
    .flatMap((run) => run.waiting.filter(needsPerson).map((wait) => ({ run, wait })))
    .sort((a, b) => (a.wait.since < b.wait.since ? -1 : 1)),
);

export const listLink = signal<Link>({ is: "reading" });
export const currentList = signal<RunList | null>(null);
/** Who wants to know of every change, with its kind. */
export const watchers = new Set<(run: string, kind: string) => void>();

let dirty = new Set<string>();
let all = false;
let timer: ReturnType<typeof setTimeout> | null = null;
let pause = REFRESH_MS;

/** Soon, and once for all that is asked for together. */
export function refreshSoon(run: string | null): void {
  if (run === null) all = true;
  else dirty.add(run);
  timer ??= setTimeout(() => {
    const runs = dirty;
    dirty = new Set();
    const everything = all;
    all = false;
    const list = currentList.value;
    const began = Date.now();
    const listed = list === null ? null : everything ? list.first() : list.changed(runs);
    void Promise.allSettled([listed, readWaiting()]).then(() => {
      timer = null;
      pause = Math.min(REFRESH_MAX_MS, Math.max(REFRESH_MS, 3 * (Date.now() - began)));
      if (dirty.size > 0 || all) refreshSoon(null);
    });
  }, pause);
}

async function readWaiting(): Promise<void> {
  const runs: Run[] = [];
  let cursor: string | null = null;
  // A thousand waiting runs are enough for an inbox.
  for (let page = 0; page < 10; page += 1) {
    const read: { items: Run[]; next: string | number | null; has_more: boolean } = await listRuns(
      { status: "waiting" },
      PAGE,
      cursor,
    );
    runs.push(...read.items);
    if (!read.has_more || read.next === null) break;
    cursor = String(read.next);
  }
  waiting.value = runs;
  waitingKnown.value = true;
}

/** A waiting run as it is now; once it waits no more, as it was, without waits. */
export const waitingRun = (run: Run): Run =>
  waiting.value.find((it) => it.id === run.id) ?? { ...run, waiting: [] };

export function startList(strange: () => void): void {
  const follower = new AllFollower(
    world,
    (run, kind) => {
      refreshSoon(run);
      for (const watcher of watchers) watcher(run, kind);
    },
    () => refreshSoon(null),
    strange,
    (link) => {
      listLink.value = link;
    },
  );
  listen(follower);
  refreshSoon(null);
  void follower.run();
  // Whoever was not let in before is now.
  effect(() => {
    if (token.value !== null && !tokenWanted.value) refreshSoon(null);
  });
  // A server without that stream is asked now and then.
  setInterval(() => {
    if (listLink.value.is === "gone" && !document.hidden) refreshSoon(null);
  }, POLL_MS);
  setInterval(() => {
    if (listLink.value.is === "gone") void follower.run();
  }, AGAIN_MS);
}
