// Before a run is copied: what its copy would write outside a second time.

import { shortId } from "../model/time";
import type { Outlook, Write } from "../model/writes";
import { runPath } from "../route";
import { Line } from "./text";

const SHOWN = 20;

export function Again(props: { outlook: Outlook; at: number }) {
  const { at } = props;
  const { again, open, forgotten, children } = props.outlook;
  if (again.length + open.length + forgotten.length + children.length === 0)
    return <p class="dim">Nothing that it wrote outside is written again.</p>;
  const writes = (list: Write[]): string => `${list.length} ${list.length === 1 ? "write" : "writes"}`;
  return (
    <div class="warn again" role="group" aria-label="Written again">
      <Part title={`${writes(forgotten)} up to event ${at} not kept, and made again:`} list={forgotten} />
      <Part title={`${writes(again)} after event ${at}, made again when the new run comes there:`} list={again} />
      <Part title={`${writes(open)} under way at event ${at}, which may have happened and are made again:`} list={open} />
      {children.length > 0 && (
        <>
          <strong>Child runs that start again, with whatever they wrote:</strong>
          <ul>
            {children.slice(0, SHOWN).map(({ run, step }) => (
              <li key={run}>
                <a class="mono" href={runPath(run)}>
                  {shortId(run)}
                </a>{" "}
                <Line value={step} class="mono" max={80} />
              </li>
            ))}
            {children.length > SHOWN && <li class="dim">and {children.length - SHOWN} more</li>}
          </ul>
        </>
      )}
    </div>
  );
}

function Part(props: { title: string; list: Write[] }) {
  const { title, list } = props;
  if (list.length === 0) return null;
  return (
    <>
      <strong>{title}</strong>
      <ul>
        {list.slice(0, SHOWN).map((write) => (
          <li key={write.seq} data-write={write.id}>
            {write.tool !== null && <Line value={write.tool} class="strong" max={60} />} <Line value={write.id} class="mono" max={80} />{" "}
            <span class="dim">
              {write.outcome === "unknown" ? `announced with event ${write.seq}` : `${write.outcome} with event ${write.ended}`}
            </span>
          </li>
        ))}
        {list.length > SHOWN && <li class="dim">and {list.length - SHOWN} more</li>}
      </ul>
    </>
  );
}
