//! What kind of file a program is, as the kernel and the dynamic loader will see it.
//!
//! A preload library enters a process through glibc's dynamic loader. It cannot enter a
//! static program (no loader), a privileged one (the loader drops `LD_PRELOAD`, see
//! ld.so(8), secure-execution mode), one of another word size or architecture, nor one
//! of another C library.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use elf::ElfStream;
use elf::abi;
use elf::endian::AnyEndian;
use elf::file::Class;

use super::program::Program;
use super::runtime::Runtime;

/// Bytes of a file that the kernel looks at to tell its format (`BINPRM_BUF_SIZE`).
pub(super) const HEAD_BYTES: usize = 256;

/// What a program file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A dynamic 64-bit program of this machine, on glibc.
    Dynamic,
    /// Statically linked, at a fixed address.
    Static,
    /// Statically linked, position-independent.
    StaticPie,
    /// It gains rights when it starts, so the loader ignores `LD_PRELOAD`.
    Privileged(Privilege),
    /// Dynamic, on the musl C library.
    Musl,
    /// Dynamic, with gcc's AddressSanitizer as a library: it insists on being loaded first.
    AddressSanitizer,
    /// Dynamic, with a loader that is neither glibc's nor musl's.
    OtherLoader(PathBuf),
    /// A 32-bit program.
    Elf32,
    /// A program for another architecture (ELF machine number); only an emulator runs it.
    OtherArch(u16),
    /// A `#!` script, with the program that interprets it in the end
    /// (for `#!/usr/bin/env X` that is X).
    Script(Box<Program>),
    /// Text without `#!`: `/bin/sh` runs it, as execvp(3) does.
    ShellText,
    /// No format this machine knows by itself (binfmt_misc may still run it).
    Unknown,
    /// An ELF file whose headers cannot be read; the reason.
    Malformed(String),
    /// Executable but not readable, so nothing more is known.
    Unreadable,
}

/// How a program gains rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    /// The set-user-ID bit, and the owner is another user than ours.
    SetUid,
    /// The set-group-ID bit, and the group is another than ours.
    SetGid,
    /// File capabilities (the `security.capability` attribute), and we are not root.
    Capabilities,
}

impl Kind {
    /// Whether the preload library can enter such a program; if not, why, as a sentence
    /// for the user.
    ///
    /// # Errors
    /// The reason.
    pub fn preloadable(&self) -> Result<(), String> {
        let why = match self {
            Kind::Dynamic => return Ok(()),
            Kind::Script(interpreter) => {
                return interpreter.kind.preloadable().map_err(|why| {
                    format!("a script run by {}, which is {why}", interpreter.path.display())
                });
            }
            // /bin/sh runs it, and /bin/sh of a glibc system is an ordinary program.
            Kind::ShellText => return Ok(()),
            Kind::Static | Kind::StaticPie => "statically linked: a preload library cannot enter it",
            Kind::Privileged(Privilege::SetUid) => {
                "set-user-ID: the loader keeps preload libraries out of privileged programs"
            }
            Kind::Privileged(Privilege::SetGid) => {
                "set-group-ID: the loader keeps preload libraries out of privileged programs"
            }
            Kind::Privileged(Privilege::Capabilities) => {
                "given file capabilities: the loader keeps preload libraries out of privileged \
                 programs"
            }
            Kind::AddressSanitizer => {
                "built with AddressSanitizer, which refuses to run behind a preload library"
            }
            Kind::Musl => "linked with musl: the preload library needs glibc",
            Kind::OtherLoader(loader) => {
                return Err(format!(
                    "loaded by {}: the preload library needs glibc{ONLY_AT_LAUNCH}",
                    loader.display()
                ));
            }
            Kind::Elf32 => "a 32-bit program: the preload library is 64-bit",
            Kind::OtherArch(machine) => {
                return Err(format!(
                    "built for another architecture (ELF machine {machine}){ONLY_AT_LAUNCH}"
                ));
            }
            Kind::Unknown => "in no format known here",
            Kind::Malformed(why) => {
                return Err(format!("an ELF file with unreadable headers ({why}){ONLY_AT_LAUNCH}"));
            }
            Kind::Unreadable => "executable but not readable: its format cannot be told",
        };
        Err(format!("{why}{ONLY_AT_LAUNCH}"))
    }
}

const ONLY_AT_LAUNCH: &str = ", so its threads are sized only at launch";

/// A file's format, before anything is resolved through it.
#[derive(Debug)]
pub(super) enum Format {
    /// ELF, with its loader where it has one.
    Elf { kind: Kind, loader: Option<PathBuf>, runtimes: BTreeSet<Runtime> },
    /// `#!`: the words of the interpreter line.
    Script(ScriptLine),
    /// Anything else.
    Other(Kind),
}

/// The first line of a script: its interpreter and the one argument that may follow.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ScriptLine {
    pub(super) interpreter: PathBuf,
    pub(super) argument: Option<Vec<u8>>,
}

/// Tells the format of an open file.
pub(super) fn of_file(file: &mut File, path: &Path) -> std::io::Result<Format> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    (&mut *file).take(HEAD_BYTES as u64).read_to_end(&mut head)?;
    if head.starts_with(b"\x7fELF") {
        file.rewind()?;
        return Ok(of_elf(file, path));
    }
    Ok(if head.starts_with(b"#!") {
        script_line(&head).map_or(Format::Other(Kind::Unknown), Format::Script)
    } else if looks_like_text(&head) {
        Format::Other(Kind::ShellText)
    } else {
        Format::Other(Kind::Unknown)
    })
}

/// Reads the `#!` line as the kernel's fs/binfmt_script.c does: blanks around, the
/// interpreter up to the next blank, and the whole rest as one argument.
fn script_line(head: &[u8]) -> Option<ScriptLine> {
    use std::os::unix::ffi::OsStrExt;
    let end = head.iter().position(|&b| b == b'\n' || b == 0);
    let line = &head[2..end.unwrap_or(head.len())];
    let is_blank = |b: &u8| matches!(*b, b' ' | b'\t');
    let line = line.trim_ascii_start();
    let cut = line.iter().position(is_blank);
    if line.is_empty() || (end.is_none() && head.len() == HEAD_BYTES && cut.is_none()) {
        return None; // no interpreter, or one that does not fit
    }
    let (interpreter, rest) = line.split_at(cut.unwrap_or(line.len()));
    let rest = rest.trim_ascii();
    Some(ScriptLine {
        interpreter: PathBuf::from(std::ffi::OsStr::from_bytes(interpreter)),
        argument: (!rest.is_empty()).then(|| rest.to_vec()),
    })
}

/// Whether a shell would take this file for a script: no NUL byte in its first line
/// (bash's rule for "cannot execute binary file").
fn looks_like_text(head: &[u8]) -> bool {
    !head.iter().take_while(|&&b| b != b'\n').any(|&b| b == 0)
}

/// The architecture of this build, as an ELF machine number.
const NATIVE_MACHINE: u16 = if cfg!(target_arch = "x86_64") {
    abi::EM_X86_64
} else if cfg!(target_arch = "aarch64") {
    abi::EM_AARCH64
} else if cfg!(target_arch = "riscv64") {
    abi::EM_RISCV
} else if cfg!(target_arch = "powerpc64") {
    abi::EM_PPC64
} else if cfg!(target_arch = "s390x") {
    abi::EM_S390
} else {
    abi::EM_NONE
};

/// The 32-bit architecture that this machine's kernel may run as well.
const NATIVE_MACHINE_32: u16 = if cfg!(target_arch = "x86_64") {
    abi::EM_386
} else if cfg!(target_arch = "aarch64") {
    abi::EM_ARM
} else {
    NATIVE_MACHINE
};

fn of_elf(file: &mut File, path: &Path) -> Format {
    let plain = |kind| Format::Elf { kind, loader: None, runtimes: BTreeSet::new() };
    let mut elf = match ElfStream::<AnyEndian, _>::open_stream(file) {
        Ok(elf) => elf,
        Err(why) => return plain(Kind::Malformed(why.to_string())),
    };
    let machine = elf.ehdr.e_machine;
    let little = matches!(elf.ehdr.endianness, AnyEndian::Little);
    if little != cfg!(target_endian = "little") {
        return plain(Kind::OtherArch(machine));
    }
    match elf.ehdr.class {
        // x32 programs are ELF32 with the 64-bit machine number.
        Class::ELF32 if machine == NATIVE_MACHINE_32 || machine == NATIVE_MACHINE => {
            return plain(Kind::Elf32);
        }
        Class::ELF64 if machine == NATIVE_MACHINE => {}
        _ => return plain(Kind::OtherArch(machine)),
    }
    let needed = needed(&mut elf);
    let runtimes = runtimes(&mut elf, &needed);
    let loader = match loader(&mut elf) {
        Ok(loader) => loader,
        Err(why) => return plain(Kind::Malformed(why)),
    };
    let kind = match &loader {
        // The loader may be called as a program itself: `ld-linux-x86-64.so.2 ./program`.
        None if is_glibc_loader(path) => Kind::Dynamic,
        None if elf.ehdr.e_type == abi::ET_DYN => Kind::StaticPie,
        None => Kind::Static,
        Some(loader) if is_glibc_loader(loader) => {
            let asan = needed.iter().any(|name| name.starts_with("libasan.so"));
            if asan { Kind::AddressSanitizer } else { Kind::Dynamic }
        }
        Some(loader) if file_name_starts(loader, "ld-musl") => Kind::Musl,
        Some(loader) => Kind::OtherLoader(loader.clone()),
    };
    Format::Elf { kind, loader, runtimes }
}

/// glibc's loaders are called ld-linux-x86-64.so.2, ld-linux-aarch64.so.1, ld64.so.2.
fn is_glibc_loader(path: &Path) -> bool {
    file_name_starts(path, "ld-linux") || file_name_starts(path, "ld64.so")
}

fn file_name_starts(path: &Path, start: &str) -> bool {
    path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(start.as_bytes()))
}

/// The path in PT_INTERP: the loader that the kernel starts in place of the program.
fn loader(elf: &mut ElfStream<AnyEndian, &mut File>) -> Result<Option<PathBuf>, String> {
    use std::os::unix::ffi::OsStrExt;
    let Some(segment) = elf.segments().iter().find(|s| s.p_type == abi::PT_INTERP).copied() else {
        return Ok(None);
    };
    let bytes = elf.segment_data(&segment).map_err(|why| why.to_string())?;
    let path = bytes.split(|&b| b == 0).next().unwrap_or_default();
    Ok(Some(PathBuf::from(std::ffi::OsStr::from_bytes(path))))
}

/// The runtimes that a program names in its sections and its list of libraries.
/// Whatever cannot be read names none: this is a hint.
fn runtimes(elf: &mut ElfStream<AnyEndian, &mut File>, needed: &[String]) -> BTreeSet<Runtime> {
    let mut found = BTreeSet::new();
    for section in [".go.buildinfo", ".note.go.buildid"] {
        if matches!(elf.section_header_by_name(section), Ok(Some(_))) {
            found.insert(Runtime::Go);
        }
    }
    found.extend(needed.iter().filter_map(|name| Runtime::of_library(name)));
    found
}

/// The names in the list of libraries, as far as they can be read.
fn needed(elf: &mut ElfStream<AnyEndian, &mut File>) -> Vec<String> {
    let Ok(Some(dynamic)) = elf.dynamic() else {
        return vec![];
    };
    let needed: Vec<u64> = dynamic.iter().filter(|d| d.d_tag == abi::DT_NEEDED).map(|d| d.d_val()).collect();
    let Ok(Some(names)) = elf.section_header_by_name(".dynstr").map(|s| s.copied()) else {
        return vec![];
    };
    let Ok(names) = elf.section_data_as_strtab(&names) else {
        return vec![];
    };
    let name = |at: u64| names.get(usize::try_from(at).ok()?).ok().map(str::to_owned);
    needed.into_iter().filter_map(name).collect()
}

/// The rights that executing this file would add to ours, by the rules of the kernel's
/// `bprm_fill_uid` and `get_file_caps`: none on a nosuid mount or under no_new_privs,
/// none when owner or group are ours already, and none from capabilities for root.
pub(super) fn privilege(file: &File) -> Option<Privilege> {
    let meta = file.metadata().ok()?;
    let bits = meta.mode();
    let mut attribute = [0u8; 64];
    let capable = rustix::fs::fgetxattr(file, "security.capability", &mut attribute).is_ok();
    if bits & 0o6000 == 0 && !capable {
        return None;
    }
    let nosuid =
        rustix::fs::fstatvfs(file).is_ok_and(|fs| fs.f_flag.contains(rustix::fs::StatVfsMountFlags::NOSUID));
    if nosuid || rustix::thread::no_new_privs().unwrap_or(false) {
        return None;
    }
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    if bits & 0o4000 != 0 && meta.uid() != uid.as_raw() {
        Some(Privilege::SetUid)
    } else if bits & 0o2010 == 0o2010 && meta.gid() != gid.as_raw() {
        Some(Privilege::SetGid)
    } else {
        (capable && !uid.is_root()).then_some(Privilege::Capabilities)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Option<(String, Option<String>)> {
        let line = script_line(text.as_bytes())?;
        let argument = line.argument.map(|a| String::from_utf8(a).unwrap());
        Some((line.interpreter.display().to_string(), argument))
    }

    #[test]
    fn the_script_line_is_read_as_the_kernel_reads_it() {
        let some = |i: &str, a: Option<&str>| Some((i.to_string(), a.map(str::to_string)));
        assert_eq!(line("#!/bin/sh\necho"), some("/bin/sh", None));
        assert_eq!(line("#! \t/bin/sh  -e -u \t\n"), some("/bin/sh", Some("-e -u")));
        assert_eq!(line("#!/bin/sh"), some("/bin/sh", None));
        assert_eq!(line("#!/bin/sh\0 x"), some("/bin/sh", None));
        assert_eq!(line("#!\n/bin/sh"), None);
        assert_eq!(line(&format!("#!/{}", "x".repeat(HEAD_BYTES - 3))), None);
    }

    #[test]
    fn a_nul_byte_in_the_first_line_makes_a_file_binary() {
        assert!(looks_like_text(b""));
        assert!(looks_like_text(b"echo hi\n\0\0"));
        assert!(!looks_like_text(b"MZ\0\0\n"));
    }
}
