#!/usr/bin/env bash
# Runs a step on a GPU host that has torch and triton of its own, no network, and no copy of the history.
#   benchmarks/on_gpu.sh BUNDLE SITE OUT STEP...
# BUNDLE is a git bundle of the branch, SITE a tar.xz of the Python packages that the host lacks, OUT a folder for results.
# STEP is a shell command, run in a fresh clone with `harness` on PATH.
set -uo pipefail
bundle=$(realpath "$1") site=$(realpath "$2") out=$(realpath "$3")
shift 3
work=$(mktemp -d)
mkdir "$work/site" "$work/bin"
tar -C "$work/site" -xJf "$site"
git clone -q -b main "$bundle" "$work/repository"
cd "$work/repository" || exit 1
export PYTHONPATH="$work/site:$work/repository" HOME="$work" OUT="$out"
printf '#!/bin/sh\nexec python3 -m harness "$@"\n' > "$work/bin/harness"
chmod +x "$work/bin/harness"
export PATH="$work/bin:$PATH"
git config --global user.name harness && git config --global user.email harness@example.org
for step in "$@"; do
  printf '== %s\n' "$step"
  start=$SECONDS
  bash -c "$step"
  printf '== exit %s, %s s\n' "$?" "$((SECONDS - start))"
done
