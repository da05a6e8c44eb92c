# The libvirtd of the test VMs: a private one, which sees directories of its own below $STATE in place of
# /etc/libvirt, /var/lib/libvirt and so on. Neither the administrator's configuration nor a libvirtd of the
# system is touched, and both can run at the same time. Sourced by scripts/testvm.
# shellcheck shell=bash

pid_file=$STATE/libvirtd.pid

# process_start PID: when the process started, in ticks since boot; with the PID this names a process.
# Fails if there is none.
process_start() {
    local stat
    { read -r stat <"/proc/$1/stat"; } 2>/dev/null || return 1
    read -ra stat <<<"${stat##*) }"
    [[ ${stat[0]} != Z ]] && echo "${stat[19]}"
}

# daemon_pid: fails if it does not run.
daemon_pid() {
    local pid
    pid=$(cat "$pid_file" 2>/dev/null) && [[ $(cat "/proc/$pid/comm" 2>/dev/null) == libvirtd ]] && echo "$pid"
}

# daemon_up [OPTION...]: starts libvirtd if it does not run, and returns when it answers.
daemon_up() {
    local host_uuid=$STATE/host-uuid pid i
    if pid=$(daemon_pid); then
        # One that nobody needed for a while may be about to end. Whoever asks it has its minute again.
        for ((i = 0; i < 600; i++)); do
            process_start "$pid" >/dev/null || break
            [[ ! -S $STATE/run/libvirt-sock ]] || ! virsh uri >/dev/null 2>&1 || return 0
            sleep 0.05
        done
        ! daemon_pid >/dev/null || return 0
    fi
    mkdir -p "$VMS" "$STATE"/{etc,lib,log,run} "$CACHE/libvirt" /{etc,run,var/lib,var/log,var/cache}/libvirt
    chmod 700 "$STATE"
    [[ -e $host_uuid ]] || cp /proc/sys/kernel/random/uuid "$host_uuid"
    # Where users are told apart by the group of the socket or by polkit, root needs neither. libvirt migrates between
    # hosts only: each of ours has an identity and a name of its own.
    printf '%s\n' 'auth_unix_rw = "none"' 'auth_unix_ro = "none"' "host_uuid = \"$(cat "$host_uuid")\"" >"$STATE/etc/libvirtd.conf"
    # Without virtlogd, without security labels, without a mount namespace per VM: nothing to clean up.
    cat >"$STATE/etc/qemu.conf" <<'CONF'
user = "root"
group = "root"
dynamic_ownership = 0
remember_owner = 0
security_driver = "none"
stdio_handler = "file"
namespaces = []
cgroup_controllers = [ "cpu", "cpuset", "cpuacct" ]
CONF
    # $0 of the inner shell is the state directory, $1 the cache.
    # shellcheck disable=SC2016
    unshare --mount --uts --propagation private sh -ec '
        mount --bind "$0/etc" /etc/libvirt
        mount --bind "$0/lib" /var/lib/libvirt
        mount --bind "$0/log" /var/log/libvirt
        mount --bind "$0/run" /run/libvirt
        mount --bind "$1/libvirt" /var/cache/libvirt
        pid_file=$2
        shift 2
        echo "host-$(cut -d- -f1 "$0/host-uuid")" >/proc/sys/kernel/hostname
        renice -n 0 -p $$ >/dev/null || true # the VMs inherit it
        exec libvirtd --daemon --pid-file "$pid_file" "$@"' \
        "$STATE" "$CACHE" "$pid_file" "$@" 8>&- >"$STATE/libvirtd.log" 2>&1 ||
        die "libvirtd did not start: $(tail -n 1 "$STATE/libvirtd.log")"
}

# daemon_down: ends libvirtd, not the VMs; a new one takes them over.
daemon_down() {
    local pid i
    pid=$(daemon_pid) || return 0
    kill "$pid"
    for ((i = 0; i < 200; i++)); do
        process_start "$pid" >/dev/null || return 0
        sleep 0.05
    done
    kill -9 "$pid"
}
