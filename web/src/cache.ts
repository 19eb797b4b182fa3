// Bodies of a run's events, as many as fit: pages that nobody looked at for longest go first.

import { signal } from "@preact/signals";
import { getEvents } from "./api";
import type { Json, LogEvent } from "./model/types";

const PAGE = 100;
const WEIGHT_MAX = 16_000_000;

interface Kept {
  events: (LogEvent | undefined)[];
  weight: number;
}

export class EventCache {
  /** Moves whenever events arrive. */
  readonly version = signal(0);
  private pages = new Map<number, Kept>();
  private loading = new Map<number, Promise<void>>();
  private weight = 0;
  /** Pages that could not be read, and until when nobody tries again. */
  private failed = new Map<number, number>();
  /** Moves when what was asked for before is not wanted any more. */
  private generation = 0;
  private telling = false;
  private touched = -1;

  constructor(private readonly run: string) {}

  /** The event if it is here; asks for it if not. */
  peek(seq: number): LogEvent | null {
    const number = Math.floor((seq - 1) / PAGE);
    const page = this.pages.get(number);
    const event = page?.events[(seq - 1) % PAGE];
    if (event === undefined) {
      if ((this.failed.get(number) ?? 0) < Date.now()) void this.load(seq).catch(() => undefined);
      return null;
    }
    if (number !== this.touched) this.touch(number);
    return event;
  }

  async load(seq: number): Promise<LogEvent | null> {
    const number = Math.floor((seq - 1) / PAGE);
    const here = (): LogEvent | undefined => this.pages.get(number)?.events[(seq - 1) % PAGE];
    if (here() !== undefined) {
      this.touch(number);
      return here() ?? null;
    }
    let loading = this.loading.get(number);
    if (loading === undefined) {
      const reading = this.read(number).finally(() => {
        if (this.loading.get(number) === reading) this.loading.delete(number);
      });
      loading = reading;
      this.loading.set(number, loading);
    }
    await loading;
    return here() ?? null;
  }

  /** Events that came another way. */
  seed(events: readonly LogEvent[]): void {
    for (const event of events) this.put(event);
    this.trim();
    this.tell();
  }

  /** Bodies are not what they were. */
  clear(): void {
    this.pages.clear();
    this.weight = 0;
    this.generation += 1;
    this.loading.clear();
    this.tell();
  }

  /** Marks what is looked at, so that it stays. */
  private touch(number: number): void {
    this.touched = number;
    const page = this.pages.get(number);
    if (page === undefined) return;
    this.pages.delete(number);
    this.pages.set(number, page);
  }

  private async read(number: number): Promise<void> {
    try {
      const { generation } = this;
      let from = number * PAGE + 1;
      const end = from + PAGE;
      // The server may give fewer than asked for.
      while (from < end) {
        const page = await getEvents(this.run, from, end - from);
        if (page.items.length === 0 || generation !== this.generation) break;
        for (const event of page.items) this.put(event);
        from += page.items.length;
        if (!page.has_more) break;
      }
      this.failed.delete(number);
    } catch (error) {
      this.failed.set(number, Date.now() + 2000);
      throw error;
    } finally {
      this.trim();
      this.tell();
    }
  }

  private put(event: LogEvent): void {
    const number = Math.floor((event.seq - 1) / PAGE);
    let page = this.pages.get(number);
    if (page === undefined) {
      page = { events: [], weight: 0 };
      this.pages.set(number, page);
    }
    const place = (event.seq - 1) % PAGE;
    if (page.events[place] === undefined) {
      const weight = weigh(event.body) + 400;
      page.weight += weight;
      this.weight += weight;
    }
    page.events[place] = event;
  }

  private trim(): void {
    for (const [number, page] of this.pages) {
      if (this.weight <= WEIGHT_MAX || this.pages.size <= 2) return;
      this.pages.delete(number);
      this.weight -= page.weight;
    }
  }

  /** Once for all that arrives together. */
  private tell(): void {
    if (this.telling) return;
    this.telling = true;
    queueMicrotask(() => {
      this.telling = false;
      this.version.value += 1;
    });
  }
}

/** About how many characters a value holds. */
function weigh(value: Json): number {
  if (typeof value === "string") return value.length + 16;
  if (value === null || typeof value !== "object") return 8;
  let sum = 32;
  for (const member of Object.values(value)) sum += weigh(member) + 24;
  return sum;
}
