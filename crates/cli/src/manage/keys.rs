//! What each key of a configuration may be, in words; those of `[policy]` are [`corefit_sim::keys`].

use corefit_sim::keys::{self, Bad, KEYS, Kind};
use toml::de::DeTable;

/// Every key beside those of `[policy]`.
const OWN: [(&str, Kind); 6] = [
    ("machine", Kind::Text("a machine's name in quotes, such as \"libvirt\"")),
    ("apply", Kind::Flag),
    ("tell", Kind::Flag),
    ("state", Kind::Text("a directory in quotes, such as \"/var/lib/corefit\"")),
    ("metrics", Kind::Text("an address in quotes, such as \"127.0.0.1:9464\", or \"off\"")),
    ("policy", Kind::Table),
];

/// The first key or value that cannot be.
pub(super) fn bad(table: &DeTable<'_>) -> Option<Bad> {
    keys::bad(table, "", &all())
}

/// Every key, with what it may be.
fn all() -> Vec<(&'static str, Kind)> {
    [&OWN[..], &KEYS[..]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use corefit_core::decide::{Policy, Rule};
    use serde_json::Value;

    /// Keys of a table of structures.
    fn fields(of: &impl serde::Serialize, above: &str) -> Vec<String> {
        let Ok(Value::Object(map)) = serde_json::to_value(of) else { panic!("no structure") };
        map.keys().map(|key| format!("{above}.{key}")).collect()
    }

    #[test]
    fn the_keys_are_those_that_policies_have() {
        let mut want = fields(&Policy::default(), "policy");
        want.extend(fields(&Rule::default(), "policy.vm"));
        let mut have: Vec<String> =
            all().into_iter().map(|(key, _)| key.into()).filter(|key: &String| key.contains('.')).collect();
        want.sort();
        have.sort();
        assert_eq!(have, want);
    }

    #[test]
    fn the_names_that_are_allowed_are_those_that_can_be_read() {
        for (key, kind) in all() {
            let Kind::OneOf(names) = kind else { continue };
            let (table, key) = key.rsplit_once('.').unwrap();
            let read = |name: &str| match table {
                "policy" => toml::from_str::<Policy>(&format!("{key} = {name:?}")).map(|_| ()),
                _ => toml::from_str::<Rule>(&format!("{key} = {name:?}")).map(|_| ()),
            };
            let error = read("?").unwrap_err().to_string();
            let known: Vec<&str> = error.split('`').skip(3).step_by(2).collect();
            assert_eq!(known, names, "{key}: {error}");
            names.iter().for_each(|name| read(name).unwrap());
        }
    }

    #[test]
    fn of_whole_numbers_it_is_said_how_large_they_may_be() {
        for (key, kind) in all() {
            let Kind::Whole(_, most, words) = kind else { continue };
            let digits = words.contains("of at most nine digits") && most == keys::NINE_DIGITS;
            assert!(digits || words.contains(" to "), "{key}: {words}");
        }
    }

    #[test]
    fn what_is_allowed_can_be_read() {
        for (text, fine) in [
            ("apply = true\nmachine = \"libvirt\"\n[policy]\ndeadband = 0\nreserved = \"0-1\"", true),
            ("[[policy.vm]]\nname = \"a\"\nmin = 0x4\npriority = -1\nguaranteed = 1", true),
            ("policy.vm = [{ name = \"a\", max = 1_000 }]", true),
            ("[policy]\nsearches = 99999999999999999999", false),
            ("[[policy.vm]]\nname = \"a\"\nmin = 4294967296", false),
            ("[policy]\nvm = [3]", false),
            ("policy = 1", false),
            ("[policy]\nvm = \"a\"", false),
            ("[policy]\nreserved = \"x\"", false),
            ("apply = 2020-01-01", false),
        ] {
            let table = DeTable::parse(text).unwrap();
            let found = bad(table.get_ref());
            assert_eq!(found.is_none(), fine, "{text:?}: {found:?}");
            assert_eq!(toml::from_str::<super::super::Config>(text).is_ok(), fine, "{text:?}");
        }
    }
}
