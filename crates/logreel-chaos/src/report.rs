//! What was found, as a table that says what must be so.

use comfy_table::{ContentArrangement, Table, presets};

#[derive(Default)]
pub struct Report {
    rows: Vec<(String, String, Option<bool>)>,
    details: Vec<String>,
}

impl Report {
    /// A figure that nothing depends on.
    pub fn tell(&mut self, what: &str, figure: impl ToString) {
        self.rows.push((what.to_owned(), figure.to_string(), None));
    }

    /// A figure that is right or not.
    pub fn check(&mut self, what: &str, figure: impl ToString, is_right: bool) {
        self.rows
            .push((what.to_owned(), figure.to_string(), Some(is_right)));
    }

    /// A figure that must reach another one; where nothing is expected, it is only told.
    pub fn least(&mut self, what: &str, many: usize, least: usize) {
        match least {
            0 => self.tell(what, many),
            _ => self.check(what, format!("{many} (at least {least})"), many >= least),
        }
    }

    /// What must not be: right when there is none of it, and each is told otherwise.
    pub fn none(&mut self, what: &str, found: &[String]) {
        self.check(what, found.len(), found.is_empty());
        let told = found.iter().take(20).map(|it| format!("{what}: {it}"));
        self.details.extend(told);
    }

    /// Everything that was found and must not be, in words.
    #[cfg(test)]
    pub fn wrong(&self) -> impl Iterator<Item = &str> {
        self.details.iter().map(String::as_str)
    }

    pub fn is_well(&self) -> bool {
        self.rows.iter().all(|(_, _, right)| *right != Some(false))
    }

    pub fn print(&self) {
        let mut table = Table::new();
        table.load_style(presets::NOTHING);
        table.set_content_arrangement(ContentArrangement::Disabled);
        for (what, figure, right) in &self.rows {
            let verdict = match right {
                None => "",
                Some(true) => "ok",
                Some(false) => "WRONG",
            };
            table.add_row([what, figure, verdict]);
        }
        println!("{table}");
        for detail in &self.details {
            println!("{detail}");
        }
    }
}
