//! Which sandboxes of Python in WebAssembly there are, and how each is used.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args;
use secrecy::SecretString;
use serde::Deserialize;

use super::ConfigError;
use super::key::{self, KeyError};

const NAME: &str = "pydantic";
/// What V8, Pyodide and Deno take, before any code has run.
const LEAST_MEMORY_BYTES: u64 = 512 << 20;
/// WebAssembly addresses 4 GiB.
const MOST_MEMORY_BYTES: u64 = 5 << 30;
const LEAST_DISK_BYTES: u64 = 1 << 20;

/// Python in WebAssembly (Deno and Pyodide) on this host, over MCP; the provider entry `pydantic` is always there. More entries, and more settings, stand in the TOML file, as `[providers.NAME]`.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Provider pydantic")]
pub struct PydanticSettings {
    /// Memory of a sandbox in bytes, the interpreter's own 200 MB included, 512 MiB to 5 GiB
    #[arg(long, env = "INTERPRETERD_PYDANTIC_MEMORY_BYTES", default_value_t = memory_bytes())]
    pub pydantic_memory_bytes: u64,
    /// Room for the files of a sandbox, in bytes
    #[arg(long, env = "INTERPRETERD_PYDANTIC_DISK_BYTES", default_value_t = disk_bytes())]
    pub pydantic_disk_bytes: u64,
    /// Sandboxes that are kept ready for new sessions; each takes some 200 MB
    #[arg(long, env = "INTERPRETERD_PYDANTIC_POOL", default_value_t = 0)]
    pub pydantic_pool: u32,
    /// Run Deno with Landlock and a seccomp filter of ours around it, as far as this kernel has them
    #[arg(long, env = "INTERPRETERD_PYDANTIC_JAIL", default_value_t = true, num_args = 0..=1, default_missing_value = "true", require_equals = true, action = clap::ArgAction::Set)]
    pub pydantic_jail: bool,
    /// Command line of an MCP server that is used in place of the built-in one, such as `uvx mcp-run-python stdio`; words stand between spaces
    #[arg(long, env = "INTERPRETERD_PYDANTIC_COMMAND")]
    pub pydantic_command: Option<String>,
    /// URL of an MCP server (streamable HTTP) that is used in place of the built-in one
    #[arg(long, env = "INTERPRETERD_PYDANTIC_URL")]
    pub pydantic_url: Option<String>,
    /// The code of that command line or URL may reach a network, which is this host's too: only where callers need keys
    #[arg(long, env = "INTERPRETERD_PYDANTIC_NETWORK", default_value_t = false, num_args = 0..=1, default_missing_value = "true", require_equals = true)]
    pub pydantic_network: bool,
    /// All entries; made from the settings above and the TOML file.
    #[arg(skip)]
    pub entries: Vec<PydanticEntry>,
}

/// One kind of sandbox, ready to be used.
#[derive(Debug, Clone)]
pub struct PydanticEntry {
    /// The name that requests use.
    pub name: String,
    /// What runs the code.
    pub server: PydanticServer,
    /// Memory of a sandbox.
    pub memory_bytes: u64,
    /// Room for its files.
    pub disk_bytes: u64,
    /// How many are kept ready.
    pub pool: u32,
    /// Landlock and seccomp around Deno.
    pub jail: bool,
    /// The code may reach a network.
    pub network: bool,
    /// Somebody has described it, or made it the default: it is tried at the service's start.
    pub is_asked_for: bool,
}

/// What runs the code of an entry.
#[derive(Debug, Clone)]
pub enum PydanticServer {
    /// Our own server, by the Deno and the Pyodide that `guest install` has installed.
    Ours,
    /// A server that is started for each sandbox.
    Command {
        /// The program and its arguments.
        words: Vec<String>,
        /// Where it is started; the service's own folder when None.
        folder: Option<PathBuf>,
        /// All of its environment besides PATH and HOME.
        env: BTreeMap<String, String>,
    },
    /// A server that runs already, for one session at a time.
    Url {
        /// Where it answers.
        url: String,
        /// What is sent as `Authorization: Bearer`.
        token: Option<SecretString>,
    },
}

/// Why an entry cannot be used as it is described.
#[derive(Debug, thiserror::Error)]
pub enum PydanticError {
    /// There is no secret where one was named.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// Two servers are named.
    #[error("a command and a URL are named: name one of them")]
    TwoServers,
    /// There is no word.
    #[error("the command is empty")]
    NoCommand,
    /// A URL is none.
    #[error("the url must begin with http:// or https://")]
    Url,
    /// What belongs to another kind of server.
    #[error("{0}")]
    Beside(&'static str),
    /// A number is out of range.
    #[error("{0}")]
    Range(&'static str),
    /// The server would let code reach a network, and nobody has said that it may.
    #[error(
        "{0} lets code reach every network that this host reaches, its own services too: leave that out, \
         or say network = true (INTERPRETERD_PYDANTIC_NETWORK), which wants API keys"
    )]
    Network(String),
}

/// An entry as the TOML file describes it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PydanticTable {
    #[serde(default = "memory_bytes")]
    memory_bytes: u64,
    #[serde(default = "disk_bytes")]
    disk_bytes: u64,
    #[serde(default)]
    pool: u32,
    #[serde(default = "yes")]
    jail: bool,
    command: Option<Vec<String>>,
    folder: Option<PathBuf>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    url: Option<String>,
    token_env: Option<String>,
    token_file: Option<PathBuf>,
    #[serde(default)]
    network: bool,
}

impl PydanticSettings {
    /// Puts all entries into `entries`. `default_provider`: where requests go that name none.
    pub(super) fn resolve(
        &mut self,
        tables: BTreeMap<String, PydanticTable>,
        default_provider: &str,
    ) -> Result<(), ConfigError> {
        let named = |name: &str| {
            let name = name.to_owned();
            move |source| ConfigError::Pydantic { name, source }
        };
        let mut entries = Vec::new();
        if !tables.contains_key(NAME) {
            let mut own = self.own().map_err(named(NAME))?;
            own.is_asked_for = own.is_asked_for || default_provider == NAME;
            entries.push(own);
        } else if let Some(setting) = self.describes() {
            return Err(ConfigError::DescribedTwice { name: NAME.to_owned(), setting });
        }
        for (name, table) in tables {
            entries.push(table.entry(&name).map_err(named(&name))?);
        }
        self.entries = entries;
        Ok(())
    }

    fn describes(&self) -> Option<&'static str> {
        let is_set = |set: bool, name| set.then_some(name);
        let is_filled =
            |text: &Option<String>| text.as_ref().is_some_and(|text| !text.trim().is_empty());
        is_set(is_filled(&self.pydantic_command), "pydantic_command")
            .or(is_set(is_filled(&self.pydantic_url), "pydantic_url"))
            .or(is_set(self.pydantic_pool > 0, "pydantic_pool"))
            .or(is_set(self.pydantic_network, "pydantic_network"))
            .or(is_set(!self.pydantic_jail, "pydantic_jail"))
            .or(is_set(self.pydantic_memory_bytes != memory_bytes(), "pydantic_memory_bytes"))
            .or(is_set(self.pydantic_disk_bytes != disk_bytes(), "pydantic_disk_bytes"))
    }

    fn own(&self) -> Result<PydanticEntry, PydanticError> {
        let filled = |text: &Option<String>| text.clone().filter(|text| !text.trim().is_empty());
        let command = filled(&self.pydantic_command);
        let words = command.map(|text| text.split_whitespace().map(str::to_owned).collect());
        let table = PydanticTable {
            memory_bytes: self.pydantic_memory_bytes,
            disk_bytes: self.pydantic_disk_bytes,
            pool: self.pydantic_pool,
            jail: self.pydantic_jail,
            command: words,
            folder: None,
            env: BTreeMap::new(),
            url: filled(&self.pydantic_url),
            token_env: None,
            token_file: None,
            network: self.pydantic_network,
        };
        let is_asked_for = self.describes().is_some();
        Ok(PydanticEntry { is_asked_for, ..table.entry(NAME)? })
    }
}

impl PydanticTable {
    fn entry(self, name: &str) -> Result<PydanticEntry, PydanticError> {
        self.check()?;
        let token = key::named(self.token_env.as_deref(), self.token_file.as_deref())?;
        let server = match (self.command, self.url) {
            (Some(_), Some(_)) => return Err(PydanticError::TwoServers),
            (Some(words), None) => {
                let words = without_network(words, self.network)?;
                PydanticServer::Command { words, folder: self.folder, env: self.env }
            }
            (None, Some(url)) => PydanticServer::Url { url, token },
            (None, None) => PydanticServer::Ours,
        };
        Ok(PydanticEntry {
            name: name.to_owned(),
            server,
            memory_bytes: self.memory_bytes,
            disk_bytes: self.disk_bytes,
            pool: self.pool,
            jail: self.jail,
            network: self.network,
            is_asked_for: true,
        })
    }

    fn check(&self) -> Result<(), PydanticError> {
        if !(LEAST_MEMORY_BYTES..=MOST_MEMORY_BYTES).contains(&self.memory_bytes) {
            return Err(PydanticError::Range(
                "memory_bytes must be between 536870912 and 5368709120",
            ));
        }
        if self.disk_bytes < LEAST_DISK_BYTES {
            return Err(PydanticError::Range("disk_bytes must be 1048576 at least"));
        }
        let is_url = |url: &String| url.starts_with("http://") || url.starts_with("https://");
        if !self.url.as_ref().is_none_or(is_url) {
            return Err(PydanticError::Url);
        }
        let has_token = self.token_env.is_some() || self.token_file.is_some();
        if has_token && self.url.as_ref().is_some_and(|url| goes_in_the_clear(url)) {
            return Err(PydanticError::Beside("a token is sent over https, or to this host alone"));
        }
        if self.command.is_none() && (self.folder.is_some() || !self.env.is_empty()) {
            return Err(PydanticError::Beside("folder and env belong to a command: name one"));
        }
        if self.url.is_none() && has_token {
            return Err(PydanticError::Beside(
                "token_env and token_file belong to a url: name one",
            ));
        }
        if self.url.is_some() && self.pool > 0 {
            return Err(PydanticError::Beside(
                "a server at a URL serves one session at a time, so no pool can be kept",
            ));
        }
        if self.network && self.command.is_none() && self.url.is_none() {
            return Err(PydanticError::Beside(
                "the built-in server reaches no network: network belongs to a command or a url",
            ));
        }
        Ok(())
    }
}

/// A command line whose code reaches no network, unless that was asked for. mcp-run-python has it by
/// default; for Deno it is a permission.
fn without_network(words: Vec<String>, network: bool) -> Result<Vec<String>, PydanticError> {
    const SWITCH: &str = "--disable-networking";
    if words.first().is_none_or(|word| word.trim().is_empty()) {
        return Err(PydanticError::NoCommand);
    }
    if network {
        return Ok(words);
    }
    if let Some(word) = words.iter().find(|word| opens_network(word) || hides_command(word)) {
        return Err(PydanticError::Network(word.clone()));
    }
    let is_wrapper = |word: &String| {
        let name = word.rsplit('/').next().unwrap_or(word);
        name.split(['@', '=']).next() == Some("mcp-run-python")
            || word.trim_matches('_') == "mcp_run_python"
    };
    // the last one is what is run: uvx is also told where it comes from
    match words.iter().rposition(is_wrapper) {
        Some(place) if !words.iter().any(|word| word == SWITCH) => {
            let mut words = words;
            words.insert(place + 1, SWITCH.to_owned());
            Ok(words)
        }
        _ => Ok(words),
    }
}

/// A command line for a shell: what it starts cannot be seen to.
fn hides_command(word: &str) -> bool {
    let is_known = |part: &str| ["mcp-run-python", "mcp_run_python", "deno"].contains(&part);
    word.contains(char::is_whitespace)
        && word.split([' ', '\t', '\n', ';', '&', '|', '/']).any(is_known)
}

/// Deno's switches: -N, --allow-net, -A, --allow-all, also several short ones together.
fn opens_network(word: &str) -> bool {
    let long = ["--allow-net", "--allow-all"];
    if long.iter().any(|name| word == *name || word.starts_with(&format!("{name}="))) {
        return true;
    }
    let Some(short) = word.strip_prefix('-').filter(|rest| !rest.starts_with('-')) else {
        return false;
    };
    let letters = short.split('=').next().unwrap_or_default();
    !letters.is_empty()
        && letters.chars().all(|letter| "ARWENSPIrqfLcmh".contains(letter))
        && letters.contains(['A', 'N'])
}

fn goes_in_the_clear(url: &str) -> bool {
    let Some(rest) = url.strip_prefix("http://") else { return false };
    let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let is_here = |name: &str| host == name || host.starts_with(&format!("{name}:"));
    !["127.0.0.1", "localhost", "[::1]"].into_iter().any(is_here)
}

const fn memory_bytes() -> u64 {
    1 << 30
}

const fn disk_bytes() -> u64 {
    256 << 20
}

const fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use clap::{Command, FromArgMatches};

    use super::*;
    use crate::domain::coded::chain;

    fn resolved(flags: &[&str], file: &str, default: &str) -> Result<Vec<PydanticEntry>, String> {
        let command = PydanticSettings::augment_args(Command::new("serve"));
        let flags = ["serve"].iter().chain(flags);
        let mut settings = PydanticSettings::from_arg_matches(&command.get_matches_from(flags))
            .expect("good flags");
        let tables = toml::from_str(file).expect("good tables");
        settings.resolve(tables, default).map_err(|error| chain(&error))?;
        Ok(settings.entries)
    }

    #[test]
    fn the_built_in_entry_is_always_there_and_others_come_from_the_file() {
        let entries = resolved(&[], "", "local").expect("good");
        let [own] = entries.as_slice() else { panic!("one") };
        assert!(matches!(own.server, PydanticServer::Ours) && own.jail && !own.is_asked_for);
        assert!(resolved(&[], "", "pydantic").expect("good")[0].is_asked_for);
        let file = "[up]\ncommand = [\"deno\", \"run\", \"x.ts\"]\nenv = {A = \"b\"}\n[far]\nurl = \"http://127.0.0.1:1/mcp\"\n";
        let entries = resolved(&[], file, "local").expect("good");
        let names: Vec<_> = entries.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["pydantic", "far", "up"]);
        assert!(
            matches!(&entries[1].server, PydanticServer::Url { url, .. } if url.ends_with("mcp"))
        );
        let replaced = resolved(&[], "[pydantic]\nurl = \"http://a\"\n", "local").expect("good");
        assert_eq!(replaced.len(), 1);
    }

    #[test]
    fn code_reaches_no_network_unless_that_was_said() {
        let words = |line: &str, network| {
            without_network(line.split(' ').map(str::to_owned).collect(), network)
                .map(|words| words.join(" "))
        };
        for (line, started) in [
            ("uvx mcp-run-python stdio", "uvx mcp-run-python --disable-networking stdio"),
            (
                "uvx mcp-run-python@0.0.22 stdio",
                "uvx mcp-run-python@0.0.22 --disable-networking stdio",
            ),
            (
                "uvx --from mcp-run-python mcp-run-python stdio",
                "uvx --from mcp-run-python mcp-run-python --disable-networking stdio",
            ),
            (
                "python3 -m mcp_run_python stdio",
                "python3 -m mcp_run_python --disable-networking stdio",
            ),
            (
                "mcp-run-python --disable-networking stdio",
                "mcp-run-python --disable-networking stdio",
            ),
            ("deno run -R=node_modules x.ts stdio", "deno run -R=node_modules x.ts stdio"),
            ("server -nothing -Nice", "server -nothing -Nice"),
        ] {
            assert_eq!(words(line, false).expect("good"), started);
        }
        for line in [
            "deno run -N x.ts",
            "deno run -RN x.ts",
            "deno run --allow-net x.ts",
            "deno run --allow-net=a.b x.ts",
            "deno run -N=a.b x.ts",
            "deno run -A x.ts",
            "deno run -RWENSPIqN x.ts",
        ] {
            assert!(matches!(words(line, false), Err(PydanticError::Network(_))), "{line}");
            assert_eq!(words(line, true).expect("it was said"), line);
        }
    }

    #[test]
    fn entries_that_cannot_be_are_refused_with_their_name() {
        for (line, word) in [
            ("command = []", "empty"),
            ("command = [\"a\"]\nurl = \"http://a\"", "one of them"),
            ("url = \"ftp://a\"", "http://"),
            ("memory_bytes = 1000", "memory_bytes"),
            ("disk_bytes = 1000", "disk_bytes"),
            ("folder = \"/x\"", "command"),
            ("token_env = \"PATH\"", "url"),
            ("network = true", "built-in"),
            ("url = \"http://a\"\npool = 2", "pool"),
            ("command = [\"deno\", \"-A\"]", "-A"),
            ("command = [\"sh\", \"-c\", \"uvx mcp-run-python stdio\"]", "mcp-run-python"),
            ("url = \"http://a.example/x\"\ntoken_env = \"PATH\"", "https"),
        ] {
            let why = resolved(&[], &format!("[a]\n{line}\n"), "local").expect_err(line);
            assert!(why.contains(word) && why.contains(" a "), "{why}");
        }
        let twice = resolved(&["--pydantic-pool", "2"], "[pydantic]\npool = 1\n", "local");
        assert!(twice.expect_err("twice").contains("pydantic_pool"));
    }
}
