//! What must be done to a store before a build can use it.

/// One change to the tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migration {
    /// Its number: they are done in this order.
    pub number: u32,
    /// What it brings.
    pub what: &'static str,
}

/// Where a store stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Migrations {
    /// The last one that was done; `None` when there is no store yet.
    pub found: Option<u32>,
    /// The last one that this build knows.
    pub known: u32,
    /// Those that are still to be done.
    pub pending: Vec<Migration>,
}

impl Migrations {
    /// From what each of them brings, the first being number 1.
    pub(crate) fn new(found: Option<u32>, all: &[&'static str]) -> Self {
        let numbered = all.iter().zip(1..);
        let pending = numbered.filter(|(_, number)| found.is_none_or(|found| *number > found));
        Self {
            found,
            known: u32::try_from(all.len()).unwrap_or(u32::MAX),
            pending: pending
                .map(|(what, number)| Migration { number, what })
                .collect(),
        }
    }
}
