//! Files that people and tools write about hosts and VMs, read without trusting them.
//!
//! ```text
//! hwloc XML, libvirt capabilities, xl info -n, a line of text ──▶ Topology
//! libvirt domain XML, xl configuration, xl vcpu-list, kubelet's states ──▶ check::Vm, each setting with its line
//! ```
//!
//! Texts are at most [`MAX_BYTES`] long and in UTF-8; XML may not declare entities. What is wrong is said
//! with its line. Nothing here opens a file.

mod capabilities;
mod cpu_list;
pub(crate) mod domain;
mod hwloc;
mod kubelet;
#[cfg(test)]
mod properties;
mod xl_config;
mod xl_info;
mod xl_list;
mod xl_vnuma;
pub(crate) mod xml;

use corefit_core::CpuSet;
use corefit_core::check::{Set, Vm};
use corefit_core::topology::Topology;

/// The longest text that is read: hwloc's XML of the largest machines has some 5 MiB.
pub const MAX_BYTES: u64 = 32 << 20;

/// What is wrong with a text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{what}", .line.map(|line| format!("line {line}: ")).unwrap_or_default())]
pub struct FormatError {
    /// From 1, if it is known.
    pub line: Option<u32>,
    /// What is wrong, and what would be right.
    pub what: String,
}

/// What a text is, by its beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `lstopo out.xml`.
    Hwloc,
    /// `virsh capabilities`.
    Capabilities,
    /// `virsh dumpxml VM`.
    Domain,
    /// `xl info -n`.
    XlInfo,
    /// `xl vcpu-list`.
    XlList,
    /// A configuration of `xl create`.
    XlConfig,
    /// `/var/lib/kubelet/cpu_manager_state`.
    Kubelet,
    /// `/var/lib/kubelet/memory_manager_state`; its containers have no vCPUs.
    KubeletMemory,
    /// One line, as in `2 sockets x 8 cores x 2 threads`.
    Synthetic,
}

impl Format {
    /// All of them.
    pub const ALL: [Format; 9] = [
        Format::Hwloc,
        Format::Capabilities,
        Format::Domain,
        Format::XlInfo,
        Format::XlList,
        Format::XlConfig,
        Format::Kubelet,
        Format::KubeletMemory,
        Format::Synthetic,
    ];
}

/// VMs of a text.
#[derive(Clone, Debug, Default)]
pub struct Vms {
    /// In the text's order.
    pub vms: Vec<Vm>,
    /// pCPUs for everybody who has none of his own.
    pub shared: Option<Set<CpuSet>>,
}

/// The text of a file.
///
/// # Errors
/// If it is no UTF-8; says how to convert it where that is clear.
pub fn decode(bytes: Vec<u8>) -> Result<String, FormatError> {
    let wrong = |what: &str| FormatError { line: None, what: what.into() };
    // The longer marks first: that of UTF-32 begins with that of UTF-16.
    let marks: [(&[u8], u32); 4] =
        [(&[0xff, 0xfe, 0, 0], 32), (&[0, 0, 0xfe, 0xff], 32), (&[0xff, 0xfe], 16), (&[0xfe, 0xff], 16)];
    if let Some((_, bits)) = marks.into_iter().find(|(mark, _)| bytes.starts_with(mark)) {
        return Err(wrong(&format!("is UTF-{bits}; convert it: iconv -f UTF-{bits} -t UTF-8")));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        let what = "is not UTF-8; convert it with iconv, or give a text file".into();
        FormatError { line: u32::try_from(line).ok(), what }
    })?;
    if text.contains('\0') {
        return Err(wrong("holds NUL bytes: no text file"));
    }
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// Whether a text is XML as we read it; for who writes some.
///
/// # Errors
/// What is wrong, and where.
pub fn well_formed(text: &str) -> Result<(), FormatError> {
    xml::open(text).map(|_| ())
}

/// What a text is.
///
/// # Errors
/// If it is none of the formats.
pub fn detect(text: &str) -> Result<Format, FormatError> {
    let start = text.trim_start();
    if start.is_empty() {
        return Err(FormatError {
            line: None,
            what: "is empty; give what `virsh dumpxml VM` or `virsh capabilities` prints".into(),
        });
    }
    if start.starts_with('<') {
        let document = xml::open(text)?;
        return match document.root_element().tag_name().name() {
            "topology" => Ok(Format::Hwloc),
            "capabilities" => Ok(Format::Capabilities),
            "domain" => Ok(Format::Domain),
            other => Err(xml::at(
                document.root_element(),
                &format!("<{other}>: give <topology> of lstopo, <capabilities> or <domain> of virsh"),
            )),
        };
    }
    if start.starts_with('{') {
        return Ok(if kubelet::is_of_memory(start) { Format::KubeletMemory } else { Format::Kubelet });
    }
    let line = |test: &dyn Fn(&str) -> bool| text.lines().take(200).any(|line| test(line.trim()));
    if line(&|line| line.starts_with("Name ") && line.contains("VCPU") && line.contains("Affinity")) {
        return Ok(Format::XlList);
    }
    if line(&|line| line.starts_with("cpu_topology") || line.starts_with("xen_version")) {
        return Ok(Format::XlInfo);
    }
    let first = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
    if first.is_some_and(|line| line.starts_with(|c: char| c.is_ascii_digit())) {
        return Ok(Format::Synthetic);
    }
    if line(&|line| !line.starts_with('#') && line.split_once('=').is_some_and(|(key, _)| is_key(key.trim())))
    {
        return Ok(Format::XlConfig);
    }
    let what = "is none of: hwloc, libvirt capabilities or domain XML; an xl configuration; output of xl info -n or \
                xl vcpu-list; kubelet's cpu_manager_state or memory_manager_state; a line like \"2 sockets x 8 cores x 2 threads\"";
    Err(FormatError { line: None, what: what.into() })
}

fn is_key(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

impl Format {
    /// Whether it describes a host, not VMs.
    #[must_use]
    pub fn is_host(self) -> bool {
        matches!(self, Format::Hwloc | Format::Capabilities | Format::XlInfo | Format::Synthetic)
    }

    /// The host of a text.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn topology(self, text: &str) -> Result<Topology, FormatError> {
        match self {
            Format::Hwloc => hwloc::read(text),
            Format::Capabilities => capabilities::read(text),
            Format::XlInfo => xl_info::read(text),
            Format::Synthetic => {
                // A file may say more in comments.
                let lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
                let line = lines.collect::<Vec<_>>().join(" ");
                line.parse().map_err(|error| FormatError { line: None, what: format!("{error}") })
            }
            _ => Err(FormatError { line: None, what: "describes VMs, no host".into() }),
        }
    }

    /// The VMs of a text, places in `file`. Some settings (`cpus = "nodes:1"`) need the host.
    ///
    /// # Errors
    /// What is wrong, and where.
    pub fn vms(self, text: &str, file: &str, host: Option<&Topology>) -> Result<Vms, FormatError> {
        match self {
            Format::Domain => domain::read(text, file),
            Format::XlList => xl_list::read(text, file, host),
            Format::XlConfig => xl_config::read(text, file, host),
            Format::Kubelet => kubelet::read(text, file),
            Format::KubeletMemory => kubelet::read_memory(text, file),
            _ => Err(FormatError { line: None, what: "describes a host, no VMs".into() }),
        }
    }
}

/// A text cut to a length that fits into a message, without spaces around it.
pub(crate) fn short(text: &str) -> String {
    let text = text.trim();
    if text.chars().count() <= 60 {
        return text.into();
    }
    text.chars().take(60).chain("...".chars()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_apart_by_what_they_hold() {
        for (text, format) in [
            ("<?xml version='1.0'?>\n<!-- c --><topology version='2.0'/>", Format::Hwloc),
            ("<capabilities/>", Format::Capabilities),
            ("\n<domain type='kvm'/>", Format::Domain),
            ("host : a\nxen_version : 4.17\ncpu_topology :\n", Format::XlInfo),
            ("Name   ID  VCPU   CPU State   Time(s) Affinity (Hard / Soft)\n", Format::XlList),
            ("# a guest\nname = 'a'\nvcpus=2\n", Format::XlConfig),
            ("{\"policyName\":\"static\"}", Format::Kubelet),
            ("{\"policyName\":\"Static\",\"machineState\":{}}", Format::KubeletMemory),
            ("# mine\n2 sockets x 4 cores", Format::Synthetic),
        ] {
            assert_eq!(detect(text), Ok(format), "{text}");
        }
        for (text, why) in [
            ("", "is empty"),
            ("hello", "is none of"),
            ("<network/>", "line 1: <network>: give"),
            ("<domain", "line 1: "),
        ] {
            let error = detect(text).unwrap_err().to_string();
            assert!(error.starts_with(why), "{text}: {error}");
        }
    }

    #[test]
    fn wrong_encodings_are_named_with_the_remedy() {
        let case = |bytes: &[u8]| decode(bytes.to_vec()).unwrap_err().to_string();
        assert_eq!(case(b"\xff\xfe<\0"), "is UTF-16; convert it: iconv -f UTF-16 -t UTF-8");
        assert_eq!(case(b"\xff\xfe\0\0<\0\0\0"), "is UTF-32; convert it: iconv -f UTF-32 -t UTF-8");
        assert!(case(b"\0\0\xfe\xff\0\0\0<").starts_with("is UTF-32"));
        assert!(case(b"a\nb\xe4").starts_with("line 2: is not UTF-8"));
        assert!(case(b"a\0b").starts_with("holds NUL bytes"));
        assert_eq!(decode(b"\xef\xbb\xbf<domain/>".to_vec()).unwrap(), "<domain/>");
    }
}
