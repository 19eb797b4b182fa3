//! The files that are being read, each named by the one before it.

use std::path::{Path, PathBuf};

/// What is being read, outermost first.
#[derive(Debug, Default)]
pub struct OpenFiles(Vec<(PathBuf, String)>);

impl OpenFiles {
    /// The text of a file that is read from now on, until [`OpenFiles::leave`]. One that is being read
    /// already is refused.
    pub fn enter(&mut self, path: &Path) -> Result<String, String> {
        let name = path.display().to_string();
        let text = text_of(path)?;
        let canonical = path
            .canonicalize()
            .map_err(|error| cannot_read(path, &error))?;
        if let Some(first) = self.0.iter().position(|(open, _)| *open == canonical) {
            let circle = self.0[first..].iter().map(|(_, name)| name.as_str());
            let circle: Vec<&str> = circle.chain([name.as_str()]).collect();
            return Err(format!(
                "files name each other in a circle: {}",
                circle.join(" -> ")
            ));
        }
        self.0.push((canonical, name));
        Ok(text)
    }

    /// How many are being read.
    pub fn depth(&self) -> usize {
        self.0.len()
    }

    /// The file that was entered last has been read.
    pub fn leave(&mut self) {
        self.0.pop();
    }
}

/// The text of a file, or a message that names it.
pub(super) fn text_of(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| cannot_read(path, &error))
}

fn cannot_read(path: &Path, error: &std::io::Error) -> String {
    format!("cannot read {}: {error}", path.display())
}
