//! Seeded bugs: each fence and each re-check of the lock can be left out, to show that the tests
//! of `model_tests/` notice. In a normal build `planted` is the constant `false` and nothing of this is left.

#[path = "planted.rs"]
mod planted;

#[cfg(all(test, modelled))]
pub(crate) use planted::catches;
pub(crate) use planted::planted;

/// What can be left out or done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(dead_code, reason = "the tests under loom and shuttle plant them")]
pub(crate) enum Bug {
    /// The waiter's fence between announcing its sleep and reading the word again.
    NoFenceBeforeReread = 1,
    /// The holder's fence between releasing and looking for sleepers.
    NoFenceAfterRelease,
    /// The waiter does not read the word again before it sleeps.
    NoReread,
    /// The waiter does not set the slow-path flag.
    NoParkedFlag,
    /// The waiter sleeps on the value that the slot has after the re-read.
    SleepOnTheNewestValue,
    /// A kick of a slot that two share wakes one.
    WakeOneOfTheSlot,
    /// Taking the lock does not acquire.
    TakeRelaxed,
    /// The waiter's taking of the lock in its turn does not acquire.
    GrantRelaxed,
    /// Releasing does not release.
    ReleaseRelaxed,
    /// A release does not look whether the head has given up.
    NoReap,
    /// Who gives up does not look whether its turn came at that moment.
    GiveUpWithoutReread,
    /// The flag GIVEN_UP stays set while the releaser looks at the head, so that a head that gives up
    /// at that moment leaves the word as it was.
    ReapWithFlagSet,
    /// The ticket's owner is entered among the missing only after the word says so.
    EnterAfterFlag,
    /// Who gives up sets the flag without looking whether its ticket has been passed already.
    FlagUnseen,
    /// Who gives up does not release what it entered among the missing with the flag.
    FlagRelaxed,
    /// Whose turn came while it gave up takes it, although somebody has passed it meanwhile.
    TurnThoughPassed,
    /// The releaser's look at the missing is not ordered after the fall of the flag.
    LookRelaxed,
    /// The waiter judges whether it is its turn by what it read before it set the slow-path flag.
    RereadBeforeFlag,
    /// A woken waiter takes the lock without looking whether it is its turn.
    TrustTheKick,
    /// A release that was interrupted by another change of the word does not look again whether somebody gave up.
    ReapLookedOnce,
    /// Who finds no room in the line announces its sleep without a fence before it reads the word again.
    OutsideNoFence,
    /// Who finds no room in the line does not read the word again before it sleeps.
    OutsideNoReread,
    /// Who finds no room in the line is not told that the ticket whose turn it awaits has left without one.
    LeftUnseen,
}
