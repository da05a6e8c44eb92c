//! Only one corefit at a time changes a machine, whatever their directories are: who works elsewhere would take the
//! other's values for originals, and the other's notes for those of a daemon that was killed.

use std::io::ErrorKind;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use anyhow::{Context, Result, bail};

use super::journal::checksum;

/// Held while a machine may be changed. A name in the kernel, which is gone with the process, not a file.
pub(super) struct Alone {
    _socket: UnixListener,
}

impl Alone {
    /// Takes hold of a machine, by its name.
    ///
    /// # Errors
    /// If another corefit has hold of it.
    pub(super) fn with(machine: &str) -> Result<Alone> {
        let name = format!("corefit-manage-{}", checksum(machine));
        let address = SocketAddr::from_abstract_name(name).context("naming the lock of a machine")?;
        match UnixListener::bind_addr(&address) {
            Ok(socket) => Ok(Alone { _socket: socket }),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                bail!(
                    "{machine}: another corefit is at work there, with another directory; end that one first"
                )
            }
            Err(error) => Err(error).with_context(|| format!("{machine}: taking hold of it")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_held_by_one_at_a_time_and_others_are_not_concerned() {
        let name = format!("test {}", std::process::id());
        let held = Alone::with(&name).unwrap();
        let why = Alone::with(&name).err().unwrap().to_string();
        assert!(why.contains("another corefit") && why.contains(&name), "{why}");
        Alone::with(&format!("{name}, another")).unwrap();
        drop(held);
        Alone::with(&name).unwrap();
    }
}
