//! Calls of models: the latest attempt of each, which are over, and what they used.

use std::collections::{BTreeMap, HashMap, HashSet};

use logreel::core::CallId;
use logreel::core::event::{ModelCalled, Spend};

use super::super::sent::TokenUsage;

#[derive(Default)]
pub(super) struct Models {
    /// The latest attempt of each call, with its model.
    called: HashMap<CallId, (u32, String)>,
    /// What is still said of these live comes too late.
    over: HashSet<CallId>,
    /// During their run, by model.
    usage: BTreeMap<String, TokenUsage>,
}

impl Models {
    /// Another of their runs begins.
    pub(super) fn begin(&mut self) {
        self.usage.clear();
    }

    pub(super) fn called(&mut self, called: &ModelCalled) {
        let known = (called.attempt, called.model.clone());
        self.called.insert(called.call.clone(), known);
    }

    pub(super) fn attempt(&self, call: &CallId) -> u32 {
        self.called.get(call).map_or(1, |(attempt, _)| *attempt)
    }

    /// The call has its outcome.
    pub(super) fn end(&mut self, call: &CallId, spent: &Spend) {
        let model = self.called.get(call).map_or("", |(_, model)| &**model);
        let usage = self.usage.entry(model.to_owned()).or_default();
        model.clone_into(&mut usage.model);
        usage.input_tokens += spent.input_tokens;
        usage.output_tokens += spent.output_tokens;
        usage.reasoning_tokens += spent.reasoning_tokens;
        self.over.insert(call.clone());
    }

    pub(super) fn is_over(&self, call: &CallId) -> bool {
        self.over.contains(call)
    }

    pub(super) fn usage(&self) -> Vec<TokenUsage> {
        self.usage.values().cloned().collect()
    }
}
