//! Hello, run: three steps at once, a fourth that needs them, and the log that remembers it all.
//!
//! Give it a store of its own and run it twice: the second time nothing is computed again.
//!
//!     cargo run -p logreel --example hello .logreel/runs.db

use logreel::{Body, Ctx, Engine, Outcome, Seq, TaskError};

const POEM: [&str; 3] = [
    "Kill the process in the night,",
    "start it in the morning light:",
    "what was done is done all right.",
];

fn count(line: &str) -> usize {
    println!("  counting: {line}");
    line.split_whitespace().count()
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let given = std::env::args().nth(1);
    let path = given.map_or_else(|| folder.path().join("runs.db"), Into::into);
    let engine = Engine::open(&path).await?;

    // A task is a function whose steps are recorded.
    let words = engine.task("words", |ctx: Ctx, lines: Vec<String>| async move {
        let counts = lines.iter().enumerate().map(|(n, line)| {
            let step = ctx.step(("line", n + 1)).input(line);
            step.run(move || async move { Ok::<_, TaskError>(count(line)) })
        });
        let counts = ctx.all(counts).await?; // in parallel; results come in input order
        let sum = || async { Ok::<_, TaskError>(counts.iter().sum::<usize>()) };
        ctx.step("sum").input(&counts).run(sum).await
    });

    // The key makes it one run, however often it is started.
    let poem = POEM.map(String::from).into();
    let run = words.start(&poem).key("poem").await?;
    println!("{} works:", run.id());
    match run.wait().await? {
        Outcome::Completed(sum) => println!("  done: the poem has {sum} words\n"),
        other => println!("  it ended otherwise: {other:?}\n"),
    }

    println!("Its log in {}:", path.display());
    let mut events = run.events(Seq::FIRST);
    while let Some(event) = events.next().await {
        let event = event?;
        let about = match &event.body {
            Body::StepFinished(step) => format!("{} = {}", step.step, step.output.to_json()),
            Body::RunCompleted(end) => format!("output {}", end.output.to_json()),
            _ => String::new(),
        };
        println!("  {:>2}  {:<14} {about}", event.seq, event.body.kind());
    }
    Ok(engine.close().await?)
}
