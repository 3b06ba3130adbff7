"""Finds faults in a machine's wiring that cost bandwidth, and says how much bandwidth is lost and which card to move."""
