//! Checks at the end: commands whose report decides whether the answer stands.

use logreel::core::event::{Check, Phase, PhaseEntered, Verdict, Verification};
use logreel::{Body, Command, Exit, TaskError, cut};
use serde::{Deserialize, Serialize};

use crate::agent::Agent;
use crate::environment::Environment;
use crate::message::{Message, Role};
use crate::progress::Progress;
use crate::spec::VerifySpec;

/// What a report holds of a check's output.
const REPORT_BYTES_MAX: usize = 4 * 1024;

/// What is kept of it at all.
const KEPT_BYTES_MAX: u64 = 1024 * 1024;

/// As `timeout` says it.
const TIMED_OUT: i32 = 124;
/// As a shell says it, with the signal's number.
const SIGNALLED: i32 = 128;

/// A check as it went.
#[derive(Debug, Serialize, Deserialize)]
struct Made {
    exit_code: Option<i32>,
    output: String,
}

impl Agent<'_> {
    /// Makes the checks and records their report. What failed goes back to the model, as long as there
    /// are rounds left.
    pub(crate) async fn verify(&self) -> Result<(), TaskError> {
        let round = self.with_progress(|progress| progress.verified) + 1;
        if let Some(entered) = self.phase(Phase::Verifying) {
            self.record(vec![entered], vec![], vec![]).await?;
        }
        let mut checks = Vec::new();
        for check in &self.spec.verify {
            checks.push(self.check(round, check).await?);
        }
        let report = Verification::of(checks);
        let rounds_max = self.spec.verify_rounds_max();
        let before = self.with_progress(|progress| progress.verified_before);
        let goes_back = report.verdict == Verdict::Failed && round - before <= rounds_max;
        let feedback = Message::text(Role::User, told(&report));
        let finished: Body = report.into();
        if !goes_back {
            return self.record(vec![finished], vec![], vec![]).await;
        }
        let additions = self.additions([(feedback, None, 0)]);
        let phase = Phase::Executing;
        let entered = PhaseEntered { phase }.into();
        self.record(vec![finished], additions, vec![entered]).await
    }

    /// One check: a step, so that one that was made is not made again.
    async fn check(&self, round: u32, check: &VerifySpec) -> Result<Check, TaskError> {
        let step = ("verify", round.to_string(), &check.name);
        let made: Made = self.ctx.step(step).run(|| self.make(check)).await?;
        let verdict = match made.exit_code {
            Some(0) => Verdict::Passed,
            Some(_) => Verdict::Failed,
            // It could not be made: when it is required, someone must look.
            None => Verdict::Skipped,
        };
        Ok(Check {
            message: (verdict != Verdict::Passed).then_some(made.output),
            name: check.name.clone(),
            required: check.required,
            verdict,
        })
    }

    async fn make(&self, check: &VerifySpec) -> Result<Made, TaskError> {
        // A check may run what the model wrote: it sees no key.
        let env = Environment::of_process().of_checks(&self.spec)?;
        let command = env.into_iter().fold(
            Command::shell(&check.run).clear_env(),
            |command, (name, value)| command.env(name, value),
        );
        let command = command
            .dir(&self.dir)
            .timeout(check.timeout)
            .merge_stderr()
            .keep_ends()
            .output_bytes_max(KEPT_BYTES_MAX);
        let ended = match self.ctx.command(command).await {
            Ok(ended) => ended,
            Err(error) if error.is_cancelled() => return Err(error),
            Err(error) => {
                return Ok(Made {
                    exit_code: (error.cause().kind == "timeout").then_some(TIMED_OUT),
                    output: error.to_string(),
                });
            }
        };
        let printed = [ended.stdout, ended.stdout_end].concat();
        let output = String::from_utf8_lossy(&printed).into_owned();
        let (output, _) = self.printed.text(&output);
        let told = match ended.exit {
            Exit::Signal(number) => format!("{output}killed by signal {number}"),
            Exit::Code(_) | Exit::Stopped => output.into_owned(),
        };
        Ok(Made {
            exit_code: match ended.exit {
                Exit::Code(code) => Some(code),
                // As a shell tells it. A check that crashed did not pass.
                Exit::Signal(number) => Some(SIGNALLED + number),
                Exit::Stopped => None,
            },
            output: cut(&told, REPORT_BYTES_MAX),
        })
    }
}

/// The report as a model reads it.
fn told(report: &Verification) -> String {
    let failed = failed_checks(report);
    format!("Your work does not pass its checks. Mend it, then answer again.\n\n{failed}")
}

fn failed_checks(report: &Verification) -> String {
    let failed = report
        .checks
        .iter()
        .filter(|it| it.verdict == Verdict::Failed);
    let shown = failed.map(|check| {
        let said = check.message.as_deref().unwrap_or_default();
        format!("check `{}` failed:\n{said}", check.name)
    });
    shown.collect::<Vec<_>>().join("\n\n")
}

/// How a run fails whose checks do.
pub(crate) fn failure(progress: &Progress) -> TaskError {
    let report = progress.verification.as_ref().map(failed_checks);
    let report = report.unwrap_or_default();
    let message = format!(
        "the checks fail after {} rounds: {report}",
        progress.verified
    );
    TaskError::of_kind("verification", message).permanent()
}
