"""A MIG geometry that no GPU can hold is refused where it is written, with the geometries that can be."""

from __future__ import annotations

from itertools import combinations_with_replacement
from pathlib import Path

import pytest

from fairlead.cli import main
from fairlead.model import mig_geometry
from fairlead.model.mig_geometry import GPUS, MigGpu, fits, geometries, legal
from fairlead.provision.site_check import check_site

A100_40 = GPUS[0]
EIGHTY = GPUS[1]
A30 = next(gpu for gpu in GPUS if gpu.names == "A30")


def site(tmp_path: Path, geometry: str, profile: str = "hgx-h100", table: str = "geometry") -> str:
    path = tmp_path / "site.toml"
    named = f'profile = "{profile}"\n' if profile else ""
    path.write_text(f'schema = 1\n[classes.a]\nnodes = "n[1-2]"\n{named}[classes.a.settings.mig]\n{table} = {geometry}\n')
    return str(path)


@pytest.mark.parametrize(
    ("declared", "reason", "hint"),
    [
        (('["7g.80gb", "7g.80gb"]', "hgx-h100"), "no GPU can hold 2 x 7g.80gb at the same time", "4g.40gb + 3g.40gb"),
        (('["7g.80gb", "1g.10gb"]', ""), "no GPU can hold 7g.80gb + 1g.10gb at the same time", "7g.80gb | 4g.40gb"),
        (('["4g.40gb", "4g.40gb"]', "hgx-a100"), "no GPU can hold 2 x 4g.40gb", "2 x 3g.40gb"),
        (('["3g.40gb", "3g.40gb", "1g.10gb"]', "hgx-h100"), "no GPU can hold", "3g.40gb + 4 x 1g.10gb"),
        (('["1g.10gb+me", "1g.10gb+me"]', "hgx-h100"), "no GPU can hold 2 x 1g.10gb+me", "1g.10gb+me (at most 1)"),
        (
            ('["1g.35gb", "1g.35gb", "1g.35gb", "1g.35gb", "1g.35gb"]', "hgx-h200"),
            "no GPU can hold 5 x 1g.35gb",
            "1g.35gb (at most 4)",
        ),
        (('["7g.278gb", "1g.35gb"]', "gb300-nvl72"), "no GPU can hold 7g.278gb + 1g.35gb", "7g.278gb"),
        (('["1g.6gb"]', "l4"), "the GPUs of l4 have no MIG", ""),
        (('["7g.40gb"]', "hgx-h100"), "there is no profile '7g.40gb' of A100 80GB, H100 80GB", "7g.80gb"),
        (('["1g.10gb", "7g.141gb"]', "hgx-a100"), "there is no profile '7g.141gb' of A100 40GB, A100 80GB", "7g.80gb"),
        (('["1g.10gb", "7g.141gb"]', ""), "no GPU has all of the profiles 1g.10gb, 7g.141gb", "7g.80gb"),
        (('["7g.80gb"]', "l40s-pcie"), "the GPUs of l40s-pcie have no MIG", "take it out"),
        (('["9g.90gb"]', ""), "there is no profile '9g.90gb'", "7g.80gb"),
        (('["3g40gb"]', "hgx-h100"), "there is no profile '3g40gb'", "3g.40gb"),
        (('["5g.50gb", "4g.40gb"]', ""), "has 9 compute slices, and no GPU has more than 7", "4g.40gb"),
    ],
)
def test_a_geometry_that_cannot_be_is_refused_with_those_that_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], declared: tuple[str, str], reason: str, hint: str
) -> None:
    path = site(tmp_path, *declared)
    (mistake,) = check_site(path).mistakes
    assert mistake.key == "classes.a.settings.mig.geometry"
    assert reason in mistake.reason and "regex" not in mistake.reason
    assert hint in mistake.hint
    assert main(["provision", "--site", path, "--check"]) == 78  # what check refuses is sent to no node
    assert reason in capsys.readouterr().err


@pytest.mark.parametrize(
    ("declared", "key", "reason", "hint"),
    [
        ('by_gpu = {"1b:00.0" = ["3g.40gb"]}', "by_gpu.1b:00.0", "'1b:00.0' is no PCI address", "0000:1b:00.0"),
        ('by_gpu = {"00000000:1B:00.0" = ["3g.40gb"]}', "by_gpu.00000000:1B:00.0", "is no PCI address", "0000:1b:00.0"),
        ('by_gpu = {"0000:1b:00.0" = "off"}', "by_gpu.0000:1b:00.0", "'off' is no list of profiles", "an empty list: MIG off"),
        ('by_gpu = ["3g.40gb"]', "by_gpu", "is no table of PCI addresses", '{"0000:1b:00.0" = ["3g.40gb", "1g.10gb"]}'),
        ('geometry = "3g.40gb"', "geometry", "'3g.40gb' is no list of profiles", '["3g.40gb", "1g.10gb"]'),
        ("geometry = [3]", "geometry", "[3] is no list of profiles", '["3g.40gb", "1g.10gb"]'),
    ],
)
def test_a_value_of_another_kind_says_how_it_is_written(tmp_path: Path, declared: str, key: str, reason: str, hint: str) -> None:
    table, _, value = declared.partition(" = ")
    (mistake,) = check_site(site(tmp_path, value, table=table)).mistakes
    assert mistake.key == f"classes.a.settings.mig.{key}"
    assert reason in mistake.reason and hint in mistake.hint


def test_the_gpus_that_are_divided_otherwise_are_held_to_it_too(tmp_path: Path) -> None:
    (mistake,) = check_site(site(tmp_path, '{ "0000:1b:00.0" = ["7g.80gb", "7g.80gb"] }', table="by_gpu")).mistakes
    assert mistake.key == "classes.a.settings.mig.by_gpu.0000:1b:00.0"


@pytest.mark.parametrize(
    ("geometry", "profile"),
    [
        ("[]", "l40s-pcie"),
        ("[]", "hgx-h100"),
        ('["3g.40gb", "2g.20gb", "1g.10gb"]', "hgx-h100"),
        ('["3g.40gb", "1g.10gb", "1g.10gb", "1g.10gb", "1g.10gb"]', "hgx-h100"),
        ('["3g.20gb", "3g.20gb"]', "hgx-a100"),
        ('["1g.20gb", "1g.20gb", "1g.20gb", "1g.20gb"]', "hgx-a100"),
        ('["1g.35gb", "1g.35gb", "1g.35gb", "1g.35gb", "1g.35gb", "1g.35gb", "1g.35gb"]', "gb300-nvl72"),
        ('["3g.139gb", "2g.70gb", "1g.35gb"]', "gb300-nvl72"),
        ('["1g.35gb", "1g.35gb", "1g.35gb", "1g.35gb"]', "hgx-h200"),
        ('["7g.999gb"]', ""),
        ('["1g.24gb", "1g.24gb", "1g.24gb", "1g.24gb", "1g.24gb", "1g.24gb", "1g.24gb"]', ""),
        ('["4g.96gb+gfx"]', ""),
    ],
)
def test_a_geometry_that_can_be_is_taken(tmp_path: Path, geometry: str, profile: str) -> None:
    assert check_site(site(tmp_path, geometry, profile)).mistakes == ()


def test_the_geometries_of_a_gpu_are_nvidias() -> None:
    """NVIDIA Multi-Instance GPU User Guide, "Supported MIG Profiles", the picture of the A100, without regard to where."""
    wanted = {
        "7",
        "4 3",
        "4 2 1",
        "4 1 1 1",
        "3 3",
        "3 2 2",
        "3 2 1 1",
        "3 1 1 1 1",
        "2 2 2 1",
        "2 2 1 1 1",
        "2 1 1 1 1 1",
        "1 1 1 1 1 1 1",
    }
    assert {" ".join(name[0] for name in g) for g in geometries(EIGHTY)} == wanted
    assert {" ".join(name[0] for name in g) for g in geometries(A30)} == {"4", "2 2", "2 1 1", "1 1 1 1"}
    assert "4g.20gb + 2g.10gb + 1g.5gb" in legal(A100_40)


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.names)
def test_every_number_of_instances_that_the_table_allows_finds_room(gpu: MigGpu) -> None:
    for profile in gpu.profiles:
        assert fits(gpu, (profile.name,) * profile.most) and not fits(gpu, (profile.name,) * (profile.most + 1))
        assert mig_geometry.NAME.fullmatch(profile.name)


def test_room_is_found_as_by_trying_every_place() -> None:
    """All geometries of at most four instances, against the plain search over all places."""
    names = [p.name for p in EIGHTY.profiles]

    def tried(geometry: tuple[str, ...], taken: frozenset[int]) -> bool:
        if not geometry:
            return True
        profile = EIGHTY.profile(geometry[0])
        assert profile is not None
        for start in profile.starts:
            slices = frozenset(range(start, start + profile.memory))
            if not slices & taken and tried(geometry[1:], taken | slices):
                return True
        return False

    for count in range(1, 5):
        for geometry in combinations_with_replacement(names, count):
            few = all(geometry.count(p.name) <= p.most for p in EIGHTY.profiles)
            compute = sum(int(name[0]) for name in geometry) <= EIGHTY.compute
            assert fits(EIGHTY, geometry) == (few and compute and tried(geometry, frozenset())), geometry
