//! What proves that someone holds a lease: a secret that was drawn for it and is known to its client
//! alone. The store has its digest, as where the lease's owner is.

use std::fmt;

use logreel_core::Digest;
use logreel_store::{Entry, Env, Owner, OwnerId};

/// Proof of a lease. Whoever has it may append, renew and give back; it is shown once.
#[derive(Clone, PartialEq, Eq)]
pub struct LeaseSecret(String);

impl LeaseSecret {
    pub(super) fn draw(env: &dyn Env) -> Self {
        let mut bytes = [0; 32];
        env.random(&mut bytes);
        Self(Digest(bytes).hex())
    }

    /// As it was given out, or as someone says it was.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text to give to the client, and to nobody else.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Who holds the lease, to the store: no process of any host.
    pub(super) fn owner(&self, env: &dyn Env) -> Owner {
        Owner {
            id: OwnerId(env.random_u64()),
            host: self.host(),
            host_name: "external".to_owned(),
            pid: 0,
        }
    }

    fn host(&self) -> String {
        let digest = Digest::of(self.0.as_bytes()).hex();
        format!("{}{digest}", Owner::EXTERNAL)
    }

    /// Whether this owner's lease was given out with this secret. Takes as long for a near miss as for
    /// any other.
    pub(super) fn is_of(&self, owner: &Owner) -> bool {
        let (ours, theirs) = (self.host(), owner.host.as_bytes());
        let pairs = ours.bytes().zip(theirs);
        let differs = pairs.fold(0, |differs, (a, b)| differs | (a ^ b));
        ours.len() == theirs.len() && differs == 0
    }

    /// The lease that the run has now, when it is this secret's.
    pub(super) fn holder(&self, entry: &Entry) -> Option<OwnerId> {
        let owner = &entry.driver.as_ref()?.owner;
        self.is_of(owner).then_some(owner.id)
    }
}

/// A secret is no text for logs.
impl fmt::Debug for LeaseSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseSecret")
    }
}
