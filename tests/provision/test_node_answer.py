"""What a node may answer to `fairlead provision`: all that an honest one says, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import apply
from fairlead.model.change import Disruption, Layer
from fairlead.nccl.compute_ports import Port
from fairlead.provision import node_answer, planned_changes, provision_report
from fairlead.provision.maintain import node_access as maintain_node
from fairlead.provision.node_answer import NotAnAnswerError
from fairlead.provision.planned_changes import of_one, of_result
from fairlead.provision.provision_report import node_result

DRIVER = {"packages": [{"name": "nvidia-open", "version": "1:580-1", "architecture": "amd64"}]}
FILE = "nvidia-open_1%3a580-1_amd64.deb"
DOCUMENTS = [{"path": "/etc/fairlead/node.json", "content": json.dumps({"node": "n1", "settings": {"driver": DRIVER}})}]
STEP = {"target": "t", "why": "w", "layer": "effective", "disruption": "none", "diff": "", "done": None, "message": ""}
ITEM = {"setting": "nccl", "state": "changed", "persisted": "yes", "effective": "yes", "pending": "", "message": "", "hint": ""}
APPLY: dict[str, Any] = {"node": "n1", "changed": 1, "failed": 0, "items": [{**ITEM, "steps": [STEP]}]}
DONE: dict[str, Any] = {"changed": True, "changes": [{"what": "w", "why": "y"}], "apply": APPLY}
NEED: dict[str, Any] = {"need": ["packages"], "packages": [FILE], "hostname": "n1", "python": "3.11", "machine": "x86_64"}
NEED["libc"] = ["glibc", "2.36"]
EVIL = "\x1b[2J\x1b]0;t\x07\x9b1m\u202e\u2028\x00\r\nn2: same [red]x[/red] \ud800"


def read(said: object, **how: Any) -> dict[str, Any]:
    return node_answer.read(said if isinstance(said, str) else json.dumps(said), DOCUMENTS, package_files=[FILE], **how)


def test_what_an_honest_node_says_is_taken_whole() -> None:
    step = apply.AppliedStep(target="t", why="w", layer=Layer.PERSISTED, disruption=Disruption.REBOOT, diff="-a\n+b\n", done=True)
    item = apply.Item(setting="nccl", state="deferred", pending="reboot", message="m", hint="h", steps=(step,))
    port = Port(
        name="mlx5_0:1", up=True, link_layer="InfiniBand", rate_gbps=400, mtu_bytes=4092, gpus=(0,), network="10.0.0.0/24"
    )
    fields: dict[str, Any] = {"node": "n1", "generation": 3, "hash": "sha256:ab", "phase": "all", "dry_run": False, "busy": True}
    packed = msgspec.json.encode(apply.ApplyReport(**fields, changed=1, failed=0, items=(item,), ports=(port,)))
    said = json.loads(packed)
    assert read({**DONE, "apply": said})["apply"] == said, "nothing of the report is lost"
    assert read({**DONE, "apply": None})["apply"] is None and read(DONE)["apply"] == APPLY
    assert read(NEED) == NEED and read({**NEED, "libc": ["", ""]})["libc"] == ["", ""]
    assert read({"failed": True, "msg": "no room", "hint": "make some"}) == {
        "failed": True,
        "msg": "no room",
        "hint": "make some",
        "of_node": True,
    }
    changes = [{"what": "/a", "why": "content", "before": "x\n\ty\n", "after": "z\n"}]
    assert read({"changed": True, "changes": changes, "undone": {"x": 1}}) == {"changed": True, "changes": changes}


def test_the_words_of_a_report_are_those_that_an_answer_may_have() -> None:
    """Where `fairlead apply` gets another word, it has to be known here."""
    for layer in Layer:
        for disruption in Disruption:
            read({**DONE, "apply": {**APPLY, "items": [{**ITEM, "steps": [{**STEP, "layer": layer, "disruption": disruption}]}]}})
    for state in ("same", "changed", "would_change", "deferred", "failed", "refused", "unreadable", "unmanaged", "left"):
        assert state in (apply.Item.__doc__ or "")
        read({**DONE, "apply": {**APPLY, "items": [{**ITEM, "state": state, "steps": []}]}})


def test_what_is_not_known_is_left_out() -> None:
    names = ("ansible_facts", "add_host", "add_group", "_ansible_x", "invocation", "exception", "warnings", "deprecations")
    more: dict[str, Any] = {key: {"x": 1} for key in names}
    assert read({**DONE, **more}) == DONE and read({**NEED, **more}) == NEED
    assert read({"failed": True, "msg": "m", **more}) == {"failed": True, "msg": "m", "of_node": True}
    inside = {**APPLY, **more, "items": [{**ITEM, **more, "steps": [{**STEP, **more}]}]}
    assert read({**DONE, "apply": inside, "changes": [{"what": "w", "why": "y", **more}]}) == DONE


def test_every_text_is_cut_and_printable_and_forges_no_line() -> None:
    said = {"changed": True, "changes": [{"what": EVIL, "why": EVIL, "after": EVIL, "before": EVIL}]}
    said["apply"] = {**APPLY, "items": [{**ITEM, "message": EVIL * 1000, "hint": EVIL, "steps": [{**STEP, "diff": EVIL}]}]}
    found = read(said)
    (change,), (item,) = found["changes"], found["apply"]["items"]
    for text in (change["what"], change["why"], item["message"], item["hint"]):
        assert text.isprintable() and len(text) <= node_answer.TEXT_MAX
    for text in (change["after"], item["steps"][0]["diff"]):
        assert text.replace("\n", "").isprintable() and len(text.splitlines()) == 2
    assert len(read({"failed": True, "msg": "x" * 10_000})["msg"]) == node_answer.TEXT_MAX


def _item(**more: object) -> dict[str, Any]:
    return {**DONE, "apply": {**APPLY, "items": [{**ITEM, "steps": [], **more}]}}


BAD: dict[str, tuple[object, str]] = {
    "no JSON": ("{", "no JSON"),
    "a number": (7, "is not a table"),
    "nothing": ({}, "changed is missing"),
    "deep": ("[" * 100_000, "no JSON"),
    "deep inside": ('{"changed": true, "changes": ' + "[" * 100_000 + "]" * 100_000 + "}", "no JSON"),
    "long": ({"failed": True, "msg": "x" * (node_answer.LINE_MAX + 1)}, "longer than 8 MiB"),
    "wide": ({"changed": True, "changes": [0] * 200_000}, "changes is not a list of at most"),
    "many digits": ('{"changed": ' + "9" * 5000 + "}", "no JSON"),
    "no number": ('{"changed": NaN}', "no JSON"),
    "flag": ({**DONE, "changed": "yes"}, "changed is not true or false"),
    "changes": ({**DONE, "changes": {}}, "changes is not a list"),
    "change": ({**DONE, "changes": ["x"]}, "changes[0] is not a table"),
    "text": ({**DONE, "changes": [{"what": 1, "why": ""}]}, "changes[0].what is not text"),
    "failed": ({"failed": "x", "msg": "m"}, "failed is not true or false"),
    "message": ({"failed": True, "msg": {"a": 1}}, "msg is not text"),
    "report": ({**DONE, "apply": []}, "apply is not a table"),
    "another node": ({**DONE, "apply": {**APPLY, "node": "n2"}}, "apply.node is another node's name"),
    "count": ({**DONE, "apply": {**APPLY, "changed": 1 << 60}}, "apply.changed is not a number"),
    "less than nothing": ({**DONE, "apply": {**APPLY, "failed": -1}}, "apply.failed is not a number"),
    "setting": (_item(setting="../x"), "apply.items[0].setting does not have the right form"),
    "state": (_item(state="fine"), "apply.items[0].state is none of"),
    "pending": (_item(pending="never"), "apply.items[0].pending is none of"),
    "steps": (_item(steps=[{**STEP, "disruption": "all"}]), "apply.items[0].steps[0].disruption is none of"),
    "unhashable": (_item(state=["same"]), "apply.items[0].state is none of"),
    "need": ({**NEED, "need": ["secrets"]}, "need[0] is none of"),
    "hostname": ({**NEED, "hostname": ["n2"]}, "hostname is not text"),
    "path": ({**NEED, "packages": ["../secret_admin_key"]}, "packages names a file that its document does not"),
    "absolute path": ({**NEED, "packages": ["/etc/shadow"]}, "packages names a file that its document does not"),
    "python": ({**NEED, "python": "3.11 --index-url=http://x"}, "python does not have the right form"),
    "machine": ({**NEED, "machine": "../x"}, "machine does not have the right form"),
    "libc": ({**NEED, "libc": ["glibc", "1.x"]}, "libc[1] does not have the right form"),
    "no libc": ({**NEED, "libc": ["glibc", ""]}, "libc does not have the right form"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_no_node_of_ours_says_is_refused_in_words_of_ours(name: str) -> None:
    said, words = BAD[name]
    with pytest.raises(NotAnAnswerError) as refused:
        read(said)
    assert words in str(refused.value) and str(refused.value).startswith(node_answer.SAID) and len(str(refused.value)) < 300


@pytest.mark.parametrize("layer", ["InfiniBand and 3 Ethernet", "x\n", "", 5])
def test_a_port_forges_no_other_nodes_network(layer: object) -> None:
    port = {"name": "mlx5_0", "up": True, "link_layer": layer, "rate_gbps": 1, "mtu_bytes": 1}
    said = {**DONE, "apply": {**APPLY, "ports": [port]}}
    if layer == "":
        assert read(said)["apply"]["ports"]
        return
    with pytest.raises(NotAnAnswerError, match="link_layer does not have the right form"):
        read(said)


def test_what_was_sent_is_not_asked_for_again() -> None:
    with pytest.raises(NotAnAnswerError, match="asks again"):
        read(NEED, may_need=False)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10) | st.sampled_from([*DONE, *APPLY]), inner),
)


@given(st.sampled_from([DONE, NEED, {"failed": True, "msg": "m"}]), st.sampled_from([*DONE, *NEED, *APPLY]), JSON)
def test_nothing_else_than_a_refusal_comes_of_any_value(base: dict[str, Any], key: str, value: object) -> None:
    for said in ({**base, key: value}, {**DONE, "apply": {**APPLY, key: value}}, value):
        try:
            shown(read(said))
        except NotAnAnswerError as e:
            assert str(e).isprintable()


def shown(answer: dict[str, Any]) -> None:
    """As `provision` and `plan` show it; nothing of it raises."""
    for event in ("runner_on_ok", "runner_on_failed", "runner_on_unreachable"):
        result = node_result("n1", event, "t", answer)
        made = provision_report.ProvisionReport(site="s", generation=1, check=False, seconds=1.0, nodes=(result,))
        for text in (
            provision_report.text(made, diff=True),
            planned_changes.text([of_result(result)], diff=True),
        ):
            assert text.replace("\n", "").replace("\t", "").isprintable()
        msgspec.json.encode(provision_report.data(made, made.exit_code))
        msgspec.json.encode(planned_changes.data([of_result(result)]))
        maintain_node.apply_outcome(result)


STATES = ("same", "changed", "would_change", "deferred", "failed", "refused", "unreadable", "unmanaged", "left", "absent")
ITEMS = st.fixed_dictionaries(
    {
        **{key: st.just(value) for key, value in ITEM.items()},
        "setting": st.sampled_from(["nccl", "memlock", "driver"]),
        "state": st.sampled_from(STATES),
        "pending": st.sampled_from(["", "idle", "drain", "reboot", "boot"]),
        "message": st.sampled_from(["", "m", EVIL]),
        "hint": st.sampled_from(["", EVIL]),
        "steps": st.lists(
            st.fixed_dictionaries({**{k: st.just(v) for k, v in STEP.items()}, "done": st.sampled_from([None, True, False])}),
            max_size=3,
        ),
    }
)


@given(
    st.lists(ITEMS, max_size=5), st.lists(st.sampled_from([{"what": EVIL, "why": EVIL, "after": EVIL}, {"what": "", "why": ""}]))
)
def test_every_answer_that_is_taken_can_be_shown(items: list[dict[str, Any]], changes: list[dict[str, str]]) -> None:
    shown(read({"changed": True, "changes": changes, "apply": {**APPLY, "items": items}}))


def test_a_flood_of_changes_or_steps_is_told_in_short_and_counted() -> None:
    change, step = {"what": "w", "why": "y"}, {**STEP, "target": "", "why": "", "diff": ""}
    item = {**ITEM, "steps": [step] * 3000}
    told = read({"changed": True, "changes": [change] * 100_000, "apply": {**APPLY, "items": [item, item]}})
    assert len(told["changes"]) == node_answer.CHANGES_MAX and told["left_out"] == 100_000 - node_answer.CHANGES_MAX
    assert [(len(i["steps"]), i.get("left_out", 0)) for i in told["apply"]["items"]] == [(3000, 0), (2000, 1000)]
    result = node_result("n1", "runner_on_ok", "t", told)
    assert result.changed == 100_002 and "and 99000 more, left out here" in result.changes
    made = provision_report.ProvisionReport(site="s", generation=1, check=False, seconds=1.0, nodes=(result,))
    assert len(provision_report.text(made, diff=True).splitlines()) < 1100 and "100002 changes" in provision_report.text(made)
    assert len(planned_changes.text([of_one(result)]).splitlines()) < 1100
    assert "nccl: and 1000 more, left out here" in [f"{s.setting}: {s.why}" for s in of_one(result).steps]


def test_a_diff_that_is_long_is_cut_and_the_rest_is_counted() -> None:
    lines = provision_report.shortened([str(n) for n in range(provision_report.SHOWN_LINES_MAX + 7)])
    assert len(lines) == provision_report.SHOWN_LINES_MAX + 1 and "and 7 more lines" in lines[-1]
    assert provision_report.shortened(["x"]) == ["x"]


def test_no_package_file_is_asked_for_twice() -> None:
    """Each is copied to the node: 100,000 times the same one would take the admin host's time."""
    with pytest.raises(NotAnAnswerError, match="names a file twice"):
        read({**NEED, "packages": [FILE, FILE]})


@pytest.mark.parametrize(
    "said", [{}, {"10de:27b8": -1}, {"10de:27b8\n": 1}, {"L4": 1}, ["10de:27b8"], {f"10de:{n:04x}": 1 for n in range(17)}]
)
def test_what_gpus_a_node_has_is_a_short_table(said: object) -> None:
    right = {"10de:27b8": 4}
    assert node_answer.read(json.dumps({"other_gpus": right, "more": 1}), ()) == {"other_gpus": right}
    with pytest.raises(NotAnAnswerError):
        node_answer.read(json.dumps({"other_gpus": said}), ())
