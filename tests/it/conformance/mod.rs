//! One suite a port, which every implementation passes.

use reqwest::StatusCode;
use serde_json::Value;

use crate::support::{Caller, Session, must_come};

/// Makes a test of each of these for each provider.
macro_rules! every_provider {
    ($($name:ident),* $(,)?) => {
        mod local {
            $(#[tokio::test] async fn $name() { super::$name(&super::server::caller()).await; })*
        }
        mod e2b {
            $(#[tokio::test] async fn $name() { super::$name(&super::double::shared().1.caller()).await; })*
        }
        mod pydantic {
            $(#[tokio::test] async fn $name() { super::$name(&crate::support::pydantic::shared().caller()).await; })*
        }
        mod upstream {
            $(#[tokio::test] async fn $name() { super::$name(&crate::support::pydantic::upstream().1.caller()).await; })*
        }
        #[cfg(feature = "bedrock")]
        mod bedrock {
            $(#[tokio::test] async fn $name() { super::$name(&crate::support::agentcore::shared().1.caller()).await; })*
        }
    };
}

mod sandbox;
mod sandbox_files;
mod store;

/// What the default provider says that its sandboxes can do.
async fn can(caller: &Caller, capability: &str) -> bool {
    let (_, providers) = caller.get("/v1/providers").await;
    let all = providers["data"].as_array().unwrap();
    let default = all.iter().find(|provider| provider["default"] == true).unwrap();
    default["capabilities"][capability].as_bool().unwrap()
}

/// Waits until a cell has made this file, where files are reached while it runs; else until it was
/// handed over.
async fn has_begun(session: &Session<'_>, file: &str) {
    let streaming = can(session.caller, "streaming").await;
    must_come(async {
        loop {
            if streaming && session.download(file).await.status() == StatusCode::OK {
                return;
            }
            if !streaming && session.caller.get(&session.path("")).await.1["state"] == "busy" {
                return;
            }
            tokio::task::yield_now().await;
        }
    })
    .await;
}

fn of<'a, const N: usize>(value: &'a Value, names: [&str; N]) -> [&'a Value; N] {
    names.map(|name| &value[name])
}
