//! Which models there are: the only file that names every adapter.

use std::sync::Arc;

use super::openai::OpenAi;
use super::replay::Replay;
use super::{LanguageModel, LlmError};
use crate::config::{ModelProtocol, ModelSettings};
use crate::domain::provider::ModelInfo;

/// The configured models; the first one is the default.
pub struct Models {
    models: Vec<Arc<dyn LanguageModel>>,
    protocol: ModelProtocol,
}

impl Models {
    /// Sets up what is configured; without a model there is none, and that is no error.
    ///
    /// # Errors
    /// [`LlmError`] when a model is configured that cannot work.
    pub fn connect(settings: &ModelSettings) -> Result<Self, LlmError> {
        let protocol = settings.model_protocol;
        let models: Vec<Arc<dyn LanguageModel>> = match (protocol, &settings.model) {
            (ModelProtocol::Replay, _) => vec![Arc::new(Replay::open(settings)?)],
            (ModelProtocol::Openai, Some(name)) => vec![Arc::new(OpenAi::new(name, settings)?)],
            (ModelProtocol::Openai, None) => Vec::new(),
        };
        Ok(Self { models, protocol })
    }

    /// The model of this name, or the default one.
    ///
    /// # Errors
    /// [`LlmError::NotConfigured`] or [`LlmError::UnknownModel`].
    pub fn get(&self, name: Option<&str>) -> Result<Arc<dyn LanguageModel>, LlmError> {
        let default = self.models.first().ok_or(LlmError::NotConfigured)?;
        let Some(name) = name else { return Ok(Arc::clone(default)) };
        let found = self.models.iter().find(|model| model.name() == name);
        found.cloned().ok_or_else(|| LlmError::UnknownModel(name.to_owned()))
    }

    /// The models as callers see them.
    #[must_use]
    pub fn list(&self) -> Vec<ModelInfo> {
        let info = |(number, model): (usize, &Arc<dyn LanguageModel>)| ModelInfo {
            name: model.name().to_owned(),
            protocol: self.protocol.word().to_owned(),
            default: number == 0,
        };
        self.models.iter().enumerate().map(info).collect()
    }
}
