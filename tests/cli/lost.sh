#!/bin/sh
# A lost device in a run: tests/cli/lost.py has the claims. cli_lost_each loses it at each submission.
# suites: check vulkan
. tests/lib/cli.sh

python3 tests/cli/lost.py "$MOEFLUX" "$tmp" 61 || n_failed=$((n_failed + 1))
report
