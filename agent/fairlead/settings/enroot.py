"""Mounts files of the node into containers of enroot and pyxis: /etc/nccl.conf, the files that the task prolog reads, and
/opt/fairlead for `fairlead run`.

Without this setting, NCCL in a container does not see the node's /etc/nccl.conf. It reads the container's own file, or none. The
task prolog of a step in a pyxis container runs inside the container. If the hook is missing in the container, the task ends.
Declare this setting on nodes with enroot. Source: enroot's doc/configuration.md (mounts.d) and doc/image-format.md (fstab lines;
x-create makes the mount point, and nofail and silent skip files that do not exist).
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from fairlead.model.change import File
from fairlead.model.facts import Missing, Node
from fairlead.model.setting import Setting, Want

FILE = "/etc/enroot/mounts.d/50-fairlead.fstab"
HEAD = "# Written by fairlead (setting enroot); changes made here are put back.\n"
_PATH = Annotated[str, Meta(pattern=r"^(/[A-Za-z0-9_.+-]+)+(?!\n)$")]
_SAFE = "bind,ro,nosuid,nodev,nofail,silent"


class EnrootWant(Want, frozen=True, forbid_unknown_fields=True, kw_only=True):
    files: Annotated[
        tuple[_PATH, ...],
        Meta(description="Further files to mount read-only into containers (the site's own task prolog, a topology file)."),
    ] = ()
    scratch: Annotated[
        str,
        Meta(
            pattern=r"^$|^(/[A-Za-z0-9_.+-]+)+(?!\n)$", description="The folder of jobenv.scratch, which containers may write to."
        ),
    ] = ""


class Observed(Struct, frozen=True):
    file: str | None


def observe(node: Node) -> Observed | Missing:
    text = node.text(FILE)
    return text if isinstance(text, Missing) else Observed(text)


def content(want: EnrootWant) -> str:
    """Return the fstab. Containers can run the hooks and the declared files, read the other files, and write to the scratch
    folder."""
    lines = [f"{path} {path} none x-create=file,{_SAFE},noexec" for path in ("/etc/nccl.conf", "/etc/fairlead/hooks")]
    lines.append(f"/run/fairlead /run/fairlead none x-create=dir,{_SAFE},noexec")
    lines.append(f"/etc/slurm/fairlead /etc/slurm/fairlead none x-create=dir,{_SAFE}")
    lines.append(f"/opt/fairlead /opt/fairlead none x-create=dir,{_SAFE}")
    lines += [f"{path} {path} none x-create=file,{_SAFE}" for path in want.files]
    if want.scratch:
        lines.append(f"{want.scratch} {want.scratch} none x-create=dir,bind,rw,nosuid,nodev,nofail,silent")
    return HEAD + "".join(f"{line}\n" for line in lines)


def plan(want: EnrootWant, observed: Observed) -> tuple[File, ...]:
    text = content(want)
    if observed.file == text:
        return ()
    why = f"{FILE} is missing" if observed.file is None else f"{FILE} differs"
    return (File(setting="enroot", why=why, path=FILE, content=text, before=observed.file),)


setting = Setting(
    summary="What containers of enroot and pyxis see of fairlead and /etc/nccl.conf",
    group="containers",
    want=EnrootWant,
    observe=observe,
    plan=plan,
    reads=(FILE,),
)
