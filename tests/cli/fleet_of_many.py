"""A fleet of a thousand nodes for tests of pages: most are well, and each kind of trouble is there."""

from __future__ import annotations

from fairlead.cli.fleet_poll import FleetPoll
from fairlead.provision.agent_accounts import AgentAccount
from fairlead.provision.node_details import AuditAction, GpuSlot, NodeDetails
from fairlead.provision.roster import OutOfService, RosterRow

AT = 1_795_800_000.0
HOSTILE = '<script>alert(1)</script>"><img src=x onerror=alert(2)>'
WORDS = {3: "warn", 17: "drain", 40: "unknown", 41: "stale", 99: "none", 100: "unreachable"}


def row(number: int, *, word: str = "ok", text: str = "") -> RosterRow:
    profile = "hgx-h100" if number < 700 else "hgx-b200"
    account = AgentAccount(
        reached=word != "unreachable",
        node=f"gpu{number:04d}",
        verdict=word if word != "unreachable" else "none",
        text=text if word != "ok" else "",
        trouble="no answer to ssh in time" if word == "unreachable" else "",
        age_seconds=7.0,
        agent="0.1.0",
        driver="570.172.08",
        profile=profile,
        generation=4,
    )
    out = None
    if word == "drain":
        reason = f"fairlead:xid:11fe267257d6 {text}"
        out = OutOfService(by="agent", check="xid", user="root", since_unix=int(AT) - 600, why=text, reason=reason)
    return RosterRow(
        node=f"gpu{number:04d}",
        states=("DRAIN", "IDLE") if out else ("ALLOCATED",) if number % 3 else ("IDLE",),
        partitions=("gpu",),
        slurmd="24.11.5",
        jobs=(number * 10,) if number % 3 and not out else (),
        out_of_service=out,
        account=account,
    )


def fleet(nodes: int = 1000) -> FleetPoll:
    texts = {"drain": "xid: Xid 79 on GPU 0000:61:00.0 (fallen off the bus): reboot_node", "warn": "ecc: 2 errors"}
    made = tuple(
        row(n, word=WORDS.get(n, "ok"), text=texts.get(WORDS.get(n, "ok"), "a sensor does not answer")) for n in range(nodes)
    )
    return FleetPoll(rows=made, at=AT, seconds=4.2)


def details() -> NodeDetails:
    gpus = [f"0000:{bus}:00.0" for bus in ("1b", "43", "52", "61", "9d", "c3", "d1", "df")]
    return NodeDetails(
        status={
            "slurm_node": "gpu0017",
            "findings": [
                {
                    "check": "xid",
                    "level": "drain",
                    "device": gpus[3],
                    "summary": f"Xid 79 on GPU {gpus[3]} (fallen off the bus): reboot_node",
                    "evidence": ["kernel log at 81234.6 s, record 1340, jobs 170: GPU has fallen off the bus."],
                },
                {"check": "pcie_link", "level": "warn", "device": gpus[6], "summary": "PCIe link is x8 instead of x16"},
                {"check": "nvlink", "level": HOSTILE, "device": "", "summary": HOSTILE, "evidence": [HOSTILE]},
            ],
        },
        actions=(
            AuditAction(unix=AT - 86400, who="ann", what="hold", why="riser 2", outcome="done"),
            AuditAction(unix=AT - 600, who="agent", what="drained", detail="xid", outcome="done"),
            AuditAction(unix=AT - 60, who=HOSTILE, what=HOSTILE, why=HOSTILE),
        ),
        gpus=tuple(GpuSlot(pci=pci, index=i, numa=i // 4) for i, pci in enumerate(gpus)),
    )
