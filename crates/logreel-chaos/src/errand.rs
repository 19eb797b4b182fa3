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

/// Puts the specs in the yard. The steps that write, by the name of what has them.
pub fn write(yard: &Yard) -> Result<BTreeMap<String, Vec<String>>> {
    let mut writes = BTreeMap::new();
    for errand in Errand::ALL {
        let name = errand.name();
        let (text, written) = spec(errand)?;
        yard.write(&format!("{name}.toml"), &text)?;
        writes.insert(name.to_owned(), written);
    }
    let part = format!(
        "name = \"part\"\n[[step]]\nid = \"pay\"\n{}[[step]]\nid = \"look\"\nneeds = [\"pay\"]\n{}",
        paying("write"),
        paying("read")
    );
    yard.write("part.toml", &part)?;
    writes.insert("part".to_owned(), vec!["pay".to_owned()]);
    Ok(writes)
}

fn spec(errand: Errand) -> Result<(String, Vec<String>)> {
    let mut text = format!("name = \"{}\"\n", errand.name());
    let (mut writes, mut previous) = (Vec::new(), None);
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
        if effect == "write" {
            writes.push(id.clone());
        }
        previous = Some(id);
    }
    Ok((text, writes))
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
