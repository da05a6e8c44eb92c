//! How a JVM learns how many CPUs it has.
//!
//! There is no variable that a JVM takes in silence. `JAVA_TOOL_OPTIONS`, `_JAVA_OPTIONS`
//! (`Picked up …`) and `JDK_JAVA_OPTIONS` (`NOTE: Picked up …`) each print a line on
//! stderr, a `.hotspotrc` is ignored with a warning, `-XX:Flags=` is an argument as well.
//! Measured with OpenJDK 17.0.15 and 25.0.3. So:
//! - `java` itself gets `-XX:ActiveProcessorCount=N` as its first argument: silent, and
//!   weaker than the user's own later one, also in an `@argfile`.
//! - A `JAVA_TOOL_OPTIONS` that is there anyway gets the option appended (its line is
//!   printed anyway) for the JVMs that a script starts.
//! - All other JVMs ask glibc's `sched_getaffinity`, which the preload library answers:
//!   with a library that reports 5 CPUs both JVMs say 5 and print nothing.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use super::knobs::{Environment, Setting};
use super::runtime::Runtime;

const TOOL_OPTIONS: &str = "JAVA_TOOL_OPTIONS";
const PROCESSORS: &str = "ActiveProcessorCount";

/// The variables from which a JVM takes options, and the one OpenJ9 adds.
const JAVA_OPTIONS: &[&str] = &["_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", TOOL_OPTIONS, "OPENJ9_JAVA_OPTIONS"];

/// The decision about Java, if there is one to report.
pub(super) fn java(count: usize, environment: &Environment<'_>) -> Option<Setting> {
    let runtime = "Java";
    for name in JAVA_OPTIONS {
        if let Some(value) = (environment.get)(name).filter(|value| mentions(value)) {
            return Some(Setting::Kept { name, value, runtime });
        }
    }
    let option: OsString = format!("-XX:{PROCESSORS}={count}").into();
    let program = environment.program;
    if program.runtimes.contains(&Runtime::Java) && takes_active_processor_count(&program.path) {
        if let Some(users) = environment.args.iter().find(|argument| mentions(argument)) {
            let value = users.to_string_lossy().rsplit('=').next().unwrap_or_default().into();
            return Some(Setting::Kept { name: "-XX:ActiveProcessorCount", value, runtime });
        }
        return Some(Setting::Argument { value: option, runtime });
    }
    let mut value = (environment.get)(TOOL_OPTIONS)?;
    value.push(" ");
    value.push(option);
    Some(Setting::Set { name: TOOL_OPTIONS, value, runtime })
}

fn mentions(text: &OsStr) -> bool {
    text.to_string_lossy().contains(PROCESSORS)
}

/// Whether this `java` knows the option: a JVM that does not refuses to start. It came
/// with JDK 10 and 8u191; `../release` beside the program tells the version, and a java
/// without that file is taken to be newer.
fn takes_active_processor_count(java: &Path) -> bool {
    let release = java.canonicalize().ok().and_then(|java| {
        let home = java.parent()?.parent()?.to_path_buf();
        // JDK 8 keeps its own file above the JRE's: jdk/jre/bin/java.
        [home.join("release"), home.join("../release")]
            .iter()
            .find_map(|file| std::fs::read_to_string(file).ok())
    });
    release.is_none_or(|text| !is_older_java(&text))
}

fn is_older_java(release: &str) -> bool {
    let version = release
        .lines()
        .find_map(|line| Some(line.strip_prefix("JAVA_VERSION=")?.trim_matches(|c| c == '"' || c == ' ')));
    let Some(version) = version else { return false };
    let number = |text: &str| -> u32 {
        let digits = text.split(|c: char| !c.is_ascii_digit()).next().unwrap_or_default();
        digits.parse().unwrap_or(u32::MAX)
    };
    match version.strip_prefix("1.8.0") {
        Some(update) => update.strip_prefix('_').is_none_or(|update| number(update) < 191),
        None if version.starts_with("1.") => true,
        None => number(version) < 10,
    }
}

#[cfg(test)]
mod tests {
    use super::super::knobs::tests::{decide, program, setting, value};
    use super::super::knobs::{Counts, Knobs};
    use super::*;

    fn java(env: &[(&str, &str)], runtimes: &[Runtime], args: &[&str]) -> Knobs {
        decide(Counts { openmp: 2, teams: 2, pools: 2 }, env, &program(runtimes), args, false)
    }

    #[test]
    fn java_itself_gets_an_argument_and_no_variable() {
        let knobs = java(&[], &[Runtime::Java], &["-jar", "x.jar"]);
        assert_eq!(knobs.arguments().collect::<Vec<_>>(), ["-XX:ActiveProcessorCount=2"]);
        assert_eq!(setting(&knobs, TOOL_OPTIONS), None);
    }

    #[test]
    fn other_programs_get_no_java_variable_that_would_print_a_line() {
        let knobs = java(&[], &[], &[]);
        assert_eq!(knobs.arguments().count(), 0);
        assert_eq!(setting(&knobs, TOOL_OPTIONS), None);
        assert_eq!(setting(&java(&[(TOOL_OPTIONS, "")], &[], &[]), TOOL_OPTIONS), None);
    }

    #[test]
    fn java_tool_options_of_the_user_are_extended_for_other_programs() {
        let knobs = java(&[(TOOL_OPTIONS, "-Xmx1g")], &[], &[]);
        assert_eq!(value(&knobs, TOOL_OPTIONS), Some("-Xmx1g -XX:ActiveProcessorCount=2"));
    }

    #[test]
    fn the_users_own_processor_count_for_java_stays_wherever_he_put_it() {
        let own = "-XX:ActiveProcessorCount=9";
        for name in JAVA_OPTIONS {
            for runtimes in [&[][..], &[Runtime::Java]] {
                let knobs = java(&[(name, own)], runtimes, &[]);
                assert_eq!(knobs.arguments().count(), 0, "{name}");
                assert_eq!(value(&knobs, TOOL_OPTIONS), None, "{name}");
                assert!(matches!(setting(&knobs, name), Some(Setting::Kept { .. })), "{name}");
            }
        }
        let knobs = java(&[], &[Runtime::Java], &[own, "Main"]);
        assert_eq!(knobs.arguments().count(), 0);
        let kept = Setting::Kept { name: "-XX:ActiveProcessorCount", value: "9".into(), runtime: "Java" };
        assert!(knobs.settings.contains(&kept));
    }

    #[test]
    fn only_a_java_that_is_too_old_for_the_option_is_left_without_it() {
        for (version, older) in [
            ("1.8.0_181", true),
            ("1.8.0", true),
            ("1.8.0_191", false),
            ("1.8.0_402-b06", false),
            ("1.7.0_80", true),
            ("9.0.4", true),
            ("10.0.1", false),
            ("17.0.15", false),
            ("25", false),
        ] {
            let text = format!("IMPLEMENTOR=\"x\"\nJAVA_VERSION=\"{version}\"\nOS_NAME=\"Linux\"\n");
            assert_eq!(is_older_java(&text), older, "{version}");
        }
        assert!(!is_older_java("nothing"));
    }
}
