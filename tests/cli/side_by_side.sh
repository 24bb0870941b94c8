#!/bin/sh
# --batch and `moeflux serve` with several answers at a time, on several devices and on copies of the model.
# suites: later asan
. tests/lib/cli.sh

model=$tmp/tiny
# results EXPRESSION: of the list `r` of the lines of $tmp/results
results() { python3 -c \
    'import json, sys; r = [json.loads(l) for l in open(sys.argv[1])]; print(eval(sys.argv[2]))' \
    "$tmp/results" "$1"; }
results_are() { [ "$(results "$1")" = "$2" ] || fault "$1 is $(results "$1" 2>&1), expected $2"; }

run 0 "$MOEFLUX" convert tests/models/tiny "$model"

claim lines_side_by_side_get_what_they_get_alone
python3 - "$tmp/in" <<'END'
import json, random, sys
random.seed(3)
plain = ['The river was very quiet.', 'A brave owl slept under the tree.', 'Leo likes bread and honey.']
with open(sys.argv[1], 'w') as f:
    for i in range(24):
        text = ' '.join(random.choice(plain) for _ in range(random.randrange(1, 9)))
        print(json.dumps({'id': f'q{i}', 'raw': True, 'prompt': text, 'n': random.randrange(1, 40), 'ignore_eos': True,
                          'temp': i % 2, 'seed': i,
                          **({'raw': False, 'json_object': True, 'ignore_eos': False} if i % 8 == 7 else {})}), file=f)
END
side() { # FLAG...: the answers are those of $tmp/alone
    run 0 "$MOEFLUX" "$@" --batch "$tmp/in" --chunk 16
    cp "$tmp/out" "$tmp/results"
    results '[(x["id"], x["line"], x["text"]) for x in sorted(r, key=lambda x: x["line"])]' >"$tmp/answers"
    [ -e "$tmp/alone" ] || cp "$tmp/answers" "$tmp/alone"
    cmp -s "$tmp/alone" "$tmp/answers" || fault "$*: $(diff "$tmp/alone" "$tmp/answers" | head -c 600)"
}
side -m "$model" --device cpu
side -m "$model" --device cpu --parallel 5
side -m "$model" --device cpu,cpu --stats
[ "$(grep -c 'busy 0.0*[1-9][0-9.]* s\|busy [1-9]' "$tmp/err")" -eq 2 ] || fault "$(cat "$tmp/err")"
side -m "$model" --device cpu,cpu,cpu --parallel 3 --ordered
results_are '[x["line"] for x in r]' "$(python3 -c 'print(list(range(1, 25)))')"
side -m "$model" --device cpu,cpu --replicate --stats
[ "$(grep -c 'layers 0 to 7, CPU' "$tmp/err")" -eq 2 ] || fault "$(cat "$tmp/err")"
[ "$(grep -c 'busy 0.000 s' "$tmp/err")" -eq 0 ] || fault "$(cat "$tmp/err")"

claim whole_chunks_of_a_common_prefix_are_computed_once_side_by_side
python3 - "$tmp/in" <<'END'
import json, sys
common = 'The river was very quiet. ' * 12
with open(sys.argv[1], 'w') as f:
    for i in range(9):
        print(json.dumps({'raw': True, 'prompt': common + f'Leo has {i}', 'n': 4,
                          'ignore_eos': True, 'temp': 0}), file=f)
END
rm "$tmp/alone"
side -m "$model" --device cpu --parallel 1
side -m "$model" --device cpu,cpu --parallel 3
results_are 'sum(x["reused_tokens"] > 0 for x in r) >= 5 and all(x["reused_tokens"] % 16 == 0 for x in r)' \
    True

claim copies_of_a_model_are_for_many_answers_and_several_devices
head -n 1 "$tmp/in" >"$tmp/one"
fails 2 '--replicate goes with several devices, --device names 1' -m "$model" --device cpu --batch \
    "$tmp/one" --replicate
fails 2 '--replicate goes with --batch or moeflux serve only' -m "$model" --device cpu,cpu -p x --replicate
fails 2 '--parallel goes with --batch only' -m "$model" -p x --parallel 2
fails 2 '--replicate and --tensor-split exclude' -m "$model" --device cpu,cpu --tensor-split 1,1 --batch \
    "$tmp/one" --replicate
fails 3 '--replicate: device 1 .*has room for [0-9]* of 256 experts' -m "$model" --device cpu,cpu --batch \
    "$tmp/one" \
    --replicate --memory 2M

# serves FLAG...: conversations side by side are batch-invariant.
# shellcheck disable=SC2317 # called by name
serves() {
    python3 tests/cli/serve_side_by_side.py "$MOEFLUX" "$model" "$@" >"$tmp/said" 2>&1 ||
        fault "$(tail -c 1500 "$tmp/said")"
}

claim a_server_answers_side_by_side_on_several_devices
serves --device cpu,cpu
serves --device cpu,cpu --replicate --parallel 3
fails 2 '--parallel: expected at least 2 with --replicate' serve -m "$model" --device cpu,cpu --replicate \
    --parallel 1
fails 2 '--replicate and --state-dir exclude' serve -m "$model" --device cpu,cpu --replicate --state-dir \
    "$tmp"

claim a_conversation_goes_on_in_the_copy_that_has_it
python3 tests/cli/serve_home.py "$MOEFLUX" "$model" >"$tmp/said" 2>&1 || fault "$(tail -c 1500 "$tmp/said")"

report
