// When to look again at what changed: soon, once for all that changes together, a slow server less often,
// and what could not be seen is looked at again.

const SOON_MS = 300;
const SOON_MAX_MS = 5000;

/** Timers, which tests have their own of. */
export interface Clock {
  now(): number;
  after(ms: number, act: () => void): () => void;
}

const CLOCK: Clock = {
  now: Date.now,
  after: (ms, act) => {
    const timer = setTimeout(act, ms);
    return () => clearTimeout(timer);
  },
};

export class Refresher {
  private dirty = new Set<string>();
  private all = false;
  private pause = SOON_MS;
  private looking = false;
  /** Unplans the look that is planned. */
  private unplan: (() => void) | null = null;

  constructor(
    /** Looks at these runs, or at everything; false when it could not. */
    private readonly look: (runs: ReadonlySet<string> | null) => Promise<boolean>,
    private readonly clock: Clock = CLOCK,
  ) {}

  /** This run changed; null when anything may have. */
  soon(run: string | null): void {
    if (run === null) {
      this.all = true;
      // Whoever asks for everything may know that the server is back.
      if (this.unplan !== null && this.pause > SOON_MS) {
        this.unplan();
        this.unplan = null;
        this.pause = SOON_MS;
      }
    } else this.dirty.add(run);
    this.plan();
  }

  private plan(): void {
    if (this.looking || this.unplan !== null) return;
    this.unplan = this.clock.after(this.pause, () => {
      this.unplan = null;
      void this.now();
    });
  }

  private async now(): Promise<void> {
    const { dirty, all } = this;
    this.dirty = new Set();
    this.all = false;
    this.looking = true;
    const began = this.clock.now();
    const seen = await this.look(all ? null : dirty).catch(() => false);
    this.looking = false;
    if (seen) this.pause = Math.min(SOON_MAX_MS, Math.max(SOON_MS, 3 * (this.clock.now() - began)));
    else {
      this.pause = Math.min(SOON_MAX_MS, 2 * this.pause);
      this.all ||= all;
      for (const run of dirty) this.dirty.add(run);
    }
    if (this.all || this.dirty.size > 0) this.plan();
  }
}
