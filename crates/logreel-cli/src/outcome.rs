//! How a run came out, for people and for programs.

use logreel::core::decide::MOVED;
use logreel::core::event::{Verdict, WaitKind};
use logreel::core::row::{End, OpenWait};
use logreel::view::{EventView, RunView};
use logreel::{Entry, RunId, RunStore};
use serde::Serialize;

use crate::output::Output;
use crate::show::print_value;
use crate::{said, settle, text};

/// A line of `run --json` and `wait --json`.
#[derive(Serialize)]
pub struct Line<'a, T> {
    r#type: &'static str,
    #[serde(flatten)]
    what: &'a T,
}

impl<'a> Line<'a, RunView> {
    pub fn run(what: &'a RunView) -> Self {
        Self {
            r#type: "run",
            what,
        }
    }
}

impl<'a, 'r> Line<'a, EventView<'r>> {
    pub fn event(what: &'a EventView<'r>) -> Self {
        Self {
            r#type: "event",
            what,
        }
    }
}

/// Whether it ended here because it goes on in another store.
pub fn was_moved(entry: &Entry) -> bool {
    let end = entry.row.facts.ended.as_ref().map(|ended| &ended.end);
    matches!(end, Some(End::Cancelled { reason: Some(why) }) if why == MOVED)
}

/// The output on stdout, or why there is none on stderr.
pub async fn tell(store: &dyn RunStore, entry: &Entry, out: &mut Output) -> anyhow::Result<()> {
    let short = entry.row.run.short();
    match entry.row.facts.ended.as_ref().map(|ended| &ended.end) {
        Some(End::Completed { output }) => {
            let output = logreel::value::resolve(store, output).await?;
            print_value(&output, out)?;
        }
        Some(End::Failed { .. } | End::Cancelled { .. }) => {
            out.note(format!("{short} {}", ended(entry)));
        }
        None => {
            let what = text::waits(&entry.row);
            let ways = how_to_go_on(store, &entry.row.run).await?;
            out.note(format!("{short} waits for someone ({what}):"));
            for line in ways {
                out.note(format!("  {line}"));
            }
        }
    }
    Ok(())
}

/// How an ended run ended, in words that follow its name.
pub fn ended(entry: &Entry) -> String {
    let Some(ended) = &entry.row.facts.ended else {
        return text::status(entry);
    };
    match &ended.end {
        End::Completed { .. } => "completed".to_owned(),
        // `show` has the report, which is long.
        End::Failed { cause } if cause.kind == "verification" && has_report(entry) => {
            format!("failed: {} not hold", failed_checks(entry))
        }
        End::Failed { cause } => {
            let step = cause.step.as_ref().map(|step| format!(" in {step}"));
            let message = text::one_line(&cause.message);
            format!("failed{}: {message}", step.unwrap_or_default())
        }
        End::Cancelled { reason } => {
            let reason = reason.as_deref().map(text::one_line);
            let reason = reason.map(|why| format!(": {why}"));
            format!("was cancelled{}", reason.unwrap_or_default())
        }
    }
}

fn has_report(entry: &Entry) -> bool {
    !failed_checks(entry).is_empty()
}

/// The checks that do not hold: `the check tests does`, `the checks a, b do`.
fn failed_checks(entry: &Entry) -> String {
    let report = entry.row.facts.verification.as_ref();
    let checks = report.into_iter().flat_map(|report| &report.checks);
    let failed = checks.filter(|check| check.verdict == Verdict::Failed);
    let names: Vec<String> = failed.map(|check| text::one_line(&check.name)).collect();
    match names.as_slice() {
        [] => String::new(),
        [one] => format!("the check {one} does"),
        many => format!("the checks {} do", many.join(", ")),
    }
}

/// What a person may do about each wait of a run and of the children it waits for.
pub async fn how_to_go_on(store: &dyn RunStore, run: &RunId) -> anyhow::Result<Vec<String>> {
    let mut lines = Vec::new();
    for entry in settle::tree(store, run).await? {
        for open in &entry.row.facts.waits {
            if open.wait.needs_person() {
                lines.extend(asked(store, open).await?);
                lines.push(how_to_end(&entry.row.run, open));
            }
        }
    }
    Ok(lines)
}

/// What someone is asked about a tool: the call, all of it, after a line that names the tool.
pub async fn asked(store: &dyn RunStore, open: &OpenWait) -> anyhow::Result<Vec<String>> {
    let (tool, arguments) = match (&open.wait.tool, &open.wait.arguments) {
        (Some(tool), Some(arguments)) => (tool, arguments),
        (Some(_), None) if open.wait.kind == WaitKind::InDoubt => {
            return Ok(open
                .wait
                .prompt
                .iter()
                .map(|it| text::one_line(it))
                .collect());
        }
        (Some(_), None) | (None, _) => return Ok(Vec::new()),
    };
    let arguments = logreel::value::resolve(store, arguments).await?.to_value();
    let mut lines = vec![format!("{}:", text::one_line(tool))];
    let call = said::in_full(tool, &arguments);
    lines.extend(call.iter().map(|line| format!("    {line}")));
    Ok(lines)
}

/// The writes in doubt of a run and its children, and how each is settled.
pub async fn doubts(store: &dyn RunStore, run: &RunId) -> anyhow::Result<Vec<String>> {
    let mut lines = Vec::new();
    for entry in settle::tree(store, run).await? {
        let waits = entry.row.facts.waits.iter();
        for open in waits.filter(|open| open.wait.kind == WaitKind::InDoubt) {
            let call = open.wait.call.as_ref().map(ToString::to_string);
            let step = open.wait.step.as_ref().map(ToString::to_string);
            let step = text::one_line(&step.or(call).unwrap_or_default());
            let how = how_to_end(&entry.row.run, open);
            lines.push(format!("`{step}` may have happened: {how}"));
        }
    }
    Ok(lines)
}

/// What ends a wait: a command, where there is one.
pub fn how_to_end(run: &RunId, open: &OpenWait) -> String {
    let (wait, short) = (&open.wait, run.short());
    match wait.kind {
        WaitKind::Approval => format!(
            "logreel answer {short} {} --approve --resume   (or --deny)",
            wait.wait
        ),
        WaitKind::Signal => {
            let name = wait.name.as_deref().unwrap_or_default();
            format!("logreel signal {short} {} --resume", quoted(name))
        }
        WaitKind::Paused | WaitKind::CrashLoop => format!("logreel resume {short}"),
        WaitKind::InDoubt => {
            let step = wait.step.as_ref().map(ToString::to_string);
            let call = step.or_else(|| wait.call.as_ref().map(ToString::to_string));
            let call = quoted(&call.unwrap_or_default());
            format!(
                "logreel resolve {short} {call} --returned JSON --resume   (or --failed WHY, --retry)"
            )
        }
        WaitKind::Budget => {
            let limit = wait.name.as_deref().map(text::one_line).unwrap_or_default();
            let used = wait.prompt.as_deref().map(text::one_line);
            let used = used.map(|used| format!("   ({used})")).unwrap_or_default();
            format!("logreel resume {short} --add-budget {limit}=AMOUNT{used}")
        }
        WaitKind::Retry if wait.needs_person() => {
            let why = wait.prompt.as_deref().map(text::one_line);
            let why = why.map(|why| format!("   ({why})")).unwrap_or_default();
            format!("logreel resume {short}{why}")
        }
        WaitKind::Timer | WaitKind::Retry | WaitKind::Child => "it ends by itself".to_owned(),
    }
}

/// A word as a shell takes it, on one line whatever is in it.
pub fn quoted(word: &str) -> String {
    let word = text::one_line(word);
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+,=".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}
