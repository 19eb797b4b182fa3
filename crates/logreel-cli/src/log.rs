//! `logreel log`: a run's events, and more of them as they come.

use std::collections::HashMap;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::task::Poll;

use logreel::core::{Record, RunKey};
use logreel::view::EventView;
use logreel::{Body, RunId, RunStore, Seq};
use serde_json::Value;

use crate::output::{Output, Paint};
use crate::patience::{self, Patience};
use crate::reading::Pages;
use crate::store::Place;
use crate::{name, said, summary, text};

#[derive(clap::Args)]
pub struct Args {
    /// Which run
    run: String,
    /// Go on with what comes, up to the run's end
    #[arg(long, short)]
    follow: bool,
    /// Begin at this event
    #[arg(long, value_name = "SEQ", default_value_t = 1)]
    from: u64,
    /// Only events of this kind, such as step.finished or step; repeat for more
    #[arg(long, value_name = "KIND", value_parser = parse_kind)]
    kind: Vec<String>,
}

pub async fn run(args: Args, place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    let opened = place.open().await?;
    let run = name::resolve(&*opened.store, &args.run).await?;
    let mut printer = Printer {
        out,
        run,
        store: &*opened.store,
        keys: HashMap::new(),
        kinds: args.kind,
        day: String::new(),
        origin: None,
    };
    let from = Seq(args.from);
    if !args.follow {
        let mut pages = Pages::new(&*opened.store, run, from, Seq(u64::MAX));
        loop {
            let page = pages.next().await?;
            if page.is_empty() {
                return Ok(0);
            }
            for record in &page {
                printer.print(record).await?;
            }
        }
    }
    let mut records = opened.engine.run(run).records(from);
    let mut patience = Patience::default();
    loop {
        let mut next = pin!(records.next());
        // What is there is printed together; before waiting for more, it must be seen.
        let record = match poll_fn(|context| Poll::Ready(next.as_mut().poll(context))).await {
            Poll::Ready(record) => record,
            Poll::Pending => {
                printer.out.flush()?;
                next.await
            }
        };
        let Some(record) = record else {
            return Ok(0);
        };
        let Some(record) = patience.bear(record.map_err(Into::into))? else {
            printer.out.flush()?;
            patience::pause().await;
            continue;
        };
        while patience.bear(printer.print(&record).await)?.is_none() {
            patience::pause().await;
        }
    }
}

struct Printer<'o> {
    out: &'o mut Output,
    run: RunId,
    store: &'o dyn RunStore,
    /// Of the run and of those it shares events with.
    keys: HashMap<RunId, Option<RunKey>>,
    kinds: Vec<String>,
    day: String,
    /// Whose event was printed last, when it was not the run's own.
    origin: Option<RunId>,
}

impl Printer<'_> {
    async fn print(&mut self, record: &Record) -> anyhow::Result<()> {
        if !self.kinds.is_empty() && !self.kinds.iter().any(|kind| is_of(&record.kind, kind)) {
            return Ok(());
        }
        if self.out.json {
            let key = self.key(record.origin.unwrap_or(self.run)).await?;
            let view = EventView::of(self.run, record, key.as_ref());
            return self.out.json_line(&view);
        }
        if let Some(origin) = record.origin.filter(|_| self.origin != record.origin) {
            let shared = self.out.paint(Paint::Dim, &format!("shared with {origin}"));
            self.out.line(shared)?;
        }
        self.origin = record.origin;
        let at = record.at.to_string();
        if self.day != at[..10] {
            at[..10].clone_into(&mut self.day);
            let day = self.out.paint(Paint::Dim, &format!("{} UTC", self.day));
            self.out.line(day)?;
        }
        let (seq, time) = (format!("{:>5}", record.seq.0), &at[11..23]);
        let kind = format!("{:<16}", text::one_line(&record.kind));
        let taken = seq.len() + time.len() + kind.len() + 3;
        let mut summary = summary::of(record);
        if let Some(words) = self.words(record).await? {
            summary = format!("{summary} {words}");
        }
        let summary = text::fit(&summary, self.out.line_width().saturating_sub(taken));
        let time = self.out.paint(Paint::Dim, time);
        let kind = match paint(&record.kind) {
            Some(paint) => self.out.paint(paint, &kind),
            None => kind,
        };
        self.out
            .line(format!("{seq} {time} {kind} {summary}").trim_end())?;
        Ok(())
    }

    /// What a message says: its event has only the name of the node that does.
    async fn words(&self, record: &Record) -> anyhow::Result<Option<String>> {
        if record.kind != "message.added" {
            return Ok(None);
        }
        let Ok(Body::MessageAdded(added)) = record.decode().map(|event| event.body) else {
            return Ok(None);
        };
        // Answers and results have events of their own.
        if added.role != "user" {
            return Ok(None);
        }
        let node = self.store.blob(&added.node).await?;
        let node = node.and_then(|bytes| serde_json::from_slice::<Value>(&bytes).ok());
        let said = node.map(|node| said::of_message(&node["message"]));
        Ok(said.map(said::with_calls))
    }

    async fn key(&mut self, writer: RunId) -> anyhow::Result<Option<RunKey>> {
        if self.keys.is_empty() {
            self.keys.extend(self.store.keys(&self.run).await?);
        }
        Ok(self.keys.get(&writer).copied().flatten())
    }
}

fn paint(kind: &str) -> Option<Paint> {
    match kind {
        "run.completed" => Some(Paint::Good),
        kind if kind.ends_with(".failed") || kind.ends_with(".in_doubt") => Some(Paint::Bad),
        "run.cancelled" => Some(Paint::Bad),
        "wait.started" => Some(Paint::Waits),
        _ => None,
    }
}

/// `step` means every kind of step event.
fn is_of(kind: &str, asked: &str) -> bool {
    kind.strip_prefix(asked)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

fn parse_kind(text: &str) -> Result<String, String> {
    if Body::KINDS.iter().any(|kind| is_of(kind, text)) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "`{text}` is not a kind of event; such are {}",
        Body::KINDS.join(" ")
    ))
}
