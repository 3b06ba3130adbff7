"""The table of the job environment, and what is made of it."""

from __future__ import annotations

import msgspec
import pytest

from fairlead.errors import DataError
from fairlead.jobenv.never import NEVER
from fairlead.jobenv.render import END, HEAD, explain, recorded, render
from fairlead.jobenv.table import ROWS, ProfileLevel, When


def test_every_row_says_why_and_who_says_so() -> None:
    assert len({r.name for r in ROWS}) == len(ROWS)
    for row in ROWS:
        assert row.name not in NEVER
        assert row.why and row.what
        assert row.source.startswith("https://")
        assert not row.value.startswith("@") or row.value in {"@cores", "@first_host", "@port"}


def test_the_file_is_complete_and_splits_into_five() -> None:
    lines = render().splitlines()
    assert (lines[0], lines[-1]) == (HEAD, END + "'")
    for line in lines[1:-1]:
        _, when, value, level, said = line.split("\t")
        assert said == ("-" if value.startswith("@") else recorded(value))
        assert When(when.partition("!")[0].partition(":")[0]) and ProfileLevel(level)
    assert "NCCL_DEBUG" not in render(skip=["NCCL_DEBUG"])


@pytest.mark.parametrize(
    "change",
    [
        {"name": "NCCL_ALGO"},
        {"name": "PATH"},
        {"name": "lower"},
        {"name": "A-B"},
        {"name": "1A"},
        {"name": "É"},
        {"value": ""},
        {"value": "a\tb"},
        {"value": "a\nb"},
        {"value": " a"},
    ],
)
def test_rows_that_the_shell_could_not_take_are_refused(change: dict[str, str]) -> None:
    with pytest.raises(DataError):
        render([msgspec.structs.replace(ROWS[0], **change)])


def test_explain_tells_ours_from_the_users() -> None:
    env = {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NCCL_DEBUG": "INFO",
        "MASTER_ADDR": "mine",
        "FAIRLEAD_SET": "CUDA_DEVICE_ORDER:=PCI_BUS_ID|NCCL_DEBUG:=WARN",
    }
    rows = {row["name"]: row for row in explain(env)}
    assert rows["CUDA_DEVICE_ORDER"]["origin"] == "fairlead"
    assert rows["NCCL_DEBUG"]["origin"] == "user"
    assert rows["MASTER_ADDR"]["origin"] == "user"
    assert rows["MASTER_PORT"]["origin"] == "-"
    assert {row["name"] for row in explain(env, "minimal")} == {"CUDA_DEVICE_ORDER"}
    assert explain(env, "off") == []
    assert "NCCL_DEBUG" not in {row["name"] for row in explain({**env, "FAIRLEAD_SKIP": "NCCL_DEBUG"})}


def test_what_is_told_of_values() -> None:
    assert recorded("WARN") == "=WARN" and recorded("=ib0,ib1") == "==ib0,ib1"
    assert recorded("a b").isdigit() and recorded("a b") != recorded("b a")
    assert recorded("a|b").isdigit(), "it parts the entries"


def test_the_sites_own_variables() -> None:
    text = render(extra={"GLOO_SOCKET_IFNAME": "ib0", "NCCL_DEBUG": "VERSION"})
    assert "GLOO_SOCKET_IFNAME\talways\tib0\tfull\t" in text
    assert text.count("NCCL_DEBUG") == 1
    assert "NCCL_DEBUG\talways\tVERSION\tfull\t" in text
    for bad in ({"PATH": "/x"}, {"A": "@port"}, {"A": "a\nb"}):
        with pytest.raises(DataError):
            render(extra=bad)
