"""Reads the output of a job of ``job_script``, and splits it by tool. It gets the output as text.

The node's root may be hostile, so the output may be cut anywhere or be any text. All texts taken from it are cut and made
printable, and no output makes this module raise an error.
"""

from __future__ import annotations

import itertools
import re
import signal

from msgspec import Struct
from msgspec.structs import replace

from fairlead.measure.job_script import ToolStep
from fairlead.measure.tool import MeasuredOutcome, Tool, ToolReading, can_be, last_line
from fairlead.model.isolated import isolated
from fairlead.model.plain_text import one_line

#: Signals that a program causes itself. Other signals come from outside and say nothing about the node (signal(7)).
CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGSYS, signal.SIGTRAP})


NAME_MAX, WHY_MAX = 100, 800  # characters
LINES_MAX = 200
#: The most figures that one tool may give, because judging figures costs this host time. No real node gives more: 16 GPUs have
#: 240 pairs and 32 copies with the host, and 16 ports with ib_write_bw's 23 sizes give 368 figures.
FIGURES_MAX = 600
MARKS_MAX, MARK_LINE_MAX = 1000, 1000  # the most marks of one job (two for each tool); the longest line with a mark


class ToolRun(Struct, frozen=True, kw_only=True):
    """Holds the part of a job's output about one tool. ``status``: the tool's exit status, or None if the tool has not ended.
    ``begun``: whether the job has started this tool. ``suspended``: whether the job was suspended while the tool ran."""

    out: str = ""
    err: str = ""
    status: int | None = None
    seconds: int = 0
    begun: bool = False
    suspended: bool = False


class ReportedGpu(Struct, frozen=True, kw_only=True):
    """Describes a GPU as nvidia-smi reported it in the job."""

    index: int
    uuid: str
    serial: str
    pci: str
    name: str
    driver: str


class JobOutput(Struct, frozen=True, kw_only=True):
    """Holds the output of a job. node: the node that the job ran on, or "" if the output does not say. ran: what each tool wrote,
    by the tool's name. done: the job has come to its end. cut: the output is longer than what is read."""

    node: str
    ran: dict[str, ToolRun]
    done: bool
    cut: bool = False

    @property
    def gpus(self) -> tuple[ReportedGpu, ...]:
        return gpus(self.ran.get("inventory", ToolRun()).out)


def parse(mark: str, out: str, err: str = "", *, cut: bool = False) -> JobOutput:
    """Return the report in the output file and the error file of a job. ``mark``: the text that begins the job script's lines."""
    ran: dict[str, ToolRun] = {}
    aside = {name: run.out for name, run in _framed(mark, err)[0]}
    frames, node, done = _framed(mark, out)
    for name, run in frames:
        ran[name] = replace(run, err=aside.get(name, ""))
    return JobOutput(node=node, ran=ran, done=done, cut=cut)


def _framed(mark: str, text: str) -> tuple[list[tuple[str, ToolRun]], str, bool]:
    """Return what each tool wrote into this text, the node, and whether the job is done. Only lines with the mark are parsed,
    because a node may write millions of other lines."""
    frames: list[tuple[str, ToolRun]] = []
    node, done, name, begun = "", False, "", 0
    suspended: int | None = None  # where the line is that says so; what the tool wrote is before it
    for line in itertools.islice(re.finditer(rf"^{re.escape(mark)} ([^\n]*)(?:\n|\Z)", text, re.MULTILINE), MARKS_MAX):
        words = line[1][:MARK_LINE_MAX].split()
        if words[:1] == ["end"] and len(words) == 4 and words[1] == name and _is_number(words[2]) and _is_number(words[3]):
            said = text[begun : max(begun, (line.start() if suspended is None else suspended) - 1)].removesuffix("\n")
            status, seconds = int(words[2]), int(words[3])
            stood = suspended is not None
            frames.append((name, ToolRun(out=said, status=status, seconds=seconds, begun=True, suspended=stood)))
            name, begun = "", line.end()
        elif words[:1] == ["begin"] and len(words) == 2:
            name, begun, suspended = words[1], line.end(), None
        elif words == ["suspended"] and name and suspended is None:
            suspended = line.start()
        elif words[:1] == ["node"] and len(words) == 2:
            node = words[1]
        elif words == ["done"]:
            done = True
    if name:
        frames.append((name, ToolRun(out=text[begun:suspended], begun=True, suspended=suspended is not None)))
    return frames, node, done


def gpus(text: str) -> tuple[ReportedGpu, ...]:
    """Return the GPUs in nvidia-smi's CSV. Other lines are left out. PCI addresses have the form that fairlead uses
    everywhere."""
    found = []
    for line in text.splitlines()[:LINES_MAX]:
        words = [one_line(word, NAME_MAX) for word in line[:1000].split(",")]
        if len(words) == 6 and _is_number(words[0]) and words[1].startswith("GPU-"):
            index, uuid, serial, pci, name, driver = words
            domain, _, rest = pci.lower().partition(":")  # nvidia-smi writes the domain with eight digits
            serial = "" if serial.startswith("[") else serial  # [N/A], [Unknown Error]
            found.append(
                ReportedGpu(index=int(index), uuid=uuid, serial=serial, pci=f"{domain[-4:]}:{rest}", name=name, driver=driver)
            )
    return tuple(found)


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) <= 9


def said(tool: Tool, step: ToolStep, ran: ToolRun, gpus_wanted: int | None, ended: str) -> ToolReading:
    """Return the reading of a tool's run, from its exit status and its output. ``ended``: why the job ended, which explains a
    tool that the job did not start or did not finish."""
    return isolated(
        lambda: _bounded(_unless_suspended(_said(tool, step, ran, gpus_wanted, ended), ran)),
        lambda why: ToolReading(outcome=MeasuredOutcome.UNKNOWN, why=f"its output cannot be read: {one_line(why, NAME_MAX)}"),
    )


def _bounded(said: ToolReading) -> ToolReading:
    """Return the reading with its texts cut to what a table can show. If one figure is impossible, or there are too many figures,
    the whole reading becomes UNKNOWN."""
    few = len(said.figures) <= FIGURES_MAX
    if not few or not all(can_be(f.value) and 0 <= f.bytes < 1 << 53 for f in said.figures):
        return ToolReading(outcome=MeasuredOutcome.UNKNOWN, why="its output has impossible figures", versions=_versions(said))
    return replace(
        said,
        why=one_line(said.why, WHY_MAX),
        figures=tuple(replace(f, device=one_line(f.device, NAME_MAX), name=one_line(f.name, NAME_MAX)) for f in said.figures),
        versions=_versions(said),
        notes=tuple(one_line(note, WHY_MAX) for note in said.notes[:20]),
    )


def _versions(said: ToolReading) -> dict[str, str]:
    return {one_line(k, NAME_MAX): one_line(v, NAME_MAX) for k, v in list(said.versions.items())[:20]}


def _said(tool: Tool, step: ToolStep, ran: ToolRun, gpus_wanted: int | None, ended: str) -> ToolReading:
    if not ran.begun:
        return ToolReading(outcome=MeasuredOutcome.UNKNOWN, why=f"not run: {ended}")
    if ran.status is None:
        return ToolReading(outcome=MeasuredOutcome.UNKNOWN, why=f"not finished: {ended}; {tool.so_far(ran.out)}")
    if ran.status in (126, 127):
        return ToolReading(outcome=MeasuredOutcome.ABSENT, why="not installed")
    if ran.status == 124 or (ran.status == 137 and ran.seconds >= step.seconds):
        return ToolReading(outcome=MeasuredOutcome.FAIL, why=f"hung, ended after {step.seconds} s: {tool.so_far(ran.out)}")
    if 128 < ran.status <= 192:
        return _signalled(tool, ran, ended)
    read = tool.read(ran.out, ran.err)
    if ran.status and read.outcome in (MeasuredOutcome.PASS, MeasuredOutcome.WARN):
        return ToolReading(
            outcome=MeasuredOutcome.UNKNOWN, why=f"ended with {ran.status}: {last_line(ran.err, ran.out)}", versions=read.versions
        )
    if gpus_wanted and read.ranks is not None and read.ranks != gpus_wanted and read.outcome is not MeasuredOutcome.FAIL:
        why = f"{read.ranks} GPUs took part, the node should have {gpus_wanted}"
        return ToolReading(outcome=MeasuredOutcome.FAIL, why=why, figures=read.figures, ranks=read.ranks, versions=read.versions)
    return read


def _unless_suspended(said: ToolReading, ran: ToolRun) -> ToolReading:
    """Return the reading. Return UNKNOWN if the job was suspended, and this may be why the tool met its deadline or why its
    figures are low. A crash and wrong values count all the same."""
    if not ran.suspended or (said.outcome is MeasuredOutcome.FAIL and ran.status not in (124, 137)):
        return said
    if ran.status not in (124, 137) and not said.figures:
        return said
    why = "the job was suspended while it ran, so its figures say nothing: measure the node again"
    return ToolReading(outcome=MeasuredOutcome.UNKNOWN, why=why, ranks=said.ranks, versions=said.versions)


def hung(tool: Tool, step: ToolStep, ran: ToolRun) -> ToolReading:
    """Return the reading of a tool that ran until the job's time limit, because it could not be killed at its own deadline."""
    return _bounded(
        ToolReading(
            outcome=MeasuredOutcome.FAIL, why=f"hung, and could not be ended after {step.seconds} s: {tool.so_far(ran.out)}"
        )
    )


def _signalled(tool: Tool, ran: ToolRun, ended: str) -> ToolReading:
    number = (ran.status or 0) - 128
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    read = tool.read(ran.out, ran.err)
    if read.outcome is MeasuredOutcome.FAIL and "Segmentation fault" not in read.why:
        return read  # what the tool wrote before it was killed says more than the signal
    crashed = number in {int(s) for s in CRASHES}
    how = f"crashed ({name})" if crashed else f"ended from outside ({name}), {ended}"
    why = f"{how}: {tool.so_far(ran.out)}"
    return ToolReading(outcome=MeasuredOutcome.FAIL if crashed else MeasuredOutcome.UNKNOWN, why=why, versions=read.versions)
