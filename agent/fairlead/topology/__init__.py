"""Holds pure rules over one machine and its fabric: how far devices are apart, which CPUs a task should have, what costs
bandwidth."""
