//! `logreel ls`: runs, newest first.

use std::str::FromStr;

use logreel::store::{Cursor, SystemEnv};
use logreel::view::RunView;
use logreel::{Entry, Env as _, ErrorKind, Filter, RunStore, Session, Status, Timestamp};

use crate::error::Failure;
use crate::output::{Output, Page, Paint};
use crate::store::Place;
use crate::table::{self, Cell, Column, left, right};
use crate::{name, text};

const COLUMNS: &[Column] = &[
    left("ID", 8),
    left("STATUS", 21),
    left("AGENT", 14),
    left("SESSION", 10),
    right("AGE", 4),
    right("TOOK", 6),
    right("EVENTS", 9),
    left("INPUT → OUTPUT", usize::MAX),
];

#[derive(clap::Args)]
pub struct Args {
    /// Only with this status, or `orphaned`; repeat it or separate with commas for more
    #[arg(long, value_delimiter = ',', value_name = "STATUS")]
    status: Vec<Shown>,
    /// Only of this session
    #[arg(long, value_name = "S")]
    session: Option<Session>,
    /// Only of this task, agent or workflow
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// Only with this label; repeat for more
    #[arg(long, value_name = "K=V", value_parser = parse_label)]
    label: Vec<(String, String)>,
    /// Only created since: a span such as 1h or 2d, a day, or an RFC 3339 time
    #[arg(long, value_name = "WHEN", value_parser = parse_since)]
    since: Option<Timestamp>,
    /// Only with all these words in input, output, agent or labels
    #[arg(long, value_name = "WORDS")]
    search: Option<String>,
    /// Only those that ended in the same state as RUN
    #[arg(long, value_name = "RUN")]
    same_state: Option<String>,
    /// Only those of the same spec as RUN
    #[arg(long, value_name = "RUN")]
    same_spec: Option<String>,
    /// At most this many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
    /// Go on where the page before ended (its `next`)
    #[arg(long, value_name = "CURSOR")]
    cursor: Option<String>,
}

/// What the column says: a status, or what is made of one when its driver is gone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shown {
    Status(Status),
    Orphaned,
}

impl FromStr for Shown {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "orphaned" => Ok(Self::Orphaned),
            _ => match text.parse() {
                Ok(status) => Ok(Self::Status(status)),
                Err(error) => Err(format!("{error}, or `orphaned`")),
            },
        }
    }
}

pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    let opened = place.open().await?;
    let store = &*opened.store;
    let limit = usize::from(args.limit);
    let cursor = args.cursor.clone().map(Cursor);
    let filter = filter(args, store).await?;
    let page = store.list(&filter, cursor.as_ref(), limit).await?;
    let next = page.next.map(|Cursor(next)| next);
    if out.json {
        let items = page.items.iter().map(RunView::listed).collect();
        out.json_line(&Page {
            items,
            has_more: next.is_some(),
            next,
        })?;
        return Ok(0);
    }
    if page.items.is_empty() {
        let what = if filter == Filter::default() {
            "no runs yet"
        } else {
            "no runs match"
        };
        out.note(format!("{what} in {}", opened.kept.shown()));
        return Ok(0);
    }
    let now = SystemEnv.now();
    let mut rows: Vec<Vec<Cell>> = page.items.iter().map(|entry| row(entry, now)).collect();
    let room = table::room(out, "", COLUMNS, &rows);
    for (row, entry) in rows.iter_mut().zip(&page.items) {
        row.pop();
        row.push(text::in_and_out(&entry.row, room).into());
    }
    table::print(out, "", COLUMNS, &rows)?;
    if let Some(next) = next {
        out.flush()?;
        out.note(format!(
            "there are more: --cursor {next}, or a larger --limit"
        ));
    }
    Ok(0)
}

async fn filter(args: Args, store: &dyn RunStore) -> anyhow::Result<Filter> {
    let status = args.status.iter().filter_map(|shown| match shown {
        Shown::Status(status) => Some(*status),
        Shown::Orphaned => None,
    });
    let mut filter = Filter {
        status: status.collect(),
        orphaned: args.status.contains(&Shown::Orphaned),
        session: args.session,
        agent: args.agent,
        labels: args.label,
        since: args.since,
        search: args.search,
        ..Filter::default()
    };
    if let Some(like) = args.same_spec {
        let run = name::resolve(store, &like).await?;
        filter.spec_digest = Some(store.entry(&run).await?.row.facts.spec_digest);
    }
    if let Some(like) = args.same_state {
        let run = name::resolve(store, &like).await?;
        let row = store.entry(&run).await?.row;
        let ended = row.facts.ended.as_ref().ok_or_else(|| {
            let message = format!(
                "{run} has not ended ({}); it has no final state",
                row.status()
            );
            Failure::new(ErrorKind::NotApplicable, message)
        })?;
        filter.final_state_digest = Some(ended.final_state_digest);
    }
    Ok(filter)
}

fn row(entry: &Entry, now: Timestamp) -> Vec<Cell> {
    let (row, facts) = (&entry.row, &entry.row.facts);
    let took = match &facts.ended {
        Some(ended) => text::duration(ended.at.since(facts.created_at)),
        None => String::new(),
    };
    let session = facts
        .session
        .as_ref()
        .map(|session| text::one_line(session.as_str()));
    vec![
        row.run.short().into(),
        Cell::painted(text::status(entry), Paint::of(entry)),
        text::one_line(&facts.agent).into(),
        session.unwrap_or_default().into(),
        text::age(now.since(facts.created_at)).into(),
        took.into(),
        row.head.seq.to_string().into(),
        text::in_and_out(row, usize::MAX).into(),
    ]
}

pub fn parse_label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(format!("`{text}` is not a label; expected NAME=VALUE")),
    }
}

fn parse_since(text: &str) -> Result<Timestamp, String> {
    logreel::when::since(text, SystemEnv.now())
}
