"""Every NVML call of the worker, made to fail in every way, one at a time; what the checks then say. A process of its own.

python -m tests.alive.every_call TREE CODES  ->  one JSON object: calls, unannounced, silent. CODES: numbers, "absent".
The worker's own session asks the simulated library, whose control file returns the code; "absent" is a library without that
symbol. ``unannounced``: calls that were made under another name than the worker had given out (a hang would be blamed on it).
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pynvml
from msgspec.structs import replace

from fairlead import config
from fairlead.daemon.loop import history_update
from fairlead.host.gather import Gatherer
from fairlead.host.nvml_worker import Session
from fairlead.host.root import Root
from fairlead.judge import judge, reads
from fairlead.model.check_definition import Past
from fairlead.model.device import gpu_cards_of, readable_fields
from fairlead.model.finding import Level
from fairlead.policy.policy_state import identity
from tests.lab.faults import Faults

GPU = 2
#: Calls that take no GPU; an error of one of them is for all.
SYSTEM = (
    *("nvmlInitWithFlags", "nvmlShutdown", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2"),
    *("nvmlGpmSampleAlloc", "nvmlGpmMetricsGet"),
)
#: Their answer changes nothing for anybody: the session is over, or memory is given back.
OF_NO_CONSEQUENCE = ("nvmlShutdown", "nvmlErrorString", "nvmlGpmSampleFree")
#: They measure what jobs used, and say nothing of a GPU's health. If they fail, the counters say that something was not measured.
MEASURING = ("nvmlDeviceGetSamples", "nvmlGpm")
APART_SECONDS = 0.4  # between two sweeps: longer than two samples of the driver and than GPM's shortest pair


class Spy:
    """The library, noting each call and what the worker had announced; ``absent``: a symbol that it does not have."""

    def __init__(self, lib: ctypes.CDLL) -> None:
        self.lib = lib
        self.absent = ""
        self.announced = ""
        self.made: dict[str, None] = {}
        self.unannounced: dict[str, str] = {}

    def __getattr__(self, name: str) -> Any:
        if name == self.absent:
            raise AttributeError(name)
        function = getattr(self.lib, name)

        def call(*args: Any) -> Any:
            same = self.announced == name or (self.announced.startswith("nvmlInit") and name.startswith("nvmlInit"))
            if not same and name not in OF_NO_CONSEQUENCE:
                self.unannounced[name] = self.announced
            code = function(*args)
            if code == 0:
                self.made[name] = None  # what this machine refuses when it is well has nothing to lose
            return code

        return call


def main(tree: str, codes: list[str]) -> None:
    spy = Spy(ctypes.CDLL("libnvidia-ml.so.1"))
    pynvml.nvmlLib = spy
    faults = Faults(os.environ["FAIRLEAD_SIM_CONTROL"])
    document = config.profile_document("n1", Path(tree).name.partition(".")[0])
    document = replace(document, settings={})

    def beat(call: bytes, _: bytes) -> None:
        spy.announced = call.decode()

    def read() -> dict[str, Any]:
        pynvml._nvmlGetFunctionPointer_cache.clear()
        session = Session(beat)
        try:
            return session.sweep()
        finally:
            session.release()

    def unmeasured() -> set[str]:
        """What the counters of a GPU lack after two sweeps: the driver's own samples, or GPM."""
        pynvml._nvmlGetFunctionPointer_cache.clear()
        session = Session(beat)
        try:
            session.sweep()
            time.sleep(APART_SECONDS)
            activity = session.sweep(closely=True)["gpus"][GPU]["activity"]
        finally:
            session.release()
        lacking = {"samples"} if activity["spot_nanoseconds"] or not activity["measured_nanoseconds"] else set()
        return lacking | ({"gpm"} if not activity["gpm_nanoseconds"] else set())

    healthy = read()
    gatherer = Gatherer(Root(tree), reads=reads(document), unsupported=document.unsupported, slow_seconds=3600.0)
    base = gatherer.gather(healthy)

    def said(raw: dict[str, Any]) -> set[str]:
        """What is wrong with a node that answers so."""
        found = judge(document, gatherer.gather(raw), past)
        return {identity(f) for f in found if f.level is not Level.OK}

    past = Past(
        available=True,
        readable=readable_fields(base) | {f"{history_update.DRIVER}{base.driver.library_version}"},
        gpu_cards=gpu_cards_of(base),
    )
    usual = said(healthy)
    lacking = unmeasured()
    assert "samples" not in lacking, "a healthy GPU is measured by the driver's samples"
    calls = list(spy.made)
    silent = []
    for call in calls:
        for code in codes:
            if call in OF_NO_CONSEQUENCE or (call.startswith("nvmlGpm") and "gpm" in lacking):  # this GPU has no GPM
                continue
            if code == "absent":
                spy.absent = call
            else:
                system = call in SYSTEM or call.startswith("nvmlSystem")
                faults.error(None if system else GPU, call, int(code))
                time.sleep(0.0015)
            if not (unmeasured() - lacking if call.startswith(MEASURING) else said(read()) - usual):
                silent.append(f"{call} {code}")
            spy.absent = ""
            if code != "absent":
                faults.clear()
                time.sleep(0.0015)
    told = {"calls": calls, "unannounced": spy.unannounced, "silent": silent, "usual": sorted(usual)}
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2].split(","))
