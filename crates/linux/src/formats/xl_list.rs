//! Output of `xl vcpu-list`: what each vCPU of each running domain may use, and prefers.

use std::collections::BTreeMap;

use corefit_core::CpuSet;
use corefit_core::check::{Manager, Place, Set, Vcpu, Vm};
use corefit_core::topology::Topology;

use super::{FormatError, Vms, cpu_list, short};

/// More vCPUs than Xen gives any domain (8192 for PV).
const MAX_VCPU: usize = 8192;

/// Reads the list.
pub(super) fn read(text: &str, file: &str, host: Option<&Topology>) -> Result<Vms, FormatError> {
    let mut vms: Vec<Vm> = Vec::new();
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.is_empty() || words[0] == "Name" && line.contains("VCPU") {
            continue;
        }
        let fail = |what: String| FormatError { line: Some(number), what };
        let row =
            Row::of(&words).ok_or_else(|| fail(format!("{:?} is no line of xl vcpu-list", short(line))))?;
        let place = Place { file: file.into(), line: Some(number), element: String::new() };
        let set = |text: &str| -> Result<Option<Set<CpuSet>>, FormatError> {
            let set = cpu_list::xl(text, host).map_err(fail)?;
            // `all` is what the hypervisor says where nothing is set.
            Ok(set.filter(|_| text != "all").map(|value| Set { value, place: place.clone() }))
        };
        let vcpu = Vcpu {
            online: row.online,
            affinity: set(row.hard)?,
            prefers: row.soft.map(set).transpose()?.flatten(),
            ..Vcpu::default()
        };
        let at = *known.entry(row.name.clone()).or_insert(vms.len());
        if at == vms.len() {
            let vm = Vm {
                name: row.name,
                manager: Manager::Xen,
                running: true,
                place: place.clone(),
                ..Vm::default()
            };
            vms.push(vm);
        }
        let all = &mut vms[at].vcpus;
        if row.vcpu >= all.len() {
            all.resize(row.vcpu + 1, Vcpu::default());
        }
        all[row.vcpu] = vcpu;
    }
    Ok(Vms { vms, shared: None })
}

struct Row<'a> {
    name: String,
    vcpu: usize,
    online: bool,
    hard: &'a str,
    soft: Option<&'a str>,
}

impl<'a> Row<'a> {
    /// `name id vcpu cpu state time hard / soft`; before Xen 4.5 without soft affinity.
    fn of(words: &[&'a str]) -> Option<Row<'a>> {
        let (hard, soft) = match words.iter().rposition(|word| *word == "/") {
            Some(slash) if slash + 2 == words.len() => (slash.checked_sub(1)?, Some(words[slash + 1])),
            Some(_) => return None,
            // "any cpu" are two words.
            None if words.ends_with(&["any", "cpu"]) => (words.len() - 2, None),
            None => (words.len().checked_sub(1)?, None),
        };
        let first = hard.checked_sub(5)?;
        let name = words[..first].join(" ");
        let vcpu = words[first + 1].parse().ok().filter(|vcpu| *vcpu < MAX_VCPU)?;
        words[first].parse::<u32>().ok()?;
        let online = words[first + 2] != "-";
        (!name.is_empty()).then_some(Row { name, vcpu, online, hard: words[hard], soft })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The shape of the text is that of Xen 4.17's xl_vcpu.c.
    const TEXT: &str =
        "Name                                ID  VCPU   CPU State   Time(s) Affinity (Hard / Soft)
Domain-0                             0     0    2   r--    1234.5  all / all
npb                                  1     0   16   -b-       3.1  16-31 / 0-7,16-23
npb                                  1     1    -   --p       0.0  16-31 / 0-7,16-23
";

    #[test]
    fn hard_and_soft_affinity_of_each_vcpu() {
        let host: Topology = "2 sockets x 2 nodes x 4 modules x 2 cores".parse().unwrap();
        let vms = read(TEXT, "list", Some(&host)).unwrap().vms;
        assert_eq!(vms.len(), 2);
        assert!(vms[0].vcpus[0].affinity.is_none());
        let vcpu = &vms[1].vcpus[0];
        assert_eq!(vcpu.affinity.as_ref().unwrap().value.to_string(), "16-31");
        assert_eq!(vcpu.prefers.as_ref().unwrap().value.to_string(), "0-7,16-23");
        assert_eq!(vcpu.prefers.as_ref().unwrap().place.line, Some(3));
        assert!(!vms[1].vcpus[1].online);
    }

    #[test]
    fn old_lists_have_one_affinity() {
        let text = "a b  1  0  3  -b-  1.0  any cpu\na b  1  1  3  -b-  1.0  2-3\n";
        let vms = read(text, "list", None).unwrap().vms;
        assert_eq!((vms[0].name.as_str(), vms[0].vcpus.len()), ("a b", 2));
        assert_eq!(vms[0].vcpus[1].affinity.as_ref().unwrap().value.to_string(), "2-3");
    }

    #[test]
    fn damage_is_named_with_its_line() {
        let error = read("\nnonsense\n", "list", None).unwrap_err().to_string();
        assert_eq!(error, "line 2: \"nonsense\" is no line of xl vcpu-list");
        assert!(read("a 1 99999999 0 r-- 1.0 all / all", "list", None).is_err());
    }
}
