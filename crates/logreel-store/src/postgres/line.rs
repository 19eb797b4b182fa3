//! Appends as statements. Each is a transaction of its own: the narrow rows move on where head and epoch are as
//! expected, and only for those are there events. A refusal is a row less, never an error (SEMANTICS 5).

use logreel_core::chain::Sealed;
use logreel_core::{Epoch, Head};
use tokio_postgres::types::ToSql;

use super::failure::Halt;
use super::rows::{Columns, Mark, results_bytes, to_text};
use super::writer::Tx;
use crate::tip::Tip;

/// What one append writes.
#[derive(Debug)]
pub(super) struct Line {
    pub run: i64,
    event_epoch: i64,
    head_seq: i64,
    head_digest: Vec<u8>,
    updated_at: i64,
    results: Option<Vec<u8>>,
    pulse: String,
    before_seq: i64,
    before_digest: Vec<u8>,
    epoch: i64,
    events: Columns,
    /// Below which the stamp does not fall (`Clock::floor`).
    floor: i64,
}

impl Line {
    /// One event: what a step costs.
    pub const SQL: &str = "WITH head AS (
          UPDATE live SET event_epoch = $2, head_seq = $3, head_digest = $4, updated_at = $5,
            results = $6, pulse = $7, stored_at = greatest(stored_at, $22,
              (extract(epoch FROM clock_timestamp()) * 1000000)::int8)
          WHERE run = $1 AND head_seq = $8 AND head_digest = $9 AND epoch = $10
          RETURNING run, stored_at)
        INSERT INTO events (run, seq, kind, at, caller_at, epoch, late, format, tag, append_id,
          digest, body, stored_at)
        SELECT run, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21, stored_at FROM head";

    pub fn new(
        run: i64,
        before: &Head,
        epoch: Epoch,
        tip: &Tip,
        sealed: &[Sealed],
        mark: &Mark,
        floor: i64,
    ) -> Self {
        let row = &tip.row;
        Self {
            run,
            event_epoch: row.epoch.0.cast_signed(),
            head_seq: row.head.seq.0.cast_signed(),
            head_digest: row.head.digest.as_bytes().to_vec(),
            updated_at: row.updated_at.as_micros(),
            results: results_bytes(&tip.results),
            pulse: to_text(&row.pulse),
            before_seq: before.seq.0.cast_signed(),
            before_digest: before.digest.as_bytes().to_vec(),
            epoch: epoch.0.cast_signed(),
            events: Columns::of(sealed, mark),
            floor,
        }
    }

    /// What [`Self::SQL`] takes, when it has one event.
    pub fn params(&self) -> Option<[&(dyn ToSql + Sync); 22]> {
        let events = &self.events;
        if events.len() != 1 {
            return None;
        }
        Some([
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
            &events.seq[0],
            &events.kind[0],
            &events.at[0],
            &events.caller_at[0],
            &events.epoch[0],
            &events.late[0],
            &events.format[0],
            &events.tag[0],
            &events.append_id[0],
            &events.digest[0],
            &events.body[0],
            &self.floor,
        ])
    }

    /// Writes it inside a transaction; says whether it landed. A projection of another build is written anew
    /// whether or not there are events.
    pub async fn land(&self, tx: &Tx, stale: bool) -> Result<bool, Halt> {
        if self.events.len() > 0 {
            let landed = tx.query(Lines::SQL, &Lines::of([self]).params()).await?;
            return Ok(!landed.is_empty());
        }
        // A first claim moves the epoch and writes nothing else.
        if stale {
            let sql = "UPDATE live SET event_epoch = $5, updated_at = $6, results = $7, pulse = $8
                WHERE run = $1 AND head_seq = $2 AND head_digest = $3 AND epoch = $4";
            let row: [&(dyn ToSql + Sync); 8] = [
                &self.run,
                &self.before_seq,
                &self.before_digest,
                &self.epoch,
                &self.event_epoch,
                &self.updated_at,
                &self.results,
                &self.pulse,
            ];
            return Ok(tx.exec(sql, &row).await? > 0);
        }
        let sql = "SELECT 1 FROM live
            WHERE run = $1 AND head_seq = $2 AND head_digest = $3 AND epoch = $4";
        let head: [&(dyn ToSql + Sync); 4] = [
            &self.run,
            &self.before_seq,
            &self.before_digest,
            &self.epoch,
        ];
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
    seq: Vec<i64>,
    kind: Vec<&'a str>,
    at: Vec<i64>,
    caller_at: Vec<Option<i64>>,
    epoch: Vec<i64>,
    late: Vec<bool>,
    format: Vec<i64>,
    tag: Vec<Option<i64>>,
    append_id: Vec<Option<&'a str>>,
    digest: Vec<&'a [u8]>,
    body: Vec<Option<&'a str>>,
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
            pulse = a.pulse, stored_at = greatest(l.stored_at, $25::int8,
              (extract(epoch FROM clock_timestamp()) * 1000000)::int8)
          FROM asked a WHERE l.run = a.run RETURNING a.line, l.stored_at),
        stored AS (
          INSERT INTO events (run, seq, kind, at, caller_at, epoch, late, format, tag, append_id,
            digest, body, stored_at)
          SELECT e.run, seq, kind, at, caller_at, epoch, late, format, tag, append_id, digest, body,
            head.stored_at
          FROM head JOIN unnest($12::int8[], $13::int8[], $14::int8[], $15::text[], $16::int8[],
              $17::int8[], $18::int8[], $19::bool[], $20::int8[], $21::int8[], $22::text[],
              $23::bytea[], $24::text[])
            e(line, run, seq, kind, at, caller_at, epoch, late, format, tag, append_id, digest, body)
          ON e.line = head.line)
        SELECT line FROM head";

    pub fn of(all: impl IntoIterator<Item = &'a Line>) -> Self {
        let mut lines = Self::default();
        for (number, line) in (0..).zip(all) {
            lines.line.push(number);
            lines.run.push(line.run);
            lines.event_epoch.push(line.event_epoch);
            lines.head_seq.push(line.head_seq);
            lines.head_digest.push(&line.head_digest);
            lines.updated_at.push(line.updated_at);
            lines.results.push(line.results.as_deref());
            lines.pulse.push(&line.pulse);
            lines.before_seq.push(line.before_seq);
            lines.before_digest.push(&line.before_digest);
            lines.epoch.push(line.epoch);
            lines.floor = lines.floor.max(line.floor);
            lines.events.add(number, line);
        }
        lines
    }

    pub fn params(&self) -> [&(dyn ToSql + Sync); 25] {
        let events = &self.events;
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
            &events.seq,
            &events.kind,
            &events.at,
            &events.caller_at,
            &events.epoch,
            &events.late,
            &events.format,
            &events.tag,
            &events.append_id,
            &events.digest,
            &events.body,
            &self.floor,
        ]
    }
}

impl<'a> Events<'a> {
    fn add(&mut self, number: i64, line: &'a Line) {
        let from = &line.events;
        self.line.resize(self.line.len() + from.len(), number);
        self.run.resize(self.run.len() + from.len(), line.run);
        self.seq.extend(&from.seq);
        self.kind.extend(from.kind.iter().map(String::as_str));
        self.at.extend(&from.at);
        self.caller_at.extend(&from.caller_at);
        self.epoch.extend(&from.epoch);
        self.late.extend(&from.late);
        self.format.extend(&from.format);
        self.tag.extend(&from.tag);
        self.append_id
            .extend(from.append_id.iter().map(Option::as_deref));
        self.digest.extend(from.digest.iter().map(Vec::as_slice));
        self.body.extend(from.body.iter().map(Option::as_deref));
    }
}
