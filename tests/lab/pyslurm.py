"""pyslurm for the forky root's own Python and Slurm, built once and kept with the lab's other builds; never shipped.

pyslurm (GPL-2.0) has no release for Slurm 26.05, only for 25.11. Slurm's own header has the older calls under
SLURM_BACKWARD_COMPAT; with that, one renamed function, one removed error code and setup.py's version check left out, all of
25.11.2 compiles and works. That is a demonstration of the adapter, not support for 26.05 by pyslurm.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.lab import roots
from tests.lab.roots import LabError
from tests.lab.unpack import unpack
from tests.lab.wheels import python_version

SUITE = "forky"
VERSION = "25.11.2"
BUILD_NEEDS = ("Cython", "packaging", "setuptools", "wheel")

# $1: the root, $2: an empty folder to mount on. In there: src, wheels.
BUILD = r"""
mkdir "$2/up" "$2/work" "$2/root"
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/up,workdir=$2/work" "$2/root"
mount -t proc proc "$2/root/proc"
mount --rbind /dev "$2/root/dev"
mkdir "$2/root/build"
mount --bind "$2/in" "$2/root/build"
cat /etc/resolv.conf > "$2/root/etc/resolv.conf" || true
printf '#!/bin/sh\nexit 101\n' > "$2/root/usr/sbin/policy-rc.d"
chmod 755 "$2/root/usr/sbin/policy-rc.d"
exec chroot "$2/root" /bin/sh -ec '
export PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive
apt() { apt-get -qq -oAPT::Sandbox::User=root -oAcquire::Check-Valid-Until=false "$@"; }
apt update
version=$(dpkg-query -W -f "\${Version}" slurmctld)
apt install -y --no-install-recommends gcc libc6-dev python3-dev "libslurm-dev=$version" </dev/null
python3 -m venv /tmp/venv
/tmp/venv/bin/pip -q install --no-index --find-links /build/wheels Cython packaging setuptools wheel
cd /build/src
sed -i "s/if Version(self.version) != Version(SLURM_VERSION):/if False:/" setup.py
sed -i "/^ESLURM_ERROR_ON_DESC_TO_RECORD_COPY = /d" pyslurm/pydefines/slurm_errno_enums.pxi
export SLURM_LIB_DIR=/usr/lib/x86_64-linux-gnu SLURM_INCLUDE_DIR=/usr/include PYSLURM_BUILD_JOBS=2
export CFLAGS="-O0 -g0 -w -DSLURM_BACKWARD_COMPAT -Dslurm_free_ctl_conf=slurm_free_conf"
/tmp/venv/bin/python setup.py bdist_wheel
'
"""


def pyslurm() -> Path:
    """A folder with the package ``pyslurm`` in it, for PYTHONPATH inside the forky root.

    Raises LabError with one line where it cannot be built (no index, no package mirror, another Slurm in the mirror).
    """
    root = roots.root(SUITE)
    recipe = hashlib.sha256(f"{VERSION} {BUILD} {root.name}".encode()).hexdigest()[:12]
    built = roots.lab_dir() / "build" / f"pyslurm-{SUITE}-{recipe}"
    with roots.locked("pyslurm"):
        if not built.is_dir():
            fresh = built.with_name(f".{built.name}")
            shutil.rmtree(fresh, ignore_errors=True)
            try:
                _build(root, fresh)
                (fresh / "out").rename(built)
            finally:
                shutil.rmtree(fresh, ignore_errors=True)
    return built


def _build(root: Path, fresh: Path) -> None:
    roots.say(f"building pyslurm {VERSION} for the {SUITE} root, about a minute")
    (fresh / "in").mkdir(parents=True)
    _download(["--no-deps", "--no-binary=pyslurm", f"pyslurm=={VERSION}"], fresh)
    wanted = ["--only-binary=:all:", f"--python-version={python_version(SUITE)}", *BUILD_NEEDS]
    _download(wanted, fresh / "in" / "wheels")
    unpack(next(fresh.glob("pyslurm-*.tar.gz")), fresh, keep="data")
    next(fresh.glob("pyslurm-*/")).rename(fresh / "in" / "src")
    roots.isolated(["/bin/sh", "-ec", BUILD, "build", str(root), str(fresh)], roots.lab_dir() / "pyslurm.log")
    with zipfile.ZipFile(next(fresh.glob("in/src/dist/*.whl"))) as wheel:
        wheel.extractall(fresh / "out")
    if not list(fresh.glob("out/pyslurm/core/node.*.so")):
        raise LabError(f"pyslurm {VERSION} was built without its modules; see {roots.lab_dir()}/pyslurm.log")


def _download(what: list[str], folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--quiet", f"--dest={folder}", *what]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"{what[-1]} is not to be had: {(done.stderr.strip().splitlines() or ['pip failed'])[-1]}")


if __name__ == "__main__":
    print(pyslurm())
