//! interim
use crate::spec::PolicySpec;
use crate::tool::Definition;
use std::path::Path;
pub(crate) enum Verdict {
    Allow,
    Ask(String),
    Deny(String),
}
pub(crate) struct Policy(bool);
impl Policy {
    pub(crate) fn new(spec: &PolicySpec, _dir: &Path) -> Result<Self, String> {
        Ok(Self(spec.no_ask))
    }
    pub(crate) fn judge(&self, definition: &Definition, _subjects: &[String]) -> Verdict {
        match (definition.asks, self.0) {
            (true, true) => Verdict::Deny("no".into()),
            (true, false) => Verdict::Ask(format!("may it call {}?", definition.name)),
            (false, _) => Verdict::Allow,
        }
    }
}
