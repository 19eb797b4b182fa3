//! Live stream with cancel: watch a run as it works, and stop it when you have seen enough.
//!
//!     cargo run -p logreel --example live_stream

use std::time::Duration;

use logreel::{Body, Ctx, Engine, Outcome, Seq, TaskError};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let given = std::env::args().nth(1);
    let path = given.map_or_else(|| folder.path().join("runs.db"), Into::into);
    let engine = Engine::open(path).await?;

    let pages = engine.task("pages", |ctx: Ctx, book: String| async move {
        let mut pace = tokio::time::interval(Duration::from_millis(150));
        for page in 1..=1000 {
            pace.tick().await;
            let read = || async { Ok::<_, TaskError>(format!("{book}, page {page}")) };
            ctx.step(("read", page)).run(read).await?;
        }
        Ok("the whole book".to_owned())
    });
    let run = pages.start(&"The Log".to_owned()).await?;

    // First what is in the log, then what comes, without a gap, up to the run's end.
    let mut events = run.events(Seq::FIRST);
    let mut pages_read = 0;
    while let Some(event) = events.next().await {
        let event = event?;
        let about = match &event.body {
            Body::StepFinished(step) => step.output.to_json().to_string(),
            Body::RunCancelled(end) => end.reason.clone().unwrap_or_default(),
            _ => String::new(),
        };
        println!(
            "{}  {:>2}  {:<14} {about}",
            event.at,
            event.seq,
            event.body.kind()
        );
        if let Body::StepFinished(_) = event.body {
            pages_read += 1;
        }
        if pages_read == 3 {
            pages_read = 0;
            let answer = run.cancel("three pages are enough").await?;
            println!("{:>30}  cancel: {answer:?}", "");
        }
    }

    match run.wait().await? {
        Outcome::Cancelled(why) => println!("Cancelled: {}.", why.unwrap_or_default()),
        Outcome::Completed(text) => println!("Completed: {text}."),
        Outcome::Failed(cause) => println!("Failed: {}.", cause.message),
    }
    Ok(engine.close().await?)
}
