//! Seeded bugs: what the lines of condition variables depend on can be left out, to show that the tests under loom
//! (`model_tests.rs`) notice. In a normal build `planted` is the constant `false`.

#[path = "../../lock/src/planted.rs"]
mod planted;

#[cfg(all(test, modelled))]
pub(crate) use planted::catches;
pub(crate) use planted::planted;

/// What can be left out or done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[cfg_attr(not(modelled), allow(dead_code, reason = "the tests under loom plant them"))]
pub(crate) enum Bug {
    /// Who was chosen by a signal at the moment its time ran out does not wait for its token.
    TokenNotTaken = 1,
    /// Who is cancelled after a signal has chosen it does not pass the signal on.
    NotPassedOn,
    /// Who leaves does not look whether it is still in line.
    LeaveWithoutLook,
    /// Not the signal counts a waiter off, but the waiter itself when it has its token.
    WaiterTouchesCond,
    /// A waiter is counted only after it has released the mutex.
    CountAfterRelease,
}
