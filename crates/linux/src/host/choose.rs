//! Which groups play VMs: those that were named, or those that look like containers.

use super::HostReader;
use crate::root::ReadError;

/// Groups are searched for containers so deep.
const DEPTH: usize = 8;

/// Which groups play VMs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Those that look like containers or VMs of a known runtime (docker, podman, containerd, CRI-O, LXC,
    /// libvirt, systemd-machined), wherever they are. If there are none, all groups at the top.
    Usual,
    /// Those that match one of these: paths from the top, in which `*` stands for any text and `?` for
    /// any character of a name.
    Patterns(Vec<String>),
    /// The one of this process.
    Own,
}

/// Why a text names no groups.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is no path of a control group; give paths from the top, as in /docker/*,/system.slice/web.service"
)]
pub struct NoPattern(String);

impl std::str::FromStr for Choice {
    type Err = NoPattern;

    /// Paths with commas between them; no text is [`Choice::Usual`].
    fn from_str(text: &str) -> Result<Choice, NoPattern> {
        if text.is_empty() {
            return Ok(Choice::Usual);
        }
        let one = |part: &str| match part.trim().trim_end_matches('/') {
            path if path.starts_with('/') && !path.contains("//") && !path.contains("/../") => {
                Ok(path.into())
            }
            _ => Err(NoPattern(part.into())),
        };
        text.split(',').map(one).collect::<Result<_, _>>().map(Choice::Patterns)
    }
}

/// What was chosen, and how that came, for people.
pub(super) struct Chosen {
    pub(super) paths: Vec<String>,
    pub(super) note: Option<String>,
}

impl Choice {
    /// The groups that there are now.
    pub(super) fn find(&self, reader: &HostReader) -> Result<Chosen, ReadError> {
        match self {
            Choice::Usual => usual(reader),
            Choice::Own => {
                let own = reader.group_of(std::process::id()).filter(|path| !path.is_empty());
                Ok(Chosen { paths: own.into_iter().collect(), note: None })
            }
            Choice::Patterns(patterns) => {
                let mut paths = Vec::new();
                for pattern in patterns {
                    let names: Vec<&str> = reader.path(pattern).split('/').skip(1).collect();
                    matching(reader, "", &names, &mut paths)?;
                }
                paths.sort();
                paths.dedup();
                let holds = |outer: &&String| {
                    let inner = format!("{outer}/");
                    paths.iter().any(|path| path.starts_with(&inner))
                };
                let outer: Vec<String> = paths.iter().filter(holds).map(|path| format!("{path:?}")).collect();
                let note = || format!("{}: no VM, for it holds another one that was named", outer.join(", "));
                Ok(Chosen { note: (!outer.is_empty()).then(note), paths })
            }
        }
    }
}

fn usual(reader: &HostReader) -> Result<Chosen, ReadError> {
    let mut paths = Vec::new();
    containers(reader, "", DEPTH, &mut paths)?;
    if !paths.is_empty() {
        return Ok(Chosen { paths, note: None });
    }
    let paths = reader.children("")?.iter().map(|name| format!("/{name}")).collect();
    let note = "no group looks like a container: all groups at the top are shown; choose others with \
        --machine cgroups:PATHS";
    Ok(Chosen { paths, note: Some(note.into()) })
}

fn containers(
    reader: &HostReader,
    path: &str,
    depth: usize,
    found: &mut Vec<String>,
) -> Result<(), ReadError> {
    for name in reader.children(path)? {
        let child = format!("{path}/{name}");
        if is_container(path, &name) {
            found.push(child);
        } else if depth > 1 {
            containers(reader, &child, depth - 1, found)?;
        }
    }
    Ok(())
}

/// By the names that runtimes give: docker and podman with either cgroup driver, kubelet's
/// `pod…/ID` and `cri-containerd-ID.scope`, CRI-O, LXC's payloads, libvirt with and without systemd.
fn is_container(parent: &str, name: &str) -> bool {
    let above = parent.rsplit('/').next().unwrap_or("");
    let is_id = name.len() >= 12 && name.bytes().all(|b| b.is_ascii_hexdigit());
    let scope = |prefix: &str| name.strip_suffix(".scope").is_some_and(|name| name.starts_with(prefix));
    if name.contains("conmon") {
        return false;
    }
    ["docker-", "cri-containerd-", "crio-", "libpod-", "machine-"].iter().any(|prefix| scope(prefix))
        || [".libvirt-qemu", ".libvirt-lxc"].iter().any(|suffix| name.ends_with(suffix))
        || ["lxc.payload.", "libpod-"].iter().any(|prefix| name.starts_with(prefix))
        || is_id && (above == "docker" || above.starts_with("pod"))
        || above == "lxc"
}

/// Adds the groups below `path` that these names lead to.
fn matching(
    reader: &HostReader,
    path: &str,
    names: &[&str],
    found: &mut Vec<String>,
) -> Result<(), ReadError> {
    let Some((first, rest)) = names.split_first() else {
        if !path.is_empty() {
            found.push(path.into());
        }
        return Ok(());
    };
    for name in reader.children(path)? {
        if fits(first.as_bytes(), name.as_bytes()) {
            matching(reader, &format!("{path}/{name}"), rest, found)?;
        }
    }
    Ok(())
}

/// Whether a name fits a pattern with `*` and `?`.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    // The last star seen, and how much of the name it stands for as yet.
    let (mut p, mut n, mut star) = (0, 0, None);
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&c) if c == b'?' || c == name[n] => (p, n) = (p + 1, n + 1),
            _ => match star {
                Some((at, taken)) => {
                    (p, n) = (at + 1, taken + 1);
                    star = Some((at, taken + 1));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_within_a_name() {
        let fits = |pattern: &str, name: &str| fits(pattern.as_bytes(), name.as_bytes());
        for (pattern, name) in
            [("*", "x"), ("a*c", "abbc"), ("a?c", "abc"), ("*-*.scope", "a-b-c.scope"), ("**", "")]
        {
            assert!(fits(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [("a*c", "abcd"), ("?", ""), ("", "a"), ("*x*", "abc"), ("a", "b")] {
            assert!(!fits(pattern, name), "{pattern} {name}");
        }
    }

    #[test]
    fn a_text_that_is_no_list_of_paths_is_refused_with_an_example() {
        assert_eq!("".parse(), Ok(Choice::Usual));
        assert_eq!("/a/*, /b/".parse(), Ok(Choice::Patterns(vec!["/a/*".into(), "/b".into()])));
        for text in ["a", "/a,", "/", "/a//b", "/a/../b"] {
            let error = text.parse::<Choice>().unwrap_err().to_string();
            assert!(
                error.contains("is no path of a control group") && error.contains("/docker/*"),
                "{error}"
            );
        }
    }

    #[test]
    fn containers_are_told_by_the_names_that_runtimes_give() {
        for (parent, name) in [
            ("/docker", "0123456789abcdef"),
            ("/system.slice", "docker-0123456789ab.scope"),
            ("/kubepods/burstable/pod12-34", "0123456789ab"),
            ("/kubepods.slice/kubepods-pod1.slice", "cri-containerd-0123.scope"),
            ("/machine.slice", "machine-qemu\\x2d1\\x2dvm.scope"),
            ("/machine", "qemu-1-vm.libvirt-qemu"),
            ("", "lxc.payload.web"),
            ("/lxc", "web"),
        ] {
            assert!(is_container(parent, name), "{parent}/{name}");
        }
        for (parent, name) in [
            ("", "docker"),
            ("/system.slice", "docker.service"),
            ("/machine.slice", "libpod-conmon-0123.scope"),
            ("/user.slice", "session-1.scope"),
            ("/kubepods", "burstable"),
        ] {
            assert!(!is_container(parent, name), "{parent}/{name}");
        }
    }
}
