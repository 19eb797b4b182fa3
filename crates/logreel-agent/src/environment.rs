//! interim
use crate::AgentSpec;
pub(crate) fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
pub(crate) fn variables(_spec: &AgentSpec) -> Vec<String> {
    Vec::new()
}
