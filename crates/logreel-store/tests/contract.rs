//! The contract suite on our own stores.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use logreel_store::contract::{Harness, TestEnv};
use logreel_store::sqlite::Options;
use logreel_store::{MemoryStore, RunStore, SqliteStore};
use tempfile::TempDir;

/// Memory has nothing to reopen: an instance is a clone.
#[derive(Default)]
struct Memory(OnceLock<MemoryStore>);

#[async_trait]
impl Harness for Memory {
    async fn open(&self, env: TestEnv) -> Arc<dyn RunStore> {
        Arc::new(
            self.0
                .get_or_init(|| MemoryStore::new(Arc::new(env)))
                .clone(),
        )
    }
}

mod memory {
    use super::Memory;

    logreel_store::contract_tests!(Memory::default());
}

/// One file in a folder of its own.
struct Sqlite(TempDir);

impl Sqlite {
    fn new() -> Self {
        Self(TempDir::new().expect("a temporary folder"))
    }
}

#[async_trait]
impl Harness for Sqlite {
    async fn open(&self, env: TestEnv) -> Arc<dyn RunStore> {
        let options = Options {
            create: true,
            env: Arc::new(env),
            ..Options::default()
        };
        let store = SqliteStore::open(self.0.path().join("runs.db"), options);
        Arc::new(store.expect("a store is opened"))
    }
}

mod sqlite {
    use super::Sqlite;

    logreel_store::contract_tests!(Sqlite::new());
}

/// A rule that is written and not run is no rule.
#[test]
fn every_rule_is_in_the_macro() {
    let listed = include_str!("../src/contract.rs");
    let sources = [
        include_str!("../src/contract/append.rs"),
        include_str!("../src/contract/command.rs"),
        include_str!("../src/contract/concurrent.rs"),
        include_str!("../src/contract/create.rs"),
        include_str!("../src/contract/erase.rs"),
        include_str!("../src/contract/fork.rs"),
        include_str!("../src/contract/import.rs"),
        include_str!("../src/contract/lease.rs"),
        include_str!("../src/contract/limit.rs"),
        include_str!("../src/contract/model.rs"),
        include_str!("../src/contract/read.rs"),
    ];
    let rules: Vec<&str> = sources
        .iter()
        .flat_map(|source| source.lines())
        .filter_map(|line| line.strip_prefix("pub async fn ")?.split('(').next())
        .collect();
    assert!(rules.len() > 40, "the rules are found: {rules:?}");
    for rule in rules {
        assert!(
            listed.lines().any(|line| line.trim() == rule),
            "{rule} is not run"
        );
    }
}

/// A schema of its own for each test, in the database that `LOGREEL_TEST_POSTGRES` names. Without the variable
/// there is nothing to test on: `scripts/test` starts a server and sets it, or says that these tests
/// were skipped.
#[cfg(feature = "postgres")]
mod postgres {
    use std::sync::Arc;

    use async_trait::async_trait;
    use logreel_store::contract::{Harness, TestEnv};
    use logreel_store::postgres::{Options, Times};
    use logreel_store::{PostgresStore, RunStore};
    use tempfile::TempDir;

    struct Postgres {
        url: String,
        locks: TempDir,
    }

    impl Postgres {
        fn new() -> Self {
            let server = std::env::var("LOGREEL_TEST_POSTGRES")
                .expect("LOGREEL_TEST_POSTGRES names a database to test on");
            let locks = TempDir::new().expect("a temporary folder");
            // As random as the folder's name.
            let folder = locks.path().to_string_lossy().to_lowercase();
            let schema: String = folder.chars().filter(char::is_ascii_alphanumeric).collect();
            let schema = format!("{schema}{}", std::process::id());
            let options = format!("options=-csearch_path%3D{schema}");
            let and = if server.contains('?') { '&' } else { '?' };
            let url = format!("{server}{and}{options}");
            Self { url, locks }
        }
    }

    #[async_trait]
    impl Harness for Postgres {
        async fn open(&self, env: TestEnv) -> Arc<dyn RunStore> {
            let options = Options {
                create: true,
                env: Arc::new(env),
                times: Times::Env,
                locks: Some(self.locks.path().to_owned()),
                ..Options::default()
            };
            let store = PostgresStore::open(&self.url, options).await;
            Arc::new(store.expect("a store is opened"))
        }
    }

    logreel_store::contract_tests!(multi_thread: Postgres::new());
}
