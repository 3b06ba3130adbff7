#!/bin/sh
# Says what stands in the way of the lab, before anything is touched. 77: needs root. 69: this machine cannot.
say() { echo "lab: $1" >&2; exit "$2"; }
[ "$(id -u)" = 0 ] || say "needs root (namespaces, mounts, cgroups); run it as root on a machine you can spare" 77
# shellcheck source=/dev/null
[ -r /etc/os-release ] && . /etc/os-release
[ "${ID:-}" = debian ] && [ "${VERSION_ID:-99}" -ge 12 ] 2>/dev/null || say "needs Debian 12 or newer, this is ${PRETTY_NAME:-unknown}" 69
dir=${FAIRLEAD_LAB_DIR:-/var/cache/fairlead-lab}
while [ ! -d "$dir" ]; do dir=$(dirname "$dir"); done
free=$(df -Pm "$dir" | awk 'NR==2 {print $4}')
[ "$free" -ge 4096 ] || say "needs 4096 MiB free in $dir, has $free (FAIRLEAD_LAB_DIR=... chooses another place)" 69
grep -qw overlay /proc/filesystems || say "this kernel has no overlay file system" 69
[ -e /proc/self/ns/net ] && [ -e /proc/self/ns/cgroup ] || say "this kernel has no network or cgroup namespaces" 69
grep -q ' cgroup2 ' /proc/mounts || say "no cgroup2 mount; the lab needs one to end what it starts" 69
exit 0
