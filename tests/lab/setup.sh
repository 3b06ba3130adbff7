#!/bin/bash
# Prepares the virtual environment with fairlead (editable), its extras and the developer tools of pyproject.toml.
# usage: setup.sh PYTHON VENV
set -eu
python=$1 venv=$2
here=$(cd "$(dirname "$0")/../.." && pwd)
cd "$here"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "setup: needs Python 3.11 or newer, $python is older" >&2; exit 69; }
stamp=$(cat pyproject.toml tests/lab/setup.sh | sha256sum | cut -d' ' -f1)
[ -f "$venv/.done" ] && [ "$(cat "$venv/.done")" = "$stamp" ] && { touch "$venv/.done"; exit 0; }
echo "setup: Python packages of pyproject.toml into $venv"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
groups=$("$python" - <<'PY'
import tomllib
print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["dependency-groups"]["dev"]))
PY
)
mapfile -t dev <<< "$groups"
"$venv/bin/pip" install --quiet --disable-pip-version-check -e '.[provision,el,docs]' "${dev[@]}" 2> "$venv/pip.log" \
  || { tail -n 5 "$venv/pip.log" >&2; echo "setup: pip failed; whole output in $venv/pip.log" >&2; exit 69; }
echo "$stamp" > "$venv/.done"
echo "setup: $("$venv/bin/fairlead" version) in $venv/bin/fairlead"
