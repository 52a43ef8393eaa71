//! The service's end of a pipe that a kernel and its children write to.

use std::future::pending;
use std::io;

use rustix::io::Errno;
use tokio::net::unix::pipe;

/// Bytes taken from one pipe before others have their turn.
const TURN_BYTES: usize = 64 * 1024;
/// The most that a pipe holds, however a cell sets it.
const PIPE_BYTES: usize = 1 << 20;

/// A pipe that may come to its end while its cell runs on.
pub(super) struct Tap {
    pipe: pipe::Receiver,
    ended: bool,
}

impl Tap {
    pub(super) fn new(end: io::PipeReader) -> io::Result<Self> {
        Ok(Self { pipe: pipe::Receiver::from_owned_fd(end.into())?, ended: false })
    }

    /// Waits until there is something to read. A pipe at its end never has anything again.
    pub(super) async fn readable(&self) {
        if self.ended || self.pipe.readable().await.is_err() {
            pending::<()>().await;
        }
    }

    /// Reads until the pipe is empty, or its turn is over.
    pub(super) fn drain(&mut self, scratch: &mut [u8], mut take: impl FnMut(&[u8])) {
        let mut taken = 0;
        while taken < TURN_BYTES && !self.ended {
            match self.pipe.try_read(scratch) {
                Ok(0) => self.ended = true,
                Ok(count) => {
                    take(&scratch[..count]);
                    taken += count;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.ended = true,
            }
        }
    }

    /// Reads what is in the pipe at this moment, asking the kernel of the host and not tokio, which
    /// may not have heard of the last bytes yet.
    pub(super) fn drain_now(&mut self, scratch: &mut [u8], mut take: impl FnMut(&[u8])) {
        let mut taken = 0;
        while taken < PIPE_BYTES && !self.ended {
            match rustix::io::read(&self.pipe, &mut *scratch) {
                Ok(0) => self.ended = true,
                Ok(count) => {
                    take(&scratch[..count]);
                    taken += count;
                }
                Err(Errno::AGAIN) => return,
                Err(_) => self.ended = true,
            }
        }
    }
}
