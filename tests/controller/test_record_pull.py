"""A node is asked for its own jobs only, and of its answer only these are taken."""

from __future__ import annotations

from fairlead.controller.record_pull import nodes_to_ask, of_nodes, records_of_node
from fairlead.controller.record_reader import RecordReader
from fairlead.jobs.usage_record import encoded
from tests.jobs.job_reports import record_of, run_of


def test_only_the_nodes_of_a_job_are_asked_for_it() -> None:
    one, two = run_of(2, job=17), run_of(1, job=18)
    wanted = of_nodes([one, two], {0: one.nodes, 1: two.nodes})
    assert wanted == {"gpu001": {17, 18}, "gpu002": {17}}
    assert nodes_to_ask(wanted) == [(["gpu001", "gpu002"], [17, 18])]
    assert of_nodes([one], {0: ()}) == {}, "a node whose record has ended is not asked again"


def test_many_jobs_are_asked_for_in_groups_and_each_node_only_in_its_own() -> None:
    runs = [run_of(1, job=job) for job in range(1, 1101)]
    wanted = {f"n{job}": {job} for job in range(1, 1101)}
    groups = nodes_to_ask(wanted)
    assert [len(jobs) for _, jobs in groups] == [500, 500, 100] and len(runs) == sum(len(jobs) for _, jobs in groups)
    assert all({int(node[1:]) for node in nodes} == set(jobs) for nodes, jobs in groups)


def test_what_a_node_says_of_other_jobs_and_of_other_nodes_is_not_used() -> None:
    """Its root may be hostile."""
    own, other_job, other_node = record_of("gpu001", job=17), record_of("gpu001", job=99), record_of("gpu002", job=17)
    text = b"".join(b"==> /usage/x.json <==\n" + encoded(each) + b"\n" for each in (other_job, own, other_node))
    with RecordReader() as reader:
        assert records_of_node(reader, "gpu001", text, "", {17}) == ([own], "it sent records that it was not asked for")
        assert records_of_node(reader, "gpu001", text, "no route to host", {17}) == ([], "no records: no route to host")
