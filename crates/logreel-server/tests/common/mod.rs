//! A server that listens, and a client that holds every answer against the description.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use jsonschema::Validator;
use logreel::store::SystemEnv;
use logreel::{Ctx, Engine, Entry, Env as _, LiveText, RunId, Shown, TaskError};
use logreel_server::{Hosts, Server, listen, openapi};
use reqwest::Method;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// What was answered.
pub struct Said {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub text: String,
}

impl Said {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|_| panic!("{}", self.text))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |it| it.to_str().unwrap())
    }
}

/// A server at work.
pub struct Site {
    pub engine: Engine,
    pub url: String,
    pub client: reqwest::Client,
    schemas: Mutex<BTreeMap<String, Validator>>,
    document: Value,
    /// Operations and the statuses that they answered.
    pub seen: Mutex<BTreeSet<(String, u16)>>,
    stop: Option<oneshot::Sender<()>>,
    serving: Option<JoinHandle<()>>,
    pub folder: TempDir,
}

impl Site {
    /// On a store in memory.
    pub async fn in_memory() -> Self {
        Self::on(Engine::memory().await.unwrap(), |server| server).await
    }

    /// On a SQLite file.
    pub async fn on_disk() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::open(folder.path().join("runs.db")).await.unwrap();
        let mut site = Self::on(engine, |server| server).await;
        site.folder = folder;
        site
    }

    pub async fn on(engine: Engine, with: impl FnOnce(Server) -> Server) -> Self {
        // The client asks for one, though nothing here is encrypted. Another test may have been first.
        rustls::crypto::ring::default_provider()
            .install_default()
            .unwrap_or_default();
        register(&engine);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = with(Server::new(&engine).hosts(Hosts::At(address)));
        let (stop, stopped) = oneshot::channel();
        let served = engine.clone();
        let serving = tokio::spawn(async move {
            let stopped = async { stopped.await.unwrap_or_default() };
            listen(&server, &served, listener, stopped).await;
        });
        Self {
            engine,
            url: format!("http://{address}"),
            client: reqwest::Client::builder().no_proxy().build().unwrap(),
            schemas: Mutex::default(),
            document: openapi::document(),
            seen: Mutex::default(),
            stop: Some(stop),
            serving: Some(serving),
            folder: tempfile::tempdir().unwrap(),
        }
    }

    /// Stops listening, and waits until it has.
    pub async fn stop(&mut self) {
        drop(self.stop.take());
        if let Some(serving) = self.serving.take() {
            serving.await.unwrap();
        }
    }

    pub fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.client.request(method, format!("{}{path}", self.url))
    }

    pub async fn get(&self, path: &str) -> Said {
        self.send(Method::GET, path, &[], None).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Said {
        self.send(Method::POST, path, &[], Some(body)).await
    }

    /// Sends a request and holds the answer against the description.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<Value>,
    ) -> Said {
        let mut request = self.request(method.clone(), path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(body) = body {
            request = request.json(&body);
        }
        self.checked(method, path, request).await
    }

    pub async fn checked(
        &self,
        method: Method,
        path: &str,
        request: reqwest::RequestBuilder,
    ) -> Said {
        let response = request.send().await.unwrap();
        let said = Said {
            status: response.status().as_u16(),
            headers: response.headers().clone(),
            text: response.text().await.unwrap(),
        };
        self.check(&method, path, &said);
        said
    }

    fn check(&self, method: &Method, path: &str, said: &Said) {
        let path = path.split('?').next().unwrap();
        let shown = format!("{method} {path} -> {} {}", said.status, said.text);
        assert!(!said.header("x-request-id").is_empty(), "{shown}");
        assert_eq!(said.header("x-content-type-options"), "nosniff", "{shown}");
        assert!(
            !said.header("content-security-policy").is_empty(),
            "{shown}"
        );
        let Some(operation) = self.operation(method, path) else {
            assert!(matches!(said.status, 404 | 405), "{shown}");
            assert!(self.fits("Problem", &said.json()), "{shown}");
            return;
        };
        let id = operation["operationId"].as_str().unwrap().to_owned();
        self.seen.lock().unwrap().insert((id, said.status));
        let response = &operation["responses"][said.status.to_string()];
        assert!(response.is_object(), "not described: {shown}");
        let media_type = said.header("content-type").split(';').next().unwrap();
        if said.text.is_empty() && media_type.is_empty() {
            assert!(response.get("content").is_none(), "{shown}");
            return;
        }
        let schema = &response["content"][media_type]["schema"]["$ref"];
        let schema = schema.as_str();
        let schema = schema.unwrap_or_else(|| panic!("{media_type} is not described: {shown}"));
        if media_type.ends_with("json") {
            let name = schema.rsplit('/').next().unwrap();
            assert!(self.fits(name, &said.json()), "not a {name}: {shown}");
        }
    }

    fn operation(&self, method: &Method, path: &str) -> Option<&Value> {
        let paths = self.document["paths"].as_object().unwrap();
        let fits = |template: &str| {
            let (a, b): (Vec<_>, Vec<_>) =
                (template.split('/').collect(), path.split('/').collect());
            let same = |(a, b): (&&str, &&str)| a.starts_with('{') || a == b;
            a.len() == b.len() && a.iter().zip(&b).all(same)
        };
        let found = paths.iter().find(|(template, _)| fits(template))?.1;
        found.get(method.as_str().to_ascii_lowercase())
    }

    pub fn fits(&self, schema: &str, value: &Value) -> bool {
        let mut schemas = self.schemas.lock().unwrap();
        let validator = schemas.entry(schema.to_owned()).or_insert_with(|| {
            let whole = json!({
                "$ref": format!("#/components/schemas/{schema}"),
                "components": self.document["components"],
            });
            jsonschema::validator_for(&whole).unwrap()
        });
        for error in validator.iter_errors(value) {
            eprintln!("{schema}: {error} at {}", error.instance_path());
        }
        validator.is_valid(value)
    }

    /// Waits until the run is as asked.
    pub async fn until(&self, run: &str, holds: impl Fn(&Entry) -> bool) {
        let run: RunId = run.parse().unwrap();
        let mut bell = self.engine.store().watch(&run);
        while !holds(&self.engine.store().entry(&run).await.unwrap()) {
            assert!(bell.rung().await);
        }
    }

    /// Starts a run over HTTP; its id.
    pub async fn start(&self, spec: &str, input: Value) -> String {
        let said = self
            .post("/v1/runs", json!({"spec": spec, "input": input}))
            .await;
        assert_eq!(said.status, 201, "{}", said.text);
        said.json()["id"].as_str().unwrap().to_owned()
    }
}

/// A stream of events as it comes in.
pub struct Stream {
    response: reqwest::Response,
    text: String,
}

/// One block of a stream.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct Block {
    pub id: Option<String>,
    pub event: Option<String>,
    pub data: String,
}

impl Stream {
    pub async fn open(request: reqwest::RequestBuilder) -> Self {
        let response = request
            .header("accept", "text/event-stream")
            .send()
            .await
            .unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self {
            response,
            text: String::new(),
        }
    }

    /// The next block that says something; `None` at the end.
    pub async fn next(&mut self) -> Option<Block> {
        loop {
            if let Some((block, rest)) = self.text.split_once("\n\n") {
                let mut read = Block::default();
                for line in block.lines() {
                    match line.split_once(": ") {
                        Some(("id", id)) => read.id = Some(id.to_owned()),
                        Some(("event", event)) => read.event = Some(event.to_owned()),
                        Some(("data", data)) => read.data.push_str(data),
                        _ => {}
                    }
                }
                self.text = rest.to_owned();
                if read != Block::default() {
                    return Some(read);
                }
                continue;
            }
            let piece = self.response.chunk().await.unwrap()?;
            self.text.push_str(std::str::from_utf8(&piece).unwrap());
        }
    }

    /// The ids of all that still comes.
    pub async fn ids(&mut self) -> Vec<u64> {
        let mut ids = Vec::new();
        while let Some(block) = self.next().await {
            ids.extend(block.id.map(|id| id.parse::<u64>().unwrap()));
        }
        ids
    }
}

/// An agent that begins to talk and waits to be told to go on.
struct Talker;

impl logreel::Agents for Talker {
    fn load(&self, _: &std::path::Path) -> Result<Value, logreel::spec_file::Problems> {
        Ok(Value::Null)
    }

    fn lacks(&self, _: &Value) -> Option<String> {
        None
    }

    fn misfit(&self, _: &Value, input: &Value) -> Option<String> {
        (!input.is_string()).then(|| "it is not a text".to_owned())
    }

    fn budget(&self, _: &Value) -> logreel::core::event::Budget {
        logreel::core::event::Budget::default()
    }

    fn plans(&self, _: &Value) -> bool {
        false
    }

    fn drive(&self, ctx: Ctx, _: Arc<Value>, input: logreel::Json) -> logreel::Driving {
        Box::pin(async move {
            let show = |shown: Shown| {
                let call = logreel::core::CallId::new("c1").unwrap();
                let (run, attempt) = (ctx.run_id(), 1);
                ctx.log().show(LiveText {
                    run,
                    call,
                    attempt,
                    shown,
                });
            };
            ctx.signal("talk").await?;
            show(Shown::Reset);
            show(Shown::Text("so to ".into()));
            show(Shown::Text("say".into()));
            ctx.approval("go on?").await?;
            Ok(input)
        })
    }
}

/// Tasks of every sort of end.
fn register(engine: &Engine) {
    engine.drive_agents(Arc::new(Talker));
    engine.task("double", |ctx: Ctx, n: u64| async move {
        let doubled = ctx.step("multiply").input(&n);
        doubled.run(|| async { Ok::<_, TaskError>(2 * n) }).await
    });
    engine.task("ask", |ctx: Ctx, what: String| async move {
        let answer = ctx.approval(what).await?;
        Ok(answer.approved)
    });
    engine.task("listen", |ctx: Ctx, name: String| async move {
        let value: logreel::Json = ctx.signal(&*name).await?;
        Ok(value)
    });
    engine.task("fail", |ctx: Ctx, why: String| async move {
        let step = ctx
            .step("try")
            .run(|| async { Err::<(), _>(TaskError::new(why.clone()).permanent()) });
        step.await
    });
    let asked: logreel::Task<String, bool> =
        engine.task("asked", |ctx: Ctx, what: String| async move {
            let answer = ctx.approval(what).await?;
            Ok(answer.approved)
        });
    engine.task("ask twice", move |ctx: Ctx, (): ()| {
        let asked = asked.clone();
        async move {
            ctx.child("first", &asked, &"one?".to_owned()).await?;
            ctx.child("second", &asked, &"two?".to_owned()).await
        }
    });
    engine.task("heavy", |ctx: Ctx, bytes: usize| async move {
        ctx.set_state(&json!({"text": "x".repeat(bytes)})).await?;
        Ok(bytes)
    });
    engine.task("large", |_: Ctx, bytes: usize| async move {
        Ok("x".repeat(bytes))
    });
    engine.task("count", |ctx: Ctx, to: u64| async move {
        for n in 1..=to {
            ctx.step(("n", n))
                .run(|| async { Ok::<_, TaskError>(n) })
                .await?;
        }
        Ok(to)
    });
    engine.task("pages", |ctx: Ctx, to: u64| async move {
        for n in 1..=to {
            let page = ctx.step(("page", n));
            page.run(|| async { Ok::<_, TaskError>("x".repeat(30_000)) })
                .await?;
        }
        Ok(to)
    });
    engine.task("doubt", |ctx: Ctx, (): ()| async move {
        let write = ctx
            .write_step("publish")
            .timeout(std::time::Duration::from_millis(1));
        write
            .run(|_key| async {
                SystemEnv.sleep(std::time::Duration::from_secs(60)).await;
                Ok::<_, TaskError>(1)
            })
            .await
    });
}
