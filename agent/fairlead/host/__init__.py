"""Edge: reads a machine or a machine tree, executes changes."""
