"""Containers on the nodes of a rack: real runtimes out of Debian's packages, images made of a lab root, a stand-in for pyxis.

No registry of images and no network: an image is an overlay on a lab root, in memory of the node. Packages are unpacked beside
the root (packages.py), so that the root stays as it is.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.lab import cpus, hardware, packages, roots, spank
from tests.lab.host import Host
from tests.lab.machines import read_nvml, write_nvml
from tests.lab.pcitree import put

RUNTIMES = ("bubblewrap", "charliecloud-runtime", "crun", "podman", "uidmap")
PACKAGES = "/opt/lab-packages"
ROOT = "/opt/lab-root"
PYXIS = "/usr/lib/lab/pyxis_stand_in.so"
# As usual, neither image has Slurm.
#: Its folders belong to root, as in an unpacked image that all users share. It has the mount points that fairlead's files need.
IMAGE = "/opt/lab-image"
#: Its folders belong to the user, as in enroot. It has no mount points.
OWN_IMAGE = "/opt/lab-own-image"
#: The root of another Debian, with another Python than the node's.
OTHER_ROOT = "/opt/lab-other-root"
MOUNTED = ("/etc/nccl.conf", "/run/fairlead", "/opt/fairlead")

# A user namespace may mount /proc only where one is wholly visible (mount_namespaces(7)); that of a host is masked.
INSTALL = f"""
cp -a {PACKAGES}/usr/. /usr/
[ ! -d {PACKAGES}/lib ] || cp -a {PACKAGES}/lib/. /usr/lib/
ldconfig
mkdir -m 700 /run/lab-proc
mount -t proc -o nosuid,nodev,noexec proc /run/lab-proc
for image in {IMAGE} {OWN_IMAGE}; do
    mkdir -p $image /opt/lab-layers$image
    mount -t tmpfs -o mode=755,size=64m tmpfs /opt/lab-layers$image
    mkdir /opt/lab-layers$image/up /opt/lab-layers$image/wk
    mount -t overlay -o lowerdir={ROOT},upperdir=/opt/lab-layers$image/up,workdir=/opt/lab-layers$image/wk overlay $image
    rm -rf $image/usr/sbin/slurm* $image/usr/lib/*/slurm* $image/usr/lib/*/libslurm*
    echo $image >$image/etc/lab-image
done
mkdir -p {IMAGE}/run/fairlead {IMAGE}/opt/fairlead
touch {IMAGE}/etc/nccl.conf
chown {roots.USER} {OWN_IMAGE}
chown -R {roots.USER} {OWN_IMAGE}/etc {OWN_IMAGE}/run {OWN_IMAGE}/opt
"""


def binds(suite: str) -> tuple[tuple[str, str, bool], ...]:
    """What a rack's nodes need for ``install``: packages, the roots that images are made of, and the stand-in."""
    return (
        (str(packages.unpacked(suite, *RUNTIMES)), PACKAGES, True),
        (str(roots.root(suite)), ROOT, True),
        (str(roots.root("bookworm" if suite != "bookworm" else "trixie")), OTHER_ROOT, True),
        (str(spank.pyxis_stand_in(suite)), PYXIS, True),
    )


def install(host: Host) -> None:
    """Install the runtimes on a node that has ``binds``, and make the images."""
    host.run(["/bin/sh", "-eu"], stdin=INSTALL)


def crossed_tree(folder: Path) -> Path:
    """A tree of gpu1 in which GPUs 0 to 3 are on socket 1 and the others on socket 0: Slurm's own order of CPUs is far."""
    made = hardware.machine_tree("hgx-h100", "gpu1", max(2, os.cpu_count() or 2), 1)
    tree = Path(shutil.copytree(made, folder / "tree", symlinks=True))
    near = {node: (tree / f"sys/devices/system/node/node{node}/cpulist").read_text().strip() for node in (0, 1)}
    for link in (tree / "sys/bus/pci/devices").iterdir():
        node = int((link / "numa_node").read_text())
        if node in near:
            put(link / "numa_node", 1 - node)
            put(link / "local_cpulist", near[1 - node])
    nvml = read_nvml(tree)
    for gpu in nvml["gpus"]:
        gpu["numa"] = 1 - gpu["numa"]
        gpu["cpu_affinity"] = near[gpu["numa"]]
    write_nvml(tree, nvml)
    cpus.write_masks(tree)
    return tree
