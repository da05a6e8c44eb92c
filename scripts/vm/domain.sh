# The definition of a test VM, and how it is started and removed. Sourced by scripts/testvm.
# shellcheck shell=bash

# What `testvm up` was asked for; the names are those of its options.
vcpus=2 plugged='' smt='' weight='' quota='' global_quota='' cpuset='' busy=0 agent=yes bare=no clock='' helpers=light memory=192 code='' pins=() programs=()
period=100000

# domain_xml NAME IMAGE KERNEL
domain_xml() {
    local pin tune='' tcg='' channel='' cpus='' boot='' cpu='<model fallback='\''allow'\''>qemu64</model>' node each
    [[ -z $weight ]] || tune+="<shares>$weight</shares>"
    [[ -z $cpuset ]] || cpus=" cpuset='$cpuset'"
    [[ -z $code ]] || tcg="<tcg><tb-cache unit='MiB'>$code</tb-cache></tcg>"
    [[ -z $plugged ]] || cpus+=" current='$plugged'"
    for pin in "${pins[@]}"; do tune+="<vcpupin vcpu='${pin%%=*}' cpuset='${pin#*=}'/>"; done
    [[ $agent == no ]] || channel="<channel type='unix'><target type='virtio' name='org.qemu.guest_agent.0'/></channel>"
    if [[ -n $smt ]]; then
        # An Intel model: of AMD's, guests know threads only with features that emulation lacks.
        each=$((vcpus / smt)) cpu="<model fallback='allow'>Nehalem</model>
    <topology sockets='$smt' cores='$((each / 2))' threads='2'/><numa>"
        for ((node = 0; node < smt; node++)); do
            cpu+="<cell id='$node' cpus='$((node * each))-$((node * each + each - 1))' memory='$((memory / smt))' unit='MiB'/>"
        done
        cpu+='</numa>'
    fi
    [[ $bare == yes ]] || boot="<kernel>$3</kernel><initrd>$2</initrd>
    <cmdline>console=ttyS0 panic=-1 no_timer_check mitigations=off cryptomgr.notests$clock testvm.name=$1 testvm.agent=$agent testvm.busy=$busy</cmdline>"
    cat <<XML
<domain type='qemu'>
  <name>$1</name>
  <memory unit='MiB'>$memory</memory>
  <vcpu placement='static'$cpus>$vcpus</vcpu>
  <cputune>$tune</cputune>
  <os>
    <type arch='x86_64' machine='pc'>hvm</type>
    $boot
  </os>
  <features><acpi/><apic/>$tcg</features>
  <cpu mode='custom' match='exact' check='none'>$cpu</cpu>
  <on_reboot>destroy</on_reboot>
  <on_crash>destroy</on_crash>
  <devices>
    <emulator>$(command -v qemu-system-x86_64)</emulator>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
    <serial type='file'><source path='$VMS/$1/console.log'/></serial>
    $channel
  </devices>
</domain>
XML
}

virsh() { command virsh --quiet --connect "$URI" "$@" 8>&-; }

# qemu_pid NAME: fails if no QEMU runs for it.
qemu_pid() {
    local pid
    pid=$(cat "$STATE/run/qemu/$1.pid" 2>/dev/null) && process_start "$pid" >/dev/null && echo "$pid"
}

# domain_create NAME: defines and starts one VM; it is booting afterwards.
domain_create() {
    local kernel image error
    kernel=$(printf '%s\n' "$KERNELS"/*/ | sort -V | tail -n 1)
    image=
    [[ $bare == yes ]] || image=$("$vm/image" "$kernel" "${programs[@]}")
    mkdir "$VMS/$1"
    [[ -z $owner ]] || echo "$owner $(process_start "$owner")" >"$VMS/$1/owner"
    domain_xml "$1" "$image" "${kernel}vmlinuz" >"$VMS/$1/domain.xml"
    if error=$(virsh create "$VMS/$1/domain.xml" 2>&1); then
        lighten "$1"
        return
    fi
    rm -rf "${VMS:?}/$1"
    die "$1 did not start: ${error##*error: }"
}

# lighten NAME: what QEMU does beside its vCPUs weighs 2 % of one. As libvirt makes it, Linux 6.13 to 6.19 let a vCPU of one VM
# wait for a minute while another VM runs (docs/model.md, "Where the kernel deviates"): guests stall and their agents are silent.
lighten() {
    local path file
    [[ $helpers == light ]] || return 0
    while IFS=: read -r _ _ path; do
        [[ $path == */emulator ]] || continue
        for file in "/sys/fs/cgroup/cpu$path/cpu.shares=20" "/sys/fs/cgroup$path/cpu.weight=2"; do
            [[ ! -w ${file%=*} ]] || { echo "${file#*=}" >"${file%=*}" && return; }
        done
    done <"/proc/$(qemu_pid "$1")/cgroup"
}

# limit NAME: sets the quotas. Done after booting, which they would make ten times as long.
limit() {
    local error arguments=()
    [[ -z $quota ]] || arguments+=("vcpu_period=$period" "vcpu_quota=$((quota * period / 100))")
    [[ -z $global_quota ]] || arguments+=("global_period=$period" "global_quota=$((global_quota * period / 100))")
    [[ ${#arguments[@]} -gt 0 ]] || return 0
    error=$(virsh schedinfo --live "$1" "${arguments[@]}" 2>&1) || die "$1: ${error##*error: }"
}

# domains_remove NAME...: nothing of the VMs is left afterwards, whatever state they were in.
domains_remove() {
    local name
    [[ $# -gt 0 ]] || return 0
    daemon_up "${auto[@]}"
    # All at once: how long an ended process stays is up to the machine's init, and libvirt waits for it.
    for name; do domain_remove "$name" & done
    wait
}
domain_remove() {
    local pid
    pid=$(qemu_pid "$1") || pid=
    virsh destroy "$1" >/dev/null 2>&1 || true
    if [[ -n $pid ]] && tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline" | grep -q "guest=$1,"; then
        kill -9 "$pid" 2>/dev/null || true
    fi
    rm -rf "${VMS:?}/$1" "$STATE/log/qemu/$1.log"
}

# domain_line NAME
domain_line() {
    local pid cpus owner=-
    pid=$(qemu_pid "$1") || pid=gone
    cpus=$(sed -n 's/.*<vcpu[^>]*>\([0-9]*\)<.*/\1/p' "$VMS/$1/domain.xml")
    [[ ! -e $VMS/$1/owner ]] || read -r owner _ <"$VMS/$1/owner"
    echo "$1 vcpus=$cpus qemu=$pid owner=$owner"
}
