"""Says what the records of all nodes show together. All functions are pure: they report, and change nothing."""
