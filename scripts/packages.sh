# What scripts need of Debian's packages. Sourced.
# shellcheck shell=bash

# needs: from lines "command-or-file package" on standard input, the packages that are missing, in the array `missing`.
needs() {
    local needed package
    missing=()
    while read -r needed package; do
        case $needed in
        /*) compgen -G "$needed" >/dev/null || missing+=("$package") ;;
        *) command -v "$needed" >/dev/null || missing+=("$package") ;;
        esac
    done
}

may_install() { [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; }

# updated COMMAND: runs it, if need be a second time with fresh package lists.
updated() { "$@" || { apt-get update -q && "$@"; }; }

# apt_install PACKAGE-OR-OPTION...
apt_install() { DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 install -y -q "$@"; }
