"""A binding plan, cold: 288 CPUs, 36 NUMA nodes, in a fresh interpreter each time."""
