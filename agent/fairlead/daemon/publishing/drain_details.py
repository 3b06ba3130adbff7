"""Says for the audit trail what a drain is for: the findings, the GPU cards that they are about, and the jobs that ran."""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.policy.policy_state import PolicyState

FINDINGS_MAX, JOBS_MAX = 12, 40


def drain_details(state: PolicyState, jobs: Iterable[int]) -> dict[str, str]:
    """Return the arguments of the entry. Keys are written as check/device, and a card as PCI address=serial."""
    keys = [key.removesuffix("/") for key in sorted(state.drained_for) if " " not in key][:FINDINGS_MAX]
    devices = dict.fromkeys(key.partition("/")[2] for key in keys)
    serials = [f"{device}={state.gpu_serials[device]}" for device in devices if device in state.gpu_serials]
    found = {
        "findings": " ".join(keys),
        "serials": " ".join(text for text in serials if text.count(" ") == 0),
        "jobs": ",".join(map(str, sorted(jobs)[:JOBS_MAX])),
    }
    return {name: text for name, text in found.items() if text}
