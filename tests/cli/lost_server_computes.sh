#!/bin/sh
# The claims of tests/cli/lost_server.py on a device that computes: answers have the same text after a loss.
# suites: nightly vulkan long
. tests/lib/cli.sh

python3 tests/cli/lost_server.py "$MOEFLUX" "$tmp" compute || n_failed=$((n_failed + 1))
report
