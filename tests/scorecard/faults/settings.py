"""Drift: what was provisioned and is not so any more. Each setting's fact is a kernel file or an NVML value."""

from __future__ import annotations

from tests.scorecard.entry import Document, Fault, File, Nvml

FAULTS = (
    Fault("drift-numa-balancing", "NUMA balancing was switched on again", "setting.numa_balancing", "drain",
          (File("/proc/sys/kernel/numa_balancing", "1\n"),),
          (Document({"settings": {"numa_balancing": {"managed": False}}}), File("/proc/sys/kernel/numa_balancing", "1\n")),
          "a site that wants it on and does that itself", "Linux Documentation/admin-guide/sysctl/kernel.rst", says="numa_balancing"),
    Fault("drift-persistence", "persistence mode was switched off", "setting.persistence", "drain",
          (Nvml(2, "persistence_mode", 0),),
          (Document({"settings": {"persistence": {"managed": False}}}), Nvml(2, "persistence_mode", 0)),
          "a site that leaves it to nvidia-persistenced", "NVIDIA driver persistence guide", says="persistence"),
    Fault("drift-governor", "a CPU's governor is powersave", "setting.cpu_governor", "drain",
          (File("/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave\n"),),
          (Document({"settings": {"cpu_governor": {"managed": False}}}), File("/sys/devices/system/cpu/cpu1/cpufreq/scaling_governor", "powersave\n")),
          "a site that leaves it to tuned", "Linux Documentation/admin-guide/pm/cpufreq.rst", says="powersave"),
)  # fmt: skip
