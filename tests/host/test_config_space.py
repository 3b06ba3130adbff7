"""The capability walk, on made and on hostile config spaces."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fairlead.host.config_space import Read, acs_words, walk
from fairlead.model.facts import Missing


def reader(data: bytes) -> Read:
    return lambda offset, length: data[offset : offset + length]


def space(*, port_type: int | None = 6, extended: dict[int, tuple[int, int]] | None = None, size: int = 4096) -> bytes:
    """Config space with a power management capability, then PCI Express, then extended {offset: (id, next)}."""
    data = bytearray(size)
    data[0:4] = b"\x00\x10\x30\xc0"
    data[6] = 0x10
    data[0x34] = 0x40
    data[0x40:0x42] = bytes((0x01, 0x68))
    if port_type is not None:
        data[0x68:0x6C] = bytes((0x10, 0x00)) + (port_type << 4 | 2).to_bytes(2, "little")
    for offset, (capability, following) in (extended or {}).items():
        data[offset : offset + 4] = (capability | 1 << 16 | following << 20).to_bytes(4, "little")
    return bytes(data)


def test_finds_role_and_acs() -> None:
    data = bytearray(space(extended={0x100: (0x0001, 0x150), 0x150: (0x000D, 0)}))
    data[0x154:0x158] = b"\x5f\x00\x1d\x00"
    found = walk(reader(bytes(data)))
    assert (found.role, found.acs_offset) == ("switch_downstream", 0x150)
    assert acs_words(reader(bytes(data)), 0x150) == (0x5F, 0x1D)


def test_roles() -> None:
    roles = {t: walk(reader(space(port_type=t))).role for t in range(16)}
    assert {t: r for t, r in roles.items() if r} == {4: "root_port", 5: "switch_upstream", 6: "switch_downstream"}


def test_no_acs_is_none_and_unreadable_is_missing() -> None:
    assert walk(reader(space(extended={0x100: (0x0001, 0)}))).acs_offset is None
    assert walk(reader(space())).acs_offset is None  # an empty extended space
    assert walk(reader(space(port_type=None, size=256))).acs_offset is None  # conventional PCI
    cut = walk(reader(space(size=256)))
    assert isinstance(cut.acs_offset, Missing)
    assert cut.role == "switch_downstream"
    unprivileged = walk(reader(space()[:64]))
    assert isinstance(unprivileged.acs_offset, Missing)
    assert "root" in unprivileged.acs_offset.detail
    assert isinstance(walk(reader(b"\xff" * 4096)).acs_offset, Missing)
    assert isinstance(walk(reader(b"")).acs_offset, Missing)


def test_loops_end() -> None:
    looping = walk(reader(space(extended={0x100: (0x0001, 0x150), 0x150: (0x0003, 0x100)})))
    assert isinstance(looping.acs_offset, Missing)
    data = bytearray(space(port_type=None))
    data[0x41], data[0x69] = 0x68, 0x40
    data[0x68] = 0x05
    assert isinstance(walk(reader(bytes(data))).acs_offset, Missing)


@given(st.binary(max_size=4096), st.sampled_from([0, 64, 256, 4096]))
def test_any_bytes_end_without_an_error(tail: bytes, keep: int) -> None:
    data = (space()[:keep] + tail)[:4096]
    found = walk(reader(data))
    if isinstance(found.acs_offset, int):
        assert 0x100 <= found.acs_offset < 4096
        acs_words(reader(data), found.acs_offset)
