"""Builds kernel modules with dkms where a package's script did not, and says why a build has failed.

Source: dkms(8), dkms 3.0.10 (the folder of a module's build log).
"""

from __future__ import annotations

import re

from fairlead.errors import HostError
from fairlead.host import installed_kernels
from fairlead.host.change.package_command import TRANSACTION_SECONDS, run
from fairlead.host.root import Root

PROGRAM = "/usr/sbin/dkms"
_MAKE_LOG = re.compile(r"/var/lib/dkms/\S+/make\.log")


def failure(root: Root, said: str) -> HostError | None:
    """Return the error for a failed build that a program's output ``said`` names by its log, or None where it names none."""
    if not (built := _MAKE_LOG.search(said)):
        return None
    return HostError(f"dkms could not build the module: {_last_error(root, built[0])}", hint=f"see {built[0]}")


def build_missing(root: Root, module: str, version: str, package: str) -> list[str]:
    """Build and install the module for each kernel that has headers and lacks this version, and return a word for each.

    module: dkms's name for it. package: the name of the package that has its source, for the message. Where dkms is missing or
    a kernel has no headers, nothing is done, because the guard of the next kernel says that. A kernel that GRUB does not boot
    next is not worth an error: its word says that it has no module. Raises HostError with package, kernel and the build's log.
    """
    if not root.exists(PROGRAM):
        return []
    done = []
    for line in installed_kernels.kernels(root).splitlines():
        release, headers, built, boots = line.split(" ")
        if headers != "yes" or built in (version, "unknown"):
            continue
        code, out = run(root, [PROGRAM, "install", "--force", "-m", module, "-v", version, "-k", release], TRANSACTION_SECONDS)
        if code == 0:
            done.append(f"module built for {release}")
        elif boots == "no":
            done.append(f"no module for {release}, which does not boot next")
        else:
            raise _not_built(root, out, package, release, f"/var/lib/dkms/{module}/{version}/build/make.log")
    return done


def _not_built(root: Root, out: str, package: str, release: str, log: str) -> HostError:
    found = _MAKE_LOG.search(out)
    if found or root.exists(log):
        log = found[0] if found else log
        return HostError(f"{package}: dkms could not build the module for {release}: {_last_error(root, log)}", hint=f"see {log}")
    said = (
        next((line for line in out.splitlines() if line.startswith("Error")), "") or (out.strip().splitlines() or ["no word"])[-1]
    )
    return HostError(f"{package}: dkms could not build the module for {release}: {said[:200]}", hint="see `dkms status`")


def _last_error(root: Root, path: str) -> str:
    """Return the first error of the compiler or of NVIDIA's own checks in this log, or else the last line of the log."""
    text = root.read_text(path)
    lines = [line.strip() for line in (text if isinstance(text, str) else "").splitlines()]
    said = [line for line in lines if "error:" in line or "does not appear" in line or line.startswith("ERROR")]
    return (said or lines[-1:] or ["no log"])[0][:200]
