//! Which code interpreters of AWS there are, and how each is used.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use super::key::{self, KeyError};
use super::{ConfigError, of_seconds, seconds, vendor};

const NAME: &str = "bedrock";
/// What every account has.
const SYSTEM_INTERPRETER: &str = "aws.codeinterpreter.v1";
/// What AWS lets a session live: from its start, whatever is done with it.
const SESSION_SECONDS: std::ops::RangeInclusive<u64> = 60..=28_800;

/// Sandboxes of AWS Bedrock AgentCore; with a region the provider entry `bedrock` is there. More entries, and more settings, stand in the TOML file, as `[providers.NAME]`.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Provider bedrock")]
pub struct BedrockSettings {
    /// Region of AWS, such as us-west-2; else AWS_REGION where `bedrock` is the default provider
    #[arg(long, env = "INTERPRETERD_BEDROCK_REGION")]
    pub bedrock_region: Option<String>,
    /// Id of the code interpreter
    #[arg(long, env = "INTERPRETERD_BEDROCK_INTERPRETER", default_value = SYSTEM_INTERPRETER)]
    pub bedrock_interpreter: String,
    /// Base URL of the service, where it is not the region's own
    #[arg(long, env = "INTERPRETERD_BEDROCK_ENDPOINT_URL")]
    pub bedrock_endpoint_url: Option<String>,
    /// Profile of AWS's own files of settings
    #[arg(long, env = "INTERPRETERD_BEDROCK_PROFILE")]
    pub bedrock_profile: Option<String>,
    /// Access key; without it AWS's usual chain of credentials is asked
    #[arg(long, env = "INTERPRETERD_BEDROCK_ACCESS_KEY_ID")]
    pub bedrock_access_key_id: Option<String>,
    /// Secret of the access key
    #[arg(long, env = "INTERPRETERD_BEDROCK_SECRET_ACCESS_KEY", hide_env_values = true)]
    pub bedrock_secret_access_key: Option<SecretString>,
    /// File that holds the secret, in place of INTERPRETERD_BEDROCK_SECRET_ACCESS_KEY
    #[arg(long, env = "INTERPRETERD_BEDROCK_SECRET_ACCESS_KEY_FILE")]
    pub bedrock_secret_access_key_file: Option<PathBuf>,
    /// How long a sandbox lives unless its session asks for more, 60 to 28800; AWS ends it then, whatever it does; in seconds
    #[arg(long, env = "INTERPRETERD_BEDROCK_SESSION_SECONDS", default_value = "900", value_parser = seconds)]
    pub bedrock_session_seconds: Duration,
    /// The code interpreter reaches the internet (its network mode is PUBLIC, or VPC with a way out), so that packages can be installed
    #[arg(long, env = "INTERPRETERD_BEDROCK_INTERNET", default_value_t = false, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub bedrock_internet: bool,
    /// All entries; made from the settings above and the TOML file.
    #[arg(skip)]
    pub entries: Vec<BedrockEntry>,
}

/// One code interpreter in one account and region, ready to be used.
#[derive(Debug, Clone)]
pub struct BedrockEntry {
    /// The name that requests use.
    pub name: String,
    /// The region.
    pub region: String,
    /// The code interpreter's id.
    pub interpreter: String,
    /// The service, where the region does not say it.
    pub endpoint_url: Option<String>,
    /// By what calls are signed.
    pub credentials: BedrockCredentials,
    /// How long a sandbox lives unless its session asks for more.
    pub session: Duration,
    /// The code reaches the internet.
    pub internet: bool,
    /// Where pip finds packages; its own default when absent.
    pub package_index: Option<String>,
}

/// By what calls to AWS are signed.
#[derive(Debug, Clone)]
pub enum BedrockCredentials {
    /// AWS's usual chain: variables, files, the machine's or the container's role.
    Chain,
    /// The same, by this profile of AWS's files.
    Profile(String),
    /// An access key.
    Key {
        /// Its id.
        id: String,
        /// Its secret.
        secret: SecretString,
        /// The token of a temporary one.
        token: Option<SecretString>,
    },
}

/// Why an entry cannot be used as it is described.
#[derive(Debug, thiserror::Error)]
pub enum BedrockError {
    /// There is no secret where one was named.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// An access key stands without its other half.
    #[error("an access key is its id and its secret: one of the two is missing")]
    HalfKey,
    /// Two ways to sign calls are named.
    #[error("a profile and an access key are named: name one of them")]
    TwoCredentials,
    /// No region was named.
    #[error("it has no region: name one, such as us-west-2")]
    NoRegion,
    /// The region is none.
    #[error("the region must look like us-west-2")]
    Region,
    /// The id is none.
    #[error(
        "the interpreter must be aws.codeinterpreter.v1, or the id of one of your own, such as name-0123456789"
    )]
    Interpreter,
    /// A number is out of range.
    #[error("session_seconds must be between 60 and 28800")]
    Session,
    /// A URL is none.
    #[error("{0} must be a URL that begins with http:// or https://")]
    Url(&'static str),
}

/// An entry as the TOML file describes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BedrockTable {
    region: Option<String>,
    #[serde(default = "system_interpreter")]
    interpreter: String,
    endpoint_url: Option<String>,
    profile: Option<String>,
    access_key_id: Option<String>,
    secret_access_key_env: Option<String>,
    secret_access_key_file: Option<PathBuf>,
    session_token_env: Option<String>,
    #[serde(default = "quarter_of_an_hour", deserialize_with = "of_seconds")]
    session_seconds: Duration,
    #[serde(default)]
    internet: bool,
    package_index: Option<String>,
}

impl BedrockSettings {
    /// Puts all entries into `entries`, with their keys. `is_default`: requests that name no provider
    /// are to come here.
    pub(super) fn resolve(
        &mut self,
        tables: BTreeMap<String, BedrockTable>,
        is_default: bool,
    ) -> Result<(), ConfigError> {
        let named = |name: &str| {
            let name = name.to_owned();
            move |source| ConfigError::Bedrock { name, source }
        };
        let is_described = tables.contains_key(NAME);
        if is_described && let Some(setting) = self.describes() {
            return Err(ConfigError::DescribedTwice { name: NAME.to_owned(), setting });
        }
        let mut entries = Vec::new();
        let is_own = self.bedrock_region.as_deref().is_some_and(|region| !region.is_empty());
        if is_own || is_default && !is_described {
            entries.push(self.own().map_err(named(NAME))?);
        }
        for (name, table) in tables {
            entries.push(table.entry(&name).map_err(named(&name))?);
        }
        self.entries = entries;
        Ok(())
    }

    /// The setting by which flags and environment describe an entry of their own.
    fn describes(&self) -> Option<&'static str> {
        let is_set = |set: bool, name| set.then_some(name);
        is_set(self.bedrock_region.is_some(), "bedrock_region")
            .or(is_set(self.bedrock_endpoint_url.is_some(), "bedrock_endpoint_url"))
            .or(is_set(self.bedrock_profile.is_some(), "bedrock_profile"))
            .or(is_set(self.bedrock_access_key_id.is_some(), "bedrock_access_key_id"))
    }

    fn own(&self) -> Result<BedrockEntry, BedrockError> {
        let given = self.bedrock_secret_access_key.clone();
        let secret = given.filter(|secret| !secret.expose_secret().is_empty());
        let secret = key::given(secret, filled(self.bedrock_secret_access_key_file.as_deref()))?;
        let id = self.bedrock_access_key_id.clone().filter(|id| !id.is_empty());
        let profile = self.bedrock_profile.clone().filter(|profile| !profile.is_empty());
        let entry = BedrockEntry {
            name: NAME.to_owned(),
            region: region(self.bedrock_region.clone())?,
            interpreter: self.bedrock_interpreter.clone(),
            endpoint_url: self.bedrock_endpoint_url.clone().filter(|url| !url.is_empty()),
            credentials: credentials(profile, id, secret, None)?,
            session: self.bedrock_session_seconds,
            internet: self.bedrock_internet,
            package_index: None,
        };
        entry.checked()
    }
}

impl BedrockTable {
    fn entry(self, name: &str) -> Result<BedrockEntry, BedrockError> {
        let secret = key::named(
            self.secret_access_key_env.as_deref(),
            self.secret_access_key_file.as_deref(),
        )?;
        let token = key::named(self.session_token_env.as_deref(), None)?;
        let entry = BedrockEntry {
            name: name.to_owned(),
            region: region(self.region)?,
            interpreter: self.interpreter,
            endpoint_url: self.endpoint_url,
            credentials: credentials(self.profile, self.access_key_id, secret, token)?,
            session: self.session_seconds,
            internet: self.internet,
            package_index: self.package_index,
        };
        entry.checked()
    }
}

impl BedrockEntry {
    /// The longest that AWS lets a sandbox live.
    pub const LONGEST: Duration = Duration::from_secs(*SESSION_SECONDS.end());

    fn checked(self) -> Result<Self, BedrockError> {
        // both become parts of the address that calls go to
        if !is_region(&self.region) {
            return Err(BedrockError::Region);
        }
        if !is_interpreter(&self.interpreter) {
            return Err(BedrockError::Interpreter);
        }
        if !SESSION_SECONDS.contains(&self.session.as_secs()) {
            return Err(BedrockError::Session);
        }
        let is_url = |url: &String| url.starts_with("http://") || url.starts_with("https://");
        for (name, url) in
            [("endpoint_url", &self.endpoint_url), ("package_index", &self.package_index)]
        {
            if !url.as_ref().is_none_or(is_url) {
                return Err(BedrockError::Url(name));
            }
        }
        Ok(self)
    }
}

fn filled(path: Option<&Path>) -> Option<&Path> {
    path.filter(|path| !path.as_os_str().is_empty())
}

fn region(own: Option<String>) -> Result<String, BedrockError> {
    let own = own.filter(|region| !region.is_empty());
    let region = own.or_else(|| vendor("AWS_REGION")).or_else(|| vendor("AWS_DEFAULT_REGION"));
    region.ok_or(BedrockError::NoRegion)
}

fn credentials(
    profile: Option<String>,
    id: Option<String>,
    secret: Option<SecretString>,
    token: Option<SecretString>,
) -> Result<BedrockCredentials, BedrockError> {
    match (profile, id, secret) {
        (None, None, None) => Ok(BedrockCredentials::Chain),
        (Some(profile), None, None) => Ok(BedrockCredentials::Profile(profile)),
        (None, Some(id), Some(secret)) => Ok(BedrockCredentials::Key { id, secret, token }),
        (None, _, _) => Err(BedrockError::HalfKey),
        (Some(_), _, _) => Err(BedrockError::TwoCredentials),
    }
}

/// Such as us-west-2 or us-gov-east-1.
fn is_region(text: &str) -> bool {
    let parts: Vec<&str> = text.split('-').collect();
    let [area, places @ .., number] = parts.as_slice() else { return false };
    let is_word = |word: &&str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase());
    let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    (2..=4).contains(&area.len())
        && is_word(area)
        && !places.is_empty()
        && places.iter().all(is_word)
        && is_number
}

/// As AWS's own model of the service has it.
fn is_interpreter(text: &str) -> bool {
    let Some((name, suffix)) = text.rsplit_once('-') else { return text == SYSTEM_INTERPRETER };
    let is_name = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    (1..=48).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphabetic())
        && name.bytes().all(is_name)
        && suffix.len() == 10
        && suffix.bytes().all(|b| b.is_ascii_alphanumeric())
}

fn system_interpreter() -> String {
    SYSTEM_INTERPRETER.to_owned()
}

const fn quarter_of_an_hour() -> Duration {
    Duration::from_secs(900)
}

#[cfg(test)]
mod tests {
    use clap::{Command, FromArgMatches};

    use super::*;
    use crate::domain::coded::chain;

    fn resolved(flags: &[&str], file: &str, is_default: bool) -> Result<Vec<BedrockEntry>, String> {
        let command = BedrockSettings::augment_args(Command::new("serve"));
        let flags = ["serve"].iter().chain(flags);
        let mut settings = BedrockSettings::from_arg_matches(&command.get_matches_from(flags))
            .expect("good flags");
        let tables = toml::from_str(file).expect("good tables");
        settings.resolve(tables, is_default).map_err(|error| chain(&error))?;
        Ok(settings.entries)
    }

    #[test]
    fn entries_come_from_flags_and_from_the_file() {
        let file = "[eu]\nregion = \"eu-central-1\"\ninterpreter = \"mine_1-0123456789\"\nprofile = \"data\"\nsession_seconds = 3600\ninternet = true\n";
        let entries = resolved(&["--bedrock-region", "us-west-2"], file, false).expect("good");
        let [own, eu] = entries.as_slice() else { panic!("two") };
        assert_eq!((own.name.as_str(), own.region.as_str()), ("bedrock", "us-west-2"));
        assert_eq!((own.interpreter.as_str(), own.session.as_secs()), (SYSTEM_INTERPRETER, 900));
        assert!(matches!(own.credentials, BedrockCredentials::Chain) && !own.internet);
        assert_eq!((eu.interpreter.as_str(), eu.session.as_secs()), ("mine_1-0123456789", 3600));
        assert!(matches!(&eu.credentials, BedrockCredentials::Profile(name) if name == "data"));
        assert!(resolved(&[], "", false).expect("good").is_empty(), "nobody asked for one");
    }

    #[test]
    fn entries_that_cannot_be_are_refused_with_their_name() {
        let told = |flags: &[&str], file: &str| resolved(flags, file, false).expect_err("refused");
        for (line, word) in [
            ("region = \"us-west\"", "region"),
            ("region = \"us-west-2.evil.example/x-1\"", "region"),
            ("region = \"us-west-2\"\ninterpreter = \"a/b-0123456789\"", "interpreter"),
            ("region = \"us-west-2\"\nsession_seconds = 30", "session_seconds"),
            ("region = \"us-west-2\"\nsession_seconds = 28801", "session_seconds"),
            ("region = \"us-west-2\"\nendpoint_url = \"ftp://x\"", "endpoint_url"),
            ("region = \"us-west-2\"\naccess_key_id = \"A\"", "secret"),
            (
                "region = \"us-west-2\"\nprofile = \"p\"\naccess_key_id = \"A\"\nsecret_access_key_env = \"PATH\"",
                "profile",
            ),
        ] {
            let why = told(&[], &format!("[a]\n{line}\n"));
            assert!(why.contains(word) && why.contains(" a "), "{why}");
        }
        let twice = told(&["--bedrock-region", "us-west-2"], "[bedrock]\nregion = \"us-west-2\"\n");
        assert!(twice.contains("bedrock_region"), "{twice}");
        assert!(toml::from_str::<BedrockTable>("regions = \"x\"").is_err());
    }

    #[test]
    fn regions_and_ids_are_as_aws_has_them() {
        for good in ["us-west-2", "us-gov-east-1", "eusc-de-east-1", "ap-south-12"] {
            assert!(is_region(good), "{good}");
        }
        for bad in [
            "",
            "us-west",
            "us-2",
            "US-WEST-2",
            "us--2",
            "us-west-2 ",
            "us-west-2/x",
            "usaaa-west-2",
        ] {
            assert!(!is_region(bad), "{bad}");
        }
        for (text, good) in [
            (SYSTEM_INTERPRETER, true),
            ("mine-0123456789", true),
            ("m_1-abcdeABCDE", true),
            ("1m-0123456789", false),
            ("mine-012345678", false),
            ("aws.codeinterpreter.v2", false),
            ("", false),
        ] {
            assert_eq!(is_interpreter(text), good, "{text}");
        }
    }
}
