#!/bin/sh
# Saved states: --prompt-cache, and conversations in a terminal (tests/cli/sessions.py), with the small
# trained model.
# suites: check long asan-nightly
. tests/lib/cli.sh

model=$tmp/tiny
# ids N SEED...: prints N ids of each seed.
ids() {
    python3 -c 'import random, sys
n = [int(x) for x in sys.argv[1:]]
for count, seed in zip(n[::2], n[1::2]):
    random.seed(seed)
    print(*(random.randrange(3, 1900) for _ in range(count)))' "$@"
}

run 0 "$MOEFLUX" convert tests/models/tiny "$model"
set -- -m "$model" --temp 0 --json=full -n 6

claim a_cached_prefix_of_1400_saves_seven_eighths_of_a_prompt_of_1500
ids 1400 1 >"$tmp/first"
ids 1400 1 100 2 >"$tmp/second"
run 0 "$MOEFLUX" "$@" --tokens-in "$tmp/first" --prompt-cache "$tmp/cache"
err_empty
json_is 'j["prompt_tokens"], j["reused_tokens"]' '(1400, 0)'
run 0 "$MOEFLUX" "$@" --tokens-in "$tmp/second" --prompt-cache-ro "$tmp/cache"
err_line "^moeflux: .*$tmp/cache: [0-9]* of 1500 tokens "
json_is 'j["prompt_tokens"] == 1500 and 8 * (1500 - j["reused_tokens"]) <= 1500' True
cached=$(json 'j["tokens"]')
run 0 "$MOEFLUX" "$@" --tokens-in "$tmp/second"
json_is 'j["tokens"]' "$cached"
json_is 'j["reused_tokens"]' 0

claim the_same_prompt_finds_all_of_itself_but_one_token_and_leaves_the_file
ids 200 3 >"$tmp/first"
rm "$tmp/cache"
run 0 "$MOEFLUX" "$@" --tokens-in "$tmp/first" --prompt-cache "$tmp/cache"
whole=$(json 'j["tokens"]')
inode=$(stat -c %i "$tmp/cache")
cp "$tmp/cache" "$tmp/good"
run 0 "$MOEFLUX" "$@" --tokens-in "$tmp/first" --prompt-cache "$tmp/cache"
json_is 'j["tokens"], j["reused_tokens"]' "($whole, 199)"
[ "$(stat -c %i "$tmp/cache")" = "$inode" ] || fault "the file was written again"

claim a_third_prompt_reuses_the_common_prefix_of_the_first_two
ids 200 3 90 4 >"$tmp/first"
ids 200 3 90 5 >"$tmp/second"
ids 200 3 90 6 >"$tmp/third"
run 0 "$MOEFLUX" "$@" --tokens-in "$tmp/third"
whole=$(json 'j["tokens"]')
rm "$tmp/cache"
run 0 "$MOEFLUX" "$@" --tokens-in "$tmp/first" --prompt-cache "$tmp/cache"
run 0 "$MOEFLUX" "$@" --tokens-in "$tmp/second" --prompt-cache "$tmp/cache"
run 0 "$MOEFLUX" "$@" --tokens-in "$tmp/third" --prompt-cache "$tmp/cache"
json_is 'j["tokens"], j["reused_tokens"]' "($whole, 200)"

claim a_system_text_is_reused_with_another_question
text=$(ids 120 7)
rm "$tmp/cache"
run 0 "$MOEFLUX" "$@" --no-think --system "$text" -p 'What is 47 + 38?' --prompt-cache "$tmp/cache"
json_is 'j["text"]' 85
run 0 "$MOEFLUX" "$@" --no-think --system "$text" -p 'What is the capital of Iceland?' --stats \
    --prompt-cache "$tmp/cache"
json_is 'j["reused_tokens"] > 120' True
err_has '^reused  *[0-9]* tokens$'
err_has '^memory .* states, [0-9.]* .B checkpoints'
json_is 'j["stats"]["checkpoint_bytes"] > 0' True
json_is 'j["text"][:11]' 'The capital'

claim broken_files_are_named_and_replaced
ids 200 3 >"$tmp/first"
run 0 "$MOEFLUX" "$@" --tokens-in "$tmp/first"
whole=$(json 'j["tokens"]')
size=$(wc -c <"$tmp/good")
broken() {
    run 0 "$MOEFLUX" "$@" --tokens-in "$tmp/first" --prompt-cache "$tmp/cache"
    json_is 'j["tokens"], j["reused_tokens"]' "($whole, 0)"
    err_line "^moeflux: .*$tmp/cache: .*replaced$"
    cmp -s "$tmp/cache" "$tmp/good" || fault "the file was not replaced by the right one"
}
# tests/model/test_snapshot.c has every truncation and every changed byte of a header.
for n in 0 79 $((size - 1)); do
    head -c "$n" "$tmp/good" >"$tmp/cache"
    broken "$@"
done
for at in 4 $((size / 2)); do
    cp "$tmp/good" "$tmp/cache"
    printf '\252' | dd of="$tmp/cache" bs=1 seek="$at" conv=notrunc 2>/dev/null
    broken "$@"
done

claim files_of_others_are_named_and_kept
unchanged() {
    cp "$tmp/cache" "$tmp/before"
    run 0 "$MOEFLUX" "$@"
    json_is 'j["reused_tokens"]' 0
    err_line "^moeflux: .*$tmp/cache: "
    cmp -s "$tmp/cache" "$tmp/before" || fault "the file was changed"
}
echo 'Notes of mine' >"$tmp/cache"
unchanged "$@" --tokens-in "$tmp/first" --prompt-cache "$tmp/cache"
cp tests/models/qwen-odd/state.v2 "$tmp/cache"
unchanged "$@" --tokens-in "$tmp/first" --prompt-cache "$tmp/cache"
cp "$tmp/good" "$tmp/cache"
echo 1 2 3 >"$tmp/few"
unchanged -m tests/models/qwen-odd/mlx --temp 0 --json=full -n 2 --tokens-in "$tmp/few" --prompt-cache \
    "$tmp/cache"
unchanged "$@" --tokens-in "$tmp/few" --prompt-cache "$tmp/cache" -c 100

claim a_read_only_cache_is_never_written
cp "$tmp/good" "$tmp/cache"
run 0 "$MOEFLUX" "$@" --tokens-in "$tmp/few" --prompt-cache-ro "$tmp/cache"
cmp -s "$tmp/cache" "$tmp/good" || fault "the file was changed"
run 0 "$MOEFLUX" "$@" --tokens-in "$tmp/few" --prompt-cache-ro "$tmp/none"
err_line "^moeflux: .*$tmp/none: No such file"
[ ! -e "$tmp/none" ] || fault "a file was made"
: >"$tmp/cache"
run 0 "$MOEFLUX" "$@" --tokens-in "$tmp/few" --prompt-cache-ro "$tmp/cache"
[ ! -s "$tmp/cache" ] || fault "an empty file was filled"

claim models_without_recurrent_layers_reuse_every_common_token
ids 60 8 20 9 | tr ' ' '\n' | awk '{ print $1 % 300 }' >"$tmp/first"
ids 60 8 20 10 | tr ' ' '\n' | awk '{ print $1 % 300 }' >"$tmp/second"
plain() { run 0 "$MOEFLUX" -m tests/models/deepseek-odd/mlx --temp 0 --json=full -n 6 "$@"; }
plain --tokens-in "$tmp/second"
whole=$(json 'j["tokens"]')
rm -f "$tmp/mla"
plain --tokens-in "$tmp/first" --prompt-cache "$tmp/mla"
plain --tokens-in "$tmp/second" --prompt-cache "$tmp/mla"
json_is 'j["tokens"], j["reused_tokens"]' "($whole, 60)"
plain --tokens-in "$tmp/second" --prompt-cache "$tmp/mla"
json_is 'j["tokens"], j["reused_tokens"]' "($whole, 79)"

claim version_2_is_written_after_the_whole_prompt_and_not_read
rm "$tmp/cache"
run 0 "$MOEFLUX" "$@" --tokens-in "$tmp/few" --prompt-cache "$tmp/cache" --state-format v2
err_empty
[ "$(od -An -tx4 -N8 "$tmp/cache")" = ' 4d464c58 00000002' ] ||
    fault "it begins with $(od -An -tx4 -N8 "$tmp/cache")"
unchanged "$@" --tokens-in "$tmp/few" --prompt-cache "$tmp/cache"
fails 2 '--state-format: .* v2 or v3, .*"v1"$' "$@" --tokens-in "$tmp/few" --prompt-cache "$tmp/cache" \
    --state-format v1
fails 2 '--state-format .*--prompt-cache ' "$@" --tokens-in "$tmp/few" --state-format v2

claim bad_places_and_flags_are_refused
fails 1 "^moeflux: --prompt-cache $tmp/no/cache: No such file" "$@" --tokens-in "$tmp/few" --prompt-cache \
    "$tmp/no/cache"
fails 2 '--prompt-cache .*--prompt-cache-ro ' "$@" --tokens-in "$tmp/few" --prompt-cache x --prompt-cache-ro y
fails 2 '--prompt-cache .*--hidden' "$@" --tokens-in "$tmp/few" --prompt-cache x --hidden y
fails 2 '--prompt-cache .*--logits-all' "$@" --tokens-in "$tmp/few" --prompt-cache x --logits y --logits-all
fails 2 '--resume .*--json .*--tokens-out ' "$@" -p x --resume y
fails 2 '--resume .*--tokens-in .*--raw ' -m "$model" -p x --raw --resume y
fails 2 '--resume .*--tools ' -m "$model" -p x --tools z --resume y
fails 2 '--resume .*--logits .*--hidden ' -m "$model" -p x --logits z --resume y
fails 2 '--resume .*--system ' -m "$model" -p x --system x --resume y
fails 2 '--prompt-cache .*--bench' -m "$model" --bench --prompt-cache x
fails 2 '--resume .*--plan' -m "$model" --plan --resume x
fails 2 'session y .*/y.json' -m "$model" -p x --resume y
fails 2 '^moeflux: stdin: .*empty' -m "$model" --resume y

claim last_logits_come_with_a_cache_too
run 0 "$MOEFLUX" "$@" --tokens-in "$tmp/first" --logits "$tmp/without"
cp "$tmp/good" "$tmp/cache"
run 0 "$MOEFLUX" "$@" --tokens-in "$tmp/first" --logits "$tmp/with" --prompt-cache "$tmp/cache"
python3 tests/lib/tensors.py diff "$tmp/with" logits "$tmp/without" logits >"$tmp/diff" ||
    fault "they cannot be compared"
awk '{ exit !($1 <= 1e-4 * $2) }' "$tmp/diff" || fault "they differ: $(cat "$tmp/diff")"

end_claim
python3 tests/cli/sessions.py "$MOEFLUX" "$model" || n_failed=$((n_failed + 1))
report
