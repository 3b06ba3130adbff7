"""Defines how a site measures its nodes: ``[accept]`` of site.toml, and ``[classes.NAME.accept]`` for what differs in a class."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct, field

from fairlead.config.document import config_error

#: A shell command, or the lines before it in the job script. It must not contain NUL, because no shell can hold NUL.
Shell = Annotated[str, Meta(pattern=r"^[^\x00]*\Z")]
Path = Annotated[str, Meta(pattern=r"^$|^/[^\x00\n]*\Z")]
Name = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]*\Z")]


class AcceptOptions(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    tools: Annotated[
        tuple[Name, ...], Meta(description="The tools to run, in this order. Empty: every tool that fairlead knows.")
    ] = ()
    commands: Annotated[
        dict[Name, Shell],
        Meta(description="Shell command by tool, in place of the tool's own; $GPUS is the number of GPUs."),
    ] = field(default_factory=dict)
    seconds: Annotated[
        dict[Name, Annotated[int, Meta(ge=1, le=86400)]], Meta(description="By tool: the seconds after which it is ended.")
    ] = field(default_factory=dict)
    prelude: Annotated[Shell, Meta(description="Shell lines that the job begins with, such as module load or PATH.")] = ""
    sbatch: Annotated[tuple[Shell, ...], Meta(description="More options of sbatch, such as --account=ops, --qos=accept.")] = ()
    folder: Annotated[Path, Meta(description="Folder that this host and the nodes share, for scripts and outputs.")] = ""
    store: Annotated[
        Path,
        Meta(description="The SQLite file of the results. Empty: in /var/lib/fairlead for root, else ~/.local/state/fairlead."),
    ] = ""
    pair_command: Annotated[
        Shell,
        Meta(
            description="accept --fabric: the command that measures a pair of nodes, started once on each node; $GPUS as above."
            " Empty: all_gather_perf with 8 GiB, built with MPI."
        ),
    ] = ""
    rail_command: Annotated[
        Shell,
        Meta(description="The same for one rail alone; $RAIL is its number. Empty: all_gather_perf with one GPU of each node."),
    ] = ""
    pair_seconds: Annotated[int, Meta(ge=1, le=86400, description="The seconds after which the step of a pair is ended.")] = 240
    pair_rails: Annotated[
        int, Meta(ge=0, le=64, description="How many rails a node has. 0: as many as it has GPUs; 1: no rail is measured alone.")
    ] = 0
    pair_srun: Annotated[
        tuple[Shell, ...], Meta(description="More options of srun for these steps. An option --mpi replaces --mpi=pmix.")
    ] = ()
    pair_gbps: Annotated[
        float, Meta(ge=0, description="The bandwidth of a good pair in GB/s. 0: the median of the nodes is expected.")
    ] = 0.0
    rail_gbps: Annotated[float, Meta(ge=0, description="The same for one rail alone.")] = 0.0
    topology: Annotated[
        Path, Meta(description="A file that says on which leaf each node is. Empty: slurmctld's topology, if it has one.")
    ] = ""


def accept_options(site: dict[str, Any], of_class: dict[str, Any], where: str, class_name: str = "") -> AcceptOptions:
    """Return the options of a class, which are laid over those of the site. ``commands`` and ``seconds`` are merged tool by
    tool; any other value replaces the site's value. Raises ConfigError."""
    merged = dict(site)
    for key, value in of_class.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = {**merged[key], **value} if both else value
    try:
        return msgspec.convert(merged, AcceptOptions)
    except msgspec.ValidationError as e:
        raise config_error(
            where, e, f"classes.{class_name}.accept" if of_class else "accept", AcceptOptions.__struct_fields__
        ) from None
