// The time axis of the waterfall: linear where someone worked, and a narrow band where nobody did.

import type { Gap } from "./spans";

interface Piece {
  t0: number;
  t1: number;
  u0: number;
  u1: number;
  idle: boolean;
}

/** A pause is folded when it is longer than this part of the time that was worked. */
const FOLD_FROM = 0.08;
/** A folded pause is this part of the time that was worked, and all of them at most ALL. */
const FOLDED = 0.035;
const FOLDED_ALL = 0.35;

export class Axis {
  /** Compressed milliseconds from one end to the other. */
  readonly length: number;
  readonly pieces: Piece[];

  constructor(
    readonly start: number,
    readonly end: number,
    gaps: readonly Gap[],
  ) {
    const total = Math.max(end - start, 1);
    const inside = gaps.filter((gap) => gap.end > start && gap.start < end);
    const paused = inside.reduce((sum, gap) => sum + gap.end - gap.start, 0);
    const worked = Math.max(total - paused, 1);
    const folded = inside.filter((gap) => gap.end - gap.start > Math.max(worked * FOLD_FROM, 1000));
    const each = worked * Math.min(FOLDED, FOLDED_ALL / Math.max(folded.length, 1));
    this.pieces = [];
    let t = start;
    let u = 0;
    const add = (t1: number, width: number, idle: boolean): void => {
      if (t1 <= t) return;
      this.pieces.push({ t0: t, t1, u0: u, u1: u + width, idle });
      t = t1;
      u += width;
    };
    for (const gap of folded) {
      add(Math.max(gap.start, t), Math.max(gap.start, t) - t, false);
      add(Math.min(gap.end, end), each, true);
    }
    add(start + total, start + total - t, false);
    this.length = u;
  }

  /** Where a time is drawn. */
  at(time: number): number {
    const piece = this.piece((it) => time <= it.t1);
    if (piece === undefined) return 0;
    const part = (time - piece.t0) / (piece.t1 - piece.t0);
    return piece.u0 + Math.min(Math.max(part, 0), 1) * (piece.u1 - piece.u0);
  }

  /** Which time is drawn there. */
  time(u: number): number {
    const piece = this.piece((it) => u <= it.u1);
    if (piece === undefined) return this.start;
    const part = (u - piece.u0) / (piece.u1 - piece.u0);
    return piece.t0 + Math.min(Math.max(part, 0), 1) * (piece.t1 - piece.t0);
  }

  /** The pauses that were folded. */
  get folds(): Piece[] {
    return this.pieces.filter((piece) => piece.idle);
  }

  /** Round times to write on the axis between two places, about `wanted` of them. */
  ticks(from: number, to: number, wanted: number): { u: number; since: number }[] {
    const step = roundStep((to - from) / Math.max(wanted, 1));
    const ticks: { u: number; since: number }[] = [];
    let before = -Infinity;
    for (const piece of this.pieces) {
      if (piece.idle || piece.u1 < from || piece.u0 > to) continue;
      const first = Math.ceil((piece.t0 - this.start) / step) * step;
      for (let since = first; since <= piece.t1 - this.start; since += step) {
        const u = piece.u0 + (since - (piece.t0 - this.start));
        if (u >= from && u <= to && u - before >= step * 0.6) {
          ticks.push({ u, since });
          before = u;
        }
        if (ticks.length > 200) return ticks;
      }
    }
    return ticks;
  }

  private piece(holds: (piece: Piece) => boolean): Piece | undefined {
    let low = 0;
    let high = this.pieces.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (holds(this.pieces[middle] as Piece)) high = middle;
      else low = middle + 1;
    }
    return this.pieces[low];
  }
}

function roundStep(ms: number): number {
  const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4];
  const longer = [12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 216e5, 432e5, 864e5];
  for (const step of [...steps, ...longer]) if (step >= ms) return step;
  return Math.ceil(ms / 864e5) * 864e5;
}
