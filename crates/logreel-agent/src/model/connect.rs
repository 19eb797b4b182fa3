//! From a spec to the model it names.

use std::sync::Arc;

use super::anthropic::Anthropic;
use super::http::{Key, Provider, Reach, Timeouts};
use super::openai::OpenAi;
use super::{Model, ModelError, ScriptedModel, anthropic, openai};
use crate::spec::AgentSpec;

/// Reads a variable of the environment; the only place that keys come from.
pub type ReadVariable<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The model of a spec. Fails when its key is not there, so that a run is refused before it begins.
pub fn connect(spec: &AgentSpec, env: ReadVariable<'_>) -> Result<Arc<dyn Model>, ModelError> {
    connect_within(spec, env, Timeouts::default())
}

/// [`connect`] with other patience.
pub fn connect_within(
    spec: &AgentSpec,
    env: ReadVariable<'_>,
    timeouts: Timeouts,
) -> Result<Arc<dyn Model>, ModelError> {
    let family = Family::of(spec)?;
    let reach = |base_url, path| -> Result<Provider, ModelError> {
        Provider::new(Reach {
            base_url: spec.base_url.as_deref().unwrap_or(base_url),
            path,
            key: key(spec, env)?,
            key_variable: key_variable(spec),
            timeouts,
        })
    };
    Ok(match family {
        Family::Scripted => {
            let lines = spec
                .script
                .clone()
                .ok_or_else(|| invalid(format!("{}: its lines are not in the spec", spec.model)))?;
            let model = ScriptedModel::new(lines)
                .map_err(|error| invalid(format!("{}: {error}", spec.model)))?;
            Arc::new(model.named(&spec.model))
        }
        Family::Anthropic => {
            let provider = reach(anthropic::BASE_URL, "/v1/messages")?;
            Arc::new(Anthropic::new(&spec.model, provider)?)
        }
        Family::OpenAi => {
            let provider = reach(openai::BASE_URL, "/chat/completions")?;
            Arc::new(OpenAi::new(&spec.model, provider)?)
        }
        #[cfg(feature = "genai")]
        Family::Gemini | Family::Ollama | Family::OpenAiResponses => {
            let prefix = spec.model.split('/').next().unwrap_or_default();
            let default = super::genai::base_url(prefix);
            let provider = reach(default, "")?;
            let base_url = spec.base_url.as_deref().unwrap_or(default);
            Arc::new(super::genai::Genai::new(&spec.model, base_url, provider)?)
        }
    })
}

/// The variable that holds the key of a spec's model, which no tool may see. Whether it must be set is
/// for [`connect`] to say: a server at a `base_url` of one's own may want none.
pub fn key_variable(spec: &AgentSpec) -> Option<String> {
    let usual = || spec.usual_key_variable().map(str::to_owned);
    spec.api_key_env.clone().or_else(usual)
}

/// What an answer is at most where nobody says.
const OUTPUT_TOKENS: u64 = 4096;

/// The longest answer that is asked for, for what is set aside before a call. A provider that is given no
/// limit may answer more.
pub(crate) fn output_tokens_max(spec: &AgentSpec) -> u64 {
    let said = |name| spec.params.get(name).and_then(serde_json::Value::as_u64);
    match Family::of(spec) {
        Ok(Family::Anthropic) => anthropic::output_tokens_max(&spec.params),
        Ok(_) | Err(_) => {
            let names = ["max_output_tokens", "max_completion_tokens", "max_tokens"];
            names.into_iter().find_map(said).unwrap_or(OUTPUT_TOKENS)
        }
    }
}

/// Who answers, by the prefix of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    Scripted,
    Anthropic,
    OpenAi,
    #[cfg(feature = "genai")]
    Gemini,
    #[cfg(feature = "genai")]
    Ollama,
    #[cfg(feature = "genai")]
    OpenAiResponses,
}

/// What a model may begin with.
const PREFIXES: &str = if cfg!(feature = "genai") {
    "anthropic/…, openai/…, openai-responses/…, gemini/…, ollama/…, scripted/FILE"
} else {
    "anthropic/…, openai/…, scripted/FILE (this build is without the feature genai)"
};

impl Family {
    fn of(spec: &AgentSpec) -> Result<Self, ModelError> {
        let (prefix, model) = spec.model.split_once('/').unwrap_or((&spec.model, ""));
        let family = match prefix {
            "scripted" => Some(Self::Scripted),
            "anthropic" => Some(Self::Anthropic),
            "openai" => Some(Self::OpenAi),
            #[cfg(feature = "genai")]
            "gemini" => Some(Self::Gemini),
            #[cfg(feature = "genai")]
            "ollama" => Some(Self::Ollama),
            #[cfg(feature = "genai")]
            "openai-responses" => Some(Self::OpenAiResponses),
            _ => None,
        };
        family
            .filter(|_| !model.is_empty())
            .ok_or_else(|| invalid(format!("`model`: {:?} is none of {PREFIXES}", spec.model)))
    }
}

/// The key. One that the spec names, or that the provider's own address needs, must be there.
fn key(spec: &AgentSpec, env: ReadVariable<'_>) -> Result<Option<Key>, ModelError> {
    let Some(variable) = key_variable(spec) else {
        return Ok(None);
    };
    let key = env(&variable).as_deref().and_then(Key::new);
    let needed = spec.api_key_env.is_some() || spec.base_url.is_none();
    if key.is_none() && needed {
        return Err(ModelError::Auth {
            message: format!("{} needs a key in {variable}, which is not set", spec.model),
        });
    }
    Ok(key)
}

fn invalid(message: String) -> ModelError {
    ModelError::Invalid { message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_aside_for_an_answer_is_what_is_asked_for() {
        for (model, params, most) in [
            ("anthropic/x", "", 8192),
            ("anthropic/x", "max_output_tokens = 100", 100),
            // Thoughts count too.
            ("anthropic/x", "reasoning = \"high\"", 24_576 + 8192),
            ("openai/x", "", OUTPUT_TOKENS),
            ("openai/x", "max_output_tokens = 100", 100),
            ("openai/x", "max_completion_tokens = 100", 100),
        ] {
            let spec = format!("model = \"{model}\"\nparams = {{ {params} }}");
            let spec: AgentSpec = toml::from_str(&spec).unwrap();
            assert_eq!(output_tokens_max(&spec), most, "{model} {params}");
        }
    }
}
