//! Driving a run in this process and following it until it settles: its end, a wait that only a
//! person can end, or a signal that this process should stop.

use std::cell::Cell;
use std::pin::Pin;
use std::time::Duration;

use logreel::core::Record;
use logreel::store::SystemEnv;
use logreel::view::RunView;
use logreel::{Engine, Entry, Env as _, Error, ErrorKind, Event, RunId, Seq, Status};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::ask::{self, Asked};
use crate::live::terminal;
use crate::outcome::{self, Line};
use crate::output::Output;
use crate::patience::{self, Patience};
use crate::settle::{self, WAITS};
use crate::signals::{Signals, Stop};
use crate::spec::Spec;
use crate::store::Acting;
use crate::text;
use crate::view::View;
use crate::whose::{self, Whose};

/// The live view is drawn this often.
const TICK: Duration = Duration::from_millis(100);
/// A driver that dies rings no bell.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// How many events may wait to be shown.
const AHEAD: usize = 256;

/// A run that is followed.
pub struct Followed {
    run: RunId,
    /// Events before this one are history.
    from: Seq,
    /// Whether it is this process's to pause: it started, resumed or drove it.
    ours: Cell<bool>,
    /// What it goes on under, when that is not what it was started with.
    accepted: Option<Spec>,
}

impl Followed {
    /// One that this process started or resumed.
    pub fn ours(run: RunId, from: Seq) -> Self {
        Self {
            run,
            from,
            ours: Cell::new(true),
            accepted: None,
        }
    }

    /// One that was there already.
    pub fn attached(run: RunId, from: Seq) -> Self {
        Self {
            ours: Cell::new(false),
            ..Self::ours(run, from)
        }
    }

    pub fn under(mut self, accepted: Option<Spec>) -> Self {
        self.accepted = accepted;
        self
    }
}

/// Follows a run, drives it when nobody else does, prints its output, gives leases back, and gives
/// the exit code.
pub async fn to_the_end(
    acting: Acting,
    followed: Followed,
    mut signals: Signals,
    out: &mut Output,
) -> anyhow::Result<u8> {
    let followed = follow(&acting, &followed, &mut signals, out).await;
    terminal::clear();
    // The output must not wait for the leases.
    let flushed = out.flush();
    tokio::select! {
        closed = patience::close(&acting.engine) => closed?,
        // A store that is away makes it long; whoever says so again leaves at once.
        _ = signals.next() => {}
    }
    flushed?;
    followed
}

async fn follow(
    acting: &Acting,
    followed: &Followed,
    signals: &mut Signals,
    out: &mut Output,
) -> anyhow::Result<u8> {
    let run = followed.run;
    let first_look = || async {
        let key = acting.store.key(&run).await?;
        Ok((key, acting.store.entry(&run).await?))
    };
    let mut patience = Patience::default();
    let (key, entry) = loop {
        tokio::select! {
            looked = patience.ask(first_look) => break looked?,
            stop = signals.next() => {
                if let Some(code) = stopped(acting, followed, stop, signals, out).await? {
                    return Ok(code);
                }
            }
        }
    };
    if let Some(limit) = text::in_line(&entry, acting.engine.env().now()) {
        out.note(format!("{} waits: {limit}", run.short()));
    }
    let mut view = View::new(run, key, followed.from, out);
    let mut feed = Feed::new(acting.engine.clone(), run);
    let mut lines = acting.engine.live();
    let mut texts = acting.engine.live_text();
    let mut tick = Box::pin(SystemEnv.sleep(TICK));
    let mut settled: Pin<Box<dyn Future<Output = _>>> = Box::pin(until_settled(acting, followed));
    loop {
        tokio::select! {
            fed = feed.next() => show(fed?, &mut view, &mut feed, out)?,
            Some(line) = lines.next() => view.printed(line.run, &line.step, &line.text),
            Some(text) = texts.next() => view.spoke(&text),
            () = &mut tick => {
                view.draw();
                tick = Box::pin(SystemEnv.sleep(TICK));
            }
            outcome = &mut settled => {
                let (entry, code) = outcome?;
                while !feed.has_seen(entry.row.head.seq) {
                    show(feed.next().await?, &mut view, &mut feed, out)?;
                }
                if code != WAITS || !ask::is_possible(out) {
                    return tell(acting, &view, &entry, code, out).await;
                }
                terminal::clear();
                for words in view.last_words() {
                    out.note(words);
                }
                match ask::about_all(acting, run, signals).await? {
                    Asked::Answered => {}
                    Asked::Nothing => return tell(acting, &view, &entry, code, out).await,
                    Asked::Stopped(stop) => {
                        if let Some(code) = stopped(acting, followed, stop, signals, out).await? {
                            return Ok(code);
                        }
                    }
                }
                settled = Box::pin(until_settled(acting, followed));
            }
            stop = signals.next() => {
                if let Some(code) = stopped(acting, followed, stop, signals, out).await? {
                    return Ok(code);
                }
            }
        }
    }
}

fn show(fed: Fed, view: &mut View, feed: &mut Feed, out: &mut Output) -> anyhow::Result<()> {
    let Fed { run, record, event } = fed;
    if let Some(child) = view.event(run, &record, &event, out)? {
        feed.add(child);
    }
    Ok(())
}

/// The run has settled: its summary, its output, or what to do.
async fn tell(
    acting: &Acting,
    view: &View,
    entry: &Entry,
    code: u8,
    out: &mut Output,
) -> anyhow::Result<u8> {
    view.finish(entry, out);
    let short = entry.row.run.short();
    match entry.row.status() {
        _ if out.json => out.json_line(&Line::run(&RunView::of(entry)))?,
        Status::Completed => outcome::tell(&*acting.store, entry, out).await?,
        Status::Failed => {
            if entry.row.facts.verification.is_some() {
                out.note(format!(
                    "  logreel show {short}   has the report of the checks"
                ));
            }
            out.note(format!(
                "  logreel retry {short}   goes on from what finished"
            ));
        }
        _ => {}
    }
    if code == WAITS && acting.kept.is_memory() {
        out.note("  a store in memory ends here; with --store FILE it could go on later");
    } else if code == WAITS {
        for line in outcome::how_to_go_on(&*acting.store, &entry.row.run).await? {
            out.note(format!("  {line}"));
        }
    }
    Ok(code)
}

/// Waits until the run has settled, and has it driven whenever it could go on.
async fn until_settled(acting: &Acting, followed: &Followed) -> anyhow::Result<(Entry, u8)> {
    let mut doorbell = acting.store.watch(&followed.run);
    let mut patience = Patience::default();
    loop {
        // A store that is away says nothing of the run, whose driver waits too.
        let looked = patience.bear(look(acting, followed).await)?;
        if let Some(settled) = looked.flatten() {
            return Ok(settled);
        }
        tokio::select! {
            _ = doorbell.rung() => {}
            () = SystemEnv.sleep(LOOK_AGAIN) => {}
        }
    }
}

/// The run and its exit code, if it has settled; otherwise it is seen to that someone drives it.
async fn look(acting: &Acting, followed: &Followed) -> anyhow::Result<Option<(Entry, u8)>> {
    let run = followed.run;
    let entry = acting.store.entry(&run).await?;
    if let Some(code) = settle::code(&*acting.store, &entry).await? {
        return Ok(Some((entry, code)));
    }
    if !entry.is_driven() {
        go_on(acting, &run, followed.accepted.as_ref()).await?;
    }
    let driver = entry.driver.as_ref();
    if !followed.ours.get() && driver.is_some_and(whose::is_this_process) {
        followed.ours.set(true);
    }
    Ok(None)
}

/// Takes the run and its children that nobody drives and that are ready. A run that waits for a time
/// or a child is taken when that has come. The run itself goes on under what was accepted.
pub async fn go_on(acting: &Acting, run: &RunId, accepted: Option<&Spec>) -> anyhow::Result<()> {
    let now = acting.engine.env().now();
    for entry in settle::tree(&*acting.store, run).await? {
        let stopped = entry.row.facts.waits.iter();
        let stopped = stopped
            .clone()
            .any(|open| open.wait.kind.stops_everything());
        let ready = entry.row.status() != Status::Waiting
            || entry.ready_at.is_some_and(|ready_at| ready_at <= now);
        if stopped || !ready || entry.is_driven() || entry.row.status().is_terminal() {
            continue;
        }
        let resumed = match accepted.filter(|_| entry.row.run == *run) {
            Some(spec) => spec.resume(&acting.engine, run).await,
            None => acting.engine.resume(&entry.row.run).await,
        };
        match resumed {
            // It ended, was taken or began to wait since it was looked at.
            Ok(_) | Err(Error::Driven { .. } | Error::Waiting { .. } | Error::Ended { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// What a signal leads to; `None` when the run has ended meanwhile, which will be told. A pause waits for a store that is
/// away; whoever must go does not.
async fn stopped(
    acting: &Acting,
    followed: &Followed,
    stop: Stop,
    signals: &mut Signals,
    out: &mut Output,
) -> anyhow::Result<Option<u8>> {
    terminal::clear();
    let short = followed.run.short();
    let mut patience = Patience::default();
    loop {
        let obeyed = tokio::select! {
            obeyed = obey(acting, followed, stop, out) => obeyed,
            _ = signals.next() => leave_at_once(stop),
        };
        if let Some(code) = patience.bear(obeyed)? {
            return Ok(code);
        }
        if stop == Stop::Terminate {
            out.note(format!(
                "{short} is let go; a worker or `logreel resume {short}` goes on once the store is back"
            ));
            return Ok(Some(stop.code()));
        }
        tokio::select! {
            () = patience::pause() => {}
            _ = signals.next() => leave_at_once(stop),
        }
    }
}

/// Does what a signal asks for. Who only watches stops watching: the work of others is not paused.
async fn obey(
    acting: &Acting,
    followed: &Followed,
    stop: Stop,
    out: &mut Output,
) -> anyhow::Result<Option<u8>> {
    let run = followed.run;
    let short = run.short();
    let entry = acting.store.entry(&run).await?;
    if entry.row.status().is_terminal() {
        return Ok(None);
    }
    let whose = whose::find(&*acting.store, &run).await?;
    if let Whose::Theirs(owner) = whose {
        out.note(format!(
            "{short} goes on: it is driven by {owner}; `logreel cancel {short}` ends it"
        ));
    } else if matches!(whose, Whose::Nobodys) && !followed.ours.get() {
        out.note(format!(
            "{short} stays as it is; a worker or `logreel resume {short}` goes on"
        ));
    } else if stop == Stop::Terminate {
        out.note(format!(
            "{short} is handed back; a worker or `logreel resume {short}` goes on"
        ));
    } else {
        out.note("pausing; Ctrl-C again leaves at once");
        if !pause(acting, &run).await? {
            return Ok(None);
        }
        out.note(format!(
            "{short} is paused: `logreel resume {short}` goes on, `logreel cancel {short}` ends it"
        ));
        for line in outcome::doubts(&*acting.store, &run).await? {
            out.note(line);
        }
    }
    if out.json {
        let entry = acting.store.entry(&run).await?;
        out.json_line(&Line::run(&RunView::of(&entry)))?;
    }
    Ok(Some(stop.code()))
}

/// Pauses the run and waits until nobody drives it or a child of it, for as long as the store is away too. False when it
/// has ended.
pub async fn pause(acting: &Acting, run: &RunId) -> anyhow::Result<bool> {
    let mut patience = Patience::default();
    let paused = patience.ask(|| async { Ok(acting.engine.pause(run, "Ctrl-C").await?) });
    if let Err(error) = paused.await {
        let error = error.downcast::<Error>()?;
        if error.kind() == ErrorKind::Terminal {
            return Ok(false);
        }
        return Err(error.into());
    }
    let mut doorbell = acting.store.watch(run);
    loop {
        let tree = patience.ask(|| async { Ok(settle::tree(&*acting.store, run).await?) });
        if !tree.await?.iter().any(Entry::is_driven) {
            return Ok(true);
        }
        // A lease that is given back does not always ring.
        tokio::select! {
            _ = doorbell.rung() => {}
            () = SystemEnv.sleep(Duration::from_millis(20)) => {}
        }
    }
}

/// Without giving anything back: whoever drives next finds the run as after a crash.
pub fn leave_at_once(stop: Stop) -> ! {
    terminal::clear();
    std::process::exit(stop.code().into())
}

/// An event on its way to the view.
struct Fed {
    run: RunId,
    record: Record,
    event: Event,
}

/// The events of a run and of the children that are followed too, each run's in order.
struct Feed {
    engine: Engine,
    root: RunId,
    seen: Seq,
    ended: bool,
    sender: mpsc::Sender<Result<Fed, Error>>,
    receiver: mpsc::Receiver<Result<Fed, Error>>,
    pumps: JoinSet<()>,
}

impl Feed {
    fn new(engine: Engine, root: RunId) -> Self {
        let (sender, receiver) = mpsc::channel(AHEAD);
        let mut feed = Self {
            engine,
            root,
            seen: Seq::NONE,
            ended: false,
            sender,
            receiver,
            pumps: JoinSet::new(),
        };
        feed.add(root);
        feed
    }

    fn add(&mut self, run: RunId) {
        self.pumps
            .spawn(pump(self.engine.clone(), run, self.sender.clone()));
    }

    /// The next event; none comes after the runs have ended.
    async fn next(&mut self) -> Result<Fed, Error> {
        let fed = match self.receiver.recv().await {
            Some(fed) => fed?,
            None => std::future::pending().await,
        };
        if fed.run == self.root {
            self.seen = fed.record.seq;
            self.ended |= fed.event.body.is_terminal();
        }
        Ok(fed)
    }

    /// Whether the run's events up to this one have come. Late facts are not followed.
    fn has_seen(&self, head: Seq) -> bool {
        self.ended || self.seen >= head
    }
}

async fn pump(engine: Engine, run: RunId, sender: mpsc::Sender<Result<Fed, Error>>) {
    while let Err(error) = engine.run(run).entry().await {
        match error.kind() {
            // A child is announced before it exists.
            ErrorKind::NotFound => SystemEnv.sleep(Duration::from_millis(20)).await,
            ErrorKind::Unavailable => patience::pause().await,
            _ => break,
        }
    }
    let mut records = engine.run(run).records(Seq::FIRST);
    while let Some(record) = records.next().await {
        let fed = record.and_then(|record| {
            let event = record.decode().map_err(logreel::store::Error::from)?;
            Ok(Fed { run, record, event })
        });
        match fed {
            // Told of by whoever looks whether the run has settled.
            Err(error) if error.kind() == ErrorKind::Unavailable => patience::pause().await,
            // Whoever followed is gone.
            fed => {
                if sender.send(fed).await.is_err() {
                    return;
                }
            }
        }
    }
}
