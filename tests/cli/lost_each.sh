#!/bin/sh
# A device that is lost at each submission of a run: tests/cli/lost.py has the claims.
# suites: nightly vulkan long asan-nightly
. tests/lib/cli.sh

python3 tests/cli/lost.py "$MOEFLUX" "$tmp" 1 || n_failed=$((n_failed + 1))
report
