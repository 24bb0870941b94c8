#!/bin/sh
# A lost device in a run: tests/cli/lost.py has the claims.
# suites: nightly vulkan asan-nightly
. tests/lib/cli.sh

python3 tests/cli/lost.py "$MOEFLUX" tests/models/tiny "$tmp" || n_failed=$((n_failed + 1))
report
