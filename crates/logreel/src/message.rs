//! Messages: nodes of the run's context, each a blob that names the one before it.

use logreel_core::event::MessageAdded;
use logreel_core::{Blob, Digest, Json};
use serde::Serialize;

use crate::ctx::Ctx;
use crate::error::TaskError;

/// A context node as stored: fields in alphabetical order, like every body.
#[derive(Serialize)]
struct Node<'a> {
    message: Message<'a>,
    previous: Option<Digest>,
}

#[derive(Serialize)]
struct Message<'a> {
    content: &'a Json,
    role: &'a str,
}

/// Adds a message after what this execution has said so far. A node covers everything before it, so
/// a message that the log has already, in the same place, is known by its digest.
pub(crate) async fn add<T: Serialize + ?Sized>(
    ctx: &Ctx,
    role: String,
    content: &T,
) -> Result<Digest, TaskError> {
    let content = Json::of(content)?;
    let length = content.text().len() as u64;
    let mut blob = None;
    let (previous, node, new) = ctx.0.next_node(|previous| {
        let node = Node {
            message: Message {
                content: &content,
                role: &role,
            },
            previous,
        };
        let text = serde_json::to_string(&node).expect("a checked JSON text and two strings");
        let stored = Blob::new(text.into_bytes());
        let digest = stored.digest();
        blob = Some(stored);
        digest
    });
    if new {
        let added = MessageAdded {
            length,
            node,
            previous,
            queued: None,
            redacted: 0,
            role,
        };
        ctx.0
            .record(added.into(), blob.into_iter().collect())
            .await?;
    }
    Ok(node)
}
