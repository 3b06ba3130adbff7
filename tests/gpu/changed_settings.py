"""Changes settings of one GPU for a short time, and puts them back whatever happens.

Each change is written to a journal before it is made. What the journal still lists is put back at the end of the part, at the end
of the run, or at the beginning of the next run, if this one was killed. A value counts as put back when NVML reads it back.

NVML cannot read a lock of the clocks. So the caller says what the lock was before ("off", or "1200-1500" in MHz), and the clock
itself shows whether the lock has gone.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairlead.errors import HostError
from fairlead.host.nvml import Worker
from fairlead.model.facts import Missing

MEGA = 1_000_000
STEP_MEGAHERTZ = 15  # graphics clocks of data-centre GPUs are multiples of it
SETTLE_SECONDS = 5.0  # how long a clock may take to follow a setting
#: How a person puts a setting back.
BY_HAND = {
    "persistence": "nvidia-smi -i {pci} -pm {value}",
    "power_limit_milliwatts": "nvidia-smi -i {pci} -pl {watts:g}",
    "locked_clocks": "nvidia-smi -i {pci} -rgc",
    "application_clocks": "nvidia-smi -i {pci} -ac {value}",
}


@dataclass(frozen=True)
class Trial:
    """One setting: what ``Worker.set`` calls it, the value to try, and the value to put back."""

    pci: str
    what: str
    value: int | str
    before: int | str
    clock_hertz: int = 0  # the SM clock before a lock

    @property
    def by_hand(self) -> str:
        """The command with which a person puts the value back."""
        if self.what == "locked_clocks" and self.before != "off":
            return f"nvidia-smi -i {self.pci} -lgc {str(self.before).replace('-', ',')}"
        watts = self.before / 1000 if isinstance(self.before, int) else 0
        return BY_HAND[self.what].format(pci=self.pci, value=self.before, watts=watts)


class Journal:
    """The file with the changes that are not put back yet. It does not exist when there are none."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> list[Trial]:
        """Return the changes. Raises ValueError where the file is no journal."""
        try:
            return [Trial(**entry) for entry in json.loads(self._path.read_text())]
        except FileNotFoundError:
            return []
        except (ValueError, TypeError) as e:
            raise ValueError(f"{self._path} is no journal of changed settings: {e}") from None

    def add(self, trial: Trial) -> None:
        """Record a change before it is made; it is on disk when this returns."""
        self._write([*self.read(), trial])

    def remove(self, trial: Trial) -> None:
        """Record that the change was put back."""
        self._write([entry for entry in self.read() if entry != trial])

    def _write(self, trials: list[Trial]) -> None:
        if not trials:
            self._path.unlink(missing_ok=True)
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self._path.with_name(f"{self._path.name}.new")
        with scratch.open("w") as file:
            json.dump([asdict(trial) for trial in trials], file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, self._path)


def trials(gpu: dict[str, Any], locked_clocks: str) -> list[Trial]:
    """Return what to try on this GPU: only settings whose present value NVML gives. ``gpu``: its entry of nvml.json."""
    pci, power, clocks, application = gpu["pci"], gpu["power"], gpu["clocks"], gpu["application_clocks"]
    found = []
    if isinstance(gpu["persistence_mode"], int):
        found.append(Trial(pci, "persistence", 1 - gpu["persistence_mode"], gpu["persistence_mode"]))
    limit, least = power.get("limit_milliwatts"), power.get("minimum_limit_milliwatts")
    if isinstance(limit, int) and isinstance(least, int):
        found.append(Trial(pci, "power_limit_milliwatts", max(least, limit - 50_000), limit))
    now, most = clocks.get("sm_hertz"), clocks.get("sm_max_hertz")
    if isinstance(now, int) and isinstance(most, int):
        clock = most // 2 // MEGA // STEP_MEGAHERTZ * STEP_MEGAHERTZ
        clock += 20 * STEP_MEGAHERTZ if abs(clock * MEGA - now) < 100 * MEGA else 0
        found.append(Trial(pci, "locked_clocks", f"{clock}-{clock}", locked_clocks, now))
    memory, graphics = application.get("memory_hertz"), application.get("sm_hertz")
    if isinstance(memory, int) and isinstance(graphics, int):
        lower, present = (f"{memory // MEGA},{graphics // MEGA - less * STEP_MEGAHERTZ}" for less in (10, 0))
        found.append(Trial(pci, "application_clocks", lower, present))
    return found


def read_value(worker: Worker, trial: Trial) -> int | str | None:
    """Return what NVML says of the setting now, or None where it cannot be read. For locked clocks: the SM clock in hertz."""
    raw = worker.sweep().raw
    gpus = [] if isinstance(raw, Missing) else [gpu for gpu in raw.get("gpus", []) if gpu.get("pci") == trial.pci]
    if not gpus:
        return None
    gpu = gpus[0]
    if trial.what == "application_clocks":
        found = [gpu["application_clocks"].get(key) for key in ("memory_hertz", "sm_hertz")]
        return ",".join(str(clock // MEGA) for clock in found) if all(isinstance(clock, int) for clock in found) else None
    value = {
        "persistence": gpu["persistence_mode"],
        "power_limit_milliwatts": gpu["power"].get("limit_milliwatts"),
        "locked_clocks": gpu["clocks"].get("sm_hertz"),
    }[trial.what]
    return value if isinstance(value, int) else None


def is_effective(
    worker: Worker, trial: Trial, wanted: int | str, seconds: float = SETTLE_SECONDS
) -> tuple[bool, int | str | None]:
    """Wait until the setting has this value. Return whether it has, and the last value that was read."""
    end = time.monotonic() + seconds
    while True:
        value = read_value(worker, trial)
        if value is not None and _fits(trial, value, wanted):
            return True, value
        if time.monotonic() > end:
            return False, value
        time.sleep(0.1)


def _fits(trial: Trial, value: int | str, wanted: int | str) -> bool:
    if trial.what != "locked_clocks":
        return value == wanted
    low, _, high = str(trial.value if wanted == "off" else wanted).partition("-")
    within = (int(low) - STEP_MEGAHERTZ) * MEGA <= int(value) <= (int(high) + STEP_MEGAHERTZ) * MEGA
    return not within if wanted == "off" else within


def attempt(worker: Worker, journal: Journal, trial: Trial) -> str:
    """Make one change and read it back. Return what happened, in words. A change that may have been made stays in the journal."""
    journal.add(trial)
    try:
        worker.set(trial.pci, trial.what, trial.value)
    except HostError as e:
        if "NO_PERMISSION" in str(e) or "NOT_SUPPORTED" in str(e):  # NVML has changed nothing
            journal.remove(trial)
            return "not permitted" if "NO_PERMISSION" in str(e) else "not supported"
        return f"refused: {e}"
    done, value = is_effective(worker, trial, trial.value)
    return f"set to {trial.value}, reads {value}" if done else f"set to {trial.value}, but reads {value}"


def put_back(worker: Worker, journal: Journal) -> list[str]:
    """Put back what the journal lists. Return one line for each value that could not be put back or not be read back."""
    alarms = []
    for trial in reversed(journal.read()):
        why = ""
        for _ in range(2):  # a worker that was killed is started again by the second attempt
            try:
                worker.hurry()
                worker.set(trial.pci, trial.what, trial.before, deadline_seconds=SETTLE_SECONDS)
                why = ""
                break
            except HostError as e:
                why = str(e)
        done, value = is_effective(worker, trial, trial.before, seconds=0.0 if why else SETTLE_SECONDS)
        if not done:  # a change that was refused, and so was never made, needs no putting back
            why = why or f"NVML reads {value}"
            alarms.append(f"NOT PUT BACK: {trial.what} of GPU {trial.pci} must be {trial.before}: {why}. Run: {trial.by_hand}")
        else:
            journal.remove(trial)
    return alarms
