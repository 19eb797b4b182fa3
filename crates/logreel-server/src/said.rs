//! What models are saying right now, for whoever watches: each answer from its beginning, without a hole.
//!
//! Live text is told once, to those who listen at that moment. Here each answer under way is kept, up to a
//! size, and a watcher pulls what it has not heard of it: whoever joins in the middle begins at the beginning,
//! whoever is slow hears more pieces at a time, and nothing is queued for anyone. Of an answer that is not kept
//! whole nothing more is told before the next one begins.
//!
//! In the log an answer stands between its call and its seal. The call is stored before the first word is said, and
//! the last word is said before the seal is stored. So an [`Ear`] tells nothing of an answer before its call was read, or
//! the log as far as it reached when the answer was noticed, and nothing after the seal.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use logreel::core::CallId;
use logreel::{Body, Engine, LiveText, LiveTexts, Missed, RunId, Shown};
use serde::Deserialize;
use tokio::sync::watch;

/// A longer answer is told when it is complete.
const ANSWER_BYTES_MAX: usize = 2 * 1024 * 1024;
/// What is kept of all of them; the oldest go first.
const BYTES_MAX: usize = 16 * 1024 * 1024;
/// What a piece counts beside its words.
const PIECE_BYTES: usize = 16;
/// What is told at a time, and at most a piece more.
const TOLD_BYTES: usize = 64 * 1024;

/// The answers under way in this process.
#[derive(Default)]
pub(crate) struct Said {
    kept: Arc<Mutex<Kept>>,
    listening: OnceLock<()>,
}

#[derive(Default)]
struct Kept {
    /// What has not been looked at yet; `None` before anyone listens.
    texts: Option<LiveTexts>,
    /// The latest of each run.
    answers: HashMap<RunId, Answer>,
    by_age: BTreeMap<u64, RunId>,
    bytes: usize,
    /// How many answers there were.
    count: u64,
    bells: HashMap<RunId, watch::Sender<()>>,
}

/// What was said so far.
struct Answer {
    number: u64,
    call: CallId,
    attempt: u32,
    words: String,
    /// Each with where it ends.
    pieces: Vec<(Sort, usize)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sort {
    Text,
    Thinking,
    ToolCall,
}

impl Answer {
    fn bytes(&self) -> usize {
        self.words.len() + (1 + self.pieces.len()) * PIECE_BYTES
    }
}

impl Said {
    /// Begins to keep what this engine's models say, if that has not begun.
    pub(crate) fn listen(&self, engine: &Engine) {
        self.listening.get_or_init(|| {
            lock(&self.kept).texts = Some(engine.live_text());
            let (kept, mut texts) = (Arc::downgrade(&self.kept), engine.live_text());
            // It ends with the engine, or with the server that asks.
            tokio::spawn(async move {
                while texts.next().await.is_some() {
                    let Some(kept) = kept.upgrade() else { return };
                    lock(&kept).look();
                }
            });
        });
    }

    /// Listens to one run. What the log says is to be [marked](Ear::mark) from its first event on.
    pub(crate) fn ear(&self, run: RunId) -> Ear {
        let mut kept = lock(&self.kept);
        // Forget the bells nobody listens to, when there are many.
        if kept.bells.len() >= 1024 && kept.bells.len().is_power_of_two() {
            kept.bells.retain(|_, bell| bell.receiver_count() > 0);
        }
        Ear {
            kept: Arc::clone(&self.kept),
            run,
            bell: kept.bells.entry(run).or_default().subscribe(),
            called: None,
            noticed: 0,
            admitted: 0,
            skipped: 0,
            place: Place::default(),
        }
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kept {
    /// Takes in what was said since the last look.
    fn look(&mut self) {
        let Some(mut texts) = self.texts.take() else {
            return;
        };
        while let Some(said) = texts.try_next() {
            match said {
                Ok(text) => self.take(text),
                Err(Missed { pieces }) => {
                    tracing::debug!(pieces, "answers are not kept whole");
                    self.answers.clear();
                    self.by_age.clear();
                    self.bytes = 0;
                }
            }
        }
        self.texts = Some(texts);
    }

    fn take(&mut self, text: LiveText) {
        let run = text.run;
        match &text.shown {
            Shown::Reset => self.begin(&text),
            Shown::Text(words) => self.add(&text, Sort::Text, words),
            Shown::Thinking(words) => self.add(&text, Sort::Thinking, words),
            Shown::ToolCall(name) => self.add(&text, Sort::ToolCall, name),
        }
        if let Some(bell) = self.bells.get(&run)
            && bell.send(()).is_err()
        {
            self.bells.remove(&run);
        }
    }

    fn begin(&mut self, text: &LiveText) {
        self.forget(&text.run);
        self.count += 1;
        self.by_age.insert(self.count, text.run);
        let answer = Answer {
            number: self.count,
            call: text.call.clone(),
            attempt: text.attempt,
            words: String::new(),
            pieces: Vec::new(),
        };
        self.bytes += answer.bytes();
        self.answers.insert(text.run, answer);
    }

    fn add(&mut self, text: &LiveText, sort: Sort, words: &str) {
        let Some(answer) = self.answers.get_mut(&text.run) else {
            return;
        };
        if words.is_empty() || (&answer.call, answer.attempt) != (&text.call, text.attempt) {
            return;
        }
        answer.words.push_str(words);
        answer.pieces.push((sort, answer.words.len()));
        self.bytes += words.len() + PIECE_BYTES;
        if answer.bytes() > ANSWER_BYTES_MAX {
            self.forget(&text.run);
        }
        while self.bytes > BYTES_MAX
            && let Some((_, oldest)) = self.by_age.first_key_value()
        {
            let oldest = *oldest;
            self.forget(&oldest);
        }
    }

    fn forget(&mut self, run: &RunId) {
        if let Some(answer) = self.answers.remove(run) {
            self.by_age.remove(&answer.number);
            self.bytes -= answer.bytes();
        }
    }
}

/// What an event says of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mark {
    /// It begins.
    Called { call: CallId, attempt: u32 },
    /// It is over: what counts of it is in the log.
    Sealed { call: CallId },
}

impl Mark {
    /// Of an event as it is stored.
    pub(crate) fn of_stored(kind: &str, body: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct Named {
            call: CallId,
            #[serde(default)]
            attempt: u32,
        }
        if !matches!(kind, "model.called" | "model.answered" | "model.failed") {
            return None;
        }
        let Named { call, attempt } = serde_json::from_str(body).ok()?;
        Some(match kind {
            "model.called" => Self::Called { call, attempt },
            _ => Self::Sealed { call },
        })
    }

    pub(crate) fn of(body: &Body) -> Option<Self> {
        let sealed = |call: &CallId| Self::Sealed { call: call.clone() };
        match body {
            Body::ModelCalled(it) => Some(Self::Called {
                call: it.call.clone(),
                attempt: it.attempt,
            }),
            Body::ModelAnswered(it) => Some(sealed(&it.call)),
            Body::ModelFailed(it) => Some(sealed(&it.call)),
            _ => None,
        }
    }

    pub(crate) fn is_seal(&self) -> bool {
        matches!(self, Self::Sealed { .. })
    }
}

/// One who listens to a run, beside its log.
pub(crate) struct Ear {
    kept: Arc<Mutex<Kept>>,
    run: RunId,
    bell: watch::Receiver<()>,
    /// The last call that the log has.
    called: Option<(CallId, u32)>,
    /// The latest answer that had begun when the log was looked at.
    noticed: u64,
    /// The latest answer that may be told.
    admitted: u64,
    /// The latest answer that is not told.
    skipped: u64,
    place: Place,
}

/// How much of an answer was told.
#[derive(Default)]
struct Place {
    answer: u64,
    pieces: usize,
    bytes: usize,
}

/// What there is to hear.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    /// Nothing that was not told.
    Nothing,
    /// An answer began: the log is to be read before it is told.
    New,
    /// What follows; an answer begins with [`Shown::Reset`].
    Pieces(Vec<LiveText>),
}

impl Ear {
    /// Waits until there may be something to hear.
    pub(crate) async fn rung(&mut self) {
        if self.bell.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Before the log is read: what has begun by now may be told once it was read to its end.
    pub(crate) fn notice(&mut self) {
        let mut kept = lock(&self.kept);
        kept.look();
        let answer = kept.answers.get(&self.run);
        self.noticed = answer.map_or(self.noticed, |answer| answer.number);
    }

    /// The log was read to its end since the last [`notice`](Self::notice).
    pub(crate) fn admit(&mut self) {
        self.admitted = self.noticed;
    }

    /// Whether something is being said.
    pub(crate) fn has_answer(&self) -> bool {
        let mut kept = lock(&self.kept);
        kept.look();
        kept.answers.contains_key(&self.run)
    }

    /// Leaves out the answer that is there: nobody knows what the log says of it.
    pub(crate) fn skip(&mut self) {
        self.notice();
        self.skipped = self.noticed;
    }

    /// What the log says: nothing is told of an answer behind its seal.
    pub(crate) fn mark(&mut self, mark: &Mark) {
        match mark {
            Mark::Called { call, attempt } => self.called = Some((call.clone(), *attempt)),
            Mark::Sealed { call } => {
                let called = self.called.take_if(|(called, _)| called == call);
                let attempt = called.map_or(u32::MAX, |(_, attempt)| attempt);
                let mut kept = lock(&self.kept);
                // What was said before the seal is here by now, and so is not taken for something new.
                kept.look();
                let answer = kept.answers.get(&self.run);
                if let Some(answer) = answer.filter(|it| it.call == *call && it.attempt <= attempt)
                {
                    self.skipped = answer.number;
                }
            }
        }
    }

    /// What was said since the last time, of the answer that may be told.
    pub(crate) fn hear(&mut self) -> Heard {
        self.bell.mark_unchanged();
        let mut kept = lock(&self.kept);
        kept.look();
        let answer = kept.answers.get(&self.run);
        let Some(answer) = answer.filter(|answer| answer.number > self.skipped) else {
            return Heard::Nothing;
        };
        // One whose call was read and whose seal was not is told at once: a quick one would not be otherwise.
        let is_called =
            |(call, attempt): &(CallId, u32)| (call, *attempt) == (&answer.call, answer.attempt);
        if answer.number > self.admitted && !self.called.as_ref().is_some_and(is_called) {
            return Heard::New;
        }
        let piece = |shown| LiveText {
            run: self.run,
            call: answer.call.clone(),
            attempt: answer.attempt,
            shown,
        };
        let mut pieces = Vec::new();
        if self.place.answer != answer.number {
            self.place = Place {
                answer: answer.number,
                ..Place::default()
            };
            pieces.push(piece(Shown::Reset));
        }
        let until = self.place.bytes + TOLD_BYTES;
        for (sort, end) in &answer.pieces[self.place.pieces..] {
            let words = answer.words[self.place.bytes..*end].into();
            pieces.push(piece(match sort {
                Sort::Text => Shown::Text(words),
                Sort::Thinking => Shown::Thinking(words),
                Sort::ToolCall => Shown::ToolCall(words),
            }));
            self.place.pieces += 1;
            self.place.bytes = *end;
            if *end >= until {
                break;
            }
        }
        match pieces.is_empty() {
            true => Heard::Nothing,
            false => Heard::Pieces(pieces),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run() -> RunId {
        RunId::from_bytes([1; 16])
    }

    fn call(number: u32) -> CallId {
        CallId::new(format!("m{number}.turn")).unwrap()
    }

    fn piece(number: u32, attempt: u32, shown: Shown) -> LiveText {
        LiveText {
            run: run(),
            call: call(number),
            attempt,
            shown,
        }
    }

    fn text(words: &str) -> Shown {
        Shown::Text(words.into())
    }

    fn caught_up(ear: &mut Ear) -> Heard {
        ear.notice();
        ear.admit();
        ear.hear()
    }

    #[test]
    fn whoever_joins_or_is_slow_hears_the_whole_answer_once() {
        let said = Said::default();
        let take = |shown| lock(&said.kept).take(piece(1, 1, shown));
        let pieces = |shown: &[Shown]| {
            let pieces = shown.iter().map(|shown| piece(1, 1, shown.clone()));
            Heard::Pieces(pieces.collect())
        };
        let (mut first, mut slow) = (said.ear(run()), said.ear(run()));
        take(Shown::Reset);
        assert_eq!(first.hear(), Heard::New);
        assert_eq!(caught_up(&mut first), pieces(&[Shown::Reset]));
        take(text("one "));
        take(text(""));
        assert_eq!(first.hear(), pieces(&[text("one ")]));
        assert_eq!(first.hear(), Heard::Nothing);
        take(text("two"));
        take(Shown::Thinking("hm".into()));
        take(Shown::ToolCall("look".into()));
        take(Shown::ToolCall("look".into()));
        take(text("three"));
        let rest = [
            Shown::Thinking("hm".into()),
            Shown::ToolCall("look".into()),
            Shown::ToolCall("look".into()),
            text("three"),
        ];
        assert_eq!(first.hear(), pieces(&[&[text("two")], &rest[..]].concat()));
        let begun = [Shown::Reset, text("one "), text("two")];
        let whole = pieces(&[&begun[..], &rest[..]].concat());
        assert_eq!(caught_up(&mut slow), whole);
        assert_eq!(caught_up(&mut said.ear(run())), whole);
        // Much of it comes in several times.
        let (long, mut times, mut heard) = ("é".repeat(TOLD_BYTES / 8), 0, 0);
        for _ in 0..10 {
            take(text(&long));
        }
        while let Heard::Pieces(pieces) = first.hear() {
            times += 1;
            heard += pieces.len();
        }
        assert_eq!((times, heard), (3, 10));
    }

    #[test]
    fn nothing_is_told_before_the_call_is_read_or_behind_the_seal() {
        let said = Said::default();
        let take = |text: LiveText| lock(&said.kept).take(text);
        let mut ear = said.ear(run());
        let (called, sealed) = (
            |call, attempt| Mark::Called { call, attempt },
            |call| Mark::Sealed { call },
        );
        ear.mark(&called(call(1), 1));
        take(piece(1, 1, Shown::Reset));
        take(piece(1, 1, text("half")));
        assert!(matches!(caught_up(&mut ear), Heard::Pieces(_)));
        // Another attempt begins: not told before the log says so.
        take(piece(1, 2, Shown::Reset));
        take(piece(1, 2, text("whole")));
        assert_eq!(ear.hear(), Heard::New);
        // Its call is read: it is told, though nobody read the log to its end.
        ear.mark(&called(call(1), 2));
        let count = |heard: Heard| match heard {
            Heard::Pieces(pieces) => pieces.len(),
            Heard::New | Heard::Nothing => 0,
        };
        assert_eq!(count(ear.hear()), 2);
        take(piece(1, 2, text(", really")));
        assert_eq!(count(ear.hear()), 1);
        ear.mark(&sealed(call(1)));
        take(piece(1, 2, text(" too late")));
        assert_eq!(caught_up(&mut ear), Heard::Nothing);
        // The seal of one says nothing of the next, nor that of a lost attempt of the one after it.
        take(piece(2, 2, Shown::Reset));
        ear.mark(&sealed(call(1)));
        ear.mark(&called(call(2), 1));
        ear.mark(&sealed(call(2)));
        assert!(matches!(caught_up(&mut ear), Heard::Pieces(_)));
        let mut late = said.ear(run());
        late.skip();
        assert_eq!(caught_up(&mut late), Heard::Nothing);
        take(piece(3, 1, Shown::Reset));
        assert!(matches!(caught_up(&mut late), Heard::Pieces(_)));
    }

    #[test]
    fn what_is_kept_is_bounded_and_what_is_not_whole_is_not_told() {
        let said = Said::default();
        let most = "x".repeat(ANSWER_BYTES_MAX - 2 * PIECE_BYTES);
        for n in 0..40 {
            for shown in [Shown::Reset, text(&most)] {
                let text = LiveText {
                    run: RunId::from_bytes([n; 16]),
                    ..piece(1, 1, shown)
                };
                lock(&said.kept).take(text);
            }
            let kept = lock(&said.kept);
            assert!(kept.bytes <= BYTES_MAX && kept.answers.len() == kept.by_age.len());
        }
        // The oldest is gone; one that becomes too long stops.
        let mut ear = said.ear(run());
        lock(&said.kept).take(piece(1, 1, text("more")));
        assert_eq!(caught_up(&mut ear), Heard::Nothing);
        for shown in [Shown::Reset, text(&most), text("more than fits"), text("x")] {
            lock(&said.kept).take(piece(1, 1, shown));
        }
        assert_eq!(caught_up(&mut ear), Heard::Nothing);
        let kept = lock(&said.kept);
        let held: usize = kept.answers.values().map(Answer::bytes).sum();
        assert_eq!(kept.bytes, held);
    }
}
