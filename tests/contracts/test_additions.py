"""A check or a setting is one file: what the folder scan finds has its test, its source and its reference row."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from fairlead import checks, settings

ROOT = Path(__file__).resolve().parents[2]
CITED = re.compile(r"Sources?:|nvml[A-Z]\w+|NVML_\w+|/sys/|/proc/|Specification|\w+\(\d\)|NVIDIA's \w+ catalogue")
ALL = [("checks", n) for n in checks.load()] + [("settings", n) for n in settings.load()]


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_has_a_test_file_and_a_cited_source(kind: str, name: str) -> None:
    tests = [*(ROOT / "tests" / kind).glob("test_*.py"), *(ROOT / "tests" / name).glob("test_*.py")]
    assert any(re.search(rf"\b{name}\b", path.name.removesuffix(".py") + path.read_text()) for path in tests), "no test names it"
    doc = importlib.import_module(f"fairlead.{kind}.{name}").__doc__ or ""
    assert CITED.search(doc), f"fairlead/{kind}/{name}.py cites nothing in its docstring that could be looked up"
    assert kind == "checks" or re.search(r"\bSources?:", doc), "its row in docs/reference/settings.md says why, and who says so"


@pytest.mark.parametrize("name", checks.load())
def test_a_check_has_its_own_test_file_with_the_unreadable_case(name: str) -> None:
    file = ROOT / "tests/checks" / f"test_{name}.py"
    assert file.is_file(), f"write tests/checks/test_{name}.py: a table of nodes and of the findings that they yield"
    assert "UNKNOWN" in file.read_text(), f"tests/checks/test_{name}.py has no case in which what {name} reads cannot be read"


@pytest.mark.parametrize("name", checks.load())
def test_a_check_writes_no_name_of_its_own(name: str) -> None:
    """The caller fills in ``Finding.check``; a name in the code would outlive a renamed file."""
    text = (ROOT / "agent/fairlead/checks" / f"{name}.py").read_text()
    assert not re.search(r"\bcheck=", text), f"checks/{name}.py: leave `check=` out of its findings"
    assert checks.load()[name].name == name, f"checks/{name}.py: its `judge` is a function of this file"


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_gpus_and_ports_are_gone_over_by_the_iterators_of_model(kind: str, name: str) -> None:
    """``readable_gpus`` leaves out lost GPUs, and ``rdma_ports`` reports what cannot be read. A loop of its own may not."""
    text = (ROOT / "agent/fairlead" / kind / f"{name}.py").read_text()
    judging = text.partition("\ndef samples(")[0]  # what is added to the history needs no finding
    assert not re.search(r"^ *for \w+ in (node\.gpus|host\.ports):", judging, re.MULTILINE), "use readable_gpus or rdma_ports"


@pytest.mark.parametrize(("kind", "name"), ALL)
def test_every_parameter_is_described(kind: str, name: str) -> None:
    from fairlead.cli.explain import parameters

    item = (checks.load() if kind == "checks" else settings.load())[name]
    struct = getattr(item, "params", None) or item.want  # type: ignore[union-attr]
    undescribed = [n for n, _, text in parameters(struct) if not text]
    assert not undescribed


def test_a_setting_is_never_also_a_check() -> None:
    assert not set(checks.load()) & set(settings.load())


@pytest.mark.parametrize("name", [n for n, s in settings.load().items() if s.instead_of])
def test_what_a_setting_puts_on_checks_are_parameters_of_theirs(name: str) -> None:
    for check, parameters in settings.load()[name].instead_of.items():
        assert set(parameters) <= set(checks.load()[check].params.__struct_fields__)


def test_first_checks_and_settings_are_there() -> None:
    assert set(checks.load()) >= {"xid", "gpu_count", "ecc", "row_remap", "pcie_link", "nvml_responsive"}
    assert set(settings.load()) >= {"persistence", "numa_balancing", "pcie_acs", "nccl", "cpu_governor", "memlock"}
