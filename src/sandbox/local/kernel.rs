//! One room and its kernel: frames, pipes, timeout, interrupt, kill.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::Errno;
use tokio::net::UnixStream;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until, timeout};

use super::collect::{Collector, settle};
use super::ending::{Death, Stop, tell_death, tell_exceeded, tell_stop};
use super::error::LocalError;
use super::frames::{DoneStatus, FrameReader, KernelFrame};
use super::handle::{Held, Parts, Room};
use super::room::JOINED;
use super::tap::Tap;
use super::wire::{EnvironFrame, ExecFrame, SpawnRequest, framed};
use super::workshop;
use super::zygote::{Spawned, Zygote};
use crate::domain::coded::chain;
use crate::domain::event::OutputSink;
use crate::domain::execution::{Cell, Execution, ExecutionStatus, Language, milliseconds};
use crate::domain::limits::Limits;
use crate::sandbox::host::files::Files;
use crate::sandbox::streams::Stream;

const HELLO_LIMIT: Duration = Duration::from_secs(30);
const SEND_LIMIT: Duration = Duration::from_secs(10);
/// How long an interrupted cell may take to end before its room is killed.
const GRACE: Duration = Duration::from_secs(1);
/// An interrupt that comes before the cell has begun is dropped: it is repeated.
const INTERRUPT_EVERY: Duration = Duration::from_millis(250);
/// A kernel that has said more than this while no cell ran, in turns of its buffer, floods us.
const MAX_IDLE_READS: usize = 256;
const EXIT_NOTICE_LIMIT: Duration = Duration::from_millis(300);

/// The kernel of a room and the pipes that it writes to.
pub(super) struct Kernel {
    control: UnixStream,
    reader: FrameReader,
    stdout: Tap,
    stderr: Tap,
    /// What threads of earlier cells print while a later cell runs.
    late: Tap,
    exit: Option<oneshot::Receiver<i32>>,
    scratch: Vec<u8>,
}

/// Makes a room and waits until its kernel serves.
pub(super) async fn spawn(
    zygote: &Zygote,
    request: SpawnRequest,
    limits: &Limits,
    held: Held,
    environ: &BTreeMap<String, String>,
) -> Result<(Room, Kernel), LocalError> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(LocalError::Warden)?;
    let (stdout, stdout_end) = io::pipe().map_err(LocalError::Warden)?;
    let (stderr, stderr_end) = io::pipe().map_err(LocalError::Warden)?;
    let (late, late_end) = io::pipe().map_err(LocalError::Warden)?;
    let pipes = [OwnedFd::from(theirs), stdout_end.into(), stderr_end.into(), late_end.into()];
    let given = workshop::given(pipes, held.cgroup.as_ref()).map_err(LocalError::Warden)?;
    let folder = request.folder.clone();
    let Spawned { room: pidfd, kernel, readable, place, room_socket: socket, exit } =
        zygote.spawn(request, given).await?;
    let files = Files::new(readable, place);
    let parts = Parts { pidfd, kernel, socket, files, limits: *limits, folder, held };
    let room = Room::new(parts).map_err(LocalError::Warden)?;
    ours.set_nonblocking(true).map_err(LocalError::Warden)?;
    let mut kernel = Kernel {
        control: UnixStream::from_std(ours).map_err(LocalError::Warden)?,
        reader: FrameReader::default(),
        stdout: Tap::new(stdout).map_err(LocalError::Warden)?,
        stderr: Tap::new(stderr).map_err(LocalError::Warden)?,
        late: Tap::new(late).map_err(LocalError::Warden)?,
        exit: Some(exit),
        scratch: vec![0; 64 * 1024],
    };
    match timeout(HELLO_LIMIT, kernel.greet(environ)).await {
        Ok(true) => {
            // the zygote's child has joined: from now on nobody else may
            room.tell(JOINED);
            Ok((room, kernel))
        }
        Ok(false) | Err(_) => {
            tracing::error!(stderr = %kernel.last_words(), "a kernel did not start");
            if let Err(error) = room.end().await {
                let cause = chain(&error);
                tracing::error!(error = cause, "a room without a kernel has not ended whole");
            }
            Err(LocalError::KernelSilent)
        }
    }
}

impl Kernel {
    /// Runs a cell. With a death the kernel is over and its room killed.
    pub(super) async fn run(
        &mut self,
        room: &Room,
        cell: &Cell,
        interrupt: &Notify,
        sink: &OutputSink,
    ) -> (Execution, Option<Death>) {
        let started = Instant::now();
        let oom_kills = room.oom_kills();
        let output_cap = room.limits.output_bytes.unwrap_or(u64::MAX);
        let mut running = Running {
            id: cell.id.to_string(),
            room,
            collector: Collector::new(usize::try_from(output_cap).unwrap_or(usize::MAX)),
            sink,
            deadline: started + cell.timeout,
            stopping: None,
        };
        self.drain_late(&mut running.collector);
        let ended = match self.send(cell, &running.id).await {
            Ok(()) => self.until_done(&mut running, interrupt).await,
            Err(death) => Err(death),
        };
        if ended.is_err() {
            room.kill();
            let _ = room.gone().await; // a successor waits for it again
        }
        self.drain(&mut running);
        let mut execution = Execution::of(cell);
        execution.duration_ms = Some(milliseconds(started.elapsed()));
        let stop = running.stopping.map(|stopping| stopping.why);
        running.collector.finish(&mut execution);
        let death = match ended {
            Ok(Done { status, count, exit_code }) => {
                settle(&mut execution, status, count, exit_code);
                None
            }
            Err(death) => {
                tell_death(&mut execution, death);
                Some(death)
            }
        };
        if let Some(stop) = stop.filter(|_| execution.status != ExecutionStatus::Success) {
            tell_stop(&mut execution, stop, cell.timeout);
        }
        if execution.status != ExecutionStatus::Success
            && let Some(exceeded) = room.exceeded_since(oom_kills)
        {
            tell_exceeded(&mut execution, exceeded, &room.limits);
        }
        execution.text = execution.display_text();
        (execution, death)
    }

    /// True when no cell may be handed over any more: the kernel has ended while none ran, or has
    /// broken the rules of its channel.
    pub(super) fn is_unfit(&mut self) -> bool {
        for _ in 0..MAX_IDLE_READS {
            // asks the kernel of the host: tokio may not have heard of the last bytes yet
            match rustix::io::read(&self.control, &mut self.scratch) {
                Ok(0) => return true,
                Ok(count) => self.reader.push(&self.scratch[..count]),
                Err(Errno::AGAIN) => return false,
                Err(_) => return true,
            }
            if self.breaks_silence() {
                return true;
            }
        }
        true
    }

    /// Nothing ends while no cell runs; what else comes is left over from an earlier one.
    fn breaks_silence(&mut self) -> bool {
        loop {
            match self.reader.next() {
                Ok(None) => return false,
                Ok(Some((KernelFrame::Done { .. }, _))) | Err(_) => return true,
                Ok(Some(_)) => {}
            }
        }
    }

    /// True when it has come up and knows its environment.
    async fn greet(&mut self, environ: &BTreeMap<String, String>) -> bool {
        self.hello().await && self.tell_environ(environ).await
    }

    /// Adds to the environment of all cells to come. False when the kernel does not listen.
    pub(super) async fn tell_environ(&mut self, environ: &BTreeMap<String, String>) -> bool {
        if environ.is_empty() {
            return true;
        }
        let frame = framed(&EnvironFrame { t: "environ", environ });
        let write = tokio::io::AsyncWriteExt::write_all(&mut self.control, &frame);
        matches!(timeout(SEND_LIMIT, write).await, Ok(Ok(())))
    }

    async fn hello(&mut self) -> bool {
        loop {
            match self.reader.next() {
                Ok(Some((frame, _))) => return frame == KernelFrame::Hello {},
                Ok(None) => {}
                Err(_) => return false,
            }
            if self.control.readable().await.is_err()
                || !matches!(self.read_control(), Ok(Some(())))
            {
                return false;
            }
        }
    }

    /// What a kernel that did not come up left on stderr; it has run no cell.
    fn last_words(&mut self) -> String {
        let mut words = Vec::new();
        self.stderr.drain(&mut self.scratch, |bytes| words.extend_from_slice(bytes));
        words.truncate(2048);
        String::from_utf8_lossy(&words).into_owned()
    }

    async fn send(&mut self, cell: &Cell, id: &str) -> Result<(), Death> {
        let frame = framed(&ExecFrame {
            t: "exec",
            id,
            code: &cell.code,
            lang: match cell.language {
                Language::Python => "python",
                Language::Shell => "sh",
            },
            env: &cell.env,
            stdin: cell.stdin.as_deref(),
        });
        let write = tokio::io::AsyncWriteExt::write_all(&mut self.control, &frame);
        match timeout(SEND_LIMIT, write).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(self.how_it_ended().await),
            Err(_) => Err(Death::BrokeChannel),
        }
    }

    async fn until_done(
        &mut self,
        running: &mut Running<'_>,
        interrupt: &Notify,
    ) -> Result<Done, Death> {
        loop {
            let wake = running.wake();
            tokio::select! {
                ready = self.control.readable() => {
                    if ready.is_err() || self.read_control().is_err() {
                        return Err(self.how_it_ended().await);
                    }
                    if let Some(done) = self.take_frames(running).await? {
                        return Ok(done);
                    }
                }
                () = self.stdout.readable() => {
                    self.stdout.drain(&mut self.scratch, |bytes| running.stream(Stream::Stdout, bytes));
                    // who prints without end must not hold this thread: others have their turn
                    tokio::task::yield_now().await;
                }
                () = self.stderr.readable() => {
                    self.stderr.drain(&mut self.scratch, |bytes| running.stream(Stream::Stderr, bytes));
                    tokio::task::yield_now().await;
                }
                () = self.late.readable() => {
                    self.late.drain(&mut self.scratch, |bytes| running.collector.late(bytes));
                    tokio::task::yield_now().await;
                }
                code = ended(&mut self.exit) => {
                    // somebody else may still hold its end of the socket
                    self.exit = None;
                    return match self.last_frames(running).await? {
                        Some(done) => Ok(done),
                        None => Err(Death::Ended(code)),
                    };
                }
                () = interrupt.notified() => running.stop(Stop::Caller),
                () = sleep_until(wake) => {
                    running.stop(Stop::Timeout);
                    running.press()?;
                }
            }
        }
    }

    /// What a kernel that has ended had still said.
    async fn last_frames(&mut self, running: &mut Running<'_>) -> Result<Option<Done>, Death> {
        while let Ok(count @ 1..) = rustix::io::read(&self.control, &mut self.scratch) {
            self.reader.push(&self.scratch[..count]);
            if let Some(done) = self.take_frames(running).await? {
                return Ok(Some(done));
            }
        }
        Ok(None)
    }

    /// Ok(None) when there is nothing to read now; an error at the end of the socket.
    fn read_control(&mut self) -> io::Result<Option<()>> {
        match self.control.try_read(&mut self.scratch) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.reader.push(&self.scratch[..count]);
                Ok(Some(()))
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn take_frames(&mut self, running: &mut Running<'_>) -> Result<Option<Done>, Death> {
        loop {
            let next = self.reader.next().map_err(|error| {
                tracing::warn!(error = %error, "a kernel broke its channel");
                Death::BrokeChannel
            })?;
            let Some((frame, bytes)) = next else { return Ok(None) };
            running.collector.count(bytes).map_err(|_| Death::BrokeChannel)?;
            // the kernel flushes before each frame: what stands before it in time is read before it
            self.drain(running);
            tokio::task::yield_now().await;
            let ours = frame.cell() == Some(&running.id);
            match frame {
                KernelFrame::Done { status, n, exit_code, .. } if ours => {
                    self.reader.shrink();
                    return Ok(Some(Done { status, count: n, exit_code }));
                }
                KernelFrame::Done { .. } => return Err(Death::BrokeChannel),
                frame if ours => running.collector.frame(frame, bytes, running.sink),
                _ => {} // left over from an earlier cell
            }
        }
    }

    /// Reads what is in the pipes at this moment, asking the kernel of the host and not tokio,
    /// which may not have heard of the last bytes yet.
    fn drain(&mut self, running: &mut Running<'_>) {
        let scratch = &mut self.scratch;
        self.stdout.drain_now(scratch, |bytes| running.stream(Stream::Stdout, bytes));
        self.stderr.drain_now(scratch, |bytes| running.stream(Stream::Stderr, bytes));
        self.late.drain_now(scratch, |bytes| running.collector.late(bytes));
    }

    /// What threads of earlier cells have printed since is no output of the next cell.
    fn drain_late(&mut self, collector: &mut Collector) {
        for tap in [&mut self.stdout, &mut self.stderr, &mut self.late] {
            tap.drain_now(&mut self.scratch, |bytes| collector.late(bytes));
        }
    }

    async fn how_it_ended(&mut self) -> Death {
        let Some(exit) = self.exit.take() else { return Death::Ended(None) };
        match timeout(EXIT_NOTICE_LIMIT, exit).await {
            Ok(code) => Death::Ended(code.ok()),
            Err(_) => Death::BrokeChannel, // it closed its socket and lives on
        }
    }
}

/// Waits for the end of a kernel; for ever when it has been told already.
async fn ended(exit: &mut Option<oneshot::Receiver<i32>>) -> Option<i32> {
    match exit {
        Some(exit) => exit.await.ok(),
        None => std::future::pending().await,
    }
}

/// The cell that runs now.
struct Running<'a> {
    id: String,
    room: &'a Room,
    collector: Collector,
    sink: &'a OutputSink,
    deadline: Instant,
    stopping: Option<Stopping>,
}

/// A cell that has been told to stop.
#[derive(Clone, Copy)]
struct Stopping {
    why: Stop,
    until: Instant,
    next: Instant,
}

/// The kernel's word on how a cell ended.
struct Done {
    status: DoneStatus,
    count: Option<u32>,
    exit_code: Option<i32>,
}

impl Running<'_> {
    fn stream(&mut self, stream: Stream, bytes: &[u8]) {
        self.collector.stream(stream, bytes, self.sink);
    }

    /// When there is next something to do that nobody else starts.
    fn wake(&self) -> Instant {
        self.stopping.map_or(self.deadline, |stopping| stopping.next.min(stopping.until))
    }

    /// Starts the end of the cell; the first reason stays.
    fn stop(&mut self, why: Stop) {
        if self.stopping.is_none() {
            let now = Instant::now();
            self.stopping = Some(Stopping { why, until: now + GRACE, next: now });
        }
    }

    /// Interrupts, again and again, until the grace is over.
    fn press(&mut self) -> Result<(), Death> {
        let Some(stopping) = &mut self.stopping else { return Ok(()) };
        let now = Instant::now();
        if now >= stopping.until {
            return Err(Death::IgnoredInterrupt);
        }
        self.room.interrupt();
        stopping.next = now + INTERRUPT_EVERY;
        Ok(())
    }
}
