"""Reads and makes the MIG instances of one GPU, inside the NVML worker only.

NVML reports profiles only while MIG is on. A GPU instance can only be used when it has a compute instance. fairlead makes one
compute instance that spans the whole GPU instance. Before each call, ``beat`` writes the call's name to the page that the
worker shares with its parent. Source: NVML API reference, "Multi Instance GPU Management"; NVIDIA Multi-Instance GPU user guide.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from fairlead.host.nvml_links import FUNCTION_NOT_FOUND, NOT_SUPPORTED, Json, entry

INVALID_ARGUMENT, INSUFFICIENT_RESOURCES, IN_USE = 2, 23, 19
_PROFILES, _COMPUTE_PROFILES, _INSTANCES_MAX = 18, 9, 8  # NVML_GPU_INSTANCE_PROFILE_COUNT, ..._COMPUTE_..., slices of memory
_PLACEMENTS_MAX = 16
Position = tuple[str, int | None]  # a profile, and the first memory slice or None


class Mig:
    """Reads and makes the MIG instances of one GPU. ``structs``: the ctypes declarations of nvidia-ml-py."""

    def __init__(self, lib: Any, structs: Any, handle: Any, beat: Callable[[bytes, bytes], None], pci: bytes) -> None:
        self._lib = lib
        self._structs = structs
        self._handle = handle
        self._beat = beat
        self._pci = pci

    def ask(self, name: str, *arguments: Any) -> int:
        self._beat(name.encode(), self._pci)
        return int(entry(self._lib, name)(*arguments))

    def again(self) -> int:
        """Get a new handle of the GPU, because a change of the MIG mode may reset the GPU."""
        handle = ctypes.c_void_p()
        code = self.ask("nvmlDeviceGetHandleByPciBusId_v2", self._pci, ctypes.byref(handle))
        self._handle = self._handle if code else handle
        return code

    def read(self) -> Json:
        """Return ``{"instances": [...], "profiles": [...]}``, or ``{"error": code}``."""
        current, pending = ctypes.c_uint(), ctypes.c_uint()
        code = self.ask("nvmlDeviceGetMigMode", self._handle, ctypes.byref(current), ctypes.byref(pending))
        if code:
            return {"error": code}
        if not current.value:
            return {"instances": [], "profiles": []}
        profiles = self.profiles()
        if isinstance(profiles, int):
            return {"error": profiles}
        names = {p.id: name for name, p in profiles.items()}
        found = []
        for instance, info in self._instances(profiles):
            compute = sum(1 for _ in self._compute_instances(instance))
            profile = names.get(info.profileId, str(info.profileId))
            where = {"start": info.placement.start, "size": info.placement.size}
            found.append({"profile": profile, **where, "gi": info.id, "compute": compute})
        found.sort(key=lambda i: i["start"])
        return {"instances": found, "profiles": sorted(names.values())}

    def profiles(self) -> dict[str, Any] | int:
        """Return the profiles by name (without "MIG " at its start), or the return code of the call that failed."""
        found: dict[str, Any] = {}
        for number in range(_PROFILES):
            info = self._structs.c_nvmlGpuInstanceProfileInfo_v2_t()
            code = self.ask("nvmlDeviceGetGpuInstanceProfileInfoV", self._handle, ctypes.c_uint(number), ctypes.byref(info))
            if code == FUNCTION_NOT_FOUND:
                return code
            if code in (NOT_SUPPORTED, INVALID_ARGUMENT):
                continue  # this GPU or this release of the library has no such profile
            if code:
                return code
            name = info.name
            found[(name if isinstance(name, str) else name.decode("ascii", "replace")).removeprefix("MIG ")] = info
        return found

    def make(self, wanted: tuple[str, ...]) -> int:
        """Make exactly these instances, each with one compute instance that spans it. A wanted instance is ``PROFILE@START`` with
        its first memory slice, or ``PROFILE`` if the driver chooses the position. An instance that is there already stays. The
        others are destroyed first.

        Returns IN_USE when a process is on an instance that must go. For a profile or position that the GPU does not have,
        returns INVALID_ARGUMENT before anything is changed.
        """
        profiles = self.profiles()
        if isinstance(profiles, int):
            return profiles
        positions = [(name, int(start) if start else None) for name, _, start in (word.partition("@") for word in wanted)]
        if any(name not in profiles for name, _ in positions):
            return INVALID_ARGUMENT
        if any(n > profiles[name].instanceCount for name, n in Counter(name for name, _ in positions).items()):
            return INSUFFICIENT_RESOURCES
        sizes = self._sizes(positions, profiles)
        if isinstance(sizes, int):
            return sizes
        go, missing = self._differing(positions, profiles)
        if code := self._busy({info.id for _, info in go}):
            return code
        for instance, _ in go:
            for compute in list(self._compute_instances(instance)):
                if code := self.ask("nvmlComputeInstanceDestroy", compute):
                    return code
            if code := self.ask("nvmlGpuInstanceDestroy", instance):
                return code
        # the large instances are made first, because they fit in fewer positions
        for name, start in sorted(missing, key=lambda position: (-profiles[position[0]].memorySizeMB, position[1] or 0)):
            if code := self._create(profiles[name], start, sizes.get((name, start), 0)):
                return code
        return 0

    def _sizes(self, positions: list[Position], profiles: dict[str, Any]) -> dict[Position, int] | int:
        """Return the number of memory slices of each instance with a position, or the code for a position that the GPU does not
        have."""
        found: dict[Position, int] = {}
        for name, start in positions:
            if start is None:
                continue
            listed = (self._structs.c_nvmlGpuInstancePlacement_t * _PLACEMENTS_MAX)()
            count = ctypes.c_uint(_PLACEMENTS_MAX)
            call, profile = "nvmlDeviceGetGpuInstancePossiblePlacements_v2", ctypes.c_uint(profiles[name].id)
            if code := self.ask(call, self._handle, profile, listed, ctypes.byref(count)):
                return code
            size = next((position.size for position in listed[: count.value] if position.start == start), 0)
            if not size:
                return INVALID_ARGUMENT
            found[name, start] = size
        return found

    def _differing(self, positions: list[Position], profiles: dict[str, Any]) -> tuple[list[tuple[Any, Any]], list[Position]]:
        """Return the instances that must go, and the positions at which an instance is missing."""
        names = {p.id: name for name, p in profiles.items()}
        missing = sorted(positions, key=lambda position: position[1] is None)  # first those that name a memory slice
        go = []
        for instance, info in self._instances(profiles):
            name = names.get(info.profileId, "")
            spans = len(list(self._compute_instances(instance))) == 1  # as model.gpu_state.MigInstance counts them
            match = next((p for p in missing if p[0] == name and p[1] in (None, info.placement.start)), None)
            if match and spans:
                missing.remove(match)
            else:
                go.append((instance, info))
        return go, missing

    def _create(self, profile: Any, start: int | None, size: int) -> int:
        """Make a GPU instance and a compute instance over all its slices."""
        instance, number = ctypes.c_void_p(), ctypes.c_uint(profile.id)
        if start is None:
            code = self.ask("nvmlDeviceCreateGpuInstance", self._handle, number, ctypes.byref(instance))
        else:
            position = self._structs.c_nvmlGpuInstancePlacement_t(start=start, size=size)
            call = "nvmlDeviceCreateGpuInstanceWithPlacement"
            code = self.ask(call, self._handle, number, ctypes.byref(position), ctypes.byref(instance))
        return code or self._span(instance, profile.sliceCount)

    def _busy(self, instances: set[int]) -> int:
        """Return IN_USE if a process is on one of these GPU instances, or if that cannot be read."""
        most = ctypes.c_uint()
        if instances and (code := self.ask("nvmlDeviceGetMaxMigDeviceCount", self._handle, ctypes.byref(most))):
            return code
        for index in range(most.value):
            device, gi, count = ctypes.c_void_p(), ctypes.c_uint(), ctypes.c_uint(0)
            if self.ask("nvmlDeviceGetMigDeviceHandleByIndex", self._handle, ctypes.c_uint(index), ctypes.byref(device)):
                continue  # NVML counts the devices that are possible, and has fewer
            if code := self.ask("nvmlDeviceGetGpuInstanceId", device, ctypes.byref(gi)):
                return code
            if gi.value in instances:
                code = self.ask("nvmlDeviceGetComputeRunningProcesses_v3", device, ctypes.byref(count), None)
                if count.value or code not in (0, 7):
                    return IN_USE
        return 0

    def _span(self, instance: Any, slices: int) -> int:
        """Make a compute instance over all slices of a GPU instance."""
        call = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
        for number in range(_COMPUTE_PROFILES):
            info = self._structs.c_nvmlComputeInstanceProfileInfo_t()
            code = self.ask(call, instance, ctypes.c_uint(number), ctypes.c_uint(0), ctypes.byref(info))
            if not code and info.sliceCount == slices:
                made = ctypes.c_void_p()
                make = "nvmlGpuInstanceCreateComputeInstance"
                return self.ask(make, instance, ctypes.c_uint(info.id), ctypes.byref(made))
            if code not in (0, NOT_SUPPORTED, INVALID_ARGUMENT):
                return code
        return INSUFFICIENT_RESOURCES

    def _instances(self, profiles: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
        for profile in profiles.values():
            for handle in self._list("nvmlDeviceGetGpuInstances", self._handle, profile.id):
                info = self._structs.c_nvmlGpuInstanceInfo_t()
                if not self.ask("nvmlGpuInstanceGetInfo", handle, ctypes.byref(info)):
                    yield handle, info

    def _compute_instances(self, instance: Any) -> Iterator[Any]:
        call = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
        for number in range(_COMPUTE_PROFILES):
            info = self._structs.c_nvmlComputeInstanceProfileInfo_t()
            if not self.ask(call, instance, ctypes.c_uint(number), ctypes.c_uint(0), ctypes.byref(info)):
                yield from self._list("nvmlGpuInstanceGetComputeInstances", instance, info.id)

    def _list(self, call: str, owner: Any, profile: int) -> Iterator[Any]:
        found = (ctypes.c_void_p * _INSTANCES_MAX)()
        count = ctypes.c_uint(_INSTANCES_MAX)
        if not self.ask(call, owner, ctypes.c_uint(profile), found, ctypes.byref(count)):
            yield from (ctypes.c_void_p(found[i]) for i in range(count.value))
