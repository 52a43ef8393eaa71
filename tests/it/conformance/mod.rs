//! One suite a port, which every implementation passes.

use serde_json::Value;

/// Makes a test of each of these for each provider.
macro_rules! every_provider {
    ($($name:ident),* $(,)?) => {
        mod local {
            $(#[tokio::test] async fn $name() { super::$name(&super::server::caller()).await; })*
        }
        mod e2b {
            $(#[tokio::test] async fn $name() { super::$name(&super::double::shared().1.caller()).await; })*
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

fn of<'a, const N: usize>(value: &'a Value, names: [&str; N]) -> [&'a Value; N] {
    names.map(|name| &value[name])
}
