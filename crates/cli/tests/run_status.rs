//! The live status line of `corefit run`, as people see it: on a terminal of tmux.

#[allow(dead_code, reason = "every test file uses a part of this")]
mod run_support;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use run_support::{Place, corefit, stdout};

const ROWS: usize = 10;
/// In the status line and not in the report.
const STATUS: &str = " waiting, ";

/// A terminal of its own server, which ends with it.
struct Terminal {
    place: Place,
    tmux: PathBuf,
}

impl Terminal {
    /// An interactive shell; None, and a note, where there is no tmux.
    fn start() -> Option<Terminal> {
        if Command::new("tmux").arg("-V").output().is_err() {
            let _ = writeln!(std::io::stderr(), "skipped: the status line: no tmux");
            return None;
        }
        let place = Place::new();
        let terminal = Terminal { tmux: place.path().join("socket"), place };
        let script = terminal.path().join("rc");
        std::fs::write(&script, format!("PS1='$ '\nalias cf={}\nset +H\n", corefit().display())).unwrap();
        let size = ["-x", "90", "-y", &ROWS.to_string()];
        let mut new = terminal.command();
        new.args(["-f", "/dev/null", "new-session", "-d"]).args(size);
        new.arg(format!("exec bash --noprofile --rcfile {} -i", script.display()));
        let output = new.current_dir(terminal.path()).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        terminal.until("a prompt", |screen| screen.iter().any(|line| line == "$"));
        Some(terminal)
    }

    fn path(&self) -> &Path {
        self.place.path()
    }

    fn command(&self) -> Command {
        let mut command = Command::new("tmux");
        command.arg("-S").arg(&self.tmux).env_remove("TMUX");
        command
    }

    fn keys(&self, keys: &[&str]) {
        assert!(self.command().arg("send-keys").args(keys).status().unwrap().success());
    }

    fn enter(&self, line: &str) {
        self.keys(&[line, "Enter"]);
    }

    /// What is seen.
    fn screen(&self) -> Vec<String> {
        self.capture(&[])
    }

    /// The same, and what has scrolled away.
    fn everything(&self) -> Vec<String> {
        self.capture(&["-S", "-"])
    }

    fn capture(&self, more: &[&str]) -> Vec<String> {
        let output = self.command().args(["capture-pane", "-p"]).args(more).output().unwrap();
        stdout(&output).lines().map(|line| line.trim_end().to_owned()).collect()
    }

    /// Waits until the screen is as expected.
    fn until(&self, what: &str, expected: impl Fn(&[String]) -> bool) {
        let end = Instant::now() + Duration::from_secs(30);
        while !expected(&self.screen()) {
            assert!(Instant::now() < end, "never seen: {what}\n{}", self.everything().join("\n"));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn until_shown(&self) {
        self.until("the status line", |screen| screen.last().is_some_and(|line| line.contains(STATUS)));
    }

    /// Nothing of the status is left anywhere.
    fn assert_clean(&self) {
        let all = self.everything();
        assert!(!all.iter().any(|line| line.contains(STATUS)), "{}", all.join("\n"));
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.command().arg("kill-server").status();
    }
}

fn has(screen: &[String], text: &str) -> bool {
    screen.iter().any(|line| line == text)
}

#[test]
fn nothing_of_the_status_line_is_left_where_the_program_wrote_while_it_was_shown() {
    let Some(terminal) = Terminal::start() else { return };
    // Both near the top of the screen and where it scrolls.
    for lines in [2, 30] {
        terminal.enter("clear; tmux -S socket clear-history");
        terminal.enter(&format!(
            "cf run -- sh -c 'printf half; while [ ! -e go ]; do sleep 0.05; done; echo; seq {lines}; echo result'; rm go"
        ));
        terminal.until_shown();
        let screen = terminal.screen();
        assert!(has(&screen, "half"), "the program's line is its own: {}", screen.join("\n"));
        std::fs::write(terminal.path().join("go"), "").unwrap();
        terminal.until("the report", |screen| screen.iter().any(|line| line.contains("DOTNET_PROCESSOR")));
        terminal.assert_clean();
        let all = terminal.everything();
        for line in ["half", "1", "2", "result"] {
            assert!(has(&all, line), "{line}: {}", all.join("\n"));
        }
    }
}

#[test]
fn on_a_terminal_whose_size_changes_the_line_moves_and_nothing_is_lost() {
    let Some(terminal) = Terminal::start() else { return };
    terminal.enter("cf run -- sh -c 'seq 101 120; while [ ! -e go ]; do sleep 0.05; done'");
    for (columns, rows) in [(90, ROWS), (100, 14), (80, 8), (90, 12)] {
        let size = ["-x", &columns.to_string(), "-y", &rows.to_string()];
        assert!(terminal.command().arg("resize-window").args(size).status().unwrap().success());
        terminal.until("the status line", |screen| {
            screen.len() == rows && screen.iter().position(|line| line.contains(STATUS)) == Some(rows - 1)
        });
    }
    std::fs::write(terminal.path().join("go"), "").unwrap();
    terminal.until("the report", |screen| screen.iter().any(|line| line.contains("DOTNET_PROCESSOR")));
    terminal.assert_clean();
    let all = terminal.everything();
    for line in 101..=120 {
        assert!(has(&all, &line.to_string()), "{line}: {}", all.join("\n"));
    }
}

#[test]
fn a_stopped_program_leaves_no_status_line_and_one_that_goes_on_has_it_again() {
    let Some(terminal) = Terminal::start() else { return };
    terminal.enter("cf run -- sleep 60");
    terminal.until_shown();
    terminal.keys(&["C-z"]);
    terminal.until("a stopped job", |screen| screen.iter().any(|line| line.contains("Stopped")));
    terminal.assert_clean();
    terminal.enter("seq 40");
    terminal.until("the whole screen in use", |screen| screen[ROWS - 2] == "40");
    terminal.enter("fg");
    terminal.until_shown();
    terminal.keys(&["C-c"]);
    terminal.until("the report", |screen| screen.iter().any(|line| line.contains("ended by signal 2")));
    terminal.assert_clean();
}

#[test]
fn a_killed_corefit_leaves_the_whole_terminal_to_who_comes_next() {
    let Some(terminal) = Terminal::start() else { return };
    terminal.enter("cf run -- sh -c 'echo $PPID $$ > pids; exec sleep 60'");
    terminal.until_shown();
    let pids = std::fs::read_to_string(terminal.path().join("pids")).unwrap();
    let (corefit, program) = pids.trim().split_once(' ').unwrap();
    let kill = |pid| assert!(Command::new("kill").args(["-9", pid]).status().unwrap().success());
    kill(corefit);
    terminal.until("its death", |screen| screen.iter().any(|line| line.contains("Killed")));
    terminal.until("no status line", |screen| !screen.iter().any(|line| line.contains(STATUS)));
    terminal.enter("seq 40");
    terminal.until("the whole screen in use", |screen| screen[ROWS - 2] == "40");
    kill(program);
}

#[test]
fn a_program_that_draws_its_screen_and_a_dumb_terminal_are_left_alone() {
    let Some(terminal) = Terminal::start() else { return };
    terminal.enter("cf run -- sh -c 'while [ ! -e raw ]; do sleep 0.05; done; stty -icanon; touch drawing; sleep 1.2; stty icanon; rm raw'");
    terminal.until_shown();
    std::fs::write(terminal.path().join("raw"), "").unwrap();
    terminal.until("no status line", |screen| !screen.iter().any(|line| line.contains(STATUS)));
    terminal.until("its drawing", |_| terminal.path().join("drawing").exists());
    terminal.until("the report", |screen| screen.iter().any(|line| line.contains("DOTNET_PROCESSOR")));
    terminal
        .enter("clear; TERM=dumb cf run -- sleep 1.2 2>&1 | cat; TERM=dumb cf run -- sleep 1.2; echo over");
    terminal.until("both ends", |screen| {
        assert!(!screen.iter().any(|line| line.contains(STATUS)), "{}", screen.join("\n"));
        has(screen, "over")
    });
}
