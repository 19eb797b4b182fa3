//! `logreel verify`: is the log what was appended, and is the row what follows from it?

use std::collections::BTreeMap;

use logreel::core::codec::StoredBody;
use logreel::core::{DecodeError, Payload, Record, RunState, Tally, Verifier};
use logreel::store::Error;
use logreel::{Body, Digest, Entry, RunId, RunStore, Seq};
use serde::{Deserialize, Serialize};

use crate::error::with_sources;
use crate::name;
use crate::output::{Output, Paint};
use crate::reading::Pages;
use crate::store::Place;
use crate::text;

const DOES_NOT_HOLD: u8 = 1;

#[derive(clap::Args)]
pub struct Args {
    /// Which run; all of them without one
    run: Option<String>,
    /// The digest that the run's log must end with
    #[arg(long, value_name = "DIGEST", requires = "run", value_parser = parse_digest)]
    head: Option<Digest>,
}

/// What was found out about a run.
#[derive(Serialize)]
struct Verdict {
    run: RunId,
    holds: bool,
    events: u64,
    head_digest: Option<Digest>,
    /// The event that does not hold, when one can be named.
    seq: Option<Seq>,
    problem: Option<String>,
    /// What could not be checked, and why.
    skipped: Option<&'static str>,
}

/// Why a run does not hold.
struct Problem {
    seq: Option<Seq>,
    what: String,
}

impl Problem {
    fn at(seq: Seq, what: impl Into<String>) -> Self {
        Self {
            seq: Some(seq),
            what: what.into(),
        }
    }

    fn of_run(what: impl Into<String>) -> Self {
        Self {
            seq: None,
            what: what.into(),
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
    let opened = place.open().await?;
    let store = &opened.store;
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
    let (run, events) = (verdict.run, text::count(verdict.events, "event"));
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
    let mut verdict = Verdict {
        run,
        holds: true,
        events: 0,
        head_digest: None,
        seq: None,
        problem: None,
        skipped: None,
    };
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
    let mut checking = Checking {
        store,
        verifier: Verifier::new(&run, store.key(&run).await?),
        state: None,
        results: Tally::default(),
        skipped: entry
            .erased
            .then_some("erased: only the chain can be checked"),
        noted_head: None,
    };
    let mut pages = Pages::new(store, run, Seq::FIRST, entry.row.head.seq);
    loop {
        let page = pages.next().await?;
        if page.is_empty() {
            break;
        }
        for record in &page {
            checking.check(run, record, head).await?;
        }
    }
    verdict.skipped = checking.skipped;
    checking.finish(run, &entry, head).await
}

struct Checking<'s> {
    store: &'s dyn RunStore,
    verifier: Verifier,
    state: Option<RunState>,
    results: Tally,
    skipped: Option<&'static str>,
    /// Where the digest that the user noted down was found.
    noted_head: Option<Seq>,
}

impl Checking<'_> {
    async fn check(
        &mut self,
        run: RunId,
        record: &Record,
        head: Option<Digest>,
    ) -> Result<(), Stop> {
        if let Some(origin) = self.verifier.needs_key_of(record) {
            let key = self.store.key(&origin).await?;
            self.verifier.add_key(origin, key);
        }
        self.verifier
            .check(record)
            .map_err(|error| Problem::at(record.seq, error.to_string()))?;
        if head == Some(record.digest) {
            self.noted_head = Some(record.seq);
        }
        self.check_blobs(record).await?;
        if self.skipped.is_some() {
            return Ok(());
        }
        let event = match record.decode() {
            Ok(event) => event,
            Err(DecodeError::NewerFormat { .. }) => {
                self.skipped = Some("a newer logreel wrote it: only the chain was checked");
                return Ok(());
            }
            Err(error) => return Err(Problem::at(record.seq, with_sources(&error.into())).into()),
        };
        if let Body::Unknown(_) = event.body {
            self.skipped = Some("a newer logreel wrote it: only the chain was checked");
            return Ok(());
        }
        let before_end = self
            .state
            .as_ref()
            .is_none_or(|state| state.row.facts.ended.is_none());
        let folded = match &mut self.state {
            None => RunState::begin(run, &event).map(|state| self.state = Some(state)),
            Some(state) => state.apply(&event),
        };
        folded.map_err(|error| Problem::at(record.seq, error.to_string()))?;
        self.results.add(&event);
        let row = self.state.as_ref().map(|state| &state.row);
        if before_end
            && let Some(row) = row
            && let Some(ended) = &row.facts.ended
            && row.final_state_digest(&self.results.sum(), &ended.end) != ended.final_state_digest
        {
            let what = "its final_state_digest is not that of the state before it";
            return Err(Problem::at(record.seq, what).into());
        }
        Ok(())
    }

    /// Every blob that the body refers to is there and is what its digest says.
    async fn check_blobs(&self, record: &Record) -> Result<(), Stop> {
        let StoredBody::Text(text) = &record.body else {
            return Ok(());
        };
        let mut digests = Vec::new();
        if text.contains("\"blob\"") {
            digests = references(text);
        }
        if let ("message.added", Ok(Body::MessageAdded(added))) = (
            record.kind.as_str(),
            record.decode().map(|event| event.body),
        ) {
            digests.push(added.node);
        }
        for digest in digests {
            match self.store.blob(&digest).await? {
                Some(bytes) if Digest::of(&bytes) == digest => {}
                Some(_) => {
                    let what = format!("blob {digest} is not what was stored");
                    return Err(Problem::at(record.seq, what).into());
                }
                None => {
                    let what = format!("blob {digest} is missing");
                    return Err(Problem::at(record.seq, what).into());
                }
            }
        }
        Ok(())
    }

    async fn finish(self, run: RunId, entry: &Entry, head: Option<Digest>) -> Result<(), Stop> {
        let stored = entry.row.head;
        let last = self.verifier.head().seq;
        self.verifier
            .finish(&stored)
            .map_err(|error| Problem::at(last.next(), error.to_string()))?;
        if let Some(head) = head.filter(|head| *head != stored.digest) {
            let what = match self.noted_head {
                Some(seq) => format!("the head {head} is that of event {seq}; the log has gone on"),
                None => format!("the log ends with {}, not with {head}", stored.digest),
            };
            return Err(Problem::of_run(what).into());
        }
        if let (None, Some(state)) = (self.skipped, &self.state) {
            if state.row != entry.row {
                return Err(Problem::of_run("the stored row is not the fold of its log").into());
            }
            if self.results.sum() != entry.results {
                let what = "the stored sum of results is not that of its log";
                return Err(Problem::of_run(what).into());
            }
        }
        // What follows the head must have been appended since, which moves the head.
        let after = self.store.read(&run, stored.seq.next(), 1).await?;
        if let Some(extra) = after.items.first()
            && self.store.entry(&run).await?.row.head.seq < extra.seq
        {
            let what = format!("it follows the head, which is event {}", stored.seq);
            return Err(Problem::at(extra.seq, what).into());
        }
        Ok(())
    }
}

/// A body's own fields may be references, and what a resolution returned. Anything deeper is a user's
/// value, whatever it looks like.
fn references(body: &str) -> Vec<Digest> {
    #[derive(Deserialize)]
    struct Fields(BTreeMap<String, Payload>);
    let fields =
        |text: &str| serde_json::from_str(text).map_or_else(|_| BTreeMap::new(), |Fields(it)| it);
    let mut digests = Vec::new();
    for (name, value) in fields(body) {
        match value {
            Payload::Blob(reference) => digests.push(reference.blob),
            Payload::Inline(json) if name == "resolution" => {
                digests.extend(
                    fields(json.text())
                        .into_values()
                        .filter_map(|value| match value {
                            Payload::Blob(reference) => Some(reference.blob),
                            Payload::Inline(_) => None,
                        }),
                );
            }
            Payload::Inline(_) => {}
        }
    }
    digests
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
