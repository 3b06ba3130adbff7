"""Programs that measure: benchmarks and acceptance of nodes and fabrics."""
