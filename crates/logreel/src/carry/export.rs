//! Runs on their way out of a store.

use std::collections::HashSet;
use std::io::{self, Write};

use logreel_core::event::Relation;
use logreel_core::{Digest, Digester, FORMAT, Head, Outside, RunId, RunKey, Seq};
use logreel_store::{Entry, Filter, RunStore};

use super::error::FileError;
use super::file::{BLOB_BYTES_MAX, previous_node};
use super::jsonl::{self, LogHeader};
use super::reel::{self, Listed, Manifest};
use crate::Error;
use crate::engine::{Engine, Inner};
use crate::journal::PAGE;

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    /// The runs, and how far their logs reached; the one that was asked for comes first.
    pub runs: Vec<(RunId, Head)>,
    /// Events of all of them.
    pub events: u64,
    /// Blobs that they refer to.
    pub blobs: u64,
}

impl Engine {
    /// Writes a run's log as lines of JSON that can be checked alone, and imported elsewhere. A fork comes
    /// whole, with the events that it shares.
    pub async fn export_jsonl(
        &self,
        run: &RunId,
        out: &mut (dyn Write + Send),
    ) -> Result<Exported, Error> {
        let store = &*self.0.store;
        let head = store.entry(run).await?.row.head;
        let written = write_log(store, run, head, out).await?;
        out.flush().map_err(write_error)?;
        Ok(Exported {
            runs: vec![(*run, head)],
            events: head.seq.0,
            blobs: written.blobs,
        })
    }

    /// Writes a run and everything below it into one compressed file, which goes on elsewhere once it is
    /// imported and taken over.
    pub async fn export_reel(
        &self,
        run: &RunId,
        out: &mut (dyn Write + Send),
    ) -> Result<Exported, Error> {
        let store = &*self.0.store;
        let runs = self.0.with_descendants(run).await?;
        // Once to know what will follow the manifest, and once to write it: what is below the heads never
        // changes.
        let mut listed = Vec::with_capacity(runs.len());
        for (run, head) in &runs {
            let mut sink = Hashing::default();
            let written = write_log(store, run, *head, &mut sink).await?;
            listed.push(Listed {
                run: *run,
                head: *head,
                events: head.seq.0,
                blobs: written.blobs,
                bytes: sink.bytes,
                digest: sink.digester.finish(),
            });
        }
        let exported = Exported {
            runs: runs.clone(),
            events: listed.iter().map(|it| it.events).sum(),
            blobs: listed.iter().map(|it| it.blobs).sum(),
        };
        let manifest = Manifest::new(listed);
        let text = serde_json::to_string(&manifest).expect("ids and digests always serialize");
        let mut packing = reel::pack(out).map_err(write_error)?;
        writeln!(packing, "{text}").map_err(write_error)?;
        for (run, head) in &runs {
            write_log(store, run, *head, &mut packing).await?;
        }
        let out = packing.finish().map_err(write_error)?;
        out.flush().map_err(write_error)?;
        Ok(exported)
    }

    /// Whether the run may be [moved away](Engine::move_away) now: it has not ended, is nobody's child, and
    /// neither it nor anyone below it is at work.
    pub async fn check_movable(&self, run: &RunId) -> Result<(), Error> {
        let entry = self.0.store.entry(run).await?;
        self.0.check_movable(&entry).await
    }

    /// Ends a run here that goes on elsewhere, once what was exported of it is safe: with a
    /// `run.cancelled` of reason `moved`, unless it went on since.
    pub async fn move_away(&self, exported: &Exported) -> Result<Entry, Error> {
        let Some((run, head)) = exported.runs.first() else {
            return Err(logreel_store::Error::Bug("nothing was exported".to_owned()).into());
        };
        let entry = self.0.store.entry(run).await?;
        self.0.check_movable(&entry).await?;
        let command = Outside::Move { expect: *head };
        let id = self.0.draw_append_id();
        match self.0.command(run, id, command, Vec::new()).await {
            Ok(done) => Ok(done.entry),
            Err(Error::Rejected {
                why: logreel_core::Rejected::WentOn,
                ..
            }) => Err(Error::WentOn(*run)),
            Err(error) => Err(error),
        }
    }
}

impl Inner {
    async fn check_movable(&self, entry: &Entry) -> Result<(), Error> {
        let run = entry.row.run;
        if entry.row.status().is_terminal() {
            let status = entry.row.status();
            return Err(Error::Ended { run, status });
        }
        if entry.read_only {
            return Err(logreel_store::Error::ReadOnly(run).into());
        }
        // Alone it could go on nowhere, and here its parent would see it cancelled.
        let parent = entry.row.facts.parent.as_ref();
        if let Some(parent) = parent.filter(|parent| parent.relation == Relation::Child) {
            let parent = parent.run;
            return Err(Error::PartOf { run, parent });
        }
        if let Some(driver) = entry.driver.as_ref().filter(|driver| driver.alive) {
            let by = driver.owner.to_string();
            return Err(Error::Driven { run, by });
        }
        match self.live_children(&run).await?.first() {
            Some(child) => Err(Error::HasChildren { run, child: *child }),
            None => Ok(()),
        }
    }

    /// The run and everyone below it, with how far their logs reach now. A child that its parent's log
    /// does not know of yet is left out.
    async fn with_descendants(&self, run: &RunId) -> Result<Vec<(RunId, Head)>, Error> {
        let mut runs = vec![(*run, self.store.entry(run).await?.row.head)];
        let mut at = 0;
        while let Some((parent, head)) = runs.get(at).copied() {
            at += 1;
            for child in self.children(&parent).await? {
                let known = child.row.facts.parent.as_ref();
                // Of an erased one nothing can go on, and what is left of it is no log to import.
                if known.is_some_and(|it| it.seq <= head.seq) && !child.erased {
                    runs.push((child.row.run, child.row.head));
                }
            }
        }
        Ok(runs)
    }

    /// The runs that this one started, oldest first.
    pub(super) async fn children(&self, run: &RunId) -> Result<Vec<Entry>, Error> {
        let filter = Filter {
            parent: Some(*run),
            ..Filter::default()
        };
        let (mut children, mut cursor) = (Vec::new(), None);
        loop {
            let page = self.store.list(&filter, cursor.as_ref(), 100).await?;
            children.extend(page.items.into_iter().filter(|entry| {
                let parent = entry.row.facts.parent.as_ref();
                parent.is_some_and(|parent| parent.relation == Relation::Child)
            }));
            cursor = page.next;
            if cursor.is_none() {
                children.reverse();
                return Ok(children);
            }
        }
    }
}

struct Written {
    blobs: u64,
}

/// Writes the log up to `head`: its header, its events, and the blobs in the order in which the log first
/// refers to them, so that the same log is always the same bytes.
async fn write_log(
    store: &dyn RunStore,
    run: &RunId,
    head: Head,
    out: &mut (dyn Write + Send),
) -> Result<Written, Error> {
    let known = store.keys(run).await?;
    let key_of = |writer: &RunId| -> Option<RunKey> {
        let found = known.iter().find(|(of, _)| of == writer);
        found.and_then(|(_, key)| *key)
    };
    let keys = known.iter().filter_map(|(run, key)| Some((*run, (*key)?)));
    let header = LogHeader {
        format: u64::from(FORMAT),
        run: *run,
        keys: keys.collect(),
        head,
    };
    writeln!(out, "{}", header.write()).map_err(write_error)?;
    let mut line = String::new();
    let mut referred = Referred::default();
    let mut next = Seq::FIRST;
    while next <= head.seq {
        let left = usize::try_from(head.seq.0 - next.0 + 1).unwrap_or(PAGE);
        let page = store.read(run, next, PAGE.min(left)).await?;
        if page.items.is_empty() {
            let what = format!("the log of {run} ends before event {next}");
            return Err(logreel_store::Error::corrupt(what).into());
        }
        for record in &page.items {
            let key = key_of(&record.origin.unwrap_or(*run));
            jsonl::write_event(&mut line, run, record, key.as_ref());
            line.push('\n');
            out.write_all(line.as_bytes()).map_err(write_error)?;
            referred.add(record.blobs().into_iter().map(|it| it.blob));
            if let Some(node) = record.node() {
                referred.add([node.node]);
                referred.nodes.insert(node.node);
            }
        }
        next = page.next;
    }
    let mut at = 0;
    while let Some(digest) = referred.order.get(at).copied() {
        at += 1;
        let bytes = store.blob(&digest).await?;
        let missing =
            || logreel_store::Error::corrupt(format!("blob {digest} of {run} is missing"));
        let bytes = bytes.ok_or_else(missing)?;
        if bytes.len() as u64 > BLOB_BYTES_MAX {
            return Err(logreel_store::Error::TooLarge {
                bytes: bytes.len() as u64,
                max: BLOB_BYTES_MAX,
            }
            .into());
        }
        if referred.nodes.contains(&digest)
            && let Some(previous) = previous_node(&bytes)
        {
            referred.add([previous]);
            referred.nodes.insert(previous);
        }
        jsonl::write_blob(&mut line, &digest, &bytes);
        line.push('\n');
        out.write_all(line.as_bytes()).map_err(write_error)?;
    }
    Ok(Written { blobs: at as u64 })
}

/// Blobs in the order in which they are first referred to.
#[derive(Default)]
struct Referred {
    order: Vec<Digest>,
    known: HashSet<Digest>,
    /// Which of them are context nodes.
    nodes: HashSet<Digest>,
}

impl Referred {
    fn add(&mut self, digests: impl IntoIterator<Item = Digest>) {
        for digest in digests {
            if self.known.insert(digest) {
                self.order.push(digest);
            }
        }
    }
}

/// Keeps nothing but the digest of what is written.
#[derive(Default)]
struct Hashing {
    digester: Digester,
    bytes: u64,
}

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.digester.update(bytes);
        self.bytes += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_error(error: io::Error) -> FileError {
    FileError::io("it cannot be written")(error)
}
