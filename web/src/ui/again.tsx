// Before a run is copied: what its copy would write outside a second time, as the server tells it (`dry_run`).

import { useEffect, useState } from "preact/hooks";
import { intention, post } from "../api";
import type { Command } from "../commands";
import { shortId } from "../model/time";
import { runPath } from "../route";
import { Line, Refusal } from "./text";
import { told } from "./toast";

interface Write {
  /** The run that made it: the parent, or a child of it. */
  run: string;
  /** The step as it is shown, or the call. */
  id: string;
  tool: string | null;
  /** Where it was announced. */
  seq: number;
  outcome: "finished" | "failed" | "unknown";
  ended: number | null;
}

interface Outlook {
  at: number;
  harmless: boolean;
  again: Write[];
  may_have_happened: Write[];
  forgotten: Write[];
  /** Children that start again and whose logs are gone. */
  gone: { run: string; step: string; erased: boolean }[];
  left_out: number;
}

const SHOWN = 20;
/** Nobody is asked about every letter that is typed. */
const TYPING_MS = 150;

/** Asks what a command that copies a run would write again, whenever it is another one. */
export function useAgain(of: string, command: Command | null) {
  const [answer, setAnswer] = useState<{ what: string; outlook?: Outlook; refused?: ReturnType<typeof told> } | null>(null);
  const what = JSON.stringify(command);
  useEffect(() => {
    if (command === null) return;
    let left = false;
    const ask = async (): Promise<void> => {
      const answered = await post<Outlook>(command.path, { ...command.body, dry_run: true }, intention()).then(
        (outlook) => ({ what, outlook }),
        (error: unknown) => ({ what, refused: told(error) }),
      );
      if (!left) setAnswer(answered);
    };
    const soon = setTimeout(() => void ask(), answer === null ? 0 : TYPING_MS);
    return () => {
      left = true;
      clearTimeout(soon);
    };
  }, [what]);
  const now = answer?.what === what ? answer : null;
  const list =
    now?.refused !== undefined ? (
      <Refusal {...now.refused} />
    ) : now?.outlook !== undefined ? (
      <Again of={of} outlook={now.outlook} />
    ) : (
      command !== null && <p class="dim">Asking what would be written again…</p>
    );
  // Only what was told may be done.
  return { command: now?.outlook === undefined ? null : command, writes: now?.outlook?.harmless === false, list };
}

function Again(props: { of: string; outlook: Outlook }) {
  const { at, harmless, again, may_have_happened: open, forgotten, gone, left_out } = props.outlook;
  if (harmless) return <p class="dim">Nothing that it wrote outside is written again.</p>;
  const writes = (list: Write[]): string => `${list.length} ${list.length === 1 ? "write" : "writes"}`;
  const after = again.some((write) => write.run !== props.of) ? `after event ${at} or of child runs` : `after event ${at}`;
  return (
    <div class="warn again" role="group" aria-label="Written again">
      <Part {...props} title={`${writes(forgotten)} up to event ${at} not kept, and made again:`} list={forgotten} />
      <Part {...props} title={`${writes(again)} ${after}, made again when the new run comes there:`} list={again} />
      <Part {...props} title={`${writes(open)} under way at event ${at}, which may have happened and are made again:`} list={open} />
      {gone.length > 0 && (
        <>
          <strong>Child runs that start again, and what they wrote is not known:</strong>
          <ul>
            {gone.slice(0, SHOWN).map(({ run, step, erased }) => (
              <li key={run}>
                <span class="mono">{shortId(run)}</span> <Line value={step} class="mono" max={80} />{" "}
                <span class="dim">{erased ? "was erased" : "is gone"}</span>
              </li>
            ))}
            {gone.length > SHOWN && <li class="dim">and {gone.length - SHOWN} more</li>}
          </ul>
        </>
      )}
      {left_out > 0 && <p>And {left_out} more.</p>}
    </div>
  );
}

function Part(props: { of: string; title: string; list: Write[] }) {
  const { title, list } = props;
  if (list.length === 0) return null;
  return (
    <>
      <strong>{title}</strong>
      <ul>
        {list.slice(0, SHOWN).map((write) => (
          <li key={`${write.run} ${write.seq}`} data-write={write.id}>
            {write.tool !== null && <Line value={write.tool} class="strong" max={60} />} <Line value={write.id} class="mono" max={80} />{" "}
            <span class="dim">
              {write.outcome === "unknown" ? `announced with event ${write.seq}` : `${write.outcome} with event ${write.ended}`}
              {write.run !== props.of && (
                <>
                  {" of "}
                  <a class="mono" href={runPath(write.run)}>
                    {shortId(write.run)}
                  </a>
                </>
              )}
            </span>
          </li>
        ))}
        {list.length > SHOWN && <li class="dim">and {list.length - SHOWN} more</li>}
      </ul>
    </>
  );
}
