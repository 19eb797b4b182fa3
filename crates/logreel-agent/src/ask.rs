//! Asking a model: announced with its reservation before the request leaves, recorded with its answer,
//! never asked again for what was answered.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use logreel::core::event::{
    ContextCompacted, ModelAnswered, ModelCalled, ModelFailed, Phase, PhaseEntered, PlanMade,
    Spend, Turn, TurnFinished,
};
use logreel::core::{CallId, Payload};
use logreel::{Body, Json, LiveText, Seq, Shown, TaskError, cut};

use crate::agent::Agent;
use crate::context::Addition;
use crate::message::{Message, Part, Role, ToolResult};
use crate::model::{Answer, Delta, Finish, ModelError, Request, output_tokens_max};
use crate::progress::{ModelCall, OpenCall, Progress, Purpose};
use crate::prompt;
use crate::replay::{self, Said};

/// An answer that takes longer is given up and asked for again.
const ANSWER_MAX: Duration = Duration::from_secs(15 * 60);
/// As a rule of thumb.
const BYTES_A_TOKEN: u64 = 4;
/// What a failure tells of an answer that was cut.
const BEGINNING_BYTES_MAX: usize = 200;
/// What is left of each text of a conversation that was too long.
const SHORTENED_BYTES_MAX: usize = 1024;
/// Instead of a plan, when the model calls tools at once.
const NO_PLAN: &str = "(no plan: the model began at once)";
const BACK_OFF: Duration = Duration::from_secs(1);
const BACK_OFF_MAX: Duration = Duration::from_secs(60);

impl Agent<'_> {
    /// Asks for this, and records the answer or the failure. `first` joins the conversation with the
    /// request.
    pub(crate) async fn ask(
        &self,
        purpose: Purpose,
        first: Option<Message>,
    ) -> Result<(), TaskError> {
        self.back_off().await?;
        let (open, last) = self.with_progress(|it| (it.open.clone(), it.model_calls));
        let (call, attempt) = match open {
            // A driver before this one asked, and no answer was recorded.
            Some(OpenCall { call, attempt, .. }) => (call, attempt + 1),
            None => {
                let number = last + 1;
                (ModelCall { number, purpose }, 1)
            }
        };
        self.announce(call, attempt, first).await?;
        let _busy = self.log().busy();
        let answer = match replay::said(self.log(), &call.id()).await.transpose()? {
            Some(Said::Failed(failed)) => {
                return self.record(vec![(*failed).into()], vec![], vec![]).await;
            }
            Some(Said::Answered(answer)) => Ok(answer),
            None => {
                let request = self.request(call);
                let (answer, heard) = self.answer(&request, &call.id(), attempt).await?;
                answer.map_err(|error| (error, heard))
            }
        };
        match answer {
            Ok(answer) if answer.finish == Finish::Refused => {
                let message = answer.message.words();
                let error = ModelError::Refused { message };
                self.failed(call, &error, answer.spent).await
            }
            Ok(answer) if answer.finish == Finish::Length => {
                let message = cut(&answer.message.words(), BEGINNING_BYTES_MAX);
                let error = ModelError::Cut { message };
                self.failed(call, &error, answer.spent).await
            }
            Ok(answer) if is_empty(call.purpose, &answer) => {
                let error = ModelError::Retryable {
                    message: "the model's answer is empty".to_owned(),
                };
                self.failed(call, &error, answer.spent).await
            }
            Ok(answer) => self.answered(call, answer).await,
            Err((error, heard)) => {
                let spent = self.lost(&heard);
                self.failed(call, &error, spent).await
            }
        }
    }

    /// Waits after a failure, as long as the provider asks for or longer each time.
    async fn back_off(&self) -> Result<(), TaskError> {
        let Some(failure) = self.with_progress(|progress| progress.failure.clone()) else {
            return Ok(());
        };
        let doubled = BACK_OFF * 2_u32.saturating_pow(failure.in_a_row.saturating_sub(1).min(16));
        let asked_for = failure.retry_after.filter(|delay| !delay.is_zero());
        let delay = asked_for.unwrap_or(doubled.min(BACK_OFF_MAX));
        // Time spent down counts.
        let passed = self.log().now().since(failure.at);
        let left = match failure.is_hurried {
            true => Duration::ZERO,
            false => delay.saturating_sub(passed),
        };
        self.log().back_off(&failure.call.id(), left).await
    }

    /// Records that the request is about to leave.
    async fn announce(
        &self,
        call: ModelCall,
        attempt: u32,
        first: Option<Message>,
    ) -> Result<(), TaskError> {
        let is_new = attempt == 1;
        let mut messages: Vec<(Message, Option<Seq>, u32)> = Vec::new();
        if is_new {
            messages.extend(first.map(|message| (message, None, 0)));
            if call.purpose == Purpose::Turn {
                messages.extend(self.steering().await?);
            }
        }
        let additions = self.additions(messages);
        let context = additions.last().map(|it| it.event.node);
        let (request, told) = self.told(call.purpose, &self.request(call))?;
        let called = ModelCalled {
            attempt,
            call: call.id(),
            context: context.or(self.with_context(|context| context.head())),
            model: self.model.name().to_owned(),
            request: Some(request),
            reserved: self.reservation(),
        };
        let mut before = Vec::new();
        let (turns, is_over) =
            self.with_progress(|it| (it.turns, it.turn_is_over || it.turns == 0));
        if is_new && call.purpose == Purpose::Turn {
            before.extend(self.phase(Phase::Executing));
            if is_over {
                before.push(Turn { turn: turns + 1 }.into());
            }
        }
        self.record_in_budget(before, Vec::from_iter(told), additions, called.into())
            .await
    }

    /// What people said since the last turn.
    async fn steering(&self) -> Result<Vec<(Message, Option<Seq>, u32)>, TaskError> {
        let queued: Vec<Seq> = self
            .log()
            .with_state(|state| state.queued.iter().copied().collect());
        let mut messages = Vec::new();
        for seq in queued {
            if let Body::MessageQueued(queued) = self.log().event(seq).await?.body {
                let message = Message::text(Role::User, queued.text);
                let (message, redacted) = self.redacted(message);
                messages.push((message, Some(seq), redacted));
            }
        }
        Ok(messages)
    }

    /// What the call may cost at most: the conversation as it was last counted, or four bytes a token,
    /// and the longest answer.
    fn reservation(&self) -> Spend {
        let counted = self.with_progress(|progress| progress.context_tokens);
        let bytes = self.with_context(|context| context.length());
        let estimated = bytes / BYTES_A_TOKEN;
        let spend = Spend {
            input_tokens: counted.max(estimated),
            output_tokens: output_tokens_max(&self.spec),
            ..Spend::default()
        };
        let usd_micros = self.prices.cost(self.model.name(), &spend);
        Spend {
            usd_micros,
            ..spend
        }
    }

    fn request(&self, call: ModelCall) -> Request {
        let mut messages = self.with_context(|context| context.messages().to_vec());
        let was_too_long = |progress: &Progress| {
            let failure = progress.failure.as_ref();
            failure.is_some_and(|failure| failure.cause.kind == "too_long")
        };
        if call.purpose == Purpose::Compact && self.with_progress(was_too_long) {
            for message in &mut messages {
                *message = Arc::new(shortened(message));
            }
        }
        messages.extend(prompt::closing(call.purpose).map(Arc::new));
        let wants_schema = matches!(call.purpose, Purpose::Turn | Purpose::Repair);
        let output_schema = self.spec.output_schema.clone().filter(|_| wants_schema);
        Request {
            number: call.number,
            system: prompt::system(&self.spec, call.purpose).map(Into::into),
            messages,
            tools: Arc::clone(&self.tools),
            names: Arc::clone(&self.names),
            output_schema: output_schema.map(Arc::new),
            params: Arc::new(self.spec.params.clone()),
        }
    }

    async fn answer(
        &self,
        request: &Request,
        call: &CallId,
        attempt: u32,
    ) -> Result<(Result<Answer, ModelError>, Heard), TaskError> {
        let (log, run) = (self.log(), self.ctx.run_id());
        let show = |shown| {
            log.show(LiveText {
                run,
                call: call.clone(),
                attempt,
                shown,
            });
        };
        show(Shown::Reset);
        let mut words = self.redactor.stream();
        let mut thoughts = self.redactor.stream();
        let mut heard = Heard::default();
        let mut live = |delta: Delta| {
            heard.hear(&delta);
            match delta {
                Delta::Text(text) => show(Shown::Text(words.push(&text).into())),
                Delta::Thinking(text) => show(Shown::Thinking(thoughts.push(&text).into())),
                Delta::ToolCall(name) => show(Shown::ToolCall(name.into())),
            }
        };
        let asked = self.model.answer(request, &mut live);
        let mut in_time = true;
        let asked = async {
            tokio::select! {
                answer = asked => answer,
                () = log.env().sleep(ANSWER_MAX) => {
                    in_time = false;
                    Err(ModelError::Retryable {
                        message: format!("no answer after {ANSWER_MAX:?}"),
                    })
                }
            }
        };
        let answer = log.unless_stopped(asked).await;
        heard.any |= !in_time;
        show(Shown::Thinking(thoughts.finish().into()));
        show(Shown::Text(words.finish().into()));
        Ok((answer?, heard))
    }

    /// What a call that broke off may have cost: it was read and answered in part, and nobody says how much
    /// that was. One that was refused at once cost nothing.
    fn lost(&self, heard: &Heard) -> Spend {
        match heard.any {
            true => Spend {
                input_tokens: self.reservation().input_tokens,
                output_tokens: heard.bytes.div_ceil(BYTES_A_TOKEN),
                ..Spend::default()
            },
            false => Spend::default(),
        }
    }

    async fn answered(&self, call: ModelCall, answer: Answer) -> Result<(), TaskError> {
        let Answer {
            message,
            finish,
            spent,
        } = answer;
        let (message, redacted) = self.redacted(self.with_own_ids(call, message));
        let usd_micros = self.prices.cost(self.model.name(), &spent);
        let (recorded, blob) = Payload::of(Json::of(&message)?);
        let answered = ModelAnswered {
            call: call.id(),
            finish_reason: Some(finish.as_str().to_owned()),
            message: recorded,
            redacted,
            spent: Spend {
                usd_micros,
                ..spent
            },
        };
        let before = vec![answered.into()];
        let blobs = Vec::from_iter(blob);
        self.follow(call, message, redacted, before, blobs, 0).await
    }

    /// An answer that the log has without what is made of it.
    pub(crate) async fn follow_up(&self) -> Result<(), TaskError> {
        let Some(answer) = self.with_progress(|progress| progress.unfinished.clone()) else {
            return Ok(());
        };
        let message: Message = self.log().value(&answer.message).await?.decode()?;
        let (none, no_blobs) = (Vec::new(), Vec::new());
        self.follow(answer.call, message, 0, none, no_blobs, answer.joined)
            .await
    }

    /// Records what is made of an answer, behind these facts: it joins the conversation, unless so many
    /// messages of it have, and ends a turn or is the plan.
    async fn follow(
        &self,
        call: ModelCall,
        message: Message,
        redacted: u32,
        before: Vec<Body>,
        blobs: Vec<logreel::core::Blob>,
        joined: usize,
    ) -> Result<(), TaskError> {
        let has_calls = message.tool_calls().next().is_some();
        match call.purpose {
            Purpose::Turn | Purpose::Repair => {
                let turn = self.with_progress(|progress| progress.turns);
                let over = (!has_calls && turn > 0).then(|| TurnFinished { turn }.into());
                let additions = self.additions([(message, None, redacted)]);
                self.record_with(before, blobs, additions, Vec::from_iter(over))
                    .await
            }
            Purpose::Plan => {
                let words = match message.words() {
                    words if words.trim().is_empty() => NO_PLAN.to_owned(),
                    words => words,
                };
                let (plan, plan_blob) = Payload::of(Json::of(&words)?);
                let blobs = blobs.into_iter().chain(plan_blob).collect();
                let mut messages = vec![(message, None, redacted)];
                // A model that calls tools all the same has begun to carry it out.
                if !has_calls {
                    messages.push((prompt::carry_out(), None, 0));
                }
                let additions = self.additions(messages.into_iter().skip(joined));
                let phase = Phase::Executing;
                let after = vec![PlanMade { plan }.into(), PhaseEntered { phase }.into()];
                self.record_with(before, blobs, additions, after).await
            }
            Purpose::Compact => self.compacted(before, blobs, &message).await,
        }
    }

    /// The conversation goes on from a summary.
    async fn compacted(
        &self,
        mut bodies: Vec<Body>,
        mut blobs: Vec<logreel::core::Blob>,
        summary: &Message,
    ) -> Result<(), TaskError> {
        let task = prompt::input(&self.input).words();
        let (message, redacted) = self.redacted(prompt::summary(&task, &summary.words()));
        let start = Addition::after(None, message, None, redacted);
        bodies.push(
            ContextCompacted {
                node: start.event.node,
                previous: self.with_context(|context| context.head()),
            }
            .into(),
        );
        blobs.push(start.blob.clone());
        self.log().record(bodies, blobs).await?;
        self.with_context(|context| context.restart(start));
        Ok(())
    }

    async fn failed(
        &self,
        call: ModelCall,
        error: &ModelError,
        spent: Spend,
    ) -> Result<(), TaskError> {
        let said = error.to_string();
        let (message, redacted) = self.redactor.text(&said);
        let failure = TaskError::of_kind(error.kind(), message.into_owned());
        let failure = match error.is_retryable() {
            true => failure,
            false => failure.permanent(),
        };
        let usd_micros = self.prices.cost(self.model.name(), &spent);
        let failed = ModelFailed {
            call: call.id(),
            error: failure.cause(),
            redacted,
            retry_after_ms: error
                .retry_after()
                .map(|it| u64::try_from(it.as_millis()).unwrap_or(u64::MAX)),
            spent: Spend {
                usd_micros,
                ..spent
            },
        };
        self.record(vec![failed.into()], vec![], vec![]).await
    }

    /// Call ids must be unique in the run; some models count from one in every answer, and some give
    /// none.
    fn with_own_ids(&self, call: ModelCall, mut message: Message) -> Message {
        let mut seen: HashSet<String> = HashSet::new();
        let mut nth = 0;
        for part in &mut message.parts {
            let Part::ToolCall(tool_call) = part else {
                continue;
            };
            nth += 1;
            let id = &tool_call.call;
            let fits = CallId::new(id).is_ok() && id.parse::<ModelCall>().is_err();
            let is_known = self.with_progress(|progress| progress.calls_seen.contains(id));
            if !fits || is_known || seen.contains(id) {
                tool_call.call = format!("call_{}_{nth}", call.number);
            }
            seen.insert(tool_call.call.clone());
        }
        message
    }
}

/// What came of an answer, whole or not.
#[derive(Debug, Default)]
struct Heard {
    /// The model was at work on it.
    any: bool,
    bytes: u64,
}

impl Heard {
    fn hear(&mut self, delta: &Delta) {
        let (Delta::Text(text) | Delta::Thinking(text) | Delta::ToolCall(text)) = delta;
        self.any = true;
        self.bytes = self.bytes.saturating_add(text.len() as u64);
    }
}

/// Whether there is nothing to go on with. A summary of calls alone would be the end of the conversation.
fn is_empty(purpose: Purpose, answer: &Answer) -> bool {
    let message = &answer.message;
    let has_calls = message.tool_calls().next().is_some() && purpose != Purpose::Compact;
    !has_calls && message.words().trim().is_empty()
}

/// A conversation that was too long, cut so that it can be summarised.
fn shortened(message: &Message) -> Message {
    let parts = message.parts.iter().cloned().map(|part| match part {
        Part::ToolResult(result) => Part::ToolResult(ToolResult {
            text: cut(&result.text, SHORTENED_BYTES_MAX),
            ..result
        }),
        Part::Text(text) => Part::Text(cut(&text, SHORTENED_BYTES_MAX)),
        part @ (Part::ToolCall(_) | Part::Opaque(_)) => part,
    });
    Message {
        parts: parts.collect(),
        role: message.role,
    }
}
