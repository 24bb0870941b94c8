#!/bin/sh
# A device that is lost while the server runs: tests/cli/lost_server.py has the claims.
# suites: check vulkan asan tsan-nightly
. tests/lib/cli.sh

python3 tests/cli/lost_server.py "$MOEFLUX" "$tmp" || n_failed=$((n_failed + 1))
report
