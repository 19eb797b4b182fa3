//! OTLP's protobuf, as far as traces need it: `ExportTraceServiceRequest`. The messages are few and only ever
//! written, so they are written by hand; an independent decoder reads them in the tests.
//!
//! Encoded requests may be concatenated: that is one request with the spans of both.

use logreel_core::Timestamp;

use super::span::{Attribute, Span, SpanKind};

/// The version of the conventions that names and attributes follow.
const SCHEMA: &str = "https://opentelemetry.io/schemas/1.41.0";

/// Who made the spans.
#[derive(Debug, Clone, PartialEq)]
pub struct Resource {
    /// Its attributes, `service.name` among them.
    pub attributes: Vec<(String, String)>,
}

impl Default for Resource {
    fn default() -> Self {
        Self {
            attributes: vec![("service.name".to_owned(), "logreel".to_owned())],
        }
    }
}

/// Spans as an `ExportTraceServiceRequest`.
pub fn encode(resource: &Resource, spans: &[Span]) -> Vec<u8> {
    let mut request = Message::default();
    request.message(1, |resource_spans| {
        resource_spans.message(1, |it| {
            for (key, value) in &resource.attributes {
                it.message(1, |pair| pair.pair(key, &Attribute::Text(value.clone())));
            }
        });
        resource_spans.message(2, |scope_spans| {
            scope_spans.message(1, |scope| {
                scope.text(1, "logreel");
                scope.text(2, env!("CARGO_PKG_VERSION"));
            });
            for span in spans {
                scope_spans.message(2, |it| it.span(span));
            }
            scope_spans.text(3, SCHEMA);
        });
    });
    request.0
}

/// A message on its way: fields are written as they come.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn span(&mut self, span: &Span) {
        self.bytes(1, &span.trace);
        self.bytes(2, &span.id);
        if let Some(parent) = &span.parent {
            self.bytes(4, parent);
        }
        self.text(5, &span.name);
        let kind = match span.kind {
            SpanKind::Internal => 1,
            SpanKind::Client => 3,
        };
        self.number(6, kind);
        self.fixed(7, nanos(span.start));
        self.fixed(8, nanos(span.end));
        for (key, value) in &span.attributes {
            self.message(9, |pair| pair.pair(key, value));
        }
        if span.failed {
            self.message(15, |status| {
                if let Some(message) = &span.message {
                    status.text(2, message);
                }
                status.number(3, 2);
            });
        }
    }

    fn pair(&mut self, key: &str, value: &Attribute) {
        self.text(1, key);
        self.message(2, |any| any.value(value));
    }

    fn value(&mut self, value: &Attribute) {
        match value {
            Attribute::Text(text) => self.text(1, text),
            Attribute::Number(number) => self.number(3, number.cast_unsigned()),
            Attribute::Double(number) => self.fixed(4, number.to_bits()),
            Attribute::Texts(texts) => self.message(5, |array| {
                for text in texts {
                    array.message(1, |any| any.text(1, text));
                }
            }),
        }
    }

    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push((number as u8 & 0x7f) | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn tag(&mut self, field: u32, wire_type: u32) {
        self.varint(u64::from(field << 3 | wire_type));
    }

    fn number(&mut self, field: u32, number: u64) {
        self.tag(field, 0);
        self.varint(number);
    }

    fn fixed(&mut self, field: u32, number: u64) {
        self.tag(field, 1);
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) {
        self.tag(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn text(&mut self, field: u32, text: &str) {
        self.bytes(field, text.as_bytes());
    }

    fn message(&mut self, field: u32, write: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        write(&mut inner);
        self.bytes(field, &inner.0);
    }
}

fn nanos(at: Timestamp) -> u64 {
    u64::try_from(at.as_micros())
        .unwrap_or_default()
        .saturating_mul(1000)
}
