# Names that the scripts of test VMs share. Sourced, with $vm set to this directory.
# shellcheck shell=bash disable=SC2034

ROOT=$(cd "${vm:?}/../.." && pwd)

# Shared by all worktrees: guest kernels and what libvirt found out about QEMU.
CACHE=${TESTVM_CACHE:-/var/cache/corefit-testvm}
KERNELS=$CACHE/kernels
# In the order in which the guest loads them.
MODULES="virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_console"

# The initramfs, which holds this worktree's workloads.
IMAGES=$ROOT/build/testvm

# The state of this worktree's libvirtd and VMs. Short, since the path of a socket has at most 107 bytes.
STATE=${TESTVM_STATE:-/run/corefit-testvm-$(cksum <<<"$ROOT" | cut -d' ' -f1)}
# VMS/NAME/: console.log, domain.xml, and owner if it has one.
VMS=$STATE/vms
URI="qemu+unix:///system?socket=$STATE/run/libvirt-sock"
