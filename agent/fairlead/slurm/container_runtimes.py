"""Reviews the container runtimes that a node's Slurm is configured for. Says which is missing, and which is too old.

Slurm starts containers in two ways: pyxis, a plugin that runs enroot, and ``srun --container``, which runs the programs of
oci.conf. Sources: README of NVIDIA/pyxis; oci.conf(5); Slurm's Containers Guide.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from fairlead.slurm.conf_review import Remark

#: pyxis needs this release of enroot or a later one (README of NVIDIA/pyxis).
ENROOT_OLDEST = (3, 1, 0)
#: The first release of Slurm with ``srun --container`` (RELEASE_NOTES of Slurm 21.08).
CONTAINER_OPTION = (21, 8)
#: Releases that were seen to give a container's process all CPUs of the step (docs/how-to/containers.md). Later ones may too.
CPUS_LOST = {"crun": (1, 28), "runc": (1, 3, 6)}
#: How a runtime says its release. No other program of oci.conf is started.
VERSION_WORDS = {"enroot": "version", "crun": "--version", "runc": "--version"}

_COMMAND = re.compile(r'\s*RunTime(?:Create|Delete|Kill|Query|Run|Start)\s*=\s*"?\s*([^\s"#]+)', re.IGNORECASE)
_PLAIN = re.compile(r"[A-Za-z0-9_.+/-]{1,255}")


def wanted(plugstack: str, oci_conf: str, *, enroot: bool) -> tuple[str, ...]:
    """Return the programs and the plugin files that the configuration names. ``enroot``: the setting enroot is declared."""
    plugins = _pyxis(plugstack)
    names = [path for _, path in plugins if path.startswith("/")]
    names += ["enroot"] * bool(plugins or enroot)
    names += [match[1] for line in oci_conf.splitlines() if (match := _COMMAND.match(line)) and _PLAIN.fullmatch(match[1])]
    return tuple(dict.fromkeys(names))


def parse_version(text: str) -> tuple[int, ...]:
    """Return the first release number in the text of a program, such as (3, 5, 0), or () if there is none."""
    match = re.search(r"(?<![\d.])(\d{1,6}(?:\.\d{1,6}){1,3})", text[:4096], re.ASCII)
    return tuple(map(int, match[1].split("."))) if match else ()


def review_runtimes(
    plugstack: str,
    oci_conf: str,
    *,
    enroot: bool,
    slurm: tuple[int, ...] | None,
    found: Mapping[str, tuple[int, ...] | None],
) -> Iterator[Remark]:
    """Yield remarks. ``found``: the release of each of ``wanted``, () if the release is not known, None if it is not there.
    ``slurm``: the release of Slurm."""
    plugins = _pyxis(plugstack)
    for word, path in plugins:
        if path.startswith("/") and found.get(path) is None:
            yield Remark(
                level="wrong",
                what=f"plugstack.conf: {path} is not there",
                why="a required plugin that is missing stops every srun and sbatch"
                if word == "required"
                else "no --container-image",
                fix="install pyxis for this release of Slurm, or remove the line",
                source="spank(8) CONFIGURATION",
            )
    if plugins or enroot:
        yield from _enroot(bool(plugins), found.get("enroot"))
    programs = wanted("", oci_conf, enroot=False)
    if programs and slurm and slurm[:2] < CONTAINER_OPTION:
        yield Remark(
            level="wrong",
            what=f"oci.conf with Slurm {slurm[0]}.{slurm[1]:02d}, which is too old",
            why="srun --container began with Slurm 21.08",
            fix="upgrade Slurm, or remove oci.conf",
            source="RELEASE_NOTES of Slurm 21.08",
        )
    for program in programs:
        yield from _oci(program, found.get(program))


def _enroot(pyxis: bool, version: tuple[int, ...] | None) -> Iterator[Remark]:
    oldest = ".".join(map(str, ENROOT_OLDEST))
    if version is None:
        yield Remark(
            level="wrong" if pyxis else "warn",
            what="pyxis is configured, and enroot is not there"
            if pyxis
            else "the setting enroot is declared, and enroot is not there",
            why="every step with --container-image fails" if pyxis else "nothing reads /etc/enroot/mounts.d",
            fix=f"install enroot {oldest} or later, or remove " + ("pyxis from plugstack.conf" if pyxis else "[settings.enroot]"),
            source="README of NVIDIA/pyxis",
        )
    elif pyxis and version and version < ENROOT_OLDEST:
        yield Remark(
            level="wrong",
            what=f"enroot {'.'.join(map(str, version))} is too old for pyxis",
            why=f"pyxis needs enroot {oldest}",
            fix=f"install enroot {oldest} or later",
            source="README of NVIDIA/pyxis",
        )


def _oci(program: str, version: tuple[int, ...] | None) -> Iterator[Remark]:
    name = program.rpartition("/")[2]
    lost = CPUS_LOST.get(name)
    if version is None:
        yield Remark(
            level="wrong",
            what=f"oci.conf: {program} is not there",
            why="every step with --container fails",
            fix=f"install {name}, or name another program in oci.conf",
            source="oci.conf(5)",
        )
    elif lost and version >= lost:
        yield Remark(
            level="note",
            what=f"oci.conf: {name} {'.'.join(map(str, version))} gives a container all CPUs of the step",
            why="the binding of the task prolog is lost",
            fix="start the program with `fairlead run` inside the container",
            source="docs/how-to/containers.md",
        )


def _pyxis(plugstack: str) -> list[tuple[str, str]]:
    """Return ``required`` or ``optional``, and the plugin's path, of each line that names pyxis."""
    lines = [line.partition("#")[0].split() for line in plugstack.splitlines()]
    return [(w[0], w[1]) for w in lines if len(w) > 1 and "pyxis" in w[1].rpartition("/")[2] and _PLAIN.fullmatch(w[1])]
