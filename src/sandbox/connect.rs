//! Which providers there are: the only file that names every one.

use std::sync::Arc;

use crate::config::Settings;
use crate::domain::package::PackageSet;
use crate::sandbox::SandboxProvider;
use crate::sandbox::local::LocalProvider;
use crate::sandbox::local::user::Taken;
use crate::sandbox::pool::{Pool, PoolPlan};

/// The provider entries by name.
pub type Providers = Vec<(String, Arc<dyn SandboxProvider>)>;

/// Makes every configured provider. None of them is started by this.
#[must_use]
pub fn providers(settings: &Settings, taken: Taken) -> Providers {
    let plan = PoolPlan {
        size: settings.local.local_pool,
        max_age: settings.local.local_pool_age_seconds,
        lifetime: settings.limits.lifetime_seconds_max,
        make_limit: settings.limits.create_seconds + settings.limits.install_seconds,
        sets: [vec![PackageSet::default()], settings.local.package_sets()].concat(),
    };
    let local = Pool::new(LocalProvider::new(settings, taken), plan);
    vec![("local".to_owned(), Arc::new(local))]
}
