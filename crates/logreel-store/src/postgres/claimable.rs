//! What a worker may take: runs whose time has come, and those whose owner is gone (SEMANTICS 18).
//!
//! All that a worker wants is asked of the database at once, so that what is not for it costs it no round trip: who
//! drives few runs finds them behind a long queue of others, and whoever left many behind holds nobody up.

use logreel_core::event::RunKind;
use logreel_core::{FORMAT, RunId, Timestamp};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::failure::Halt;
use super::lease::may_be_claimed;
use super::limit::Places;
use super::owners::{Life, OWNER, now_or};
use super::rows::{self, Stored};
use super::writer::Tx;
use crate::{Claimable, Owner};

/// Runs that are looked at in one go.
const PAGE: usize = 200;

/// Runs that a worker may take, oldest first.
pub(super) async fn claimable(
    tx: &Tx,
    what: &[Claimable],
    labels: &[(String, String)],
    limit: usize,
) -> Result<Vec<RunId>, Halt> {
    let mut search = Search {
        tx,
        what,
        wanted: Wanted::new(what, labels),
        now: tx.shared.clock.now(),
        places: Places::default(),
        found: Vec::new(),
    };
    // Queued ones first, then those whose time came, then orphans: each up to `limit`.
    search.ready("q.ready_at = 0", limit).await?;
    let come = "q.ready_at > 0 AND q.ready_at <= $1";
    search.ready(come, limit).await?;
    search.orphaned(limit).await?;
    let mut found = search.found;
    found.sort_unstable_by_key(|(id, _)| *id);
    found.dedup();
    found.truncate(limit);
    Ok(found.into_iter().map(|(_, run)| run).collect())
}

struct Search<'a> {
    tx: &'a Tx,
    what: &'a [Claimable],
    wanted: Wanted,
    now: Timestamp,
    places: Places,
    found: Vec<(i64, RunId)>,
}

impl Search<'_> {
    /// Those that nobody holds and that are in this part of the queue.
    async fn ready(&mut self, range: &str, limit: usize) -> Result<(), Halt> {
        let sql = format!(
            "SELECT q.run, r.run, r.kind, r.agent, r.spec_digest, q.limit_key, q.limit_max, q.ready_at
             FROM queue q JOIN runs r ON r.id = q.run
             WHERE q.owner IS NULL AND {range} AND (q.ready_at, q.run) > ($2, $3) AND {}
             ORDER BY q.ready_at, q.run LIMIT {PAGE}",
            self.wanted.condition(4)
        );
        let (mut ready_at, mut after, mut left) = (-1_i64, -1_i64, limit);
        while left > 0 {
            let now = self.now.as_micros();
            let known = self.places.known();
            let mut params: Vec<Param<'_>> = vec![
                (&now, Type::INT8),
                (&ready_at, Type::INT8),
                (&after, Type::INT8),
            ];
            self.wanted.bind(&known, &mut params);
            let page = self.tx.plan_and_query(&sql, &params).await?;
            for row in &page {
                (after, ready_at) = (row.try_get(0)?, row.try_get(7)?);
                let (kind, agent): (&str, &str) = (row.try_get(2)?, row.try_get(3)?);
                let spec = rows::digest(row.try_get(4)?)?;
                let mut what = self.what.iter();
                let fits =
                    what.any(|it| it.kind.as_str() == kind && it.fits(it.kind, agent, &spec));
                let max: Option<i64> = row.try_get(6)?;
                let max = max.map(rows::unsigned);
                if fits && self.places.has_one(self.tx, row.try_get(5)?, max).await? {
                    self.found.push((after, rows::run_id(row.try_get(1)?)?));
                    left -= 1;
                    if left == 0 {
                        return Ok(());
                    }
                }
            }
            if page.len() < PAGE {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Those whose holder is gone or silent.
    async fn orphaned(&mut self, limit: usize) -> Result<(), Halt> {
        let externals = self.what.iter().any(|it| it.kind == RunKind::External);
        let owners = gone(self.tx, externals).await?;
        if owners.is_empty() {
            return Ok(());
        }
        let sql = format!(
            "SELECT q.run, r.run FROM queue q JOIN runs r ON r.id = q.run
             WHERE q.owner = ANY($1) AND q.run > $2
               AND r.status NOT IN ('completed', 'failed', 'cancelled') AND {}
             ORDER BY q.run LIMIT {PAGE}",
            self.wanted.condition(3)
        );
        let (mut after, mut left) = (-1_i64, limit);
        while left > 0 {
            let known = self.places.known();
            let mut params: Vec<Param<'_>> =
                vec![(&owners, Type::INT8_ARRAY), (&after, Type::INT8)];
            self.wanted.bind(&known, &mut params);
            let page = self.tx.plan_and_query(&sql, &params).await?;
            let ids = page.iter().map(|row| row.try_get(0));
            let ids: Vec<i64> = ids.collect::<Result<_, _>>()?;
            after = ids.last().copied().unwrap_or(after);
            for stored in self.readable(&page, &ids).await? {
                let facts = &stored.row.facts;
                let fits = |it: &Claimable| it.fits(facts.kind, &facts.agent, &facts.spec_digest);
                let limit = facts.limit.as_ref();
                let key = limit.map(|limit| limit.key.as_str());
                let max = limit.map(|limit| u64::from(limit.max));
                if left > 0
                    && stored.check_foldable().is_ok()
                    && !stored.is_driven(self.tx)
                    && self.what.iter().any(fits)
                    && may_be_claimed(self.tx, &stored, self.now).await?
                    && self.places.has_one(self.tx, key, max).await?
                {
                    self.found.push((stored.id, stored.row.run));
                    left -= 1;
                }
            }
            if ids.len() < PAGE {
                return Ok(());
            }
        }
        Ok(())
    }
}

impl Search<'_> {
    /// What is stored of these runs. One that cannot be read is found as it is: whoever goes for it is told what is
    /// wrong with it, and it keeps nobody from the others.
    async fn readable(&mut self, page: &[Row], ids: &[i64]) -> Result<Vec<Stored>, Halt> {
        match rows::load_ids(self.tx, ids).await {
            Err(Halt::Refused(_)) => {}
            loaded => return loaded,
        }
        let mut readable = Vec::new();
        for row in page {
            let id = row.try_get(0)?;
            match rows::load_id(self.tx, id).await {
                Ok(stored) => readable.extend(stored),
                Err(Halt::Refused(_)) => self.found.push((id, rows::run_id(row.try_get(1)?)?)),
                Err(halt) => return Err(halt),
            }
        }
        Ok(readable)
    }
}

/// Owners that hold something and do not beat: of all those that may not, by what the database knows of them.
/// Nobody but a client goes on with what a client drives, so that those are left out unless they are asked for.
pub(super) async fn gone(tx: &Tx, externals: bool) -> Result<Vec<i64>, Halt> {
    let sql = format!(
        "SELECT {OWNER} FROM owners o
         WHERE (o.gone OR o.host = $1 OR {} - o.beat_at >= coalesce(o.lease, $3))
           AND ($4 OR o.host NOT LIKE '{}%')
           AND EXISTS (SELECT 1 FROM queue q WHERE q.owner = o.id)",
        now_or("$2"),
        Owner::EXTERNAL
    );
    let owners = &tx.shared.owners;
    let (host, now) = (owners.host(), tx.shared.clock.lease_now());
    let params: [&(dyn ToSql + Sync); 4] = [&host, &now, &owners.lease_micros(), &externals];
    let mut gone = Vec::new();
    for row in tx.query(&sql, &params).await? {
        let (owner, life) = owners.read(&row, 0)?;
        if life != Life::Beating {
            gone.push(owner.id.0.cast_signed());
        }
    }
    Ok(gone)
}

/// Children that wait and whose parent has ended or is gone, oldest first.
pub(super) async fn forsaken(tx: &Tx, limit: usize) -> Result<Vec<RunId>, Halt> {
    let sql = "SELECT c.run FROM runs c LEFT JOIN runs p ON p.run = c.parent
        WHERE c.status = 'waiting' AND c.relation = 'child' AND NOT c.read_only
          AND (p.id IS NULL OR p.status IN ('completed', 'failed', 'cancelled'))
        ORDER BY c.id LIMIT $1";
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let found = tx.query(sql, &[&limit]).await?;
    let run = |row: &tokio_postgres::Row| Ok(rows::run_id(row.try_get(0)?)?);
    found.iter().map(run).collect()
}

type Param<'a> = (&'a (dyn ToSql + Sync), Type);

/// What a worker wants, as far as the database can tell: kinds and specs, and all of its labels.
struct Wanted {
    /// Of which any spec will do.
    kinds: Vec<&'static str>,
    /// The others, each kind with one of its specs.
    pairs: (Vec<&'static str>, Vec<Vec<u8>>),
    labels: Vec<(String, String)>,
}

impl Wanted {
    fn new(what: &[Claimable], labels: &[(String, String)]) -> Self {
        let (mut kinds, mut pairs) = (Vec::new(), (Vec::new(), Vec::new()));
        for it in what {
            match &it.specs {
                None => kinds.push(it.kind.as_str()),
                Some(specs) => {
                    for spec in specs {
                        pairs.0.push(it.kind.as_str());
                        pairs.1.push(spec.as_bytes().to_vec());
                    }
                }
            }
        }
        let plain = |(k, v): &(String, String)| (rows::plain(k), rows::plain(v));
        Self {
            kinds,
            pairs,
            labels: labels.iter().map(plain).collect(),
        }
    }

    /// The condition on a run, whose parameters begin with this number. Keys are looked up in an array, and not in a table:
    /// behind a full limit all that waits would be looked up in `runs` before it was joined with that.
    fn condition(&self, first: usize) -> String {
        let [any, kinds, specs, keys, driven] = [0, 1, 2, 3, 4].map(|nth| first + nth);
        let mut condition = format!(
            "r.needs <= {FORMAT} AND NOT r.read_only AND NOT r.erased
             AND (r.kind = ANY(${any})
               OR (r.kind, r.spec_digest) IN (SELECT * FROM unnest(${kinds}::text[], ${specs}::bytea[])))
             AND NOT coalesce((${driven}::int8[])[array_position(${keys}::text[], q.limit_key)] >= q.limit_max, false)"
        );
        for label in 0..self.labels.len() {
            let k = first + 5 + 2 * label;
            condition += &format!(
                " AND EXISTS (SELECT 1 FROM labels b WHERE b.k = ${k} AND b.v = ${} AND b.run = q.run)",
                k + 1
            );
        }
        condition
    }

    /// Its parameters; `driven` says of some limits' keys how many runs are driven.
    fn bind<'a>(&'a self, driven: &'a (Vec<String>, Vec<i64>), params: &mut Vec<Param<'a>>) {
        params.push((&self.kinds, Type::TEXT_ARRAY));
        params.push((&self.pairs.0, Type::TEXT_ARRAY));
        params.push((&self.pairs.1, Type::BYTEA_ARRAY));
        params.push((&driven.0, Type::TEXT_ARRAY));
        params.push((&driven.1, Type::INT8_ARRAY));
        for (k, v) in &self.labels {
            params.push((k, Type::TEXT));
            params.push((v, Type::TEXT));
        }
    }
}
