"""Computes how far the GPUs, NICs and CPUs of one node are from each other, and how fast the links between them are."""
