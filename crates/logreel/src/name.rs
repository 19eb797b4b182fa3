//! Which run is meant: an id, a unique prefix, the last 8 digits, `@last` or `@last-1`.

use logreel_core::RunId;
use logreel_core::event::Relation;
use logreel_store::{Entry, Filter, RunStore};

use crate::Error;
use crate::engine::Engine;

/// How many candidates an ambiguous name lists.
const CANDIDATES: usize = 10;

impl Engine {
    /// The one run that `name` means, which exists: its id, the beginning of it, its last 8 digits,
    /// `@last`, or `@last-1` for the one before.
    pub async fn find(&self, name: &str) -> Result<RunId, Error> {
        find(&**self.store(), name).await
    }
}

/// [`Engine::find`] in a store.
pub async fn find(store: &dyn RunStore, name: &str) -> Result<RunId, Error> {
    if name.is_empty() || name.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(not_a_name(name, "it is empty or has blanks in it"));
    }
    if let Some(back) = name.strip_prefix("@last") {
        return latest(store, name, back).await;
    }
    let asked = name.to_ascii_lowercase();
    if let Ok(run) = asked.parse::<RunId>() {
        store.entry(&run).await?;
        return Ok(run);
    }
    let found = store.find(&asked, CANDIDATES + 1).await?;
    // What every table prints wins over an id that happens to begin with the same digits.
    let mut exact = found.iter().filter(|run| run.short() == asked);
    if let (Some(run), None) = (exact.next(), exact.next()) {
        return Ok(*run);
    }
    match found.as_slice() {
        [] => Err(Error::NoSuchRun(shown(name))),
        [run] => Ok(*run),
        several => Err(Error::SeveralRuns {
            name: shown(name),
            runs: several.iter().take(CANDIDATES).copied().collect(),
            more: several.len() > CANDIDATES,
        }),
    }
}

/// `@last` is the newest run in the store's order, `@last-1` the one before it; children do not count.
async fn latest(store: &dyn RunStore, name: &str, back: &str) -> Result<RunId, Error> {
    let mut skip: usize = match back.strip_prefix('-').map(str::parse) {
        None if back.is_empty() => 0,
        Some(Ok(skip)) => skip,
        _ => return Err(not_a_name(name, "say @last or @last-1")),
    };
    let mut cursor = None;
    loop {
        let page = store
            .list(&Filter::default(), cursor.as_ref(), skip.min(99) + 1)
            .await?;
        for entry in page.items.iter().filter(|entry| !is_child(entry)) {
            if skip == 0 {
                return Ok(entry.row.run);
            }
            skip -= 1;
        }
        cursor = page.next;
        if cursor.is_none() {
            return Err(Error::NoSuchRun(shown(name)));
        }
    }
}

/// Nobody who says `@last` means a run that the last one started by itself.
fn is_child(entry: &Entry) -> bool {
    let parent = entry.row.facts.parent.as_ref();
    parent.is_some_and(|parent| parent.relation == Relation::Child)
}

fn not_a_name(name: &str, why: &'static str) -> Error {
    let name = shown(name);
    Error::NotAName { name, why }
}

fn shown(name: &str) -> String {
    name.chars().take(80).collect()
}
