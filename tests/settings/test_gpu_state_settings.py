"""ECC, MIG, compute mode, power limit and clocks of GPUs: by their own rules, and through the NVML worker to the simulated
library, where nvidia-ml-py in another process reads what was set."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from fairlead import config, settings
from fairlead.apply import ApplyReport, apply
from fairlead.config.document import resolve_layers
from fairlead.errors import ConfigError, HostError
from fairlead.host.gather import gather
from fairlead.host.nvml import Worker
from fairlead.host.root import Root
from fairlead.judge import judge
from fairlead.model.change import AnyChange, Disruption, File, Layer, Nvml, Reboot
from fairlead.model.check_definition import Past
from fairlead.model.facts import Missing, Node, unreadable
from fairlead.model.gpu_state import MigInstance
from fairlead.settings import clocks, ecc_mode, mig, power_limit
from tests.host.conftest import library, simulate
from tests.lab.faults import Faults
from tests.lab.trees import MACHINES

__all__ = ["library"]  # a fixture

PCI = "0000:1b:00.0"
EIGHT = 8
OUTSIDE = """
import json, pynvml as n
n.nvmlInit()
out = []
for i in range(n.nvmlDeviceGetCount()):
    h = n.nvmlDeviceGetHandleByIndex(i)
    migs = []
    for j in range(n.nvmlDeviceGetMaxMigDeviceCount(h)):
        try:
            m = n.nvmlDeviceGetMigDeviceHandleByIndex(h, j)
        except n.NVMLError_NotFound:
            continue
        migs.append([n.nvmlDeviceGetGpuInstanceId(m), n.nvmlDeviceGetUUID(m)])
    out.append({"ecc": n.nvmlDeviceGetEccMode(h), "compute": n.nvmlDeviceGetComputeMode(h),
                "limit": n.nvmlDeviceGetPowerManagementLimit(h), "sm": n.nvmlDeviceGetClockInfo(h, 1),
                "application": n.nvmlDeviceGetApplicationsClock(h, 0), "mig": n.nvmlDeviceGetMigMode(h), "devices": migs})
print(json.dumps(out))
"""


# -- by their own rules


def limits(now: float = 700) -> power_limit.Observed:
    return power_limit.Observed({PCI: power_limit.Limits(now, 700.0, 200.0, 700.0)})


def test_a_power_limit_that_the_card_refuses_is_an_error_with_its_range() -> None:
    with pytest.raises(ConfigError, match=r"settings.power_limit.watts: GPU 0000:1b:00.0 takes 200 to 700 W, wanted 900"):
        power_limit.plan(power_limit.PowerLimitWant(watts=900), limits())


def test_no_power_limit_declared_is_the_boards_own() -> None:
    (change,) = power_limit.plan(power_limit.PowerLimitWant(), limits(450))
    assert (change.value, change.before, change.disruption) == (700_000, 450_000, Disruption.IDLE)
    assert power_limit.plan(power_limit.PowerLimitWant(), limits()) == ()


@pytest.mark.parametrize(
    ("now", "then", "kinds"),
    [(True, True, (Nvml, Reboot)), (True, False, (Reboot,)), (False, True, (Nvml,)), (False, False, ())],
)
def test_ecc_is_written_for_the_next_reset_and_pending_until_then(now: bool, then: bool, kinds: tuple[type, ...]) -> None:
    changes = ecc_mode.plan(ecc_mode.EccModeWant(enabled=False), ecc_mode.Observed({PCI: (now, then)}))
    assert tuple(type(c) for c in changes) == kinds
    assert {c.layer for c in changes if isinstance(c, Reboot)} <= {Layer.PENDING_REBOOT}
    assert {c.disruption for c in changes if isinstance(c, Nvml)} <= {Disruption.NONE}


SLICES = {"1g.10gb": 1, "2g.20gb": 2, "3g.40gb": 4}


def on(*profiles: str, pending: bool = True, compute: int = 1) -> mig.MigState:
    """A GPU with at most two instances, at memory slices 0 and 4."""
    sizes = [SLICES[p] for p in profiles]
    starts = [0, 4][: len(profiles)]
    instances = tuple(
        MigInstance(p, start, compute, size, 8 // size - 1 + start // size)
        for p, start, size in zip(profiles, starts, sizes, strict=True)
    )
    return mig.MigState(True, pending, instances, ("1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb"))


OFF = mig.MigState(False, False, (), ())
PAIR = ("3g.40gb", "1g.10gb")


@pytest.mark.parametrize(
    ("state", "wanted", "value"),
    [
        (OFF, (), None),
        (OFF, PAIR, "1g.10gb,3g.40gb"),
        (on("1g.10gb", "3g.40gb"), PAIR, None),
        (on("3g.40gb", "3g.40gb"), PAIR, "3g.40gb@0,1g.10gb@4"),
        (on("1g.10gb", "3g.40gb"), ("3g.40gb", "2g.20gb", "1g.10gb"), "1g.10gb@0,2g.20gb@2,3g.40gb@4"),
        (on("1g.10gb", "3g.40gb", compute=0), PAIR, "3g.40gb@0,1g.10gb@4"),
        (on(*PAIR), (), "off"),
        (on(*PAIR, pending=False), PAIR, "1g.10gb,3g.40gb"),
    ],
)
def test_mig_is_one_change_a_gpu_that_waits_for_a_drained_node(state: mig.MigState, wanted: tuple[str, ...], value: str) -> None:
    changes = mig.plan(mig.MigWant(geometry=wanted), mig.Observed({PCI: state}))
    assert [getattr(c, "value", None) for c in changes] == ([value] if value else [])
    assert {c.disruption for c in changes} <= {Disruption.DRAIN}
    assert all("Gres=" in c.why for c in changes)


def test_a_mig_mode_that_is_pending_waits_for_a_reset() -> None:
    (change,) = mig.plan(mig.MigWant(geometry=PAIR), mig.Observed({PCI: replace(OFF, pending=True)}))
    assert isinstance(change, Reboot) and change.layer is Layer.PENDING_REBOOT


@pytest.mark.parametrize(
    ("want", "words"),
    [
        ({"geometry": ("4g.40gb", "4g.40gb")}, "8 slices are wanted of GPU 0000:1b:00.0, which has 7"),
        ({"geometry": ("2g.10gb",)}, "has no profile 2g.10gb; it offers 1g.10gb"),
        ({"geometry": ("3g.40gb", "3g.40gb", "1g.10gb")}, "GPU 0000:1b:00.0: no GPU can hold 2 x 3g.40gb"),
        ({"by_gpu": {"0000:ff:00.0": PAIR}}, "settings.mig.by_gpu.0000:ff:00.0: no GPU at this address"),
    ],
)
def test_a_geometry_that_cannot_be_is_refused(want: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        mig.plan(mig.MigWant(**want), mig.Observed({PCI: on()}))
    with pytest.raises(ConfigError, match="has no MIG"):
        mig.plan(mig.MigWant(geometry=PAIR), mig.Observed({PCI: None}))


def seen(sm: int = 345, note: str | None = None) -> clocks.Observed:
    return clocks.Observed({PCI: clocks.Clocks(sm, 1980, 2619)}, {PCI: (2619, 1980)}, note)


RECORDED = f"{PCI} locked_clocks 900-1200\n"


def test_a_lock_is_noted_and_one_that_was_lifted_is_seen_by_the_clock() -> None:
    want = clocks.ClocksWant(sm_megahertz=(900, 1200))
    made = clocks.plan(want, seen())
    assert [(type(c), getattr(c, "value", getattr(c, "content", None))) for c in made] == [(Nvml, "900-1200"), (File, RECORDED)]
    assert clocks.plan(want, seen(1200, RECORDED)) == ()
    (lifted,) = clocks.plan(want, seen(1755, RECORDED))
    assert "lifted" in lifted.why and isinstance(lifted, Nvml)
    freed = clocks.plan(clocks.ClocksWant(), seen(1200, RECORDED))
    assert [getattr(c, "value", getattr(c, "content", "")) for c in freed] == ["off", None]


@pytest.mark.parametrize(
    ("want", "words"),
    [
        ({"sm_megahertz": (900, 2100)}, "goes up to 1980 MHz, wanted 2100"),
        ({"sm_megahertz": (1500, 900)}, "1500 is above 900"),
        ({"memory_megahertz": (2619, 3000)}, "goes up to 2619 MHz"),
        ({"application_megahertz": (1980, 2619)}, "wanted 1980 and 2619"),
    ],
)
def test_clocks_that_the_card_has_not_are_refused(want: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        clocks.plan(clocks.ClocksWant(**want), seen())


def test_application_clocks_of_a_gpu_without_them_are_refused() -> None:
    none = replace(seen(), applications=unreadable("NVML NOT_SUPPORTED (3)"))
    with pytest.raises(ConfigError, match=r"no application clocks \(NVML NOT_SUPPORTED"):
        clocks.plan(clocks.ClocksWant(application_megahertz=(2619, 1980)), none)


# -- through the worker, to the simulated library


@pytest.fixture
def faults(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faults:
    return simulate("hgx-a100", library, tmp_path, monkeypatch)


@pytest.fixture
def worker(faults: Faults) -> Iterator[Worker]:
    made = Worker(20.0)
    yield made
    made.close()


def outside() -> list[dict[str, Any]]:
    """What another program sees: nvidia-ml-py in a process of its own."""
    done = subprocess.run([sys.executable, "-c", OUTSIDE], capture_output=True, text=True, check=True, env=dict(os.environ))
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def node_of(worker: Worker, tmp_path: Path) -> Node:
    (tmp_path / "root").mkdir(exist_ok=True)
    return gather(Root(str(tmp_path / "root")), worker.sweep().raw, reads=clocks.setting.reads)


def plan(name: str, node: Node, **want: Any) -> tuple[AnyChange, ...]:
    known = settings.load()[name]
    observed = known.observe(node)
    assert not isinstance(observed, Missing), observed
    return known.plan(known.want(**want), observed)


WANTED: dict[str, dict[str, Any]] = {
    "compute_mode": {"compute": "exclusive_process"},
    "power_limit": {"watts": 300},
    "clocks": {"sm_megahertz": (900, 1200), "application_megahertz": (1593, 1005)},
    "mig": {"geometry": ("3g.40gb", "2g.20gb", "1g.10gb")},
    "ecc_mode": {"enabled": False},
}


def test_what_is_set_is_what_other_programs_read_and_undo_brings_it_back(worker: Worker, tmp_path: Path) -> None:
    before = outside()
    node = node_of(worker, tmp_path)
    made: dict[str, list[Nvml]] = {}
    for name, want in WANTED.items():
        changes = plan(name, node, **want)
        for change in changes:
            if isinstance(change, Nvml):
                worker.set(change.pci, change.what, change.value)
        left = plan(name, node_of(worker, tmp_path), **want)
        assert [c for c in left if isinstance(c, Nvml) and name != "clocks"] == []
        made[name] = [c for c in changes if isinstance(c, Nvml)]
    after = outside()
    for gpu in after:
        assert gpu["ecc"] == [1, 0] and gpu["compute"] == 3 and gpu["limit"] == 300_000
        assert gpu["sm"] == 900 and gpu["application"] == 1005 and gpu["mig"] == [1, 1]
        assert len(gpu["devices"]) == 3 and all(uuid.startswith("MIG-") for _, uuid in gpu["devices"])
    for name in reversed(WANTED):
        for change in made[name]:
            worker.set(change.pci, change.what, change.before)
    assert outside() == before


NVITOP = """
import nvitop
for d in nvitop.Device.all()[:2]:
    print(d.power_limit(), d.compute_mode(), d.is_mig_mode_enabled(), [m.gpu_instance_id() for m in d.mig_devices()])
"""


def test_the_monitors_of_others_agree(worker: Worker) -> None:
    worker.set("0000:07:00.0", "mig", "3g.40gb,2g.20gb,1g.10gb")
    worker.set("0000:0f:00.0", "power_limit_milliwatts", 300_000)
    worker.set("0000:0f:00.0", "compute_mode", 3)
    said = [
        subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True, env=dict(os.environ)).stdout
        for words in (["-m", "gpustat", "--json"], ["-c", NVITOP])
    ]
    assert [g["enforced.power.limit"] for g in json.loads(said[0])["gpus"][:2]] == [400, 300]
    assert said[1] == "400000 Default True [1, 5, 13]\n300000 Exclusive Process False []\n"


@pytest.mark.parametrize(
    ("what", "value", "words"),
    [
        ("power_limit_milliwatts", 5_000_000, r"INVALID_ARGUMENT \(2\)"),
        ("ecc_mode", 7, r"INVALID_ARGUMENT \(2\)"),
        ("locked_clocks", "1500-900", r"INVALID_ARGUMENT \(2\)"),
        ("application_clocks", "1593,1001", r"INVALID_ARGUMENT \(2\)"),
        ("locked_clocks", "fast", r"INVALID_ARGUMENT \(2\)"),
        ("mig", "9g.90gb", r"INVALID_ARGUMENT \(2\)"),
        ("mig", "7g.80gb,1g.10gb", r"INSUFFICIENT_RESOURCES \(23\)"),
        ("colour", "red", r"FUNCTION_NOT_FOUND \(13\)"),
    ],
)
def test_what_the_driver_refuses_is_said_in_its_words(what: str, value: int | str, words: str, worker: Worker) -> None:
    with pytest.raises(HostError, match=f"cannot set {what} to {value}: NVML {words}"):
        worker.set("0000:07:00.0", what, value)


def test_a_gpu_in_use_keeps_its_instances_and_its_mode(worker: Worker, faults: Faults, tmp_path: Path) -> None:
    faults.set(0, "processes.count", 1)
    faults.set(0, "processes.0.pid", os.getpid())
    faults.set(0, "processes.0.used_bytes", 1 << 20)
    with pytest.raises(HostError, match=r"IN_USE \(19\)"):
        worker.set("0000:07:00.0", "mig", "7g.80gb")
    assert outside()[0]["mig"] == [0, 1], "the driver keeps the mode pending"
    (waits, *others) = plan("mig", node_of(worker, tmp_path), geometry=("7g.80gb",))
    assert isinstance(waits, Reboot) and len(others) == EIGHT - 1
    second = others[0].pci  # type: ignore[union-attr]
    worker.set(second, "mig", "7g.80gb")
    faults.set(1, "processes.count", 1)
    faults.set(1, "processes.0.pid", os.getpid())
    faults.set(1, "processes.0.used_bytes", 1 << 20)
    worker.sweep()  # the library looks at its control file once a millisecond
    with pytest.raises(HostError, match=r"IN_USE \(19\)"):
        worker.set(second, "mig", "3g.40gb")
    assert len(outside()[1]["devices"]) == 1, "nothing was destroyed"


def test_a_call_that_hangs_ends_at_its_deadline(worker: Worker, faults: Faults) -> None:
    worker.sweep()
    faults.hang("nvmlDeviceSetComputeMode")
    with pytest.raises(HostError, match=r"nvmlDeviceSetComputeMode has not come back within 3 s"):
        worker.set("0000:07:00.0", "compute_mode", 3, deadline_seconds=3.0)
    faults.lift()


def test_apply_sets_what_needs_no_drain_notes_it_and_undoes_it(worker: Worker, tmp_path: Path) -> None:
    root = Root(str(tmp_path / "root"))
    (tmp_path / "root").mkdir()
    document = resolve_layers("gpu1", [("test", {"settings": WANTED})])[0]

    def run(**options: Any) -> ApplyReport:
        return apply(document, root, nvml=worker, **options)

    busy = run(busy=True)
    assert {i.setting: (i.state, i.pending) for i in busy.items} == {
        "clocks": ("deferred", "idle"), "compute_mode": ("deferred", "idle"), "power_limit": ("deferred", "idle"),
        "ecc_mode": ("deferred", "reboot"), "mig": ("deferred", "drain"),
    }  # fmt: skip
    first = {i.setting: (i.state, i.persisted, i.effective, i.pending) for i in run().items}
    assert {n: first[n] for n in ("clocks", "compute_mode", "power_limit")} == dict.fromkeys(
        ("clocks", "compute_mode", "power_limit"), ("changed", "boot", "yes", "")
    )
    assert first["ecc_mode"] == ("deferred", "yes", "no", "reboot")
    assert {i.setting for i in run().items if i.state == "same"} == {"clocks", "compute_mode", "power_limit"}


# -- what a setting declares is never also a check


def test_the_checks_of_what_is_declared_are_quiet_and_the_drift_is_said_once() -> None:
    plain = config.profile_document("gpu1", "hgx-h100")
    declared = {"ecc_mode": {}, "mig": {}, "power_limit": {}}
    document = resolve_layers("gpu1", [("test", {"settings": declared})])[0]
    assert plain.checks["ecc"].judge_mode and plain.checks["mig_mode"].enabled  # type: ignore[attr-defined]
    raw = json.loads((MACHINES / "hgx-h100.tuned/nvml.json").read_text())
    raw["gpus"][2]["ecc_mode"] = {"current": 0, "pending": 1}
    raw["gpus"][3]["mig_mode"] = {"current": 0, "pending": 1}
    raw["gpus"][4]["power"]["limit_milliwatts"] = 300_000
    node = gather(Root(str(MACHINES / "hgx-h100.tuned")), raw)
    only = {"ecc", "mig_mode", "gpu_power_limit", *(f"setting.{n}" for n in declared)}
    assert {f.check for f in judge(document, node, Past(), only)} == {f"setting.{n}" for n in declared}
    assert {f.check for f in judge(plain, node, Past(), only)} == {"ecc", "mig_mode", "gpu_power_limit"}
    off = {"settings": {**declared, "mig": {"managed": False}}}
    assert resolve_layers("gpu1", [("test", off)])[0].checks["mig_mode"].enabled, "keeps off it: then the check judges"


@pytest.mark.parametrize("name", WANTED)
def test_a_gpu_that_does_not_say_is_unreadable_and_one_that_has_no_such_thing_is_left_out(name: str) -> None:
    tree = MACHINES / "hgx-h100"
    raw = json.loads((tree / "nvml.json").read_text())
    part = {"mig": "mig_mode", "power_limit": "power"}.get(name, name)
    raw["gpus"][5][part] = {"error": 999}
    assert isinstance(observed(name, gather(Root(str(tree)), raw, reads=clocks.setting.reads)), Missing)
    excused = ("mig_current", "ecc", "power_limit_watts", "load", "state", "clock_sm_hertz", "details")
    found = observed(name, gather(Root(str(tree)), raw, reads=clocks.setting.reads, unsupported=excused))
    assert not isinstance(found, Missing)


def observed(name: str, node: Node) -> Any:
    return settings.load()[name].observe(node)
