#!/bin/sh
# The line editor of conversations, in a terminal (tests/cli/prompt.py), with the embedded model.
# suites: check fast asan-nightly
. tests/lib/cli.sh

run 0 "$MOEFLUX" convert tests/models/tiny "$tmp/tiny"
python3 tests/cli/prompt.py "$MOEFLUX" "$tmp/tiny" || n_failed=$((n_failed + 1))
report
