// Looking for a text in a log: page by page, keeping only where it was found.

import { signal } from "@preact/signals";
import { getEvents } from "./api";
import type { LogEvent } from "./model/types";

const PAGE = 1000;

export const holds = (event: LogEvent, wanted: string): boolean =>
  `${event.kind} ${JSON.stringify(event.body)}`.toLowerCase().includes(wanted);

export class LogSearch {
  readonly found: number[] = [];
  /** Moves while it goes on. */
  readonly version = signal(0);
  readonly error = signal<string | null>(null);
  /** How far was looked. */
  upTo = 0;
  private wanted: string;
  private aborting = new AbortController();
  private going = false;

  constructor(
    private readonly run: string,
    text: string,
  ) {
    this.wanted = text.toLowerCase();
  }

  stop(): void {
    this.aborting.abort();
  }

  /** Looks on, to here. */
  async on(length: number): Promise<void> {
    if (this.going || this.upTo >= length) return;
    this.going = true;
    try {
      while (this.upTo < length && !this.aborting.signal.aborted) {
        const page = await getEvents(this.run, this.upTo + 1, PAGE, this.aborting.signal);
        for (const event of page.items) {
          if (holds(event, this.wanted)) this.found.push(event.seq);
          this.upTo = event.seq;
        }
        this.error.value = null;
        this.version.value += 1;
        if (!page.has_more) return;
      }
    } catch (error) {
      if (!this.aborting.signal.aborted)
        this.error.value = error instanceof Error ? error.message : String(error);
    } finally {
      this.going = false;
    }
  }
}
