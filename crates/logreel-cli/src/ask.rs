//! Asking the person at the terminal about approvals, so that they need no second command.

use std::io::{BufRead as _, IsTerminal as _};

use logreel::core::event::WaitKind;
use logreel::{Answer, Error, ErrorKind, RunId};
use rustix::termios::QueueSelector;
use tokio::sync::oneshot;

use crate::live::terminal;
use crate::output::Output;
use crate::signals::{Signals, Stop};
use crate::store::Acting;
use crate::{outcome, settle, text};

/// What came of asking.
pub enum Asked {
    /// Something was answered; the run may go on.
    Answered,
    /// There was nothing to ask, or no answer.
    Nothing,
    /// A signal came instead.
    Stopped(Stop),
}

/// Whether a person is there to answer.
pub fn is_possible(out: &Output) -> bool {
    !out.quiet && !out.json && std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
}

/// Asks about every approval that the run or a child of it waits for.
pub async fn about_all(
    acting: &Acting,
    run: RunId,
    signals: &mut Signals,
) -> anyhow::Result<Asked> {
    let mut asked = Asked::Nothing;
    for entry in settle::tree(&*acting.store, &run).await? {
        for open in &entry.row.facts.waits {
            if open.wait.kind != WaitKind::Approval {
                continue;
            }
            let call = outcome::asked(&*acting.store, open).await?;
            let prompt = match call.is_empty() {
                true => open.wait.prompt.as_deref().map(text::one_line),
                false => Some("Allow it?".to_owned()),
            };
            let prompt = prompt.unwrap_or_else(|| "Approve?".to_owned());
            for line in call {
                terminal::print(&format!("{line}\n"));
            }
            forget_what_was_typed();
            let said = tokio::select! {
                said = yes_or_no(&prompt) => said,
                stop = signals.next() => {
                    terminal::print("\n");
                    return Ok(Asked::Stopped(stop));
                }
            };
            let Some((approved, reason)) = said else {
                return Ok(asked);
            };
            let mut answer = match approved {
                true => Answer::approve(),
                false => Answer::deny(),
            };
            answer = answer.to(open.wait.wait);
            if let Some(reason) = reason {
                answer = answer.because(reason);
            }
            answer = answer.by(who());
            match acting.engine.answer(&entry.row.run, answer).await {
                Ok(_) => {}
                // Someone else was faster, or the deadline passed while we asked.
                Err(error @ Error::Rejected { .. }) if error.kind() != ErrorKind::Bug => {
                    terminal::print(&format!("{error}\n"));
                }
                Err(error) => return Err(error.into()),
            }
            asked = Asked::Answered;
        }
    }
    Ok(asked)
}

/// Whether the person says yes; no answer is a no.
pub async fn confirm(prompt: &str) -> bool {
    forget_what_was_typed();
    matches!(yes_or_no(prompt).await, Some((true, _)))
}

/// Who answers, for the record.
pub fn who() -> String {
    let set = |name| std::env::var(name).ok().filter(|it| !it.is_empty());
    // A container or a timer often has neither name, and a uid is better than nobody.
    set("USER")
        .or_else(|| set("LOGNAME"))
        .unwrap_or_else(|| format!("uid {}", rustix::process::getuid()))
}

/// What was typed before the question is no answer to it, and may have been meant for another one.
fn forget_what_was_typed() {
    // A terminal that cannot forget is asked all the same.
    rustix::termios::tcflush(std::io::stdin(), QueueSelector::IFlush).unwrap_or_default();
}

/// Yes or no, perhaps with a reason behind it; `None` when the input has ended.
async fn yes_or_no(prompt: &str) -> Option<(bool, Option<String>)> {
    loop {
        terminal::print(&format!("{prompt} [y/n, a reason may follow] "));
        let line = line().await?;
        let line = line.trim();
        let (word, reason) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let reason = Some(reason.trim().to_owned()).filter(|reason| !reason.is_empty());
        match word.trim_end_matches([',', ':']).to_lowercase().as_str() {
            "y" | "yes" => return Some((true, reason)),
            "n" | "no" => return Some((false, reason)),
            _ => {}
        }
    }
}

/// A line of the terminal. A thread of its own reads it, because a signal must not wait for it; it
/// ends with the process.
async fn line() -> Option<String> {
    let (sender, receiver) = oneshot::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let read = std::io::stdin().lock().read_line(&mut line);
        let line = matches!(read, Ok(count) if count > 0).then_some(line);
        // Whoever asked may have stopped.
        sender.send(line).unwrap_or_default();
    });
    receiver.await.ok().flatten()
}
