#!/bin/bash
# Installs the distribution packages that the lab and the tests need; says which; asks nothing; does nothing when they are there.
# usage: apt.sh [PACKAGE...]: only these packages
set -u
packages="${*:-python3-venv gcc libc6-dev debootstrap iproute2 openssh-client pciutils busybox dash strace e2fsprogs util-linux groff-base prometheus zsh fish}"
missing=()
for p in $packages; do
  dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing+=("$p")
done
[ "${#missing[@]}" = 0 ] && exit 0
echo "apt: installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
# No daemon of these packages may start on the machine: policy-rc.d says 101 while we install, unless the site has its own.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then printf '#!/bin/sh\nexit 101\n' > "$policy"; chmod 755 "$policy"; trap 'rm -f "$policy"' EXIT; fi
{ apt-get update -q && apt-get install -y -q --no-install-recommends "${missing[@]}"; } > "$log" 2>&1 || {
  tail -n 5 "$log" >&2
  echo "apt: could not install ${missing[*]}; install them by hand and try again (whole output: $log)" >&2
  exit 69
}
rm -f "$log"
