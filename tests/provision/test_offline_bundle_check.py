"""A bundle that was changed on its way is refused before any node is asked, also where its sums were made anew to fit."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import fairlead
from fairlead.cli import main
from fairlead.errors import DataError, InputMissing
from fairlead.provision import offline_bundle, offline_bundle_check, wheel_lock, wheels
from tests.lab.wheels import wheelhouse

OWN = wheels.own_wheel().name


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `fairlead bundle` leaves it, made where the only index is a folder."""
    folder = tmp_path_factory.mktemp("made") / "bundle"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(wheelhouse("bookworm")))
        offline_bundle.make(folder, pythons=("3.11",), machine="x86_64", lock=None, admin=False)
    return folder


@pytest.fixture
def bundle(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "bundle"))


def opened(bundle: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Exit code and message of a run whose node nobody answers for: 68 where that node was asked."""
    site = bundle.parent / "site.toml"
    site.write_text(
        'schema = 1\n[classes.a]\nnodes = "gpu1"\n[ansible]\nssh_args = "-o Port=9"\n[ansible.hosts]\ngpu1 = "127.0.0.1"\n'
    )
    code = main(["provision", "--site", str(site), "-q", "--bundle", str(bundle)])
    return code, capsys.readouterr().err


def seal(bundle: Path) -> None:
    """Sums that fit what is there now: whoever changes a bundle can write those too."""
    (bundle / "SHA256SUMS").unlink()
    names = sorted(p.relative_to(bundle).as_posix() for p in bundle.rglob("*") if p.is_file())
    lines = (f"{hashlib.sha256((bundle / name).read_bytes()).hexdigest()}  {name}\n" for name in names)
    (bundle / "SHA256SUMS").write_text("".join(lines))


def repacked(own: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    with zipfile.ZipFile(own) as archive:
        members = {m.filename: archive.read(m) for m in archive.infolist()}
        modes = {m.filename: m.external_attr for m in archive.infolist()}
    change(members)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = modes.get(name, 0o100644 << 16)
            archive.writestr(info, content)
    own.write_bytes(out.getvalue())


def test_the_bundle_as_it_was_made_is_used(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert opened(bundle, capsys)[0] == 68
    (bundle / "SHA256SUMS.sig").write_text("a signature of the site, which has no sum")
    assert opened(bundle, capsys)[0] == 68
    repacked(bundle / OWN, lambda members: None)  # packed by another zlib
    seal(bundle)
    assert opened(bundle, capsys)[0] == 68


@pytest.mark.parametrize(
    "name", ["x", "wheelhouse/x.whl", "packages/x.deb", "admin/evil-1-py3-none-any.whl", "playbooks/roles/x.yml", ".hidden"]
)
def test_an_added_file_is_refused(bundle: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (bundle / name).parent.mkdir(exist_ok=True)
    (bundle / name).write_text("x")
    code, said = opened(bundle, capsys)
    assert code == 65 and f"{bundle / name}: not listed in SHA256SUMS" in said and "take it out" in said


@pytest.mark.parametrize("kind", ["wheelhouse/*.whl", "playbooks/site.yml", "README.md", "node.txt", OWN])
def test_a_changed_file_is_refused(bundle: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    file = next(bundle.glob(kind))
    file.write_bytes(file.read_bytes() + b"x")
    code, said = opened(bundle, capsys)
    assert code == 65 and f"{file}: not what SHA256SUMS says" in said and "copy it again" in said


@pytest.mark.parametrize("kind", ["wheelhouse/*.whl", "playbooks/site.yml", OWN])
def test_a_missing_file_is_refused(bundle: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    file = next(bundle.glob(kind))
    file.unlink()
    code, said = opened(bundle, capsys)
    assert code == 66 and f"{file}: no such file" in said and "not whole" in said


def test_a_changed_wheel_for_nodes_is_refused_also_with_sums_that_fit(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = next(bundle.glob("wheelhouse/msgspec-*"))
    wheel.write_bytes(wheel.read_bytes() + b"x")
    seal(bundle)
    code, said = opened(bundle, capsys)
    assert code == 65 and f"{wheel}: not the file that the lock names" in said


def test_an_older_wheel_for_nodes_is_refused_also_with_sums_that_fit(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wheel = next(bundle.glob("wheelhouse/msgspec-*"))
    older = wheel.rename(wheel.with_name(wheel.name.replace(wheel_lock.load().versions()["msgspec"], "0.19.0")))
    seal(bundle)
    code, said = opened(bundle, capsys)
    assert code == 65 and f"{older}: not in the lock" in said


@pytest.mark.parametrize("name", ["node.txt", "admin.txt", "playbooks/site.yml", "playbooks/roles/added/tasks/main.yml"])
def test_lists_and_roles_that_are_not_this_ones_are_refused_also_with_sums_that_fit(
    bundle: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """pip and Ansible run what they say, as root, here and on nodes."""
    file = bundle / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes((file.read_bytes() if file.exists() else b"") + b"# x\n")
    seal(bundle)
    code, said = opened(bundle, capsys)
    assert code == 65 and f"{file}: not as the fairlead {fairlead.__version__} that runs here has it" in said


def test_a_wheel_for_the_admin_host_that_its_list_does_not_have_is_refused(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (bundle / "admin").mkdir()
    (bundle / "admin/ansible_core-99-py3-none-any.whl").write_bytes(b"x")
    shutil.copy(wheel_lock.ADMIN_FILE, bundle / "admin.txt")
    seal(bundle)
    code, said = opened(bundle, capsys)
    assert code == 65 and f"{bundle / 'admin/ansible_core-99-py3-none-any.whl'}: not in admin.txt" in said


def admin_wheels() -> dict[str, str]:
    """Sums of an admin/ that has each package of admin.txt."""
    return {f"admin/{n.replace('-', '_')}-{v}-py3-none-any.whl": min(sums) for (n, v), sums in wheel_lock.admin().items()}


def judged(listed: dict[str, str]) -> str:
    """What is said of these sums beside those that every bundle has; "" for nothing."""
    nodes = {f"wheelhouse/{p.wheels[0].name}": p.wheels[0].sha256 for p in wheel_lock.load().packages}
    every = {"README.md": "", "node.txt": "", **nodes, **listed}
    try:
        offline_bundle_check._refuse_other_admin(Path("/b"), every)
        offline_bundle_check._refuse_incomplete(Path("/b"), every)
    except (DataError, InputMissing) as e:
        return str(e)
    return ""


def test_the_admin_hosts_wheels_are_each_of_its_list_under_its_name() -> None:
    """pip would say it only after root has typed what the README says, or take another file for the one that is missing."""
    whole = {"admin.txt": "", **admin_wheels()}
    assert len(whole) > 10 and judged(whole) == ""
    rich = next(name for name in whole if name.startswith("admin/rich-"))
    without = {name: digest for name, digest in whole.items() if name != rich}
    assert judged(without) == f"/b/admin/rich-{rich.split('-')[1]}-*.whl: no such file"
    for other in ("admin/rich-1-py3-none-any.whl", "admin/pip-99-py3-none-any.whl", "admin/rich.whl"):
        assert judged({**without, other: whole[rich]}) == f"/b/{other}: not in admin.txt"
    assert judged({**whole, rich.replace("py3", "py2.py3"): whole[rich]}).endswith("there is another wheel of rich")
    assert judged(admin_wheels()) == "/b/admin.txt: no such file"


@pytest.mark.parametrize("said", ["Python 3.11, Python 3.12 on x86_64", "Python 3.12 on x86_64", "Python 3.11 on aarch64"])
def test_wheels_are_there_for_each_python_and_machine_that_the_readme_names(
    bundle: Path, capsys: pytest.CaptureFixture[str], said: str
) -> None:
    """A bundle from which one Python's wheels were taken would fail at the nodes that have it, and only there."""
    readme = (bundle / "README.md").read_text()
    assert "wheels for Python 3.11 on x86_64 are in" in readme
    (bundle / "README.md").write_text(readme.replace("Python 3.11 on x86_64 are", f"{said} are"))
    seal(bundle)
    code, told = opened(bundle, capsys)
    assert code == 66 and "no wheel of msgspec for Python 3.1" in told and "which README.md names" in told


@pytest.mark.parametrize("readme", ["# fairlead\n", ""])
def test_a_readme_that_names_no_python_is_refused(bundle: Path, capsys: pytest.CaptureFixture[str], readme: str) -> None:
    (bundle / "README.md").write_text(readme)
    seal(bundle)
    code, told = opened(bundle, capsys)
    assert code == 65 and "does not say what its wheels are for" in told


@pytest.mark.parametrize("name", ["more", "admin", "admin/\x1b[31m evil", "playbooks/empty", "packages/x"])
def test_a_folder_that_no_bundle_has_is_refused(bundle: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Its name alone steers the terminal of whoever lists it, and no sum is of it."""
    (bundle / name).mkdir(parents=True)
    code, told = opened(bundle, capsys)
    assert code == 65 and "a folder that no bundle has" in told and "\x1b" not in told


LOCKED = """\
schema = 1
[sets.a]
version = "580.1"
branch = ""
module = "open"
install = ["x"]
architecture = "amd64"
packages = [{{ name = "x", version = "{version}", architecture = "amd64", sha256 = "{digest}", size = 1, format = "{kind}" }}]
"""
#: Version, kind, and the name of the file. An epoch, a caret and a tilde are in the name as they are in no path.
PACKAGES = (
    ("1", "deb", "x_1_amd64.deb"),
    ("1:1", "deb", "x_1%3a1_amd64.deb"),
    ("3:1^git~rc-1.el9", "rpm", "x-3%3a1^git~rc-1.el9.amd64.rpm"),
)


@pytest.mark.parametrize(
    "name",
    [
        "x",
        "evil.sh",
        "install.txt",
        "sub/x",
        "wheelhouse/x.pth",
        "wheelhouse/a/b.whl",
        "packages/x.sh",
        "admin/x.tar.gz",
        "x.whl",
    ],
)
def test_a_file_that_no_bundle_has_is_refused_also_with_sums_that_fit(
    bundle: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Whoever makes the sums anew can list anything; a folder that is carried to root's terminal holds known files only."""
    (bundle / name).parent.mkdir(parents=True, exist_ok=True)
    (bundle / name).write_bytes(b"x")
    seal(bundle)
    code, said = opened(bundle, capsys)
    assert code == 65 and f"{bundle / name}: no file of a bundle" in said


def test_a_wheel_of_another_package_is_refused_also_with_sums_that_fit(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (bundle / "wheelhouse/evil-1-py3-none-any.whl").write_bytes(b"x")
    seal(bundle)
    code, said = opened(bundle, capsys)
    assert code == 65 and "evil-1-py3-none-any.whl: not in the lock" in said


@pytest.mark.parametrize(
    "kind", ["node.txt", "README.md", "wheelhouse/msgspec-*", "wheelhouse/nvidia_ml_py-*", "playbooks/site.yml", "playbooks"]
)
def test_a_bundle_that_lacks_what_each_has_is_refused_also_with_sums_that_fit(
    bundle: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    for place in bundle.glob(kind):
        shutil.rmtree(place) if place.is_dir() else place.unlink()
    seal(bundle)
    code, said = opened(bundle, capsys)
    assert code == 66 and "no such file" in said and "make it again" in said


@pytest.mark.parametrize("there", ["admin.txt", "admin"])
def test_the_admin_hosts_list_and_its_wheels_come_together(bundle: Path, capsys: pytest.CaptureFixture[str], there: str) -> None:
    if there == "admin":
        (bundle / "admin").mkdir()
        (bundle / "admin/x-1-py3-none-any.whl").write_bytes(b"x")
    else:
        shutil.copy(wheel_lock.ADMIN_FILE, bundle / "admin.txt")
    seal(bundle)
    assert opened(bundle, capsys)[0] == (66 if there == "admin.txt" else 65)


@pytest.mark.parametrize("what", ["unlisted", "other", "missing", "no lock", "none"])
@pytest.mark.parametrize("package", PACKAGES, ids=lambda p: p[2])
def test_packages_are_those_of_the_bundles_lock(
    bundle: Path, capsys: pytest.CaptureFixture[str], package: tuple[str, str, str], what: str
) -> None:
    version, kind, name = package
    file = bundle / "packages" / name
    file.write_bytes(b"other" if what == "other" else b"x")
    if what != "no lock":
        (bundle / "fairlead.lock").write_text(LOCKED.format(digest=hashlib.sha256(b"x").hexdigest(), version=version, kind=kind))
    if what == "unlisted":
        (bundle / "packages/y_1_amd64.deb").write_bytes(b"x")
    if what == "missing":
        file.unlink()
    seal(bundle)
    assert opened(bundle, capsys)[0] == {"none": 68, "missing": 66}.get(what, 65)


@pytest.mark.parametrize("mark", ["\u2028", "\x0b", "\x0c", "\x85", "\x1c", "\r"])
def test_a_line_of_the_sums_ends_where_sha256sum_ends_it(bundle: Path, capsys: pytest.CaptureFixture[str], mark: str) -> None:
    """A reader that ends lines elsewhere would check other files than the site's own sha256sum did."""
    sums = bundle / "SHA256SUMS"
    first, rest = sums.read_bytes().split(b"\n", 1)
    sums.write_bytes(first + mark.encode() + rest)
    code, said = opened(bundle, capsys)
    assert code == 65 and "line 1 is no sum" in said


def add(members: dict[str, bytes]) -> None:
    members["evil.pth"] = b"import os\n"


def change(members: dict[str, bytes]) -> None:
    """Its RECORD still says what was there before."""
    members["fairlead/_data/slurm/prolog"] += b"\n# x\n"


def drop(members: dict[str, bytes]) -> None:
    del members["fairlead/errors.py"]


@pytest.mark.parametrize("what", [add, change, drop], ids=lambda f: f.__name__)
def test_another_fairlead_under_this_ones_name_is_refused_also_with_sums_that_fit(
    bundle: Path, capsys: pytest.CaptureFixture[str], what: Callable[[dict[str, bytes]], None]
) -> None:
    repacked(bundle / OWN, what)
    seal(bundle)
    code, said = opened(bundle, capsys)
    assert code == 65 and f"{bundle / OWN}: other contents than the fairlead" in said and "verify" in said


def test_another_version_and_two_wheels_of_fairlead_are_refused(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = bundle / "fairlead-0.0.9-py3-none-any.whl"
    shutil.copy(bundle / OWN, other)
    seal(bundle)
    assert opened(bundle, capsys)[0] == 65
    (bundle / OWN).unlink()
    seal(bundle)
    code, said = opened(bundle, capsys)
    assert code == 65 and "a bundle of fairlead 0.0.9, and this is" in said
    other.write_bytes(b"x")
    other.rename(bundle / OWN)
    seal(bundle)
    assert f"{OWN}: not a wheel" in opened(bundle, capsys)[1]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("kind", ["link", "folder link", "FIFO", "device"])
def test_links_and_devices_are_refused(bundle: Path, capsys: pytest.CaptureFixture[str], kind: str, listed: bool) -> None:
    if kind == "device" and os.geteuid() != 0:
        pytest.skip("needs root")
    place = bundle / ("wheelhouse" if kind == "folder link" else "node.txt")
    place.rename(bundle.parent / "aside")
    if kind == "FIFO":
        os.mkfifo(place)
    elif kind == "device":
        os.mknod(place, 0o020600, os.makedev(1, 5))  # /dev/zero, which never ends
    else:
        place.symlink_to(bundle.parent / "aside")
    if not listed:
        lines = (bundle / "SHA256SUMS").read_text().splitlines(keepends=True)
        (bundle / "SHA256SUMS").write_text("".join(line for line in lines if place.name not in line))
    code, said = opened(bundle, capsys)
    assert code == 65 and f"{place}: a link or a device" in said


@pytest.mark.parametrize(
    "name", ["../site.toml", "/etc/passwd", "playbooks/../../site.toml", "a//b", "./node.txt", "", "a\x1b[2J"]
)
def test_paths_that_lead_out_of_the_bundle_are_refused(bundle: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    with open(bundle / "SHA256SUMS", "a") as sums:
        sums.write(f"{'0' * 64}  {name}\n")
    code, said = opened(bundle, capsys)
    assert code == 65 and "is no sum of a file of a bundle" in said and "\x1b" not in said


def test_a_path_listed_twice_is_refused(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = (bundle / "SHA256SUMS").read_text()
    (bundle / "SHA256SUMS").write_text(text + text.splitlines()[0] + "\n")
    assert opened(bundle, capsys)[0] == 65


@pytest.mark.parametrize("content", [b"", b"\xff\x00", b"0" * (1 << 21)])
def test_sums_that_are_none_are_refused(bundle: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    (bundle / "SHA256SUMS").write_bytes(content)
    assert opened(bundle, capsys)[0] == 65


def test_a_bundle_made_again_keeps_nothing_of_what_was_added(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (bundle / "added").write_text("x")
    (bundle / "more").mkdir()
    (bundle / "playbooks").rename(bundle.parent / "away")
    (bundle / "playbooks").symlink_to(bundle.parent / "away")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheelhouse("bookworm")))
    before = (bundle / "SHA256SUMS").read_text()
    offline_bundle.make(bundle, pythons=("3.11",), machine="x86_64", lock=None, admin=False)
    assert (bundle / "SHA256SUMS").read_text() == before and (bundle.parent / "away/site.yml").is_file()
    assert offline_bundle_check.open_bundle(str(bundle))
