//! A C program with the header and the static library.

use std::path::Path;
use std::process::Command;

const PROGRAM: &str = r#"
#include "corefit_lock.h"
#include <errno.h>
#include <pthread.h>
static corefit_lock_t lock = COREFIT_LOCK_INIT;
static long count;
static void *add(void *unused) {
    for (int i = 0; i < 20000; i++) { corefit_lock_lock(&lock); count++; corefit_lock_unlock(&lock); }
    return unused;
}
int main(void) {
    pthread_t threads[8];
    for (int i = 0; i < 8; i++) if (pthread_create(&threads[i], 0, add, 0)) return 2;
    for (int i = 0; i < 8; i++) pthread_join(threads[i], 0);
    if (count != 160000 || lock != 0) return 3;
    if (corefit_lock_trylock(&lock) != 0 || corefit_lock_trylock(&lock) != EBUSY) return 4;
    if (corefit_lock_lock_until(&lock, 1) != ETIMEDOUT) return 5;
    corefit_lock_unlock(&lock);
    return lock != 0 ? 6 : 0;
}
"#;

#[test]
fn a_c_program_locks_with_the_static_library() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // The test runs from target/PROFILE/deps, beside which cargo puts the library.
    let exe = std::env::current_exe().unwrap();
    let profile = exe.parent().and_then(Path::parent).unwrap();
    let library = [profile.join("libcorefit_lock.a"), profile.join("deps/libcorefit_lock.a")];
    let Some(library) = library.iter().find(|l| l.is_file()) else {
        panic!("libcorefit_lock.a is not in {}: cargo build -p corefit-lock first", profile.display());
    };
    // Another run may be at work in the same directory.
    let dir = profile.join(format!("c_face-{}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    let (source, program) = (dir.join("main.c"), dir.join("main"));
    std::fs::write(&source, PROGRAM).unwrap();
    let compiled = Command::new("cc")
        .args(["-O1", "-Wall", "-Werror", "-I"])
        .arg(root.join("include"))
        .args([&source, library])
        .args(["-o".as_ref(), program.as_os_str()])
        .args(["-lpthread", "-ldl", "-lm"])
        .status()
        .unwrap();
    assert!(compiled.success());
    let ended = Command::new(&program).status().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    assert_eq!(ended.code(), Some(0));
}
