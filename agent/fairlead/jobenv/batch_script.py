"""Reads which variables a job script, an environment file or a nccl.conf sets, with values and line numbers. It runs nothing.

It understands shell (``export A=b``, ``A=b command``, ``env A=b``, ``setenv A b``), srun and sbatch (``--export=ALL,A=b``),
mpirun (``-x A=b``), Dockerfiles (``ENV A=b``), Python (``os.environ["A"] = "b"``), YAML (``A: b``) and nccl.conf. A value that
contains a variable is None, because only the running script can compute it. Comments, and text that echo prints, set no variable.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from fairlead.jobenv.lint_shape import JobShape, here_documents, shape_of

_NAME = (
    r"(?:(?:NCCL|UCX|CUDA|SLURM|SRUN|TORCH|PYTORCH)_[A-Z0-9_]+|MASTER_ADDR|GLOO_SOCKET_IFNAME|OMP_PROC_BIND|NVIDIA_TF32_OVERRIDE"
    r"|LD_PRELOAD|HF_TOKEN|HUGGING_FACE_HUB_TOKEN|WANDB_API_KEY|NEPTUNE_API_TOKEN|OPENAI_API_KEY)"
)
_QUOTED = r"(?<!\\)\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'"
# An unquoted value ends at a blank or a shell operator, and in a list of --export where the next name begins.
_SHELL = re.compile(rf"(?<![\w$\[.{{-])({_NAME})=({_QUOTED}|(?:(?!,[A-Za-z_]\w*=)[^\s;&|)\"'])*)")
_PYTHON = re.compile(
    rf"""(?:environ|env)(?:\[\s*|\.setdefault\(\s*)["']({_NAME})["']\s*(?:\]\s*=(?!=)|,)\s*(?:str\(\s*)?([^\s,)#]+)"""
)
_SPACED = re.compile(rf"^\s*(?:setenv|ENV)\s+({_NAME})[\s=]+({_QUOTED}|\S+)")
_YAML = re.compile(rf"^\s*(?:-\s*)?[\"']?({_NAME})[\"']?:\s+({_QUOTED}|[^\s#]+)")
_COMMENT = re.compile(rf"({_QUOTED})|(?:(?<=\s)|^)#.*$", re.MULTILINE)
_SILENT = re.compile(r"^\s*(?:echo|printf|print|unset)\b")
_ALLOW = re.compile(r"fairlead:\s*allow\s+([a-z0-9, -]+)")
_LINES_MAX = 100_000
LINE_MAX = 4096  # the number of characters that are read of a line, and of a command over several lines


class ScriptLine(Struct, frozen=True, kw_only=True):
    """Holds one command: its lines joined at a backslash, without comments.

    number: the line number of the command's first line. text: the command as the shell runs it. here: True for a line of a
    here-document, which another program reads. allowed: the lint rules that a comment switches off for this command.
    """

    number: int
    text: str
    here: bool = False
    allowed: frozenset[str] = frozenset()


class Assignment(Struct, frozen=True, kw_only=True):
    """Holds one variable that the file sets. value: its value, or None if it is computed only when the script runs."""

    name: str
    value: str | None
    line: ScriptLine


class Script(Struct, frozen=True, kw_only=True):
    """Holds a file as it was read.

    conf: True for a nccl.conf. raw: the lines of the file, unchanged. shape: the nodes, tasks, CPUs and GPUs that the script
    requests from Slurm.
    """

    lines: tuple[ScriptLine, ...]
    assignments: tuple[Assignment, ...]
    raw: tuple[str, ...]
    conf: bool = False
    shape: JobShape = JobShape()


def read(text: str, *, conf: bool = False) -> Script:
    """Read a file's text and return it as a Script.

    The function reads at most 100,000 lines, and at most ``LINE_MAX`` characters of each line.
    """
    raw = tuple(line[:LINE_MAX] for line in text.splitlines()[:_LINES_MAX])
    lines = tuple(_conf_lines(raw) if conf else _joined(raw))
    found = _conf(lines) if conf else (a for line in lines for a in _assigned(line))
    return Script(
        lines=lines,
        assignments=tuple(found),
        raw=raw,
        conf=conf,
        shape=JobShape() if conf else shape_of(raw),
    )


def allowed_at(raw: tuple[str, ...], number: int) -> frozenset[str]:
    """Return the lint rules that a comment on this line, or on the line before it, switches off."""
    texts = raw[max(0, number - 2) : number]
    found = [match[1] for x in texts if (match := _ALLOW.search(x))]
    return frozenset(name for x in found for name in x.replace(",", " ").split())


def _joined(raw: tuple[str, ...]) -> Iterator[ScriptLine]:
    allowed: frozenset[str] = frozenset()
    parts: list[str] = []
    first = 1
    inside = here_documents(raw)
    for number, text in enumerate(raw, 1):
        if match := _ALLOW.search(text):
            allowed |= frozenset(match[1].replace(",", " ").split())
        bare = "" if text.startswith("#SBATCH") else _COMMENT.sub(lambda m: m[1] or "", text)
        if text.startswith("#SBATCH") and "--export" in text:
            bare = text.removeprefix("#SBATCH")
        first = first if parts else number
        if bare.rstrip().endswith("\\"):
            parts.append(bare.rstrip()[:-1])
            continue
        whole = " ".join((*parts, bare))[:LINE_MAX]
        parts = []
        if whole.strip():
            yield ScriptLine(number=first, text=whole, allowed=allowed, here=first in inside)
            # a comment line applies to the command after it; a comment behind a command applies to this command
            allowed = frozenset()
    if parts:
        yield ScriptLine(number=first, text=" ".join(parts)[:LINE_MAX], allowed=allowed)


def _assigned(line: ScriptLine) -> Iterator[Assignment]:
    if _SILENT.match(line.text):
        return
    seen = set()
    for pattern in (_SPACED, _YAML, _PYTHON, _SHELL):
        for match in pattern.finditer(line.text):
            if match.start(1) not in seen:
                seen.add(match.start(1))
                yield Assignment(name=match[1], value=_value(match[2], python=pattern is _PYTHON), line=line)


def _value(text: str, *, python: bool) -> str | None:
    """Return the literal value, or None if the value contains a variable. In Python only a string or a number is literal."""
    quoted = len(text) > 1 and text[0] in "\"'" and text[-1] == text[0]
    if python:
        return text[1:-1] if quoted else text if text.isdecimal() else None
    if text[:1] != "'" and ("$" in text or "`" in text):
        return None
    return text[1:-1] if quoted else text


def _conf_lines(raw: tuple[str, ...]) -> Iterator[ScriptLine]:
    """Yield the lines of a nccl.conf that are not comments. NCCL reads a line unchanged. For NCCL, only a line with a # in the
    first column is a comment (src/misc/param.cc, setEnvFile)."""
    allowed: frozenset[str] = frozenset()
    for number, text in enumerate(raw, 1):
        if text.startswith("#"):
            match = _ALLOW.search(text)
            allowed = frozenset(match[1].replace(",", " ").split()) if match else allowed
        elif text.strip():
            yield ScriptLine(number=number, text=text, allowed=allowed)
            allowed = frozenset()


def _conf(lines: tuple[ScriptLine, ...]) -> Iterator[Assignment]:
    for line in lines:
        name, equals, value = line.text.partition("=")
        if equals and re.fullmatch(r"[A-Z][A-Z0-9_]*", name):
            yield Assignment(name=name, value=value, line=line)
