"""Defines ``[events]`` of a site: where `fairlead events` sends what happens to nodes."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from fairlead.fleet.fleet_events import KINDS

Argument = Annotated[str, Meta(max_length=500, pattern=r"^[^\x00\n]*\Z")]
Kind = Literal["drained", "resumed", "held", "acknowledged", "repaired", "lemon", "maintenance"]


class EventsOptions(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Holds what a site declares in [events] of site.toml."""

    command: Annotated[
        tuple[Argument, ...],
        Meta(
            max_length=64,
            description="The site's program and its arguments. It gets one event as JSON on standard input. Empty: none.",
        ),
    ] = ()
    url: Annotated[
        str,
        Meta(
            max_length=500,
            pattern=r"^(https?://[!-~]+)?\Z",
            description="The address that gets each event as an HTTP POST with JSON and a signature. Empty: none.",
        ),
    ] = ""
    key_file: Annotated[
        str,
        Meta(
            pattern=r"^/[^\x00\n]{1,500}\Z",
            description="The file with the key of the signature (HMAC-SHA256). Only root should be able to read it: systemd hands"
            " it to the unit.",
        ),
    ] = "/etc/fairlead/events.key"
    kinds: Annotated[tuple[Kind, ...], Meta(description="The kinds of events that are sent.")] = KINDS  # type: ignore[assignment]
    cluster: Annotated[
        str,
        Meta(pattern=r"^[A-Za-z0-9_.-]{0,64}\Z", description="The cluster's name in each event. Empty: no such field."),
    ] = ""
    deadline_seconds: Annotated[
        float,
        Meta(ge=1, le=300, description="The program or the answer of the address is ended after this time."),
    ] = 30.0

    @property
    def channels(self) -> tuple[str, ...]:
        """Return the channels that are declared: "command", "webhook"."""
        return (*(("command",) if self.command else ()), *(("webhook",) if self.url else ()))
