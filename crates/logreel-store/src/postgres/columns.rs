//! Events as their table has them: field by field, and column by column when there are many.

use logreel_core::chain::Sealed;
use logreel_core::{FORMAT, Timestamp};

use super::failure::Halt;
use super::schema::CLOCK;
use super::writer::Tx;

/// How the answer to an append is found again: on the append's first event.
#[derive(Debug, Clone)]
pub(super) enum Mark {
    /// A driver's tag, or 0 for what the store itself appends.
    Tag(u64),
    /// Anyone else's append id, unique in the run. It is in a table of its own, and the event has the tag 0.
    Id(String),
}

/// An event on its way into the table.
pub(super) struct Fields<'a> {
    pub seq: i64,
    pub kind: &'a str,
    pub at: i64,
    pub caller_at: Option<i64>,
    pub epoch: i64,
    pub late: bool,
    pub format: i64,
    pub tag: Option<i64>,
    pub digest: &'a [u8],
    pub body: &'a str,
}

impl<'a> Fields<'a> {
    /// Of the events of one append.
    pub fn of(sealed: &'a [Sealed], mark: &'a Mark) -> impl Iterator<Item = Self> {
        let events = sealed.iter().enumerate();
        events.map(move |(index, Sealed { event, text })| {
            let tag = match mark {
                _ if index > 0 => None,
                Mark::Tag(tag) => Some(tag.cast_signed()),
                Mark::Id(_) => Some(0),
            };
            Self {
                seq: event.seq.0.cast_signed(),
                kind: event.body.kind(),
                at: event.at.as_micros(),
                caller_at: event.caller_at.map(Timestamp::as_micros),
                epoch: event.epoch.0.cast_signed(),
                late: event.late,
                format: i64::from(FORMAT),
                tag,
                digest: event.digest.as_bytes(),
                body: text,
            }
        })
    }
}

/// Many events.
#[derive(Debug, Default)]
pub(super) struct Columns<'a> {
    pub seq: Vec<i64>,
    pub kind: Vec<&'a str>,
    pub at: Vec<i64>,
    pub caller_at: Vec<Option<i64>>,
    pub epoch: Vec<i64>,
    pub late: Vec<bool>,
    pub format: Vec<i64>,
    pub tag: Vec<Option<i64>>,
    pub digest: Vec<&'a [u8]>,
    pub body: Vec<&'a str>,
}

impl<'a> Columns<'a> {
    /// Of the events of one append.
    pub fn of(sealed: &'a [Sealed], mark: &'a Mark) -> Self {
        let mut columns = Self::default();
        for event in Fields::of(sealed, mark) {
            columns.add(event);
        }
        columns
    }

    pub fn add(&mut self, event: Fields<'a>) {
        self.seq.push(event.seq);
        self.kind.push(event.kind);
        self.at.push(event.at);
        self.caller_at.push(event.caller_at);
        self.epoch.push(event.epoch);
        self.late.push(event.late);
        self.format.push(event.format);
        self.tag.push(event.tag);
        self.digest.push(event.digest);
        self.body.push(event.body);
    }

    /// Writes them as the first of a run.
    pub async fn insert(&self, tx: &Tx, id: i64) -> Result<(), Halt> {
        let sql = format!(
            "INSERT INTO events (run, seq, kind, at, caller_at, epoch, late, format, tag, digest,
              body, stored_at)
            SELECT $1::int8, e.*, greatest({CLOCK}, $12::int8)
            FROM unnest($2::int8[], $3::text[], $4::int8[], $5::int8[], $6::int8[],
              $7::bool[], $8::int8[], $9::int8[], $10::bytea[], $11::text[]) e"
        );
        tx.exec(
            &sql,
            &[
                &id,
                &self.seq,
                &self.kind,
                &self.at,
                &self.caller_at,
                &self.epoch,
                &self.late,
                &self.format,
                &self.tag,
                &self.digest,
                &self.body,
                &tx.shared.clock.floor(),
            ],
        )
        .await?;
        Ok(())
    }
}
