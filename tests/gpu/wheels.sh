#!/bin/sh
# Fetch the Python packages of the proof into .cache/gpu/wheels, for each Python version that is named, such as 3.11 3.12.
# This is the only part that needs a network. The folder may then be copied, with the checkout, to a machine without one.
set -eu
cd "$(dirname "$0")/../.."
python=$1
shift
for version; do
	"$python" -m pip download -qq --disable-pip-version-check --only-binary=:all: --python-version "$version" \
		--platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
		-d .cache/gpu/wheels nvidia-ml-py prometheus-client msgspec nvitop
done
ls .cache/gpu/wheels
