//! Steps in Rust: kill this program when you like and start it again; it goes on, and writes once.
//!
//!     cargo run -p logreel --example task_steps -- FOLDER

use std::fs::{File, read_to_string};
use std::future::ready;
use std::io::Write as _;

use logreel::workflow::{Format, Workflow};
use logreel::{Ctx, Digest, Engine, Outcome, Reconciled, TaskError};

const SPEC: &str = r#"
name = "lengths"
step = [
  { id = "count", task = "count", map = "{{ input }}", input = "{{ item }}" },
  { id = "publish", task = "publish", needs = ["count"], input = "{{ steps.count.output }}" },
]
"#;

/// Starts the run in this folder, or goes on with it, and gives what it ended with.
pub async fn work(folder: std::path::PathBuf) -> anyhow::Result<String> {
    let engine = Engine::open(folder.join("runs.db")).await?;
    engine.task("count", |ctx: Ctx, name: String| async move {
        let length = || ready(Ok::<_, TaskError>(name.len()));
        ctx.step("length").run(length).await
    });
    engine.task("publish", move |ctx: Ctx, counts: Vec<usize>| {
        let (path, sum) = (folder.join("published"), counts.iter().sum::<usize>());
        async move {
            let find = |key: Digest| {
                let text = read_to_string(&path).unwrap_or_default();
                ready(Ok::<_, TaskError>(match text.contains(&key.to_string()) {
                    true => Reconciled::Done(sum),
                    false => Reconciled::NotDone,
                }))
            };
            let append = |key: Digest| {
                let mut file = File::options().create(true).append(true).open(&path)?;
                file.write_all(format!("{key}\n").as_bytes()).map(|()| sum)
            };
            let write = ctx.write_step("send").reconcile(find);
            write.run(|key| ready(append(key))).await
        }
    });
    let workflow = Workflow::parse(SPEC, Format::Toml, "task_steps.toml")?;
    let start = engine.workflow(&workflow).start(&["ada", "grace", "alan"]);
    let outcome = start.key("lengths").await?.wait().await?;
    engine.close().await?;
    match outcome {
        Outcome::Completed(output) => Ok(output.to_value().to_string()),
        other => anyhow::bail!("it ended otherwise: {other:?}"),
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| ".".to_owned());
    println!("{}", work(folder.into()).await?);
    Ok(())
}
