"""Lists the SXids, which the NVSwitch driver reports, by code.

Facts: NVIDIA Fabric Manager User Guide DU-09883-001, appendix "NVSwitch SXid errors" (as collected by leptonai/gpud 4a8de33a,
components/accelerator/nvidia/sxid/sxid.go); the names of the codes: NVIDIA/open-gpu-kernel-modules 595.45.04,
src/common/nvswitch/interface/ctrl_dev_nvswitch.h. The line of an SXid itself says whether the event is fatal. This table has the
meaning of each code, and says which codes are harmless in a line without "Fatal".
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

SOURCE = "NVIDIA Fabric Manager User Guide DU-09883-001 v1.3, appendix on NVSwitch SXid errors"


class Weight(StrEnum):
    """Names the weight of a code in the guide: corrected by the switch, to be ignored, harmful for one link, possibly fatal, or
    always fatal."""

    CORRECTED = "corrected"
    IGNORE = "ignore"
    LINK = "one_link"
    MAY_BE_FATAL = "may_be_fatal"
    ALWAYS_FATAL = "always_fatal"


MEANS: dict[Weight, str] = {
    Weight.CORRECTED: "The switch corrected a single-bit error by itself: no effect.",
    Weight.IGNORE: "Can be ignored.",
    Weight.LINK: "Traffic on one NVLink is slowed or stalled; jobs that use it may end with Xid 45.",
    Weight.MAY_BE_FATAL: "Where the line says Fatal, the GPUs on the link need a reset; a GPU reports it as Xid 74.",
    Weight.ALWAYS_FATAL: "Fatal to the whole fabric: all GPUs and NVSwitches must be reset together, or the host restarted.",
}


class SxidEntry(Struct, frozen=True):
    code: int
    words: str
    weight: Weight

    @property
    def harmless(self) -> bool:
        return self.weight in (Weight.CORRECTED, Weight.IGNORE)


_CORRECTED = "11012 11021 11022 11023 12021 12023 15008 15011 19049 19055 19057 19059 19062 19065 19068 19071 24001 24002 24003"
_ROWS: tuple[tuple[Weight, dict[int, str]], ...] = (
    (
        Weight.CORRECTED,
        dict.fromkeys(
            [int(code) for code in _CORRECTED.split()],
            "single-bit error, corrected",
        ),
    ),
    (Weight.IGNORE, {22013: "link firmware request interrupt"}),
    (
        Weight.LINK,
        {
            11004: "ingress access list: wrong fabric partition",
            12028: "egress privilege error, non-posted",
            20001: "transmit replay",
            20009: "short-term receive error rate",
            20012: "broken or inconsistent connection",
            10001: "privilege error of the host interface",
            10002: "privilege time-out of the host interface",
            10004: "the switch is too hot",
            10005: "the switch has cooled down",
        },
    ),
    (
        Weight.MAY_BE_FATAL,
        {
            11001: "ingress: invalid command",
            11009: "ingress: invalid virtual channel set",
            11013: "ingress header: double-bit error",
            11018: "ingress request ID table: double-bit error",
            11019: "ingress routing LAN table: double-bit error",
            11020: "ingress control: parity error",
            12001: "egress crossbar overflow",
            12002: "egress packet route error",
            12022: "egress input: double-bit error",
            12024: "egress output: double-bit error",
            12025: "egress credit overflow",
            12026: "egress: wrong destination of a request",
            12027: "egress: wrong destination of a response",
            12030: "egress control: parity error",
            12031: "egress credit: parity error",
            12032: "egress flit type mismatch",
            14017: "tag state: time-out",
            15001: "route buffer over- or underflow",
            15006: "route: transaction count over- or underflow",
            15009: "route table: double-bit error",
            15010: "route: parity error",
            15012: "route input: double-bit error",
            15013: "route credit: parity error",
            19047: "link input header: double-bit error",
            19048: "link input data: double-bit error",
            19054: "header RAM: double-bit error",
            19056: "data RAM 0: double-bit error",
            19058: "data RAM 1: double-bit error",
            19060: "request header RAM: double-bit error",
            19061: "request data RAM: double-bit error",
            19063: "response header RAM: double-bit error",
            19064: "response data RAM: double-bit error",
            19066: "common header RAM: double-bit error",
            19067: "common data RAM: double-bit error",
            19069: "response 1 header RAM: double-bit error",
            19070: "response 1 data RAM: double-bit error",
            19084: "link heartbeat timed out",
            20034: "link training fault",
            22012: "link firmware: broken or inconsistent connection",
            24004: "source tracker 0: double-bit error",
            24005: "source tracker 0 data: double-bit error",
            24006: "source tracker 1: double-bit error",
            24007: "source tracker: time-out",
        },
    ),
    (
        Weight.ALWAYS_FATAL,
        {
            10003: "unhandled interrupt of the host interface",
            12020: "egress sequence ID error",
            22003: "link firmware halted",
            22011: "link firmware: external error",
            23001: "crossbar tile: ingress buffer overflow",
            23002: "crossbar tile: ingress buffer underflow",
            23003: "crossbar tile: egress credit overflow",
            23004: "crossbar tile: egress credit underflow",
            23005: "crossbar tile: ingress packet burst error",
            23006: "crossbar tile: ingress packet sticky error",
            23007: "crossbar tile: possible bubbles at ingress",
            23008: "crossbar tile: ingress packet: invalid destination",
            23009: "crossbar tile: ingress packet: parity error",
            23010: "crossbar output: ingress buffer overflow",
            23011: "crossbar output: ingress buffer underflow",
            23012: "crossbar output: egress credit overflow",
            23013: "crossbar output: egress credit underflow",
            23014: "crossbar output: ingress packet burst error",
            23015: "crossbar output: ingress packet sticky error",
            23016: "crossbar output: possible bubbles at ingress",
            23017: "crossbar output: ingress credit: parity error",
        },
    ),
)

SXIDS: dict[int, SxidEntry] = {code: SxidEntry(code, words, weight) for weight, rows in _ROWS for code, words in rows.items()}


def sxid(code: int) -> SxidEntry | None:
    """Return the table's entry of a code, or None if the guide does not list the code."""
    return SXIDS.get(code)
