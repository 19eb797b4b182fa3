//! What differs between two runs.

use crate::answer;
use crate::call::Call;
use crate::operation::Answered;

/// `GET /v1/runs/{id}/diff/{other}`
pub(crate) async fn between(call: Call) -> Answered {
    let a = call.run().await?;
    let b = call.run_named(call.param("other")).await?;
    answer::json(&call.app.engine.diff(&a, &b).await?)
}
