#!/usr/bin/env bash
# Everything that only a CUDA machine can show, in one run of a few minutes: benchmarks/gpu/run.sh [OUT.json]
# Needs python3 with torch, numpy and safetensors, nothing else of the set-up; models are random weights made in code.
# A package that is missing there (msgspec, platformdirs) is taken from wheels in .whl/ if there are any, made beforehand with
#   pip download --no-deps --only-binary=:all: --python-version 3.12 --platform manylinux2014_x86_64 -d .whl msgspec platformdirs
# else what the script uses of it is done by benchmarks/gpu/stand_ins. The starter is taken from .parts/ (packaging/split.sh) if it is
# there. GPU_LIMIT: seconds for all checks, 400 unless told; GPU_ONLY: words that the names of the checks to run contain.
# GPU_TRAIN=eagle,dflash,medusa trains drafters of these methods instead, in GPU_LIMIT seconds, into the folder of OUT.json; see
# train.py. That takes wheels of msgspec, platformdirs, tokenizers, jinja2 and markupsafe.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
out=${1:-${OUT:-$root/benchmarks/gpu/results}/gpu.json}
limit=${GPU_LIMIT:-400}
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
if ls "$root"/.whl/*.whl >/dev/null 2>&1; then
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" "$root"/.whl/*.whl
fi
for package in msgspec platformdirs; do
  PYTHONPATH="$site${PYTHONPATH:+:$PYTHONPATH}" python3 -c "import $package" 2>/dev/null || cp -r "$root/benchmarks/gpu/stand_ins/$package"* "$site/"
done
export PYTHONPATH="$root/core:$root/plugins:$root/assets:$root/tests/support:$site${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONUNBUFFERED=1 TOKENIZERS_PARALLELISM=false
export OUTRIDER_HOME="$site/home" OUTRIDER_BUILDS="${OUTRIDER_BUILDS:-$site/builds}"
mkdir -p "$(dirname "$out")"
rm -f "$out"
if [ -n "${GPU_TRAIN:-}" ]; then
  exec python3 "$root/benchmarks/gpu/train.py" "$(dirname "$out")" --methods "$GPU_TRAIN" --seconds "$limit" ${GPU_TRAIN_MORE:-}
fi
# one second after its own limit, in case a kernel hangs: what was measured until then is in the file
timeout -k 5 $((limit + 10)) python3 "$root/benchmarks/gpu/check.py" "$out" --limit "$limit" --only "${GPU_ONLY:-}"
python3 "$root/benchmarks/gpu/report.py" "$out"
