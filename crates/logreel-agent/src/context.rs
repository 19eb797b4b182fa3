//! The conversation: a chain of nodes, each a message and the digest of the node before it.

use std::sync::Arc;

use logreel::core::Blob;
use logreel::core::event::MessageAdded;
use logreel::{Digest, Log, Seq, TaskError};
use serde::{Deserialize, Serialize};

use crate::message::Message;

/// A node as stored: fields in alphabetical order, like every body.
#[derive(Serialize, Deserialize)]
struct Node<M> {
    message: M,
    previous: Option<Digest>,
}

/// A message about to join a context: its event and its node.
pub(crate) struct Addition {
    pub(crate) event: MessageAdded,
    pub(crate) blob: Blob,
    message: Arc<Message>,
}

/// The messages a model is shown, and the node they end with.
#[derive(Debug, Clone, Default)]
pub(crate) struct Context {
    head: Option<Digest>,
    messages: Vec<Arc<Message>>,
    length: u64,
}

impl Context {
    /// Reads the chain that ends with this node.
    pub(crate) async fn load(log: &Log<'_>, head: Option<Digest>) -> Result<Self, TaskError> {
        let mut messages = Vec::new();
        let mut next = head;
        while let Some(digest) = next {
            let broken = |why: &str| {
                TaskError::of_kind("corrupt", format!("context node {digest} {why}")).permanent()
            };
            let bytes = log.blob(&digest).await?;
            let bytes = bytes.ok_or_else(|| broken("is missing"))?;
            let node: Node<Message> = serde_json::from_slice(&bytes)
                .map_err(|error| broken(&format!("is no message of an agent: {error}")))?;
            messages.push(Arc::new(node.message));
            next = node.previous;
        }
        messages.reverse();
        let length = messages.iter().map(|it: &Arc<Message>| it.length()).sum();
        Ok(Self {
            head,
            messages,
            length,
        })
    }

    /// The node it ends with.
    pub(crate) fn head(&self) -> Option<Digest> {
        self.head
    }

    /// Its messages, oldest first.
    pub(crate) fn messages(&self) -> &[Arc<Message>] {
        &self.messages
    }

    /// Its last message.
    pub(crate) fn last(&self) -> Option<&Arc<Message>> {
        self.messages.last()
    }

    /// The bytes of its messages.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// The message is recorded.
    pub(crate) fn push(&mut self, addition: Addition) {
        self.head = Some(addition.event.node);
        self.length += addition.event.length;
        self.messages.push(addition.message);
    }

    /// The context goes on from a chain of its own, which begins with this message.
    pub(crate) fn restart(&mut self, addition: Addition) {
        *self = Self::default();
        self.push(addition);
    }
}

impl Addition {
    /// A message after this node.
    pub(crate) fn after(
        previous: Option<Digest>,
        message: Message,
        queued: Option<Seq>,
        redacted: u32,
    ) -> Self {
        let node = Node {
            message: &message,
            previous,
        };
        let text = serde_json::to_string(&node).expect("messages are text and checked JSON");
        let blob = Blob::new(text.into_bytes());
        let length = message.length();
        let event = MessageAdded {
            length,
            node: blob.digest(),
            previous,
            queued,
            redacted,
            role: message.role.as_str().to_owned(),
        };
        Self {
            event,
            blob,
            message: Arc::new(message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Role;

    #[test]
    fn a_node_covers_everything_before_it() {
        let mut one = Context::default();
        let mut other = Context::default();
        let say = |context: &mut Context, text| {
            let message = Message::text(Role::User, text);
            context.push(Addition::after(context.head(), message, None, 0));
        };
        say(&mut one, "a");
        say(&mut other, "b");
        assert_ne!(one.head(), other.head());
        say(&mut one, "c");
        say(&mut other, "c");
        assert_ne!(one.head(), other.head());
        assert_eq!(one.messages().len(), 2);
    }
}
