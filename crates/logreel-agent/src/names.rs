//! Tool names on the wire: providers allow no dots and no long names.

use std::collections::HashMap;

use logreel::Digest;

/// Providers refuse longer names.
const NAME_MAX: usize = 64;
/// Hex digits of the digest that tells two names apart.
const SUFFIX_LENGTH: usize = 8;

/// The names of tools in the log (`fs.read`) and on the wire (`fs_read`), both ways.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WireNames {
    to_wire: HashMap<String, String>,
    from_wire: HashMap<String, String>,
}

impl WireNames {
    /// The wire names of these tools: what a provider does not allow becomes `_`; a name that is too
    /// long, or that two tools would share, gets a suffix of its digest.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let names: Vec<&str> = names.into_iter().collect();
        let mut plain: HashMap<String, usize> = HashMap::new();
        for name in &names {
            *plain.entry(allowed(name)).or_insert(0) += 1;
        }
        let mut all = Self::default();
        for name in names {
            let short = allowed(name);
            let wire = if short.len() > NAME_MAX || plain.get(&short).is_some_and(|n| *n > 1) {
                with_suffix(&short, name)
            } else {
                short
            };
            all.from_wire.insert(wire.clone(), name.to_owned());
            all.to_wire.insert(name.to_owned(), wire);
        }
        all
    }

    /// The wire name of a tool. One that no tool has, because a model made it up, is only made legal.
    pub fn to_wire(&self, name: &str) -> String {
        match self.to_wire.get(name) {
            Some(wire) => wire.clone(),
            None => {
                let mut wire = allowed(name);
                wire.truncate(NAME_MAX);
                wire
            }
        }
    }

    /// The tool a model means; what it said when no tool has that name.
    pub fn from_wire(&self, wire: &str) -> String {
        let known = self.from_wire.get(wire);
        known.map_or_else(|| wire.to_owned(), Clone::clone)
    }
}

fn allowed(name: &str) -> String {
    let legal = |c: char| match c {
        'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '-' => c,
        _ => '_',
    };
    name.chars().map(legal).collect()
}

fn with_suffix(short: &str, name: &str) -> String {
    let digest = Digest::of(name.as_bytes()).hex();
    let kept = &short[..short.len().min(NAME_MAX - SUFFIX_LENGTH - 1)];
    format!("{kept}_{}", &digest[..SUFFIX_LENGTH])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_has_a_legal_name_of_its_own_and_comes_back_from_it() {
        let long = format!("server.{}", "x".repeat(80));
        let longer = format!("{long}y");
        let tools = ["fs.read", "a.b", "a_b", "größe", &long, &longer];
        let names = WireNames::new(tools);
        let mut seen = std::collections::HashSet::new();
        for tool in tools {
            let wire = names.to_wire(tool);
            assert!(wire.len() <= NAME_MAX, "{wire}");
            assert!(
                wire.chars()
                    .all(|c| c.is_ascii_alphanumeric() || "_-".contains(c))
            );
            assert_eq!(names.from_wire(&wire), tool);
            assert!(seen.insert(wire));
        }
        assert_eq!(names.to_wire("fs.read"), "fs_read");
        assert_eq!(names.from_wire("made_up"), "made_up");
    }
}
