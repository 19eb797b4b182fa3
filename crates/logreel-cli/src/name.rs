//! Which run is meant: an id, a unique prefix, the last 8 digits, `@last` or `@last-1`.

use logreel::core::event::Relation;
use logreel::{Entry, ErrorKind, Filter, RunId, RunStore};

use crate::error::Failure;

/// How many candidates an ambiguous name lists.
const CANDIDATES: usize = 10;

/// The one run that `name` means, which exists.
pub async fn resolve(store: &dyn RunStore, name: &str) -> anyhow::Result<RunId> {
    check(name)?;
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
        [] => Err(not_found(name).into()),
        [run] => Ok(*run),
        several => Err(ambiguous(name, several).into()),
    }
}

fn check(name: &str) -> Result<(), Failure> {
    if name.is_empty() || name.chars().any(|c| c.is_whitespace() || c.is_control()) {
        let shown: String = name.chars().take(80).collect();
        let message = format!("{shown:?} cannot name a run: it is empty or has blanks in it");
        return Err(Failure::new(ErrorKind::Invalid, message)
            .hint("give an id, its beginning, its last 8 digits, or @last"));
    }
    Ok(())
}

fn not_found(name: &str) -> Failure {
    let shown: String = name.chars().take(80).collect();
    Failure::new(ErrorKind::NotFound, format!("there is no run {shown:?}"))
        .hint("`logreel ls` lists the runs")
}

fn ambiguous(name: &str, several: &[RunId]) -> Failure {
    let shown = several
        .iter()
        .take(CANDIDATES)
        .map(ToString::to_string)
        .collect::<Vec<_>>();
    let more = if several.len() > CANDIDATES {
        " and more"
    } else {
        ""
    };
    let message = format!("{name:?} fits several runs: {}{more}", shown.join(", "));
    let hint = "give more of the id, or its last 8 digits";
    Failure::new(ErrorKind::Ambiguous, message).hint(hint)
}

/// `@last` is the newest run in the store's order, `@last-1` the one before it; children do not count.
async fn latest(store: &dyn RunStore, name: &str, back: &str) -> anyhow::Result<RunId> {
    let mut skip: usize = match back.strip_prefix('-').map(str::parse) {
        None if back.is_empty() => 0,
        Some(Ok(skip)) => skip,
        _ => {
            let message = format!("{name:?} is not understood; say @last or @last-1");
            return Err(Failure::new(ErrorKind::Invalid, message).into());
        }
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
            let message = format!("there is no run {name}: the store has fewer");
            return Err(Failure::new(ErrorKind::NotFound, message)
                .hint("`logreel ls` lists the runs")
                .into());
        }
    }
}

/// Nobody who says `@last` means a run that the last one started by itself.
fn is_child(entry: &Entry) -> bool {
    let parent = entry.row.facts.parent.as_ref();
    parent.is_some_and(|parent| parent.relation == Relation::Child)
}
