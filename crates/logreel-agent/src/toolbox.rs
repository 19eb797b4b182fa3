//! interim
use crate::{AgentSpec, Definition, Tool};
use logreel::{Ctx, TaskError};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
pub(crate) struct Toolbox(BTreeMap<String, Arc<dyn Tool>>);
impl Toolbox {
    pub(crate) async fn open(
        _ctx: &Ctx,
        spec: &AgentSpec,
        _dir: &Path,
        tools: &[Arc<dyn Tool>],
    ) -> Result<Self, TaskError> {
        let tools = tools
            .iter()
            .filter(|tool| spec.tools.contains(&tool.definition().name));
        Ok(Self(
            tools
                .map(|tool| (tool.definition().name.clone(), Arc::clone(tool)))
                .collect(),
        ))
    }
    pub(crate) fn get(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.0.get(name)
    }
    pub(crate) fn definitions(&self) -> impl Iterator<Item = &Definition> {
        self.0.values().map(|tool| tool.definition())
    }
}
pub(crate) fn check_arguments(definition: &Definition, arguments: &Value) -> Result<(), String> {
    check_schema(&definition.schema, arguments)
}
pub(crate) fn check_schema(schema: &Value, arguments: &Value) -> Result<(), String> {
    jsonschema::validate(schema, arguments).map_err(|error| error.to_string())
}
pub(crate) fn cut(text: &str, limit: usize) -> String {
    text.chars().take(limit).collect()
}
