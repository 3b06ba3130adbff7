"""gpu_readings: whatever could be read and cannot any more is a finding; of every field, on every machine tree."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from msgspec import Struct
from msgspec.structs import replace

from fairlead import checks, config
from fairlead.checks.gpu_readings import Params, check
from fairlead.host.gather import Gatherer, gather
from fairlead.host.root import Root
from fairlead.judge import reads as daemon_reads
from fairlead.model.check_definition import Past
from fairlead.model.device import LISTS, newly_unreadable, readable_fields, was_readable
from fairlead.model.facts import Gpu, Missing, Node, unreadable
from fairlead.model.finding import Action, Finding, Level, Mode
from fairlead.model.gpu_load import LoadSeen
from tests.checks.nodes import ADDRESSES, ECC, LINKS, NA, UNSUPPORTED, gpu, node
from tests.lab.trees import MACHINES

TREES = MACHINES
GONE = unreadable("NVML NOT_SUPPORTED (3)")
#: What names a GPU or is for display only: without it nothing is lost that could be judged. ``lost`` and ``link`` are ours.
NAMES = {"pci", "index", "lost"}


def judged(machine: Node, past: Past, **params: object) -> list[Finding]:
    return list(check.findings(machine, past, Params(**params)))


def before(machine: Node | None = None) -> Past:
    return Past(available=True, readable=readable_fields(machine or node()))


def without(value: Struct, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every fact by its dotted name, with the same GPU that does not say it."""
    for name in value.__struct_fields__:
        inner = getattr(value, name)
        if (not prefix and name in NAMES) or (prefix and name in ("link", "remote")) or isinstance(inner, Missing):
            continue
        if inner is not None and Missing in get_args(get_type_hints(type(value))[name]):  # else it goes with its whole
            yield f"{prefix}{name}", replace(value, **{name: GONE})
        if isinstance(inner, Struct):
            yield from ((n, replace(value, **{name: v})) for n, v in without(inner, f"{prefix}{name}."))
        elif name in LISTS and inner:
            yield from ((n, replace(value, **{name: (v, *inner[1:])})) for n, v in without(inner[0], f"{prefix}{name}.0."))
            yield f"{prefix}{name}.{len(inner) - 1}", replace(value, **{name: inner[:-1]})


def test_the_property_covers_every_field() -> None:
    """What the property below removes: all fields of Gpu but its names, and those of each of its parts.

    ``activity`` is not judged.
    """
    names = {name for name, _ in without(gpu())}
    assert {n.partition(".")[0] for n in names} | {"retired", "activity"} == set(Gpu.__struct_fields__) - NAMES
    assert {
        "load.margin_celsius",
        "ecc.mode_current",
        "pcie.gen_max",
        "nvlinks.0.crc_errors",
        "nvlinks.17",
        "aer.fatal",
        "remap.histogram",
    } <= names


@pytest.mark.trees
@pytest.mark.parametrize("tree", sorted(p for p in TREES.iterdir() if p.is_dir()), ids=lambda p: p.name)
def test_a_fact_that_went_dark_is_never_ok_in_silence(tree: Path) -> None:
    document = config.profile_document("n1", tree.name.partition(".")[0])
    machine = gather(Root(str(tree)), json.loads((tree / "nvml.json").read_text()), unsupported=document.unsupported)
    assert isinstance(machine.gpus, tuple)
    past = before(machine)
    place = next(n for n, g in enumerate(machine.gpus) if not g.lost)
    quiet = {f for name, c in checks.load().items() for f in c.findings(machine, past, document.checks[name])}
    silent = []
    for name, changed in without(machine.gpus[place]):
        sick = replace(machine, gpus=(*machine.gpus[:place], changed, *machine.gpus[place + 1 :]))
        found = {f for n, c in checks.load().items() for f in c.findings(sick, past, document.checks[n])} - quiet
        if not any(f.level is not Level.OK and f.device == changed.pci for f in found):
            silent.append(name)
    assert silent == []


def sources(raw: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Every place of a GPU's part of nvml.json where NVML could say an error instead; of the links the first."""
    for key, value in raw.items():
        if key == "remote" or (isinstance(value, dict) and all(isinstance(v, dict) for v in (value, *value.values()))):
            continue  # the name of a link's far end; what is an error already, or all of whose parts are
        if (key == "nvlink" and not value) or (isinstance(value, dict) and "error" in value):
            continue
        yield f"{prefix}{key}"
        if isinstance(value, dict):
            yield from sources(value, f"{prefix}{key}.")
        elif key == "nvlink" and value:
            yield from sources(value[0], f"{prefix}{key}.0.")


def cut(raw: dict[str, Any], path: str, code: int) -> dict[str, Any]:
    """The same with an error at one place."""
    key, _, rest = path.partition(".")
    if not rest:
        return raw | {key: {"error": code}}
    if key == "nvlink":
        return raw | {key: [cut(raw[key][0], rest.removeprefix("0."), code), *raw[key][1:]]}
    return raw | {key: cut(raw[key], rest, code)}


@pytest.mark.trees
@pytest.mark.parametrize("code", [3, 999])  # NOT_SUPPORTED, UNKNOWN
@pytest.mark.parametrize("tree", ["hgx-h100", "hgx-a100", "l40s-pcie"])
def test_any_nvml_answer_that_is_cut_off_is_told(tree: str, code: int) -> None:
    """Of whatever a fact is made of: a call that fails is named by some check, with the same driver that knew it."""
    document = config.profile_document("n1", tree)
    raw = json.loads((TREES / tree / "nvml.json").read_text())
    reads = daemon_reads(document)
    looker = Gatherer(Root(str(TREES / tree)), unsupported=document.unsupported, reads=reads, slow_seconds=1e9)

    def sweep(first: dict[str, Any]) -> Node:
        found = looker.gather(raw | {"gpus": [first, *raw["gpus"][1:]]})
        assert isinstance(found.gpus, tuple)
        still = tuple(replace(g, load=replace(g.load, seen=LoadSeen())) for g in found.gpus)  # else it grows from look to look
        return replace(found, gpus=still)

    healthy = sweep(raw["gpus"][0])
    past = before(healthy)
    quiet = {f for n, c in checks.load().items() for f in c.findings(healthy, past, document.checks[n])}
    made_of = 0
    for path in sources(raw["gpus"][0]):
        sick = sweep(cut(raw["gpus"][0], path, code))
        if sick.gpus == healthy.gpus:
            continue  # no fact is made of it
        made_of += 1
        found = {f for n, c in checks.load().items() for f in c.findings(sick, past, document.checks[n])} - quiet
        assert any(f.level is not Level.OK for f in found), path
    assert made_of > 40


def test_healthy_and_never_known_is_quiet() -> None:
    assert judged(node(), before()) == []
    assert judged(node(gpu(2, power_draw_watts=NA)), Past(available=True)) == []
    assert judged(node(gpu(2, power_draw_watts=UNSUPPORTED)), before()) == []


def test_one_finding_for_all_that_is_gone() -> None:
    changes = dict.fromkeys(("power_draw_watts", "clock_sm_hertz", "temperature_celsius", "processes", "minor"), GONE)
    (finding,) = judged(node(gpu(2, **changes)), before())
    assert (finding.level, finding.device) == (Level.UNKNOWN, ADDRESSES[2])
    assert "and 1 more" in finding.summary and any("NOT_SUPPORTED (3)" in line for line in finding.evidence)


def test_links_that_are_no_longer_listed() -> None:
    (finding,) = judged(node(gpu(2, nvlinks=LINKS[:12])), before())
    assert "nvlinks.12" in finding.summary


def test_reset_required_drains() -> None:
    dark = unreadable("NVML RESET_REQUIRED (16)")
    (finding,) = judged(node(gpu(2, memory_used_bytes=dark, temperature_celsius=dark)), Past(available=True))
    assert (finding.level, finding.action, finding.device) == (Level.DRAIN, Action.RESET_GPU, ADDRESSES[2])
    assert check.mode is Mode.ENFORCE and check.confirm == 2
    (finding,) = judged(node(gpu(2, ecc=replace(ECC, volatile_uncorrected=dark))), before())  # a part that was read before
    assert (finding.level, finding.action) == (Level.DRAIN, Action.RESET_GPU)


def test_what_is_no_loss() -> None:
    on = gpu(2, mig_current=True, mig_pending=True)
    assert judged(node(replace(on, utilization_percent=GONE)), before()) == []  # NVML has none under MIG
    assert judged(node(gpu(2, utilization_percent=GONE)), before()) != []
    off = replace(ECC, mode_current=False, volatile_corrected=GONE)
    assert judged(node(gpu(2, ecc=off)), before()) == []  # without ECC there are no counters; ecc says that it is off
    assert judged(node(gpu(2, lost=True, power_draw_watts=GONE)), before()) == []
    new_board = gpu(2, serial="999", uuid="GPU-999", power_draw_watts=GONE)
    assert judged(node(new_board), before()) == []


def test_the_site_may_ignore() -> None:
    sick = node(gpu(2, nvlinks=(replace(LINKS[0], crc_errors=GONE), *LINKS[1:]), power_draw_watts=GONE))
    assert judged(sick, before(), ignore=("nvlinks", "power_draw_watts")) == []
    (left,) = judged(sick, before(), ignore=("nvlinks",))
    assert "power_draw_watts" in left.summary and "nvlinks" not in left.summary


def test_a_gpu_whose_serial_went_dark_is_found_under_its_address() -> None:
    sick = gpu(2, serial=GONE, power_draw_watts=GONE)
    assert set(newly_unreadable(sick, before())) == {"serial", "power_draw_watts"}
    assert was_readable(sick, "ecc.mode_current", before()) and not was_readable(sick, "no.such", before())
    assert newly_unreadable(sick, Past()) == {}
