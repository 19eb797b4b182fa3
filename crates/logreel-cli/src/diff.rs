//! `logreel diff`: what differs between two runs, for people and for programs.

use std::path::Path;

use logreel::Status;
use logreel::core::{Json, Payload};
use logreel::diff::{
    Became, Diff, LogFile, ModelChange, OtherChange, Place, Section, Side, Source, StepChange,
    StepSide, ToolChange, ValueChange, ValueHow,
};
use serde_json::Value;

use crate::output::{Output, Paint};
use crate::store::{Opened, Place as StorePlace};
use crate::{name, said, text};

/// How many differences of one sort a person is shown.
const SHOWN: usize = 20;

const EXAMPLES: &str = "\
Examples:
  logreel diff @last-1 @last          what the second try did otherwise
  logreel diff @last-1 @last --json   the same for programs
  logreel diff old.jsonl @last        with a log that was carried away
  logreel diff RUN FORK -q && echo 'came to the same'

Ids, times and the order of steps are no differences; what a run cost and how
long it took is shown and does not count. Exits with 1 when the runs differ.";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// The first run, or a file of JSON Lines: an export, or what `log --json` prints
    a: String,
    /// The second run, or such a file
    b: String,
}

pub async fn run(args: Args, place: &StorePlace, out: &mut Output) -> anyhow::Result<u8> {
    let files = [&args.a, &args.b].map(|said| Path::new(said).is_file());
    // Two files need no store.
    let opened = match files {
        [true, true] => None,
        _ => Some(place.open().await?),
    };
    let a = source(&args.a, opened.as_ref()).await?;
    let b = source(&args.b, opened.as_ref()).await?;
    let diff = logreel::diff::between(&a, &b).await?;
    if out.json {
        out.json_line(&diff)?;
    } else if !out.quiet {
        print(&diff, out)?;
    }
    Ok(u8::from(!diff.equal))
}

/// A file of that name, else the run of that name.
async fn source<'a>(said: &str, opened: Option<&'a Opened>) -> anyhow::Result<Source<'a>> {
    match opened {
        Some(opened) if !Path::new(said).is_file() => {
            let run = name::resolve(&*opened.store, said).await?;
            Ok(Source::Run(&*opened.store, run))
        }
        Some(_) | None => Ok(Source::File(LogFile::new(said))),
    }
}

fn print(diff: &Diff, out: &mut Output) -> anyhow::Result<()> {
    side("a", &diff.a, out)?;
    side("b", &diff.b, out)?;
    if diff.equal {
        let count = |same: usize, what: &str| text::count(same as u64, what);
        let same = [
            count(diff.steps.same, "step"),
            count(diff.tool_calls.same, "tool call"),
            count(diff.model_calls.same, "model call"),
        ];
        out.line("")?;
        out.line(out.paint(Paint::Good, &format!("the same: {}", same.join(", "))))?;
        return measures(diff, out);
    }
    if let Some(divergence) = &diff.divergence {
        title("First divergence", "", out)?;
        place("a", divergence.a.as_ref(), out)?;
        place("b", divergence.b.as_ref(), out)?;
    }
    values("Spec", &diff.spec, out)?;
    values("Input", &diff.input, out)?;
    section("Steps", &diff.steps, out, step_lines)?;
    section("Tool calls", &diff.tool_calls, out, tool_lines)?;
    model_calls(&diff.model_calls, out)?;
    section("Other events", &diff.events, out, other_lines)?;
    values("State", &diff.state, out)?;
    values("Checks", &diff.verification, out)?;
    values("Outcome", &diff.outcome, out)?;
    measures(diff, out)
}

fn side(name: &str, side: &Side, out: &mut Output) -> anyhow::Result<()> {
    let paint = match side.status {
        Status::Completed => Paint::Good,
        Status::Failed => Paint::Bad,
        Status::Cancelled => Paint::Dim,
        Status::Waiting => Paint::Waits,
        Status::Created | Status::Planning | Status::Executing | Status::Verifying => Paint::Busy,
    };
    let status = out.paint(paint, side.status.as_str());
    let agent = text::one_line(&side.agent);
    let events = text::count(side.event_count, "event");
    let run = out.paint(Paint::Strong, &side.run.to_string());
    Ok(out.line(format!(
        "{name}  {run}  {status}  {agent} ({}), {events}",
        side.kind
    ))?)
}

fn title(name: &str, counts: &str, out: &mut Output) -> anyhow::Result<()> {
    out.line("")?;
    let name = out.paint(Paint::Strong, name);
    Ok(out.line(format!("{name}  {counts}").trim_end())?)
}

fn place(name: &str, place: Option<&Place>, out: &mut Output) -> anyhow::Result<()> {
    let line = match place {
        Some(place) => {
            let what = text::one_line(&place.what);
            format!("  {name}  event {}  {}  {what}", place.seq, place.kind)
        }
        None => format!("  {name}  has nothing of its own"),
    };
    fitted(line.trim_end(), out)
}

fn fitted(line: &str, out: &mut Output) -> anyhow::Result<()> {
    let line = text::fit(line, out.line_width());
    Ok(out.line(line.trim_end())?)
}

/// `+` came, `-` went, `>` is elsewhere, `~` has something else in it.
fn mark(changes: &[Became]) -> (String, Paint) {
    let sign = |change: &Became| match change {
        Became::Added => '+',
        Became::Removed => '-',
        Became::Moved => '>',
        Became::Changed => '~',
    };
    let paint = match changes {
        [Became::Added] => Paint::Good,
        [Became::Removed] => Paint::Bad,
        [Became::Moved] => Paint::Busy,
        _ => Paint::Waits,
    };
    (changes.iter().map(sign).collect(), paint)
}

fn values(name: &str, changes: &[ValueChange], out: &mut Output) -> anyhow::Result<()> {
    if changes.is_empty() {
        return Ok(());
    }
    title(name, &text::count(changes.len() as u64, "difference"), out)?;
    for change in changes.iter().take(SHOWN) {
        let at = match change.pointer.as_str() {
            "" => "all of it".to_owned(),
            pointer => text::one_line(pointer),
        };
        let (a, b) = (short(&change.a), short(&change.b));
        let (sign, paint, told) = match change.change {
            ValueHow::Added => ("+", Paint::Good, format!("{at}  {b}")),
            ValueHow::Removed => ("-", Paint::Bad, format!("{at}  {a}")),
            ValueHow::Changed => ("~", Paint::Waits, format!("{at}  {a} → {b}")),
        };
        line(sign, paint, &told, out)?;
    }
    more(changes.len(), 0, out)
}

fn short(value: &Value) -> String {
    text::preview(&Payload::Inline(Json::from(value.clone())))
}

fn line(sign: &str, paint: Paint, told: &str, out: &mut Output) -> anyhow::Result<()> {
    let width = out.line_width().saturating_sub(5);
    let told = text::fit(told, width);
    let sign = out.paint(paint, &format!("{sign:<2}"));
    Ok(out.line(format!("  {sign} {told}").trim_end())?)
}

fn more(count: usize, left_out: usize, out: &mut Output) -> anyhow::Result<()> {
    match count.saturating_sub(SHOWN) + left_out {
        0 => Ok(()),
        more => Ok(out.line(format!("  … {more} more; --json tells of more"))?),
    }
}

fn counts<T>(section: &Section<T>) -> String {
    let all = [
        (section.same, "same"),
        (section.changed, "changed"),
        (section.moved, "moved"),
        (section.added, "added"),
        (section.removed, "removed"),
    ];
    let all = all.iter().filter(|(count, _)| *count > 0);
    let all: Vec<String> = all.map(|(count, what)| format!("{count} {what}")).collect();
    all.join(", ")
}

fn section<T>(
    name: &str,
    section: &Section<T>,
    out: &mut Output,
    lines: impl Fn(&T) -> (Vec<Became>, Vec<String>),
) -> anyhow::Result<()> {
    if section.is_empty() {
        return Ok(());
    }
    title(name, &counts(section), out)?;
    for item in section.items.iter().take(SHOWN) {
        let (changes, told) = lines(item);
        let (sign, paint) = mark(&changes);
        let mut told = told.iter();
        line(&sign, paint, told.next().map_or("", String::as_str), out)?;
        for rest in told {
            fitted(&format!("       {rest}"), out)?;
        }
    }
    more(section.items.len(), section.left_out, out)
}

fn step_lines(change: &StepChange) -> (Vec<Became>, Vec<String>) {
    let of = |side: &StepSide| {
        let rest = match (&side.output, &side.error) {
            (Some(output), _) => text::preview(output),
            (None, Some(error)) => text::one_line(error),
            (None, None) => String::new(),
        };
        format!("{} {rest}", side.status).trim_end().to_owned()
    };
    let id = text::one_line(&change.id);
    let lines = match (&change.a, &change.b) {
        (Some(a), Some(b)) => two(&id, &of(a), &of(b)),
        (Some(side), None) | (None, Some(side)) => vec![format!("{id}  {}", of(side))],
        (None, None) => vec![id],
    };
    (change.changes.clone(), lines)
}

/// What changed, below its name.
fn two(what: &str, a: &str, b: &str) -> Vec<String> {
    vec![what.to_owned(), format!("a {a}"), format!("b {b}")]
}

fn tool_lines(change: &ToolChange) -> (Vec<Became>, Vec<String>) {
    let name = match change.name.as_str() {
        "" => "a call that was denied".to_owned(),
        name => text::one_line(name),
    };
    let about = |side: &logreel::diff::CallSide| {
        let arguments = side.arguments.as_ref();
        let about = arguments.map(|it| said::about(&change.name, it));
        about.unwrap_or_default()
    };
    let result = |side: &logreel::diff::CallSide| match (&side.result, &side.error) {
        (Some(result), _) => said::result(result),
        (None, Some(error)) => text::one_line(error),
        (None, None) => "(no outcome)".to_owned(),
    };
    let lines = match (&change.a, &change.b) {
        (Some(a), Some(b)) => {
            let places = format!("event {} → {}", a.seq, b.seq);
            let head = match change.what.contains(&"arguments") {
                true => format!("{name}  ({places})"),
                false => format!("{name} {}  ({places})", about(a)),
            };
            let mut lines = vec![head];
            if change.what.contains(&"arguments") {
                lines.extend([format!("a {}", about(a)), format!("b {}", about(b))]);
            }
            if change.what.contains(&"result") {
                lines.extend([format!("a → {}", result(a)), format!("b → {}", result(b))]);
            }
            lines
        }
        (Some(side), None) | (None, Some(side)) => {
            let (about, result) = (about(side), result(side));
            vec![format!("{name} {about}  (event {}) → {result}", side.seq)]
        }
        (None, None) => vec![name],
    };
    (change.changes.clone(), lines)
}

/// Once a conversation differs, all that follows has another context: that is told once.
fn model_calls(section: &Section<ModelChange>, out: &mut Output) -> anyhow::Result<()> {
    if section.is_empty() {
        return Ok(());
    }
    title("Model calls", &counts(section), out)?;
    let only_context = |change: &&ModelChange| change.what == ["context"];
    let told: Vec<&ModelChange> = section
        .items
        .iter()
        .filter(|it| !only_context(it))
        .collect();
    for change in told.iter().take(SHOWN) {
        let (sign, paint) = mark(&change.changes);
        let answer = |message: &Payload| said::with_calls(said::message(message));
        let purpose = text::one_line(&change.purpose);
        match (&change.a, &change.b) {
            (Some(a), Some(b)) => {
                let what = change.what.join(", ");
                let head = format!("{purpose} {}, {}: {what}", a.call, b.call);
                line(&sign, paint, head.trim_start(), out)?;
                if change.what.contains(&"model") {
                    fitted(&format!("       {} → {}", a.model, b.model), out)?;
                }
                if change.what.contains(&"answer") {
                    fitted(&format!("       a {}", answer(&a.message)), out)?;
                    fitted(&format!("       b {}", answer(&b.message)), out)?;
                }
            }
            (Some(side), None) | (None, Some(side)) => {
                let told = format!("{} {}", side.call, answer(&side.message));
                line(&sign, paint, &told, out)?;
            }
            (None, None) => line(&sign, paint, &purpose, out)?,
        }
    }
    more(told.len(), section.left_out, out)?;
    let context = section.items.iter().filter(only_context).count();
    if context > 0 {
        let answers = text::count(context as u64, "answer");
        let told = format!("{answers} the same to another context");
        line("~", Paint::Waits, &told, out)?;
    }
    Ok(())
}

fn other_lines(change: &OtherChange) -> (Vec<Became>, Vec<String>) {
    let body = |side: &logreel::diff::OtherSide| text::preview(&Payload::Inline(side.body.clone()));
    let lines = match (&change.a, &change.b) {
        (Some(a), Some(b)) => two(&change.kind, &body(a), &body(b)),
        (Some(side), None) | (None, Some(side)) => {
            vec![format!(
                "{}  (event {})  {}",
                change.kind,
                side.seq,
                body(side)
            )]
        }
        (None, None) => vec![change.kind.clone()],
    };
    (change.changes.clone(), lines)
}

/// What each used, which is no difference by itself.
fn measures(diff: &Diff, out: &mut Output) -> anyhow::Result<()> {
    out.line("")?;
    let number = |name: &str| {
        let two = diff.usage.get(name);
        let of = |value: Option<&Value>| value.and_then(Value::as_u64).unwrap_or(0);
        (of(two.map(|it| &it.a)), of(two.map(|it| &it.b)))
    };
    let arrow = |(a, b): (u64, u64)| match a == b {
        true => a.to_string(),
        false => format!("{a} → {b}"),
    };
    let (input, output) = (number("input_tokens"), number("output_tokens"));
    if input != (0, 0) || output != (0, 0) {
        let told = format!("{} in, {} out", arrow(input), arrow(output));
        measure("tokens", &told, out)?;
        let usd = |value: Option<&Value>| match value.and_then(Value::as_f64) {
            Some(usd) => format!("${usd:.4}"),
            None => "unknown".to_owned(),
        };
        let two = diff.usage.get("usd");
        let (a, b) = (usd(two.map(|it| &it.a)), usd(two.map(|it| &it.b)));
        let told = if a == b { a } else { format!("{a} → {b}") };
        measure("cost", &told, out)?;
    }
    let took = |ms: u64| text::duration(std::time::Duration::from_millis(ms));
    let told = format!("{} → {}", took(diff.time_ms.a), took(diff.time_ms.b));
    measure("time", &told, out)
}

fn measure(name: &str, told: &str, out: &mut Output) -> anyhow::Result<()> {
    let name = out.paint(Paint::Dim, &format!("{name:<7}"));
    Ok(out.line(format!("{name} {told}"))?)
}
