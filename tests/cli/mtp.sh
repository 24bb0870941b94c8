#!/bin/sh
# Drafts by the layer of multi-token prediction: answers have the same bytes as without, in every form, and
# what was drafted is counted; where it cannot be used, one line says why.
# suites: check long asan-nightly
. tests/lib/cli.sh

model=tests/models/tiny-mtp
answer='j["text"], j["tokens"], j["stop_reason"], j.get("logprobs")'
set -- -m "$model" --device cpu --no-think -p 'Tell me a story.' --ignore-eos

least=40
# same_as_without ARGUMENT...: the answer is the same, and at least $least of its tokens were proposed.
same_as_without() {
    run 0 "$MOEFLUX" "$@" --json --draft off
    json_is 'j["drafted_tokens"]' 0
    plain=$(json "$answer")
    run 0 "$MOEFLUX" "$@" --json --draft mtp
    json_is "$answer" "$plain"
    json_is 'j["drafted_tokens"] >= j["accepted_tokens"] >= '"$least" True
}

claim greedy_and_sampled_answers_are_the_same
same_as_without "$@" --temp 0 -n 150
same_as_without "$@" --temp 0 -n 150 --draft-max 1
json_is 'j["tokens_per_evaluation"] <= 2' True
for seed in 1 2; do
    same_as_without "$@" --temp 0.8 -s $seed -n 100
done

claim answers_in_small_chunks_with_log_probabilities_or_a_schema_are_the_same
same_as_without "$@" --temp 0.5 -s 5 -n 100 --logprobs 3 --chunk 8
least=0 # the layer knows of no schema
same_as_without -m "$model" --device cpu --no-think -p 'Tell me a story.' --temp 0.8 -s 6 -n 100 \
    --json-schema '{"type": "array", "minItems": 12, "items": {"type": "object",
    "required": ["name", "n"], "properties": {"name": {"type": "string", "maxLength": 4}, "n": {"type": "integer"}}}}'

least=40

claim a_context_that_is_full_ends_the_answer_at_the_same_token
same_as_without "$@" --temp 0 -c 120
json_is 'j["stop_reason"]' context

claim other_backends_have_the_same_answers
for device in reference auto; do
    for kind in off mtp; do
        run 0 "$MOEFLUX" "$@" --device "$device" --temp 0.8 -s 1 -n 60 --json --draft $kind
        json 'j["tokens"]' >"$tmp/$kind"
    done
    json_is 'j["accepted_tokens"] > 0' True
    cmp -s "$tmp/off" "$tmp/mtp" || fault "$device: $(cat "$tmp/off" "$tmp/mtp")"
done

claim gguf_files_with_the_layer_propose_too
for name in qwen35moe glm4moe glmdsa qwen4exp; do
    python3 tests/lib/gguf_drafter.py tests/models/gguf/$name.gguf "$tmp/nextn.gguf"
    for kind in off mtp; do
        run 0 "$MOEFLUX" -m "$tmp/nextn.gguf" --device cpu --raw -p 'a b c' --temp 0 -n 40 --ignore-eos --json \
            --draft $kind
        json 'j["tokens"]' >"$tmp/$kind"
    done
    json_is 'j["drafted_tokens"] > 20' True
    cmp -s "$tmp/off" "$tmp/mtp" || fault "$name: $(cat "$tmp/off" "$tmp/mtp")"
    run 0 "$MOEFLUX" inspect "$tmp/nextn.gguf" --json
    json_is 'j["multi_token_prediction"], j["tensors_left_out"]' '(True, 0)'
done
python3 tests/lib/gguf_drafter.py tests/models/gguf/qwen4exp.gguf "$tmp/alone.gguf" alone
# proposed MODEL DRAFT: the answer, and how many of its tokens were drafted and accepted.
proposed() {
    run 0 "$MOEFLUX" -m "$1" --device cpu --raw -p 'a b c' --temp 0.8 -s 3 -n 40 --ignore-eos --json --draft "$2"
    json '[j["tokens"], j["drafted_tokens"], j["accepted_tokens"]]'
}
proposed "$tmp/nextn.gguf" mtp >"$tmp/inside"
proposed tests/models/gguf/qwen4exp.gguf "mtp:$tmp/alone.gguf" >"$tmp/alone"
cmp -s "$tmp/inside" "$tmp/alone" || fault "$(cat "$tmp/inside" "$tmp/alone")"
fails 1 'glm4moe.gguf: no tensors .*nextn' -m tests/models/gguf/qwen4exp.gguf --device cpu --raw -p a \
    --draft mtp:tests/models/gguf/glm4moe.gguf
fails 1 'alone.gguf: .*GGUF' -m "$model" --device cpu -p a --draft "mtp:$tmp/alone.gguf"
fails 1 'nextn.eh_proj' -m tests/models/gguf/qwen35moe.gguf --device cpu --raw -p a --draft mtp

claim convert_keeps_the_layer
convert_keeps() {
    run 0 "$MOEFLUX" convert "$1" "$tmp/kept"
    run 0 "$MOEFLUX" inspect "$tmp/kept" --json
    json_is 'j["multi_token_prediction"]' True
    for kind in off mtp; do
        run 0 "$MOEFLUX" -m "$tmp/kept" --device cpu --raw -p 'a b c' --temp 0 -n 40 --ignore-eos --json --draft $kind
        json 'j["tokens"]' >"$tmp/$kind"
    done
    json_is 'j["drafted_tokens"] > 20' True
    cmp -s "$tmp/off" "$tmp/mtp" || fault "$1: $(cat "$tmp/off" "$tmp/mtp")"
    run 0 "$MOEFLUX" convert --verify "$tmp/kept"
    rm -r "$tmp/kept"
}
convert_keeps "$model"
convert_keeps "$tmp/nextn.gguf"
run 0 "$MOEFLUX" convert tests/models/gguf/qwen4exp.gguf "$tmp/kept" --mtp "$tmp/alone.gguf"
proposed "$tmp/kept" mtp >"$tmp/converted"
cmp -s "$tmp/inside" "$tmp/converted" || fault "$(cat "$tmp/inside" "$tmp/converted")"
rm -r "$tmp/kept"
run 2 "$MOEFLUX" convert tests/models/gguf/qwen4exp.gguf "$tmp/none" --mtp "$tmp/alone.gguf" --no-mtp
run 1 "$MOEFLUX" convert tests/models/tiny "$tmp/none" --mtp "$tmp/alone.gguf"

claim layers_of_other_parts_are_used_and_converted
python3 -c 'print(*[(37 * i + 5) % 103 for i in range(20)])' >"$tmp/ids"
least=0
for name in qw4-plain mimo-odd step-plain glm53f-plain v4-odd; do
    python3 tests/lib/st_drafter.py tests/models/families/$name "$tmp/with"
    run 0 "$MOEFLUX" inspect "$tmp/with" --json
    json_is 'j["multi_token_prediction"]' True
    run 0 "$MOEFLUX" convert "$tmp/with" "$tmp/kept"
    for dir in with kept; do
        for temp in 0 0.8; do
            same_as_without -m "$tmp/$dir" --device cpu --tokens-in "$tmp/ids" --temp $temp -s 3 -n 40 --ignore-eos
            json_is 'j["drafted_tokens"] > 20' True
        done
    done
    run 0 "$MOEFLUX" -m "$tmp/kept" --device cpu --plan --json --draft mtp
    json_is 'j["multi_token_prediction_bytes"] > 0' True
    rm -r "$tmp/with" "$tmp/kept"
done
least=40

claim convert_leaves_the_layer_out
run 0 "$MOEFLUX" convert --no-mtp "$model" "$tmp/kept"
run 0 "$MOEFLUX" inspect "$tmp/kept" --json
json_is 'j["multi_token_prediction"]' False
fails 1 "$tmp/kept: no mtp" -m "$tmp/kept" --device cpu -p a --draft mtp

claim the_plan_and_statistics_count_the_layer
for kind in mtp auto off; do
    run 0 "$MOEFLUX" -m "$model" --device cpu --plan --json --draft $kind
    json 'j["multi_token_prediction_bytes"]' >"$tmp/$kind"
done
cmp -s "$tmp/mtp" "$tmp/auto" || fault "$(cat "$tmp/mtp" "$tmp/auto")"
echo 0 | cmp -s - "$tmp/off" || fault "$(cat "$tmp/off")"
[ "$(cat "$tmp/mtp")" -gt 1000000 ] || fault "$(cat "$tmp/mtp")"
run 0 "$MOEFLUX" "$@" --temp 0 -n 8 --json=full --draft mtp
json_is '1000000 < j["stats"]["multi_token_prediction_bytes"] <= '"$(cat "$tmp/mtp")" True

claim auto_tries_it_and_answers_the_same
run 0 "$MOEFLUX" "$@" --temp 0.8 -s 3 -n 400 --json --draft off
plain=$(json "$answer")
run 0 "$MOEFLUX" "$@" --temp 0.8 -s 3 -n 400 --json
json_is "$answer" "$plain"
json_is 'j["drafted_tokens"] > 0' True

claim where_it_cannot_be_used_one_line_says_so
run 0 "$MOEFLUX" convert tests/models/tiny "$tmp/packed"
fails 1 'tests/models/tiny: .*mtp' -m tests/models/tiny --device cpu -p a --draft mtp
fails 1 "$tmp/packed: .*multi-token" -m "$tmp/packed" --device cpu -p a --draft mtp
fails 1 'draft mtp: ' -m "$model" --device cpu -p a --memory 3M --draft mtp

end_claim
DRAFT=mtp python3 tests/cli/draft.py "$MOEFLUX" "$model" || n_failed=$((n_failed + 1))
report
