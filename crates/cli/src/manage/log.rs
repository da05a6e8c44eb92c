//! The daemon's log: one event a line, for people and for `journalctl`: `event key=value key="two words"`.

use std::io::Write as _;
use std::sync::OnceLock;

/// How much it matters, with syslog's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Error = 3,
    Warning = 4,
    Info = 6,
}

/// Writes a line on stderr. Where that is journald, it begins with the level as sd-daemon(3) has it.
pub(crate) fn log(level: Level, event: &str, fields: &[(&str, String)]) {
    static JOURNAL: OnceLock<bool> = OnceLock::new();
    let journal = *JOURNAL.get_or_init(|| std::env::var_os("JOURNAL_STREAM").is_some());
    let start = match (journal, level) {
        (true, level) => format!("<{}>", level as u8),
        (false, Level::Error) => "corefit: error: ".into(),
        (false, Level::Warning) => "corefit: warning: ".into(),
        (false, Level::Info) => "corefit: ".into(),
    };
    // Nobody may be left to read.
    let _ = writeln!(std::io::stderr(), "{start}{}", line(event, fields));
}

fn line(event: &str, fields: &[(&str, String)]) -> String {
    fields.iter().fold(event.to_owned(), |line, (key, value)| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,+".contains(c);
        let value = if !value.is_empty() && value.chars().all(plain) {
            value.clone()
        } else {
            format!("\"{}\"", crate::printable::text(value).replace('"', "'"))
        };
        format!("{line} {key}={value}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_with_blanks_or_control_characters_are_quoted_on_one_line() {
        let fields = [("vm", "web-1".into()), ("why", "two \"words\"\n".into()), ("none", String::new())];
        assert_eq!(line("set", &fields), "set vm=web-1 why=\"two 'words'\\n\" none=\"\"");
    }
}
