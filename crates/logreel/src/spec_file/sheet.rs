//! The keys of a table, each taken once and with its type; what nobody takes is a mistake.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::files::text_of;
use super::node::{Field, Format, Is, Node};
use super::problem::{InStep, Places, Problem};
use super::span;
use crate::workflow::BudgetSpec;

/// The keys of one table, and which of them were asked for.
pub struct Keys<'n> {
    pub(crate) step: InStep<'n>,
    /// `retry.` for the keys of a table in a key.
    prefix: String,
    fields: &'n [Field],
    asked: Vec<&'static str>,
    /// What a key belongs to that does not belong here.
    pub(crate) owners: &'static [(&'static str, &'static str)],
}

impl<'n> Keys<'n> {
    /// The value of a key, when it is there.
    pub fn take(&mut self, name: &'static str) -> Option<&'n Node> {
        self.asked.push(name);
        let field = self.fields.iter().find(|field| field.name == name);
        field.map(|field| &field.node)
    }

    /// The path of a key in the file; of the table itself when no key is named.
    pub fn path(&self, name: &str) -> String {
        match name {
            "" => self.prefix.trim_end_matches('.').to_owned(),
            name => format!("{}{name}", self.prefix),
        }
    }

    /// Whether a key is there.
    pub fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|field| field.name == name)
    }
}

/// One file, or one table that is a spec of its own: where its keys are, and what is wrong with them.
pub struct Sheet {
    pub(crate) places: Places,
    /// What was found so far.
    pub problems: Vec<Problem>,
    /// Where named files are; `None` for a spec that stands alone.
    folder: Option<PathBuf>,
}

impl Sheet {
    /// The sheet of a file in a folder; `name` is what problems call it.
    pub fn of_file(name: &str, node: &Node, folder: &Path) -> Self {
        let places = Places {
            file: Some(Arc::from(name)),
            lines: node.lines(),
            ..Places::default()
        };
        Self::new(places, Some(folder))
    }

    pub(crate) fn new(places: Places, folder: Option<&Path>) -> Self {
        Self {
            places,
            problems: Vec::new(),
            folder: folder.map(Path::to_owned),
        }
    }

    pub(crate) fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Something is wrong with a key, by its path: `verify[0].run`.
    pub fn complain(&mut self, key: &str, message: impl Into<String>) {
        self.problem(None, key, message);
    }

    pub(crate) fn problem(&mut self, step: InStep<'_>, key: &str, message: impl Into<String>) {
        self.problems.push(self.places.problem(step, key, message));
    }

    /// The key under which a value or its file stands: `schema`, or `schema_file`.
    pub fn key_or_file(&self, key: &str) -> String {
        let file = format!("{key}_file");
        match self.places.lines.contains_key(&file) {
            true => file,
            false => key.to_owned(),
        }
    }

    /// Something is wrong with a key of this table.
    pub fn complain_of(&mut self, keys: &Keys<'_>, name: &str, message: impl Into<String>) {
        self.problem(keys.step, &keys.path(name), message);
    }

    fn wrong(&mut self, keys: &Keys<'_>, name: &str, expected: &str, node: &Node) {
        self.complain_of(
            keys,
            name,
            format!("expected {expected}, got {}", node.kind()),
        );
    }

    /// The keys of a table, by its path; none, after a problem, of what is no table.
    pub fn keys<'n>(&mut self, path: &str, node: &'n Node) -> Keys<'n> {
        self.table(None, path, node)
    }

    pub(crate) fn table<'n>(&mut self, step: InStep<'n>, key: &str, node: &'n Node) -> Keys<'n> {
        let fields = match &node.is {
            Is::Table(fields) => fields.as_slice(),
            _ => {
                self.problem(step, key, format!("expected a table, got {}", node.kind()));
                &[]
            }
        };
        let prefix = match key {
            "" => String::new(),
            key => format!("{key}."),
        };
        Keys {
            step,
            prefix,
            fields,
            asked: Vec::new(),
            owners: &[],
        }
    }

    /// Every key that nobody asked for is a mistake.
    pub fn no_others(&mut self, keys: Keys<'_>) {
        let asked: HashSet<&str> = keys.asked.iter().copied().collect();
        for field in keys.fields {
            let name = field.name.as_str();
            if asked.contains(name) {
                continue;
            }
            let owner = keys.owners.iter().find(|(key, _)| *key == name);
            let message = match owner {
                Some((_, owner)) => format!("belongs to {owner}"),
                None => format!("unknown key; expected one of {}", keys.asked.join(", ")),
            };
            self.problem(keys.step, &keys.path(name), message);
        }
    }

    /// A text.
    pub fn text(&mut self, keys: &mut Keys<'_>, name: &'static str) -> Option<String> {
        let node = keys.take(name)?;
        match &node.is {
            Is::Text(text) => Some(text.clone()),
            _ => {
                self.wrong(keys, name, "text", node);
                None
            }
        }
    }

    /// A list of texts; empty when it is not there.
    pub fn texts(&mut self, keys: &mut Keys<'_>, name: &'static str) -> Vec<String> {
        let Some(node) = keys.take(name) else {
            return Vec::new();
        };
        let Is::List(items) = &node.is else {
            self.wrong(keys, name, "a list of texts", node);
            return Vec::new();
        };
        let mut texts = Vec::with_capacity(items.len());
        for (nth, item) in items.iter().enumerate() {
            match &item.is {
                Is::Text(text) => texts.push(text.clone()),
                _ => self.wrong(keys, &format!("{name}[{nth}]"), "text", item),
            }
        }
        texts
    }

    /// A table of texts; empty when it is not there.
    pub fn text_table(
        &mut self,
        keys: &mut Keys<'_>,
        name: &'static str,
    ) -> BTreeMap<String, String> {
        let mut texts = BTreeMap::new();
        let Some(node) = keys.take(name) else {
            return texts;
        };
        let Is::Table(fields) = &node.is else {
            self.wrong(keys, name, "a table of texts", node);
            return texts;
        };
        for field in fields {
            match &field.node.is {
                Is::Text(text) => drop(texts.insert(field.name.clone(), text.clone())),
                _ => self.wrong(keys, &format!("{name}.{}", field.name), "text", &field.node),
            }
        }
        texts
    }

    /// A whole number.
    pub fn whole<T: TryFrom<u64>>(&mut self, keys: &mut Keys<'_>, name: &'static str) -> Option<T> {
        let node = keys.take(name)?;
        let number = match &node.is {
            Is::Number(number) => number,
            _ => {
                self.wrong(keys, name, "a whole number", node);
                return None;
            }
        };
        let whole = number.as_u64().and_then(|number| T::try_from(number).ok());
        if whole.is_none() {
            let message = format!("expected a whole number, 0 or more, got {number}");
            self.complain_of(keys, name, message);
        }
        whole
    }

    /// True or false.
    pub fn yes(&mut self, keys: &mut Keys<'_>, name: &'static str) -> Option<bool> {
        let node = keys.take(name)?;
        match &node.is {
            Is::Bool(yes) => Some(*yes),
            _ => {
                self.wrong(keys, name, "true or false", node);
                None
            }
        }
    }

    /// A number.
    pub fn number(&mut self, keys: &mut Keys<'_>, name: &'static str) -> Option<f64> {
        let node = keys.take(name)?;
        match &node.is {
            Is::Number(number) => number.as_f64(),
            _ => {
                self.wrong(keys, name, "a number", node);
                None
            }
        }
    }

    /// A duration.
    pub fn span(&mut self, keys: &mut Keys<'_>, name: &'static str) -> Option<Duration> {
        let node = keys.take(name)?;
        let Is::Text(text) = &node.is else {
            self.wrong(keys, name, "a duration like \"30s\"", node);
            return None;
        };
        span::parse(text)
            .map_err(|message| self.complain_of(keys, name, message))
            .ok()
    }

    /// One of several texts.
    pub fn choice<T: Copy>(
        &mut self,
        keys: &mut Keys<'_>,
        name: &'static str,
        choices: &[(&str, T)],
    ) -> Option<T> {
        let text = self.text(keys, name)?;
        let choice = choices.iter().find(|(name, _)| *name == text);
        if choice.is_none() {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            let message = format!("expected one of {}, got {text:?}", names.join(", "));
            self.complain_of(keys, name, message);
        }
        choice.map(|(_, choice)| *choice)
    }

    /// The path of the file that a key names, relative to the one that it is in.
    pub fn path(&mut self, keys: &Keys<'_>, name: &str, file: &str) -> Option<PathBuf> {
        let path = self.folder.as_deref().map(|folder| folder.join(file));
        if path.is_none() {
            let message = "this spec stands alone and cannot name files: write it inside";
            self.complain_of(keys, name, message);
        }
        path
    }

    /// The text of the file that a key names.
    pub fn text_file(&mut self, keys: &mut Keys<'_>, name: &'static str) -> Option<String> {
        let file = self.text(keys, name)?;
        let path = self.path(keys, name, &file)?;
        text_of(&path)
            .map_err(|message| self.complain_of(keys, name, message))
            .ok()
    }

    /// A value, or the TOML or JSON file that holds it.
    pub fn json_or_file(
        &mut self,
        keys: &mut Keys<'_>,
        name: &'static str,
        file_name: &'static str,
    ) -> Option<Value> {
        let inside = keys.take(name).map(Node::to_json);
        let Some(file) = self.text(keys, file_name) else {
            return inside;
        };
        if inside.is_some() {
            let message = format!("expected `{name}` or `{file_name}`, not both");
            self.complain_of(keys, file_name, message);
            return None;
        }
        let path = self.path(keys, file_name, &file)?;
        let text = match text_of(&path) {
            Ok(text) => text,
            Err(message) => {
                self.complain_of(keys, file_name, message);
                return None;
            }
        };
        match Node::parse(&text, Format::of(&path), &path.display().to_string()) {
            Ok(node) => Some(node.to_json()),
            Err(problem) => {
                self.problems.push(problem);
                None
            }
        }
    }

    /// `[budget]`; no limits when it is not there.
    pub fn budget(&mut self, keys: &mut Keys<'_>) -> BudgetSpec {
        let Some(node) = keys.take("budget") else {
            return BudgetSpec::default();
        };
        let mut keys = self.keys("budget", node);
        let budget = BudgetSpec {
            tokens: self.whole(&mut keys, "tokens"),
            usd: self.number(&mut keys, "usd"),
            wall: self.span(&mut keys, "wall"),
            tool_calls: self.whole(&mut keys, "tool_calls"),
            children: self.whole(&mut keys, "children"),
        };
        self.no_others(keys);
        budget
    }
}
