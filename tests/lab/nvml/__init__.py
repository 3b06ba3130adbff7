"""The simulated NVML library: `build` compiles it, `write_conf` gives it a machine, tests.lab.faults breaks it."""
