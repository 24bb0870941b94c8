#!/bin/sh
# /v1/responses and /v1/messages, which Codex and Claude Code speak, compared with chats of the same server
# (tests/cli/dialects.py).
# suites: check asan-nightly
. tests/lib/cli.sh

model=$tmp/tiny
server=''
trap 'if [ -n "$server" ]; then kill "$server" 2>/dev/null; fi; rm -rf "$tmp"' EXIT
run 0 "$MOEFLUX" convert tests/models/tiny "$model"
# A template with tools, and with the thinking of earlier turns.
thinking="{%- if m.reasoning_content %}{{- '<think>\\\\n' + m.reasoning_content + '</think>\\\\n\\\\n' }}{%- endif %}"
sed "s|^ *{%- if m.content %}|$thinking&|" tests/data/tools.jinja >"$model/chat_template.jinja"
echo secret >"$tmp/keys"

claim a_server_starts
"$MOEFLUX" serve -m "$model" --device cpu --port 0 -c 8192 --api-key-file "$tmp/keys" >"$tmp/served" 2>"$tmp/log" &
server=$!
await -p $server has_lines 1 "$tmp/log"
url=$(sed -n 's/^moeflux: listening on //p' "$tmp/log")
end_claim
python3 tests/cli/dialects.py "$url" secret || n_failed=$((n_failed + 1))

claim tools_that_are_left_out_are_named_once
kill "$server"
wait "$server" || fault "it ended with status $?"
server=''
for type in web_search web_search_20250305; do
    [ "$(grep -c ": \"$type\"\$" "$tmp/log")" -eq 1 ] || fault "$type: $(cat "$tmp/log")"
done
report
