#!/bin/sh
# --batch with lines in OpenAI's form, compared with a server of the same model (tests/cli/batch_calls.py).
# suites: check fast asan-nightly
. tests/lib/cli.sh

model=$tmp/tiny
server=''
trap 'if [ -n "$server" ]; then kill "$server" 2>/dev/null; fi; rm -rf "$tmp"' EXIT
run 0 "$MOEFLUX" convert tests/models/tiny "$model"
# Its template has tools.
cp tests/data/tools.jinja "$model/chat_template.jinja"

claim what_fails_is_retried_in_a_file_of_results_only
fails 2 '--retry-failed .*--batch .*--output ' -m "$model" --batch - --retry-failed
fails 2 '--retry-failed .*--batch .*--output ' -m "$model" -p x --retry-failed
echo 'Notes of mine' >"$tmp/notes"
fails 1 "^moeflux: .*$tmp/notes: line 1 .*no result" -m "$model" --batch /dev/null -o "$tmp/notes" \
    --retry-failed
[ "$(cat "$tmp/notes")" = 'Notes of mine' ] || fault "it was changed"

claim a_server_starts
"$MOEFLUX" serve -m "$model" --device cpu --port 0 -c 256 >"$tmp/served" 2>"$tmp/log" &
server=$!
await -p $server has_lines 1 "$tmp/log"
end_claim
python3 tests/cli/batch_calls.py "$MOEFLUX" "$model" "$(sed -n 's/^moeflux: listening on //p' "$tmp/log")" ||
    n_failed=$((n_failed + 1))
report
