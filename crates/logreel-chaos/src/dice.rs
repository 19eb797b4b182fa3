//! Chance that can be had again: everything random is drawn from one seed.

use std::time::Duration;

/// SplitMix64: small, and good enough to choose victims.
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than this many; 0 of none.
    pub fn below(&mut self, many: usize) -> usize {
        let many = u64::try_from(many).unwrap_or(u64::MAX).max(1);
        usize::try_from(self.draw() % many).unwrap_or(0)
    }

    /// One of them; none of none.
    pub fn choose<T>(&mut self, from: Vec<T>) -> Option<T> {
        let index = self.below(from.len());
        from.into_iter().nth(index)
    }

    pub fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let span = u64::try_from(most.saturating_sub(least).as_micros()).unwrap_or(0);
        least + Duration::from_micros(self.draw() % (span + 1))
    }
}
