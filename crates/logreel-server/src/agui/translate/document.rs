//! The run's document, and its patches in words that every client understands alike.

use logreel::RunId;
use logreel::core::event::StatePatched;
use serde_json::{Value, json};

use super::super::sent::Sent;

#[derive(Default)]
pub(super) struct Document(Value);

impl Document {
    #[cfg(test)]
    pub(super) fn value(&self) -> &Value {
        &self.0
    }

    /// All of it.
    pub(super) fn snapshot(&self) -> Sent {
        Sent::StateSnapshot {
            snapshot: self.0.clone(),
        }
    }

    pub(super) fn patch(&mut self, run: &RunId, patched: &StatePatched, out: &mut Vec<Sent>) {
        let delta = serde_json::to_value(&patched.patch).unwrap_or_default();
        let before = (!is_plain(&delta)).then(|| self.0.clone());
        if let Err(error) = json_patch::patch(&mut self.0, &patched.patch) {
            // The fold refuses such a log before anyone is told of it.
            tracing::warn!(%error, %run, "a patch does not apply");
            return;
        }
        let delta = match before {
            None => Some(delta),
            Some(before) => difference(&before, &self.0).filter(is_plain),
        };
        match delta {
            Some(Value::Array(operations)) if operations.is_empty() => {}
            Some(delta) => out.push(Sent::StateDelta { delta }),
            None => out.push(self.snapshot()),
        }
    }
}

/// Whether a patch means the same to every client. Some refuse names that are special in JavaScript, and
/// what they make of a patch of the whole document differs.
pub(super) fn is_plain(patch: &Value) -> bool {
    let pointers = patch.as_array().into_iter().flatten();
    let mut pointers = pointers.flat_map(|operation| [&operation["path"], &operation["from"]]);
    pointers.all(|pointer| {
        let Some(pointer) = pointer.as_str() else {
            return pointer.is_null();
        };
        let mut names = pointer.split('/').skip(1).peekable();
        names.peek().is_some()
            && !names.any(|name| matches!(name, "__proto__" | "constructor" | "prototype"))
    })
}

/// A patch from one document to another, by their members; `None` when one has none.
pub(super) fn difference(old: &Value, new: &Value) -> Option<Value> {
    let (old, new) = (old.as_object()?, new.as_object()?);
    let path = |name: &str| format!("/{}", name.replace('~', "~0").replace('/', "~1"));
    let gone = old.keys().filter(|name| !new.contains_key(*name));
    let gone = gone.map(|name| json!({"op": "remove", "path": path(name)}));
    let changed = new
        .iter()
        .filter(|(name, value)| old.get(*name) != Some(*value));
    let changed =
        changed.map(|(name, value)| json!({"op": "add", "path": path(name), "value": value}));
    Some(gone.chain(changed).collect())
}
