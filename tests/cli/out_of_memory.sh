#!/bin/sh
# Device memory that runs out: tests/cli/out_of_memory.py has the claims. cli_out_of_memory_each fails each allocation.
# suites: check vulkan
. tests/lib/cli.sh

python3 tests/cli/out_of_memory.py "$MOEFLUX" "$tmp" 61 || n_failed=$((n_failed + 1))
report
