//! Lines for people. Nobody may be left to read them (a closed pipe, a full disk): that is no
//! reason to end as `println!` does.

/// A line on stderr.
macro_rules! tell {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

/// A line on stdout.
macro_rules! show {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}
