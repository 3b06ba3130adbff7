"""What every part of the proof gets, and how the parts read what programs print."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairlead.host.gpu_reader import return_text
from tests.gpu import changed_settings, children, matrix_product
from tests.gpu.report import Part, Result
from tests.gpu.target import Target

JOURNAL = "changed-settings.json"


@dataclass(frozen=True)
class Proof:
    """What a part needs. ``folder``: for the report and its files. ``root``: / or a machine tree. ``size``: of the matrices."""

    target: Target
    folder: Path
    root: str = "/"
    idle_seconds: float = 90.0
    load_seconds: float = 90.0
    sessions: int = 3
    counter_seconds: float = 2.0
    size: int = matrix_product.SIZE
    smi: str = "nvidia-smi"
    locked_clocks: str = "off"
    interval_seconds: float = 1.0

    @property
    def journal(self) -> changed_settings.Journal:
        """The list of the settings that are changed now."""
        return changed_settings.Journal(self.folder / JOURNAL)


def answer_of(ended: children.Ended, part: Part, what: str) -> dict[str, Any]:
    """Return the last line of a program's output as JSON; where it failed, {} and the part says how."""
    try:
        if ended.code == 0:
            found: dict[str, Any] = json.loads(ended.output.strip().splitlines()[-1])
            return found
    except (ValueError, IndexError):
        pass
    part.result, part.why = Result.FAILED, f"{what} {ended.how}"
    return {}


def in_words(value: Any) -> str:
    """Return an answer in one line: an error by its name, numbers with three decimals."""
    if isinstance(value, dict) and value.keys() == {"error"}:
        return return_text(value["error"])
    if isinstance(value, dict):
        return ", ".join(f"{key} {in_words(below)}" for key, below in value.items())
    return f"{value:.3f}" if isinstance(value, float) else str(value)
