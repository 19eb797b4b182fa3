//! `logreel show`: a run at a glance, or all of it as JSON.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

use logreel::core::event::{Durability, Effect, OnDeadline};
use logreel::core::row::End;
use logreel::core::{Payload, Record, RunState};
use logreel::store::SystemEnv;
use logreel::view::{StepView, StepsView};
use logreel::{Engine, Entry, Env as _, Error, ErrorKind, Json, RunId, RunStore, Seq, Timestamp};

use crate::error::Failure;
use crate::output::{Output, Paint};
use crate::plain::verdict;
use crate::reading::{self, Pages};
use crate::show_agent::Work;
use crate::store::Place;
use crate::table::{self, Cell, Column, left, right};
use crate::{budget, name, outcome, summary, text};

/// How many steps and events a person is shown.
const SHOWN: usize = 20;

const STEPS: &[Column] = &[
    left("STEP", 24),
    left("STATUS", 9),
    right("TRIES", 5),
    left("EFFECT", 20),
    right("START", 8),
    right("TOOK", 6),
    left("OUTPUT", usize::MAX),
];

#[derive(clap::Args)]
pub struct Args {
    /// Which run
    run: String,
    /// The run as it was after this event
    #[arg(long, value_name = "SEQ")]
    at: Option<u64>,
    /// Print the run's output alone: text as it is, else JSON
    #[arg(long)]
    output: bool,
}

pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    let opened = place.open().await?;
    let store = &*opened.store;
    let run = name::resolve(store, &args.run).await?;
    let mut entry = store.entry(&run).await?;
    if let Some(at) = args.at {
        entry = as_it_was(&opened.engine, &run, Seq(at)).await?;
    }
    if args.output {
        print_output(store, &entry, out).await?;
    } else if out.json {
        print_json(&opened.engine, &entry, out).await?;
    } else {
        print_human(store, &entry, out).await?;
    }
    Ok(0)
}

/// The run after an earlier event.
async fn as_it_was(engine: &Engine, run: &RunId, at: Seq) -> anyhow::Result<Entry> {
    engine.entry_at(run, at).await.map_err(|error| match error {
        Error::NoSuchEvent { .. } => {
            let hint = format!("`logreel log {}` lists them", run.short());
            Failure::new(ErrorKind::NotFound, error.to_string())
                .hint(hint)
                .into()
        }
        other => anyhow::Error::from(other),
    })
}

async fn print_output(store: &dyn RunStore, entry: &Entry, out: &mut Output) -> anyhow::Result<()> {
    let ended = entry.row.facts.ended.as_ref().map(|ended| &ended.end);
    let Some(End::Completed { output }) = ended else {
        let (run, status) = (entry.row.run, text::status(entry));
        let message = format!("{run} has no output: its status is {status}");
        return Err(Failure::new(ErrorKind::NotApplicable, message).into());
    };
    let output = logreel::value::resolve(store, output).await?;
    print_value(&output, out)
}

/// Text as it is, else JSON; under `--json` always JSON.
pub fn print_value(value: &Json, out: &mut Output) -> anyhow::Result<()> {
    match value.decode::<String>() {
        Ok(text) if !out.json => {
            out.raw(text.as_bytes())?;
            if !text.ends_with('\n') {
                out.raw(b"\n")?;
            }
        }
        _ => out.line(value.text())?,
    }
    Ok(())
}

async fn print_json(engine: &Engine, entry: &Entry, out: &mut Output) -> anyhow::Result<()> {
    let mut pieces = engine.whole(entry).await?;
    while let Some(piece) = pieces.next().await? {
        out.raw(piece.as_bytes())?;
    }
    out.line("")?;
    Ok(())
}

pub fn decode(record: &Record) -> anyhow::Result<logreel::Event> {
    Ok(record.decode().map_err(logreel::store::Error::from)?)
}

/// What happened to the run as a whole.
fn is_milestone(record: &Record) -> bool {
    let group = record.kind.split('.').next().unwrap_or_default();
    matches!(
        group,
        "run" | "phase" | "plan" | "wait" | "child" | "budget" | "spec" | "verification"
    )
}

/// The last ones of many, and how many there were.
pub struct Tail<T> {
    last: VecDeque<T>,
    count: usize,
}

impl<T> Tail<T> {
    pub fn new() -> Self {
        Self {
            last: VecDeque::new(),
            count: 0,
        }
    }

    /// Gives the place of the new one, for [`Tail::get_mut`].
    pub fn push(&mut self, item: T) -> usize {
        if self.last.len() == SHOWN {
            self.last.pop_front();
        }
        self.last.push_back(item);
        self.count += 1;
        self.count - 1
    }

    /// The one at a place; `None` when it is not among the last any more.
    pub fn get_mut(&mut self, place: usize) -> Option<&mut T> {
        let place = place.checked_sub(self.left_out())?;
        self.last.get_mut(place)
    }

    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.last.iter()
    }

    pub fn count(&self) -> usize {
        self.count
    }

    pub fn left_out(&self) -> usize {
        self.count - self.last.len()
    }
}

async fn print_human(store: &dyn RunStore, entry: &Entry, out: &mut Output) -> anyhow::Result<()> {
    print_head(entry, out)?;
    print_waits(store, entry, out).await?;
    if entry.erased {
        out.line("")?;
        out.line("its bodies were erased; the headers are left: `logreel log`")?;
        return Ok(());
    }
    let state = Arc::new(reading::fold(store, entry.row.run, entry.row.head.seq).await?);
    let mut work = Work::of(entry.row.facts.kind, &state.spec);
    let (steps, milestones) = look_through(store, entry, &state, work.as_mut()).await?;
    match &work {
        Some(work) => work.print(store, out).await?,
        None => print_steps(entry, &steps, &undeclared(&state.spec), out)?,
    }
    out.line("")?;
    out.line(out.paint(Paint::Strong, "Timeline"))?;
    if milestones.left_out() > 0 {
        out.line(format!("  … {} more", milestones.left_out()))?;
    }
    for record in &milestones.last {
        let offset = offset(record.at, entry.row.facts.created_at);
        let line = format!("  {offset:>8}  {:<16} {}", record.kind, summary::of(record));
        out.line(text::fit(&line, out.line_width()).trim_end())?;
    }
    Ok(())
}

async fn look_through(
    store: &dyn RunStore,
    entry: &Entry,
    state: &Arc<RunState>,
    mut work: Option<&mut Work>,
) -> anyhow::Result<(Tail<StepView>, Tail<Record>)> {
    let mut view = StepsView::new(state);
    let (mut steps, mut milestones) = (Tail::new(), Tail::new());
    let mut pages = Pages::new(store, entry.row.run, Seq::FIRST, entry.row.head.seq);
    loop {
        let page = pages.next().await?;
        if page.is_empty() {
            break;
        }
        for record in page {
            if let Some(work) = &mut work {
                work.take(&record)?;
            }
            if StepsView::looks_at(&record)
                && let Some(step) = view.next(&decode(&record)?)
            {
                steps.push(step);
            }
            if is_milestone(&record) {
                milestones.push(record);
            }
        }
    }
    for step in view.open() {
        steps.push(step);
    }
    for step in view.to_come(store).await? {
        steps.push(step);
    }
    Ok((steps, milestones))
}

fn print_head(entry: &Entry, out: &mut Output) -> anyhow::Result<()> {
    let (row, facts, now) = (&entry.row, &entry.row.facts, SystemEnv.now());
    let status = out.paint(Paint::of(entry), &text::status(entry));
    out.line(format!(
        "{}  {status}",
        out.paint(Paint::Strong, &row.run.to_string())
    ))?;
    let mut field = |name: &str, value: String| -> anyhow::Result<()> {
        let value = match name {
            // Why it ended is read to the end.
            "error" | "reason" => value,
            _ => text::fit(&value, out.line_width().saturating_sub(13)),
        };
        let name = out.paint(Paint::Dim, &format!("{name:<10}"));
        Ok(out.line(format!("  {name} {value}").trim_end())?)
    };
    field(
        "agent",
        format!("{} ({})", text::one_line(&facts.agent), facts.kind),
    )?;
    if let Some(session) = &facts.session {
        field("session", text::one_line(session.as_str()))?;
    }
    if let Some(key) = &facts.key {
        field("key", text::one_line(key))?;
    }
    if !facts.labels.is_empty() {
        let labels = facts
            .labels
            .iter()
            .map(|(name, value)| format!("{name}={value}"));
        field(
            "labels",
            text::one_line(&labels.collect::<Vec<_>>().join(" ")),
        )?;
    }
    if let Some(parent) = &facts.parent {
        let relation = format!("{:?}", parent.relation).to_lowercase();
        field(
            "parent",
            format!("{} ({relation} at event {})", parent.run, parent.seq),
        )?;
    }
    if let Some(git) = &facts.git {
        let branch = git
            .branch
            .as_deref()
            .map(|it| format!(" on {}", text::one_line(it)));
        let dirty = if git.dirty { ", with changes" } else { "" };
        let commit = text::one_line(&git.commit);
        field(
            "git",
            format!("{commit}{}{dirty}", branch.unwrap_or_default()),
        )?;
    }
    if let Some(dir) = &facts.dir {
        field("dir", text::one_line(dir))?;
    }
    field("created", text::moment_and_age(facts.created_at, now))?;
    match &facts.ended {
        Some(ended) => {
            let took = text::duration(ended.at.since(facts.created_at));
            field(
                "ended",
                format!("{}, took {took}", text::moment_and_age(ended.at, now)),
            )?;
        }
        None => field("updated", text::moment_and_age(row.updated_at, now))?,
    }
    if let Some(limit) = text::in_line(entry, now) {
        field("waits", limit)?;
    }
    if let Some(driver) = &entry.driver {
        let since = text::moment(driver.since);
        let gone = if driver.alive { "" } else { ", which is gone" };
        field("driver", format!("{}{gone}, since {since}", driver.owner))?;
    }
    if facts.durability == Durability::Relaxed {
        field(
            "durability",
            "relaxed: what was acknowledged may be lost with the power".to_owned(),
        )?;
    }
    if entry.read_only {
        field(
            "read only",
            "it was imported; nobody drives it here".to_owned(),
        )?;
    }
    field("events", row.head.seq.to_string())?;
    field("head", row.head.digest.hex())?;
    if !facts.document.is_null() {
        field("state", text::one_line(&facts.document.to_string()))?;
    }
    field("cost", cost(entry))?;
    if let Some(limits) = budget::used(row) {
        field("budget", limits)?;
    }
    if !facts.input.is_null() {
        field("input", text::preview(&facts.input))?;
    }
    match facts.ended.as_ref().map(|ended| &ended.end) {
        Some(End::Completed { output }) => field("output", text::preview(output))?,
        Some(End::Failed { cause }) => field("error", summary::cause(cause))?,
        Some(End::Cancelled {
            reason: Some(reason),
        }) => field("reason", text::one_line(reason))?,
        Some(End::Cancelled { reason: None }) | None => {}
    }
    if let Some(verification) = &facts.verification {
        field("checks", verdict(verification.verdict).to_owned())?;
    }
    for tool in &row.pulse.active_tools {
        let since = text::moment(tool.since);
        field(
            "tool",
            format!(
                "{} ({}) since {since}",
                text::one_line(&tool.name),
                tool.call
            ),
        )?;
    }
    Ok(())
}

fn cost(entry: &Entry) -> String {
    let usage = &entry.row.pulse.usage;
    if usage.model_calls == 0 && usage.tool_calls == 0 {
        return "nothing: no model or tool was called".to_owned();
    }
    let money = match usage.usd_micros() {
        Some(micros) => format!("${:.4}", micros as f64 / 1e6),
        None => "unknown price".to_owned(),
    };
    format!(
        "{money}, {} ({} tokens in, {} out), {}",
        text::count(usage.model_calls, "model call"),
        usage.spent.input_tokens,
        usage.spent.output_tokens,
        text::count(usage.tool_calls, "tool call")
    )
}

async fn print_waits(store: &dyn RunStore, entry: &Entry, out: &mut Output) -> anyhow::Result<()> {
    if entry.row.facts.waits.is_empty() {
        return Ok(());
    }
    out.line("")?;
    out.line(out.paint(Paint::Strong, "Waits for"))?;
    for open in &entry.row.facts.waits {
        let wait = &open.wait;
        let what = wait.prompt.as_deref().or(wait.name.as_deref());
        let call = outcome::asked(store, open).await?;
        let what = match (&wait.tool, call.is_empty()) {
            (Some(tool), false) => text::one_line(tool),
            _ => what.map(text::one_line).unwrap_or_default(),
        };
        let kind = out.paint(Paint::Waits, wait.kind.as_str());
        out.line(format!("  {} {kind}  {what}", wait.wait).trim_end())?;
        for line in call.iter().skip(1) {
            out.line(format!("     {line}").trim_end())?;
        }
        out.line(format!("     since {}", text::moment(open.since)))?;
        if let Some(deadline) = wait.deadline {
            let then = match wait.on_deadline {
                Some(OnDeadline::Approve) => ", then it counts as approved",
                Some(OnDeadline::Deny) => ", then it counts as denied",
                Some(OnDeadline::Fail) => ", then it fails",
                Some(OnDeadline::Continue) | None => "",
            };
            out.line(format!("     until {}{then}", text::moment(deadline)))?;
        }
        let how = outcome::how_to_end(&entry.row.run, open);
        out.line(format!("     {how}"))?;
    }
    Ok(())
}

/// The steps of a workflow whose effect nobody declared. A spec too large to be in the event is not
/// looked at.
fn undeclared(spec: &Payload) -> HashSet<String> {
    let spec = spec.inline().map(|json| json.to_value());
    let steps = spec.as_ref().and_then(|spec| spec.get("step")?.as_array());
    let undeclared = steps
        .into_iter()
        .flatten()
        .filter(|step| step.get("effect").is_none() && step.get("wait").is_none());
    let ids = undeclared.filter_map(|step| Some(step.get("id")?.as_str()?.to_owned()));
    ids.collect()
}

fn print_steps(
    entry: &Entry,
    steps: &Tail<StepView>,
    undeclared: &HashSet<String>,
    out: &mut Output,
) -> anyhow::Result<()> {
    if steps.count == 0 {
        return Ok(());
    }
    out.line("")?;
    out.line(out.paint(Paint::Strong, &format!("Steps ({})", steps.count)))?;
    if steps.left_out() > 0 {
        out.line(format!(
            "  … {} more; --json has them all",
            steps.left_out()
        ))?;
    }
    let rows: Vec<Vec<Cell>> = steps
        .last
        .iter()
        .map(|step| {
            let paint = match step.status {
                "finished" => Paint::Good,
                "failed" | "in_doubt" => Paint::Bad,
                "waiting" => Paint::Waits,
                "running" => Paint::Busy,
                _ => Paint::Dim,
            };
            let start = step
                .started_at
                .map(|at| offset(at, entry.row.facts.created_at));
            let took = step.started_at.zip(step.finished_at);
            let took = took.map(|(start, end)| text::duration(end.since(start)));
            let tries = if step.attempts > 1 {
                step.attempts.to_string()
            } else {
                String::new()
            };
            let name = step.id.split('[').next().unwrap_or_default();
            let effect = match step.effect {
                Some(Effect::Idempotent) if undeclared.contains(name) => text::default_effect(),
                Some(Effect::Idempotent) | None => String::new(),
                Some(effect) => effect.as_str().to_owned(),
            };
            let shown = match (&step.output, &step.error) {
                (Some(output), _) => text::preview(output),
                (None, Some(error)) => text::one_line(&error.message),
                (None, None) => String::new(),
            };
            vec![
                text::one_line(&step.id).into(),
                Cell::painted(step.status, paint),
                tries.into(),
                effect.into(),
                start.unwrap_or_default().into(),
                took.unwrap_or_default().into(),
                shown.into(),
            ]
        })
        .collect();
    Ok(table::print(out, "  ", STEPS, &rows)?)
}

/// When something was, counted from the run's beginning; what a fork shares was before it.
fn offset(at: Timestamp, begin: Timestamp) -> String {
    if at < begin {
        return format!("-{}", text::duration(begin.since(at)));
    }
    format!("+{}", text::duration(at.since(begin)))
}
