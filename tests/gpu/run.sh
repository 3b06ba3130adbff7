#!/bin/sh
# Run the proof on a GPU (python -m tests.gpu) with a Python that has the agent's packages. It opens no connection.
# That Python is $PYTHON, the checkout's .venv, or one made here from .cache/gpu/wheels (`make gpu-wheels`), else python3.
set -eu
cd "$(dirname "$0")/../.."
wheels=.cache/gpu/wheels made=.cache/gpu/venv
python=${PYTHON:-.venv/bin/python}
if [ ! -x "$python" ] && ! command -v "$python" >/dev/null; then
	python=$(command -v python3)
	if [ -d "$wheels" ]; then
		if [ ! -x "$made/bin/python" ]; then # without pip of its own, which some distributions leave out
			"$python" -m venv --without-pip "$made"
		fi
		"$python" -m pip --python "$made/bin/python" --disable-pip-version-check install -qq --no-index --find-links "$wheels" \
			nvidia-ml-py prometheus-client msgspec nvitop
		python=$made/bin/python
	fi
fi
if ! "$python" -c 'import msgspec, prometheus_client, pynvml'; then
	echo "gpu: $python lacks a package: run \`make setup\`, or \`make gpu-wheels\` where there is a network" >&2
	exit 69
fi
PYTHONPATH=agent:. exec "$python" -m tests.gpu "$@"
