"""Edge: speaks to slurmctld."""
