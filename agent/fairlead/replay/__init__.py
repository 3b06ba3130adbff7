"""Replays recorded kernel logs through the checks and the policy."""
