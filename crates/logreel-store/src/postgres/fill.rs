//! A million runs for a bench: written by COPY, table by table, as `create` and the appends after it would have
//! left them. What is sealed, folded and found of a run comes from the same code as everywhere.

use std::pin::pin;

use deadpool_postgres::Object;
use logreel_core::chain::Sealed;
use logreel_core::{Draft, Epoch, FOLD_VERSION, FORMAT, Ready, RunKey, Session, Timestamp};
use tokio_postgres::binary_copy::BinaryCopyInWriter;
use tokio_postgres::types::{ToSql, Type};

use super::columns::{Fields, Mark};
use super::connect;
use super::create::first_epoch;
use super::failure::{failed, said};
use super::open::{PostgresStore, Shared};
use super::rows;
use crate::tip::{Tip, prepare};
use crate::{Error, NewRun, OwnerId};

/// Runs that are written in one go.
const CHUNK: usize = 20_000;

impl PostgresStore {
    /// Writes runs that are new, in their order, into a store that nobody else uses: each as it is once its
    /// driver has given it back. Their events have the time that comes with them.
    pub async fn fill(
        &self,
        runs: impl Iterator<Item = (NewRun, Timestamp)> + Send + 'static,
    ) -> Result<(), Error> {
        let shared = self.shared().clone();
        self.run(async move { fill(&shared, runs).await }).await
    }
}

async fn fill(
    shared: &Shared,
    runs: impl Iterator<Item = (NewRun, Timestamp)> + Send,
) -> Result<(), Error> {
    let client = connect::get(&shared.pool).await?;
    // It is no connection for others any more.
    let client = Object::take(client);
    client
        .batch_execute("SET statement_timeout = 0; SET synchronous_commit = off")
        .await
        .map_err(failed)?;
    // An index is made faster of all rows at once.
    let sql =
        "SELECT indexname::text, indexdef FROM pg_indexes i WHERE schemaname = current_schema()
        AND NOT EXISTS (SELECT 1 FROM pg_constraint c WHERE c.conname = i.indexname
          AND c.connamespace = current_schema()::regnamespace)";
    let indexes = client.query(sql, &[]).await.map_err(failed)?;
    for index in &indexes {
        let name: &str = index.try_get(0).map_err(failed)?;
        let sql = format!("DROP INDEX {name}");
        client.batch_execute(&sql).await.map_err(failed)?;
    }
    let sql = "SELECT coalesce(max(id), 0) FROM runs";
    let last = client.query_one(sql, &[]).await.map_err(failed)?;
    let mut last: i64 = last.try_get(0).map_err(failed)?;
    let mut chunk = Chunk::default();
    for (new, at) in runs {
        last += 1;
        chunk.add(shared, last, new, at)?;
        if chunk.runs.rows.len() >= CHUNK {
            std::mem::take(&mut chunk).write(&client).await?;
        }
    }
    chunk.write(&client).await?;
    let sql = format!("ALTER TABLE runs ALTER id RESTART WITH {}", last + 1);
    client.batch_execute(&sql).await.map_err(failed)?;
    for index in &indexes {
        let sql: &str = index.try_get(1).map_err(failed)?;
        client.batch_execute(sql).await.map_err(failed)?;
    }
    client.batch_execute("VACUUM ANALYZE").await.map_err(failed)
}

type Value = Box<dyn ToSql + Sync + Send>;

/// Rows on their way into a table.
struct Rows {
    table: &'static str,
    columns: &'static str,
    types: &'static [Type],
    rows: Vec<Vec<Value>>,
}

impl Rows {
    fn new(table: &'static str, columns: &'static str, types: &'static [Type]) -> Self {
        let rows = Vec::new();
        Self {
            table,
            columns,
            types,
            rows,
        }
    }

    async fn write(&self, client: &tokio_postgres::Client) -> Result<(), Error> {
        let copied = async {
            let sql = format!("COPY {} ({}) FROM STDIN BINARY", self.table, self.columns);
            let sink = client.copy_in(&sql).await?;
            let mut writer = pin!(BinaryCopyInWriter::new(sink, self.types));
            for row in &self.rows {
                let row: Vec<&(dyn ToSql + Sync)> = row
                    .iter()
                    .map(|value| &**value as &(dyn ToSql + Sync))
                    .collect();
                writer.as_mut().write(&row).await?;
            }
            writer.finish().await
        };
        let copied: Result<u64, tokio_postgres::Error> = copied.await;
        copied.map_err(|error| {
            let what = format!("{} cannot be filled: {}", self.table, said(&error));
            Error::unavailable(what)
        })?;
        Ok(())
    }
}

struct Chunk {
    runs: Rows,
    live: Rows,
    queue: Rows,
    events: Rows,
    labels: Rows,
    search: Rows,
    active: Rows,
}

impl Default for Chunk {
    fn default() -> Self {
        use Type as T;
        Self {
            runs: Rows::new(
                "runs",
                "id, run, short, status, session, agent, kind, spec_digest, final_state_digest, parent,
                 relation, created_at, key, fold_version, needs, epoch, event_epoch, head_seq,
                 head_digest, updated_at, results, pulse, facts",
                &[
                    T::INT8, T::TEXT, T::TEXT, T::TEXT, T::TEXT, T::TEXT, T::TEXT, T::BYTEA, T::BYTEA,
                    T::TEXT, T::TEXT, T::INT8, T::BYTEA, T::INT8, T::INT8, T::INT8, T::INT8, T::INT8,
                    T::BYTEA, T::INT8, T::BYTEA, T::TEXT, T::TEXT,
                ],
            ),
            live: Rows::new(
                "live",
                "run, epoch, event_epoch, head_seq, head_digest, updated_at, results, pulse, stored_at",
                &[T::INT8, T::INT8, T::INT8, T::INT8, T::BYTEA, T::INT8, T::BYTEA, T::TEXT, T::INT8],
            ),
            queue: Rows::new("queue", "run, ready_at", &[T::INT8, T::INT8]),
            events: Rows::new(
                "events",
                "run, seq, kind, at, caller_at, epoch, late, format, tag, digest, body, stored_at",
                &[
                    T::INT8, T::INT8, T::TEXT, T::INT8, T::INT8, T::INT8, T::BOOL, T::INT8, T::INT8,
                    T::BYTEA, T::TEXT, T::INT8,
                ],
            ),
            labels: Rows::new("labels", "k, v, run", &[T::TEXT, T::TEXT, T::INT8]),
            search: Rows::new("search", "run, words", &[T::INT8, T::TEXT_ARRAY]),
            active: Rows::new("active", "session, run", &[T::TEXT, T::INT8]),
        }
    }
}

impl Chunk {
    async fn write(self, client: &tokio_postgres::Client) -> Result<(), Error> {
        for rows in [
            &self.runs,
            &self.live,
            &self.queue,
            &self.events,
            &self.labels,
            &self.search,
            &self.active,
        ] {
            rows.write(client).await?;
        }
        Ok(())
    }

    fn add(&mut self, shared: &Shared, id: i64, new: NewRun, at: Timestamp) -> Result<(), Error> {
        let epoch = first_epoch(new.then.first().map(|_| OwnerId(1)));
        let max = shared.payload_bytes_max;
        let drafts = vec![Draft::new(new.started)];
        let first = prepare(drafts, &[], max)?.pop();
        let first = first.ok_or_else(|| Error::Bug("event 1 got lost".to_owned()))?;
        let mut key = RunKey([0; 32]);
        shared.env.random(&mut key.0);
        let (mut tip, first) = Tip::start(new.run, key, first, epoch, at)?;
        self.add_events(id, &[first], 0, at);
        // Each an append of its own.
        for (tag, draft) in (1..).zip(new.then) {
            let sealed = tip.extend(prepare(vec![draft], &[], max)?, epoch, at)?;
            self.add_events(id, &sealed, tag, at);
        }
        self.add_run(id, &tip, epoch)?;
        let facts = &tip.row.facts;
        for (name, value) in &facts.labels {
            self.labels.rows.push(vec![
                Box::new(rows::plain(name)),
                Box::new(rows::plain(value)),
                Box::new(id),
            ]);
        }
        let words = rows::words(facts);
        self.search.rows.push(vec![Box::new(id), Box::new(words)]);
        if let Some(session) = facts.session.as_ref().filter(|_| facts.ended.is_none()) {
            let session = rows::plain(session.as_str());
            self.active.rows.push(vec![Box::new(session), Box::new(id)]);
        }
        Ok(())
    }

    /// The wide row, and for a run that goes on the narrow one.
    fn add_run(&mut self, id: i64, tip: &Tip, epoch: Epoch) -> Result<(), Error> {
        let row = &tip.row;
        let facts = &row.facts;
        let parent = facts.parent.as_ref();
        let ended = facts.ended.as_ref();
        let head: Vec<Value> = vec![
            Box::new(epoch.0.cast_signed()),
            Box::new(row.epoch.0.cast_signed()),
            Box::new(row.head.seq.0.cast_signed()),
            Box::new(row.head.digest.as_bytes().to_vec()),
            Box::new(row.updated_at.as_micros()),
            Box::new(rows::results_bytes(&tip.results)),
            Box::new(rows::to_text(&row.pulse)),
        ];
        let mut wide: Vec<Value> = vec![
            Box::new(id),
            Box::new(row.run.to_string()),
            Box::new(row.run.short()),
            Box::new(row.status().as_str()),
            Box::new(facts.session.as_ref().map(Session::as_str).map(rows::plain)),
            Box::new(rows::plain(&facts.agent)),
            Box::new(facts.kind.as_str()),
            Box::new(facts.spec_digest.as_bytes().to_vec()),
            Box::new(ended.map(|ended| ended.final_state_digest.as_bytes().to_vec())),
            Box::new(parent.map(|it| it.run.to_string())),
            Box::new(parent.map(|it| rows::relation_name(it.relation))),
            Box::new(facts.created_at.as_micros()),
            Box::new(tip.key.0.to_vec()),
            Box::new(i64::from(FOLD_VERSION)),
            Box::new(i64::from(FORMAT)),
        ];
        if ended.is_some() {
            wide.extend(head);
        } else {
            let ready = Ready::of(row, |_| Ok::<_, Error>(None))?;
            let ready_at = rows::ready_at(&ready);
            self.queue.rows.push(vec![Box::new(id), Box::new(ready_at)]);
            let mut narrow: Vec<Value> = vec![Box::new(id)];
            narrow.extend(head);
            narrow.push(Box::new(row.updated_at.as_micros()));
            self.live.rows.push(narrow);
            let none: [Value; 7] = [
                Box::new(None::<i64>),
                Box::new(None::<i64>),
                Box::new(None::<i64>),
                Box::new(None::<Vec<u8>>),
                Box::new(None::<i64>),
                Box::new(None::<Vec<u8>>),
                Box::new(None::<String>),
            ];
            wide.extend(none);
        }
        wide.push(Box::new(rows::to_text(&**facts)));
        self.runs.rows.push(wide);
        Ok(())
    }

    fn add_events(&mut self, id: i64, sealed: &[Sealed], tag: u64, at: Timestamp) {
        for event in Fields::of(sealed, &Mark::Tag(tag)) {
            self.events.rows.push(vec![
                Box::new(id),
                Box::new(event.seq),
                Box::new(event.kind.to_owned()),
                Box::new(event.at),
                Box::new(event.caller_at),
                Box::new(event.epoch),
                Box::new(event.late),
                Box::new(event.format),
                Box::new(event.tag),
                Box::new(event.digest.to_vec()),
                Box::new(event.body.to_owned()),
                Box::new(at.as_micros()),
            ]);
        }
    }
}
