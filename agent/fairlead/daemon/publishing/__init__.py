"""What the agent publishes: files under /run/fairlead, metrics, its state for systemd, and what it reports to people."""
