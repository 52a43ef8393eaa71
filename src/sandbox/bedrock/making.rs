//! How machines are made: started, furnished, and found again where their making failed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::json;
use sha2::{Digest, Sha256};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

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
/// A machine that could not be stopped costs until its time is over.
const LATER_STOPS: [Duration; 3] =
    [Duration::from_secs(5), Duration::from_secs(30), Duration::from_secs(120)];
/// How long the service waits at its end for what is still being made.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);
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
    /// Machines that are being made, looked for after that failed, or stopped.
    tasks: TaskTracker,
    over: CancellationToken,
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
            tasks: TaskTracker::new(),
            over: CancellationToken::new(),
        }
    }

    /// Makes a machine. It goes on when this is dropped: what comes to be then is stopped.
    pub(super) async fn made(making: &Arc<Self>, order: &Order) -> Result<Machine, SandboxError> {
        let (maker, order) = (Arc::clone(making), order.clone());
        let (sender, receiver) = oneshot::channel();
        making.tasks.spawn(async move {
            // one name for each, by which it is found, and by which it stays one as its token
            let name = format!("{}{}-{:08x}", maker.mark, order.session_id, fastrand::u32(..));
            let made = maker.machine(&order, &name).await;
            let is_made = made.is_ok();
            if let Err(Ok(unwanted)) = sender.send(made) {
                Self::stop(&maker, &unwanted.id).await;
            }
            // whatever was said: it may have been made all the same
            if !is_made {
                Self::look_for(&maker, &name).await;
            }
        });
        receiver.await.unwrap_or(Err(SandboxError::Lost))
    }

    async fn machine(&self, order: &Order, name: &str) -> Result<Machine, SandboxError> {
        let lifetime = (order.lifetime + MARGIN).max(self.client.entry.session);
        let lifetime = lifetime.min(BedrockEntry::LONGEST);
        let started = self.client.start(name, name, lifetime, self.create_limit).await?;
        let id = started.id.clone();
        let furnished = async {
            let machine = Machine::ready(Arc::clone(&self.client), started, &order.env).await?;
            self.note(&machine);
            self.install(&machine, &order.packages).await?;
            Ok(machine)
        };
        let furnished: Result<Machine, SandboxError> = furnished.await;
        if furnished.is_err() {
            let _ = self.client.stop(&id, STOP_LIMIT).await; // it is looked for by its name too
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

    /// Ends a machine. One that cannot be ended now is ended later.
    pub(super) async fn stop(making: &Arc<Self>, id: &str) {
        if let Err(error) = making.client.stop(id, STOP_LIMIT).await {
            let error = chain(&error);
            tracing::warn!(error, sandbox.id = id, "a sandbox at AWS was not ended yet");
            let (maker, id) = (Arc::clone(making), id.to_owned());
            making.tasks.spawn(async move {
                for pause in LATER_STOPS {
                    if !maker.pause(pause).await || maker.client.stop(&id, STOP_LIMIT).await.is_ok()
                    {
                        return;
                    }
                }
                tracing::warn!(sandbox.id = id, "a sandbox at AWS ends when its time is over");
            });
        }
    }

    /// The same, without waiting.
    pub(super) fn stop_later(self: &Arc<Self>, id: String) {
        let maker = Arc::clone(self);
        self.tasks.spawn(async move { Self::stop(&maker, &id).await });
    }

    /// Waits, unless the service ends before: then the next start finds what is left.
    async fn pause(&self, pause: Duration) -> bool {
        self.over.run_until_cancelled(tokio::time::sleep(pause)).await.is_some()
    }

    /// Looks for a machine whose making failed: AWS may have made it.
    async fn look_for(making: &Arc<Self>, name: &str) {
        for pause in LOST_LOOKS {
            if !making.pause(pause).await {
                return;
            }
            for id in making.client.list(name).await.unwrap_or_default() {
                tracing::warn!(sandbox.id = id, "a sandbox that nobody waits for is ended");
                Self::stop(making, &id).await;
            }
        }
    }

    /// Ends what it does by itself.
    pub(super) async fn close(&self) {
        self.over.cancel();
        self.tasks.close();
        let _ = tokio::time::timeout(CLOSE_LIMIT, self.tasks.wait()).await;
    }
}
