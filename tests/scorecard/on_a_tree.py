"""Rows of the scorecard on a machine tree: what a step does to files is done to a copy, and put back. Nothing runs there.

Steps that need a running node (jobs, time, a library that hangs, commands) have no such form: ``playable`` says which have.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from fairlead import config
from tests.lab import kmsg
from tests.lab.gpufacts import lose
from tests.lab.machines import read_nvml, write_nvml
from tests.scorecard import entry


def playable(steps: Sequence[entry.Step]) -> bool:
    """Say whether all steps are changes of files."""
    return all(isinstance(s, entry.Kernel | entry.File | entry.Document) or _is_answer(s) for s in steps)


def _is_answer(step: entry.Step) -> bool:
    """Say whether it is an answer of NVML that stands in nvml.json; lists of processes the library makes by itself."""
    if isinstance(step, entry.Nvml):
        return not step.key.startswith("processes.")
    return isinstance(step, entry.Call) and step.verb == "lost"


class FaultyTree:
    """A copy of a machine tree that is broken step by step. ``document``: what the node is to be, with the changes of steps."""

    def __init__(self, origin: Path, folder: Path, profile: str) -> None:
        self.path = folder / origin.name
        shutil.copytree(origin, self.path, symlinks=True)
        self.profile = profile
        self.gpus = [gpu["pci"] for gpu in read_nvml(self.path)["gpus"]]
        self._before: dict[Path, bytes | Path | None] = {}
        self._moved: list[Path] = []
        self._sequence = 100_000

    @contextmanager
    def after(self, steps: Sequence[entry.Step], modes: Mapping[str, Any] = {}) -> Iterator[Path]:
        """Meanwhile the steps have happened; yields the document. ``modes``: more changes of it."""
        changes: dict[str, Any] = {}
        try:
            for step in steps:
                match step:
                    case entry.Document():
                        config.document.merge(changes, step.changes, "", {})
                    case entry.Kernel():
                        self._log(step)
                    case entry.Nvml():
                        self._answer(step)
                    case entry.Call():
                        self._lose(step.arguments[0])
                    case entry.File():
                        self._write(self._with_addresses(step.path), step.text)
            yield self._document(changes, modes)
        finally:
            for path, content in reversed(self._before.items()):
                _put_back(path, content)
            for number, path in enumerate(self._moved):
                (self.path.parent / f"kept{number}").rename(path)
            self._before.clear()
            self._moved.clear()

    def _document(self, changes: Mapping[str, Any], modes: Mapping[str, Any]) -> Path:
        data = config.to_data(config.profile_document("n1", self.profile))
        for layer in (changes, modes):
            config.document.merge(data, layer, "", {})
        del data["hash"]
        path = self.path.parent / "node.json"
        path.write_bytes(config.encode_document(config.decode_document(msgspec.json.encode(data), "test")))
        return path

    def _log(self, step: entry.Kernel) -> None:
        path = self.path / "dev/kmsg"
        self._keep(path)
        now = float((self.path / "proc/uptime").read_text().split()[0]) - step.seconds_ago - 1
        with path.open("a") as log:
            for _ in range(step.times):
                self._sequence += 1
                text = self._with_addresses(step.text)
                log.write(kmsg.record(text, self._sequence, int(now * 1e6), level=step.level, facility=step.facility))

    def _answer(self, step: entry.Nvml) -> None:
        self._keep(self.path / "nvml.json")
        nvml = read_nvml(self.path)
        *tables, last = step.key.split(".")
        table = nvml["gpus"][step.gpu]
        for name in tables:
            table = table[int(name)] if isinstance(table, list) else table.setdefault(name, {})
        key = int(last) if isinstance(table, list) else last
        table[key] = dict(step.value) if isinstance(step.value, Mapping) else step.value
        write_nvml(self.path, nvml)

    def _lose(self, gpu: int) -> None:
        self._keep(self.path / "nvml.json")
        nvml = read_nvml(self.path)
        lose(nvml["gpus"][gpu])
        write_nvml(self.path, nvml)

    def _write(self, name: str, text: str | bytes | None) -> None:
        path = self.path / name.lstrip("/")
        missing = next((p for p in reversed(path.parents) if not p.exists()), None)
        if missing is not None:
            self._before.setdefault(missing, None)
        self._keep(path)
        if text is None and path.is_dir() and not path.is_symlink():
            path.rename(self.path.parent / f"kept{len(self._moved)}")
            self._moved.append(path)
            return
        if text is None:
            path.unlink()
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())

    def _keep(self, path: Path) -> None:
        if path not in self._before:
            link = path.is_symlink()
            self._before[path] = Path(os.readlink(path)) if link else path.read_bytes() if path.is_file() else None

    def _with_addresses(self, text: str) -> str:
        for number, pci in enumerate(self.gpus):
            device = os.path.realpath(self.path / "sys/bus/pci/devices" / pci)
            text = text.replace(f"{{gpu{number}}}", pci).replace(f"{{gpu{number}:bus}}", pci[:-2])
            text = text.replace(f"{{port{number}}}", Path(device).parent.name)
        return text


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _put_back(path: Path, content: bytes | Path | None) -> None:
    _remove(path)
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content is not None:
        path.symlink_to(content)
