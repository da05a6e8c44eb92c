//! How OpenMP runtimes wait: with the passive policy their waiting sleeps, so that it is not mistaken for work.

use std::ffi::OsString;

/// What says how to wait: OpenMP itself, libgomp (its turns before it sleeps), libomp (its time, ms).
const PASSIVE: [(&str, &str); 3] =
    [("OMP_WAIT_POLICY", "passive"), ("GOMP_SPINCOUNT", "0"), ("KMP_BLOCKTIME", "0")];

/// What to do about waiting.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Variables to set; none if the user has set one of them.
    pub set: Vec<(&'static str, &'static str)>,
    /// The user's own, `NAME=value`.
    pub kept: Vec<String>,
    /// Whether waiting sleeps then.
    pub sleeps: bool,
}

/// Makes waiting sleep, unless the user's environment (`get`) says how to wait.
#[must_use]
pub fn passive(get: &dyn Fn(&str) -> Option<OsString>) -> Waiting {
    let users = PASSIVE.iter().filter_map(|(name, _)| {
        let value = get(name).filter(|value| !value.is_empty())?;
        Some((*name, value.to_string_lossy().into_owned()))
    });
    let users: Vec<(&str, String)> = users.collect();
    if users.is_empty() {
        return Waiting { set: PASSIVE.to_vec(), kept: vec![], sleeps: true };
    }
    let policy = |(name, value): &(&str, String)| {
        *name == "OMP_WAIT_POLICY" && value.trim().eq_ignore_ascii_case("passive")
    };
    Waiting {
        set: vec![],
        // The spin counts override the policy.
        sleeps: users.len() == 1 && users.iter().all(policy),
        kept: users.iter().map(|(name, value)| format!("{name}={value}")).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(users: &[(&str, &str)]) -> Waiting {
        passive(&|name| users.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn waiting_sleeps_unless_the_user_says_how_to_wait() {
        assert_eq!(with(&[]).set.len(), 3);
        assert!(with(&[]).sleeps);
        for users in [("OMP_WAIT_POLICY", "active"), ("GOMP_SPINCOUNT", "infinity"), ("KMP_BLOCKTIME", "200")]
        {
            let waiting = with(&[users]);
            assert!(waiting.set.is_empty() && !waiting.sleeps, "{users:?}");
            assert_eq!(waiting.kept, [format!("{}={}", users.0, users.1)]);
        }
        assert!(with(&[("OMP_WAIT_POLICY", " PASSIVE")]).sleeps);
        assert_eq!(with(&[("OMP_WAIT_POLICY", "")]), with(&[]), "an empty value counts as not set");
        assert!(!with(&[("OMP_WAIT_POLICY", "passive"), ("GOMP_SPINCOUNT", "1000000")]).sleeps);
    }
}
