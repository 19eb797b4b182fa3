//! Erasing runs (SEMANTICS 33): what they held is taken out of the tables. Its bytes leave the files of
//! PostgreSQL when those tables are vacuumed and its own log is recycled, which is its operator's to decide.

use std::collections::{BTreeMap, HashMap, HashSet};

use logreel_core::codec::StoredBody;
use logreel_core::{Digest, RunId, RunKey, Seq};

use super::append::retire;
use super::delete::delete_blobs;
use super::failure::{Halt, damaged};
use super::fork;
use super::rows::{self, RECORD};
use super::writer::Tx;
use crate::erase::{Candidate, closure};
use crate::{EraseError, Heirs};

/// Runs whose first events are read in one go.
const HEIRS: usize = 256;

/// What the closure asks for on its way.
enum Asked {
    Candidate(RunId),
    Refused(EraseError),
}

impl From<EraseError> for Asked {
    fn from(error: EraseError) -> Self {
        Self::Refused(error)
    }
}

/// Takes the run, and whoever goes with it, out of the tables.
pub(super) async fn erase(
    tx: &Tx,
    run: RunId,
    with: Heirs,
) -> Result<Vec<RunId>, Halt<EraseError>> {
    let mut known: HashMap<RunId, Candidate> = HashMap::new();
    let runs = loop {
        let asked = closure(run, with, |run| match known.get(&run) {
            Some(known) => Ok(Candidate {
                run: known.run,
                status: known.status,
                read_only: known.read_only,
                driven: known.driven,
                forks: known.forks.clone(),
                continuations: known.continuations.clone(),
            }),
            None => Err(Asked::Candidate(run)),
        });
        match asked {
            Ok(runs) => break runs,
            Err(Asked::Refused(refusal)) => return Err(Halt::Refused(refusal)),
            Err(Asked::Candidate(run)) => {
                let candidate = candidate(tx, run).await.map_err(Halt::lift)?;
                known.insert(run, candidate);
            }
        }
    };
    for run in &runs {
        erase_one(tx, run).await.map_err(Halt::lift)?;
        tx.shared.tips().forget(run);
        tx.ring_everywhere(*run);
    }
    Ok(runs)
}

async fn candidate(tx: &Tx, run: RunId) -> Result<Candidate, Halt> {
    let stored = rows::lock(tx, &run).await?;
    Ok(Candidate {
        run,
        status: stored.row.status(),
        read_only: stored.read_only,
        driven: stored.has_beating_holder(),
        forks: fork::forks_to_erase(tx, &run).await?,
        continuations: continuations(tx, stored.id).await?,
    })
}

/// The runs whose conversation goes on from what was said in this one, however many runs ago: they began with
/// a context node that it made, or with one that follows such a node.
async fn continuations(tx: &Tx, id: i64) -> Result<Vec<RunId>, Halt> {
    let made = made_nodes(tx, id).await?;
    // Nodes that follow, whoever made them: a run between may be gone, and what was said stays.
    let sql = "WITH RECURSIVE after AS (
          SELECT unnest($1::bytea[]) AS digest
          UNION SELECT b.digest FROM after JOIN blobs b ON b.previous = after.digest)
        SELECT digest FROM after";
    let made: Vec<&[u8]> = made.iter().map(|it| it.as_bytes().as_slice()).collect();
    let mut known: HashSet<Digest> = HashSet::new();
    for row in tx.query(sql, &[&made]).await? {
        known.insert(rows::digest(row.try_get(0)?)?);
    }
    let nodes: Vec<Vec<u8>> = known.iter().map(|it| it.as_bytes().to_vec()).collect();
    let sql = "SELECT DISTINCT f.run, r.run FROM blob_refs f JOIN runs r ON r.id = f.run
        WHERE f.digest = ANY($1) AND f.run <> $2 AND NOT r.erased";
    let mut heirs: BTreeMap<i64, String> = BTreeMap::new();
    for row in tx.query(sql, &[&nodes, &id]).await? {
        heirs.insert(row.try_get(0)?, row.try_get(1)?);
    }
    let ids: Vec<i64> = heirs.keys().copied().collect();
    let mut runs = Vec::new();
    for some in ids.chunks(HEIRS) {
        for (heir, node) in pinned(tx, some).await? {
            if let Some(run) = heirs.get(&heir).filter(|_| known.contains(&node)) {
                runs.push(rows::run_id(run)?);
            }
        }
    }
    Ok(runs)
}

/// The context nodes that the run made itself: neither the one it began with nor what it brought along are
/// its own.
async fn made_nodes(tx: &Tx, id: i64) -> Result<Vec<Digest>, Halt> {
    let sql = format!(
        "SELECT {RECORD} FROM events WHERE run = $1 AND kind IN ('message.added', 'context.compacted')
           AND seq > coalesce((SELECT max(last) FROM origins WHERE run = $1), 0) ORDER BY seq"
    );
    let mut nodes = Vec::new();
    for row in tx.query(&sql, &[&id]).await? {
        nodes.extend(rows::record(&row)?.node().map(|it| it.node));
    }
    Ok(nodes)
}

/// The context nodes that runs began with, in the order of runs.
async fn pinned(tx: &Tx, ids: &[i64]) -> Result<Vec<(i64, Digest)>, Halt> {
    let sql = format!(
        "SELECT {RECORD}, run FROM events
         WHERE run = ANY($1) AND seq = 1 AND kind = 'run.started' ORDER BY run"
    );
    let mut nodes = Vec::new();
    for row in tx.query(&sql, &[&ids]).await? {
        let heir: i64 = row.try_get(10)?;
        nodes.extend(rows::record(&row)?.node().map(|it| (heir, it.node)));
    }
    Ok(nodes)
}

async fn erase_one(tx: &Tx, run: &RunId) -> Result<(), Halt> {
    let stored = rows::load(tx, run).await?;
    if stored.erased {
        return Ok(());
    }
    let id = stored.id;
    if stored.live {
        retire(tx, id, run).await?;
    }
    let keys = fork::keys(tx, run).await?;
    delete_blobs(tx, id).await?;
    erase_bodies(tx, id, run, &keys).await?;
    let row = stored.row.erased();
    tx.exec(
        "UPDATE runs SET erased = true, key = NULL, facts = $2, pulse = $3, status = $4
         WHERE id = $1",
        &[
            &id,
            &rows::to_text(&*row.facts),
            &rows::to_text(&row.pulse),
            &row.status().as_str(),
        ],
    )
    .await?;
    tx.exec("UPDATE origins SET key = NULL WHERE run = $1", &[&id])
        .await?;
    for table in ["appends", "labels", "search"] {
        let sql = format!("DELETE FROM {table} WHERE run = $1");
        tx.exec(&sql, &[&id]).await?;
    }
    Ok(())
}

/// Leaves the digest of each body in its place, so that the chain still holds.
async fn erase_bodies(
    tx: &Tx,
    id: i64,
    run: &RunId,
    keys: &[(RunId, Option<RunKey>)],
) -> Result<(), Halt> {
    let segments = fork::segments(tx, id, *run).await?;
    let mut next = Seq::FIRST;
    loop {
        // Only what it wrote itself, or brought along: what it shares is another run's.
        let chunk = fork::own_records(tx, id, *run, &segments, next).await?;
        let Some(last) = chunk.last() else {
            return Ok(());
        };
        next = last.seq.next();
        let (mut seqs, mut digests) = (Vec::new(), Vec::new());
        for record in &chunk {
            let StoredBody::Text(text) = &record.body else {
                continue;
            };
            let writer = record.origin.unwrap_or(*run);
            let key = keys.iter().find(|(of, _)| *of == writer);
            let key = key.and_then(|(_, key)| *key);
            let key = key.ok_or_else(|| damaged(format!("the key of {writer} is gone")))?;
            seqs.push(record.seq.0.cast_signed());
            digests.push(key.body_digest(text).as_bytes().to_vec());
        }
        let sql = "UPDATE events SET body = NULL, body_digest = e.digest
            FROM unnest($2::int8[], $3::bytea[]) e(seq, digest)
            WHERE events.run = $1 AND events.seq = e.seq";
        tx.exec(sql, &[&id, &seqs, &digests]).await?;
    }
}
