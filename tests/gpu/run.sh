#!/usr/bin/env bash
# Everything that only a CUDA machine can show, in one run of a few minutes: tests/gpu/run.sh [OUT.json]
# Needs python3 with torch, nothing else of the set-up; models are random weights made in code.
# A package that is missing there (msgspec, platformdirs) is taken from wheels in .whl/, made beforehand with:
#   pip download --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux2014_x86_64 -d .whl msgspec platformdirs
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
out=${1:-${OUT:-$root/tests/gpu/results}/gpu.json}
site=$(mktemp -d)
if ls "$root"/.whl/*.whl >/dev/null 2>&1; then
  python3 -m pip install -q --no-index --no-deps --no-compile --target "$site" "$root"/.whl/*.whl
fi
export PYTHONPATH="$root/core:$root/plugins:$root/assets:$root/tests/support:$site${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONUNBUFFERED=1
exec timeout "${GPU_LIMIT:-400}" python3 "$root/tests/gpu/check.py" "$out"
