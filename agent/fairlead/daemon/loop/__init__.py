"""The agent's main loop, what it reads the node with, and what it starts on the node."""
