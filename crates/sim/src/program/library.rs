//! Programs that scenarios can name.
//!
//! The NPB-like ones have the *structure* of the OpenMP codes in NPB 3.3 (how many parallel loops an
//! iteration has, which are pipelines that spin on flags, which use locks) and total work of the order
//! of seconds on one CPU (fewer iterations than theirs), with the loops' lengths about those of P2's problem sizes on a
//! 2.3 GHz Opteron. The lengths are ours: the papers print none; docs/simulator.md says where they come from. `hog` never ends, as the neighbours of P1 IV.

/// All names.
pub const NAMES: [&str; 16] = [
    "hog", "bt", "cg", "dc", "ep", "ft", "is", "lu", "mg", "sp", "ua", "type1", "type2", "type3", "type4",
    "build",
];

/// The text of a program, by name.
#[must_use]
pub fn library(name: &str) -> Option<&'static str> {
    Some(match name {
        "hog" => "forever { compute 10ms mark }",
        // Each step: the right-hand side, three solvers, each a team of its own, an addition.
        "bt" => {
            "repeat 6 {
            parallel { repeat 4 { compute 16ms split normal 3% barrier } compute 16ms split normal 3% }
            repeat 3 { parallel { compute 140ms split normal 3% } }
            parallel { compute 6ms split normal 3% } }"
        }
        // 25 conjugate gradient steps in each iteration: a matrix times a vector, and short loops with reductions.
        "cg" => {
            "repeat 2 { parallel { repeat 25 { barrier compute 65ms split normal 5% barrier
            repeat 3 { compute 1ms split normal 5% barrier } } } }"
        }
        // Tasks that write: a task per thread, with input and output.
        "dc" => "parallel { repeat 40 { compute 40ms split normal 20% sleep 1ms exp } }",
        // One loop, one reduction. Class B: members do the same number of pairs, of which so many count that parts of
        // 16 differ by 0.01 %.
        "ep" => "parallel { compute 50s split normal 0.01% }",
        // Few long loops.
        "ft" => "repeat 6 { parallel { repeat 4 { compute 80ms split normal 3% barrier } } }",
        // Short run, a few loops per iteration, a long serial part at the start.
        "is" => "compute 20ms repeat 10 { parallel { repeat 3 { compute 10ms split normal 5% barrier } } }",
        // SSOR. Both sweeps are pipelines over 62 planes, in the same direction; a member waits for the one before it,
        // and until the one after it has taken its flag, by reading flags without pause. Then the right-hand side.
        "lu" => {
            "repeat 10 {
            parallel {
            compute 2ms split normal 3% barrier
            repeat 62 { compute 710us split normal 5%  wait low prev  compute 950us split normal 5%  put low next }
            barrier
            repeat 62 { compute 670us split normal 5%  wait up prev  compute 890us split normal 5%  put up next }
            barrier
            compute 1ms split normal 3% }
            parallel {
            compute 16ms split normal 3% barrier
            compute 32ms split normal 3% barrier
            compute 41ms split normal 3% } }"
        }
        // A cycle over grids from fine to coarse: loops get short.
        "mg" => {
            "repeat 8 { parallel {
            repeat 2 { compute 40ms split normal 3% barrier }
            repeat 4 { compute 5ms split normal 3% barrier }
            repeat 12 { compute 400us split normal 5% barrier } } }"
        }
        // As bt, finer.
        "sp" => {
            "repeat 20 {
            parallel { repeat 4 { compute 9ms split normal 3% barrier } compute 9ms split normal 3% }
            repeat 3 { parallel { compute 22ms split normal 3% } parallel { compute 4ms split normal 3% } }
            parallel { compute 5ms split normal 3% } }"
        }
        // Each step: convection, and ten conjugate gradient steps of twelve loops, most of them short, each a team of
        // its own. (Its 92,700 locks, one for each point of the mortar, are hardly ever waited for: left out.)
        "ua" => {
            "repeat 5 {
            parallel { compute 37ms split normal 5% }
            parallel { compute 1ms split barrier compute 15ms split normal 5% }
            parallel { compute 29ms split normal 5% }
            repeat 17 { parallel { compute 300us split normal 10% } }
            repeat 10 {
            parallel { compute 3200us split normal 10% }
            parallel { compute 6ms split normal 10% }
            parallel { compute 500us split barrier compute 20500us split normal 5% }
            repeat 9 { parallel { compute 500us split normal 10% } } } }"
        }
        // P1's types: parallelism high or low, blocking synchronisation low or high (P1 II-C). On 16 cores they keep
        // more or less than 12 busy, and block after more or less than the 6 ms of a quarter of 24 ms.
        "type1" => "parallel { repeat 20 { compute 160ms split normal 3% barrier } }",
        "type2" => "repeat 4000 { compute 250us exp parallel { compute 400us split exp } }",
        "type3" => "parallel { repeat 400 { compute 8ms split normal 10% barrier } }",
        "type4" => "repeat 20 { compute 20ms parallel { compute 80ms split normal 5% } }",
        // A kernel build as P3 sees it: independent jobs whose system calls meet on locks of the kernel.
        "build" => {
            "repeat 400 {
            compute 60us exp  kernel dcache { compute 1200ns exp }
            compute 40us exp  kernel zone { compute 600ns exp } }"
        }
        _ => return None,
    })
}
