//! Telling an agent's file from a workflow's.

use std::path::Path;

use logreel::spec_file::{Format, Is, Node, OpenFiles, Problem};

/// Keys that no workflow has.
const ONLY_OF_AGENTS: [&str; 9] = [
    "system",
    "system_file",
    "tools",
    "tool",
    "agents",
    "mcp",
    "policy",
    "max_turns",
    "verify",
];

/// What a spec file specifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecKind {
    /// It has steps.
    Workflow,
    /// It has a model, or what only an agent has.
    Agent,
}

impl SpecKind {
    /// What is in this file, by its keys; an error for what is neither or both.
    pub fn of_file(path: &Path) -> Result<Self, Problem> {
        let name = path.display().to_string();
        let text = OpenFiles::default()
            .enter(path)
            .map_err(|message| Problem::of_file(&name, message))?;
        let node = Node::parse(&text, Format::of(path), &name)?;
        let Is::Table(fields) = &node.is else {
            let message = format!("expected a table, got {}", node.kind());
            return Err(Problem::of_file(name, message));
        };
        let has = |key: &str| fields.iter().any(|field| field.name == key);
        // The model may be in the settings.
        let is_agent = ONLY_OF_AGENTS.into_iter().any(has);
        match (has("step"), has("model")) {
            (true, false) => Ok(Self::Workflow),
            (false, true) => Ok(Self::Agent),
            (false, false) if is_agent => Ok(Self::Agent),
            (true, true) => Err(Problem {
                line: node.lines().get("model").copied(),
                key: "model".to_owned(),
                ..Problem::of_file(
                    name,
                    "a workflow has `[[step]]` and an agent has `model`; this has both",
                )
            }),
            (false, false) => Err(Problem::of_file(
                name,
                "is neither: a workflow has `[[step]]` tables, an agent has a `model`",
            )),
        }
    }
}
