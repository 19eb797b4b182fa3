//! Settings: `.logreel/config.toml` beside the store, then the user's own file.
//!
//! What the project says goes before what the user says, key by key; hooks and patterns of both count.
//! Nothing is guessed: a key that is not known, or has another type, is an error that names file, line
//! and key, as in a spec.

mod read;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use logreel::core::event::Durability;
use logreel::store::postgres;
use logreel::store::sqlite::Options;
use logreel::{Builder, ErrorKind, Status};

use crate::error::Failure;
use crate::hook::CommandHook;
use crate::store::FOLDER;

const FILE: &str = "config.toml";

/// What the files say.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settings {
    /// The model of an agent that names none.
    pub model: Option<String>,
    /// What models cost, by name.
    pub prices: BTreeMap<String, Price>,
    /// Patterns of what is blotted out wherever it is recorded, streamed or shown.
    pub redact: Vec<String>,
    pub retention: Option<Retention>,
    pub durability: Option<Durability>,
    /// How long a lease holds without a renewal.
    pub lease: Option<Duration>,
    /// The largest payload that is recorded.
    pub payload_bytes_max: Option<u64>,
    pub hooks: Vec<HookSetting>,
}

/// What a million tokens cost, in millionths of a dollar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Price {
    pub input: u64,
    pub output: u64,
    /// As much as `input` when nothing is said.
    pub cache_read: u64,
    pub cache_write: u64,
}

/// Which ended runs `serve` and `worker` prune. At least one of the first two is said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Retention {
    pub older_than: Option<Duration>,
    pub keep_last: Option<u64>,
    /// Only those that ended like this; empty = in any way.
    pub status: Vec<Status>,
}

/// A command that is told of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookSetting {
    pub name: String,
    /// Kinds of events.
    pub on: Vec<String>,
    /// Shell text.
    pub run: String,
    /// Where it runs.
    pub dir: PathBuf,
}

impl Settings {
    /// For the store in this file; for one in memory, the user's alone.
    pub fn load(store: Option<&Path>) -> Result<Self, Failure> {
        Self::of(store.and_then(beside))
    }

    /// For a store that lies nowhere: those of the nearest project from `here` upward.
    pub fn around(here: &Path, home: Option<&Path>) -> Result<Self, Failure> {
        Self::of(nearest(here, home))
    }

    fn of(project: Option<PathBuf>) -> Result<Self, Failure> {
        let project = project.map(|file| read::file(&file));
        let user = of_user().map(|file| read::file(&file));
        let said = [project, user].into_iter().flatten();
        let mut problems = Vec::new();
        let mut settings = Self::default();
        for read in said {
            match read {
                Ok(said) => settings = settings.or(said.unwrap_or_default()),
                Err(wrong) => problems.extend(wrong.0),
            }
        }
        if problems.is_empty() {
            Ok(settings)
        } else {
            let problems = logreel::workflow::Problems(problems);
            Err(Failure::new(ErrorKind::Invalid, problems.to_string()))
        }
    }

    /// These, and where they say nothing the others.
    fn or(mut self, others: Self) -> Self {
        for (model, price) in others.prices {
            self.prices.entry(model).or_insert(price);
        }
        self.redact.extend(others.redact);
        for hook in others.hooks {
            if self.hooks.iter().all(|own| own.name != hook.name) {
                self.hooks.push(hook);
            }
        }
        Self {
            model: self.model.or(others.model),
            retention: self.retention.or(others.retention),
            durability: self.durability.or(others.durability),
            lease: self.lease.or(others.lease),
            payload_bytes_max: self.payload_bytes_max.or(others.payload_bytes_max),
            ..self
        }
    }

    /// How the store is opened.
    pub fn options(&self, options: Options) -> Options {
        Options {
            durability: self.durability.unwrap_or(options.durability),
            lease: self.lease.unwrap_or(options.lease),
            payload_bytes_max: self.payload_bytes_max.unwrap_or(options.payload_bytes_max),
            ..options
        }
    }

    /// How a database is opened.
    pub fn database_options(&self, options: postgres::Options) -> postgres::Options {
        postgres::Options {
            lease: self.lease.unwrap_or(options.lease),
            payload_bytes_max: self.payload_bytes_max.unwrap_or(options.payload_bytes_max),
            ..options
        }
    }

    /// The engine as the settings want it.
    pub fn build(self, mut builder: Builder) -> Builder {
        if let Some(durability) = self.durability {
            builder = builder.durability(durability);
        }
        if let Some(lease) = self.lease {
            builder = builder.lease(lease);
        }
        if let Some(bytes) = self.payload_bytes_max {
            builder = builder.payload_bytes_max(bytes);
        }
        self.hooks.into_iter().fold(builder, |builder, hook| {
            builder.hook(CommandHook::new(hook))
        })
    }
}

/// The file beside a store in a `.logreel` folder. A store that lies elsewhere has none: a
/// `config.toml` there may be anyone's.
fn beside(store: &Path) -> Option<PathBuf> {
    let folder = store.canonicalize().unwrap_or_else(|_| store.to_owned());
    let folder = folder.parent()?;
    (folder.file_name()? == FOLDER).then(|| folder.join(FILE))
}

/// The nearest file upward, as far as a store would be looked for.
fn nearest(here: &Path, home: Option<&Path>) -> Option<PathBuf> {
    for folder in here.ancestors() {
        let file = folder.join(FOLDER).join(FILE);
        let is_home = home == Some(folder) && folder != here;
        if file.is_file() && !is_home {
            return Some(file);
        }
        if folder.join(".git").exists() {
            break;
        }
    }
    None
}

fn of_user() -> Option<PathBuf> {
    let named = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let folder = match named("XDG_CONFIG_HOME").map(PathBuf::from) {
        // The specification says to ignore a relative one.
        Some(folder) if folder.is_absolute() => folder,
        Some(_) | None => PathBuf::from(named("HOME")?).join(".config"),
    };
    Some(folder.join("logreel").join(FILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_project_says_goes_first_and_hooks_of_both_count() {
        let folder = tempfile::tempdir().unwrap();
        let read = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            read::file(&path).unwrap().unwrap()
        };
        std::fs::write(
            folder.path().join("prices.toml"),
            "[\"openai/gpt\"]\ninput = 1.25\noutput = 10\ncache_read = 0.125\n",
        )
        .unwrap();
        let project = read(
            "project.toml",
            r#"
                lease = "2s"
                payload_max = "1MiB"
                redact = ["sk-[a-z]+"]
                [prices]
                "openai/gpt" = { input = 1, output = 2 }
                [[hook]]
                name = "tell"
                on = ["run.failed"]
                run = "./tell"
            "#,
        );
        let user = read(
            "user.toml",
            r#"
                model = "openai/gpt"
                prices = "prices.toml"
                redact = ["ghp_.+"]
                lease = "30s"
                durability = "relaxed"
                retention = { older_than = "90d", keep_last = 10, status = ["failed"] }
                [[hook]]
                name = "tell"
                on = ["run.completed"]
                run = "other"
                [[hook]]
                name = "count"
                on = ["run.started", "wait.started"]
                run = "count"
            "#,
        );
        let price = user.prices["openai/gpt"];
        assert_eq!(
            (
                price.input,
                price.output,
                price.cache_read,
                price.cache_write
            ),
            (1_250_000, 10_000_000, 125_000, 1_250_000)
        );
        let both = project.or(user);
        assert_eq!(both.model.as_deref(), Some("openai/gpt"));
        assert_eq!(both.lease, Some(Duration::from_secs(2)));
        assert_eq!(both.payload_bytes_max, Some(1 << 20));
        assert_eq!(both.durability, Some(Durability::Relaxed));
        assert_eq!(both.redact, ["sk-[a-z]+", "ghp_.+"]);
        assert_eq!(both.prices["openai/gpt"].input, 1_000_000);
        assert_eq!(
            both.retention,
            Some(Retention {
                older_than: Some(Duration::from_secs(90 * 86_400)),
                keep_last: Some(10),
                status: vec![Status::Failed],
            })
        );
        let hooks: Vec<_> = both.hooks.iter().map(|it| (&*it.name, &*it.run)).collect();
        assert_eq!(hooks, [("tell", "./tell"), ("count", "count")]);
    }

    #[test]
    fn everything_wrong_is_told_with_its_line_and_key() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        let check = |text: &str| {
            std::fs::write(&path, text).unwrap();
            let problems = read::file(&path).unwrap_err().to_string();
            problems.replace(&*path.to_string_lossy(), "config.toml")
        };
        insta::assert_snapshot!(check("lease = \n"), @"config.toml:1:9: string values must be quoted, expected literal string");
        insta::assert_snapshot!(check(r#"
modle = "x"
model = 3
lease = "soon"
payload_max = "1KB"
durability = "some"
redact = ["ok", 1]
prices = { a = { input = -1, output = 2, inputs = 3 }, b = 1 }
retention = { keep = 3, status = ["waiting"] }

[[hook]]
on = ["run.fail"]
run = "x"

[[hook]]
name = "two"
on = []
url = "https://example.invalid"

[[hook]]
name = "two"
on = ["run.failed"]
"#), @r#"
        config.toml:2: modle: unknown key; expected one of model, prices, redact, retention, durability, lease, payload_max, hook
        config.toml:3: model: expected text, got 3
        config.toml:4: lease: expected a whole number of ms, s, m, h or d, like "500ms" or "24h", got "soon"
        config.toml:5: payload_max: expected bytes, or text like "64MiB", from 1MiB to 512MiB, got "1KB"
        config.toml:6: durability: expected "full" or "relaxed", got "some"
        config.toml:7: redact[1]: expected text, got 1
        config.toml:8: prices.a.input: expected dollars for a million tokens, 0 or more, got -1
        config.toml:8: prices.a.inputs: unknown key; expected one of input, output, cache_read, cache_write
        config.toml:8: prices.b: expected a table, got 1
        config.toml:9: retention.status: expected some of "completed", "failed" and "cancelled", got a list
        config.toml:9: retention: expected older_than or keep_last, or nothing would be kept
        config.toml:9: retention.keep: unknown key; expected one of older_than, keep_last, status
        config.toml:11: hook[0].name: is missing
        config.toml:12: hook[0].on: there is no event "run.fail"; expected kinds like "run.failed" or "wait.started"
        config.toml:17: hook[1].on: expected kinds of events, like ["run.failed"], got none
        config.toml:18: hook[1].url: hooks that call a `url` are not in this build yet; expected `run`
        config.toml:20: hook[2].run: is missing; expected shell text, which gets the event as JSON on stdin
        "#);
    }

    #[test]
    fn a_file_beside_a_store_elsewhere_is_not_ours() {
        assert_eq!(beside(Path::new("/data/runs.db")), None);
        let ours = PathBuf::from("/data/.logreel/config.toml");
        assert_eq!(beside(Path::new("/data/.logreel/runs.db")), Some(ours));
    }
}
