//! What the kernel reads the time from.

use crate::Root;

/// The kernel's clock source, if it is a device: `hpet` or `acpi_pm`. Reading one leaves a VM each time, and readers of the
/// `hpet` exclude each other (`read_hpet` in the kernel's `arch/x86/kernel/hpet.c`): who spins for it may have to wait for a vCPU that has
/// no pCPU. `None` if it is none of those, or cannot be read.
///
/// The kernel reads the time at each block and wake-up. Measured here (QEMU, 8 vCPUs on 2 pCPUs, cg S, 1,375 times four
/// parallel regions): 40 to 50 s by the `hpet`, 7.5 to 8.2 s by the TSC, of which 5.9 s is what one thread takes.
#[must_use]
pub fn device_clock(root: &Root) -> Option<&'static str> {
    let text = root.read("sys/devices/system/clocksource/clocksource0/current_clocksource").ok()?;
    ["hpet", "acpi_pm"].into_iter().find(|name| *name == text.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_told_and_counters_of_the_cpu_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("sys/devices/system/clocksource/clocksource0");
        std::fs::create_dir_all(&path).unwrap();
        let root = Root::at(dir.path());
        assert_eq!(device_clock(&root), None);
        for (text, told) in
            [("hpet\n", Some("hpet")), ("acpi_pm\n", Some("acpi_pm")), ("tsc\n", None), ("kvm-clock\n", None)]
        {
            std::fs::write(path.join("current_clocksource"), text).unwrap();
            assert_eq!(device_clock(&root), told);
        }
    }
}
