//! An agent at work on a run: looks at the log, does what comes next, records what came of it, until
//! there is an output.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use logreel::core::Blob;
use logreel::core::event::{ContextCompacted, Phase};
use logreel::{Body, Ctx, Digest, Json, Log, TaskError};
use serde_json::Value;

use crate::context::{Addition, Context};
use crate::message::{Message, Part, ToolCall, ToolResult};
use crate::model::{Model, ToolSpec};
use crate::names::WireNames;
use crate::next::{Next, next};
use crate::price::Prices;
use crate::progress::{Progress, Purpose};
use crate::prompt;
use crate::redact::Redactor;
use crate::spec::AgentSpec;
use crate::toolbox::Toolbox;

/// Everything a drive of a run needs.
pub(crate) struct Agent<'a> {
    pub(crate) ctx: &'a Ctx,
    pub(crate) spec: Arc<AgentSpec>,
    pub(crate) dir: PathBuf,
    pub(crate) model: Arc<dyn Model>,
    pub(crate) prices: Arc<Prices>,
    pub(crate) toolbox: Toolbox,
    pub(crate) redactor: Redactor,
    /// For what tools and checks give, who may come upon more than the agent was given.
    pub(crate) printed: Redactor,
    /// As models are told of them.
    pub(crate) tools: Arc<[ToolSpec]>,
    pub(crate) names: Arc<WireNames>,
    pub(crate) input: Value,
    context: Mutex<Context>,
    progress: Mutex<Progress>,
    /// What calls for each purpose are told, as far as this drive has stored it.
    pub(crate) told: Mutex<HashMap<Purpose, Digest>>,
}

/// What an agent is made of, before it knows its run.
pub(crate) struct Parts {
    pub(crate) spec: Arc<AgentSpec>,
    pub(crate) dir: PathBuf,
    pub(crate) model: Arc<dyn Model>,
    pub(crate) prices: Arc<Prices>,
    pub(crate) toolbox: Toolbox,
    pub(crate) redactor: Redactor,
    pub(crate) printed: Redactor,
    /// As far as it was looked at.
    pub(crate) progress: Progress,
}

impl<'a> Agent<'a> {
    pub(crate) async fn new(ctx: &'a Ctx, parts: Parts, input: Value) -> Result<Self, TaskError> {
        let Parts {
            spec,
            dir,
            model,
            prices,
            toolbox,
            redactor,
            printed,
            progress,
        } = parts;
        let tools = tool_specs(&spec, &toolbox);
        let names = WireNames::new(tools.iter().map(|tool| tool.name.as_str()));
        let head = ctx.log().with_state(|state| state.row.pulse.context);
        let context = Context::load(&ctx.log(), head).await?;
        Ok(Self {
            ctx,
            spec,
            dir,
            model,
            prices,
            toolbox,
            redactor,
            printed,
            tools: tools.into(),
            names: Arc::new(names),
            input,
            context: Mutex::new(context),
            progress: Mutex::new(progress),
            told: Mutex::default(),
        })
    }

    /// Drives the run to its output.
    pub(crate) async fn drive(&self) -> Result<Json, TaskError> {
        loop {
            let steered = self.log().with_state(|state| !state.queued.is_empty());
            let next = self.with_progress(|progress| {
                self.with_context(|context| next(&self.spec, progress, context, steered))
            });
            match next {
                Next::Open if self.with_progress(|progress| progress.begins_again) => {
                    self.begin_again().await?;
                }
                Next::Open => {
                    let (message, redacted) = self.redacted(prompt::input(&self.input));
                    let opening = self.additions([(message, None, redacted)]);
                    self.record(vec![], opening, vec![]).await?;
                }
                Next::Ask(purpose) => self.ask(purpose, None).await?,
                Next::Repair(misses) => {
                    self.ask(Purpose::Repair, Some(prompt::repair(&misses)))
                        .await?;
                }
                Next::Follow => self.follow_up().await?,
                Next::Call => self.call_tools().await?,
                Next::Report => self.report().await?,
                Next::Verify => self.verify().await?,
                Next::Complete(output) => return Ok(Json::from(output)),
                Next::Fail(error) => return Err(error),
            }
        }
    }

    /// A fork under another input goes on from where its session was, not from what was said to the old
    /// one.
    async fn begin_again(&self) -> Result<(), TaskError> {
        let (message, redacted) = self.redacted(prompt::input(&self.input));
        let start = self.log().with_state(|state| state.started_context);
        let opening = Addition::after(start, message, None, redacted);
        let begun = ContextCompacted {
            node: opening.event.node,
            previous: self.with_context(|context| context.head()),
        };
        let node = opening.event.node;
        self.log()
            .record(vec![begun.into()], vec![opening.blob])
            .await?;
        let context = Context::load(&self.log(), Some(node)).await?;
        self.with_context(|it| *it = context);
        Ok(())
    }

    pub(crate) fn log(&self) -> Log<'a> {
        self.ctx.log()
    }

    /// Looks at where the run is, with everything the log has by now.
    pub(crate) fn with_progress<T>(&self, look: impl FnOnce(&Progress) -> T) -> T {
        let mut progress = self.progress.lock().unwrap_or_else(PoisonError::into_inner);
        progress.catch_up(&self.log());
        look(&progress)
    }

    /// Looks at the conversation, or changes it once that is recorded.
    pub(crate) fn with_context<T>(&self, look: impl FnOnce(&mut Context) -> T) -> T {
        look(&mut self.context.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Records facts, messages that join the conversation after them, and facts after those: one
    /// append.
    pub(crate) async fn record(
        &self,
        before: Vec<Body>,
        messages: Vec<Addition>,
        after: Vec<Body>,
    ) -> Result<(), TaskError> {
        self.record_with(before, Vec::new(), messages, after).await
    }

    /// [`Agent::record`] with blobs that the facts refer to.
    pub(crate) async fn record_with(
        &self,
        before: Vec<Body>,
        blobs: Vec<Blob>,
        messages: Vec<Addition>,
        after: Vec<Body>,
    ) -> Result<(), TaskError> {
        let (bodies, blobs) = together(before, blobs, &messages, after);
        self.log().record(bodies, blobs).await?;
        self.join(messages);
        Ok(())
    }

    /// [`Agent::record`] for a call that uses something up: waits while a limit leaves no room for it.
    pub(crate) async fn record_in_budget(
        &self,
        before: Vec<Body>,
        blobs: Vec<Blob>,
        messages: Vec<Addition>,
        called: Body,
    ) -> Result<(), TaskError> {
        let (bodies, blobs) = together(before, blobs, &messages, vec![called]);
        self.log().record_in_budget(bodies, blobs).await?;
        self.join(messages);
        Ok(())
    }

    /// A call with its outcome, once every limit leaves room for the call.
    pub(crate) async fn record_call(
        &self,
        bodies: Vec<Body>,
        blobs: Vec<Blob>,
    ) -> Result<(), TaskError> {
        self.log().record_in_budget(bodies, blobs).await?;
        Ok(())
    }

    /// What is recorded is part of the conversation.
    fn join(&self, messages: Vec<Addition>) {
        self.with_context(|context| messages.into_iter().for_each(|it| context.push(it)));
    }

    /// Several messages, each after the one before.
    pub(crate) fn additions(
        &self,
        messages: impl IntoIterator<Item = (Message, Option<logreel::Seq>, u32)>,
    ) -> Vec<Addition> {
        let mut head = self.with_context(|context| context.head());
        let mut additions = Vec::new();
        for (message, queued, redacted) in messages {
            let addition = Addition::after(head, message, queued, redacted);
            head = Some(addition.event.node);
            additions.push(addition);
        }
        additions
    }

    /// Enters a phase, unless the run is in it.
    pub(crate) fn phase(&self, phase: Phase) -> Option<Body> {
        let entered = logreel::core::event::PhaseEntered { phase };
        let is_new = self.with_progress(|progress| progress.phase != Some(phase));
        is_new.then(|| entered.into())
    }

    /// The message without secrets, and how many there were. What only its provider understands stays
    /// as it is.
    pub(crate) fn redacted(&self, message: Message) -> (Message, u32) {
        let mut count = 0;
        let mut text = |said: String| {
            let (text, found) = self.redactor.text(&said);
            count += found;
            text.into_owned()
        };
        let parts = message.parts.into_iter().map(|part| match part {
            Part::Text(said) => Part::Text(text(said)),
            Part::ToolCall(call) => {
                let arguments = text(call.arguments.text().to_owned());
                // What is left of a text without a secret may be no JSON any more.
                let arguments = Json::parse(arguments.clone())
                    .unwrap_or_else(|_| Value::from(arguments).into());
                Part::ToolCall(ToolCall { arguments, ..call })
            }
            Part::ToolResult(result) => Part::ToolResult(ToolResult {
                text: text(result.text),
                ..result
            }),
            opaque @ Part::Opaque(_) => opaque,
        });
        let parts = parts.collect();
        (Message { parts, ..message }, count)
    }
}

/// The facts of one append, with every blob they need.
fn together(
    before: Vec<Body>,
    mut blobs: Vec<Blob>,
    messages: &[Addition],
    after: Vec<Body>,
) -> (Vec<Body>, Vec<Blob>) {
    let mut bodies = before;
    for addition in messages {
        bodies.push(addition.event.clone().into());
        blobs.push(addition.blob.clone());
    }
    bodies.extend(after);
    (bodies, blobs)
}

fn tool_specs(spec: &AgentSpec, toolbox: &Toolbox) -> Vec<ToolSpec> {
    let tools = toolbox.tools().iter().map(|tool| tool.definition());
    let tools = tools.map(|tool| ToolSpec {
        name: tool.name.clone(),
        description: tool.description.clone(),
        schema: tool.schema.clone(),
    });
    let agents = spec
        .agents
        .iter()
        .filter(|(name, _)| spec.tools.contains(name));
    let agents = agents.map(|(name, agent)| ToolSpec {
        name: name.clone(),
        description: agent.description.clone(),
        schema: crate::round::sub_agent_schema(&agent.spec),
    });
    let plan = spec.plan.then(crate::round::plan_tool);
    tools.chain(agents).chain(plan).collect()
}
