//! A file of runs, read from the beginning as often as needed: once to check all of it, and once more to
//! take it in.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{BufRead, BufReader, Read as _, Seek as _};
use std::path::Path;

use logreel_core::codec::{NodeRef, StoredBody};
use logreel_core::meaning::ResultSet;
use logreel_core::{Blob, Digest, FORMAT, Head, Record, Row, RunId, RunKey, Seq};
use logreel_store::ImportedBlob;

use super::check::{LogCheck, Problem, Unfolded};
use super::error::FileError;
use super::jsonl::{self, BlobLine, EventLine, Line, LogHeader};
use super::lines::{LINE_BYTES_MAX, Lines};
use super::reel::{self, Listed, Manifest};

/// A file of runs: a `jsonl` export or a `reel`.
#[derive(Debug)]
pub struct RunFile {
    file: File,
    kind: Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Jsonl,
    Reel,
}

/// A run of a file whose log holds.
#[derive(Debug)]
pub struct CheckedRun {
    /// Which run.
    pub run: RunId,
    /// Where its log ends.
    pub head: Head,
    /// How many blobs it refers to.
    pub blobs: u64,
    /// What the log folds to, or why that is not known.
    pub folded: Result<(Row, ResultSet), Unfolded>,
    /// The keys of everyone whose events the log has.
    pub keys: Vec<(RunId, RunKey)>,
    /// The digest of the event that was asked about, when the log reaches that far.
    pub asked: Option<Digest>,
}

impl RunFile {
    /// Opens a file and looks at how it begins.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, FileError> {
        let file = File::open(path).map_err(FileError::io("it cannot be read"))?;
        Self::of(file)
    }

    /// The same with a file that is open already. It must be one that can be read more than once.
    pub fn of(mut file: File) -> Result<Self, FileError> {
        let failed = |error| FileError::io("it cannot be read")(error);
        file.rewind().map_err(failed)?;
        let mut first = Vec::new();
        (&file).take(4096).read_to_end(&mut first).map_err(failed)?;
        let kind = if first.starts_with(&reel::MAGIC) {
            Kind::Reel
        } else if is_log(&first) {
            Kind::Jsonl
        } else {
            return Err(FileError::Unknown);
        };
        Ok(Self { file, kind })
    }

    /// Reads it from the beginning. One at a time: they share the file's position.
    pub fn read(&self) -> Result<FileReading, FileError> {
        let failed = |error| FileError::io("it cannot be read")(error);
        let mut file = self.file.try_clone().map_err(failed)?;
        file.rewind().map_err(failed)?;
        let reader: Box<dyn BufRead + Send> = match self.kind {
            Kind::Jsonl => Box::new(BufReader::with_capacity(1 << 17, file)),
            Kind::Reel => reel::unpack(file)?,
        };
        let mut lines = Lines::new(reader);
        let listed = match self.kind {
            Kind::Jsonl => None,
            Kind::Reel => {
                let manifest = lines.next(Manifest::read)?;
                let empty = || FileError::line(1, "the reel is empty");
                let manifest = manifest.ok_or_else(empty)?;
                manifest.check()?;
                Some(manifest.runs.into_iter())
            }
        };
        Ok(FileReading {
            lines,
            listed,
            began: false,
            section: None,
        })
    }
}

/// Whether the first line is the header of a log, as far as can be seen in its first bytes.
fn is_log(first: &[u8]) -> bool {
    let text = String::from_utf8_lossy(first);
    let compact: String = text
        .chars()
        .filter(|c| !c.is_whitespace())
        .take(64)
        .collect();
    // Ours begins with its type; whoever wrote it otherwise still says so early.
    compact.starts_with('{') && compact.contains("\"type\":\"log\"")
}

/// A file that is being read, run by run.
pub struct FileReading {
    lines: Lines,
    /// The runs of a reel that are yet to come.
    listed: Option<std::vec::IntoIter<Listed>>,
    /// The only log of a `jsonl` has begun.
    began: bool,
    section: Option<Section>,
}

/// The log that is being read.
struct Section {
    header: LogHeader,
    listed: Option<Listed>,
    events: u64,
    blobs: u64,
    expected: Expected,
}

/// The blobs that must come: those that events refer to, and the context nodes that these follow.
#[derive(Default)]
struct Expected {
    open: HashMap<Digest, Option<u64>>,
    /// Which of them are nodes, and what an event says they follow.
    nodes: HashMap<Digest, Option<Digest>>,
    seen: HashSet<Digest>,
}

impl FileReading {
    /// Whose log comes next; `None` after the last.
    pub fn peek_run(&mut self) -> Result<Option<RunId>, FileError> {
        if self.section.is_none() {
            self.begin()?;
        }
        Ok(self.section.as_ref().map(|section| section.header.run))
    }

    /// Checks the next run of the file, all of it; `None` after the last. `ask` is an event whose digest is
    /// wanted.
    pub fn check_next(&mut self, ask: Option<Seq>) -> Result<Option<CheckedRun>, FileError> {
        if self.peek_run()?.is_none() {
            return Ok(None);
        }
        let Some(header) = self.section.as_ref().map(|section| section.header.clone()) else {
            return Ok(None);
        };
        let run = header.run;
        let of_run = |problem| FileError::of(run, problem);
        let keys: Vec<_> = header
            .keys
            .iter()
            .map(|(run, key)| (*run, Some(*key)))
            .collect();
        let mut check = LogCheck::new(run, &keys);
        let mut asked = None;
        while let Some(line) = self.next_event()? {
            check.check(&line.record).map_err(of_run)?;
            check_body_digest(&header, &line).map_err(of_run)?;
            if ask == Some(line.record.seq) {
                asked = Some(line.record.digest);
            }
        }
        let specs = check.take_specs();
        let folded = check.finish(&header.head).map_err(of_run)?;
        let mut blobs = 0;
        while let Some(imported) = self.next_blob()? {
            blobs += 1;
            let blob = &imported.blob;
            for spec in specs.iter().filter(|spec| spec.blob == blob.digest()) {
                spec.check(blob.bytes()).map_err(of_run)?;
            }
        }
        self.end()?;
        Ok(Some(CheckedRun {
            run,
            head: header.head,
            blobs,
            folded,
            keys: header.keys,
            asked,
        }))
    }

    /// Begins with the next run; `None` when there is none.
    fn begin(&mut self) -> Result<(), FileError> {
        let listed = match &mut self.listed {
            None if std::mem::replace(&mut self.began, true) => return Ok(()),
            None => None,
            Some(runs) => match runs.next() {
                Some(listed) => Some(listed),
                None if self.lines.is_at_end()? => return Ok(()),
                None => {
                    let what = "the reel goes on after its last run";
                    return Err(FileError::line(self.lines.number() + 1, what));
                }
            },
        };
        self.lines.begin_part(listed.is_some());
        let header = match self.next_line()? {
            Some(Line::Log(header)) => header,
            Some(_) => return Err(self.invalid("a log begins with a line of type log")),
            None => return Err(self.invalid("the file is cut short here")),
        };
        if !header.is_known() {
            return Err(FileError::Newer {
                what: "a log of format",
                found: header.format,
                known: u64::from(FORMAT),
            });
        }
        if let Some(listed) = &listed
            && (listed.run, listed.head) != (header.run, header.head)
        {
            let what = format!("the manifest lists {} here, with another head", listed.run);
            return Err(self.invalid(what));
        }
        self.section = Some(Section {
            header,
            listed,
            events: 0,
            blobs: 0,
            expected: Expected::default(),
        });
        Ok(())
    }

    /// The next event of the run; `None` after the one that its head names.
    pub(super) fn next_event(&mut self) -> Result<Option<EventLine>, FileError> {
        let (run, last, read) = match &self.section {
            Some(section) => (section.header.run, section.header.head.seq, section.events),
            None => return Ok(None),
        };
        if read >= last.0 {
            return Ok(None);
        }
        loop {
            let line = match self.next_line()? {
                Some(Line::Event(line)) => line,
                Some(Line::Other) if self.listed.is_none() => continue,
                Some(Line::Blob(_) | Line::Log(_) | Line::Other) | None => {
                    let what = format!("the log ends here, but its head is event {last}");
                    return Err(FileError::of(run, Problem::at(Seq(read + 1), what)));
                }
            };
            if line.run != run {
                let what = format!("it is of {}", line.run);
                return Err(FileError::of(run, Problem::at(Seq(read + 1), what)));
            }
            if let Some(section) = &mut self.section {
                section.events += 1;
                section.expected.add(&line.record);
            }
            return Ok(Some(*line));
        }
    }

    /// The next blob of the run, checked; `None` after the last.
    pub(super) fn next_blob(&mut self) -> Result<Option<ImportedBlob>, FileError> {
        loop {
            let is_over = match &self.section {
                None => true,
                Some(Section {
                    listed: Some(listed),
                    blobs,
                    ..
                }) => *blobs >= listed.blobs,
                Some(_) => false,
            };
            if is_over {
                return Ok(None);
            }
            let line = match self.next_line()? {
                Some(Line::Blob(line)) => line,
                Some(Line::Other) if self.listed.is_none() => continue,
                None if self.listed.is_none() => return Ok(None),
                Some(Line::Event(line)) => {
                    let what = "it follows the event that the head names".to_owned();
                    let problem = Problem::at(line.record.seq, what);
                    return Err(FileError::of(line.run, problem));
                }
                Some(Line::Log(_)) => return Err(self.invalid("a second log begins here")),
                Some(Line::Other) | None => {
                    return Err(self.invalid("the manifest lists more blobs"));
                }
            };
            let number = self.lines.number();
            let Some(section) = &mut self.section else {
                return Ok(None);
            };
            section.blobs += 1;
            let taken = section.expected.take(line);
            return taken
                .map(Some)
                .map_err(|what| FileError::line(number, what));
        }
    }

    /// Everything that must be there was there, and nothing else.
    pub(super) fn end(&mut self) -> Result<(), FileError> {
        let Some(section) = self.section.take() else {
            return Ok(());
        };
        let run = section.header.run;
        if let Some(digest) = section.expected.open.keys().min() {
            let what = format!("blob {digest} is missing");
            return Err(FileError::of(run, Problem::of_run(what)));
        }
        if let Some(listed) = section.listed {
            let part = self.lines.part();
            if (part.bytes, part.digest) != (listed.bytes, Some(listed.digest)) {
                let what = "its part of the reel is not what the manifest says";
                return Err(FileError::of(run, Problem::of_run(what)));
            }
        }
        Ok(())
    }

    fn next_line(&mut self) -> Result<Option<Line>, FileError> {
        self.lines.next(jsonl::read_line)
    }

    fn invalid(&self, what: impl Into<String>) -> FileError {
        FileError::line(self.lines.number(), what)
    }
}

impl Expected {
    fn add(&mut self, record: &Record) {
        for reference in record.blobs() {
            self.open.insert(reference.blob, Some(reference.bytes));
        }
        if let Some(NodeRef { node, previous }) = record.node() {
            self.open.entry(node).or_insert(None);
            self.nodes.insert(node, previous);
        }
    }

    fn take(&mut self, line: BlobLine) -> Result<ImportedBlob, String> {
        let BlobLine { digest, bytes } = line;
        if self.seen.contains(&digest) {
            return Err(format!("blob {digest} comes twice"));
        }
        let Some(length) = self.open.remove(&digest) else {
            return Err(format!("no event refers to blob {digest}"));
        };
        if length.is_some_and(|length| length != bytes.len() as u64) {
            return Err(format!(
                "blob {digest} has another length than its event says"
            ));
        }
        let blob = Blob::new(bytes);
        if blob.digest() != digest {
            return Err(format!("blob {digest} is not what its digest says"));
        }
        self.seen.insert(digest);
        let mut previous = None;
        if let Some(said) = self.nodes.get(&digest) {
            previous = previous_node(blob.bytes()).or(*said);
            if let Some(before) = previous.filter(|before| !self.seen.contains(before)) {
                self.open.entry(before).or_insert(None);
                self.nodes.entry(before).or_insert(None);
            }
        }
        Ok(ImportedBlob { blob, previous })
    }
}

/// The context node before this one, whose bytes these are.
pub fn previous_node(bytes: &[u8]) -> Option<Digest> {
    #[derive(serde::Deserialize)]
    struct Node {
        previous: Option<Digest>,
    }
    serde_json::from_slice::<Node>(bytes).ok()?.previous
}

/// A line says the digest of its body too, and must not lie about it.
fn check_body_digest(header: &LogHeader, line: &EventLine) -> Result<(), Problem> {
    let (Some(said), StoredBody::Text(text)) = (line.body_digest, &line.record.body) else {
        return Ok(());
    };
    let writer = line.record.origin.unwrap_or(header.run);
    let key = header.keys.iter().find(|(run, _)| *run == writer);
    match key.map(|(_, key)| key.body_digest(text)) {
        Some(digest) if digest == said => Ok(()),
        _ => {
            let what = "its body_digest is not that of its body";
            Err(Problem::at(line.record.seq, what))
        }
    }
}

/// The largest blob that fits into a line.
pub(super) const BLOB_BYTES_MAX: u64 = LINE_BYTES_MAX / 4 * 3 - 1024;
