"""`fairlead explain xid` and `sxid`: what a code means, what others do, and the site's own choice."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from fairlead import checks, config, settings
from fairlead.cli import main
from fairlead.xid.catalogue import ENTRIES
from fairlead.xid.sxids import SXIDS


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["explain", *words]) == 0
    return capsys.readouterr().out


def unwrapped(text: str) -> str:
    """Return the words of a text, one blank between any two."""
    return " ".join(text.split())


def document(folder: Path, **params: dict[str, str]) -> str:
    data = config.to_data(config.profile_document("n1", "hgx-h100"))
    data["checks"]["xid"] |= params
    del data["hash"]
    path = folder / "node.json"
    path.write_bytes(config.encode_document(config.decode_document(msgspec.json.encode(data), "test")))
    return str(path)


def test_94(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "xid", "94")
    for part in (
        "Xid 94:",
        "contained memory error",
        "restart_app",
        "drain_after_job",
        "then     reset_gpu",
        "why",
        "NVIDIA Xid catalogue",
    ):
        assert part in text
    rows = dict(line.split(maxsplit=1) for line in text.splitlines() if line.startswith(("  fail", "  warn", "  ignore")))
    assert rows == {
        "fail": "gpud, gcm, k8s-device-plugin, sichek",
        "warn": "NVSentinel, healthagent, oci-hpc, aws",
        "ignore": "AzNHC, DeepOps",
    }
    assert "this site" not in text


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(said(capsys, "xid", "139", "--json"))
    assert (data["kind"], data["code"], data["action"], data["site"]) == ("xid", 139, "restart_app", None)
    assert [change["action"] for change in data["other_drivers"]] == ["none"]
    assert len(data["others"]) == 10 and all(row["source"] for row in data["others"])
    data = json.loads(said(capsys, "sxid", "12020", "--json"))
    assert (data["kind"], data["code"], data["weight"]) == ("sxid", 12020, "always_fatal")


def test_what_drivers_and_units_make_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Drivers 550.40.63 to below 555: ROBUST_CHANNEL_KEY_ROTATION_ERROR" in said(capsys, "xid", "144")
    text = said(capsys, "xid", "149")
    assert "NETIR_LINK_EVT/NETIR_LINK_DOWN" in text and "the peer was reset" in text
    assert "0x2" in said(capsys, "xid", "154") and "PF FLR" in unwrapped(said(capsys, "xid", "154"))
    assert "Drivers 600 and newer: BAD_TSG" in said(capsys, "xid", "51")


def test_the_site_s_own_choice(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = document(tmp_path, services={"94": "drain_now", "sxid 20034": "keep"}, actions={"94": "reset_gpu"})
    shown = unwrapped(said(capsys, "xid", "94", "--document", path))
    assert f"this site service drain_now, action reset_gpu ({path}, checks.xid)" in shown
    assert json.loads(said(capsys, "xid", "94", "--document", path, "--json"))["site"] == {
        "document": path,
        "service": "drain_now",
        "action": "reset_gpu",
    }
    assert "service keep" in said(capsys, "sxid", "20034", "--document", path)
    assert "this site" not in said(capsys, "xid", "95", "--document", path)


def test_a_site_s_choice_that_names_nothing_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for table, value, says in (
        ("services", {"944": "keep"}, "no such code: '944'"),
        ("services", {"94": "drain"}, "'drain'"),
        ("actions", {"94": "reboot"}, "'reboot'"),
        ("actions", {"94": "follow_cause"}, "follow_cause is not an action"),
    ):
        site = tmp_path / "site.toml"
        rows = ", ".join(f'"{k}" = "{v}"' for k, v in value.items())
        site.write_text(f'schema = 1\n[checks.xid]\n{table} = {{ {rows} }}\n[classes.a]\nnodes = "n1"\nprofile = "hgx-h100"\n')
        assert main(["config", "check", str(site)]) == 78
        told, *hint = capsys.readouterr().err.splitlines()
        assert len(hint) == ("enum" in told)
        assert says in told and "checks.xid" in told and str(site) in told


@pytest.mark.parametrize(
    ("words", "code"),
    [(("xid", "999"), 66), (("xid", "0"), 66), (("xid", "x"), 64), (("xid", "-1"), 64), (("sxid", "1"), 66), (("xid", "٣"), 64)],
)
def test_what_is_no_code(capsys: pytest.CaptureFixture[str], words: tuple[str, str], code: int) -> None:
    assert main(["explain", "--", *words]) == code
    assert len(capsys.readouterr().err.splitlines()) <= 2


def test_a_document_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "xid", "94", "--document", "/nowhere/node.json"]) == 66
    assert "/nowhere/node.json" in capsys.readouterr().err


@pytest.mark.heavy
def test_every_code_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    for kind, codes in (("xid", ENTRIES), ("sxid", SXIDS)):
        for code in codes:
            text = said(capsys, kind, str(code))
            assert text.startswith(f"{'Xid' if kind == 'xid' else 'SXid'} {code}: ") and "  why" in text
            assert wide(text) == []


def wide(text: str) -> list[str]:
    """Return the lines that are wider than a terminal, but for a word that is so by itself."""
    return [line for line in text.splitlines() if len(line) > 80 and len(line.split()) > 2]


@pytest.mark.parametrize("name", ["list", *checks.load(), *(f"setting.{name}" for name in settings.load())])
def test_what_explains_a_check_or_a_setting_fits_a_terminal(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, name)
    assert wide(text) == []
    if name != "list":
        words = json.loads(said(capsys, name, "--json"))
        assert unwrapped(words["doc"]) in unwrapped(text), "no word is lost, and they keep their order"
        assert all(f"\n  {each['name']} = " in text for each in words["parameters"])
        assert " = None" not in text and " = True" not in text and " = False" not in text
