//! Machines in `captures/topology`: what is read of them, and how they are drawn. `COREFIT_BLESS=1` rewrites the
//! drawings; what is read (`shapes.toml`) is written by hand.

use std::path::{Path, PathBuf};

use corefit_core::topology::Topology;
use corefit_linux::formats::{Format, decode, detect};
use corefit_linux::{Root, topology};

use super::guests::Guests;
use super::{svg, text};
use crate::inputs::gather;

fn captures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../captures")
}

fn load(path: &Path) -> Topology {
    if path.is_dir() {
        return topology::read(&Root::at(path)).unwrap();
    }
    if path.extension().is_some_and(|ext| ext == "sysfs") {
        return topology::read(&Root::at(unpacked(path).path())).unwrap();
    }
    let text = decode(std::fs::read(path).unwrap()).unwrap();
    let format: Format = detect(&text).unwrap();
    format.topology(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A tree of `/sys` in one file: a line for each file, its path, a tab and its text (`\n` and `\0` are written so).
fn unpacked(path: &Path) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for line in std::fs::read_to_string(path).unwrap().lines() {
        let (file, text) = line.split_once('\t').unwrap();
        let at = root.path().join(file);
        if file.ends_with('/') {
            std::fs::create_dir_all(at).unwrap();
            continue;
        }
        std::fs::create_dir_all(at.parent().unwrap()).unwrap();
        std::fs::write(at, format!("{}\n", text.replace("\\n", "\n").replace("\\0", "\0"))).unwrap();
    }
    root
}

fn expect(path: &Path, got: &str) {
    if std::env::var_os("COREFIT_BLESS").is_some() {
        std::fs::write(path, got).unwrap();
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    assert_eq!(got, expected, "{}", path.display());
}

/// Each shape's summary and units as somebody worked them out, and the drawing.
#[test]
fn captured_shapes_give_what_is_written_down_for_them() {
    let dir = captures().join("topology");
    let shapes = std::fs::read_to_string(dir.join("shapes.toml")).unwrap();
    let shapes: toml::Table = toml::from_str(&shapes).unwrap();
    let real = shapes.values().filter(|shape| shape["about"].as_str().unwrap().starts_with("REAL"));
    assert!(shapes.len() >= 30 && real.count() >= 19);
    for (name, shape) in &shapes {
        let file = shape["file"].as_str().unwrap();
        let found = load(&dir.join(file));
        assert_eq!(found.summary(), shape["summary"].as_str().unwrap(), "{name}");
        let units: Vec<String> = found.units().iter().map(ToString::to_string).collect();
        let expected: Vec<&str> =
            shape["units"].as_array().unwrap().iter().map(|u| u.as_str().unwrap()).collect();
        let written = expected.iter().position(|unit| *unit == "...").unwrap_or(expected.len());
        assert_eq!(units[..written.min(units.len())], expected[..written], "{name}");
        assert!(written < expected.len() || units.len() == written, "{name}: {units:?}");
        let nodes: Vec<String> = found.nodes.iter().map(|node| node.pcpus.to_string()).collect();
        let expected: Vec<&str> =
            shape["nodes"].as_array().unwrap().iter().map(|n| n.as_str().unwrap()).collect();
        assert_eq!(nodes, expected, "{name}");
        expect(&dir.join(format!("{name}.drawn")), &text::draw(&found, &Guests::default(), 80));
    }
    // No capture that nobody looks at.
    let names = |dir: &Path, before: &str| -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        entries.map(|name| format!("{before}{}", name.into_string().unwrap())).collect()
    };
    for name in [names(&dir, ""), names(&dir.join("hwloc"), "hwloc/")].concat() {
        let listed = shapes.values().any(|shape| shape["file"].as_str() == Some(&name));
        let drawn = name.strip_suffix(".drawn").is_some_and(|name| shapes.contains_key(name));
        assert!(
            listed
                || drawn
                || ["shapes.toml", "hwloc", "hwloc/README.md", "hwloc/COPYING"].contains(&name.as_str()),
            "{name} is in no entry of shapes.toml"
        );
    }
}

/// The Opteron of P4 read from three formats is one and the same machine.
#[test]
fn one_machine_in_different_formats_is_one_machine() {
    let dir = captures().join("topology");
    let [hwloc, xl, line] = ["opteron-6376.xml", "opteron-6376.xl-info.txt", "opteron-6376.txt"]
        .map(|file| load(&dir.join(file)));
    let bare = |found: &Topology| {
        let parts = |parts: &[corefit_core::topology::Part]| {
            parts.iter().map(|p| p.pcpus.to_string()).collect::<Vec<_>>()
        };
        (found.pcpus.clone(), parts(&found.sockets), parts(&found.nodes), found.units())
    };
    assert_eq!(bare(&hwloc), bare(&line));
    assert_eq!(bare(&xl), bare(&line));
}

#[test]
fn drawings_fit_their_width_and_pictures_are_xml() {
    let dir = captures();
    for case in ["check/opteron-conflict", "check/mixed"] {
        let dir = dir.join(case);
        let mut files: Vec<String> = std::fs::read_dir(&dir)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| !path.extension().is_some_and(|ext| ext == "expected" || ext == "toml"))
            .map(|path| path.to_str().unwrap().to_owned())
            .collect();
        files.sort();
        let inputs = gather(&files, None).unwrap();
        let found = inputs.subject.topology.as_ref().unwrap();
        let guests = Guests::of(&inputs.subject);
        for width in [80, 120] {
            let drawn = text::draw(found, &guests, width);
            let widest = drawn.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= width, "{widest}\n{drawn}");
        }
        let picture = svg::draw(found, &guests);
        let document = corefit_linux::formats::well_formed(&picture);
        assert_eq!(document, Ok(()), "{case}");
        for row in &guests.rows {
            assert!(picture.contains(&format!("({}): ", row.tag)), "{}", row.name);
        }
        // Who stands nowhere has no colour below.
        let squares = picture.matches("width=\"12\" height=\"12\"").count();
        assert_eq!(squares, guests.rows.iter().filter(|row| row.drawn).count(), "{case}");
        let anywhere = guests.rows.iter().filter(|row| row.name == "Domain-0").count();
        assert_eq!(picture.matches("anywhere (not drawn)").count(), anywhere, "{case}");
    }
}
