//! `logreel resume`: drives a run on here, or every run that is ready or lost its driver.

use std::path::PathBuf;
use std::time::Duration;

use logreel::core::Rejected;
use logreel::core::event::{Budget, RunKind, WaitKind, WaitStarted};
use logreel::store::{Claimable, SystemEnv};
use logreel::view::RunView;
use logreel::{Entry, Env as _, Error, ErrorKind, ResumeOutcome, RunId, Status};

use crate::changed::{self, Said};
use crate::drive::{self, Followed};
use crate::error::{self, Failure};
use crate::outcome::Line;
use crate::output::Output;
use crate::settle::{CANCELLED, FAILED, WAITS};
use crate::signals::Signals;
use crate::spec::Spec;
use crate::store::{Acting, Missing, Place};
use crate::{ask, budget, follow_many, name, outcome, patience, record, settle, spec};

const EXAMPLES: &str = "\
Examples:
  logreel resume @last      go on with the newest run: paused, interrupted, or ready
  logreel resume            go on with every run that is ready or lost its driver
  logreel resume @last --add-budget tokens=50000,usd=1.5
                            give a run more of what it ran out of, and go on
  logreel resume @last --take-over
                            go on with a run that was imported, once nobody does elsewhere";

/// How often a stopped driver's lease is looked at.
const FROZEN_LOOK_EVERY: Duration = Duration::from_millis(100);

/// How many runs are taken at a time when none is named.
const TAKEN: usize = 1000;

#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Which run [default: every orphaned and ready one]
    run: Option<String>,
    /// Go on with the spec that the run was started with, though its file has changed
    #[arg(long, conflicts_with = "accept_spec_change", requires = "run")]
    stored_spec: bool,
    /// Go on with the spec file as it is now; the change is recorded
    #[arg(long, requires = "run")]
    accept_spec_change: bool,
    /// Raise limits of the run, and of the runs that it is part of, by this much: tokens=50000, usd=1.5,
    /// wall=10m, tool_calls=5, children=2; several by commas or by saying it again
    #[arg(long, value_name = "LIMIT=AMOUNT", requires = "run")]
    #[arg(value_delimiter = ',', value_parser = budget::amount)]
    add_budget: Vec<budget::Amount>,
    /// The folder to run in [default: as recorded]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// Make an imported run this store's own, with everyone below it: nobody drives it elsewhere any more
    #[arg(long, requires = "run")]
    take_over: bool,
}

pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    let signals = Signals::new()?;
    let dir = args.dir.as_deref().map(spec::folder).transpose()?;
    let acting = place.act(Missing::Refuse, dir.as_deref(), out).await?;
    let Some(named) = &args.run else {
        return all(acting, signals, out).await;
    };
    let run = name::resolve(&*acting.store, named).await?;
    let entry = acting.store.entry(&run).await?;
    match entry.row.status() {
        Status::Completed if !args.add_budget.is_empty() => {
            let message = format!("{run} has completed; there is nothing to give it more for");
            return Err(Failure::new(ErrorKind::Terminal, message).into());
        }
        Status::Completed => {
            if out.json {
                out.json_line(&Line::run(&RunView::of(&entry)))?;
            } else {
                outcome::tell(&*acting.store, &entry, out).await?;
            }
            return Ok(0);
        }
        Status::Failed | Status::Cancelled => return Err(ended(&entry).into()),
        _ => {}
    }
    let entry = own(&acting, entry, args.take_over, out).await?;
    let said = match (args.stored_spec, args.accept_spec_change) {
        (true, _) => Said::Stored,
        (false, true) => Said::Accept,
        (false, false) => Said::Nothing,
    };
    if args.add_budget.is_empty() {
        return part_of(acting, &entry, said, signals, out).await;
    }
    // Whatever is refused, nothing was raised by then.
    let root = settle::root(&*acting.store, run).await?;
    let root = acting.store.entry(&root).await?;
    changed::admit(&acting, &root, said).await?;
    let entry = raise(&acting, run, &budget::sum(&args.add_budget), out).await?;
    part_of(acting, &entry, said, signals, out).await
}

/// The run once it is this store's own. What was imported is driven here only when someone says so.
async fn own(
    acting: &Acting,
    entry: Entry,
    take_over: bool,
    out: &mut Output,
) -> anyhow::Result<Entry> {
    if !entry.read_only {
        return Ok(entry);
    }
    let (run, short) = (entry.row.run, entry.row.run.short());
    if !take_over {
        let message =
            format!("{run} was imported and is read-only here; it may be driven elsewhere");
        let hint = format!("once nobody does: `logreel resume {short} --take-over`");
        return Err(Failure::new(ErrorKind::NotApplicable, message)
            .hint(hint)
            .into());
    }
    // A child goes on only with what it is a part of.
    let root = settle::root(&*acting.store, run).await.unwrap_or(run);
    acting.engine.take_over(&root).await?;
    out.note(format!("{} is this store's own now", root.short()));
    Ok(acting.engine.take_over(&run).await?)
}

/// Raises limits of the run, or of the only one of its children that ran out of them.
async fn raise(
    acting: &Acting,
    run: RunId,
    add: &Budget,
    out: &mut Output,
) -> anyhow::Result<Entry> {
    let for_budget = |wait: &WaitStarted| wait.kind == WaitKind::Budget;
    let meant = settle::meant(&*acting.store, run, for_budget).await?;
    let raised = acting.engine.add_budget(&meant, add.clone(), ask::who());
    let entry = match raised.await {
        Ok(entry) => entry,
        Err(
            error @ Error::Rejected {
                why: Rejected::NoSuchLimit(_),
                ..
            },
        ) => {
            let row = acting.store.entry(&meant).await?.row;
            let hint = match budget::used(&row) {
                Some(limits) => format!("its limits: {limits}"),
                None => "it has no limits; a `[budget]` in its spec sets them".to_owned(),
            };
            let refused = Failure::new(error.kind(), error.to_string());
            return Err(refused.hint(hint).into());
        }
        Err(error) => return Err(error.into()),
    };
    let (short, now) = (meant.short(), budget::written(&entry.row.facts.budget));
    out.note(format!("{short} may use {now} now"));
    Ok(entry)
}

/// Drives a run on, or what it is a part of: a child alone would leave its parent waiting, which is
/// what nobody wants.
pub async fn part_of(
    acting: Acting,
    entry: &Entry,
    said: Said,
    signals: Signals,
    out: &mut Output,
) -> anyhow::Result<u8> {
    let run = entry.row.run;
    let root = settle::root(&*acting.store, run).await?;
    let root = acting.store.entry(&root).await?;
    let accepted = changed::admit(&acting, &root, said).await?;
    if root.row.run != run {
        let (short, parent) = (run.short(), root.row.run.short());
        out.note(format!("{short} is part of {parent}; going on with that"));
        match acting.engine.resume(&run).await {
            Ok(_) | Err(Error::Waiting { .. } | Error::Driven { .. } | Error::Ended { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    one(acting, &root, accepted, signals, out).await
}

/// Drives one run on, from where it stands; under another spec when someone accepted it.
async fn one(
    acting: Acting,
    entry: &Entry,
    accepted: Option<Spec>,
    mut signals: Signals,
    out: &mut Output,
) -> anyhow::Result<u8> {
    let run = entry.row.run;
    let mut waits = false;
    let resumed = loop {
        let resumed = match &accepted {
            Some(spec) => spec.resume(&acting.engine, &run).await,
            None => acting.engine.resume(&run).await,
        };
        let Err(Error::Driven { by, .. }) = &resumed else {
            break resumed;
        };
        // Nobody can take a recorded program from whoever records it.
        if record::is_recorded(entry) || !is_frozen(&acting.store.entry(&run).await?) {
            break resumed;
        }
        if !std::mem::replace(&mut waits, true) {
            let short = run.short();
            out.note(format!(
                "{short} is driven by {by}, which is stopped; taking over once its lease has run out"
            ));
        }
        tokio::select! {
            () = SystemEnv.sleep(FROZEN_LOOK_EVERY) => {}
            stop = signals.next() => return Ok(stop.code()),
        }
    };
    match resumed {
        // What it waits for is told, or asked about, by whoever follows it.
        Ok(ResumeOutcome::GoesOn(_)) => {
            let short = run.short();
            out.note(format!("{short} goes on where it is recorded"));
            acting.engine.close().await?;
            return Ok(0);
        }
        Ok(_) | Err(Error::Waiting { .. }) => {}
        Err(error @ Error::Driven { .. }) => {
            let short = run.short();
            let is_stopped =
                record::is_recorded(entry) && is_frozen(&acting.store.entry(&run).await?);
            let hint = match is_stopped {
                true => "it was stopped (Ctrl-Z): `fg` in its shell goes on with it".to_owned(),
                false => format!("`logreel log {short} --follow` watches it"),
            };
            return Err(Failure::new(error.kind(), error.to_string())
                .hint(hint)
                .into());
        }
        Err(error) => return Err(error.into()),
    }
    let followed = Followed::ours(run, entry.row.head.seq.next()).under(accepted);
    drive::to_the_end(acting, followed, signals, out).await
}

/// Whether the run's driver is a process that someone stopped (SIGSTOP). It beats no more, and its lease
/// runs out while we look. A process of another host that has its number costs no more than that time.
fn is_frozen(entry: &Entry) -> bool {
    let Some(driver) = &entry.driver else {
        return false;
    };
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", driver.owner.pid));
    let state = stat.ok().and_then(|stat| {
        let (_, after_name) = stat.rsplit_once(") ")?;
        after_name.chars().next()
    });
    state == Some('T')
}

/// Every run that is ready or lost its driver.
async fn all(acting: Acting, mut signals: Signals, out: &mut Output) -> anyhow::Result<u8> {
    let what = [RunKind::Workflow, RunKind::Agent, RunKind::Record].map(|kind| Claimable {
        kind,
        agents: None,
        specs: None,
    });
    let ready = acting.store.claimable(&what, &[], TAKEN).await?;
    if ready.is_empty() {
        out.note("no run is ready or orphaned");
    }
    // A child's parent is to go on too, once the child has ended.
    let (mut taken, mut left): (Vec<RunId>, Vec<RunId>) = (Vec::new(), Vec::new());
    let mut worst = None;
    for run in ready {
        let looked = async {
            let root = settle::root(&*acting.store, run).await?;
            let entry = acting.store.entry(&root).await?;
            let changed = changed::find(&acting, &entry).await?;
            anyhow::Ok((root, entry, changed))
        };
        let (root, entry, changed) = match looked.await {
            Ok(looked) => looked,
            Err(error) if patience::is_away(&error) && taken.is_empty() => return Err(error),
            // Who left now would stop those that were taken already.
            Err(error) if patience::is_away(&error) => {
                worst.get_or_insert(error::leave_alone(&run, &error, out));
                break;
            }
            // One that cannot be read keeps nobody from the others.
            Err(error) => {
                worst.get_or_insert(error::leave_alone(&run, &error, out));
                continue;
            }
        };
        if left.contains(&root) {
            continue;
        }
        if let Some(changed) = changed {
            out.note(changed.note(&entry));
            left.push(root);
            continue;
        }
        match acting.engine.resume(&run).await {
            Ok(_) if taken.contains(&root) => {}
            Ok(_) => taken.push(root),
            Err(Error::Driven { .. } | Error::Waiting { .. } | Error::Ended { .. }) => {}
            // The store's fault, and not what the run lacks here.
            Err(error) if error.kind() == ErrorKind::Unavailable => {
                worst.get_or_insert(error::leave_alone(&run, &error.into(), out));
                break;
            }
            Err(error) if error.kind().exit_code() == ErrorKind::Unavailable.exit_code() => {
                worst.get_or_insert(error::leave_alone(&run, &error.into(), out));
            }
            Err(error) => out.note(format!("{} is left alone: {error}", run.short())),
        }
    }
    let followed = follow_many::to_the_end(&acting, &taken, &mut signals, out).await;
    tokio::select! {
        closed = patience::close(&acting.engine) => closed?,
        _ = signals.next() => {}
    }
    let codes = match followed? {
        Ok(codes) => codes,
        Err(stop) => return Ok(stop.code()),
    };
    let unread = ErrorKind::Corrupt.exit_code();
    let first = [FAILED, CANCELLED, WAITS, unread]
        .into_iter()
        .find(|it| codes.contains(it));
    Ok(first.or(worst).unwrap_or(0))
}

fn ended(entry: &Entry) -> Failure {
    let (run, short) = (entry.row.run, entry.row.run.short());
    if outcome::was_moved(entry) {
        let message = format!("{run} was moved to another store, and goes on there");
        return Failure::new(ErrorKind::Terminal, message).hint(
            "resume it there; what stays here is the log up to the move, which `logreel prune` deletes",
        );
    }
    let message = format!(
        "{run} {}; an ended run stays as it is",
        outcome::ended(entry)
    );
    Failure::new(ErrorKind::Terminal, message).hint(format!(
        "`logreel retry {short}` goes on in a new run that shares what finished"
    ))
}
