//! Every setting: by flag, by environment, by TOML file.

mod bedrock;
mod blobs;
mod e2b;
mod file;
mod key;
mod limits;
mod local;
mod model;
mod pydantic;
mod store;
mod traces;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, Args, Command, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use secrecy::SecretString;
use serde::Deserialize;

pub use bedrock::{BedrockCredentials, BedrockEntry, BedrockError, BedrockSettings};
pub use blobs::{BlobError, BlobSettings, Bucket, BucketCredentials};
pub use e2b::{E2bEntry, E2bError, E2bSettings};
pub use key::KeyError;
pub use limits::LimitSettings;
pub use local::{GuestSettings, LocalLevel, LocalSettings, PackageMode};
pub use model::{ModelEntry, ModelError, ModelProtocol, ModelSettings};
pub use pydantic::{PydanticEntry, PydanticError, PydanticServer, PydanticSettings};
pub use store::{Database, DatabaseError, StoreSettings};
pub use traces::{Collector, TraceError, TraceSettings};

use crate::domain::build;
use file::{Tables, with_file};

/// The names of all environment variables of ours begin so.
pub const ENV_PREFIX: &str = "INTERPRETERD_";

/// A code interpreter for language models, as a service.
#[derive(Debug, Parser)]
#[command(name = "interpreterd", version = build::line(), about, max_term_width = 100)]
pub struct CommandLine {
    /// What to do.
    #[command(subcommand)]
    pub action: Action,
}

/// What the program can do.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// Serve HTTP until SIGTERM or SIGINT.
    Serve(Box<Settings>),
    /// Bring the tables of the database up to date and end; `serve` does it at its start too.
    Migrate(Box<Settings>),
    /// Say what works on this machine and what is missing; exits 0 when `serve` would start.
    Check(Box<Settings>),
    /// Ask the service that runs with the same settings whether it is ready; exits 0 when it is.
    Healthcheck(Box<Settings>),
    /// The Python that cells run on.
    #[command(subcommand)]
    Guest(GuestAction),
    /// Print the OpenAPI document.
    Openapi,
    /// Print the table of settings as Markdown.
    Settings,
    /// Print the table of metrics as Markdown.
    Metrics,
}

/// What can be done with the guest Python.
#[derive(Debug, Subcommand)]
pub enum GuestAction {
    /// Install the Python of a provider of this host, and its packages; does nothing when it is there.
    Install(InstallSettings),
}

/// What `guest install` can be told.
#[derive(Debug, Clone, Args)]
pub struct InstallSettings {
    #[command(flatten)]
    #[expect(missing_docs, reason = "the part's type says it")]
    pub guest: GuestSettings,
    /// The provider that it is for
    #[arg(long, default_value = "local")]
    pub provider: GuestKind,
    /// Packages for the store of `pydantic`, besides those that come with it
    #[arg(long, num_args = 1.., value_delimiter = ',')]
    pub packages: Vec<String>,
    /// Folder of wheels for the store of `pydantic`, where Pyodide's CDN cannot be reached
    #[arg(long)]
    pub wheels: Option<PathBuf>,
    /// Mirror of the address where Pyodide's own packages are
    #[arg(long)]
    pub cdn: Option<String>,
}

/// The providers of this host that need an installation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GuestKind {
    /// A CPython with the usual packages.
    Local,
    /// Deno, Pyodide and a store of packages.
    Pydantic,
}

/// Everything that `serve` can be told.
#[derive(Debug, Args)]
pub struct Settings {
    #[command(flatten)]
    #[expect(missing_docs, reason = "the part's type says it")]
    pub server: ServerSettings,
    #[command(flatten)]
    #[expect(missing_docs, reason = "the part's type says it")]
    pub store: StoreSettings,
    #[command(flatten)]
    #[expect(missing_docs, reason = "the part's type says it")]
    pub blobs: BlobSettings,
    #[command(flatten)]
    #[expect(missing_docs, reason = "the part's type says it")]
    pub limits: LimitSettings,
    #[command(flatten)]
    #[expect(missing_docs, reason = "the part's type says it")]
    pub model: ModelSettings,
    #[command(flatten)]
    #[expect(missing_docs, reason = "the part's type says it")]
    pub local: LocalSettings,
    #[command(flatten)]
    #[expect(missing_docs, reason = "the part's type says it")]
    pub e2b: E2bSettings,
    #[command(flatten)]
    #[expect(missing_docs, reason = "the part's type says it")]
    pub bedrock: BedrockSettings,
    #[command(flatten)]
    #[expect(missing_docs, reason = "the part's type says it")]
    pub pydantic: PydanticSettings,
    #[command(flatten)]
    #[expect(missing_docs, reason = "the part's type says it")]
    pub guest: GuestSettings,
    #[command(flatten)]
    #[expect(missing_docs, reason = "the part's type says it")]
    pub traces: TraceSettings,
}

/// Where and for whom the service answers.
#[derive(Debug, Args)]
#[command(next_help_heading = "Server")]
pub struct ServerSettings {
    /// TOML file with settings; keys are the names of the flags with _ for -
    #[arg(long, env = "INTERPRETERD_CONFIG")]
    pub config: Option<PathBuf>,
    /// Address to answer on; other than loopback only with API keys
    #[arg(long, env = "INTERPRETERD_LISTEN", default_value = "127.0.0.1:8080")]
    pub listen: SocketAddr,
    /// Folder for database and files; used by one process at a time
    #[arg(long, env = "INTERPRETERD_DATA_DIR", default_value = "./data")]
    pub data_dir: PathBuf,
    /// Keys that callers send as `Authorization: Bearer KEY`, separated by commas, 16 characters each at least; none: no key is asked for
    #[arg(long, env = "INTERPRETERD_API_KEYS", hide_env_values = true, value_delimiter = ',')]
    pub api_keys: Vec<SecretString>,
    /// Answer on addresses other than loopback without keys
    #[arg(long, env = "INTERPRETERD_ALLOW_ANONYMOUS", default_value_t = false, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub allow_anonymous: bool,
    /// Names besides localhost and IP addresses that the Host header may hold, separated by commas
    #[arg(long, env = "INTERPRETERD_ALLOWED_HOSTS", value_delimiter = ',')]
    pub allowed_hosts: Vec<String>,
    /// User and group that `serve` becomes when it is started as root, as UID or UID:GID
    #[arg(long, env = "INTERPRETERD_USER", default_value = "10001:10001", value_parser = user)]
    pub user: User,
    /// Provider entry that is taken when a request names none
    #[arg(long, env = "INTERPRETERD_DEFAULT_PROVIDER", default_value = "local")]
    pub default_provider: String,
    /// How long what runs may go on after SIGTERM, in seconds
    #[arg(long, env = "INTERPRETERD_SHUTDOWN_GRACE_SECONDS", default_value = "10", value_parser = seconds)]
    pub shutdown_grace_seconds: Duration,
    /// How log lines look
    #[arg(long, env = "INTERPRETERD_LOG_FORMAT", default_value = "text")]
    pub log_format: LogFormat,
    /// What is logged, in the syntax of tracing's EnvFilter
    #[arg(long, env = "INTERPRETERD_LOG", default_value = "info")]
    pub log: String,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object a line.
    Json,
}

/// Who the service is on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    /// Number of the user.
    pub uid: u32,
    /// Number of the group.
    pub gid: u32,
}

fn vendor(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// Why the settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The TOML file cannot be read.
    #[error("cannot read the settings file {}", .0.display())]
    Read(PathBuf, #[source] std::io::Error),
    /// The TOML file is not TOML. The line itself is not told: a key may stand in it.
    #[error("the settings file {} is not valid TOML at byte {place}: {what}", path.display())]
    Toml {
        /// The file.
        path: PathBuf,
        /// Where in it.
        place: usize,
        /// What the parser says.
        what: String,
    },
    /// The TOML file has a key that no setting has.
    #[error("the settings file {} has the unknown key {key}", path.display())]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// A key of the TOML file holds a table or the like.
    #[error("the key {key} of the settings file {} must hold a text, a number, true or false, or a list of those", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// A model or a provider of the TOML file is not described as one.
    #[error("the table [{below}.{name}] of the settings file {} cannot be used: {what}", path.display())]
    Described {
        /// The file.
        path: PathBuf,
        /// `models` or `providers`.
        below: &'static str,
        /// The entry's name.
        name: String,
        /// What the parser says.
        what: String,
    },
    /// A model cannot be set up as it is described.
    #[error("the model {name} cannot be used")]
    Model {
        /// The entry's name.
        name: String,
        /// What is wrong with it.
        source: ModelError,
    },
    /// A provider entry cannot be used as it is described.
    #[error("the provider entry {name} cannot be used")]
    E2b {
        /// The entry's name.
        name: String,
        /// What is wrong with it.
        source: E2bError,
    },
    /// A provider entry cannot be used as it is described.
    #[error("the provider entry {name} cannot be used")]
    Bedrock {
        /// The entry's name.
        name: String,
        /// What is wrong with it.
        source: BedrockError,
    },
    /// A provider entry cannot be used as it is described.
    #[error("the provider entry {name} cannot be used")]
    Pydantic {
        /// The entry's name.
        name: String,
        /// What is wrong with it.
        source: PydanticError,
    },
    /// The store cannot be named so.
    #[error("the setting database_url cannot be used")]
    Database(#[from] DatabaseError),
    /// The place for blobs cannot be named so.
    #[error("the place for blobs cannot be used")]
    Blobs(#[from] BlobError),
    /// Traces cannot go where they should.
    #[error("the settings of traces cannot be used")]
    Traces(#[from] TraceError),
    /// A provider entry bears the name of the built-in one.
    #[error("the provider entry local is built in: give the one of the TOML file another name")]
    LocalEntry,
    /// Nobody said which model is the default.
    #[error(
        "there are several models ({0}): name the default one, as model = \"NAME\" above the first table of the TOML file or by INTERPRETERD_MODEL"
    )]
    NoDefaultModel(String),
    /// The default model is none of those that there are.
    #[error("the default model {name} is none of those in the TOML file: {names}")]
    UnknownDefaultModel {
        /// What it is called.
        name: String,
        /// Those that there are.
        names: String,
    },
    /// A model or a provider entry stands in the TOML file and in other settings too.
    #[error(
        "{name} stands in the TOML file, and {setting} describes it once more: put all of it into one place"
    )]
    DescribedTwice {
        /// Its name.
        name: String,
        /// The other setting.
        setting: &'static str,
    },
    /// A model is described that has no name.
    #[error("{0} describes a model, and `model` does not name it")]
    Unnamed(&'static str),
}

/// Reads flags, environment and the TOML file; flags win over environment, environment over file.
///
/// # Errors
/// [`ConfigError`] when the TOML file cannot be used. A wrong flag ends the process with clap's message.
pub fn read() -> Result<CommandLine, ConfigError> {
    let command = CommandLine::command();
    let matches = command.clone().get_matches();
    let file = matches
        .subcommand()
        .and_then(|(_, matches)| matches.try_get_one::<PathBuf>("config").ok().flatten().cloned());
    let (matches, tables) = match file {
        Some(path) => {
            let (command, tables) = with_file(command, &path)?;
            (command.get_matches(), tables)
        }
        None => (matches, Tables::default()),
    };
    let mut line = CommandLine::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    // before root is given up: a default depends on who started the program, and files of keys
    // may be root's
    match &mut line.action {
        Action::Serve(settings) | Action::Check(settings) | Action::Migrate(settings) => {
            settings.guest.fix_folder();
            settings.store.check()?;
            settings.blobs.check()?;
            settings.traces.resolve()?;
            settings.model.resolve(tables.models)?;
            settings.e2b.resolve(tables.e2b)?;
            let is_default = settings.server.default_provider == "bedrock";
            settings.bedrock.resolve(tables.bedrock, is_default)?;
            let default = &settings.server.default_provider;
            settings.pydantic.resolve(tables.pydantic, default)?;
        }
        Action::Guest(GuestAction::Install(settings)) => settings.guest.fix_folder(),
        Action::Healthcheck(_) | Action::Openapi | Action::Settings | Action::Metrics => {}
    }
    Ok(line)
}

/// Variables that are named like settings and are none: misspelled ones, mostly.
#[must_use]
pub fn unknown_variables() -> Vec<String> {
    let known: Vec<_> = settings_args()
        .iter()
        .filter_map(|arg| Some(arg.get_env()?.to_string_lossy().into_owned()))
        .collect();
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let unknown = |name: &String| {
        let own = name.strip_prefix(ENV_PREFIX);
        let is_else = |own: &str| own == "COMMIT" || own.starts_with("TEST_"); // of builds, of tests
        own.is_some_and(|own| !is_else(own)) && !known.contains(name)
    };
    names.filter(unknown).collect()
}

fn settings_args() -> Vec<Arg> {
    Settings::augment_args(Command::new("settings")).get_arguments().cloned().collect()
}

/// The table of all settings as Markdown.
#[must_use]
pub fn table() -> String {
    let mut table =
        String::from("| setting | environment | default | what it is |\n|---|---|---|---|\n");
    for arg in settings_args() {
        let flag = arg.get_long().unwrap_or_default();
        let env = arg.get_env().map(|env| env.to_string_lossy().into_owned()).unwrap_or_default();
        let default: Vec<_> =
            arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        let default =
            if default.is_empty() { String::new() } else { format!("`{}`", default.join(",")) };
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        table.push_str(&format!("| `--{flag}` | `{env}` | {default} | {help} |\n"));
    }
    table
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "a number of seconds is needed".to_owned())?;
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) if !duration.is_zero() => Ok(duration),
        _ => Err("more than 0 seconds are needed".to_owned()),
    }
}

fn of_seconds<'de, D: serde::Deserializer<'de>>(input: D) -> Result<Duration, D::Error> {
    let number = f64::deserialize(input)?;
    seconds(&number.to_string()).map_err(serde::de::Error::custom)
}

fn user(text: &str) -> Result<User, String> {
    let (uid, gid) = text.split_once(':').unwrap_or((text, text));
    match (uid.parse(), gid.parse()) {
        (Ok(0), _) | (_, Ok(0)) => Err("the service must not stay root".to_owned()),
        (Ok(uid), Ok(gid)) => Ok(User { uid, gid }),
        _ => Err("a number of a user, or UID:GID, is needed".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_setting_has_an_environment_variable_and_a_sentence() {
        CommandLine::command().debug_assert();
        for arg in settings_args() {
            let env = arg.get_env().map(|env| env.to_string_lossy().into_owned());
            let expected = format!("{ENV_PREFIX}{}", arg.get_id().as_str().to_uppercase());
            assert_eq!(env, Some(expected));
            assert!(arg.get_help().is_some(), "{}", arg.get_id());
        }
    }
}
