//! Recordings without names: VMs, groups, ids, paths.

use std::collections::BTreeMap;

use corefit_core::machine::{Role, Snapshot};

/// The names that were replaced, so that each is replaced by the same one in every snapshot.
#[derive(Default)]
pub(crate) struct Names {
    known: BTreeMap<String, String>,
    count: BTreeMap<&'static str, usize>,
}

impl Names {
    /// Replaces every name: VMs are `vm1`, groups `group1`, what competes with them `other1`, ids `id1`,
    /// paths of files `path1`. In texts, known names, paths and whatever stands in quotes are replaced.
    pub(crate) fn replace(&mut self, snapshot: &mut Snapshot) {
        for group in &mut snapshot.groups {
            self.name("group", &mut group.name);
            group.parent.iter_mut().for_each(|parent| self.name("group", parent));
            group.quota.iter_mut().for_each(|quota| self.name("path", &mut quota.source));
        }
        for vm in &mut snapshot.vms {
            let kind = if vm.role == Role::Vm { "vm" } else { "other" };
            self.name(kind, &mut vm.name);
            self.name("id", &mut vm.id.0);
            vm.parent.iter_mut().for_each(|parent| self.name("group", parent));
            vm.part_of.iter_mut().for_each(|owner| self.name("vm", owner));
            vm.kept = None;
            // Its owner's own words.
            vm.unclear.iter_mut().for_each(|why| *why = "what its owner says of it makes no sense".into());
            for fixed in &mut vm.fixed {
                fixed.reason = self.text(&fixed.reason);
            }
            let quotas = vm.vcpus.iter_mut().map(|vcpu| &mut vcpu.quota);
            let quotas = quotas.chain(vm.helpers.iter_mut().map(|helper| &mut helper.quota));
            for quota in quotas.chain([&mut vm.quota]).flatten() {
                self.name("path", &mut quota.source);
            }
        }
        for unread in &mut snapshot.unread {
            self.name("path", &mut unread.path);
            unread.why = self.text(&unread.why);
        }
        for note in snapshot.notes.iter_mut().chain(&mut snapshot.uncounted) {
            *note = self.text(note);
        }
    }

    fn name(&mut self, kind: &'static str, name: &mut String) {
        *name = self.alias(kind, name);
    }

    fn alias(&mut self, kind: &'static str, name: &str) -> String {
        // A group may be a VM in one snapshot and a slice in the next: the same name in both.
        if let Some(alias) = self.known.get(name) {
            return alias.clone();
        }
        let count = self.count.entry(kind).or_insert(0);
        *count += 1;
        let alias = format!("{kind}{count}");
        self.known.insert(name.into(), alias.clone());
        alias
    }

    fn text(&mut self, text: &str) -> String {
        let mut names: Vec<(String, String)> = self
            .known
            .iter()
            .filter(|(name, _)| !name.is_empty())
            .map(|(n, a)| (n.clone(), a.clone()))
            .collect();
        names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        let mut out = String::new();
        let mut rest = text;
        let mut inside = false; // of a word
        while let Some(first) = rest.chars().next() {
            let known = names.iter().find(|(name, _)| {
                let end = rest.strip_prefix(name.as_str());
                !inside && end.is_some_and(|end| !end.starts_with(is_name))
            });
            if let Some((name, alias)) = known {
                out.push_str(alias);
                rest = &rest[name.len()..];
                inside = true;
            } else if first == '"' {
                out.push_str("\"…\"");
                rest = rest[1..].split_once('"').map_or("", |(_, rest)| rest);
                inside = false;
            } else if first == '/' && !inside {
                let end =
                    rest.find(|c: char| c.is_whitespace() || ",;:\"'()".contains(c)).unwrap_or(rest.len());
                out.push_str(&self.alias("path", &rest[..end]));
                rest = &rest[end..];
            } else {
                inside = is_name(first);
                out.push(first);
                rest = &rest[first.len_utf8()..];
            }
        }
        out
    }
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || "_-.@\\".contains(c)
}
