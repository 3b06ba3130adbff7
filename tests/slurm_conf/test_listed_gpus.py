"""Which GPU or MIG device a GRES index means is told by the lines of gres.conf, in the order in which slurmd counts them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.slurm.conf_review import mig_remarks
from fairlead.slurm_config import listed_gpus
from fairlead.slurm_config.gres_order import WHOLE
from fairlead.slurm_config.listed_gpus import GresLine
from tests.lab.slurmd import mig_minors

CAPS = listed_gpus.capabilities("config 900\nmonitor 901\n" + mig_minors(range(8)))
LARGE, SMALL = "3g.40gb", "1g.10gb"


def cap(gpu: int, gi: int, ci: int | None) -> str:
    (number,) = [n for n, each in CAPS.items() if (each.gpu, each.gi, each.ci) == (gpu, gi, ci)]
    return f"/dev/nvidia-caps/nvidia-cap{number}"


def files(gpu: int, gi: int) -> tuple[str, ...]:
    return f"/dev/nvidia{gpu}", cap(gpu, gi, None), cap(gpu, gi, 0)


def line(kind: str, gpu: int, gi: int, head: str = "NodeName=n1 ") -> str:
    return f"{head}Name=gpu Type={kind} MultipleFiles={','.join(files(gpu, gi))}"


def by_index(lines: list[str], gres: str, node: str = "n1") -> list[object]:
    found = listed_gpus.gpu_lines(lines, node)
    assert found is not None
    types = listed_gpus.counted_types([{"nodename": "n[1-4]", "gres": gres}], node)
    return [listed_gpus.device_of(each, CAPS) for each in listed_gpus.files_by_index(found, types)]


def test_slurm_conf_orders_the_types_and_gres_conf_the_lines_of_one_type() -> None:
    lines = [line(SMALL, 1, 9), line(LARGE, 0, 1), line(SMALL, 0, 11), "NodeName=n1 Name=gpu Type=h100 File=/dev/nvidia[2-3]"]
    small, large = [(1, (9, 0)), (0, (11, 0))], [(0, (1, 0))]
    assert by_index(lines, f"gpu:{SMALL}:2,gpu:{LARGE}:1,gpu:h100:2") == [*small, *large, (2, WHOLE), (3, WHOLE)]
    assert by_index(lines, f"gpu:h100:2,gpu:{LARGE}:1,gpu:{SMALL}:2") == [(2, WHOLE), (3, WHOLE), *large, *small]
    assert by_index(lines, "gpu:5(S:0-1)") == [small[0], *large, small[1], (2, WHOLE), (3, WHOLE)]
    assert by_index(lines, f"gpu:H100:1,gpu:{SMALL}:1") == [(2, WHOLE), small[0]], "slurm.conf counts fewer"


def test_lines_for_all_nodes_come_first_and_lines_of_other_nodes_do_not_count() -> None:
    lines = [line(SMALL, 1, 9), line(SMALL, 0, 11, head=""), line(SMALL, 0, 12, head="NodeName=n[2-4] ")]
    assert by_index(lines, f"gpu:{SMALL}:2") == [(0, (11, 0)), (1, (9, 0))]
    assert by_index(lines, f"gpu:{SMALL}:2", "n3") == [(0, (11, 0)), (0, (12, 0))]


@pytest.mark.parametrize(
    ("first", "known"),
    [
        ("AutoDetect=nvml", False),
        ("NodeName=n1 AutoDetect=nvml", False),
        ("NodeName=n2 AutoDetect=nvml", True),
        ("AutoDetect=off", True),
        ("AutoDetect=nvidia", False),
    ],
)
def test_where_slurmd_detects_gpus_it_counts_in_another_order(first: str, known: bool) -> None:
    assert (listed_gpus.gpu_lines([first, line(SMALL, 0, 11)], "n1") is not None) is known
    assert listed_gpus.gpu_lines(["AutoDetect=nvml", "NodeName=n1 AutoDetect=off", line(SMALL, 0, 11)], "n1") is not None


def test_the_defaults_of_slurm_conf_count() -> None:
    rows = [{"nodename": "DEFAULT", "gres": "gpu:a:4"}, {"nodename": "n[1-2]"}, {"nodename": "n3", "gres": "mps:100,gpu:b:2"}]
    assert [listed_gpus.counted_types(rows, f"n{n}") for n in (1, 3, 9)] == [(("a", 4),), (("b", 2),), ()]
    with pytest.raises(ValueError, match="not understood"):
        listed_gpus.counted_types([{"nodename": "n1", "gres": "gpu:a:2:no_consume"}], "n1")


@pytest.mark.parametrize(
    "names",
    [
        ("/dev/nvidia0", cap(0, 1, None)),
        ("/dev/nvidia0", cap(0, 1, 0)),
        ("/dev/nvidia0", cap(0, 1, None), cap(0, 2, 0)),
        ("/dev/nvidia1", cap(0, 1, None), cap(0, 1, 0)),
        ("/dev/nvidia0", cap(0, 1, None), cap(0, 1, 0), cap(0, 2, 0)),
        ("/dev/nvidia0", "/dev/nvidia1"),
        ("/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap900", cap(0, 1, 0)),
        ("/dev/nvidia0", "/dev/nvidiactl"),
        (),
    ],
)
def test_files_of_no_single_device_mean_nothing(names: tuple[str, ...]) -> None:
    assert listed_gpus.device_of(names, CAPS) is None
    if names:
        (said,) = listed_gpus.mistakes([GresLine(SMALL, names, multiple=True)], CAPS, {})
        assert "\n" not in said and said.startswith(f"MultipleFiles={','.join(names)}: ")


def test_doctor_names_each_mistake_in_one_line() -> None:
    present = "gpu\t-\t0\tGPU-0\t0000:1b:00.0\n" + "".join(
        f"mig\tMIG-{gi}\t0000:1b:00.0\t{gi}\t0\t{SMALL}\t0\t-\t-\n" for gi in (9, 11)
    )
    odd = f"NodeName=n1 Name=gpu Type={SMALL} MultipleFiles=/dev/nvidia0,/dev/nvidia-caps/nvidia-cap900,{cap(0, 9, 0)}"
    good = [line(SMALL, 0, 9), line(SMALL, 0, 11)]
    cases: list[tuple[list[str], list[str]]] = [
        (good, []),
        ([*good, line(SMALL, 0, 9)], ["MIG instance 9 of /dev/nvidia0 is on another line too"]),
        ([*good, line(SMALL, 0, 12)], ["MIG instance 12 of /dev/nvidia0 does not exist"]),
        ([good[1], odd], ["nvidia-cap900 is the capability of no MIG instance", "no line has MIG instance 9 of /dev/nvidia0"]),
        ([*good, "NodeName=n[1-2"], ["makes no sense"]),
        (["NodeName=n2 Name=gpu File=/dev/nvidia0"], []),
    ]
    for lines, expected in cases:
        found = [remark.what for remark in mig_remarks(lines, "n1", mig_minors(range(8)), present)]
        assert len(found) == len(expected) and all(e in f for e, f in zip(expected, found, strict=True)), found


WORDS = st.sampled_from(
    ["NodeName=n1", "Name=gpu", "MultipleFiles=/dev/nvidia0,x", "File=/dev/nvidia[0-", "AutoDetect=", "Type=", "="]
)


@given(st.lists(st.one_of(st.text(), st.lists(WORDS).map(" ".join))), st.text(), st.text())
def test_any_text_is_read(lines: list[str], minors: str, topology: str) -> None:
    for remark in mig_remarks(lines, "n1", minors, topology):
        assert "\n" not in remark.what
