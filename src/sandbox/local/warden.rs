//! The `sandbox-warden` mode: one thread that makes rooms.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{DumpableBehavior, Signal};
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

use super::keeper;
use super::room;
use super::root::{self, Template};
use super::seccomp::{self, Grants};
use super::slots::{self, Slots};
use super::sys::{self, Fork, StepError, step};
use super::wire::{
    self, FromRoom, FromWarden, FromZygote, SpawnRequest, ToWarden, ToZygote, WardenPlan,
};
use crate::domain::provider::IsolationLevel;

/// The first argument that makes this binary a warden.
pub const MODE: &str = "sandbox-warden";

const ZYGOTE_FD: i32 = 3;
const EXIT_FAILED: i32 = 70;
const PLAN_LIMIT: Duration = Duration::from_secs(10);
const ZYGOTE_READY_LIMIT: Duration = Duration::from_secs(120);
const ROOM_LIMIT: Duration = Duration::from_secs(10);
const FORK_LIMIT: Duration = Duration::from_secs(30);
const IDLE: Duration = Duration::from_secs(1);
/// Its argument is the folder of our own code.
const ZYGOTE_PROGRAM: &str = "import sys; code = sys.argv.pop(); sys.path.insert(0, code); \
     from interpreterd_guest import zygote; sys.path.remove(code); zygote.main()";

/// Runs as the warden until the service closes its socket, which is standard input.
pub fn run() -> ! {
    let Ok(service) = take_socket() else { sys::exit_now(EXIT_FAILED) };
    let error = match start(&service) {
        Ok(mut warden) => warden.serve(),
        Err(error) => error,
    };
    let message = FromWarden::Fatal { step: error.step, errno: error.errno };
    let _ = sys::send_message(service.as_fd(), &wire::encode(&message), &[]);
    sys::exit_now(EXIT_FAILED)
}

struct Warden<'a> {
    service: BorrowedFd<'a>,
    zygote: OwnedFd,
    /// What rooms are cloned from; None where sessions live in the host's namespaces.
    template: Option<Template>,
    slots: Slots,
}

fn take_socket() -> io::Result<OwnedFd> {
    let moved = rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?;
    let null = std::fs::File::open("/dev/null")?;
    sys::place_at(null.as_fd(), 0)?;
    drop(null);
    sys::close_all_but(&[moved.as_raw_fd()])?;
    Ok(moved)
}

fn start(service: &OwnedFd) -> Result<Warden<'_>, StepError> {
    let (plan, users) = receive_plan(service)?;
    // what stands in a room's root is read by the session's user, whatever mask the service got
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let template = match plan.level {
        IsolationLevel::Namespaced => {
            enter_namespaces(users.as_ref(), plan.network)?;
            Some(root::build(&plan.root, plan.network)?)
        }
        IsolationLevel::Restricted | IsolationLevel::None => None,
        IsolationLevel::Vm => return Err(refused("be a machine")),
    };
    let own_proc = template.as_ref().is_some_and(|template| template.own_proc);
    let own_users = users.is_some()
        && template.as_ref().is_some_and(|template| slots::can_map_owners(&template.host_proc));
    let grants = Grants { network: plan.network, own_users };
    let zygote = start_zygote(&plan, grants)?;
    let ready = wait_for_zygote(service, &zygote, own_proc, own_users)?;
    step("report", sys::send_message(service.as_fd(), &wire::encode(&ready), &[]))?;
    Ok(Warden { service: service.as_fd(), zygote, template, slots: Slots::new(own_users) })
}

/// The plan, and the range of users where the service has one.
fn receive_plan(service: &OwnedFd) -> Result<(WardenPlan, Option<OwnedFd>), StepError> {
    let tasks = step("count threads", std::fs::read_dir("/proc/self/task"))?.count();
    if tasks != 1 {
        return Err(refused("be single-threaded"));
    }
    if rustix::process::geteuid().is_root() {
        return Err(refused("run as an ordinary user"));
    }
    let ready = step("wait for the plan", room::wait(&[service.as_fd()], Some(PLAN_LIMIT)))?;
    if !ready[0] {
        return Err(refused("receive the plan"));
    }
    let (message, mut users) = step("receive the plan", sys::receive_message(service.as_fd()))?;
    match wire::decode(&message) {
        Some(ToWarden::Start(plan)) => Ok((plan, users.pop())),
        Some(ToWarden::Spawn(_)) | None => Err(refused("read the plan")),
    }
}

fn refused(step: &str) -> StepError {
    StepError { step: step.to_owned(), errno: libc::EPERM }
}

/// In order: a user namespace where this user is root, with its maps · the other namespaces · a fork,
/// which is process 1 of the template. The parent waits and ends with its child.
fn enter_namespaces(users: Option<&OwnedFd>, network: bool) -> Result<(), StepError> {
    match users {
        Some(users) => {
            let kind = Some(LinkNameSpaceType::User);
            let entered = rustix::thread::move_into_link_name_space(users.as_fd(), kind);
            step("enter the range of users", entered)?;
            step("stay open", rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable))?;
        }
        None => be_root_of_one_user()?,
    }
    let mut others = UnshareFlags::NEWNS
        | UnshareFlags::NEWPID
        | UnshareFlags::NEWNET
        | UnshareFlags::NEWIPC
        | UnshareFlags::NEWUTS
        | UnshareFlags::NEWCGROUP;
    others.set(UnshareFlags::NEWNET, !network);
    step("unshare the other namespaces", sys::unshare(others))?;
    // what the zygote remembers of its host, every session remembers
    step("set host name", rustix::system::sethostname(room::HOST_NAME))?;
    match step("fork", sys::fork())? {
        Fork::Parent(child) => sys::exit_now(wait_without_the_socket(child)),
        Fork::Child => {
            let kill = Some(Signal::KILL);
            step("die with the parent", rustix::process::set_parent_process_death_signal(kill))
        }
    }
}

fn be_root_of_one_user() -> Result<(), StepError> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    step("unshare user", sys::unshare(UnshareFlags::NEWUSER))?;
    step("stay open", rustix::process::set_dumpable_behavior(DumpableBehavior::Dumpable))?;
    step("write setgroups", std::fs::write("/proc/self/setgroups", "deny"))?;
    step("write uid_map", std::fs::write("/proc/self/uid_map", format!("0 {uid} 1")))?;
    step("write gid_map", std::fs::write("/proc/self/gid_map", format!("0 {gid} 1")))
}

/// Only process 1 may hold the socket: its end is what the service sees.
fn wait_without_the_socket(child: i32) -> i32 {
    let _ = sys::close_all_but(&[]);
    sys::wait_for(child)
}

fn start_zygote(plan: &WardenPlan, grants: Grants) -> Result<OwnedFd, StepError> {
    let filters =
        seccomp::build(plan.level, grants).map_err(|_| refused("build the seccomp filters"))?;
    let (ours, theirs) = step(
        "make the zygote's socket",
        rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        ),
    )?;
    if matches!(step("fork the zygote", sys::fork())?, Fork::Child) {
        exec_zygote(plan, &theirs);
    }
    drop(theirs);
    let start = ToZygote::start(plan, &filters);
    step("start the zygote", sys::send_message(ours.as_fd(), &wire::encode(&start), &[]))?;
    Ok(ours)
}

#[expect(clippy::disallowed_methods, reason = "the zygote is a process of the sandbox")]
fn exec_zygote(plan: &WardenPlan, socket: &OwnedFd) -> ! {
    let kill = Some(Signal::KILL);
    let placed = rustix::process::set_parent_process_death_signal(kill)
        .map_err(io::Error::from)
        .and_then(|()| sys::place_at(socket.as_fd(), ZYGOTE_FD))
        .and_then(|()| sys::close_all_but(&[ZYGOTE_FD]));
    if placed.is_ok() {
        let error = Command::new(plan.bin.join("python"))
            .args(["-I", "-B", "-X", "frozen_modules=on", "-c", ZYGOTE_PROGRAM])
            .arg(&plan.code)
            .env_clear()
            .envs([("PATH", "/usr/bin:/bin"), ("LANG", "C.UTF-8"), ("MALLOC_ARENA_MAX", "2")])
            .env("HOME", &plan.home)
            .envs(&plan.environ)
            .exec();
        eprintln!("cannot start the guest Python: {error}");
    }
    sys::exit_now(EXIT_FAILED)
}

fn wait_for_zygote(
    service: &OwnedFd,
    zygote: &OwnedFd,
    own_proc: bool,
    own_users: bool,
) -> Result<FromWarden, StepError> {
    let both = [zygote.as_fd(), service.as_fd()];
    let ready = step("wait for the zygote", room::wait(&both, Some(ZYGOTE_READY_LIMIT)))?;
    if !ready[0] {
        return Err(refused("wait for the zygote"));
    }
    let (message, _) = step("hear the zygote", sys::receive_message(zygote.as_fd()))?;
    match wire::decode(&message) {
        Some(FromZygote::Ready { threads, .. }) if threads != 1 => {
            Err(refused("keep the zygote single-threaded"))
        }
        Some(FromZygote::Ready { python, packages, landlock, .. }) => {
            Ok(FromWarden::Ready { python, packages, landlock, own_proc, own_users })
        }
        Some(FromZygote::Forked { .. } | FromZygote::Failed { .. } | FromZygote::Exited { .. })
        | None => Err(refused("start the guest Python")),
    }
}

impl Warden<'_> {
    /// Serves until something ends it; the end of the service's socket ends the process at once.
    fn serve(&mut self) -> StepError {
        loop {
            match self.turn() {
                Ok(()) => {}
                Err(error) => return error,
            }
        }
    }

    fn turn(&mut self) -> Result<(), StepError> {
        let both = [self.service, self.zygote.as_fd()];
        let ready = step("wait", room::wait(&both, Some(IDLE)))?;
        sys::reap_children();
        if ready[1] {
            let (message, _) = self.hear_zygote()?;
            self.pass_on(&message)?;
        }
        if ready[0] {
            let (message, descriptors) = step("receive", sys::receive_message(self.service))?;
            if message.is_empty() {
                sys::exit_now(0);
            }
            if let Some(ToWarden::Spawn(request)) = wire::decode(&message) {
                self.spawn(&request, &descriptors)?;
            }
        }
        Ok(())
    }

    /// Answers with the session's descriptors, or with the step that failed. An error of this
    /// function means that the warden itself cannot go on.
    fn spawn(&mut self, request: &SpawnRequest, given: &[OwnedFd]) -> Result<(), StepError> {
        let cgroups = given.get(wire::PIPES..).unwrap_or_default();
        let made = self.make_room(request, cgroups).map_err(|error| (error, request.id.clone()));
        let room = match made {
            Ok(room) => room,
            Err((error, id)) => {
                let failed = FromWarden::Failed { id, step: error.step, errno: error.errno };
                return self.say(&failed, &[]);
            }
        };
        let kernel = match self.fork_kernel(request, &room, given)? {
            Ok(kernel) => kernel,
            Err(errno) => {
                room.abandon();
                let (id, step) = (request.id.clone(), "fork the kernel".to_owned());
                return self.say(&FromWarden::Failed { id, step, errno }, &[]);
            }
        };
        let [files, place] = &room.folders;
        let spawned = FromWarden::Spawned { id: request.id.clone() };
        let descriptors =
            [room.pidfd.as_fd(), kernel.as_fd(), files.as_fd(), place.as_fd(), room.socket.as_fd()];
        self.say(&spawned, &descriptors)
    }

    fn make_room(
        &mut self,
        request: &SpawnRequest,
        cgroups: &[OwnedFd],
    ) -> Result<Room, StepError> {
        let (ours, theirs) = step(
            "make the room's socket",
            rustix::net::socketpair(
                AddressFamily::UNIX,
                SocketType::SEQPACKET,
                SocketFlags::CLOEXEC,
                None,
            ),
        )?;
        let pidfd = match &self.template {
            Some(template) => {
                let slot = self.slots.get(request.slot, &template.host_proc)?;
                match step("clone the room", sys::clone_into(room::namespaces(template)))? {
                    Fork::Child => room::live(template, request, slot, &theirs, cgroups),
                    Fork::Parent(pidfd) => pidfd,
                }
            }
            None => match step("clone the keeper", sys::clone_into(0))? {
                Fork::Child => keeper::live(request, &theirs),
                Fork::Parent(pidfd) => pidfd,
            },
        };
        drop(theirs); // while we hold the room's end, its death would not be seen
        let ready = step("wait for the room", room::wait(&[ours.as_fd()], Some(ROOM_LIMIT)))?;
        if !ready[0] {
            let _ = rustix::process::pidfd_send_signal(&pidfd, Signal::KILL);
            return Err(refused("wait for the room"));
        }
        let (message, folders) = step("hear the room", sys::receive_message(ours.as_fd()))?;
        match wire::decode(&message) {
            Some(FromRoom::Ready) => {
                let folders = folders.try_into().map_err(|_| refused("receive the folders"))?;
                Ok(Room { pidfd, socket: ours, folders })
            }
            Some(FromRoom::Failed { step, errno }) => Err(StepError { step, errno }),
            None => Err(refused("hear the room")),
        }
    }

    /// Gives the kernel's pidfd, or why none could be forked. A zygote that does not answer is past
    /// helping: the error ends the warden.
    fn fork_kernel(
        &mut self,
        request: &SpawnRequest,
        room: &Room,
        given: &[OwnedFd],
    ) -> Result<Result<OwnedFd, i32>, StepError> {
        let mut descriptors = vec![room.pidfd.as_fd()];
        descriptors.extend(given.iter().map(AsFd::as_fd));
        let user = match &self.template {
            Some(template) => self.slots.get(request.slot, &template.host_proc)?.user,
            None => 0,
        };
        let fork = wire::encode(&ToZygote::Fork { request: request.clone(), user });
        step("ask the zygote", sys::send_message(self.zygote.as_fd(), &fork, &descriptors))?;
        loop {
            let limit = Some(FORK_LIMIT);
            let ready = step("wait for the fork", room::wait(&[self.zygote.as_fd()], limit))?;
            if !ready[0] {
                return Err(refused("wait for the fork"));
            }
            let (message, mut descriptors) = self.hear_zygote()?;
            match wire::decode(&message) {
                Some(FromZygote::Forked { pid, .. }) => {
                    let kernel = descriptors.pop().ok_or_else(|| refused("receive the kernel"))?;
                    if self.template.is_none() {
                        let told = keeper::tell_group(room.socket.as_fd(), pid, kernel.as_fd());
                        step("tell the keeper", told)?;
                    }
                    return Ok(Ok(kernel));
                }
                Some(FromZygote::Failed { errno, .. }) => return Ok(Err(errno)),
                // ends of other kernels may be queued before our answer
                _ => self.pass_on(&message)?,
            }
        }
    }

    fn hear_zygote(&self) -> Result<(Vec<u8>, Vec<OwnedFd>), StepError> {
        let heard = step("hear the zygote", sys::receive_message(self.zygote.as_fd()))?;
        if heard.0.is_empty() { Err(refused("keep the zygote alive")) } else { Ok(heard) }
    }

    fn pass_on(&self, message: &[u8]) -> Result<(), StepError> {
        match wire::decode(message) {
            Some(FromZygote::Exited { id: Some(id), code }) => {
                self.say(&FromWarden::Exited { id, code }, &[])
            }
            _ => Ok(()),
        }
    }

    fn say(&self, message: &FromWarden, descriptors: &[BorrowedFd<'_>]) -> Result<(), StepError> {
        step("answer", sys::send_message(self.service, &wire::encode(&message), descriptors))
    }
}

struct Room {
    pidfd: OwnedFd,
    socket: OwnedFd,
    folders: [OwnedFd; 2],
}

impl Room {
    /// Ends a room that no kernel came to live in.
    fn abandon(&self) {
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
    }
}
