//! A run as a file.

use std::io::{Seek as _, SeekFrom, Write as _};

use axum::body::Body;
use axum::http::{HeaderValue, header};
use bytes::Bytes;
use futures_util::stream;
use logreel::otlp::Trace;
use logreel::{ErrorKind, RunId};
use tokio::io::AsyncReadExt as _;

use crate::Problem;
use crate::answer;
use crate::call::Call;
use crate::operation::Answered;

/// Bytes that are sent at a time.
const PIECE: usize = 64 * 1024;

#[derive(Clone, Copy)]
enum Format {
    Jsonl,
    Reel,
    Otlp { content: bool },
    Checkpoint,
}

impl Format {
    fn media_type(self) -> &'static str {
        match self {
            Self::Jsonl => "application/jsonl",
            Self::Reel => "application/octet-stream",
            Self::Otlp { .. } => "application/x-protobuf",
            Self::Checkpoint => "application/json",
        }
    }

    fn name(self, run: &RunId) -> String {
        match self {
            Self::Jsonl => format!("{run}.jsonl"),
            Self::Reel => format!("{run}.reel"),
            Self::Otlp { .. } => format!("{run}.otlp.pb"),
            Self::Checkpoint => format!("{run}.checkpoint.json"),
        }
    }
}

/// `GET /v1/runs/{id}/export`
pub(crate) async fn run(call: Call) -> Answered {
    let content = call.flag("content")?;
    let format = match call.query("format") {
        None | Some("jsonl") => Format::Jsonl,
        Some("reel") => Format::Reel,
        Some("otlp") => Format::Otlp {
            content: content.unwrap_or(false),
        },
        Some("checkpoint") => Format::Checkpoint,
        Some(other) => {
            let detail = format!("`format` is {other:?}; expected jsonl, reel, otlp or checkpoint");
            return Err(Problem::usage(detail));
        }
    };
    if content.is_some() && !matches!(format, Format::Otlp { .. }) {
        return Err(Problem::usage(
            "`content` is for `format=otlp`; the others have all of it",
        ));
    }
    let run = call.run().await?;
    let engine = &call.app.engine;
    // Into a file first: half of an export that fails must not look like a whole one.
    let mut file = tempfile::tempfile().map_err(|error| on_disk(&error))?;
    match format {
        Format::Jsonl => drop(engine.export_jsonl(&run, &mut file).await?),
        Format::Reel => drop(engine.export_reel(&run, &mut file).await?),
        Format::Otlp { content } => {
            let (store, resource) = (&**engine.store(), call.app.resource.clone());
            let mut trace = Trace::new(store, run, resource, content).await?;
            while let Some(bytes) = trace.next().await? {
                file.write_all(&bytes).map_err(|error| on_disk(&error))?;
            }
        }
        Format::Checkpoint => {
            let text = engine.checkpoint(&run).await?.write();
            let text = text.map_err(|error| Problem::new(ErrorKind::Bug, error.to_string()))?;
            writeln!(file, "{text}").map_err(|error| on_disk(&error))?;
        }
    }
    let length = file.stream_position().map_err(|error| on_disk(&error))?;
    file.seek(SeekFrom::Start(0))
        .map_err(|error| on_disk(&error))?;
    let pieces = stream::try_unfold(tokio::fs::File::from_std(file), |mut file| async move {
        let mut piece = vec![0; PIECE];
        let read = file.read(&mut piece).await?;
        piece.truncate(read);
        Ok::<_, std::io::Error>((read > 0).then(|| (Bytes::from(piece), file)))
    });
    let mut response = answer::of_type(format.media_type(), Body::from_stream(pieces));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    let name = format!("attachment; filename=\"{}\"", format.name(&run));
    let name = HeaderValue::from_str(&name).expect("an id is ASCII");
    headers.insert(header::CONTENT_DISPOSITION, name);
    Ok(response)
}

fn on_disk(error: &std::io::Error) -> Problem {
    let detail = format!("there is no room for the export: {error}");
    Problem::new(ErrorKind::Unavailable, detail)
}
