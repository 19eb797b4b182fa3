//! Every bench runs and gives rows of the agreed shape. How fast is not asked here.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::Value;

#[test]
fn every_bench_gives_rows_of_the_agreed_shape() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_logreel-bench"))
        .args(["--quick", "--json", "--dir"])
        .arg(dir.path())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert!(errors.contains("files in"), "{errors}");

    let mut metrics: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let row: Value = serde_json::from_str(line).unwrap();
        let text = |name: &str| row[name].as_str().unwrap().to_owned();
        for name in ["runs", "events", "payload_bytes"] {
            assert!(row["params"][name].is_u64(), "{line}");
        }
        assert!(row["value"].is_f64(), "{line}");
        match (row["reference"].as_f64(), row["ratio"].as_f64()) {
            (Some(reference), Some(ratio)) => {
                let value = row["value"].as_f64().unwrap();
                assert!((value / reference - ratio).abs() < 1e-9, "{line}");
            }
            (reference, ratio) => assert!(reference.is_none() && ratio.is_none(), "{line}"),
        }
        metrics
            .entry(text("bench"))
            .or_default()
            .push(text("metric"));
    }
    let expected = [
        ("append", "p50_us p99_us"),
        ("cancel", "p50_us p99_us"),
        ("workflow", "p50_us p99_us per_s"),
        ("concurrent", "p50_us p99_us per_s"),
        ("fold", "per_s"),
        ("growth", "bytes_ratio mib p50_us"),
        ("list", "p50_us p99_us"),
        ("open", "ms"),
        ("resume", "ms"),
        ("fork", "ms"),
        ("row", "per_s"),
        ("step", "p50_us p99_us"),
        ("tail", "p50_us p99_us"),
        ("transcript", "bytes_ratio p50_us"),
    ];
    for (bench, expected) in expected {
        let mut found = metrics.remove(bench).unwrap_or_default();
        found.sort();
        found.dedup();
        assert_eq!(found.join(" "), expected, "{bench}");
    }
    // Only where `logreel` is built beside it.
    if let Some(mut found) = metrics.remove("record") {
        found.sort();
        found.dedup();
        assert_eq!(found.join(" "), "mib ms");
    }
    // Only where there is a PostgreSQL.
    for (bench, expected) in [
        ("postgres", "p50_us p99_us per_s"),
        ("postgres-list", "mib p50_us p99_us"),
    ] {
        if let Some(mut found) = metrics.remove(bench) {
            found.sort();
            found.dedup();
            assert_eq!(found.join(" "), expected, "{bench}");
        }
    }
    // Under load only where `wrk` is installed.
    let mut found = metrics.remove("serve").unwrap_or_default();
    found.retain(|metric| metric != "per_s");
    found.sort();
    found.dedup();
    assert_eq!(found.join(" "), "mib p50_us p99_us");
    assert!(metrics.is_empty(), "{metrics:?}");
    let left = std::fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(left, 0, "its files are gone");
}
