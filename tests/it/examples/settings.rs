//! The settings file of the documents is taken, and its providers are what the documents say.

use std::path::Path;

use serde_json::Value;

use crate::support::answer;
use crate::support::server::{Server, command, open_folder};

const CONFIGURATION: &str = include_str!("../../../docs/configuration.md");
const MODELS: &str = include_str!("../../../docs/models.md");
const E2B: &str = include_str!("../../../docs/e2b.md");
const BEDROCK: &str = include_str!("../../../docs/bedrock.md");
const PYDANTIC: &str = include_str!("../../../docs/pydantic.md");
const PROVIDERS: &str = include_str!("../../../docs/providers.md");
const KEY: &str = "a-key-of-sixteen-or-more";

/// A service with the file as it stands in the document, its secrets in another folder.
fn serve(folder: &Path) -> Server {
    let whole = CONFIGURATION.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let secrets = folder.join("secrets");
    std::fs::create_dir(&secrets).unwrap();
    for rest in whole.split("/run/secrets/").skip(1) {
        let name = rest.split('"').next().unwrap();
        std::fs::write(secrets.join(name), "a-secret-of-the-tests").unwrap();
    }
    let path = folder.join("interpreterd.toml");
    std::fs::write(&path, whole.replace("/run/secrets", secrets.to_str().unwrap())).unwrap();
    // an AWS that is not there is not looked for
    let more = [("AWS_EC2_METADATA_DISABLED", "true")];
    let settings = [("CONFIG", path.to_str().unwrap()), ("API_KEYS", KEY)];
    Server::start_with(&folder.join("data"), &settings, &more)
}

async fn listed(server: &Server, path: &str) -> Vec<Value> {
    let request = server.caller().request(reqwest::Method::GET, path).bearer_auth(KEY);
    let (status, told) = answer(request).await;
    assert_eq!(status, 200, "{told}");
    told["data"].as_array().unwrap().clone()
}

fn names(list: &[Value]) -> Vec<&str> {
    let mut names: Vec<_> = list.iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    names
}

#[tokio::test]
async fn the_settings_file_of_the_documents_is_taken_and_providers_can_do_what_the_table_says() {
    let folder = open_folder();
    let server = serve(folder.path());
    assert_eq!(names(&listed(&server, "/v1/models").await), ["deep", "fast"]);
    let providers = listed(&server, "/v1/providers").await;
    assert_eq!(names(&providers), ["house", "local", "pydantic", "us"]);

    let rows: Vec<Vec<&str>> = PROVIDERS
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect();
    let kinds = ["local", "pydantic", "e2b", "bedrock"];
    for (column, kind) in kinds.into_iter().enumerate() {
        let provider = providers.iter().find(|provider| provider["kind"] == kind).unwrap();
        for (capability, can) in provider["capabilities"].as_object().unwrap() {
            let name = format!("`{capability}`");
            let row = rows.iter().find(|row| row[0].contains(&name));
            let cell = row.unwrap_or_else(|| panic!("{name} is not in the table"))[column + 1];
            // the file of the documents takes the network away from its E2B
            let can = can.as_bool().unwrap() || (kind == "e2b" && capability == "network");
            assert_eq!(cell.starts_with("yes"), can, "{kind}, {capability}: {cell}");
        }
    }
}

#[test]
fn every_settings_file_of_the_documents_is_one_that_the_program_reads() {
    let documents = [MODELS, E2B, BEDROCK, PYDANTIC, CONFIGURATION];
    let blocks = documents.iter().flat_map(|document| document.split("```toml\n").skip(1));
    let blocks: Vec<_> = blocks.map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(blocks.len() >= documents.len(), "{blocks:?}");
    for block in blocks {
        let folder = open_folder();
        let mut command = command();
        let mut file = format!("data_dir = \"{}/data\"\n", folder.path().display());
        for line in block.lines().filter(|line| !line.starts_with("data_dir")) {
            let (key, value) = line.split_once(" = ").unwrap_or_default();
            let named = value.split('"').nth(1).unwrap_or_default();
            if key.ends_with("_file") {
                let secret = folder.path().join(named.replace('/', "-"));
                std::fs::write(&secret, "a-secret-of-the-tests").unwrap();
                file.push_str(&line.replace(named, secret.to_str().unwrap()));
            } else {
                file.push_str(line);
            }
            if key.ends_with("_env") {
                command.env(named, "a-secret-of-the-tests");
            }
            file.push('\n');
        }
        let path = folder.path().join("interpreterd.toml");
        std::fs::write(&path, &file).unwrap();
        // it reads the whole file, asks nobody, and leaves its database where the file says
        let done = command.arg("migrate").arg("--config").arg(path).output().unwrap();
        assert!(done.status.success(), "{file}\n{done:?}");
        assert!(folder.path().join("data/interpreterd.db").exists(), "{file}");
    }
}
