#!/bin/sh
# Device memory that runs out at each allocation: tests/cli/out_of_memory.py has the claims.
# suites: nightly vulkan long asan-nightly
. tests/lib/cli.sh

python3 tests/cli/out_of_memory.py "$MOEFLUX" "$tmp" 1 compute || n_failed=$((n_failed + 1))
report
