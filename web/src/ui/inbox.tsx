// What waits for a person, over all runs: answered right here.

import { useEffect, useState } from "preact/hooks";
import { inline } from "../model/summary";
import { shortId } from "../model/time";
import { go, runPath } from "../route";
import type { Run } from "../model/types";
import { inbox, refreshSoon, waitingKnown, waitingMore, waitingRun } from "../runs-store";
import type { Actable } from "./act";
import { useKeys } from "./keys";
import { Empty } from "./runs";
import { Line } from "./text";
import { WaitCard } from "./wait";

/** Asked about as it stands now, which may be answered by someone else meanwhile. */
const actable = (run: Run): Actable => ({
  run: {
    get value() {
      return waitingRun(run);
    },
  },
  snapshot: () => Promise.resolve(refreshSoon(run.id)),
});

export function Inbox() {
  const asked = inbox.value;
  const [selected, setSelected] = useState(0);
  const at = Math.min(selected, asked.length - 1);
  useEffect(() => {
    document.title = asked.length === 0 ? "Inbox · Logreel" : `(${asked.length}) Inbox · Logreel`;
  }, [asked.length]);
  useEffect(() => {
    document.querySelector(".inbox-item.selected")?.scrollIntoView({ block: "nearest" });
  }, [at]);
  const press = (button: string): void =>
    document.querySelector<HTMLButtonElement>(`.inbox-item.selected ${button}`)?.click();
  useKeys({
    j: () => setSelected(Math.min(asked.length - 1, at + 1)),
    k: () => setSelected(Math.max(0, at - 1)),
    Enter: () => {
      const it = asked[at];
      if (it !== undefined) go(runPath(it.run.id));
    },
    a: () => press(".approve"),
    d: () => press(".deny"),
    Escape: () => go("#/runs"),
  });
  if (!waitingKnown.value) return <main class="inbox"><div class="loading" aria-busy="true" /></main>;
  return (
    <main class="inbox">
      <h1>
        Inbox <span class="dim">{asked.length === 0 ? "" : asked.length}{waitingMore.value && "+"}</span>
      </h1>
      {waitingMore.value && (
        <p class="dim">
          More runs wait than are looked through here, the oldest among them: <a href="#/runs?status=waiting">all that wait</a>.
        </p>
      )}
      {asked.length === 0 && !waitingMore.value && <Empty title="Nobody is waiting for you" detail="Approvals, questions, writes in doubt and used-up budgets come here." />}
      <div class="inbox-items" role="list">
        {asked.slice(0, 200).map(({ run, wait }, i) => (
          <article
            key={`${run.id} ${wait.id}`}
            role="listitem"
            class={`inbox-item ${i === at ? "selected" : ""}`}
            data-run={run.id}
            onFocusIn={() => setSelected(i)}
          >
            <a class="inbox-run" href={runPath(run.id)}>
              <Line value={run.agent} class="strong" max={80} />
              <span class="mono dim">{shortId(run.id)}</span>
              <Line value={inline(run.input)} class="dim" />
            </a>
            <WaitCard open={actable(run)} run={run} wait={wait} />
          </article>
        ))}
        {asked.length > 200 && <p class="dim">and {asked.length - 200} more</p>}
      </div>
    </main>
  );
}
