//! A configuration that was read while the machine did not answer.

use super::daemons::{QUICK, ruled};
use super::whole::{Whole, configured};
use super::*;
use crate::manage::log::Level;
use crate::manage::log::testing::said;

#[test]
fn what_is_reserved_and_is_not_there_is_refused_at_the_first_look_where_the_machine_did_not_answer_before() {
    let dir = directory();
    let args = configured(dir.path());
    let reserves = |pcpus: &str| format!("{QUICK}size = \"none\"\nreserved = \"{pcpus}\"\n");
    let mut whole = ruled(&args, dir.path(), &reserves("0-9"));
    whole.machine.0.borrow_mut().deaf = true;
    whole.start(None);
    let look = |whole: &mut Whole<'_>| {
        whole.step(None);
        assert_eq!(whole.daemon.as_ref().unwrap().shown().config_refused, None, "nobody knows yet");
        whole.machine.0.borrow_mut().heal();
        let lines = said(|| (0..3).for_each(|_| whole.step(None)));
        let shown = whole.daemon.as_ref().unwrap().shown();
        // That it does nothing without `place` is a note of who goes by it.
        let reserved = shown.notes.iter().any(|note| note.contains("reserved counts only"));
        (shown.config_refused, lines.iter().filter(|line| line.0 == Level::Error).count(), reserved)
    };
    let refused = |place: &str, look: (Option<String>, usize, bool)| {
        let why = look.0.unwrap();
        assert!(why.contains("nothing is reserved") && why.contains(place), "{why}");
        assert_eq!((look.1, look.2), (1, false));
    };
    refused("line 8, key policy.reserved: the host has no pCPU 4-9", look(&mut whole));
    // The same of one that is read again meanwhile, by its own lines.
    whole.machine.0.borrow_mut().deaf = true;
    whole.configure(&format!("\n{}", reserves("5")));
    refused("line 9, key policy.reserved: the host has no pCPU 5", look(&mut whole));
    whole.machine.0.borrow_mut().deaf = true;
    whole.configure(&reserves("0"));
    assert_eq!(look(&mut whole), (None, 0, true));
}
