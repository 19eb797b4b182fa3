// What a run waits for, and what a person can do about it, right where it is told.

import { useState } from "preact/hooks";
import { intention } from "../api";
import * as commands from "../commands";
import type { Json, Run, Wait } from "../model/types";
import { age, duration, parseTime } from "../model/time";
import { serverNow } from "../world";
import { perform } from "./act";
import { CopyAs } from "./dialog";
import { Value } from "./json";
import { Line, Text } from "./text";
import { told, toast } from "./toast";

const TITLES: { [kind in Wait["kind"]]: string } = {
  approval: "Approval",
  signal: "Signal",
  timer: "Timer",
  retry: "Retry",
  child: "Child run",
  paused: "Paused",
  in_doubt: "In doubt",
  budget: "Budget used up",
  crash_loop: "Crash loop",
};

interface Props {
  run: Run;
  wait: Wait;
  /** Told after something was done. */
  onDone: () => void;
  onBudget: () => void;
}

export function WaitCard(props: Props) {
  const { run, wait } = props;
  const about = wait.tool ?? wait.step ?? wait.name;
  return (
    <section class={`wait-card ${wait.kind}`} aria-label={TITLES[wait.kind]} data-wait={wait.id}>
      <header>
        <strong>{TITLES[wait.kind]}</strong>
        {about !== null && <Line value={about} class="mono" />}
        <span class="grow" />
        <span class="dim nowrap">{age(serverNow() - parseTime(wait.since))}</span>
        {wait.deadline !== null && <Deadline wait={wait} deadline={wait.deadline} />}
      </header>
      {wait.prompt !== null && <Text value={wait.prompt} lines={12} />}
      {wait.arguments !== null && (
        <div class="boxed">
          <Value value={wait.arguments} mono lines={12} />
        </div>
      )}
      {wait.kind === "approval" && <Approve {...props} />}
      {wait.kind === "signal" && <Answer {...props} />}
      {wait.kind === "in_doubt" && <Resolve {...props} />}
      {(wait.kind === "paused" || wait.kind === "crash_loop" || wait.kind === "retry") && (
        <Buttons {...props}>
          {(send) => (
            <Button send={send} label="Resume" tone="primary" command={() => commands.resume(run.id)} said="Resumed" />
          )}
        </Buttons>
      )}
      {wait.kind === "budget" && (
        <div class="wait-acts">
          <button type="button" class="primary" onClick={props.onBudget}>
            Raise the budget…
          </button>
        </div>
      )}
    </section>
  );
}

const THEN: { [on: string]: string } = { fail: "fails", approve: "approved", deny: "denied", continue: "goes on" };

function Deadline(props: { wait: Wait; deadline: string }) {
  const left = parseTime(props.deadline) - serverNow();
  const then = THEN[props.wait.on_deadline ?? "fail"] ?? "ends";
  return <span class="dim nowrap">{left > 0 ? `${then} in ${duration(left)}` : "overdue"}</span>;
}

type Send = (command: commands.Command, said: string) => void;

/** Buttons that send, and what was refused below them. */
function Buttons(props: Props & { children: (send: Send, sending: boolean) => preact.ComponentChildren }) {
  const [refused, setRefused] = useState<{ title: string; detail: string | null } | null>(null);
  const [sending, setSending] = useState(false);
  // The same intention sent again, after a lost connection, has the same key.
  const [keys] = useState(() => new Map<string, string>());
  const send: Send = (command, said) => {
    if (sending) return;
    const what = JSON.stringify([command.path, command.body]);
    const key = keys.get(what) ?? intention();
    keys.set(what, key);
    setSending(true);
    setRefused(null);
    perform(command, key)
      .then(
        () => toast("good", said),
        (error: unknown) => setRefused(told(error)),
      )
      .finally(() => {
        setSending(false);
        props.onDone();
      });
  };
  return (
    <>
      <div class="wait-acts">{props.children(send, sending)}</div>
      {refused !== null && (
        <div class="refused" role="alert">
          <strong>{refused.title}</strong>
          {refused.detail !== null && <div>{refused.detail}</div>}
        </div>
      )}
    </>
  );
}

function Button(props: { send: Send; label: string; tone: string; command: () => commands.Command; said: string; disabled?: boolean }) {
  return (
    <button
      type="button"
      class={props.tone}
      disabled={props.disabled ?? false}
      onClick={() => props.send(props.command(), props.said)}
    >
      {props.label}
    </button>
  );
}

function Approve(props: Props) {
  const { run, wait } = props;
  const [reason, setReason] = useState("");
  return (
    <Buttons {...props}>
      {(send, sending) => (
        <>
          <Button
            send={send}
            label="Approve"
            tone="primary approve"
            said="Approved"
            disabled={sending}
            command={() => commands.answer(run.id, wait, true, reason)}
          />
          <Button
            send={send}
            label="Deny"
            tone="danger quiet deny"
            said="Denied"
            disabled={sending}
            command={() => commands.answer(run.id, wait, false, reason)}
          />
          <input
            type="text"
            class="grow"
            placeholder="Reason (optional)"
            aria-label="Reason"
            value={reason}
            onInput={(event) => setReason(event.currentTarget.value)}
          />
          <CopyAs command={commands.answer(run.id, wait, true, reason)} commandKey={wait.id} />
        </>
      )}
    </Buttons>
  );
}

function parsed(text: string): { value: Json } | null {
  if (text.trim() === "") return { value: null };
  try {
    return { value: JSON.parse(text) as Json };
  } catch {
    return null;
  }
}

function Answer(props: Props) {
  const { run, wait } = props;
  const [text, setText] = useState("");
  const answer = parsed(text);
  return (
    <Buttons {...props}>
      {(send, sending) => (
        <>
          <input
            type="text"
            class="grow mono"
            placeholder='Answer as JSON, such as {"ok": true} or "text"'
            aria-label="Answer as JSON"
            aria-invalid={answer === null}
            value={text}
            onInput={(event) => setText(event.currentTarget.value)}
          />
          <Button
            send={send}
            label="Answer"
            tone="primary"
            said="Answered"
            disabled={sending || answer === null}
            command={() => commands.answerValue(run.id, wait, answer?.value ?? null)}
          />
        </>
      )}
    </Buttons>
  );
}

function Resolve(props: Props) {
  const { run, wait } = props;
  const [text, setText] = useState("");
  const [sure, setSure] = useState(false);
  const call = wait.call ?? wait.step ?? "";
  const value = parsed(text);
  return (
    <>
      <p class="dim">
        Nobody knows whether this write happened. Look outside, and say what became of it. This cannot be undone.
      </p>
      <Buttons {...props}>
        {(send, sending) => (
          <>
            <input
              type="text"
              class="grow mono"
              placeholder="Its result as JSON, or why it failed"
              aria-label="Result or failure"
              value={text}
              onInput={(event) => setText(event.currentTarget.value)}
            />
            <Button
              send={send}
              label="It happened"
              tone="primary"
              said="Resolved: it happened"
              disabled={sending || value === null}
              command={() => commands.resolve(run.id, call, { returned: value?.value ?? null })}
            />
            <Button
              send={send}
              label="It failed"
              tone=""
              said="Resolved: it failed"
              disabled={sending}
              command={() => commands.resolve(run.id, call, { failed: text === "" ? "it did not happen" : text })}
            />
            {sure ? (
              <Button
                send={send}
                label="Really do it again"
                tone="danger"
                said="It is done again, with the same key"
                disabled={sending}
                command={() => commands.resolve(run.id, call, { retry: true })}
              />
            ) : (
              <button type="button" class="danger quiet" onClick={() => setSure(true)}>
                Do it again…
              </button>
            )}
          </>
        )}
      </Buttons>
    </>
  );
}
