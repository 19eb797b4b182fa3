//! Runs: the list, and one of them.

use axum::http::header;
use logreel::store::Cursor;
use logreel::view::RunView;
use logreel::{ErrorKind, Filter, Seq, Status};

use crate::Problem;
use crate::answer::{self, Page};
use crate::call::Call;
use crate::operation::Answered;

const LIMIT: u64 = 50;
pub(crate) const LIMIT_MAX: u64 = 1000;
/// A page that would be longer ends sooner.
const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Runs that are read at a time: a row may hold megabytes of state that no list shows.
const READ: usize = 16;

/// `GET /v1/runs`
pub(crate) async fn list(call: Call) -> Answered {
    let filter = filter(&call).await?;
    let limit = call.number("limit", 1..=LIMIT_MAX)?.unwrap_or(LIMIT);
    let limit = usize::try_from(limit).unwrap_or(1);
    let mut next = call.query("cursor").map(|it| Cursor(it.to_owned()));
    let store = call.app.engine.store();
    let (mut items, mut bytes) = (Vec::new(), 0);
    loop {
        let read = READ.min(limit - items.len());
        let page = store.list(&filter, next.as_ref(), read).await?;
        let before = bytes;
        for entry in &page.items {
            let run = answer::raw(&RunView::listed(entry))?;
            bytes += run.get().len();
            items.push(run);
        }
        next = page.next;
        // As if the next ones were as long as these.
        let is_full = bytes + (bytes - before) > PAGE_BYTES_MAX;
        if next.is_none() || items.len() >= limit || is_full {
            break;
        }
    }
    let next = next.map(|Cursor(next)| next);
    answer::json(&Page {
        items,
        has_more: next.is_some(),
        next,
    })
}

async fn filter(call: &Call) -> Result<Filter, Problem> {
    let mut filter = Filter {
        session: call.parsed("session")?,
        agent: call.query("agent").map(str::to_owned),
        search: call.query("search").map(str::to_owned),
        ..Filter::default()
    };
    for text in call.queries("status").flat_map(|it| it.split(',')) {
        if text == "orphaned" {
            filter.orphaned = true;
            continue;
        }
        let status: Status = text
            .parse()
            .map_err(|error| Problem::usage(format!("`status`: {error}, or `orphaned`")))?;
        filter.status.push(status);
    }
    for text in call.queries("label") {
        match text.split_once('=') {
            Some((name, value)) if !name.is_empty() => {
                filter.labels.push((name.to_owned(), value.to_owned()));
            }
            _ => {
                let detail = format!("`label` is {text:?}; expected NAME=VALUE");
                return Err(Problem::usage(detail));
            }
        }
    }
    if let Some(text) = call.query("since") {
        let since = logreel::when::since(text, call.app.engine.env().now());
        filter.since = Some(since.map_err(|why| Problem::usage(format!("`since`: {why}")))?);
    }
    if let Some(parent) = call.query("parent") {
        filter.parent = Some(call.run_named(parent).await?);
    }
    let store = call.app.engine.store();
    if let Some(like) = call.query("same_spec") {
        let run = call.run_named(like).await?;
        filter.spec_digest = Some(store.entry(&run).await?.row.facts.spec_digest);
    }
    if let Some(like) = call.query("same_state") {
        let run = call.run_named(like).await?;
        let row = store.entry(&run).await?.row;
        let ended = row.facts.ended.as_ref().ok_or_else(|| {
            let status = row.status();
            let detail = format!("{run} has not ended ({status}); it has no final state");
            Problem::new(ErrorKind::NotApplicable, detail)
        })?;
        filter.final_state_digest = Some(ended.final_state_digest);
    }
    Ok(filter)
}

/// `GET /v1/runs/{id}`
pub(crate) async fn one(call: Call) -> Answered {
    let run = call.run().await?;
    let engine = &call.app.engine;
    let entry = match call.number("at", 1..=u64::MAX)? {
        Some(at) => engine.entry_at(&run, Seq(at)).await?,
        None => engine.store().entry(&run).await?,
    };
    let tag = answer::tag(&entry);
    if answer::has(&call.headers, &tag) {
        return Ok(answer::not_modified(tag));
    }
    if call.flag("steps")? == Some(false) {
        let mut response = answer::json(&RunView::of(&entry))?;
        response.headers_mut().insert(header::ETAG, tag);
        return Ok(response);
    }
    answer::whole(&call.app, &entry).await
}
