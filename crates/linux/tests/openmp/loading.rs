//! The preload library: several runtimes in one process, libraries that come and go, other tools.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{
    Omp, Talk, build, command, count, library, only, order, output, page, scratch, skipped, team,
};
use corefit_linux::page::{Orders, TeamPage};

/// A copy of libgomp under another soname of the same length, as wheels bring one.
fn copied_libgomp(letter: char) -> PathBuf {
    let copy = scratch().join(format!("libgom{letter}.so.1"));
    if !copy.exists() {
        let found = Command::new("gcc").arg("-print-file-name=libgomp.so.1").output().unwrap();
        let mut bytes = std::fs::read(String::from_utf8(found.stdout).unwrap().trim()).unwrap();
        let old = b"\0libgomp.so.1\0";
        let mut changed = 0;
        for at in 0..bytes.len() - old.len() {
            if &bytes[at..at + old.len()] == old {
                bytes[at + 7] = letter as u8;
                changed += 1;
            }
        }
        assert!(changed > 0, "no soname in libgomp");
        // Several tests make it at a time: each writes its own and moves it there.
        let own = scratch().join(format!("{letter}.{:?}", std::thread::current().id()));
        std::fs::write(&own, bytes).unwrap();
        std::fs::rename(own, &copy).unwrap();
    }
    copy
}

/// `SOURCE` as a shared object that needs these, in this order, and no other runtime.
fn object(source: &str, needs: &[&Path], options: &[&str]) -> PathBuf {
    let compiled = build("gcc", source, &["-fopenmp", "-fPIC", "-c", "-x", "c"]);
    let output = scratch().join(format!(
        "{source}_{}{}.so",
        needs.iter().map(|n| n.file_stem().unwrap().to_str().unwrap()).collect::<Vec<_>>().join("_"),
        options.concat().replace(',', "")
    ));
    let own = scratch().join(format!("{:?}.so", std::thread::current().id()));
    let mut gcc = Command::new("gcc");
    gcc.args(["-shared", "-Wl,--no-as-needed", "-Wl,-z,lazy"])
        .args(options)
        .arg("-o")
        .arg(&own)
        .arg(compiled);
    gcc.args(needs).arg(format!("-Wl,-rpath,{}", scratch().display()));
    // Objects are found by soname at run time.
    gcc.arg(format!("-Wl,-soname,{}", output.file_name().unwrap().to_str().unwrap()));
    assert!(gcc.status().unwrap().success());
    std::fs::rename(own, &output).unwrap();
    output
}

/// A plugin on a copied libgomp.
fn plugin(letter: char) -> PathBuf {
    object("plugin.c", &[&copied_libgomp(letter)], &[])
}

/// A program without OpenMP of its own.
fn host(page: &TeamPage) -> Talk {
    Talk::start(&mut command(build("gcc", "host.c", &[]), Some(page)))
}

fn open(host: &mut Talk, how: &str, number: u32, file: &Path) {
    assert_eq!(host.ask(&format!("{how} {number} {}", file.display())), "done");
}

fn is_gnu() -> bool {
    Omp::Gnu.is_here()
}

#[test]
fn a_library_with_a_runtime_of_its_own_follows() {
    if !is_gnu() {
        return;
    }
    for how in ["open", "now", "global", "deep"] {
        let page = page(team(3));
        let mut host = host(&page);
        open(&mut host, how, 0, &plugin('A'));
        // RTLD_DEEPBIND makes it prefer its own dependencies to what is preloaded.
        let ours = how != "deep";
        assert_eq!(host.ask("call 0 plugin_size"), if ours { "3" } else { "4" }, "{how}");
        if ours {
            order(&page, team(2));
            assert_eq!(host.ask("call 0 plugin_size"), "2", "{how}");
            assert_eq!(host.ask("call 0 plugin_loop"), "1", "{how}");
        }
        host.end();
    }
}

#[test]
fn two_libraries_with_two_copies_of_a_runtime_keep_them_apart() {
    if !is_gnu() {
        return;
    }
    for how in ["open", "now"] {
        let page = page(count());
        let mut host = host(&page);
        open(&mut host, how, 0, &plugin('A'));
        open(&mut host, how, 1, &plugin('B'));
        assert_eq!(host.ask("set 0 3"), "done");
        assert_eq!((host.ask("call 0 plugin_max"), host.ask("call 1 plugin_max")), ("3".into(), "4".into()));
        for _ in 0..2 {
            assert_eq!(host.ask("call 0 plugin_size"), "3", "{how}");
            assert_eq!(host.ask("call 1 plugin_size"), "4", "{how}");
        }
        order(&page, team(2));
        assert_eq!(host.ask("call 0 plugin_size"), "2", "{how}");
        assert_eq!(host.ask("call 1 plugin_size"), "2", "{how}");
        host.end();
    }
}

/// The size of a region at the end of a function of object `number`, to which the compiler jumps.
fn fill(host: &mut Talk, number: u32) -> String {
    host.ask(&format!("call {number} plugin_fill"));
    host.ask(&format!("call {number} plugin_filled"))
}

#[test]
fn a_region_that_is_jumped_to_at_the_end_of_a_function_runs_in_its_own_runtime() {
    if !is_gnu() {
        return;
    }
    for (orders, size) in [(Orders::default(), "4"), (count(), "4"), (team(3), "3")] {
        let page = page(orders);
        let mut host = host(&page);
        open(&mut host, "open", 0, &plugin('A'));
        open(&mut host, "open", 1, &plugin('B'));
        for _ in 0..3 {
            for number in [0, 1] {
                assert_eq!(fill(&mut host, number), size, "{number}, {orders:?}");
            }
        }
        host.end();
        if Omp::Llvm.is_here() {
            let fake = build("gcc", "fake_runtime.c", &["-shared", "-fPIC"]);
            let llvm = build("clang", "plugin.c", &["-fopenmp", "-shared", "-fPIC"]);
            let mut host = self::host(&page);
            open(&mut host, "open", 0, &fake);
            open(&mut host, "open", 1, &llvm);
            for _ in 0..3 {
                assert_eq!(fill(&mut host, 1), size, "libomp beside another runtime, {orders:?}");
            }
            host.end();
        }
    }
}

#[test]
fn a_library_uses_the_runtime_that_the_linker_gives_it_not_its_own_dependency() {
    if !is_gnu() {
        return;
    }
    // `outer` needs libgomA and an inner plugin that needs libgomB. What the inner one imports
    // is looked up in the outer one's order: libgomA where that comes first, also in time.
    let [a, b] = ['A', 'B'].map(copied_libgomp);
    for binding in ["-Wl,-z,lazy", "-Wl,-z,now"] {
        let inner = object("plugin.c", &[&b], &[binding]);
        for needs in [[a.as_path(), inner.as_path()], [inner.as_path(), a.as_path()]] {
            let outer = object("outer_plugin.c", &needs, &[binding]);
            for how in ["open", "now"] {
                for size in [1, 2, 4] {
                    let page = page(team(size));
                    let mut host = host(&page);
                    open(&mut host, how, 0, &outer);
                    for _ in 0..2 {
                        let got = host.ask("call 0 outer_size");
                        assert_eq!(got, size.to_string(), "{binding}, {how}, {needs:?}");
                    }
                    host.end();
                }
            }
        }
    }
}

#[test]
fn a_program_with_a_runtime_lends_it_to_libraries_with_a_copy() {
    if !is_gnu() {
        return;
    }
    let page = page(team(3));
    let program = build("gcc", "host.c", &["-fopenmp"]);
    let mut host = Talk::start(&mut command(program, Some(&page)));
    assert_eq!(host.ask("own"), "3");
    open(&mut host, "open", 0, &plugin('A'));
    open(&mut host, "deep", 1, &plugin('B'));
    assert_eq!(host.ask("call 0 plugin_size"), "3");
    assert_eq!(host.ask("call 1 plugin_size"), "4", "its own, by RTLD_DEEPBIND, is not reached");
    assert_eq!(host.ask("own"), "3");
    assert_eq!(host.ask("made"), "3", "code made at run time");
    host.end();
}

#[test]
fn gcc_and_clang_libraries_in_one_program_use_their_own_runtimes() {
    if !is_gnu() || !Omp::Llvm.is_here() {
        return;
    }
    let gnu = build("gcc", "plugin.c", &["-fopenmp", "-shared", "-fPIC"]);
    let llvm = build("clang", "plugin.c", &["-fopenmp", "-shared", "-fPIC"]);
    for (own, first, second) in [
        (None, &gnu, &llvm),
        (None, &llvm, &gnu),
        (Some("gcc"), &gnu, &llvm),
        (Some("gcc"), &llvm, &gnu),
        (Some("clang"), &gnu, &llvm),
        (Some("clang"), &llvm, &gnu),
    ] {
        for how in ["open", "global"] {
            let page = page(team(3));
            let program = match own {
                Some(compiler) => build(compiler, "host.c", &["-fopenmp"]),
                None => build("gcc", "host.c", &[]),
            };
            let mut host = Talk::start(&mut command(program, Some(&page)));
            open(&mut host, how, 0, first);
            open(&mut host, how, 1, second);
            for size in [3, 2, 4] {
                if size < 3 || !page.processes().is_empty() {
                    order(&page, team(size));
                }
                for line in ["call 0 plugin_size", "call 1 plugin_size"] {
                    assert_eq!(host.ask(line), size.to_string(), "{own:?} {how} {first:?}: {line}");
                }
                if own.is_some() {
                    assert_eq!(host.ask("own"), size.to_string(), "{own:?} {how} {first:?}");
                }
            }
            let seen = only(&page);
            // libomp also takes libgomp's place where it is found first.
            assert!(seen.kmp, "{own:?} {how}: {seen:?}");
            host.end();
        }
    }
}

#[test]
fn a_closed_library_is_unloaded_and_another_in_its_place_gets_its_own_runtime() {
    if !is_gnu() {
        return;
    }
    let page = page(team(3));
    let mut host = host(&page);
    for round in 0..5 {
        for letter in ['A', 'B'] {
            open(&mut host, "open", 0, &plugin(letter));
            assert_eq!(host.ask("call 0 plugin_calls"), "1", "{letter}, round {round}: a fresh start");
            assert_eq!(host.ask("call 0 plugin_size"), "3", "{letter}, round {round}");
            assert_eq!(host.ask("close 0"), "0", "{letter}, round {round}: unloaded");
        }
    }
    let [a, b] = ['A', 'B'].map(plugin);
    let said = host.ask(&format!("cycle 300 {} {}", a.display(), b.display()));
    let (size, grown) = said.split_once(' ').unwrap();
    assert_eq!(size, "3");
    assert!(grown.parse::<i64>().unwrap() < 32, "600 loads cost {grown} KiB");
    host.end();
}

#[test]
fn constructors_and_destructors_may_wait_for_threads_that_begin_regions() {
    for &omp in Omp::all() {
        let plugin = build(omp.compiler(), "joins.c", &["-fopenmp", "-shared", "-fPIC", "-pthread"]);
        for orders in [Orders::default(), count(), team(1)] {
            let page = page(orders);
            let mut host = host(&page);
            open(&mut host, "open", 0, &plugin);
            assert_eq!(host.ask("call 0 joins_begin"), "1", "{omp:?}, {orders:?}");
            assert_eq!(host.ask("close 0"), "0", "{omp:?}, {orders:?}: unloaded");
            host.end();
        }
    }
    if is_gnu() {
        // (libomp itself cannot begin its first region there: it calls dlsym.)
        let plugin = build("gcc", "joins.c", &["-fopenmp", "-shared", "-fPIC", "-pthread", "-DAT_LOAD"]);
        for orders in [Orders::default(), count(), team(1)] {
            let page = page(orders);
            let mut host = host(&page);
            open(&mut host, "open", 0, &plugin);
            assert_eq!(host.ask("call 0 joins_right"), "1", "{orders:?}");
            host.end();
        }
    }
}

#[test]
fn a_thousand_places_in_the_code_cost_no_memory_per_region() {
    for &omp in Omp::all() {
        let program = omp.build("many_sites.c", &["-O1"]);
        for orders in [Orders::default(), count(), team(2), team(1)] {
            let page = page(orders);
            let said = output(&mut command(&program, Some(&page)));
            let (grown, same) = said.trim().split_once(' ').unwrap();
            assert_eq!(same, "1024", "{omp:?}, {orders:?}");
            // The watching thread may allocate meanwhile, but not 8 bytes for each of 1024 regions.
            assert!(grown.parse::<i64>().unwrap() < 8 * 1024, "{omp:?}, {orders:?}: {grown} bytes");
        }
    }
}

#[test]
fn other_preloaded_tools_before_and_behind_us_still_see_every_region() {
    if !is_gnu() {
        return;
    }
    let tool = build("gcc", "tool.c", &["-shared", "-fPIC"]);
    let program = Omp::Gnu.build("odd.c", &[]);
    let (ours, tool) = (library().display(), tool.display());
    for (preload, threads) in [(format!("{tool}:{ours}"), 0), (format!("{ours}:{tool}"), 2)] {
        let page = page(team(2));
        let mut command = command(&program, Some(&page));
        command.env("LD_PRELOAD", &preload).arg("size");
        assert_eq!(output(&mut command), format!("2\ntool: 1 regions, threads {threads}\n"), "{preload}");
        let seen = only(&page);
        assert!(seen.gomp && !seen.kmp && seen.requested == 4, "{seen:?}");
    }
}

#[test]
fn exceptions_within_regions_unwind_as_ever() {
    for (omp, compiler) in [(Omp::Gnu, "g++"), (Omp::Llvm, "clang++")] {
        if !omp.is_here() {
            continue;
        }
        if !Command::new(compiler).arg("--version").output().is_ok_and(|o| o.status.success()) {
            skipped("exceptions in regions", &format!("no {compiler}"));
            continue;
        }
        let program = build(compiler, "exceptions.cpp", &["-fopenmp"]);
        for orders in
            [Orders::default(), count(), team(1), team(3), Orders { random: true, any: true, ..count() }]
        {
            let page = page(orders);
            assert_eq!(output(&mut command(&program, Some(&page))), "wrong 0\n", "{compiler}, {orders:?}");
        }
    }
}
