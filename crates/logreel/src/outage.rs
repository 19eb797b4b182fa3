//! A store that cannot be reached for an hour is told of once, not two times a second.

use logreel_core::RunId;

use crate::Error;

/// What one loop knows of the store it asks again and again.
#[derive(Debug, Default)]
pub(crate) struct Outage {
    is_told: bool,
}

impl Outage {
    /// It failed: said the first time, and again only after it had answered.
    pub(crate) fn tell(&mut self, run: &RunId, error: &Error, what: &str) {
        if std::mem::replace(&mut self.is_told, true) {
            tracing::debug!(%run, %error, "{what}");
        } else {
            tracing::warn!(%run, %error, "{what}; trying again until it can be reached");
        }
    }

    /// It answered.
    pub(crate) fn is_over(&mut self) {
        self.is_told = false;
    }
}
