#!/bin/sh
# Drafts: answers have the same bytes with and without, in every form; what was drafted is counted.
# suites: check long asan-nightly
# shellcheck disable=SC2016 # texts of Python
. tests/lib/cli.sh

model=$tmp/tiny
run 0 "$MOEFLUX" convert tests/models/tiny "$model"
once='Victor lived near the library with a friend. One day Victor lost a lamp. Where is my lamp? asked Victor. '
prompt="$once$once$once"
answer='j["text"], j["tokens"], j["stop_reason"], j.get("logprobs")'
set -- -m "$model" --device cpu --raw -p "$prompt"

# same_as_without ARGUMENT...: the answer is the same with every kind of draft; at least one token of ngram's
# counts.
same_as_without() {
    run 0 "$MOEFLUX" "$@" --json --draft off
    json_is 'j["drafted_tokens"], j["accepted_tokens"], j["tokens_per_evaluation"]' '(0, 0, None)'
    plain=$(json "$answer")
    json 'j["text"]' >"$tmp/text"
    for kind in auto "file:$tmp/text" ngram; do
        run 0 "$MOEFLUX" "$@" --json --draft "$kind"
        json_is "$answer" "$plain"
    done
    json_is 'j["drafted_tokens"] >= j["accepted_tokens"] > 0' True
}

claim greedy_answers_are_the_same
same_as_without "$@" --temp 0 -n 150 --ignore-eos
json_is 'round(j["tokens_per_evaluation"], 3) == round(149 / (149 - j["accepted_tokens"]), 3)' True

claim sampled_answers_are_the_same
for seed in 1 2 3; do
    same_as_without "$@" --temp 0.8 -s $seed -n 150 --ignore-eos
done

claim answers_with_penalties_are_the_same
same_as_without "$@" --temp 0.8 -s 4 -n 150 --ignore-eos --repeat-penalty 1.02 --presence-penalty 0.1 \
    --dry-multiplier 0.1 --dry-allowed-length 20 --xtc-probability 0.1

claim log_probabilities_are_the_same
same_as_without "$@" --temp 0.5 -s 5 -n 150 --ignore-eos --logprobs 3

claim answers_that_fit_a_schema_are_the_same
same_as_without "$@" --temp 0.8 -s 6 -n 150 --json-schema '{"type": "array", "minItems": 12, "items":
    {"type": "object", "properties": {"name": {"type": "string", "maxLength": 4}, "n": {"type": "integer"}},
     "required": ["name", "n"]}}'

claim answers_that_fit_a_grammar_are_the_same
echo 'root ::= ([a-c] " sat on the mat. "){20,30}' >"$tmp/grammar"
same_as_without "$@" --temp 1 -s 7 -n 150 --grammar "$tmp/grammar"

claim a_stop_text_in_the_middle_of_a_run_ends_the_answer
run 0 "$MOEFLUX" "$@" --temp 0 -n 150 --ignore-eos --json --draft off
json 'j["text"]' >"$tmp/whole"
for words in 3 4 5; do
    stop=$(python3 -c 'import sys; t = open(sys.argv[1]).read(); w = t[len(t) * 3 // 4:].split()
print(" ".join(w[1:1 + int(sys.argv[2])]))' "$tmp/whole" $words)
    same_as_without "$@" --temp 0 -n 150 --ignore-eos --stop "$stop"
    json_is 'j["stop_reason"]' stop
done

claim the_thinking_and_its_limit_are_the_same
same_as_without -m "$model" --device cpu -p "$prompt" --temp 0.7 -s 8 -n 200 --ignore-eos --think-budget 20

claim a_context_that_is_full_ends_the_answer_at_the_same_token
same_as_without "$@" --temp 0 -c 300 --ignore-eos
json_is 'j["stop_reason"]' context

claim other_backends_have_the_same_answers
for device in reference auto; do
    for kind in off ngram; do
        run 0 "$MOEFLUX" "$@" --device "$device" --temp 0.8 -s 1 -n 100 --ignore-eos --json --draft $kind
        json 'j["tokens"]' >"$tmp/$kind"
    done
    json_is 'j["accepted_tokens"] > 0' True
    cmp -s "$tmp/off" "$tmp/ngram" || fault "$device: $(cat "$tmp/off" "$tmp/ngram")"
done

claim experts_on_the_cpu_or_read_from_files_change_nothing
same_as_without "$@" --temp 0.8 -s 1 -n 100 --ignore-eos --memory 3M
for kind in off ngram; do
    run 0 "$MOEFLUX" "$@" --temp 0.8 -s 1 -n 100 --ignore-eos --json --draft $kind --expert-share 0.8
    json 'j["tokens"]' >"$tmp/$kind"
done
cmp -s "$tmp/off" "$tmp/ngram" || fault "$(cat "$tmp/off" "$tmp/ngram")"

claim auto_is_off_where_experts_are_read
run 0 "$MOEFLUX" "$@" --temp 0 -n 100 --ignore-eos --json --memory 3M
json_is 'j["drafted_tokens"], j["tokens_per_evaluation"]' '(0, None)'

claim a_file_with_wrong_words_is_followed
python3 - "$tmp/whole" "$tmp/wrong" <<'END'
import sys
words = open(sys.argv[1]).read().split(' ')
words[5::9] = ['xyz'] * len(words[5::9])  # another word
del words[12::25]                         # a word less
open(sys.argv[2], 'w').write(' '.join(words))
END
run 0 "$MOEFLUX" "$@" --temp 0 -n 150 --ignore-eos --json --draft off
plain=$(json "$answer")
for most in 1 3 7; do
    run 0 "$MOEFLUX" "$@" --temp 0 -n 150 --ignore-eos --json --draft "file:$tmp/wrong" --draft-max $most
    json_is "$answer" "$plain"
    json_is 'j["accepted_tokens"] < j["drafted_tokens"]' True
    json_is "1 + $most >= j['tokens_per_evaluation'] > 1.4" True
done

claim a_file_that_is_not_the_answer_costs_no_drafts
echo 'Quite another text.' >"$tmp/other"
run 0 "$MOEFLUX" "$@" --temp 0 -n 100 --ignore-eos --json --draft "file:$tmp/other"
json_is 'j["drafted_tokens"] <= 7' True

claim a_saved_state_after_drafts_is_continued_in_the_same_way
for kind in off ngram; do
    rm -f "$tmp/state"
    run 0 "$MOEFLUX" "$@" --temp 0 -n 80 --ignore-eos --draft $kind --prompt-cache "$tmp/state"
    run 0 "$MOEFLUX" "$@" --temp 0.8 -s 2 -n 80 --ignore-eos --draft $kind --prompt-cache "$tmp/state" --json
    json 'j["tokens"], j["reused_tokens"] > 0' >"$tmp/$kind"
done
cmp -s "$tmp/off" "$tmp/ngram" || fault "$(cat "$tmp/off" "$tmp/ngram")"

claim lines_of_a_batch_are_the_same
for i in 1 2 3 4; do
    echo "{\"id\": $i, \"prompt\": \"$prompt\", \"n\": 100, \"seed\": $i, \"raw\": true, \"ignore_eos\": true}"
done >"$tmp/lines"
texts='sorted((x["id"], x["text"]) for x in r)'
for flags in '--draft off' '--draft ngram' '--draft off --parallel 3' '--draft ngram --parallel 3'; do
    # shellcheck disable=SC2086 # several flags
    run 0 "$MOEFLUX" -m "$model" --device cpu --batch "$tmp/lines" $flags
    json "$texts" >>"$tmp/answers"
    [ "$flags" != '--draft ngram' ] || json_is 'sum(x["accepted_tokens"] for x in r) > 0' True
done
[ "$(sort -u "$tmp/answers" | wc -l)" -eq 1 ] || fault "$(cat "$tmp/answers")"

claim a_line_has_its_own_draft
sed 's/}$/, "draft": "ngram", "draft_max": 2}/' "$tmp/lines" >"$tmp/own"
run 0 "$MOEFLUX" -m "$model" --device cpu --batch "$tmp/own" --draft off
json_is 'sum(x["accepted_tokens"] for x in r) > 0' True
json_is "$texts" "$(head -1 "$tmp/answers")"
sed 's/}$/, "draft": "fast"}/' "$tmp/lines" >"$tmp/own"
run 1 "$MOEFLUX" -m "$model" --device cpu --batch "$tmp/own"
json_is 'all("draft" in x["error"] and "ngram" in x["error"] for x in r)' True

claim stats_have_a_line_of_drafts
run 0 "$MOEFLUX" "$@" --temp 0 -n 80 --ignore-eos --draft ngram --stats
err_has '^drafted  *[0-9]* tokens  [0-9]* accepted; [0-9.]* tokens per evaluation'

claim the_configuration_file_sets_drafts
mkdir -p "$XDG_CONFIG_HOME/moeflux"
echo 'draft = off' >"$XDG_CONFIG_HOME/moeflux/config"
run 0 "$MOEFLUX" "$@" --temp 0 -n 80 --ignore-eos --json
json_is 'j["tokens_per_evaluation"]' None
rm "$XDG_CONFIG_HOME/moeflux/config"

claim wrong_drafts_are_refused_by_name
fails 2 '--draft.*off.*ngram.*mtp.*file.*auto' "$@" --draft fast
fails 2 '--draft' "$@" --draft file:
fails 2 '--draft-max' "$@" --draft-max 8
fails 2 '--draft-max' "$@" --draft-max 0
fails 1 "$tmp/none" "$@" -n 5 --draft "file:$tmp/none"
run 1 "$MOEFLUX" "$@" -n 5 --draft ngram --trace "$tmp/trace"
err_line 'draft ngram.*a trace'

end_claim
python3 tests/cli/draft.py "$MOEFLUX" "$model" || n_failed=$((n_failed + 1))
report
