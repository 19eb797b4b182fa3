//! A round of tools: every call of the last answer gets an outcome, and the outcomes join the
//! conversation together.

use futures_util::future::join_all;
use logreel::core::event::{Effect, PlanMade, ToolCalled, ToolFailed, ToolReturned, TurnFinished};
use logreel::core::fold::DENIED;
use logreel::core::state::CallState;
use logreel::core::{Blob, CallId, Payload};
use logreel::{Body, Json, Question, Reconciled, Recorded, TaskError, cut};
use serde_json::{Value, json};

use crate::agent::Agent;
use crate::message::{Message, Part, Role, ToolCall, ToolResult};
use crate::model::ToolSpec;
use crate::policy::Verdict;
use crate::progress::{Outcome, SUB_AGENT};
use crate::redact::REDACTED;
use crate::spec::AgentSpec;
use crate::tool::{Call, Definition, Tool, ToolError, recordable};
use crate::toolbox::{check_arguments, check_fit};

/// What a model is shown of one result.
const SHOWN_BYTES_MAX: usize = 32 * 1024;
/// What is kept of why a call failed.
const FAILURE_BYTES_MAX: usize = 64 * 1024;
/// The tool by which a model changes its plan.
const PLAN_TOOL: &str = "plan.update";

/// The plan as a tool.
pub(crate) fn plan_tool() -> ToolSpec {
    ToolSpec {
        name: PLAN_TOOL.to_owned(),
        description: "Replace the plan when it turns out to be wrong.".to_owned(),
        schema: json!({
            "type": "object",
            "properties": {"plan": {"type": "string", "description": "The whole new plan"}},
            "required": ["plan"],
            "additionalProperties": false,
        }),
    }
}

/// What a sub-agent is called with: what its input must fit, or a text.
pub(crate) fn sub_agent_schema(agent: &AgentSpec) -> Value {
    let input = agent.input_schema.clone();
    let input = input.unwrap_or_else(|| json!({"type": "string", "description": "The task"}));
    json!({
        "type": "object",
        "properties": {"input": input},
        "required": ["input"],
        "additionalProperties": false,
    })
}

/// A sub-agent as policy judges it: what it does is its own policy's.
fn sub_agent_definition(name: &str, agent: &AgentSpec) -> Definition {
    Definition {
        name: name.to_owned(),
        description: String::new(),
        schema: sub_agent_schema(agent),
        effect: Effect::Idempotent,
        declared: true,
        timeout: None,
        asks: false,
    }
}

impl Agent<'_> {
    /// Calls the tools of the last answer that have no outcome yet. Reads that stand together run
    /// together; whatever changes something has its turn alone, in the order of the answer.
    pub(crate) async fn call_tools(&self) -> Result<(), TaskError> {
        let calls = self.last_calls().into_iter();
        let calls: Vec<ToolCall> = self.with_progress(|progress| {
            let is_open = |call: &ToolCall| !progress.outcomes.contains_key(&call.call);
            calls.filter(is_open).collect()
        });
        let mut rest = calls.as_slice();
        while !rest.is_empty() {
            let together = rest.iter().take_while(|call| self.is_shared(call)).count();
            let (now, later) = rest.split_at(together.max(1));
            for done in join_all(now.iter().map(|call| self.settle(call))).await {
                done?;
            }
            rest = later;
        }
        Ok(())
    }

    /// The calls of the last answer.
    fn last_calls(&self) -> Vec<ToolCall> {
        self.with_context(|context| {
            let last = context.last().into_iter();
            last.flat_map(|answer| answer.tool_calls())
                .cloned()
                .collect()
        })
    }

    /// Whether the call may run beside others.
    fn is_shared(&self, call: &ToolCall) -> bool {
        match self.toolbox.get(&call.name) {
            Some(tool) => tool.definition().effect == Effect::Read,
            None => self.spec.agents.contains_key(&call.name),
        }
    }

    /// Sees to it that the log has an outcome of the call.
    async fn settle(&self, call: &ToolCall) -> Result<(), TaskError> {
        let id = CallId::new(&call.call)?;
        let arguments = call.arguments.to_value();
        if self.was_made(&id) {
            return self.settle_made(&id, call, &arguments).await;
        }
        if call.arguments.text().contains(REDACTED) {
            let message = "the arguments hold a secret, or what stands for one in what you were shown; name \
                           a variable instead, or leave it out";
            let error = ToolError::of_kind("redacted", message);
            return self.refuse(&id, call, error).await;
        }
        if call.name == PLAN_TOOL && self.spec.plan {
            return self.revise_plan(&id, call, &arguments).await;
        }
        if let Some(agent) = self.spec.agents.get(&call.name)
            && self.spec.tools.contains(&call.name)
        {
            let definition = sub_agent_definition(&call.name, &agent.spec);
            return match self.is_allowed(&id, call, &definition, &[]).await? {
                true => self.sub_agent(&id, call, &agent.spec, &arguments).await,
                false => Ok(()),
            };
        }
        let Some(tool) = self.toolbox.get(&call.name) else {
            let error = ToolError::of_kind("unknown_tool", self.unknown(&call.name));
            return self.refuse(&id, call, error).await;
        };
        let definition = tool.definition();
        if let Err(misses) = check_arguments(definition, &arguments) {
            let error = ToolError::of_kind("invalid_arguments", misses);
            return self.refuse(&id, call, error).await;
        }
        let replaying = self.log().replaying();
        if let Some(cause) = replaying.and_then(|it| it.refusal(&id)) {
            let error = ToolError::of_kind(cause.kind, cause.message);
            return self.refuse(&id, call, error).await;
        }
        let subjects = match tool.subjects(&arguments) {
            Ok(subjects) => subjects,
            Err(error) => return self.refuse(&id, call, error).await,
        };
        match self.is_allowed(&id, call, definition, &subjects).await? {
            true => self.run(&id, call, &**tool, &arguments).await,
            false => Ok(()),
        }
    }

    /// Whether policy, or a person it asks, lets the call be made; a no is recorded.
    async fn is_allowed(
        &self,
        id: &CallId,
        call: &ToolCall,
        definition: &Definition,
        subjects: &[String],
    ) -> Result<bool, TaskError> {
        match self.toolbox.policy().judge(definition, subjects) {
            Verdict::Allow => Ok(true),
            Verdict::Deny(reason) => self.deny(id, &reason).await.map(|()| false),
            Verdict::Ask(prompt) => self.may(id, call, prompt).await,
        }
    }

    /// Whether a write was made, or begun, whatever policy and schemas say by now.
    fn was_made(&self, id: &CallId) -> bool {
        self.log().with_state(|state| {
            matches!(
                state.tools.get(id),
                Some(
                    CallState::Open {
                        effect: Effect::Write,
                        ..
                    } | CallState::InDoubt { .. }
                        | CallState::Again { .. }
                )
            )
        })
    }

    /// Finds out what became of a write. Its tool may be gone: then a person must.
    async fn settle_made(
        &self,
        id: &CallId,
        call: &ToolCall,
        arguments: &Value,
    ) -> Result<(), TaskError> {
        if let Some(tool) = self.toolbox.get(&call.name) {
            return self.run(id, call, &**tool, arguments).await;
        }
        let gone = || {
            let error = ToolError::of_kind("unknown_tool", self.unknown(&call.name));
            std::future::ready(Err(error.into_task()))
        };
        let made = self
            .ctx
            .tool_call(id.clone(), &call.name, call.arguments.clone());
        let unknown = |_| std::future::ready(Ok(Reconciled::Unknown));
        made.run(|_| gone(), unknown).await?;
        Ok(())
    }

    fn unknown(&self, name: &str) -> String {
        let known: Vec<&str> = self.tools.iter().map(|tool| tool.name.as_str()).collect();
        format!("there is no tool `{name}`; there are {}", known.join(", "))
    }

    /// Asks a person, or finds that one was asked. A no is recorded as the call's outcome.
    async fn may(&self, id: &CallId, call: &ToolCall, prompt: String) -> Result<bool, TaskError> {
        // Someone may have asked, and the call been made, before a crash.
        if self.log().with_state(|state| state.tools.contains_key(id)) {
            return Ok(true);
        }
        let said = || self.with_progress(|progress| progress.said.get(id.as_str()).cloned());
        if said().is_none() {
            let question = Question {
                call: id.clone(),
                tool: call.name.clone(),
                arguments: call.arguments.clone(),
                prompt,
            };
            let wait = self.log().ask(question).await?;
            let is_over = |state: &logreel::core::RunState| state.row.wait(wait).is_none();
            self.log().idle_until(is_over).await?;
        }
        match said() {
            Some(said) if said.approved => Ok(true),
            Some(said) => {
                let reason = said.reason.unwrap_or_else(|| "a person said no".to_owned());
                self.deny(id, &reason).await?;
                Ok(false)
            }
            // An unanswered ask is never a yes.
            None => {
                self.deny(id, "nobody answered").await?;
                Ok(false)
            }
        }
    }

    /// Records a denial: the call was never made.
    async fn deny(&self, id: &CallId, reason: &str) -> Result<(), TaskError> {
        let error = TaskError::of_kind(DENIED, format!("denied: {reason}")).permanent();
        let failed = ToolFailed {
            call: id.clone(),
            error: error.cause(),
            redacted: 0,
        };
        self.record(vec![failed.into()], vec![], vec![]).await
    }

    /// Records a call that cannot be made as it was asked for.
    async fn refuse(
        &self,
        id: &CallId,
        call: &ToolCall,
        error: ToolError,
    ) -> Result<(), TaskError> {
        let (called, blob) = self.called(id, call);
        let (message, redacted) = self.told_failure(&error.message);
        let error = ToolError::of_kind(error.kind, message);
        let failed = ToolFailed {
            call: id.clone(),
            error: error.into_task().cause(),
            redacted,
        };
        let bodies = vec![called.into(), failed.into()];
        self.record_call(bodies, Vec::from_iter(blob)).await
    }

    /// The announcement of a call that touches nothing outside the run, recorded with its outcome.
    fn called(&self, id: &CallId, call: &ToolCall) -> (ToolCalled, Option<Blob>) {
        let attempts = self.log().with_state(|state| match state.tools.get(id) {
            Some(CallState::Open { attempt, .. }) => *attempt,
            _ => 0,
        });
        let redacted = call.arguments.text().matches(REDACTED).count();
        let (arguments, blob) = Payload::of(call.arguments.clone());
        let called = ToolCalled {
            arguments,
            attempt: attempts + 1,
            call: id.clone(),
            effect: Effect::Read,
            key: None,
            name: call.name.clone(),
            redacted: u32::try_from(redacted).unwrap_or(u32::MAX),
        };
        (called, blob)
    }

    async fn run(
        &self,
        id: &CallId,
        call: &ToolCall,
        tool: &dyn Tool,
        arguments: &Value,
    ) -> Result<(), TaskError> {
        let definition = tool.definition();
        let of = |key| Call {
            ctx: self.ctx,
            call: id,
            arguments,
            key,
        };
        let work = async |key| {
            let returned = tool.call(&of(key)).await;
            returned
                .map(|it| self.recorded(it))
                .map_err(ToolError::into_task)
        };
        let reconcile = async |key| {
            let said = tool.reconcile(&of(key)).await;
            let said = said.map_err(ToolError::into_task)?;
            Ok(match said {
                Reconciled::Done(value) => Reconciled::Done(self.recorded(value)),
                Reconciled::NotDone => Reconciled::NotDone,
                Reconciled::Unknown => Reconciled::Unknown,
            })
        };
        let redact = |text: &str| self.told_failure(text);
        let made = self
            .ctx
            .tool_call(id.clone(), &call.name, call.arguments.clone())
            .effect(definition.effect)
            .timeout(definition.timeout)
            .reconciles(tool.reconciles())
            .redact(&redact);
        made.run(work, reconcile).await?;
        Ok(())
    }

    fn recorded(&self, value: Value) -> Recorded {
        let (value, redacted) = self.printed.value(value);
        let value = recordable(value, self.log().payload_bytes_max());
        let (output, blob) = Payload::of(Json::from(value));
        Recorded {
            output,
            blobs: Vec::from_iter(blob),
            redacted,
        }
    }

    /// Why a call failed, as it is recorded: always inline, and nobody reads a failure of megabytes.
    fn told_failure(&self, message: &str) -> (String, u32) {
        let (message, redacted) = self.printed.text(message);
        (cut(&message, FAILURE_BYTES_MAX), redacted)
    }

    /// A sub-agent runs as a child; its call is a step of this run.
    async fn sub_agent(
        &self,
        id: &CallId,
        call: &ToolCall,
        spec: &AgentSpec,
        arguments: &Value,
    ) -> Result<(), TaskError> {
        let schema = sub_agent_schema(spec);
        if let Err(misses) = check_fit(&call.name, &schema, arguments) {
            let error = ToolError::of_kind("invalid_arguments", misses);
            return self.refuse(id, call, error).await;
        }
        let input = Json::from(arguments["input"].clone());
        let step = (SUB_AGENT, &call.name, id.as_str());
        match self.ctx.agent(step, &spec.to_json(), input).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_cancelled() => Err(error),
            // The log has the step's failure; the model is told.
            Err(error) if self.with_progress(|it| it.outcomes.contains_key(id.as_str())) => {
                tracing::debug!(%error, call = %id, "a sub-agent failed");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    async fn revise_plan(
        &self,
        id: &CallId,
        call: &ToolCall,
        arguments: &Value,
    ) -> Result<(), TaskError> {
        if let Err(misses) = check_fit(PLAN_TOOL, &plan_tool().schema, arguments) {
            let error = ToolError::of_kind("invalid_arguments", misses);
            return self.refuse(id, call, error).await;
        }
        let (output, _) = Payload::of(Json::from(json!("the plan is changed")));
        let (plan, plan_blob) = Payload::of(Json::from(arguments["plan"].clone()));
        let (called, given_blob) = self.called(id, call);
        let returned = ToolReturned {
            call: id.clone(),
            output,
            redacted: 0,
        };
        let bodies: Vec<Body> = vec![called.into(), PlanMade { plan }.into(), returned.into()];
        let blobs = plan_blob.into_iter().chain(given_blob).collect();
        self.record_call(bodies, blobs).await
    }

    /// Every call has its outcome: they join the conversation, in the order of the calls.
    pub(crate) async fn report(&self) -> Result<(), TaskError> {
        let calls = self.last_calls().into_iter();
        let calls: Vec<(ToolCall, Outcome)> = self.with_progress(|progress| {
            let with_outcome = |call: ToolCall| {
                let outcome = progress.outcomes.get(&call.call)?.clone();
                Some((call, outcome))
            };
            calls.filter_map(with_outcome).collect()
        });
        let mut parts = Vec::new();
        for (call, outcome) in calls {
            let (text, failed) = match outcome {
                Outcome::Returned(output) => (words(&self.log().value(&output).await?), false),
                Outcome::Failed(cause) => (cause.message, true),
            };
            parts.push(Part::ToolResult(ToolResult {
                call: call.call,
                failed,
                name: call.name,
                text: cut(&text, SHOWN_BYTES_MAX),
            }));
        }
        let role = Role::Tool;
        let additions = self.additions([(Message { parts, role }, None, 0)]);
        let turn = self.with_progress(|it| (it.turns > 0 && !it.turn_is_over).then_some(it.turns));
        let over = turn.map(|turn| TurnFinished { turn }.into());
        self.record(vec![], additions, Vec::from_iter(over)).await
    }
}

/// A result as a model reads it.
fn words(output: &Json) -> String {
    match output.to_value() {
        Value::String(text) => text,
        _ => output.text().to_owned(),
    }
}
