//! Files that stay open, so that reading one again is a single call.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::root::{ReadError, Root, WHOLE};

/// Files beyond this are opened for each reading, whatever the process's limit is.
const MOST: usize = 4096;
/// A file that nobody read in so many rounds is closed.
const ROUNDS: u32 = 8;

/// A machine's files, those kept open that were read of late.
///
/// An open file of `/proc` belongs to one thread, of the control groups to one group: when that has
/// ended, the path is opened anew, in case that another has its name now.
pub(crate) struct Kept {
    pub(crate) root: Root,
    files: BTreeMap<String, (File, u32)>,
    most: usize,
    round: u32,
    buffer: Vec<u8>,
}

impl Kept {
    /// Keeps half as many files open as the process may have now.
    pub(crate) fn new(root: Root) -> Kept {
        let most = crate::most_open(2, MOST);
        Kept { root, files: BTreeMap::new(), most, round: 0, buffer: vec![0; 8192] }
    }

    /// Goes on with another tree.
    pub(crate) fn turn_to(&mut self, root: Root) {
        self.files.clear();
        self.root = root;
    }

    /// To be called between two looks: closes what is not read any more.
    pub(crate) fn next_round(&mut self) {
        self.round = self.round.wrapping_add(1);
        let now = self.round;
        self.files.retain(|_, (_, read)| now.wrapping_sub(*read) <= ROUNDS);
    }

    /// The text of a file that is open: of the same thing as before, for a path may be of another one meanwhile.
    pub(crate) fn again(&mut self, path: &str) -> Option<String> {
        let (file, read) = self.files.get_mut(path)?;
        *read = self.round;
        let text = text(file, &mut self.buffer).ok();
        if text.is_none() {
            self.files.remove(path);
        }
        text
    }

    /// The whole text of a file.
    pub(crate) fn read(&mut self, path: &str) -> Result<String, ReadError> {
        if let Some(text) = self.again(path) {
            return Ok(text);
        }
        if self.files.len() >= self.most {
            return self.root.read(path);
        }
        let file = self.root.open(path)?;
        let text = text(&file, &mut self.buffer).map_err(|error| ReadError::from_io(path, &error))?;
        self.files.insert(path.into(), (file, self.round));
        Ok(text)
    }
}

fn text(file: &File, buffer: &mut Vec<u8>) -> io::Result<String> {
    let mut length = 0;
    loop {
        if length == buffer.len() {
            buffer.resize(2 * length, 0);
        }
        match file.read_at(&mut buffer[length..], length as u64) {
            Ok(0) => break,
            Ok(n) => {
                length += n;
                if n < WHOLE {
                    break;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(crate::bytes::text(buffer[..length].to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kept_file_is_read_anew_each_time_and_closed_when_nobody_asks() {
        let me = format!("/proc/{}/task/{0}/schedstat", std::process::id());
        let mut kept = Kept::new(Root::live());
        let first = kept.read("/proc/uptime").unwrap();
        let long = kept.read("/proc/self/mountinfo").unwrap();
        assert_eq!(long, std::fs::read_to_string("/proc/self/mountinfo").unwrap());
        assert!(kept.read(&me).is_ok());
        std::thread::sleep(std::time::Duration::from_millis(30)); // uptime counts hundredths of a second
        assert_ne!(first, kept.read("/proc/uptime").unwrap());
        assert_eq!(kept.files.len(), 3);
        (0..=ROUNDS).for_each(|_| kept.next_round());
        assert!(kept.files.is_empty());
        assert!(matches!(kept.read("/proc/no-such"), Err(ReadError::Unsupported { .. })));
    }

    #[test]
    fn the_file_of_a_process_that_ended_is_gone() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let path = format!("/proc/{0}/task/{0}/schedstat", child.id());
        let mut kept = Kept::new(Root::live());
        assert!(kept.read(&path).is_ok());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(kept.read(&path).unwrap_err().is_absent());
        assert!(kept.files.is_empty());
    }
}
