"""Checks that the loaded NVIDIA driver is the one that the site wants.

The loaded version is in /sys/module/nvidia/version, or else in /proc/driver/nvidia/version. The wanted version may be whole or
only its beginning: `570` names a branch of the driver, and `570.172` names a release (NVIDIA data center driver documentation,
"Driver Lifecycle"). `nvml_responsive` and `driver_library` judge whether the driver works. While a driver is being installed
(`apply`, maintenance) this check does not drain.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from msgspec import Meta

from fairlead.model.check_definition import Check, CheckParams, Past
from fairlead.model.facts import Missing, Node
from fairlead.model.finding import Action, Finding, Level, Mode, Service, with_action
from fairlead.model.unread import unread

Version = Annotated[str, Meta(pattern=r"^\d{3}(\.\d{1,3}){0,2}\Z")]


class Params(CheckParams, frozen=True, kw_only=True):
    wanted: Annotated[
        Version | None, Meta(description="Wanted version of the driver, or its beginning (`570`, `570.172`). If unset, any.")
    ] = None


def judge(node: Node, past: Past, params: Params) -> Iterator[Finding]:
    wanted, loaded = params.wanted, node.driver.module_version
    if wanted is None:
        return
    if isinstance(loaded, Missing):
        yield unread("the version of the NVIDIA driver", loaded)
    elif loaded.split(".")[: wanted.count(".") + 1] != wanted.split("."):
        yield with_action(
            Level.DRAIN,
            f"NVIDIA driver {loaded} is loaded, {wanted} is wanted",
            Action.PROVISION,
            service=Service.DRAIN_AFTER_JOB,
            evidence_id=loaded,
        )


check = Check(
    summary="The NVIDIA driver is of the wanted version or branch",
    params=Params,
    judge=judge,
    mode=Mode.OBSERVE,
    recover=1,
)
