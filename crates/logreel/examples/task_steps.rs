//! Steps in Rust: a workflow whose steps are functions that this program registers. Kill it when you
//! like and start it again: it goes on, and the write happens once.
//!
//!     cargo run -p logreel --example task_steps -- FOLDER

use std::future::ready;
use std::path::{Path, PathBuf};

use logreel::workflow::{Format, Workflow};
use logreel::{Ctx, Digest, Engine, Outcome, Reconciled, TaskError};

const SPEC: &str = r#"
name = "greetings"
[[step]]
id = "count"
task = "count"
map = "{{ input }}"
map_key = "{{ item }}"
input = "{{ item }}"
[[step]]
id = "publish"
needs = ["count"]
task = "publish"
input = "{{ steps.count.output }}"
"#;

/// Notes a line in a file that nothing else writes.
fn note(file: &Path, line: &str) -> std::io::Result<()> {
    let mut file = std::fs::File::options()
        .create(true)
        .append(true)
        .open(file)?;
    std::io::Write::write_all(&mut file, format!("{line}\n").as_bytes())
}

/// Starts the run, or goes on with it, and gives what it ended with.
pub async fn work(folder: PathBuf) -> Result<String, Box<dyn std::error::Error>> {
    let engine = Engine::open(folder.join("runs.db")).await?;
    let (counted, published) = (folder.join("counted"), folder.join("published"));
    engine.task("count", move |ctx: Ctx, name: String| {
        let file = counted.clone();
        async move {
            note(&file, &name)?;
            let len = || async { Ok::<_, TaskError>(name.len()) };
            ctx.step("length").run(len).await
        }
    });
    engine.task("publish", move |ctx: Ctx, counts: Vec<usize>| {
        let (file, sum) = (published.clone(), counts.iter().sum::<usize>());
        async move {
            // Whether it happened, by its key.
            let find = |key: Digest| {
                let text = std::fs::read_to_string(&file).unwrap_or_default();
                let found = match text.contains(&key.to_string()) {
                    true => Reconciled::Done(sum),
                    false => Reconciled::NotDone,
                };
                ready(Ok::<_, TaskError>(found))
            };
            let send = |key: Digest| ready(note(&file, &key.to_string()).map(|()| sum));
            let write = ctx.write_step("send").reconcile(find);
            write.run(send).await
        }
    });
    let workflow = Workflow::parse(SPEC, Format::Toml, "task_steps.toml")?;
    let start = engine.workflow(&workflow).start(&["ada", "grace", "alan"]);
    let outcome = start.key("greetings").await?.wait().await?;
    engine.close().await?;
    match outcome {
        Outcome::Completed(output) => Ok(output.to_value().to_string()),
        other => Err(format!("it ended otherwise: {other:?}").into()),
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("name a folder")?;
    Ok(println!("{}", work(folder.into()).await?))
}
