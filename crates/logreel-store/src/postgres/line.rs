//! Appends as statements. Each is a transaction of its own: the narrow rows move on where head and epoch are as
//! expected, and only for those are there events. A refusal is a row less, never an error (SEMANTICS 5).

use std::sync::Arc;

use logreel_core::chain::Sealed;
use logreel_core::{Epoch, Head};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Statement};

use super::columns::{Columns, Fields, Mark};
use super::failure::Halt;
use super::rows::{stored_results, to_text};
use super::writer::Tx;
use crate::tip::Tip;

/// What one append writes.
#[derive(Debug)]
pub(super) struct Line {
    pub run: i64,
    event_epoch: i64,
    head: Head,
    updated_at: i64,
    results: Option<[u8; 32]>,
    pulse: String,
    before: Head,
    epoch: i64,
    events: Arc<Vec<Sealed>>,
    mark: Mark,
    /// Below which the stamp does not fall (`Clock::floor`).
    floor: i64,
}

impl Line {
    /// One event: what a step costs. Head, time and epoch of the run are then those of the event.
    pub const SQL: &str = "WITH head AS (
          UPDATE live SET event_epoch = $2, head_seq = $3, head_digest = $4, updated_at = $5,
            results = $6, pulse = $7, stored_at = greatest(stored_at, $8,
              (date_part('epoch', clock_timestamp()) * 1000000)::int8)
          WHERE run = $1 AND head_seq = $9 AND head_digest = $10 AND epoch = $11
          RETURNING run, stored_at)
        INSERT INTO events (run, seq, kind, at, caller_at, epoch, late, format, tag, digest, body,
          stored_at)
        SELECT run, $3, $12, $5, $13, $2, $14, $15, $16, $4, $17, stored_at FROM head";

    pub fn new(
        run: i64,
        before: &Head,
        epoch: Epoch,
        tip: &Tip,
        events: Arc<Vec<Sealed>>,
        mark: Mark,
        floor: i64,
    ) -> Self {
        let row = &tip.row;
        Self {
            run,
            event_epoch: row.epoch.0.cast_signed(),
            head: row.head,
            updated_at: row.updated_at.as_micros(),
            results: stored_results(&tip.results),
            pulse: to_text(&row.pulse),
            before: *before,
            epoch: epoch.0.cast_signed(),
            events,
            mark,
            floor,
        }
    }

    fn results(&self) -> Option<&[u8]> {
        self.results.as_ref().map(<[u8; 32]>::as_slice)
    }

    /// Whether it is what [`Self::SQL`] takes: one event.
    pub fn is_one(&self) -> bool {
        self.events.len() == 1
    }

    /// Writes its one event by [`Self::SQL`]; says how many it wrote.
    pub async fn execute(
        &self,
        client: &Client,
        statement: &Statement,
    ) -> Result<u64, tokio_postgres::Error> {
        let Some(event) = Fields::of(&self.events, &self.mark).next() else {
            return Ok(0);
        };
        let params: [&(dyn ToSql + Sync); 17] = [
            &self.run,
            &event.epoch,
            &event.seq,
            &event.digest,
            &event.at,
            &self.results(),
            &self.pulse,
            &self.floor,
            &self.before.seq.0.cast_signed(),
            &self.before.digest.as_bytes().as_slice(),
            &self.epoch,
            &event.kind,
            &event.caller_at,
            &event.late,
            &event.format,
            &event.tag,
            &event.body,
        ];
        client.execute(statement, &params).await
    }

    /// Writes it inside a transaction; says whether it landed. A projection of another build is written anew
    /// whether or not there are events.
    pub async fn land(&self, tx: &Tx, stale: bool) -> Result<bool, Halt> {
        if !self.events.is_empty() {
            let landed = tx.query(Lines::SQL, &Lines::of([self]).params()).await?;
            if landed.is_empty() {
                return Ok(false);
            }
            if let (Mark::Id(name), Some(first)) = (&self.mark, self.events.first()) {
                let sql = "INSERT INTO appends (run, append_id, seq) VALUES ($1, $2, $3)";
                let seq = first.event.seq.0.cast_signed();
                tx.exec(sql, &[&self.run, name, &seq]).await?;
            }
            return Ok(true);
        }
        // A first claim moves the epoch and writes nothing else.
        let before_seq = self.before.seq.0.cast_signed();
        let before_digest = self.before.digest.as_bytes().as_slice();
        if stale {
            let sql = "UPDATE live SET event_epoch = $5, updated_at = $6, results = $7, pulse = $8
                WHERE run = $1 AND head_seq = $2 AND head_digest = $3 AND epoch = $4";
            let row: [&(dyn ToSql + Sync); 8] = [
                &self.run,
                &before_seq,
                &before_digest,
                &self.epoch,
                &self.event_epoch,
                &self.updated_at,
                &self.results(),
                &self.pulse,
            ];
            return Ok(tx.exec(sql, &row).await? > 0);
        }
        let sql = "SELECT 1 FROM live
            WHERE run = $1 AND head_seq = $2 AND head_digest = $3 AND epoch = $4";
        let head: [&(dyn ToSql + Sync); 4] = [&self.run, &before_seq, &before_digest, &self.epoch];
        Ok(tx.opt(sql, &head).await?.is_some())
    }
}

/// What several appends write, column by column.
#[derive(Debug, Default)]
pub(super) struct Lines<'a> {
    /// Which one it is: the same run may be there twice, when its caller came back before its first answer.
    line: Vec<i64>,
    run: Vec<i64>,
    event_epoch: Vec<i64>,
    head_seq: Vec<i64>,
    head_digest: Vec<&'a [u8]>,
    updated_at: Vec<i64>,
    results: Vec<Option<&'a [u8]>>,
    pulse: Vec<&'a str>,
    before_seq: Vec<i64>,
    before_digest: Vec<&'a [u8]>,
    epoch: Vec<i64>,
    events: Events<'a>,
    floor: i64,
}

/// The events of all of them.
#[derive(Debug, Default)]
struct Events<'a> {
    line: Vec<i64>,
    run: Vec<i64>,
    columns: Columns<'a>,
}

impl<'a> Lines<'a> {
    /// Gives the numbers of those that landed. Rows are locked in the order of runs, and one that someone else
    /// has locked is left out: those who share a statement never wait for one of them.
    pub const SQL: &'static str = "WITH asked AS (
          SELECT a.* FROM unnest($1::int8[], $2::int8[], $3::int8[], $4::int8[], $5::bytea[],
              $6::int8[], $7::bytea[], $8::text[], $9::int8[], $10::bytea[], $11::int8[])
            a(line, run, event_epoch, head_seq, head_digest, updated_at, results, pulse,
              before_seq, before_digest, epoch)
          JOIN live l ON l.run = a.run AND l.head_seq = a.before_seq
            AND l.head_digest = a.before_digest AND l.epoch = a.epoch
          ORDER BY a.run FOR UPDATE OF l SKIP LOCKED),
        head AS (
          UPDATE live l SET event_epoch = a.event_epoch, head_seq = a.head_seq,
            head_digest = a.head_digest, updated_at = a.updated_at, results = a.results,
            pulse = a.pulse, stored_at = greatest(l.stored_at, $24::int8,
              (date_part('epoch', clock_timestamp()) * 1000000)::int8)
          FROM asked a WHERE l.run = a.run RETURNING a.line, l.stored_at),
        stored AS (
          INSERT INTO events (run, seq, kind, at, caller_at, epoch, late, format, tag, digest,
            body, stored_at)
          SELECT e.run, seq, kind, at, caller_at, epoch, late, format, tag, digest, body,
            head.stored_at
          FROM head JOIN unnest($12::int8[], $13::int8[], $14::int8[], $15::text[], $16::int8[],
              $17::int8[], $18::int8[], $19::bool[], $20::int8[], $21::int8[], $22::bytea[],
              $23::text[])
            e(line, run, seq, kind, at, caller_at, epoch, late, format, tag, digest, body)
          ON e.line = head.line)
        SELECT line FROM head";

    pub fn of(all: impl IntoIterator<Item = &'a Line>) -> Self {
        let mut lines = Self::default();
        for (number, line) in (0..).zip(all) {
            lines.line.push(number);
            lines.run.push(line.run);
            lines.event_epoch.push(line.event_epoch);
            lines.head_seq.push(line.head.seq.0.cast_signed());
            lines.head_digest.push(line.head.digest.as_bytes());
            lines.updated_at.push(line.updated_at);
            lines.results.push(line.results());
            lines.pulse.push(&line.pulse);
            lines.before_seq.push(line.before.seq.0.cast_signed());
            lines.before_digest.push(line.before.digest.as_bytes());
            lines.epoch.push(line.epoch);
            lines.floor = lines.floor.max(line.floor);
            lines.events.add(number, line);
        }
        lines
    }

    pub fn params(&self) -> [&(dyn ToSql + Sync); 24] {
        let events = &self.events;
        let columns = &events.columns;
        [
            &self.line,
            &self.run,
            &self.event_epoch,
            &self.head_seq,
            &self.head_digest,
            &self.updated_at,
            &self.results,
            &self.pulse,
            &self.before_seq,
            &self.before_digest,
            &self.epoch,
            &events.line,
            &events.run,
            &columns.seq,
            &columns.kind,
            &columns.at,
            &columns.caller_at,
            &columns.epoch,
            &columns.late,
            &columns.format,
            &columns.tag,
            &columns.digest,
            &columns.body,
            &self.floor,
        ]
    }
}

impl<'a> Events<'a> {
    fn add(&mut self, number: i64, line: &'a Line) {
        for event in Fields::of(&line.events, &line.mark) {
            self.line.push(number);
            self.run.push(line.run);
            self.columns.add(event);
        }
    }
}
