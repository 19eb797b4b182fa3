//! `logreel verify`: is the log what was appended, and is the row what follows from it?

use std::collections::HashSet;

use logreel::core::Record;
use logreel::store::Error;
use logreel::{
    Digest, Entry, FileError, LogCheck, Problem, RunFile, RunId, RunStore, Seq, Status,
    previous_node,
};
use serde::Serialize;

use crate::carried;
use crate::error::with_sources;
use crate::name;
use crate::output::{Output, Paint};
use crate::reading::Pages;
use crate::store::Place;
use crate::text;

const DOES_NOT_HOLD: u8 = 1;

#[derive(clap::Args)]
pub struct Args {
    /// Which run, or a file that `export` wrote (jsonl or reel), - for stdin; every run of the store without
    /// one
    #[arg(value_name = "RUN|FILE")]
    run: Option<String>,
    /// The digest that the run's log must end with
    #[arg(long, value_name = "DIGEST", requires = "run", value_parser = parse_digest)]
    head: Option<Digest>,
}

/// What was found out about a run.
#[derive(Serialize)]
struct Verdict {
    run: Option<RunId>,
    holds: bool,
    events: u64,
    head_digest: Option<Digest>,
    /// The event that does not hold, when one can be named.
    seq: Option<Seq>,
    problem: Option<String>,
    /// What could not be checked, and why.
    skipped: Option<String>,
}

impl Verdict {
    fn of(run: Option<RunId>) -> Self {
        Self {
            run,
            holds: true,
            events: 0,
            head_digest: None,
            seq: None,
            problem: None,
            skipped: None,
        }
    }
}

/// A problem of the run, or of the world, which says nothing about the run.
enum Stop {
    Problem(Problem),
    World(Error),
}

impl From<Problem> for Stop {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        match error {
            error @ Error::Corrupt { .. } => {
                Self::Problem(Problem::of_run(with_sources(&error.into())))
            }
            other => Self::World(other),
        }
    }
}

pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    if let Some(name) = args.run.as_deref().filter(|name| carried::is_file(name)) {
        return check_file(name, args.head, out);
    }
    let opened = place.open().await?;
    let store = &*opened.store;
    let runs = match &args.run {
        Some(name) => vec![name::resolve(store, name).await?],
        // By id alone: a row that does not load must not hide the others.
        None => store.find("", usize::MAX).await?,
    };
    let mut broken = 0_u64;
    let one = runs.len() == 1;
    for run in &runs {
        let verdict = match check(store, *run, args.head).await {
            Ok(verdict) => verdict,
            // Deleted since it was listed.
            Err(Error::NotFound(_)) if args.run.is_none() => continue,
            Err(error) => return Err(error.into()),
        };
        broken += u64::from(!verdict.holds);
        print(&verdict, one, out)?;
    }
    out.flush()?;
    if !one {
        out.note(match broken {
            0 => format!("{} hold", text::count(runs.len() as u64, "run")),
            _ => format!(
                "{broken} of {} do not hold",
                text::count(runs.len() as u64, "run")
            ),
        });
    }
    Ok(if broken > 0 { DOES_NOT_HOLD } else { 0 })
}

fn print(verdict: &Verdict, one: bool, out: &mut Output) -> anyhow::Result<()> {
    if out.json {
        return out.json_line(verdict);
    }
    let run = verdict.run.map_or_else(String::new, |run| run.to_string());
    let events = text::count(verdict.events, "event");
    let line = match &verdict.problem {
        Some(problem) => {
            let at = verdict
                .seq
                .map(|seq| format!("event {seq}: "))
                .unwrap_or_default();
            format!("{} {run}  {at}{problem}", out.paint(Paint::Bad, "BAD"))
        }
        None => {
            let skipped = verdict
                .skipped
                .as_ref()
                .map(|why| format!("  ({why})"))
                .unwrap_or_default();
            // The head is what people note down and compare later.
            let head = match verdict.head_digest {
                Some(head) if one => format!("  head {head}"),
                _ => String::new(),
            };
            format!(
                "{}  {run}  {events}{head}{skipped}",
                out.paint(Paint::Good, "ok")
            )
        }
    };
    Ok(out.line(line)?)
}

async fn check(store: &dyn RunStore, run: RunId, head: Option<Digest>) -> Result<Verdict, Error> {
    let mut verdict = Verdict::of(Some(run));
    match check_into(store, run, head, &mut verdict).await {
        Ok(()) => {}
        Err(Stop::World(error)) => return Err(error),
        Err(Stop::Problem(Problem { seq, what })) => {
            verdict.holds = false;
            verdict.seq = seq;
            verdict.problem = Some(what);
        }
    }
    Ok(verdict)
}

async fn check_into(
    store: &dyn RunStore,
    run: RunId,
    head: Option<Digest>,
    verdict: &mut Verdict,
) -> Result<(), Stop> {
    // The row first, the log up to its head second: what a driver appends meanwhile does not matter.
    let entry = store.entry(&run).await?;
    verdict.events = entry.row.head.seq.0;
    verdict.head_digest = Some(entry.row.head.digest);
    let keys = store.keys(&run).await?;
    let mut check = LogCheck::new(run, &keys).erased(entry.erased);
    let mut blobs = Blobs::new(store);
    // The first end, which is all that an erased log says of its status.
    let mut end = None;
    // Where the digest that the user noted down was found.
    let mut noted = None;
    let mut pages = Pages::new(store, run, Seq::FIRST, entry.row.head.seq);
    loop {
        let page = pages.next().await?;
        if page.is_empty() {
            break;
        }
        for record in &page {
            check.check(record)?;
            blobs.check(record).await?;
            for spec in check.take_specs() {
                spec.check(&blobs.bytes(spec.seq, &spec.blob).await?)?;
            }
            end = end.or(status_of_end(&record.kind));
            if head == Some(record.digest) {
                noted = Some(record.seq);
            }
        }
    }
    let stored = entry.row.head;
    let folded = check.finish(&stored)?;
    check_noted(head, stored.digest, noted)?;
    match folded {
        Err(why) => {
            verdict.skipped = Some(why.to_string());
            check_erased_row(&entry, end)?;
        }
        Ok((row, _)) if row != entry.row => {
            return Err(Problem::of_run("the stored row is not the fold of its log").into());
        }
        Ok((_, results)) if results != entry.results => {
            let what = "the stored sum of results is not that of its log";
            return Err(Problem::of_run(what).into());
        }
        Ok(_) => {}
    }
    if let Some(what) = store.misfiled(&run).await? {
        return Err(Problem::of_run(what).into());
    }
    // What follows the head must have been appended since, which moves the head.
    let after = store.read(&run, stored.seq.next(), 1).await?;
    if let Some(extra) = after.items.first()
        && store.entry(&run).await?.row.head.seq < extra.seq
    {
        let what = format!("it follows the head, which is event {}", stored.seq);
        return Err(Problem::at(extra.seq, what).into());
    }
    Ok(())
}

/// The log ends with the digest that was noted down elsewhere.
fn check_noted(head: Option<Digest>, end: Digest, noted: Option<Seq>) -> Result<(), Problem> {
    let Some(head) = head.filter(|head| *head != end) else {
        return Ok(());
    };
    Err(Problem::of_run(match noted {
        Some(seq) => format!("the head {head} is that of event {seq}; the log has gone on"),
        None => format!("the log ends with {end}, not with {head}"),
    }))
}

fn status_of_end(kind: &str) -> Option<Status> {
    match kind {
        "run.completed" => Some(Status::Completed),
        "run.failed" => Some(Status::Failed),
        "run.cancelled" => Some(Status::Cancelled),
        _ => None,
    }
}

/// The row of an erased run says no more than is left of it, and ends as its headers do.
fn check_erased_row(entry: &Entry, end: Option<Status>) -> Result<(), Problem> {
    if !entry.erased {
        return Ok(());
    }
    let status = entry.row.status();
    if entry.row != entry.row.erased() || Some(status).filter(|it| it.is_terminal()) != end {
        let what = "the stored row is not what is left of an erased run";
        return Err(Problem::of_run(what));
    }
    Ok(())
}

/// The blobs that events refer to, and the conversation that they go on from.
struct Blobs<'a> {
    store: &'a dyn RunStore,
    /// Context nodes, and what was asked beside them, that were looked at.
    seen: HashSet<Digest>,
}

impl<'a> Blobs<'a> {
    fn new(store: &'a dyn RunStore) -> Self {
        Self {
            store,
            seen: HashSet::new(),
        }
    }

    /// Every blob that the body refers to is there and is what its digest says, and so is every context node
    /// before one of them.
    async fn check(&mut self, record: &Record) -> Result<(), Stop> {
        for reference in record.blobs() {
            self.bytes(record.seq, &reference.blob).await?;
        }
        let is_node = record.kind != "model.called";
        let mut next = record.node().map(|it| it.node);
        while let Some(digest) = next.take().filter(|digest| self.seen.insert(*digest)) {
            let bytes = self.bytes(record.seq, &digest).await?;
            next = is_node.then(|| previous_node(&bytes)).flatten();
        }
        Ok(())
    }

    async fn bytes(&self, seq: Seq, digest: &Digest) -> Result<Vec<u8>, Stop> {
        let what = match self.store.blob(digest).await {
            Ok(Some(bytes)) if Digest::of(&bytes) == *digest => return Ok(bytes),
            Ok(Some(_)) => format!("blob {digest} is not what was stored"),
            Ok(None) => format!("blob {digest} is missing"),
            Err(error @ Error::Corrupt { .. }) => with_sources(&error.into()),
            Err(error) => return Err(Stop::World(error)),
        };
        Err(Problem::at(seq, what).into())
    }
}

/// Checks a file of runs by itself; no store is needed.
fn check_file(name: &str, head: Option<Digest>, out: &mut Output) -> anyhow::Result<u8> {
    let file = carried::open(name)?;
    let mut verdicts = Vec::new();
    let held = file_verdicts(&file, head, &mut verdicts);
    let one = verdicts.len() == 1;
    for verdict in &verdicts {
        print(verdict, one, out)?;
    }
    match held {
        Ok(()) => {}
        Err(FileError::Problem { run, problem }) => {
            let verdict = Verdict {
                holds: false,
                seq: problem.seq,
                problem: Some(problem.what),
                ..Verdict::of(Some(run))
            };
            print(&verdict, one, out)?;
            return Ok(DOES_NOT_HOLD);
        }
        Err(
            error @ (FileError::Line { .. } | FileError::TooLarge { .. } | FileError::Damaged(_)),
        ) => {
            let verdict = Verdict {
                holds: false,
                problem: Some(error.to_string()),
                ..Verdict::of(None)
            };
            print(&verdict, one, out)?;
            return Ok(DOES_NOT_HOLD);
        }
        Err(error) => return Err(carried::refused(name, &error).into()),
    }
    let broken = verdicts.iter().any(|verdict| !verdict.holds);
    Ok(if broken { DOES_NOT_HOLD } else { 0 })
}

fn file_verdicts(
    file: &RunFile,
    head: Option<Digest>,
    verdicts: &mut Vec<Verdict>,
) -> Result<(), FileError> {
    let mut reading = file.read()?;
    while let Some(checked) = reading.check_next(None)? {
        let mut verdict = Verdict {
            events: checked.head.seq.0,
            head_digest: Some(checked.head.digest),
            skipped: checked.folded.err().map(|why| why.to_string()),
            ..Verdict::of(Some(checked.run))
        };
        // Of a reel it is the head of the run that it was made of, which comes first.
        let head = head.filter(|_| verdicts.is_empty());
        if let Err(problem) = check_noted(head, checked.head.digest, None) {
            verdict.holds = false;
            verdict.problem = Some(problem.what);
        }
        verdicts.push(verdict);
    }
    Ok(())
}

fn parse_digest(text: &str) -> Result<Digest, String> {
    // What `show` prints has the prefix; what people copy often has not.
    let full = if text.contains(':') {
        text.to_owned()
    } else {
        format!("blake3:{text}")
    };
    full.parse::<Digest>().map_err(|error| error.to_string())
}
