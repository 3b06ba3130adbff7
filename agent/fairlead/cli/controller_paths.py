"""Names the files on the controller: the site, the collector's store, the newest records of running jobs, the idle journal."""

from __future__ import annotations

SITE = "/etc/fairlead/site.toml"
STORE = "/var/lib/fairlead-collect"
RUNNING = "/var/lib/fairlead-running"
IDLE = "/var/lib/fairlead/idle"
