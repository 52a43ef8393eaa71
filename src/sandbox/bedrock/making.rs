//! How machines are made: started, furnished, and found again where their making failed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use sha2::{Digest, Sha256};
use tokio_util::sync::CancellationToken;

use super::client::Client;
use super::collect::Ended;
use super::error::BedrockError;
use super::machine::{Again, Listens, Machine};
use crate::config::BedrockEntry;
use crate::domain::coded::chain;
use crate::domain::id::{ExecutionId, Maker, SessionId};
use crate::domain::package::PackageSet;
use crate::sandbox::{PackagesError, ProviderReport, SandboxError, pip};

/// A machine whose making failed may have been made all the same: a look now, and one later.
const LOST_LOOKS: [Duration; 2] = [Duration::ZERO, Duration::from_secs(30)];
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// What a call takes besides what it does.
const CALL_LIMIT: Duration = Duration::from_secs(15);
/// A machine lives longer than its session by so much, so that no cell of it is cut off.
pub(super) const MARGIN: Duration = Duration::from_secs(30);
const MAX_PIP_OUTPUT: u64 = 64 << 10;

/// Makes machines of one entry.
pub(super) struct Making {
    pub(super) client: Arc<Client>,
    /// How the names of all machines of ours begin.
    pub(super) mark: String,
    create_limit: Duration,
    install_limit: Duration,
    /// What the last machine that was made is like.
    pub(super) seen: Mutex<Option<ProviderReport>>,
}

/// What a machine is made for.
#[derive(Clone)]
pub(super) struct Order {
    pub(super) session_id: SessionId,
    pub(super) env: BTreeMap<String, String>,
    pub(super) packages: PackageSet,
    /// How long it will be needed.
    pub(super) lifetime: Duration,
}

impl Making {
    pub(super) fn new(
        entry: &BedrockEntry,
        maker: Maker,
        create_limit: Duration,
        install_limit: Duration,
    ) -> Self {
        // a name has room for a hundred characters: whose machine it is stands there as a digest
        let owner = format!("{}/{}/{}", maker.deployment_id, maker.replica_id, entry.name);
        let digest = Sha256::digest(owner);
        let owner: String = digest.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
        Self {
            client: Arc::new(Client::new(entry.clone())),
            mark: format!("interpreterd-{owner}-"),
            create_limit,
            install_limit,
            seen: Mutex::default(),
        }
    }

    fn name(&self, session_id: SessionId) -> String {
        format!("{}{session_id}", self.mark)
    }

    /// Makes a machine. The token makes it one and the same however often it is asked for.
    pub(super) async fn machine(
        &self,
        order: &Order,
        token: &str,
    ) -> Result<Machine, SandboxError> {
        let name = self.name(order.session_id);
        let lifetime = (order.lifetime + MARGIN).max(self.client.entry.session);
        let lifetime = lifetime.min(BedrockEntry::LONGEST);
        let started = self.client.start(&name, token, lifetime, self.create_limit).await?;
        let id = started.id.clone();
        let furnished = async {
            let machine = Machine::ready(Arc::clone(&self.client), started, &order.env).await?;
            self.note(&machine);
            self.install(&machine, &order.packages).await?;
            Ok(machine)
        };
        let furnished: Result<Machine, SandboxError> = furnished.await;
        if furnished.is_err() {
            self.stop(&id).await;
        }
        furnished
    }

    async fn install(&self, machine: &Machine, packages: &PackageSet) -> Result<(), SandboxError> {
        if packages.is_empty() {
            return Ok(());
        }
        let requirements = packages.texts();
        let index = self.client.entry.package_index.as_deref();
        let mut program = vec![machine.here.python()];
        program.extend(pip::arguments(&requirements, index));
        let told = json!({
            "do": "shell", "id": ExecutionId::new(), "argv": program, "command": "", "env": {}, "stdin": null,
            "seconds": self.install_limit.as_secs_f64(), "output_bytes": MAX_PIP_OUTPUT,
        });
        let limit = self.install_limit + CALL_LIMIT;
        let ended: Ended = machine.work(told, limit, Again::Never).await?.expected()?;
        match (ended.reason, ended.exit_code) {
            (Some(_), _) => Err(PackagesError::TooSlow.into()),
            (None, 0) => match machine.listens(None, CALL_LIMIT).await? {
                Listens::Yes => Ok(()), // and finds them from now on
                Listens::Anew | Listens::No | Listens::Gone => {
                    Err(BedrockError::NoInterpreter.into())
                }
            },
            (None, _) => Err(pip::why(&ended.printed.stderr(), &requirements).into()),
        }
    }

    /// Notes what a machine is like.
    pub(super) fn note(&self, machine: &Machine) {
        let seen = ProviderReport {
            isolation: None,
            python: Some(machine.here.version.clone()),
            packages: machine.here.packages.clone(),
        };
        *self.seen.lock().expect("no panic while it is held") = Some(seen);
    }

    /// Ends a machine. One that cannot be ended now ends when its time is over.
    pub(super) async fn stop(&self, id: &str) {
        if let Err(error) = self.client.stop(id, STOP_LIMIT).await {
            let cause = chain(&error);
            tracing::warn!(
                error = cause,
                sandbox.id = id,
                "a sandbox at AWS was not ended: it ends by itself when its time is over"
            );
        }
    }

    /// Looks for a machine whose making failed: AWS may have made it.
    pub(super) async fn look_for(&self, session_id: SessionId, stop: &CancellationToken) {
        for pause in LOST_LOOKS {
            if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
                return; // the next start looks for it
            }
            let found = self.client.list(&self.name(session_id)).await;
            for id in found.unwrap_or_default() {
                tracing::warn!(sandbox.id = id, "a sandbox that nobody waits for is ended");
                self.stop(&id).await;
            }
        }
    }
}
