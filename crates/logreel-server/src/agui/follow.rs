//! Following a run for an AG-UI client: what the log has, what is said right now, and what comes.
//!
//! The client pulls: what it is told next is read when it asks, a bounded piece at a time, and nothing is
//! queued for one that does not read.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use logreel::store::Doorbell;
use logreel::{ErrorKind, LiveText, RunId, RunStore, Seq, Session, Status};

use super::past::{PAGE, Until, fact, feed, said_before};
use super::sent::Sent;
use super::translate::{Listener, Translator};
use super::{messages, waits};
use crate::Problem;
use crate::app::App;
use crate::events::{ALIVE, KEEP_ALIVE};
use crate::metrics::Watching;
use crate::said::{Ear, Heard, Mark};

/// What is written at a time, and at most one event more.
const WRITTEN_BYTES: usize = 256 * 1024;
/// How often one that waits for its children looks whether they wait for a person.
const LOOK_AT_CHILDREN: Duration = Duration::from_millis(500);
/// After so many looks it says that it is alive.
const LOOKS_QUIET: u32 = 30;

/// One who follows a run for a client.
pub(crate) struct Follower {
    app: App,
    store: Arc<dyn RunStore>,
    run: RunId,
    translator: Translator,
    next: Seq,
    bell: Doorbell,
    /// What models say meanwhile.
    ear: Ear,
    /// How it begins; `None` once that is sent.
    beginning: Option<String>,
    /// Whether there may be something to read.
    look: bool,
    /// Whether it waits, and its children may come to wait for a person.
    waits: bool,
    /// How often it looked at them.
    looks: u32,
    ended: bool,
    #[expect(dead_code, reason = "counts for as long as this lives")]
    watching: Watching,
}

impl Follower {
    /// Begins to follow: from the run's first event, or for one who joins from where it is.
    pub(crate) async fn open(
        app: &App,
        run: RunId,
        session: &Session,
        mut listener: Listener,
        joins: bool,
    ) -> Result<Self, Problem> {
        let store = Arc::clone(app.engine.store());
        // The bell and the ear first, the log second: what comes in between is not missed.
        let bell = store.watch(&run);
        let mut ear = app.hear(run);
        if joins {
            let before = said_before(&*store, session, &run).await?;
            listener.messages = messages::merged(&listener.messages, &before);
        }
        let mut translator = Translator::new(run, listener);
        let mut next = Seq::FIRST;
        if joins {
            let until = Until::TheEnd(&mut ear);
            next = feed(&*store, run, &mut translator, until).await?;
        }
        let beginning = frames(&translator.begin(joins));
        Ok(Self {
            watching: app.metrics.watching(),
            app: app.clone(),
            store,
            run,
            translator,
            next,
            bell,
            ear,
            beginning: Some(beginning),
            look: true,
            waits: false,
            looks: 0,
            ended: false,
        })
    }

    /// What is sent next; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        if let Some(beginning) = self.beginning.take() {
            return Some(beginning.into());
        }
        loop {
            if self.ended {
                return None;
            }
            let looked = self.look;
            let sent = match looked {
                true => match self.read().await {
                    Ok(sent) => sent,
                    Err(problem) => self.give_up(problem.detail().to_owned(), problem.kind()),
                },
                false => self.hear(),
            };
            if !sent.is_empty() {
                return Some(sent.into());
            }
            // What was read may let something be heard, and what was heard may be to be read.
            if looked || self.look {
                continue;
            }
            let pause = match self.waits {
                true => LOOK_AT_CHILDREN,
                false => KEEP_ALIVE,
            };
            let pause = self.app.engine.env().sleep(pause);
            tokio::select! {
                biased;
                () = self.app.stopped() => {
                    let message = "the server stops; the same request goes on where this ends";
                    return Some(self.give_up(message.to_owned(), ErrorKind::Unavailable).into());
                }
                rung = self.bell.rung() => match rung {
                    true => self.look = true,
                    false => {
                        let message = "the store is gone".to_owned();
                        return Some(self.give_up(message, ErrorKind::Unavailable).into());
                    }
                },
                () = self.ear.rung() => {}
                () = pause => {
                    self.look = self.waits;
                    self.looks += 1;
                    if !self.waits || self.looks.is_multiple_of(LOOKS_QUIET) {
                        return Some(Bytes::from_static(ALIVE));
                    }
                }
            }
        }
    }

    fn give_up(&mut self, message: String, kind: ErrorKind) -> String {
        self.ended = true;
        frames(&self.translator.give_up(message, kind.as_str()))
    }

    /// What is said right now.
    fn hear(&mut self) -> String {
        match self.ear.hear() {
            Heard::Pieces(pieces) => self.words(&pieces),
            Heard::New => {
                self.look = true;
                String::new()
            }
            Heard::Nothing => String::new(),
        }
    }

    fn words(&mut self, pieces: &[LiveText]) -> String {
        let sent = pieces.iter().flat_map(|text| self.translator.hear(text));
        frames(&sent.collect::<Vec<_>>())
    }

    /// What the log has; where it ends, whether the run waits for a person.
    async fn read(&mut self) -> Result<String, Problem> {
        self.ear.notice();
        let page = self.store.events(&self.run, self.next, PAGE).await?;
        if page.items.is_empty() {
            return self.at_the_end().await;
        }
        let mut written = String::new();
        for event in page.items {
            if let Some(mark) = Mark::of(&event.body).filter(|_| !event.late) {
                // The last words come before what they are sealed by, a part at a time.
                while mark.is_seal()
                    && let Heard::Pieces(pieces) = self.ear.hear()
                {
                    written.push_str(&self.words(&pieces));
                    // Of some pieces nothing is told.
                    if !written.is_empty() {
                        return Ok(written);
                    }
                }
                self.ear.mark(&mark);
            }
            self.next = event.seq.next();
            self.ended |= event.body.is_terminal() || event.late;
            let fact = fact(&*self.store, event).await?;
            written.push_str(&frames(&self.translator.take(&fact)));
            // What is left of the page is read again.
            if self.ended || written.len() >= WRITTEN_BYTES {
                break;
            }
        }
        Ok(written)
    }

    async fn at_the_end(&mut self) -> Result<String, Problem> {
        let row = self.store.entry(&self.run).await?.row;
        // Something may have come between the two.
        self.look = row.head.seq >= self.next;
        if self.look {
            return Ok(String::new());
        }
        self.ear.admit();
        self.waits = row.status() == Status::Waiting;
        if self.waits {
            let interrupts = waits::interrupts(&*self.store, &self.run, &self.translator).await?;
            if !interrupts.is_empty() {
                self.ended = true;
                return Ok(frames(&self.translator.interrupt(interrupts)));
            }
        }
        Ok(String::new())
    }
}

fn frames(sent: &[Sent]) -> String {
    sent.iter().map(Sent::frame).collect()
}
