"""Publishes the files under /run/fairlead, the metrics, the state for systemd, and the reports to people."""
