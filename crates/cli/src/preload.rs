//! Where the preload library is, and how a program is told to load it.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// File name of the preload library.
pub(crate) const LIBRARY: &str = "libcorefit_omp.so";

/// Finds the library beside the executable, or in `../lib/corefit` as packages install it.
/// The error is a sentence for the user.
pub(crate) fn library() -> Result<PathBuf, String> {
    let exe = std::env::current_exe().map_err(|e| format!("cannot find my own executable: {e}"))?;
    let bin = exe.parent().unwrap_or(Path::new("/"));
    let places = [bin.join(LIBRARY), bin.join("../lib/corefit").join(LIBRARY)];
    let found = places.iter().find(|p| p.is_file()).ok_or_else(|| {
        format!(
            "{LIBRARY} is neither in {} nor in {}: teams cannot be resized while the program runs (reinstall corefit, or build with `make`)",
            bin.display(),
            bin.join("../lib/corefit").display()
        )
    })?;
    if found.as_os_str().as_bytes().iter().any(|b| b" \t\n:".contains(b)) {
        return Err(format!(
            "the path {} contains a space or a colon, which LD_PRELOAD cannot express: teams cannot be resized (install corefit elsewhere)",
            found.display()
        ));
    }
    Ok(found.clone())
}

/// The value of `LD_PRELOAD` with our library in front of the user's.
pub(crate) fn variable(library: &Path, users: Option<OsString>) -> OsString {
    let mut value = library.as_os_str().as_bytes().to_vec();
    if let Some(users) = users.filter(|u| !u.is_empty()) {
        value.push(b':');
        value.extend(users.as_bytes());
    }
    OsString::from_vec(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_user_preloads_stays_behind_ours() {
        let ours = Path::new("/l/libcorefit_omp.so");
        assert_eq!(variable(ours, None), "/l/libcorefit_omp.so");
        assert_eq!(variable(ours, Some("".into())), "/l/libcorefit_omp.so");
        assert_eq!(variable(ours, Some("a.so b.so".into())), "/l/libcorefit_omp.so:a.so b.so");
    }
}
