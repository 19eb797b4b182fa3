//! Several processes, parents and children, and files that change: whose a run is and what it goes on
//! with.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a test's name is its documentation, and what it did not expect is a failure"
)]

#[path = "common/mod.rs"]
mod common;

use common::project::Project;

/// Blocks in its first attempt, where it tells its process by a pipe, and is done in its second.
const SLOW: &str = r#"
name = "slow"
[[step]]
id = "work"
run = "if [ -e again ]; then printf done; else touch again; echo $$ > pid; sleep 1000; fi"
effect = "read"
"#;

#[test]
fn a_worker_in_memory_is_refused() {
    let project = Project::new(SLOW);
    let ran = project.run(&["worker", "--store", "memory:"]);
    assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{}", ran.err);
    assert!(ran.err.contains("error: a store in memory"), "{}", ran.err);
}
