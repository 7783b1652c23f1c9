#!/usr/bin/env bash
# What a paired diff says of a slow-down that was planted, and of a change that changes nothing, on the GPU in hand.
#   benchmarks/planted_slowdown.sh DEVICE
# Runs in a clean clone on the branch main, and leaves branches there. rmsnorm's normaliser waits for a chain of dependent
# multiplications on the branch `slow`; on the branch `same` its cost model is written otherwise, which ends the proof by equal
# launchers and changes no time. gdn_decode is measured beside it: nothing in it changes.
set -uo pipefail
device=$1

branch() { # NAME OLD NEW: a branch of main on which OLD is NEW in kernels/rmsnorm.py
  git checkout -q -b "$1" main
  python3 - "$2" "$3" <<'PYTHON'
import sys
from pathlib import Path

file, (old, new) = Path("kernels/rmsnorm.py"), sys.argv[1:]
text = file.read_text()
assert old in text, f"not in {file}: {old}"
file.write_text(text.replace(old, new, 1))
PYTHON
  git commit -q -a -m "$1" && git checkout -q main
}

verdict() { # NAME: measure the branch against main, then ask
  harness submit --matrix headline --kernel rmsnorm --kernel gdn_decode --device "$device" --ref "$1" --against main 2>&1 | tail -12
  harness diff "main..$1" --metric latency_us --format json > "${OUT:-.}/planted_$1.json"
  echo "diff main..$1: exit $?"
  harness diff "main..$1" | head -60
}

branch slow "    b_rstd = tl.rsqrt(tl.sum(b_ss, axis=1, keep_dims=True) * (1.0 / N) + eps)" \
"    b_rstd = tl.rsqrt(tl.sum(b_ss, axis=1, keep_dims=True) * (1.0 / N) + eps)
    for _ in range(64):
        b_rstd = b_rstd * 1.0000001 - b_rstd * 0.0000001"
branch same "    return case.M * case.N" "    return 1 * case.M * case.N"
verdict slow
verdict same
