"""Pure rules: PCI tree, distances, binding plans."""
