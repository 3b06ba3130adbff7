"""The tables of sinfo and sacctmgr give the GPUs of nodes and the times in which nodes were out of service."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.jobs.node_rows import NodeEvent, NodeGpus, node_events_of, node_gpus_of


def test_nodes_and_events() -> None:
    mistakes: list[str] = []
    nodes = node_gpus_of(
        ["NODELIST|PARTITION|GRES", "n1|gpu*|gpu:h100:8(S:0-1)", "n1|debug|gpu:h100:8(S:0-1)", "n2|cpu|(null)"], mistakes
    )
    assert nodes == [NodeGpus(node="n1", gpus=8, partitions=("gpu", "debug")), NodeGpus(node="n2", gpus=0, partitions=("cpu",))]
    events = node_events_of(["NodeName|TimeStart|TimeEnd", "|1|2", "n1|100|Unknown"], mistakes)
    assert events == [NodeEvent(node="n1", begin_unix=100.0, end_unix=None)]
    assert not mistakes


def test_a_row_that_makes_no_sense_is_named() -> None:
    mistakes: list[str] = []
    assert node_gpus_of(["NODELIST|PARTITION|GRES", "n1;id|gpu|", "n1|gpu"], mistakes) == []
    assert node_events_of(["NodeName|TimeStart|TimeEnd", "n1|yesterday|"], mistakes) == []
    assert [each.partition(": ")[2][:6] for each in mistakes] == ["line 2", "line 3", "line 2"]


@given(st.lists(st.text(max_size=80), max_size=5))
def test_no_text_breaks_the_reader(lines: list[str]) -> None:
    node_gpus_of(lines, [])
    node_events_of(lines, [])
    node_gpus_of(["NODELIST|PARTITION|GRES", *lines], [])
    node_events_of(["NodeName|TimeStart|TimeEnd", *lines], [])
