//! Which models there are: the only file that names every adapter.

use std::sync::Arc;

use super::observed::Observed;
use super::replay::Replay;
use super::{LanguageModel, LlmError, anthropic, openai};
use crate::config::{ModelEntry, ModelProtocol};
use crate::domain::provider::ModelInfo;
use crate::telemetry::metrics::Metrics;

/// The configured models; the first one is the default.
pub struct Models(Vec<Arc<dyn LanguageModel>>);

impl Models {
    /// Sets up what is configured; without a model there is none, and that is no error.
    ///
    /// # Errors
    /// [`LlmError`] when a model is configured that cannot work.
    pub fn connect(entries: &[ModelEntry], metrics: &Metrics) -> Result<Self, LlmError> {
        let observed = |entry| -> Result<Arc<dyn LanguageModel>, LlmError> {
            Ok(Arc::new(Observed::new(connect(entry)?, metrics.clone())))
        };
        entries.iter().map(observed).collect::<Result<_, _>>().map(Self)
    }

    /// The model of this name, or the default one.
    ///
    /// # Errors
    /// [`LlmError::NotConfigured`] or [`LlmError::UnknownModel`].
    pub fn get(&self, name: Option<&str>) -> Result<Arc<dyn LanguageModel>, LlmError> {
        let default = self.0.first().ok_or(LlmError::NotConfigured)?;
        let Some(name) = name else { return Ok(Arc::clone(default)) };
        let found = self.0.iter().find(|model| model.name() == name);
        found.cloned().ok_or_else(|| LlmError::UnknownModel {
            name: name.to_owned(),
            known: self.0.iter().map(|model| model.name().to_owned()).collect(),
        })
    }

    /// Where a model is asked, for people who set it up.
    #[must_use]
    pub fn place(&self, name: &str) -> String {
        self.get(Some(name)).map(|model| model.place()).unwrap_or_default()
    }

    /// The models as callers see them.
    #[must_use]
    pub fn list(&self) -> Vec<ModelInfo> {
        let info = |(number, model): (usize, &Arc<dyn LanguageModel>)| ModelInfo {
            name: model.name().to_owned(),
            protocol: model.protocol().to_owned(),
            default: number == 0,
            vision: model.vision(),
        };
        self.0.iter().enumerate().map(info).collect()
    }
}

fn connect(entry: &ModelEntry) -> Result<Arc<dyn LanguageModel>, LlmError> {
    Ok(match entry.protocol {
        ModelProtocol::Openai => Arc::new(openai::connect(entry)?),
        ModelProtocol::Anthropic => Arc::new(anthropic::connect(entry)?),
        ModelProtocol::Replay => Arc::new(Replay::open(entry)?),
    })
}
