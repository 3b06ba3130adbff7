"""Names the files on the controller: the site, the stores, the queue of events, the idle journal."""

from __future__ import annotations

SITE = "/etc/fairlead/site.toml"
STORE = "/var/lib/fairlead-collect"
RUNNING = "/var/lib/fairlead-running"
EVENTS = "/var/lib/fairlead-events"
IDLE = "/var/lib/fairlead/idle"
