//! Lines for people. Nobody may be left to read them (a closed pipe): that is no reason to end as `println!` does.

/// A line on stderr.
macro_rules! tell {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($text)*);
    }};
}

/// A line on stdout about work that goes on, or is done, whether or not it can be written.
macro_rules! show {
    ($($text:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stdout(), $($text)*);
    }};
}

/// What was asked for, and the end of its line, on stdout: an error if it cannot be written, but none if nobody reads any more.
macro_rules! answer {
    ($($text:tt)*) => {
        $crate::lines::print(&(format!($($text)*) + "\n")).map(drop)
    };
}
