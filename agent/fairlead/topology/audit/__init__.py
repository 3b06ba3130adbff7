"""Finds what in a machine's wiring costs bandwidth, and says how much is lost and what to move."""
