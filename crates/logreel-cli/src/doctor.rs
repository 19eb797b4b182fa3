//! `logreel doctor`: looks a store over and says what is wrong.

use std::path::Path;

use logreel::store::Owner;
use logreel::{Filter, PostgresStore, RunStore, SqliteStore, Status};
use serde_json::json;

use crate::error::with_sources;
use crate::output::{Output, Paint};
use crate::store::{Kept, Opened, Place, Spot};
use crate::text;

const SOMETHING_IS_WRONG: u8 = 1;
/// With less free space a store may not get through the day.
const FREE_BYTES_MIN: u64 = 100_000_000;

/// What was found, for people (name, value) and for programs.
struct Finding {
    name: &'static str,
    shown: String,
    json: serde_json::Value,
}

pub async fn run(place: &Place, out: &mut Output) -> anyhow::Result<u8> {
    let spot = place.find()?;
    let (mut findings, mut problems) = (Vec::new(), Vec::new());
    let opened = match place.open().await {
        Ok(opened) => Some(opened),
        Err(error) => {
            if matches!(&spot, Spot::File(path) if !path.exists()) {
                return Err(error);
            }
            problems.push(with_sources(&error));
            None
        }
    };
    let version = env!("CARGO_PKG_VERSION");
    findings.push(Finding {
        name: "logreel",
        shown: version.to_owned(),
        json: json!(version),
    });
    match &spot {
        Spot::File(path) => look_at_file(path, &mut findings, &mut problems),
        Spot::Database(url) => {
            let shown = url.shown()?;
            let json = json!(shown);
            findings.push(Finding {
                name: "store",
                shown,
                json,
            });
        }
    }
    if let Some(opened) = &opened {
        look_inside(opened, &mut findings, &mut problems).await;
    }
    if out.json {
        let mut report = serde_json::Map::new();
        for finding in findings {
            report.insert(finding.name.replace(' ', "_"), finding.json);
        }
        report.insert("problems".to_owned(), json!(problems));
        out.json_line(&report)?;
    } else {
        for Finding { name, shown, .. } in findings {
            out.line(format!("{name:<12} {shown}").trim_end())?;
        }
        for problem in &problems {
            out.line(format!(
                "{} {problem}",
                out.paint(Paint::Bad, "WRONG       ")
            ))?;
        }
        if problems.is_empty() {
            out.line(format!(
                "{} nothing is wrong",
                out.paint(Paint::Good, "ok          ")
            ))?;
        }
    }
    Ok(if problems.is_empty() {
        0
    } else {
        SOMETHING_IS_WRONG
    })
}

fn look_at_file(path: &Path, findings: &mut Vec<Finding>, problems: &mut Vec<String>) {
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut find = |name, shown: String, json| findings.push(Finding { name, shown, json });
    find(
        "store",
        path.display().to_string(),
        json!(path.to_string_lossy()),
    );
    let size = |suffix: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(suffix);
        std::fs::metadata(name).map_or(0, |it| it.len())
    };
    let (file, wal) = (size(""), size("-wal"));
    let shown = format!("{} and {} of log", text::bytes(file), text::bytes(wal));
    find("size", shown, json!({"file_bytes": file, "wal_bytes": wal}));
    let folder = path.parent().unwrap_or(Path::new("/"));
    if let Some(kind) = file_system(folder) {
        find("file system", kind.clone(), json!(kind));
    }
    match rustix::fs::statvfs(folder) {
        Ok(disk) => {
            let free = disk.f_bavail.saturating_mul(disk.f_frsize);
            find("free", text::bytes(free), json!({"bytes": free}));
            if free < FREE_BYTES_MIN {
                problems.push(format!("only {} are free on its disk", text::bytes(free)));
            }
        }
        Err(error) => problems.push(format!("the free space cannot be read: {error}")),
    }
}

/// The file system's type, where Linux tells it.
fn file_system(folder: &Path) -> Option<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mounted = mounts.lines().filter_map(|line| {
        // `id parent dev root POINT options.. - TYPE source ..`
        let point = line.split(' ').nth(4)?;
        let kind = line.split(" - ").nth(1)?.split(' ').next()?;
        folder.starts_with(point).then_some((point.len(), kind))
    });
    mounted
        .max_by_key(|(length, _)| *length)
        .map(|(_, kind)| kind.to_owned())
}

async fn look_inside(opened: &Opened, findings: &mut Vec<Finding>, problems: &mut Vec<String>) {
    match &opened.kept {
        Kept::File(store) => look_at_tables(store, findings, problems),
        Kept::Database(store, _) => look_at_server(store, findings, problems).await,
        Kept::Memory => {}
    }
    match drivers(&*opened.store).await {
        Ok(drivers) => drivers.tell(findings),
        Err(error) => problems.push(with_sources(&error.into())),
    }
}

async fn look_at_server(
    store: &PostgresStore,
    findings: &mut Vec<Finding>,
    problems: &mut Vec<String>,
) {
    let described = match store.describe().await {
        Ok(described) => described,
        Err(error) => return problems.push(with_sources(&error.into())),
    };
    let mut find = |name, shown: String, json| findings.push(Finding { name, shown, json });
    find(
        "postgresql",
        described.server.clone(),
        json!(described.server),
    );
    find(
        "host",
        described.address.clone().unwrap_or("a socket".to_owned()),
        json!(described.address),
    );
    find(
        "schema",
        described.schema.to_string(),
        json!(described.schema),
    );
    find(
        "size",
        text::bytes(described.database_bytes),
        json!({"database_bytes": described.database_bytes}),
    );
    find(
        "connections",
        described.connections.to_string(),
        json!(described.connections),
    );
    let settings = described.settings.iter();
    let shown = settings
        .clone()
        .map(|(name, value)| format!("{name}={value}"));
    let json = settings.map(|(name, value)| ((*name).to_owned(), json!(value)));
    let json = json.collect::<serde_json::Map<_, _>>();
    find("settings", shown.collect::<Vec<_>>().join(" "), json.into());
    problems.extend(described.problems);
}

fn look_at_tables(store: &SqliteStore, findings: &mut Vec<Finding>, problems: &mut Vec<String>) {
    match store.describe() {
        Ok(described) => {
            let mut find = |name, shown: String, json| findings.push(Finding { name, shown, json });
            find("sqlite", described.sqlite.clone(), json!(described.sqlite));
            find(
                "schema",
                described.schema.to_string(),
                json!(described.schema),
            );
            let pragmas = described.pragmas.iter();
            let shown = pragmas
                .clone()
                .map(|(name, value)| format!("{name}={value}"));
            let json = pragmas.map(|(name, value)| ((*name).to_owned(), json!(value)));
            let json = json.collect::<serde_json::Map<_, _>>();
            find("pragmas", shown.collect::<Vec<_>>().join(" "), json.into());
        }
        Err(error) => problems.push(with_sources(&error.into())),
    }
    problems.extend(store.check());
}

/// Who drives what.
#[derive(Default)]
struct Drivers {
    owners: Vec<(Owner, bool, u64)>,
    orphans: Vec<String>,
}

async fn drivers(store: &dyn RunStore) -> Result<Drivers, logreel::store::Error> {
    let live = Status::ALL
        .into_iter()
        .filter(|status| !status.is_terminal());
    let filter = Filter {
        status: live.collect(),
        ..Filter::default()
    };
    let mut drivers = Drivers::default();
    let mut cursor = None;
    loop {
        let page = store.list(&filter, cursor.as_ref(), 500).await?;
        for entry in page.items {
            if entry.is_orphaned() {
                drivers.orphans.push(entry.row.run.short());
            }
            let Some(driver) = entry.driver else { continue };
            match drivers
                .owners
                .iter_mut()
                .find(|(owner, ..)| owner.id == driver.owner.id)
            {
                Some((_, _, runs)) => *runs += 1,
                None => drivers.owners.push((driver.owner, driver.alive, 1)),
            }
        }
        cursor = page.next;
        if cursor.is_none() {
            return Ok(drivers);
        }
    }
}

impl Drivers {
    fn tell(self, findings: &mut Vec<Finding>) {
        let shown: Vec<String> = self
            .owners
            .iter()
            .map(|(owner, alive, runs)| {
                let gone = if *alive { "" } else { ", gone" };
                format!("{owner} ({}{gone})", text::count(*runs, "run"))
            })
            .collect();
        let json: Vec<_> = self
            .owners
            .iter()
            .map(|(owner, alive, runs)| {
                json!({"host": owner.host_name, "pid": owner.pid, "alive": alive, "runs": runs})
            })
            .collect();
        let shown = if shown.is_empty() {
            "none".to_owned()
        } else {
            shown.join(", ")
        };
        findings.push(Finding {
            name: "drivers",
            shown,
            json: json.into(),
        });
        let shown = match self.orphans.as_slice() {
            [] => "none".to_owned(),
            some => {
                let first: Vec<&str> = some.iter().take(5).map(String::as_str).collect();
                let more = if some.len() > 5 { " …" } else { "" };
                format!(
                    "{}: {}{more}; a resume takes them over",
                    some.len(),
                    first.join(" ")
                )
            }
        };
        findings.push(Finding {
            name: "orphans",
            shown,
            json: json!(self.orphans),
        });
    }
}
