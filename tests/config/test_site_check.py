"""``config check`` finds every mistake of a site in one run, says what was probably meant, and names the nodes of each class."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fairlead import assets, config
from fairlead.cli import main
from fairlead.config import toml_text
from fairlead.provision.inventory import targets
from fairlead.provision.site_check import check_site

GOOD = 'schema = 1\ngeneration = 3\n[classes.h100]\nnodes = "gpu[001-412]"\nprofile = "hgx-h100"\n'
#: Each line with a comment is one mistake, and the comment is its key.
MANY = r"""
schema = 2                          # schema
generation = "seven"                # generation
[agnet]                             # agnet
[agent]
intervall_seconds = 5               # agent.intervall_seconds
verdict_ttl_seconds = 1             # agent.verdict_ttl_seconds
[checks.gpu_cuont]                  # checks.gpu_cuont
[checks.xid]
mode = "enforced"                   # checks.xid.mode
confrim = 2                         # checks.xid.confrim
[jobenv.presets.Fast]               # jobenv.presets.Fast
[settings.nccl.extra]
NCCL_ALGO = "a b\tc\nd"              # settings.nccl.extra.NCCL_ALGO
[settings.sysctl.values]
"vm.swappiness" = 1
[ansible]
usr = "root"                        # ansible.usr
forks = 0                           # ansible.forks
hosts = { gpu1 = "10.0.0.1:22" }
[accept]
tolls = []                          # accept.tolls
[classes.h100]
nodes = "gpu[1-4]"
profile = "hgx-h1000"               # classes.h100.profile
fabrik = "roce"                     # classes.h100.fabrik
[classes.h100.settings.nvvl]        # classes.h100.settings.nvvl
[classes.h100.settings.driver]      # settings.driver
version = "580.95.05"
[classes.l40s]
nodes = ["n1", "n2"]                # classes.l40s.nodes
[classes.l40s.settings.mig]
geometry = ["7g.80gb", "7g.80gb"]   # classes.l40s.settings.mig.geometry
[partitions.gpu]
classes = ["h10", "l40s"]           # partitions.gpu.classes
[partitions.more]
nodes = "gpu[1-"                    # partitions.more.nodes
[partitions.odd]
node = "gpu1"                       # partitions.odd.node
options = { Nodes = "x" }
[nodes.gpu3.hooks]
on_stale = "drain"                  # nodes.gpu3.hooks.on_stale
[nodes.gpu4]
profile = "hgx-h100"                # nodes.gpu4.profile
"""
KEYS = sorted([*(line.partition("# ")[2] for line in MANY.splitlines() if "# " in line), "ansible.hosts.gpu1"])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def mistakes(text: str) -> dict[str, tuple[str, str]]:
    """Key -> reason and hint of each mistake of a site with this text."""
    Path("site.toml").write_text(text)
    return {m.key: (m.reason, m.hint) for m in check_site("site.toml").mistakes}


def test_every_mistake_of_a_site_is_found_in_one_run(here: Path) -> None:
    assert sorted(mistakes(MANY)) == KEYS
    assert len(KEYS) > 15


def test_each_mistake_that_is_mended_leaves_the_others(here: Path) -> None:
    """No mistake hides another: a file without one of them has all the others."""
    lines = MANY.splitlines()
    for line in lines:
        key = line.partition("# ")[2]
        if not key or line.startswith(("[", "node", "classes", "schema", "version")):
            continue  # a table's head and what belongs to others stay
        rest = sorted(mistakes("\n".join(other for other in lines if other != line)))
        assert rest == sorted(k for k in KEYS if k != key), key


def test_the_command_prints_each_as_one_line_and_ends_with_78(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("site.toml").write_text(MANY)
    assert main(["config", "check", "site.toml"]) == 78
    lines = capsys.readouterr().err.splitlines()
    told = [line for line in lines if not line.startswith("  next: ")]
    assert len(told) == len(KEYS) and all(line.startswith("fairlead config: site.toml: ") for line in told)
    assert main(["config", "check", "site.toml", "--json"]) == 78
    data = json.loads(capsys.readouterr().out)
    assert data["ok"] is False and sorted(m["key"] for m in data["mistakes"]) == KEYS
    assert data["classes"] == {"h100": {"nodes": "gpu[1-4]", "count": 4}}


@pytest.mark.parametrize(
    ("text", "key", "meant"),
    [
        ("[agnet]\n", "agnet", "`agent`"),
        ("[agent]\nintervall_seconds = 5\n", "agent.intervall_seconds", "`interval_seconds`"),
        ("[agent]\nInterval-Seconds = 5\n", "agent.Interval-Seconds", "`interval_seconds`"),
        (
            "[classes.b]\nnodes = 'n1'\n[classes.b.settings.numa_blancing]\n",
            "classes.b.settings.numa_blancing",
            "`numa_balancing`",
        ),
        ("[nodes.gpu001.checks.xid]\nconfrim = 2\n", "nodes.gpu001.checks.xid.confrim", "`confirm`"),
        ("[classes.b]\nnodes = 'n1'\nprofil = 'hgx-h100'\n", "classes.b.profil", "`classes.b.profile`"),
        ("[classes.b]\nnodes = 'n1'\ninterval_seconds = 5\n", "classes.b.interval_seconds", "`classes.b.agent.interval_seconds`"),
        ("[clases.b]\nnodes = 'n1'\n", "clases", "`classes`"),
        ("[ansible]\nusr = 'x'\n", "ansible.usr", "`user`"),
        ("[accept]\nprelud = 'x'\n", "accept.prelud", "`prelude`"),
        ("[jobenv.presets.a]\nskipp = []\n", "jobenv.presets.a.skipp", "`skip`"),
    ],
)
def test_an_unknown_key_says_which_was_probably_meant(here: Path, text: str, key: str, meant: str) -> None:
    found = mistakes(GOOD + text)
    assert list(found) == [key]
    assert found[key][0] == "unknown key" and f"did you mean {meant}?" in found[key][1]


def test_a_run_names_the_key_that_was_meant_too(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("site.toml").write_text(GOOD + "[agent]\nintervall_seconds = 5\n")
    assert main(["provision", "--site", "site.toml", "--check"]) == 78
    assert "did you mean `interval_seconds`?" in capsys.readouterr().err


def test_a_word_that_is_none_of_the_choices_lists_them(here: Path) -> None:
    assert "observe" in mistakes(GOOD + "[checks.xid]\nmode = 'maybe'\n")["checks.xid.mode"][1]
    assert "allow, refuse" in mistakes(GOOD + "[hooks]\non_stale = 'maybe'\n")["hooks.on_stale"][1]


def test_the_nodes_of_each_class_are_said(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("site.toml").write_text(GOOD + '[classes.login]\nnodes = "login1,gpu-b[08-10]"\n')
    assert main(["config", "check", "site.toml"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == "site.toml: right (nodes 416, generation 3)"
    assert [line.split() for line in rest] == [
        ["h100:", "gpu[001-412]", "(412", "nodes)"], ["login:", "gpu-b[08-10],login1", "(4", "nodes)"],
    ]  # fmt: skip
    assert main(["config", "check", "site.toml", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["classes"] == {
        "h100": {"nodes": "gpu[001-412]", "count": 412}, "login": {"nodes": "gpu-b[08-10],login1", "count": 4},
    }  # fmt: skip
    assert data["ok"] is True and data["mistakes"] == [] and (data["nodes"], data["generation"]) == (416, 3)


def test_two_classes_that_claim_one_node_are_named_with_what_each_wants(here: Path) -> None:
    classes = '[classes.a]\nnodes = "n[1-4]"\nprofile = "hgx-h100"\n[classes.b]\nnodes = "n[3-6]"\nprofile = "hgx-a100"\n'
    (here / "site.toml").write_text(f"schema = 1\n{classes}")
    (mistake,) = check_site("site.toml").mistakes
    assert mistake.reason == "node n3 is in a (hgx-h100), b (hgx-a100) with different profiles"
    assert mistake.hint == "keep the node in one of them, or name the same profile in each"


def test_a_node_in_no_class_is_a_mistake(here: Path) -> None:
    (reason, hint) = mistakes(GOOD + "[nodes.gpu413.agent]\ninterval_seconds = 5\n")["nodes.gpu413"]
    assert reason == "this node is in no class" and "h100: gpu[001-412]" in hint
    assert mistakes(GOOD + "[nodes.gpu412.agent]\ninterval_seconds = 5\n") == {}
    unread = GOOD.replace("gpu[001-412]", "gpu[1-")  # of which nobody knows whether the node is in it
    assert list(mistakes(unread + "[nodes.gpu413.agent]\ninterval_seconds = 5\n")) == ["classes.h100.nodes"]


def test_every_variable_that_must_not_be_set_is_said(here: Path) -> None:
    Path("site.toml").write_text(GOOD + "[jobenv.extra]\nLD_PRELOAD = 'x'\n'A B' = 'c'\n[agent]\nx = 1\n")
    reasons = [m.reason for m in check_site("site.toml").mistakes if m.key == "jobenv.extra"]
    assert len(reasons) == 2 and "LD_PRELOAD" in reasons[0] and "'A B'" in reasons[1]


def test_a_missing_lock_hides_nothing_and_is_said_once(here: Path) -> None:
    driver = "[classes.{0}.settings.driver]\nversion = '580.95.05'\n"
    text = GOOD + driver.format("h100") + "[classes.b]\nnodes = 'n[1-2]'\n" + driver.format("b") + "[agent]\nx = 1\n"
    found = mistakes(text)
    assert sorted(found) == ["agent.x", "settings.driver"]
    assert found["settings.driver"][0].startswith("node gpu[001-412],n[1-2] declares a driver, but ")


SAMPLE = """[Main]
default: local
autodir: $CFGDIR/groups.d
[local]
map: sed -n 's/^$GROUP:\\(.*\\)/\\1/p' $CFGDIR/local.cfg
all: sed -n 's/^all:\\(.*\\)/\\1/p' $CFGDIR/local.cfg
list: sed -n 's/^\\([0-9A-Za-z_-]*\\):.*/\\1/p' $CFGDIR/local.cfg
"""


@pytest.mark.parametrize(
    ("groups", "nodelist", "said"),
    [
        (
            "gpu: example[156-159]\n",
            "@gpu",
            "is example[156-159], a group of the sample configuration that ClusterShell comes with",
        ),
        ("all: example[4-6,32-159]\n", "@*", "a group of the sample configuration"),
        ("io: example[4-6]\n", "gpu[1-4],@io", "a group of the sample configuration"),
        ("gpu: gpu[1-4]\n", "@gpu", ""),
        ("example: example[1-4]\n", "@example", ""),
        ("gpu: example[1-2],gpu1\n", "@gpu", ""),
    ],
)
def test_a_group_of_clustershells_sample_is_no_group(
    here: Path, monkeypatch: pytest.MonkeyPatch, groups: str, nodelist: str, said: str
) -> None:
    """pip installs the sample beside ClusterShell, where it is in force until the site has its own configuration."""
    from ClusterShell.NodeSet import set_std_group_resolver, set_std_group_resolver_config

    (here / "groups.conf").write_text(SAMPLE)
    (here / "local.cfg").write_text(groups)
    set_std_group_resolver_config(str(here / "groups.conf"))
    try:
        found = mistakes(f'schema = 1\n[classes.a]\nnodes = "{nodelist}"\n')
    finally:
        set_std_group_resolver(None)
    assert list(found) == (["classes.a.nodes"] if said else [])
    if said:
        assert said in found["classes.a.nodes"][0] and "/etc/clustershell" in found["classes.a.nodes"][1]


def test_what_clustershell_ships_is_what_is_taken_for_its_sample() -> None:
    """The installed sample itself: each of its groups is refused."""
    import sysconfig

    from ClusterShell.NodeSet import set_std_group_resolver, set_std_group_resolver_config

    from fairlead.provision.inventory import expand

    shipped = Path(sysconfig.get_path("data"), "etc/clustershell")
    if not shipped.is_dir():
        pytest.skip("ClusterShell was not installed by pip here")
    names = [line.partition(":")[0] for line in (shipped / "groups.d/local.cfg").read_text().splitlines() if line[:1].isalpha()]
    set_std_group_resolver_config(str(shipped / "groups.conf"))
    try:
        for name in (*names, "*"):
            with pytest.raises(ValueError, match="a group of the sample configuration"):
                expand(f"@{name}")
    finally:
        set_std_group_resolver(None)
    assert {"gpu", "compute", "all"} <= set(names)


@pytest.mark.parametrize(
    ("text", "reason", "hint"),
    [
        ('nodes = ["gpu1", "gpu2"]\n', "is a list; a Slurm nodelist is one text", 'write nodes = "gpu1,gpu2"'),
        ("nodes = [1, 2]\n", "is a list; a Slurm nodelist is one text", 'write nodes = "gpu[001-004]"'),
        ("nodes = 7\n", "must be a text", ""),
        ("", "missing: a Slurm nodelist", ""),
        ('nodes = "gpu[1-"\n', "", "a Slurm nodelist"),
    ],
)
def test_nodes_that_are_no_nodelist(here: Path, text: str, reason: str, hint: str) -> None:
    found = mistakes(f"schema = 1\n[classes.a]\n{text}")
    assert list(found) == ["classes.a.nodes"]
    assert reason in found["classes.a.nodes"][0] and hint in found["classes.a.nodes"][1]


@pytest.mark.parametrize(
    ("text", "key", "hint"),
    [
        ('nodes = "gpu[1-4]"\n[classes.a]\nnodes = "n1"\n', "nodes", "[classes.NAME], then nodes ="),
        ('[classes]\nnodes = "gpu[1-4]"\n', "classes.nodes", "write [classes.NAME], then nodes = ..."),
        ('[classes.a]\nnodes = "n1"\n[nodes.n1]\nprofile = "hgx-h100"\n', "nodes.n1.profile", "`profile` belongs to a class"),
        ('agent = 5\n[classes.a]\nnodes = "n1"\n', "agent", "write [agent], then its keys"),
    ],
)
def test_what_a_new_admin_writes_first_says_how_it_is_written(here: Path, text: str, key: str, hint: str) -> None:
    found = mistakes(f"schema = 1\n{text}")
    assert list(found) == [key] and hint in found[key][1]


def test_lines_that_are_no_toml_hide_neither_each_other_nor_the_rest(here: Path) -> None:
    Path("site.toml").write_text(
        "schema = 1\n[classes.a]\nnodes = gpu[1-4]\nprofile = 'hgx-h100\n[agent]\nreapply = yes\nx = 1\n"
    )
    found = check_site("site.toml").mistakes
    assert [(m.key, m.reason.partition(" (")[2][:9]) for m in found[:3]] == [
        ("", "at line 3"),
        ("", "at line 4"),
        ("", "at line 6"),
    ]
    assert [m.hint for m in found[:3]] == ['put a text in quotes: nodes = "gpu[1-4]"', "", "write reapply = true"]
    assert [m.key for m in found[3:]] == ["agent.x"]


NO_SITES: dict[str, tuple[bytes | None, int, str]] = {
    "a list that is not closed": (b"schema = 1\n[classes.a]\nnodes = [\n'a'\nprofile = 'x'\n", 78, "not TOML: Unclosed array"),
    "a program": (b"\x7fELF\x02\x01\x01\x00" + bytes(range(256)) * 16, 78, "site.toml: not UTF-8: byte 0x80 in line"),
    "zero bytes": (b"\0" * 4096, 78, "site.toml: not TOML"),
    "UTF-16": ("schema = 1\n".encode("utf-16"), 78, "site.toml: not UTF-8: byte 0xff in line 1"),
    "Latin-1": (b"schema = 1\n# caf\xe9\n", 78, "site.toml: not UTF-8: byte 0xe9 in line 2"),
    "a byte order mark": (b"\xef\xbb\xbfschema = 1\n", 78, "site.toml: begins with a byte order mark"),
    "huge": (b"schema = 1\n" * 1_000_000, 78, "site.toml: larger than 4 MiB"),
    "lists in lists": (b"a = " + b"[" * 100_000, 78, "site.toml: not TOML"),
    "a long number": (b"generation = " + b"9" * 100_000, 78, "site.toml: not TOML"),
    "a table twice": (b"schema = 1\n[agent]\n[agent]\n", 78, "not TOML: Cannot declare"),
    "empty": (b"", 78, "site.toml: schema: missing: must be 1"),
    "missing": (None, 66, "site.toml: no such file"),
}


@pytest.mark.parametrize("name", NO_SITES)
@pytest.mark.parametrize("command", ["config check", "plan --site", "provision --site"])
def test_a_file_that_is_no_site_is_one_line_with_the_next_step(
    here: Path, capsys: pytest.CaptureFixture[str], name: str, command: str
) -> None:
    data, code, said = NO_SITES[name]
    if data is not None:
        Path("site.toml").write_bytes(data)
    assert main([*command.split(), "site.toml"]) == code
    lines = capsys.readouterr().err.splitlines()
    assert said in lines[0] and len(lines) == 2 and lines[1].startswith("  next: ") and len(lines[0]) < 400
    assert all(line.isprintable() for line in lines)


@pytest.mark.parametrize("kind", ["profile", "fabric"])
@pytest.mark.parametrize(
    "data", [b"\xff\xfe", b"\0" * 99, b"a = " + b"[" * 100_000, b"#" * (5 << 20), b"name = 7\n"], ids=lambda d: repr(d[:6])
)
def test_a_profile_of_the_sites_own_that_is_none_is_one_line(
    here: Path, capsys: pytest.CaptureFixture[str], kind: str, data: bytes
) -> None:
    Path("own.toml").write_bytes(data)
    Path("site.toml").write_text(f'schema = 1\n[classes.a]\nnodes = "n1"\n{kind} = "./own.toml"\n')
    assert main(["config", "check", "site.toml"]) == 78
    first, *rest = capsys.readouterr().err.splitlines()
    assert first.startswith("fairlead config: own.toml: ") and len(first) < 400 and len(rest) <= 1


def test_a_folder_and_an_unreadable_file_are_one_line_with_the_next_step(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("site.toml").mkdir()
    assert main(["config", "check", "site.toml"]) == 66
    assert capsys.readouterr().err.splitlines() == [
        "fairlead config: site.toml: Is a directory", "  next: name the file, not its folder",
    ]  # fmt: skip
    Path("closed.toml").write_text(GOOD)
    Path("closed.toml").chmod(0)
    if os.geteuid():
        assert main(["config", "check", "closed.toml"]) == 66
        assert "ls -l closed.toml" in capsys.readouterr().err


def test_a_file_is_known_by_what_is_in_it_where_its_name_does_not_say(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("site").write_text(GOOD)
    assert main(["config", "check", "site"]) == 0 and "h100: " in capsys.readouterr().out
    assert main(["config", "show", "site"]) == 64 and "config show --site site --node NAME" in capsys.readouterr().err
    Path("document").write_bytes(config.encode_document(config.profile_document("n1", "hgx-h100")))
    assert main(["config", "check", "document"]) == 0 and "node n1" in capsys.readouterr().out
    assert main(["config", "check", "nothing"]) == 66
    assert "name a site's file (site.toml), or a node's document (node.json)" in capsys.readouterr().err


def test_every_mistake_of_a_document_is_found_in_one_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = {
        "schema": 1,
        "generation": 1,
        "node": "n1",
        "agnet": {},
        "agent": {"interval_seconds": "x", "y": 1},
        "checks": {"xidd": {}},
    }
    Path("node.json").write_text(json.dumps(wrong))
    assert main(["config", "check", "node.json"]) == 78
    told = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("  next: ")]
    keys = [line.split(": ")[2] for line in told]
    assert sorted(keys) == ["agent.interval_seconds", "agent.y", "agnet", "checks.xidd"]
    assert main(["config", "check", "node.json", "--json"]) == 78
    assert len(json.loads(capsys.readouterr().out)["mistakes"]) == 4


def test_what_check_calls_right_is_what_a_run_takes(here: Path) -> None:
    Path("site.toml").write_text(GOOD)
    assert check_site("site.toml").exit_code == 0 and len(targets(config.load_site("site.toml"))) == 412


def test_two_classes_of_a_node_that_declare_different_values_are_refused(here: Path) -> None:
    """Otherwise the order of the classes in the file would decide."""
    one = '[classes.a]\nnodes = "n[1-4]"\n[classes.a.agent]\ninterval_seconds = {}\n[classes.a.checks.ecc]\nmode = "observe"\n'
    two = '[classes.b]\nnodes = "n[3-6]"\n[classes.b.agent]\ninterval_seconds = {}\n[classes.b.checks.ecc]\nrequired = true\n'
    found = mistakes("schema = 1\n" + one.format(5) + two.format(7))
    words = "node n3 is in a and b, which declare 5 and 7"
    hint = "declare one value in both, keep the node in one of them, or declare it in nodes.n3"
    assert found == {"classes.b.agent.interval_seconds": (words, hint)}
    assert mistakes("schema = 1\n" + one.format(5) + two.format(5)) == {}
    assert list(mistakes("schema = 1\n" + one.format(5) + two.format(7) + "[nodes.n3.agent]\ninterval_seconds = 9\n")) == [
        "classes.b.agent.interval_seconds"
    ], "n4 has no value of its own"
    both = "".join(f"[nodes.n{n}.agent]\ninterval_seconds = 9\n" for n in (3, 4))
    assert mistakes("schema = 1\n" + one.format(5) + two.format(7) + both) == {}


def test_a_profile_is_parsed_once_for_all_nodes_and_again_when_changed(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile has hundreds of lines. Parsed for each node, a site of 10,000 nodes would take minutes."""
    own = here / "own.toml"
    own.write_text((assets.profile_directory() / "hgx-h100.toml").read_text().replace('name = "hgx-h100"', 'name = "own"'))
    (here / "site.toml").write_text(GOOD.replace('"hgx-h100"', f'"{own}"'))
    parsed: list[str] = []
    loads = toml_text.tomllib.loads
    monkeypatch.setattr(toml_text.tomllib, "loads", lambda text: parsed.append(text) or loads(text))
    first = targets(config.load_site("site.toml"))
    assert len(first) == 412 and len(parsed) <= 2
    own.write_text(own.read_text() + '\n[[values]]\nkey = "agent.interval_seconds"\nvalue = 7\nwhy = "a test"\nsource = "here"\n')
    (changed, *_) = targets(config.load_site("site.toml"))
    assert changed.document.agent.interval_seconds == 7 != first[0].document.agent.interval_seconds
