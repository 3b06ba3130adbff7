"""Remembers what the agent has seen, in memory and in a file that other programs may read."""
