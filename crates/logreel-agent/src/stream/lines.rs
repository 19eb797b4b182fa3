//! Lines out of bytes that come in any pieces.

use logreel::core::{Blob, RunState};
use logreel::{Body, Json};

use super::{Format, LINE_BYTES_MAX, StreamReader, Understood};
use crate::price::Prices;
use crate::recorded::RecordedText;
use crate::redact::Redactor;

/// What a program prints on stdout, understood line by line as it comes.
pub struct StreamLines {
    reader: StreamReader,
    begun: Vec<u8>,
    /// For what is no line of text.
    raw: RecordedText,
}

/// What can be recorded.
#[derive(Debug, Default)]
pub struct Said {
    /// The facts.
    pub bodies: Vec<Body>,
    /// What they need beside them.
    pub blobs: Vec<Blob>,
}

impl Said {
    fn add(&mut self, understood: Understood) {
        self.bodies.extend(understood.bodies);
        self.blobs.extend(understood.blobs);
    }
}

impl StreamLines {
    /// For this format.
    pub fn new(format: &Format, redactor: &Redactor, prices: &Prices) -> Self {
        Self {
            reader: StreamReader::new(format, redactor.clone(), prices.clone()),
            begun: Vec::new(),
            raw: RecordedText::new("stdout", redactor.clone()),
        }
    }

    /// The run has a log already; see [`StreamReader::go_on`].
    pub fn go_on(&mut self, state: &RunState) {
        self.reader.go_on(state);
    }

    /// Bytes came; gives what the lines that they end say.
    pub fn push(&mut self, bytes: &[u8]) -> Said {
        let mut said = Said::default();
        let mut rest = bytes;
        while let Some(at) = rest.iter().position(|byte| *byte == b'\n') {
            self.begun.extend_from_slice(&rest[..at]);
            rest = &rest[at + 1..];
            self.line(&mut said, true);
        }
        self.begun.extend_from_slice(rest);
        if self.begun.len() > LINE_BYTES_MAX {
            let begun = std::mem::take(&mut self.begun);
            said.bodies
                .extend(self.raw.push(&begun).into_iter().map(Body::from));
        }
        said
    }

    /// Nothing more comes.
    pub fn finish(&mut self) -> Said {
        let mut said = Said::default();
        if !self.begun.is_empty() {
            self.line(&mut said, false);
        }
        said.bodies
            .extend(self.raw.finish().into_iter().map(Body::from));
        said.add(self.reader.finish());
        said
    }

    fn line(&mut self, said: &mut Said, ended: bool) {
        let mut line = std::mem::take(&mut self.begun);
        match std::str::from_utf8(&line) {
            Ok(text) => said.add(self.reader.line(text)),
            Err(_) => {
                self.reader.no_text();
                if ended {
                    line.push(b'\n');
                }
                let mut facts = self.raw.push(&line);
                facts.extend(self.raw.finish());
                said.bodies.extend(facts.into_iter().map(Body::from));
            }
        }
    }

    /// What the agent said in the end.
    pub fn answer(&self) -> Option<&Json> {
        self.reader.answer()
    }

    /// What it says went wrong.
    pub fn failure(&self) -> Option<&str> {
        self.reader.failure()
    }

    /// The conversation's id, as the agent has it.
    pub fn session(&self) -> Option<&str> {
        self.reader.session()
    }

    /// How many lines came, and how many of them were not understood.
    pub fn counts(&self) -> (u64, u64) {
        self.reader.counts()
    }
}
