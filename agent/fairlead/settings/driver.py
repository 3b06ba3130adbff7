"""Installs one exact version of the NVIDIA driver, with all packages that must change with it, in one transaction.

The wanted set is a list of packages with their versions and hashes. `fairlead lock` computes it on the admin host
(fairlead.lock), and the document contains it. The set is persisted when its packages are installed and stay at their version. On
Debian and Ubuntu they are on hold, pinned and excluded from unattended-upgrades (``apt_hold``). On the EL family dnf's
versionlock list names all of them (``dnf_hold``). The set is effective when the module in the kernel
(/sys/module/nvidia/version, /proc/driver/nvidia/version) and the library that programs load have this version. A persisted set
becomes effective with a reload of the modules or with a reboot. For a reload, no program may use a GPU. Before a reboot, the
kernel that boots next must have a module of this version. Otherwise the node has no driver after the reboot.

Sources: apt-mark(8), dkms(8); dnf versionlock plugin of dnf-plugins-core 4.3; NVIDIA driver README, "Open Linux Kernel
Modules"; NVIDIA Fabric Manager user guide (versions must match).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.model import apt_hold, debian_version, dnf_hold, rpm_version
from fairlead.model.change import AnyChange, Disruption, File, Layer, ModuleReload, Package, Packages, Reboot
from fairlead.model.facts import Missing, Node, unreadable
from fairlead.model.setting import Setting, Want

INSTALLED, KERNELS, RUNNING = "/@packages", "/@kernels", "/proc/sys/kernel/osrelease"
#: What stands in the place of dpkg's selection for a package of rpm.
RPM = "-"
READ = (INSTALLED, KERNELS, RUNNING, apt_hold.PIN, apt_hold.UNATTENDED, dnf_hold.LIST, dnf_hold.CONF, dnf_hold.DNF_CONF)


class DriverWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    branch: Annotated[
        str,
        Meta(
            pattern=r"^([0-9]{3})?(?!\n)$", description="Driver branch, such as 580. `fairlead lock` chooses its newest version."
        ),
    ] = ""
    version: Annotated[
        str,
        Meta(
            pattern=r"^([0-9]{3}\.[0-9]+(\.[0-9]+)?)?(?!\n)$",
            description="Exact driver version. If it and `branch` are empty, fairlead installs no driver.",
        ),
    ] = ""
    module: Annotated[
        Literal["open", "proprietary", "none"],
        Meta(description="Kernel module in the set. none: something else installs the module."),
    ] = "open"
    install: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9+._-]*(?!\n)$")], ...],
        Meta(description="Names of packages to install. `fairlead lock` adds the packages that these need."),
    ] = ()
    set: Annotated[
        str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]*(?!\n)$", description="Name of the set in fairlead.lock for this node.")
    ] = "default"
    gpu: Annotated[
        Literal["", "maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell"],
        Meta(description="Architecture of the GPUs. If empty, that of the hardware profile."),
    ] = ""
    mirror: Annotated[
        str,
        Meta(
            pattern=r"^(https?://[^\s]+|/[^\s]*)?(?!\n)$",
            description="Folder of package files (http, or a path on the node). If empty, `fairlead provision` copies the files.",
        ),
    ] = ""
    hold: Annotated[
        bool,
        Meta(description="Packages stay at their version (hold and pin of apt, versionlock of dnf)."),
    ] = True
    packages: Annotated[
        tuple[Package, ...], Meta(description="The packages of the set. `fairlead lock` writes this list. Do not edit it.")
    ] = ()


class Installed(Struct, frozen=True):
    """Describes a package as dpkg or rpm lists it. ``whole`` says that the package is completely installed and configured, and
    that no second version of it is there by mistake. ``beside`` has the other installed versions of a package that may be
    installed in several versions (a kernel of the EL family)."""

    version: str
    on_hold: bool
    whole: bool
    beside: tuple[str, ...] = ()


class Kernel(Struct, frozen=True):
    """Describes an installed kernel. ``headers`` says whether its headers are installed. ``module`` is the version of its NVIDIA
    module, "none" or "unknown". ``next`` says whether this kernel boots next: "yes", "no" or "maybe"."""

    release: str
    headers: bool
    module: str
    next: str


class Observed(Struct, frozen=True):
    """Holds what was read. ``loaded`` is the version of the loaded NVIDIA module, or None if no module is loaded. ``open`` says
    whether it is the open module. ``library`` is the version of the library that programs load. ``format`` is deb or rpm, or ""
    if no package is installed. ``pin`` and ``unattended`` are the texts of fairlead's two files for apt. ``lock_list`` is the
    text of dnf's versionlock list. ``lock_conf`` is the text of that plugin's configuration, or None if dnf has no such
    plugin. ``dnf_conf`` is the text of dnf's own configuration."""

    installed: dict[str, Installed]
    kernels: tuple[Kernel, ...]
    running: str
    loaded: str | None
    open: bool | None
    library: str | None
    format: str = "deb"
    pin: str | None = None
    unattended: str | None = None
    lock_list: str | None = None
    lock_conf: str | None = None
    dnf_conf: str | None = None


def observe(node: Node) -> Observed | Missing:
    texts: dict[str, str | None] = {}
    for path in READ:
        text = node.text(path)
        if isinstance(text, Missing):
            return text
        texts[path] = text
    if texts[INSTALLED] is None:
        return unreadable("no package database that is known here (dpkg's or rpm's)")
    rows = [words for line in (texts[INSTALLED] or "").splitlines() if len(words := line.split(" ")) == 5]
    kernels = tuple(
        Kernel(w[0], w[1] == "yes", w[2], w[3]) for line in (texts[KERNELS] or "").splitlines() if len(w := line.split(" ")) == 4
    )
    loaded, software = node.driver.module_version, node.driver.software
    return Observed(
        _installed(rows),
        kernels,
        (texts[RUNNING] or "").strip(),
        loaded if isinstance(loaded, str) else None,
        software.open_module if isinstance(software.open_module, bool) else None,
        software.library_file if isinstance(software.library_file, str) else None,
        format="" if not rows else "rpm" if rows[0][3] == RPM else "deb",
        pin=texts[apt_hold.PIN],
        unattended=texts[apt_hold.UNATTENDED],
        lock_list=texts[dnf_hold.LIST],
        lock_conf=texts[dnf_hold.CONF],
        dnf_conf=texts[dnf_hold.DNF_CONF],
    )


def _installed(rows: Iterable[list[str]]) -> dict[str, Installed]:
    """Return the installed packages by name. Of several versions of a package the newest one counts first."""
    installed: dict[str, Installed] = {}
    for name, architecture, version, selection, status in rows:
        if status in ("config-files", "not-installed") or architecture in ("i386", "i686"):
            continue
        versions = [version]
        before = installed.get(name)
        if before is not None and selection == RPM:
            versions = sorted((*before.beside, before.version, version), key=rpm_version.key)
        installed[name] = Installed(versions[-1], selection == "hold", status == "installed", tuple(versions[:-1]))
    return installed


def former(observed: Observed) -> dict[str, str]:
    """Return the versions by package name that fairlead's pin file or fairlead's part of the versionlock list has. They are the
    set that fairlead installed before."""
    return {**apt_hold.ours(observed.pin), **dnf_hold.ours(observed.lock_list)}


def plan(want: DriverWant, observed: Observed) -> tuple[AnyChange, ...]:
    if not want.version and not want.branch and not want.packages:
        return _no_longer_declared(observed)
    if not want.packages or not want.version:
        raise ConfigError("node.json", "settings.driver.packages", "the document has no set", hint="run `fairlead lock`")
    _check_format(want, observed)
    changes = _packages(want, observed)
    moves = next((c for c in changes if isinstance(c, Packages) and (c.install or c.remove)), None)
    after = moves.disruption if moves else Disruption.NONE
    for file in _hold_files(want, observed, after):
        if file.before != file.content:
            changes.append(file)
    if moves is None:
        _check_library(want, observed)
        _check_next_kernel(want, observed)
    return (*changes, *_effective(want, observed, moves=moves is not None))


def _check_format(want: DriverWant, observed: Observed) -> None:
    """Raise ConfigError if the set is not for this kind of node, or if dnf cannot keep the packages at their version."""
    kind = want.packages[0].format
    if observed.format and (observed.format != kind or any(p.format != kind for p in want.packages)):
        words = f"the set has {kind} packages, and this node has {observed.format} packages"
        raise ConfigError("node.json", "settings.driver.packages", words, hint="declare another settings.driver.set for it")
    if kind == "rpm" and want.hold:
        _check_plugin(want, observed)


def _check_plugin(want: DriverWant, observed: Observed) -> None:
    """Raise ConfigError if dnf would not follow the versionlock list, or if the list cannot be written again as it is."""
    plugin = "python3-dnf-plugin-versionlock"
    if observed.lock_conf is None and plugin not in (p.name for p in want.packages):
        words = f"{plugin} is not installed, so dnf would move the packages"
        raise ConfigError("node.json", "settings.driver.hold", words, hint=f"add {plugin} to settings.driver.install")
    faults = {
        dnf_hold.CONF: dnf_hold.fault(observed.lock_conf or ""),
        dnf_hold.DNF_CONF: dnf_hold.plugins_fault(observed.dnf_conf or ""),
    }
    for file, fault in faults.items():
        if fault:
            hint = "take that out of the file, or declare hold = false"
            raise ConfigError(file, "", f"{fault}, so dnf would move the packages", hint=hint)
    if "\ufffd" in (observed.lock_list or ""):
        hint = "remove these bytes from other people's lines"
        raise ConfigError(dnf_hold.LIST, "", "has bytes that are not UTF-8 text, and fairlead would change them", hint=hint)


def _hold_files(want: DriverWant, observed: Observed, disruption: Disruption) -> tuple[File, ...]:
    """Return the files that keep the packages at their version."""
    kept = tuple(p for p in want.packages if p.kept) if want.hold else ()
    why = "{} does not name the driver's set" if want.hold else "{} is ours, and the driver is not to be kept"
    if want.packages[0].format == "rpm":
        return (_list_file(observed.lock_list, dnf_hold.lines_of(kept), why, disruption),)
    return (
        _file(apt_hold.PIN, apt_hold.pin_text(kept) if want.hold else None, observed.pin, why, disruption),
        _file(apt_hold.UNATTENDED, apt_hold.unattended_text(kept) if want.hold else None, observed.unattended, why, disruption),
    )


def _file(path: str, content: str | None, before: str | None, why: str, disruption: Disruption = Disruption.NONE) -> File:
    """Return the change of a whole file. ``why``: words with {} where the path is to stand."""
    return File(
        setting="driver",
        why=why.format(path),
        layer=Layer.PERSISTED,
        path=path,
        content=content,
        before=before,
        disruption=disruption,
    )


def _list_file(before: str | None, lines: tuple[str, ...], why: str, disruption: Disruption = Disruption.NONE) -> File:
    """Return the change of fairlead's lines in dnf's versionlock list. ``why`` as in ``_file``."""
    whole = _file(dnf_hold.LIST, dnf_hold.with_lines(before, lines), before, why, disruption)
    return msgspec.structs.replace(whole, lines=lines)


def _no_longer_declared(observed: Observed) -> tuple[AnyChange, ...]:
    """Return the changes for a node that declares no driver any more. They remove our holds, files and lines, and the packages
    stay as they are."""
    why = "{} is ours, and no driver is declared any more"
    free = _on_hold_by_us(observed)
    holds = Packages(setting="driver", why=why.format("the hold"), layer=Layer.PERSISTED, install=(), allowed=(), unhold=free)
    ours = [
        _file(path, None, text, why) for path, text in ((apt_hold.PIN, observed.pin), (apt_hold.UNATTENDED, observed.unattended))
    ]
    ours.append(_list_file(observed.lock_list, (), why))
    return (*((holds,) if free else ()), *(file for file in ours if file.content != file.before))


def _on_hold_by_us(observed: Observed) -> tuple[str, ...]:
    """Return the packages that fairlead's pin file names and that apt keeps on hold."""
    installed = observed.installed
    return tuple(name for name in apt_hold.ours(observed.pin) if name in installed and installed[name].on_hold)


def _packages(want: DriverWant, observed: Observed) -> list[AnyChange]:
    ours = former(observed)
    install = [
        p for p in want.packages if not _is_there(p, observed.installed.get(p.name)) or _is_unbuilt(p, want, observed, ours)
    ]
    for package in install:
        _check_free(package, observed, ours)
    names = {p.name for p in want.packages}
    remove = tuple(
        sorted(n for n, v in ours.items() if n not in names and n in observed.installed and observed.installed[n].version == v)
    )
    by_apt = [p for p in want.packages if want.hold and p.kept and p.format == "deb"]
    loose = tuple(p.name for p in by_apt if not _is_on_hold(p.name, observed, moved=p in install))
    free = () if want.hold else _on_hold_by_us(observed)
    if not install and not remove and not loose and not free:
        return []
    before = tuple((n, observed.installed[n].version) for n in (*(p.name for p in install), *remove) if n in observed.installed)
    idle = Disruption.DRAIN if observed.loaded is not None else Disruption.IDLE
    return [
        Packages(
            setting="driver",
            why=_why(want, install, remove, loose or free, dict(before)),
            layer=Layer.PERSISTED,
            disruption=idle if install or remove else Disruption.NONE,
            install=tuple(install),
            allowed=want.packages,
            remove=remove,
            hold=loose,
            unhold=free,
            mirror=want.mirror,
            before=before,
            keep=tuple(_cached(observed.format, n, v.replace(":", "%3a")) for n, v in ours.items()),
        )
    ]


def _is_there(package: Package, have: Installed | None) -> bool:
    """Say whether a package of the set is installed as wanted. A package that is only needed may be newer."""
    if have is None or not have.whole:
        return False
    if package.version in (have.version, *have.beside):
        return True
    order = rpm_version.key if package.format == "rpm" else debian_version.key
    return not package.kept and order(have.version) > order(package.version)


def _is_unbuilt(package: Package, want: DriverWant, observed: Observed, ours: dict[str, str]) -> bool:
    """Say whether an installed dkms package has no module yet because our own run was interrupted.

    For rpm such a package is installed, and its script is never run again. Our lines in the versionlock list are written after
    the packages, so a list that does not name this version says that the run has not ended.
    """
    if package.format != "rpm" or not package.name.endswith("-dkms") or not want.hold or want.module == "none":
        return False
    lacking = any(k.headers and k.next != "no" and k.module not in (want.version, "unknown") for k in observed.kernels)
    return lacking and ours.get(package.name) != package.version


def _check_free(package: Package, observed: Observed, ours: dict[str, str]) -> None:
    """Raise ConfigError if somebody else keeps this package from its wanted version."""
    have = observed.installed.get(package.name)
    if have is not None and have.on_hold and have.version != package.version and package.name not in ours:
        words = f"somebody holds it at {have.version}; wanted {package.version}"
        raise ConfigError("apt-mark", package.name, words, hint=f"`apt-mark unhold {package.name}` gives it free")
    if package.format == "rpm":
        now = have.version if have is not None else ""
        line = dnf_hold.against(observed.lock_list, package.name, now, package.version, package.architecture)
        if line:
            words = f"the line {line[:100]!r} of somebody else keeps it from {package.version}"
            hint = f"`dnf versionlock delete {package.name}` (or that line removed by hand) gives it free"
            raise ConfigError(dnf_hold.LIST, package.name, words, hint=hint)


def _cached(kind: str, name: str, version: str) -> str:
    """Return the beginning of the name of a package's file in the node's cache (``Package.file``)."""
    return f"{name}-{version}." if kind == "rpm" else f"{name}_{version}_"


def _is_on_hold(name: str, observed: Observed, *, moved: bool) -> bool:
    have = observed.installed.get(name)
    return have is not None and have.on_hold and not moved


def _why(
    want: DriverWant, install: list[Package], remove: tuple[str, ...], loose: tuple[str, ...], before: dict[str, str]
) -> str:
    if not install and not remove:
        return f"{loose[0]} is {'not ' if want.hold else ''}on hold" + (f" (and {len(loose) - 1} more)" if len(loose) > 1 else "")
    first = next((p for p in install if p.name in want.install), install[0] if install else None)
    name = first.name if first is not None else remove[0]
    now = before.get(name)
    torn = "installed twice" if first is not None and first.format == "rpm" else "half installed"
    seen = f"{name} is {torn}" if first is not None and now == first.version else f"{name} is {now or 'not installed'}"
    return f"driver {want.version}: {len(install)} packages to install, {len(remove)} to remove; {seen}"


def _check_library(want: DriverWant, observed: Observed) -> None:
    if observed.library is not None and observed.library != want.version:
        raise ConfigError(
            "libnvidia-ml.so.1",
            "",
            f"leads to {observed.library} though the packages are of {want.version}",
            hint="another installation shadows them (NVIDIA's .run file: nvidia-uninstall)",
        )


def _check_next_kernel(want: DriverWant, observed: Observed) -> None:
    """Raise ConfigError if the kernel that boots next has no module of the wanted version. If it is unknown which kernel boots
    next, every kernel must have the module."""
    if want.module == "none":
        return
    for kernel in observed.kernels:
        if kernel.next == "no" or kernel.module in (want.version, "unknown"):
            continue
        has = "no NVIDIA module" if kernel.module == "none" else f"the NVIDIA module of {kernel.module}"
        word = "boots next" if kernel.next == "yes" else "may boot next"
        need, hint = _way_to_module(want, kernel, observed.format)
        words = f"kernel {kernel.release} {word} and has {has}, wanted {want.version}; {need}"
        raise ConfigError("node.json", "settings.driver", words, hint=hint)


def _way_to_module(want: DriverWant, kernel: Kernel, kind: str) -> tuple[str, str]:
    """Return why a kernel has no module of the wanted version, and what to do about it."""
    install = "to settings.driver.install and run `fairlead lock`, or remove that kernel"
    dkms = [p.name for p in want.packages if p.name.endswith("-dkms")]
    if kind == "rpm" and not dkms:
        return "no package with a module for it is installed", f"add the kmod package for {kernel.release} {install}"
    if not kernel.headers:
        headers = "kernel-devel" if kind == "rpm" else "linux-headers"
        return "its headers are not installed", f"add {headers}-{kernel.release} {install}"
    build = f"dkms autoinstall -k {kernel.release}"
    if kind == "rpm":
        name = "nvidia-open" if any("-open-" in name for name in dkms) else "nvidia"
        build = f"dkms install -m {name} -v {want.version} -k {kernel.release}"
    log = f"/var/lib/dkms/nvidia*/{want.version}/build/make.log"
    return "its headers are there, so dkms has failed", f"`{build}`, and see {log}"


def _effective(want: DriverWant, observed: Observed, *, moves: bool) -> tuple[AnyChange, ...]:
    kind = {True: "open", False: "proprietary", None: ""}[observed.open]
    right_kind = want.module == "none" or not kind or kind == want.module
    if observed.loaded == want.version and right_kind:
        return ()
    if observed.loaded is None and want.module == "none":
        return ()
    now = (
        "no NVIDIA module is loaded"
        if observed.loaded is None
        else f"the loaded NVIDIA module is {observed.loaded} {kind}".rstrip()
    )
    why = f"{now}, wanted {want.version}" + ("" if want.module == "none" else f" {want.module}")
    here = next((k for k in observed.kernels if k.release == observed.running), None)
    if want.module != "none" and (
        moves or (here is None and not observed.kernels) or (here is not None and here.module in (want.version, "unknown"))
    ):
        disruption = Disruption.IDLE if observed.loaded is None else Disruption.DRAIN
        return (ModuleReload(setting="driver", why=why, disruption=disruption, version=want.version),)
    return (
        Reboot(
            setting="driver",
            why=why,
            layer=Layer.PENDING_REBOOT,
            disruption=Disruption.REBOOT,
            what=f"NVIDIA driver {want.version}",
        ),
    )


setting = Setting(
    summary="The NVIDIA driver: exact version, kept there, moved with all that belongs to it",
    group="driver",
    want=DriverWant,
    observe=observe,
    plan=plan,
    reads=READ,
    disruption=Disruption.REBOOT,
)
