//! The parts of a compound command, for policy.
//!
//! `a && b | c` is three commands. What cannot be told from the text alone (substitutions, expansions,
//! redirections to files, control structures) makes the whole line one that only someone who allows
//! every command allows; what it visibly does is still held against what is denied or asked about.

use crate::policy::{BESIDE, UNJUDGED};

/// How deep commands in commands are looked at.
const DEPTH_MAX: u32 = 4;
/// More parts than this are not looked at one by one.
const PARTS_MAX: usize = 200;

/// Words that begin a structure rather than a command.
const STRUCTURE: [&str; 18] = [
    "if", "then", "elif", "else", "fi", "for", "while", "until", "do", "done", "case", "esac", "{",
    "}", "!", "function", "select", "[[",
];
/// Programs that run the command that follows them.
const WRAPPERS: [&str; 41] = [
    "builtin",
    "busybox",
    "chroot",
    "chrt",
    "chronic",
    "command",
    "dbus-run-session",
    "doas",
    "entr",
    "env",
    "exec",
    "fakeroot",
    "flock",
    "ionice",
    "ltrace",
    "nice",
    "nohup",
    "nsenter",
    "parallel",
    "pkexec",
    "proxychains",
    "rlwrap",
    "runuser",
    "script",
    "setarch",
    "setpriv",
    "setsid",
    "ssh",
    "stdbuf",
    "strace",
    "su",
    "sudo",
    "systemd-run",
    "taskset",
    "time",
    "timeout",
    "unbuffer",
    "unshare",
    "watch",
    "xargs",
    "xvfb-run",
];
/// Those among them that take what they run as one text, too.
const TEXT_WRAPPERS: [&str; 8] = [
    "entr", "flock", "parallel", "runuser", "script", "ssh", "su", "watch",
];
/// How many words after such a program may be the one that it runs: its options have values, and some
/// have a time, a file or a host before it.
const WRAPPED_MAX: usize = 5;
/// What `find` runs comes after these.
const FIND_RUNS: [&str; 4] = ["-exec", "-execdir", "-ok", "-okdir"];
const SHELLS: [&str; 6] = ["sh", "bash", "dash", "zsh", "ksh", "ash"];

/// What policy judges a command line by.
pub(super) fn subjects(command: &str) -> Vec<String> {
    let parsed = parse(command, 0);
    let Parsed {
        parts,
        beside,
        opaque,
    } = parsed;
    let beside_of = |part: String| format!("{BESIDE}{part}");
    if opaque || parts.len() > PARTS_MAX {
        let whole = format!("{UNJUDGED}{}", one_line(command));
        let others = parts.into_iter().chain(beside).map(beside_of);
        return std::iter::once(whole).chain(others).collect();
    }
    let beside = beside.into_iter().map(beside_of);
    parts.into_iter().chain(beside).collect()
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[derive(Debug, Default)]
struct Parsed {
    parts: Vec<String>,
    /// What runs inside the parts.
    beside: Vec<String>,
    opaque: bool,
}

/// A word, without its quotes.
#[derive(Debug, Default, Clone)]
struct Word {
    text: String,
    quoted: bool,
}

struct Reader<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    words: Vec<Word>,
    word: Option<Word>,
    parsed: Parsed,
    depth: u32,
}

fn parse(text: &str, depth: u32) -> Parsed {
    let mut reader = Reader {
        rest: text.chars().peekable(),
        words: Vec::new(),
        word: None,
        parsed: Parsed::default(),
        depth,
    };
    reader.read();
    reader.parsed
}

impl Reader<'_> {
    fn read(&mut self) {
        while let Some(c) = self.rest.next() {
            match c {
                '\\' => match self.rest.next() {
                    Some('\n') => {}
                    Some(c) => self.push(c, true),
                    None => self.parsed.opaque = true,
                },
                '\'' => self.single_quoted(),
                '"' => self.double_quoted(),
                '$' | '`' => self.expansion(c),
                ' ' | '\t' => self.end_word(),
                '\n' | ';' | '|' => self.end_part(),
                '&' if self.rest.peek() == Some(&'>') => self.both_outputs(),
                '&' => self.end_part(),
                '(' | ')' => {
                    self.parsed.opaque = true;
                    self.end_part();
                }
                '<' | '>' => self.redirection(c),
                '#' if self.word.is_none() => while self.rest.next_if(|c| *c != '\n').is_some() {},
                c => {
                    // What looks like a space and is none, or is not to be seen at all.
                    self.parsed.opaque |= c.is_control() || c.is_whitespace();
                    self.push(c, false);
                }
            }
        }
        self.end_part();
    }

    fn push(&mut self, c: char, quoted: bool) {
        let word = self.word.get_or_insert_default();
        word.text.push(c);
        word.quoted |= quoted;
    }

    fn single_quoted(&mut self) {
        self.word.get_or_insert_default().quoted = true;
        loop {
            match self.rest.next() {
                Some('\'') => return,
                Some(c) => self.push(c, true),
                None => return self.parsed.opaque = true,
            }
        }
    }

    fn double_quoted(&mut self) {
        self.word.get_or_insert_default().quoted = true;
        loop {
            match self.rest.next() {
                Some('"') => return,
                Some('\\') => match self.rest.next() {
                    Some('\n') => {}
                    Some(c @ ('"' | '\\' | '$' | '`')) => self.push(c, true),
                    Some(c) => {
                        self.push('\\', true);
                        self.push(c, true);
                    }
                    None => return self.parsed.opaque = true,
                },
                Some(c @ ('$' | '`')) => self.expansion(c),
                Some(c) => self.push(c, true),
                None => return self.parsed.opaque = true,
            }
        }
    }

    /// A variable or a substitution: what it stands for is not known here.
    fn expansion(&mut self, sign: char) {
        self.push(sign, false);
        let inner = match (sign, self.rest.peek()) {
            ('`', _) => Some(self.backticked()),
            ('$', Some('(')) => {
                self.rest.next();
                Some(self.balanced())
            }
            // A lone dollar is a dollar.
            ('$', None | Some(' ' | '\t' | '\n' | '"')) => return,
            _ => None,
        };
        self.parsed.opaque = true;
        if let Some(inner) = inner {
            for c in inner.chars() {
                self.push(c, true);
            }
            self.look_inside(&inner);
        }
    }

    fn backticked(&mut self) -> String {
        let mut inner = String::new();
        loop {
            match self.rest.next() {
                Some('`') | None => return inner,
                Some('\\') => inner.extend(self.rest.next()),
                Some(c) => inner.push(c),
            }
        }
    }

    /// To the parenthesis that closes it, past quotes.
    fn balanced(&mut self) -> String {
        let (mut inner, mut open, mut quote) = (String::new(), 1, None);
        while let Some(c) = self.rest.next() {
            match (quote, c) {
                (None, '(') => open += 1,
                (None, ')') => {
                    open -= 1;
                    if open == 0 {
                        break;
                    }
                }
                (None, '\'' | '"') => quote = Some(c),
                (Some(begun), c) if begun == c => quote = None,
                (None | Some('"'), '\\') => {
                    inner.push(c);
                    inner.extend(self.rest.next());
                    continue;
                }
                _ => {}
            }
            inner.push(c);
        }
        inner
    }

    fn look_inside(&mut self, text: &str) {
        if self.depth < DEPTH_MAX {
            let inner = parse(text, self.depth + 1);
            self.parsed.beside.extend(inner.parts);
            self.parsed.beside.extend(inner.beside);
        } else {
            self.parsed.opaque = true;
        }
    }

    fn redirection(&mut self, sign: char) {
        // A digit right before it is the descriptor.
        let descriptor =
            |word: &Word| !word.quoted && word.text.chars().all(|c| c.is_ascii_digit());
        if self.word.as_ref().is_some_and(descriptor) {
            self.word = None;
        }
        self.end_word();
        match sign {
            '<' => self.input(),
            _ => self.target(),
        }
    }

    fn both_outputs(&mut self) {
        self.end_word();
        self.rest.next();
        self.target();
    }

    /// Where output goes: to another descriptor or to nowhere it changes nothing.
    fn target(&mut self) {
        let into_descriptor = self.rest.next_if_eq(&'&').is_some();
        while self
            .rest
            .next_if(|c| matches!(c, '>' | '|' | ' '))
            .is_some()
        {}
        let target = self.plain_word();
        let digits = !target.is_empty() && target.chars().all(|c| c.is_ascii_digit());
        let harmless = target == "/dev/null" || (into_descriptor && digits);
        self.parsed.opaque |= !harmless || !self.at_end_of_word();
    }

    /// Where input comes from.
    fn input(&mut self) {
        let more = self.rest.next_if(|c| matches!(c, '<' | '>' | '&' | '('));
        while self.rest.next_if_eq(&' ').is_some() {}
        let from = self.plain_word();
        self.parsed.opaque |= more.is_some() || from != "/dev/null" || !self.at_end_of_word();
    }

    fn at_end_of_word(&mut self) -> bool {
        let next = self.rest.peek();
        next.is_none_or(|c| matches!(c, ' ' | '\t' | '\n' | ';' | '&' | '|' | '<' | '>' | ')'))
    }

    /// A word without anything special in it.
    fn plain_word(&mut self) -> String {
        let mut word = String::new();
        let plain = |c: &char| c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-');
        while let Some(c) = self.rest.next_if(plain) {
            word.push(c);
        }
        word
    }

    fn end_word(&mut self) {
        self.words.extend(self.word.take());
    }

    fn end_part(&mut self) {
        self.end_word();
        let words = std::mem::take(&mut self.words);
        if !words.is_empty() {
            self.parsed.parts.push(joined(&words));
            self.look_at(&words);
        }
    }

    /// A command inside a part.
    fn look_at_inner(&mut self, inner: &[Word]) {
        if !inner.is_empty() && self.depth < DEPTH_MAX {
            self.parsed.beside.push(joined(inner));
            self.depth += 1;
            self.look_at(inner);
            self.depth -= 1;
        }
    }

    /// What the part runs beside its own first word.
    fn look_at(&mut self, words: &[Word]) {
        let Some((first, others)) = words.split_first() else {
            return;
        };
        let structure = !first.quoted && STRUCTURE.contains(&first.text.as_str());
        let assignment = is_assignment(first);
        let expands = !first.quoted && first.text.contains(['*', '?', '[', '~', '{']);
        self.parsed.opaque |= structure || assignment || (expands && first.text != "[");
        let program = first.text.rsplit('/').next().unwrap_or_default();
        if program != first.text {
            let mut words = words.to_vec();
            program.clone_into(&mut words[0].text);
            self.parsed.beside.push(joined(&words));
        }
        let wraps = WRAPPERS.contains(&program);
        if structure || assignment {
            self.look_at_inner(others);
        }
        if wraps {
            // Its own options and assignments may come before what it runs, and the values of those.
            let is_own = |word: &Word| word.text.starts_with('-') || is_assignment(word);
            let starts = (0..others.len()).filter(|at| !is_own(&others[*at]));
            for at in starts.take(WRAPPED_MAX) {
                self.look_at_inner(&others[at..]);
            }
        }
        if TEXT_WRAPPERS.contains(&program) {
            for word in others.iter().filter(|word| word.text.contains(' ')) {
                self.look_inside(&word.text);
            }
        }
        if program == "find" {
            let runs = |word: &Word| FIND_RUNS.contains(&word.text.as_str());
            for (at, _) in others.iter().enumerate().filter(|(_, word)| runs(word)) {
                let inner = &others[at + 1..];
                let ends = |word: &Word| word.text == ";" || word.text == "+";
                let end = inner.iter().position(ends).unwrap_or(inner.len());
                self.look_at_inner(&inner[..end]);
            }
        }
        if program == "eval" {
            self.look_inside(&joined(others));
        }
        if SHELLS.contains(&program) {
            let is_c = |word: &Word| {
                let option = word.text.strip_prefix('-');
                option.is_some_and(|it| !it.starts_with('-') && it.ends_with('c'))
            };
            let at = others.iter().position(is_c);
            if let Some(text) = at.and_then(|at| others.get(at + 1)) {
                self.look_inside(&text.text);
            }
        }
    }
}

fn joined(words: &[Word]) -> String {
    let words: Vec<&str> = words.iter().map(|word| word.text.as_str()).collect();
    one_line(&words.join(" "))
}

fn is_assignment(word: &Word) -> bool {
    word.text.split_once('=').is_some_and(|(name, _)| {
        name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(command: &str) -> Vec<String> {
        let marks = |subject: String| subject.replace(UNJUDGED, "?").replace(BESIDE, "+");
        subjects(command).into_iter().map(marks).collect()
    }

    #[test]
    fn a_compound_command_is_its_parts() {
        let table: &[(&str, &[&str])] = &[
            ("ls", &["ls"]),
            ("  git   push\torigin ", &["git push origin"]),
            (
                "a && b || c; d | e & f\ng",
                &["a", "b", "c", "d", "e", "f", "g"],
            ),
            ("\"git\" 'push' or\\igin", &["git push origin"]),
            ("git pu\\\nsh", &["git push"]),
            ("echo 'a; b && c' \"d | e\"", &["echo a; b && c d | e"]),
            (
                "cargo test 2>&1 | tail -5 >/dev/null",
                &["cargo test", "tail -5"],
            ),
            ("make &> /dev/null", &["make"]),
            ("ls # rm -rf /", &["ls"]),
            ("echo a#b", &["echo a#b"]),
            ("echo '$(x)' \\$y 5$", &["echo $(x) $y 5$"]),
            ("", &[]),
            // Only as a whole.
            ("echo $HOME", &["?echo $HOME", "+echo $HOME"]),
            (
                "echo $(git push; ls)",
                &[
                    "?echo $(git push; ls)",
                    "+echo $git push; ls",
                    "+git push",
                    "+ls",
                ],
            ),
            (
                "echo \"`git push`\"",
                &["?echo \"`git push`\"", "+echo `git push", "+git push"],
            ),
            ("(git push)", &["?(git push)", "+git push"]),
            ("echo x > file", &["?echo x > file", "+echo x"]),
            ("ls >/dev/null\"x\"", &["?ls >/dev/null\"x\"", "+ls x"]),
            ("cat < /etc/passwd", &["?cat < /etc/passwd", "+cat"]),
            (
                "if true; then git push; fi",
                &[
                    "?if true; then git push; fi",
                    "+if true",
                    "+then git push",
                    "+fi",
                    "+true",
                    "+git push",
                ],
            ),
            (
                "X=1 git push",
                &["?X=1 git push", "+X=1 git push", "+git push"],
            ),
            (
                "echo 'unfinished",
                &["?echo 'unfinished", "+echo unfinished"],
            ),
            ("g?t push", &["?g?t push", "+g?t push"]),
            // What is run by what is run.
            ("/usr/bin/git push", &["/usr/bin/git push", "+git push"]),
            (
                "sudo -n git push",
                &["sudo -n git push", "+git push", "+push"],
            ),
            (
                "env -i A=1 git push",
                &["env -i A=1 git push", "+git push", "+push"],
            ),
            (
                "find . -exec git push {} \\;",
                &["find . -exec git push {} ;", "+git push {}"],
            ),
            (
                "sh -c 'ls; git push'",
                &["sh -c ls; git push", "+ls", "+git push"],
            ),
            ("bash -ec \"git push\"", &["bash -ec git push", "+git push"]),
            ("eval git push", &["eval git push", "+git push"]),
        ];
        for (command, expected) in table {
            assert_eq!(shown(command), *expected, "{command}");
        }
    }

    #[test]
    fn what_another_program_runs_is_seen_behind_its_options() {
        for command in [
            "timeout 5 git push origin main",
            "timeout -k 5 -s KILL 10s git push origin main",
            "/usr/bin/timeout 5 git push origin main",
            "sudo -u root git push origin main",
            "xargs -n 1 git push origin main",
            "nice -n 5 timeout 5 git push origin main",
            "flock /tmp/lock git push origin main",
            "flock /tmp/lock -c 'git push origin main'",
            "watch 'git push origin main'",
            "parallel git push origin main ::: a b",
            "parallel 'git push origin main' ::: a b",
            "find . -name x -exec git push origin main \\; -print",
            "su -c 'git push origin main' ada",
        ] {
            let seen = shown(command);
            let is_it = |it: &String| it.starts_with("+git push origin main");
            assert!(seen.iter().any(is_it), "{command}: {seen:?}");
        }
        let nested = "sudo ".repeat(2_000);
        assert!(!shown(&nested).is_empty());
    }

    #[test]
    fn nothing_makes_it_lose_its_way() {
        let odd = [
            "$(",
            "\\",
            "${",
            "`",
            "\"$(",
            "<<EOF\nx\nEOF",
            "((((",
            ">&",
            "2>",
            "$((1+1))",
            "ls\u{a0}-l",
        ];
        for command in odd {
            assert!(subjects(command)[0].starts_with(UNJUDGED), "{command}");
        }
        let deep = "$(".repeat(10_000);
        assert!(subjects(&deep)[0].starts_with(UNJUDGED));
        let long = "a;".repeat(10_000);
        assert!(subjects(&long)[0].starts_with(UNJUDGED));
    }
}
