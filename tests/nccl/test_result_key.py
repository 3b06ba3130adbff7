"""What NCCL says about itself, the key of a result, and the file of a result: also cut, forged and from another cluster."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.errors import DataError
from fairlead.nccl.debug_lines import NcclSaid, read
from fairlead.nccl.launch_statistics import Effect, LaunchDifference
from fairlead.nccl.measured_result import MeasuredResult, NcclCandidate, ResultJudgement, SumCheck, decode, judge_candidate, unfit
from fairlead.nccl.result_key import NO_LEAF, PARTS, NodeParts, changes, key_of

INFO = """\
gpu1:71:71 [0] NCCL INFO cudaDriverVersion 13010
NCCL version 2.29.3+cuda13.1
gpu1:71:80 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB enp1s0:10.0.0.1<0>
gpu1:71:80 [0] NCCL INFO Using network IB
gpu1:71:80 [0] NCCL INFO comm 0x5581 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
gpu2:55:64 [7] NCCL INFO comm 0x7711 rank 15 nRanks 16 nNodes 2 localRanks 8 localRank 7 MNNVL 0
"""
OFI = """\
gpu1:71:80 [0] NCCL INFO NET/Plugin: Loaded net plugin Libfabric (v10)
gpu1:71:80 [0] NCCL INFO Successfully loaded external network plugin libnccl-net.so
gpu1:71:80 [0] NCCL INFO NET/OFI Initializing aws-ofi-nccl 1.14.0
gpu1:71:80 [0] NCCL INFO Using network Libfabric
"""
NODE = NodeParts(node="n1", driver="580.95.05", gpu="8 x H100", firmware="28.43.1014", topology="ab12", leaf="s1")
SAID = NcclSaid(nccl="2.29.3", cuda="13.1", net="IB", ranks="16", nodes="2")


def test_what_nccl_says() -> None:
    assert read(INFO) == SAID
    assert read(OFI).net == "Libfabric, aws-ofi-nccl 1.14.0"
    assert read(OFI.replace("NET/OFI Initializing aws-ofi-nccl 1.14.0", "")).net == "", "a plug-in without a version is unknown"
    assert read(INFO + "NCCL version 2.28.1+cuda13.0\n").nccl == "", "two versions in one run"
    assert read("") == NcclSaid()


@given(st.text(max_size=300))
def test_any_text_is_read(text: str) -> None:
    read(text)
    read("NCCL version " + text)


def test_a_key_and_what_changed() -> None:
    was = key_of("prod", [NODE, msgspec.structs.replace(NODE, node="n2", leaf="s2")], SAID)
    assert set(was) == set(PARTS) and "" not in was.values()
    assert was["leaves"] == "2" and was["nodes"] == "2" and was["driver"] == "580.95.05"
    assert changes(was, was) == []
    assert changes(was, was | {"driver": "580.105.08"}) == ["the NVIDIA driver was 580.95.05 and is 580.105.08"]
    assert changes(was, was | {"net": ""}) == ["the network plug-in is not known here"]
    assert changes(was | {"net": ""}, was) == ["the network plug-in is not known of the result"]
    assert changes({}, {}) and len(changes({}, was)) == len(PARTS)
    assert changes(was, was | {"cluster": "\x1b[2Jtest"}) == ["the Slurm cluster was prod and is [2Jtest"]


@pytest.mark.parametrize("part", PARTS)
def test_every_part_counts(part: str) -> None:
    was = key_of("prod", [NODE, msgspec.structs.replace(NODE, node="n2")], SAID)
    assert len(changes(was, was | {part: "other"})) == 1 and len(changes(was, was | {part: ""})) == 1


def test_a_part_that_one_node_does_not_know_is_unknown() -> None:
    dumb = NodeParts(node="n2", driver="", gpu="8 x H100", firmware="28.43.1014", topology="ab12", leaf=NO_LEAF)
    key = key_of("prod", [NODE, dumb], SAID)
    assert key["driver"] == "" and key["gpu"] == "8 x H100"
    assert key_of("prod", [dumb], SAID)["nodes"] == "", "NCCL ran on two nodes, and one node has answered"
    assert key_of("prod", [dumb, dumb], SAID)["leaves"] == NO_LEAF
    mixed = key_of("prod", [NODE, msgspec.structs.replace(NODE, node="n2", driver="570.1")], SAID)
    assert mixed["driver"] == "570.1, 580.95.05"


def difference(effect: Effect = Effect.NONE, gain: float = 0.0, name: str = "up to 1 MiB") -> LaunchDifference:
    return LaunchDifference(
        name=name,
        gain=gain,
        low=gain - 0.01,
        high=gain + 0.01,
        p=0.01,
        adjusted=0.02,
        floor=0.024,
        launches=(12, 12),
        effect=effect,
    )


SAME, GAIN, LOSS = (difference(),), (difference(Effect.GAIN, 0.15),), (difference(Effect.LOSS, -0.1),)
RIGHT = SumCheck(ranks=16, worst=1e-7, bound=9e-7)


@pytest.mark.parametrize(
    ("same", "alone", "beside", "sums", "judgement", "said", "fits"),
    [
        (SAME, SAME, None, None, ResultJudgement.NO_GAIN, "a gain under 2.4% cannot be seen here", False),
        (SAME, GAIN, SAME, RIGHT, ResultJudgement.GAIN, "faster: up to 1 MiB by 15.0%", True),
        (SAME, GAIN, None, RIGHT, ResultJudgement.GAIN, "not for use yet", False),
        (SAME, GAIN, SAME, None, ResultJudgement.GAIN, "sums were not checked", False),
        (SAME, GAIN, LOSS, RIGHT, ResultJudgement.LOSS, "slower beside a GEMM loop", False),
        (SAME, (*GAIN, *LOSS), SAME, RIGHT, ResultJudgement.LOSS, "slower: up to 1 MiB by 10.0%", False),
        (SAME, GAIN, SAME, SumCheck(ranks=2, worst=1.0, bound=1e-6), ResultJudgement.FAILED, "float32 sums are wrong", False),
        (GAIN, GAIN, SAME, RIGHT, ResultJudgement.NO_DECISION, "A differed from itself", False),
    ],
)
def test_judgement(  # noqa: PLR0917
    same: tuple[LaunchDifference, ...],
    alone: tuple[LaunchDifference, ...],
    beside: tuple[LaunchDifference, ...] | None,
    sums: SumCheck | None,
    judgement: ResultJudgement,
    said: str,
    fits: bool,
) -> None:
    found, why = judge_candidate(same, alone, beside, sums)
    assert found is judgement and said in why, why
    variables = {"NCCL_ALGO": "Tree"}
    candidate = NcclCandidate(
        name="x", judgement=found, why=why, variables=variables, alone=alone, beside=beside or (), sums=sums
    )
    assert (unfit(candidate) == "") is fits
    assert unfit(msgspec.structs.replace(candidate, variables={}))


RESULT = MeasuredResult(
    schema="nccl-result/1",
    measured=1.8e9,
    fairlead="0.1.0",
    mode="variables",
    collective="all_reduce",
    command="srun $TEST",
    test="all_reduce_perf",
    environment={},
    key=key_of("prod", [NODE, msgspec.structs.replace(NODE, node="n2")], SAID),
    launches=12,
    same=SAME,
    candidates=(),
)


def test_a_file_is_read_whole_or_not() -> None:
    data = msgspec.json.encode(RESULT)
    assert decode(data, "r") == RESULT and RESULT.floor == pytest.approx(0.01)
    for bad in (
        data[:-20],
        b"",
        b"[]",
        b"{}",
        data.replace(b"nccl-result/1", b"nccl-result/2"),
        data.replace(b'"cuda"', b'"cura"'),
    ):
        with pytest.raises(DataError, match=r"^r: ") as error:
            decode(bad, "r")
        assert error.value.hint


@given(st.binary(max_size=300))
def test_any_file_is_an_error_of_one_line(data: bytes) -> None:
    with pytest.raises(DataError):
        decode(data, "r")
