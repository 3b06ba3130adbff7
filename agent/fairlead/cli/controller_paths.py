"""Names the files on the controller: the site, the collector's store, the newest records of running jobs, the queue of events."""

from __future__ import annotations

SITE = "/etc/fairlead/site.toml"
STORE = "/var/lib/fairlead-collect"
RUNNING = "/var/lib/fairlead-running"
EVENTS = "/var/lib/fairlead-events"
