//! Long text: the beginning and the end, and how much is between them.

/// The text, or its beginning and end when it is longer than `limit` bytes, with a line that says how
/// much was left out.
pub fn cut(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let half = limit / 2;
    let head = (0..=half).rev().find(|at| text.is_char_boundary(*at));
    let tail = (text.len() - half..=text.len()).find(|at| text.is_char_boundary(*at));
    let (head, tail) = (head.unwrap_or(0), tail.unwrap_or(text.len()));
    cut_between(&text[..head], &text[tail..], (tail - head) as u64)
}

/// Two ends of a text whose middle was left out.
pub fn cut_between(head: &str, tail: &str, left_out: u64) -> String {
    format!("{head}\n[... {left_out} bytes left out ...]\n{tail}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_are_whole_and_the_rest_is_counted() {
        assert_eq!(cut("short", 5), "short");
        let text = "ä".repeat(100) + &"b".repeat(100);
        let left_out = text.len() - 4 - 5;
        let expected = format!("ää\n[... {left_out} bytes left out ...]\nbbbbb");
        assert_eq!(cut(&text, 11), expected);
        let umlauts = "ü".repeat(1000);
        for limit in 0..40 {
            let cut = cut(&umlauts, limit);
            assert!(cut.len() <= limit + 40, "{cut}");
        }
    }
}
