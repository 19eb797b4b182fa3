//! What the runs of a storm do: twenty steps, one after the other, most of them paid to the ledger. Of some runs one step is a
//! child with payments of its own, one waits for a time, one for a signal.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use anyhow::Result;

use crate::yard::Yard;

/// How long a write may take before it is in doubt.
pub const STEP_TIMEOUT: Duration = Duration::from_secs(5);

/// The specs, as whoever starts runs names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Errand {
    /// Nothing but payments.
    Pays,
    /// It gives its lease back three times, and waits in line to go on: were all like that, few would end while many wait.
    Waits,
}

impl Errand {
    pub const ALL: [Self; 2] = [Self::Pays, Self::Waits];

    /// That of the nth run.
    pub fn of(n: usize) -> Self {
        match n % 4 {
            3 => Self::Waits,
            _ => Self::Pays,
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

/// A step of a spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub id: String,
    pub is_write: bool,
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
    let steps = [("pay", true), ("look", false)].map(|(id, is_write)| Step {
        id: id.to_owned(),
        is_write,
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
        let does = match (errand, n) {
            (Errand::Waits, 5) => "wait = \"timer\"\nfor = \"300ms\"\n".to_owned(),
            (Errand::Waits, 10) => "workflow = \"part.toml\"\n".to_owned(),
            (Errand::Waits, 15) => "wait = \"signal\"\nname = \"go\"\n".to_owned(),
            _ => paying(effect),
        };
        let needs = previous.map_or(String::new(), |it| format!("needs = [\"{it}\"]\n"));
        write!(text, "[[step]]\nid = \"{id}\"\n{needs}{does}")?;
        steps.push(Step {
            id: id.clone(),
            is_write: effect == "write",
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
