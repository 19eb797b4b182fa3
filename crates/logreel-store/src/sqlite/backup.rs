//! Copying a store that others write.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use rusqlite::backup::Backup;

use super::failure::Halt;
use super::open::SqliteStore;
use crate::Error;

impl SqliteStore {
    /// Copies the store as it is at one moment to a new file. Writers go on meanwhile.
    pub fn backup(&self, to: &Path) -> Result<(), Error> {
        let invalid = |why: String| Error::Invalid {
            path: to.to_owned(),
            why,
        };
        // Made here, so that nothing that exists is ever written over.
        match fs::OpenOptions::new().write(true).create_new(true).open(to) {
            Ok(file) => drop(file),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                return Err(invalid(
                    "it exists; name a new file for the backup".to_owned(),
                ));
            }
            Err(error) => return Err(invalid(format!("it cannot be made: {error}"))),
        }
        let copied = self.reading(|conn| {
            let mut target = Connection::open(to)?;
            let backup = Backup::new(conn, &mut target)?;
            // All pages in one step: a read transaction, so a writer cannot make it begin again.
            backup.run_to_completion(i32::MAX, Duration::ZERO, None)?;
            drop(backup);
            target.close().map_err(|(_, error)| Halt::Database(error))
        });
        if copied.is_err()
            && let Err(error) = fs::remove_file(to)
        {
            tracing::warn!("half a backup is left at {}: {error}", to.display());
        }
        copied?;
        sync_folder(to).map_err(|error| Error::unavailable(error.to_string()))
    }
}

/// A new name is durable once its folder is.
fn sync_folder(file: &Path) -> std::io::Result<()> {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => fs::File::open(folder)?.sync_all(),
        _ => fs::File::open(".")?.sync_all(),
    }
}
