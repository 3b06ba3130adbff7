"""The environment of a job as data: what, when, why."""
