//! Classes of work that scenarios can name: what a program of the library shares with its neighbours.
//!
//! P4 (V-A, V-B, Figure 16) names the causes by which programs lose beside busy siblings and in a full cache, and prints
//! no numbers for them; the *causes* are the paper's, the sizes are ours: one each for all programs. What the text names
//! no cause for, though it counts the program among those that lose (BT, IS), is our guess, and marked.
//!
//! | class | decoder | FPU | last-level cache |
//! |---|---|---|---|
//! | `fib`, `nq` (Tascell) | yes; `nq` half of it | | |
//! | `bt` | | guess | |
//! | `cg`, `sp` | | yes | yes |
//! | `dc` (in core) | yes | | yes |
//! | `ep` | | | |
//! | `ft`, `mg` | | | yes |
//! | `is` | | | guess |
//! | `lu` | yes | yes | |
//! | `ua` | | yes | |
//!
//! Sizes: the decoder leaves 0.72 of the speed (P4 III-B: 38 % between 0-16 and 8-8 for Tascell's fib, all of it
//! put on the decoder), for programs that have other causes, too, and for `nq`, half of that loss; the FPU leaves 0.8.
//! Eight threads fill a 6 MiB cache twice (1536 KiB each), and a program whose data is nowhere in it has 0.7 of the speed.

use crate::spec::Class;

/// All names.
pub const CLASSES: [&str; 12] = ["fib", "nq", "bt", "cg", "dc", "ep", "ft", "is", "lu", "mg", "sp", "ua"];

const DECODER: f64 = 0.72;
const HALF_DECODER: f64 = 0.84;
const FPU: f64 = 0.8;
const FOOTPRINT_KIB: u32 = 1536;
const WITHOUT_CACHE: f64 = 0.7;

/// A class, by name.
#[must_use]
pub fn library_class(name: &str) -> Option<Class> {
    let (decoder, fpu, cache) = match name {
        "fib" => (DECODER, false, false),
        "nq" => (HALF_DECODER, false, false),
        "bt" | "ua" => (1.0, true, false),
        "cg" | "sp" => (1.0, true, true),
        "dc" => (HALF_DECODER, false, true),
        "ep" => (1.0, false, false),
        "ft" | "is" | "mg" => (1.0, false, true),
        "lu" => (HALF_DECODER, true, false),
        _ => return None,
    };
    Some(Class {
        beside_sibling: decoder,
        fpu: if fpu { FPU } else { 1.0 },
        footprint_kib: if cache { FOOTPRINT_KIB } else { 0 },
        without_cache: if cache { WITHOUT_CACHE } else { 1.0 },
        ..Class::plain(name)
    })
}
