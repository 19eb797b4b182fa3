//! `logreel resolve`: says what became of a write that was interrupted.

use logreel::core::Payload;
use logreel::core::event::{Resolution, WaitKind, WaitStarted};

use crate::answer::{self, Then};
use crate::output::Output;
use crate::signals::Signals;
use crate::store::{Missing, Place};
use crate::{ask, input, name, settle};

const EXAMPLES: &str = "\
Examples:
  logreel resolve @last publish --returned '{\"id\": 7}' --resume   it happened, with this result
  logreel resolve @last publish --failed 'nothing was sent'       it did not, and the step failed
  logreel resolve @last publish --retry --resume                  run it again, with the same key";

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
#[command(group = clap::ArgGroup::new("what").required(true))]
pub struct Args {
    /// Which run
    run: String,
    /// The step or call in doubt, as `logreel show` names it
    call: String,
    /// It happened, and gave this
    #[arg(long, value_name = "JSON", group = "what", allow_hyphen_values = true)]
    returned: Option<String>,
    /// It did not happen, and counts as failed
    #[arg(long, value_name = "WHY", group = "what", allow_hyphen_values = true)]
    failed: Option<String>,
    /// It did not happen, or may happen twice: run it again
    #[arg(long, group = "what")]
    retry: bool,
    /// Drive the run on here
    #[arg(long)]
    resume: bool,
}

pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    let signals = Signals::new()?;
    let (resolution, said) = match (args.returned, args.failed) {
        (Some(json), _) => {
            let (value, blob) = Payload::of(input::json("--returned", &json)?);
            // The library takes no blobs here.
            if blob.is_some() {
                let message = "--returned is too large for a value said by hand (64 KiB)";
                return Err(
                    crate::error::Failure::new(logreel::ErrorKind::TooLarge, message).into(),
                );
            }
            (Resolution::Returned(value), "it happened")
        }
        (None, Some(why)) => (Resolution::Failed(why), "it failed"),
        (None, None) => (Resolution::Retry, "it will run again"),
    };
    let acting = place.act(Missing::Refuse, None, out).await?;
    let run = name::resolve(&*acting.store, &args.run).await?;
    let in_doubt = |wait: &WaitStarted| {
        let step = wait.step.as_ref().map(ToString::to_string);
        let call = step.or_else(|| wait.call.as_ref().map(ToString::to_string));
        wait.kind == WaitKind::InDoubt && call.is_none_or(|call| call == args.call)
    };
    let run = settle::meant(&*acting.store, run, in_doubt).await?;
    let by = ask::who();
    let resolved = acting
        .engine
        .resolve(&run, args.call, resolution, by)
        .await?;
    out.note(format!("{}: {said}", run.short()));
    if args.retry {
        for owner in &resolved.not_known_dead {
            out.note(format!(
                "warning: {owner} is not known to be dead; it may still make the write"
            ));
        }
    }
    let then = Then::new(args.resume);
    answer::after(acting, resolved.entry, then, signals, out).await
}
