# Commands inside a test VM, through its guest agent. Sourced by scripts/testvm.
# shellcheck shell=bash

# How long an agent that is not connected is waited for, s.
connects=${TESTVM_CONNECTS:-60}

# agent NAME JSON [SECONDS]: the agent's answer, for which libvirt waits so long (10 s). A libvirtd that has just started is
# not connected to it for a while; nothing reached the guest then, so the call is repeated.
agent() {
    local answer status begun=$SECONDS
    while :; do
        status=0
        answer=$(virsh qemu-agent-command --timeout "${3:-10}" "$1" "$2" 2>&1) || status=$?
        [[ $status -ne 0 && $answer == *"agent is not connected"* && $((SECONDS - begun)) -lt $connects ]] || break
        sleep 0.2
    done
    [[ $status -eq 0 ]] && printf '%s\n' "$answer" && return
    printf '%s\n' "$answer" >&2 && return "$status"
}

# agent_busy NAME JSON: the same of a guest that is busy with what it was given, and may not answer for long: it has five
# minutes. Before a question libvirt may ask whether the agent is there, and gives up after 5 s: nothing was asked then, so
# it is asked again. (An answer that does not come in time has the same text.)
agent_busy() {
    local answer asked begun=$SECONDS patience=300
    while asked=$SECONDS && ! answer=$(agent "$1" "$2" $patience 2>&1); do
        if [[ $answer != *"not available for now"* || $((SECONDS - asked)) -ge $patience || $((SECONDS - begun)) -ge $patience ]]; then
            printf '%s\n' "$answer" && return 1
        fi
    done
    printf '%s\n' "$answer"
}

has_agent() { [[ -e $VMS/$1/domain.xml ]] && grep -q guest_agent "$VMS/$1/domain.xml"; }

json_string() {
    local text=${1//\\/\\\\}
    text=${text//\"/\\\"}
    text=${text//$'\t'/\\t}
    printf '"%s"' "${text//$'\n'/\\n}"
}

# field NAME JSON: the value of a field that holds a number, a word or base64.
field() { [[ $2 =~ \"$1\":\"?([^,\"\}]*) ]] && printf '%s' "${BASH_REMATCH[1]}"; }

# agent_exec NAME DETACH COMMAND...: output and exit status are those of the command. DETACH is yes or no. The agent says
# only once how a command ended, so that answer must not come too late.
agent_exec() {
    local name=$1 detach=$2 arguments='' answer pid pause=0.02
    shift 2
    for argument in "${@:2}"; do arguments+="${arguments:+,}$(json_string "$argument")"; done
    # A path of its own, since the agent's is that of the kernel.
    answer=$(agent_busy "$name" "{\"execute\":\"guest-exec\",\"arguments\":{\"path\":$(json_string "$1"),\"arg\":[$arguments],
        \"env\":[\"PATH=/bin:/workloads\",\"HOME=/\"],\"capture-output\":$([[ $detach == yes ]] && echo false || echo true)}}") ||
        die "$name: ${answer##*error: }"
    [[ $detach == no ]] || return 0
    pid=$(field pid "$answer")
    while :; do
        answer=$(agent_busy "$name" "{\"execute\":\"guest-exec-status\",\"arguments\":{\"pid\":$pid}}") || die "$name: ${answer##*error: }"
        [[ $(field exited "$answer") != true ]] || break
        sleep "$pause"
        pause=0.2
    done
    { field out-data "$answer" || true; } | base64 -d
    { field err-data "$answer" || true; } | base64 -d >&2
    local signal
    if signal=$(field signal "$answer"); then return $((128 + signal)); fi
    return "$(field exitcode "$answer")"
}
