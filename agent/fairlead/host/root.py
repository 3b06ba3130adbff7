"""Reads the file system of a machine, live or recorded. Only this module joins paths for reading a machine.

Paths are absolute paths *on the node* ("/sys/class/net"). A recorded tree is read as by a process that was chrooted into it: a
symbolic link never leads out of the tree.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import stat

from fairlead.model.facts import Missing, unreadable

READ_MAX_BYTES = 4 << 20
PATHS_MAX = 2000  # cached paths; a node has some hundred files that are read again and again
_LINKS_MAX = 40  # the kernel has the same limit, and more links give ELOOP
ABSENT = (errno.ENOENT, errno.ENOTDIR)
_SPACE = " \t\n\r\v\f\0"
_MAGIC = frozenset("*?[")
# a file in a machine tree: it lists the paths (one per line) of files that the machine has but the tree lacks
LEFT_OUT = "left-out"
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class Root:
    """Represents ``/`` of the machine that is read: "/" itself, or the folder of a machine tree."""

    __slots__ = ("_aliases", "_base", "_links", "_unresolved_paths", "is_live", "left_out", "path", "reading")

    def __init__(self, path: str = "/") -> None:
        self.path = os.path.abspath(path)
        self.is_live = self.path == "/"
        self._base = "" if self.is_live else os.path.realpath(self.path)
        self.reading = ""  # the file that is being read, so that another thread can report the file if the read hangs
        self._links: dict[str, str] = {}  # resolved directories of a recorded tree
        self._unresolved_paths: dict[str, str] = {}  # paths of files in these directories
        self._aliases: dict[str, tuple[int, int, str]] = {}  # links of the tree: inode, time of change, and where they lead
        self.left_out: frozenset[str] = frozenset()
        said = None if self.is_live else self.read_text(f"/{LEFT_OUT}")
        self.left_out = frozenset(said.splitlines()) if isinstance(said, str) else frozenset()

    def __repr__(self) -> str:
        return f"Root({self.path!r})"

    def join(self, path: str) -> str:
        """Return the path on this machine for ``path`` on the node. In a recorded tree all links are resolved inside the tree."""
        if self.is_live:
            return path if path.startswith("/") else "/" + path
        candidate = self._unresolved(path)
        try:
            info = os.lstat(candidate)
        except OSError:
            return candidate
        if not stat.S_ISLNK(info.st_mode):
            return candidate
        known = self._aliases.get(candidate)
        if known is None or known[:2] != (info.st_ino, info.st_ctime_ns):
            known = self._aliases[candidate] = (info.st_ino, info.st_ctime_ns, self._resolve(path))
        return known[2]

    def _unresolved(self, path: str) -> str:
        """Return the same as ``join``, but do not follow a link at the end of the path."""
        if (known := self._unresolved_paths.get(path)) is not None:
            return known
        folder, _, name = path.strip("/").rpartition("/")
        if name in ("", ".", ".."):
            return self._resolve(path)
        resolved = self._links.get(folder)
        if resolved is None:
            resolved = self._resolve(folder)
            if not os.path.isdir(resolved):
                return f"{resolved}/{name}"
            self._links[folder] = resolved
        unresolved = f"{resolved}/{name}"
        if len(self._unresolved_paths) < PATHS_MAX:
            self._unresolved_paths[path] = unresolved
        return unresolved

    def open(self, path: str) -> int:
        """Return a descriptor for reading ``path``. To open a FIFO or a device does not block. Raises OSError."""
        if self.is_live:
            return os.open(self.join(path), _READ)
        try:
            return os.open(self._unresolved(path), _READ | os.O_NOFOLLOW)
        except OSError as e:
            if e.errno != errno.ELOOP:
                raise
        return os.open(self.join(path), _READ)

    def _resolve(self, path: str) -> str:
        """Resolve links as chroot would: ``..`` stops at the tree's root, and an absolute link starts there again."""
        done: list[str] = []
        todo = [c for c in reversed(path.split("/")) if c]
        links = 0
        while todo:
            name = todo.pop()
            if name == ".":
                continue
            if name == "..":
                if done:
                    done.pop()
                continue
            here = "/".join([self._base, *done, name])
            try:
                target = os.readlink(here)
            except OSError:
                done.append(name)
                continue
            links += 1
            if links > _LINKS_MAX:
                # if the links loop, opening the path fails with ELOOP, and the file counts as unreadable
                done.append(name)
                done.extend(reversed(todo))
                break
            if target.startswith("/"):
                done.clear()
            todo.extend(c for c in reversed(target.split("/")) if c)
        return "/".join([self._base, *done])

    def node_path(self, path: str) -> str:
        """Return the path on the node for a path on this machine. This is the inverse of ``join``."""
        return path if self.is_live else path.removeprefix(self._base) or "/"

    def real(self, path: str) -> str:
        """Return ``path`` on the node with every link resolved."""
        return os.path.realpath(path) if self.is_live else self.node_path(self._resolve(path))

    def read_bytes(self, path: str, limit: int = READ_MAX_BYTES, *, head: bool = False) -> bytes | Missing | None:
        """Return the file's content, None when there is no such file, or Missing when it cannot be read or is over ``limit``
        bytes.

        ``head``: return what the first read gives, at most ``limit`` bytes, even if the file is larger.
        """
        self.reading = path
        try:
            fd = self.open(path)
        except OSError as e:
            self.reading = ""
            if path in self.left_out:
                return unreadable(f"{path}: left out of this tree, which was redacted")
            return None if e.errno in ABSENT else _failed(path, e)
        try:
            data = os.read(fd, min(limit, 65536))
            # one read returns a whole sysfs attribute, but only a piece of a file in /proc
            if head or (len(data) < 4096 and path.startswith("/sys/")):
                return data
            parts = [data]
            size = len(data)
            while data and size < limit:
                data = os.read(fd, min(limit - size, 65536))
                parts.append(data)
                size += len(data)
            if size >= limit and os.read(fd, 1):
                return unreadable(f"{path}: larger than {limit} bytes")
            return b"".join(parts)
        except OSError as e:
            return None if e.errno in ABSENT else _failed(path, e)
        finally:
            os.close(fd)
            self.reading = ""

    def read_text(self, path: str, limit: int = READ_MAX_BYTES) -> str | Missing | None:
        """Return the file's content as text (UTF-8; other bytes become U+FFFD)."""
        data = self.read_bytes(path, limit)
        return data.decode("utf-8", "replace") if isinstance(data, bytes) else data

    def read_line(self, path: str) -> str | Missing | None:
        """Return one sysfs attribute: the file's content without surrounding white space, and without zero bytes that a
        recording left."""
        data = self.read_bytes(path, 65536)
        return data.decode("utf-8", "replace").strip(_SPACE) if isinstance(data, bytes) else data

    def value(self, path: str) -> str | Missing:
        """Return one sysfs attribute that ought to be there. An absent or empty file is Missing too."""
        return value_of(path, self.read_bytes(path, 65536))

    def number(self, path: str, base: int = 10) -> int | Missing:
        """Return one sysfs attribute that is a number (base 16: with or without 0x)."""
        text = self.value(path)
        if isinstance(text, Missing):
            return text
        try:
            return int(text, base)
        except ValueError:
            return unreadable(f"{path}: not a number: {text[:40]!r}")

    def readlink(self, path: str) -> str | Missing | None:
        """Return the target of a symbolic link as it is written, or None when there is no link."""
        try:
            return os.readlink(self.join(path.rstrip("/")) if self.is_live else self._unresolved(path))
        except OSError as e:
            return None if e.errno in (*ABSENT, errno.EINVAL) else _failed(path, e)

    def stamp(self, path: str) -> tuple[int, ...] | None:
        """Return a value that changes when a file on a disk is written: inode, size and times. (0,) means no file; None means
        that the file cannot be examined.

        It is of no use for /proc and /sys, whose values change under the same stamp.
        """
        try:
            info = os.stat(self.join(path))
        except OSError as e:
            return (0,) if e.errno in ABSENT else None
        return (info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)

    def exists(self, path: str) -> bool:
        """Say whether there is something at ``path`` that this process can see."""
        return os.path.lexists(self.join(path))

    def inodes(self, path: str) -> dict[str, int]:
        """Return the entries of a folder with their inode numbers, or {} for a folder that cannot be read. For a link it is the
        inode number of the link itself. sysfs gives new numbers to each new device and its links (fs/kernfs/dir.c,
        idr_alloc_cyclic)."""
        try:
            with os.scandir(self.join(path) or "/") as entries:
                return {entry.name: entry.inode() for entry in entries}
        except OSError:
            return {}

    def list(self, path: str) -> tuple[str, ...] | Missing | None:
        """Return the sorted names in a folder, or None when there is no such folder."""
        try:
            return tuple(sorted(os.listdir(self.join(path) or "/")))
        except OSError as e:
            return None if e.errno in ABSENT else _failed(path, e)

    def names(self, path: str) -> tuple[str, ...]:
        """Return the same as ``list``, but () for a folder that does not exist or cannot be read."""
        found = self.list(path)
        return found if isinstance(found, tuple) else ()

    def glob(self, pattern: str, *, dangling: bool = False) -> tuple[str, ...]:
        """Return the sorted paths on the node that match ``pattern`` ("/sys/kernel/iommu_groups/*/type"). ``**`` is not
        supported.

        dangling: also return links that lead nowhere.
        """
        found = [""]
        for part in pattern.strip("/").split("/"):
            if not _MAGIC & set(part):
                found = [f"{f}/{part}" for f in found]
                continue
            hidden = part.startswith(".")
            found = [
                f"{f}/{name}"
                for f in found
                for name in fnmatch.filter(self.names(f or "/"), part)
                if hidden or not name.startswith(".")
            ]
        there = [f for f in found if os.path.exists(self.join(f)) or (dangling and self.readlink(f) is not None)]
        there += [path for path in self.left_out if fnmatch.fnmatchcase(path, pattern) and path.count("/") == pattern.count("/")]
        return tuple(sorted(there))


def value_of(path: str, data: bytes | Missing | None) -> str | Missing:
    """Return what ``Root.value`` returns when ``read_bytes`` has returned ``data`` for ``path``."""
    if isinstance(data, bytes):
        return data.decode("utf-8", "replace").strip(_SPACE) or unreadable(f"{path}: empty")
    return unreadable(f"{path}: no such file") if data is None else data


def _failed(path: str, error: OSError) -> Missing:
    return unreadable(f"{path}: {error.strerror or error}")
