from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.cpulist import (
    as_cpu_set,
    cpus_in,
    format_cpu_set,
    format_cpulist,
    parse_cpu_set,
    parse_cpulist,
    parse_cpumask,
)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [
        ("0-3,8", (0, 1, 2, 3, 8)),
        ("", ()),
        ("\n", ()),
        ("5", (5,)),
        ("8-9,0", (0, 8, 9)),
        ("0-3,2-4", (0, 1, 2, 3, 4)),
        (" 1 , 3-3\n", (1, 3)),
    ],
)
def test_list(text: str, cpus: tuple[int, ...]) -> None:
    assert parse_cpulist(text) == cpus


@pytest.mark.parametrize("text", ["a", "1-", "-1", "3-1", "0-99999999999", "65536", "1 2", "0x3", "1--2", "²"])
def test_not_a_list(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_cpulist(text)


def test_mask() -> None:
    assert parse_cpumask("00000001,00000005\n") == (0, 2, 32)
    assert parse_cpumask("0") == ()
    for text in ("", "xyz", "-1", "1" * 20000):
        with pytest.raises(ValueError, match="not a CPU mask"):
            parse_cpumask(text)


@given(st.sets(st.integers(0, 2000)))
def test_format_is_the_inverse(cpus: set[int]) -> None:
    assert parse_cpulist(format_cpulist(tuple(cpus))) == tuple(sorted(cpus))


@given(st.sets(st.integers(0, 2000)))
def test_a_cpu_set_is_the_same_list(cpus: set[int]) -> None:
    """The two forms of a set of CPUs say the same, and are written the same but for an empty one."""
    numbers = tuple(sorted(cpus))
    assert cpus_in(as_cpu_set(numbers)) == numbers
    assert format_cpu_set(as_cpu_set(numbers)) == (format_cpulist(numbers) or "-")
    assert not cpus or parse_cpu_set(format_cpulist(numbers)) == as_cpu_set(numbers)


@pytest.mark.parametrize("text", ["", " ", "-", "0,,1", ",0", "0-", "0, 1", "0 -1", "5-3", "65536", "0-3-4", "\u0663"])
def test_a_cpu_set_is_read_from_the_exact_form_only(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_cpu_set(text)


@given(st.text(max_size=40))
def test_any_text_parses_or_is_a_value_error(text: str) -> None:
    for parse in (parse_cpulist, parse_cpumask):
        try:
            assert all(0 <= cpu < 65536 for cpu in parse(text))
        except ValueError:
            pass
