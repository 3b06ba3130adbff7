"""dnf's versionlock list: fairlead's lines between two marks, and everything that other people have written there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model import dnf_hold
from fairlead.model.change import Package

NAMES = ("nvidia-open", "libnvidia-ml", "nvidia-fabricmanager")


def package(name: str, version: str = "3:580.95.05-1.el9") -> Package:
    return Package(name=name, version=version, architecture="x86_64", sha256="0" * 64, size=1, format="rpm")


SET = tuple(package(name) for name in NAMES)
OURS = f"{dnf_hold.BEGIN}\n" + "".join(f"{n}-3:580.95.05-1.el9.*\n" for n in NAMES) + f"{dnf_hold.END}\n"
packages = st.lists(
    st.builds(package, st.sampled_from(NAMES), st.sampled_from(("3:580.95.05-1.el9", "0:575.57.08-1"))),
    max_size=3,
    unique_by=lambda p: p.name,
)
some_line = st.sampled_from(
    [
        "",
        "#",
        "kernel-0:5.14.0-503.el9.*",
        "!bad-0:1-1.*",
        "*nvidia*580*",
        "two words",
        "a\rb",
        "x\x0cy",
        "\u2028",
        "bash-0:5.1-1.*\r",
    ]
) | st.text(st.characters(blacklist_characters="\n", blacklist_categories=("Cs",)), max_size=20)
others = st.lists(some_line, max_size=8).map("\n".join)


@given(others, packages, packages)
def test_other_people_s_lines_survive_byte_for_byte(text: str, first: list[Package], second: list[Package]) -> None:
    made = dnf_hold.with_lines(text, dnf_hold.lines_of(first))
    assert made is not None
    assert dnf_hold.with_lines(made, dnf_hold.lines_of(first)) == made, "twice is once"
    assert dnf_hold.ours(made) == {p.name: p.version for p in first}
    moved = dnf_hold.with_lines(made, dnf_hold.lines_of(second))
    assert moved is not None and dnf_hold.ours(moved) == {p.name: p.version for p in second}
    gone = dnf_hold.with_lines(moved, ())
    ended = text if not text or text.endswith("\n") else f"{text}\n"
    assert gone == (ended if first or second else text)
    if first:
        assert made.startswith(ended) and made.endswith(f"{dnf_hold.END}\n")


@given(others, others, others)
def test_lines_around_and_between_the_marks_survive(before: str, between: str, after: str) -> None:
    lines = OURS.splitlines(keepends=True)
    text = f"{before}\n" + "".join(lines[:2]) + f"{between}\n" + "".join(lines[2:]) + after
    gone = dnf_hold.with_lines(text, ())
    assert gone is not None
    kept = [
        line for part in (before, between, after) for line in part.split("\n") if not dnf_hold._LINE.fullmatch(line.strip("\r"))
    ]
    rest = gone.split("\n")
    for line in kept:
        rest.remove(line)


def test_lists_that_are_not_there_and_lists_that_get_empty() -> None:
    assert dnf_hold.with_lines(None, ()) is None
    assert dnf_hold.with_lines(None, dnf_hold.lines_of(SET)) == OURS
    assert dnf_hold.with_lines("", ()) == "", "an empty list is not ours to remove"
    assert dnf_hold.with_lines(OURS, ()) == "", "without its list, dnf's plugin stops every run of dnf"


@pytest.mark.parametrize("lost", [dnf_hold.END, dnf_hold.BEGIN])
def test_a_mark_that_somebody_removed(lost: str) -> None:
    text = f"a-0:1-1.*\n{OURS.replace(f'{lost}{chr(10)}', '')}# theirs\nb-0:1-1.*\n"
    made = dnf_hold.with_lines(text, dnf_hold.lines_of(SET))
    assert made is not None and dnf_hold.with_lines(made, dnf_hold.lines_of(SET)) == made
    for line in ("a-0:1-1.*", "# theirs", "b-0:1-1.*"):
        assert made.count(f"{line}\n") == 1
    assert dnf_hold.ours(made) == {p.name: p.version for p in SET}


def test_marks_that_dnf_removed_are_put_back() -> None:
    """`dnf versionlock delete` writes the list without comments."""
    bare = "".join(line for line in OURS.splitlines(keepends=True) if not line.startswith("#"))
    assert dnf_hold.with_lines(f"a-0:1-1.*\n{bare}b-0:1-1.*\n", dnf_hold.lines_of(SET)) == f"a-0:1-1.*\nb-0:1-1.*\n{OURS}"
    one = SET[:1]
    kept = dnf_hold.with_lines(f"{NAMES[0]}-3:580.95.05-1.el9.*\n", dnf_hold.lines_of(one))
    assert kept is not None and kept.startswith(NAMES[0]), "a single line may be another person's"


@pytest.mark.parametrize(
    ("lines", "have", "found"),
    [
        ("", "3:575.1-1.el9", ""),
        ("# nvidia-open-3:575.1-1.el9.*", "3:575.1-1.el9", ""),
        ("nvidia-open-3:575.1-1.el9.*", "3:575.1-1.el9", "nvidia-open-3:575.1-1.el9.*"),
        ("nvidia-open-3:575.1-1.el9.*", "", "nvidia-open-3:575.1-1.el9.*"),
        ("nvidia-open-3:580.95.05-1.el9.*", "3:575.1-1.el9", ""),
        ("nvidia-open-3:575.1-1.el9.*\nnvidia-open-3:580.95.05-1.el9.*", "3:575.1-1.el9", ""),
        ("nvidia-open-0:580.95.05-1.el9.*", "", "nvidia-open-0:580.95.05-1.el9.*"),  # a wrong epoch
        ("*nvidia*575*", "3:575.1-1.el9", "*nvidia*575*"),
        ("*nvidia*580*", "3:575.1-1.el9", ""),
        ("*nvidia*580*", "3:580.1-1.el9", ""),
        ("nvidia-open", "3:575.1-1.el9", ""),  # any version
        ("nvidia-open-575.1-1.el9", "3:575.1-1.el9", "nvidia-open-575.1-1.el9"),
        ("nvidia-open-3:575.1", "3:575.1-1.el9", "nvidia-open-3:575.1"),
        ("!nvidia-open-3:580.95.05-1.el9.*", "", "!nvidia-open-3:580.95.05-1.el9.*"),
        ("!nvidia-open-3:575.1-1.el9.*", "3:575.1-1.el9", ""),
        ("!*", "", "!*"),
        ("kernel-0:5.14.0-503.el9.*", "3:575.1-1.el9", ""),
        (OURS.replace("580.95.05", "575.1"), "3:575.1-1.el9", ""),
        ("[", "3:575.1-1.el9", ""),
        # what dnf refuses too: an exclusion behind a line that allows, globs with another epoch or architecture, no release
        ("nvidia-open\n!nvidia-*-3:580.95.05-1.el9", "", "!nvidia-*-3:580.95.05-1.el9"),
        ("nvidia-*-0:580.95.05-1.el9", "3:575.1-1.el9", "nvidia-*-0:580.95.05-1.el9"),
        ("nvidia-op?n-580*.noarch", "", "nvidia-op?n-580*.noarch"),
        ("nvidia-open-580.95.05.x86_64", "", "nvidia-open-580.95.05.x86_64"),
        ("nvidia-open-*580.95*.x86_64", "", "nvidia-open-*580.95*.x86_64"),
        ("! nvidia-open", "", ""),  # dnf leaves out a line with a blank in it
        ("nvidia-open # ours", "", ""),
    ],
)
def test_what_other_people_s_lines_keep(lines: str, have: str, found: str) -> None:
    assert dnf_hold.against(lines, "nvidia-open", have, "3:580.95.05-1.el9", "x86_64") == found


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ("", ""),
        ("[main]\nenabled = 1\nlocklist = /etc/dnf/plugins/versionlock.list\n", ""),
        ("[main]\nenabled=0\n", "is switched off"),
        ("[main]\nenabled: False\n", "is switched off"),
        ("[main]\n#enabled=0\nlocklist=/etc/locks\n", "reads /etc/locks instead of"),
    ],
)
def test_a_plugin_that_does_not_follow_the_list(conf: str, words: str) -> None:
    assert words in dnf_hold.fault(conf) if words else not dnf_hold.fault(conf)


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ("", ""),
        ("[main]\ngpgcheck=1\nplugins=1\n#plugins=0\n", ""),
        ("[main]\nplugins=0\n", "dnf loads no plugins"),
        ("[main]\nplugins = False\n", "dnf loads no plugins"),
        ("[main]\npluginconfpath=/srv/site\n", "in /srv/site, and so not /etc/dnf/plugins/versionlock.conf"),
        ("[main]\npluginconfpath=/srv/site, /etc/dnf/plugins/\n", ""),
        ("[main]\npluginpath=/srv/more\n", ""),
    ],
)
def test_a_dnf_that_does_not_load_the_plugin(conf: str, words: str) -> None:
    assert words in dnf_hold.plugins_fault(conf) if words else not dnf_hold.plugins_fault(conf)
