// Following a log: what is behind is read in pages, what comes is streamed, and whatever happens to the
// connection, every event is given once and in order. No clock, network or chance of its own, so that
// tests can make all of them fail.

import { SseParser, type Sent } from "./sse";

export type Link =
  /** Reading what is behind. */
  | { is: "reading" }
  | { is: "live" }
  /** The connection is gone; tried again by itself. */
  | { is: "lost"; why: string; tries: number }
  /** Nobody looks at the page, so that it holds no connection. */
  | { is: "asleep" }
  /** The run has ended; nothing more is streamed. */
  | { is: "ended" }
  /** The run is not there any more. */
  | { is: "gone"; why: string }
  /** A token is needed. */
  | { is: "locked" };

export interface World {
  fetch(path: string, headers: { [name: string]: string }, signal: AbortSignal): Promise<Response>;
  sleep(ms: number, signal: AbortSignal): Promise<void>;
  random(): number;
  now(): number;
  /** Resolves when a token was given. */
  unlocked(signal: AbortSignal): Promise<void>;
  /** Resolves when someone looks at the page. */
  awake(signal: AbortSignal): Promise<void>;
  hidden(): boolean;
}

export const BACKOFF_FIRST_MS = 250;
export const BACKOFF_MAX_MS = 10_000;
/** A stream that is silent for longer than its keep-alives is dead, whatever the browser thinks. */
export const SILENT_MAX_MS = 40_000;

class Refused extends Error {
  constructor(readonly status: number) {
    super(`the server answered ${status}`);
  }
}

/** What follows a stream until it is stopped: reconnects, backs off, sleeps with the page. */
abstract class Follower {
  protected stopping = new AbortController();
  private connection: AbortController | null = null;
  /** The pause before the next try. */
  private pause: AbortController | null = null;
  private heard = 0;
  private poked = false;
  protected tries = 0;

  constructor(
    protected readonly world: World,
    private readonly tell: (link: Link) => void,
  ) {}

  stop(): void {
    this.stopping.abort();
    this.connection?.abort();
    this.pause?.abort();
  }

  /** The machine may have slept, or the network changed: look at once whether the stream still lives. */
  nudge(): void {
    this.poked = true;
    this.pause?.abort();
    if (this.world.now() - this.heard > SILENT_MAX_MS / 4) this.connection?.abort();
  }

  /** Lets go of the connection: nobody looks, or the network is away and streams only seem alive. */
  doze(): void {
    this.connection?.abort();
  }

  async run(): Promise<void> {
    const { signal } = this.stopping;
    while (!signal.aborted) {
      if (this.world.hidden()) {
        this.tell({ is: "asleep" });
        await this.world.awake(signal);
        if (signal.aborted) return;
      }
      try {
        const done = await this.once();
        if (done !== null) {
          this.tell(done);
          return;
        }
        // The stream ended without an end: the server went away in good order.
        if (this.world.hidden()) continue;
        await this.backOff("The stream ended.");
      } catch (error) {
        if (signal.aborted) return;
        if (this.world.hidden()) continue;
        if (error instanceof Refused && error.status === 401) {
          this.tell({ is: "locked" });
          await this.world.unlocked(signal);
          continue;
        }
        if (error instanceof Refused && (error.status === 404 || error.status === 410)) {
          this.tell({ is: "gone", why: error.message });
          return;
        }
        await this.backOff(error instanceof Error ? error.message : String(error));
      }
    }
  }

  /** Reads and streams until the connection ends; not null when there is nothing more to follow. */
  protected abstract once(): Promise<Link | null>;

  protected say(link: Link): void {
    this.tell(link);
  }

  protected async get(path: string, accept: string, more: { [name: string]: string } = {}): Promise<Response> {
    this.connection = new AbortController();
    this.heard = this.world.now();
    const { signal } = this.connection;
    const response = await this.watched(() => this.world.fetch(path, { Accept: accept, ...more }, signal));
    this.heard = this.world.now();
    if (!response.ok) throw new Refused(response.status);
    return response;
  }

  /** A whole answer. One that takes long is not silent, so its pieces are what is watched. */
  protected async json<T>(path: string): Promise<T> {
    const response = await this.get(path, "application/json");
    const pieces: string[] = [];
    const decoder = new TextDecoder();
    await this.pieces(response, (bytes) => {
      pieces.push(decoder.decode(bytes, { stream: true }));
      return true;
    });
    return JSON.parse(pieces.join("")) as T;
  }

  /** Gives every event of the stream until it ends, or `take` has had enough. */
  protected async stream(response: Response, take: (sent: Sent) => boolean): Promise<void> {
    const parser = new SseParser();
    const decoder = new TextDecoder();
    try {
      await this.pieces(response, (bytes) => {
        this.tries = 0;
        return parser.push(decoder.decode(bytes, { stream: true })).every(take);
      });
    } finally {
      this.connection?.abort();
    }
  }

  /** Gives the body as it comes, until it ends or `take` has had enough. */
  private pieces(response: Response, take: (bytes: Uint8Array) => boolean): Promise<void> {
    return this.watched(() => this.read(response, take));
  }

  private async read(response: Response, take: (bytes: Uint8Array) => boolean): Promise<void> {
    const reader = response.body?.getReader();
    if (reader === undefined) return;
    try {
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        this.heard = this.world.now();
        if (!take(value)) return;
      }
    } finally {
      // It is not needed any more; that it is cancelled is no error.
      reader.cancel().catch(() => undefined);
    }
  }

  /** Gives the connection up once it is silent for too long. */
  private async watched<T>(work: () => Promise<T>): Promise<T> {
    const watch = new AbortController();
    const watching = this.watch(watch.signal);
    try {
      return await work();
    } finally {
      watch.abort();
      await watching;
    }
  }

  private async watch(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      await this.world.sleep(SILENT_MAX_MS / 4, signal);
      if (!signal.aborted && this.world.now() - this.heard > SILENT_MAX_MS) this.connection?.abort();
    }
  }

  private async backOff(why: string): Promise<void> {
    this.tries += 1;
    this.tell({ is: "lost", why, tries: this.tries });
    const most = Math.min(BACKOFF_MAX_MS, BACKOFF_FIRST_MS * 2 ** (this.tries - 1));
    const wait = this.poked ? 0 : most * (0.5 + this.world.random() / 2);
    this.poked = false;
    this.pause = new AbortController();
    if (this.stopping.signal.aborted) return;
    await this.world.sleep(wait, this.pause.signal);
    this.pause = null;
  }
}

export interface SeqEvent {
  seq: number;
  kind: string;
  late: boolean;
  /** Of the whole log up to here. */
  digest?: string;
}

export interface Watcher<E extends SeqEvent> {
  /** The next event, each once, dense from the one after `last`. */
  events(events: E[]): void;
  /** What a model says: `text`, `thinking`, or the name of a tool that it begins to call (`tool_call`). */
  delta(call: string, attempt: number, text: string, kind: string): void;
  reset(call: string | null, attempt: number): void;
  /** The log is another one than before, and is given again from its first event. */
  anew(): void;
  link(link: Link): void;
}

interface Spoken {
  call?: string;
  attempt?: number;
  text?: string;
  kind?: string;
}

const PAGE = 1000;

/** One run's log, from the event after `last` to its end. */
export class RunFollower<E extends SeqEvent> extends Follower {
  private ended = false;
  private readingLate = false;
  /** Events that came twice, and times that one was missing: both are healed, and counted. */
  doubled = 0;
  gaps = 0;

  constructor(
    world: World,
    private readonly path: string,
    private last: number,
    /** The digest of that event, by which the log is known again. */
    private digest: string | null,
    private readonly watcher: Watcher<E>,
    private readonly endsRun: (event: E) => boolean,
  ) {
    super(world, (link) => watcher.link(link));
  }

  protected async once(): Promise<Link | null> {
    if (this.tries === 0) this.say({ is: "reading" });
    await this.knowAgain();
    await this.readBehind();
    if (this.ended) return { is: "ended" };
    const since = this.last === 0 ? {} : { "Last-Event-ID": String(this.last) };
    const response = await this.get(this.path, "text/event-stream", since as { [name: string]: string });
    if (response.status === 204) {
      // It ended between the last page and now.
      await this.readBehind();
      return { is: "ended" };
    }
    this.say({ is: "live" });
    let whole = true;
    await this.stream(response, (sent) => {
      whole = this.take(sent);
      return whole && !this.ended;
    });
    if (this.ended) {
      await this.readBehind(); // facts that came late
      return { is: "ended" };
    }
    return null;
  }

  /** Facts that came after the end, which no stream tells of. */
  async readLate(): Promise<void> {
    if (!this.ended || this.readingLate || this.stopping.signal.aborted) return;
    this.readingLate = true;
    try {
      await this.readBehind();
    } catch {
      // Whoever looks at the run again asks again.
    } finally {
      this.readingLate = false;
    }
  }

  /** The server may have another store by now, or an older copy of it: a log that does not hold the last
   * event we have is not the one that we read. */
  private async knowAgain(): Promise<void> {
    if (this.last === 0 || this.digest === null) return;
    const page = await this.json<{ items: E[] }>(`${this.path}?from=${this.last}&limit=1`);
    if (page.items[0]?.seq === this.last && page.items[0].digest === this.digest) return;
    this.last = 0;
    this.digest = null;
    this.ended = false;
    this.watcher.anew();
  }

  /** Reads pages until there is no more. */
  private async readBehind(): Promise<void> {
    for (;;) {
      const page = await this.json<{ items: E[]; has_more: boolean }>(`${this.path}?from=${this.last + 1}&limit=${PAGE}`);
      const before = this.last;
      this.accept(page.items);
      if (!page.has_more || this.last === before) return;
    }
  }

  /** False when an event is missing: it is read before going on. */
  private take(sent: Sent): boolean {
    if (sent.event === "delta" || sent.event === "reset") {
      const said = JSON.parse(sent.data) as Spoken;
      if (sent.event === "reset") this.watcher.reset(said.call ?? null, said.attempt ?? 1);
      else if (said.call !== undefined)
        this.watcher.delta(said.call, said.attempt ?? 1, said.text ?? "", said.kind ?? "text");
      return true;
    }
    if (sent.event === "problem") {
      const { status } = JSON.parse(sent.data) as { status?: number };
      throw new Refused(status ?? 500);
    }
    if (sent.id === null || sent.data === "") return true;
    return this.accept([JSON.parse(sent.data) as E]);
  }

  private accept(events: E[]): boolean {
    const fresh: E[] = [];
    let whole = true;
    for (const event of events) {
      if (event.seq <= this.last) {
        this.doubled += 1;
        continue;
      }
      if (event.seq !== this.last + 1) {
        this.gaps += 1;
        whole = false;
        break;
      }
      this.last = event.seq;
      this.digest = event.digest ?? null;
      if (this.endsRun(event)) this.ended = true;
      fresh.push(event);
    }
    if (fresh.length > 0) this.watcher.events(fresh);
    return whole;
  }
}

/** The stream over all runs: tells that a run changed, never what it is now. */
export class AllFollower extends Follower {
  private cursor: string | null = null;

  constructor(
    world: World,
    private readonly changed: (run: string, kind: string) => void,
    /** Something may have been missed: look at everything. */
    private readonly again: () => void,
    /** Our place is none of this store's. */
    private readonly strange: () => void,
    link: (link: Link) => void,
  ) {
    super(world, link);
  }

  protected async once(): Promise<Link | null> {
    const since = this.cursor === null ? {} : { "Last-Event-ID": this.cursor };
    let response: Response;
    try {
      response = await this.get("events", "text/event-stream", since as { [name: string]: string });
    } catch (error) {
      return this.lostPlace(error);
    }
    this.say({ is: "live" });
    this.again();
    let problem = 0;
    await this.stream(response, (sent) => {
      if (sent.event === "problem") {
        problem = (JSON.parse(sent.data) as { status?: number }).status ?? 500;
        return false;
      }
      if (sent.id !== null) this.cursor = sent.id;
      if (sent.event !== "delta" && sent.event !== "reset" && sent.data.startsWith("{")) {
        const event = JSON.parse(sent.data) as { run?: string; kind?: string };
        if (event.run !== undefined) this.changed(event.run, event.kind ?? "");
      }
      return true;
    });
    if (problem !== 0) return this.lostPlace(new Refused(problem));
    return null;
  }

  /** The place of another store means nothing in this one: it is let go, and everything looked at. */
  private lostPlace(error: unknown): Promise<Link | null> {
    if (!(error instanceof Refused) || error.status !== 400 || this.cursor === null) throw error;
    this.cursor = null;
    this.strange();
    return this.once();
  }
}
