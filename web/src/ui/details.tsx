// The report of its checks, and where the run comes from.

import type { ComponentChildren } from "preact";
import type { Check, Run } from "../model/types";
import { runPath } from "../route";
import { Value } from "./json";
import { Line, Text } from "./text";
import { copy } from "./toast";

const SIGNS: { [verdict in Check["verdict"]]: string } = {
  passed: "✓",
  failed: "✗",
  needs_review: "?",
  skipped: "–",
};

export function Details(props: { run: Run }) {
  const { run } = props;
  const { usage } = run;
  return (
    <div class="details">
      <section>
        <h2>
          Checks{" "}
          {run.verification !== null && (
            <span class={`verdict ${run.verification.verdict}`}>{run.verification.verdict.replace("_", " ")}</span>
          )}
        </h2>
        {run.verification === null && <p class="dim">No checks were made.</p>}
        {run.verification?.checks.map((check) => (
          <div key={check.name} class={`check ${check.verdict}`}>
            <span class={`verdict ${check.verdict}`} aria-label={check.verdict.replace("_", " ")}>
              {SIGNS[check.verdict]}
            </span>
            <div>
              <strong>
                <Line value={check.name} />
              </strong>
              {!check.required && <span class="dim"> optional</span>}
              {check.message !== null && <Text value={check.message} mono lines={20} />}
            </div>
          </div>
        ))}
      </section>
      <section>
        <h2>Provenance</h2>
        <dl class="table">
          <Fact name="Id">
            <Copied value={run.id} />
          </Fact>
          <Fact name="Kind">{run.kind}</Fact>
          <Fact name="Created">{run.created_at}</Fact>
          <Fact name="Finished">{run.finished_at ?? "–"}</Fact>
          <Fact name="Folder">{run.dir === null ? "–" : <Line value={run.dir} class="mono" />}</Fact>
          <Fact name="Git">
            {run.git === null ? (
              "–"
            ) : (
              <>
                <Copied value={run.git.commit} /> {run.git.branch !== null && <Line value={run.git.branch} max={80} />}
                {run.git.dirty && <span class="tag">dirty</span>}
              </>
            )}
          </Fact>
          <Fact name="Host">
            <Line value={run.provenance.host ?? "–"} />
          </Fact>
          <Fact name="Logreel">
            <Line value={run.provenance.logreel ?? "–"} />
          </Fact>
          <Fact name="Models">
            {run.provenance.models.length === 0 ? "–" : run.provenance.models.map((model) => <Line key={model} value={model} class="mono block" />)}
          </Fact>
          <Fact name="Tools">
            {run.provenance.tools.length === 0 ? "–" : <Text value={run.provenance.tools.join(", ")} mono lines={4} />}
          </Fact>
          <Fact name="Durability">{run.durability}</Fact>
          <Fact name="Spec digest">
            <Copied value={run.spec_digest} />
          </Fact>
          <Fact name="Head digest">
            <Copied value={run.head_digest} />
          </Fact>
          <Fact name="Final state">{run.final_state_digest === null ? "–" : <Copied value={run.final_state_digest} />}</Fact>
          {run.parent !== null && (
            <Fact name={run.parent.relation}>
              <a class="mono" href={runPath(run.parent.run)}>
                {run.parent.run}
              </a>{" "}
              at {run.parent.seq}
            </Fact>
          )}
        </dl>
      </section>
      <section>
        <h2>Usage</h2>
        <dl class="table">
          <Fact name="Input tokens">{usage.input_tokens.toLocaleString("en")}</Fact>
          <Fact name="Output tokens">{usage.output_tokens.toLocaleString("en")}</Fact>
          <Fact name="From cache">{usage.cache_read_tokens.toLocaleString("en")}</Fact>
          <Fact name="Into cache">{usage.cache_write_tokens.toLocaleString("en")}</Fact>
          <Fact name="Reasoning">{usage.reasoning_tokens.toLocaleString("en")}</Fact>
          <Fact name="Cost">{usage.usd === null ? "not known" : `$${usage.usd}`}</Fact>
        </dl>
      </section>
      <section>
        <h2>Input</h2>
        {run.input === null ? <p class="dim">none</p> : <Value value={run.input} />}
      </section>
      {run.output !== null && (
        <section>
          <h2>Output</h2>
          <Value value={run.output} />
        </section>
      )}
    </div>
  );
}

function Fact(props: { name: string; children: ComponentChildren }) {
  return (
    <div>
      <dt>{props.name}</dt>
      <dd>{props.children}</dd>
    </div>
  );
}

function Copied(props: { value: string }) {
  return (
    <button type="button" class="plain mono" title="Copy" onClick={() => void copy(props.value, "it")}>
      <Line value={props.value} />
    </button>
  );
}
