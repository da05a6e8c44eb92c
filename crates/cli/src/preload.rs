//! Where the preload libraries are, and how a program is told to load them.
//!
//! The program's children inherit `LD_PRELOAD`, and a child on another C library must not fail by
//! it. musl's loader ends a program whose preload library it can open but not link. So the path
//! is written as `/usr/$LIB/../../…/DIR/libcorefit_omp.so`: glibc's loader puts its own library
//! directory for `$LIB` (`lib/x86_64-linux-gnu`, `lib64` or `lib`, see ld.so(8)), whose parents lead
//! to the root; musl's takes the text as it is, finds no such file, and silently goes on.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A preload library, by its file name.
pub(crate) struct Library {
    pub(crate) name: &'static str,
    /// What is missing without it.
    without: &'static str,
}

/// Resizes teams.
pub(crate) const OPENMP: Library =
    Library { name: "libcorefit_omp.so", without: "teams cannot be resized while the program runs" };
/// Puts corefit's lock in the place of the C library's.
pub(crate) const LOCK: Library =
    Library { name: "libcorefit_lock.so", without: "the program keeps the C library's locks" };
/// The names of all of them.
pub(crate) const OURS: &[&str] = &[OPENMP.name, LOCK.name];

/// Finds a library beside the executable, or in `../lib/corefit` as packages install it.
/// The error is a sentence for the user.
pub(crate) fn find(library: &Library) -> Result<PathBuf, String> {
    let Library { name, without } = library;
    let exe = std::env::current_exe().map_err(|e| format!("cannot find my own executable: {e}"))?;
    let bin = exe.parent().unwrap_or(Path::new("/"));
    let places = [bin.join(name), bin.join("../lib/corefit").join(name)];
    let found = places.iter().find(|p| p.is_file()).ok_or_else(|| {
        format!(
            "{name} is neither in {} nor in {}: {without} (reinstall corefit, or build with `make`)",
            bin.display(),
            bin.join("../lib/corefit").display()
        )
    })?;
    if found.as_os_str().as_bytes().iter().any(|b| b" \t\n:$".contains(b)) {
        return Err(format!(
            "the path {} contains a space, a colon or a dollar sign, which LD_PRELOAD cannot express: {without} (install corefit elsewhere)",
            found.display()
        ));
    }
    Ok(found.clone())
}

/// The value of `LD_PRELOAD` with our libraries in front of the user's.
pub(crate) fn variable(libraries: &[PathBuf], users: Option<OsString>) -> OsString {
    let ours = libraries.iter().map(|l| for_glibc_only(Path::new("/"), l));
    let all: Vec<Vec<u8>> = ours.chain(users.filter(|u| !u.is_empty())).map(OsString::into_vec).collect();
    OsString::from_vec(all.join(&b':'))
}

/// What `$LIB` is for 64-bit programs: on Debian, on other distributions, and where those have
/// no 32-bit libraries (Arch).
const LIB: [&str; 3] = ["lib/x86_64-linux-gnu", "lib64", "lib"];

/// The way from any library directory to the root; more steps than needed stay there.
const TO_ROOT: &str = "/../../../../../../../..";

/// The path of the library in words that only glibc's loader understands. Where the system's
/// libc is in none of the usual places (NixOS, a musl system), `$LIB` might lead nowhere:
/// the plain path.
fn for_glibc_only(root: &Path, library: &Path) -> OsString {
    let has_libc = |dir: &&str| LIB.iter().any(|lib| root.join(dir).join(lib).join("libc.so.6").exists());
    let mut path = OsString::new();
    if let Some(dir) = ["usr/", ""].iter().find(|dir| has_libc(dir)).filter(|_| library.is_absolute()) {
        path.push("/");
        path.push(dir);
        path.push("$LIB");
        path.push(TO_ROOT);
    }
    path.push(library);
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_user_preloads_stays_behind_ours() {
        let ours = PathBuf::from("/l/libcorefit_omp.so");
        let alone = variable(std::slice::from_ref(&ours), None);
        assert!(alone.to_str().unwrap().ends_with("/l/libcorefit_omp.so"));
        assert_eq!(variable(std::slice::from_ref(&ours), Some("".into())), alone);
        let both = format!("{}:a.so b.so", alone.display());
        assert_eq!(variable(std::slice::from_ref(&ours), Some("a.so b.so".into())), both.as_str());
        let two = format!("{0}:{0}", alone.display());
        assert_eq!(variable(&[ours.clone(), ours], None), two.as_str());
    }

    #[test]
    fn the_path_starts_from_where_the_system_has_its_libc() {
        let ours = Path::new("/l/ours.so");
        for (libc, start) in [
            ("usr/lib/x86_64-linux-gnu", "/usr/$LIB/.."),
            ("usr/lib64", "/usr/$LIB/.."),
            ("usr/lib", "/usr/$LIB/.."),
            ("lib/x86_64-linux-gnu", "/$LIB/.."),
            ("nix/store/glibc/lib", "/l/ours.so"),
        ] {
            let root = tempfile::tempdir().unwrap();
            std::fs::create_dir_all(root.path().join(libc)).unwrap();
            std::fs::write(root.path().join(libc).join("libc.so.6"), "").unwrap();
            let path = for_glibc_only(root.path(), ours).into_string().unwrap();
            assert!(path.starts_with(start) && path.ends_with("/l/ours.so"), "{libc}: {path}");
        }
    }
}
