"""Describes the environment of a job as data (which variable is set, when and why), and finds harmful settings in scripts."""
