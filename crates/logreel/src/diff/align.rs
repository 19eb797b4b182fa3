//! Two sequences side by side: what is the same, what came in, went out, moved or changed. An insertion
//! is not a reorder, and what moved and changed is told as both.
//!
//! Nearly linear: what comes once in both is an anchor (patience), small gaps between anchors are solved
//! exactly, and large ones of repeated things by their order of occurrence.

use std::collections::{HashMap, VecDeque};

/// One of a sequence, known by three hashes, from the whole of it down to its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Item {
    /// Everything that counts. The same here is the same.
    pub whole: u64,
    /// What makes it this one although something else changed.
    pub key: u64,
    /// What it has in common with others of its kind.
    pub kind: u64,
}

/// How two that belong together differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// Not at all.
    Same,
    /// In its place, with something else in it.
    Changed,
    /// Elsewhere.
    Moved,
    /// Elsewhere, with something else in it.
    MovedAndChanged,
}

/// Two that belong together, by their places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair {
    /// In the first sequence.
    pub a: usize,
    /// In the second.
    pub b: usize,
    /// How they differ.
    pub how: How,
}

/// Each of the first sequence is in a pair or removed, each of the second in a pair or added.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Alignment {
    /// In the order of the first sequence.
    pub pairs: Vec<Pair>,
    /// Only in the first.
    pub removed: Vec<usize>,
    /// Only in the second.
    pub added: Vec<usize>,
}

/// A gap with at most so many cells is solved exactly.
const CELLS_MAX: usize = 1 << 20;
/// How often anchors are looked for inside gaps between anchors.
const DEPTH_MAX: u32 = 24;

/// Aligns two sequences. The other way around it is the same, with added and removed exchanged.
pub fn align(a: &[Item], b: &[Item]) -> Alignment {
    // One order for both ways: what is found must not depend on who comes first.
    if (a.len(), a) > (b.len(), b) {
        let mut flipped = in_order(b, a);
        for pair in &mut flipped.pairs {
            (pair.a, pair.b) = (pair.b, pair.a);
        }
        flipped.pairs.sort_unstable_by_key(|pair| pair.a);
        let Alignment {
            pairs,
            removed,
            added,
        } = flipped;
        return Alignment {
            pairs,
            removed: added,
            added: removed,
        };
    }
    in_order(a, b)
}

fn in_order(a: &[Item], b: &[Item]) -> Alignment {
    let mut found = Found::new(a.len(), b.len());
    for (i, j) in common(a, b) {
        found.pair(i, j, How::Same);
    }
    // In its place: between the same neighbours.
    for level in [whole as Level, key, kind] {
        for (gap_a, gap_b) in found.gaps() {
            let free_a = gap_a.filter(|i| found.of_a[*i].is_none());
            let free_b = gap_b.filter(|j| found.of_b[*j].is_none());
            for (i, j) in longest_rise(by_occurrence(a, b, free_a, free_b, level)) {
                // Of many alike the anchors may have missed some.
                let how = match a[i].whole == b[j].whole {
                    true => How::Same,
                    false => How::Changed,
                };
                found.pair(i, j, how);
            }
        }
    }
    for (level, how) in [
        (whole as Level, How::Moved),
        (key as Level, How::MovedAndChanged),
    ] {
        let (free_a, free_b) = found.free();
        for (i, j) in by_occurrence(a, b, free_a.into_iter(), free_b.into_iter(), level) {
            found.pair(i, j, how);
        }
    }
    // Of a kind of which one is left on each side, that one went there.
    let (free_a, free_b) = found.free();
    let (lone_a, lone_b) = (lone(a, &free_a), lone(b, &free_b));
    for (kind, i) in lone_a {
        if let (Some(i), Some(Some(j))) = (i, lone_b.get(&kind)) {
            found.pair(i, *j, How::MovedAndChanged);
        }
    }
    found.into_alignment()
}

type Level = fn(&Item) -> u64;

fn whole(item: &Item) -> u64 {
    item.whole
}

fn key(item: &Item) -> u64 {
    item.key
}

fn kind(item: &Item) -> u64 {
    item.kind
}

/// What was found so far, by place.
struct Found {
    of_a: Vec<Option<(u32, How)>>,
    of_b: Vec<Option<u32>>,
}

impl Found {
    fn new(a: usize, b: usize) -> Self {
        Self {
            of_a: vec![None; a],
            of_b: vec![None; b],
        }
    }

    fn pair(&mut self, i: usize, j: usize, how: How) {
        self.of_a[i] = Some((j as u32, how));
        self.of_b[j] = Some(i as u32);
    }

    fn free(&self) -> (Vec<usize>, Vec<usize>) {
        let free_a = (0..self.of_a.len()).filter(|i| self.of_a[*i].is_none());
        let free_b = (0..self.of_b.len()).filter(|j| self.of_b[*j].is_none());
        (free_a.collect(), free_b.collect())
    }

    /// The gaps between pairs, where both sides have something. Only pairs in place exist so far.
    fn gaps(&self) -> Vec<(std::ops::Range<usize>, std::ops::Range<usize>)> {
        let mut gaps = Vec::new();
        let (mut i, mut j) = (0, 0);
        let ends = self.of_a.iter().enumerate();
        let ends = ends.filter_map(|(i, pair)| pair.map(|(j, _)| (i, j as usize)));
        for (end_i, end_j) in ends.chain([(self.of_a.len(), self.of_b.len())]) {
            if i < end_i && j < end_j {
                gaps.push((i..end_i, j..end_j));
            }
            (i, j) = (end_i + 1, end_j + 1);
        }
        gaps
    }

    fn into_alignment(self) -> Alignment {
        let (removed, added) = self.free();
        let pairs = self.of_a.iter().enumerate();
        let pairs = pairs.filter_map(|(a, pair)| {
            let (b, how) = (*pair)?;
            let b = b as usize;
            Some(Pair { a, b, how })
        });
        Alignment {
            pairs: pairs.collect(),
            removed,
            added,
        }
    }
}

/// Pairs the first of a hash with the first, the second with the second.
fn by_occurrence(
    a: &[Item],
    b: &[Item],
    of_a: impl Iterator<Item = usize>,
    of_b: impl Iterator<Item = usize>,
    level: Level,
) -> Vec<(usize, usize)> {
    let mut waiting: HashMap<u64, VecDeque<usize>> = HashMap::new();
    for j in of_b {
        waiting.entry(level(&b[j])).or_default().push_back(j);
    }
    let pairs = of_a.filter_map(|i| {
        let j = waiting.get_mut(&level(&a[i]))?.pop_front()?;
        Some((i, j))
    });
    pairs.collect()
}

/// The places of kinds that come once among these; `None` of those that come more often.
fn lone(items: &[Item], places: &[usize]) -> HashMap<u64, Option<usize>> {
    let mut lone: HashMap<u64, Option<usize>> = HashMap::new();
    for place in places {
        lone.entry(items[*place].kind)
            .and_modify(|it| *it = None)
            .or_insert(Some(*place));
    }
    lone
}

/// A common subsequence of wholes, as long as can be found in little time.
fn common(a: &[Item], b: &[Item]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut left = vec![(0..a.len(), 0..b.len(), 0_u32)];
    while let Some((mut range_a, mut range_b, depth)) = left.pop() {
        while let (Some(i), Some(j)) = (range_a.clone().next(), range_b.clone().next())
            && a[i].whole == b[j].whole
        {
            found.push((i, j));
            (range_a.start, range_b.start) = (i + 1, j + 1);
        }
        while let (Some(i), Some(j)) = (range_a.clone().next_back(), range_b.clone().next_back())
            && a[i].whole == b[j].whole
        {
            found.push((i, j));
            (range_a.end, range_b.end) = (i, j);
        }
        if range_a.is_empty() || range_b.is_empty() {
            continue;
        }
        let anchors = longest_rise(uniques(a, b, &range_a, &range_b));
        if !anchors.is_empty() && depth < DEPTH_MAX {
            let (mut i, mut j) = (range_a.start, range_b.start);
            for (end_i, end_j) in anchors {
                found.push((end_i, end_j));
                left.push((i..end_i, j..end_j, depth + 1));
                (i, j) = (end_i + 1, end_j + 1);
            }
            left.push((i..range_a.end, j..range_b.end, depth + 1));
        } else if range_a.len().saturating_mul(range_b.len()) <= CELLS_MAX {
            exact(a, b, &range_a, &range_b, &mut found);
        } else {
            let pairs = by_occurrence(a, b, range_a, range_b, whole);
            found.extend(longest_rise(pairs));
        }
    }
    found.sort_unstable();
    found
}

/// What comes once in both ranges, in the order of the first.
fn uniques(
    a: &[Item],
    b: &[Item],
    range_a: &std::ops::Range<usize>,
    range_b: &std::ops::Range<usize>,
) -> Vec<(usize, usize)> {
    let mut seen: HashMap<u64, (Option<usize>, Option<usize>)> = HashMap::new();
    let mut twice: std::collections::HashSet<u64> = std::collections::HashSet::new();
    for i in range_a.clone() {
        if seen.insert(a[i].whole, (Some(i), None)).is_some() {
            twice.insert(a[i].whole);
        }
    }
    for j in range_b.clone() {
        match seen.get_mut(&b[j].whole) {
            Some((_, there @ None)) => *there = Some(j),
            Some((_, Some(_))) => {
                twice.insert(b[j].whole);
            }
            None => {}
        }
    }
    let pairs = seen.into_iter().filter(|(whole, _)| !twice.contains(whole));
    let mut pairs: Vec<(usize, usize)> = pairs.filter_map(|(_, (i, j))| Some((i?, j?))).collect();
    pairs.sort_unstable();
    pairs
}

/// The longest common subsequence of two short ranges.
fn exact(
    a: &[Item],
    b: &[Item],
    range_a: &std::ops::Range<usize>,
    range_b: &std::ops::Range<usize>,
    found: &mut Vec<(usize, usize)>,
) {
    let (rows, columns) = (range_a.len(), range_b.len());
    let width = columns + 1;
    let is_same = |i: usize, j: usize| a[range_a.start + i].whole == b[range_b.start + j].whole;
    // longest[i][j] of what follows i and j.
    let mut longest = vec![0_u32; (rows + 1) * width];
    for i in (0..rows).rev() {
        for j in (0..columns).rev() {
            longest[i * width + j] = match is_same(i, j) {
                true => longest[(i + 1) * width + j + 1] + 1,
                false => longest[(i + 1) * width + j].max(longest[i * width + j + 1]),
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    while i < rows && j < columns {
        if is_same(i, j) {
            found.push((range_a.start + i, range_b.start + j));
            (i, j) = (i + 1, j + 1);
        } else if longest[(i + 1) * width + j] >= longest[i * width + j + 1] {
            i += 1;
        } else {
            j += 1;
        }
    }
}

/// The most of these pairs, which are in the order of the first, that are in the order of the second too.
fn longest_rise(pairs: Vec<(usize, usize)>) -> Vec<(usize, usize)> {
    // ends[n]: the pair with the smallest end that a rise of n + 1 has.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(pairs.len());
    for (place, (_, j)) in pairs.iter().enumerate() {
        let length = ends.partition_point(|end| pairs[*end].1 < *j);
        before.push(length.checked_sub(1).map(|length| ends[length]));
        match ends.get_mut(length) {
            Some(end) => *end = place,
            None => ends.push(place),
        }
    }
    let mut rise = Vec::with_capacity(ends.len());
    let mut next = ends.last().copied();
    while let Some(place) = next {
        rise.push(pairs[place]);
        next = before[place];
    }
    rise.reverse();
    rise
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `t1=x`: a call of `t` with 1 that gave `x`.
    fn item(text: &str) -> Item {
        let hash = |text: &str| text.bytes().fold(7, |sum, byte| sum * 31 + u64::from(byte));
        let (call, _) = text.split_once('=').unwrap_or((text, ""));
        Item {
            whole: hash(text),
            key: hash(call),
            kind: hash(&call[..1]),
        }
    }

    fn items(text: &str) -> Vec<Item> {
        text.split_whitespace().map(item).collect()
    }

    /// What is not the same, one word each: `-x` removed, `+x` added, `~x` changed, `>x` moved.
    fn told(a: &str, b: &str) -> String {
        let (words_a, words_b): (Vec<&str>, Vec<&str>) = (
            a.split_whitespace().collect(),
            b.split_whitespace().collect(),
        );
        let found = align(&items(a), &items(b));
        let mut told: Vec<String> = Vec::new();
        for pair in &found.pairs {
            let (x, y) = (words_a[pair.a], words_b[pair.b]);
            match pair.how {
                How::Same => {}
                How::Changed => told.push(format!("~{x}:{y}")),
                How::Moved => told.push(format!(">{x}")),
                How::MovedAndChanged => told.push(format!(">~{x}:{y}")),
            }
        }
        told.extend(found.removed.iter().map(|i| format!("-{}", words_a[*i])));
        told.extend(found.added.iter().map(|j| format!("+{}", words_b[*j])));
        told.join(" ")
    }

    #[test]
    fn an_insertion_is_not_a_reorder_and_moved_and_changed_says_both() {
        assert_eq!(told("a b c", "a b c"), "");
        assert_eq!(told("a b c", "x a b c"), "+x");
        assert_eq!(told("a b c", "a c"), "-b");
        assert_eq!(told("a b c d", "b c d a"), ">a");
        assert_eq!(told("a1=x b c", "a1=y b c"), "~a1=x:a1=y");
        assert_eq!(told("a1=x b c", "a2=x b c"), "~a1=x:a2=x");
        assert_eq!(told("a1=x b c d", "b c d a1=y"), ">~a1=x:a1=y");
        assert_eq!(told("a1=x b c d", "b c d a2=x"), ">~a1=x:a2=x");
        assert_eq!(told("", "a"), "+a");
        assert_eq!(told("s1 s1 s1", "s1 s1 s1 s1"), "+s1");
        assert_eq!(told("s1 s2 s3", "s1 s9 s2 s3"), "+s9");
        // Of several of a kind elsewhere nobody knows which one went where.
        assert_eq!(told("s1 s2 x y", "x y s3 s4"), "-s1 -s2 +s3 +s4");
    }

    #[test]
    fn long_sequences_of_few_different_things_take_little_time() {
        let many = |seed: u64| -> Vec<Item> {
            let mut state = seed;
            let next = |_| {
                state = state
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                let drawn = (state >> 33) % 5;
                Item {
                    whole: drawn,
                    key: drawn,
                    kind: drawn % 2,
                }
            };
            (0..50_000).map(next).collect()
        };
        let found = align(&many(1), &many(2));
        check(&many(1), &many(2), &found);
    }

    /// The alignment explains both: applied to the first it gives the second.
    fn check(a: &[Item], b: &[Item], found: &Alignment) {
        let mut of_a: Vec<usize> = found.pairs.iter().map(|pair| pair.a).collect();
        of_a.extend(&found.removed);
        of_a.sort_unstable();
        assert_eq!(of_a, (0..a.len()).collect::<Vec<_>>());
        let mut of_b: Vec<usize> = found.pairs.iter().map(|pair| pair.b).collect();
        of_b.extend(&found.added);
        of_b.sort_unstable();
        assert_eq!(of_b, (0..b.len()).collect::<Vec<_>>());
        let mut last = None;
        for pair in &found.pairs {
            let is_same = a[pair.a].whole == b[pair.b].whole;
            match pair.how {
                How::Same | How::Moved => assert!(is_same),
                How::Changed | How::MovedAndChanged => assert!(!is_same),
            }
            if matches!(pair.how, How::Same | How::Changed) {
                assert!(last < Some(pair.b), "what is in its place is in order");
                last = Some(pair.b);
            }
        }
    }

    fn sequences() -> impl Strategy<Value = Vec<Item>> {
        let one = (0_u64..4, 0_u64..3, 0_u64..3).prop_map(|(kind, key, whole)| Item {
            whole: kind * 100 + key * 10 + whole,
            key: kind * 100 + key * 10,
            kind,
        });
        prop::collection::vec(one, 0..40)
    }

    proptest! {
        #[test]
        fn an_alignment_explains_both_sides(a in sequences(), b in sequences()) {
            check(&a, &b, &align(&a, &b));
        }

        #[test]
        fn nothing_differs_from_itself(a in sequences()) {
            let found = align(&a, &a);
            prop_assert!(found.pairs.iter().all(|pair| pair.how == How::Same && pair.a == pair.b));
            prop_assert!(found.added.is_empty() && found.removed.is_empty());
        }

        #[test]
        fn the_other_way_around_it_is_the_same(a in sequences(), b in sequences()) {
            let (there, back) = (align(&a, &b), align(&b, &a));
            prop_assert_eq!(&there.added, &back.removed);
            prop_assert_eq!(&there.removed, &back.added);
            let mut flipped = back.pairs;
            for pair in &mut flipped {
                (pair.a, pair.b) = (pair.b, pair.a);
            }
            flipped.sort_unstable_by_key(|pair| pair.a);
            prop_assert_eq!(there.pairs, flipped);
        }
    }
}
