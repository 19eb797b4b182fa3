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
        Ok(Self { head, messages })
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

    /// What the log must hold for the message to follow. It joins with [`Context::push`], once that is
    /// recorded.
    pub(crate) fn addition(&self, message: Message, queued: Option<Seq>, redacted: u32) -> Addition {
        Addition::after(self.head, message, queued, redacted)
    }

    /// The message is recorded.
    pub(crate) fn push(&mut self, addition: Addition) {
        self.head = Some(addition.event.node);
        self.messages.push(addition.message);
    }

    /// The context goes on from a chain of its own, which begins with this message.
    pub(crate) fn restart(&mut self, addition: Addition) {
        self.messages.clear();
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
        one.push(one.addition(Message::text(Role::User, "a"), None, 0));
        other.push(other.addition(Message::text(Role::User, "b"), None, 0));
        assert_ne!(one.head(), other.head());
        one.push(one.addition(Message::text(Role::User, "c"), None, 0));
        other.push(other.addition(Message::text(Role::User, "c"), None, 0));
        assert_ne!(one.head(), other.head());
        assert_eq!(one.messages().len(), 2);
    }
}
