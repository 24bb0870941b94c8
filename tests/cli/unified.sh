#!/bin/sh
# A GPU that has the host's memory, and a slow one: tests/cli/unified.py has the claims.
# suites: check vulkan
. tests/lib/cli.sh

python3 tests/cli/unified.py "$MOEFLUX" "$tmp" || n_failed=$((n_failed + 1))
report
