//! A run with its steps as JSON text, in pieces: the steps are written while the log is read, so that a
//! million of them need no memory.

use std::sync::Arc;

use logreel_core::event::RunKind;
use logreel_core::meaning::ResultSet;
use logreel_core::{RunId, Seq};
use logreel_store::{Entry, RunStore};

use super::{RunView, StepView, StepsView};
use crate::Error;
use crate::engine::Engine;
use crate::moment::decode;
use crate::value;
use crate::workflow::Workflow;

/// Events that are looked at for one piece.
const PAGE: usize = 1000;

impl Engine {
    /// The run right after an earlier event. Who drove it then is not in the log.
    pub async fn entry_at(&self, run: &RunId, seq: Seq) -> Result<Entry, Error> {
        let now = self.0.store.entry(run).await?;
        let state = self.at(run, seq).await?;
        Ok(Entry {
            epoch: state.row.epoch,
            row: state.row,
            results: ResultSet::default(),
            driver: None,
            ready_at: None,
            over_limit: false,
            erased: now.erased,
            read_only: now.read_only,
        })
    }

    /// The run as JSON, with its steps.
    pub async fn whole(&self, entry: &Entry) -> Result<WholeRun, Error> {
        let (run, head) = (entry.row.run, entry.row.head.seq);
        let steps = match entry.erased {
            true => None,
            false => Some(Steps {
                view: StepsView::new(&Arc::new(self.0.at(&run, head).await?)),
                next: Seq::FIRST,
            }),
        };
        Ok(WholeRun {
            store: Arc::clone(&self.0.store),
            run,
            head,
            begins: Some(RunView::of(entry)),
            steps,
            first: true,
            ended: false,
        })
    }
}

/// The pieces of a run's JSON; made by [`Engine::whole`].
pub struct WholeRun {
    store: Arc<dyn RunStore>,
    run: RunId,
    head: Seq,
    begins: Option<RunView>,
    /// Those that are still to come.
    steps: Option<Steps>,
    first: bool,
    ended: bool,
}

struct Steps {
    view: StepsView,
    next: Seq,
}

impl WholeRun {
    /// The next piece of the text; `None` after the last one.
    pub async fn next(&mut self) -> Result<Option<String>, Error> {
        if let Some(run) = self.begins.take() {
            let mut text = serde_json::to_string(&run).map_err(|it| Error::value("the run", it))?;
            // The brace that ends it.
            text.pop();
            text.push_str(",\"steps\":[");
            return Ok(Some(text));
        }
        let mut text = String::new();
        while let Some(mut steps) = self.steps.take() {
            if steps.next > self.head {
                for step in steps.view.open() {
                    self.write(&step, &mut text)?;
                }
                for step in steps.view.to_come(&*self.store).await? {
                    self.write(&step, &mut text)?;
                }
                break;
            }
            let left = usize::try_from(self.head.0 - steps.next.0).unwrap_or(PAGE);
            let limit = PAGE.min(left.saturating_add(1));
            let page = self.store.read(&self.run, steps.next, limit).await?;
            steps.next = page.next;
            let looked_at = page.items.iter().filter(|it| StepsView::looks_at(it));
            for record in looked_at {
                if let Some(step) = steps.view.next(&decode(record)?) {
                    self.write(&step, &mut text)?;
                }
            }
            self.steps = Some(steps);
            if !text.is_empty() {
                return Ok(Some(text));
            }
        }
        if std::mem::replace(&mut self.ended, true) {
            return Ok(None);
        }
        text.push_str("]}");
        Ok(Some(text))
    }

    fn write(&mut self, step: &StepView, text: &mut String) -> Result<(), Error> {
        if !std::mem::take(&mut self.first) {
            text.push(',');
        }
        text.push_str(&serde_json::to_string(step).map_err(|it| Error::value("a step", it))?);
        Ok(())
    }
}

impl StepsView {
    /// The steps of a workflow that are still to come; after the end none are.
    pub async fn to_come(&self, store: &dyn RunStore) -> Result<Vec<StepView>, Error> {
        let facts = &self.state.row.facts;
        if facts.kind != RunKind::Workflow || facts.ended.is_some() {
            return Ok(Vec::new());
        }
        let spec = value::resolve(store, &self.state.spec).await?;
        let workflow = Workflow::from_json(&spec.to_value());
        // A spec of a build that knows more is no reason to show nothing.
        Ok(workflow.map_or_else(|_| Vec::new(), |workflow| self.pending(&workflow)))
    }
}
