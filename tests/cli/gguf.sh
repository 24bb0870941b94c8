#!/bin/sh
# GGUF files as models of the program: inspect, answers, settings from the file, the server, errors.
# suites: check fast asan-nightly
. tests/lib/cli.sh
set -u

files=tests/models/gguf
python=/usr/bin/python3

# Writes $2: the file $1 with KEY=VALUE... added to its metadata: whole numbers, floats with a point, texts.
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
    more += struct.pack('<Q', len(key)) + key.encode()
    if value.lstrip('-').isdigit():
        more += struct.pack('<Ii', 5, int(value))
    elif '.' in value or value in ('nan', 'inf'):
        more += struct.pack('<If', 6, float(value))
    else:
        more += struct.pack('<IQ', 8, len(value)) + value.encode()
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
run 0 "$MOEFLUX" inspect "$files/qwen4exp.gguf" --no-measure --json --device cpu
json_is 'j["gguf"], j["tensors_left_out"], j["architecture"]' "(True, 0, 'Qwen3.8-Flash-Next')"

claim a_file_answers_with_its_own_tokenizer_and_template
run 0 "$MOEFLUX" -m "$files/qwen3moe_even.gguf" --device cpu -p 'hello the' -n 5 --temp 0 --json=full
json_is 'j["prompt_tokens"], len(j["tokens"])' '(5, 5)'
tokens=$(sed -n 's/.*"tokens": \(\[[^]]*\]\).*/\1/p' "$tmp/out")
run 0 "$MOEFLUX" -m "$files/qwen3moe_even.gguf" --device cpu -p 'hello the' -n 5 --temp 0 --json=full --memory 80K
json_is 'j["tokens"]' "$tokens"
json_is 'j["stats"]["reads"] > 0' True

claim settings_of_the_sampler_come_from_the_file
with_keys "$files/qwen3moe_even.gguf" "$tmp/greedy.gguf" general.sampling.temp=0.0
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

claim every_setting_of_the_file_has_an_effect
# sampled PAIR... -- FLAG...: the answer's tokens with keys of the file, and with flags.
sampled() {
    pairs=''
    while [ "$1" != -- ]; do
        pairs="$pairs general.sampling.$1"
        shift
    done
    shift
    # shellcheck disable=SC2086 # the pairs are words
    with_keys "$files/qwen3moe_even.gguf" "$tmp/set.gguf" $pairs
    run 0 "$MOEFLUX" -m "$tmp/set.gguf" --device cpu -p 'hello the' -s 7 --ignore-eos "$@"
    cat "$tmp/out"
}
plain=$(sampled temp=9.0 -- --top-k 0 --top-p 1 -n 12)
for pair in top_k=1:--top-k=1 min_p=0.9:--min-p=0.9 xtc_probability=1.0:--xtc-probability=1; do
    key=${pair%%:*} flag=${pair#*:}
    file=$(sampled temp=9.0 top_p=1.0 "$key" -- -n 12)
    flags=$(sampled -- --temp 9 --top-p 1 "$flag" -n 12)
    [ "$file" = "$flags" ] || fault "$key: '$file', expected '$flags'"
    [ "$file" != "$plain" ] || fault "$key has no effect"
done
# -1 is the whole context, more than the 64 tokens that are the default.
file=$(sampled temp=-3.0 penalty_repeat=1.1 penalty_last_n=-1 -- -n 100)
flags=$(sampled -- --temp 0 --repeat-penalty 1.1 --repeat-last-n 1048576 -n 100)
[ "$file" = "$flags" ] || fault "penalties: '$file', expected '$flags'"
[ "$file" != "$(sampled temp=0.0 penalty_repeat=1.1 -- -n 100)" ] || fault 'a penalty_last_n of -1 has no effect'
[ "$file" != "$(sampled temp=0.0 -- -n 100)" ] || fault 'penalties have no effect'
[ "$(sampled temp=0.0 penalty_repeat=1.1 penalty_last_n=0 -- -n 12)" = "$(sampled temp=0.0 -- -n 12)" ] ||
    fault 'penalty_last_n has no effect'
# The user's configuration file comes before the model's.
mkdir -p "$tmp/config/moeflux"
echo 'temp = 0' >"$tmp/config/moeflux/config"
[ "$(sampled temp=9.0 -- -n 12)" = "$(sampled -- -n 12)" ] || fault "the user's file has no effect"
rm "$tmp/config/moeflux/config"

claim settings_that_are_no_numbers_or_out_of_range_are_refused_by_key_and_option
refused() {
    with_keys "$files/qwen3moe_even.gguf" "$tmp/bad.gguf" "general.sampling.$1"
    fails 1 "^moeflux: $tmp/bad.gguf: key general.sampling.${1%=*}: .* --$2 " -m "$tmp/bad.gguf" --device cpu -p x
    run 0 "$MOEFLUX" -m "$tmp/bad.gguf" --device cpu -p x -n 1 "--$2" 1
}
refused temp=hot temp
refused temp=inf temp
refused top_k=20.5 top-k
refused top_k=many top-k
refused top_p=7 top-p
refused min_p=-1 min-p
refused penalty_repeat=0 repeat-penalty
refused penalty_last_n=2000000 repeat-last-n

claim experts_are_read_in_every_mode
run 0 "$MOEFLUX" -m "$files/qwen3moe_even.gguf" --device cpu -p 'hello the' -n 5 --temp 0 --json=full
tokens=$(sed -n 's/.*"tokens": \(\[[^]]*\]\).*/\1/p' "$tmp/out")
for mode in auto mmap pread uring direct; do
    run 0 "$MOEFLUX" -m "$files/qwen3moe_even.gguf" --device cpu -p 'hello the' -n 5 --temp 0 --json=full \
        --memory 80K --expert-io "$mode"
    json_is 'j["tokens"]' "$tokens"
    json_is 'j["stats"]["reads"] > 0' True
done

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
fails 2 "^moeflux: $files/deepseek2-00002-of-00002.gguf: .*00001-of-00002.gguf" \
    -m "$files/deepseek2-00002-of-00002.gguf" --device cpu -p x
head -c 60000 "$files/glm4moe.gguf" >"$tmp/cut.gguf"
fails 1 "^moeflux: $tmp/cut.gguf: .*cut off" -m "$tmp/cut.gguf" --device cpu -p x
fails 1 "^moeflux: $tmp/cut.gguf: .*cut off" inspect "$tmp/cut.gguf" --device cpu

report
