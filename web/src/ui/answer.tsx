// Answering what a run waits for. None of it can be taken back, so each is asked about first.

import { useState } from "preact/hooks";
import * as commands from "../commands";
import type { Json, Run, Wait } from "../model/types";
import { oneLine } from "../model/visible";
import type { AskProps } from "./act";
import { Ask } from "./dialog";
import { Value } from "./json";
import { Text } from "./text";

/** Yes, no, or a value. */
export type Said = "approve" | "deny" | "value";
/** What became of a write that nobody knows of. */
export type Doubt = "returned" | "failed" | "retry";

const aboutOf = (wait: Wait): string => oneLine(wait.tool ?? wait.step ?? wait.name ?? wait.call ?? wait.id, 60);

/** A step's own question says by its words what it is about. */
const objectOf = (wait: Wait): string => (wait.tool === null && wait.prompt !== null ? "this" : aboutOf(wait));

/** Nothing is null; what is no JSON is not an answer yet. */
function parsed(text: string): { value: Json } | null {
  if (text.trim() === "") return { value: null };
  try {
    return { value: JSON.parse(text) as Json };
  } catch {
    return null;
  }
}

/** Said once nobody waits for it any more. */
export function Over(props: { run: Run; wait: Wait; why: string }) {
  if (props.run.waiting.some((it) => it.id === props.wait.id)) return null;
  return (
    <div class="warn" role="alert">
      <strong>This is not waited for any more.</strong> {props.why}
    </div>
  );
}

/** What is asked about, once more, and whether it still is. */
function About(props: AskProps & { wait: Wait }) {
  const { run, wait } = props;
  return (
    <>
      <Over run={run} wait={wait} why="Someone else answered, its time ran out, or the run ended." />
      {wait.prompt !== null && <Text value={wait.prompt} lines={8} />}
      {wait.arguments !== null && (
        <div class="boxed">
          <Value value={wait.arguments} mono lines={8} />
        </div>
      )}
    </>
  );
}

const UNDONE = <strong>This cannot be undone.</strong>;

const QUESTIONS: { [said in Said]: { title: string; verb: string; done: string } } = {
  approve: { title: "Approve", verb: "Approve", done: "Approved" },
  deny: { title: "Deny", verb: "Deny", done: "Denied" },
  value: { title: "Answer", verb: "Answer", done: "Answered" },
};

export function AnswerAsk(props: AskProps & { wait: Wait; said: Said }) {
  const { run, wait, said } = props;
  const [reason, setReason] = useState("");
  const [text, setText] = useState("");
  const { title, verb, done } = QUESTIONS[said];
  const value = parsed(text);
  const command = (): commands.Command | null => {
    if (said !== "value") return commands.answer(run.id, wait, said === "approve", reason);
    return value === null ? null : commands.answerValue(run.id, wait, value.value, reason);
  };
  return (
    <Ask
      title={`${title} ${objectOf(wait)}?`}
      verb={verb}
      keep="Not now"
      danger={said === "deny"}
      command={command}
      send={(it, key) => props.done(it, key, done)}
      onClose={props.close}
    >
      <About {...props} />
      <p>
        {said === "approve" && "The run goes on with it. "}
        {said === "deny" && "It is not done, and the run is told so. "}
        {UNDONE}
      </p>
      {said === "value" && (
        <label>
          Answer as JSON <span class="dim">(such as {'{"ok": true}'} or "text"; empty is null)</span>
          <textarea rows={3} class="mono" value={text} autoFocus aria-invalid={value === null} onInput={(event) => setText(event.currentTarget.value)} />
        </label>
      )}
      <label>
        Reason <span class="dim">(kept in the log)</span>
        <input type="text" value={reason} autoFocus={said !== "value"} onInput={(event) => setReason(event.currentTarget.value)} />
      </label>
    </Ask>
  );
}

export function ResolveAsk(props: AskProps & { wait: Wait; became: Doubt }) {
  const { run, wait, became } = props;
  const [text, setText] = useState("");
  const call = wait.call ?? wait.step ?? "";
  const value = parsed(text);
  const resolution = (): commands.Became | null => {
    if (became === "retry") return { retry: true };
    if (became === "failed") return { failed: text.trim() === "" ? "it did not happen" : text };
    return value === null ? null : { returned: value.value };
  };
  const it = resolution();
  const titles = { returned: "It happened", failed: "It failed", retry: "Do it again" };
  return (
    <Ask
      title={`${titles[became]}: ${aboutOf(wait)}?`}
      verb={titles[became]}
      keep="Not now"
      danger={became === "retry"}
      command={() => (it === null ? null : commands.resolve(run.id, call, it))}
      send={(command, key) => props.done(command, key, became === "retry" ? "It is done again, with the same key" : `Resolved: ${titles[became].toLowerCase()}`)}
      onClose={props.close}
    >
      <About {...props} />
      <p>
        {became === "returned" && "The run goes on with this result, and nobody makes the write again. "}
        {became === "failed" && "It counts as failed, and nobody makes the write again unless it is retried. "}
        {became === "retry" && "It is made again with the same key. Where that key is not known, it may happen twice. "}
        {UNDONE}
      </p>
      {became === "returned" && (
        <label>
          Its result as JSON <span class="dim">(empty is null)</span>
          <textarea rows={3} class="mono" value={text} autoFocus aria-invalid={value === null} onInput={(event) => setText(event.currentTarget.value)} />
        </label>
      )}
      {became === "failed" && (
        <label>
          Why it failed
          <input type="text" value={text} autoFocus onInput={(event) => setText(event.currentTarget.value)} />
        </label>
      )}
    </Ask>
  );
}
