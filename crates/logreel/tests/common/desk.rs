//! Workflows run in a folder whose files tell what their commands did.

use std::path::Path;

use logreel::workflow::{Format, Workflow};
use logreel::{Engine, Json, Outcome, RunHandle};
use serde_json::Value;

/// A folder that commands count in.
pub struct Desk(tempfile::TempDir);

impl Desk {
    pub fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn lines(&self, file: &str) -> Vec<String> {
        lines(self.path(), file)
    }
}

/// The lines of a file; none when it is not there.
pub fn lines(dir: &Path, file: &str) -> Vec<String> {
    let text = std::fs::read_to_string(dir.join(file)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

pub fn parse(text: &str) -> Workflow {
    Workflow::parse(text, Format::Toml, "test.toml").unwrap_or_else(|problems| panic!("{problems}"))
}

pub async fn start(engine: &Engine, dir: &Path, text: &str, input: Value) -> RunHandle<Json> {
    let runs = engine.workflow(&parse(text));
    let dir = dir.to_string_lossy().into_owned();
    runs.start(&input).dir(dir).await.unwrap()
}

/// The output of a run that completes.
pub async fn completed(run: &RunHandle<Json>) -> Value {
    match run.wait().await.unwrap() {
        Outcome::Completed(output) => output.to_value(),
        other => panic!("{other:?}"),
    }
}
