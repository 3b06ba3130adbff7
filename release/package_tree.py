"""Lays out the files of fairlead's packages in a folder: the tree that a node has after the installation.

/usr/lib/fairlead          an environment as venv makes one, whose Python is a script that finds the machine's own
/usr/lib/fairlead/site     fairlead and the three packages that it needs on nodes, from the wheels of the lock
/usr/lib/fairlead/release  the name of this release, which `fairlead provision` compares with its own
/opt/fairlead/current      a link to it: the path that the units, the hooks and the roles name

fairlead-admin adds /usr/lib/fairlead/admin, with what `fairlead provision` needs on the admin host.

Compiled parts of a wheel have the Python and the machine in their names. So the wheels for every Python and machine lie in one
folder, and one package runs on all of them.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from pathlib import Path

HOME = "usr/lib/fairlead"
OURS = Path(__file__).parent / "packaging"
PYTHON_MINORS = range(11, 16)
#: What a wheel says of itself as a wheel. It differs from wheel to wheel of one version, and nothing reads it here.
_OF_THE_WHEEL = re.compile(r"[^/]+\.dist-info/(RECORD|WHEEL|INSTALLER)")
_LICENCE = re.compile(
    r"([^/]+)-[^-/]+\.dist-info/(?:licenses/)?((?:.*/)?(?:LICEN[CS]E|COPYING|NOTICE|AUTHORS)[^/]*)", re.IGNORECASE
)
#: Runs with the laid out files: what a node must have, and the name of the release, both from fairlead itself.
_ASK = """
import base64, json, sys
sys.path[:0] = sys.argv[1:]
from fairlead.provision import run_bundle, wheels
files = [(path, mode, base64.b64encode(content).decode()) for path, content, mode in run_bundle.node_files()]
print(json.dumps({"files": files, "release": run_bundle.release_name(wheels.own_wheel())}))
"""


def write(root: Path, path: str, content: bytes | str, mode: int = 0o644) -> None:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content.encode() if isinstance(content, str) else content)
    target.chmod(mode)


def link(root: Path, path: str, to: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).symlink_to(to)


def unpack_wheels(wheels: Iterable[Path], folder: Path) -> None:
    """Unpack wheels into one folder. Two wheels may have the same file only with the same content; anything else ends the
    program."""
    for wheel in sorted(wheels):
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                name = member.filename
                if member.is_dir() or ".data/" in name or _OF_THE_WHEEL.fullmatch(name):
                    continue
                content, target = archive.read(member), folder / name
                if target.exists() and target.read_bytes() != content:
                    sys.exit(f"packages: {name}: {wheel.name} has another content than the wheels before it")
                write(folder, name, content, 0o755 if member.external_attr >> 16 & 0o111 else 0o644)


def licences(folder: Path) -> dict[str, dict[str, str]]:
    """Return the licence texts of what lies in ``folder``: by distribution and by file name."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(folder.glob("*.dist-info/**/*")):
        if path.is_file() and (match := _LICENCE.fullmatch(path.relative_to(folder).as_posix())):
            found.setdefault(match[1], {})[match[2]] = path.read_text(errors="replace")
    return found


def copyright_text(folder: Path, stated: dict[str, str], own: str) -> str:
    """Return the file with all licences: fairlead's own text, and those of each bundled distribution. ``stated``: the licence
    that each distribution's metadata names."""
    texts = licences(folder)
    out = [own]
    for name in sorted(stated):
        out.append(f"\n{'-' * 100}\n{name}, which is in this package\nLicence: {stated[name]}\n")
        out += [f"\n{file}:\n\n{text.strip()}\n" for file, text in texts.get(name, {}).items()]
    return "".join(out)


def lay_out_node(root: Path, source: Path, wheel: Path, wheels: Iterable[Path], *, stated: dict[str, str], admin: Path) -> None:
    """Lay out the package ``fairlead`` in ``root``. source: the tree of the commit. wheel: fairlead's own. admin: the tree of
    fairlead-admin."""
    site = root / HOME / "site"
    unpack_wheels([wheel, *wheels], site)
    command = [sys.executable, "-I", "-B", "-c", _ASK, str(site), str(admin / HOME / "admin")]
    asked = subprocess.run(command, stdout=subprocess.PIPE, check=False, text=True, cwd="/")
    if asked.returncode:
        sys.exit("packages: the files that were laid out do not run here; the lines above say why")
    said = json.loads(asked.stdout)
    write(root, f"{HOME}/release", said["release"] + "\n")
    for path, mode, content in said["files"]:
        write(root, path.lstrip("/").replace("etc/systemd/", "usr/lib/systemd/", 1), base64.b64decode(content), mode)
    for name in ("python", "fairlead"):
        write(root, f"{HOME}/bin/{name}", (OURS / name).read_bytes(), 0o755)
    write(root, f"{HOME}/pyvenv.cfg", (OURS / "pyvenv.cfg").read_bytes())
    write(root, f"{HOME}/site/fairlead-bytecode.pth", (OURS / "bytecode.pth").read_bytes())
    write(root, "usr/lib/systemd/system-preset/80-fairlead.preset", (OURS / "fairlead.preset").read_bytes())
    link(root, f"{HOME}/bin/python3", "/usr/bin/python3")
    for minor in PYTHON_MINORS:
        link(root, f"{HOME}/bin/python3.{minor}", f"/usr/bin/python3.{minor}")
        link(root, f"{HOME}/lib/python3.{minor}/site-packages", "../../site")
    link(root, "opt/fairlead/current", f"../../{HOME}")  # relative, so that it is right in an image too
    link(root, "usr/bin/fairlead", f"../../{HOME}/bin/fairlead")
    _documents(root, source)
    for folder in ("etc/fairlead", "var/lib/fairlead", "var/cache/fairlead/python"):
        (root / folder).mkdir(parents=True)
    own = (source / "LICENSE").read_text()
    write(root, "usr/share/doc/fairlead/copyright", copyright_text(site, stated, own))
    write(root, "usr/share/licenses/fairlead/LICENSE", own)


def _documents(root: Path, source: Path) -> None:
    """Lay out the manual, the completion of other shells than bash, and the sources that a site compiles or copies."""
    for page in sorted((source / "docs/man").iterdir()):
        write(root, f"usr/share/man/man1/{page.name}", page.read_bytes())
    zsh = (source / "docs/completion/_fairlead").read_bytes()
    write(root, "usr/share/zsh/site-functions/_fairlead", zsh)
    write(root, "usr/share/zsh/vendor-completions/_fairlead", zsh)  # where Debian's zsh looks
    fish = (source / "docs/completion/fairlead.fish").read_bytes()
    write(root, "usr/share/fish/vendor_completions.d/fairlead.fish", fish)
    for name in ("spank/fairlead.c", "cli_filter.lua"):
        write(root, f"usr/share/fairlead/{name}", (source / "slurm" / name).read_bytes())
    write(root, "usr/share/doc/fairlead/CHANGELOG.md", (source / "CHANGELOG.md").read_bytes())


def lay_out_admin(root: Path, source: Path, wheels: Iterable[Path], stated: dict[str, str]) -> None:
    """Lay out the package ``fairlead-admin`` in ``root``. ``wheels``: those of admin.txt that nodes do not have."""
    folder = root / HOME / "admin"
    unpack_wheels(wheels, folder)
    write(root, f"{HOME}/site/fairlead-admin.pth", f"/{HOME}/admin\n")
    write(root, f"{HOME}/bin/ansible-playbook", (OURS / "ansible-playbook").read_bytes(), 0o755)
    write(root, "etc/fairlead/site.toml", (OURS / "site.toml").read_bytes())
    _controller(root, source)
    own = (source / "LICENSE").read_text()
    write(root, "usr/share/doc/fairlead-admin/copyright", copyright_text(folder, stated, own))
    write(root, "usr/share/licenses/fairlead-admin/LICENSE", own)


def _controller(root: Path, source: Path) -> None:
    """Lay out what the controller needs: the units, and examples of the site's own programs."""
    for folder in ("controller", "idle", "events"):
        for path in sorted((source / "slurm" / folder).iterdir()):
            if path.name.startswith("fairlead-"):
                write(root, f"usr/lib/systemd/system/{path.name}", path.read_bytes())
            else:
                write(root, f"usr/share/fairlead/{folder}/{path.name}", path.read_bytes(), 0o755)
