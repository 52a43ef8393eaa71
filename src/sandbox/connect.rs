//! Which providers there are: the only file that names every one.

use std::sync::Arc;

use crate::config::Settings;
use crate::sandbox::SandboxProvider;
use crate::sandbox::local::LocalProvider;
use crate::sandbox::local::user::Taken;

/// The provider entries by name.
pub type Providers = Vec<(String, Arc<dyn SandboxProvider>)>;

/// Makes every configured provider. None of them is started by this.
#[must_use]
pub fn providers(settings: &Settings, taken: Taken) -> Providers {
    vec![("local".to_owned(), Arc::new(LocalProvider::new(settings, taken)))]
}
