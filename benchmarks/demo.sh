#!/bin/sh
# The demo of `make demo`: the main job on this machine, then the verdict against the accepted baselines.
set -eu
say() { printf '\n== %s\n' "$*"; }

say "harness submit --matrix $MATRIX"
harness submit --matrix "$MATRIX"
say "harness diff HEAD..run:last"
harness diff HEAD..run:last
