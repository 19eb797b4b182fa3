//! What a client of AG-UI 1.0 does with what it is sent: the rules of `verifyEvents` of `@ag-ui/client`, which
//! refuses a stream that breaks one, and its reducer.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::sent::Sent;

#[derive(Debug, Clone, Default)]
pub(crate) struct Client {
    pub(crate) state: Value,
    pub(crate) messages: Vec<Value>,
    /// What is open: a kind and an id.
    open: BTreeSet<(&'static str, String)>,
    gone: BTreeSet<String>,
    runs: bool,
    pub(crate) ended: Option<Value>,
}

/// Messages by their ids, but for reasoning.
pub(crate) fn by_id(messages: &[Value]) -> BTreeMap<String, Value> {
    let messages = messages.iter().filter(|it| it["role"] != "reasoning");
    messages
        .map(|it| (it["id"].as_str().unwrap().to_owned(), it.clone()))
        .collect()
}

impl Client {
    pub(crate) fn having(messages: Vec<Value>) -> Self {
        Self {
            messages,
            ..Self::default()
        }
    }

    /// The same client after its connection was lost.
    pub(crate) fn again(&self) -> Self {
        Self {
            state: self.state.clone(),
            ..Self::having(self.messages.clone())
        }
    }

    /// Its messages by their ids, but for reasoning, which is shown live only. What is shown live stands where
    /// it began, not where it was sealed.
    pub(crate) fn conversation(&self) -> BTreeMap<String, Value> {
        by_id(&self.messages)
    }

    pub(crate) fn take_all(&mut self, sent: &[Sent]) {
        for event in sent {
            let frame = event.frame();
            let json = frame.strip_prefix("data: ").unwrap();
            let event: Value = serde_json::from_str(json).unwrap();
            if let Err(why) = self.take(&event) {
                panic!("{why}: {event}\nin {sent:#?}\nopen: {:?}", self.open);
            }
        }
    }

    fn take(&mut self, event: &Value) -> Result<(), String> {
        let kind = event["type"].as_str().ok_or("no type")?;
        let text = |name: &str| {
            let value = event[name].as_str().map(str::to_owned);
            value.ok_or(format!("no {name}"))
        };
        for (name, value) in event.as_object().ok_or("no object")? {
            if value.is_null() && !matches!(&**name, "snapshot" | "value") {
                return Err(format!("{name} is null"));
            }
        }
        if self.ended.is_some() || (kind == "RUN_STARTED") == self.runs {
            return Err("outside of a run".to_owned());
        }
        match kind {
            "RUN_STARTED" => {
                text("threadId")?;
                text("runId")?;
                self.runs = true;
            }
            "RUN_FINISHED" if !self.open.is_empty() => return Err("something is open".to_owned()),
            "RUN_FINISHED" => {
                let outcome = &event["outcome"];
                let interrupts = outcome["interrupts"].as_array().map_or(0, Vec::len);
                if (outcome["type"] == "interrupt") != (interrupts > 0) {
                    return Err("an interrupt has interrupts".to_owned());
                }
                self.ended = Some(event.clone());
            }
            "RUN_ERROR" => {
                text("message")?;
                self.ended = Some(event.clone());
                if !self.open.is_empty() {
                    return Err("something is open".to_owned());
                }
            }
            "STEP_STARTED" => self.opens("step", text("stepName")?)?,
            "STEP_FINISHED" => self.closes("step", text("stepName")?)?,
            "SUBAGENT_STARTED" => {
                text("name")?;
                let id = text("subagentRunId")?;
                if self.gone.contains(&id) {
                    return Err("a subagent begins twice".to_owned());
                }
                self.opens("subagent", id)?;
            }
            "SUBAGENT_FINISHED" | "SUBAGENT_ERROR" => {
                let id = text("subagentRunId")?;
                self.closes("subagent", id.clone())?;
                self.gone.insert(id);
            }
            "TEXT_MESSAGE_START" => {
                let id = text("messageId")?;
                self.opens("text", id.clone())?;
                let message = json!({"id": id, "role": text("role")?, "content": ""});
                self.add(&id, message);
            }
            "TEXT_MESSAGE_CONTENT" => {
                let id = text("messageId")?;
                self.is_open("text", &id)?;
                self.append(&id, &text("delta")?)?;
            }
            "TEXT_MESSAGE_END" => self.closes("text", text("messageId")?)?,
            "REASONING_START" => self.opens("reasoning", text("messageId")?)?,
            "REASONING_MESSAGE_START" => {
                let id = text("messageId")?;
                self.opens("thought", id.clone())?;
                let message = json!({"id": id, "role": text("role")?, "content": ""});
                self.add(&id, message);
            }
            "REASONING_MESSAGE_CONTENT" => {
                let id = text("messageId")?;
                self.is_open("thought", &id)?;
                self.append(&id, &text("delta")?)?;
            }
            "REASONING_MESSAGE_END" => self.closes("thought", text("messageId")?)?,
            "REASONING_END" => self.closes("reasoning", text("messageId")?)?,
            "TOOL_CALL_START" => self.tool_call(text("toolCallId")?, event)?,
            "TOOL_CALL_ARGS" => {
                let id = text("toolCallId")?;
                self.is_open("tool", &id)?;
                let call = self.call(&id).ok_or("no such call")?;
                let arguments = &mut call["function"]["arguments"];
                *arguments = json!(arguments.as_str().unwrap().to_owned() + &text("delta")?);
            }
            "TOOL_CALL_END" => self.closes("tool", text("toolCallId")?)?,
            "TOOL_CALL_RESULT" => {
                let (id, call) = (text("messageId")?, text("toolCallId")?);
                let content = text("content")?;
                self.result(&id, &call, &content);
            }
            "STATE_SNAPSHOT" => self.state = event["snapshot"].clone(),
            "STATE_DELTA" => {
                let patch: json_patch::Patch =
                    serde_json::from_value(event["delta"].clone()).map_err(|it| it.to_string())?;
                json_patch::patch(&mut self.state, &patch).map_err(|it| it.to_string())?;
            }
            "MESSAGES_SNAPSHOT" => self.replace(event["messages"].as_array().ok_or("none")?),
            "CUSTOM" => {
                text("name")?;
            }
            other => return Err(format!("nobody knows {other}")),
        }
        Ok(())
    }

    fn opens(&mut self, kind: &'static str, id: String) -> Result<(), String> {
        match self.open.insert((kind, id)) {
            true => Ok(()),
            false => Err("it is open".to_owned()),
        }
    }

    fn closes(&mut self, kind: &'static str, id: String) -> Result<(), String> {
        match self.open.remove(&(kind, id)) {
            true => Ok(()),
            false => Err("it is not open".to_owned()),
        }
    }

    fn is_open(&self, kind: &'static str, id: &str) -> Result<(), String> {
        match self.open.contains(&(kind, id.to_owned())) {
            true => Ok(()),
            false => Err("it is not open".to_owned()),
        }
    }

    fn find(&mut self, id: &str) -> Option<&mut Value> {
        self.messages.iter_mut().find(|it| it["id"] == id)
    }

    fn add(&mut self, id: &str, message: Value) {
        if self.find(id).is_none() {
            self.messages.push(message);
        }
    }

    fn append(&mut self, id: &str, delta: &str) -> Result<(), String> {
        let message = self.find(id).ok_or("no such message")?;
        let content = message["content"].as_str().unwrap_or_default();
        message["content"] = json!(content.to_owned() + delta);
        Ok(())
    }

    fn call(&mut self, id: &str) -> Option<&mut Value> {
        let calls = self.messages.iter_mut();
        let mut calls = calls.filter_map(|it| it.get_mut("toolCalls")?.as_array_mut());
        calls.find_map(|calls| calls.iter_mut().find(|it| it["id"] == id))
    }

    fn tool_call(&mut self, id: String, event: &Value) -> Result<(), String> {
        self.opens("tool", id.clone())?;
        if self.call(&id).is_some() {
            return Err("such a call is there".to_owned());
        }
        let owner = event["parentMessageId"].as_str().unwrap_or(&id).to_owned();
        self.add(&owner, json!({"id": owner, "role": "assistant"}));
        let owner = self.find(&owner).ok_or("no owner")?;
        if owner["role"] != "assistant" {
            return Err("it is a call of someone else".to_owned());
        }
        if owner.get("toolCalls").is_none() {
            owner["toolCalls"] = json!([]);
        }
        let name = event["toolCallName"].as_str().ok_or("no name")?;
        owner["toolCalls"].as_array_mut().unwrap().push(json!({
            "id": id, "type": "function", "function": {"name": name, "arguments": ""},
        }));
        Ok(())
    }

    fn result(&mut self, id: &str, call: &str, content: &str) {
        let makes_it = |message: &Value| {
            let calls = message["toolCalls"].as_array();
            calls.is_some_and(|calls| calls.iter().any(|it| it["id"] == call))
        };
        let mut place = self.messages.len();
        if let Some(owner) = self.messages.iter().position(makes_it) {
            place = owner + 1;
            while self
                .messages
                .get(place)
                .is_some_and(|it| it["role"] == "tool")
            {
                place += 1;
            }
        }
        let message = json!({"id": id, "role": "tool", "toolCallId": call, "content": content});
        self.messages.insert(place, message);
    }

    fn replace(&mut self, new: &[Value]) {
        let is_new = |message: &Value| new.iter().find(|it| it["id"] == message["id"]).cloned();
        let keeps_reasoning = !new.iter().any(|it| it["role"] == "reasoning");
        let kept = self.messages.drain(..).filter_map(|message| {
            let stays =
                (keeps_reasoning && message["role"] == "reasoning").then(|| message.clone());
            is_new(&message).or(stays)
        });
        self.messages = kept.collect();
        for message in new {
            if !self.messages.iter().any(|it| it["id"] == message["id"]) {
                self.messages.push(message.clone());
            }
        }
    }
}
