//! Server-sent events, as they come: bytes in, events out, wherever the bytes were cut.

/// A line longer than this is no answer of a model.
const LINE_MAX: usize = 16 << 20;

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Event {
    /// Its `event`; empty when it has none.
    pub(super) name: String,
    /// Its `data`, lines joined.
    pub(super) data: String,
}

/// The stream so far. An event that no empty line ended is none: the stream was cut in it.
#[derive(Debug, Default)]
pub(super) struct Parser {
    line: Vec<u8>,
    event: Event,
    has_data: bool,
    /// The last byte was a carriage return: a newline next belongs to it.
    after_return: bool,
    begun: bool,
}

/// A line that does not end.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a line of the stream is longer than {LINE_MAX} bytes")]
pub(super) struct LineTooLong;

impl Parser {
    /// Takes bytes in; the events that they complete.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Event>, LineTooLong> {
        let mut events = Vec::new();
        for &byte in bytes {
            let after_return = std::mem::replace(&mut self.after_return, byte == b'\r');
            match byte {
                b'\n' if after_return => {}
                b'\n' | b'\r' => events.extend(self.end_line()),
                _ if self.line.len() == LINE_MAX => return Err(LineTooLong),
                _ => self.line.push(byte),
            }
        }
        Ok(events)
    }

    fn end_line(&mut self) -> Option<Event> {
        let bytes = std::mem::take(&mut self.line);
        let text = String::from_utf8_lossy(&bytes);
        let mut line = text.as_ref();
        if !std::mem::replace(&mut self.begun, true) {
            line = line.trim_start_matches('\u{feff}');
        }
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            return std::mem::take(&mut self.has_data).then_some(event);
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.event.name),
            "data" => {
                if std::mem::replace(&mut self.has_data, true) {
                    self.event.data.push('\n');
                }
                self.event.data.push_str(value);
            }
            // Comments, ids and retry times.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STREAM: &str = "\u{feff}: hello\r\nevent: one\r\ndata: {\"a\":\ndata:1}\r\rid: 7\ndata\n\n\
        event: lost\n\ndata: größe – 漢字\r\n\r\n:\n\ndata: cut";

    fn all(pieces: &[&[u8]]) -> Vec<Event> {
        let mut parser = Parser::default();
        let events = pieces.iter().map(|it| parser.feed(it).unwrap());
        events.flatten().collect()
    }

    fn event(name: &str, data: &str) -> Event {
        Event {
            name: name.to_owned(),
            data: data.to_owned(),
        }
    }

    #[test]
    fn events_are_what_they_are_however_lines_end() {
        assert_eq!(
            all(&[STREAM.as_bytes()]),
            [
                event("one", "{\"a\":\n1}"),
                event("", ""),
                event("", "größe – 漢字")
            ]
        );
    }

    #[test]
    fn a_line_without_end_is_refused() {
        let mut parser = Parser::default();
        let piece = vec![b'x'; 1 << 20];
        let fed = (0..17).map(|_| parser.feed(&piece).map(drop));
        assert_eq!(fed.last(), Some(Err(LineTooLong)));
    }

    proptest! {
        #[test]
        fn where_the_bytes_are_cut_changes_nothing(
            mut cuts in prop::collection::vec(0..=STREAM.len(), 0..20),
        ) {
            cuts.push(STREAM.len());
            cuts.sort_unstable();
            let mut from = 0;
            let mut pieces = Vec::new();
            for cut in cuts {
                pieces.push(&STREAM.as_bytes()[from..cut]);
                from = cut;
            }
            prop_assert_eq!(all(&pieces), all(&[STREAM.as_bytes()]));
        }
    }
}
