//! What a connection to libvirtd shows of a host: which domains there are, and their definitions.
//!
//! Lives in the thread of a [`Worker`](super::worker::Worker), since every call may hang. Two calls
//! tell which domains run and which are paused; a definition is asked for only when its domain is
//! new, libvirt said that something changed, or it is old.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use corefit_core::machine::{MachineError, Pcpu, VmId};
use corefit_core::{Unread, What};

use super::api::{Access, Connection, Domain, Failure, Kind, named};
use super::asked::{self, Asked};
use super::definition::Definition;
use super::events::{self, Changed};
use super::process;
use super::sys;

/// After so long a definition is asked for again though nothing was said to have changed.
const OLD: Duration = Duration::from_secs(60);
/// The same where libvirt does not tell what changes.
const OLD_WITHOUT_EVENTS: Duration = Duration::from_secs(10);
/// At most one in so many definitions is asked for again in a look because it is old.
const OLD_SHARE: usize = 16;

/// Which domain is being asked about: if the call hangs, this one is to blame.
pub(super) type Subject = Arc<Mutex<Option<String>>>;

/// An open connection, and what is known through it.
pub(super) struct Session {
    connection: Rc<Connection>,
    /// Whether the host's files are those of this machine.
    local: bool,
    /// Where libvirtd keeps its files, if the URI says it.
    socket_dir: Option<String>,
    changed: Changed,
    old: Duration,
    topology: Result<Vec<Pcpu>, String>,
    known: BTreeMap<Key, Known>,
    subject: Subject,
}

/// UUID and number.
pub(super) type Key = (String, u32);

/// Those of a VM, if it is one of libvirt's.
pub(super) fn key(vm: &VmId) -> Option<Key> {
    let (uuid, number) = vm.0.rsplit_once('#')?;
    Some((uuid.to_owned(), number.parse().ok()?))
}

struct Known {
    definition: Result<Arc<Definition>, Failure>,
    read: Instant,
    /// Counts how often it was read.
    version: u64,
    pid: Option<u32>,
}

/// What the host has now.
#[derive(Debug, Default)]
pub(super) struct Look {
    pub(super) local: bool,
    pub(super) vms: Vec<Seen>,
    pub(super) asked: Option<Asked>,
    pub(super) unread: Vec<Unread>,
    pub(super) notes: Vec<String>,
}

/// A domain that is active.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) key: Key,
    pub(super) name: String,
    pub(super) runs: bool,
    pub(super) definition: Arc<Definition>,
    /// Changes with the definition.
    pub(super) version: u64,
    /// Its QEMU on this machine.
    pub(super) pid: Option<u32>,
    /// It changed, and there was no time to ask how.
    pub(super) outdated: bool,
}

impl Session {
    /// Connects; to ask, not to command.
    pub(super) fn open(
        uri: &str,
        keepalive: i32,
        subject: Subject,
        changed: Changed,
    ) -> Result<Session, MachineError> {
        let fail = |error: Failure| error.machine(uri);
        let connection = match Connection::open(uri, Access::Read, keepalive) {
            // Sessions of users have no socket for those who may only ask.
            Err(error) if error.kind != Kind::Unsupported => {
                Connection::open(uri, Access::Write, keepalive).map_err(|_| fail(error))?
            }
            other => other.map_err(fail)?,
        };
        let driver = connection.driver().map_err(fail)?;
        if !["QEMU", "TEST"].contains(&driver.as_str()) {
            return Err(MachineError::Unsupported(format!(
                "{}: cannot observe {driver} yet, only QEMU and libvirt's test driver",
                named(uri)
            )));
        }
        let full = connection.uri().map_err(fail)?;
        let local = driver == "QEMU" && is_local(&full);
        let topology = if local {
            Ok(Vec::new())
        } else {
            let text = connection.capabilities().map_err(fail)?;
            asked::topology(&text)
        };
        let told = events::subscribe(&connection, &changed);
        Ok(Session {
            local,
            socket_dir: socket_dir(&full),
            old: if told { OLD } else { OLD_WITHOUT_EVENTS },
            changed,
            topology,
            known: BTreeMap::new(),
            subject,
            connection: Rc::new(connection),
        })
    }

    /// What the host has now. Definitions are asked for until `until`, one at least, and none of `skip`;
    /// domains without one are named as unread.
    pub(super) fn look(&mut self, until: Instant, skip: &BTreeSet<String>) -> Result<Look, Failure> {
        let mut look = Look { local: self.local, ..Look::default() };
        let connection = self.connection.clone();
        let all = connection.domains(sys::VIR_CONNECT_LIST_DOMAINS_ACTIVE)?;
        let flags = sys::VIR_CONNECT_LIST_DOMAINS_PAUSED | sys::VIR_CONNECT_LIST_DOMAINS_OTHER;
        let mut stopped = BTreeSet::new();
        for domain in connection.domains(flags)? {
            if !domain.runs().unwrap_or(false) {
                stopped.insert(domain.uuid()?);
            }
        }
        let mut domains: Vec<(Key, &Domain<'_>)> = Vec::with_capacity(all.len());
        for domain in &all {
            // Without a number it ended meanwhile.
            let Some(id) = domain.id() else { continue };
            domains.push(((domain.uuid()?, id), domain));
        }
        let present: BTreeSet<&Key> = domains.iter().map(|(key, _)| key).collect();
        self.known.retain(|key, _| present.contains(key));
        let uuids: BTreeSet<&String> = present.iter().map(|(uuid, _)| uuid).collect();
        self.changed.retain(|uuid| uuids.contains(uuid));
        let mut changed = self.changed.all();
        let due = self.due(&domains, skip, &changed);
        let mut turns: Vec<&(Key, &Domain<'_>)> =
            domains.iter().filter(|(key, _)| due.contains(key)).collect();
        // First those of which nothing is known, then who was asked about longest ago.
        turns.sort_by_key(|(key, _)| self.known.get(key).map(|known| known.read));
        for (turn, (key, domain)) in turns.into_iter().enumerate() {
            if turn > 0 && Instant::now() >= until {
                break;
            }
            *self.subject.lock().unwrap_or_else(PoisonError::into_inner) = Some(key.0.clone());
            // What changes from now on is news again.
            self.changed.asks(&key.0);
            changed.remove(&key.0);
            let version = self.known.get(key).map_or(0, |known| known.version) + 1;
            // Its QEMU is looked for again: while it moves between two libvirtds of this machine, the other
            // one's has its UUID, too.
            let (definition, read) = (self.define(domain), Instant::now());
            let known = Known { definition, read, version, pid: None };
            self.known.insert(key.clone(), known);
        }
        *self.subject.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if self.local {
            self.find_processes(&domains);
        } else {
            look.asked = Some(self.ask(&domains, &mut look.unread));
        }
        for (key, domain) in &domains {
            let name = domain.name();
            let missing = match self.known.get(key).map(|known| (&known.definition, known)) {
                Some((Ok(definition), known)) => {
                    look.vms.push(Seen {
                        key: key.clone(),
                        name,
                        runs: !stopped.contains(&key.0),
                        definition: definition.clone(),
                        version: known.version,
                        pid: known.pid,
                        outdated: changed.contains(&key.0),
                    });
                    continue;
                }
                // It ended between two calls.
                Some((Err(error), _)) if error.kind == Kind::NoDomain => continue,
                Some((Err(error), _)) => error.to_string(),
                None if skip.contains(&key.0) => "libvirtd did not answer when it was asked about it".into(),
                None => "not asked for yet: libvirtd is slow".into(),
            };
            look.unread.push(Unread { what: What::Siblings, path: format!("VM {name:?}"), why: missing });
        }
        // libvirtd lists them in the order of a hash table.
        look.vms.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(look)
    }

    /// Whose definition to ask for: of these something changed.
    fn due(
        &self,
        domains: &[(Key, &Domain<'_>)],
        skip: &BTreeSet<String>,
        changed: &BTreeSet<String>,
    ) -> BTreeSet<Key> {
        let asked = || domains.iter().map(|(key, _)| key).filter(|key| !skip.contains(&key.0));
        let old = asked().filter_map(|key| Some((self.known.get(key)?.read, key)));
        let old = old.filter(|(read, _)| read.elapsed() > self.old);
        let old = crate::oldest(old, domains.len().div_ceil(OLD_SHARE));
        let is_due = |key: &&Key| match self.known.get(*key) {
            None => true,
            Some(known) => changed.contains(&key.0) || known.definition.is_err() || old.contains(key),
        };
        asked().filter(is_due).cloned().collect()
    }

    fn define(&self, domain: &Domain<'_>) -> Result<Arc<Definition>, Failure> {
        let xml = domain.xml()?;
        let malformed = |text| Failure { kind: Kind::Malformed, text };
        let mut definition = Definition::parse(&xml).map_err(malformed)?;
        if !self.local && definition.shares.is_none() {
            definition.shares = asked::weight(domain)?;
        }
        Ok(Arc::new(definition))
    }

    fn find_processes(&mut self, domains: &[(Key, &Domain<'_>)]) {
        let mut wanted = Vec::new();
        for known in self.known.values_mut() {
            known.pid = known.pid.filter(|pid| process::exists(*pid));
        }
        for (key, domain) in domains {
            if self.known.get(key).is_some_and(|known| known.definition.is_ok() && known.pid.is_none()) {
                wanted.push((key.0.clone(), domain.name()));
            }
        }
        if wanted.is_empty() {
            return;
        }
        let found = process::find(self.socket_dir.as_deref(), &wanted);
        for (key, known) in &mut self.known {
            known.pid = known.pid.or_else(|| found.get(&key.0).copied());
        }
    }

    fn ask(&self, domains: &[(Key, &Domain<'_>)], unread: &mut Vec<Unread>) -> Asked {
        let topology = self.topology.as_ref().map_or(&[][..], Vec::as_slice);
        if let Err(why) = &self.topology {
            let (path, why) = ("topology of the host".into(), why.clone());
            unread.push(Unread { what: What::Online, path, why });
        }
        let mut asked = Asked::host(&self.connection, topology);
        let waited = asked::waited(&self.connection);
        for (key, domain) in domains {
            if let Some(Known { definition: Ok(definition), .. }) = self.known.get(key) {
                asked.vm(domain, &key.0, definition, &waited);
            }
        }
        unread.append(&mut asked.unread);
        asked
    }
}

/// Whether a URI names no other host: `qemu:///system`, not `qemu+ssh://host/system`.
pub(super) fn is_local(uri: &str) -> bool {
    uri.split_once("://").is_none_or(|(_, rest)| rest.starts_with('/'))
}

/// The socket of `qemu+unix:///system?socket=/run/libvirt/libvirt-sock`, where `/` may be `%2F`, and so on.
pub(super) fn socket(uri: &str) -> Option<String> {
    let (_, query) = uri.split_once('?')?;
    query.split(['&', ';']).find_map(|part| part.strip_prefix("socket=")).map(decoded)
}

/// A text of a URI without its `%` and two digits, as libvirt takes it (`xmlURIUnescapeString`): what is no such code stays.
fn decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let code = part.get(..2).filter(|code| code.bytes().all(|byte| byte.is_ascii_hexdigit()));
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => bytes.extend([&[byte], &part.as_bytes()[2..]].concat()),
            None => bytes.extend([b"%", part.as_bytes()].concat()),
        }
    }
    crate::bytes::text(bytes)
}

/// Its directory.
fn socket_dir(uri: &str) -> Option<String> {
    socket(uri)?.rsplit_once('/').map(|(dir, _)| dir.into())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// One of libvirt's test driver with so many domains, and its URI.
    pub(in crate::libvirt) fn host(domains: u32) -> (tempfile::NamedTempFile, String) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let domain = |n: u32| {
            format!(
                "<domain type='test'><name>vm{n}</name><uuid>00000000-0000-4000-8000-00000000000{n}</uuid>\
                 <memory>1024</memory><vcpu>1</vcpu><os><type>hvm</type></os></domain>"
            )
        };
        let domains: String = (1..=domains).map(domain).collect();
        std::fs::write(file.path(), format!("<node>{domains}</node>")).unwrap();
        let uri = format!("test://{}", file.path().display());
        (file, uri)
    }

    #[test]
    fn what_changed_is_asked_for_at_the_next_look_that_has_time_for_it() {
        let changed = Changed::default();
        let mut session = Session::open("test:///default", 4, Subject::default(), changed.clone()).unwrap();
        let mut look = |time: u64, skip: &BTreeSet<String>| {
            let look = session.look(Instant::now() + Duration::from_secs(time), skip).unwrap();
            (look.vms[0].key.0.clone(), (look.vms[0].version, look.vms[0].outdated))
        };
        let (uuid, (first, _)) = look(60, &BTreeSet::new());
        changed.add(uuid.clone());
        changed.add("one that has ended".into());
        assert_eq!(look(60, &[uuid.clone()].into()).1, (first, true), "it was not to be asked");
        assert_eq!(changed.all(), [uuid.clone()].into());
        assert_eq!(look(60, &BTreeSet::new()).1, (first + 1, false));
        assert_eq!(look(60, &BTreeSet::new()).1, (first + 1, false), "it is known now");
    }

    #[test]
    fn a_look_without_time_asks_about_one_who_was_asked_about_longest_ago() {
        let (_file, uri) = host(3);
        let changed = Changed::default();
        let mut session = Session::open(&uri, 4, Subject::default(), changed.clone()).unwrap();
        let mut outdated = Vec::new();
        let mut look = || {
            let look = session.look(Instant::now(), &BTreeSet::new()).unwrap();
            let versions: Vec<u64> = look.vms.iter().map(|seen| seen.version).collect();
            outdated.push(look.vms.iter().filter(|seen| seen.outdated).count());
            (look.vms.into_iter().map(|seen| seen.key.0).collect::<Vec<_>>(), versions, look.unread.len())
        };
        let mut known = Vec::new();
        for count in 1..=3 {
            let (uuids, _, unread) = look();
            assert_eq!((uuids.len(), unread), (count, 3 - count));
            known.extend(uuids.into_iter().filter(|uuid| !known.contains(uuid)).collect::<Vec<_>>());
        }
        // The first by libvirt's order changes all the time.
        for number in 1..=6 {
            let changes = if number == 1 { &known[..] } else { &known[..1] };
            changes.iter().for_each(|uuid| changed.add(uuid.clone()));
            look();
        }
        let (_, versions, _) = look();
        assert!(versions.iter().all(|version| *version > 1), "{versions:?}");
        assert_eq!(outdated, [0, 0, 0, 2, 2, 1, 0, 0, 0, 0], "who was not asked is not as it is shown");
    }

    #[test]
    fn hosts_in_uris_are_found() {
        for (uri, local) in [
            ("qemu:///system", true),
            ("qemu+unix:///system?socket=/run/x/libvirt-sock&mode=direct", true),
            ("qemu+ssh://root@host/system", false),
        ] {
            assert_eq!(is_local(uri), local, "{uri}");
        }
        let uri = "qemu+unix:///system?mode=direct&socket=/run/x/libvirt-sock";
        assert_eq!(socket_dir(uri).as_deref(), Some("/run/x"));
        let uri = "qemu+unix:///system?mode=direct;socket=%2Frun%2fx%2525%zz%E4%c3%b6%/libvirt-sock%";
        assert_eq!(socket(uri).as_deref(), Some("/run/x%25%zz\u{10fee4}ö%/libvirt-sock%"));
        assert_eq!(socket_dir("qemu:///system"), None);
    }
}
