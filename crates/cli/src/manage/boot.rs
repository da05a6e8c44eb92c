//! How long a change lasts: on a host until it boots, on a simulated one until its process ends.

use std::fmt::Display;

use anyhow::{Result, anyhow};
use corefit_linux::launch::Process;

/// Where the kernel tells its boots apart: random(4).
const ID: &str = "/proc/sys/kernel/random/boot_id";
/// When this process began: proc(5).
const SELF: &str = "/proc/self/stat";

/// What tells settings of now from those of earlier.
pub(crate) struct Boot {
    /// Of the machine that is changed.
    own: String,
    /// Of this host, whatever the machine is.
    host: String,
}

impl Boot {
    /// Now, on this host or on one that is simulated.
    ///
    /// # Errors
    /// If the kernel does not say: then nobody knows whether what a journal says is so still.
    pub(super) fn now(live: bool) -> Result<Boot> {
        let unknown =
            |file: &str, error: &dyn Display| anyhow!("{file}: {error}; without it nothing is changed");
        let read = |file: &str| std::fs::read_to_string(file).map_err(|error| unknown(file, &error));
        let host = read(ID)?.trim().to_owned();
        let own = match live {
            true => host.clone(),
            false => simulated(&read(SELF)?, &host).ok_or_else(|| unknown(SELF, &"not as in proc(5)"))?,
        };
        Ok(Boot { own, host })
    }

    /// One of this name, on a host of its own.
    pub(crate) fn named(name: &str) -> Boot {
        Boot { own: name.into(), host: name.into() }
    }

    /// What stands for it in a journal.
    pub(super) fn own(&self) -> &str {
        &self.own
    }

    /// Whether settings that a journal calls so are still as it says.
    pub(super) fn is(&self, found: &str) -> bool {
        found == self.own || found == self.host
    }
}

/// What stands for a process, by what the kernel says of it. Its number alone may be that of an earlier one, as 1 always is in a container:
/// with it goes when it began, in ticks since the host booted.
fn simulated(stat: &str, host: &str) -> Option<String> {
    let process = Process::parse(stat)?;
    Some(format!("simulated, process {} since tick {} of boot {host}", process.pid, process.started_ticks()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_has_the_number_of_an_earlier_one_is_another_one() {
        let stat = |began: &str| {
            format!("1 (a) b (c) S 0 1 1 0 -1 4194560 9 0 0 0 1 2 0 0 20 0 1 0 {began} 9 9 1844674 1 1 0\n")
        };
        let of = |began, boot| simulated(&stat(began), boot).unwrap();
        assert_eq!(of("4711", "x"), "simulated, process 1 since tick 4711 of boot x");
        assert_ne!(of("4711", "x"), of("4712", "x"));
        assert_ne!(of("4711", "x"), of("4711", "y"));
        assert_eq!(simulated("1 (a) S 0", "x"), None);
        // As long as this one runs, it is the same.
        let [one, two] = [(), ()].map(|()| Boot::now(false).unwrap());
        assert!(one.is(two.own()) && one.own().contains(&format!("process {} ", std::process::id())));
    }
}
