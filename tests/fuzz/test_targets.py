"""The fuzz targets with hypothesis, with long hostile input, and without growing: quick enough for every run."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead.xid import parse
from tests.fuzz.targets import SEEDS, TARGETS

WORDS = b"""NVRM: Xid (|PCI:|0000:3b:00| GPU-I:| GPU-CI:|): |149, |pid=|name=|, |Fatal|XC0 i0 Link |(0x|0x0|)|[|]|=|0|;|-|R
|nvidia-nvswitch0: SXid (|\\x0a|6,1,2,-;|message repeated 3 times: [|[ 1.0] |kern  :warn  : |Nodes=|\t|9999999999999999
| caused by previous Xid """
PIECES = st.sampled_from((*WORDS.split(b"|"), b"|", b"\n", b"\x00", b"\xff", b"\xc2\xb2", b"\xd9\xa3"))


@pytest.mark.parametrize("name", TARGETS)
def test_any_bytes(name: str) -> None:
    seeds = st.sampled_from(SEEDS[name])

    @settings(max_examples=150, deadline=None)
    @given(st.binary(max_size=200) | st.lists(PIECES | seeds | st.binary(max_size=8), max_size=12).map(b"".join))
    def whatever(data: bytes) -> None:
        TARGETS[name](data)

    whatever()


PER_BATCH = 20
WORDY = (b", ", b"0-", b"A_", b"A/", b"\\x0a", b"NVRM: ", b"Fatal ", b"name=", b"x, ", b"\xc2\xb2")
LONG = (*(bytes([c]) for c in b"([,0 9-a+\n"), *WORDY)


@pytest.mark.parametrize("name", TARGETS)
def test_long_input_takes_no_ages(name: str) -> None:
    """Sixty thousand times the same piece, alone and after each seed: what is worse than linear would hang here."""
    for piece in LONG:
        body = piece * (60_000 // len(piece))
        for start in (b"", *SEEDS[name]):
            TARGETS[name](start + body)


@pytest.mark.parametrize("name", TARGETS)
def test_memory_does_not_grow(name: str) -> None:
    """After the first inputs, many others leave nothing behind but what a bounded cache holds."""

    def work(target: Callable[[bytes], None], first: int) -> None:
        for number in range(first, first + PER_BATCH):
            for seed in SEEDS[name]:
                target(seed.replace(b"0", b"%d" % number, 1))

    parse.cache_clear()
    tracemalloc.start()
    try:
        held = []
        for batch in range(8):
            work(TARGETS[name], 1000 * batch)
            parse.cache_clear()
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    inputs = 2 * PER_BATCH * len(SEEDS[name])
    assert held[-1] - held[-3] < inputs * sys.getsizeof(b""), held  # less than the smallest object an input
