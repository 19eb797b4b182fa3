//! `logreel fork`: goes another way from an earlier event of a run, in a new run that shares what came
//! before. What would be written outside a second time is listed first.

use std::path::{Path, PathBuf};

use logreel::core::event::RunKind;
use logreel::store::ForkError;
use logreel::{Error, ErrorKind, ForkPoint, ForkRun, Json, RunId};
use logreel_agent::AgentSpec;

use crate::again::{self, Asked};
use crate::drive::{self, Followed};
use crate::error::Failure;
use crate::output::Output;
use crate::signals::Signals;
use crate::spec::Spec;
use crate::store::{Acting, Missing, Place};
use crate::{ask, changed, git, input, name, spec};

const EXAMPLES: &str = "\
Examples:
  logreel fork @last --at step:publish            from right before a step began
  logreel fork @last --at last --message 'try the other file'
  logreel fork @last --at 41 --model openai/gpt-5 another model from event 41 on
  logreel fork @last --at 41 --result call_3='\"not found\"'
                                                  as if the tool had said this
  logreel log @last                               lists the events

Writes that the run did after that event are done again when the fork comes to
them, under keys of its own; they are listed first. With another --input an
agent's conversation begins again, and the writes before that event with it.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Which run; it may be at work, wait, or have ended
    run: String,
    /// The last event to share: its number, step:ID for the one before a step or tool call, or last
    #[arg(long, value_name = "SEQ|step:ID|last")]
    at: ForkPoint,
    /// Another input: text or JSON, @FILE, or - for stdin
    #[arg(long, value_name = "INPUT", allow_hyphen_values = true)]
    input: Option<String>,
    /// Say this to the agent; repeat for more
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    message: Vec<String>,
    /// Another model, PROVIDER/MODEL or scripted/FILE; only for an agent
    #[arg(long, value_name = "MODEL")]
    model: Option<String>,
    /// Another spec file; what has finished keeps its results
    #[arg(long, value_name = "FILE")]
    spec: Option<PathBuf>,
    /// Another result of a step or tool call; repeat for more
    #[arg(long, value_name = "CALL=JSON", value_parser = parse_result, allow_hyphen_values = true)]
    result: Vec<(String, Json)>,
    /// Do not ask about writes that would be done again
    #[arg(long, short)]
    yes: bool,
}

/// An id may have `=` in it: what follows the right one is JSON.
fn parse_result(said: &str) -> Result<(String, Json), String> {
    let places = said.match_indices('=').map(|(place, _)| place);
    let mut parsed = places.filter(|place| *place > 0).filter_map(|place| {
        let json = Json::parse(said[place + 1..].trim()).ok()?;
        Some((said[..place].to_owned(), json))
    });
    parsed.next().ok_or_else(|| {
        "say CALL=JSON; a text is JSON in quotes, as in call_3='\"not found\"'".to_owned()
    })
}

pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    let mut signals = Signals::new()?;
    let acting = place.act(Missing::Refuse, None, out).await?;
    let run = name::resolve(&*acting.store, &args.run).await?;
    let made = make(&args, &acting, run, &mut signals, out).await;
    let fork = match made {
        Ok(fork) => fork,
        Err(error) => {
            acting.engine.close().await?;
            return Err(error);
        }
    };
    drive::to_the_end(acting, fork, signals, out).await
}

async fn make(
    args: &Args,
    acting: &Acting,
    run: RunId,
    signals: &mut Signals,
    out: &Output,
) -> anyhow::Result<Followed> {
    let entry = acting.store.entry(&run).await?;
    if matches!(entry.row.facts.kind, RunKind::Record | RunKind::External) {
        let message =
            format!("{run} was driven by another program, which nothing here can go on with");
        let mut refused = Failure::new(ErrorKind::NotApplicable, message);
        if entry.row.facts.kind == RunKind::External {
            refused = refused.hint(
                "over HTTP it can be forked for its client: POST /v1/runs/ID/fork, then …/lease",
            );
        }
        return Err(refused.into());
    }
    let mut fork = acting.engine.fork(&run, args.at.clone()).by(ask::who());
    let given = match &args.input {
        Some(said) => Some(input::read(Some(said))?),
        None => None,
    };
    fork = under(args, acting, &run, given.as_ref(), fork).await?;
    if let Some(input) = &given {
        fork = fork.input(input);
    }
    for text in &args.message {
        fork = fork.message(text);
    }
    for (call, result) in &args.result {
        fork = fork.result(call, result);
    }
    if let Some(dir) = &entry.row.facts.dir
        && let Some(git) = git::look(Path::new(dir))
    {
        fork = fork.git(git);
    }
    let outlook = fork.look().await.map_err(|error| match error {
        Error::Fork(ForkError::PastEnd { .. }) => {
            let hint = format!(
                "--at last is that event; `logreel log {}` lists them",
                run.short()
            );
            Failure::new(error.kind(), error.to_string())
                .hint(hint)
                .into()
        }
        other => anyhow::Error::from(other),
    })?;
    if !outlook.is_harmless() {
        let asked = Asked {
            question: "Fork all the same?",
            refused: "nothing was forked",
            hint: "nothing was forked; --yes forks all the same, --result gives what a write came to",
        };
        let list = again::list(run, &outlook, "the fork");
        match args.yes {
            true => out.note(list),
            false => again::confirm(list, &asked, signals, out).await?,
        }
    }
    let handle = fork.await?;
    let (short, parent, at) = (handle.id().short(), run.short(), outlook.at);
    out.note(format!("{short} goes on from event {at} of {parent}"));
    if args.spec.is_none()
        && let Some(changed) = changed::find(acting, &entry).await?
    {
        let file = changed.file;
        out.note(format!(
            "{file} has changed since; this goes on with the spec as it was, and --spec {file} \
             would take it as it is"
        ));
    }
    // What it shares is history; its own log begins with `run.forked`.
    Ok(Followed::ours(handle.id(), at.next()))
}

/// The fork under another spec, when one was named.
async fn under(
    args: &Args,
    acting: &Acting,
    run: &RunId,
    input: Option<&Json>,
    fork: ForkRun,
) -> anyhow::Result<ForkRun> {
    let kind = acting.store.entry(run).await?.row.facts.kind;
    if args.model.is_some() && kind != RunKind::Agent {
        let message = format!("--model is for agents; {run} is none");
        return Err(Failure::new(ErrorKind::Usage, message).into());
    }
    let stored = match kind {
        RunKind::Agent => {
            let stored = acting.engine.stored_spec(run).await?;
            Some(AgentSpec::from_json(&stored.to_value())?)
        }
        _ => None,
    };
    let other = match (&args.spec, &stored) {
        (Some(file), Some(stored)) => Some(spec::read_again(file, stored, &acting.agents)?),
        (Some(file), None) => {
            let overrides = logreel_agent::Overrides::default();
            Some(spec::read(file, &overrides, &acting.agents)?)
        }
        (None, _) => None,
    };
    let mut fork = match &args.spec {
        Some(file) => fork.spec_file(spec::place(file)?.0.to_string_lossy()),
        None => fork,
    };
    let agent = match other {
        Some(Spec::Workflow(workflow)) => return Ok(fork.under(&workflow)),
        Some(Spec::Agent(agent)) => Some(*agent),
        None => None,
    };
    let agent = match (&args.model, agent.as_ref().or(stored.as_ref())) {
        (Some(model), Some(on)) => {
            let on = acting.agents.on_model(on, model);
            Some(on.map_err(|problems| spec::invalid(&problems))?)
        }
        _ => agent,
    };
    if let (Some(agent), Some(input)) = (agent.as_ref().or(stored.as_ref()), input) {
        spec::admit(agent, input)?;
    }
    if let Some(agent) = agent {
        fork = fork.under_agent(agent.to_json());
        if let (None, Some(model)) = (&args.spec, &args.model) {
            fork = fork.model(model);
        }
    }
    Ok(fork)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_what_follows_an_equals_sign_and_is_json() {
        let parsed = |said: &str| parse_result(said).map(|(call, json)| (call, json.to_value()));
        let value = serde_json::json!({"a": "b=c"});
        assert_eq!(parsed(r#"x={"a": "b=c"}"#), Ok(("x".to_owned(), value)));
        assert_eq!(
            parsed("read[a=b]=1"),
            Ok(("read[a=b]".to_owned(), serde_json::json!(1)))
        );
        for wrong in ["x", "x=", "=1", "x=words"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
