"""Reads a machine or a machine tree, and executes changes."""
