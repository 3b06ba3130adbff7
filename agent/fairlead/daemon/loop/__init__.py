"""Contains the agent's main loop, what it reads the node with, and the commands that it starts on the node."""
