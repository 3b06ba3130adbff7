"""Contains the agent's main loop, the readers of the node, and the commands that the agent starts on the node."""
