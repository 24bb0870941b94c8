#!/bin/sh
# --batch and `moeflux serve` with concurrent answers, on several devices and on copies of the model.
# suites: nightly asan-nightly
. tests/lib/cli.sh

model=$tmp/tiny
run 0 "$MOEFLUX" convert tests/models/tiny "$model"

claim concurrent_lines_have_the_answers_of_single_ones
python3 - "$tmp/in" <<'END'
import json, random, sys
random.seed(3)
plain = ['The river was very quiet.', 'A brave owl slept under the tree.', 'Leo likes bread and honey.']
with open(sys.argv[1], 'w') as f:
    for i in range(24):
        text = ' '.join(random.choice(plain) for _ in range(random.randrange(1, 9)))
        form = {'json_object': True} if i % 8 == 7 else {'raw': True, 'ignore_eos': True}
        n = random.randrange(1, 40)
        print(json.dumps({'id': f'q{i}', 'prompt': text, 'n': n, 'temp': i % 2, 'seed': i, **form}), file=f)
END
answers='[(x["id"], x["line"], x["text"]) for x in sorted(r, key=lambda x: x["line"])]'
# answers_are VALUE FLAG...
answers_are() {
    wanted=$1
    shift
    run 0 "$MOEFLUX" -m "$model" "$@" --batch "$tmp/in" --chunk 16
    [ "$(json "$answers")" = "$wanted" ] || fault "$*: $(head -c 600 "$tmp/out")"
}
run 0 "$MOEFLUX" -m "$model" --device cpu --batch "$tmp/in" --chunk 16
single=$(json "$answers")
answers_are "$single" --device cpu --parallel 5
answers_are "$single" --device cpu,cpu --stats
[ "$(grep -c 'busy 0.0*[1-9][0-9.]* s\|busy [1-9]' "$tmp/err")" -eq 2 ] || fault "$(cat "$tmp/err")"
answers_are "$single" --device cpu,cpu,cpu --parallel 3 --ordered
json_is '[x["line"] for x in r] == list(range(1, 25))' True
answers_are "$single" --device cpu,cpu --replicate --stats
[ "$(grep -c 'layers 0 to 7, CPU' "$tmp/err")" -eq 2 ] || fault "$(cat "$tmp/err")"
[ "$(grep -c 'busy 0.000 s' "$tmp/err")" -eq 0 ] || fault "$(cat "$tmp/err")"

claim whole_chunks_of_a_common_prefix_are_computed_once_for_concurrent_lines
python3 - "$tmp/in" <<'END'
import json, sys
common = 'The river was very quiet. ' * 12
with open(sys.argv[1], 'w') as f:
    for i in range(9):
        ask = {'raw': True, 'prompt': common + f'Leo has {i}', 'n': 4, 'ignore_eos': True, 'temp': 0}
        print(json.dumps(ask), file=f)
END
run 0 "$MOEFLUX" -m "$model" --device cpu --parallel 1 --batch "$tmp/in" --chunk 16
answers_are "$(json "$answers")" --device cpu,cpu --parallel 3
json_is 'sum(x["reused_tokens"] > 0 for x in r) >= 5, all(x["reused_tokens"] % 16 == 0 for x in r)' \
    '(True, True)'

claim copies_of_a_model_need_several_devices_and_answers
head -n 1 "$tmp/in" >"$tmp/one"
fails 2 '--replicate .*--device .* 1$' -m "$model" --device cpu --batch "$tmp/one" --replicate
fails 2 '--replicate .*--batch .*moeflux serve ' -m "$model" --device cpu,cpu -p x --replicate
fails 2 '--parallel .*--batch ' -m "$model" -p x --parallel 2
fails 2 '--replicate .*--tensor-split ' -m "$model" --device cpu,cpu --tensor-split 1,1 --batch "$tmp/one" \
    --replicate
fails 3 '--replicate: device 1 .* [0-9]* of 256 experts' -m "$model" --device cpu,cpu --batch "$tmp/one" \
    --replicate --memory 2M

# serves FLAG...: concurrent requests have the answers of single ones.
serves() {
    python3 tests/cli/serve_concurrent.py "$MOEFLUX" "$model" "$@" >"$tmp/said" 2>&1 ||
        fault "$(tail -c 1500 "$tmp/said")"
}

claim a_server_answers_concurrent_requests_on_several_devices
serves --device cpu,cpu
serves --device cpu,cpu --replicate --parallel 3
fails 2 '--parallel: .* 2 .*--replicate, .* 1$' serve -m "$model" --device cpu,cpu --replicate --parallel 1

claim a_conversation_continues_in_the_copy_that_has_it
python3 tests/cli/serve_home.py "$MOEFLUX" "$model" >"$tmp/said" 2>&1 || fault "$(tail -c 1500 "$tmp/said")"

claim copies_share_the_files_of_a_directory
python3 tests/cli/serve_files.py "$MOEFLUX" "$model" "$tmp/states" >"$tmp/said" 2>&1 ||
    fault "$(tail -c 1500 "$tmp/said")"

report
