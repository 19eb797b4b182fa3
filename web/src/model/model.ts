// All that the page folds from a run's log, event by event and once: the log is dense from 1, and
// what is not the next event is refused. Bodies are looked at and let go.

import { Documents } from "./document";
import { Spans } from "./spans";
import { Spent } from "./spent";
import { Steps } from "./steps";
import { parseTime } from "./time";
import { Transcript } from "./transcript";
import type { LogEvent } from "./types";
import { endsRun } from "./types";

export class OutOfOrder extends Error {
  constructor(
    readonly expected: number,
    readonly got: number,
  ) {
    super(`expected event ${expected}, got ${got}`);
  }
}

export class RunModel {
  /** The last event that was folded. */
  seq = 0;
  ended = false;
  readonly kinds: string[] = [];
  readonly spans = new Spans();
  readonly transcript = new Transcript();
  readonly documents = new Documents();
  readonly spent = new Spent();
  readonly steps = new Steps();
  /** Facts that came after the end: the first, and how many. */
  lateFrom = 0;
  late = 0;

  private codes = new Uint8Array(1024);
  private times = new Float64Array(1024);
  private codeOf = new Map<string, number>();
  /** How often each kind came, by its code. */
  readonly counts: number[] = [];

  apply(event: LogEvent): void {
    if (event.seq !== this.seq + 1) throw new OutOfOrder(this.seq + 1, event.seq);
    this.note(event);
    this.spans.apply(event);
    this.transcript.apply(event);
    this.documents.apply(event);
    this.spent.apply(event);
    this.steps.apply(event);
    this.seq = event.seq;
    if (event.late) {
      this.late += 1;
      this.lateFrom ||= event.seq;
    }
    if (endsRun(event)) this.ended = true;
  }

  kindOf(seq: number): string | null {
    return seq >= 1 && seq <= this.seq ? (this.kinds[this.codes[seq - 1] as number] ?? null) : null;
  }

  timeOf(seq: number): number | null {
    return seq >= 1 && seq <= this.seq ? (this.times[seq - 1] as number) : null;
  }

  /** The events of these kinds, in order. */
  seqsOf(kinds: ReadonlySet<string>): number[] {
    const wanted = this.kinds.map((kind) => kinds.has(kind));
    const seqs: number[] = [];
    for (let i = 0; i < this.seq; i += 1) if (wanted[this.codes[i] as number]) seqs.push(i + 1);
    return seqs;
  }

  private note(event: LogEvent): void {
    if (this.seq === this.codes.length) {
      const codes = new Uint8Array(this.codes.length * 2);
      codes.set(this.codes);
      this.codes = codes;
      const times = new Float64Array(this.times.length * 2);
      times.set(this.times);
      this.times = times;
    }
    let code = this.codeOf.get(event.kind);
    if (code === undefined) {
      // Kinds of newer builds beyond what a byte holds share the last code.
      code = Math.min(this.kinds.length, 255);
      this.codeOf.set(event.kind, code);
      this.kinds[code] = event.kind;
      this.counts[code] = 0;
    }
    this.counts[code] = (this.counts[code] ?? 0) + 1;
    this.codes[this.seq] = code;
    this.times[this.seq] = parseTime(event.at);
  }
}
