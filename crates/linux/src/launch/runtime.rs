//! Which language runtime a program looks like, from names only: a hint for reports
//! and for the knobs that need the runtime's own argument.

use std::ffi::OsStr;
use std::fmt;

/// A runtime that decides by itself how many threads it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Runtime {
    /// GCC's OpenMP, libgomp.
    GnuOpenMp,
    /// LLVM's OpenMP, libomp, under that name or as Intel's libiomp5.
    LlvmOpenMp,
    /// OpenBLAS.
    OpenBlas,
    /// Intel's oneMKL.
    Mkl,
    /// BLIS.
    Blis,
    /// Threading Building Blocks; it has no variable and asks the system for its CPUs.
    Tbb,
    /// A program compiled by Go's own compiler.
    Go,
    /// A Java virtual machine started as `java`.
    Java,
    /// A Python interpreter.
    Python,
    /// Node.js.
    Node,
    /// Julia.
    Julia,
    /// .NET's `dotnet` host.
    DotNet,
    /// R.
    R,
}

impl Runtime {
    /// The runtime that a program of this file name starts, if it is a known one.
    #[must_use]
    pub fn of_program(name: &OsStr) -> Option<Runtime> {
        let name = name.to_str()?;
        // python3.11, pypy3, node20, java: a version may follow the name.
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.' || c == '-');
        Some(match stem {
            "java" => Runtime::Java,
            "python" | "pypy" => Runtime::Python,
            "node" | "nodejs" => Runtime::Node,
            "julia" => Runtime::Julia,
            "dotnet" => Runtime::DotNet,
            "R" | "Rscript" => Runtime::R,
            _ => return None,
        })
    }

    /// The runtime that a shared library of this name (`DT_NEEDED`) carries, if a known one.
    #[must_use]
    pub fn of_library(name: &str) -> Option<Runtime> {
        let stem = name.split_once(".so").map_or(name, |(stem, _)| stem);
        Some(match stem {
            "libgomp" => Runtime::GnuOpenMp,
            "libomp" | "libomp5" | "libiomp5" => Runtime::LlvmOpenMp,
            "libmkl_rt" | "libmkl_intel_thread" | "libmkl_gnu_thread" => Runtime::Mkl,
            "libblis" | "libblis-mt" => Runtime::Blis,
            "libtbb" => Runtime::Tbb,
            _ if stem.starts_with("libopenblas") => Runtime::OpenBlas,
            _ => return None,
        })
    }
}

impl Runtime {
    /// Whether it deals out equal parts of work to as many threads as the system says that there are CPUs, and waits for the
    /// last: Julia's `Threads.@threads` with `--threads=auto`. Beside a neighbour of equal weight on 2 CPUs one thread took
    /// 2.1 s, two took 3.8 s (`corefit bench overcommit --apps julia_par`; docs/measured.md).
    #[must_use]
    pub fn is_team(self) -> bool {
        self == Runtime::Julia
    }
}

impl fmt::Display for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Runtime::GnuOpenMp => "OpenMP (libgomp)",
            Runtime::LlvmOpenMp => "OpenMP (libomp)",
            Runtime::OpenBlas => "OpenBLAS",
            Runtime::Mkl => "MKL",
            Runtime::Blis => "BLIS",
            Runtime::Tbb => "TBB",
            Runtime::Go => "Go",
            Runtime::Java => "Java",
            Runtime::Python => "Python",
            Runtime::Node => "Node.js",
            Runtime::Julia => "Julia",
            Runtime::DotNet => ".NET",
            Runtime::R => "R",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_known_by_name_with_or_without_a_version() {
        for (name, runtime) in [
            ("java", Some(Runtime::Java)),
            ("python3.11", Some(Runtime::Python)),
            ("pypy3", Some(Runtime::Python)),
            ("node", Some(Runtime::Node)),
            ("Rscript", Some(Runtime::R)),
            ("javac", None),
            ("node_exporter", None),
            ("r", None),
        ] {
            assert_eq!(Runtime::of_program(OsStr::new(name)), runtime, "{name}");
        }
    }

    #[test]
    fn libraries_are_known_by_their_stem() {
        for (name, runtime) in [
            ("libgomp.so.1", Some(Runtime::GnuOpenMp)),
            ("libomp.so.5", Some(Runtime::LlvmOpenMp)),
            ("libiomp5.so", Some(Runtime::LlvmOpenMp)),
            ("libopenblas.so.0", Some(Runtime::OpenBlas)),
            ("libopenblasp-r0.3.27.so", Some(Runtime::OpenBlas)),
            ("libtbb.so.12", Some(Runtime::Tbb)),
            ("libompl.so", None),
            ("libc.so.6", None),
        ] {
            assert_eq!(Runtime::of_library(name), runtime, "{name}");
        }
    }
}
