//! The keys of a table, each taken once and with its type; what nobody takes is a mistake.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use super::node::{Field, Is, Node};
use super::problem::InStep;
use super::read::Reader;
use super::span;

/// The keys of one table, and which of them were asked for.
pub(super) struct Keys<'n> {
    pub step: InStep<'n>,
    /// `retry.` for the keys of a table in a key.
    pub prefix: &'static str,
    pub fields: &'n [Field],
    pub asked: Vec<&'static str>,
}

impl<'n> Keys<'n> {
    pub fn take(&mut self, name: &'static str) -> Option<&'n Node> {
        self.asked.push(name);
        let field = self.fields.iter().find(|field| field.name == name);
        field.map(|field| &field.node)
    }

    pub fn has(&self, name: &str) -> bool {
        self.fields.iter().any(|field| field.name == name)
    }
}

/// What a key of a step belongs to, when it does not belong to all.
pub(super) const OWNERS: [(&str, &str); 8] = [
    ("reconcile", "a step with `run`"),
    ("stream", "a step with `run`"),
    ("prompt", "`wait = \"approval\"`"),
    ("on_timeout", "`wait = \"approval\"`"),
    ("on_deny", "`wait = \"approval\"`"),
    ("name", "`wait = \"signal\"`"),
    ("for", "`wait = \"timer\"`"),
    ("until", "`wait = \"timer\"`"),
];
impl Reader<'_, '_> {
    pub fn problem(&mut self, step: InStep<'_>, key: &str, message: impl Into<String>) {
        self.problems.push(self.places.problem(step, key, message));
    }

    pub fn wrong(&mut self, keys: &Keys<'_>, name: &str, expected: &str, node: &Node) {
        let key = format!("{}{name}", keys.prefix);
        self.problem(
            keys.step,
            &key,
            format!("expected {expected}, got {}", node.kind()),
        );
    }

    /// The keys of a table; none, after a problem, of what is no table.
    pub fn table<'n>(&mut self, step: InStep<'n>, key: &'static str, node: &'n Node) -> Keys<'n> {
        let fields = match &node.is {
            Is::Table(fields) => fields.as_slice(),
            _ => {
                self.problem(step, key, format!("expected a table, got {}", node.kind()));
                &[]
            }
        };
        let prefix = match key {
            "retry" => "retry.",
            "budget" => "budget.",
            "limit" => "limit.",
            _ => "",
        };
        Keys {
            step,
            prefix,
            fields,
            asked: Vec::new(),
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
            let owner = OWNERS.iter().find(|(key, _)| *key == name);
            let message = match owner.filter(|_| keys.step.is_some() && keys.prefix.is_empty()) {
                Some((_, owner)) => format!("belongs to {owner}"),
                None => format!("unknown key; expected one of {}", keys.asked.join(", ")),
            };
            self.problem(keys.step, &format!("{}{name}", keys.prefix), message);
        }
    }

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
            let key = format!("{}{name}", keys.prefix);
            self.problem(
                keys.step,
                &key,
                format!("expected a whole number, 0 or more, got {number}"),
            );
        }
        whole
    }

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

    pub fn span(&mut self, keys: &mut Keys<'_>, name: &'static str) -> Option<Duration> {
        let node = keys.take(name)?;
        let Is::Text(text) = &node.is else {
            self.wrong(keys, name, "a duration like \"30s\"", node);
            return None;
        };
        span::parse(text)
            .map_err(|message| self.problem(keys.step, &format!("{}{name}", keys.prefix), message))
            .ok()
    }

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
            self.problem(keys.step, &format!("{}{name}", keys.prefix), message);
        }
        choice.map(|(_, choice)| *choice)
    }
}
