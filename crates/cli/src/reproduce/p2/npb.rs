//! LU, UA, BT and SP for P2's Figure 2: sections and meetings as NPB 3.3.1 has them, and longer than the library's.
//!
//! Counted in its OpenMP codes of class A with a library in front of libgomp (`GOMP_parallel`, `GOMP_barrier`), and timed on
//! one thread of this machine: docs/simulator.md, "P2's slowdowns". Lengths are four times that, as the library's.

use std::borrow::Cow;

use corefit_sim::library;

/// A program's text; the library's own name for the others.
pub(super) fn text(name: &str) -> Cow<'_, str> {
    let own = match name {
        // A step has 2 sections and 5 barriers, and takes 76 ms here: as in the library, but 40 of 250 steps.
        "lu" => return Cow::Owned(format!("repeat 4 {{ {} }}", library(name).unwrap_or_default())),
        // 182 sections and 15 barriers a step, 90 ms here; a step of conjugate gradients has 14 of them. What adapts the mesh in
        // each fifth step is spread over all. 20 of 200 steps.
        "ua" => {
            "repeat 20 {
            parallel { compute 30ms split normal 5% }
            parallel { compute 1ms split barrier compute 12ms split normal 5% }
            parallel { compute 24ms split normal 5% }
            repeat 4 { parallel { compute 250us split normal 10% barrier compute 250us split normal 10% } }
            repeat 35 { parallel { compute 250us split normal 10% } }
            repeat 10 {
            parallel { compute 2700us split normal 10% }
            parallel { compute 5ms split normal 10% }
            parallel { compute 400us split barrier compute 16600us split normal 5% }
            repeat 11 { parallel { compute 400us split normal 10% } } } }"
        }
        // 5 sections and 4 barriers a step, 186 ms here. 6 of 200 steps.
        "bt" => {
            "repeat 6 {
            parallel { repeat 4 { compute 24ms split normal 3% barrier } compute 24ms split normal 3% }
            repeat 3 { parallel { compute 205ms split normal 3% } }
            parallel { compute 9ms split normal 3% } }"
        }
        // 9 sections and 4 barriers a step, 49 ms here. 20 of 400 steps.
        "sp" => {
            "repeat 20 {
            parallel { repeat 4 { compute 14ms split normal 3% barrier } compute 14ms split normal 3% }
            repeat 3 { parallel { compute 33ms split normal 3% } parallel { compute 6ms split normal 3% } }
            parallel { compute 4ms split normal 3% } parallel { compute 4ms split normal 3% } }"
        }
        name => name,
    };
    Cow::Borrowed(own)
}

#[cfg(test)]
mod tests {
    use corefit_sim::Program;

    #[test]
    fn programs_of_figure_2_compile_and_end() {
        for name in ["lu", "ua", "bt", "sp"] {
            let text = super::text(name);
            let program = Program::compile(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(text != name && program.has_teams() && !program.is_endless());
        }
        assert_eq!(super::text("ep"), "ep", "the library's");
    }
}
