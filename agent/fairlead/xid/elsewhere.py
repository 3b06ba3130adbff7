"""Lists what other public health systems do by default with each Xid code: fail the node or GPU, warn, or ignore.  The reactions
come from the sources of these systems, at the commits that ``source`` names. A system fails a code if it marks the node or the
GPU as bad by default. It warns if it only reports the code. It ignores a code that it does not read or that it lists as harmless.
``rest`` is the reaction to codes that no row names. The list has the defaults of August 2026. Most systems can be configured.
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

from msgspec import Struct


class Reaction(StrEnum):
    FAIL = "fail"
    WARN = "warn"
    IGNORE = "ignore"


FAIL, WARN, IGNORE = Reaction.FAIL, Reaction.WARN, Reaction.IGNORE


class System(Struct, frozen=True):
    """Describes one system. source: where its defaults were read. rows: pairs of a reaction and its codes ("1-7,9"). rest: the
    reaction to all other codes."""

    name: str
    source: str
    rest: Reaction
    rows: tuple[tuple[Reaction, str], ...]
    note: str = ""


SYSTEMS: tuple[System, ...] = (
    System(
        "gpud",
        "leptonai/gpud 4a8de33a, components/accelerator/nvidia/xid/xid.go",
        WARN,
        (
            (
                FAIL,
                "9,12,16,18-19,26-30,32-36,38,42,44,46-48,59-65,68-69,74,78-79,81,94-95,110,119-121,123,140,143",
            ),
            (IGNORE, "133,152-153,157,161-162,164-165,174-176"),
        ),
        "loses every MIG line",
    ),
    System(
        "NVSentinel",
        "NVIDIA/NVSentinel 6f8b0fc, health-monitors/syslog-health-monitor, its CSV of codes",
        WARN,
        (
            (
                FAIL,
                "1-7,9-10,12,15-24,26-30,33-36,42,46-59,61-62,64-65,73-74,78-79,81,87,90-91,95,108-120,122-125,136,138,140,"
                "142-151,155-156,158,160,162-176",
            ),
            (IGNORE, "14,37-38,43-44,63,66-67,92-93,106-107,121,137,141,152-153,157,161"),
        ),
        "decodes 144-150",
    ),
    System(
        "gcm",
        "facebookresearch/gcm 1b7bde9",
        FAIL,
        ((WARN, "13,31,43,45,63,68,92,109"),),
    ),
    System(
        "AzNHC",
        "Azure/azurehpc-health-checks 0e0a1ac",
        IGNORE,
        ((FAIL, "48,56-58,62-65,68-69,73-74,79-81,92,119-120"),),
    ),
    System(
        "healthagent",
        "Azure/cyclecloud-healthagent b8c76db",
        FAIL,
        ((WARN, "13,31,43,63,66,94,154"),),
    ),
    System(
        "DeepOps",
        "NVIDIA/deepops 3957a42f, its NHC role",
        FAIL,
        ((IGNORE, "94"),),
        "any Xid of the last hour",
    ),
    System(
        "oci-hpc",
        "oracle-quickstart/oci-hpc b5285a68, playbooks/roles/healthchecks/files/xid_checker.py",
        WARN,
        (
            (
                FAIL,
                "1-7,9-10,12,15-24,26-30,33-36,42,45-59,61-62,64-65,73-74,78-79,81,87,90-91,95,109-120,122-125,136,138,140,"
                "142-151,155-156,158-159,162-176",
            ),
        ),
        "decodes 144-150; loses every MIG line",
    ),
    System(
        "aws",
        "awslabs/awsome-distributed-ai 95b939cd, gpu-cluster-healthcheck",
        WARN,
        ((FAIL, "48,54,64,74,79,95,109-110,119-120,136,140,143,151,154-156,158-159,168"),),
        "reads the words of 154",
    ),
    System(
        "k8s-device-plugin",
        "NVIDIA/k8s-device-plugin, internal/rm/health.go",
        FAIL,
        ((IGNORE, "13,31,43,45,68,109"),),
    ),
    System(
        "sichek",
        "scitix/sichek b6344db",
        IGNORE,
        ((FAIL, "31,48,63-64,74,79,92,94-95"),),
    ),
)


@lru_cache(maxsize=64)
def codes(text: str) -> frozenset[int]:
    """Return the codes that a text such as "1-7,9" names."""
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def reaction(system: System, code: int) -> Reaction:
    """Return what ``system`` does with an Xid."""
    return next((word for word, listed in system.rows if code in codes(listed)), system.rest)
