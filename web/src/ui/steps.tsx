// The steps of a run, each with how it stands; its result is in the event that ended it.

import { useEffect, useMemo, useState } from "preact/hooks";
import { pendingSteps } from "../api";
import type { StepLine } from "../model/steps";
import { duration, parseTime, shortId } from "../model/time";
import type { Run } from "../model/types";
import type { OpenRun } from "../open-run";
import { runPath } from "../route";
import { serverNow } from "../world";
import { Empty } from "./runs";
import { Line } from "./text";
import { Virtual } from "./virtual";

const ROW = 32;
const PENDING_MAX = 2000;

const TONES: { [status in StepLine["status"]]: string } = {
  pending: "new",
  running: "busy",
  waiting: "wait",
  finished: "good",
  failed: "bad",
  skipped: "off",
  in_doubt: "bad",
};

export function Steps(props: { open: OpenRun; run: Run; select: (seq: number | null) => void }) {
  const { open, run, select } = props;
  const version = open.version.value;
  const [toCome, setToCome] = useState<string[]>([]);
  useEffect(() => {
    // Of a workflow also those that the log does not speak of yet; of a long run that is too much to ask.
    if (run.kind === "workflow" && run.event_count < PENDING_MAX) pendingSteps(run.id).then(setToCome, () => undefined);
  }, [run.id, run.status]);
  const lines = useMemo(() => {
    const known = [...open.model.steps.lines.values()];
    const names = new Set(known.flatMap((line) => [line.id, line.id.split("[")[0]]));
    const pending = toCome.filter((step) => !names.has(step));
    const nothing = { attempts: 0, effect: null, started: null, finished: null, seq: 0, child: null };
    return [...known, ...pending.map((id): StepLine => ({ id, status: "pending", ...nothing }))];
  }, [version, toCome]);
  if (lines.length === 0) return <Empty title="This run has no steps" detail="An agent's turns and calls are in its timeline." />;
  return (
    <Virtual
      class="step-list"
      role="grid"
      label="Steps"
      count={lines.length}
      height={ROW}
      header={
        <div class="step-row head" role="row">
          <span role="columnheader">Status</span>
          <span role="columnheader">Step</span>
          <span role="columnheader" class="wide-only">Effect</span>
          <span role="columnheader" class="num wide-only">Attempts</span>
          <span role="columnheader" class="num">Took</span>
        </div>
      }
      row={(i) => {
        const line = lines[i];
        if (line === undefined) return null;
        return (
          <div key={line.id} class="step-row" role="row" onClick={() => (line.seq > 0 ? select(line.seq) : undefined)}>
            <span role="gridcell">
              <span class={`status is-${TONES[line.status]}`}>
                <span class="dot" aria-hidden="true" />
                {line.status.replace("_", " ")}
              </span>
            </span>
            <span role="gridcell" class="step-name">
              <Line value={line.id} class="mono" max={160} />
              {line.child !== null && (
                <a class="mono" href={runPath(line.child)} onClick={(event) => event.stopPropagation()}>
                  {shortId(line.child)}
                </a>
              )}
            </span>
            <span role="gridcell" class="dim wide-only">{line.effect ?? ""}</span>
            <span role="gridcell" class="num wide-only">{line.attempts > 1 ? line.attempts : ""}</span>
            <span role="gridcell" class="num">{took(line, run)}</span>
          </div>
        );
      }}
    />
  );
}

function took(line: StepLine, run: Run): string {
  if (line.started === null) return "";
  if (line.finished !== null) return duration(line.finished - line.started);
  const end = run.finished_at === null ? serverNow() : parseTime(run.finished_at);
  return duration(Math.max(0, end - line.started));
}
