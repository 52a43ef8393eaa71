//! The TOML file: defaults of settings, and what it describes by name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Command;
use serde::Deserialize;

use super::bedrock::BedrockTable;
use super::e2b::E2bTable;
use super::model::ModelTables;
use super::pydantic::PydanticTable;
use super::{ConfigError, settings_args};

/// What the TOML file describes by name.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) models: ModelTables,
    pub(super) e2b: BTreeMap<String, E2bTable>,
    pub(super) bedrock: BTreeMap<String, BedrockTable>,
    pub(super) pydantic: BTreeMap<String, PydanticTable>,
}

/// An entry of `[providers]`, by its kind.
#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum ProviderTable {
    E2b(Box<E2bTable>),
    Bedrock(Box<BedrockTable>),
    Pydantic(Box<PydanticTable>),
}

/// The command with the file's values in place of the defaults, and what else it describes.
pub(super) fn with_file(
    command: Command,
    path: &PathBuf,
) -> Result<(Command, Tables), ConfigError> {
    let text =
        std::fs::read_to_string(path).map_err(|error| ConfigError::Read(path.clone(), error))?;
    let mut table: toml::Table = text.parse().map_err(|error| not_toml(path, &error))?;
    let mut tables = Tables { models: described(path, &mut table, "models")?, ..Tables::default() };
    for (name, provider) in described(path, &mut table, "providers")? {
        if name == "local" {
            return Err(ConfigError::LocalEntry);
        }
        match provider {
            ProviderTable::E2b(entry) => {
                tables.e2b.insert(name, *entry);
            }
            ProviderTable::Bedrock(entry) => {
                tables.bedrock.insert(name, *entry);
            }
            ProviderTable::Pydantic(entry) => {
                tables.pydantic.insert(name, *entry);
            }
        }
    }
    let mut defaults = Vec::new();
    for (key, value) in &table {
        if key == "config" || !settings_args().iter().any(|arg| arg.get_id() == key.as_str()) {
            return Err(ConfigError::UnknownKey { path: path.clone(), key: key.clone() });
        }
        let values = words(value)
            .ok_or_else(|| ConfigError::Shape { path: path.clone(), key: key.clone() })?;
        defaults.push((key.clone(), values));
    }
    let set = |subcommand: Command| {
        subcommand.mut_args(|arg| {
            match defaults.iter().find(|(key, _)| arg.get_id() == key.as_str()) {
                Some((_, values)) => arg.default_values(values.clone()),
                None => arg,
            }
        })
    };
    // every subcommand that has all settings
    let all = ["serve", "migrate", "check", "healthcheck"];
    Ok((all.into_iter().fold(command, |command, name| command.mut_subcommand(name, set)), tables))
}

/// The tables below one name, each read as what it must be.
fn described<T: serde::de::DeserializeOwned>(
    path: &Path,
    table: &mut toml::Table,
    below: &'static str,
) -> Result<BTreeMap<String, T>, ConfigError> {
    let unusable = |name: &str, error: &toml::de::Error| ConfigError::Described {
        path: path.to_owned(),
        below,
        name: name.to_owned(),
        what: error.message().to_owned(),
    };
    let Some(value) = table.remove(below) else { return Ok(BTreeMap::new()) };
    let tables: toml::Table = value.try_into().map_err(|error| unusable("*", &error))?;
    let mut read = BTreeMap::new();
    for (name, value) in tables {
        let entry = value.try_into().map_err(|error| unusable(&name, &error))?;
        read.insert(name, entry);
    }
    Ok(read)
}

fn not_toml(path: &Path, error: &toml::de::Error) -> ConfigError {
    let place = error.span().map_or(0, |span| span.start);
    ConfigError::Toml { path: path.to_owned(), place, what: error.message().to_owned() }
}

fn words(value: &toml::Value) -> Option<Vec<String>> {
    match value {
        toml::Value::String(text) => Some(vec![text.clone()]),
        toml::Value::Integer(number) => Some(vec![number.to_string()]),
        toml::Value::Float(number) => Some(vec![number.to_string()]),
        toml::Value::Boolean(flag) => Some(vec![flag.to_string()]),
        toml::Value::Array(items) => {
            items.iter().map(words).collect::<Option<Vec<_>>>().map(|lists| lists.concat())
        }
        toml::Value::Datetime(_) | toml::Value::Table(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::{CommandFactory, FromArgMatches};

    use super::*;
    use crate::config::{Action, CommandLine};

    #[test]
    fn a_file_gives_defaults_and_flags_win_over_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("settings.toml");
        std::fs::write(&path, "turns = 3\nlisten = \"127.0.0.1:1\"\nallowed_hosts = [\"a\", \"b\"]\ncell_seconds = 1.5\n")
            .expect("written");
        let (command, _) = with_file(CommandLine::command(), &path).expect("a good file");
        let matches =
            command.get_matches_from(["interpreterd", "serve", "--listen", "127.0.0.1:2"]);
        let line = CommandLine::from_arg_matches(&matches).expect("good settings");
        let Action::Serve(settings) = line.action else { panic!("serve") };
        assert_eq!(settings.limits.turns, 3);
        assert_eq!(settings.limits.cell_seconds, Duration::from_millis(1500));
        assert_eq!(settings.server.allowed_hosts, ["a", "b"]);
        assert_eq!(settings.server.listen.port(), 2);
    }

    #[test]
    fn an_unknown_key_in_the_file_is_refused_by_name() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("settings.toml");
        std::fs::write(&path, "turn = 3\n").expect("written");
        let error = with_file(CommandLine::command(), &path).expect_err("unknown");
        assert!(matches!(error, ConfigError::UnknownKey { key, .. } if key == "turn"));
    }

    #[test]
    fn a_provider_entry_is_read_by_its_kind() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("settings.toml");
        let told = |text: &str| {
            std::fs::write(&path, text).expect("written");
            with_file(CommandLine::command(), &path).map(|(_, tables)| tables)
        };
        let tables = told("[providers.own]\nkind = \"e2b\"\n").expect("good");
        assert_eq!(tables.e2b.keys().collect::<Vec<_>>(), ["own"]);
        let unknown = told("[providers.own]\nkind = \"docker\"\n").expect_err("refused");
        assert!(unknown.to_string().contains("[providers.own]"), "{unknown}");
        let misspelled = told("[providers.own]\nkind = \"e2b\"\ntemplates = \"x\"\n");
        assert!(misspelled.expect_err("refused").to_string().contains("templates"));
        let builtin = told("[providers.local]\nkind = \"e2b\"\n").expect_err("refused");
        assert!(matches!(builtin, ConfigError::LocalEntry));
    }
}
