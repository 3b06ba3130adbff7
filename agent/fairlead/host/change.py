"""Makes Changes: files by temp and rename, kernel values and config space by write and read-back, units by systemctl.

Before anything is changed for the first time, what was there is noted below ``UNDO``, so a run that is killed at any point
leaves either the old or the new state and always a way back. Written is not done: a value that does not read back as
wanted is a failure, said in one line.
"""

from __future__ import annotations

import base64
import difflib
import errno
import hashlib
import json
import os
import subprocess
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import Struct

from fairlead.errors import FairleadError, HostError
from fairlead.host.root import Root
from fairlead.model.change import AnyChange, BootLoader, Disruption, File, KernelValue, Layer, Module, Nvml, PciBits, Reboot, Unit

UNDO = "/var/lib/fairlead/undo"
SYSTEMCTL_SECONDS = 60.0
MODPROBE_SECONDS = 60.0
BOOT_LOADER_SECONDS = 120.0
NOT_UNDONE = Unit | Module | BootLoader | Reboot  # what was there before is in a file of theirs, or was nothing
NvmlSet = Callable[[str, str, int], None]


class Outcome(Struct, frozen=True, kw_only=True):
    """What became of one change. ``message`` is one line: what was done, or why it was not."""

    change: AnyChange
    done: bool
    message: str
    skipped: bool = False


def target(change: AnyChange) -> str:
    """What the change is about, in one word: a path, a PCI address with register, a unit."""
    match change:
        case File(path=path) | KernelValue(path=path):
            return path
        case PciBits(address=address, what=what, offset=offset):
            return f"{address} {what or hex(offset)}"
        case Nvml(pci=pci, what=what):
            return f"{pci} {what}"
        case Unit(name=name) | Module(name=name) | BootLoader(tool=name) | Reboot(what=name):
            return name


def diff(change: AnyChange) -> str:
    """The change as text: a unified diff for a file, ``- before`` and ``+ after`` for everything else."""
    match change:
        case File(path=path, content=content, before=before):
            return "".join(
                difflib.unified_diff(
                    (before or "").splitlines(keepends=True),
                    (content or "").splitlines(keepends=True),
                    path if before is not None else "/dev/null",
                    path if content is not None else "/dev/null",
                )
            )
        case KernelValue(value=value, before=before_text):
            return f"--- {target(change)}\n- {before_text}\n+ {value}\n"
        case PciBits(before=word, mask=mask, value=bits):
            return f"--- {target(change)}\n- {word:#06x}\n+ {word & ~mask | bits:#06x}\n"
        case Nvml(value=new, before=old):
            return f"--- {target(change)}\n- {old}\n+ {new}\n"
        case Unit():
            return f"--- {target(change)}\n+ {', '.join(_verbs(change))}\n"
        case Module():
            return f"--- module {change.name}\n+ loaded\n"
        case BootLoader():
            return f"--- boot loader ({change.tool})\n" + "".join(f"+ {w}\n" for w in change.words or ("made anew",))
        case Reboot():
            return f"--- running kernel\n+ {change.what} (after a reboot)\n"


def execute(
    changes: Iterable[AnyChange], root: Root, *, nvml_set: NvmlSet | None = None, undo: str = UNDO
) -> tuple[Outcome, ...]:
    """Make the changes in order. One that fails does not stop the others, but that what the kernel refused is not persisted:
    no file of the same setting is written after it. Nothing is raised for a failure."""
    outcomes: list[Outcome] = []
    refused: set[str] = set()
    for change in changes:
        if change.setting in refused and change.layer is Layer.PERSISTED:
            words = f"{target(change)}: not written, since the running kernel refused it"
            outcomes.append(Outcome(change=change, done=False, message=words))
            continue
        try:
            if not isinstance(change, NOT_UNDONE):
                _remember(change, root, undo)
            outcomes.append(_make(change, root, nvml_set))
        except (OSError, FairleadError) as e:
            words = f"{e.strerror or e}" if isinstance(e, OSError) else str(e)
            if isinstance(change, KernelValue):
                refused.add(change.setting)
                if isinstance(e, OSError) and e.errno == errno.EINVAL:
                    words = f"the kernel refuses {change.value!r} ({words})"
            outcomes.append(Outcome(change=change, done=False, message=f"{target(change)}: {words}"))
    return tuple(outcomes)


def _make(change: AnyChange, root: Root, nvml_set: NvmlSet | None) -> Outcome:
    match change:
        case File():
            write_file(root.join(change.path), _bytes(change.content), change.mode)
            return Outcome(
                change=change, done=True, message=f"{change.path}: {'removed' if change.content is None else 'written'}"
            )
        case KernelValue():
            _write_kernel_value(change, root)
            return Outcome(change=change, done=True, message=f"{change.path}: {change.before or '?'} -> {change.value}")
        case PciBits():
            word = _write_bits(change, root)
            return Outcome(change=change, done=True, message=f"{target(change)}: {change.before:#06x} -> {word:#06x}")
        case Nvml():
            if nvml_set is None:
                return Outcome(change=change, done=False, message=f"{target(change)}: NVML is not at hand")
            nvml_set(change.pci, change.what, change.value)
            return Outcome(change=change, done=True, message=f"{target(change)}: {change.before} -> {change.value}")
        case Unit():
            if not root.is_live:
                return Outcome(change=change, done=True, skipped=True, message=f"{change.name}: not a running system")
            for argv in _commands(change):
                systemctl(argv)
            return Outcome(change=change, done=True, message=f"{change.name}: {', '.join(_verbs(change))}")
        case Reboot():
            return Outcome(change=change, done=False, skipped=True, message=f"{change.what}: waits for a reboot")
        case Module() | BootLoader():
            if not root.is_live:
                return Outcome(change=change, done=True, skipped=True, message=f"{target(change)}: not a running system")
            made_anew(change)
            return Outcome(change=change, done=True, message=f"{target(change)}: done")


def _bytes(content: str | None) -> bytes | None:
    return None if content is None else content.encode("utf-8", "surrogateescape")


def write_file(path: str, content: bytes | None, mode: int = 0o644) -> None:
    """Put ``content`` at ``path`` whole or not at all (None removes it); owner root, exact ``mode``. Raises OSError.

    A reader, a crash and a power cut see the old file or the new one. A left-over of a killed run is overwritten by the next.
    """
    folder, name = os.path.split(path)
    if content is None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            return
        _sync_folder(folder)
        return
    os.makedirs(folder, mode=0o755, exist_ok=True)
    temporary = os.path.join(folder, f".{name}.fairlead-new")
    try:
        os.unlink(temporary)
    except FileNotFoundError:
        pass
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        try:
            view = memoryview(content)
            while view:
                view = view[os.write(fd, view) :]
            os.fchmod(fd, mode)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temporary, path)
    except OSError:
        try:
            os.unlink(temporary)
        except OSError:
            pass
        raise
    _sync_folder(folder)


def _sync_folder(folder: str) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def current_choice(text: str) -> str:
    """The value of a kernel file: of ``always [madvise] never`` the one in brackets, else the text itself."""
    words = text.split()
    chosen = [w[1:-1] for w in words if w.startswith("[") and w.endswith("]")]
    return chosen[0] if len(chosen) == 1 and len(words) > 1 else " ".join(words)


def _write_kernel_value(change: KernelValue, root: Root) -> None:
    path = root.join(change.path)
    fd = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)  # never O_CREAT: an absent kernel file is an error
    try:
        os.write(fd, change.value.encode() + b"\n")
    finally:
        os.close(fd)
    with open(path, encoding="utf-8", errors="replace") as f:
        got = current_choice(f.read(65536))
    if got != " ".join(change.value.split()):
        raise HostError(f"reads back {got!r} after {change.value!r} was written", hint="another program writes this value")


def _write_bits(change: PciBits, root: Root) -> int:
    fd = os.open(root.join(f"/sys/bus/pci/devices/{change.address}/config"), os.O_RDWR | os.O_CLOEXEC)
    try:
        raw = os.pread(fd, 2, change.offset)
        if len(raw) != 2:
            raise HostError(f"config space ends before {change.offset:#x}", hint="reading beyond 64 bytes needs root")
        word = int.from_bytes(raw, "little")
        wanted = word & ~change.mask & 0xFFFF | change.value
        os.pwrite(fd, wanted.to_bytes(2, "little"), change.offset)
        got = int.from_bytes(os.pread(fd, 2, change.offset), "little")
    finally:
        os.close(fd)
    if got & change.mask != change.value & change.mask:
        raise HostError(f"reads back {got:#06x} after {wanted:#06x} was written: the device keeps these bits")
    return got


def _verbs(change: Unit) -> list[str]:
    words = ["read unit files again"] if change.daemon_reload else []
    if change.enabled is not None:
        words.append("enable" if change.enabled else "disable")
    if change.restart:
        words.append("restart")
    elif change.active is not None:
        words.append("start" if change.active else "stop")
    return words


def _commands(change: Unit) -> list[list[str]]:
    commands = [["daemon-reload"]] if change.daemon_reload else []
    if change.enabled is not None:
        commands.append(["enable" if change.enabled else "disable", change.name])
    if change.restart:
        commands.append(["restart", change.name])
    elif change.active is not None:
        commands.append(["start" if change.active else "stop", change.name])
    return commands


def systemctl(arguments: list[str]) -> None:
    """Run systemctl with a deadline. Raises HostError with its own words."""
    _run(["systemctl", "--no-ask-password", *arguments], SYSTEMCTL_SECONDS, "this node does not run systemd")


def made_anew(change: Module | BootLoader) -> None:
    """Load the module, or have the boot loader's configuration written. Raises HostError with the tool's own words."""
    if isinstance(change, Module):
        _run(["modprobe", "--", change.name], MODPROBE_SECONDS, "install kmod")
    elif change.tool == "grubby":
        words = [f"--args={' '.join(change.words)}"] if change.words else []
        words += [f"--remove-args={' '.join(change.without)}"] if change.without else []
        _run(["grubby", "--update-kernel=ALL", *words], BOOT_LOADER_SECONDS, "install grubby")
    else:
        _run([change.tool], BOOT_LOADER_SECONDS, f"install {change.tool}")


def _run(command: list[str], seconds: float, missing: str) -> None:
    words = " ".join(w for w in command if w not in ("--no-ask-password", "--"))
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False)
    except FileNotFoundError:
        raise HostError(f"{command[0]}: not installed; {missing}") from None
    except subprocess.TimeoutExpired:
        raise HostError(f"{words}: no answer within {seconds:.0f} s") from None
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise HostError(f"{words}: {said[0] if said else f'exit code {done.returncode}'}")


def _record(change: AnyChange, root: Root) -> dict[str, Any]:
    match change:
        case File(path=path, setting=setting):
            try:
                with open(root.join(path), "rb") as f:
                    content: str | None = base64.b64encode(f.read()).decode()
                    mode = os.fstat(f.fileno()).st_mode & 0o7777
            except FileNotFoundError:
                content, mode = None, 0o644
            return {"kind": "file", "setting": setting, "path": path, "content": content, "mode": mode}
        case KernelValue(path=path, setting=setting):
            with open(root.join(path), encoding="utf-8", errors="replace") as f:
                return {"kind": "kernel", "setting": setting, "path": path, "value": current_choice(f.read(65536))}
        case PciBits():
            return {
                "kind": "pci",
                "setting": change.setting,
                "address": change.address,
                "offset": change.offset,
                "mask": change.mask,
                "value": change.before & change.mask,
                "what": change.what,
                "disruption": change.disruption.value,
            }
        case Nvml():
            return {"kind": "nvml", "setting": change.setting, "pci": change.pci, "what": change.what, "value": change.before}
        case Unit() | Module() | BootLoader() | Reboot():
            raise TypeError(f"{target(change)} has no undo record")


def _undo_path(change: AnyChange, undo: str) -> str:
    name = hashlib.sha256(f"{change.setting} {target(change)}".encode()).hexdigest()[:16]
    return f"{undo}/{change.setting}.{name}.json"


def _remember(change: AnyChange, root: Root, undo: str) -> None:
    """Note what is there before fairlead's first change of this target. Later changes keep the first note."""
    path = root.join(_undo_path(change, undo))
    if os.path.exists(path):
        return
    write_file(path, json.dumps(_record(change, root), indent=1).encode() + b"\n", 0o600)


def undo_changes(root: Root, undo: str = UNDO) -> tuple[tuple[str, AnyChange], ...]:
    """What would bring back the state before fairlead, each with its record's path. Raises HostError for a bad record."""
    folder = root.join(undo)
    try:
        names = sorted(n for n in os.listdir(folder) if n.endswith(".json") and not n.startswith("."))
    except FileNotFoundError:
        return ()
    found: list[tuple[str, AnyChange]] = []
    for name in names:
        path = os.path.join(folder, name)
        try:
            with open(path, encoding="utf-8") as f:
                found.append((path, _from_record(json.load(f))))
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise HostError(f"{path}: not an undo record: {e}", hint="remove it if it is of no use") from None
    return tuple(found)


def _from_record(r: dict[str, Any]) -> AnyChange:
    why = "as it was before fairlead"
    match r["kind"]:
        case "file":
            content = None if r["content"] is None else base64.b64decode(r["content"]).decode("utf-8", "surrogateescape")
            return File(setting=r["setting"], why=why, path=r["path"], content=content, mode=r["mode"])
        case "kernel":
            return KernelValue(setting=r["setting"], why=why, path=r["path"], value=r["value"])
        case "pci":
            return PciBits(
                setting=r["setting"],
                why=why,
                address=r["address"],
                offset=r["offset"],
                mask=r["mask"],
                value=r["value"],
                before=0,
                what=r["what"],
                disruption=Disruption(r.get("disruption", "idle")),
            )
        case "nvml":
            return Nvml(setting=r["setting"], why=why, pci=r["pci"], what=r["what"], value=r["value"], before=-1)
        case kind:
            raise ValueError(f"unknown kind {kind!r}")


def undo_all(root: Root, *, nvml_set: NvmlSet | None = None, undo: str = UNDO, busy: bool = False) -> tuple[Outcome, ...]:
    """Bring back the state before fairlead, last change first; the record of what came back is removed.

    busy: a job runs here, so what a job would notice stays, with its record, and its outcome is ``skipped``.
    """
    outcomes: list[Outcome] = []
    for path, change in reversed(undo_changes(root, undo)):
        if busy and change.disruption is not Disruption.NONE:
            words = f"{target(change)}: waits for an idle node"
            outcomes.append(Outcome(change=change, done=False, skipped=True, message=words))
            continue
        try:
            outcome = _make(change, root, nvml_set)
        except (OSError, FairleadError) as e:
            outcome = Outcome(change=change, done=False, message=f"{target(change)}: {e}")
        if outcome.done:
            os.unlink(path)
        outcomes.append(outcome)
    return tuple(outcomes)
