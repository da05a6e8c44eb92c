//! What is known of one guest, what it is asked for in its turn, and when the next one is due.

use std::time::{Duration, Instant};

use corefit_core::Time;
use corefit_core::machine::GuestView;

use super::agent_calls::Opening;
use super::guest;

/// How long a guest may take for all commands of a round: others wait for their turn meanwhile. It is asked for no more after that, and
/// counts as one that does not answer unless only its programs' count is missing.
const TURN: Duration = Duration::from_secs(3);
/// An agent that does not answer is asked again after two intervals, then four, and so on up to this.
pub(super) const MOST_PATIENCE: Duration = Duration::from_secs(120);

/// An agent that has not answered for so long is said not to have: others take some milliseconds.
pub(super) const PROMPT: Duration = Duration::from_millis(500);

/// A guest whose programs count their work is asked so often at least, so that what comes of a change of its vCPUs shows soon: for
/// some time after one as often as it answers.
const COUNTING: Duration = Duration::from_millis(900);
/// A guest whose vCPUs were busy for less than one in so many ns since its last answer rests, and a VM whose vCPUs ran and waited for less
/// than that between two looks.
pub(super) const RESTS: u32 = 20;
/// In a guest that rests, and in which nobody counted for the second time, a count is looked for after the first only: that takes as many
/// commands as all else.
const SEEKS: Duration = Duration::from_secs(14);
const SILENT: Duration = Duration::from_secs(60);
/// See above.
const AFTER_CHANGE: Duration = Duration::from_secs(5);
/// An agent that reads no files is asked for one again after so long.
const FILES_AGAIN: Duration = Duration::from_secs(300);
/// A count that stays as it is for so long is nobody's any more. Longer than the longest interval between two looks.
pub(super) const COUNTED: Duration = Duration::from_secs(12);

/// So many characters of why a guest does not answer are kept: they are the guest's own, and each look has them.
const MOST_SAID: usize = 300;

/// Who did not take its time for so long begins anew, and this many doublings of one answer are the most that it owes.
const FORGIVEN: Duration = Duration::from_secs(900);
const MOST_OWED: u32 = 6;

/// A guest that rests as its VM's vCPUs show it is asked with each sixth turn only: what it said is still so.
const RESTING: u32 = 6;

/// What is known of a guest.
#[derive(Debug)]
pub(super) struct Guest {
    pub(super) view: Option<(Instant, GuestView)>,
    pub(super) error: Option<String>,
    failures: u32,
    pub(super) next: Instant,
    /// When it was asked, and how long that took.
    pub(super) asked: Option<Instant>,
    pub(super) took: Duration,
    slow: Slow,
    /// When the agent said that it reads no files.
    no_files: Option<Instant>,
    /// Whether it did not open a file in time.
    opening: Opening,
    /// When it was asked for files last and opened them.
    pub(super) opened: Option<Instant>,
    /// When its VM did something last, or was changed, and whether that was since it was asked.
    stirs: Option<Instant>,
    stirred: bool,
    /// When it was seen to rest last, as it did since it was asked.
    rested: Option<Instant>,
    /// Its programs' count as it was last, and when that came.
    pub(super) work: Option<(Instant, (u64, Time))>,
    /// When a count was looked for last, whatever the guest did.
    sought: Option<Instant>,
    /// When its vCPUs were changed, and of when the first count is that was asked for then: it may be from before, which says
    /// nothing of what comes of the change.
    pub(super) changed: Option<(Instant, Option<Option<Time>>)>,
}

/// What a guest is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asks {
    /// Its programs' count alone.
    Count,
    /// All; but for the count if its vCPUs were not busy for longer than this so far, ns.
    View { unless_ns: Option<u64> },
}

/// What came of asking a guest.
pub(super) struct Turn {
    answer: Result<Answer, String>,
    /// Its agent reads files.
    files: bool,
    /// It did not open one in time.
    late: bool,
}

enum Answer {
    View(GuestView),
    Count(Option<(u64, Time)>),
}

/// Who takes its time and answers at once by turns is not asked with those that answer at once for ever longer: with three such guests all
/// others would be asked every 15 s only.
#[derive(Debug, Default)]
struct Slow {
    /// How often it took its time after it had answered at once, and when it did last.
    times: u32,
    last: Option<Instant>,
    /// So many answers at once are to come before it is asked with the others again.
    owes: u32,
}

impl Slow {
    fn takes(&mut self, asked: Instant, took: Duration) {
        if took < PROMPT {
            self.owes = self.owes.saturating_sub(1);
            return;
        }
        if self.owes == 0 {
            let lately = self.last.is_some_and(|last| asked.saturating_duration_since(last) < FORGIVEN);
            self.times = if lately { (self.times + 1).min(MOST_OWED) } else { 0 };
        }
        (self.last, self.owes) = (Some(asked), 1 << self.times);
    }
}

impl Turn {
    /// Why it failed, if it did.
    pub(super) fn failed(&self) -> Option<&str> {
        self.answer.as_ref().err().map(String::as_str)
    }
}

impl Guest {
    pub(super) fn new(next: Instant) -> Guest {
        let took = Duration::ZERO;
        Guest {
            view: None,
            error: None,
            failures: 0,
            next,
            asked: None,
            took,
            slow: Slow::default(),
            no_files: None,
            opening: Opening::default(),
            opened: None,
            stirs: None,
            stirred: true,
            rested: None,
            work: None,
            sought: None,
            changed: None,
        }
    }

    /// Whether its agent may read files, as far as is known: while file systems are frozen, one that is old says that of all commands.
    pub(super) fn files(&self) -> bool {
        self.no_files.is_none_or(|since| since.elapsed() >= FILES_AGAIN) && self.opening.may(Instant::now())
    }

    /// Whether it keeps those waiting that are asked after it.
    pub(super) fn is_slow(&self) -> bool {
        self.took >= PROMPT || self.slow.owes > 0
    }

    /// It was asked, which took so long.
    pub(super) fn took(&mut self, asked: Instant, took: Duration) {
        (self.asked, self.took) = (Some(asked), took);
        self.slow.takes(asked, took);
    }

    /// Takes what came of its turn, in which it was asked for files or not.
    pub(super) fn takes(&mut self, asked: Instant, asks_files: bool, turn: Turn, every: Duration) {
        self.took(asked, asked.elapsed());
        (self.stirred, self.rested) = (self.stirs.is_some_and(|at| at >= asked), None);
        if asks_files {
            self.no_files = (!turn.files).then_some(asked);
        }
        if turn.late {
            self.opening.late(Instant::now());
        } else if asks_files && turn.files && turn.answer.is_ok() {
            (self.opening, self.opened) = (Opening::default(), Some(asked));
        }
        match turn.answer {
            Ok(Answer::View(view)) => self.answered(asked, view, every),
            Ok(Answer::Count(work)) => self.counted(asked, work, every),
            Err(why) => self.fail(&why, every),
        }
    }

    /// Whether it is to be asked now: who is awaited with each look (one that hangs: with the first after asking it came to its end).
    pub(super) fn is_due(&self, now: Instant, every: Duration, awaited: bool) -> bool {
        let waits = |asked| awaited && now.saturating_duration_since(asked) >= COUNTING.min(every);
        let counted = self.work.is_some_and(|(came, _)| came.elapsed() <= SILENT);
        let still = !self.stirred && self.view.is_some() && !counted;
        let rest = if still { every * (RESTING - 1) } else { Duration::ZERO };
        self.next + rest <= now || self.asked.is_some_and(waits)
    }

    /// Its VM did something, or rests, as this look shows.
    pub(super) fn shows(&mut self, now: Instant, rests: bool) {
        if !rests {
            self.stirs(now);
        } else if !self.stirred {
            self.rested = Some(now);
        }
    }

    /// What it said may not be so any more.
    pub(super) fn stirs(&mut self, now: Instant) {
        (self.stirs, self.stirred) = (Some(now), true);
    }

    /// How old what it said is: that of a guest which has rested since is as of when it was seen to.
    pub(super) fn age(&self) -> Option<Duration> {
        let (at, _) = self.view.as_ref()?;
        Some(self.rested.map_or(*at, |rested| rested.max(*at)).elapsed())
    }

    /// Takes an answer to what was asked at that time.
    pub(super) fn answered(&mut self, asked: Instant, view: GuestView, every: Duration) {
        let now = Instant::now();
        let at = |work: (u64, Time)| work.1;
        let news = view.work.filter(|work| self.work.is_none_or(|(_, known)| at(known) != at(*work)));
        let after = match &mut self.changed {
            Some((changed, _)) if asked < *changed => false,
            Some((_, first)) => *first.get_or_insert(view.work.map(at)) != view.work.map(at),
            None => true,
        };
        // A text that makes no sense may be half written.
        if let Some(work) = news.filter(|_| after) {
            self.work = Some((now, work));
        }
        let lively = self.changed.is_some_and(|(changed, _)| changed.elapsed() < AFTER_CHANGE);
        let pause = match self.work {
            Some((came, _)) if lively && came.elapsed() <= COUNTED => Duration::ZERO,
            Some((came, _)) if came.elapsed() <= COUNTED => COUNTING.min(every),
            _ => every,
        };
        (self.view, self.error, self.failures, self.next) = (Some((now, view)), None, 0, asked + pause);
    }

    /// Takes a count that was asked for alone at that time.
    fn counted(&mut self, asked: Instant, work: Option<(u64, Time)>, every: Duration) {
        let Some((at, view)) = self.view.take() else { return };
        self.answered(asked, GuestView { work, ..view }, every);
        if let Some((when, _)) = &mut self.view {
            *when = at;
        }
    }

    /// Whether its count is all that there is to ask for: the rest is known from after the last change of its vCPUs, and not
    /// due before `every` is over again.
    pub(super) fn counts_only(&self, every: Duration) -> bool {
        let since = |at: Instant| self.changed.is_none_or(|(changed, _)| at > changed);
        let known =
            self.view.as_ref().is_some_and(|(at, _)| since(*at) && at.elapsed() + COUNTING / 2 < every);
        known
            && self.files()
            && self.error.is_none()
            && self.work.is_some_and(|(came, _)| came.elapsed() <= COUNTED)
    }

    /// What it is to be asked for now.
    pub(super) fn asks(&mut self, every: Duration) -> Asks {
        if self.counts_only(every) {
            return Asks::Count;
        }
        let counted = self.work.is_some_and(|(came, _)| came.elapsed() <= SILENT);
        let seeks = counted || self.sought.is_none_or(|at| at.elapsed() >= SEEKS);
        let rested = |(at, view): &(Instant, GuestView)| {
            let more = u64::try_from((at.elapsed() / RESTS).as_nanos()).ok()?;
            Some(guest::busy_ns(view)?.saturating_add(more))
        };
        let unless_ns = if seeks { None } else { self.view.as_ref().and_then(rested) };
        if unless_ns.is_none() {
            self.sought = Some(Instant::now());
        }
        Asks::View { unless_ns }
    }

    pub(super) fn fail(&mut self, why: &str, every: Duration) {
        self.failures += 1;
        let pause = every.saturating_mul(1 << self.failures.min(10)).min(MOST_PATIENCE.max(every));
        self.next = Instant::now() + pause;
        self.error = Some(why.chars().take(MOST_SAID).collect());
        self.view = None;
    }
}

/// Asks a guest for what is due, with or without files; how long that `took` so far.
pub(super) fn turn<E: ToString>(
    mut files: bool,
    asks: Asks,
    took: impl Fn() -> Duration,
    mut agent: impl FnMut(&str) -> Result<String, E>,
) -> Turn {
    let (mut late, mut cut) = (false, false);
    let mut ask = |command: &str| {
        // What is open is closed.
        if took() > TURN && !command.contains("guest-file-close") {
            cut = true;
            return Err(String::new());
        }
        let answer = agent(command).map_err(|error| error.to_string());
        late |=
            answer.as_ref().is_err_and(|error| guest::is_late(error)) && command.contains("guest-file-open");
        answer
    };
    let answer = match asks {
        Asks::Count => guest::count(&mut ask).map(Answer::Count),
        Asks::View { unless_ns } => guest::view(&mut files, unless_ns, &mut ask).map(Answer::View),
    };
    // Without how long it took: it is said once while it is so.
    let slow = format!("its agent takes longer than {TURN:?} to answer");
    let answer = answer.map_err(|why| if cut { slow } else { why });
    Turn { answer, files, late }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;

    const ALL: Asks = Asks::View { unless_ns: None };

    #[test]
    fn a_count_is_looked_for_with_each_answer_of_a_guest_that_does_something_and_rarely_where_it_rests() {
        let every = Duration::from_secs(5);
        let before = |s: u64| Instant::now().checked_sub(Duration::from_secs(s)).unwrap();
        let mut guest = Guest::new(before(60));
        assert_eq!(guest.asks(every), ALL, "nothing is known");
        let busy = |ms: u64| {
            let vcpu =
                corefit_core::machine::GuestVcpu { busy_ns: Some(ms * 1_000_000), ..Default::default() };
            GuestView { vcpus: vec![vcpu.clone(), vcpu], ..GuestView::default() }
        };
        guest.answered(before(5), busy(1000), every);
        guest.view.as_mut().unwrap().0 = before(4);
        let Asks::View { unless_ns: Some(ns) } = guest.asks(every) else { panic!("it may rest") };
        assert!((2_200_000_000..2_210_000_000).contains(&ns), "a twentieth of 4 s: {ns}");
        // Who was busy for longer is asked for the count in the same turn.
        let stat = |ticks| BASE64_STANDARD.encode(format!("cpu0 {ticks} 0 0 1 1 0 0 0\n"));
        let asked = |ticks: u64| {
            let mut commands = 0;
            let agent = |command: &str| {
                commands += 1;
                Ok::<_, String>(match command.contains("guest-file-open") {
                    true => r#"{"return":7}"#.to_owned(),
                    false => format!(r#"{{"return":{{"buf-b64":"{}"}}}}"#, stat(ticks)),
                })
            };
            turn(true, Asks::View { unless_ns: Some(ns) }, || Duration::ZERO, agent);
            commands
        };
        assert_eq!([219, 222].map(asked), [3, 6]);
        guest.sought = Some(before(14));
        assert_eq!([guest.asks(every) == ALL, guest.asks(every) == ALL], [true, false]);
        // Somebody counted of late.
        guest.work = Some((before(59), (1, Time(1))));
        assert_eq!(guest.asks(every), ALL);
        guest.work = Some((before(61), (1, Time(1))));
        assert_ne!(guest.asks(every), ALL);
        guest.view.as_mut().unwrap().1.vcpus[0].busy_ns = None;
        assert_eq!(guest.asks(every), ALL, "it does not say what it does");
    }

    #[test]
    fn of_why_a_guest_does_not_answer_the_beginning_is_kept() {
        let mut guest = Guest::new(Instant::now());
        for (says, keeps) in [("no answer".to_owned(), 9), ("\u{fc}".repeat(1 << 20), 2 * MOST_SAID)] {
            guest.fail(&says, Duration::from_secs(5));
            assert_eq!(guest.error.as_ref().map(String::len), Some(keeps));
        }
    }

    #[test]
    fn who_answers_at_once_and_takes_its_time_by_turns_is_asked_with_the_others_ever_more_rarely() {
        let (begin, mut guest) = (Instant::now(), Guest::new(Instant::now()));
        let mut at = 0;
        let mut takes = |guest: &mut Guest, took: Duration| {
            at += 10;
            guest.took = took;
            guest.slow.takes(begin + Duration::from_secs(at), took);
            guest.is_slow()
        };
        let (hangs, prompt) = (Duration::from_secs(5), Duration::from_millis(5));
        let mut answers = Vec::new();
        for _ in 0..9 {
            assert!(takes(&mut guest, hangs));
            answers.push(1 + (0..99).take_while(|_| takes(&mut guest, prompt)).count());
        }
        assert_eq!(answers, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        (0..90).for_each(|_| assert!(!takes(&mut guest, prompt)));
        assert_eq!([hangs, prompt].map(|took| takes(&mut guest, took)), [true, false], "long ago");
    }

    #[test]
    fn who_counts_is_asked_for_that_alone_while_the_rest_is_fresh() {
        let every = Duration::from_secs(5);
        let before = |s: u64| Instant::now().checked_sub(Duration::from_secs(s)).unwrap();
        let view = |work| GuestView { runnable: Some(3), work, ..GuestView::default() };
        let mut guest = Guest::new(before(9));
        assert!(!guest.counts_only(every), "nothing is known");
        guest.answered(before(9), view(None), every);
        assert!(!guest.counts_only(every), "nobody counts");
        guest.answered(before(1), view(Some((1, Time(1)))), every);
        assert!(guest.counts_only(every));
        // What is not asked for gets no younger by that.
        guest.view.as_mut().unwrap().0 = before(3);
        guest.counted(before(1), Some((2, Time(2))), every);
        let (at, known) = guest.view.clone().unwrap();
        assert!(at.elapsed() >= Duration::from_secs(3) && known.runnable == Some(3));
        assert_eq!(guest.work.unwrap().1, (2, Time(2)));
        assert!(guest.counts_only(every));
        guest.view.as_mut().unwrap().0 = before(5);
        assert!(!guest.counts_only(every), "the rest is due");
        guest.view.as_mut().unwrap().0 = before(1);
        guest.changed = Some((Instant::now(), None));
        assert!(!guest.counts_only(every), "its vCPUs were changed since");
        guest.changed = None;
        guest.fail("no answer", every);
        assert!(!guest.counts_only(every));
    }

    #[test]
    fn a_guest_that_rests_is_asked_with_each_sixth_turn_and_is_no_older_for_that_until_it_stirs() {
        let (every, now) = (Duration::from_secs(5), Instant::now());
        let before = |s: u64| now.checked_sub(Duration::from_secs(s)).unwrap();
        let asked = |s: u64| {
            let mut guest = Guest::new(before(60));
            let view = Turn { answer: Ok(Answer::View(GuestView::default())), files: true, late: false };
            guest.takes(before(s), true, view, every);
            guest.view.as_mut().unwrap().0 = before(s);
            guest
        };
        let due = |guest: &Guest| guest.is_due(now, every, false);
        assert_eq!([4, 6, 29, 31].map(|s| due(&asked(s))), [false, false, false, true]);
        let mut guest = asked(14);
        guest.shows(before(10), true);
        guest.shows(before(1), true);
        assert!(guest.age().unwrap() < Duration::from_secs(2), "{:?}", guest.age());
        guest.shows(now, false);
        guest.shows(now, true);
        assert!(due(&guest), "as soon as it did something");
        // Changed while it was asked: it may have answered before.
        let mut guest = asked(16);
        guest.stirs(before(7));
        let view = Turn { answer: Ok(Answer::View(GuestView::default())), files: true, late: false };
        guest.takes(before(8), true, view, every);
        assert!(due(&guest));
        // One that counts, or does not answer, has its own times.
        let mut guest = asked(6);
        guest.work = Some((before(6), (1, Time(1))));
        assert!(due(&guest));
        let mut guest = asked(16);
        guest.fail("no answer", every);
        assert!(guest.age().is_none() && guest.is_due(Instant::now() + 2 * every, every, false));
    }

    /// What a guest is asked in a turn whose time is over once it answered the command, and what comes of it.
    fn until(over: &str, asks: Asks) -> (Vec<String>, Turn) {
        let (is_over, mut asked) = (std::cell::Cell::new(false), Vec::new());
        let stat = BASE64_STANDARD.encode("cpu0 1 1 1 1 1 1 1 1\n");
        let agent = |command: &str| {
            is_over.set(is_over.get() || command.contains(over));
            asked.push(command.split('"').find(|word| word.starts_with("guest-")).unwrap().to_owned());
            Ok::<_, String>(match command.contains("guest-file-open") {
                true => r#"{"return":7}"#.to_owned(),
                false => format!(r#"{{"return":{{"buf-b64":"{stat}"}}}}"#),
            })
        };
        let took = || if is_over.get() { TURN + Duration::from_millis(1) } else { Duration::ZERO };
        let turn = turn(true, asks, took, agent);
        (asked, turn)
    }

    #[test]
    fn a_guest_that_takes_its_time_is_asked_for_no_more_after_a_while_and_closes_what_is_open() {
        for asks in [ALL, Asks::Count] {
            let (asked, turn) = until("guest-file-open", asks);
            assert_eq!(asked, ["guest-file-open", "guest-file-close"]);
            let why = turn.answer.err().unwrap();
            assert!(why.contains("longer than 3s") && !turn.late, "{why}");
        }
        let (asked, turn) = until("guest-file-close", ALL);
        assert_eq!(asked, ["guest-file-open", "guest-file-read", "guest-file-close"]);
        assert!(matches!(turn.answer, Ok(Answer::View(_))), "only its count is missing");
        let (asked, turn) = until("nothing", ALL);
        assert!(asked.len() == 6 && turn.answer.is_ok(), "{asked:?}");
    }

    #[test]
    fn a_guest_that_did_not_open_a_file_in_time_is_asked_without_for_a_while() {
        let every = Duration::from_secs(5);
        let mut guest = Guest::new(Instant::now());
        for (error, files) in [
            (guest::testing::silent(5001), true),
            ("guest-file-open has been disabled".into(), true),
            (guest::testing::silent(2001), false),
        ] {
            let turn = turn(true, ALL, || Duration::ZERO, |_| Err::<String, _>(&error));
            guest.takes(Instant::now(), true, Turn { files: true, ..turn }, every);
            assert_eq!(guest.files(), files, "{error}");
        }
        // Without files it answers; that says nothing of how it opens them.
        let view = || Turn { answer: Ok(Answer::View(GuestView::default())), files: false, late: false };
        guest.takes(Instant::now(), false, view(), every);
        assert!(!guest.files() && guest.error.is_none());
        assert_eq!(guest.opened, None);
        guest.takes(Instant::now(), true, Turn { files: true, ..view() }, every);
        assert!(guest.files() && guest.opened.is_some());
    }

    #[test]
    fn an_agent_that_reads_no_files_is_asked_again_after_a_while() {
        let mut guest = Guest::new(Instant::now());
        let mut reads = |since: Option<Duration>| {
            guest.no_files = since.and_then(|since| Instant::now().checked_sub(since));
            guest.files()
        };
        assert_eq!([None, Some(Duration::ZERO), Some(FILES_AGAIN)].map(&mut reads), [true, false, true]);
    }

    #[test]
    fn who_is_awaited_is_asked_with_each_look_also_where_it_hangs() {
        let every = Duration::from_secs(5);
        let now = Instant::now();
        let mut guest = Guest::new(now);
        for _ in 0..5 {
            guest.asked = Some(Instant::now());
            guest.fail("no answer", every);
        }
        let due = |guest: &Guest, after: f64, awaited| {
            guest.is_due(now + Duration::from_secs_f64(after), every, awaited)
        };
        assert_eq!([0.5, 1.0].map(|after| due(&guest, after, true)), [false, true]);
        assert_eq!([6.0, 110.0, 130.0].map(|after| due(&guest, after, false)), [false, false, true]);
        guest.took = Duration::from_secs(5);
        assert!(due(&guest, 5.0, true), "it came back just now");
    }
}
