//! Which providers there are: the only file that names every one.

use std::sync::Arc;

use crate::config::Settings;
use crate::domain::id::Maker;
use crate::domain::package::PackageSet;
#[cfg(feature = "bedrock")]
use crate::sandbox::bedrock::BedrockProvider;
use crate::sandbox::e2b::E2bProvider;
use crate::sandbox::local::LocalProvider;
use crate::sandbox::local::user::Taken;
use crate::sandbox::observed::Observed;
use crate::sandbox::pool::{Pool, PoolPlan};
use crate::sandbox::pydantic::PydanticProvider;
use crate::sandbox::{SandboxError, SandboxProvider};
use crate::telemetry::metrics::Metrics;

/// The provider entries by name.
pub type Providers = Vec<(String, Arc<dyn SandboxProvider>)>;

/// Makes every configured provider. None of them is started by this.
///
/// # Errors
/// [`SandboxError`] when the settings of one cannot be used.
pub fn providers(
    settings: &Settings,
    taken: Taken,
    maker: Maker,
    metrics: &Metrics,
) -> Result<Providers, SandboxError> {
    let plan = PoolPlan {
        size: settings.local.local_pool,
        max_age: settings.local.local_pool_age_seconds,
        lifetime: settings.limits.lifetime_seconds_max,
        make_limit: settings.limits.create_seconds + settings.limits.install_seconds,
        sets: [vec![PackageSet::default()], settings.local.package_sets()].concat(),
    };
    let mut providers = Entries { providers: Vec::new(), metrics };
    providers.pooled("local", LocalProvider::new(settings, taken), plan);
    for entry in &settings.e2b.entries {
        // they cost money, so none is kept ready but where that was asked for
        let plan = PoolPlan {
            size: entry.pool,
            max_age: entry.ttl,
            lifetime: settings.limits.lifetime_seconds_max,
            make_limit: settings.limits.create_seconds,
            sets: vec![PackageSet::default()],
        };
        let provider = E2bProvider::new(entry, &settings.limits, maker)?;
        providers.pooled(&entry.name, provider, plan);
    }
    for entry in &settings.pydantic.entries {
        let plan = PoolPlan {
            size: entry.pool,
            max_age: settings.local.local_pool_age_seconds,
            lifetime: settings.limits.lifetime_seconds_max,
            make_limit: settings.limits.create_seconds,
            sets: vec![PackageSet::default()],
        };
        let provider = PydanticProvider::new(entry, settings);
        providers.pooled(&entry.name, provider, plan);
    }
    #[cfg(feature = "bedrock")]
    for entry in &settings.bedrock.entries {
        // their time counts from their making, so none is kept ready
        let provider = BedrockProvider::new(entry, &settings.limits, maker);
        providers.add(&entry.name, Arc::new(provider));
    }
    #[cfg(not(feature = "bedrock"))]
    if let Some(entry) = settings.bedrock.entries.first() {
        return Err(SandboxError::NotBuilt { entry: entry.name.clone(), feature: "bedrock" });
    }
    Ok(providers.providers)
}

/// Entries as they are named, each watched.
struct Entries<'a> {
    providers: Providers,
    metrics: &'a Metrics,
}

impl Entries<'_> {
    fn pooled(&mut self, name: &str, provider: impl SandboxProvider + 'static, plan: PoolPlan) {
        let metrics = self.metrics.clone();
        self.add(name, Arc::new(Pool::new(provider, plan).counting(name, metrics)));
    }

    fn add(&mut self, name: &str, provider: Arc<dyn SandboxProvider>) {
        let observed = Observed::new(name, provider, self.metrics.clone());
        self.providers.push((name.to_owned(), Arc::new(observed)));
    }
}
