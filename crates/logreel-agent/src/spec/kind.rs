//! Telling an agent's file from a workflow's.

use std::path::Path;

use logreel::spec_file::{Format, Is, Node, OpenFiles, Problem};

/// What a spec file specifies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecKind {
    /// It has steps.
    Workflow,
    /// It has a model.
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
        match (has("step"), has("model")) {
            (true, false) => Ok(Self::Workflow),
            (false, true) => Ok(Self::Agent),
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
