#!/usr/bin/env bash
# Cuts a file into parts of 45 MiB for machines that take small uploads: packaging/split.sh FILE [DIR]
# Writes DIR/NAME.part-00, … and DIR/NAME.sha256, the checksums of the file and of each part; DIR is .parts unless told.
# benchmarks/gpu/run.sh joins the files in .parts/, in any order; anyone else: cat NAME.part-* > NAME
set -euo pipefail
[ $# -ge 1 ] && [ -f "$1" ] || { echo "Say which file: packaging/split.sh FILE [DIR]" >&2; exit 2; }
dir=${2:-.parts}
name=$(basename "$1")
sum() { if command -v sha256sum >/dev/null; then sha256sum "$@"; else shasum -a 256 "$@"; fi; }
mkdir -p "$dir"
rm -f "$dir/$name".part-*
split -b "${PART_BYTES:-47185920}" -a 2 -d "$1" "$dir/$name.part-"
(cd "$(dirname "$1")" && sum "$name") >"$dir/$name.sha256"
(cd "$dir" && sum "$name".part-*) >>"$dir/$name.sha256"
ls -l "$dir/$name".*
