"""What a text of a node may draw: what people write, and nothing that is not seen, lies over its neighbours or turns the line."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.plain_text import one_line, page, printable

READABLE = [
    "gpu1: 12 µs at 45 °C, Größe ≥ 3 %, naïve café №7",
    "Jürgen Müller: riser 2 getauscht",
    "Ångström, Łódź, Đặng Thị Ngọc, Γιώργος, Ольга",
    unicodedata.normalize("NFD", "Đặng Thị Ngọc, Müller"),
    "田中さん 交換済み、한국어, สวัสดี, हिन्दी, שלום, سلام",
    "→ ✓ • … “x” – ± √ ∞ ½ ² █▓░ ─│┌",
]
#: Draws nothing, or over what stands beside it; of general category L, M or S, so that most readers let it through.
UNSEEN = "\u034f\u115f\u1160\u1161\u11a8\u17b4\u180b\u2800\u3164\uffa0\ufe0e\ufe0f\ufffc\U000e0100\U000e0041\U0001d159"
STEERS = "\x00\x07\x08\x1b\x7f\x85\x9b\xa0\xad\u200b\u200d\u200e\u202e\u2028\u2029\u2066\u2069\ufeff\ufff9\ud800\ue000\U0010ffff"


@pytest.mark.parametrize("text", READABLE)
def test_what_people_write_stays_as_it_is(text: str) -> None:
    assert one_line(text) == page(text) == text


@pytest.mark.parametrize("c", UNSEEN + STEERS, ids=lambda c: f"U+{ord(c):04X}")
def test_what_draws_nothing_or_steers_is_not_let_through(c: str) -> None:
    assert one_line(f"a{c}b") == "a b" and page(f"a{c}b") == "a?b"


def test_marks_are_few_and_on_a_letter() -> None:
    flood = "a" + "\u0301\u0302\u0336\u20dd" * 100 + "b"
    assert one_line(flood) == "a\u0301\u0302 b"
    assert one_line("\u0301a \u0301b") == "a b" and page("x\n\u0301y") == "x\n?y"


@given(st.text(st.characters(), max_size=60))
def test_every_character_that_is_shown_is_ink_a_space_or_a_mark_on_a_letter(text: str) -> None:
    for made, kept in ((one_line(text), ""), (page(text), "\n\t"), (printable(text), "")):
        kinds = [unicodedata.category(c)[0] for c in made if c not in kept + " "]
        assert set(kinds) <= set("LMNPS") and not set(made) & set(UNSEEN + STEERS)
        assert one_line(made) == one_line(one_line(made))


def test_a_text_as_long_as_an_answer_may_be_is_read_at_once() -> None:
    assert len(page("é\u2800" * (1 << 19))) == 1 << 20
