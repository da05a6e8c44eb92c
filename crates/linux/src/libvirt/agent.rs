//! Guest agents, asked in the background: the latest answers, or why there are none.
//!
//! An agent that hangs costs libvirt its timeout, 5 s and more. So a thread with a connection of
//! its own asks one VM after the other, whoever failed less and less often; another one those that
//! take their time, which keep nobody else waiting. Looks at the host only take what is there.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use corefit_core::machine::GuestView;

use super::agent_turns::{COUNTED, Guest, MOST_PATIENCE, PROMPT, turn};
use super::api::{Access, Connection, Kind};
use super::session::Key;
use super::worker::{Crew, Worker};

/// How long an agent may take to answer a command, s.
const ANSWER: i32 = 2;
/// Connecting, or asking one agent, takes no longer unless it hangs: libvirt's own wait before a command,
/// when it synchronises with the agent, comes on top.
const STUCK: Duration = Duration::from_secs(30);
/// An answer counts for so many intervals, which is longer than the longest between two looks: one that was asked for at a look is there
/// at the next.
const AGE: u32 = 3;

/// Of guests that take their time who answers goes before who was asked so much earlier, and did not answer.
const LEAD: Duration = Duration::from_secs(10);

/// Begins the reason why nobody can be asked.
const SHUT: &str = "guests cannot be asked: ";

/// Who is awaited and answers at once is waited for, at each look that asks it, and no longer than this: also one that hung before, which is
/// asked when libvirt gave it up, so in one look of some six while it hangs.
const AT_ONCE: Duration = Duration::from_millis(100);

/// Which line asks those that take their time.
const SLOW: usize = 1;

/// The agents of a host.
pub(super) struct Agents {
    uri: String,
    every: Duration,
    board: Arc<Mutex<Board>>,
    /// Who asks those that answer at once, and who asks the others.
    lines: [Line; 2],
    stuck: Duration,
    /// Those that are not left alone for having failed.
    awaited: BTreeSet<Key>,
}

/// A thread that asks, and those before that still hang.
#[derive(Default)]
struct Line {
    crew: Crew,
    worker: Option<Worker<Connection>>,
}

/// What is shared with the threads that ask.
#[derive(Debug, Default)]
struct Board {
    guests: BTreeMap<Key, Guest>,
    /// Of each line.
    rounds: [Round; 2],
    /// Why nobody can be asked, and since when.
    closed: Option<(String, Instant)>,
}

#[derive(Debug, Default)]
struct Round {
    /// Which VM is being asked.
    asking: Option<Key>,
    /// While it is under way: when it went on to what it does now.
    busy: Option<Instant>,
}

impl Agents {
    pub(super) fn new(uri: &str, every: Duration) -> Agents {
        let (board, lines, awaited) = Default::default();
        Agents { uri: uri.into(), every, board, lines, stuck: STUCK, awaited }
    }

    /// What the guest of this VM said; or why that is not known; or neither, if it was not asked yet.
    pub(super) fn latest(&self, key: &Key) -> Result<Option<GuestView>, String> {
        let board = lock(&self.board);
        let Some(guest) = board.guests.get(key) else { return Ok(None) };
        match (&guest.view, &guest.error) {
            (_, Some(error)) => Err(error.clone()),
            (Some((at, view)), None) if guest.age().is_some_and(|age| age <= self.every * AGE) => {
                // That its agent is asked late says nothing of who counts.
                let work = guest.work.filter(|(came, _)| at.saturating_duration_since(*came) <= COUNTED);
                let work = work.map(|(_, work)| work);
                Ok(Some(GuestView { work, ..view.clone() }))
            }
            (Some((at, _)), None) => Err(format!("last answer {} s ago", at.elapsed().as_secs())),
            // Not asked before it was first due.
            (None, None) if guest.next.elapsed() >= PROMPT => {
                Err(format!("no answer from its agent yet, for {:.1} s", guest.next.elapsed().as_secs_f64()))
            }
            (None, None) => Ok(None),
        }
    }

    /// When the guest of this VM answered last, if it did not fail to since.
    pub(super) fn answered(&self, key: &Key) -> Option<Instant> {
        lock(&self.board).guests.get(key)?.view.as_ref().map(|(at, _)| *at)
    }

    /// When the guest of this VM was asked for files last and opened them.
    pub(super) fn opened(&self, key: &Key) -> Option<Instant> {
        lock(&self.board).guests.get(key)?.opened
    }

    /// These are not left alone for having failed: see [`Guest::is_due`].
    pub(super) fn awaits(&mut self, keys: BTreeSet<Key>) {
        self.awaited = keys;
    }

    /// Why guests are not asked at all.
    pub(super) fn closed(&self) -> Option<String> {
        lock(&self.board).closed.as_ref().map(|(why, _)| why.clone())
    }

    /// What is known of these VMs, each with whether its vCPUs hardly did anything since the last look.
    pub(super) fn see<'a>(&self, vms: impl Iterator<Item = (&'a Key, bool)>) {
        let (mut board, now) = (lock(&self.board), Instant::now());
        for (key, rests) in vms {
            if let Some(guest) = board.guests.get_mut(key) {
                guest.shows(now, rests);
            }
        }
    }

    /// The vCPUs of this VM were changed, or read by others: what it said before counts no longer than usual.
    pub(super) fn stirs(&self, key: &Key) {
        if let Some(guest) = lock(&self.board).guests.get_mut(key) {
            guest.stirs(Instant::now());
        }
    }

    /// The vCPUs of this VM were changed: its count is asked for anew, at once.
    pub(super) fn changed(&self, key: &Key) {
        self.stirs(key);
        if let Some(guest) = lock(&self.board).guests.get_mut(key)
            && guest.work.is_some()
        {
            (guest.changed, guest.next) = (Some((Instant::now(), None)), Instant::now());
        }
    }

    /// Has the agents of these VMs asked that it is time for. Returns at once, but where some are awaited that answer at once.
    pub(super) fn ask(&mut self, vms: &[Key]) {
        let now = Instant::now();
        let awaited = self.begin(vms, now);
        wait(&self.board, &awaited, now, now + AT_ONCE);
    }

    /// Begins a round of each line that has something to do and has come back; which are asked now that are awaited, and by which line.
    fn begin(&mut self, vms: &[Key], now: Instant) -> Vec<(usize, Key)> {
        let mut awaited = Vec::new();
        let shared = self.board.clone();
        let mut board = lock(&shared);
        board.guests.retain(|key, _| vms.contains(key));
        let hangs = |round: &Round| round.busy.is_some_and(|since| since.elapsed() > self.stuck);
        if let Some(round) = board.rounds.iter().position(hangs) {
            let closed = match board.rounds[round].asking.take() {
                Some(key) => {
                    if let Some(guest) = board.guests.get_mut(&key) {
                        guest.took(now, self.stuck.max(PROMPT));
                        guest.fail("libvirtd did not come back from asking it", self.every);
                    }
                    None
                }
                None if round == SLOW => None,
                None => Some((format!("{SHUT}libvirtd does not answer a new connection"), now)),
            };
            // The threads keep the old board, also the one that does not hang.
            let guests = std::mem::take(&mut board.guests);
            self.lines.iter_mut().for_each(|line| line.worker = None);
            self.board = Arc::new(Mutex::new(Board { guests, closed, ..Board::default() }));
            return awaited;
        }
        if let Some((_, since)) = &board.closed {
            if since.elapsed() < MOST_PATIENCE / 2 {
                return awaited;
            }
            board.closed = None;
            self.lines.iter_mut().for_each(|line| line.worker = None);
        }
        let new = || Guest::new(now);
        let every = self.every;
        let due = |key: &&Key| {
            let guest = board.guests.entry((*key).clone()).or_insert_with(new);
            guest.is_due(now, every, self.awaited.contains(*key))
        };
        let due: Vec<Key> = vms.iter().filter(due).cloned().collect();
        for (at, due) in in_turn(&board.guests, due, &self.awaited).into_iter().enumerate() {
            if due.is_empty() || board.rounds[at].busy.is_some() {
                continue;
            }
            let line = &mut self.lines[at];
            if line.worker.is_none() {
                let (uri, shared) = (self.uri.clone(), shared.clone());
                line.worker = line.crew.start("libvirt agents", move || open(&uri, &shared, at));
            }
            let these = due.iter().filter(|key| self.awaited.contains(*key)).map(|key| (at, key.clone()));
            let these: Vec<(usize, Key)> = these.collect();
            let for_round = shared.clone();
            let round = move |connection: &mut Connection| round(connection, &for_round, at, &due, every);
            match line.worker.as_ref().map(|worker| worker.post(round)) {
                Some(Ok(())) => {
                    board.rounds[at].busy = Some(now);
                    awaited.extend(these);
                }
                Some(Err(_)) => line.worker = None,
                // Of those that take their time it stands why; the others are asked on.
                None if at == SLOW => {}
                None => board.closed = Some((format!("{SHUT}all threads for that hang"), now)),
            }
        }
        awaited
    }
}

/// Whom each line is to ask now of those that are due: who answers at once, first those that are awaited; and then, by the other line, who took its
/// time of late but not the last time, and one of those that take their time, the one that was asked longest ago, but one that answers before
/// one that did not.
fn in_turn(guests: &BTreeMap<Key, Guest>, due: Vec<Key>, awaited: &BTreeSet<Key>) -> [Vec<Key>; 2] {
    let is_slow = |key: &Key| guests.get(key).is_some_and(Guest::is_slow);
    let (slow, mut prompt): (Vec<Key>, Vec<Key>) = due.into_iter().partition(is_slow);
    prompt.sort_by_key(|key| !awaited.contains(key));
    let asked = |key: &Key| {
        let guest = guests.get(key)?;
        Some(guest.asked? + if guest.error.is_some() { LEAD } else { Duration::ZERO })
    };
    let took = |key: &Key| guests.get(key).is_some_and(|guest| guest.took >= PROMPT);
    let (slow, mut owing): (Vec<Key>, Vec<Key>) = slow.into_iter().partition(took);
    owing.sort_by_key(|key| (!awaited.contains(key), asked(key)));
    owing.extend(slow.into_iter().min_by_key(asked));
    [prompt, owing]
}

/// Waits until these were asked, each by its line, in the round that began at this time.
fn wait(board: &Mutex<Board>, these: &[(usize, Key)], since: Instant, until: Instant) {
    let is_missing = |guest: &Guest| guest.asked.is_none_or(|asked| asked < since);
    let waits = || {
        let board = lock(board);
        let is_asked = |(line, key): &(usize, Key)| {
            board.rounds[*line].busy.is_some() && board.guests.get(key).is_some_and(is_missing)
        };
        these.iter().any(is_asked)
    };
    while waits() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The thread's connection, or a note on the board why there is none.
fn open(uri: &str, board: &Mutex<Board>, line: usize) -> Option<Connection> {
    let connection = Connection::open(uri, Access::Write, ANSWER * 4);
    connection
        .map_err(|error| {
            let mut board = lock(board);
            // Of those that take their time it stands why; the others are asked on.
            if line != SLOW {
                board.closed = Some((format!("{SHUT}{error}"), Instant::now()));
            }
            board.rounds[line].busy = None;
        })
        .ok()
}

fn round(connection: &Connection, board: &Mutex<Board>, line: usize, due: &[Key], every: Duration) {
    // The connection is of no use any more; the next round opens another.
    let lost = |error: &dyn Display| lock(board).closed = Some((format!("{SHUT}{error}"), long_ago()));
    for key in due {
        let known = lock(board).guests.get_mut(key).map(|guest| (guest.files(), guest.asks(every)));
        let Some((asks_files, asks)) = known else { continue };
        // From here on it is this guest that hangs, if something does: libvirtd makes those wait who ask for a domain that starts, too.
        begin(board, line, Some(key.clone()));
        let asked = Instant::now();
        let turn = match connection.domain(&key.0) {
            Ok(domain) if domain.id() == Some(key.1) => {
                Some(turn(asks_files, asks, || asked.elapsed(), |command| domain.agent(command, ANSWER)))
            }
            // It ended.
            Ok(_) => None,
            Err(error) if error.kind == Kind::NoDomain => None,
            Err(error) => {
                lost(&error);
                break;
            }
        };
        begin(board, line, None);
        let Some(turn) = turn else { continue };
        if let Some(why) = turn.failed().filter(|_| !connection.answers()) {
            lost(&why);
            break;
        }
        if let Some(guest) = lock(board).guests.get_mut(key) {
            guest.takes(asked, asks_files, turn, every);
        }
    }
    lock(board).rounds[line].busy = None;
}

/// Notes that a round goes on to a guest, or to nothing that can hang.
fn begin(board: &Mutex<Board>, line: usize, guest: Option<Key>) {
    lock(board).rounds[line] = Round { asking: guest, busy: Some(Instant::now()) };
}

/// So that the connection is opened anew as soon as somebody asks.
fn long_ago() -> Instant {
    let now = Instant::now();
    now.checked_sub(MOST_PATIENCE).unwrap_or(now)
}

fn lock(board: &Mutex<Board>) -> MutexGuard<'_, Board> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use corefit_core::Time;

    #[test]
    fn an_agent_that_never_answered_is_named_and_one_just_asked_is_not() {
        let agents = Agents::new("test:///default", Duration::from_secs(1));
        let key: Key = ("uuid".into(), 1);
        let asked = |next| {
            lock(&agents.board).guests.insert(key.clone(), Guest::new(next));
            agents.latest(&key)
        };
        assert_eq!(asked(Instant::now()), Ok(None));
        let why = asked(Instant::now().checked_sub(Duration::from_secs(1)).unwrap()).unwrap_err();
        assert!(why.starts_with("no answer from its agent yet, for 1."), "{why}");
    }

    #[test]
    fn guests_that_take_their_time_have_a_line_of_their_own_and_who_is_awaited_is_asked_first() {
        let (now, mut guests) = (Instant::now(), BTreeMap::new());
        let mut due = Vec::new();
        for (name, took_ms, since_ms) in
            [("slow", 3000, 5), ("slower", 9000, 9), ("silent", 9000, 20), ("a", 5, 1), ("b", 400, 2)]
        {
            let mut guest = Guest::new(now);
            guest.error = (name == "silent").then(|| "no answer".into());
            guest.asked = now.checked_sub(Duration::from_millis(since_ms));
            guest.took = Duration::from_millis(took_ms);
            guests.insert((name.to_owned(), 1), guest);
            due.push((name.to_owned(), 1));
        }
        let awaited = BTreeSet::from(["b", "slow"].map(|name| (name.to_owned(), 1)));
        let lines = in_turn(&guests, due, &awaited);
        let names = lines.map(|line| line.into_iter().map(|(name, _)| name).collect::<Vec<_>>());
        assert_eq!(names, [vec!["b", "a"], vec!["slower"]], "of the slow ones that answer who waits longest");
    }

    #[test]
    fn who_takes_his_time_keeps_nobody_else_waiting() {
        let mut agents = Agents::new("test:///default", Duration::from_secs(60));
        let keys = ["a", "hangs"].map(|name| (name.to_owned(), 1));
        let mut slow = Guest::new(Instant::now());
        slow.took = PROMPT;
        {
            let mut board = lock(&agents.board);
            board.guests.insert(keys[1].clone(), slow);
            board.rounds[SLOW].busy = Some(Instant::now());
        }
        agents.awaits(keys.clone().into());
        let asked = agents.begin(&keys, Instant::now());
        assert_eq!(asked, [(0, keys[0].clone())], "the other one is asked again once it came back");
        assert!(agents.lines[SLOW].worker.is_none());
    }

    #[test]
    fn who_hung_and_is_awaited_is_waited_for_at_the_look_that_asks_it_again() {
        for awaits in [false, true] {
            let mut agents = Agents::new("test:///default", Duration::from_secs(60));
            let key: Key = ("hung".into(), 1);
            let mut hung = Guest::new(Instant::now());
            hung.took = PROMPT;
            lock(&agents.board).guests.insert(key.clone(), hung);
            agents.awaits(awaits.then(|| key.clone()).into_iter().collect());
            let asked = agents.begin(std::slice::from_ref(&key), Instant::now());
            assert_eq!(asked, if awaits { vec![(SLOW, key)] } else { vec![] });
            assert!(agents.lines[SLOW].worker.is_some(), "it is asked");
        }
    }

    #[test]
    fn who_is_awaited_and_answers_at_once_is_waited_for_whichever_line_asks() {
        for line in [0, SLOW] {
            let (now, key): (_, Key) = (Instant::now(), ("uuid".into(), 1));
            let board = Arc::new(Mutex::new(Board::default()));
            lock(&board).guests.insert(key.clone(), Guest::new(now));
            let awaited = [(line, key.clone())];
            let long = now + Duration::from_secs(60);
            begin(&board, 1 - line, None);
            wait(&board, &awaited, now, long);
            begin(&board, line, Some(key.clone()));
            wait(&board, &[], now, long);
            wait(&board, &awaited, now, now);
            let answers = board.clone();
            let asked = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(20));
                lock(&answers).guests.get_mut(&key).unwrap().asked = Some(Instant::now());
            });
            wait(&board, &awaited, now, long);
            assert!(lock(&board).guests.values().all(|guest| guest.asked.is_some()));
            asked.join().unwrap();
            assert!(now.elapsed() < Duration::from_secs(50), "it waits for nobody");
        }
    }

    #[test]
    fn a_count_from_before_a_change_is_not_that_of_after_it() {
        let agents = Agents::new("test:///default", Duration::from_secs(5));
        let key: Key = ("uuid".into(), 1);
        let began = Instant::now();
        lock(&agents.board).guests.insert(key.clone(), Guest::new(began));
        let answer = |asked, units| {
            let tell = |work| {
                let view = GuestView { work, ..GuestView::default() };
                lock(&agents.board).guests.get_mut(&key).unwrap().answered(asked, view, agents.every);
            };
            tell(Some((units, Time(units))));
            let known = agents.latest(&key).unwrap().unwrap().work.unwrap();
            tell(Some((units + 100, known.1)));
            assert_eq!(
                agents.latest(&key).unwrap().unwrap().work,
                Some(known),
                "no news without another time"
            );
            tell(None);
            assert_eq!(agents.latest(&key).unwrap().unwrap().work, Some(known), "half written");
            known.0
        };
        assert_eq!(answer(began, 1), 1);
        agents.changed(&key);
        assert_eq!(answer(began, 2), 1, "asked before");
        assert_eq!(answer(Instant::now(), 3), 1, "may have been written before");
        assert_eq!(answer(Instant::now(), 3), 1);
        assert_eq!(answer(Instant::now(), 4), 4);
        assert_eq!(answer(Instant::now(), 5), 5);
    }

    #[test]
    fn a_connection_that_never_opens_is_noticed_and_said() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("silent");
        let _silent = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let uri = format!("qemu+unix:///system?socket={}", socket.display());
        let mut agents = Agents::new(&uri, Duration::from_millis(1));
        agents.stuck = Duration::from_millis(20);
        // More often than threads may hang. Where there is no libvirt, that is said at once.
        for _ in 0..8 {
            let begun = Instant::now();
            while agents.closed().is_none() {
                agents.ask(&[("uuid".into(), 1)]);
                std::thread::yield_now();
                assert!(begun.elapsed() < Duration::from_secs(20), "a thread that hangs goes unnoticed");
            }
            assert!(agents.closed().unwrap().starts_with("guests cannot be asked: "));
            lock(&agents.board).closed = None;
        }
    }
}
