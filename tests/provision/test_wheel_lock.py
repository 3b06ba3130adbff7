"""Whatever folder or index a wheel comes from: only a file of the lock is installed on a node, and it is checked there again."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.cli import main
from fairlead.errors import DataError, ProvisionError
from fairlead.provision import wheel_lock, wheels
from tests.lab.wheels import wheelhouse

MSGSPEC = next(p for p in wheel_lock.load().packages if p.name == "msgspec")
ANY = MSGSPEC.wheels[0]


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A wheelhouse with all that Python 3.11 needs."""
    return Path(shutil.copytree(wheelhouse("bookworm"), tmp_path / "house"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = Path(wheels.cache_folder())
    folder.mkdir(parents=True)
    return folder


def provision(tmp_path: Path, *words: str) -> int:
    """Of a node whose address nobody answers at: 68 where it was asked."""
    site = tmp_path / "site.toml"
    site.write_text(
        'schema = 1\n[classes.a]\nnodes = "gpu1"\n[ansible]\nssh_args = "-o Port=9"\n[ansible.hosts]\ngpu1 = "127.0.0.1"\n'
    )
    return main(["provision", "--site", str(site), "-q", *words])


def test_the_wheels_of_the_lock_are_taken(house: Path, tmp_path: Path) -> None:
    assert {w.distribution for w in wheels.wheelhouse(str(house))} == {"msgspec", "nvidia-ml-py", "prometheus-client"}
    assert provision(tmp_path, "--wheelhouse", str(house)) == 68


@pytest.mark.parametrize("size", [0, 10, ANY.size, ANY.size + 1])
def test_a_changed_wheel_in_a_wheelhouse_is_refused_before_any_node_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], size: int
) -> None:
    (tmp_path / ANY.name).write_bytes(b"x" * size)
    assert provision(tmp_path, "--wheelhouse", str(tmp_path)) == 65
    said = capsys.readouterr().err
    assert f"{tmp_path / ANY.name}: not the file that the lock names" in said and "delete it" in said


@pytest.mark.parametrize("version", ["0.21.9", "99.0"])
def test_another_version_in_a_wheelhouse_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], house: Path, version: str
) -> None:
    """Also a true wheel under the name of another version."""
    true = next(house.glob("msgspec-*"))
    other = house / true.name.replace(MSGSPEC.version, version)
    true.rename(other)
    assert provision(tmp_path, "--wheelhouse", str(house)) == 65
    said = capsys.readouterr().err
    assert f"{other}: not in the lock" in said and f"msgspec {MSGSPEC.version}" in said and "take the file away" in said


@pytest.mark.timeout(120)
def test_what_is_no_file_does_not_hold_the_command(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ANY.name)
    with pytest.raises(DataError, match="not the file that the lock names"):
        wheels.wheelhouse(str(tmp_path))


def test_the_cache_gives_only_what_the_lock_has(cache: Path, house: Path) -> None:
    """It also has what older versions of fairlead fetched: those files stay there and go nowhere."""
    older = cache / ANY.name.replace(MSGSPEC.version, "0.19.0")
    older.write_bytes(b"an older one")
    for wheel in house.iterdir():
        shutil.copy(wheel, cache)
    assert sorted(w.name for w in wheels.collect("")) == sorted(p.name for p in house.iterdir())
    (cache / ANY.name).write_bytes(b"changed")
    with pytest.raises(DataError, match=f"{ANY.name}: not the file that the lock names"):
        wheels.collect("")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def index(tmp_path: Path, house: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A site's own mirror: its folder ``files``, which pip is configured to take wheels from, and nothing else."""
    files = Path(shutil.copytree(house, tmp_path / "mirror/files"))
    handler = functools.partial(Quiet, directory=str(tmp_path / "mirror"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("PIP_FIND_LINKS", f"http://127.0.0.1:{server.server_port}/files/")
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield files
        server.shutdown()
        thread.join()


def test_a_mirror_with_the_same_files_will_do(index: Path, cache: Path) -> None:
    wheels.download("3.11", "x86_64", str(cache))
    assert len(wheels.collect("")) == 3


def test_what_is_rendered_for_a_playbook_of_ones_own_has_wheels_in_it(
    index: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ansible runs it elsewhere, later, and fetches nothing. Here nothing was provisioned before."""
    site = tmp_path / "site.toml"
    site.write_text('schema = 1\n[classes.a]\nnodes = "gpu1"\n')
    words = ["render", "--site", str(site), "-o", str(tmp_path / "out")]
    with monkeypatch.context() as patch:
        patch.delenv("PIP_FIND_LINKS")
        assert main(words) == 69 and "pip download for Python" in capsys.readouterr().err
    if sys.version_info[:2] == (3, 11):  # what the index of this test has
        assert main(words) == 0
        names = {p.name.split("-")[0] for p in (tmp_path / "out/bundle/wheels").iterdir()}
        assert names == {"fairlead", "msgspec", "nvidia_ml_py", "prometheus_client"}


def test_a_mirror_with_another_file_by_that_name_is_told_and_nothing_of_it_is_kept(index: Path, cache: Path, house: Path) -> None:
    changed = next(index.glob("msgspec-*"))
    changed.write_bytes(changed.read_bytes() + b"x")
    with pytest.raises(ProvisionError, match=rf"msgspec=={MSGSPEC.version}.*not a file of fairlead's lock") as refused:
        wheels.download("3.11", "x86_64", str(cache))
    assert "mirror" in refused.value.hint and not list(cache.glob("msgspec-*"))


def test_a_newer_version_of_a_mirror_is_not_taken(index: Path, cache: Path) -> None:
    true = next(index.glob("msgspec-*"))
    true.rename(index / true.name.replace(MSGSPEC.version, "99.0"))
    with pytest.raises(ProvisionError, match=r"No matching distribution found for msgspec=="):
        wheels.download("3.11", "x86_64", str(cache))
    assert not list(cache.glob("msgspec-*"))
