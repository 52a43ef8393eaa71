//! Which language models `interpret` may ask, and how.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::key::{self, KeyError};
use super::{ConfigError, of_seconds, seconds, vendor};

/// The language model that `interpret` asks; more of them stand in the TOML file, as `[models.NAME]`.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelSettings {
    /// Name of the model as its service knows it, or of a `[models.NAME]` of the TOML file that is the default; without one, interpret answers 501
    #[arg(long, env = "INTERPRETERD_MODEL")]
    pub model: Option<String>,
    /// Wire protocol that the model's service speaks
    #[arg(long, env = "INTERPRETERD_MODEL_PROTOCOL", default_value = "openai")]
    pub model_protocol: ModelProtocol,
    /// Base URL of the model's service, with its version, such as http://localhost:11434/v1; else OPENAI_BASE_URL or ANTHROPIC_BASE_URL, else the vendor's own
    #[arg(long, env = "INTERPRETERD_MODEL_BASE_URL")]
    pub model_base_url: Option<String>,
    /// Key for the model's service; else OPENAI_API_KEY or ANTHROPIC_API_KEY
    #[arg(long, env = "INTERPRETERD_MODEL_API_KEY", hide_env_values = true)]
    pub model_api_key: Option<SecretString>,
    /// File that holds the key, in place of INTERPRETERD_MODEL_API_KEY
    #[arg(long, env = "INTERPRETERD_MODEL_API_KEY_FILE")]
    pub model_api_key_file: Option<PathBuf>,
    /// Header that carries the key as it is, such as api-key; else the protocol's own way
    #[arg(long, env = "INTERPRETERD_MODEL_API_KEY_HEADER")]
    pub model_api_key_header: Option<String>,
    /// Headers that the model's service wants besides, a JSON object
    #[arg(long, env = "INTERPRETERD_MODEL_HEADERS", hide_env_values = true)]
    pub model_headers: Option<SecretString>,
    /// Fields that each request to the model's service has besides, a JSON object, such as {"temperature": 0}
    #[arg(long, env = "INTERPRETERD_MODEL_BODY")]
    pub model_body: Option<String>,
    /// Conversation that the protocol `replay` plays, a JSON file
    #[arg(long, env = "INTERPRETERD_MODEL_REPLAY_FILE")]
    pub model_replay_file: Option<PathBuf>,
    /// The model reads images
    #[arg(long, env = "INTERPRETERD_MODEL_VISION", default_value_t = false, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub model_vision: bool,
    /// Ask for the model's text piece by piece when somebody follows the run
    #[arg(long, env = "INTERPRETERD_MODEL_STREAM", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub model_stream: bool,
    /// Send back what the model's messages hold besides text and calls (some services demand their reasoning back, others refuse it)
    #[arg(long, env = "INTERPRETERD_MODEL_ECHO_REASONING", default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub model_echo_reasoning: bool,
    /// Most tokens that the model may write in a turn; unset: the service's own default (anthropic: 8192)
    #[arg(long, env = "INTERPRETERD_MODEL_MAX_TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
    pub model_max_tokens: Option<u32>,
    /// Time for one turn of the model, and for each pause of its stream, in seconds
    #[arg(long, env = "INTERPRETERD_MODEL_SECONDS", default_value = "120", value_parser = seconds)]
    pub model_seconds: Duration,
    /// All models, the default one first; made from the settings above and the TOML file.
    #[arg(skip)]
    pub entries: Vec<ModelEntry>,
}

/// How a model is spoken to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelProtocol {
    /// Chat completions, at any base URL: OpenAI, Ollama, vLLM, llama.cpp, OpenRouter and others.
    #[default]
    Openai,
    /// Anthropic's Messages API.
    Anthropic,
    /// Plays a recorded conversation; for tests and the demo.
    Replay,
}

impl ModelProtocol {
    /// The word that settings use.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Openai => "openai",
            Self::Anthropic => "anthropic",
            Self::Replay => "replay",
        }
    }

    /// What the vendor calls the variables of its key and of its base URL.
    const fn vendor_names(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Openai => Some(("OPENAI_API_KEY", "OPENAI_BASE_URL")),
            Self::Anthropic => Some(("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL")),
            Self::Replay => None,
        }
    }

    fn vendor_key(self) -> Option<SecretString> {
        let (key, _) = self.vendor_names()?;
        vendor(key).map(SecretString::from)
    }

    fn vendor_base_url(self) -> Option<String> {
        let (_, base_url) = self.vendor_names()?;
        vendor(base_url)
    }
}

/// One model, ready to be set up.
#[derive(Debug, Clone)]
pub struct ModelEntry {
    /// The name that requests use.
    pub name: String,
    /// The name that its service knows.
    pub model: String,
    /// How it is spoken to.
    pub protocol: ModelProtocol,
    /// Where; the vendor's own place when absent.
    pub base_url: Option<String>,
    /// The key.
    pub api_key: Option<SecretString>,
    /// The header of the key, where it is not the protocol's own.
    pub api_key_header: Option<String>,
    /// Headers besides.
    pub headers: BTreeMap<String, SecretString>,
    /// Fields of each request besides.
    pub body: Map<String, Value>,
    /// What the protocol `replay` plays.
    pub replay_file: Option<PathBuf>,
    /// It reads images.
    pub vision: bool,
    /// Its text is asked for piece by piece.
    pub stream: bool,
    /// Its messages are sent back with all that is in them.
    pub echo_reasoning: bool,
    /// Most tokens that it may write in a turn.
    pub max_tokens: Option<u32>,
    /// Time for a turn, and for each pause of a stream.
    pub timeout: Duration,
}

/// Why a model cannot be set up as it is described.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// There is no key where one was named.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The headers or fields are no JSON object. What they are is not told: keys may stand in them.
    #[error("{what} must be a JSON object; it goes wrong at line {line}, column {column}")]
    NoObject {
        /// Which setting.
        what: &'static str,
        /// Where.
        line: usize,
        /// Where in the line.
        column: usize,
    },
    /// A field of the body is made by the service itself.
    #[error("the field {0} of the body is ours to set")]
    OurField(&'static str),
    /// There is nothing to play.
    #[error("the protocol replay needs a replay file")]
    NoRecording,
}

/// Fields of a request that no setting replaces.
const OURS: [&str; 5] = ["messages", "model", "stream", "system", "tools"];

/// The models of the TOML file by name.
pub(super) type ModelTables = BTreeMap<String, ModelTable>;

/// A model as the TOML file describes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ModelTable {
    model: Option<String>,
    #[serde(default)]
    protocol: ModelProtocol,
    base_url: Option<String>,
    api_key_env: Option<String>,
    api_key_file: Option<PathBuf>,
    api_key_header: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, SecretString>,
    #[serde(default)]
    body: Map<String, Value>,
    replay_file: Option<PathBuf>,
    #[serde(default)]
    vision: bool,
    #[serde(default = "yes")]
    stream: bool,
    #[serde(default = "yes")]
    echo_reasoning: bool,
    max_tokens: Option<u32>,
    #[serde(default = "two_minutes", deserialize_with = "of_seconds")]
    seconds: Duration,
}

impl ModelSettings {
    /// Puts all models into `entries`, with their keys, the default one first.
    pub(super) fn resolve(&mut self, tables: ModelTables) -> Result<(), ConfigError> {
        // an empty variable is one that is not set
        self.model = self.model.take().filter(|name| !name.is_empty());
        self.model_base_url = self.model_base_url.take().filter(|url| !url.is_empty());
        let is_key = |key: &SecretString| !key.expose_secret().is_empty();
        self.model_api_key = self.model_api_key.take().filter(is_key);
        let is_named = |path: &PathBuf| !path.as_os_str().is_empty();
        self.model_api_key_file = self.model_api_key_file.take().filter(is_named);
        let named = |name: &str| {
            let name = name.to_owned();
            move |source| ConfigError::Model { name, source }
        };
        let mut entries = Vec::new();
        for (name, table) in tables {
            entries.push(table.entry(&name).map_err(named(&name))?);
        }
        let names =
            || entries.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>().join(", ");
        let is_default = |entry: &ModelEntry| Some(&entry.name) == self.model.as_ref();
        match (entries.iter().position(is_default), self.describes(), &self.model) {
            // what is described twice, or by halves, would be asked for at another place than was meant
            (Some(_), Some(setting), _) => {
                return Err(ConfigError::DescribedTwice {
                    name: self.own_name().to_owned(),
                    setting,
                });
            }
            (Some(place), None, _) => entries[..=place].rotate_right(1),
            (None, None, Some(name)) if !entries.is_empty() => {
                return Err(ConfigError::UnknownDefaultModel {
                    name: name.clone(),
                    names: names(),
                });
            }
            (None, Some(setting), None) if !entries.is_empty() => {
                return Err(ConfigError::Unnamed(setting));
            }
            (None, None, None) if entries.len() > 1 => {
                return Err(ConfigError::NoDefaultModel(names()));
            }
            (None, ..) => {
                let own = self.own().map_err(named(self.own_name()))?;
                entries.splice(..0, own);
            }
        }
        self.entries = entries;
        Ok(())
    }

    /// The setting by which flags and environment describe a model of their own, beside its name.
    fn describes(&self) -> Option<&'static str> {
        let is_set = |set: bool, name| set.then_some(name);
        is_set(self.model_base_url.is_some(), "model_base_url")
            .or(is_set(self.model_protocol != ModelProtocol::Openai, "model_protocol"))
            .or(is_set(self.model_api_key.is_some(), "model_api_key"))
            .or(is_set(self.model_api_key_file.is_some(), "model_api_key_file"))
            .or(is_set(self.model_headers.is_some(), "model_headers"))
            .or(is_set(self.model_body.is_some(), "model_body"))
            .or(is_set(self.model_vision, "model_vision"))
            .or(is_set(self.model_max_tokens.is_some(), "model_max_tokens"))
    }

    fn own_name(&self) -> &str {
        self.model.as_deref().unwrap_or(self.model_protocol.word())
    }

    /// The model that flags and environment describe.
    fn own(&self) -> Result<Option<ModelEntry>, ModelError> {
        let protocol = self.model_protocol;
        if self.model.is_none() && protocol != ModelProtocol::Replay {
            return Ok(None);
        }
        let given = key::given(self.model_api_key.clone(), self.model_api_key_file.as_deref())?;
        let api_key = given.or_else(|| protocol.vendor_key());
        let headers = self.model_headers.as_ref().map(ExposeSecret::expose_secret);
        let entry = ModelEntry {
            name: self.own_name().to_owned(),
            model: self.own_name().to_owned(),
            protocol,
            base_url: self.model_base_url.clone().or_else(|| protocol.vendor_base_url()),
            api_key,
            api_key_header: self.model_api_key_header.clone(),
            headers: object("INTERPRETERD_MODEL_HEADERS", headers)?,
            body: object("INTERPRETERD_MODEL_BODY", self.model_body.as_deref())?,
            replay_file: self.model_replay_file.clone(),
            vision: self.model_vision,
            stream: self.model_stream,
            echo_reasoning: self.model_echo_reasoning,
            max_tokens: self.model_max_tokens,
            timeout: self.model_seconds,
        };
        entry.checked().map(Some)
    }
}

impl ModelTable {
    fn entry(self, name: &str) -> Result<ModelEntry, ModelError> {
        let named = key::named(self.api_key_env.as_deref(), self.api_key_file.as_deref())?;
        // the vendor's key goes to the vendor alone
        let is_vendors = named.is_none() && self.base_url.is_none();
        let api_key = if is_vendors { self.protocol.vendor_key() } else { named };
        let entry = ModelEntry {
            name: name.to_owned(),
            model: self.model.unwrap_or_else(|| name.to_owned()),
            protocol: self.protocol,
            base_url: self.base_url.or_else(|| self.protocol.vendor_base_url()),
            api_key,
            api_key_header: self.api_key_header,
            headers: self.headers,
            body: self.body,
            replay_file: self.replay_file,
            vision: self.vision,
            stream: self.stream,
            echo_reasoning: self.echo_reasoning,
            max_tokens: self.max_tokens,
            timeout: self.seconds,
        };
        entry.checked()
    }
}

impl ModelEntry {
    fn checked(self) -> Result<Self, ModelError> {
        if let Some(field) = OURS.iter().find(|field| self.body.contains_key(**field)) {
            return Err(ModelError::OurField(field));
        }
        if self.protocol == ModelProtocol::Replay && self.replay_file.is_none() {
            return Err(ModelError::NoRecording);
        }
        Ok(self)
    }
}

fn object<T: serde::de::DeserializeOwned + Default>(
    what: &'static str,
    text: Option<&str>,
) -> Result<T, ModelError> {
    let Some(text) = text.filter(|text| !text.trim().is_empty()) else { return Ok(T::default()) };
    serde_json::from_str(text).map_err(|error| ModelError::NoObject {
        what,
        line: error.line(),
        column: error.column(),
    })
}

const fn yes() -> bool {
    true
}

const fn two_minutes() -> Duration {
    Duration::from_secs(120)
}

#[cfg(test)]
mod tests {
    use clap::{Command, FromArgMatches};

    use super::*;
    use crate::domain::coded::chain;

    fn settings(flags: &[&str]) -> ModelSettings {
        let command = ModelSettings::augment_args(Command::new("serve"));
        let flags = ["serve"].iter().chain(flags);
        ModelSettings::from_arg_matches(&command.get_matches_from(flags)).expect("good flags")
    }

    fn names(flags: &[&str], file: &str) -> Result<Vec<String>, ConfigError> {
        let mut settings = settings(flags);
        settings.resolve(toml::from_str(file).expect("good tables"))?;
        Ok(settings.entries.iter().map(|entry| entry.name.clone()).collect())
    }

    const TWO: &str = "[fast]\nmodel = \"gpt-x\"\n[deep]\nprotocol = \"anthropic\"\nseconds = 1.5\nbody = { temperature = 0.5 }\n";

    #[test]
    fn the_default_model_is_named_or_the_only_one() {
        assert_eq!(names(&["--model", "fast"], TWO).expect("good"), ["fast", "deep"]);
        let own = ["--model", "own", "--model-base-url", "http://a"];
        assert_eq!(names(&own, TWO).expect("good"), ["own", "deep", "fast"]);
        assert_eq!(names(&[], "[one]\n").expect("good"), ["one"]);
        assert_eq!(names(&[], "").expect("good"), [""; 0]);
        assert!(matches!(names(&[], TWO), Err(ConfigError::NoDefaultModel(_))));
    }

    #[test]
    fn a_model_that_is_described_by_halves_or_twice_is_refused() {
        let told = |flags: &[&str]| names(flags, TWO).expect_err("refused").to_string();
        let unknown = told(&["--model", "fst"]);
        assert!(unknown.contains("fst") && unknown.contains("deep, fast"), "{unknown}");
        let twice = told(&["--model", "fast", "--model-base-url", "http://a"]);
        assert!(twice.contains("fast") && twice.contains("model_base_url"), "{twice}");
        assert!(told(&["--model-vision"]).contains("model_vision"));
        let ours = names(&[], "[a]\nbody = { messages = [] }\n").expect_err("refused");
        assert!(chain(&ours).contains("messages"), "{ours}");
    }

    #[test]
    fn an_entry_says_what_its_service_is_asked_with() {
        let mut settings = settings(&["--model", "deep"]);
        settings.resolve(toml::from_str(TWO).expect("good tables")).expect("good");
        let [deep, fast] = settings.entries.as_slice() else { panic!("two") };
        assert_eq!((deep.model.as_str(), deep.protocol), ("deep", ModelProtocol::Anthropic));
        assert_eq!(
            (deep.timeout, &deep.body["temperature"]),
            (Duration::from_millis(1500), &0.5.into())
        );
        assert_eq!((fast.model.as_str(), fast.stream, fast.vision), ("gpt-x", true, false));
    }

    #[test]
    fn a_model_without_its_key_or_its_recording_is_refused() {
        let cause = |file| match names(&[], file) {
            Err(ConfigError::Model { source, .. }) => source,
            other => panic!("{other:?}"),
        };
        let absent = "[a]\napi_key_env = \"NOT_SET_ANYWHERE\"\n";
        assert!(matches!(cause(absent), ModelError::Key(KeyError::Variable(_))));
        assert!(matches!(cause("[a]\nprotocol = \"replay\"\n"), ModelError::NoRecording));
    }

    #[test]
    fn an_unknown_key_of_a_model_is_refused() {
        assert!(toml::from_str::<ModelTables>("[a]\ntemperature = 1\n").is_err());
    }
}
