"""A disk that can stop answering: a small ext4 on a loop device in a mount namespace of its own, frozen and thawed at will.

Who writes to it while it is frozen sleeps in true D state (fsfreeze(8), FIFREEZE). It thaws and unmounts itself when the
test's process ends, however that happens.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_KEEPER = """
mount -o loop "$1" "$2" || exit 1
trap '' INT TERM HUP
echo mounted
while read -r word; do
	case $word in
	freeze) fsfreeze --freeze "$2" ;;
	thaw) fsfreeze --unfreeze "$2" ;;
	esac
	echo "$word $?"
done
fsfreeze --unfreeze "$2" 2>/dev/null
for _ in 1 2 3 4 5 6 7 8 9 10; do umount "$2" 2>/dev/null && exit 0; sleep 0.2; done
umount -l "$2"
"""


class SilentDisk:
    """``mount``: its folder, inside the namespace only; ``enter``: the words before a command that is to see it."""

    def __init__(self, keeper: subprocess.Popen[str], mount: Path) -> None:
        self._keeper = keeper
        self.mount = mount
        self.enter = ("nsenter", "--mount", f"--target={keeper.pid}")
        self.inside = Path(f"/proc/{keeper.pid}/root{mount}")
        self.frozen = False

    def freeze(self) -> None:
        """Every write from now on waits."""
        assert self._say("freeze") == "freeze 0\n"
        self.frozen = True

    def thaw(self) -> None:
        """Writes go on."""
        if self.frozen:
            assert self._say("thaw") == "thaw 0\n"
            self.frozen = False

    def _say(self, word: str) -> str:
        assert self._keeper.stdin is not None and self._keeper.stdout is not None
        self._keeper.stdin.write(f"{word}\n")
        self._keeper.stdin.flush()
        return self._keeper.stdout.readline()


@contextmanager
def silent_disk(folder: Path, size: int = 8 << 20) -> Iterator[SilentDisk]:
    """Needs root, loop devices and mkfs.ext4 (see ``why_not``)."""
    image, mount = folder / "image", folder / "mount"
    mount.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(size)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True, timeout=60)
    words = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _KEEPER, "keeper", str(image), str(mount)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as keeper:
        assert keeper.stdin is not None and keeper.stdout is not None
        assert keeper.stdout.readline() == "mounted\n", "no loop mount"
        disk = SilentDisk(keeper, mount)
        try:
            yield disk
        finally:
            keeper.stdin.close()


def why_not() -> str:
    """Why there can be none here; "" when there can."""
    return "" if shutil.which("mkfs.ext4") else "needs mkfs.ext4 (e2fsprogs)"
