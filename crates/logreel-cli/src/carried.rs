//! Files of runs as the command line names them: a path, or `-` for what comes on stdin.

use std::fs::File;
use std::io::{self, Seek as _};
use std::path::Path;

use logreel::{ErrorKind, FileError, RunFile};

use crate::error::Failure;

/// Whether the name is a file's rather than a run's. A run is never called like a path, so only a file of
/// that name in the current folder could be meant instead, and then it is.
pub fn is_file(name: &str) -> bool {
    name == "-" || name.contains(['/', '.']) || Path::new(name).is_file()
}

/// Opens a file of runs.
pub fn open(name: &str) -> Result<RunFile, Failure> {
    RunFile::of(source(name)?).map_err(|error| refused(name, &error))
}

/// A file that can be read more than once: what comes on stdin is put into one without a name first.
pub fn source(name: &str) -> Result<File, Failure> {
    let opened = match name {
        "-" => spooled(),
        path => File::open(path).and_then(|file| match file.metadata()?.is_dir() {
            true => Err(io::Error::from(io::ErrorKind::IsADirectory)),
            false => Ok(file),
        }),
    };
    opened.map_err(|error| {
        let message = format!("{name} cannot be read: {error}");
        Failure::new(ErrorKind::Invalid, message)
    })
}

fn spooled() -> io::Result<File> {
    let mut file = tempfile::tempfile()?;
    io::copy(&mut io::stdin().lock(), &mut file)?;
    file.rewind()?;
    Ok(file)
}

/// What is wrong with a file, with its name.
pub fn refused(name: &str, error: &FileError) -> Failure {
    let failure = Failure::new(error.kind(), format!("{name}: {error}"));
    match error {
        FileError::Unknown => failure
            .hint(
                "`logreel export RUN --format jsonl|reel` writes what can be; a checkpoint is checked by \
                 `logreel import`",
            ),
        FileError::Newer { .. } => failure.hint("use a newer logreel"),
        _ => failure,
    }
}
