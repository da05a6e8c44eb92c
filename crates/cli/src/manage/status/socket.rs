//! The socket in a state directory, at which the daemon answers.

use std::fs::Permissions;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};

use super::{Board, PATIENCE};
use crate::manage::metrics;
use crate::manage::own::{self, Made};

/// Bytes of the longest name of a socket (unix(7)).
const LONGEST: usize = 107;

/// Its file.
pub(super) fn socket(state: &Path) -> PathBuf {
    state.join("status.sock")
}

/// The socket's file, which goes with this, unless it is somebody else's by then.
pub(crate) struct Socket {
    path: PathBuf,
    inode: u64,
    _made: Made,
}

impl Drop for Socket {
    fn drop(&mut self) {
        if inode(&self.path).is_ok_and(|inode| inode == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn inode(path: &Path) -> std::io::Result<u64> {
    Ok(std::fs::symlink_metadata(path)?.ino())
}

/// Whether a daemon answers at the socket in a state directory.
pub(crate) fn answers(state: &Path) -> bool {
    UnixStream::connect(socket(state)).is_ok()
}

/// Answers whoever asks the socket in the state directory, as long as this process lives. Who does not hold the directory's lock
/// leaves the socket to a daemon that answers there, and directories that were made for the socket alone go with it.
///
/// # Errors
/// If the socket cannot be made.
pub(crate) fn serve(state: &Path, board: &Board, holds: bool) -> Result<Socket> {
    let path = socket(state);
    if path.as_os_str().len() > LONGEST {
        let many = path.as_os_str().len();
        bail!(
            "{}: has {many} bytes, and a socket's name {LONGEST} at most; a shorter directory: --state, or state in the configuration",
            path.display()
        );
    }
    let mut made = Made::default();
    if !holds {
        if answers(state) {
            bail!("{}: another corefit manage answers there", path.display());
        }
        made = Made::for_want_of(state);
        let _ = own::directory(state);
    }
    if let Ok(there) = std::fs::symlink_metadata(&path) {
        ensure!(
            there.file_type().is_socket(),
            "{}: is no socket; remove it, or give another directory: --state",
            path.display()
        );
        // Of an earlier run.
        let _ = std::fs::remove_file(&path);
    }
    let listener = UnixListener::bind(&path).with_context(|| path.display().to_string())?;
    let own = Socket { inode: inode(&path)?, path, _made: made };
    // Whoever may write to it may ask: nobody but this user and root, whatever the umask is.
    std::fs::set_permissions(&own.path, Permissions::from_mode(0o600))
        .with_context(|| own.path.display().to_string())?;
    let board = board.clone();
    let reply = move |stream: &UnixStream| {
        let mut status = (*board.shown()).clone();
        status.age_s = status.stepped.map(|at| at.elapsed().as_secs_f64());
        let text = serde_json::to_string(&status).unwrap_or_default();
        let limit = |left| stream.set_write_timeout(Some(left));
        let _ = metrics::send(stream, text.as_bytes(), Instant::now() + PATIENCE, limit);
    };
    let answer = move || metrics::each("status client", listener.incoming(), reply);
    std::thread::Builder::new().name("status".into()).spawn(answer).context("no thread for the status")?;
    Ok(own)
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::super::Status;
    use super::*;

    #[test]
    fn the_socket_answers_each_who_asks_with_the_status_of_now() {
        let dir = tempfile::tempdir().unwrap();
        let board = Board::default();
        let socket_file = serve(dir.path(), &board, true).unwrap();
        for steps in 1..4 {
            board.lock().steps = steps;
            let mut text = String::new();
            UnixStream::connect(socket(dir.path())).unwrap().read_to_string(&mut text).unwrap();
            assert_eq!(serde_json::from_str::<Status>(&text).unwrap().steps, steps);
        }
        assert!(serve(dir.path(), &board, false).is_err(), "who only looks does not take it");
        let taken = serve(dir.path(), &board, true).unwrap();
        drop(socket_file);
        assert!(answers(dir.path()), "the one of the other is left there");
        drop(taken);
        assert!(!answers(dir.path()));
    }

    #[test]
    fn nobody_but_its_user_and_root_may_ask_it() {
        let dir = tempfile::tempdir().unwrap();
        let _socket = serve(dir.path(), &Board::default(), true).unwrap();
        let mode = std::fs::metadata(socket(dir.path())).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{mode:o}");
    }

    #[test]
    fn what_is_no_socket_is_not_removed_for_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = socket(dir.path());
        std::fs::write(&path, "precious").unwrap();
        let why = serve(dir.path(), &Board::default(), true).err().unwrap().to_string();
        assert!(why.contains("status.sock: is no socket; remove it, or give another directory"), "{why}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }

    #[test]
    fn a_directory_whose_name_is_too_long_for_a_socket_is_said_with_a_remedy() {
        let state = Path::new("/tmp").join("x".repeat(120));
        let error = serve(&state, &Board::default(), true).err().unwrap().to_string();
        assert!(error.contains("a shorter directory: --state"), "{error}");
    }

    #[test]
    fn a_directory_that_was_made_for_the_socket_alone_goes_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("made/state");
        let served = || serve(&state, &Board::default(), false).unwrap();
        let only_looks = served();
        assert!(answers(&state));
        drop(only_looks);
        assert!(!dir.path().join("made").exists());
        let only_looks = served();
        std::fs::write(state.join("journal"), "").unwrap();
        drop(only_looks);
        assert!(state.join("journal").exists(), "somebody else's by then");
        std::fs::remove_file(state.join("journal")).unwrap();
        drop(served());
        assert!(state.exists(), "it was there before");
    }
}
