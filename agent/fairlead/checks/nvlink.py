"""Checks that each GPU has as many active NVLinks as declared, and that no link has too many errors.

The state of each link comes from nvmlDeviceGetNvLinkState. The hardware profile declares the number of links that must be active.
If no number is declared, all links that NVML lists must be active. NVML also lists the links of a PCIe card without an NVLink
bridge, and none of these links is active. So if no link of a GPU is active and no number is declared, the check only warns. Links
train after a boot. Whole fleets were once drained because their links were still training (NVSentinel pull request 1715). The
check therefore has a boot grace and needs three bad sweeps. Under MIG no GPU communicates with another (NVIDIA MIG user guide:
GPU to GPU P2P, by PCIe or NVLink, is not supported), and the fabric manager may leave the links off. So the state of links is not
judged under MIG.

For each link, the check judges how much its error counters grow in a window. Errors within the boot grace do not count. The
counters are NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, _RECOVERY, _CRC (161 to 163) up to NVLink 4, and NVML_FI_DEV_NVLINK_COUNT_* (206,
208, 214, 215, 219) on NVLink 5. CRC errors matter from 100 a second on (DCGM dcgm_gpu_hardware_limits.h: "RM has informed us that
CRC errors only matter at rates of 100+ per second"). DCGM's health watch fails a GPU for any replay or recovery in a minute. This
check accepts single replays and recoveries.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.device import device_of, listed_gpus, readable_gpus
from fairlead.model.facts import Gpu, Missing, Node, NvLink, Why, unreadable
from fairlead.model.finding import Action, Finding, Level, Mode, Service, with_action
from fairlead.model.trend import growth, series, settled_seconds
from fairlead.model.unread import unlisted, unread

OLDER = ("crc_errors", "replay_errors", "recovery_errors")  # up to NVLink 4
NEWER = ("malformed_packets", "receive_errors", "recoveries_failed", "recoveries", "effective_errors")  # NVLink 5
SHOWN = 6
BOOT_GRACE_SECONDS = 300


class Params(CheckParams, frozen=True, kw_only=True):
    links: Annotated[
        Annotated[int, Meta(ge=0, le=64)] | None,
        Meta(description="This many NVLinks of each GPU must be active. If unset, all links that NVML lists."),
    ] = None
    judge_number: Annotated[bool, Meta(description="Whether this check judges how many NVLinks are active.")] = True
    crc_per_second_max: Annotated[
        float, Meta(ge=0, description="The check drains at this many or more CRC errors a second on one link. 0: never.")
    ] = 100.0
    replays_per_hour_max: Annotated[
        float, Meta(ge=0, description="The check warns at this many or more replays an hour on one link. 0: never.")
    ] = 3600.0
    recoveries_per_hour_max: Annotated[
        float,
        Meta(ge=0, description="The check warns at this many or more recoveries (retrainings) an hour on one link. 0: never."),
    ] = 3.0
    recoveries_failed_per_hour_max: Annotated[
        float,
        Meta(
            ge=0, description="NVLink 5: the check drains at this many or more failed recoveries an hour on one link. 0: never."
        ),
    ] = 1.0
    receive_errors_per_hour_max: Annotated[
        float,
        Meta(
            ge=0,
            description="NVLink 5: the check warns at this many malformed packets or receive errors an hour on a link. 0: never.",
        ),
    ] = 100.0
    effective_errors_per_hour_max: Annotated[
        float,
        Meta(
            ge=0,
            description="NVLink 5: the check warns if this many or more errors an hour remain on one link after error correction."
            " 0: never.",
        ),
    ] = 1000.0
    window_seconds: Annotated[int, Meta(ge=60, le=7200, description="Rates are measured over this window.")] = 3600
    window_least_seconds: Annotated[int, Meta(ge=1, description="Samples that are closer together than this give no rate.")] = 120


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    yield from unlisted(node)
    for gpu in readable_gpus(node):
        if isinstance(gpu.nvlinks, Missing):
            if gpu.nvlinks.why is Why.UNREADABLE and params.links != 0:
                yield unread(f"the NVLinks of GPU {gpu.pci}", gpu.nvlinks, gpu.pci)
            continue
        if params.judge_number and gpu.mig_current is not True:
            yield from _state(gpu, gpu.nvlinks, params)
        yield from _unreadable(gpu, gpu.nvlinks)
        yield from _errors(gpu, gpu.nvlinks, node, past, params)


def _state(gpu: Gpu, links: tuple[NvLink, ...], params: Params) -> Iterator[Finding]:
    want = len(links) if params.links is None else params.links
    active = sum(link.active is True for link in links)
    unknown = sum(isinstance(link.active, Missing) for link in links)
    if params.links is None and links and not active + unknown:
        words = f"no NVLink of GPU {gpu.pci} is active: declare how many should be (checks.nvlink.links)"
        yield Finding(level=Level.WARN, device=gpu.pci, summary=words, evidence=(f"NVML lists {len(links)}",))
    elif active + unknown < want:
        down = ", ".join(str(link.link) for link in links if link.active is False)
        words, said = (
            f"{active} of {want} NVLinks of GPU {gpu.pci} are active",
            f"down: {down or 'none'}, NVML lists {len(links)}",
        )
        yield with_action(Level.DRAIN, words, Action.CHECK_FABRIC, said, device=gpu.pci)
    elif params.links is not None and active > want:
        words = f"{active} NVLinks of GPU {gpu.pci} are active, {want} declared"
        yield with_action(Level.WARN, words, Action.PROVISION, device=gpu.pci)


def _unreadable(gpu: Gpu, links: tuple[NvLink, ...]) -> Iterator[Finding]:
    """Yield findings for links whose state cannot be read, and for links that give no error counter."""
    state = [link for link in links if isinstance(link.active, Missing) and link.active.why is Why.UNREADABLE]
    blind = [link for link in links if _blind(link)]
    for found, what in ((state, "state"), (blind, "error counters")):
        if found:
            numbers = ", ".join(str(link.link) for link in found[:SHOWN]) + (" ..." if len(found) > SHOWN else "")
            yield unread(f"NVLink {what} of GPU {gpu.pci}", unreadable(f"link {numbers}"), gpu.pci)


@lru_cache(maxsize=512)  # enough for all links of a node; the values of a link rarely change
def _blind(link: NvLink) -> bool:
    """Return whether a link gives no error counter at all, although the profile does not list all of these counters as
    unsupported."""
    values = [getattr(link, name) for name in (*OLDER, *NEWER)]
    return all(isinstance(v, Missing) for v in values) and any(v.why is Why.UNREADABLE for v in values)


def _errors(gpu: Gpu, links: tuple[NvLink, ...], node: Node, past: Past, params: Params) -> Iterator[Finding]:
    now, device, known = node.uptime_seconds, device_of(gpu), series(past)
    if isinstance(now, Missing):
        return
    limits = (
        ("crc_errors", "CRC errors", params.crc_per_second_max * 3600, Level.DRAIN),
        ("recoveries_failed", "failed recoveries", params.recoveries_failed_per_hour_max, Level.DRAIN),
        ("recovery_errors", "recoveries", params.recoveries_per_hour_max, Level.WARN),
        ("recoveries", "recoveries", params.recoveries_per_hour_max, Level.WARN),
        ("replay_errors", "replays", params.replays_per_hour_max, Level.WARN),
        ("malformed_packets", "malformed packets", params.receive_errors_per_hour_max, Level.WARN),
        ("receive_errors", "receive errors", params.receive_errors_per_hour_max, Level.WARN),
        ("effective_errors", "effective errors", params.effective_errors_per_hour_max, Level.WARN),
    )
    for name, words, limit, level in limits:
        worst: list[tuple[float, int, float]] = []
        for link in links:
            value = getattr(link, name)
            if limit <= 0 or type(value) is not int or value == 0:
                continue
            grown = growth(
                known.get((device, f"nvlink.{link.link}.{name}"), ()),
                value,
                now,
                window_seconds=settled_seconds(now, params.window_seconds, params.boot_grace_seconds, BOOT_GRACE_SECONDS),
                least_seconds=params.window_least_seconds,
            )
            if grown is not None and grown.amount >= 1 and grown.per_hour >= limit:
                worst.append((grown.amount, link.link, grown.seconds))
        if worst:
            amount, link_number, seconds = max(worst)
            more = f" and {len(worst) - 1} more" if len(worst) > 1 else ""
            yield with_action(
                level,
                f"too many NVLink {words} on GPU {gpu.pci}, link {link_number}{more}",
                Action.CHECK_FABRIC,
                f"{amount:.0f} in {seconds:.0f} s",
                device=gpu.pci,
                service=Service.DRAIN_AFTER_JOB,
            )


def samples(node: Node) -> Iterator[tuple[str, str, float]]:
    """Yield the error counters of each link."""
    for gpu in listed_gpus(node):
        device = device_of(gpu)
        for link in () if isinstance(gpu.nvlinks, Missing) else gpu.nvlinks:
            for name, counter in _counters(link.link):
                value = getattr(link, name)
                if type(value) is int:
                    yield device, counter, float(value)


@cache  # a GPU has about twenty links
def _counters(link: int) -> tuple[tuple[str, str], ...]:
    return tuple((name, f"nvlink.{link}.{name}") for name in (*OLDER, *NEWER))


check = Check(
    summary="NVLinks: all active that should be, errors on each as a rate",
    params=Params,
    another_gpu={"links": None, "judge_number": False},
    judge=judge,
    mode=Mode.OBSERVE,
    confirm=3,
    confirm_of=3,
    boot_grace_seconds=BOOT_GRACE_SECONDS,
    samples=samples,
    slow=True,
)
