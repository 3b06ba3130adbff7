"""Reads which switches and NVLink domains connect the nodes of a cluster, and groups the nodes accordingly."""
