"""Reads which switches and NVLink domains join the nodes of a cluster, and groups the nodes by them."""
