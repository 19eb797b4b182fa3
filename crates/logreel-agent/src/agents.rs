//! Agents as the engine drives them: a spec from the log, what this process has, and the loop.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use logreel::core::RunState;
use logreel::core::event::Budget;
use logreel::spec_file::Problems;
use logreel::{Ctx, Driving, Heard, Json, Named, TaskError, Understands};
use serde_json::Value;

use crate::agent::{Agent, Parts};
use crate::environment::Environment;
use crate::model::{Model, ModelError, connect};
use crate::price::Prices;
use crate::progress::Progress;
use crate::redact::Redactor;
use crate::replay::{self, NamedModel};
use crate::spec::{AgentSpec, Beside, Overrides};
use crate::stream::{Format, Mapping, Said, StreamLines};
use crate::tool::Tool;
use crate::toolbox::{Remedy, Toolbox};

/// The longest between two looks for what is away.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(60);
/// Six that double and nine that are a minute apart: ten minutes in all.
const LOOKS_MAX: u32 = 15;

/// Reads agent files and drives their runs: give it to [`logreel::Builder::agents`].
#[derive(Clone, Default)]
pub struct Agents {
    prices: Arc<Prices>,
    tools: Vec<Arc<dyn Tool>>,
    models: Vec<Arc<dyn Model>>,
    redact: Vec<String>,
    default_model: Option<String>,
    /// Made when someone first says something to a run that is no agent's.
    usual: Arc<OnceLock<Option<Redactor>>>,
}

impl Agents {
    /// With the built-in tools and prices.
    pub fn new() -> Self {
        Self::default()
    }

    /// Prices of your own.
    #[must_use]
    pub fn prices(mut self, prices: Prices) -> Self {
        self.prices = Arc::new(prices);
        self
    }

    /// A tool of your own, which specs name like any other.
    #[must_use]
    pub fn tool(mut self, tool: impl Tool + 'static) -> Self {
        self.tools.push(Arc::new(tool));
        self
    }

    /// A model of your own: it answers the specs whose `model` is its name.
    #[must_use]
    pub fn model(mut self, model: impl Model + 'static) -> Self {
        self.models.push(Arc::new(model));
        self
    }

    /// Patterns of what must not be recorded, beside the usual key shapes and the spec's.
    #[must_use]
    pub fn redact(mut self, patterns: impl IntoIterator<Item = String>) -> Self {
        self.redact.extend(patterns);
        self.usual = Arc::default();
        self
    }

    /// The model of agents whose file names none.
    #[must_use]
    pub fn default_model(mut self, model: Option<String>) -> Self {
        self.default_model = model;
        self
    }

    /// Reads an agent's file, and every file it names, with what a person said beside it.
    pub fn read(&self, path: &Path, overrides: &Overrides) -> Result<AgentSpec, Problems> {
        self.with_beside(|beside| AgentSpec::read_with_overrides(path, overrides, beside))
    }

    /// The file as it is now, read as it was when `stored` was.
    pub fn read_again(&self, stored: &AgentSpec, path: &Path) -> Result<AgentSpec, Problems> {
        self.with_beside(|beside| stored.read_again(path, beside))
    }

    /// The same agent on another model.
    pub fn on_model(&self, spec: &AgentSpec, model: &str) -> Result<AgentSpec, Problems> {
        self.with_beside(|beside| spec.on_model(model, beside))
    }

    /// Whether it is known what a model costs.
    pub fn is_priced(&self, model: &str) -> bool {
        self.prices.has(model)
    }

    fn with_beside<T>(&self, read: impl FnOnce(Beside<'_>) -> T) -> T {
        let tools: Vec<String> = self
            .tools
            .iter()
            .map(|it| it.definition().name.clone())
            .collect();
        let models: Vec<String> = self.models.iter().map(|it| it.name().to_owned()).collect();
        read(Beside {
            priced: &|model| self.is_priced(model),
            model: self.default_model.as_deref(),
            tools: &tools,
            models: &models,
        })
    }

    /// The embedder's own model of that name, or a provider's.
    fn connected(&self, spec: &AgentSpec, env: &Environment) -> Result<Arc<dyn Model>, ModelError> {
        match self.models.iter().find(|model| model.name() == spec.model) {
            Some(own) => Ok(Arc::clone(own)),
            None => connect(spec, &|name| env.get(name).map(str::to_owned)),
        }
    }

    /// What must not be recorded in the runs of this agent.
    fn redactor(&self, spec: &AgentSpec, env: &Environment) -> Result<Redactor, regex::Error> {
        self.redactor_of(spec, env.secrets(spec))
    }

    fn redactor_of(
        &self,
        spec: &AgentSpec,
        secrets: Vec<String>,
    ) -> Result<Redactor, regex::Error> {
        let patterns = [&spec.redact[..], &self.redact[..]].concat();
        Redactor::new(&patterns, secrets)
    }

    /// What must not be recorded in any run.
    fn usual(&self, env: &Environment) -> Option<&Redactor> {
        let made = || self.redactor(&AgentSpec::default(), env).ok();
        self.usual.get_or_init(made).as_ref()
    }

    async fn run(self, ctx: Ctx, spec: Arc<Value>, input: Json) -> Result<Json, TaskError> {
        let spec = AgentSpec::from_json(&spec).map_err(|error| {
            let message = format!("the stored spec is not one this build reads: {error}");
            TaskError::of_kind("newer_format", message).permanent()
        })?;
        fn invalid(why: impl std::error::Error) -> TaskError {
            TaskError::of_kind("spec", why.to_string()).permanent()
        }
        let input = input.to_value();
        spec.admit(&input).map_err(|misses| {
            let message = format!("the input does not fit its schema: {misses}");
            TaskError::of_kind("input", message).permanent()
        })?;
        let dir = folder(ctx.log().dir(), spec.dir.as_deref());
        // A replay looks at nothing outside, and asks nobody.
        let replaying = ctx.log().replaying();
        let env = match replaying {
            Some(_) => replay::environment(&spec),
            None => Environment::of_process(),
        };
        let model = match replaying {
            Some(_) => Ok(Arc::new(NamedModel(spec.model.clone())) as Arc<dyn Model>),
            None => self.connected(&spec, &env),
        };
        let model = model
            .map_err(|error| TaskError::of_kind(error.kind(), error.to_string()).permanent())?;
        let redactor = self.redactor(&spec, &env).map_err(invalid)?;
        let inherited = ctx.log().inherited_secrets();
        let printed = match inherited.is_empty() {
            true => redactor.clone(),
            false => {
                let secrets = [env.secrets(&spec), inherited].concat();
                self.redactor_of(&spec, secrets).map_err(invalid)?
            }
        };
        let mut progress = Progress::default();
        let toolbox = loop {
            if let Some(replaying) = replaying {
                let told = replaying.first_request().unwrap_or_default();
                let toolbox = Toolbox::on_paper(&spec, &dir, &env, &self.tools, &told);
                break toolbox
                    .map_err(|why| TaskError::of_kind("spec", why.to_string()).permanent())?;
            }
            ctx.log().while_away().await?;
            let error = match Toolbox::open(&ctx, &spec, &dir, &env, &self.tools).await {
                Ok(toolbox) => break toolbox,
                Err(error) => error,
            };
            // A server that does not start says why, and may say too much.
            let why = error.to_string();
            let (why, _) = redactor.text(&why);
            progress.catch_up(&ctx.log());
            let (name, delay) = match error.remedy() {
                Remedy::Wait(name) => (name, next_look(progress.away)),
                // What never worked is a mistake in the file.
                Remedy::Person(name) if progress.opened => (name, None),
                Remedy::Person(_) | Remedy::None => {
                    return Err(TaskError::of_kind("spec", why).permanent());
                }
            };
            ctx.log().record_away(name, why, delay).await?;
        };
        let parts = Parts {
            spec: Arc::new(spec),
            dir,
            model,
            prices: self.prices,
            toolbox,
            redactor,
            printed,
            progress,
        };
        let agent = Agent::new(&ctx, parts, input).await?;
        agent.drive().await
    }
}

impl logreel::Agents for Agents {
    fn load(&self, path: &Path) -> Result<Value, Problems> {
        Ok(self.read(path, &Overrides::default())?.to_json())
    }

    fn lacks(&self, spec: &Value) -> Option<String> {
        let spec = match AgentSpec::from_json(spec) {
            Ok(spec) => spec,
            Err(error) => return Some(format!("its spec is not one this build reads: {error}")),
        };
        let env = Environment::of_process();
        let lacks = env.lacks(&spec).map(|error| error.to_string());
        let unreachable = || self.connected(&spec, &env).err();
        lacks.or_else(|| unreachable().map(|error| error.to_string()))
    }

    fn budget(&self, spec: &Value) -> Budget {
        AgentSpec::from_json(spec).map_or_else(|_| Budget::default(), |spec| spec.budget)
    }

    fn redact(&self, spec: Option<&Value>, value: Value) -> (Value, u32) {
        let env = Environment::of_process();
        let of_spec = spec.and_then(|spec| AgentSpec::from_json(spec).ok());
        let redactor = of_spec.and_then(|spec| self.redactor(&spec, &env).ok());
        match (redactor, self.usual(&env)) {
            (Some(redactor), _) => redactor.value(value),
            // Names of a workflow's fields say nothing of what it takes them for.
            (None, Some(usual)) => usual.texts(value),
            (None, None) => (value, 0),
        }
    }

    fn misfit(&self, spec: &Value, input: &Value) -> Option<String> {
        let spec = AgentSpec::from_json(spec).ok()?;
        let misfit = spec.admit(input).err()?;
        Some(misfit.to_string())
    }

    fn unpriced(&self, spec: &Value) -> Option<String> {
        let spec = AgentSpec::from_json(spec).ok()?;
        let unpriced = spec.unpriced_model(&|model| self.is_priced(model));
        unpriced.map(str::to_owned)
    }

    fn named(&self, spec: &Value) -> Named {
        let Ok(spec) = AgentSpec::from_json(spec) else {
            return Named::default();
        };
        Named {
            models: spec.models(),
            tools: spec.named_tools(),
        }
    }

    fn plans(&self, spec: &Value) -> bool {
        spec["plan"].as_bool().unwrap_or_default()
    }

    fn unpriced_stream(&self, format: &str) -> Option<String> {
        match stream_format(format)? {
            // It says what it cost.
            Format::ClaudeCode => None,
            Format::Codex => {
                let model = "openai/codex";
                (!self.is_priced(model)).then(|| model.to_owned())
            }
            Format::Mapped(mapping) => {
                let missing = "what its mapping tells, without `usd`,";
                (!mapping.says_usd()).then(|| missing.to_owned())
            }
        }
    }

    fn stream(&self, format: &str, secrets: &[String]) -> Option<Box<dyn Understands>> {
        let format = stream_format(format)?;
        let redactor = Redactor::new(&self.redact, secrets).ok()?;
        let lines = StreamLines::new(&format, &redactor, &self.prices);
        Some(Box::new(lines))
    }

    fn drive(&self, ctx: Ctx, spec: Arc<Value>, input: Json) -> Driving {
        Box::pin(self.clone().run(ctx, spec, input))
    }
}

impl Understands for StreamLines {
    fn go_on(&mut self, state: &RunState) {
        StreamLines::go_on(self, state);
    }

    fn push(&mut self, bytes: &[u8]) -> Heard {
        heard(StreamLines::push(self, bytes))
    }

    fn finish(&mut self) -> Heard {
        heard(StreamLines::finish(self))
    }

    fn answer(&self) -> Option<Json> {
        StreamLines::answer(self).cloned()
    }

    fn failure(&self) -> Option<String> {
        StreamLines::failure(self).map(str::to_owned)
    }

    fn counts(&self) -> (u64, u64) {
        StreamLines::counts(self)
    }
}

/// A format by its name, or by the text that maps it.
fn stream_format(said: &str) -> Option<Format> {
    let mapped = || Mapping::parse(said).ok().map(Format::Mapped);
    Format::named(said).or_else(mapped)
}

fn heard(said: Said) -> Heard {
    Heard {
        bodies: said.bodies,
        blobs: said.blobs,
    }
}

/// When to look again for what is away, after so many looks that found nothing; `None` when ten minutes
/// were enough, and a person has to say that it is back.
fn next_look(looked: u32) -> Option<Duration> {
    (looked < LOOKS_MAX).then(|| Duration::from_secs(1 << looked.min(6)).min(LOOK_EVERY_MAX))
}

/// Where it works: beneath the run's folder.
fn folder(run: Option<PathBuf>, dir: Option<&str>) -> PathBuf {
    let run = run.unwrap_or_else(|| PathBuf::from("."));
    dir.map_or_else(|| run.clone(), |dir| run.join(dir))
}
