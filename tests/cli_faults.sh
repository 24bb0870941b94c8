#!/bin/sh
# The command line over disks that fail; tests/faults.py has the claims.
. tests/cli.sh

shim=$(dirname "$MOEFLUX")/tests/fault_shim.so
[ -e "$shim" ] || {
    echo "[  FAILED  ] $0: no library at $shim"
    exit 1
}
run 0 "$MOEFLUX" convert tests/models/tiny "$tmp/tiny"
python3 tests/faults.py "$MOEFLUX" "$tmp/tiny" "$shim" || n_failed=$((n_failed + 1))
report
