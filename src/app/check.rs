//! Says what works on this machine, what is missing and what to do.

use super::{AppError, admit, runtime};
use crate::config::{self, Settings};
use crate::domain::coded::chain;
use crate::domain::id::Maker;
use crate::domain::provider::{Isolation, ModelInfo};
use crate::llm::LlmError;
use crate::llm::connect::Models;
use crate::sandbox::connect;
use crate::sandbox::local::user::{Taken, give_up_root};
use crate::store;
use crate::telemetry;
use crate::telemetry::metrics::Metrics;

/// Says what works here, what is missing and what to do. True when `serve` would start.
///
/// # Errors
/// [`AppError`] when not even that can be found out.
pub fn check(settings: &Settings) -> Result<bool, AppError> {
    telemetry::start(settings.server.log_format, "error", None)?;
    let metrics = Metrics::default(); // nobody reads them
    let mut report = Report { good: true };
    for name in config::unknown_variables() {
        println!("less     settings: there is no setting {name}");
    }
    report.line("keys and address", admit(settings).map(|_| settings.server.listen.to_string()));
    let data_dir = &settings.server.data_dir;
    let (user, taken) = match give_up_root(settings) {
        Ok(taken) => (Ok(data_dir.display().to_string()), taken),
        Err(error) => (Err(error), Taken::default()),
    };
    report.line("user and data folder", user);
    runtime()?.block_on(async {
        let opened =
            store::connect::open(data_dir, &settings.store, &settings.blobs, &metrics).await;
        let (closed, maker) = match opened {
            Ok(opened) => {
                let good = report.good;
                report.line("blobs", opened.blobs.probe().await);
                report.good = good; // what is written waits for a bucket that is down
                opened.store.close().await;
                (Ok("opens".to_owned()), opened.store.maker())
            }
            Err(error) => (Err(error), Maker::default()),
        };
        report.line("store", closed);
        let models = Models::connect(&settings.model.entries, &metrics);
        report.line("model", models.map(|models| describe(&models)));
        let default = &settings.server.default_provider;
        let providers = connect::providers(settings, taken, maker, &metrics);
        let providers = providers.unwrap_or_else(|error| {
            report.line("providers", Err(error));
            Vec::new()
        });
        for (name, provider) in providers {
            let found = provider.check().await;
            provider.close().await;
            let isolation = found.as_ref().ok().and_then(|found| found.isolation.clone());
            let found = found.map(|found| match (found.python, &isolation) {
                (Some(python), Some(isolation)) => {
                    format!("Python {python}, {}", describe_isolation(isolation))
                }
                (Some(python), None) => format!("Python {python}"),
                (None, _) => "it answers, and takes the key".to_owned(),
            });
            let good = report.good;
            report.line(&format!("provider {name}"), found);
            // a provider that is not the default one may be out of order
            report.good |= good && name != *default;
            for missing in isolation.map(|isolation| isolation.missing).unwrap_or_default() {
                println!("less     provider {name}: {missing}");
            }
        }
    });
    println!("{}", if report.good { "serve would start" } else { "serve would not start" });
    Ok(report.good)
}

struct Report {
    good: bool,
}

impl Report {
    fn line<E: std::error::Error>(&mut self, what: &str, found: Result<String, E>) {
        match found {
            Ok(text) => println!("ok       {what}: {text}"),
            Err(error) => {
                self.good = false;
                println!("missing  {what}: {}", chain(&error));
            }
        }
    }
}

fn describe_isolation(found: &Isolation) -> String {
    format!(
        "{}, own /proc: {}, Landlock ABI {}, network: {}, as user {}, own users: {}; limits held by: memory {}, \
         processes {}, processors {}, files {}",
        found.level.word(),
        found.own_proc,
        found.landlock_abi,
        found.network,
        found.uid,
        found.own_users,
        found.memory_limit,
        found.process_limit,
        found.cpu_limit,
        found.disk_limit
    )
}

fn describe(models: &Models) -> String {
    let told = |model: &ModelInfo| {
        let vision = if model.vision { ", reads images" } else { "" };
        format!("{} ({} at {}{vision})", model.name, model.protocol, models.place(&model.name))
    };
    let all: Vec<String> = models.list().iter().map(told).collect();
    if all.is_empty() {
        return format!("none, so interpret answers 501 ({})", LlmError::NotConfigured);
    }
    format!("{}; not asked, the first one is the default", all.join(", "))
}
