"""Runs on the controller: collects the usage records of jobs, keeps them, and writes what other programs read of them."""
