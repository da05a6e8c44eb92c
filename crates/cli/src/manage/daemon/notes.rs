//! Which notes the status shows: none that says what the row of a VM says, and no more than people read.

use std::collections::BTreeSet;

use crate::manage::status::VmStatus;

/// Notes that the status shows at most.
const MOST: usize = 100;

/// Those that are shown, in their order, and how many more there are. All are in the log, each once.
pub(super) fn shown(notes: impl Iterator<Item = String>, vms: &[VmStatus]) -> Vec<String> {
    let said: BTreeSet<String> = vms.iter().flat_map(said_by).collect();
    let mut notes: Vec<String> = notes.filter(|note| !said.contains(note)).collect();
    let more = notes.len().saturating_sub(MOST);
    notes.truncate(MOST);
    notes.extend((more > 0).then(|| format!("and {more} more, in the log")));
    notes
}

/// Notes that say what the row of a VM says: why it is left alone, or not sized.
fn said_by(vm: &VmStatus) -> impl Iterator<Item = String> {
    let whys = [&vm.left_alone, &vm.not_sized].into_iter().flatten();
    let heads = ["left alone: ", "keeps its vCPUs: ", "keeps its cpuset: ", ""];
    whys.flat_map(move |why| heads.map(|head| format!("{}: {head}{why}", vm.name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_rows_say_is_no_note_and_how_many_are_not_shown_is_said() {
        let vm = |name: &str, left_alone: Option<&str>, not_sized: Option<&str>| VmStatus {
            name: name.into(),
            left_alone: left_alone.map(Into::into),
            not_sized: not_sized.map(Into::into),
            ..VmStatus::default()
        };
        let vms = [
            vm("a", Some("its rule says exclude"), None),
            vm("b", None, Some("no agent")),
            vm("c", None, Some("its vCPUs may still change: no answer")),
        ];
        let repeated = [
            "a: left alone: its rule says exclude",
            "b: keeps its vCPUs: no agent",
            "b: keeps its cpuset: no agent",
            "c: its vCPUs may still change: no answer",
        ];
        let other = ["d: keeps its vCPUs: no agent", "b: starves", "a: left alone: its owner says exclude"];
        let of = |notes: &[&str]| shown(notes.iter().map(|note| (*note).into()), &vms);
        assert_eq!(of(&[&repeated[..], &other].concat()), other);
        let all: Vec<String> = (0..MOST + 20).map(|number| number.to_string()).collect();
        let cut = shown(all.iter().cloned(), &vms);
        assert_eq!((&cut[..MOST], &cut[MOST..]), (&all[..MOST], &["and 20 more, in the log".into()][..]));
        assert_eq!(shown(all[..MOST].iter().cloned(), &vms), all[..MOST]);
    }
}
