// The run that is open: its snapshot, its folded log, and the stream that keeps both true.

import { batch, signal } from "@preact/signals";
import { address, getRun, Problem } from "./api";
import { segment } from "./api-path";
import { EventCache } from "./cache";
import { RunFollower, type Link } from "./live";
import { RunModel } from "./model/model";
import { nodes } from "./nodes";
import { endsRun, isTerminal, type LogEvent, type Run } from "./model/types";
import { watchers } from "./runs-store";
import { listen, world } from "./world";

/** Of runs up to this length the bodies that were read are kept while they fit. */
const SEED_MAX = 3000;
const SNAPSHOT_MS = 250;
/** A run that ended can still be erased or deleted. */
const LOOK_AGAIN_MS = 5000;
/** What a model says while it says it, at most. */
const SAID_MAX = 200_000;

export interface Said {
  attempt: number;
  text: string;
  /** What leads to it. */
  thinking: string;
  /** Tools that it begins to call. */
  tools: string[];
}

const NOTHING_SAID = { text: "", thinking: "", tools: [] };

export class OpenRun {
  readonly run = signal<Run | null>(null);
  readonly error = signal<string | null>(null);
  readonly link = signal<Link>({ is: "reading" });
  /** Moves whenever the model did. */
  readonly version = signal(0);
  /** Live text by call, until the sealed message replaces it. */
  readonly said = signal<ReadonlyMap<string, Said>>(new Map());
  model = new RunModel();
  readonly cache: EventCache;
  /** The log is another one than was read before. */
  readonly isAnother = signal(false);
  private follower: RunFollower<LogEvent> | null = null;
  private unlisten: (() => void) | null = null;
  private lastDigest: string | null = null;

  private etag: string | null = null;
  private snapshotTimer: ReturnType<typeof setTimeout> | null = null;
  private retryTimer: ReturnType<typeof setTimeout> | null = null;
  /** Calls whose sealed message is here: pieces of them that come later say nothing new. */
  private readonly over = new Set<string>();
  private looking: ReturnType<typeof setInterval>;
  private stops: (() => void)[] = [];
  private stopped = false;
  private versionQueued = false;

  constructor(readonly id: string) {
    this.cache = new EventCache(id);
    const watcher = (run: string): void => {
      if (run === this.id) this.snapshotSoon();
    };
    watchers.add(watcher);
    this.stops.push(() => watchers.delete(watcher));
    this.looking = setInterval(() => {
      if (!document.hidden) void this.snapshot();
    }, LOOK_AGAIN_MS);
    void this.snapshot();
  }

  stop(): void {
    this.stopped = true;
    this.unfollow();
    clearInterval(this.looking);
    if (this.snapshotTimer !== null) clearTimeout(this.snapshotTimer);
    if (this.retryTimer !== null) clearTimeout(this.retryTimer);
    for (const stop of this.stops) stop();
  }

  /** Looks at the run again; keeps what is known when the server cannot be reached. */
  async snapshot(): Promise<void> {
    try {
      const tagged = await getRun(this.id, this.etag);
      if (this.stopped) return;
      // Whichever look finds the run first: its log is followed once. One that was gone and is back goes on.
      if (this.follower === null) this.follow();
      if (tagged === null) return this.readLate();
      const before = this.run.value;
      this.etag = tagged.etag;
      this.run.value = tagged.run;
      this.error.value = null;
      // What was folded from bodies that are erased is folded again without them.
      if (tagged.run.erased && before?.erased === false) {
        this.unfollow();
        this.forget();
        this.lastDigest = null;
        this.follow();
      }
      this.readLate();
    } catch (error) {
      if (this.stopped) return;
      if (error instanceof Problem && (error.status === 404 || error.status === 410)) {
        if (this.run.value === null) this.error.value = error.message;
        else this.gone();
      } else if (this.run.value === null) {
        this.error.value = error instanceof Error ? error.message : String(error);
        this.retryTimer ??= setTimeout(() => {
          this.retryTimer = null;
          if (!this.stopped && this.run.value === null) void this.snapshot();
        }, 1500);
      }
    }
  }

  private follow(): void {
    const link = (link: Link): void => {
      if (link.is === "gone") return this.gone();
      this.link.value = link;
      if (link.is === "ended" || link.is === "live") void this.snapshot();
    };
    const follower = new RunFollower<LogEvent>(
      world,
      `runs/${segment(this.id)}/events`,
      this.model.seq,
      this.lastDigest,
      {
        // One that was stopped while it read says nothing more.
        events: (events) => {
          if (this.follower === follower) this.take(events);
        },
        delta: (call, attempt, text, kind) => this.hear(call, attempt, text, kind),
        reset: (call, attempt) => this.reset(call, attempt),
        anew: () => this.anew(),
        link,
      },
      endsRun,
    );
    this.follower = follower;
    this.unlisten = listen(follower);
    void follower.run();
  }

  private unfollow(): void {
    this.follower?.stop();
    this.unlisten?.();
    this.follower = null;
  }

  private gone(): void {
    this.unfollow();
    this.etag = null;
    this.link.value = { is: "gone", why: "It was pruned or deleted from the store." };
  }

  private readLate(): void {
    if ((this.run.value?.event_count ?? 0) > this.model.seq) void this.follower?.readLate();
  }

  private anew(): void {
    this.forget();
    this.isAnother.value = true;
  }

  private forget(): void {
    this.model = new RunModel();
    this.over.clear();
    this.said.value = new Map();
    this.cache.clear();
    nodes.clear();
    this.moved();
  }

  exportAddress(format: string): string {
    return address(`runs/${segment(this.id)}/export?format=${format}`);
  }

  private take(events: LogEvent[]): void {
    batch(() => {
      for (const event of events) {
        this.model.apply(event);
        this.lastDigest = event.digest;
        if (event.kind === "model.answered" || event.kind === "model.failed")
          this.drop(event.body?.call);
        if (endsRun(event)) this.said.value = new Map();
      }
      const length = this.run.value?.event_count ?? 0;
      if (length <= SEED_MAX || events.length < 50) this.cache.seed(events);
      this.moved();
    });
    const known = this.run.value;
    if (known !== null && this.model.seq > known.event_count) this.snapshotSoon();
    else if (known !== null && !isTerminal(known.status) && this.model.ended) this.snapshotSoon();
  }

  /** At most once a frame: a log that is read in pages moves often. */
  private moved(): void {
    if (this.versionQueued) return;
    this.versionQueued = true;
    requestAnimationFrame(() => {
      this.versionQueued = false;
      this.version.value += 1;
    });
  }

  private snapshotSoon(): void {
    this.snapshotTimer ??= setTimeout(() => {
      this.snapshotTimer = null;
      void this.snapshot();
    }, SNAPSHOT_MS);
  }

  private hear(call: string, attempt: number, text: string, kind: string): void {
    if (this.over.has(call)) return;
    const before = this.said.value.get(call);
    if (before !== undefined && before.attempt > attempt) return;
    const said = { ...(before?.attempt === attempt ? before : NOTHING_SAID), attempt };
    if (kind === "tool_call") said.tools = [...said.tools.slice(-20), text];
    else if (kind === "thinking") said.thinking = (said.thinking + text).slice(-SAID_MAX);
    else said.text = (said.text + text).slice(-SAID_MAX);
    this.said.value = new Map(this.said.value).set(call, said);
  }

  private reset(call: string | null, attempt: number): void {
    if (call === null) this.said.value = new Map();
    else this.said.value = new Map(this.said.value).set(call, { ...NOTHING_SAID, attempt });
  }

  private drop(call: unknown): void {
    if (typeof call !== "string") return;
    this.over.add(call);
    if (!this.said.value.has(call)) return;
    const said = new Map(this.said.value);
    said.delete(call);
    this.said.value = said;
  }
}
