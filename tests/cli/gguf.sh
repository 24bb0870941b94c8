#!/bin/sh
# GGUF files as models of the program: inspect, answers, settings from the file, the server, errors.
# suites: check fast asan-nightly
. tests/lib/cli.sh

files=tests/models/gguf
python=/usr/bin/python3

# Writes $2: the file $1 with the whole numbers and floats KEY=VALUE added to its metadata.
with_keys() {
    "$python" -I -S - "$@" <<'END'
import struct, sys
data = open(sys.argv[1], 'rb').read()
n_tensors, n_values = struct.unpack_from('<QQ', data, 8)
at, sizes = 24, {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
def skip(kind, at):
    if kind == 8:
        return at + 8 + struct.unpack_from('<Q', data, at)[0]
    if kind != 9:
        return at + sizes[kind]
    of, n = struct.unpack_from('<IQ', data, at)
    at += 12
    for _ in range(n):
        at = skip(of, at)
    return at
for _ in range(n_values):
    at += 8 + struct.unpack_from('<Q', data, at)[0]
    at = skip(struct.unpack_from('<I', data, at)[0], at + 4)
more = b''
for pair in sys.argv[3:]:
    key, value = pair.split('=')
    more += struct.pack('<Q', len(key)) + key.encode() + struct.pack('<If', 6, float(value))
end = at
for _ in range(n_tensors):
    end += 8 + struct.unpack_from('<Q', data, end)[0]
    end += 4 + 8 * struct.unpack_from('<I', data, end)[0] + 4 + 8
rest = data[(end + 31) // 32 * 32:]
head = data[:16] + struct.pack('<Q', n_values + len(sys.argv) - 3) + data[24:at] + more + data[at:end]
open(sys.argv[2], 'wb').write(head + bytes(-len(head) % 32) + rest)
END
}

claim inspect_reports_types_and_what_is_left_out
run 0 "$MOEFLUX" inspect "$files/glm4moe.gguf" --no-measure --device cpu
out_has '^layout  *GGUF'
out_has '^left out  *[0-9]* tensors'
out_has '^layers  *2,'
out_has '^  expert formats  *Q[45]_[01]'
run 0 "$MOEFLUX" inspect "$files/deepseek2-00001-of-00002.gguf" --no-measure --json --device cpu
json_is 'j["gguf"], j["packed"], j["tensors_left_out"]' '(True, False, 0)'
json_is 'j["expert_formats"]' MXFP4

claim a_file_answers_with_its_own_tokenizer_and_template
run 0 "$MOEFLUX" -m "$files/qwen3moe_even.gguf" --device cpu -p 'hello the' -n 5 --temp 0 --json
json_is 'j["prompt_tokens"], len(j["tokens"])' '(5, 5)'
tokens=$(sed -n 's/.*"tokens": \(\[[^]]*\]\).*/\1/p' "$tmp/out")
run 0 "$MOEFLUX" -m "$files/qwen3moe_even.gguf" --device cpu -p 'hello the' -n 5 --temp 0 --json --memory 80K
json_is 'j["tokens"]' "$tokens"
json_is 'j["stats"]["reads"] > 0' True

claim settings_of_the_sampler_come_from_the_file
with_keys "$files/qwen3moe_even.gguf" "$tmp/greedy.gguf" general.sampling.temp=0
with_keys "$files/qwen3moe_even.gguf" "$tmp/bad.gguf" general.sampling.top_p=7
for i in 1 2 3; do
    run 0 "$MOEFLUX" -m "$tmp/greedy.gguf" --device cpu -p 'hello the' -n 12 -s $i
    cp "$tmp/out" "$tmp/greedy.$i"
done
cat "$tmp/greedy.1" "$tmp/greedy.1" >"$tmp/twice"
cat "$tmp/greedy.2" "$tmp/greedy.3" | cmp -s - "$tmp/twice" || fault 'seeds differ at temperature 0'
for i in 1 2 3; do
    run 0 "$MOEFLUX" -m "$tmp/greedy.gguf" --device cpu -p 'hello the' -n 12 -s $i --temp 5
    cp "$tmp/out" "$tmp/hot.$i"
done
cmp -s "$tmp/hot.1" "$tmp/hot.2" && fault '--temp has no effect'
fails 1 "^moeflux: $tmp/bad.gguf: .*general.sampling.*top-p" -m "$tmp/bad.gguf" --device cpu -p x
run 0 "$MOEFLUX" -m "$tmp/bad.gguf" --device cpu -p x -n 1 --top-p 0.9

claim the_server_answers_from_a_file
server=''
trap 'if [ -n "$server" ]; then kill "$server" 2>/dev/null; fi; rm -rf "$tmp"' EXIT
"$MOEFLUX" serve -m "$files/qwen35moe.gguf" --device cpu --port 0 >"$tmp/served" 2>"$tmp/log" &
server=$!
await -p "$server" has_lines 1 "$tmp/log"
url=$(sed -n 's/^moeflux: listening on //p' "$tmp/log")
run 0 "$python" -I -c '
import json, sys, urllib.request
body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3, "temperature": 0}
head = {"Content-Type": "application/json"}
request = urllib.request.Request(sys.argv[1] + "/v1/chat/completions", json.dumps(body).encode(), head)
print(urllib.request.urlopen(request).read().decode())' "$url"
json_is 'j["model"], j["usage"]["prompt_tokens"], j["usage"]["completion_tokens"]' "('qwen35moe.gguf', 4, 3)"
kill "$server"
wait "$server" || fault "the server ended with status $?"
server=''

claim files_that_cannot_run_are_refused_with_one_line
fails 1 "^moeflux: $files/qwen3moe.gguf: .*Q4_K.*Q5_K" -m "$files/qwen3moe.gguf" --device cpu -p x
fails 2 "^moeflux: $files/deepseek2-00002-of-00002.gguf: .*00001-of-00002.gguf" \
    -m "$files/deepseek2-00002-of-00002.gguf" --device cpu -p x
head -c 100000 "$files/glm4moe.gguf" | head -c 60000 >"$tmp/cut.gguf"
fails 1 "^moeflux: $tmp/cut.gguf: .*cut off" -m "$tmp/cut.gguf" --device cpu -p x
fails 1 "^moeflux: $tmp/cut.gguf: .*cut off" inspect "$tmp/cut.gguf" --device cpu

report
