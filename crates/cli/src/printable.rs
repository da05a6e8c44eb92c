//! Names that come from anybody, for a terminal or a page: what would steer it is written out.

use corefit_core::machine::Snapshot;
use corefit_linux::bytes::byte;

/// A text without control characters (a newline is `\n`) and without characters that turn the direction of
/// writing around; a byte of a name that is no UTF-8 is as in `\xff`.
pub(crate) fn text(text: &str) -> String {
    text.chars().fold(String::new(), |mut out, c| {
        match byte(c) {
            Some(byte) => out += &format!("\\x{byte:02x}"),
            None if steers(c) => out.extend(c.escape_default()),
            None => out.push(c),
        }
        out
    })
}

/// A text as the content of an element of SVG or HTML.
pub(crate) fn markup(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn steers(c: char) -> bool {
    c.is_control()
        || byte(c).is_some()
        || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// The same for all names, paths and remarks of a snapshot.
pub(crate) fn names(mut snapshot: Snapshot) -> Snapshot {
    let Snapshot { groups, vms, unread, notes, .. } = &mut snapshot;
    let groups = groups.iter_mut().flat_map(|group| {
        let source = group.quota.iter_mut().map(|quota| &mut quota.source);
        [&mut group.name].into_iter().chain(&mut group.parent).chain(source)
    });
    let vms = vms.iter_mut().flat_map(|vm| {
        let quotas = vm.vcpus.iter_mut().map(|vcpu| &mut vcpu.quota);
        let quotas = quotas.chain(vm.helpers.iter_mut().map(|helper| &mut helper.quota));
        let sources = quotas.chain([&mut vm.quota]).flatten().map(|quota| &mut quota.source);
        let reasons = vm.fixed.iter_mut().map(|fixed| &mut fixed.reason).chain(&mut vm.unclear);
        [&mut vm.name].into_iter().chain(&mut vm.parent).chain(&mut vm.part_of).chain(sources).chain(reasons)
    });
    let unread = unread.iter_mut().flat_map(|unread| [&mut unread.path, &mut unread.why]);
    for name in groups.chain(vms).chain(unread).chain(notes) {
        if name.contains(steers) {
            *name = text(name);
        }
    }
    snapshot
}

#[cfg(test)]
mod tests {
    use corefit_core::machine::{Fixed, LeverKind, VmState};

    use super::*;

    #[test]
    fn names_cannot_steer_a_terminal_nor_break_a_line() {
        let vm = |name: &str| VmState { name: name.into(), parent: Some(name.into()), ..VmState::default() };
        let mut vms = vec![vm("plain é 表"), vm("\x1b[31mred\nvm9"), vm("\u{202e}evil"), vm("b\u{10feff}x")];
        vms[0].unclear = Some("\x1b[2J".into());
        vms[0].fixed = vec![Fixed { lever: LeverKind::Online, reason: "a\nb".into() }];
        let seen = names(Snapshot { vms, notes: vec!["a\tb".into()], ..Snapshot::default() });
        let names: Vec<&str> = seen.vms.iter().map(|vm| vm.name.as_str()).collect();
        assert_eq!(names, ["plain é 表", "\\u{1b}[31mred\\nvm9", "\\u{202e}evil", "b\\xffx"]);
        assert!(seen.vms.iter().all(|vm| vm.parent.as_ref() == Some(&vm.name)));
        assert_eq!(seen.notes, ["a\\tb"]);
        let why = (seen.vms[0].unclear.as_deref(), seen.vms[0].fixed[0].reason.as_str());
        assert_eq!(why, (Some("\\u{1b}[2J"), "a\\nb"));
    }
}
