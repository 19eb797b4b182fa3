//! A step once for each item of a list. Items are steps `ID[KEY]`, known by their key and never by
//! their position, so that a list that was put in another order is the same work.

use std::collections::{HashMap, HashSet, VecDeque};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use logreel_core::meaning::digest_of;
use logreel_core::state::Doing;
use logreel_core::{StepId, StepState};
use serde_json::Value;

use super::run::{Ended, Running, goes_on, step_id};
use super::secrets::Secrets;
use super::spec::StepSpec;
use super::template::{self, Scope};
use crate::error::TaskError;

/// Digits of an item's digest that name it.
const KEY_DIGITS: usize = 16;

impl Running<'_> {
    pub(super) async fn map(
        &self,
        step: usize,
        id: &StepId,
        items: &Value,
        scope: &Scope,
    ) -> Result<Ended, TaskError> {
        let spec = self.workflow.step(step);
        let (items, steps) = match plan(spec, items, scope, &self.secrets) {
            Ok(plan) => plan,
            Err(error) => return self.fail_early(id, error).await,
        };
        let at_once = spec
            .concurrency
            .map_or(self.limit, |at_once| at_once.max(1) as usize);
        let ended = |item: &usize| self.has_ended(&steps[*item]);
        let mut todo: VecDeque<usize> = (0..items.len()).filter(|item| !ended(item)).collect();
        let mut under_way: FuturesUnordered<BoxFuture<'_, _>> = FuturesUnordered::new();
        let mut failures: Vec<(usize, TaskError)> = Vec::new();
        loop {
            // Nothing new begins once the run is failing.
            while under_way.len() < at_once && !*self.failing.borrow() {
                let Some(item) = todo.pop_front() else { break };
                let (id, scope) = (&steps[item], scope.with_item(&items[item], item));
                under_way.push(Box::pin(
                    async move { (item, self.one(step, id, &scope).await) },
                ));
            }
            let Some((item, outcome)) = under_way.next().await else {
                break;
            };
            match outcome {
                Ok(_) => {}
                Err(error) if goes_on(spec, &error) => {}
                Err(error) if error.is_cancelled() => return Err(error),
                Err(error) => {
                    self.failing.send_replace(true);
                    failures.push((item, error));
                }
            }
        }
        if let (Some(item), true) = (todo.front(), failures.is_empty()) {
            failures.push((*item, TaskError::abandoned()));
        }
        drop(under_way);
        failures.sort_by_key(|(index, error)| (error.is_abandoned(), *index));
        match failures.into_iter().next() {
            Some((_, error)) => Err(error),
            None => Ok(Ended::Mapped(steps)),
        }
    }

    /// Whether the log has the item's end. One that failed is asked again: the log may say to retry.
    fn has_ended(&self, step: &StepId) -> bool {
        self.ctx
            .0
            .journal
            .with_state(|state| match state.steps.get(step) {
                Some(StepState::Finished { .. }) => true,
                Some(StepState::Open(open)) => open.doing == Doing::Skipped,
                Some(StepState::Answered { .. }) | None => false,
            })
    }
}

/// The items and their steps.
fn plan(
    spec: &StepSpec,
    items: &Value,
    scope: &Scope,
    secrets: &Secrets,
) -> Result<(Vec<Value>, Vec<StepId>), TaskError> {
    let items = match template::render("map", items, scope)? {
        Value::Array(items) => items,
        other => {
            let message = format!("`map` must give a list, and gave {}", kind_of(&other));
            return Err(TaskError::of_kind("template", message).permanent());
        }
    };
    let steps = match &spec.map_key {
        Some(key) => steps_by_key(spec, key, &items, scope, secrets)?,
        None => steps_by_digest(spec, &items)?,
    };
    Ok((items, steps))
}

/// Equal items are `KEY`, `KEY.2`, … in input order.
fn steps_by_digest(spec: &StepSpec, items: &[Value]) -> Result<Vec<StepId>, TaskError> {
    let mut seen: HashMap<String, u32> = HashMap::new();
    let mut steps = Vec::with_capacity(items.len());
    for item in items {
        let mut key = digest_of(item)?.hex()[..KEY_DIGITS].to_owned();
        let times = seen.entry(key.clone()).or_insert(0);
        *times += 1;
        if *times > 1 {
            key = format!("{key}.{times}");
        }
        steps.push(step_id([&spec.id, &key])?);
    }
    Ok(steps)
}

/// An explicit key that comes twice fails the map before its first item.
fn steps_by_key(
    spec: &StepSpec,
    key: &str,
    items: &[Value],
    scope: &Scope,
    secrets: &Secrets,
) -> Result<Vec<StepId>, TaskError> {
    let mut seen = HashSet::new();
    let mut steps = Vec::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let key = template::render_text("map_key", key, &scope.with_item(item, index))?;
        let key = secrets.redact_text(key);
        if !seen.insert(key.clone()) {
            let message = format!("`map_key` gives `{key}` for more than one item");
            return Err(TaskError::of_kind("map_key", message).permanent());
        }
        steps.push(step_id([&spec.id, &key])?);
    }
    Ok(steps)
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
