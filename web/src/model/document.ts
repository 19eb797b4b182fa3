// The run's document at any event. Every patch's place is kept, and a document now and then; what is
// between two of these is patched again from the log, so that memory stays bounded.

import { applyPatch } from "./patch";
import type { Json, LogEvent } from "./types";

const KEPT_MAX = 128;

export class Documents {
  /** The events that patched it. */
  readonly seqs: number[] = [];
  private kept: { index: number; document: Json }[] = [{ index: 0, document: null }];
  private stride = 1;
  private now: Json = null;
  /** The first patch that could not be applied; from there on nobody knows the document. */
  broken: { seq: number; why: string } | null = null;

  apply(event: LogEvent): void {
    if (event.kind !== "state.patched" || event.late || event.body === null) return;
    if (this.broken !== null) return;
    try {
      this.now = applyPatch(this.now, event.body.patch ?? null);
    } catch (error) {
      this.broken = { seq: event.seq, why: error instanceof Error ? error.message : String(error) };
      return;
    }
    this.seqs.push(event.seq);
    if (this.seqs.length % this.stride === 0)
      this.kept.push({ index: this.seqs.length, document: this.now });
    if (this.kept.length > KEPT_MAX) {
      this.stride *= 2;
      this.kept = this.kept.filter((it) => it.index % this.stride === 0);
    }
  }

  get latest(): Json {
    return this.now;
  }

  /** How many patches count at an event. */
  indexAt(seq: number): number {
    let low = 0;
    let high = this.seqs.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((this.seqs[middle] as number) <= seq) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  /** The document after `index` patches; patches that are not kept are asked for. */
  async after(index: number, event: (seq: number) => Promise<LogEvent | null>): Promise<Json> {
    if (index >= this.seqs.length) return this.now;
    let from = this.kept[0] as { index: number; document: Json };
    for (const it of this.kept) if (it.index <= index) from = it;
    let document = from.document;
    for (let i = from.index; i < index; i += 1) {
      const patched = await event(this.seqs[i] as number);
      document = applyPatch(document, patched?.body?.patch ?? []);
    }
    return document;
  }
}
