//! What kind of file a program is, and the answers a shell gives when it is none.

mod launch_support;

use std::ffi::{CString, OsStr};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use corefit_linux::launch::{FindError, Kind, Privilege, Program, Runtime};
use launch_support::skipped;
use tempfile::TempDir;

/// A directory with helpers to fill it.
struct Dir(TempDir);

impl Dir {
    fn new() -> Dir {
        Dir(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, bytes: &[u8], mode: u32) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    /// Compiles a C program; None (and a note) where this compiler cannot.
    fn compile(&self, name: &str, compiler: &str, flags: &[&str]) -> Option<PathBuf> {
        let source = self.file("main.c", b"int main(void) { return 0; }\n", 0o644);
        let path = self.path(name);
        let result = Command::new(compiler).args(flags).arg("-o").arg(&path).arg(&source).output();
        match result {
            Ok(output) if output.status.success() => Some(path),
            Ok(output) => {
                let why = String::from_utf8_lossy(&output.stderr).into_owned();
                skipped(name, why.lines().next().unwrap_or("the compiler fails"));
                None
            }
            Err(why) => {
                skipped(name, &format!("{compiler}: {why}"));
                None
            }
        }
    }
}

fn find(path: &Path) -> Program {
    Program::find(path.as_os_str()).unwrap_or_else(|why| panic!("{why}"))
}

fn reason(kind: &Kind) -> String {
    kind.preloadable().unwrap_err()
}

/// An ELF file of just its headers: class 1 (32-bit) or 2, data 1 (little) or 2, type,
/// machine, and a loader or none.
fn elf(class: u8, data: u8, file_type: u16, machine: u16, loader: Option<&str>) -> Vec<u8> {
    let put16 = |v: u16| {
        if data == 1 { v.to_le_bytes() } else { v.to_be_bytes() }
    };
    let put32 = |v: u32| {
        if data == 1 { v.to_le_bytes() } else { v.to_be_bytes() }
    };
    let word = |v: u64| -> Vec<u8> {
        match (class, data) {
            (1, _) => put32(u32::try_from(v).unwrap()).to_vec(),
            (_, 1) => v.to_le_bytes().to_vec(),
            _ => v.to_be_bytes().to_vec(),
        }
    };
    let (header_size, entry_size) = if class == 1 { (52u16, 32u16) } else { (64, 56) };
    let mut file = vec![0x7f, b'E', b'L', b'F', class, data, 1, 0];
    file.resize(16, 0);
    file.extend(put16(file_type));
    file.extend(put16(machine));
    file.extend(put32(1));
    file.extend(word(0)); // entry point
    file.extend(word(u64::from(header_size))); // program headers follow
    file.extend(word(0)); // no sections
    file.extend(put32(0));
    for value in [header_size, entry_size, u16::from(loader.is_some()), 0, 0, 0] {
        file.extend(put16(value));
    }
    if let Some(loader) = loader {
        let at = u64::from(header_size + entry_size);
        let size = loader.len() as u64 + 1;
        file.extend(put32(3)); // PT_INTERP
        if class == 2 {
            file.extend(put32(4));
        }
        for value in [at, at, at, size, size] {
            file.extend(word(value));
        }
        if class == 1 {
            file.extend(put32(4));
        }
        file.extend(word(1));
        file.extend(loader.as_bytes());
        file.push(0);
    }
    file
}

/// The machine number and glibc loader of the machine that runs this test.
fn native() -> (u16, PathBuf) {
    let bytes = fs::read("/bin/sh").unwrap();
    let machine = u16::from_le_bytes([bytes[18], bytes[19]]);
    let at = bytes.windows(9).position(|w| w == b"/ld-linux").unwrap();
    let start = bytes[..at].iter().rposition(|&b| b == 0).unwrap() + 1;
    let end = at + bytes[at..].iter().position(|&b| b == 0).unwrap();
    (machine, PathBuf::from(OsStr::from_bytes(&bytes[start..end])))
}

#[test]
fn an_ordinary_program_is_dynamic_and_preloadable() {
    for name in ["sh", "/bin/sh", "env"] {
        let program = Program::find(OsStr::new(name)).unwrap();
        assert_eq!(program.kind, Kind::Dynamic, "{name}");
        assert_eq!(program.preloadable(), Ok(()));
        assert_eq!(program.given, name);
    }
}

#[test]
fn the_glibc_loader_called_as_a_program_is_preloadable() {
    assert_eq!(find(&native().1).kind, Kind::Dynamic);
}

#[test]
fn static_programs_are_told_from_static_pie_and_dynamic_ones() {
    let dir = Dir::new();
    for (name, flags, kind) in [
        ("static", &["-static", "-no-pie"][..], Kind::Static),
        ("static-pie", &["-static-pie"], Kind::StaticPie),
        ("dynamic", &["-no-pie"], Kind::Dynamic),
        ("pie", &["-pie"], Kind::Dynamic),
    ] {
        let Some(path) = dir.compile(name, "gcc", flags) else {
            continue;
        };
        assert_eq!(find(&path).kind, kind, "{name}");
    }
    assert_eq!(
        reason(&Kind::Static),
        "statically linked: a preload library cannot enter it, so its threads are sized only \
         at launch"
    );
}

#[test]
fn a_program_stripped_of_its_section_table_is_still_known_by_its_segments() {
    let dir = Dir::new();
    let mut bytes = fs::read("/bin/sh").unwrap();
    bytes[0x28..0x30].fill(0); // e_shoff
    bytes[0x3c..0x40].fill(0); // e_shnum, e_shstrndx
    assert_eq!(find(&dir.file("sh", &bytes, 0o755)).kind, Kind::Dynamic);
}

#[test]
fn a_musl_program_is_told_by_its_loader() {
    let dir = Dir::new();
    if let Some(path) = dir.compile("musl", "musl-gcc", &[]) {
        assert_eq!(find(&path).kind, Kind::Musl);
    }
    // By headers alone, with a stand-in for the loader where musl is not installed.
    let loader = dir.file("ld-musl-any.so.1", b"", 0o755);
    let bytes = elf(2, 1, 3, native().0, loader.to_str());
    let program = find(&dir.file("headers", &bytes, 0o755));
    assert_eq!(program.kind, Kind::Musl);
    assert!(reason(&program.kind).contains("musl"));
}

#[test]
fn a_loader_that_is_neither_glibc_nor_musl_is_named() {
    let dir = Dir::new();
    let loader = dir.file("linker64", b"", 0o755);
    let bytes = elf(2, 1, 3, native().0, loader.to_str());
    let kind = find(&dir.file("bionic", &bytes, 0o755)).kind;
    assert!(reason(&kind).contains(loader.to_str().unwrap()));
    assert_eq!(kind, Kind::OtherLoader(loader));
}

#[test]
fn programs_of_other_word_sizes_and_architectures_are_told_apart() {
    let dir = Dir::new();
    let (machine, _) = native();
    let (small, foreign) = if machine == 62 { (3, 183) } else { (40, 62) };
    for (name, bytes, kind) in [
        ("32-bit", elf(1, 1, 2, small, None), Kind::Elf32),
        ("x32", elf(1, 1, 2, machine, None), Kind::Elf32),
        ("foreign", elf(2, 1, 2, foreign, None), Kind::OtherArch(foreign)),
        ("foreign 32-bit", elf(1, 1, 2, 8, None), Kind::OtherArch(8)),
        ("big-endian", elf(2, 2, 2, 22, None), Kind::OtherArch(22)),
        ("native static", elf(2, 1, 2, machine, None), Kind::Static),
    ] {
        let kind_found = find(&dir.file(name, &bytes, 0o755)).kind;
        assert_eq!(kind_found, kind, "{name}");
        assert!(kind_found.preloadable().is_err(), "{name}");
    }
}

#[test]
fn a_damaged_elf_file_is_named_as_such_at_every_length() {
    let dir = Dir::new();
    let whole = fs::read("/bin/sh").unwrap();
    for length in [4, 15, 16, 20, 63, 64, 100, 1000] {
        let kind = find(&dir.file("cut", &whole[..length], 0o755)).kind;
        assert!(matches!(kind, Kind::Malformed(_)), "{length} bytes: {kind:?}");
    }
}

#[test]
fn a_missing_loader_is_not_found_and_named() {
    let dir = Dir::new();
    let bytes = elf(2, 1, 3, native().0, Some("/no/such/ld-linux.so.9"));
    let path = dir.file("program", &bytes, 0o755);
    let why = Program::find(path.as_os_str()).unwrap_err();
    assert_eq!(why.exit_code(), 127);
    let text = format!("{}: its loader /no/such/ld-linux.so.9 does not exist", path.display());
    assert_eq!(why.to_string(), text);
}

fn is_root() -> bool {
    // SAFETY: getuid has no preconditions.
    unsafe { libc::getuid() == 0 }
}

#[test]
fn set_user_id_matters_only_when_it_changes_the_user() {
    let dir = Dir::new();
    let path = dir.file("sh", &fs::read("/bin/sh").unwrap(), 0o4755);
    // Owned by us: nothing is gained, the loader preloads as usual.
    assert_eq!(find(&path).kind, Kind::Dynamic);
    if !is_root() {
        return skipped("set-user-ID of another user", "needs root to give a file away");
    }
    for (mode, uid, gid, kind) in [
        (0o4755, Some(65534), None, Kind::Privileged(Privilege::SetUid)),
        (0o2755, None, Some(65534), Kind::Privileged(Privilege::SetGid)),
        // Without the group's x bit the set-group-ID bit means something else.
        (0o2745, None, Some(65534), Kind::Dynamic),
        (0o755, Some(65534), Some(65534), Kind::Dynamic),
    ] {
        chown(&path, uid.or(Some(0)), gid.or(Some(0))).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(find(&path).kind, kind, "{mode:o}");
    }
}

#[test]
fn the_loader_agrees_about_which_set_user_id_programs_can_be_preloaded() {
    if !is_root() {
        return skipped("secure execution", "needs root to give a file away");
    }
    let dir = Dir::new();
    fs::set_permissions(dir.0.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let c = b"#include <unistd.h>\n__attribute__((constructor)) void f(void) { write(1, \"in\", 2); }\n";
    let source = dir.file("in.c", c, 0o644);
    let library = dir.path("in.so");
    let mut gcc = Command::new("gcc");
    let built = gcc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(source);
    if !built.status().is_ok_and(|s| s.success()) {
        return skipped("secure execution", "no gcc");
    }
    let program = dir.file("true", &fs::read("/bin/true").unwrap(), 0o4755);
    for uid in [0, 65534] {
        chown(&program, Some(uid), Some(0)).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
        let output = Command::new(&program).env("LD_PRELOAD", &library).output().unwrap();
        assert_eq!(output.stdout == b"in", find(&program).preloadable().is_ok(), "owner {uid}");
    }
}

#[test]
fn file_capabilities_do_not_count_for_root() {
    let dir = Dir::new();
    let path = dir.file("sh", &fs::read("/bin/sh").unwrap(), 0o755);
    // Version 2, effective, permitted: CAP_NET_RAW.
    let value: [u8; 20] = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let c = CString::new(path.as_os_str().as_bytes()).unwrap();
    let name = c"security.capability";
    // SAFETY: both strings are NUL-terminated, the value has the length given.
    let set = unsafe { libc::setxattr(c.as_ptr(), name.as_ptr(), value.as_ptr().cast(), 20, 0) };
    if set != 0 {
        return skipped("file capabilities", &std::io::Error::last_os_error().to_string());
    }
    assert_eq!(find(&path).kind, Kind::Dynamic);
    // As another user: this test again, as a child, with the file named for it.
    fs::set_permissions(dir.0.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let seen = as_nobody(|| Program::find(path.as_os_str()).map(|p| p.kind));
    assert!(matches!(seen, Ok(Kind::Privileged(Privilege::Capabilities))), "{seen:?}");
}

/// Runs `look` with the real user ID of nobody, in this thread only.
fn as_nobody<T>(look: impl FnOnce() -> T) -> T {
    let id = 65534u32;
    // SAFETY: the raw call changes the IDs of this thread alone (glibc's would change all).
    // The saved ID stays 0, so that it can be undone.
    let set = |uid: u32| unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, 0) };
    assert_eq!(set(id), 0);
    let result = look();
    assert_eq!(set(0), 0);
    result
}

#[test]
fn an_executable_that_cannot_be_read_is_named_as_such() {
    if !is_root() {
        return skipped("unreadable program", "the owner is judged by the same bits");
    }
    let dir = Dir::new();
    fs::set_permissions(dir.0.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = dir.file("sh", &fs::read("/bin/sh").unwrap(), 0o711);
    let kind = as_nobody(|| find(&path).kind);
    assert_eq!(kind, Kind::Unreadable);
}

#[test]
fn scripts_are_followed_to_the_program_that_runs_them() {
    let dir = Dir::new();
    let direct = find(&dir.file("direct", b"#!/bin/sh -e\necho\n", 0o755));
    let Kind::Script(interpreter) = &direct.kind else { panic!("{:?}", direct.kind) };
    assert_eq!(interpreter.path, Path::new("/bin/sh"));
    assert_eq!(direct.preloadable(), Ok(()));

    let nested = format!("#!{}\n", dir.path("direct").display());
    let nested = find(&dir.file("nested", nested.as_bytes(), 0o755));
    assert!(matches!(&nested.kind, Kind::Script(p) if matches!(&p.kind, Kind::Script(_))));

    for line in ["#!/usr/bin/env sh", "#!/usr/bin/env -S A=1 sh -e"] {
        let program = find(&dir.file("env", format!("{line}\n").as_bytes(), 0o755));
        let Kind::Script(interpreter) = &program.kind else { panic!("{line}") };
        assert_eq!(interpreter.path.file_name(), Some(OsStr::new("sh")), "{line}");
    }
}

#[test]
fn a_script_is_as_preloadable_as_its_interpreter() {
    let dir = Dir::new();
    let interpreter = dir.file("static", &elf(2, 1, 2, native().0, None), 0o755);
    let script = format!("#!{}\n", interpreter.display());
    let script = find(&dir.file("script", script.as_bytes(), 0o755));
    let text = format!("a script run by {}, which is statically linked", interpreter.display());
    assert!(reason(&script.kind).starts_with(&text), "{}", reason(&script.kind));
}

#[test]
fn endless_interpreters_end_in_an_error() {
    let dir = Dir::new();
    let path = dir.path("loop");
    dir.file("loop", format!("#!{}\n", path.display()).as_bytes(), 0o755);
    let why = Program::find(path.as_os_str()).unwrap_err();
    assert!(matches!(why, FindError::Malformed { .. }), "{why}");
    assert_eq!(why.exit_code(), 126);
}

#[test]
fn text_without_a_hash_bang_is_for_the_shell_and_binary_is_not() {
    let dir = Dir::new();
    assert_eq!(find(&dir.file("text", b"echo hi\n", 0o755)).kind, Kind::ShellText);
    assert_eq!(find(&dir.file("empty", b"", 0o755)).kind, Kind::ShellText);
    assert_eq!(find(&dir.file("pe", b"MZ\x90\0\x03", 0o755)).kind, Kind::Unknown);
}

#[test]
fn what_cannot_be_executed_gets_one_line_and_the_code_of_a_shell() {
    let dir = Dir::new();
    dir.file("noexec", b"echo", 0o644);
    fs::create_dir(dir.path("directory")).unwrap();
    dir.file("gone-interpreter", b"#!/no/such/interpreter\n", 0o755);
    dir.file("bad-interpreter", b"#!/etc\n", 0o755);
    for (name, code, text) in [
        ("missing", 127, "no such file"),
        ("noexec", 126, "permission denied: it is not executable"),
        ("directory", 126, "is a directory"),
        ("noexec/below", 126, "cannot be executed: Not a directory (os error 20)"),
        ("gone-interpreter", 127, "its interpreter /no/such/interpreter does not exist"),
        ("bad-interpreter", 126, "permission denied: its interpreter /etc: is a directory"),
    ] {
        let path = dir.path(name);
        let why = Program::find(path.as_os_str()).unwrap_err();
        assert_eq!(why.to_string(), format!("{}: {text}", path.display()));
        assert_eq!(why.exit_code(), code, "{name}");
        // A real shell gives the same code.
        let bash = Command::new("bash").arg("-c").arg(path.display().to_string()).output();
        match bash {
            Ok(output) => assert_eq!(output.status.code(), Some(code.into()), "bash, {name}"),
            Err(why) => skipped("comparison with bash", &why.to_string()),
        }
    }
}

#[test]
fn a_noexec_mount_is_named() {
    let Ok(mounts) = fs::read_to_string("/proc/self/mounts") else {
        return skipped("noexec mount", "no /proc/self/mounts");
    };
    for mount in mounts.lines() {
        let fields: Vec<&str> = mount.split(' ').collect();
        if !fields[3].split(',').any(|option| option == "noexec") {
            continue;
        }
        let Ok(dir) = tempfile::tempdir_in(fields[1]).map(Dir) else {
            continue;
        };
        let path = dir.file("sh", b"#!/bin/sh\n", 0o755);
        let why = Program::find(path.as_os_str()).unwrap_err();
        assert!(why.to_string().ends_with("its file system is mounted noexec"), "{why}");
        assert_eq!(why.exit_code(), 126);
        return;
    }
    skipped("noexec mount", "no writable one here");
}

#[test]
fn names_are_searched_in_path_order_past_what_cannot_be_executed() {
    let dir = Dir::new();
    dir.file("a/tool", b"not executable", 0o644);
    fs::create_dir_all(dir.path("b/tool")).unwrap();
    let good = dir.file("c/tool", b"#!/bin/sh\n", 0o755);
    dir.file("d/tool", b"#!/bin/sh\n", 0o755);
    let path = |parts: &[&str]| {
        parts.iter().map(|p| dir.path(p).display().to_string()).collect::<Vec<_>>().join(":")
    };
    let find =
        |name: &str, parts: &[&str]| Program::find_in(OsStr::new(name), Some(OsStr::new(&path(parts))));
    assert_eq!(find("tool", &["none", "a", "b", "c", "d"]).unwrap().path, good);
    let denied = find("tool", &["a", "b"]).unwrap_err();
    assert!(denied.to_string().ends_with("a/tool: permission denied: it is not executable"));
    assert_eq!(denied.exit_code(), 126);
    let missing = find("tool", &["b", "none"]).unwrap_err();
    assert_eq!(missing.to_string(), "tool: command not found in PATH");
    assert_eq!(missing.exit_code(), 127);
    let none = find("", &["c"]).unwrap_err();
    assert!(none.exit_code() == 127 && matches!(none, FindError::NoName), "{none}");
}

#[test]
fn an_unset_path_means_bin_and_an_empty_part_the_current_directory() {
    let sh = Program::find_in(OsStr::new("sh"), None).unwrap();
    assert_eq!(sh.path, Path::new("/bin/sh"));
    let here = Program::find_in(OsStr::new("Cargo.toml"), Some(OsStr::new("/none:")));
    let here = here.unwrap_err().to_string(); // tests run in the crate's directory
    assert_eq!(here, "Cargo.toml: permission denied: it is not executable");
}

#[test]
fn runtimes_are_seen_by_name_through_links_and_interpreters() {
    let dir = Dir::new();
    let text = b"#!/bin/sh\n";
    assert!(find(&dir.file("julia", text, 0o755)).runtimes.contains(&Runtime::Julia));
    dir.file("home/bin/java", text, 0o755);
    symlink(dir.path("home/bin/java"), dir.path("runner")).unwrap();
    assert!(find(&dir.path("runner")).runtimes.contains(&Runtime::Java));
    dir.file("node", text, 0o755);
    let script = format!("#!{}\n", dir.path("node").display());
    assert!(find(&dir.file("npm", script.as_bytes(), 0o755)).runtimes.contains(&Runtime::Node));
    assert!(find(&dir.file("other", text, 0o755)).runtimes.is_empty());
}

#[test]
fn an_openmp_program_is_seen_by_its_library() {
    let dir = Dir::new();
    let flags = ["-fopenmp", "-Wl,--no-as-needed"];
    let Some(path) = dir.compile("openmp", "gcc", &flags) else {
        return;
    };
    assert!(find(&path).runtimes.contains(&Runtime::GnuOpenMp));
}

#[test]
fn a_go_program_is_seen_by_its_sections_and_is_static() {
    let go = Path::new("/usr/local/go/bin/gofmt");
    if !go.exists() {
        return skipped("a Go program", "no gofmt at /usr/local/go/bin");
    }
    let program = find(go);
    assert!(program.runtimes.contains(&Runtime::Go), "{:?}", program.runtimes);
    assert_eq!(program.kind, Kind::Static);
}
