"""Runs on each node as the agent: it reads, judges, decides and publishes."""
