//! interim
use logreel::core::event::Spend;
#[derive(Default)]
pub struct Prices;
impl Prices {
    pub fn cost(&self, _model: &str, _spend: &Spend) -> Option<u64> {
        Some(0)
    }
}
