"""Keeps samples of counters in memory. Most counters never change, so only the first and the last of a run of equal values are
kept. The trend stays the same (see ``model.trend``), and the samples need a hundredth of the memory."""

from __future__ import annotations

from collections.abc import Iterable

from fairlead.model.check_definition import Sample

SAMPLE_SECONDS = 60.0  # at most one sample of each counter is kept in this time
KEEP_SECONDS = 7200.0  # samples are kept for this time, which is twice the longest window of a check
SAVE_SECONDS = 3000.0  # a run of equal values is stored again after this time, before its first sample is dropped from the file

Key = tuple[str, str]  # device, name


class Series:
    """Holds the samples of all counters of one boot."""

    def __init__(self) -> None:
        self._known: dict[Key, list[Sample]] = {}
        self._saved: dict[Key, float] = {}
        self._unsaved: list[Sample] = []

    def all(self) -> tuple[Sample, ...]:
        return tuple(s for known in self._known.values() for s in known)

    def add(self, seconds: float, values: Iterable[tuple[str, str, float]]) -> bool:
        """Remember (device, name, value) at ``seconds`` of CLOCK_BOOTTIME. Return whether any value was remembered."""
        news = False
        for device, name, value in values:
            key = (device, name)
            known = self._known.get(key)
            if known and seconds - known[-1].seconds < SAMPLE_SECONDS:
                continue
            news = True
            sample = Sample(device=device, name=name, seconds=seconds, value=value)
            goes_on = self._take(key, sample)
            if not goes_on or seconds - self._saved[key] >= SAVE_SECONDS:
                self._saved[key] = seconds
                self._unsaved.append(sample)
        return news

    def _take(self, key: Key, sample: Sample) -> bool:
        """Take in a sample. Return whether it only makes a run of equal samples longer."""
        known = self._known.setdefault(key, [])
        goes_on = len(known) > 1 and known[-1].value == known[-2].value == sample.value
        if goes_on:
            known[-1] = sample
        else:
            known.append(sample)
        while len(known) > 1 and sample.seconds - known[1].seconds >= KEEP_SECONDS:
            known.pop(0)  # one older sample stays, because it has the value at the beginning of KEEP_SECONDS
        return goes_on

    def merge(self, stored: Iterable[Sample]) -> None:
        """Take in samples that were stored earlier. Samples that are already in memory stay."""
        together = {(s.device, s.name, s.seconds): s for s in (*stored, *self.all())}
        self._known = {}
        for sample in sorted(together.values(), key=lambda s: s.seconds):
            self._take((sample.device, sample.name), sample)
            self._saved.setdefault((sample.device, sample.name), sample.seconds)

    def unsaved(self) -> list[Sample]:
        """Return the samples that have to be written to disk. Each sample is returned only once."""
        taken, self._unsaved = self._unsaved, []
        return taken
