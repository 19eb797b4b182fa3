//! What a template looks at, found in its text.
//!
//! The template engine can name the variables a template uses, but not that `steps["my-step"]` is one
//! step and not all of them, and it overlooks slices. So the text is split into tags here and names are
//! followed through them. It only ever sees texts that the engine has accepted as templates, and it is
//! allowed to be stricter than the engine: `steps` must be followed by the name of a step.

use std::collections::HashSet;
use std::ops::Range;

/// A part of a template's text.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Piece {
    /// Text outside of tags.
    Text(Range<usize>),
    /// The inside of `{{ … }}`.
    Expression(Range<usize>),
    /// The inside of `{% … %}`.
    Statement(Range<usize>),
    /// A comment, or a raw block.
    Opaque,
}

/// A name that a template looks up, and up to two more that follow it: `steps`, `files`, `output`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Look {
    pub root: String,
    pub path: Vec<String>,
}

/// Whether a text has anything a template engine would see.
pub(super) fn has_tags(text: &str) -> bool {
    text.contains("{{") || text.contains("{%") || text.contains("{#")
}

/// Splits a text at its tags.
pub(super) fn pieces(text: &str) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let Some(open) = next_tag(text, at) else {
            pieces.push(Piece::Text(at..text.len()));
            break;
        };
        if open > at {
            pieces.push(Piece::Text(at..open));
        }
        let (piece, after) = match &text.as_bytes()[open + 1] {
            b'#' => (Piece::Opaque, after(text, open + 2, "#}")),
            b'%' => {
                let (inside, end) = tag(text, open + 2, "%}");
                if text[inside.clone()].trim() == "raw" {
                    (Piece::Opaque, end_of_raw(text, end))
                } else {
                    (Piece::Statement(inside), end)
                }
            }
            _ => {
                let (inside, end) = tag(text, open + 2, "}}");
                (Piece::Expression(inside), end)
            }
        };
        pieces.push(piece);
        at = after;
    }
    pieces
}

/// The expression of a text that is one `{{ expression }}` and nothing else.
pub(super) fn only_expression(text: &str) -> Option<&str> {
    if !text.starts_with("{{") {
        return None;
    }
    match pieces(text).as_slice() {
        [Piece::Expression(inside)] => Some(&text[inside.clone()]),
        _ => None,
    }
}

/// Every name a template looks up that it does not give itself.
pub(super) fn looks(text: &str) -> Vec<Look> {
    let mut found = Finder::default();
    for piece in pieces(text) {
        match piece {
            Piece::Text(_) | Piece::Opaque => {}
            Piece::Expression(inside) => found.tag(&tokens(&text[inside]), false),
            Piece::Statement(inside) => found.tag(&tokens(&text[inside]), true),
        }
    }
    let Finder { mut looks, own } = found;
    looks.retain(|look| look.root == "steps" || !own.contains(&look.root));
    looks
}

/// The names of variables in `${NAME}`, and where each stands, in the text outside of tags; `Err` is a
/// `${` that names none.
pub(super) fn variables(text: &str) -> Result<Vec<(Range<usize>, &str)>, &str> {
    let mut found = Vec::new();
    for piece in pieces(text) {
        let Piece::Text(range) = piece else { continue };
        let here = crate::spec_file::variables(&text[range.clone()])?;
        let start = range.start;
        found.extend(
            here.into_iter()
                .map(|(at, name)| (start + at.start..start + at.end, name)),
        );
    }
    Ok(found)
}

fn next_tag(text: &str, from: usize) -> Option<usize> {
    text.as_bytes()[from..]
        .windows(2)
        .position(|two| matches!(two, b"{{" | b"{%" | b"{#"))
        .map(|open| from + open)
}

fn after(text: &str, from: usize, close: &str) -> usize {
    text[from..]
        .find(close)
        .map_or(text.len(), |at| from + at + close.len())
}

/// From the end of `{% raw %}` to after its `{% endraw %}`.
fn end_of_raw(text: &str, from: usize) -> usize {
    let mut at = from;
    while let Some(open) = text[at..].find("{%").map(|open| at + open) {
        let (inside, end) = tag(text, open + 2, "%}");
        if text[inside].trim() == "endraw" {
            return end;
        }
        at = open + 2;
    }
    text.len()
}

/// The inside of a tag without its whitespace marks, and where the tag ends.
fn tag(text: &str, from: usize, close: &str) -> (Range<usize>, usize) {
    let mut lexer = Lexer { text, at: from };
    if text[from..].starts_with(['-', '+']) {
        lexer.at += 1;
    }
    let start = lexer.at;
    let mut depth = 0_i32;
    loop {
        lexer.skip_blanks();
        let rest = &text[lexer.at..];
        if depth == 0 {
            let marked = rest.strip_prefix(['-', '+']).unwrap_or(rest);
            if marked.starts_with(close) {
                let end = text.len() - marked.len() + close.len();
                return (start..lexer.at, end);
            }
        }
        match lexer.next() {
            None => return (start..text.len(), text.len()),
            Some(Token::Sign('(' | '[' | '{')) => depth += 1,
            Some(Token::Sign(')' | ']' | '}')) => depth -= 1,
            Some(_) => {}
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Token<'a> {
    Name(&'a str),
    /// What is between the quotes, escapes and all.
    Text(&'a str),
    Number,
    /// `==`, which is no assignment.
    Equal,
    Sign(char),
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
}

fn tokens(text: &str) -> Vec<Token<'_>> {
    Lexer { text, at: 0 }.collect()
}

impl<'a> Lexer<'a> {
    fn skip_blanks(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len()
            - rest
                .trim_start_matches(|c: char| c.is_ascii_whitespace())
                .len();
    }

    fn take(&mut self, length: usize) -> &'a str {
        let taken = &self.text[self.at..self.at + length];
        self.at += length;
        taken
    }
}

impl<'a> Iterator for Lexer<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        self.skip_blanks();
        let rest = &self.text[self.at..];
        let first = rest.chars().next()?;
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        Some(match first {
            '"' | '\'' => {
                let length = quoted(rest, first);
                let text = self.take(length);
                Token::Text(text[1..].strip_suffix(first).unwrap_or(&text[1..]))
            }
            '0'..='9' => {
                self.take(word);
                // A fraction is part of the number; `.name` after one is not.
                let fraction = &self.text[self.at..];
                if fraction.starts_with('.')
                    && fraction[1..].starts_with(|c: char| c.is_ascii_digit())
                {
                    self.take(1);
                    return self.next().and(Some(Token::Number));
                }
                Token::Number
            }
            _ if word > 0 => Token::Name(self.take(word)),
            '=' if rest.starts_with("==") => {
                self.take(2);
                Token::Equal
            }
            // Their `=` must not look like an assignment.
            '!' | '<' | '>' if rest[1..].starts_with('=') => {
                self.take(2);
                Token::Sign(first)
            }
            _ => {
                self.take(first.len_utf8());
                Token::Sign(first)
            }
        })
    }
}

/// The length of a quoted text, with its quotes.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

const KEYWORDS: [&str; 16] = [
    "and",
    "else",
    "elif",
    "false",
    "False",
    "if",
    "in",
    "is",
    "loop",
    "none",
    "None",
    "not",
    "or",
    "recursive",
    "true",
    "True",
];
const FUNCTIONS: [&str; 3] = ["dict", "namespace", "range"];

#[derive(Default)]
struct Finder {
    looks: Vec<Look>,
    /// Names the template gives: loop variables, `set`, `with`.
    own: HashSet<String>,
}

impl Finder {
    fn tag(&mut self, tokens: &[Token<'_>], is_statement: bool) {
        let verb = match tokens.first() {
            Some(Token::Name(name)) if is_statement => name,
            _ => "",
        };
        // Where the names that a statement gives end.
        let given = match verb {
            "for" => position(tokens, Token::Name("in")),
            "set" => position(tokens, Token::Sign('=')).min(position(tokens, Token::Sign('|'))),
            _ => 0,
        };
        for (at, token) in tokens.iter().enumerate().skip(usize::from(is_statement)) {
            let Token::Name(name) = *token else { continue };
            let before = at.checked_sub(1).map(|before| tokens[before]);
            let after = tokens.get(at + 1);
            let is_attribute = before == Some(Token::Sign('.'));
            let is_filter = before == Some(Token::Sign('|')) || (verb == "filter" && at == 1);
            let is_test = before == Some(Token::Name("is"))
                || (before == Some(Token::Name("not"))
                    && at >= 2
                    && tokens[at - 2] == Token::Name("is"));
            let is_function = FUNCTIONS.contains(&name) && after == Some(&Token::Sign('('));
            if is_attribute || is_filter || is_test || is_function || KEYWORDS.contains(&name) {
                continue;
            }
            let is_named = after == Some(&Token::Sign('='));
            if at < given || (is_named && verb == "with") {
                self.own.insert(name.to_owned());
            } else if !is_named {
                self.looks.push(Look {
                    root: name.to_owned(),
                    path: path(&tokens[at + 1..]),
                });
            }
        }
    }
}

fn position(tokens: &[Token<'_>], token: Token<'_>) -> usize {
    tokens
        .iter()
        .position(|other| *other == token)
        .unwrap_or(tokens.len())
}

/// The names that follow: `.name` or `["name"]`.
fn path(mut tokens: &[Token<'_>]) -> Vec<String> {
    let mut names = Vec::new();
    while names.len() < 2 {
        let (name, rest) = match tokens {
            [Token::Sign('.'), Token::Name(name), rest @ ..] => (name, rest),
            [
                Token::Sign('['),
                Token::Text(name),
                Token::Sign(']'),
                rest @ ..,
            ] if !name.contains('\\') => (name, rest),
            _ => break,
        };
        names.push((*name).to_owned());
        tokens = rest;
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<String> {
        looks(text)
            .into_iter()
            .map(|look| [vec![look.root], look.path].concat().join("/"))
            .collect()
    }

    #[test]
    fn names_are_found_wherever_they_stand() {
        let cases: &[(&str, &[&str])] = &[
            ("no tags, steps.a", &[]),
            ("{{ steps.a.output.b }}", &["steps/a/output"]),
            (
                r#"{{ steps["my-step"].output }}"#,
                &["steps/my-step/output"],
            ),
            ("{{ steps['a.b']['output'] }}", &["steps/a.b/output"]),
            ("{{ steps . a [ 'output' ][1:] }}", &["steps/a/output"]),
            ("{{ steps[item].output }}", &["steps", "item"]),
            ("{{ input.steps.a }}", &["input/steps/a"]),
            ("{{ '{{ steps.a }}' ~ \"}} steps.b\" }}", &[]),
            (
                "{{ {'a': {'b': steps.a}} }} {{ item }}",
                &["steps/a", "item"],
            ),
            (
                "{# steps.a #}{% raw %}{{ steps.b }}{% endraw %}{{ index }}",
                &["index"],
            ),
            (
                "{% for item in steps.a.output if item is odd %}{{ item + loop.index }}{% endfor %}",
                &["steps/a/output"],
            ),
            (
                "{% set x, y = input %}{{ x }}{{ y }}{{ z }}",
                &["input", "z"],
            ),
            (
                "{% with a = item, b = 2 %}{{ a ~ b }}{% endwith %}",
                &["item"],
            ),
            (
                "{{ input | map(attribute='x') | default(value=run.id) }}",
                &["input", "run/id"],
            ),
            (
                "{{ 1.5e3 + 2.real if input is not defined else range(3) }}",
                &["input"],
            ),
            ("{{- a == b and c >= d -}}", &["a", "b", "c", "d"]),
            ("{% filter upper %}{{ a }}{% endfilter %}", &["a"]),
        ];
        for (text, expected) in cases {
            assert_eq!(shown(text), *expected, "{text}");
        }
    }

    #[test]
    fn one_expression_and_nothing_else() {
        assert_eq!(only_expression("{{ a }}"), Some(" a "));
        assert_eq!(only_expression("{{- a -}}"), Some(" a "));
        assert_eq!(only_expression("{{ {'a': {}} }}"), Some(" {'a': {}} "));
        assert_eq!(only_expression("{{ '}}' }}"), Some(" '}}' "));
        for text in [
            "{{ a }} ",
            " {{ a }}",
            "{{ a }}{{ b }}",
            "a",
            "{% if a %}{% endif %}",
            "",
        ] {
            assert_eq!(only_expression(text), None, "{text}");
        }
    }

    #[test]
    fn variables_stand_outside_of_tags() {
        let names = |text| {
            variables(text).map(|found| found.into_iter().map(|(_, name)| name).collect::<Vec<_>>())
        };
        assert_eq!(names("a ${B}-${C_1} $D"), Ok(vec!["B", "C_1"]));
        assert_eq!(names("{{ '${B}' }}"), Ok(vec![]));
        assert_eq!(names("${}"), Err("${}"));
        assert_eq!(names("${A-b}"), Err("${A-b}"));
        assert_eq!(names("${A"), Err("${A"));
    }
}
