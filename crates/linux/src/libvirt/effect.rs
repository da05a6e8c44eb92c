//! Which libvirtd a URI means: without one it is whatever the environment says, and one may have several names.

use std::path::{Path, PathBuf};

use rustix::process::geteuid;

use super::session::{is_local, socket};

/// Chooses where no URI is given.
const VARIABLE: &str = "LIBVIRT_DEFAULT_URI";
/// Where root's default is, too (libvirt.conf, `uri_default`).
const CONF: &str = "/etc/libvirt/libvirt.conf";
/// The host's.
const HOST: &str = "qemu:///system";
/// Where the host's sockets are.
const USUAL: [&str; 2] = ["/run/libvirt", "/var/run/libvirt"];
/// As many links in a path as the kernel follows.
const LINKS: u32 = 40;

/// The URI in effect: the one that is given, else that of `LIBVIRT_DEFAULT_URI`, else root's `uri_default` in libvirt.conf, else the
/// host's.
#[must_use]
pub fn in_effect(uri: &str) -> String {
    if !uri.is_empty() {
        return uri.into();
    }
    let conf = || std::fs::read_to_string(CONF).ok().filter(|_| geteuid().is_root());
    chosen().or_else(|| conf().and_then(|text| configured(&text))).unwrap_or_else(|| HOST.into())
}

/// The one that the environment chooses.
pub(super) fn chosen() -> Option<String> {
    std::env::var(VARIABLE).ok().filter(|uri| !uri.is_empty())
}

/// Whether the VMs of a URI run on this machine.
#[must_use]
pub fn is_here(uri: &str) -> bool {
    is_local(&in_effect(uri))
}

/// The same for every URI by which the same libvirtd of this machine is reached; of another machine, the URI.
#[must_use]
pub fn known_as(uri: &str) -> String {
    let (front, _) = uri.split_once('?').unwrap_or((uri, ""));
    if !is_local(uri) || front.starts_with("test:") {
        return uri.into();
    }
    let front = front.replacen("+unix://", "://", 1);
    match socket(uri).and_then(|socket| real_dir(&socket)).filter(|dir| !USUAL.contains(&dir.as_str())) {
        Some(dir) => format!("{front}?socket={dir}"),
        None => front,
    }
}

/// The directory of a socket, without links, `..` and the like: whether it is there or not, as libvirtd may begin later.
fn real_dir(socket: &str) -> Option<String> {
    let path = Path::new(socket);
    let (mut real, mut links) = (PathBuf::new(), 0);
    let mut rest: Vec<PathBuf> = path.components().rev().map(|part| part.as_os_str().into()).collect();
    while let Some(part) = rest.pop() {
        if part == Path::new("..") {
            real.pop();
            continue;
        }
        // (A link may begin with it.)
        if part == Path::new(".") {
            continue;
        }
        match real.join(&part).read_link() {
            Ok(target) if links < LINKS => {
                links += 1;
                rest.extend(target.components().rev().map(|part| PathBuf::from(part.as_os_str())));
            }
            // (A root begins anew.)
            _ => real.push(part),
        }
    }
    real.parent().map(|dir| dir.to_string_lossy().into_owned())
}

/// `uri_default = "…"`.
fn configured(text: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let value = line.trim().strip_prefix("uri_default")?.trim_start().strip_prefix('=')?.trim();
        let quote = value.chars().next().filter(|c| ['"', '\''].contains(c))?;
        value[1..].split_once(quote).map(|(uri, _)| uri.to_owned()).filter(|uri| !uri.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_one_libvirtd_are_known_for_the_same_and_others_are_not() {
        for other in
            ["qemu+unix:///system", "qemu+unix:///system?socket=/var/run/libvirt/libvirt-sock&mode=direct"]
        {
            assert_eq!(known_as(other), known_as("qemu:///system"), "{other}");
        }
        let at = |file: &str| known_as(&format!("qemu+unix:///system?socket=/tmp/x/{file}"));
        assert_eq!(at("libvirt-sock"), at("libvirt-sock-ro"));
        // However its path is spelled.
        let scratch = tempfile::tempdir().unwrap();
        let (dir, link) = (scratch.path().join("run"), scratch.path().join("link"));
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        std::os::unix::fs::symlink("./run", scratch.path().join("dot")).unwrap();
        std::os::unix::fs::symlink("link/libvirt-sock", scratch.path().join("sock")).unwrap();
        std::os::unix::fs::symlink("/run/libvirt/libvirt-sock", scratch.path().join("usual")).unwrap();
        let known =
            |path: &str| known_as(&format!("qemu+unix:///system?socket={}/{path}", scratch.path().display()));
        let at_run = known("run/libvirt-sock");
        // libvirtd may come and go.
        for there in [false, true] {
            for path in [
                "/run/libvirt-sock",
                "link/libvirt-sock",
                "link/../run/libvirt-sock-ro",
                "sock",
                "dot/libvirt-sock",
            ] {
                assert_eq!(known(path), at_run, "{path}, {there}");
            }
            assert_eq!(known("usual"), known_as("qemu:///system"));
            if !there {
                std::fs::create_dir(&dir).unwrap();
                std::fs::write(dir.join("libvirt-sock"), "").unwrap();
            }
        }
        let all = ["qemu:///session", "qemu+ssh://a/system", "qemu+ssh://b/system", "test:///default"];
        for (number, uri) in all.iter().enumerate() {
            assert!(all[..number].iter().all(|other| known_as(other) != known_as(uri)), "{uri}");
            assert_ne!(at("libvirt-sock"), known_as(uri));
        }
    }

    #[test]
    fn the_default_of_the_configuration_is_read() {
        let text = "#uri_default = \"qemu:///x\"\n uri_default = \"test:///default\" # mine\n";
        assert_eq!(configured(text).as_deref(), Some("test:///default"));
        assert_eq!(configured("uri_aliases = []\nuri_default = \"\"\n"), None);
        assert_eq!(in_effect("qemu:///session"), "qemu:///session");
    }
}
