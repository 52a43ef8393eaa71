//! Which E2B accounts and deployments there are, and how each is used.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;

use super::key::{self, KeyError};
use super::{ConfigError, of_seconds, seconds, vendor};

const VENDOR_DOMAIN: &str = "e2b.app";
const TEMPLATE: &str = "code-interpreter-v1";
/// E2B lets none live for less, or for more than a day.
const TTL_SECONDS: std::ops::RangeInclusive<u64> = 30..=86_400;

/// Sandboxes of E2B, or of what speaks its API; with a key the provider entry `e2b` is there. More entries, and more settings, stand in the TOML file, as `[providers.NAME]`.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Provider e2b")]
pub struct E2bSettings {
    /// Key for E2B; else E2B_API_KEY
    #[arg(long, env = "INTERPRETERD_E2B_API_KEY", hide_env_values = true)]
    pub e2b_api_key: Option<SecretString>,
    /// File that holds the key, in place of INTERPRETERD_E2B_API_KEY
    #[arg(long, env = "INTERPRETERD_E2B_API_KEY_FILE")]
    pub e2b_api_key_file: Option<PathBuf>,
    /// Domain of the deployment; else E2B_DOMAIN, else e2b.app
    #[arg(long, env = "INTERPRETERD_E2B_DOMAIN")]
    pub e2b_domain: Option<String>,
    /// Base URL of the control plane, where it is not https://api.DOMAIN; else E2B_API_URL
    #[arg(long, env = "INTERPRETERD_E2B_API_URL")]
    pub e2b_api_url: Option<String>,
    /// Base URL of all sandboxes, where they have no names below the domain; else E2B_SANDBOX_URL
    #[arg(long, env = "INTERPRETERD_E2B_SANDBOX_URL")]
    pub e2b_sandbox_url: Option<String>,
    /// Template that sandboxes are made from; it must hold E2B's code interpreter
    #[arg(long, env = "INTERPRETERD_E2B_TEMPLATE", default_value = TEMPLATE)]
    pub e2b_template: String,
    /// Time after which E2B ends a sandbox by itself, unless the service puts that off, which it does while the session lives; in seconds
    #[arg(long, env = "INTERPRETERD_E2B_TTL_SECONDS", default_value = "600", value_parser = seconds)]
    pub e2b_ttl_seconds: Duration,
    /// All entries; made from the settings above and the TOML file.
    #[arg(skip)]
    pub entries: Vec<E2bEntry>,
}

/// One account or deployment, ready to be used.
#[derive(Debug, Clone)]
pub struct E2bEntry {
    /// The name that requests use.
    pub name: String,
    /// The key.
    pub api_key: SecretString,
    /// The deployment's domain.
    pub domain: String,
    /// The control plane, where the domain does not say it.
    pub api_url: Option<String>,
    /// All sandboxes, where the domain does not say it.
    pub sandbox_url: Option<String>,
    /// What sandboxes are made from.
    pub template: String,
    /// When a sandbox ends that nobody puts off.
    pub ttl: Duration,
    /// Whoever knows a sandbox's id may reach its ports.
    pub public_traffic: bool,
    /// The code may reach the internet; E2B's own default when absent.
    pub internet: Option<bool>,
    /// What it may reach besides, or alone when `deny_out` holds everything.
    pub allow_out: Vec<String>,
    /// What it may not reach.
    pub deny_out: Vec<String>,
    /// Sandboxes that are asked for at once.
    pub concurrent_creates: u32,
    /// A run that ends without E2B's mark of its end is of unknown outcome.
    pub require_end_event: bool,
    /// Certificates that are trusted besides the system's, PEM.
    pub ca_file: Option<PathBuf>,
    /// Where pip finds packages; its own default when absent.
    pub package_index: Option<String>,
    /// Sandboxes that are kept ready.
    pub pool: u32,
}

/// Why an entry cannot be used as it is described.
#[derive(Debug, thiserror::Error)]
pub enum E2bError {
    /// There is no key where one was named.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// No key was named.
    #[error("it has no key: name one as api_key_env or api_key_file")]
    NoKey,
    /// A number is out of range.
    #[error("{name} must be between {least} and {most}")]
    Range {
        /// Which.
        name: &'static str,
        /// The least.
        least: u64,
        /// The most.
        most: u64,
    },
    /// A URL is none.
    #[error("{0} must be a URL that begins with http:// or https://")]
    Url(&'static str),
    /// The domain is none.
    #[error("the domain must be a host name, such as e2b.app")]
    Domain,
}

/// An entry as the TOML file describes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct E2bTable {
    api_key_env: Option<String>,
    api_key_file: Option<PathBuf>,
    domain: Option<String>,
    api_url: Option<String>,
    sandbox_url: Option<String>,
    #[serde(default = "template")]
    template: String,
    #[serde(default = "ten_minutes", deserialize_with = "of_seconds")]
    ttl_seconds: Duration,
    #[serde(default)]
    public_traffic: bool,
    internet: Option<bool>,
    #[serde(default)]
    allow_out: Vec<String>,
    #[serde(default)]
    deny_out: Vec<String>,
    #[serde(default = "four")]
    concurrent_creates: u32,
    #[serde(default = "yes")]
    require_end_event: bool,
    ca_file: Option<PathBuf>,
    package_index: Option<String>,
    #[serde(default)]
    pool: u32,
}

impl E2bSettings {
    /// Puts all entries into `entries`, with their keys.
    pub(super) fn resolve(
        &mut self,
        tables: BTreeMap<String, E2bTable>,
    ) -> Result<(), ConfigError> {
        let named = |name: &str| {
            let name = name.to_owned();
            move |source| ConfigError::E2b { name, source }
        };
        if tables.contains_key("e2b")
            && let Some(setting) = self.describes()
        {
            return Err(ConfigError::DescribedTwice { name: "e2b".to_owned(), setting });
        }
        // the vendor's key alone makes an entry where no other one is described
        let vendors = if tables.is_empty() { vendor("E2B_API_KEY") } else { None };
        let own = self.own(vendors.map(Into::into)).map_err(named("e2b"))?;
        let mut entries: Vec<_> = own.into_iter().collect();
        for (name, table) in tables {
            entries.push(table.entry(&name).map_err(named(&name))?);
        }
        self.entries = entries;
        Ok(())
    }

    /// The setting by which flags and environment describe an entry of their own.
    fn describes(&self) -> Option<&'static str> {
        let is_set = |set: bool, name| set.then_some(name);
        is_set(self.e2b_api_key.as_ref().is_some_and(is_key), "e2b_api_key")
            .or(is_set(self.e2b_api_key_file.is_some(), "e2b_api_key_file"))
            .or(is_set(self.e2b_domain.is_some(), "e2b_domain"))
            .or(is_set(self.e2b_api_url.is_some(), "e2b_api_url"))
            .or(is_set(self.e2b_sandbox_url.is_some(), "e2b_sandbox_url"))
    }

    /// The entry that flags and environment describe: there is one when there is a key.
    fn own(&self, vendors: Option<SecretString>) -> Result<Option<E2bEntry>, E2bError> {
        let given = self.e2b_api_key.clone().filter(is_key);
        let file = self.e2b_api_key_file.as_deref().filter(|path| !path.as_os_str().is_empty());
        let Some(api_key) = key::given(given, file)?.or(vendors) else { return Ok(None) };
        let or_vendor = |own: &Option<String>, name| {
            own.clone().filter(|text| !text.is_empty()).or_else(|| vendor(name))
        };
        let entry = E2bEntry {
            name: "e2b".to_owned(),
            api_key,
            domain: or_vendor(&self.e2b_domain, "E2B_DOMAIN").unwrap_or_else(vendor_domain),
            api_url: or_vendor(&self.e2b_api_url, "E2B_API_URL"),
            sandbox_url: or_vendor(&self.e2b_sandbox_url, "E2B_SANDBOX_URL"),
            template: self.e2b_template.clone(),
            ttl: self.e2b_ttl_seconds,
            public_traffic: false,
            internet: None,
            allow_out: Vec::new(),
            deny_out: Vec::new(),
            concurrent_creates: four(),
            require_end_event: true,
            ca_file: None,
            package_index: None,
            pool: 0,
        };
        entry.checked().map(Some)
    }
}

impl E2bTable {
    fn entry(self, name: &str) -> Result<E2bEntry, E2bError> {
        let named = key::named(self.api_key_env.as_deref(), self.api_key_file.as_deref())?;
        // the vendor's key goes to the vendor alone
        let is_vendors = self.domain.is_none() && self.api_url.is_none();
        let vendors = || vendor("E2B_API_KEY").filter(|_| is_vendors).map(Into::into);
        let entry = E2bEntry {
            name: name.to_owned(),
            api_key: named.or_else(vendors).ok_or(E2bError::NoKey)?,
            domain: self.domain.unwrap_or_else(vendor_domain),
            api_url: self.api_url,
            sandbox_url: self.sandbox_url,
            template: self.template,
            ttl: self.ttl_seconds,
            public_traffic: self.public_traffic,
            internet: self.internet,
            allow_out: self.allow_out,
            deny_out: self.deny_out,
            concurrent_creates: self.concurrent_creates,
            require_end_event: self.require_end_event,
            ca_file: self.ca_file,
            package_index: self.package_index,
            pool: self.pool,
        };
        entry.checked()
    }
}

impl E2bEntry {
    /// Whether the code may reach anything outside of its sandbox.
    #[must_use]
    pub fn reaches_out(&self) -> bool {
        let is_shut = self.deny_out.iter().any(|range| range == "0.0.0.0/0");
        self.internet != Some(false) && (!is_shut || !self.allow_out.is_empty())
    }

    fn checked(self) -> Result<Self, E2bError> {
        let (least, most) = (*TTL_SECONDS.start(), *TTL_SECONDS.end());
        if !TTL_SECONDS.contains(&self.ttl.as_secs()) {
            return Err(E2bError::Range { name: "ttl_seconds", least, most });
        }
        if !(1..=100).contains(&self.concurrent_creates) {
            return Err(E2bError::Range { name: "concurrent_creates", least: 1, most: 100 });
        }
        if self.pool > 100 {
            return Err(E2bError::Range { name: "pool", least: 0, most: 100 });
        }
        let is_url = |url: &String| url.starts_with("http://") || url.starts_with("https://");
        for (name, url) in [
            ("api_url", &self.api_url),
            ("sandbox_url", &self.sandbox_url),
            ("package_index", &self.package_index),
        ] {
            if !url.as_ref().is_none_or(is_url) {
                return Err(E2bError::Url(name));
            }
        }
        let of_host = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':');
        if self.domain.is_empty() || !self.domain.chars().all(of_host) {
            return Err(E2bError::Domain);
        }
        Ok(self)
    }
}

fn is_key(key: &SecretString) -> bool {
    !key.expose_secret().is_empty()
}

fn vendor_domain() -> String {
    VENDOR_DOMAIN.to_owned()
}

fn template() -> String {
    TEMPLATE.to_owned()
}

const fn ten_minutes() -> Duration {
    Duration::from_secs(600)
}

const fn four() -> u32 {
    4
}

const fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use clap::{Command, FromArgMatches};

    use super::*;
    use crate::domain::coded::chain;

    fn resolved(flags: &[&str], file: &str) -> Result<Vec<E2bEntry>, ConfigError> {
        let command = E2bSettings::augment_args(Command::new("serve"));
        let flags = ["serve"].iter().chain(flags);
        let matches = command.get_matches_from(flags);
        let mut settings = E2bSettings::from_arg_matches(&matches).expect("good flags");
        settings.resolve(toml::from_str(file).expect("good tables"))?;
        Ok(settings.entries)
    }

    fn told(flags: &[&str], file: &str) -> String {
        chain(&resolved(flags, file).expect_err("refused"))
    }

    #[test]
    fn entries_come_from_flags_and_from_the_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        std::fs::write(&path, "two\n").expect("written");
        let file = format!(
            "[own]\napi_key_file = {path:?}\ndomain = \"sandboxes.example\"\nttl_seconds = 60\ndeny_out = [\"0.0.0.0/0\"]\n"
        );
        let entries = resolved(&["--e2b-api-key", "one"], &file).expect("good");
        let [first, second] = entries.as_slice() else { panic!("two") };
        assert_eq!((first.name.as_str(), first.api_key.expose_secret()), ("e2b", "one"));
        assert_eq!((first.domain.as_str(), first.ttl.as_secs()), ("e2b.app", 600));
        assert_eq!((second.name.as_str(), second.api_key.expose_secret()), ("own", "two"));
        assert_eq!((second.domain.as_str(), second.ttl.as_secs()), ("sandboxes.example", 60));
        assert!(!second.public_traffic && second.require_end_event);
        assert!(resolved(&[], "").expect("good").is_empty(), "without a key there is no entry");
    }

    #[test]
    fn entries_that_cannot_be_are_refused_with_their_name() {
        let with = |line: &str| format!("[a]\napi_key_env = \"PATH\"\n{line}\n");
        for (line, word) in [
            ("ttl_seconds = 5", "ttl_seconds"),
            ("concurrent_creates = 0", "concurrent_creates"),
            ("api_url = \"ftp://x\"", "api_url"),
            ("domain = \"a/b\"", "domain"),
        ] {
            let why = told(&[], &with(line));
            assert!(why.contains(word) && why.contains(" a "), "{why}");
        }
        assert!(told(&[], "[a]\ndomain = \"x.example\"\n").contains("no key"));
        let twice = told(&["--e2b-api-key", "k"], "[e2b]\napi_key_env = \"PATH\"\n");
        assert!(twice.contains("e2b_api_key"), "{twice}");
        assert!(toml::from_str::<E2bTable>("templates = \"x\"").is_err());
    }
}
