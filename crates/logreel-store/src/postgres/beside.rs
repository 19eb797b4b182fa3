//! What people see of a database, and where on this host lies what others keep beside their file.

use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::connect::Place;
use super::owners::default_folder;
use crate::Error;

/// Whether this names a database, and not a file.
pub fn is_url(said: &str) -> bool {
    said.starts_with("postgres://") || said.starts_with("postgresql://")
}

/// The URL without its password.
pub fn shown(url: &str) -> Result<String, Error> {
    Ok(Place::parse(url)?.shown)
}

/// What the files of this host begin with that belong to this database: the same for all processes of the user,
/// with whichever password they come. Their folder is made, for the user alone.
pub fn notes_of(url: &str) -> Result<PathBuf, Error> {
    let place = Place::parse(url)?;
    let folder = default_folder();
    make_private(&folder)?;
    let name = logreel_core::Digest::of(place.identity.as_bytes());
    let name: String = name
        .0
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    Ok(folder.join(format!("database-{name}")))
}

/// Makes the folder for the user alone, and refuses one that someone else could put something into: whoever takes over
/// believes what is in there.
pub(super) fn make_private(folder: &Path) -> Result<(), Error> {
    let fail = |error: std::io::Error| Error::Unavailable {
        what: format!("{} cannot be used: {error}", folder.display()),
        source: Some(Arc::new(error)),
    };
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(folder)
        .map_err(fail)?;
    // Under the temporary folder anyone may have made it first.
    let made = std::fs::symlink_metadata(folder).map_err(fail)?;
    let user = rustix::process::getuid().as_raw();
    if !made.is_dir() || made.uid() != user || made.mode() & 0o022 != 0 {
        return Err(Error::Invalid {
            path: folder.to_owned(),
            why: "it is another user's, or others may write in it; set XDG_RUNTIME_DIR to a folder of \
                  yours, or remove it"
                .to_owned(),
        });
    }
    Ok(())
}
