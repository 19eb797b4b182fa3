//! Questions about a graph of numbered nodes: in which order, in which circle, who is behind whom.
//!
//! Nothing here recurses, and nothing grows with the square of the nodes: a chain of 10,000 steps is a
//! usual thing for a program to write.

use std::collections::VecDeque;

/// The nodes in an order in which each comes after all it needs; `Err` is a circle, each of its nodes
/// needing the next one and the last one the first.
pub(super) fn order(
    needs: &[Vec<usize>],
    dependents: &[Vec<usize>],
) -> Result<Vec<usize>, Vec<usize>> {
    let mut open: Vec<usize> = needs.iter().map(Vec::len).collect();
    let mut ready: VecDeque<usize> = (0..needs.len()).filter(|node| open[*node] == 0).collect();
    let mut order = Vec::with_capacity(needs.len());
    while let Some(node) = ready.pop_front() {
        order.push(node);
        for dependent in &dependents[node] {
            open[*dependent] -= 1;
            if open[*dependent] == 0 {
                ready.push_back(*dependent);
            }
        }
    }
    if order.len() == needs.len() {
        Ok(order)
    } else {
        Err(circle(needs, &open))
    }
}

/// A node that is not in the order needs another one that is not: following these, one comes back.
fn circle(needs: &[Vec<usize>], open: &[usize]) -> Vec<usize> {
    let mut seen_at = vec![None; needs.len()];
    let mut path = Vec::new();
    let mut next = (0..needs.len()).find(|node| open[*node] > 0);
    while let Some(node) = next {
        if let Some(start) = seen_at[node] {
            return path.split_off(start);
        }
        seen_at[node] = Some(path.len());
        path.push(node);
        next = needs[node].iter().copied().find(|need| open[*need] > 0);
    }
    path
}

/// Of questions (node, other), those where `other` is not behind `node`, however far.
///
/// 64 of the others at a time are followed through the graph, one bit each.
pub(super) fn not_behind(
    questions: &[(usize, usize)],
    needs: &[Vec<usize>],
    order: &[usize],
) -> Vec<(usize, usize)> {
    let mut others: Vec<usize> = questions.iter().map(|(_, other)| *other).collect();
    others.sort_unstable();
    others.dedup();
    let mut by_other: Vec<(usize, usize)> = questions.iter().map(|(a, b)| (*b, *a)).collect();
    by_other.sort_unstable();
    let mut rest = by_other.as_slice();

    let mut missing = Vec::new();
    let mut bit_of = vec![0_u64; needs.len()];
    let mut behind = vec![0_u64; needs.len()];
    for chunk in others.chunks(64) {
        for (bit, other) in chunk.iter().enumerate() {
            bit_of[*other] = 1 << bit;
        }
        for node in order {
            behind[*node] = needs[*node]
                .iter()
                .fold(0, |bits, need| bits | behind[*need] | bit_of[*need]);
        }
        while let Some(((other, node), after)) = rest.split_first() {
            if bit_of[*other] == 0 {
                break;
            }
            if behind[*node] & bit_of[*other] == 0 {
                missing.push((*node, *other));
            }
            rest = after;
        }
        for other in chunk {
            bit_of[*other] = 0;
        }
    }
    missing.sort_unstable();
    missing
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn dependents(needs: &[Vec<usize>]) -> Vec<Vec<usize>> {
        let mut dependents = vec![Vec::new(); needs.len()];
        for (node, needs) in needs.iter().enumerate() {
            needs.iter().for_each(|need| dependents[*need].push(node));
        }
        dependents
    }

    #[test]
    fn a_circle_is_named_without_what_leads_to_it() {
        let needs = [vec![1], vec![2], vec![3], vec![1], vec![]];
        assert_eq!(order(&needs, &dependents(&needs)), Err(vec![1, 2, 3]));
    }

    proptest! {
        #[test]
        fn an_order_or_a_circle(edges in proptest::collection::vec((0..12_usize, 0..12_usize), 0..20)) {
            let mut needs = vec![Vec::new(); 12];
            for (from, to) in edges {
                if from != to && !needs[from].contains(&to) {
                    needs[from].push(to);
                }
            }
            match order(&needs, &dependents(&needs)) {
                Ok(order) => {
                    let mut place = [0; 12];
                    order.iter().enumerate().for_each(|(at, node)| place[*node] = at);
                    for (node, needs) in needs.iter().enumerate() {
                        prop_assert!(needs.iter().all(|need| place[*need] < place[node]));
                    }
                }
                Err(circle) => {
                    for (at, node) in circle.iter().enumerate() {
                        prop_assert!(needs[*node].contains(&circle[(at + 1) % circle.len()]));
                    }
                }
            }
        }

    }

    proptest! {
        // Each case asks for every pair.
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn behind_is_what_a_walk_finds(edges in proptest::collection::vec((1..150_usize, 0..150_usize), 0..300)) {
            let mut needs = vec![Vec::new(); 150];
            for (from, to) in edges {
                if to < from {
                    needs[from].push(to);
                }
            }
            let order: Vec<usize> = (0..150).collect();
            let all: Vec<(usize, usize)> = (0..150).flat_map(|a| (0..150).map(move |b| (a, b))).collect();
            let missing = not_behind(&all, &needs, &order);
            let mut expected = Vec::new();
            for node in 0..150 {
                let mut seen = [false; 150];
                let mut walk = needs[node].clone();
                while let Some(next) = walk.pop() {
                    if !std::mem::replace(&mut seen[next], true) {
                        walk.extend(&needs[next]);
                    }
                }
                expected.extend((0..150).filter(|other| !seen[*other]).map(|other| (node, other)));
            }
            prop_assert_eq!(missing, expected);
        }
    }
}
