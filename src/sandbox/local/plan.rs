//! What a warden and its zygote are started with.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::folders::ZYGOTE;
use super::guest::{self, Guest};
use super::layers::{self, Layer};
use super::wire::WardenPlan;
use crate::domain::provider::IsolationLevel;

/// What the zygote has imported before the first fork.
const WARM: [&str; 4] = ["numpy", "pandas", "matplotlib", "matplotlib.pyplot"];
/// On some processors older OpenBLAS needs these to compute rightly; they tell nothing.
const PASSED_ON: [&str; 2] = ["OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"];
/// What names of hosts are looked up with.
const NAME_SERVICE: [&str; 3] = ["/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf"];
/// What pip tells the index of the host, and fails without where it may not look.
const RELEASE: [&str; 4] =
    ["/etc/os-release", "/usr/lib/os-release", "/etc/lsb-release", "/etc/debian_version"];
/// Where the certificates stand that the index is checked with.
const CERTIFICATES: [&str; 3] =
    ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"];
const CERTIFICATES_INSIDE: &str = "/etc/certificates.pem";

/// What the sessions of a zygote are for.
#[derive(Debug, Clone)]
pub(super) enum Purpose {
    /// Code of callers, with packages of its own or none.
    Cells,
    /// Code of callers, with these packages, which are imported already.
    CellsWith(Arc<Layer>),
    /// The installing of packages: it has the host's network and runs no code of anybody's.
    Installing,
}

/// Where the parts of a plan lie on the host.
pub(super) struct Places<'a> {
    pub(super) guest: &'a Guest,
    /// Where sessions without a root of their own have their folders.
    pub(super) rooms: &'a Path,
    pub(super) layers: &'a Path,
}

/// The plan for a warden at a level.
pub(super) fn plan(level: IsolationLevel, purpose: &Purpose, places: &Places<'_>) -> WardenPlan {
    let own_root = level == IsolationLevel::Namespaced;
    let zygote = places.rooms.join(ZYGOTE);
    let inside =
        |path: &str, outside: PathBuf| if own_root { PathBuf::from(path) } else { outside };
    let mut plan = WardenPlan {
        level,
        root: places.guest.root_plan(),
        bin: inside(&format!("{}/bin", guest::INSIDE), places.guest.programs()),
        code: inside(guest::CODE_INSIDE, zygote.clone()),
        home: inside("/home/user", zygote.join("home")),
        readable: [places.guest.readable(), vec![zygote]].concat(),
        modules: WARM.map(str::to_owned).to_vec(),
        packages: None,
        requirements: Vec::new(),
        network: false,
        environ: passed_on(),
    };
    match purpose {
        Purpose::Cells => {
            let all = (places.layers.to_owned(), layers::ALL_INSIDE.into());
            plan.root.binds.push(all);
        }
        Purpose::CellsWith(layer) => {
            plan.root.binds.push((layer.packages.clone(), layers::INSIDE.into()));
            plan.readable.push(layer.packages.clone());
            plan.packages = Some(inside(layers::INSIDE, layer.packages.clone()));
            plan.requirements.clone_from(&layer.manifest.requirements);
        }
        Purpose::Installing => {
            plan.modules.clear();
            plan.network = true;
            add_network(&mut plan);
        }
    }
    plan
}

fn add_network(plan: &mut WardenPlan) {
    for path in NAME_SERVICE.map(Path::new).into_iter().filter(|path| path.exists()) {
        let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        plan.readable.extend([real.clone(), path.to_owned()]);
        plan.root.binds.push((real, path.to_owned()));
    }
    plan.readable.extend(RELEASE.map(PathBuf::from));
    if let Some(path) = certificates() {
        plan.readable.push(path.clone());
        plan.root.binds.push((path, CERTIFICATES_INSIDE.into()));
    }
}

/// The file of certificates that the host trusts, its own settings first.
fn certificates() -> Option<PathBuf> {
    let named = ["PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"];
    let named = named.iter().filter_map(std::env::var_os).map(PathBuf::from);
    let mut all = named.chain(CERTIFICATES.map(PathBuf::from));
    all.find_map(|path| path.canonicalize().ok().filter(|path| path.is_file()))
}

/// Where pip finds the certificates, as it sees them.
pub(super) fn certificates_inside(level: IsolationLevel) -> Option<PathBuf> {
    let found = certificates()?;
    let own_root = level == IsolationLevel::Namespaced;
    Some(if own_root { CERTIFICATES_INSIDE.into() } else { found })
}

/// What kernels and zygotes know of the service's environment.
pub(super) fn passed_on() -> BTreeMap<String, String> {
    PASSED_ON
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), std::env::var(name).ok()?)))
        .collect()
}
