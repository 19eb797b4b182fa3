//! What is known beside an agent's file when it is read: by the program that reads it, and by its settings.

/// Whether the price of a model is known, by its full name.
pub type Priced<'a> = &'a (dyn Fn(&str) -> bool + 'a);

/// What is known beside a file.
#[derive(Clone, Copy)]
pub struct Beside<'a> {
    /// Whether the price of a model is known.
    pub priced: Priced<'a>,
    /// The model of an agent that names none.
    pub model: Option<&'a str>,
    /// Tools that the program brings, by name.
    pub tools: &'a [String],
    /// Models that the program brings, by name.
    pub models: &'a [String],
}

impl<'a> Beside<'a> {
    /// Prices alone.
    pub fn prices(priced: Priced<'a>) -> Self {
        Self {
            priced,
            model: None,
            tools: &[],
            models: &[],
        }
    }
}
