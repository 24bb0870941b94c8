#!/bin/sh
# The chat page in a browser; tests/cli/page.py has the claims.
# suites: nightly
. tests/lib/cli.sh

if ! command -v chromedriver >/dev/null; then
    echo "SKIP page: there is no chromedriver (scripts/setup page)"
    exit 0
fi
run 0 "$MOEFLUX" convert tests/models/tiny "$tmp/tiny"
python3 tests/cli/page.py "$tmp/tiny"
