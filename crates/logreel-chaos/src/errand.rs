//! What the runs of a storm do: twenty steps, one after the other, most of them paid to the ledger. Of some runs one
//! step is a child with payments of its own, one waits for a time, one for a signal. And what these are told from
//! outside.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Result;

use crate::clock::millis;
use crate::yard::Yard;

/// Of so many runs one waits.
const WAITS_EVERY: usize = 4;
/// How long a write may take before it is in doubt.
pub const STEP_TIMEOUT: Duration = Duration::from_secs(5);

/// The specs, as whoever starts runs names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Errand {
    /// Nothing but payments.
    Pays,
    /// It gives its lease back three times, and waits in line to go on: were all like that, few would end while many
    /// wait.
    Waits,
}

impl Errand {
    pub const ALL: [Self; 2] = [Self::Pays, Self::Waits];

    /// That of the nth run.
    pub fn of(n: usize) -> Self {
        match n % WAITS_EVERY == WAITS_EVERY - 1 {
            true => Self::Waits,
            false => Self::Pays,
        }
    }

    /// Its name, and that of its file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Pays => "pays",
            Self::Waits => "waits",
        }
    }
}

/// What a run that waits is told from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Telling {
    /// How long after its start.
    pub after: Duration,
    /// Whether it is paused, and resumed, before it is told what it waits for: until then it cannot have ended.
    pub pauses: bool,
}

impl Telling {
    /// What the nth of all runs is told; `None` of one that waits for nobody. Every other one hears it at once, long
    /// before it waits, the rest somewhere between the start of its child and long after it began to wait. Half of both
    /// are paused: one in eight of all runs.
    pub fn of(n: usize) -> Option<Self> {
        if Errand::of(n) != Errand::Waits {
            return None;
        }
        let nth = n / WAITS_EVERY;
        let after = match nth.is_multiple_of(2) {
            true => Duration::ZERO,
            false => millis(750 << (nth / 4 % 4)),
        };
        Some(Self {
            after,
            pauses: nth % 4 < 2,
        })
    }
}

/// A step of a spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub id: String,
    pub does: Does,
}

/// What a step does, which says how its end shows in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Does {
    /// It pays, once.
    Write,
    /// It pays, and may do so again.
    Pays,
    /// It waits for a time or a signal.
    Waits,
    /// It is a run of its own.
    Child,
}

/// The steps by the name of what has them: each needs the one before it.
pub type Chains = BTreeMap<String, Vec<Step>>;

/// Puts the specs in the yard.
pub fn write(yard: &Yard) -> Result<Chains> {
    let mut chains = Chains::new();
    for errand in Errand::ALL {
        let name = errand.name();
        let (text, steps) = spec(errand)?;
        yard.write(&format!("{name}.toml"), &text)?;
        chains.insert(name.to_owned(), steps);
    }
    let part = format!(
        "name = \"part\"\n[[step]]\nid = \"pay\"\n{}[[step]]\nid = \"look\"\nneeds = [\"pay\"]\n{}",
        paying("write"),
        paying("read")
    );
    yard.write("part.toml", &part)?;
    let steps = [("pay", Does::Write), ("look", Does::Pays)].map(|(id, does)| Step {
        id: id.to_owned(),
        does,
    });
    chains.insert("part".to_owned(), steps.to_vec());
    Ok(chains)
}

fn spec(errand: Errand) -> Result<(String, Vec<Step>)> {
    let mut text = format!("name = \"{}\"\n", errand.name());
    let (mut steps, mut previous) = (Vec::new(), None);
    for n in 1..=20 {
        let id = format!("s{n:02}");
        let effect = match n % 5 {
            3 => "idempotent",
            0 => "read",
            _ => "write",
        };
        let (does, how) = match (errand, n) {
            (Errand::Waits, 5) => (
                Does::Waits,
                "wait = \"timer\"\nfor = \"300ms\"\n".to_owned(),
            ),
            (Errand::Waits, 10) => (Does::Child, "workflow = \"part.toml\"\n".to_owned()),
            (Errand::Waits, 15) => (Does::Waits, "wait = \"signal\"\nname = \"go\"\n".to_owned()),
            _ if effect == "write" => (Does::Write, paying(effect)),
            _ => (Does::Pays, paying(effect)),
        };
        let needs = previous.map_or(String::new(), |it| format!("needs = [\"{it}\"]\n"));
        write!(text, "[[step]]\nid = \"{id}\"\n{needs}{how}")?;
        steps.push(Step {
            id: id.clone(),
            does,
        });
        previous = Some(id);
    }
    Ok((text, steps))
}

/// A step that pays.
fn paying(effect: &str) -> String {
    let then = match effect {
        "write" => "reconcile = \"exec $PAY ask\"",
        _ => "retry = { attempts = 5, backoff = \"50ms..500ms\" }",
    };
    format!(
        "effect = \"{effect}\"\nrun = \"exec $PAY pay {effect}\"\n{then}\ntimeout = \"{}s\"\n",
        STEP_TIMEOUT.as_secs()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_runs_that_wait_half_are_told_at_once_and_half_of_both_are_paused() {
        let tellings: Vec<Telling> = (0..64).filter_map(Telling::of).collect();
        assert_eq!(tellings.len(), 16);
        for pauses in [true, false] {
            let of_these = tellings.iter().filter(|it| it.pauses == pauses);
            let mut after: Vec<Duration> = of_these.map(|it| it.after).collect();
            after.sort();
            let expected = [0, 0, 0, 0, 750, 1500, 3000, 6000].map(millis);
            assert_eq!(after, expected);
        }
    }
}
