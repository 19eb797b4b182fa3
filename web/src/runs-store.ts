// The list of runs, and what waits for a person, kept true by the stream over all runs: that says which
// run changed, and what is shown of it is asked for again.

import { computed, effect, signal } from "@preact/signals";
import { listRuns, token, tokenWanted } from "./api";
import { AllFollower, type Link } from "./live";
import { needsPerson, type Page, type Run, type Wait } from "./model/types";
import { Refresher } from "./refresher";
import { PAGE, PAGE_ON, type RunList } from "./run-list";
import { listen, world } from "./world";

const AGAIN_MS = 30_000;
const POLL_MS = 2000;
/** Nobody tells of a run that was pruned. */
const LOOK_AGAIN_MS = 60_000;
/** As many as an inbox looks through. */
const WAITING_MAX = 10_000;

export interface Asked {
  run: Run;
  wait: Wait;
}

const waiting = signal<Run[]>([]);
export const waitingKnown = signal(false);
/** More wait than were looked through: those who wait longest may be among them. */
export const waitingMore = signal(false);

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

const refresher = new Refresher(async (runs) => {
  const looks = await Promise.all([currentList.value?.look(runs) ?? true, readWaiting().catch(() => false)]);
  // Whoever is not let in asks again with a token.
  return looks.every((seen) => seen) || tokenWanted.value;
});

/** Soon, and once for all that is asked for together. */
export const refreshSoon = (run: string | null): void => refresher.soon(run);

async function readWaiting(): Promise<boolean> {
  const runs: Run[] = [];
  let cursor: string | null = null;
  do {
    const page: Page<Run> = await listRuns({ status: "waiting" }, cursor === null ? PAGE : PAGE_ON, cursor);
    runs.push(...page.items);
    cursor = page.has_more && page.next !== null ? String(page.next) : null;
  } while (cursor !== null && runs.length < WAITING_MAX);
  waiting.value = runs;
  waitingMore.value = cursor !== null;
  waitingKnown.value = true;
  return true;
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
    if (!document.hidden) refreshSoon(null);
  }, LOOK_AGAIN_MS);
  setInterval(() => {
    if (listLink.value.is === "gone") void follower.run();
  }, AGAIN_MS);
}
