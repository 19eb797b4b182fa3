// Logs of real runs, as `logreel log --json` and `logreel show --json` printed them.

import { readFileSync } from "node:fs";
import { join } from "node:path";
import { RunModel } from "../src/model/model";
import type { LogEvent, Run } from "../src/model/types";

const here = process.env.LOGREEL_WEB_TESTS ?? "tests";

export const NAMES = ["agent", "workflow", "child", "killed", "failed", "recorded", "fork"] as const;

const lines = (path: string): LogEvent[] =>
  readFileSync(path, "utf8")
    .split("\n")
    .filter((line) => line !== "")
    .map((line) => JSON.parse(line) as LogEvent);

export const eventsOf = (name: string): LogEvent[] => lines(join(here, "logs", `${name}.jsonl`));

export const runOf = (name: string): Run =>
  JSON.parse(readFileSync(join(here, "logs", `${name}.run.json`), "utf8")) as Run;

/** Every kind of event there is, as the store's own tests keep it. */
export const golden = (): LogEvent[] =>
  lines(join(here, "../../crates/logreel-core/tests/golden/format-1.jsonl"));

export function fold(events: LogEvent[]): RunModel {
  const model = new RunModel();
  for (const event of events) model.apply(event);
  return model;
}
