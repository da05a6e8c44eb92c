//! What came of putting one setting back.

use corefit_core::machine::{MachineError, Value};

use super::same;
use super::undo::may_pass;

/// A setting that was written to be as it was.
pub(super) struct Tried<'a> {
    pub(super) original: &'a Value,
    /// As much of that as there was, which was written instead.
    pub(super) less: Option<&'a Value>,
    /// It was so already, but something might still have been on its way.
    pub(super) was_so: bool,
    /// What was written before might still have been on its way.
    pub(super) was_pending: bool,
    /// What is written may come later than anybody waits for.
    pub(super) by_call: bool,
    /// Its guest has to do it, and may yet do what it was asked for before.
    pub(super) by_guest: bool,
    /// libvirtd does it, by plugging: that it refuses says nothing of what the guest may yet do.
    pub(super) by_plugging: bool,
    /// Its vCPU may be plugged out now, and is going to be back.
    pub(super) may_come: bool,
}

/// What came of it.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    /// It is its turn again after those that are to come.
    Later,
    /// It is as it was.
    Back,
    /// It is as much of that as there is.
    Less(Value),
    /// It is not known what it is, or is going to be.
    Unknown { why: String, may_yet: bool },
    /// It is something else.
    Other { read: Value, why: String, may_yet: bool, late: Option<Late> },
}

/// What may still come.
#[derive(Debug, PartialEq)]
pub(super) enum Late {
    /// What was written before.
    Before,
    /// What was written now.
    This,
}

/// What came of writing a setting, by what was answered, and what was read back.
pub(super) fn verdict(
    done: Result<(), MachineError>,
    read: Result<Value, MachineError>,
    tried: &Tried<'_>,
) -> Verdict {
    match (done, read) {
        (Err(_), _) if tried.may_come => Verdict::Later,
        (Err(error @ (MachineError::Gone(_) | MachineError::Denied(_))), Ok(_))
            if tried.was_so && (may_pass(&error) || tried.by_call || tried.by_plugging) =>
        {
            Verdict::Unknown { why: still(&error), may_yet: may_pass(&error) }
        }
        // As it was, but it may yet let go of what it was asked for before.
        (Err(error @ MachineError::Gone(_)), Ok(read)) if tried.by_guest && same(&read, tried.original) => {
            Verdict::Unknown { why: still(&error), may_yet: true }
        }
        (_, Ok(read)) if same(&read, tried.original) => Verdict::Back,
        (Err(error @ MachineError::Untried(_)), _) => {
            Verdict::Unknown { why: error.to_string(), may_yet: true }
        }
        (Ok(()), Ok(read)) if tried.less.is_some_and(|less| same(&read, less)) => match tried.original {
            // That of the group above, whatever that is: more of it there was not.
            Value::Pcpus(none) if none.is_empty() => Verdict::Back,
            _ => Verdict::Less(read),
        },
        (done, Ok(read)) => {
            // A guest that cannot let a vCPU go now may do so later.
            let may_yet = !matches!(done, Err(MachineError::Denied(_)));
            let late = match &done {
                Err(MachineError::Gone(_)) => Some(Late::This),
                Err(_) if tried.was_pending => Some(Late::Before),
                _ => None,
            };
            let late = late.filter(|_| tried.by_call);
            let why = done.err().map_or(String::new(), |error| format!(": {error}"));
            Verdict::Other { read, why, may_yet, late }
        }
        (_, Err(error)) => Verdict::Unknown { why: error.to_string(), may_yet: may_pass(&error) },
    }
}

fn still(error: &MachineError) -> String {
    format!("it may still be changed by what was asked before: {error}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use corefit_core::Weight;

    #[test]
    fn what_came_of_putting_back_is_told_by_the_answer_and_what_was_read() {
        let weight = |weight: u32| Value::Weight(Weight(f64::from(weight)));
        let [was, ours, part] = [100, 200, 150].map(weight);
        let gone = || MachineError::Gone("late".into());
        let denied = || MachineError::Denied("no".into());
        let untried = || MachineError::Untried("others".into());
        let (is_was, is_ours, is_part) = (|| Ok(weight(100)), || Ok(weight(200)), || Ok(weight(150)));
        let unknown = |why: &str, may_yet| Verdict::Unknown { why: why.into(), may_yet };
        let other = |why: &str, may_yet, late| {
            let (read, why) = (ours.clone(), why.into());
            Verdict::Other { read, why, may_yet, late }
        };
        let tried = |less, [was_so, was_pending, by_call, may_come]: [bool; 4]| Tried {
            original: &was,
            less,
            was_so,
            was_pending,
            by_call,
            by_guest: false,
            by_plugging: false,
            may_come,
        };
        let none = [false; 4];
        let (so, pending, by_call) =
            ([true, true, false, false], [false, true, true, false], [false, false, true, false]);
        let so_by_call = [true, true, true, false];
        let still = |why| format!("it may still be changed by what was asked before: {why}");
        for (done, read, flags, expected) in [
            (Ok(()), is_was(), none, Verdict::Back),
            (Err(gone()), is_was(), none, Verdict::Back),
            (Err(denied()), Err(gone()), [false, false, false, true], Verdict::Later),
            // It was so, and something may still come.
            (Ok(()), is_was(), so, Verdict::Back),
            (Err(gone()), is_was(), so, unknown(&still("late"), true)),
            (Err(denied()), is_was(), so, Verdict::Back),
            (Err(denied()), is_was(), so_by_call, unknown(&still("no"), false)),
            // Nobody knows.
            (Err(untried()), is_ours(), none, unknown("others", true)),
            (Ok(()), Err(gone()), none, unknown("late", true)),
            (Ok(()), Err(denied()), none, unknown("no", false)),
            // It is something else, and may be that for good.
            (Ok(()), is_ours(), pending, other("", true, None)),
            (Err(denied()), is_ours(), none, other(": no", false, None)),
            (Err(denied()), is_ours(), by_call, other(": no", false, None)),
            (Err(denied()), is_ours(), pending, other(": no", false, Some(Late::Before))),
            (Err(gone()), is_ours(), none, other(": late", true, None)),
            (Err(gone()), is_ours(), by_call, other(": late", true, Some(Late::This))),
            (Err(gone()), is_ours(), pending, other(": late", true, Some(Late::This))),
        ] {
            let case = format!("{done:?}, {read:?}, {flags:?}");
            assert_eq!(verdict(done, read, &tried(None, flags)), expected, "{case}");
        }
        let with_less = |read| verdict(Ok(()), read, &tried(Some(&part), none));
        assert_eq!(with_less(is_part()), Verdict::Less(weight(150)));
        assert_eq!(with_less(is_ours()), other("", true, None));
        let guests = |done, read| verdict(done, read, &Tried { by_guest: true, ..tried(None, none) });
        assert_eq!(guests(Err(gone()), is_was()), unknown(&still("late"), true));
        assert_eq!(guests(Ok(()), is_was()), Verdict::Back);
        assert_eq!(guests(Err(denied()), is_was()), Verdict::Back, "it answered");
        assert_eq!(guests(Err(gone()), is_ours()), other(": late", true, None));
        let plugged = Tried { by_guest: true, by_plugging: true, ..tried(None, so) };
        assert_eq!(verdict(Err(denied()), is_was(), &plugged), unknown(&still("no"), false));
    }

    /// The kernel takes no cpuset away from a group of v2 with processes; it can have all pCPUs, which is the same.
    #[test]
    fn a_cpuset_that_was_that_of_the_group_above_is_back_once_it_is_as_much_as_there_is() {
        let [none, some, all] = ["", "0", "0-3"].map(|list| Value::Pcpus(list.parse().unwrap()));
        let came_of = |read: &Value| {
            let less = Some(&all);
            let [was_so, was_pending, by_call, may_come] = [false; 4];
            let (by_guest, by_plugging) = (false, false);
            let tried = Tried {
                original: &none,
                less,
                was_so,
                was_pending,
                by_call,
                by_guest,
                by_plugging,
                may_come,
            };
            verdict(Ok(()), Ok(read.clone()), &tried)
        };
        assert_eq!(came_of(&all), Verdict::Back);
        assert!(matches!(came_of(&some), Verdict::Other { .. }));
    }
}
