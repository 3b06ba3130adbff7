"""The lab: simulated GPU nodes on one machine (only the hardware is simulated)."""
