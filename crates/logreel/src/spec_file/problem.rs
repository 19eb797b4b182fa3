//! What is wrong with a spec, and where it says so.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

/// One thing wrong with a spec: `audit.toml:12: step.review.retry.backoff: expected …`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Problem {
    /// The file; `None` for a spec that was built in Rust or stored.
    pub file: Option<String>,
    /// The line, from 1.
    pub line: Option<usize>,
    /// The column, from 1; only for a file that could not be parsed.
    pub column: Option<usize>,
    /// The key, `step.review.retry.backoff`; empty when it is about the whole file.
    pub key: String,
    /// What is wrong and what was expected.
    pub message: String,
}

impl Problem {
    /// A problem of a file as a whole.
    pub fn of_file(file: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            file: Some(file.into()),
            line: None,
            column: None,
            key: String::new(),
            message: message.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            write!(f, "{file}:")?;
            for number in [self.line, self.column].into_iter().flatten() {
                write!(f, "{number}:")?;
            }
            f.write_str(" ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

/// Everything wrong with a spec, never empty; one line each.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            problem.fmt(f)?;
        }
        Ok(())
    }
}

impl Problems {
    /// All of them, in the order of the files and of the lines in each.
    pub fn in_order(mut problems: Vec<Problem>) -> Self {
        let mut files: Vec<Option<String>> = Vec::new();
        for problem in &problems {
            if !files.contains(&problem.file) {
                files.push(problem.file.clone());
            }
        }
        problems.sort_by_key(|problem| {
            let file = files.iter().position(|file| *file == problem.file);
            (file, problem.line)
        });
        Self(problems)
    }
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

/// Which step a key is in: its place in the list, and its id as far as it has one.
pub(crate) type InStep<'a> = Option<(usize, &'a str)>;

/// Where the keys of one workflow are written. Steps are known by their place in the list here, because
/// two of them may wrongly have one id.
#[derive(Debug, Clone, Default)]
pub(crate) struct Places {
    pub file: Option<Arc<str>>,
    /// What comes before a key of this workflow: `step.review.workflow.` when it is written inside
    /// another one.
    pub prefix: String,
    /// Lines by key, with `step[3].retry` for a step's.
    pub lines: HashMap<String, usize>,
    /// Steps that could not be read whole; what follows from the missing part is not told again.
    pub broken: HashSet<usize>,
    /// Top-level keys that are there and could not be read.
    pub unreadable: HashSet<&'static str>,
    pub children: HashMap<usize, Places>,
}

impl Places {
    pub fn problem(&self, step: InStep<'_>, key: &str, message: impl Into<String>) -> Problem {
        Problem {
            file: self.file.as_deref().map(str::to_owned),
            line: self.line(&path(step, key)),
            column: None,
            key: format!("{}{}", self.prefix, shown(step, key)),
            message: message.into(),
        }
    }

    /// The places of the workflow inside a step.
    pub fn child(&self, step: usize, id: &str) -> Places {
        self.children.get(&step).cloned().unwrap_or_else(|| Places {
            file: self.file.clone(),
            prefix: format!("{}{}.", self.prefix, shown(Some((step, id)), "workflow")),
            ..Places::default()
        })
    }

    /// The line of a key, or of the nearest key around it.
    fn line(&self, path: &str) -> Option<usize> {
        let mut path = path;
        loop {
            if let Some(line) = self.lines.get(path) {
                return Some(*line);
            }
            path = &path[..path.rfind(['.', '['])?];
        }
    }
}

/// A key as [`Places::lines`] knows it.
pub(crate) fn path(step: InStep<'_>, key: &str) -> String {
    match step {
        None => key.to_owned(),
        Some((index, _)) if key.is_empty() => format!("step[{index}]"),
        Some((index, _)) => format!("step[{index}].{key}"),
    }
}

/// A key as a person reads it.
pub(crate) fn shown(step: InStep<'_>, key: &str) -> String {
    let step = match step {
        None => return key.to_owned(),
        Some((index, id)) if id.is_empty() || id.chars().any(char::is_control) => {
            format!("step[{index}]")
        }
        Some((_, id)) => format!("step.{id}"),
    };
    if key.is_empty() {
        step
    } else {
        format!("{step}.{key}")
    }
}
