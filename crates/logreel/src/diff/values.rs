//! Two JSON values side by side, by JSON pointer (RFC 6901). What is absent is not null.

use serde::Serialize;
use serde_json::Value;

/// A place where two values differ.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ValueChange {
    /// Where; empty for the whole.
    pub pointer: String,
    /// What became of it: `added` and `removed` tell that the other side has nothing there.
    pub change: ValueHow,
    /// On the first side; null also when there is nothing.
    pub a: Value,
    /// On the second side; null also when there is nothing.
    pub b: Value,
}

/// What became of a place in a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ValueHow {
    /// Only the second side has it.
    Added,
    /// Only the first side has it.
    Removed,
    /// Both have it.
    Changed,
}

/// Where two values differ, in the order of their pointers.
pub fn compare(a: &Value, b: &Value) -> Vec<ValueChange> {
    let mut changes = Vec::new();
    walk(&mut String::new(), Some(a), Some(b), &mut changes);
    changes
}

fn walk(pointer: &mut String, a: Option<&Value>, b: Option<&Value>, found: &mut Vec<ValueChange>) {
    let change = match (a, b) {
        (None, None) => return,
        (None, Some(_)) => ValueHow::Added,
        (Some(_), None) => ValueHow::Removed,
        (Some(Value::Object(a)), Some(Value::Object(b))) => {
            let mut names: Vec<&String> = a.keys().chain(b.keys()).collect();
            names.sort_unstable();
            names.dedup();
            for name in names {
                let token = name.replace('~', "~0").replace('/', "~1");
                inside(pointer, &token, a.get(name), b.get(name), found);
            }
            return;
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            for index in 0..a.len().max(b.len()) {
                inside(
                    pointer,
                    &index.to_string(),
                    a.get(index),
                    b.get(index),
                    found,
                );
            }
            return;
        }
        (Some(a), Some(b)) if is_same(a, b) => return,
        (Some(_), Some(_)) => ValueHow::Changed,
    };
    found.push(ValueChange {
        pointer: pointer.clone(),
        change,
        a: a.cloned().unwrap_or_default(),
        b: b.cloned().unwrap_or_default(),
    });
}

fn inside(
    pointer: &mut String,
    token: &str,
    a: Option<&Value>,
    b: Option<&Value>,
    found: &mut Vec<ValueChange>,
) {
    let length = pointer.len();
    pointer.push('/');
    pointer.push_str(token);
    walk(pointer, a, b, found);
    pointer.truncate(length);
}

/// 1 and 1.0 mean the same.
fn is_same(a: &Value, b: &Value) -> bool {
    let number = |value: &Value| value.as_f64().filter(|_| value.is_number());
    match (a, b) {
        (Value::Number(x), Value::Number(y)) if x.is_f64() != y.is_f64() => number(a) == number(b),
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_difference_is_named_by_its_pointer_and_absent_is_not_null() {
        let a = json!({"a": 1, "b": null, "c/d": {"~": [1, 2, 3]}, "same": [1.0, {"x": "y"}]});
        let b = json!({"a": null, "e": null, "c/d": {"~": [1, 9]}, "same": [1, {"x": "y"}]});
        let told: Vec<String> = compare(&a, &b)
            .iter()
            .map(|it| format!("{} {:?} {} {}", it.pointer, it.change, it.a, it.b))
            .collect();
        assert_eq!(
            told,
            [
                "/a Changed 1 null",
                "/b Removed null null",
                "/c~1d/~0/1 Changed 2 9",
                "/c~1d/~0/2 Removed 3 null",
                "/e Added null null",
            ]
        );
        assert_eq!(compare(&json!(1), &json!("1"))[0].pointer, "");
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            (0..3).prop_map(Value::from),
            "[ab]{0,2}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a~/]{1,2}", inner, 0..4)
                    .prop_map(|fields| fields.into_iter().collect()),
            ]
        })
    }

    /// The changes, made one after the other, last ones of a list first.
    fn apply(a: &Value, changes: &[ValueChange]) -> Value {
        let mut value = a.clone();
        for change in changes.iter().rev() {
            let Some((parent, token)) = change.pointer.rsplit_once('/') else {
                value = change.b.clone();
                continue;
            };
            let token = token.replace("~1", "/").replace("~0", "~");
            let parent = value.pointer_mut(parent).expect("its parent is there");
            match (parent, change.change) {
                (Value::Array(items), ValueHow::Removed) => {
                    items.remove(token.parse().expect("an index"));
                }
                (Value::Array(items), ValueHow::Added) => {
                    // Last first: each goes where the first of them will be.
                    let end = a.pointer(change.pointer.rsplit_once('/').unwrap().0);
                    let end = end.and_then(Value::as_array).map_or(0, Vec::len);
                    items.insert(end, change.b.clone());
                }
                (Value::Array(items), ValueHow::Changed) => {
                    items[token.parse::<usize>().expect("an index")] = change.b.clone();
                }
                (Value::Object(fields), ValueHow::Removed) => {
                    fields.remove(&token);
                }
                (Value::Object(fields), _) => {
                    fields.insert(token, change.b.clone());
                }
                (other, _) => panic!("{other} has nothing inside"),
            }
        }
        value
    }

    proptest! {
        #[test]
        fn the_changes_make_the_second_value_of_the_first(a in values(), b in values()) {
            prop_assert_eq!(apply(&a, &compare(&a, &b)), b.clone());
            prop_assert!(compare(&a, &a).is_empty());
            prop_assert_eq!(compare(&a, &b).len(), compare(&b, &a).len());
        }
    }
}
