"""Who runs what: the answers of nodes of several releases, of packages, of half installed and of hostile nodes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fairlead.cli.version_table import data, text
from fairlead.provision.node_versions import NONE, NodeVersions, own_hooks, versions_of
from fairlead.provision.run_bundle import HOOKS

OLD, NEW = "0.1.0-aaaaaaaaaa", "0.2.0-bbbbbbbbbb"
SUM = "a" * 64


def answer(
    installed: str = NEW, agent: str = NEW, *, hooks: tuple[str, ...] = tuple(HOOKS.values()), expires: int = 100, **more: Any
) -> bytes:
    status: dict[str, Any] = {"agent_version": agent.partition("-")[0], **({"agent_release": agent} if agent != OLD else {})}
    parts = {
        "/run/fairlead/verdict": f"1\tok\t{expires}\t7\t-\n",
        "/proc/uptime": "50.00 10.00\n",
        "/run/fairlead/status.json": json.dumps(status),
        "/opt/fairlead/current/bin/fairlead": f"#!/opt/fairlead/{installed}/bin/python -I\nimport sys\n",
        **more,
        "/dev/null": "",
    }
    files = "\n".join(f"==> {name} <==\n{content}" for name, content in parts.items() if content is not None)
    return ("".join(f"{SUM}  {path}\n" for path in hooks) + files).encode()


@pytest.mark.parametrize(
    ("said", "installed", "agent", "restart_due"),
    [
        (answer(), NEW, NEW, False),
        (answer(OLD, OLD), OLD, "0.1.0", False),  # an agent that does not say its release
        (answer(NEW, OLD), NEW, "0.1.0", True),
        (answer(NEW, "0.2.0-cccccccccc"), NEW, "0.2.0-cccccccccc", True),
        (answer(expires=40), NEW, NONE, False),  # the status of an agent that has ended is still there
        (answer(**{"/run/fairlead/verdict": None}), NEW, NONE, False),
        (answer(**{"/opt/fairlead/current/bin/fairlead": None}), NONE, NEW, False),
        (
            answer(**{"/opt/fairlead/current/bin/fairlead": "#!/bin/sh\n", "/usr/lib/fairlead/release": f"{OLD}\n"}),
            OLD,
            NEW,
            True,
        ),
        (answer(**{"/opt/fairlead/current/bin/fairlead": "#!/bin/sh\n"}), "unreadable", NEW, True),
    ],
)
def test_what_a_node_runs(said: bytes, installed: str, agent: str, restart_due: bool) -> None:
    found = versions_of(said)
    assert (found.installed, found.agent, found.restart_due, found.trouble) == (installed, agent, restart_due, "")


def test_hooks_are_compared_by_their_content() -> None:
    some = tuple(HOOKS.values())[:3]
    whole, part, none = versions_of(answer()), versions_of(answer(hooks=some)), versions_of(answer(hooks=()))
    assert whole.hooks != part.hooks and not whole.incomplete and len(part.incomplete) == 2 and none.hooks == NONE
    assert len(own_hooks()) == 10 and own_hooks() != whole.hooks


@pytest.mark.parametrize(
    "hostile",
    [
        b"",
        answer()[:-20],
        answer(**{"/usr/lib/fairlead/release": "\x1b[2J\n0.1.0"}),
        answer(**{"/opt/fairlead/current/bin/fairlead": "#!/opt/fairlead/\x1b[31m/bin/python\n"}),
        answer(**{"/run/fairlead/status.json": '{"agent_version": {"a": 1}}'}),
        answer(**{"/run/fairlead/status.json": '{"agent_release": "x\\ny"}'}),
        answer(**{"/run/fairlead/status.json": json.dumps({"agent_release": "9" * 5000})}),
        b"f" * 64 + b"  /etc/passwd\n" + answer(hooks=()),
    ],
)
def test_no_text_of_a_hostile_node_is_shown(hostile: bytes) -> None:
    found = versions_of(hostile)
    shown = text({"n1": found}, ours=NEW, hooks="h", controller="none here")
    assert shown.isprintable() or all(line.isprintable() for line in shown.split("\n"))
    assert max(map(len, shown.split("\n"))) < 300 and "passwd" not in shown and "9999" not in shown


def test_the_table_groups_nodes_and_counts_no_silent_node() -> None:
    new, old = versions_of(answer()), versions_of(answer(OLD, OLD))
    found = {f"gpu{n}": new for n in range(1, 41)} | {"gpu41": old, "gpu42": NodeVersions(trouble="no answer in 10 s")}
    said = text(found, ours=NEW, hooks=new.hooks, controller=NEW).splitlines()
    assert said[0] == f"here: {NEW}, hooks {new.hooks}; controller programs: {NEW}"
    assert said[2].split() == ["gpu[1-40]", NEW, NEW, new.hooks, "(as", "here)"]
    assert said[3].split()[:3] == ["gpu41", OLD, "0.1.0"]
    assert said[4:] == ["gpu42: not known: no answer in 10 s", "42 nodes: 41 answered, 1 did not; 2 releases installed"]
    nodes = data(found, ours=NEW, hooks=new.hooks, controller=None)["nodes"]
    assert nodes[-1] == {"node": "gpu42", "trouble": "no answer in 10 s"} and nodes[0]["installed"] == NEW
