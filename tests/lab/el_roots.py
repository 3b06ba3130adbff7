"""Roots that look like EL nodes to dnf, to rpm and to fairlead. They are Debian roots with Debian's packages of these programs.

``el_root("bookworm")`` has dnf 4.14 and rpm 4.18 (EL9: dnf 4.14, rpm 4.16). ``el_root("trixie")`` has dnf 4.23 and rpm 4.20
(EL10: dnf 4.20, rpm 4.19). What Debian sets up in another way is undone: the folder of rpm's database, dnf's configuration, the
plugin ``local``, os-release and ``releasever``. dpkg's database is removed. rpm's database has one package, which provides what
Debian's files give (/bin/sh and more). createrepo_c, rpmbuild, dkms and strace are there for the tests. The root is made once for
each suite and kept in the lab's folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tests.lab import packages, roots
from tests.lab.roots import LabError

#: Suite -> the EL release that it is nearest to.
RELEASES = {"bookworm": "9", "trixie": "10"}
PACKAGES = ("dnf", "dnf-plugins-core", "rpm", "createrepo-c", "strace")
STALE_SECONDS = 86400.0
DNF_CONF = """\
[main]
gpgcheck=1
installonly_limit=3
clean_requirements_on_remove=True
best=True
skip_if_unavailable=False
"""
OS_RELEASE = """\
NAME="Rocky Linux"
VERSION="{major}"
ID="rocky"
ID_LIKE="rhel centos fedora"
VERSION_ID="{major}"
PLATFORM_ID="platform:el{major}"
PRETTY_NAME="a Debian root with EL's names, for tests"
"""
#: A package for what the root has from Debian and EL packages ask for.
BASE_SPEC = """\
Name: lab-base
Version: 1
Release: 1
Summary: What this root has from Debian
License: none
BuildArch: noarch
AutoReqProv: no
Provides: /bin/sh /usr/bin/sh bash systemd dracut grubby python3
%description
Nothing is in it.
%files
"""
#: Runs in the new root. $1: the EL release.
SETUP = r"""
set -eu
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
ldconfig
mkdir -p /etc/rpm
printf '%%_dbpath /var/lib/rpm\n%%dist .el%s\n' "$1" > /etc/rpm/macros.lab
rm -rf /var/lib/dpkg /var/lib/rpm
mkdir -p /var/lib/rpm /etc/dnf/vars /etc/yum.repos.d
rpm --initdb
rpmbuild -bb --quiet --define '_topdir /tmp/build' /tmp/lab-base.spec
rpm -i /tmp/build/RPMS/noarch/lab-base-*.rpm
rm -rf /tmp/build /tmp/lab-base.spec
echo "$1" > /etc/dnf/vars/releasever
for plugin in local debug debuginfo-install; do
  if [ -e "/etc/dnf/plugins/$plugin.conf" ]; then printf '[main]\nenabled=0\n' > "/etc/dnf/plugins/$plugin.conf"; fi
done
: > /etc/dnf/plugins/versionlock.list
rm -f /usr/lib/python3/dist-packages/dnf-plugins/system_upgrade.py  # wants a library that is not here
dnf --version
test -e /etc/dnf/plugins/versionlock.conf
"""


def el_root(suite: str) -> Path:
    """Return the folder of the EL root of ``suite``, and make it first where it is not there. Raises LabError."""
    if suite not in RELEASES:
        raise LabError(f"no EL root is like {suite!r}; the lab knows {', '.join(RELEASES)}")
    lower = roots.root(suite)
    recipe = json.dumps([lower.name, PACKAGES, DNF_CONF, OS_RELEASE, BASE_SPEC, SETUP, 1])
    made = roots.lab_dir() / "build" / f"el-{suite}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"
    if made.is_dir():
        return made
    unpacked = packages.unpacked(suite, *PACKAGES)
    dkms = packages.alone(suite, "dkms")  # alone: what it depends on is a compiler
    with roots.locked(f"el-{suite}"):
        if not made.is_dir():
            _build(suite, lower, made, (unpacked, dkms))
    return made


def _build(suite: str, lower: Path, made: Path, more: tuple[Path, ...]) -> None:
    roots.need_room(made.parent, 1 << 30)
    roots.say(f"making a root like EL {RELEASES[suite]} from {lower.name}")
    for stale in [*made.parent.glob(f"el-{suite}-*"), *made.parent.glob(f".el-{suite}-*")]:
        if time.time() - stale.stat().st_mtime > STALE_SECONDS and not roots.in_use(stale):  # another checkout's are used too
            shutil.rmtree(stale)
    building = made.with_name(f".{made.name}-{os.getpid()}")
    try:
        subprocess.run(["cp", "-a", "--reflink=auto", str(lower), str(building)], check=True, timeout=300)
        for folder in more:
            pack = subprocess.Popen(["tar", "-C", str(folder), "-c", "."], stdout=subprocess.PIPE)
            with pack:
                words = ["tar", "-C", str(building), "-x", "--keep-directory-symlink", "--no-overwrite-dir"]
                subprocess.run(words, stdin=pack.stdout, check=True, timeout=300)
        (building / "etc/dnf/dnf.conf").write_text(DNF_CONF)
        (building / "etc/os-release").unlink()
        (building / "etc/os-release").write_text(OS_RELEASE.format(major=RELEASES[suite]))
        (building / "tmp/lab-base.spec").write_text(BASE_SPEC)
        words = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--propagation", "private", "chroot", str(building)]
        words += ["/bin/sh", "-c", SETUP, "sh", RELEASES[suite]]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            raise LabError(f"{made.name}: {(done.stderr.strip() or done.stdout.strip())[-400:]}")
        os.utime(building)
        building.rename(made)
    finally:
        shutil.rmtree(building, ignore_errors=True)


if __name__ == "__main__":
    for each in sys.argv[1:] or ["bookworm"]:
        print(el_root(each))
