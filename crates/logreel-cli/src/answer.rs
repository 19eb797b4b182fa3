//! `logreel answer`: says yes or no to a run that waits, or gives it a value.

use logreel::core::event::WaitStarted;
use logreel::view::RunView;
use logreel::{Answer, Entry, Json, RunId, WaitId};

use crate::changed::Said;
use crate::output::Output;
use crate::signals::Signals;
use crate::store::{Acting, Missing, Place};
use crate::{ask, detach, input, name, resume, settle};

const EXAMPLES: &str = "\
Examples:
  logreel answer @last --approve --resume        say yes, and go on here
  logreel answer 1a2b3c4d w2 --deny --reason 'not on a Friday'
  logreel answer @last --value '{\"branch\": \"main\"}'";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(group = clap::ArgGroup::new("said").required(true).multiple(true))]
pub struct Args {
    /// Which run
    run: String,
    /// Which wait, such as w1; may be left out when one is open
    wait: Option<WaitId>,
    /// Say yes
    #[arg(long, group = "said", conflicts_with = "deny")]
    approve: bool,
    /// Say no
    #[arg(long, group = "said")]
    deny: bool,
    /// Give it a value, beside a yes or no or alone
    #[arg(long, value_name = "JSON", group = "said", allow_hyphen_values = true)]
    value: Option<String>,
    /// Why; recorded in the run's log
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Drive the run on here
    #[arg(long)]
    resume: bool,
}

pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    let signals = Signals::new()?;
    let value = args.value.as_deref();
    let value = value.map(|said| input::json("--value", said)).transpose()?;
    let acting = place.act(Missing::Refuse, None, out).await?;
    let mut run = name::resolve(&*acting.store, &args.run).await?;
    if args.wait.is_none() {
        let answerable = |wait: &WaitStarted| wait.kind.is_answerable();
        run = settle::meant(&*acting.store, run, answerable).await?;
    }
    let (mut answer, said) = match (args.approve, args.deny, value) {
        (true, _, value) => (with(Answer::approve(), value), "approved"),
        (false, true, value) => (with(Answer::deny(), value), "denied"),
        (false, false, value) => (Answer::value(value.unwrap_or_else(Json::null)), "answered"),
    };
    if let Some(wait) = args.wait {
        answer = answer.to(wait);
    }
    if let Some(reason) = args.reason {
        answer = answer.because(reason);
    }
    answer = answer.by(ask::who());
    let entry = acting.engine.answer(&run, answer).await?;
    out.note(format!("{} is {said}", run.short()));
    let then = Then::new(args.resume);
    after(acting, entry, then, signals, out).await
}

fn with(answer: Answer, value: Option<Json>) -> Answer {
    match value {
        Some(value) => answer.with(value),
        None => answer,
    }
}

/// What follows something that was said to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Then {
    /// It is driven on here.
    Resume,
    /// It can go on, and somebody is told who will see to that.
    Tell,
    /// What was said moves nothing yet.
    Nothing,
}

impl Then {
    pub fn new(resume: bool) -> Self {
        match resume {
            true => Self::Resume,
            false => Self::Tell,
        }
    }
}

pub async fn after(
    acting: Acting,
    entry: Entry,
    then: Then,
    signals: Signals,
    out: &mut Output,
) -> anyhow::Result<u8> {
    let run = entry.row.run;
    if then == Then::Resume {
        return resume::part_of(acting, &entry, Said::Nothing, signals, out).await;
    }
    if out.json {
        out.json_line(&RunView::of(&entry))?;
    }
    if then == Then::Tell
        && let Some(note) = who_goes_on(&acting, &entry, run).await?
    {
        out.note(note);
    }
    acting.engine.close().await?;
    Ok(0)
}

/// A word about a run that nobody will drive on by himself.
async fn who_goes_on(acting: &Acting, entry: &Entry, run: RunId) -> anyhow::Result<Option<String>> {
    let there = detach::is_worker_there(acting, entry).await?;
    let idle = !entry.is_driven() && !entry.row.status().is_terminal();
    let short = run.short();
    Ok((idle && !there).then(|| {
        format!("no worker is there to go on: `logreel resume {short}` does, or `logreel worker`")
    }))
}
