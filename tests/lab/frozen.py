"""A true D state on a host: a small file system in it that the machine can freeze.

    with FrozenDisk(rack.ledger, host) as disk:
        Faults(host.sim / "nvml.control").dstate("nvmlDeviceGetTemperature", disk.file)
        disk.freeze()      # who writes to disk.file now waits in D state; SIGKILL has to wait too
        disk.thaw()

The file system is mounted twice, in the host and on the machine, where freezing and thawing always work
(fsfreeze(8), FIFREEZE). It is written down first: ``clean`` thaws it before it kills anything.
"""

from __future__ import annotations

import os
import subprocess
from typing import Self

from tests.lab.host import Host
from tests.lab.ledger import Ledger
from tests.lab.roots import LabError

SIZE_BYTES = 16 << 20


class FrozenDisk:
    """See the module's text. ``file`` is the path inside the host whose writers get stuck."""

    def __init__(self, ledger: Ledger, host: Host, inside: str = "/run/frozen") -> None:
        self.ledger, self.host, self.inside = ledger, host, inside
        self.file = f"{inside}/stuck"
        self.mount_point = host.folder / "frozen"

    def __enter__(self) -> Self:
        self.make()
        return self

    def make(self) -> None:
        """Make and mount it. Raises LabError where the machine has no loop device or mkfs.ext4."""
        image = self.host.folder / "frozen.img"
        with open(image, "wb") as out:
            out.truncate(SIZE_BYTES)
        self.mount_point.mkdir(exist_ok=True)
        self.ledger.add("frozen", self.mount_point)
        _run("mkfs.ext4", "-q", "-F", str(image))
        _run("mount", "-o", "loop", str(image), str(self.mount_point))
        device = os.stat(self.mount_point).st_dev
        node = f"/dev/lab-loop{os.minor(device)}"
        self.host.run(
            f"mknod {node} b {os.major(device)} {os.minor(device)} && mkdir -p {self.inside}"
            f" && mount -t ext4 {node} {self.inside} && : > {self.file} && chmod 666 {self.file}"
        )

    def __exit__(self, *_: object) -> None:
        self.thaw()
        self.host.run(f"umount -l {self.inside}", check=False)
        subprocess.run(["umount", str(self.mount_point)], capture_output=True, check=False)

    def freeze(self) -> None:
        """Stop every write from now on; raises LabError when it is frozen already."""
        _run("fsfreeze", "--freeze", str(self.mount_point))

    def thaw(self) -> None:
        """Let the writers go on. Harmless when nothing is frozen."""
        subprocess.run(["fsfreeze", "--unfreeze", str(self.mount_point)], capture_output=True, check=False)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LabError(f"{' '.join(command)}: {done.stderr.strip()}")
