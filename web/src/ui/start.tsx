// Starting a run of something that the server knows by name.

import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { getJson } from "../api";
import type { Command } from "../commands";
import type { Json } from "../model/types";
import { shortId } from "../model/time";
import { oneLine } from "../model/visible";
import { go, runPath } from "../route";
import { perform, readInput } from "./act";
import { Ask } from "./dialog";
import { Refusal } from "./text";
import { toast } from "./toast";

export const starting = signal(false);

interface Spec {
  name: string;
  kind: string | null;
  error: string | null;
}

type Specs = { items: (Spec | string)[] } | (Spec | string)[];

const named = (specs: Specs): Spec[] =>
  (Array.isArray(specs) ? specs : specs.items).map((spec) =>
    typeof spec === "string" ? { name: spec, kind: null, error: null } : spec,
  );

/** Such as `team=blue env=test`. */
function readLabels(text: string): { [key: string]: string } {
  const pairs = text.split(/[\s,]+/).filter((pair) => pair.includes("="));
  return Object.fromEntries(pairs.map((pair) => [pair.slice(0, pair.indexOf("=")), pair.slice(pair.indexOf("=") + 1)]));
}

export function StartAsk() {
  if (!starting.value) return null;
  return <Start />;
}

function Start() {
  const [specs, setSpecs] = useState<Spec[] | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [name, setName] = useState("");
  const [input, setInput] = useState("");
  const [session, setSession] = useState("");
  const [labels, setLabels] = useState("");
  useEffect(() => {
    getJson<Specs>("specs").then(
      (answer) => {
        const list = named(answer);
        setSpecs(list);
        setName(list.find((spec) => (spec.error ?? null) === null)?.name ?? "");
      },
      (error: unknown) => setProblem(error instanceof Error ? error.message : String(error)),
    );
  }, []);
  const close = (): void => {
    starting.value = false;
  };
  const command = (): Command | null => {
    if (name === "") return null;
    const body: { [key: string]: Json } = { spec: name };
    if (input !== "") body.input = readInput(input);
    if (session !== "") body.session = session;
    if (labels !== "") body.labels = readLabels(labels);
    // A command line names a file, and which one this name stands for only the server knows.
    return { path: "runs", body, cli: null };
  };
  const broken = specs?.find((spec) => spec.name === name)?.error ?? null;
  return (
    <Ask
      title="New run"
      verb="Start"
      keep="Close"
      command={() => (broken === null ? command() : null)}
      send={async (it, key) => {
        const run = await perform(it, key);
        toast("good", `Started ${shortId(run.id)}`);
        go(runPath(run.id));
      }}
      onClose={close}
    >
      {problem !== null && <Refusal title={problem} detail={null} />}
      {specs !== null && specs.length === 0 && (
        <p>
          This server knows no specs. Start it with <code>logreel serve --specs FOLDER</code> to start runs from here.
        </p>
      )}
      <label>
        Spec
        <select value={name} autoFocus onChange={(event) => setName(event.currentTarget.value)}>
          {specs?.map((spec) => (
            <option key={spec.name} value={spec.name}>
              {oneLine(spec.kind === null ? spec.name : `${spec.name} (${spec.kind})`, 100)}
            </option>
          ))}
        </select>
      </label>
      {broken !== null && <Refusal title={broken} detail={null} />}
      <label>
        Input <span class="dim">(JSON when it is an object or a list, else text)</span>
        <textarea rows={4} value={input} onInput={(event) => setInput(event.currentTarget.value)} />
      </label>
      <div class="pair">
        <label>
          Session
          <input type="text" value={session} onInput={(event) => setSession(event.currentTarget.value)} />
        </label>
        <label>
          Labels
          <input type="text" placeholder="team=blue" value={labels} onInput={(event) => setLabels(event.currentTarget.value)} />
        </label>
      </div>
    </Ask>
  );
}
