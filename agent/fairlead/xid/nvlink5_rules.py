"""Holds the rules for NVLink 5 errors (Xid 144 to 150): NVIDIA's action for each unit of a link and each error status.

Facts: sheet "Xid 144-150 Decode" of NVIDIA's Xid catalogue (https://docs.nvidia.com/deploy/xid-errors/
analyzing-xid-catalog.html; the spreadsheet with MD5 c895f0f0c6ff71e445b5cd67bb763a0b, compared with leptonai/gpud 4a8de33a
catalog_generated.go and oracle-quickstart/oci-hpc b5285a68 xid_catalog_data.json). The first register in the brackets of the line
is IntrInfo. Before driver 575 (layout V1) its bits 9:0 name the unit. From 575 on (layout V2) its bits 6:0 name the unit. Bits
25:20 have the reason why a link went down, and are zero for other errors. The second register is the error status. The reasons
why a link went down are the local_reason_opcode of the port registers (Mellanox/mstflint, reg_access_hca_layouts.h,
"recovery_entry_reason").
"""

from __future__ import annotations

from msgspec import Struct

from fairlead.model.finding import Action

# EVAL means: follow the Xid 154 beside the line. Without an Xid 154, restart the application.
NONE, RESET, EVAL = Action.NONE, Action.RESET_GPU, Action.RESTART_APP
ANY = -1  # the rule holds for any error status

SUPPORT = "if it comes back: NVIDIA support"
LINK_DOWN = "did a link go down in the 30 s before? then that is the fault; if not, report it"
SOLO = "follow the errors beside it; alone, report it"
DAILY = "report it when it comes more than once a day"
SIGNAL = "signal integrity of the link"
CABLES = "cable, transceiver, seating and temperature of the link"
PEER = "the device at the other end of the link"
SOFTWARE = "software or a person took the link down"
SOFTWARE_SIGNAL = f"{SOFTWARE}; else {SIGNAL}"
HOST = "the other logs of the host: this follows from something there"

POISON = "Xid 48 follows, then poison or 94/95"
PEER_POISON = "Xid 48 here, poison or 94 at the peer"
APP_DIES = "the application ends (Xid 45)"
DBE = "Xid 48 and 45; packets may be lost on both sides"
DBE_LOSS = "Xid 48; packets may be lost on both sides"
LOSS = "packets may be lost on both sides, at once or later"
LOSS_PEER = "packets are lost at the peer"
LOSS_HERE = "packets are lost here"
GPU_STOPS = "the whole GPU stops; packets may be lost at the peer"

FATAL, LINK_FATAL, NONFATAL = "fatal", "link fatal", "not fatal"


class NvlinkUnit(Struct, frozen=True):
    """Describes one unit of a link: its names in lines of V1 and V2, and its number in IntrInfo (V1: 10 bits, V2: 7 bits)."""

    code: int
    v1_name: str
    v2_name: str
    v1: int
    v2: int
    words: str


class NvlinkRule(Struct, frozen=True):
    """Holds NVIDIA's action for an error status of a unit. ``promoted`` is the action if the promotion bit of IntrInfo is set."""

    status: int
    action: Action
    investigate: str
    severity: str
    effect: str = ""
    promoted: Action | None = None


_CORRECTED = (NONE, "", NONFATAL)
_SOFTWARE = NvlinkRule(0x80000000, NONE, SUPPORT, NONFATAL)


def _tlw(first: int, effect: str) -> tuple[NvlinkRule, ...]:
    return (
        NvlinkRule(first, *_CORRECTED),
        NvlinkRule(first << 1, NONE, SUPPORT, NONFATAL, effect),
        NvlinkRule(first << 2, RESET, SUPPORT, FATAL, DBE_LOSS),
        _SOFTWARE,
    )


UNITS: tuple[tuple[NvlinkUnit, tuple[NvlinkRule, ...]], ...] = (
    (
        NvlinkUnit(144, "SAW_MVB", "SAW_MVB", 0b0000100001, 0b0000001, "buffer of the link wrapper"),
        (
            NvlinkRule(0x01, NONE, SUPPORT, NONFATAL, POISON),
            NvlinkRule(0x02, RESET, SUPPORT, FATAL, DBE),
            NvlinkRule(0x04, *_CORRECTED),
            NvlinkRule(0x08, NONE, SUPPORT, NONFATAL, PEER_POISON),
            NvlinkRule(0x10, RESET, SUPPORT, FATAL, DBE),
            NvlinkRule(0x20, *_CORRECTED),
        ),
    ),
    (NvlinkUnit(145, "RLW_CTRL", "RLW_CTRL", 0b0001100010, 0b0000011, "request layer: control"), (_SOFTWARE,)),
    (
        NvlinkUnit(145, "RLW_REMAP", "RLW_REMAP", 0b0010000010, 0b0000100, "request layer: address remapping"),
        (
            NvlinkRule(0x001, EVAL, SUPPORT, NONFATAL, APP_DIES),
            NvlinkRule(0x002, EVAL, SUPPORT, NONFATAL, APP_DIES),
            NvlinkRule(0x004, EVAL, LINK_DOWN, NONFATAL, APP_DIES),
            NvlinkRule(0x008, EVAL, LINK_DOWN, NONFATAL, APP_DIES),
            NvlinkRule(0x010, EVAL, LINK_DOWN, NONFATAL, APP_DIES),
            NvlinkRule(0x020, EVAL, LINK_DOWN, NONFATAL, APP_DIES),
            NvlinkRule(0x040, RESET, SUPPORT, FATAL, DBE),
            NvlinkRule(0x080, RESET, SUPPORT, FATAL, DBE),
            NvlinkRule(0x100, *_CORRECTED),
            NvlinkRule(0x200, *_CORRECTED),
            _SOFTWARE,
        ),
    ),
    (
        NvlinkUnit(145, "RLW_RSPCOL", "RLW_RSPCOL", 0b0010100010, 0b0000101, "request layer: response collector"),
        (NvlinkRule(0x1, *_CORRECTED), NvlinkRule(0x2, RESET, SUPPORT, FATAL, DBE), _SOFTWARE),
    ),
    (
        NvlinkUnit(145, "RLW_RXPIPE", "RLW_RXPIPE", 0b0011000010, 0b0000110, "request layer: receive pipe"),
        (
            NvlinkRule(0x1, NONE, SUPPORT, NONFATAL, LOSS_PEER, RESET),
            NvlinkRule(0x2, NONE, SUPPORT, NONFATAL, LOSS_PEER, RESET),
            NvlinkRule(0x4, NONE, SUPPORT, NONFATAL, LOSS_HERE, RESET),
            NvlinkRule(0x8, NONE, SUPPORT, NONFATAL),
            _SOFTWARE,
        ),
    ),
    (
        NvlinkUnit(145, "RLW_SRC_TRACK", "RLW_SRC_TRACK", 0b0011100010, 0b0000111, "request layer: source tracker"),
        (
            NvlinkRule(0x01, RESET, SUPPORT, FATAL, DBE),
            NvlinkRule(0x02, *_CORRECTED),
            NvlinkRule(0x04, EVAL, "", NONFATAL, APP_DIES),
            NvlinkRule(0x08, EVAL, "", NONFATAL, APP_DIES),
            NvlinkRule(0x10, RESET, SUPPORT, FATAL, DBE),
            NvlinkRule(0x20, RESET, SUPPORT, FATAL, DBE),
            _SOFTWARE,
        ),
    ),
    (
        NvlinkUnit(145, "RLW_TAGSTATE", "RLW_TAGSTATE", 0b0100000010, 0b0001000, "request layer: tag state"),
        (
            NvlinkRule(0x000001, *_CORRECTED),
            NvlinkRule(0x000002, RESET, SUPPORT, FATAL, DBE),
            NvlinkRule(0x010000, *_CORRECTED),
            NvlinkRule(0x020000, RESET, SUPPORT, FATAL, DBE),
            NvlinkRule(0x100000, RESET, SUPPORT, FATAL, DBE),
            _SOFTWARE,
        ),
    ),
    (
        NvlinkUnit(146, "TLW_CTRL", "TLW_CTRL", 0b0100100011, 0b0001001, "transaction layer: control"),
        _tlw(1, PEER_POISON),
    ),
    (NvlinkUnit(146, "TLW_RX", "TLW_RX_PIPE0", 0b0101000011, 0b0001010, "transaction layer: receive"), _tlw(1, POISON)),
    (NvlinkUnit(146, "TLW_RX", "TLW_RX_PIPE1", 0b0101000011, 0b0001011, "transaction layer: receive"), _tlw(1, POISON)),
    (NvlinkUnit(146, "TLW_TX", "TLW_TX_PIPE0", 0b0101100011, 0b0001100, "transaction layer: transmit"), _tlw(1, POISON)),
    (NvlinkUnit(146, "TLW_TX", "TLW_TX_PIPE1", 0b0101100011, 0b0001101, "transaction layer: transmit"), _tlw(1, POISON)),
    (
        NvlinkUnit(147, "TREX", "TREX", 0b0110000100, 0b0001110, "traffic test unit"),
        (NvlinkRule(0x1, NONE, SUPPORT, NONFATAL), _SOFTWARE),
    ),
    (NvlinkUnit(148, "NVLPW_CTRL", "NVLPW", 0b0000000101, 0b0001111, "link partition control"), (_SOFTWARE,)),
    (
        NvlinkUnit(149, "NETIR", "NETIR_INT", 0b0000000110, 0b0011000, "network interface: interrupt"),
        (NvlinkRule(ANY, RESET, SOLO, LINK_FATAL, LOSS),),
    ),
    (
        NvlinkUnit(149, "NETIR_BER_EVENT", "NETIR_BER_EVENT", 0b1000100110, 0b0010011, "network interface: bit error rate"),
        tuple(NvlinkRule(status, NONE, CABLES, NONFATAL) for status in range(4)),
    ),
    (
        NvlinkUnit(149, "NETIR_MFDE_EVENT", "NETIR_MFDE_EVENT", 0b1001000110, 0b0010100, "network interface: firmware event"),
        (
            NvlinkRule(0x1, RESET, SUPPORT, FATAL, GPU_STOPS),
            NvlinkRule(0x3, *_CORRECTED),
            NvlinkRule(0x4, RESET, SUPPORT, FATAL, GPU_STOPS),
            NvlinkRule(0x5, RESET, SUPPORT, FATAL, GPU_STOPS),
            NvlinkRule(0x7, RESET, SUPPORT, FATAL, GPU_STOPS),
        ),
    ),
    (
        NvlinkUnit(150, "MSE_WATCHDOG", "MSE_WATCHDOG", 0b0000000000, 0b0000000, "management engine: watchdog"),
        (
            NvlinkRule(0x0, RESET, SUPPORT, FATAL, "the whole GPU stops"),
            NvlinkRule(0xFFFFFFFF, RESET, SUPPORT, FATAL, "the whole GPU stops"),
        ),
    ),
)

LINK_UNIT = NvlinkUnit(149, "NETIR_LINK_EVT", "NETIR_LINK_DOWN", 0b0111000110, 0b0010001, "network interface: link down")

#: The reasons why a link went down, by bits 25:20 of IntrInfo: words and rule. NVIDIA's table has no other reasons.
LINK_REASONS: dict[int, tuple[str, NvlinkRule]] = {
    0: ("no reason given", NvlinkRule(ANY, RESET, SOLO, LINK_FATAL, LOSS)),
    1: ("unknown reason", NvlinkRule(ANY, RESET, DAILY, LINK_FATAL, LOSS)),
    2: ("high bit error rate", NvlinkRule(ANY, RESET, SIGNAL, LINK_FATAL, LOSS)),
    4: ("alignment lost", NvlinkRule(ANY, RESET, SIGNAL, LINK_FATAL, LOSS)),
    10: ("retransmission timed out", NvlinkRule(ANY, RESET, SIGNAL, LINK_FATAL, LOSS)),
    15: ("taken down out of band", NvlinkRule(ANY, RESET, SOFTWARE, LINK_FATAL, LOSS)),
    16: ("taken down out of band, high bit error rate", NvlinkRule(ANY, RESET, SOFTWARE_SIGNAL, LINK_FATAL, LOSS)),
    17: ("taken down in band", NvlinkRule(ANY, RESET, SOFTWARE, LINK_FATAL, LOSS)),
    18: ("taken down in band, high bit error rate", NvlinkRule(ANY, RESET, SOFTWARE_SIGNAL, LINK_FATAL, LOSS)),
    21: ("the peer trains anew", NvlinkRule(ANY, RESET, PEER, LINK_FATAL, LOSS)),
    22: ("taken down by management", NvlinkRule(ANY, RESET, SOFTWARE, LINK_FATAL, LOSS)),
    32: ("the peer went to sleep", NvlinkRule(ANY, RESET, PEER, LINK_FATAL, LOSS)),
    33: ("the peer was disabled", NvlinkRule(ANY, RESET, PEER, LINK_FATAL, LOSS)),
    34: ("the peer was disabled and locked", NvlinkRule(ANY, RESET, PEER, LINK_FATAL, LOSS)),
    35: ("the peer is too hot", NvlinkRule(ANY, RESET, PEER, LINK_FATAL, LOSS)),
    36: ("the peer was forced down", NvlinkRule(ANY, RESET, PEER, LINK_FATAL, LOSS)),
    37: ("the peer was reset", NvlinkRule(ANY, RESET, PEER, LINK_FATAL, LOSS)),
    38: ("reset without a power cycle", NvlinkRule(ANY, NONE, SOFTWARE, LINK_FATAL, LOSS)),
    40: ("forced down by hardware", NvlinkRule(ANY, NONE, HOST, FATAL, GPU_STOPS)),
    42: ("did not wake from low power", NvlinkRule(ANY, RESET, CABLES, LINK_FATAL, LOSS)),
    43: ("too many error recoveries", NvlinkRule(ANY, RESET, CABLES, LINK_FATAL, LOSS)),
}
