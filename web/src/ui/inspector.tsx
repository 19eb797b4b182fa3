// The event that is selected, beside whatever view it was selected in.

import * as commands from "../commands";
import { summary } from "../model/summary";
import { offset, parseTime, shortDigest, shortId } from "../model/time";
import type { Json, Run } from "../model/types";
import type { OpenRun } from "../open-run";
import { runPath } from "../route";
import { acting, asking } from "./act";
import { CopyAs } from "./dialog";
import { Tree } from "./json";
import { Line } from "./text";
import { copy } from "./toast";

export function Inspector(props: { open: OpenRun; run: Run; seq: number; select: (seq: number | null) => void }) {
  const { open, run, seq, select } = props;
  void open.cache.version.value;
  void open.version.value;
  const event = open.cache.peek(seq);
  const length = Math.max(run.event_count, open.model.seq);
  const can = commands.possible(run);
  const start = open.model.timeOf(1);
  return (
    <aside class="inspector" aria-label={`Event ${seq}`}>
      <header>
        <span class="mono dim">{seq}</span>
        <Line value={event?.kind ?? open.model.kindOf(seq) ?? "…"} class="mono strong" max={80} />
        {event?.late === true && <span class="tag">late</span>}
        <span class="grow" />
        <button type="button" class="icon" aria-label="Previous event" disabled={seq <= 1} onClick={() => select(seq - 1)}>
          ↑
        </button>
        <button type="button" class="icon" aria-label="Next event" disabled={seq >= length} onClick={() => select(seq + 1)}>
          ↓
        </button>
        <button type="button" class="icon" aria-label="Close" onClick={() => select(null)}>
          ×
        </button>
      </header>
      {event === null ? (
        <div class="loading" aria-busy="true" />
      ) : (
        <div class="inspector-body">
          <Line value={summary(event)} class="dim" />
          <dl class="facts small">
            <div>
              <dt>At</dt>
              <dd title={event.at}>
                {start === null ? event.at : offset(parseTime(event.at) - start)}{" "}
                <span class="dim">{event.at.slice(11, 23)}</span>
              </dd>
            </div>
            <div>
              <dt>Epoch</dt>
              <dd>{event.epoch}</dd>
            </div>
            <div>
              <dt>Digest</dt>
              <dd class="mono" title={event.digest}>{shortDigest(event.digest)}</dd>
            </div>
            {event.origin !== null && (
              <div>
                <dt>Written for</dt>
                <dd>
                  <a class="mono" href={`${runPath(event.origin)}?seq=${seq}`}>
                    {shortId(event.origin)}
                  </a>
                </dd>
              </div>
            )}
          </dl>
          <div class="tree mono" key={seq}>
            {event.body === null ? <span class="dim">erased</span> : <Tree value={event.body as Json} />}
          </div>
          <footer>
            {can.fork && !event.late && (
              <button
                type="button"
                class="small"
                onClick={() => {
                  asking.value = { open: acting(open), act: { verb: "fork", at: seq } };
                }}
              >
                Fork from here
              </button>
            )}
            <button type="button" class="small quiet" onClick={() => void copy(JSON.stringify(event, null, 2), "the event")}>
              Copy JSON
            </button>
            <CopyAs command={commands.showAt(run.id, seq)} commandKey="" />
          </footer>
        </div>
      )}
    </aside>
  );
}
