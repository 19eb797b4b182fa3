//! A reel: one or more logs in one compressed file, with a manifest in front that says what follows.
//!
//! Unpacked it is lines of JSON: the manifest, then each run's log as a `jsonl` export has it. There are no
//! names of files in it, so nothing can point anywhere.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};

use logreel_core::{Digest, Head, RunId};
use serde::{Deserialize, Serialize};

use super::error::FileError;

/// The version this build writes. It reads this one and every older one.
pub(super) const VERSION: u64 = 1;

/// How a zstd frame begins.
pub(crate) const MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// The largest window that is unpacked with: 8 MiB, more than the level we write with needs.
const WINDOW_LOG_MAX: u32 = 23;

/// Runs of one reel.
const RUNS_MAX: usize = 100_000;

/// What a file may unpack to: so much in any case, and so many times its size. Every event carries digests
/// that do not compress, so a log is far from either.
const UNPACKED_BYTES_MIN: u64 = 256 << 20;
const UNPACKED_TIMES: u64 = 1000;

/// What follows in the file.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Manifest {
    r#type: Reel,
    pub version: u64,
    /// Which build made it.
    pub logreel: String,
    #[serde(default)]
    pub runs: Vec<Listed>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reel {
    Reel,
}

/// A run as its manifest lists it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Listed {
    pub run: RunId,
    pub head: Head,
    pub events: u64,
    pub blobs: u64,
    /// How many bytes its lines have, and their digest.
    pub bytes: u64,
    pub digest: Digest,
}

impl Manifest {
    pub fn new(runs: Vec<Listed>) -> Self {
        Self {
            r#type: Reel::Reel,
            version: VERSION,
            logreel: env!("CARGO_PKG_VERSION").to_owned(),
            runs,
        }
    }

    /// Reads a manifest. One of a newer version need not have our fields.
    pub fn read(text: &str) -> Result<Self, serde_json::Error> {
        #[derive(Deserialize)]
        struct Version {
            r#type: Reel,
            version: u64,
        }
        let Version { r#type, version } = serde_json::from_str(text)?;
        if version > VERSION {
            let (logreel, runs) = (String::new(), Vec::new());
            return Ok(Self {
                r#type,
                version,
                logreel,
                runs,
            });
        }
        serde_json::from_str(text)
    }

    /// Whether it says what can be.
    pub fn check(&self) -> Result<(), FileError> {
        if self.version > VERSION {
            return Err(FileError::Newer {
                what: "a reel of version",
                found: self.version,
                known: VERSION,
            });
        }
        let refuse = |what: String| Err(FileError::line(1, what));
        if self.runs.is_empty() {
            return refuse("the manifest lists no run".to_owned());
        }
        if self.runs.len() > RUNS_MAX {
            return refuse(format!("the manifest lists more than {RUNS_MAX} runs"));
        }
        let mut seen = std::collections::HashSet::new();
        for listed in &self.runs {
            let run = listed.run;
            if !seen.insert(run) {
                return refuse(format!("the manifest lists {run} twice"));
            }
            if listed.events != listed.head.seq.0 {
                return refuse(format!(
                    "the manifest lists {} events of {run}, whose head is event {}",
                    listed.events, listed.head.seq
                ));
            }
        }
        Ok(())
    }
}

/// Packs what is written into it.
pub(super) fn pack<W: Write>(out: W) -> io::Result<zstd::Encoder<'static, W>> {
    let mut packing = zstd::Encoder::new(out, zstd::DEFAULT_COMPRESSION_LEVEL)?;
    packing.include_checksum(true)?;
    Ok(packing)
}

/// What a file unpacks to, up to a limit. What follows the frame is an error.
pub(super) fn unpack(file: File) -> Result<Box<dyn BufRead + Send>, FileError> {
    let bytes = file
        .metadata()
        .map_err(FileError::io("its size is unknown"))?
        .len();
    let max = UNPACKED_BYTES_MIN.max(bytes.saturating_mul(UNPACKED_TIMES));
    let mut decoder = zstd::Decoder::with_buffer(BufReader::with_capacity(1 << 17, file))
        .map_err(FileError::io("it cannot be unpacked"))?
        .single_frame();
    decoder
        .window_log_max(WINDOW_LOG_MAX)
        .map_err(FileError::io("it cannot be unpacked"))?;
    let unpacking = Unpacking {
        decoder: Some(decoder),
        left: max,
        max,
    };
    Ok(Box::new(BufReader::with_capacity(1 << 17, unpacking)))
}

/// What the system says is told as it is; anything else is about the bytes.
fn unpacked(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(_) => error,
        None => io::Error::other(FileError::Damaged(error.to_string())),
    }
}

struct Unpacking {
    decoder: Option<zstd::Decoder<'static, BufReader<File>>>,
    left: u64,
    max: u64,
}

impl Read for Unpacking {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(decoder) = &mut self.decoder else {
            return Ok(0);
        };
        let read = decoder.read(buffer).map_err(unpacked)?;
        if read == 0 && !buffer.is_empty() {
            // The frame is over, and so must the file be.
            if let Some(mut rest) = self.decoder.take().map(zstd::Decoder::finish)
                && !rest.fill_buf()?.is_empty()
            {
                let what = "something follows its end".to_owned();
                return Err(io::Error::other(FileError::Damaged(what)));
            }
            return Ok(0);
        }
        match self.left.checked_sub(read as u64) {
            Some(left) => self.left = left,
            None => return Err(io::Error::other(FileError::TooLarge { max: self.max })),
        }
        Ok(read)
    }
}
