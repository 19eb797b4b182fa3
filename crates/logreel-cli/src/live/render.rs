//! From the model to lines that fit a terminal. Pure, so that it is tested without one.

use logreel::Timestamp;
use unicode_width::UnicodeWidthStr as _;

use super::model::{Agent, Line, Mark, Model};
use crate::output::Paint;
use crate::text;

/// How large the terminal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    pub width: usize,
    pub height: usize,
}

const SPINNER: [&str; 8] = ["⠋", "⠙", "⠸", "⠴", "⠦", "⠧", "⠇", "⠏"];
const SPINNER_MS: u128 = 120;
/// So much of what a model says is shown.
const SPEECH_ROWS: usize = 6;
/// Below this there is room for nothing.
const WIDTH_MIN: usize = 4;

/// The whole view: a header, then the steps; never wider than the terminal nor as high as it, because
/// a line more would scroll away and could not be rewritten.
pub fn render(model: &Model, now: Timestamp, size: Size, colour: bool) -> Vec<String> {
    if size.width < WIDTH_MIN {
        return Vec::new();
    }
    // The last column is left free: some terminals wrap when it is written.
    let width = size.width - 1;
    let rows = size.height.saturating_sub(2).max(1);
    let brush = Brush { colour };
    let mut lines = vec![header(model, now, width, brush)];
    let room = rows.saturating_sub(1);
    let speech = speech(model, now, width, room, brush);
    let room = room - speech.len();
    let shown = match model.agent() {
        Some(_) => last(&model.lines, room),
        None => select(&model.lines, room),
    };
    let steps = || {
        shown.iter().filter_map(|row| match row {
            Row::Step(line) => Some(*line),
            Row::Summary(..) => None,
        })
    };
    let id_width = steps().map(|line| line.depth * 2 + line.id.width());
    let columns = Columns {
        id: id_width.max().unwrap_or(0).min((width / 3).max(8)),
        count: steps().map(|line| count(line).width()).max().unwrap_or(0),
        all: width,
    };
    for row in shown {
        lines.push(match row {
            Row::Step(line) => step(line, now, &columns, brush),
            Row::Summary(mark, text) => {
                let text = text::fit(&text, width.saturating_sub(2));
                format!(
                    "{} {}",
                    sign(mark, None, brush),
                    brush.paint(Paint::Dim, &text)
                )
            }
        });
    }
    lines.extend(speech);
    lines
}

/// What the model says: the end of it, below everything else.
fn speech(model: &Model, now: Timestamp, width: usize, room: usize, brush: Brush) -> Vec<String> {
    let Some(speech) = &model.speech else {
        return Vec::new();
    };
    let mut lines = Vec::new();
    if speech.is_open {
        let waited = now.since(speech.since);
        let does = match (speech.words.is_empty(), speech.thinks) {
            (_, true) => "thinks",
            (true, false) => "is asked",
            (false, false) => "answers",
        };
        let who = speech.agent.as_deref().unwrap_or("the model");
        let text = format!("{who} {does}  {}", text::duration(waited));
        let text = text::fit(&text, width.saturating_sub(2));
        let sign = sign(Mark::Running, Some(waited.as_millis()), brush);
        lines.push(format!("{sign} {}", brush.paint(Paint::Dim, &text)));
    }
    let rows = text::wrapped(&speech.words, width.saturating_sub(2));
    let left_out = rows.len().saturating_sub(SPEECH_ROWS);
    lines.extend(rows[left_out..].iter().map(|row| format!("  {row}")));
    // Half of the view is for what is done.
    let over = lines.len().saturating_sub(room / 2);
    let from = usize::from(speech.is_open).min(lines.len());
    let to = (from + over).min(lines.len());
    lines.drain(from..to);
    lines.truncate(room / 2);
    lines
}

#[derive(Clone, Copy)]
struct Brush {
    colour: bool,
}

impl Brush {
    fn paint(self, paint: Paint, text: &str) -> String {
        if self.colour {
            paint.on(text)
        } else {
            text.to_owned()
        }
    }
}

fn header(model: &Model, now: Timestamp, width: usize, brush: Brush) -> String {
    let short = model.run.short();
    let took = model.began.map(|began| text::duration(now.since(began)));
    let took = took.unwrap_or_default();
    let stopped = model
        .stopped
        .map(|why| format!("  {why}"))
        .unwrap_or_default();
    let mut rest = format!("  {short}  {took}{stopped}");
    // What an agent used is left out before its name is.
    for part in model.agent().into_iter().flat_map(whereabouts) {
        if model.name.width() + rest.width() + 2 + part.width() > width {
            break;
        }
        rest.push_str("  ");
        rest.push_str(&part);
    }
    let name = text::fit(&model.name, width.saturating_sub(rest.width()));
    let line = format!("{}{rest}", brush.paint(Paint::Strong, &name));
    if name.width() + rest.width() > width {
        return text::fit(&format!("{name}{rest}"), width);
    }
    line
}

/// Where an agent is, and what it used.
fn whereabouts(agent: &Agent) -> Vec<String> {
    let phase = agent.phase.map(str::to_owned);
    let turn = (agent.turn > 0).then(|| format!("turn {}", agent.turn));
    let tokens = (agent.tokens > 0).then(|| format!("{} tokens", text::thousands(agent.tokens)));
    let cost = agent.usd_micros.filter(|cost| *cost > 0).map(text::dollars);
    [phase, turn, tokens, cost].into_iter().flatten().collect()
}

/// How wide what is.
struct Columns {
    id: usize,
    count: usize,
    all: usize,
}

/// How many items of a mapped step are over, of how many.
fn count(line: &Line) -> String {
    match line
        .items
        .as_ref()
        .map(|items| (items.over(), items.total()))
    {
        None => String::new(),
        Some((over, Some(total))) => format!("  {over}/{total}"),
        Some((over, None)) => format!("  {over}"),
    }
}

fn step(line: &Line, now: Timestamp, columns: &Columns, brush: Brush) -> String {
    let (id_width, width) = (columns.id, columns.all);
    let indent = "  ".repeat(line.depth);
    let id = text::fit(
        &format!("{indent}{}", line.id),
        id_width.min(width.saturating_sub(2)),
    );
    let id_blanks = " ".repeat(id_width.saturating_sub(id.width()));
    let elapsed = match (line.mark, line.took, line.since) {
        (Mark::Pending | Mark::Skipped, _, _) => None,
        (_, Some(took), _) => Some(took),
        (_, None, Some(since)) => Some(now.since(since)),
        (_, None, None) => None,
    };
    let running = match line.mark {
        Mark::Running => elapsed,
        _ => None,
    };
    let elapsed = elapsed.map(text::duration).unwrap_or_default();
    let figures = format!("{:<1$}  {elapsed:>6}", count(line), columns.count);
    let sign = sign(line.mark, running.map(|it| it.as_millis()), brush);
    let used = 2 + id_width + figures.width();
    if used > width {
        return format!("{sign} {id}");
    }
    let head = format!("{sign} {id}{id_blanks}{figures}");
    let note = match (line.mark, &line.effect) {
        (Mark::Pending | Mark::Running, Some(effect)) if line.note.is_empty() => effect.clone(),
        // Of a call it matters while it can be interrupted.
        (Mark::Running, Some(effect)) if line.is_of_agent() => format!("{effect}  {}", line.note),
        _ => line.note.clone(),
    };
    let note = text::fit(&note, width.saturating_sub(used + 2));
    if note.is_empty() || note == "…" {
        return head.trim_end().to_owned();
    }
    let paint = match line.mark {
        Mark::Failed | Mark::InDoubt => Paint::Bad,
        Mark::Waiting => Paint::Waits,
        _ => Paint::Dim,
    };
    format!("{head}  {}", brush.paint(paint, &note))
}

fn sign(mark: Mark, running_ms: Option<u128>, brush: Brush) -> String {
    match mark {
        Mark::Pending => brush.paint(Paint::Dim, "·"),
        Mark::Running => {
            let frame = running_ms.unwrap_or(0) / SPINNER_MS % SPINNER.len() as u128;
            brush.paint(Paint::Busy, SPINNER[frame as usize])
        }
        Mark::Waiting => brush.paint(Paint::Waits, "?"),
        Mark::Finished => brush.paint(Paint::Good, "✓"),
        Mark::Failed => brush.paint(Paint::Bad, "✗"),
        Mark::Skipped => brush.paint(Paint::Dim, "-"),
        Mark::InDoubt => brush.paint(Paint::Bad, "!"),
    }
}

/// A row of the view.
enum Row<'m> {
    Step(&'m Line),
    Summary(Mark, String),
}

/// The last lines that fit, and how many there were before them: an agent's calls follow each other.
fn last(lines: &[Line], room: usize) -> Vec<Row<'_>> {
    if lines.len() <= room {
        return lines.iter().map(Row::Step).collect();
    }
    let shown = room.saturating_sub(1);
    let before = lines.len() - shown;
    let summary = Row::Summary(Mark::Finished, format!("{before} before"));
    let shown = lines[before..].iter().map(Row::Step);
    std::iter::once(summary).chain(shown).take(room).collect()
}

/// The steps that fit: what is over collapses first, then what is to come, then the rest is cut.
fn select(lines: &[Line], room: usize) -> Vec<Row<'_>> {
    if lines.len() <= room {
        return lines.iter().map(Row::Step).collect();
    }
    let is_quiet = |line: &&Line| matches!(line.mark, Mark::Finished | Mark::Skipped);
    let over = lines.iter().filter(is_quiet).count();
    let mut rows = Vec::new();
    if over > 0 {
        rows.push(Row::Summary(Mark::Finished, format!("{over} finished")));
    }
    let open: Vec<&Line> = lines.iter().filter(|line| !is_quiet(line)).collect();
    if open.len() + rows.len() <= room {
        rows.extend(open.into_iter().map(Row::Step));
        return rows;
    }
    let (pending, lively): (Vec<&Line>, Vec<&Line>) = open
        .into_iter()
        .partition(|line| line.mark == Mark::Pending);
    let for_pending = usize::from(!pending.is_empty());
    let free = room.saturating_sub(rows.len() + for_pending);
    let cut = lively.len() > free;
    let shown = if cut {
        free.saturating_sub(1)
    } else {
        lively.len()
    };
    let left = lively.len() - shown;
    rows.extend(lively.into_iter().take(shown).map(Row::Step));
    if cut {
        rows.push(Row::Summary(
            Mark::Running,
            format!("{left} more under way"),
        ));
    }
    // Some of those to come, when there is room for them and the count of the others.
    let room_left = room.saturating_sub(rows.len());
    let named = room_left.saturating_sub(1).min(pending.len());
    rows.extend(pending.iter().take(named).copied().map(Row::Step));
    if pending.len() > named {
        let more = pending.len() - named;
        rows.push(Row::Summary(Mark::Pending, format!("{more} more to come")));
    }
    rows.truncate(room);
    rows
}

#[cfg(test)]
mod tests {
    use logreel::core::Epoch;
    use logreel::core::event::{
        ChildStarted, ModelAnswered, ModelCalled, PhaseEntered, PlanMade, RunForked, RunStarted,
        StepFailed, StepFinished, StepSkipped, StepStarted, ToolCalled, ToolReturned, Turn,
        WaitStarted,
    };
    use logreel::{Body, Digest, Event, RunId, Seq};
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    const BEGIN: i64 = 4_102_444_800_000_000;

    fn run_id(n: u8) -> RunId {
        format!("run_0197b0a0-0001-7000-8000-00000000000{n}")
            .parse()
            .unwrap()
    }

    fn body<T: DeserializeOwned + Into<Body>>(value: Value) -> Body {
        serde_json::from_value::<T>(value).unwrap().into()
    }

    fn started(name: &str, steps: Value) -> Body {
        body::<RunStarted>(json!({
            "agent": name, "budget": {}, "durability": "full", "input": [1, 2], "kind": "workflow",
            "labels": {}, "provenance": {"models": [], "tools": []},
            "spec": {"name": name, "step": steps}, "spec_digest": Digest::of(b"").to_string(),
        }))
    }

    struct Story(Model);

    impl Story {
        fn tell(&mut self, run: u8, at_ms: i64, body: Body) {
            let event = Event {
                seq: Seq::FIRST,
                at: at(at_ms),
                caller_at: None,
                epoch: Epoch(1),
                late: false,
                digest: Digest::of(b""),
                body,
            };
            self.0.apply(run_id(run), &event);
        }

        fn start(&mut self, step: Value, at_ms: i64) {
            let value = json!({"attempt": 1, "effect": "read", "step": step});
            self.tell(1, at_ms, body::<StepStarted>(value));
        }

        fn finish(&mut self, step: Value, at_ms: i64, output: Value) {
            let value = json!({"attempt": 1, "effect": "read", "step": step, "output": output});
            self.tell(1, at_ms, body::<StepFinished>(value));
        }
    }

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_micros(BEGIN + ms * 1000)
    }

    /// A bit of everything, 72 seconds in.
    fn story() -> Story {
        let mut story = Story(Model::new(run_id(1)));
        story.tell(
            1,
            0,
            started(
                "audit",
                json!([
                    {"id": "files", "run": "x"},
                    {"id": "review", "map": "{{ steps.files.output }}", "run": "x"},
                    {"id": "翻訳する", "run": "x"},
                    {"id": "maybe", "run": "x"},
                    {"id": "lint", "run": "x"},
                    {"id": "sub", "workflow": "x"},
                    {"id": "approve", "wait": "approval"},
                    {"id": "publish", "run": "x", "effect": "write"},
                ]),
            ),
        );
        story.start(json!("files"), 10);
        story.finish(json!("files"), 1_210, json!(["a", "b", "c", "d"]));
        for (item, end) in [("a", Some(9_000)), ("b", Some(30_000)), ("c", None)] {
            story.start(json!(["review", item]), 2_000);
            if let Some(end) = end {
                story.finish(json!(["review", item]), end, Value::Null);
            }
        }
        let step = |id: &str| logreel::StepId::from_parts([id]).unwrap();
        let review = logreel::StepId::from_parts(["review", "c"]).unwrap();
        story
            .0
            .printed(run_id(1), &review, "\x1b[31mreading c\x1b[0m\x1b[2J");
        story.start(json!("翻訳する"), 60_000);
        let line =
            "これはとても長い行です。端末の幅を超えないように切られなければなりません。以上です。";
        story.0.printed(run_id(1), &step("翻訳する"), line);
        let skipped = json!({"reason": "`when` is false", "step": "maybe"});
        story.tell(1, 2_000, body::<StepSkipped>(skipped));
        let error = json!({"kind": "exit", "message": "exit 1: 3 warnings", "retryable": true});
        let failed = json!({"attempt": 1, "step": "lint", "error": error, "started_at": at(3_000).to_string()});
        story.tell(1, 7_000, body::<StepFailed>(failed));
        let child =
            json!({"budget": {}, "child": run_id(2).to_string(), "detached": false, "step": "sub"});
        story.tell(1, 50_000, body::<ChildStarted>(child));
        story.tell(
            2,
            50_100,
            started("inner", json!([{"id": "fetch"}, {"id": "store"}])),
        );
        let fetch = json!({"attempt": 2, "effect": "read", "step": "fetch"});
        story.tell(2, 51_000, body::<StepStarted>(fetch));
        let wait = json!({"kind": "approval", "prompt": "Publish 3\nfindings?", "step": "approve", "wait": "w1"});
        story.tell(1, 61_000, body::<WaitStarted>(wait));
        story
    }

    fn shown(width: usize, height: usize) -> String {
        let lines = render(&story().0, at(72_000), Size { width, height }, false);
        assert!(lines.len() < height, "{lines:#?}");
        for line in &lines {
            assert!(line.width() < width, "{line}");
            assert!(!line.contains(|c: char| c.is_control()), "{line:?}");
        }
        lines.join("\n")
    }

    #[test]
    fn wide_enough() {
        insta::assert_snapshot!(shown(80, 24));
    }

    #[test]
    fn narrow() {
        insta::assert_snapshot!(shown(40, 24));
    }

    #[test]
    fn too_low_for_all() {
        insta::assert_snapshot!(shown(80, 10));
    }

    /// What the old run finished stays, the rest is to come, its child's steps are gone.
    #[test]
    fn a_retry_begins_with_what_finished() {
        let mut story = story();
        let forked = json!({
            "budget": {}, "digest": Digest::of(b"").to_string(), "forgotten": [["review", "a"]],
            "input": null, "may_have_happened": [],
            "parent": {"relation": "retry", "run": run_id(3).to_string(), "seq": 20},
        });
        story.tell(1, 71_000, body::<RunForked>(forked));
        story.tell(2, 71_500, started("inner", json!([{"id": "late"}])));
        let size = Size {
            width: 80,
            height: 24,
        };
        insta::assert_snapshot!(render(&story.0, at(72_000), size, false).join("\n"));
    }

    /// An agent with a tool in flight, one that it asks about, and a model that speaks.
    fn agent_story() -> Story {
        let mut story = Story(Model::new(run_id(1)));
        let spec = json!({"name": "fixer", "model": "ollama/x", "tools": ["fs.read", "shell"]});
        let begun = json!({
            "agent": "fixer", "budget": {}, "durability": "full", "input": "mend it", "kind": "agent",
            "labels": {}, "provenance": {"models": [], "tools": []}, "spec": spec,
            "spec_digest": Digest::of(b"").to_string(),
        });
        story.tell(1, 0, body::<RunStarted>(begun));
        story.tell(1, 1, body::<PhaseEntered>(json!({"phase": "executing"})));
        story.tell(
            1,
            2,
            body::<PlanMade>(json!({"plan": "1. Look.\n2. Mend."})),
        );
        story.tell(1, 3, body::<Turn>(json!({"turn": 1})));
        for n in 0..30 {
            let call = json!({
                "arguments": {"path": format!("src/{n}.rs")}, "attempt": 1, "call": format!("c{n}"),
                "effect": "read", "name": "fs.read",
            });
            story.tell(1, 1_000, body::<ToolCalled>(call));
            let returned = json!({"call": format!("c{n}"), "output": "text"});
            story.tell(1, 1_020, body::<ToolReturned>(returned));
        }
        let spent = json!({
            "cache_read_tokens": 0, "cache_write_tokens": 0, "input_tokens": 12_000,
            "output_tokens": 400, "reasoning_tokens": 0, "usd_micros": 31_200,
        });
        let called = |call: &str| json!({"attempt": 1, "call": call, "model": "ollama/x", "reserved": spent});
        story.tell(1, 1_100, body::<ModelCalled>(called("m1.turn")));
        let message = json!({"parts": [{"text": "I will run it."}], "role": "assistant"});
        let answered = json!({"call": "m1.turn", "message": message, "spent": spent});
        story.tell(1, 2_000, body::<ModelAnswered>(answered));
        let call = json!({
            "arguments": {"command": "cargo test --workspace"}, "attempt": 1, "call": "run",
            "effect": "write", "name": "shell",
        });
        story.tell(1, 60_000, body::<ToolCalled>(call));
        story.tell(1, 70_000, body::<ModelCalled>(called("m2.turn")));
        for words in [
            "日本語の長い行はここで切られます。",
            "Some words\x1b[2J that ",
            "come in later. ",
        ] {
            let text = logreel::LiveText {
                run: run_id(1),
                call: logreel::core::CallId::new("m2.turn").unwrap(),
                attempt: 1,
                shown: logreel::Shown::Text(words.into()),
            };
            story.0.spoke(&text, at(70_100));
        }
        story
    }

    #[test]
    fn an_agent_at_work() {
        let size = Size {
            width: 80,
            height: 12,
        };
        insta::assert_snapshot!(render(&agent_story().0, at(72_000), size, false).join("\n"));
    }

    #[test]
    fn words_of_an_attempt_that_starts_over_are_void() {
        let mut story = agent_story();
        let said = |shown| logreel::LiveText {
            run: run_id(1),
            call: logreel::core::CallId::new("m2.turn").unwrap(),
            attempt: 2,
            shown,
        };
        story.0.spoke(&said(logreel::Shown::Reset), at(71_000));
        story
            .0
            .spoke(&said(logreel::Shown::Text("Again.".into())), at(71_000));
        let words = |story: &Story| story.0.speech.as_ref().unwrap().words.clone();
        assert_eq!(words(&story), "Again.");
        // A piece of an answer that is over comes late.
        let late = logreel::LiveText {
            call: logreel::core::CallId::new("m1.turn").unwrap(),
            ..said(logreel::Shown::Text("Late.".into()))
        };
        story.0.spoke(&late, at(71_500));
        assert_eq!(words(&story), "Again.");
    }

    #[test]
    fn no_size_breaks_it() {
        for width in 1..100 {
            for height in 3..14 {
                for story in [story(), agent_story()] {
                    let lines = render(&story.0, at(72_000), Size { width, height }, true);
                    assert!(lines.len() < height);
                    let plain = lines
                        .iter()
                        .map(|it| anstream::adapter::strip_str(it).to_string());
                    assert!(plain.into_iter().all(|it| it.width() < width));
                }
            }
        }
    }
}
