//! What a fork or a retry would write outside a second time, in words, and asking whether that is meant.

use logreel::{ErrorKind, Outlook, RunId, Write, WriteOutcome};

use crate::error::Failure;
use crate::output::Output;
use crate::signals::Signals;
use crate::{ask, said, text};

/// How many writes a person is shown.
const SHOWN: usize = 20;

/// How a person is asked, and what is said when nobody can be or the answer is no.
pub struct Asked {
    pub question: &'static str,
    pub refused: &'static str,
    pub hint: &'static str,
}

/// Says what would be done again, and asks whether that is meant.
pub async fn confirm(
    list: String,
    asked: &Asked,
    signals: &mut Signals,
    out: &Output,
) -> anyhow::Result<()> {
    if !ask::is_possible(out) {
        let refused = Failure::new(ErrorKind::NotApplicable, list);
        return Err(refused.hint(asked.hint).into());
    }
    out.note(list);
    let said = tokio::select! {
        said = ask::confirm(asked.question) => said,
        _ = signals.next() => false,
    };
    match said {
        true => Ok(()),
        false => Err(Failure::new(ErrorKind::NotApplicable, asked.refused).into()),
    }
}

/// The writes of a run that a copy of it does again, in words.
pub fn list(run: RunId, outlook: &Outlook, copy: &str) -> String {
    let (short, at) = (run.short(), outlook.at);
    let mut lines = Vec::new();
    let be = |writes: &[Write]| if writes.len() == 1 { "is" } else { "are" };
    let count = |writes: &[Write]| text::count(writes.len() as u64, "write");
    if !outlook.forgotten.is_empty() {
        let writes = &outlook.forgotten;
        lines.push(format!(
            "{} that {short} finished up to event {at} {} not kept, and {} done again when {copy} comes \
             there:",
            count(writes),
            be(writes),
            be(writes)
        ));
        add(&mut lines, run, writes);
    }
    if !outlook.again.is_empty() {
        let writes = &outlook.again;
        // A child that starts again may have written long before that event.
        let after = match writes.iter().any(|write| write.run == run) {
            true => format!("{short} did after event {at}"),
            false => format!("children of {short} did"),
        };
        lines.push(format!(
            "{} that {after} {} done again when {copy} comes there:",
            count(writes),
            be(writes)
        ));
        add(&mut lines, run, writes);
    }
    if !outlook.may_have_happened.is_empty() {
        let writes = &outlook.may_have_happened;
        let was = if writes.len() == 1 { "was" } else { "were" };
        lines.push(format!(
            "{} {was} under way at event {at} and may have happened; {} done again:",
            count(writes),
            be(writes)
        ));
        add(&mut lines, run, writes);
    }
    let gone = outlook.gone.iter().take(SHOWN).map(|gone| {
        let (child, step) = (gone.child.short(), gone.step.to_string());
        let why = match gone.erased {
            true => "was erased",
            false => "is gone",
        };
        let step = text::one_line(&step);
        format!("{child}, the child of step {step}, starts again; what it wrote is not known: its log {why}")
    });
    lines.extend(gone);
    if let Some(more) = outlook.gone.len().checked_sub(SHOWN).filter(|it| *it > 0) {
        lines.push(format!("… {more} more children whose logs are gone"));
    }
    lines.join("\n")
}

fn add(lines: &mut Vec<String>, run: RunId, writes: &[Write]) {
    lines.extend(writes.iter().take(SHOWN).map(|write| line(run, write)));
    if let Some(more) = writes.len().checked_sub(SHOWN).filter(|more| *more > 0) {
        lines.push(format!("  … {more} more"));
    }
}

fn line(run: RunId, write: &Write) -> String {
    let mut line = format!("  {}", text::one_line(&write.id));
    if let Some(tool) = &write.tool {
        let about = write.arguments.as_ref().map(|it| said::about(tool, it));
        let about = about.unwrap_or_default();
        line.push_str(&format!("  {} {about}", text::one_line(tool)));
    }
    let outcome = match write.outcome {
        WriteOutcome::Finished(seq) => format!("finished with event {seq}"),
        WriteOutcome::Failed(seq) => format!("failed with event {seq}"),
        WriteOutcome::Unknown => format!("announced with event {}", write.seq),
    };
    let whose = match write.run == run {
        true => String::new(),
        false => format!(" of its child {}", write.run.short()),
    };
    format!("{}  ({outcome}{whose})", line.trim_end())
}
