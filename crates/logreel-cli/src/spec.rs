//! Spec files: a workflow, or a clear word about what else it is.

use std::path::{Path, PathBuf};

use logreel::ErrorKind;
use logreel::workflow::Workflow;

use crate::error::Failure;

/// The workflow in this file.
pub fn read(path: &Path) -> Result<Workflow, Failure> {
    Workflow::read(path).map_err(|problems| {
        if std::fs::read_to_string(path).is_ok_and(|text| is_agent(&text)) {
            let message = format!(
                "{} is an agent; agents are not in this build yet",
                path.display()
            );
            return Failure::new(ErrorKind::Invalid, message)
                .hint("a workflow has [[step]] tables; `logreel init` writes an example");
        }
        Failure::new(ErrorKind::Invalid, problems.to_string())
    })
}

/// The file and its folder, both absolute: they are recorded, and used from elsewhere.
pub fn place(path: &Path) -> Result<(PathBuf, PathBuf), Failure> {
    let refuse = |error: std::io::Error| {
        let message = format!("{} cannot be read: {error}", path.display());
        Failure::new(ErrorKind::Invalid, message)
    };
    let file = path.canonicalize().map_err(refuse)?;
    let folder = file.parent().unwrap_or(Path::new("/")).to_owned();
    Ok((file, folder))
}

/// The folder to run in instead, absolute.
pub fn folder(said: &Path) -> Result<PathBuf, Failure> {
    let is_folder = |path: &PathBuf| path.is_dir();
    said.canonicalize().ok().filter(is_folder).ok_or_else(|| {
        let message = format!("--dir {} is not a folder", said.display());
        Failure::new(ErrorKind::Usage, message)
    })
}

/// An agent names its model at the top and has no steps.
fn is_agent(text: &str) -> bool {
    if let Ok(json) = serde_json::from_str::<serde_json::Value>(text) {
        return json.get("model").is_some() && json.get("step").is_none();
    }
    let is_model = |line: &str| {
        let rest = line.trim_start().strip_prefix("model");
        rest.is_some_and(|rest| rest.trim_start().starts_with('='))
    };
    text.lines().any(is_model) && !text.contains("[[step]]")
}
