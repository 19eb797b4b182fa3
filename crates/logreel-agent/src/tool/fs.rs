//! `fs.read fs.list fs.search fs.write fs.edit`: files in the agent's folder, and in no other.
//!
//! A write is done once however often it is asked for: a file that holds the content already is left
//! alone, and an edit knows by the file's marks that it was made before an interruption.

use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use globset::GlobMatcher;
use logreel::Digest;
use logreel::core::event::Effect;
use regex::bytes::{Regex, RegexBuilder};
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use serde_json::{Map, Value, json};

use super::confine::{Folder, Marks, Refused, relative, whole};
use super::{Call, Definition, Tool, ToolError};
use crate::policy::Policy;

/// The most that one read gives.
const READ_BYTES_MAX: usize = 2 * 1024 * 1024;
const LIST_MAX: usize = 2000;
const LIST_DEPTH_MAX: u64 = 20;
const MATCHES_MAX: usize = 500;
const MATCH_BYTES_MAX: usize = 300;
const SEARCH_FILE_BYTES_MAX: u64 = 8 * 1024 * 1024;
const DEPTH_MAX: usize = 64;
const TIMEOUT: Duration = Duration::from_secs(60);
/// Where a search or a list does not go unless it begins there.
const SKIPPED: [&str; 4] = [".git", ".logreel", "node_modules", "target"];
/// Text that is shorter is in a file by chance.
const TELLING_BYTES_MIN: usize = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    Read,
    List,
    Search,
    Write,
    Edit,
}

/// One of the tools.
pub(crate) struct Fs {
    definition: Definition,
    does: Does,
    here: Arc<Here>,
}

/// What they share.
struct Here {
    folder: Folder,
    policy: Arc<Policy>,
}

impl Fs {
    /// All of them, in a folder.
    pub(crate) fn all(dir: &Path, policy: &Arc<Policy>) -> std::io::Result<Vec<Self>> {
        let here = Arc::new(Here {
            folder: Folder::open(dir)?,
            policy: Arc::clone(policy),
        });
        let all = [
            Does::Read,
            Does::List,
            Does::Search,
            Does::Write,
            Does::Edit,
        ];
        let tool = |does| Self {
            definition: definition(does),
            does,
            here: Arc::clone(&here),
        };
        Ok(all.map(tool).into_iter().collect())
    }
}

/// What they are.
pub(crate) fn definitions() -> Vec<Definition> {
    let all = [
        Does::Read,
        Does::List,
        Does::Search,
        Does::Write,
        Does::Edit,
    ];
    all.map(definition).into_iter().collect()
}

/// The file that a call is about, by the text of its path alone.
pub(crate) fn subject(folder: &Path, arguments: &Value) -> Result<String, ToolError> {
    let path = relative(folder, path_of(arguments))?;
    Ok(folder.join(path).to_string_lossy().into_owned())
}

fn definition(does: Does) -> Definition {
    let path =
        json!({"type": "string", "minLength": 1, "description": "A path in the working folder"});
    let text = |description: &str| json!({"type": "string", "description": description});
    let (name, description, properties, required) = match does {
        Does::Read => (
            "fs.read",
            "Reads a text file. A long one is read in pieces, by lines.",
            json!({
                "path": path,
                "offset": {"type": "integer", "minimum": 1, "description": "The first line, from 1"},
                "limit": {"type": "integer", "minimum": 1, "description": "How many lines"},
            }),
            vec!["path"],
        ),
        Does::List => (
            "fs.list",
            "Lists a folder, one path per line; folders end with a slash.",
            json!({
                "path": path,
                "depth": {"type": "integer", "minimum": 1, "maximum": LIST_DEPTH_MAX, "description": "How deep; 1 when nothing is said"},
            }),
            vec![],
        ),
        Does::Search => (
            "fs.search",
            "Searches the lines of text files for a regular expression; gives PATH:LINE: TEXT.",
            json!({
                "pattern": text("A regular expression"),
                "path": path,
                "glob": text("Only files whose name or path fits, such as *.rs"),
            }),
            vec!["pattern"],
        ),
        Does::Write => (
            "fs.write",
            "Writes a file as a whole; folders on the way are made.",
            json!({"path": path, "content": text("What it is to hold")}),
            vec!["path", "content"],
        ),
        Does::Edit => (
            "fs.edit",
            "Replaces text in a file. `old` must occur exactly once, unless `all` is true.",
            json!({
                "path": path,
                "old": {"type": "string", "minLength": 1, "description": "The text to replace, to the letter"},
                "new": text("What takes its place"),
                "all": {"type": "boolean", "description": "Replace every occurrence"},
            }),
            vec!["path", "old", "new"],
        ),
    };
    Definition {
        name: name.to_owned(),
        description: description.to_owned(),
        schema: json!({
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        }),
        effect: match does {
            Does::Read | Does::List | Does::Search => Effect::Read,
            Does::Write | Does::Edit => Effect::Idempotent,
        },
        declared: true,
        timeout: Some(TIMEOUT),
        asks: false,
    }
}

#[async_trait]
impl Tool for Fs {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn subjects(&self, arguments: &Value) -> Result<Vec<String>, ToolError> {
        let folder = &self.here.folder;
        let real = folder.real(&folder.relative(path_of(arguments))?)?;
        Ok(vec![self.here.subject(&real)])
    }

    async fn call(&self, call: &Call<'_>) -> Result<Value, ToolError> {
        let (does, here) = (self.does, Arc::clone(&self.here));
        let (arguments, key) = (call.arguments.clone(), call.key);
        // Files may be slow, and a search long: neither may keep the runtime.
        apart(move |given_up| match does {
            Does::Read => here.read(&arguments),
            Does::List => here.list(&arguments, given_up),
            Does::Search => here.search(&arguments, given_up),
            Does::Write => here.write(&arguments, &key),
            Does::Edit => here.edit(&arguments, &key),
        })
        .await
    }
}

/// Does something on a thread of its own; told when nobody waits for it any more.
async fn apart<T: Send + 'static>(
    work: impl FnOnce(&AtomicBool) -> Result<T, ToolError> + Send + 'static,
) -> Result<T, ToolError> {
    struct GiveUp(Arc<AtomicBool>);
    impl Drop for GiveUp {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let given_up = GiveUp(Arc::default());
    let (sender, receiver) = tokio::sync::oneshot::channel();
    let told = Arc::clone(&given_up.0);
    let spawned = std::thread::Builder::new()
        .name("logreel-fs".to_owned())
        .spawn(move || drop(sender.send(work(&told))));
    spawned.map_err(|error| ToolError::failed(format!("no thread: {error}")))?;
    let done = receiver.await;
    done.unwrap_or_else(|_| Err(ToolError::failed("the file tool came to no end")))
}

impl From<Refused> for ToolError {
    fn from(refused: Refused) -> Self {
        let kind = match &refused {
            Refused::Missing(_) => "not_found",
            Refused::TooLarge { .. } => "too_large",
            Refused::Io { .. } | Refused::Changed(_) => "error",
            _ => "refused",
        };
        Self::of_kind(kind, refused.to_string())
    }
}

fn path_of(arguments: &Value) -> &str {
    text_of(arguments, "path").unwrap_or(".")
}

fn text_of<'a>(arguments: &'a Value, name: &str) -> Option<&'a str> {
    arguments.get(name).and_then(Value::as_str)
}

fn needed<'a>(arguments: &'a Value, name: &str) -> Result<&'a str, ToolError> {
    let missing = || ToolError::failed(format!("`{name}` must be a string"));
    text_of(arguments, name).ok_or_else(missing)
}

/// A file that is text.
fn text(bytes: Vec<u8>, path: &Path) -> Result<String, ToolError> {
    let binary = |bytes: usize| {
        let path = path.display();
        ToolError::of_kind("binary", format!("`{path}` is no text ({bytes} bytes)"))
    };
    if is_binary(&bytes) {
        return Err(binary(bytes.len()));
    }
    String::from_utf8(bytes).map_err(|error| binary(error.as_bytes().len()))
}

fn is_binary(bytes: &[u8]) -> bool {
    bytes[..bytes.len().min(8192)].contains(&0)
}

impl Here {
    fn subject(&self, real: &Path) -> String {
        self.folder.path().join(real).to_string_lossy().into_owned()
    }

    /// Policy judged a path by where it led then. What it leads to now must not be denied either.
    fn still_allowed(&self, tool: &str, real: &Path) -> Result<(), ToolError> {
        match self.policy.denies(tool, &self.subject(real)) {
            true => {
                let message = format!("the policy denies `{}`", real.display());
                Err(ToolError::of_kind("denied", message))
            }
            false => Ok(()),
        }
    }

    fn read(&self, arguments: &Value) -> Result<Value, ToolError> {
        let relative = self.folder.relative(path_of(arguments))?;
        let real = self.folder.real(&relative)?;
        self.still_allowed("fs.read", &real)?;
        let (file, _) = self.folder.file(&real)?;
        let text = text(whole(file, &relative)?, &relative)?;
        let number = |name| {
            let number = arguments.get(name).and_then(Value::as_u64);
            number.map(|number| usize::try_from(number).unwrap_or(usize::MAX))
        };
        let (offset, limit) = (number("offset"), number("limit"));
        if offset.is_none() && limit.is_none() && text.len() <= READ_BYTES_MAX {
            return Ok(Value::from(text));
        }
        Ok(piece(
            &text,
            offset.unwrap_or(1),
            limit.unwrap_or(usize::MAX),
        ))
    }

    fn list(&self, arguments: &Value, given_up: &AtomicBool) -> Result<Value, ToolError> {
        let relative = self.folder.relative(path_of(arguments))?;
        let depth = arguments.get("depth").and_then(Value::as_u64).unwrap_or(1);
        let depth = usize::try_from(depth.min(LIST_DEPTH_MAX)).unwrap_or(1);
        let (mut lines, mut more) = (Vec::new(), false);
        self.visit("fs.list", &relative, depth, given_up, &mut |found| {
            if lines.len() == LIST_MAX {
                more = true;
                return Ok(Go::Stop);
            }
            let mark = match found.kind {
                FileType::Directory => "/",
                FileType::Symlink => "@",
                FileType::RegularFile => "",
                _ => "?",
            };
            lines.push(format!("{}{mark}", found.path.display()));
            Ok(Go::On)
        })?;
        if more {
            lines.push(format!("[... only the first {LIST_MAX} are listed ...]"));
        }
        Ok(Value::from(lines.join("\n")))
    }

    fn search(&self, arguments: &Value, given_up: &AtomicBool) -> Result<Value, ToolError> {
        let relative = self.folder.relative(path_of(arguments))?;
        let pattern = RegexBuilder::new(needed(arguments, "pattern")?)
            .size_limit(8 * 1024 * 1024)
            .build()
            .map_err(|error| ToolError::failed(format!("`pattern`: {error}")))?;
        let glob = match text_of(arguments, "glob") {
            Some(glob) => {
                let glob = globset::Glob::new(glob);
                let glob = glob.map_err(|error| ToolError::failed(format!("`glob`: {error}")))?;
                Some(glob.compile_matcher())
            }
            None => None,
        };
        let mut matches = Matches::default();
        let real = self.folder.real(&relative)?;
        if let Ok((file, stat)) = self.folder.file(&real) {
            self.still_allowed("fs.search", &real)?;
            self.still_allowed("fs.read", &real)?;
            if stat.st_size.cast_unsigned() <= SEARCH_FILE_BYTES_MAX {
                matches.of(&relative, &whole(file, &relative)?, &pattern);
            }
            return Ok(matches.told());
        }
        self.visit("fs.search", &relative, DEPTH_MAX, given_up, &mut |found| {
            if found.kind != FileType::RegularFile || !fits(glob.as_ref(), &found.path) {
                return Ok(Go::On);
            }
            if self.policy.denies("fs.read", &self.subject(&found.real)) {
                return Ok(Go::On);
            }
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = rustix::fs::openat(found.folder.as_fd(), found.name, flags, Mode::empty());
            // Gone meanwhile, or not ours to read.
            let Ok(fd) = opened else { return Ok(Go::On) };
            let Ok(stat) = rustix::fs::fstat(&fd) else {
                return Ok(Go::On);
            };
            let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
            if !is_file || stat.st_size.cast_unsigned() > SEARCH_FILE_BYTES_MAX {
                return Ok(Go::On);
            }
            let bytes = whole(fd.into(), &found.path)?;
            matches.of(&found.path, &bytes, &pattern);
            Ok(match matches.lines.len() >= MATCHES_MAX {
                true => Go::Stop,
                false => Go::On,
            })
        })?;
        Ok(matches.told())
    }

    /// Goes through a folder, in order, and never through a symlink.
    fn visit(
        &self,
        tool: &str,
        relative: &Path,
        depth: usize,
        given_up: &AtomicBool,
        look: &mut dyn FnMut(Found<'_>) -> Result<Go, ToolError>,
    ) -> Result<(), ToolError> {
        let real = self.folder.real(relative)?;
        self.still_allowed(tool, &real)?;
        let root = Arc::new(self.folder.folder(&real)?);
        let mut todo = vec![Level {
            folder: root,
            path: relative.to_owned(),
            real,
            depth: 1,
        }];
        while let Some(level) = todo.pop() {
            let mut folders = Vec::new();
            for (name, kind) in entries(&level.folder, &level.path)? {
                if given_up.load(Ordering::Relaxed) {
                    return Err(ToolError::of_kind("timeout", "it took too long"));
                }
                let (path, real) = (level.path.join(&name), level.real.join(&name));
                if self.policy.denies(tool, &self.subject(&real)) {
                    continue;
                }
                let found = Found {
                    folder: &level.folder,
                    name: &name,
                    path: path.clone(),
                    real: real.clone(),
                    kind,
                };
                if let Go::Stop = look(found)? {
                    return Ok(());
                }
                let skipped = SKIPPED.iter().any(|it| name == *it);
                if kind != FileType::Directory || level.depth >= depth || skipped {
                    continue;
                }
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let opened = rustix::fs::openat(&*level.folder, &name, flags, Mode::empty());
                if let Ok(folder) = opened {
                    folders.push(Level {
                        folder: Arc::new(folder),
                        path,
                        real,
                        depth: level.depth + 1,
                    });
                }
            }
            todo.extend(folders.into_iter().rev());
        }
        Ok(())
    }

    fn write(&self, arguments: &Value, key: &Digest) -> Result<Value, ToolError> {
        let relative = self.folder.relative(path_of(arguments))?;
        let content = needed(arguments, "content")?.as_bytes();
        let allowed = |real: &Path| self.still_allowed("fs.write", real);
        let change = |current: Option<&[u8]>, _: &Marks| {
            Ok((current != Some(content)).then(|| content.to_vec()))
        };
        let replaced = self.folder.replace(&relative, &mark(key), allowed, change);
        let bytes = replaced?;
        Ok(json!({"path": relative.display().to_string(), "bytes": bytes}))
    }

    fn edit(&self, arguments: &Value, key: &Digest) -> Result<Value, ToolError> {
        let relative = self.folder.relative(path_of(arguments))?;
        let (old, new) = (needed(arguments, "old")?, needed(arguments, "new")?);
        let all = arguments.get("all").and_then(Value::as_bool);
        let edit = Edit {
            old,
            new,
            all: all.unwrap_or(false),
        };
        let allowed = |real: &Path| self.still_allowed("fs.edit", real);
        let mark = mark(key);
        let change = |current: Option<&[u8]>, marks: &Marks| {
            let shown = relative.display();
            let missing = || ToolError::of_kind("not_found", format!("`{shown}` does not exist"));
            let current = text(current.ok_or_else(missing)?.to_vec(), &relative)?;
            let edited = edit.made(&current, marks, &mark)?;
            Ok(edited.map(String::into_bytes))
        };
        let bytes = self.folder.replace(&relative, &mark, allowed, change)?;
        Ok(json!({"path": relative.display().to_string(), "bytes": bytes}))
    }
}

/// What a file remembers of a call.
fn mark(key: &Digest) -> [u8; 16] {
    let mut mark = [0; 16];
    let digest = Digest::of(key.to_string().as_bytes()).hex();
    mark.copy_from_slice(&digest.as_bytes()[..16]);
    mark
}

struct Edit<'a> {
    old: &'a str,
    new: &'a str,
    all: bool,
}

impl Edit<'_> {
    /// The text after the edit; `None` when this very call made it before an interruption.
    fn made(
        &self,
        text: &str,
        marks: &Marks,
        mark: &[u8; 16],
    ) -> Result<Option<String>, ToolError> {
        let Self { old, new, all } = *self;
        if old.is_empty() || old == new {
            return Err(ToolError::failed(
                "`old` must be some text other than `new`",
            ));
        }
        match marks.has(mark) {
            Some(true) => return Ok(None),
            Some(false) => {}
            // The file cannot say; the text may.
            None if self.reads_as_made(text) => return Ok(None),
            None => {}
        }
        match text.matches(old).count() {
            0 if text.contains(new) && new.len() >= TELLING_BYTES_MIN => Err(ToolError::failed(
                "`old` is not in the file; `new` is already",
            )),
            0 => Err(ToolError::failed(
                "`old` is not in the file; it must be the text to the letter, with its white space",
            )),
            1 => Ok(Some(text.replacen(old, new, 1))),
            _ if all => Ok(Some(text.replace(old, new))),
            count => Err(ToolError::failed(format!(
                "`old` is in the file {count} times; add lines around it, or set `all`"
            ))),
        }
    }

    /// Whether the text can be what this edit leaves: nothing of `old` outside of `new`.
    fn reads_as_made(&self, text: &str) -> bool {
        let Self { old, new, .. } = *self;
        new.trim().len() >= TELLING_BYTES_MIN
            && text.contains(new)
            && !text.split(new).any(|between| between.contains(old))
    }
}

/// Some lines of a text, with where they are.
fn piece(text: &str, offset: usize, limit: usize) -> Value {
    let (mut kept, mut bytes, mut count) = (Vec::new(), 0, 0);
    let mut full = false;
    for (n, line) in text.split_inclusive('\n').enumerate() {
        count = n + 1;
        let wanted = n + 1 >= offset && kept.len() < limit && !full;
        if !wanted {
            continue;
        }
        if bytes + line.len() > READ_BYTES_MAX {
            full = true;
            if !kept.is_empty() {
                continue;
            }
        }
        bytes += line.len();
        kept.push(line);
    }
    let mut told = Map::new();
    let text: String = kept.concat();
    told.insert(
        "text".to_owned(),
        logreel::cut(&text, READ_BYTES_MAX).into(),
    );
    told.insert("first_line".to_owned(), offset.into());
    told.insert("lines".to_owned(), kept.len().into());
    told.insert("lines_in_file".to_owned(), count.into());
    Value::Object(told)
}

enum Go {
    On,
    Stop,
}

struct Level {
    folder: Arc<OwnedFd>,
    path: PathBuf,
    real: PathBuf,
    depth: usize,
}

struct Found<'a> {
    folder: &'a OwnedFd,
    name: &'a std::ffi::OsStr,
    path: PathBuf,
    real: PathBuf,
    kind: FileType,
}

/// What is in a folder, by name.
fn entries(
    folder: &OwnedFd,
    path: &Path,
) -> Result<Vec<(std::ffi::OsString, FileType)>, ToolError> {
    let failed = |error: rustix::io::Errno| {
        ToolError::failed(format!(
            "`{}`: {}",
            path.display(),
            std::io::Error::from(error)
        ))
    };
    let mut all = Vec::new();
    for entry in Dir::read_from(folder).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = std::ffi::OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => {
                let stat = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW);
                stat.map_or(FileType::Unknown, |it| FileType::from_raw_mode(it.st_mode))
            }
            kind => kind,
        };
        all.push((name.to_owned(), kind));
    }
    all.sort_by(|(one, _), (other, _)| one.cmp(other));
    Ok(all)
}

fn fits(glob: Option<&GlobMatcher>, path: &Path) -> bool {
    glob.is_none_or(|glob| {
        glob.is_match(path) || path.file_name().is_some_and(|name| glob.is_match(name))
    })
}

#[derive(Default)]
struct Matches {
    lines: Vec<String>,
}

impl Matches {
    fn of(&mut self, path: &Path, bytes: &[u8], pattern: &Regex) {
        if is_binary(bytes) {
            return;
        }
        for (n, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
            if self.lines.len() >= MATCHES_MAX {
                return;
            }
            if pattern.is_match(line) {
                let text = String::from_utf8_lossy(line);
                let text = logreel::cut(text.trim_end(), MATCH_BYTES_MAX);
                self.lines
                    .push(format!("{}:{}: {text}", path.display(), n + 1));
            }
        }
    }

    fn told(mut self) -> Value {
        match self.lines.len() {
            0 => return Value::from("no match"),
            MATCHES_MAX => self.lines.push(format!(
                "[... only the first {MATCHES_MAX} matches are shown ...]"
            )),
            _ => {}
        }
        Value::from(self.lines.join("\n"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::PolicySpec;

    struct World {
        dir: tempfile::TempDir,
        here: Here,
        never: AtomicBool,
    }

    fn world(policy: &str) -> World {
        let dir = tempfile::tempdir().unwrap();
        let policy: PolicySpec = toml::from_str(policy).unwrap();
        let here = Here {
            folder: Folder::open(dir.path()).unwrap(),
            policy: Arc::new(Policy::new(&policy, dir.path()).unwrap()),
        };
        let never = AtomicBool::new(false);
        World { dir, here, never }
    }

    impl World {
        fn put(&self, path: &str, content: impl AsRef<[u8]>) {
            let path = self.dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }

        fn holds(&self, path: &str) -> String {
            std::fs::read_to_string(self.dir.path().join(path)).unwrap()
        }

        fn edit(&self, call: &str, old: &str, new: &str, all: bool) -> Result<Value, ToolError> {
            let arguments = json!({"path": "file", "old": old, "new": new, "all": all});
            self.here.edit(&arguments, &Digest::of(call.as_bytes()))
        }
    }

    #[test]
    fn an_edit_asked_for_twice_by_the_same_call_is_made_once() {
        let world = world("");
        for (before, old, new, all, after) in [
            ("a b c", "b", "x", false, "a x c"),
            // What takes its place holds it.
            ("a b c", "b", "b b2", false, "a b b2 c"),
            ("line\n", "line\n", "line\nline\n", false, "line\nline\n"),
            ("a a", "a", "aa", true, "aa aa"),
            // Nothing takes its place.
            ("a b c", " b", "", false, "a c"),
        ] {
            world.put("file", before);
            let call = format!("{before} {new}");
            let first = world.edit(&call, old, new, all).unwrap();
            assert_eq!(world.holds("file"), after);
            // Another call in between, as parallel calls may be.
            let arguments = json!({"path": "other", "content": "x"});
            world.here.write(&arguments, &Digest::of(b"w")).unwrap();
            assert_eq!(world.edit(&call, old, new, all).unwrap(), first);
            assert_eq!(world.holds("file"), after, "made twice");
        }
        // Edits of the same file by other calls do not hide it.
        world.put("file", "1 2");
        world.edit("one", "1", "1 1", false).unwrap();
        world.edit("two", "2", "2 2", false).unwrap();
        world.edit("one", "1", "1 1", false).unwrap();
        assert_eq!(world.holds("file"), "1 1 2 2");
        // Another call that asks for the same means it.
        world.edit("three", "2 2", "2 2 2", false).unwrap();
        assert_eq!(world.holds("file"), "1 1 2 2 2");
    }

    #[test]
    fn an_edit_that_does_not_fit_says_why_and_changes_nothing() {
        let world = world("");
        world.put("file", "}\n}\nthe new text");
        let told = |old, new| world.edit("x", old, new, false).unwrap_err().message;
        assert!(told("}", "x").contains("2 times"));
        assert!(told("return 1;\n}", "}").contains("to the letter"));
        assert!(told("the old text", "the new text").contains("already"));
        assert!(told("}", "}").contains("other than"));
        assert_eq!(world.holds("file"), "}\n}\nthe new text");
        world.put("file", b"a\0b");
        assert_eq!(world.edit("x", "a", "b", false).unwrap_err().kind, "binary");
    }

    #[test]
    fn without_marks_an_edit_is_known_by_what_the_file_says() {
        let edit = |text: &str, old: &str, new: &str| {
            let all = false;
            Edit { old, new, all }.made(text, &Marks::Unsupported, &[0; 16])
        };
        let made = |text, old, new| edit(text, old, new).unwrap();
        assert_eq!(
            made("a word b", "word", "another word").unwrap(),
            "a another word b"
        );
        assert_eq!(made("a another word b", "word", "another word"), None);
        assert_eq!(made("a another thing b", "word", "another thing"), None);
        assert!(edit("}}", "return 1; }", "}").is_err(), "too short to tell");
    }

    #[test]
    fn a_write_asked_for_twice_leaves_the_file_alone() {
        let world = world("");
        let arguments = json!({"path": "a/file", "content": "text"});
        let key = Digest::of(b"one");
        let first = world.here.write(&arguments, &key).unwrap();
        assert_eq!(first, json!({"path": "a/file", "bytes": 4}));
        let inode = || {
            use std::os::unix::fs::MetadataExt as _;
            std::fs::metadata(world.dir.path().join("a/file"))
                .unwrap()
                .ino()
        };
        let before = inode();
        assert_eq!(world.here.write(&arguments, &key).unwrap(), first);
        assert_eq!(inode(), before);
    }

    #[test]
    fn files_are_read_whole_or_by_lines_and_never_without_end() {
        let world = world("");
        world.put("file", "one\ntwo\nthree");
        let read = |arguments: Value| world.here.read(&arguments);
        assert_eq!(read(json!({"path": "file"})).unwrap(), "one\ntwo\nthree");
        let piece = read(json!({"path": "file", "offset": 2, "limit": 1})).unwrap();
        let expected = json!({"text": "two\n", "first_line": 2, "lines": 1, "lines_in_file": 3});
        assert_eq!(piece, expected);
        assert_eq!(read(json!({"path": "none"})).unwrap_err().kind, "not_found");
        world.put("binary", b"\x7fELF\0\0");
        assert_eq!(read(json!({"path": "binary"})).unwrap_err().kind, "binary");
        world.put("latin1", b"caf\xe9");
        assert_eq!(read(json!({"path": "latin1"})).unwrap_err().kind, "binary");
        world.put("long", "0123456789abcde\n".repeat(640 * 1024));
        let long = read(json!({"path": "long"})).unwrap();
        assert_eq!(long["lines"], READ_BYTES_MAX / 16);
        assert_eq!(long["lines_in_file"], 640 * 1024);
        world.put("one_line", "x".repeat(10 * 1024 * 1024));
        let line = read(json!({"path": "one_line"})).unwrap();
        assert!(line["text"].as_str().unwrap().len() < READ_BYTES_MAX + 100);
        let huge = std::fs::File::create(world.dir.path().join("huge")).unwrap();
        huge.set_len(1 << 40).unwrap();
        assert_eq!(read(json!({"path": "huge"})).unwrap_err().kind, "too_large");
    }

    #[test]
    fn a_search_and_a_list_stay_where_they_may_be() {
        let world = world("deny = [\"fs.*:secrets/**\"]");
        world.put("src/a.rs", "fn main() {}\nlet needle = 1;\n");
        world.put("src/b.txt", "needle\n");
        world.put("secrets/key", "needle\n");
        world.put("target/out", "needle\n");
        world.put("binary", b"needle\0");
        std::os::unix::fs::symlink("/etc", world.dir.path().join("etc")).unwrap();
        std::os::unix::fs::symlink("secrets", world.dir.path().join("link")).unwrap();
        let search = |arguments: Value| {
            let found = world.here.search(&arguments, &world.never);
            found.map(|found| found.as_str().unwrap().to_owned())
        };
        let found = search(json!({"pattern": "needle|root:"})).unwrap();
        assert_eq!(found, "src/a.rs:2: let needle = 1;\nsrc/b.txt:1: needle");
        let found = search(json!({"pattern": "^needle", "glob": "*.rs"})).unwrap();
        assert_eq!(found, "no match");
        let found = search(json!({"pattern": "needle", "path": "target"})).unwrap();
        assert_eq!(found, "target/out:1: needle");
        for path in ["secrets", "link", "secrets/key", "link/key"] {
            let denied = search(json!({"pattern": "needle", "path": path}));
            assert_eq!(denied.unwrap_err().kind, "denied", "{path}");
        }
        let denied = world.here.read(&json!({"path": "link/key"}));
        assert_eq!(denied.unwrap_err().kind, "denied");
        assert!(search(json!({"pattern": "x", "path": "etc"})).is_err());
        assert!(
            search(json!({"pattern": "("}))
                .unwrap_err()
                .message
                .contains("pattern")
        );
        let list = |arguments| world.here.list(&arguments, &world.never).unwrap();
        assert_eq!(list(json!({})), "binary\netc@\nlink@\nsrc/\ntarget/");
        assert_eq!(list(json!({"path": "src"})), "src/a.rs\nsrc/b.txt");
        let deep = list(json!({"depth": 3}));
        assert_eq!(
            deep,
            "binary\netc@\nlink@\nsrc/\ntarget/\nsrc/a.rs\nsrc/b.txt"
        );
    }
}
