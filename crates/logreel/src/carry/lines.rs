//! Reading lines of JSON that nobody vouches for: each at most so long, and all of them counted.

use std::io::{self, BufRead, Read as _};

use logreel_core::{Digest, Digester};

use super::error::FileError;

/// The longest line. Larger payloads than fit into one cannot be carried.
pub(super) const LINE_BYTES_MAX: u64 = 64 << 20;

/// The lines of a file.
pub(super) struct Lines {
    reader: Box<dyn BufRead + Send>,
    buffer: Vec<u8>,
    number: u64,
    /// Of the part that is being read.
    bytes: u64,
    digester: Option<Digester>,
}

/// What a part of a file was.
pub(super) struct Part {
    pub bytes: u64,
    pub digest: Option<Digest>,
}

impl Lines {
    pub fn new(reader: Box<dyn BufRead + Send>) -> Self {
        Self {
            reader,
            buffer: Vec::new(),
            number: 0,
            bytes: 0,
            digester: None,
        }
    }

    /// The number of the line that was read last.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// A part begins here, whose bytes are counted and, when asked for, hashed.
    pub fn begin_part(&mut self, hashed: bool) {
        self.bytes = 0;
        self.digester = hashed.then(Digester::default);
    }

    /// What was read since the part began.
    pub fn part(&self) -> Part {
        Part {
            bytes: self.bytes,
            digest: self.digester.as_ref().map(Digester::finish),
        }
    }

    /// Whether there is nothing more.
    pub fn is_at_end(&mut self) -> Result<bool, FileError> {
        let rest = self.reader.fill_buf().map_err(read_error)?;
        Ok(rest.is_empty())
    }

    /// The next line, as `parse` reads it; `None` at the end.
    ///
    /// A body may have line ends between its tokens, when a build that did not know better wrote it: a
    /// line that is no whole value goes on until it is one.
    pub fn next<T>(
        &mut self,
        parse: impl Fn(&str) -> Result<T, serde_json::Error>,
    ) -> Result<Option<T>, FileError> {
        self.buffer.clear();
        loop {
            if self.read_line()? == 0 {
                return Ok(None);
            }
            if !self.buffer.trim_ascii().is_empty() {
                break;
            }
            self.buffer.clear();
        }
        let mut nesting: Option<Nesting> = None;
        loop {
            let number = self.number;
            let invalid = |what: String| FileError::line(number, what);
            let is_whole = nesting.as_ref().is_none_or(Nesting::is_whole);
            if is_whole {
                let text = std::str::from_utf8(&self.buffer)
                    .map_err(|error| invalid(format!("it is not UTF-8: {error}")))?;
                match parse(text.trim_end_matches(['\n', '\r'])) {
                    Ok(value) => return Ok(Some(value)),
                    Err(error) if error.is_eof() && nesting.is_none() => {}
                    Err(error) => return Err(invalid(error.to_string())),
                }
                nesting = Some(Nesting::default());
            }
            let scanned = nesting.as_ref().map_or(0, |it| it.scanned);
            if let Some(nesting) = &mut nesting {
                nesting.scan(&self.buffer[scanned..]);
                if nesting.is_whole() {
                    continue;
                }
            }
            if self.read_line()? == 0 {
                return Err(FileError::line(self.number, "the file is cut short here"));
            }
        }
    }

    fn read_line(&mut self) -> Result<usize, FileError> {
        let room = LINE_BYTES_MAX - self.buffer.len() as u64;
        let before = self.buffer.len();
        let mut limited = (&mut self.reader).take(room);
        let read = limited
            .read_until(b'\n', &mut self.buffer)
            .map_err(read_error)?;
        if read == 0 && room > 0 {
            return Ok(0);
        }
        self.number += 1;
        if read as u64 == room && self.buffer.last() != Some(&b'\n') {
            let what = format!("it is longer than {LINE_BYTES_MAX} bytes");
            return Err(FileError::line(self.number, what));
        }
        self.bytes += read as u64;
        if let Some(digester) = &mut self.digester {
            digester.update(&self.buffer[before..]);
        }
        Ok(read)
    }
}

/// What the reader below says: our own limit, the decompressor, or the system.
fn read_error(error: io::Error) -> FileError {
    match error
        .get_ref()
        .and_then(|it| it.downcast_ref::<FileError>())
    {
        Some(limit) => limit.clone(),
        None => FileError::io("it cannot be read")(error),
    }
}

/// Where in a JSON value the bytes so far end.
#[derive(Default)]
struct Nesting {
    scanned: usize,
    depth: u64,
    in_string: bool,
    escaped: bool,
}

impl Nesting {
    fn scan(&mut self, bytes: &[u8]) {
        self.scanned += bytes.len();
        for byte in bytes {
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                b'{' | b'[' if !self.in_string => self.depth += 1,
                b'}' | b']' if !self.in_string => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
    }

    fn is_whole(&self) -> bool {
        self.scanned > 0 && self.depth == 0 && !self.in_string
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &'static str) -> Result<Vec<serde_json::Value>, FileError> {
        let mut lines = Lines::new(Box::new(text.as_bytes()));
        let mut values = Vec::new();
        while let Some(value) = lines.next(|text| serde_json::from_str(text))? {
            values.push(value);
        }
        Ok(values)
    }

    #[test]
    fn values_may_span_lines_and_end_without_one() {
        let values = read("{\"a\":1}\n\n{\"b\":{\n\"c\":\"}\\\"\"\n}}\n[2]").unwrap();
        assert_eq!(
            values,
            [
                serde_json::json!({"a": 1}),
                serde_json::json!({"b": {"c": "}\""}}),
                serde_json::json!([2])
            ]
        );
    }

    #[test]
    fn what_is_no_value_is_named_by_its_line() {
        for (text, line) in [
            ("{\"a\":1}\n{\"b\":\n", "line 2"),
            ("{}\n{}}\n", "line 2"),
            ("{\"a\":\"x\n\n", "line 2"),
            ("{]\n", "line 1"),
        ] {
            let error = read(text).unwrap_err().to_string();
            assert!(error.starts_with(line), "{text:?}: {error}");
        }
    }
}
