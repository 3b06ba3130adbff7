"""Decides what a run measures: for each node its class, its tools and the references for their figures. This module contacts no
node and changes nothing."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from fairlead import config
from fairlead.config.accept_options import AcceptOptions
from fairlead.errors import ConfigError, UsageError
from fairlead.measure.job_script import ToolStep, limit_minutes, script
from fairlead.measure.slurm_jobs import PREFIX
from fairlead.measure.tools import load
from fairlead.model.nodelist import expand
from fairlead.model.profile_files import Peak, Reference


class PlannedNode(Struct, frozen=True, kw_only=True):
    """Describes what is measured on one node. gpus: the number of GPUs that the node should have, or None if nobody has declared
    it. needed: if one of these tools is not installed, the node's outcome is UNKNOWN."""

    node: str
    class_name: str = ""
    profile: str = ""
    gpus: int | None = None
    steps: tuple[ToolStep, ...] = ()
    needed: tuple[str, ...] = ()
    prelude: str = ""
    sbatch: tuple[str, ...] = ()
    time_minutes: int = 0
    references: tuple[Reference, ...] = ()
    peaks: tuple[Peak, ...] = ()

    @property
    def minutes(self) -> int:
        """Return the job's time limit in minutes: the requested limit, or the time that all tools together may take."""
        return self.time_minutes or limit_minutes(self.steps)

    @property
    def roomy(self) -> bool:
        """Say whether the job's time limit is so long that every tool reaches its own deadline first."""
        short = any(option.startswith(("--time", "-t")) for option in self.sbatch)
        return not short and self.minutes >= limit_minutes(self.steps)


class AcceptancePlan(Struct, frozen=True, kw_only=True):
    """Describes a run. mark: the text that begins each line that a job's script itself writes (a tool's lines do not have it).
    max_wait_seconds: how long a job may wait to start."""

    run: str
    mark: str
    folder: str
    max_wait_seconds: float
    targets: tuple[PlannedNode, ...]

    @property
    def job_name(self) -> str:
        return PREFIX + self.run

    def base(self, target: PlannedNode) -> str:
        """Return the path of a node's files, without their ending."""
        return f"{self.folder}/{self.job_name}.{target.node}"

    def script(self, target: PlannedNode) -> str:
        return script(self.mark, target.node, target.steps, gpus=target.gpus, prelude=target.prelude)


def make(
    nodes: Sequence[str],
    site: config.Site | None,
    *,
    profile: str = "",
    tools: Sequence[str] = (),
    sbatch: Sequence[str] = (),
    folder: str = "",
    time_minutes: int = 0,
    max_wait_seconds: float = 3600,
) -> AcceptancePlan:
    """Return the plan of a run on ``nodes``. profile: a profile that replaces the declaration of the site. tools: if given, only
    these tools are run, and each of them is needed. Raises ConfigError, UsageError."""
    known = load()
    unknown = [name for name in tools if name not in known]
    if unknown:
        raise UsageError(f"--tools {','.join(unknown)}: no such tool", hint=f"known: {', '.join(known)}")
    classes = _classes(site)
    run = secrets.token_hex(6)
    targets = tuple(_target(node, site, classes.get(node, ()), profile, tools) for node in nodes)
    targets = tuple(replace(t, sbatch=(*t.sbatch, *sbatch), time_minutes=time_minutes) for t in targets)
    return AcceptancePlan(
        run=run, mark=f"#fairlead-{secrets.token_hex(8)}", folder=folder, max_wait_seconds=max_wait_seconds, targets=targets
    )


def _classes(site: config.Site | None) -> dict[str, list[config.NodeClass]]:
    found: dict[str, list[config.NodeClass]] = {}
    for each in site.classes if site is not None else ():
        try:
            names = expand(each.nodes)
        except ValueError as e:
            assert site is not None  # noqa: S101  # there are no classes without one
            raise ConfigError(site.file, f"classes.{each.name}.nodes", str(e)) from None
        for name in names:
            found.setdefault(name, []).append(each)
    return found


def _target(
    node: str, site: config.Site | None, classes: Sequence[config.NodeClass], profile_name: str, tools: Sequence[str]
) -> PlannedNode:
    if profile_name or site is None:
        document = config.profile_document(node, profile_name)
    else:
        document, _ = config.resolve(site, node, [c.name for c in classes])
    profile = config.load_profile(document.profile) if document.profile else None
    options = classes[0].accept if classes else site.accept if site is not None else AcceptOptions()
    steps, needed = _steps(site.file if site is not None else "", options, tools)
    expected = getattr(document.checks["gpu_count"], "expected", None)
    return PlannedNode(
        node=node,
        class_name=",".join(c.name for c in classes) or document.profile,
        profile=document.profile,
        gpus=expected if isinstance(expected, int) and expected > 0 else None,
        steps=steps,
        needed=needed,
        prelude=options.prelude,
        sbatch=options.sbatch,
        references=profile.references if profile else (),
        peaks=profile.peaks if profile else (),
    )


def _steps(where: str, options: AcceptOptions, tools: Sequence[str]) -> tuple[tuple[ToolStep, ...], tuple[str, ...]]:
    known = load()
    for key, names in (("tools", options.tools), ("commands", options.commands), ("seconds", options.seconds)):
        for name in names:
            if name not in known:
                raise ConfigError(where, f"accept.{key}", f"no tool {name!r}", hint=f"known: {', '.join(known)}")
    chosen = tuple(dict.fromkeys(tools)) or tuple(dict.fromkeys(options.tools)) or tuple(known)
    steps = tuple(
        ToolStep(
            name=name,
            command=options.commands.get(name, known[name].command),
            seconds=options.seconds.get(name, known[name].seconds),
        )
        for name in chosen
    )
    named = set(tools) or set(options.tools)
    return steps, tuple(name for name in chosen if known[name].needed or name in named)


def gpu_kind(names: Sequence[str]) -> str:
    """Return the model and number of a node's GPUs as text. Nodes with different texts are never compared."""
    counts = {name: sum(n == name for n in names) for name in sorted(set(names))}
    return ", ".join(f"{count} x {re.sub(r'[^ -~]', '?', name)}" for name, count in counts.items())
