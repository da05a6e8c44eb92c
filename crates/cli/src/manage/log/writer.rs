//! Lines that are written by a thread of their own: who reads them late, or not at all (a full pipe, a stopped terminal, a journal that
//! hangs), does not keep the daemon waiting.
//!
//! As long as they are read, each is written when it has been said: a kill right after it does not lose it. Many at once are waited for in
//! the end: on a crowded machine it takes long until the other thread runs, for each.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Who says a line waits so long until it is written, and not at all while earlier ones wait that were waited for.
pub(super) const PATIENCE: Duration = Duration::from_millis(100);
/// Bytes that wait to be written at most: what is said beyond is lost, and counted.
const MOST: usize = 1 << 20;

/// Who writes.
pub(super) struct Writer {
    shared: Arc<Shared>,
    /// A line that says how many were lost.
    lost: fn(u64) -> String,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    /// What waits to be written; the first may be on its way.
    texts: VecDeque<Arc<str>>,
    bytes: usize,
    /// Lines that were lost, and nobody was told.
    lost: u64,
    /// Somebody waited in vain.
    late: bool,
}

impl Queue {
    fn push(&mut self, text: String) {
        self.bytes += text.len();
        self.texts.push_back(text.into());
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until all is written; `None`: as long as that takes.
    fn written<'a>(
        &'a self,
        queue: MutexGuard<'a, Queue>,
        patience: Option<Duration>,
    ) -> MutexGuard<'a, Queue> {
        let waits = |queue: &mut Queue| !queue.texts.is_empty();
        match patience {
            Some(patience) => {
                let waited = self.changed.wait_timeout_while(queue, patience, waits);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
            None => self.changed.wait_while(queue, waits).unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Writes what there is, for ever.
    fn write(&self, mut out: impl Write) {
        loop {
            let queue = self.lock();
            let none = |queue: &mut Queue| queue.texts.is_empty();
            let queue = self.changed.wait_while(queue, none).unwrap_or_else(PoisonError::into_inner);
            let Some(text) = queue.texts.front().cloned() else { continue };
            drop(queue);
            // Nobody may be left to read.
            let _ = out.write_all(text.as_bytes());
            let mut queue = self.lock();
            queue.texts.pop_front();
            queue.bytes -= text.len();
            queue.late &= !queue.texts.is_empty();
            drop(queue);
            self.changed.notify_all();
        }
    }
}

impl Writer {
    /// One that writes there; `lost` makes a line of how many were lost.
    ///
    /// # Errors
    /// If there is no thread to be had.
    pub(super) fn new(out: impl Write + Send + 'static, lost: fn(u64) -> String) -> io::Result<Writer> {
        let shared = Arc::new(Shared::default());
        let writes = shared.clone();
        std::thread::Builder::new().name("log".into()).spawn(move || writes.write(out))?;
        Ok(Writer { shared, lost })
    }

    /// Writes a line, or leaves it to be written once somebody reads; `patience` as that of `written`.
    pub(super) fn say(&self, line: String, patience: Option<Duration>) {
        let mut queue = self.shared.lock();
        if self.leave(&mut queue, line, patience.is_some()) {
            drop(self.wait(queue, patience));
        }
    }

    /// The same of one of many, for which nobody waits until [`Writer::all_said`], but for room.
    pub(super) fn say_one(&self, line: String, patience: Duration) {
        let mut queue = self.shared.lock();
        if queue.bytes + line.len() > MOST / 2 {
            queue = self.wait(queue, Some(patience));
        }
        self.leave(&mut queue, line, true);
    }

    /// Many were said.
    pub(super) fn all_said(&self, patience: Duration) {
        drop(self.wait(self.shared.lock(), Some(patience)));
    }

    /// Leaves a line to be written; `false` if it is lost, as it `may` be.
    fn leave(&self, queue: &mut Queue, line: String, may: bool) -> bool {
        if may && queue.bytes + line.len() > MOST && !queue.texts.is_empty() {
            queue.lost += 1;
            return false;
        }
        let lost = std::mem::take(&mut queue.lost);
        queue.push(if lost > 0 { (self.lost)(lost) + &line } else { line });
        self.shared.changed.notify_all();
        true
    }

    /// Waits until all is written, unless somebody did so in vain.
    fn wait<'a>(&'a self, queue: MutexGuard<'a, Queue>, patience: Option<Duration>) -> MutexGuard<'a, Queue> {
        if patience.is_some() && queue.late {
            return queue;
        }
        let mut queue = self.shared.written(queue, patience);
        queue.late = !queue.texts.is_empty();
        queue
    }

    /// Waits until all is written, also how many lines were lost.
    pub(super) fn flush(&self, patience: Duration) {
        let until = Instant::now() + patience;
        let mut queue = self.shared.written(self.shared.lock(), Some(patience));
        if queue.lost > 0 && queue.texts.is_empty() {
            let lost = std::mem::take(&mut queue.lost);
            queue.push((self.lost)(lost));
            self.shared.changed.notify_all();
            drop(self.shared.written(queue, Some(until.saturating_duration_since(Instant::now()))));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, PipeReader, Read as _, pipe};

    use super::*;

    fn lost(lines: u64) -> String {
        format!("lost {lines}\n")
    }

    #[test]
    fn each_line_is_written_once_it_was_said_as_long_as_somebody_reads() {
        let (mut reader, out) = pipe().unwrap();
        let writer = Writer::new(out, lost).unwrap();
        for n in 0..100 {
            let line = format!("{n}\n");
            // On a crowded machine it may take its time.
            writer.say(line.clone(), Some(Duration::from_secs(60)));
            assert!(writer.shared.lock().texts.is_empty());
            let mut read = vec![0; line.len()];
            reader.read_exact(&mut read).unwrap();
            assert_eq!(read, line.as_bytes());
        }
    }

    #[test]
    fn of_many_lines_none_is_lost_that_somebody_reads_and_all_are_written_in_the_end() {
        let (reader, out) = pipe().unwrap();
        let writer = Writer::new(out, lost).unwrap();
        let (length, lines) = (1 << 12, 1024);
        let reads = std::thread::spawn(move || {
            BufReader::new(reader).lines().take(lines).map(Result::unwrap).collect()
        });
        assert!(length * lines > 2 * MOST);
        for n in 0..lines {
            writer.say_one(format!("{n:0length$}\n"), Duration::from_secs(60));
        }
        writer.all_said(Duration::from_secs(60));
        assert!(writer.shared.lock().texts.is_empty());
        let read: Vec<String> = reads.join().unwrap();
        assert!((0..).zip(&read).all(|(n, line)| line.parse() == Ok(n)) && read.len() == lines, "in order");
        // Nobody reads, who is waited for once.
        let (_reader, out) = pipe().unwrap();
        let (writer, begun) = (Writer::new(out, lost).unwrap(), Instant::now());
        for n in 0..lines {
            writer.say_one(format!("{n:0length$}\n"), PATIENCE);
        }
        writer.all_said(PATIENCE);
        assert!(begun.elapsed() < PATIENCE * 100, "{:?}", begun.elapsed());
    }

    /// Lines that nobody reads, of more bytes than are kept: how many.
    fn unread() -> (Writer, PipeReader, u32) {
        let (reader, out) = pipe().unwrap();
        let writer = Writer::new(out, lost).unwrap();
        let (length, lines, begun) = (1 << 12, 512, Instant::now());
        assert!(length * lines as usize > MOST);
        for n in 0..lines {
            writer.say(format!("{n:0length$}\n"), Some(PATIENCE));
        }
        assert!(begun.elapsed() < PATIENCE * lines / 4, "{:?}", begun.elapsed());
        assert!(writer.shared.lock().bytes <= MOST);
        (writer, reader, lines)
    }

    #[test]
    fn who_does_not_read_keeps_nobody_waiting_and_is_told_how_many_lines_were_lost() {
        let (writer, reader, said) = unread();
        let reads = std::thread::spawn(move || {
            let lines = BufReader::new(reader).lines().map(Result::unwrap);
            lines.take_while(|line| line != "last").collect::<Vec<_>>()
        });
        writer.flush(Duration::from_secs(60));
        writer.say("last\n".into(), Some(PATIENCE));
        let mut lines = reads.join().unwrap();
        let lost: usize = lines.pop().unwrap().strip_prefix("lost ").unwrap().parse().unwrap();
        assert_eq!(lost + lines.len(), said as usize);
        assert!(lost > 0 && (0..).zip(&lines).all(|(n, line)| line.parse() == Ok(n)), "in order");
    }

    #[test]
    fn the_end_waits_for_nobody_who_does_not_read_and_what_is_said_once_he_does_is_not_lost() {
        let (writer, mut reader, _) = unread();
        let begun = Instant::now();
        writer.flush(PATIENCE);
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
        let reads = std::thread::spawn(move || {
            let (mut text, mut buffer) = (Vec::new(), [0; 1 << 16]);
            while !text.ends_with(b"\nlast\n") {
                let n = reader.read(&mut buffer).unwrap();
                text.extend_from_slice(&buffer[..n]);
            }
            String::from_utf8(text).unwrap()
        });
        // Who has all the time waits for room, too.
        writer.say("last\n".into(), None);
        assert!(writer.shared.lock().texts.is_empty());
        let text = reads.join().unwrap();
        assert_eq!(text.lines().filter(|line| line.starts_with("lost ")).count(), 1);
    }
}
