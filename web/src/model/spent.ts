// What the run itself spent: counted from the log, as the run's own row counts it.

import type { Json, LogEvent, Usage } from "./types";

export class Spent implements Usage {
  input_tokens = 0;
  output_tokens = 0;
  cache_read_tokens = 0;
  cache_write_tokens = 0;
  reasoning_tokens = 0;
  model_calls = 0;
  tool_calls = 0;
  private micros = 0;
  private unknown = false;

  /** Null when the price of a call is not known, which is not zero. */
  get usd(): number | null {
    return this.unknown ? null : this.micros / 1e6;
  }

  apply(event: LogEvent): void {
    const body = event.body ?? {};
    switch (event.kind) {
      case "model.called":
        if (!event.late) this.model_calls += 1;
        return;
      case "model.answered":
      case "model.failed":
        return this.add(body.spent);
      case "tool.called":
        if (!event.late) this.tool_calls += 1;
        return;
      default:
        return;
    }
  }

  private add(spent: Json | undefined): void {
    if (typeof spent !== "object" || spent === null || Array.isArray(spent)) return;
    const amount = (key: string): number => (typeof spent[key] === "number" ? spent[key] : 0);
    this.input_tokens += amount("input_tokens");
    this.output_tokens += amount("output_tokens");
    this.cache_read_tokens += amount("cache_read_tokens");
    this.cache_write_tokens += amount("cache_write_tokens");
    this.reasoning_tokens += amount("reasoning_tokens");
    if (typeof spent.usd_micros === "number") this.micros += spent.usd_micros;
    else this.unknown = true;
  }
}
