//! What `serve` starts: spec files of a folder by their names, and specs that come with a request.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use async_trait::async_trait;
use logreel::{Error, ErrorKind, RunId};
use logreel_agent::{Overrides, SpecKind};
use logreel_server::{Begun, NewRun, Problem, Spec as Listed, Specs, What};
use serde_json::Value;

use crate::changed::{self, Said};
use crate::error::{Failure, failure_of};
use crate::launch::{self, Asked, Launch};
use crate::spec::{self, Spec};
use crate::store::Acting;
use crate::{retry, settle};

pub struct Served {
    acting: Arc<Acting>,
    specs: Option<PathBuf>,
    /// Where agents work, and workflows that have no file.
    here: PathBuf,
}

/// A spec file and what it is called.
struct Named {
    name: String,
    path: PathBuf,
}

impl Served {
    pub fn new(acting: Acting, specs: Option<PathBuf>, here: PathBuf) -> Self {
        Self {
            acting: Arc::new(acting),
            specs,
            here,
        }
    }

    /// The spec files, by name: without its ending, unless two differ in nothing else.
    fn named(&self) -> anyhow::Result<Vec<Named>> {
        let Some(folder) = &self.specs else {
            return Ok(Vec::new());
        };
        let mut paths = Vec::new();
        let entries = std::fs::read_dir(folder);
        let unreadable = || format!("{} cannot be read", folder.display());
        for entry in entries.with_context(unreadable)? {
            let path = entry.with_context(unreadable)?.path();
            if is_spec(&path) {
                paths.push(path);
            }
        }
        paths.sort();
        let stem = |path: &Path| {
            let stem = path.file_stem().unwrap_or_default();
            stem.to_string_lossy().into_owned()
        };
        let named = paths.iter().map(|path| {
            let alone = paths.iter().filter(|it| stem(it) == stem(path)).count() == 1;
            let whole = path.file_name().unwrap_or_default();
            Named {
                name: match alone {
                    true => stem(path),
                    false => whole.to_string_lossy().into_owned(),
                },
                path: path.clone(),
            }
        });
        Ok(named.collect())
    }

    async fn begin(&self, what: What, new: NewRun) -> anyhow::Result<Begun> {
        let acting = &*self.acting;
        let launch = match what {
            What::Named(name) => {
                let mut named = self.named()?.into_iter();
                let Some(found) = named.find(|it| it.name == name) else {
                    let message = format!("there is no spec {name:?}");
                    let failure = Failure::new(ErrorKind::NotFound, message);
                    return Err(failure
                        .hint("GET /v1/specs lists them; `serve --specs DIR` has them")
                        .into());
                };
                let spec = spec::read(&found.path, &Overrides::default(), &acting.agents)?;
                let (file, folder) = spec::place(&found.path)?;
                let folder = match spec {
                    Spec::Workflow(_) => folder,
                    Spec::Agent(_) => self.here.clone(),
                };
                Launch {
                    spec,
                    input: new.input,
                    file: Some(file),
                    folder,
                }
            }
            What::Inline(spec) => Launch {
                spec: self.inline(&spec)?,
                input: new.input,
                file: None,
                folder: self.here.clone(),
            },
        };
        launch::admit(&launch.spec, &launch.input)?;
        let asked = Asked {
            id: new.id,
            session: new.session,
            key: new.key,
            labels: new.labels.into_iter().collect(),
            if_busy: new.if_busy,
            queue: acting.engine.is_worker(),
        };
        let started = launch::start(acting, &launch, asked).await?;
        Ok(Begun {
            run: started.run.id(),
            attached: started.attached,
        })
    }

    /// Through a file, so that it is read as every other spec is; what it names is looked for there, and
    /// is not there.
    fn inline(&self, spec: &Value) -> anyhow::Result<Spec> {
        let folder = tempfile::tempdir().context("no folder for the spec")?;
        let path = folder.path().join("inline.json");
        std::fs::write(&path, spec.to_string()).context("the spec cannot be kept")?;
        let shown = format!("{}/", folder.path().display());
        spec::read(&path, &Overrides::default(), &self.acting.agents)
            .map_err(|failure| Failure {
                message: failure.message.replace(&shown, ""),
                ..failure
            })
            .map_err(Into::into)
    }

    /// What the run shall go on with when that is another spec than it was started with.
    async fn accepted(
        &self,
        root: &RunId,
        accept_spec_change: bool,
    ) -> anyhow::Result<Option<Spec>> {
        let acting = &*self.acting;
        let said = match accept_spec_change {
            true => Said::Accept,
            false => Said::Nothing,
        };
        let entry = acting.store.entry(root).await?;
        match entry.row.status().is_terminal() {
            true => Ok(None),
            false => changed::admit(acting, &entry, said).await,
        }
    }

    async fn go_on(
        &self,
        run: &RunId,
        accept_spec_change: bool,
        request: Option<String>,
    ) -> anyhow::Result<()> {
        let acting = &*self.acting;
        let root = settle::root(&*acting.store, *run).await?;
        let accepted = self.accepted(&root, accept_spec_change).await?;
        if root != *run {
            let mut resume = acting.engine.resume(run);
            if let Some(request) = &request {
                resume = resume.request(request);
            }
            match resume.await {
                Ok(_) | Err(Error::Waiting { .. } | Error::Driven { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let mut resume = match &accepted {
            Some(spec) => spec.resume(&acting.engine, &root),
            None => acting.engine.resume(&root),
        };
        if let Some(request) = request {
            resume = resume.request(request);
        }
        match resume.await {
            Ok(_) | Err(Error::Waiting { .. }) => Ok(()),
            // It goes on, which is what was asked for.
            Err(Error::Driven { .. }) if root != *run => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

#[async_trait]
impl Specs for Served {
    async fn list(&self) -> Result<Vec<Listed>, Problem> {
        let named = self.named().map_err(problem)?.into_iter();
        let listed = named.map(|Named { name, path }| {
            let read = spec::read(&path, &Overrides::default(), &self.acting.agents);
            match read {
                Ok(spec) => Listed {
                    name,
                    kind: Some(match spec {
                        Spec::Workflow(_) => "workflow",
                        Spec::Agent(_) => "agent",
                    }),
                    spec_digest: Some(spec.digest()),
                    error: None,
                },
                Err(failure) => Listed {
                    name,
                    kind: None,
                    spec_digest: None,
                    error: Some(failure.message),
                },
            }
        });
        Ok(listed.collect())
    }

    async fn start(&self, what: What, new: NewRun) -> Result<Begun, Problem> {
        self.begin(what, new).await.map_err(problem)
    }

    async fn check_resume(&self, run: &RunId, accept_spec_change: bool) -> Result<(), Problem> {
        let check = async {
            let root = settle::root(&*self.acting.store, *run).await?;
            self.accepted(&root, accept_spec_change).await
        };
        check.await.map(drop).map_err(problem)
    }

    async fn resume(
        &self,
        run: &RunId,
        accept_spec_change: bool,
        request: Option<String>,
    ) -> Result<(), Problem> {
        let gone_on = self.go_on(run, accept_spec_change, request);
        gone_on.await.map_err(problem)
    }

    async fn on_model(&self, run: &RunId, model: &str) -> Result<Value, Problem> {
        // Its name is a path: whoever may fork could have any file of this machine read.
        if model.starts_with("scripted/") {
            let detail = "a scripted model is a file of this machine, and is not named over HTTP";
            return Err(Problem::new(ErrorKind::Forbidden, detail));
        }
        retry::on_model(&self.acting, run, model)
            .await
            .map_err(problem)
    }
}

/// A file that looks like a spec; JSON that is none is something that a spec names.
fn is_spec(path: &Path) -> bool {
    match path.extension().and_then(|it| it.to_str()) {
        Some("toml") => path.is_file(),
        Some("json") => path.is_file() && SpecKind::of_file(path).is_ok(),
        _ => false,
    }
}

fn problem(error: anyhow::Error) -> Problem {
    // A pipe of ours cannot break here.
    let failure = failure_of(&error)
        .unwrap_or_else(|| Failure::new(ErrorKind::Unavailable, error.to_string()));
    let problem = Problem::new(failure.kind, failure.message);
    match failure.hint {
        Some(hint) => problem.hint(hint),
        None => problem,
    }
}
