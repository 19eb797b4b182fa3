// What a run waits for, and what a person can do about it, right where it is told.

import * as commands from "../commands";
import type { Run, Wait } from "../model/types";
import { age, duration, parseTime } from "../model/time";
import { serverNow } from "../world";
import { asking, performNow, type Act, type Actable } from "./act";
import { Value } from "./json";
import { Line, Text } from "./text";

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

export function WaitCard(props: { open: Actable; run: Run; wait: Wait }) {
  const { open, run, wait } = props;
  const about = wait.tool ?? wait.step ?? wait.name;
  const ask = (label: string, tone: string, act: Act) => (
    <button
      type="button"
      class={tone}
      onClick={() => {
        asking.value = { open, act };
      }}
    >
      {label}
    </button>
  );
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
      {wait.kind === "in_doubt" && (
        <p class="dim">Nobody knows whether this write happened. Look outside, and say what became of it.</p>
      )}
      <div class="wait-acts">
        {wait.kind === "approval" && ask("Approve", "primary approve", { verb: "answer", wait, said: "approve" })}
        {wait.kind === "approval" && ask("Deny", "danger quiet deny", { verb: "answer", wait, said: "deny" })}
        {wait.kind === "signal" && ask("Answer…", "primary", { verb: "answer", wait, said: "value" })}
        {wait.kind === "in_doubt" && (
          <>
            {ask("It happened…", "primary", { verb: "resolve", wait, became: "returned" })}
            {ask("It failed…", "", { verb: "resolve", wait, became: "failed" })}
            {ask("Do it again…", "danger quiet", { verb: "resolve", wait, became: "retry" })}
          </>
        )}
        {(wait.kind === "paused" || wait.kind === "crash_loop" || wait.kind === "retry") && (
          // It can be paused again.
          <button type="button" class="primary" onClick={() => void performNow(open, commands.resume(run.id), "Resumed")}>
            Resume
          </button>
        )}
        {wait.kind === "budget" && ask("Raise the budget…", "primary", { verb: "budget", wait })}
        {open.log === undefined && <span class="grow" />}
        {open.log === undefined && ask("Cancel the run…", "link", { verb: "cancel" })}
      </div>
    </section>
  );
}

const THEN: { [on: string]: string } = { fail: "fails", approve: "approved", deny: "denied", continue: "goes on" };

function Deadline(props: { wait: Wait; deadline: string }) {
  const left = parseTime(props.deadline) - serverNow();
  const then = THEN[props.wait.on_deadline ?? "fail"] ?? "ends";
  return <span class="dim nowrap">{left > 0 ? `${then} in ${duration(left)}` : "overdue"}</span>;
}
