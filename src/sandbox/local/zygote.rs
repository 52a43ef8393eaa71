//! The service's end of the warden: asks for rooms and hears how kernels end.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Stdio;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot, watch};

use super::cgroup::Cgroups;
use super::error::{LocalError, remedy};
use super::level::{self, Facts};
use super::range::UserRange;
use super::sys;
use super::warden;
use super::wire::{self, FromWarden, SpawnRequest, ToWarden, WardenPlan};
use crate::domain::coded::chain;
use crate::domain::provider::Isolation;

const START_LIMIT: Duration = Duration::from_secs(130);
const SPAWN_LIMIT: Duration = Duration::from_secs(45);
const END_LIMIT: Duration = Duration::from_secs(5);
const MAX_WAITING_SPAWNS: usize = 256;
const MAX_LOG_LINE: u64 = 2048;

/// A running warden with its zygote.
pub(super) struct Zygote {
    requests: mpsc::Sender<Request>,
    ended: watch::Receiver<bool>,
    pub(super) python: String,
    pub(super) packages: BTreeMap<String, String>,
    pub(super) isolation: Isolation,
}

/// The service's ends of a new room.
pub(super) struct Spawned {
    pub(super) room: OwnedFd,
    pub(super) kernel: OwnedFd,
    pub(super) readable: OwnedFd,
    pub(super) place: OwnedFd,
    pub(super) room_socket: OwnedFd,
    /// How the kernel ends; negative is a signal.
    pub(super) exit: oneshot::Receiver<i32>,
}

enum Request {
    Spawn(Box<SpawnRequest>, Vec<OwnedFd>, oneshot::Sender<Result<Spawned, LocalError>>),
    Close,
}

impl Zygote {
    /// Starts this binary as a warden and waits until its zygote is warm.
    pub(super) async fn start(
        plan: WardenPlan,
        users: Option<&UserRange>,
        cgroups: &Cgroups,
    ) -> Result<Self, LocalError> {
        let level = plan.level;
        let (ours, theirs) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .map_err(|errno| LocalError::Warden(errno.into()))?;
        let child = start_warden(theirs).map_err(LocalError::Warden)?;
        let link = Link::new(ours)?;
        let users: Vec<_> = users.map(|users| users.namespace.as_fd()).into_iter().collect();
        link.send(&ToWarden::Start(plan), &users).await?;
        let first = tokio::time::timeout(START_LIMIT, link.receive()).await;
        let (message, _) = first.map_err(|_| LocalError::WardenEnded)??;
        let (python, packages, isolation) = match message {
            FromWarden::Ready { python, packages, landlock, own_proc, own_users } => {
                let facts = Facts { own_proc, own_users, landlock_abi: landlock };
                (python, packages, level::isolation(level, facts, cgroups)?)
            }
            FromWarden::Fatal { step, errno } => {
                let remedy = remedy(&step, errno);
                return Err(LocalError::Host { step, errno, remedy });
            }
            FromWarden::Spawned { .. } | FromWarden::Failed { .. } | FromWarden::Exited { .. } => {
                return Err(LocalError::WardenEnded);
            }
        };
        let (requests, queue) = mpsc::channel(MAX_WAITING_SPAWNS);
        let (ending, ended) = watch::channel(false);
        tokio::spawn(async move {
            Switchboard { link, waiting: HashMap::new(), exits: HashMap::new() }.run(queue).await;
            end(child).await;
            let _ = ending.send(true);
        });
        Ok(Self { requests, ended, python, packages, isolation })
    }

    /// False once the warden has ended, and with it every room.
    pub(super) fn is_alive(&self) -> bool {
        !self.requests.is_closed()
    }

    /// Makes a room with a kernel in it. `given`: session socket, stdout, stderr, late output, cgroups.
    pub(super) async fn spawn(
        &self,
        spawn: SpawnRequest,
        given: Vec<OwnedFd>,
    ) -> Result<Spawned, LocalError> {
        let (answer, answered) = oneshot::channel();
        let request = Request::Spawn(Box::new(spawn), given, answer);
        self.requests.send(request).await.map_err(|_| LocalError::WardenEnded)?;
        match tokio::time::timeout(SPAWN_LIMIT, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(LocalError::WardenEnded),
            Err(_) => Err(LocalError::KernelSilent),
        }
    }

    /// Ends the warden with all its rooms and waits until it is gone.
    pub(super) async fn close(&self) {
        let _ = self.requests.send(Request::Close).await;
        let mut ended = self.ended.clone();
        let _ = ended.wait_for(|ended| *ended).await;
    }
}

/// Starts the warden with its end of the socket as standard input and an empty environment.
#[expect(clippy::disallowed_methods, reason = "the warden is a process of the sandbox")]
fn start_warden(socket: OwnedFd) -> io::Result<Child> {
    let mut child = Command::new("/proc/self/exe")
        .arg(warden::MODE)
        .env_clear()
        .stdin(Stdio::from(socket))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .process_group(0) // Ctrl-C at a terminal is for the service, which drains
        .spawn()?;
    if let Some(stderr) = child.stderr.take() {
        tokio::spawn(log_lines(stderr));
    }
    Ok(child)
}

/// Nothing that a session says ever gets here: only warden and zygote hold this pipe.
async fn log_lines(stderr: tokio::process::ChildStderr) {
    let mut reader = BufReader::new(stderr);
    let mut line = Vec::new();
    loop {
        line.clear();
        match (&mut reader).take(MAX_LOG_LINE).read_until(b'\n', &mut line).await {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                tracing::warn!(warden = %String::from_utf8_lossy(&line).trim_end(), "the warden says");
            }
        }
    }
}

/// The warden ends by itself when its socket closes; a stuck one is killed.
async fn end(mut child: Child) {
    if tokio::time::timeout(END_LIMIT, child.wait()).await.is_err() {
        let _ = child.kill().await;
    }
}

/// Matches answers with requests and ends with kernels.
struct Switchboard {
    link: Link,
    waiting: HashMap<String, Waiting>,
    exits: HashMap<String, oneshot::Sender<i32>>,
}

struct Waiting {
    answer: oneshot::Sender<Result<Spawned, LocalError>>,
    exit: oneshot::Receiver<i32>,
}

impl Switchboard {
    /// Goes on until the provider lets go or the warden ends.
    async fn run(mut self, mut queue: mpsc::Receiver<Request>) {
        loop {
            tokio::select! {
                request = queue.recv() => {
                    let Some(Request::Spawn(spawn, given, answer)) = request else { return };
                    if let Err(error) = self.ask(*spawn, given, answer).await {
                        tracing::error!(error = chain(&error), "the warden cannot be asked");
                        return;
                    }
                }
                message = self.link.receive() => match message {
                    Ok((message, descriptors)) => self.hear(message, descriptors),
                    Err(_) => {
                        tracing::error!("the warden has ended, and every local session with it");
                        return;
                    }
                }
            }
        }
    }

    async fn ask(
        &mut self,
        spawn: SpawnRequest,
        given: Vec<OwnedFd>,
        answer: oneshot::Sender<Result<Spawned, LocalError>>,
    ) -> Result<(), LocalError> {
        let id = spawn.id.clone();
        let descriptors: Vec<_> = given.iter().map(AsFd::as_fd).collect();
        match self.link.send(&ToWarden::Spawn(spawn), &descriptors).await {
            Ok(()) => {
                let (ending, exit) = oneshot::channel();
                self.waiting.insert(id.clone(), Waiting { answer, exit });
                self.exits.insert(id, ending);
                Ok(())
            }
            // the warden is gone
            Err(LocalError::Warden(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                Err(LocalError::Warden(error))
            }
            // this one request could not be sent, and none of it was
            Err(error) => {
                let _ = answer.send(Err(error));
                Ok(())
            }
        }
    }

    fn hear(&mut self, message: FromWarden, descriptors: Vec<OwnedFd>) {
        match message {
            FromWarden::Spawned { id } => {
                let Some(Waiting { answer, exit }) = self.waiting.remove(&id) else { return };
                let spawned = <[OwnedFd; 5]>::try_from(descriptors)
                    .map(|[room, kernel, readable, place, room_socket]| Spawned {
                        room,
                        kernel,
                        readable,
                        place,
                        room_socket,
                        exit,
                    })
                    .map_err(|_| LocalError::WardenEnded);
                let _ = answer.send(spawned); // nobody waits any more: dropping the room's socket ends it
            }
            FromWarden::Failed { id, step, errno } => {
                self.exits.remove(&id);
                if let Some(Waiting { answer, .. }) = self.waiting.remove(&id) {
                    let remedy = remedy(&step, errno);
                    let _ = answer.send(Err(LocalError::Host { step, errno, remedy }));
                }
            }
            FromWarden::Exited { id, code } => {
                if let Some(exit) = self.exits.remove(&id) {
                    let _ = exit.send(code);
                }
            }
            FromWarden::Fatal { step, errno } => {
                tracing::error!(step, errno, "the warden cannot go on");
            }
            FromWarden::Ready { .. } => {}
        }
    }
}

/// The socket to the warden.
struct Link(AsyncFd<OwnedFd>);

impl Link {
    fn new(socket: OwnedFd) -> Result<Self, LocalError> {
        rustix::io::ioctl_fionbio(&socket, true)
            .map_err(|errno| LocalError::Warden(errno.into()))?;
        Ok(Self(sys::watched(socket).map_err(LocalError::Warden)?))
    }

    async fn send(
        &self,
        message: &ToWarden,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), LocalError> {
        let message = wire::encode(message);
        let sent = self.0.async_io(tokio::io::Interest::WRITABLE, |socket| {
            sys::send_message(socket.as_fd(), &message, descriptors)
        });
        sent.await.map_err(LocalError::Warden)
    }

    async fn receive(&self) -> Result<(FromWarden, Vec<OwnedFd>), LocalError> {
        let received = self
            .0
            .async_io(tokio::io::Interest::READABLE, |socket| sys::receive_message(socket.as_fd()));
        let (message, descriptors) = received.await.map_err(LocalError::Warden)?;
        match wire::decode(&message) {
            Some(message) => Ok((message, descriptors)),
            None => Err(LocalError::WardenEnded),
        }
    }
}
