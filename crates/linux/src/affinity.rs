//! The CPUs that a thread may run on, as the kernel has them.

use std::io;

use corefit_core::{CpuId, CpuSet};

/// A mask with room for more CPUs than any kernel knows. The C library's own has 1024, and where more are possible the
/// kernel does not fill that (EINVAL: sched_getaffinity(2)).
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Mask(Vec<usize>);

impl Mask {
    /// `NR_CPUS` is at most 8192.
    const WORDS: usize = 65_536 / usize::BITS as usize;

    /// All CPUs that any kernel knows.
    pub(crate) fn all() -> Mask {
        Mask(vec![usize::MAX; Mask::WORDS])
    }

    /// The mask of a thread; 0 is the calling one.
    ///
    /// # Errors
    /// The kernel's: the thread has ended.
    pub(crate) fn of(tid: libc::pid_t) -> io::Result<Mask> {
        let mut words = vec![0usize; Mask::WORDS];
        // SAFETY: the kernel writes at most the size it is given.
        let result =
            unsafe { libc::sched_getaffinity(tid, size_of_val(&words[..]), words.as_mut_ptr().cast()) };
        if result == -1 { Err(io::Error::last_os_error()) } else { Ok(Mask(words)) }
    }

    /// Gives it to a thread; 0 is the calling one.
    ///
    /// # Errors
    /// The kernel's: no CPU of it is allowed, or the thread has ended or is not ours.
    pub(crate) fn set(&self, tid: libc::pid_t) -> io::Result<()> {
        // SAFETY: the kernel reads at most the size it is given.
        let result =
            unsafe { libc::sched_setaffinity(tid, size_of_val(&self.0[..]), self.0.as_ptr().cast()) };
        if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The CPUs that are in both.
    pub(crate) fn and(&self, other: &Mask) -> Mask {
        Mask(self.0.iter().zip(&other.0).map(|(a, b)| a & b).collect())
    }

    /// The CPUs that are in one of them.
    pub(crate) fn or(&self, other: &Mask) -> Mask {
        Mask(self.0.iter().zip(&other.0).map(|(a, b)| a | b).collect())
    }

    /// The CPUs in it.
    pub(crate) fn cpus(&self) -> CpuSet {
        let words = (0..).step_by(usize::BITS as usize).zip(&self.0).filter(|(_, word)| **word != 0);
        let bits = |(first, word): (u32, &usize)| {
            let word = *word;
            (0..usize::BITS).filter(move |bit| word >> bit & 1 == 1).map(move |bit| CpuId(first + bit))
        };
        words.flat_map(bits).collect()
    }
}

impl From<&CpuSet> for Mask {
    fn from(cpus: &CpuSet) -> Mask {
        let mut words = vec![0usize; Mask::WORDS];
        for cpu in cpus.iter() {
            let cpu = cpu.0 as usize;
            if let Some(word) = words.get_mut(cpu / usize::BITS as usize) {
                *word |= 1 << (cpu % usize::BITS as usize);
            }
        }
        Mask(words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cpu_is_in_its_word_also_where_the_c_librarys_set_has_no_room() {
        let cpus: CpuSet = [0, 3, 64, 1024, 65_535].map(CpuId).into_iter().collect();
        let mask = Mask::from(&cpus);
        assert_eq!((mask.0[0], mask.0[1], mask.0[16], mask.0[1023]), (0b1001, 1, 1, 1 << 63));
        assert_eq!(mask.cpus(), cpus);
    }

    #[test]
    fn a_mask_that_is_set_is_the_threads_own() {
        let all = Mask::of(0).unwrap();
        let one: CpuSet = all.cpus().iter().take(1).collect();
        Mask::from(&one).set(0).unwrap();
        assert_eq!(Mask::of(0).unwrap().cpus(), one);
        all.set(0).unwrap();
        assert!(Mask::of(i32::MAX).is_err());
    }
}
