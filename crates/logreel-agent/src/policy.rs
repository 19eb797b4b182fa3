//! What an agent may do: allowed, asked about, or denied.
//!
//! A pattern is `TOOL[:ARG]`, both globs. Deny beats all; between allow and ask a pattern with ARG beats
//! one without, then allow beats ask. A call with several subjects is allowed only if every one is.

use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};

use crate::spec::{PolicyDefault, PolicySpec};
use crate::tool::Definition;

/// A subject that begins with this cannot be judged by what it says, such as shell text with a
/// substitution: patterns with ARG can forbid it or have it asked about, but not allow it.
pub const UNJUDGED: char = '\0';
/// A subject that begins with this is something the call does beside its other subjects: patterns with
/// ARG can forbid it or have it asked about, and it needs no one's leave.
pub const BESIDE: char = '\u{1}';

/// What is decided about a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It may be made.
    Allow,
    /// Someone is asked first, with this.
    Ask(String),
    /// It may not, for this reason.
    Deny(String),
}

/// A pattern that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the policy's pattern `{pattern}` is not TOOL or TOOL:ARG with globs: {why}")]
pub struct BadPattern {
    /// As it is in the spec.
    pub pattern: String,
    /// What is wrong with it.
    pub why: String,
}

/// The policy of an agent in its folder.
#[derive(Debug, Clone)]
pub struct Policy {
    default: Option<PolicyDefault>,
    ask: Vec<Pattern>,
    allow: Vec<Pattern>,
    deny: Vec<Pattern>,
    no_ask: bool,
}

#[derive(Debug, Clone)]
struct Pattern {
    text: String,
    tool: GlobMatcher,
    argument: Option<Argument>,
}

#[derive(Debug, Clone)]
struct Argument {
    /// It fits whatever there is.
    any: bool,
    text: GlobMatcher,
    /// For paths: as it is and beneath the folder, and the folder that everything beneath is meant of.
    paths: Vec<GlobMatcher>,
}

impl Policy {
    /// The policy of a spec; patterns of paths that are relative mean paths beneath the folder.
    pub fn new(spec: &PolicySpec, dir: &Path) -> Result<Self, BadPattern> {
        let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        let read = |patterns: &[String]| -> Result<Vec<Pattern>, BadPattern> {
            let patterns = patterns.iter();
            patterns
                .map(|pattern| {
                    Pattern::new(pattern, &dir).map_err(|why| BadPattern {
                        pattern: pattern.clone(),
                        why,
                    })
                })
                .collect()
        };
        Ok(Self {
            default: spec.default,
            ask: read(&spec.ask)?,
            allow: read(&spec.allow)?,
            deny: read(&spec.deny)?,
            no_ask: spec.no_ask,
        })
    }

    /// Decides about a call of a tool by its [subjects](crate::Tool::subjects).
    pub fn judge<S: AsRef<str>>(&self, tool: &Definition, subjects: &[S]) -> Verdict {
        let mut asked = None;
        let all = subjects.iter().map(|subject| Some(subject.as_ref()));
        let none = subjects.is_empty().then_some(None);
        for subject in all.chain(none) {
            match self.judge_one(tool, subject) {
                Verdict::Allow => {}
                Verdict::Ask(prompt) => {
                    asked.get_or_insert(prompt);
                }
                Verdict::Deny(reason) => return Verdict::Deny(reason),
            }
        }
        match asked {
            None => Verdict::Allow,
            Some(prompt) if self.no_ask => {
                Verdict::Deny(format!("nobody is to be asked (--no-ask): {prompt}"))
            }
            Some(prompt) => Verdict::Ask(prompt),
        }
    }

    /// Whether the policy forbids a tool this subject, whatever else is said. For tools that come
    /// across subjects only while they work.
    pub fn denies(&self, tool: &str, subject: &str) -> bool {
        let subject = Subject::of(Some(subject));
        self.deny.iter().any(|deny| deny.fits(tool, &subject))
    }

    fn judge_one(&self, tool: &Definition, subject: Option<&str>) -> Verdict {
        let subject = Subject::of(subject);
        let name = tool.name.as_str();
        if let Some(deny) = self.deny.iter().find(|deny| deny.fits(name, &subject)) {
            return Verdict::Deny(format!("the policy denies `{}`", deny.text));
        }
        let narrow = |patterns: &[Pattern]| {
            let mut narrow = patterns.iter().filter(|it| it.argument.is_some());
            narrow.any(|it| it.fits(name, &subject))
        };
        let wide = |patterns: &[Pattern]| {
            let mut wide = patterns.iter().filter(|it| it.argument.is_none());
            wide.any(|it| it.fits(name, &subject))
        };
        let narrow_allow = self.allow.iter().any(|it| it.allows(name, &subject));
        let asked = || Verdict::Ask(subject.prompt(name));
        if narrow_allow {
            Verdict::Allow
        } else if narrow(&self.ask) {
            asked()
        } else if subject.kind == Kind::Beside || wide(&self.allow) {
            Verdict::Allow
        } else if wide(&self.ask) {
            asked()
        } else {
            match self.default {
                Some(PolicyDefault::Allow) => Verdict::Allow,
                Some(PolicyDefault::Ask) => asked(),
                Some(PolicyDefault::Deny) => Verdict::Deny(format!(
                    "no pattern of the policy allows {}",
                    subject.of_tool(name)
                )),
                None if tool.asks => asked(),
                None => Verdict::Allow,
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Unjudged,
    Beside,
}

struct Subject<'a> {
    kind: Kind,
    text: Option<&'a str>,
}

impl<'a> Subject<'a> {
    fn of(subject: Option<&'a str>) -> Self {
        let marked = |mark| subject.and_then(|subject| subject.strip_prefix(mark));
        if let Some(text) = marked(UNJUDGED) {
            let text = Some(text);
            return Self {
                kind: Kind::Unjudged,
                text,
            };
        }
        match marked(BESIDE) {
            Some(text) => Self {
                kind: Kind::Beside,
                text: Some(text),
            },
            None => Self {
                kind: Kind::Plain,
                text: subject,
            },
        }
    }

    fn of_tool(&self, tool: &str) -> String {
        match self.text {
            Some(text) => format!("`{tool}`: {text}"),
            None => format!("`{tool}`"),
        }
    }

    fn prompt(&self, tool: &str) -> String {
        format!("allow {}?", self.of_tool(tool))
    }
}

impl Pattern {
    fn new(text: &str, dir: &Path) -> Result<Self, String> {
        let (tool, argument) = match text.split_once(':') {
            Some((tool, argument)) => (tool, Some(argument)),
            None => (text, None),
        };
        if tool.is_empty() || argument == Some("") {
            return Err("a part of it is empty".to_owned());
        }
        Ok(Self {
            text: text.to_owned(),
            tool: glob(tool, false)?,
            argument: match argument {
                Some(argument) => Some(Argument::new(argument, dir)?),
                None => None,
            },
        })
    }

    /// For what restricts: without ARG it fits every call of the tool.
    fn fits(&self, tool: &str, subject: &Subject<'_>) -> bool {
        let fits = match (&self.argument, subject.text) {
            (None, _) => subject.kind != Kind::Beside,
            (Some(argument), None) => argument.any,
            (Some(argument), Some(text)) => argument.fits(tool, text),
        };
        fits && self.tool.is_match(tool)
    }

    /// With ARG, whether it allows the subject.
    fn allows(&self, tool: &str, subject: &Subject<'_>) -> bool {
        let argument = self.argument.as_ref();
        argument.is_some_and(|argument| subject.kind == Kind::Plain || argument.any)
            && subject.kind != Kind::Beside
            && self.fits(tool, subject)
    }
}

impl Argument {
    fn new(text: &str, dir: &Path) -> Result<Self, String> {
        let mut paths = vec![text.to_owned()];
        if !text.starts_with('/') {
            let beneath = PathBuf::from(globset::escape(&dir.to_string_lossy()));
            let beneath = beneath.join(text.strip_prefix("./").unwrap_or(text));
            paths.push(beneath.to_string_lossy().into_owned());
        }
        // What is said of everything in a folder is said of the folder.
        let folders = paths.iter().filter_map(|path| path.strip_suffix("/**"));
        let folders: Vec<String> = folders.map(str::to_owned).collect();
        paths.extend(folders);
        Ok(Self {
            any: text.chars().all(|c| c == '*'),
            text: glob(text, false)?,
            paths: paths
                .iter()
                .map(|path| glob(path, true))
                .collect::<Result<_, _>>()?,
        })
    }

    fn fits(&self, tool: &str, subject: &str) -> bool {
        if self.any {
            return true;
        }
        if tool.starts_with("fs.") {
            return self.paths.iter().any(|path| path.is_match(subject));
        }
        // `git push *` is also said of `git push` alone.
        self.text.is_match(subject)
            || (!subject.ends_with(' ') && self.text.is_match(format!("{subject} ")))
    }
}

fn glob(text: &str, path: bool) -> Result<GlobMatcher, String> {
    let glob = GlobBuilder::new(text)
        .literal_separator(path)
        .backslash_escape(true)
        .build();
    Ok(glob
        .map_err(|error| error.kind().to_string())?
        .compile_matcher())
}

#[cfg(test)]
mod tests {
    use logreel::core::event::Effect;
    use serde_json::json;

    use super::*;

    fn tool(name: &str, asks: bool) -> Definition {
        Definition {
            name: name.to_owned(),
            description: String::new(),
            schema: json!({}),
            effect: Effect::Write,
            declared: true,
            timeout: None,
            asks,
        }
    }

    fn judge(policy: &str, name: &str, subjects: &[&str]) -> &'static str {
        let spec: PolicySpec = toml::from_str(policy).unwrap();
        let policy = Policy::new(&spec, Path::new("/no/such/folder")).unwrap();
        let asks = !matches!(name, "fs.read" | "fs.write" | "http.get");
        match policy.judge(&tool(name, asks), subjects) {
            Verdict::Allow => "allow",
            Verdict::Ask(_) => "ask",
            Verdict::Deny(_) => "deny",
        }
    }

    #[test]
    fn verdicts() {
        let example = r#"
            ask = ["shell:git push *"]
            allow = ["shell"]
            deny = ["fs.write:/etc/**"]
        "#;
        let nothing_but = "default = \"deny\"\nallow = [\"shell:cargo *\", \"fs.read:src/**\"]";
        let table: &[(&str, &str, &[&str], &str)] = &[
            // With none, reads and writes inside the folder are allowed, the rest asks.
            ("", "fs.read", &["/no/such/folder/a"], "allow"),
            ("", "fs.write", &["/no/such/folder/a"], "allow"),
            ("", "shell", &["ls"], "ask"),
            ("", "lint", &[], "ask"),
            ("", "github.get_issue", &[], "ask"),
            ("default = \"allow\"", "shell", &["ls"], "allow"),
            ("default = \"deny\"", "fs.read", &["/a"], "deny"),
            ("default = \"ask\"", "fs.read", &["/a"], "ask"),
            // A pattern with ARG beats one without.
            (example, "shell", &["git push origin main"], "ask"),
            (example, "shell", &["git push"], "ask"),
            (example, "shell", &["git pushy"], "allow"),
            (example, "shell", &["git pull"], "allow"),
            (
                example,
                "shell",
                &["cd x", "git push --force https://a/b"],
                "ask",
            ),
            (example, "fs.write", &["/etc/passwd"], "deny"),
            (example, "fs.write", &["/etc"], "deny"),
            (example, "fs.write", &["/etcetera"], "allow"),
            // Then allow beats ask, and deny beats all.
            (
                "allow = [\"shell\"]\nask = [\"shell\"]",
                "shell",
                &["ls"],
                "allow",
            ),
            (
                "allow = [\"shell:ls*\"]\nask = [\"shell:l*\"]",
                "shell",
                &["ls"],
                "allow",
            ),
            (
                "allow = [\"shell:ls\"]\ndeny = [\"*\"]",
                "shell",
                &["ls"],
                "deny",
            ),
            (
                "allow = [\"*\"]\ndeny = [\"github.*\"]",
                "github.delete",
                &[],
                "deny",
            ),
            (
                "allow = [\"*\"]\ndeny = [\"github.*\"]",
                "gitlab.delete",
                &[],
                "allow",
            ),
            ("allow = [\"*.get_*\"]", "github.get_issue", &[], "allow"),
            (
                "allow = [\"github.get_issue:*\"]",
                "github.get_issue",
                &[],
                "allow",
            ),
            (
                "allow = [\"github.get_issue:x\"]",
                "github.get_issue",
                &[],
                "ask",
            ),
            // Every part must be allowed.
            (nothing_but, "shell", &["cargo test"], "allow"),
            (nothing_but, "shell", &["cargo test", "rm -rf x"], "deny"),
            (
                nothing_but,
                "fs.read",
                &["/no/such/folder/src/a/b.rs"],
                "allow",
            ),
            (nothing_but, "fs.read", &["/no/such/folder/src.rs"], "deny"),
            (nothing_but, "fs.read", &["/src/a"], "deny"),
            (
                "allow = [\"fs.read:src/*\"]\ndefault = \"deny\"",
                "fs.read",
                &["/no/such/folder/src/a/b"],
                "deny",
            ),
            (
                "allow = [\"http.get:https://docs.rs/*\"]\ndefault = \"ask\"",
                "http.get",
                &["https://docs.rs/a/b?c"],
                "allow",
            ),
            (
                "allow = [\"http.get:https://docs.rs/*\"]\ndefault = \"ask\"",
                "http.get",
                &["https://docs.rs.evil/"],
                "ask",
            ),
            // What cannot be judged is allowed only as a whole, and still denied by what it says.
            (
                "allow = [\"shell:echo *\"]",
                "shell",
                &["\0echo $(ls)"],
                "ask",
            ),
            ("allow = [\"shell:*\"]", "shell", &["\0echo $(ls)"], "allow"),
            ("allow = [\"shell\"]", "shell", &["\0echo $(ls)"], "allow"),
            (example, "shell", &["\0git push $X"], "ask"),
            (
                example,
                "shell",
                &["\0echo $(git push)", "\u{1}git push"],
                "ask",
            ),
            (
                example,
                "shell",
                &["\0echo $(git pull)", "\u{1}git pull"],
                "allow",
            ),
            (
                "allow = [\"*\"]\ndeny = [\"shell:rm *\"]",
                "shell",
                &["x", "\u{1}rm -rf /"],
                "deny",
            ),
            (
                "allow = [\"shell:rm *\"]",
                "shell",
                &["sh -c 'rm x'", "\u{1}rm x"],
                "ask",
            ),
            // Nobody to ask.
            ("no_ask = true", "shell", &["ls"], "deny"),
            (
                "no_ask = true\nallow = [\"shell:ls\"]",
                "shell",
                &["ls"],
                "allow",
            ),
        ];
        for (policy, name, subjects, expected) in table {
            let verdict = judge(policy, name, subjects);
            assert_eq!(verdict, *expected, "{policy} / {name} {subjects:?}");
        }
    }

    #[test]
    fn a_bad_pattern_is_named() {
        for bad in ["", ":x", "shell:", "shell:[a", "{a"] {
            let spec = PolicySpec {
                allow: vec![bad.to_owned()],
                ..PolicySpec::default()
            };
            let error = Policy::new(&spec, Path::new("/")).unwrap_err();
            assert_eq!(error.pattern, bad);
        }
    }

    #[test]
    fn a_verdict_says_what_it_is_about() {
        let spec: PolicySpec = toml::from_str("deny = [\"shell:rm *\"]").unwrap();
        let policy = Policy::new(&spec, Path::new("/")).unwrap();
        let verdict = |subject| policy.judge(&tool("shell", true), &[subject]);
        let denied = Verdict::Deny("the policy denies `shell:rm *`".to_owned());
        assert_eq!(verdict("rm x"), denied);
        let asked = Verdict::Ask("allow `shell`: ls -l?".to_owned());
        assert_eq!(verdict("\0ls -l"), asked);
        assert!(policy.denies("shell", "rm x") && !policy.denies("shell", "ls"));
    }
}
