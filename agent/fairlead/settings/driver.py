"""Installs one exact version of the NVIDIA driver, and everything that has to change with it, in one transaction.

The wanted set is a list of packages by version and hash. `fairlead lock` has resolved it on the admin host (fairlead.lock),
and the document carries it. The set is persisted when its packages are installed, on hold and pinned (apt_preferences(5)), and
excluded from unattended-upgrades. It is effective when the module in the kernel (/sys/module/nvidia/version,
/proc/driver/nvidia/version) and the library that programs load have this version. Between the two there is a reload of the
modules, for which no program may use a GPU, or a reboot. Before a reboot, the kernel that boots next must have a module of
this version. Without it the node comes back without a driver.

Sources: apt_preferences(5), apt-mark(8), unattended-upgrades README (Unattended-Upgrade::Package-Blacklist, Python regular
expressions), dkms(8); NVIDIA driver README, "Open Linux Kernel Modules"; NVIDIA Fabric Manager user guide (versions must
match).
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from msgspec import Meta, Struct

from fairlead.errors import ConfigError
from fairlead.model import debian_version
from fairlead.model.change import AnyChange, Disruption, File, Layer, ModuleReload, Package, Packages, Reboot
from fairlead.model.facts import Missing, Node, unreadable
from fairlead.model.setting import Setting, Want

INSTALLED, KERNELS, RUNNING = "/@packages", "/@kernels", "/proc/sys/kernel/osrelease"
PIN = "/etc/apt/preferences.d/fairlead-driver.pref"
UNATTENDED = "/etc/apt/apt.conf.d/52fairlead-driver"
#: Above 1000, apt also installs an older version. Others pin NVIDIA's newest at 1001 (azhpc-images, 00-nvidia-prefer).
PRIORITY = 2000
_HEAD = "Written by fairlead (setting driver); changes made here are put back."
_PINNED = re.compile(r"^Package: (\S+)\nPin: version (\S+)$", re.MULTILINE)


class DriverWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    branch: Annotated[
        str,
        Meta(pattern=r"^([0-9]{3})?(?!\n)$", description="Driver branch, such as 580: `fairlead lock` takes its newest version."),
    ] = ""
    version: Annotated[
        str,
        Meta(
            pattern=r"^([0-9]{3}\.[0-9]+(\.[0-9]+)?)?(?!\n)$",
            description="Exact driver version; empty, and no branch: fairlead does nothing.",
        ),
    ] = ""
    module: Annotated[
        Literal["open", "proprietary", "none"],
        Meta(description="Which kernel module the set has; none: the module comes in another way."),
    ] = "open"
    install: Annotated[
        tuple[Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9+.-]*(?!\n)$")], ...],
        Meta(description="Packages to install, by name; `fairlead lock` adds what they need."),
    ] = ()
    set: Annotated[
        str, Meta(pattern=r"^[a-z0-9][a-z0-9_-]*(?!\n)$", description="The set of fairlead.lock that this node takes.")
    ] = "default"
    gpu: Annotated[
        Literal["", "maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell"],
        Meta(description="Architecture of the GPUs; empty: the one in the hardware profile."),
    ] = ""
    mirror: Annotated[
        str,
        Meta(
            pattern=r"^(https?://[^\s]+|/[^\s]*)?(?!\n)$",
            description="Folder of package files (http or a path on the node); empty: `fairlead provision` brings them.",
        ),
    ] = ""
    hold: Annotated[bool, Meta(description="Packages are on hold, pinned, and excluded from unattended-upgrades.")] = True
    packages: Annotated[
        tuple[Package, ...], Meta(description="The packages of the set; `fairlead lock` writes them, not a person.")
    ] = ()


class Installed(Struct, frozen=True):
    """Describes a package as dpkg knows it. ``whole``: it is installed and configured, and nothing is half done."""

    version: str
    on_hold: bool
    whole: bool


class Kernel(Struct, frozen=True):
    """Describes an installed kernel. ``module``: the version of its NVIDIA module, "none" or "unknown". ``next``: whether it
    boots next: "yes", "no" or "maybe"."""

    release: str
    headers: bool
    module: str
    next: str


class Observed(Struct, frozen=True):
    """Holds what was read. ``loaded``: the version of the module in the kernel, None for none. ``open``: whether it is the
    open module. ``library``: the version of the library that programs load. ``pin``, ``unattended``: the texts of our files."""

    installed: dict[str, Installed]
    kernels: tuple[Kernel, ...]
    running: str
    loaded: str | None
    open: bool | None
    library: str | None
    pin: str | None
    unattended: str | None


def observe(node: Node) -> Observed | Missing:
    texts: dict[str, str | None] = {}
    for path in (INSTALLED, KERNELS, RUNNING, PIN, UNATTENDED):
        text = node.text(path)
        if isinstance(text, Missing):
            return text
        texts[path] = text
    if texts[INSTALLED] is None:
        return unreadable("no package database that is known here (dpkg's)")
    installed = {}
    for line in (texts[INSTALLED] or "").splitlines():
        words = line.split(" ")
        if len(words) == 5 and words[4] not in ("config-files", "not-installed"):
            installed[words[0]] = Installed(words[2], words[3] == "hold", words[4] == "installed")
    kernels = tuple(
        Kernel(w[0], w[1] == "yes", w[2], w[3]) for line in (texts[KERNELS] or "").splitlines() if len(w := line.split(" ")) == 4
    )
    loaded, software = node.driver.module_version, node.driver.software
    return Observed(
        installed,
        kernels,
        (texts[RUNNING] or "").strip(),
        loaded if isinstance(loaded, str) else None,
        software.open_module if isinstance(software.open_module, bool) else None,
        software.library_file if isinstance(software.library_file, str) else None,
        texts[PIN],
        texts[UNATTENDED],
    )


def pin_text(packages: tuple[Package, ...]) -> str:
    head = f"Explanation: {_HEAD}\n"
    return "\n".join(f"{head}Package: {p.name}\nPin: version {p.version}\nPin-Priority: {PRIORITY}\n" for p in packages)


def unattended_text(packages: tuple[Package, ...]) -> str:
    names = (re.sub("[.+]", "[\\g<0>]", p.name) for p in packages)
    lines = "".join(f'  "^{name}$";\n' for name in names)
    return f"// {_HEAD}\nUnattended-Upgrade::Package-Blacklist {{\n{lines}}};\n"


def former(pin: str | None) -> dict[str, str]:
    """Return the set before this one, as our pin file has it: versions by package name."""
    return dict(_PINNED.findall(pin or ""))


def plan(want: DriverWant, observed: Observed) -> tuple[AnyChange, ...]:
    if not want.version and not want.branch and not want.packages:
        return _no_longer_declared(observed)
    if not want.packages or not want.version:
        raise ConfigError("node.json", "settings.driver.packages", "the document has no set", hint="run `fairlead lock`")
    changes = _packages(want, observed)
    moves = next((c for c in changes if isinstance(c, Packages) and (c.install or c.remove)), None)
    after = moves.disruption if moves else Disruption.NONE
    kept = tuple(p for p in want.packages if p.kept)
    files = (PIN, pin_text(kept), observed.pin), (UNATTENDED, unattended_text(kept), observed.unattended)
    for path, text, before in files:
        wanted = text if want.hold else None
        if before != wanted:
            why = f"{path} does not name the driver's set" if wanted else f"{path} is ours, and the driver is not to be kept"
            changes.append(_file(path, wanted, before, why, after))
    if moves is None:
        _check_library(want, observed)
        _check_next_kernel(want, observed)
    return (*changes, *_effective(want, observed, moves=moves is not None))


def _file(path: str, content: str | None, before: str | None, why: str, disruption: Disruption = Disruption.NONE) -> File:
    return File(
        setting="driver", why=why, layer=Layer.PERSISTED, path=path, content=content, before=before, disruption=disruption
    )


def _no_longer_declared(observed: Observed) -> tuple[AnyChange, ...]:
    """Return the changes for a node that declares no driver any more. They remove our two files, and the packages stay as they
    are."""
    ours = tuple((p, text) for p, text in ((PIN, observed.pin), (UNATTENDED, observed.unattended)) if text is not None)
    return tuple(_file(path, None, text, f"{path} is ours, and no driver is declared any more") for path, text in ours)


def _packages(want: DriverWant, observed: Observed) -> list[AnyChange]:
    ours = former(observed.pin)
    install = []
    for package in want.packages:
        have = observed.installed.get(package.name)
        if (
            have is not None
            and have.whole
            and (
                have.version == package.version
                or (not package.kept and debian_version.key(have.version) > debian_version.key(package.version))
            )
        ):
            continue
        if have is not None and have.on_hold and have.version != package.version and package.name not in ours:
            raise ConfigError(
                "apt-mark",
                package.name,
                f"somebody holds it at {have.version}; wanted {package.version}",
                hint=f"`apt-mark unhold {package.name}` gives it free",
            )
        install.append(package)
    names = {p.name for p in want.packages}
    remove = tuple(
        sorted(n for n, v in ours.items() if n not in names and n in observed.installed and observed.installed[n].version == v)
    )
    loose = tuple(p.name for p in want.packages if want.hold and p.kept and not _is_on_hold(p.name, observed, moved=p in install))
    if not install and not remove and not loose:
        return []
    before = tuple((n, observed.installed[n].version) for n in (*(p.name for p in install), *remove) if n in observed.installed)
    idle = Disruption.DRAIN if observed.loaded is not None else Disruption.IDLE
    return [
        Packages(
            setting="driver",
            why=_why(want, install, remove, loose, dict(before)),
            layer=Layer.PERSISTED,
            disruption=idle if install or remove else Disruption.NONE,
            install=tuple(install),
            allowed=want.packages,
            remove=remove,
            hold=loose,
            mirror=want.mirror,
            before=before,
            keep=tuple(f"{n}_{v.replace(':', '%3a')}_" for n, v in ours.items()),
        )
    ]


def _is_on_hold(name: str, observed: Observed, *, moved: bool) -> bool:
    have = observed.installed.get(name)
    return have is not None and have.on_hold and not moved


def _why(
    want: DriverWant, install: list[Package], remove: tuple[str, ...], loose: tuple[str, ...], before: dict[str, str]
) -> str:
    if not install and not remove:
        return f"{loose[0]} is not on hold" + (f" (and {len(loose) - 1} more)" if len(loose) > 1 else "")
    first = next((p for p in install if p.name in want.install), install[0] if install else None)
    name = first.name if first is not None else remove[0]
    now = before.get(name)
    seen = f"{name} is half installed" if first is not None and now == first.version else f"{name} is {now or 'not installed'}"
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
    """Raise ConfigError if the kernel that boots next has no module of the wanted version. Where it is not known which one
    boots next, every kernel counts."""
    if want.module == "none":
        return
    for kernel in observed.kernels:
        if kernel.next == "no" or kernel.module in (want.version, "unknown"):
            continue
        has = "no NVIDIA module" if kernel.module == "none" else f"the NVIDIA module of {kernel.module}"
        word = "boots next" if kernel.next == "yes" else "may boot next"
        need = "its headers are not installed" if not kernel.headers else "its headers are there, so dkms has failed"
        hint = (
            f"`dkms autoinstall -k {kernel.release}`, and see /var/lib/dkms/nvidia*/{want.version}/build/make.log"
            if kernel.headers
            else f"add linux-headers-{kernel.release} to settings.driver.install and run `fairlead lock`, or remove that kernel"
        )
        raise ConfigError(
            "node.json",
            "settings.driver",
            f"kernel {kernel.release} {word} and has {has}, wanted {want.version}; {need}",
            hint=hint,
        )


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
    reads=(INSTALLED, KERNELS, RUNNING, PIN, UNATTENDED),
    disruption=Disruption.REBOOT,
)
