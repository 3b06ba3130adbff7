"""tuned as a setting: with the declared profile, or not at all."""

from __future__ import annotations

import pytest

from fairlead.errors import ConfigError
from fairlead.model.change import File, Unit
from fairlead.model.facts import Missing
from fairlead.settings import tuned
from tests.settings.test_kernel_settings import texts


def test_tuned_runs_with_the_declared_profile_or_not_at_all() -> None:
    unit = {"/@unit/tuned.service": None}  # a tree, whose reader does not know
    running = {tuned.COMM: "tuned\n", tuned.PROFILE: "throughput-performance\n", tuned.MODE: "auto\n", **unit}
    observed = tuned.observe(texts(dict(running)))
    assert isinstance(observed, tuned.Observed)
    (stop,) = tuned.plan(tuned.TunedWant(), observed)
    assert isinstance(stop, Unit) and stop.active is False and "throughput-performance" in stop.why
    changes = tuned.plan(tuned.TunedWant(profile="hpc-compute"), observed)
    assert [type(c) for c in changes] == [File, File, Unit]
    asked = {**running, tuned.PROFILE: "hpc-compute\n", tuned.MODE: "manual\n"}
    assert tuned.plan(tuned.TunedWant(profile="hpc-compute"), tuned.observe(texts(dict(asked)))) == ()  # type: ignore[arg-type]
    none: dict[str, str | Missing | None] = {tuned.COMM: None, tuned.PROFILE: None, tuned.MODE: None, **unit}
    assert tuned.plan(tuned.TunedWant(), tuned.observe(texts(dict(none)))) == ()  # type: ignore[arg-type]


@pytest.mark.parametrize(("load", "said"), [("not-found", "is not installed here"), ("masked", "is masked here")])
def test_a_tuned_that_cannot_run_is_refused_before_a_file_of_its_is_written(load: str, said: str) -> None:
    unit = f"LoadState={load}\nActiveState=inactive\nUnitFileState=\nTriggeredBy=\n"
    seen = tuned.observe(texts({tuned.COMM: None, tuned.PROFILE: None, tuned.MODE: None, "/@unit/tuned.service": unit}))
    assert isinstance(seen, tuned.Observed)
    with pytest.raises(ConfigError, match=said):
        tuned.plan(tuned.TunedWant(profile="hpc-compute"), seen)
    assert tuned.plan(tuned.TunedWant(), seen) == ()


@pytest.mark.parametrize(
    ("running", "file", "profile", "wanted"),
    [
        (False, "enabled", "", (False, None)),  # stopped by hand: it would start at the next boot
        (False, "disabled", "", None),
        (True, "enabled", "", (False, False)),
        (True, "disabled", "hpc-compute", (True, None)),  # started by hand: it would be gone after the next boot
        (True, "enabled", "hpc-compute", None),
        (False, "static", "", None),
        (True, "static", "hpc-compute", None),
    ],
)
def test_the_next_boot_does_not_undo_what_is_wanted(
    running: bool, file: str, profile: str, wanted: tuple[bool, bool | None] | None
) -> None:
    state = "active" if running else "inactive"
    unit = f"LoadState=loaded\nActiveState={state}\nUnitFileState={file}\nTriggeredBy=\n"
    files = {tuned.COMM: "tuned\n" if running else None, tuned.PROFILE: f"{profile}\n", tuned.MODE: "manual\n"}
    seen = tuned.observe(texts({**files, "/@unit/tuned.service": unit}))
    assert isinstance(seen, tuned.Observed)
    found = [(c.enabled, c.active) for c in tuned.plan(tuned.TunedWant(profile=profile), seen) if isinstance(c, Unit)]
    assert found == ([wanted] if wanted else [])
