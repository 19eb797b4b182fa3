//! Reading a long log from one end to the other, ahead of whoever folds it.
//!
//! Two threads read stretches of the log in turn while the caller takes them in order and decodes
//! them. A log only grows, so it does not matter at which moment each stretch is read; the first that
//! is not full is the end. Little is in memory at a time: a stretch is handed over page by page.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use logreel_core::codec::Stored;
use logreel_core::{Digest, Epoch, Record, RunId, Seq, Timestamp};

use super::failure::Halt;
use super::open::SqliteStore;
use super::read::{self, Sink};
use crate::Error;
use crate::store::{Each, SCANNED_AT_ONCE};

/// How many threads read.
const LANES: usize = 2;
/// How many pages wait for the caller in each lane.
const WAITING: usize = 1;

pub(super) fn scan(
    store: &SqliteStore,
    run: &RunId,
    from: Seq,
    each: &mut Each<'_>,
) -> Result<Seq, Error> {
    let mut next = from.max(Seq::FIRST);
    // Most logs are short, and no thread is worth its start for them.
    let first = read(store, run, next, SCANNED_AT_ONCE)?;
    if first.hand_over(each, &mut next)? == Flow::Ends {
        return Ok(next);
    }
    let lanes_fit = thread::available_parallelism().is_ok_and(|cores| cores.get() > 1);
    if !lanes_fit {
        loop {
            let page = read(store, run, next, SCANNED_AT_ONCE)?;
            if page.hand_over(each, &mut next)? == Flow::Ends {
                return Ok(next);
            }
        }
    }
    thread::scope(|scope| {
        let mut lanes: Vec<Receiver<Result<Page, Error>>> = Vec::new();
        for lane in 0..LANES {
            let (sender, receiver) = sync_channel(WAITING);
            let begin = Seq(next.0 + (lane * SCANNED_AT_ONCE) as u64);
            thread::Builder::new()
                .name("logreel-scan".to_owned())
                .spawn_scoped(scope, move || read_lane(store, run, begin, &sender))
                .map_err(|error| Error::unavailable(format!("no thread to read with: {error}")))?;
            lanes.push(receiver);
        }
        // Whoever returns from here drops the receivers, which ends the lanes.
        let mut stretch_end = next.0;
        for lane in lanes.iter().cycle() {
            stretch_end += SCANNED_AT_ONCE as u64;
            while next.0 < stretch_end {
                let gone = |_| Error::Bug("a thread that read the log panicked".to_owned());
                let page = lane.recv().map_err(gone)??;
                if page.hand_over(each, &mut next)? == Flow::Ends {
                    return Ok(next);
                }
            }
        }
        Ok(next)
    })
}

/// Reads every [`LANES`]th stretch until the log or the caller's interest ends.
fn read_lane(
    store: &SqliteStore,
    run: &RunId,
    mut begin: Seq,
    sender: &SyncSender<Result<Page, Error>>,
) {
    loop {
        let end = Seq(begin.0 + SCANNED_AT_ONCE as u64);
        let mut next = begin;
        while next < end {
            let left = usize::try_from(end.0 - next.0).unwrap_or(SCANNED_AT_ONCE);
            let page = read(store, run, next, left);
            let goes_on = page.as_ref().is_ok_and(|page| page.has_more);
            next = page.as_ref().map_or(next, |page| page.next);
            if sender.send(page).is_err() || !goes_on {
                return;
            }
        }
        begin = Seq(begin.0 + (LANES * SCANNED_AT_ONCE) as u64);
    }
}

fn read(store: &SqliteStore, run: &RunId, from: Seq, limit: usize) -> Result<Page, Error> {
    let mut copies = Copies::default();
    let (next, has_more) =
        store.reading(|conn| read::read_page(conn, run, from, limit, &mut copies))?;
    Ok(Page {
        copies,
        next,
        has_more,
    })
}

struct Page {
    copies: Copies,
    next: Seq,
    has_more: bool,
}

/// Whether more is to come.
#[derive(PartialEq, Eq)]
enum Flow {
    GoesOn,
    Ends,
}

impl Page {
    fn hand_over(&self, each: &mut Each<'_>, next: &mut Seq) -> Result<Flow, Error> {
        let mut begin = 0;
        for copy in &self.copies.copies {
            let event = self.copies.stored(copy, begin)?.decode()?;
            begin = copy.end;
            *next = event.seq.next();
            if each(event).is_break() {
                return Ok(Flow::Ends);
            }
        }
        Ok(match self.has_more {
            true => Flow::GoesOn,
            false => Flow::Ends,
        })
    }
}

/// Events as stored, their texts one after the other: what one thread makes and another drops should
/// be few pieces, or the two wait for each other in the allocator.
#[derive(Default)]
struct Copies {
    copies: Vec<Copied>,
    text: String,
}

struct Copied {
    seq: Seq,
    at: Timestamp,
    caller_at: Option<Timestamp>,
    epoch: Epoch,
    late: bool,
    format: u16,
    digest: Digest,
    /// Where in the text its kind ends and its body begins.
    body: usize,
    end: usize,
    is_erased: bool,
}

impl Copies {
    fn push(&mut self, stored: Stored<'_>) {
        self.text.push_str(stored.kind);
        let body = self.text.len();
        self.text.push_str(stored.body.unwrap_or_default());
        self.copies.push(Copied {
            seq: stored.seq,
            at: stored.at,
            caller_at: stored.caller_at,
            epoch: stored.epoch,
            late: stored.late,
            format: stored.format,
            digest: stored.digest,
            body,
            end: self.text.len(),
            is_erased: stored.body.is_none(),
        });
    }

    fn stored(&self, copy: &Copied, begin: usize) -> Result<Stored<'_>, Error> {
        let text = |from, to| {
            let text = self.text.get(from..to);
            text.ok_or_else(|| Error::Bug("a copied event has no text".to_owned()))
        };
        let body = text(copy.body, copy.end)?;
        Ok(Stored {
            seq: copy.seq,
            at: copy.at,
            caller_at: copy.caller_at,
            epoch: copy.epoch,
            late: copy.late,
            format: copy.format,
            kind: text(begin, copy.body)?,
            body: (!copy.is_erased).then_some(body),
            digest: copy.digest,
        })
    }
}

impl Sink for Copies {
    fn take(&mut self, stored: Stored<'_>, _: &rusqlite::Row<'_>) -> Result<(), Halt> {
        self.push(stored);
        Ok(())
    }

    fn take_record(&mut self, record: Record) -> Result<(), Halt> {
        self.push(record.stored());
        Ok(())
    }
}
