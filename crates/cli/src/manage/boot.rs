//! How long a change lasts: on a host until it boots, on a simulated one until its process ends.

use anyhow::{Result, anyhow};

/// Where the kernel tells its boots apart: random(4).
const ID: &str = "/proc/sys/kernel/random/boot_id";

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
        let unknown = |error| anyhow!("{ID}: {error}; without it nothing is changed");
        let host = std::fs::read_to_string(ID).map_err(unknown)?.trim().to_owned();
        let own = if live { host.clone() } else { format!("simulated, process {}", std::process::id()) };
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
