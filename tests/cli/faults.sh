#!/bin/sh
# The command line on disks that fail: tests/cli/faults.py (reads) and write_faults.py have the claims.
# suites: nightly long asan-nightly
. tests/lib/cli.sh

run 0 "$MOEFLUX" convert tests/models/tiny "$tmp/tiny"
python3 tests/cli/faults.py "$MOEFLUX" "$tmp/tiny" || n_failed=$((n_failed + 1))
python3 tests/cli/write_faults.py "$MOEFLUX" "$tmp/tiny" || n_failed=$((n_failed + 1))
report
