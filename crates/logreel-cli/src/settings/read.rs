//! Reading one settings file: every key with its type and its line.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use logreel::core::event::Durability;
use logreel::workflow::{Problem, Problems};
use logreel::{Body, Status};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{HookSetting, Price, Retention, Settings};

/// A shorter lease would be lost to a busy disk.
const LEASE_MIN: Duration = Duration::from_millis(500);
const LEASE_MAX: Duration = Duration::from_secs(3600);
/// A value up to this is in an event itself, and must fit in any case.
const PAYLOAD_MIN: u64 = 1 << 20;
/// More does not fit in a row of the store.
const PAYLOAD_MAX: u64 = 512 << 20;

/// What the file says; `None` when there is no such file.
pub fn file(path: &Path) -> Result<Option<Settings>, Problems> {
    let Some(text) = text_of(path)? else {
        return Ok(None);
    };
    let mut reader = Reader::new(path, &text);
    let table = reader.parse()?;
    let settings = reader.settings(&table);
    reader.done(settings).map(Some)
}

fn text_of(path: &Path) -> Result<Option<String>, Problems> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error)
            if matches!(
                error.kind(),
                std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(None)
        }
        Err(error) => {
            let message = format!("cannot be read: {error}");
            Err(Problem::of_file(path.to_string_lossy(), message).into())
        }
    }
}

type Value<'t> = Spanned<DeValue<'t>>;

struct Reader<'t> {
    path: PathBuf,
    text: &'t str,
    problems: Vec<Problem>,
}

/// A table, what its keys are called in a message, and which of them were asked for.
struct Keys<'n, 't> {
    table: &'n DeTable<'t>,
    prefix: String,
    asked: Vec<&'static str>,
}

impl<'n, 't> Keys<'n, 't> {
    fn take(&mut self, name: &'static str) -> Option<&'n Value<'t>> {
        self.asked.push(name);
        self.table.get(name)
    }

    fn called(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

impl<'t> Reader<'t> {
    fn new(path: &Path, text: &'t str) -> Self {
        Self {
            path: path.to_owned(),
            text,
            problems: Vec::new(),
        }
    }

    fn parse(&self) -> Result<DeTable<'t>, Problems> {
        DeTable::parse(self.text)
            .map(Spanned::into_inner)
            .map_err(|error| {
                let at = error.span().map_or(0, |span| span.start);
                let line_start = self.text[..at].rfind('\n').map_or(0, |newline| newline + 1);
                let message = error.message().trim().replace('\n', ", ");
                let column = self.text[line_start..at].chars().count() + 1;
                Problem {
                    column: Some(column),
                    ..self.problem_at(at, String::new(), message)
                }
                .into()
            })
    }

    fn done<T>(mut self, read: T) -> Result<T, Problems> {
        // In the order of the file, and after it what is wrong with one that it names.
        let file = Some(self.path.to_string_lossy().into_owned());
        self.problems
            .sort_by_key(|problem| (problem.file != file, problem.line));
        if self.problems.is_empty() {
            Ok(read)
        } else {
            Err(Problems(self.problems))
        }
    }

    fn settings(&mut self, table: &DeTable<'t>) -> Settings {
        let keys = &mut Keys {
            table,
            prefix: String::new(),
            asked: Vec::new(),
        };
        let settings = Settings {
            model: self.text(keys, "model"),
            prices: self.prices(keys),
            redact: self.texts(keys, "redact"),
            retention: self.retention(keys),
            durability: self.durability(keys),
            lease: self.lease(keys),
            payload_bytes_max: self.payload_max(keys),
            hooks: self.hooks(keys),
        };
        self.no_others(keys);
        settings
    }

    fn prices(&mut self, keys: &mut Keys<'_, 't>) -> BTreeMap<String, Price> {
        match keys.take("prices").map(|value| (value, value.get_ref())) {
            None => BTreeMap::new(),
            Some((_, DeValue::Table(table))) => self.price_table(table, "prices."),
            Some((value, DeValue::String(name))) => {
                let path = self.folder().join(&**name);
                match priced(&path) {
                    Ok(Some(prices)) => prices,
                    Ok(None) => {
                        let message = format!("there is no file {}", path.display());
                        self.problem(value, "prices", message);
                        BTreeMap::new()
                    }
                    Err(problems) => {
                        self.problems.extend(problems.0);
                        BTreeMap::new()
                    }
                }
            }
            Some((value, _)) => {
                self.wrong(value, "prices", "a table by model, or the name of a file");
                BTreeMap::new()
            }
        }
    }

    fn price_table(&mut self, table: &DeTable<'t>, prefix: &str) -> BTreeMap<String, Price> {
        let mut prices = BTreeMap::new();
        for (model, value) in table {
            let called = format!("{prefix}{}", model.get_ref());
            let Some(keys) = &mut self.table(value, &called) else {
                continue;
            };
            let [input, output] = ["input", "output"].map(|name| self.dollars(keys, name));
            let [cache_read, cache_write] =
                ["cache_read", "cache_write"].map(|name| self.dollars(keys, name));
            self.no_others(keys);
            let (Some(input), Some(output)) = (input, output) else {
                if !table_has(value, "input") || !table_has(value, "output") {
                    let message = "expected `input` and `output`, dollars for a million tokens";
                    self.problem(value, &called, message);
                }
                continue;
            };
            let price = Price {
                input,
                output,
                cache_read: cache_read.unwrap_or(input),
                cache_write: cache_write.unwrap_or(input),
            };
            prices.insert(model.get_ref().to_string(), price);
        }
        prices
    }

    /// Dollars as millionths of one.
    fn dollars(&mut self, keys: &mut Keys<'_, 't>, name: &'static str) -> Option<u64> {
        let value = keys.take(name)?;
        let said = match value.get_ref() {
            DeValue::Integer(integer) => integer.as_str().parse::<f64>().ok(),
            DeValue::Float(float) => float.as_str().parse::<f64>().ok(),
            _ => None,
        };
        let micros = said.filter(|said| (0.0..=1e6).contains(said));
        if micros.is_none() {
            let expected = "dollars for a million tokens, 0 or more";
            self.wrong(value, &keys.called(name), expected);
        }
        micros.map(|dollars| (dollars * 1e6).round() as u64)
    }

    fn retention(&mut self, keys: &mut Keys<'_, 't>) -> Option<Retention> {
        let value = keys.take("retention")?;
        if let DeValue::String(_) = value.get_ref() {
            let older_than = self.duration(value, "retention");
            return Some(Retention {
                older_than,
                ..Retention::default()
            });
        }
        let keys = &mut self.table(value, "retention")?;
        let older_than = keys.take("older_than");
        let keep_last = keys.take("keep_last");
        let status = keys.take("status");
        let retention = Retention {
            older_than: older_than.and_then(|it| self.duration(it, "retention.older_than")),
            keep_last: keep_last.and_then(|it| self.count(it, "retention.keep_last")),
            status: status.map_or_else(Vec::new, |it| self.ended(it, "retention.status")),
        };
        if older_than.is_none() && keep_last.is_none() {
            let message = "expected older_than or keep_last, or nothing would be kept";
            self.problem(value, "retention", message.to_owned());
        }
        self.no_others(keys);
        Some(retention)
    }

    /// Ways to end.
    fn ended(&mut self, value: &Value<'t>, called: &str) -> Vec<Status> {
        let said = self.list(value, called);
        let read = said.iter().map(|text| text.parse::<Status>().ok());
        let ended = read.map(|status| status.filter(|status| status.is_terminal()));
        let ended: Option<Vec<Status>> = ended.collect();
        if ended.is_none() {
            let expected = "some of \"completed\", \"failed\" and \"cancelled\"";
            self.wrong(value, called, expected);
        }
        ended.unwrap_or_default()
    }

    fn durability(&mut self, keys: &mut Keys<'_, 't>) -> Option<Durability> {
        let value = keys.take("durability")?;
        match value.get_ref().as_str() {
            Some("full") => Some(Durability::Full),
            Some("relaxed") => Some(Durability::Relaxed),
            _ => {
                self.wrong(value, "durability", "\"full\" or \"relaxed\"");
                None
            }
        }
    }

    fn lease(&mut self, keys: &mut Keys<'_, 't>) -> Option<Duration> {
        let value = keys.take("lease")?;
        let lease = self.duration(value, "lease")?;
        if !(LEASE_MIN..=LEASE_MAX).contains(&lease) {
            self.wrong(value, "lease", "from \"500ms\" to \"1h\"");
            return None;
        }
        Some(lease)
    }

    fn payload_max(&mut self, keys: &mut Keys<'_, 't>) -> Option<u64> {
        let value = keys.take("payload_max")?;
        let bytes = match value.get_ref() {
            DeValue::Integer(integer) => integer.as_str().parse().ok(),
            DeValue::String(text) => bytes(text),
            _ => None,
        };
        let bytes = bytes.filter(|bytes| (PAYLOAD_MIN..=PAYLOAD_MAX).contains(bytes));
        if bytes.is_none() {
            let expected = "bytes, or text like \"64MiB\", from 1MiB to 512MiB";
            self.wrong(value, "payload_max", expected);
        }
        bytes
    }

    fn hooks(&mut self, keys: &mut Keys<'_, 't>) -> Vec<HookSetting> {
        let Some(value) = keys.take("hook") else {
            return Vec::new();
        };
        let DeValue::Array(items) = value.get_ref() else {
            self.wrong(value, "hook", "[[hook]] tables");
            return Vec::new();
        };
        let mut hooks: Vec<HookSetting> = Vec::new();
        for (nth, item) in items.iter().enumerate() {
            let Some(hook) = self.hook(item, &format!("hook[{nth}]")) else {
                continue;
            };
            if hooks.iter().any(|other| other.name == hook.name) {
                let message = format!("there is another hook named {:?}", hook.name);
                self.problem(item, &format!("hook[{nth}].name"), message);
            }
            hooks.push(hook);
        }
        hooks
    }

    fn hook(&mut self, value: &Value<'t>, called: &str) -> Option<HookSetting> {
        let keys = &mut self.table(value, called)?;
        let name = self.text(keys, "name");
        let on = keys.take("on").map(|on| self.kinds(on, &keys.called("on")));
        let run = self.text(keys, "run");
        if let Some(url) = keys.take("url") {
            let message = "hooks that call a `url` are not in this build yet; expected `run`";
            self.problem(url, &keys.called("url"), message);
        }
        self.no_others(keys);
        for key in ["name", "on"] {
            if !table_has(value, key) {
                self.problem(value, &keys.called(key), "is missing");
            }
        }
        if !table_has(value, "run") && !table_has(value, "url") {
            let message = "is missing; expected shell text, which gets the event as JSON on stdin";
            self.problem(value, &keys.called("run"), message);
        }
        Some(HookSetting {
            name: name?,
            on: on?,
            run: run?,
            dir: self.hook_dir(),
        })
    }

    /// Beside `.logreel`, where a project's own scripts are; else where the file is.
    fn hook_dir(&self) -> PathBuf {
        let folder = self.folder();
        match (folder.file_name(), folder.parent()) {
            (Some(name), Some(project)) if name == crate::store::FOLDER => project.to_owned(),
            _ => folder,
        }
    }

    fn kinds(&mut self, value: &Value<'t>, called: &str) -> Vec<String> {
        let kinds = self.list(value, called);
        if kinds.is_empty() && matches!(value.get_ref(), DeValue::Array(items) if items.is_empty())
        {
            let message = "expected kinds of events, like [\"run.failed\"], got none";
            self.problem(value, called, message);
        }
        for kind in &kinds {
            if !Body::KINDS.contains(&kind.as_str()) {
                let message = format!(
                    "there is no event {kind:?}; expected kinds like \"run.failed\" or \
                     \"wait.started\""
                );
                self.problem(value, called, message);
            }
        }
        kinds
    }

    fn text(&mut self, keys: &mut Keys<'_, 't>, name: &'static str) -> Option<String> {
        let value = keys.take(name)?;
        match value.get_ref().as_str() {
            Some(text) if !text.is_empty() => Some(text.to_owned()),
            _ => {
                self.wrong(value, &keys.called(name), "text");
                None
            }
        }
    }

    fn texts(&mut self, keys: &mut Keys<'_, 't>, name: &'static str) -> Vec<String> {
        let value = keys.take(name);
        value.map_or_else(Vec::new, |value| self.list(value, &keys.called(name)))
    }

    fn list(&mut self, value: &Value<'t>, called: &str) -> Vec<String> {
        let DeValue::Array(items) = value.get_ref() else {
            self.wrong(value, called, "a list of texts");
            return Vec::new();
        };
        let mut texts = Vec::new();
        for (nth, item) in items.iter().enumerate() {
            match item.get_ref().as_str() {
                Some(text) => texts.push(text.to_owned()),
                None => self.wrong(item, &format!("{called}[{nth}]"), "text"),
            }
        }
        texts
    }

    fn duration(&mut self, value: &Value<'t>, called: &str) -> Option<Duration> {
        let read = value
            .get_ref()
            .as_str()
            .and_then(|text| crate::text::parse_duration(text).ok());
        if read.is_none() {
            let expected = "a whole number of ms, s, m, h or d, like \"500ms\" or \"24h\"";
            self.wrong(value, called, expected);
        }
        read
    }

    fn count(&mut self, value: &Value<'t>, called: &str) -> Option<u64> {
        let read = match value.get_ref() {
            DeValue::Integer(integer) => integer.as_str().parse().ok(),
            _ => None,
        };
        if read.is_none() {
            self.wrong(value, called, "a whole number, 0 or more");
        }
        read
    }

    fn table<'n>(&mut self, value: &'n Value<'t>, called: &str) -> Option<Keys<'n, 't>> {
        let DeValue::Table(table) = value.get_ref() else {
            self.wrong(value, called, "a table");
            return None;
        };
        Some(Keys {
            table,
            prefix: format!("{called}."),
            asked: Vec::new(),
        })
    }

    /// Every key that nobody asked for is a mistake.
    fn no_others(&mut self, keys: &Keys<'_, 't>) {
        for (name, _) in keys.table {
            if !keys.asked.contains(&name.get_ref().as_ref()) {
                let message = format!("unknown key; expected one of {}", keys.asked.join(", "));
                let called = keys.called(name.get_ref());
                let problem = self.problem_at(name.span().start, called, message);
                self.problems.push(problem);
            }
        }
    }

    fn wrong(&mut self, value: &Value<'t>, called: &str, expected: &str) {
        let got = match value.get_ref() {
            DeValue::String(text) => format!("{text:?}"),
            DeValue::Integer(integer) => integer.to_string(),
            DeValue::Float(float) => float.to_string(),
            DeValue::Boolean(yes) => yes.to_string(),
            DeValue::Datetime(time) => time.to_string(),
            DeValue::Array(_) => "a list".to_owned(),
            DeValue::Table(_) => "a table".to_owned(),
        };
        self.problem(value, called, format!("expected {expected}, got {got}"));
    }

    fn problem(&mut self, value: &Value<'t>, called: &str, message: impl Into<String>) {
        let at = value.span().start;
        let problem = self.problem_at(at, called.to_owned(), message.into());
        self.problems.push(problem);
    }

    fn problem_at(&self, at: usize, key: String, message: String) -> Problem {
        Problem {
            file: Some(self.path.to_string_lossy().into_owned()),
            line: Some(self.text[..at].matches('\n').count() + 1),
            column: None,
            key,
            message,
        }
    }

    fn folder(&self) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("/")).to_owned()
    }
}

/// A file of prices: a table for each model.
fn priced(path: &Path) -> Result<Option<BTreeMap<String, Price>>, Problems> {
    let Some(text) = text_of(path)? else {
        return Ok(None);
    };
    let mut reader = Reader::new(path, &text);
    let table = reader.parse()?;
    let prices = reader.price_table(&table, "");
    reader.done(prices).map(Some)
}

fn table_has(value: &Value<'_>, key: &str) -> bool {
    matches!(value.get_ref(), DeValue::Table(table) if table.contains_key(key))
}

/// `64MiB`, `512KiB`.
fn bytes(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let unit: u64 = match &text[digits.len()..] {
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}
