"""Describes the environment of a job as data: which variable is set, when and why; checks scripts for harmful settings."""
