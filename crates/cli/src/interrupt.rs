//! SIGINT, SIGTERM and SIGHUP end a command in order: what it started is killed and what it
//! made is removed, because everything is owned by a value whose `Drop` does that.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use corefit_linux::launch::started_ignoring;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The signals that ask a command to end.
pub(crate) struct Interrupt {
    caught: Arc<AtomicUsize>,
    /// Readable once a signal has been caught.
    wake: UnixStream,
}

/// A command was asked to end by this signal.
#[derive(Debug, thiserror::Error)]
#[error("interrupted by signal {0}; everything was cleaned up")]
pub(crate) struct Interrupted(u8);

impl Interrupted {
    /// As a shell ends after the signal.
    pub(crate) fn exit_code(&self) -> u8 {
        128_u8.saturating_add(self.0)
    }
}

impl Interrupt {
    /// Catches the signals from now on, but for those that this process was started to ignore (`nohup`): so do the
    /// programs that it starts, then.
    pub(crate) fn install() -> io::Result<Interrupt> {
        let caught = Arc::new(AtomicUsize::new(0));
        let (wake, write) = UnixStream::pair()?;
        for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !started_ignoring(*signal)) {
            let number = usize::try_from(signal).unwrap_or(usize::MAX);
            signal_hook::flag::register_usize(signal, Arc::clone(&caught), number)?;
            signal_hook::low_level::pipe::register(signal, write.try_clone()?)?;
        }
        Ok(Interrupt { caught, wake })
    }

    /// An error once a signal has been caught.
    pub(crate) fn check(&self) -> Result<(), Interrupted> {
        match u8::try_from(self.caught.load(Ordering::SeqCst)) {
            Ok(0) => Ok(()),
            Ok(signal) => Err(Interrupted(signal)),
            Err(_) => Err(Interrupted(u8::MAX)),
        }
    }

    /// Becomes readable when a signal is caught.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}
