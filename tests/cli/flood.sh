#!/bin/sh
# A server under thousands of mixed requests and hundreds of hostile connections: its memory stays bounded, and
# others are served. tests/cli/flood.py has the clients. MOEFLUX_REQUESTS: the number of requests.
# `make flood` runs it with AddressSanitizer.
# suites: nightly
. tests/lib/cli.sh

model=$tmp/tiny
run 0 "$MOEFLUX" convert tests/models/tiny "$model"
"$MOEFLUX" serve -m "$model" --device cpu --port 0 --queue 64 --parallel 2 2>"$tmp/log" &
server=$!
trap 'kill "$server" 2>/dev/null; rm -rf "$tmp"' EXIT
await -p "$server" has_lines 1 "$tmp/log"
url=$(sed -n 's/^moeflux: listening on //p' "$tmp/log")

holds_claim() {
    claim "$1"
    if python3 tests/cli/flood.py "$url" "$server" "$@" >"$tmp/said" 2>&1; then
        sed 's/^/    /' "$tmp/said"
    else
        fault "$(tail -c 1500 "$tmp/said")"
    fi
}
holds_claim memory_stays_flat_over_mixed_requests "${MOEFLUX_REQUESTS:-10000}"
holds_claim a_client_is_served_among_256_hostile_ones
holds_claim headers_have_a_minute_to_arrive

claim it_ends_as_ever
kill -TERM "$server"
ends 0 "$server"
[ "$(wc -l <"$tmp/log")" -eq 1 ] || fault "on stderr: $(cat "$tmp/log")"

report
