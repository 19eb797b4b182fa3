//! What a terminal shows after some bytes: enough of one for what the binary writes.

use unicode_width::UnicodeWidthChar as _;

pub struct Screen {
    width: usize,
    rows: Vec<Vec<char>>,
    row: usize,
    column: usize,
    pub cursor_hidden: bool,
    escape: Option<String>,
}

impl Screen {
    pub fn new(width: usize) -> Self {
        Self {
            width,
            rows: vec![Vec::new()],
            row: 0,
            column: 0,
            cursor_hidden: false,
            escape: None,
        }
    }

    pub fn feed(&mut self, text: &str) {
        for c in text.chars() {
            self.put(c);
        }
    }

    /// The rows without the blanks around them.
    pub fn text(&self) -> String {
        let rows = self.rows.iter().map(|row| {
            let row: String = row.iter().filter(|c| **c != '\0').collect();
            row.trim_end().to_owned()
        });
        rows.collect::<Vec<_>>().join("\n").trim_end().to_owned()
    }

    fn put(&mut self, c: char) {
        if let Some(escape) = &mut self.escape {
            escape.push(c);
            if c.is_ascii_alphabetic() {
                let escape = self.escape.take().unwrap();
                self.obey(&escape);
            }
            return;
        }
        match c {
            '\x1b' => self.escape = Some(String::new()),
            '\r' => self.column = 0,
            '\n' => self.down(),
            c => {
                let width = c
                    .width()
                    .unwrap_or_else(|| panic!("{c:?} reached the terminal"));
                if self.column + width > self.width {
                    self.column = 0;
                    self.down();
                }
                let row = &mut self.rows[self.row];
                row.resize(row.len().max(self.column + width), ' ');
                row[self.column] = c;
                if width == 2 {
                    row[self.column + 1] = '\0';
                }
                self.column += width;
            }
        }
    }

    fn down(&mut self) {
        self.row += 1;
        if self.row == self.rows.len() {
            self.rows.push(Vec::new());
        }
    }

    fn obey(&mut self, escape: &str) {
        match escape {
            "[?25l" => self.cursor_hidden = true,
            "[?25h" => self.cursor_hidden = false,
            "[K" => self.rows[self.row].truncate(self.column),
            "[J" => {
                self.rows[self.row].truncate(self.column);
                self.rows.truncate(self.row + 1);
            }
            up if up.ends_with('A') => {
                let by: usize = up[1..up.len() - 1].parse().unwrap();
                self.row = self.row.checked_sub(by).expect("within what was drawn");
            }
            colour if colour.ends_with('m') => {}
            other => panic!("{other:?} reached the terminal"),
        }
    }
}
