//! When a daemon had found how many vCPUs a VM is to have, by its log.

use chrono::DateTime;

/// How the reason for a number that is only tried begins.
const TRIES: &str = " why=\"tries ";

/// Seconds from when it began to when it set a number of vCPUs last, and to when it set one last that was no trial; how many it
/// set, and seconds to the end of its log.
pub(crate) fn settled(log: &str) -> String {
    let seconds = |line: &str| {
        let at = line.split_once(" at=")?.1.split(' ').next()?;
        Some(DateTime::parse_from_rfc3339(at).ok()?.timestamp_millis() as f64 / 1e3)
    };
    let begun = log.lines().find(|line| line.contains("begun at=")).and_then(seconds).expect("when it began");
    let after = |line: &str| format!("{:.0} s", seconds(line).expect("when that was") - begun);
    let set = |line: &&str| line.contains(" set at=") && line.contains(" lever=\"online vCPUs\"");
    let all: Vec<&str> = log.lines().filter(set).collect();
    // (What came late is said without its reason.)
    let chosen = all.iter().rfind(|line| line.contains(" why=") && !line.contains(TRIES));
    let [last, chosen] = [all.last(), chosen].map(|line| line.map_or("never".into(), |line| after(line)));
    format!("vCPUs set last after {last}, last as no trial after {chosen}, {} times", all.len())
}

#[test]
fn a_daemon_has_settled_when_it_set_a_number_last_and_what_it_tried_is_told_apart() {
    use corefit_core::decide::Why;

    let line = |second: u32, event: &str| format!("corefit: {event} at=2026-11-29T10:00:{second:02}.500Z");
    let set = |second: u32, lever: &str, why: Option<Why>| {
        let why = why.map_or(" late=true".into(), |why| format!(" why=\"{why}\""));
        format!("{} vm=measure lever=\"{lever}\" from=0-7 to=0-1{why}", line(second, "set"))
    };
    let begun = format!("{} machine=x does=\"sets\"", line(1, "begun"));
    let (trial, share) = (Why::Trying { count: 2 }, Why::Allowed { least: 1, most: 2 });
    let told = set(50, "what the guest is told", Some(share.clone()));
    let mut log = vec![begun, told];
    assert_eq!(settled(&log.join("\n")), "vCPUs set last after never, last as no trial after never, 0 times");
    let online = |second: u32, why| set(second, "online vCPUs", why);
    log.extend([online(4, Some(share)), online(20, Some(trial)), online(31, None)]);
    assert_eq!(settled(&log.join("\n")), "vCPUs set last after 30 s, last as no trial after 3 s, 3 times");
}
