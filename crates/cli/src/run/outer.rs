//! What a `corefit run` around this one set is nobody's wish, and made for other CPUs than what stands between may leave here: `mpirun`
//! binds each of the programs that it starts.

use std::collections::BTreeSet;
use std::ffi::OsString;

/// Says to whoever is started what was set for it: `NAME=value`, one a line.
pub(super) const VARIABLE: &str = "COREFIT_SET";

/// Variables that still have the value that another `corefit run` gave them.
#[derive(Debug, Default)]
pub(super) struct Outer(BTreeSet<String>);

impl Outer {
    /// As this process was started.
    pub(super) fn now() -> Outer {
        let list = std::env::var(VARIABLE).unwrap_or_default();
        Outer::of(&list, |name| std::env::var_os(name))
    }

    fn of(list: &str, get: impl Fn(&str) -> Option<OsString>) -> Outer {
        let set = list.lines().filter_map(|line| line.split_once('='));
        let still = set.filter(|(name, value)| get(name).is_some_and(|now| now == *value));
        Outer(still.map(|(name, _)| name.to_owned()).collect())
    }

    /// What the user set a variable to.
    pub(super) fn users(&self, name: &str) -> Option<OsString> {
        std::env::var_os(name).filter(|_| !self.0.contains(name))
    }

    /// Their names.
    pub(super) fn names(&self) -> impl Iterator<Item = &String> {
        self.0.iter()
    }

    /// The text of [`VARIABLE`] for who is started with these set, without those that hold something of the user's, too.
    pub(super) fn text(&self, set: &[String]) -> String {
        let ours = set.iter().filter(|set| {
            let name = set.split_once('=').map_or(set.as_str(), |(name, _)| name);
            self.users(name).is_none_or(|users| users.is_empty())
        });
        ours.map(String::as_str).collect::<Vec<_>>().join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_one_set_is_not_the_users_unless_he_changed_it() {
        let get = |name: &str| match name {
            "OMP_NUM_THREADS" => Some("4".into()),
            "GOMAXPROCS" => Some("7".into()),
            _ => None,
        };
        let outer = Outer::of("OMP_NUM_THREADS=4\nGOMAXPROCS=4\nMC_CORES=4\nnoise", get);
        assert_eq!(outer.names().collect::<Vec<_>>(), ["OMP_NUM_THREADS"]);
        assert_eq!(Outer::of("", get).names().count(), 0);
    }

    #[test]
    fn what_the_user_has_a_part_in_stays_his() {
        // (PATH stands for JAVA_TOOL_OPTIONS, to which something is appended.)
        let set = ["GOMAXPROCS_OF_NOBODY=2", "PATH=/bin and more"].map(String::from);
        assert_eq!(Outer::default().text(&set), set[0]);
    }
}
