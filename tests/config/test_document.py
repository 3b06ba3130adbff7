"""A node's document: every mistake is one line that names file and key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import config
from fairlead.cli import main
from fairlead.errors import ConfigError, InputMissing

MINIMAL = {"schema": 1, "generation": 1, "node": "gpu1"}


def document(**more: object) -> bytes:
    return json.dumps({**MINIMAL, **more}).encode()


@pytest.mark.parametrize(
    ("data", "key", "reason"),
    [
        (document(agnet={}), "agnet", "unknown key"),
        (document(agent={"intervall_seconds": 1}), "agent.intervall_seconds", "unknown key"),
        (document(agent={"interval_seconds": "fast"}), "agent.interval_seconds", "Expected `float`, got `str`"),
        (document(agent={"interval_seconds": 0}), "agent.interval_seconds", ">= 0.2"),
        (document(checks={"xidd": {}}), "checks.xidd", "unknown key"),
        (document(checks={"xid": {"mode": "maybe"}}), "checks.xid.mode", "Invalid enum value"),
        (document(settings={"numa_balancing": {"valeu": 0}}), "settings.numa_balancing.valeu", "unknown key"),
        (document(slurm={"adapter": "rest"}), "slurm.adapter", "Invalid enum value"),
        (document(hooks={"on_stale": "drain"}), "hooks.on_stale", "Invalid enum value"),
        (document(hooks={"site_task_prolog": "bin/x"}), "hooks.site_task_prolog", "matching regex"),
        (document(schema=99), "schema", "99 is not readable"),
        (document(node="a b"), "node", "matching regex"),
        (document(hash="sha256:0"), "hash", "does not match the content"),
        (b"{", "", "not JSON"),
        (b"[]", "", "not a JSON object"),
        (json.dumps({"schema": 1, "generation": 1}).encode(), "", "missing required field `node`"),
    ],
)
def test_a_mistake_names_file_key_and_reason(data: bytes, key: str, reason: str) -> None:
    with pytest.raises(ConfigError) as e:
        config.decode_document(data, "/etc/fairlead/node.json")
    assert e.value.exit_code == 78
    text = str(e.value)
    assert text.startswith(f"/etc/fairlead/node.json: {key}: " if key else "/etc/fairlead/node.json: ")
    assert reason in text
    assert "\n" not in text


HOSTILE = {
    "not UTF-8": b'{"node":"\xff"}',
    "not UTF-8 in a key": b'{"\xff":1}',
    "UTF-16": '{"node":"n1"}'.encode("utf-16"),
    "lists in lists": b"[" * 200_000 + b"]" * 200_000,
    "tables in tables": document(checks={}).replace(b'"checks": {}', b'"checks": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_000),
    "huge": b" " * (4 << 20) + document(),
    "a key of a megabyte": document(**{"k" * 1_000_000: 1}),
    "a value of a megabyte": document(schema=[1] * 500_000),
    "an integer of a megabyte": document().replace(b'"generation": 1', b'"generation": ' + b"9" * 1_000_000),
    "the same key twice": document().replace(b'"node"', b'"node": "gpu0", "node"'),
    "the same key twice, deep": document(agent={"run_dir": "/run/x"}).replace(b'"run_dir"', b'"run_dir": "/x", "run_dir"'),
    "a zero character": document(agent={"state_dir": "/var/a\0b"}),
    "a zero character in a list": document(unsupported=["a\0"]),
    "zero bytes": b"\0" * 4096,
    "a terminal's sequences": document(**{"\x1b]0;x\x07\x1b[2J\u202e": 1}),
    "half a surrogate": document().replace(b'"gpu1"', b'"\\ud800"'),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_any_bytes_end_with_78_and_one_short_line(data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (path := tmp_path / "node.json").write_bytes(data)
    assert main(["agent", "--document", str(path)]) == 78
    said = capsys.readouterr().err.splitlines()
    assert said[0].startswith(f"fairlead agent: {path}: ") and len(said[0]) < len(str(path)) + 420
    assert len(said) <= 2 and all(line.isprintable() for line in said)


def test_a_document_edited_by_hand_says_how_to_mend_it() -> None:
    sealed = json.loads(config.encode_document(config.decode_document(document(), "x")))
    edited = {**sealed, "generation": 7, "profile": "hgx-h100"}
    with pytest.raises(ConfigError, match="hash: does not match the content") as e:
        config.decode_document(json.dumps(edited).encode(), "x")
    assert "`fairlead provision -l gpu1`" in e.value.hint and 'delete its entry "hash"' in e.value.hint
    del edited["hash"]  # as the hint says
    assert config.decode_document(json.dumps(edited).encode(), "x").profile == "hgx-h100"


def test_schema_before_this_one_is_read() -> None:
    assert config.decode_document(document(schema=0), "x").schema == 0


def test_a_document_with_names_of_0_1_0_is_read() -> None:
    assert config.decode_document(document(slurm={"look_seconds": 7}), "x").slurm.reconcile_seconds == 7


def test_missing_file_is_input_missing() -> None:
    with pytest.raises(InputMissing, match="no such file"):
        config.load_document("/nonexistent/node.json")


def test_encoding_is_stable_and_round_trips() -> None:
    one = config.decode_document(document(agent={"interval_seconds": 2}), "x")
    data = config.encode_document(one)
    again = config.decode_document(data, "x")
    assert config.encode_document(again) == data
    assert again.agent == one.agent


@given(
    st.binary(max_size=200)
    | st.recursive(st.none() | st.integers() | st.text(), lambda c: st.dictionaries(st.text(), c)).map(
        lambda v: json.dumps(v).encode()
    )
)
def test_any_bytes_are_a_document_or_a_config_error(data: bytes) -> None:
    try:
        config.decode_document(data, "x")
    except ConfigError:
        pass


SITE = """
schema = 1
generation = 3
[agent]
interval_seconds = 5
[classes.h100]
nodes = "gpu[1-4]"
profile = "hgx-h100"
[classes.h100.agent]
verdict_ttl_seconds = 60
[nodes.gpu3.checks.xid]
mode = "observe"
"""


def write(tmp_path: Path, text: str) -> str:
    path = tmp_path / "site.toml"
    path.write_text(text)
    return str(path)


def test_layers_win_in_order_and_say_where_a_value_came_from(tmp_path: Path) -> None:
    path = write(tmp_path, SITE + "[nodes.gpu3.agent]\ninterval_seconds = 7\n")
    site = config.load_site(path)
    plain, _ = config.resolve(site, "gpu1", ["h100"])
    special, origins = config.resolve(site, "gpu3", ["h100"])
    assert (plain.agent.interval_seconds, special.agent.interval_seconds) == (5, 7)
    assert special.agent.verdict_ttl_seconds == 60
    assert special.generation == 3
    assert special.profile == "hgx-h100"
    assert origins["agent.interval_seconds"] == f"{path} nodes.gpu3"
    assert origins["agent.verdict_ttl_seconds"] == f"{path} classes.h100"
    assert origins["checks.gpu_count.expected"] == "profile hgx-h100"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("schema = 2\n", "schema"),
        ("schema = 1\nclases = {}\n", "clases"),
        ("schema = 1\n[classes.a]\nprofile = 'hgx-h100'\n", "classes.a.nodes"),
        ("schema = 1\n[classes.a]\nnodes = 'n1'\nchekcs = {}\n", "classes.a.chekcs"),
        ("schema = 1\n[nodes.n1]\nprofile = 'x'\n", "nodes.n1.profile"),
        ("schema = 1\n[ansible]\nusr = 'root'\n", "ansible"),
        ("schema = 1\ngeneration = 'x'\n", "generation"),
        ("schema = ", ""),
    ],
)
def test_a_site_mistake_names_the_key(tmp_path: Path, text: str, key: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as e:
        config.load_site(path)
    assert str(e.value).startswith(f"{path}: {key}" if key else path)


def test_an_unknown_profile_lists_the_known_ones(tmp_path: Path) -> None:
    site = config.load_site(write(tmp_path, "schema = 1\n[classes.a]\nnodes = 'n1'\nprofile = 'hgx-h1000'\n"))
    with pytest.raises(InputMissing) as e:
        config.resolve(site, "n1", ["a"])
    assert "hgx-h100" in e.value.hint


def test_a_wrong_value_names_its_layer(tmp_path: Path) -> None:
    path = write(tmp_path, "schema = 1\n[classes.a]\nnodes = 'n1'\n[classes.a.agent]\ninterval_seconds = 'x'\n")
    with pytest.raises(ConfigError, match=r"classes\.a: agent\.interval_seconds"):
        config.resolve(config.load_site(path), "n1", ["a"])


def test_every_value_of_every_profile_has_why_and_source() -> None:
    for name in config.profile_names():
        for value in config.load_profile(name).values:
            assert value.why.strip(), (name, value.key)
            assert value.source.strip(), (name, value.key)


def test_every_profile_resolves() -> None:
    assert set(config.profile_names()) >= {"hgx-h100", "hgx-a100", "l40s-pcie"}
    for name in config.profile_names():
        assert config.profile_document("n1", name).profile == name
