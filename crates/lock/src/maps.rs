//! The mapping at an address, by `/proc/self/maps`; with system calls only, for a forked child may call nothing else.

use std::ops::Range;

use crate::sys::keep_errno;

/// A range of addresses that is treated alike.
pub(crate) struct Mapping {
    pub(crate) range: Range<usize>,
    /// Writable, and no other process sees what is written.
    pub(crate) private: bool,
}

/// `None` where nothing is mapped. Where that cannot be read (no `/proc`, no free descriptor) all memory counts as private.
pub(crate) fn at(address: usize) -> Option<Mapping> {
    // SAFETY: a NUL-terminated path; a buffer of the stated length; the descriptor is ours.
    keep_errno(|| unsafe {
        let path = c"/proc/self/maps".as_ptr();
        let fd = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path, libc::O_RDONLY | libc::O_CLOEXEC);
        if fd < 0 {
            return Some(Mapping { range: 0..usize::MAX, private: true });
        }
        let mut buffer = [0_u8; 1024];
        let mut line = Line::START;
        let found = loop {
            let n = libc::syscall(libc::SYS_read, fd, buffer.as_mut_ptr(), buffer.len());
            let text = usize::try_from(n).ok().filter(|n| *n > 0).and_then(|n| buffer.get(..n));
            let Some(text) = text else { break None };
            let mut mappings = text.iter().filter_map(|byte| line.read(*byte));
            if let Some(found) = mappings.find(|mapping| mapping.range.contains(&address)) {
                break Some(found);
            }
        };
        libc::syscall(libc::SYS_close, fd);
        found
    })
}

/// A line, read byte by byte: `START-END rwxp ...`.
struct Line {
    part: Part,
    start: usize,
    end: usize,
    writable: bool,
}

#[derive(Clone, Copy)]
enum Part {
    Start,
    End,
    Access,
    Rest,
}

impl Line {
    const START: Line = Line { part: Part::Start, start: 0, end: 0, writable: false };

    /// The mapping, at the last byte that tells of it.
    fn read(&mut self, byte: u8) -> Option<Mapping> {
        let digit = char::from(byte).to_digit(16).unwrap_or(0) as usize;
        match (self.part, byte) {
            (_, b'\n') => *self = Line::START,
            (Part::Start, b'-') => self.part = Part::End,
            (Part::Start, _) => self.start = self.start << 4 | digit,
            (Part::End, b' ') => self.part = Part::Access,
            (Part::End, _) => self.end = self.end << 4 | digit,
            (Part::Access, b'w') => self.writable = true,
            (Part::Access, b'p' | b's') => {
                self.part = Part::Rest;
                let private = self.writable && byte == b'p';
                return Some(Mapping { range: self.start..self.end, private });
            }
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_tell_where_and_whose() {
        let text = b"5600-5700 r--p 00000000 fe:00 12 /usr/lib/rw p\n\
            7f12ab000000-7f12ab002000 rw-p 00000000 00:00 0 \nffff600000-ffff601000 rw-s 0 00:01 3 /dev/zero\n";
        let mut line = Line::START;
        let all: Vec<_> = text.iter().filter_map(|b| line.read(*b)).map(|m| (m.range, m.private)).collect();
        let expected = [
            (0x5600..0x5700, false),
            (0x7f12_ab00_0000..0x7f12_ab00_2000, true),
            (0xff_ff60_0000..0xff_ff60_1000, false),
        ];
        assert_eq!(all, expected);
    }

    #[cfg(not(miri))]
    #[test]
    fn the_stack_is_private_and_nothing_is_at_address_0() {
        let here = 0_u8;
        assert!(at((&raw const here).addr()).is_some_and(|mapping| mapping.private));
        assert!(at(0).is_none());
    }
}
