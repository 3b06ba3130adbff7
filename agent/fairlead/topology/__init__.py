"""Holds pure functions about one machine and its fabric. They compute how far devices are apart, which CPUs a task should have,
and which wiring costs bandwidth."""
