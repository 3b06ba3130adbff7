"""Writes the report of a proof: report.json for programs and report.txt for people, both anew after each part."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

SCHEMA = "gpu-proof/1"
WIDTH = 130


class Result(StrEnum):
    """What a part has shown."""

    AGREES = "agrees"
    DIFFERS = "differs"
    FAILED = "failed"
    NOT_RUN = "not run"


@dataclass
class Part:
    """The result of one part. ``why``: one sentence. ``lines``: what a person reads. ``data``: the same for programs."""

    name: str
    result: Result = Result.AGREES
    why: str = ""
    seconds: float = 0.0
    lines: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)

    def differs(self, why: str) -> None:
        """Say that something is not as it should be. The first reason stays."""
        if self.result is Result.AGREES:
            self.result, self.why = Result.DIFFERS, why


@dataclass
class Report:
    """The report in ``folder``. ``alarms``: what a person has to do now, such as to put back a setting."""

    folder: Path
    machine: dict[str, Any] = field(default_factory=dict)
    parts: list[Part] = field(default_factory=list)
    alarms: list[str] = field(default_factory=list)
    began: float = field(default_factory=time.time)
    complete: bool = False

    @property
    def passed(self) -> bool:
        """Say whether the run reached its end, each of its parts agrees, and nothing is left for a person to put back."""
        return self.complete and not self.alarms and all(part.result is Result.AGREES for part in self.parts)

    @property
    def summary(self) -> str:
        """Say in one line how many parts agree, and name the others."""
        others = [f"{part.name} {part.result.value}" for part in self.parts if part.result is not Result.AGREES]
        count = len(self.parts) - len(others)
        return f"{count} of {len(self.parts)} parts agree" + (f"; {', '.join(others)}" if others else "")

    def write(self) -> None:
        """Write both files. A reader sees the old file or the new one, never a part of one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        data = {"schema": SCHEMA, "began_unix": self.began, "complete": self.complete, "machine": self.machine}
        data |= {"alarms": self.alarms, "parts": [asdict(part) for part in self.parts]}
        for name, text in (("report.json", json.dumps(data, indent=1) + "\n"), ("report.txt", self.text())):
            scratch = self.folder / f"{name}.new"
            scratch.write_text(text)
            os.replace(scratch, self.folder / name)

    def text(self) -> str:
        """Return the readable form: alarms, the machine, one line for each part, then the parts."""
        lines = [*self.alarms, *([""] if self.alarms else [])]
        lines.append(f"fairlead gpu proof of {time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime(self.began))}")
        lines += [] if self.complete else ["The run has not reached its end. What follows is what it has found."]
        lines += [f"{key}: {value}" for key, value in self.machine.items()]
        lines += [
            "",
            *(f"{part.result.value:8} {part.name:10} {part.seconds:6.1f} s  {part.why}".rstrip() for part in self.parts),
        ]
        for part in self.parts:
            lines += ["", f"== {part.name}: {part.result.value} ==", *(line[: 4 * WIDTH] for line in part.lines)]
        return "\n".join(lines) + "\n"
