#!/bin/sh
# The command line with the small trained model: prompts, answers, files, streams, a terminal
# (tests/cli/terminal.py).
# suites: check long asan-nightly
# shellcheck disable=SC2016 # the inner shells expand their words
. tests/lib/cli.sh

golden=tests/models/tiny/golden.safetensors
model=$tmp/tiny
python() { python3 tests/lib/tensors.py "$@"; }
# at_most A B: two decimal numbers
at_most() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a <= b) }' || fault "$1 is over $2"; }

claim convert_writes_a_directory_once
run 0 "$MOEFLUX" convert tests/models/tiny "$model"
out_empty
fails 2 "^moeflux: $model exists" convert tests/models/tiny "$model"
[ -d "$model" ] || {
    report
}

claim convert_shows_the_errors_of_quantising
run 0 "$MOEFLUX" convert tests/models/qwen3-odd/hf "$tmp/three" --bits 3 --expert-group 32
out_has '^relative root mean square error, .*search'
out_has '^experts  *0\.[0-9]*  *4\.00  *0\.[0-9]*  *0\.1[0-9]*  *-1[0-9]\.[0-9]$'
out_has '^all '
err_has '^[^ ]*/three: '
run 0 "$MOEFLUX" convert tests/models/formats/mixed-3-6 "$tmp/four" --bits 4 --scales minmax
out_has '^relative root mean square error, .*smallest and largest'
out_has '^lm_head .* 0\.0$'
err_has '^[0-9]* matrices .*copied$'

# Greedy answers, without thinking.
sum='What is 47 + 38?'
set -- -m "$model" --temp 0 --no-think

claim the_answer_alone_goes_to_stdout
run 0 "$MOEFLUX" "$@" -p "$sum"
out_is 85
err_empty

claim prompts_come_from_p_f_and_stdin
printf '%s\n' "$sum" >"$tmp/prompt"
run 0 "$MOEFLUX" "$@" -f "$tmp/prompt"
out_is 85
run 0 "$MOEFLUX" "$@" -f - <"$tmp/prompt"
out_is 85
run 0 sh -c '"$0" "$@" <"'"$tmp/prompt"'" | cat' "$MOEFLUX" "$@"
out_is 85
run 0 sh -c 'printf "What is the capital of Iceland?" | "$0" "$@"' "$MOEFLUX" "$@"
out_is 'The capital of Iceland is Reykjavík.'
mkfifo "$tmp/fifo"
cat "$tmp/prompt" >"$tmp/fifo" &
run 0 "$MOEFLUX" "$@" -f "$tmp/fifo"
out_is 85

claim an_interruption_ends_the_wait_for_a_prompt
"$MOEFLUX" "$@" -f "$tmp/fifo" >"$tmp/out" 2>"$tmp/err" &
pid=$!
await -p $pid has_open $pid "$tmp/fifo"
kill -INT $pid
ends 130 $pid
out_empty
err_empty

claim raw_continues_the_text
run 0 "$MOEFLUX" "$@" --raw -p 'Once upon a time there was' -n 6
out_is ' a kind cat named Victor.'

claim ids_in_and_out_agree_with_the_golden_tokens
python ids $golden case3.tokens >"$tmp/ids"
run 0 "$MOEFLUX" "$@" --tokens-in "$tmp/ids" --tokens-out -n 32 --ignore-eos
out_is "$(python ids $golden case3.greedy)"
run 0 sh -c '"$0" "$@" --tokens-in - <"'"$tmp/ids"'"' "$MOEFLUX" "$@"
out_is 'The capital of Iceland is Reykjavík.'

claim perplexity_is_that_of_the_logits
printf 'Once upon a time there was a kind cat. It liked 12 dogs.' >"$tmp/text"
run 0 "$MOEFLUX" "$@" --raw -f "$tmp/text" --logits "$tmp/rows" --logits-all
run 0 "$MOEFLUX" -m "$model" --perplexity "$tmp/text"
[ "$(awk 'NR == 1 { print $2 }' "$tmp/out")" = "$(python perplexity "$tmp/rows")" ] ||
    fault "$(cat "$tmp/out"), expected $(python perplexity "$tmp/rows")"
run 0 "$MOEFLUX" -m "$model" --perplexity "$tmp/text" -c 5 --json=full
json_is 'j["windows"] * j["context"] >= j["tokens_scored"] + j["windows"]' True
json_is 'j["tokens_scored"] > 10' True
printf 'a' >"$tmp/text"
fails 2 "^moeflux: .*$tmp/text: 1 token, .* 2$" -m "$model" --perplexity "$tmp/text"

claim logits_and_hidden_states_agree_with_the_golden_ones
python ids $golden case0.tokens >"$tmp/ids"
run 0 "$MOEFLUX" "$@" --tokens-in "$tmp/ids" --logits "$tmp/all" --logits-all --hidden "$tmp/hidden"
out_empty
[ "$(python shape "$tmp/all")" = "$(printf 'logits F32 22x2048\ntokens I32 22')" ] ||
    fault "logits-all: $(python shape "$tmp/all")"
[ "$(python shape "$tmp/hidden")" = 'hidden F32 9x22x256' ] || fault "hidden: $(python shape "$tmp/hidden")"
[ "$(python ids "$tmp/all" tokens)" = "$(cat "$tmp/ids")" ] || fault "the tokens differ"
at_most "$(python diff "$tmp/all" logits $golden case0.logits | cut -d' ' -f1)" 2e-4
python diff "$tmp/hidden" hidden $golden case0.hidden >"$tmp/diff" || fault "hidden states cannot be compared"
at_most "$(awk '{ print $1 / $2 }' "$tmp/diff")" 1e-5
run 0 "$MOEFLUX" "$@" --tokens-in "$tmp/ids" --logits "$tmp/last"
[ "$(python shape "$tmp/last")" = "$(printf 'logits F32 1x2048\ntokens I32 22')" ] ||
    fault "logits: $(python shape "$tmp/last")"
at_most "$(python diff "$tmp/last" logits $golden case0.last_logits | cut -d' ' -f1)" 2e-4
[ -z "$(find "$tmp" -name '*.part-*')" ] || fault "a temporary file was left"

claim logits_with_n_generate_too_and_as_text_fill_lines
run 0 "$MOEFLUX" "$@" -p "$sum" --logits "$tmp/last" -n 8
out_is 85
run 0 "$MOEFLUX" "$@" --tokens-in "$tmp/ids" --logits - --logits-all
[ "$(awk 'NF == 2048' "$tmp/out" | wc -l)" -eq 22 ] || fault "not 22 lines of 2048 numbers"
run 0 "$MOEFLUX" "$@" --tokens-in "$tmp/ids" --logits -
[ "$(wc -lw <"$tmp/out" | awk '{ print $1 "x" $2 }')" = 1x2048 ] || fault "not one line of 2048 numbers"

claim json_is_one_object_with_what_scripts_need
run 0 "$MOEFLUX" "$@" -p "$sum" --json=full -s 11
err_empty
[ "$(wc -l <"$tmp/out")" -eq 1 ] || fault "more than one line"
json_is 'j["text"]' 85
json_is 'j["prompt_tokens"]' 22
json_is 'j["stop_reason"]' eos
json_is 'j["seed"]' 11
json_is 'len(j["tokens"]) >= 2 and j["tokens"][-1]' 1928
json_is 'all(j[k] > 0 for k in ("prefill_tok_s", "decode_tok_s", "time_to_first_token_s", "load_s"))' True
json_is '"thinking" in j' False
json_is 'isinstance(j["stats"], dict) and isinstance(j["device"], str) and isinstance(j["model"], str)' True
run 0 "$MOEFLUX" "$@" -p "$sum" --json -n 1
json_is '"stats" in j, "model" in j' '(False, True)'
fails 2 '^moeflux: --json: .*--json=full' "$@" -p "$sum" --json=some

claim the_stop_reason_is_length_or_context
run 0 "$MOEFLUX" "$@" -p "$sum" --json=full -n 1
json_is 'j["stop_reason"], len(j["tokens"])' "('length', 1)"
run 0 "$MOEFLUX" "$@" -p "$sum" --json=full --ignore-eos -c 25
json_is 'j["stop_reason"], len(j["tokens"])' "('context', 4)"
run 0 "$MOEFLUX" "$@" -p "$sum" --json=full -n 0
json_is 'j["tokens"], j["text"], j["decode_tok_s"]' "([], '', None)"

claim thinking_is_hidden_unless_it_is_asked_for
run 0 "$MOEFLUX" -m "$model" --temp 0 -p "$sum" --ignore-eos -n 24 --json=full
json_is '"thinking" in j' True
thought=$(json 'j["thinking"][:12]')
run 0 "$MOEFLUX" -m "$model" --temp 0 -p "$sum" --ignore-eos -n 24 --show-think
out_has '^<think>$'
head -n 2 "$tmp/out" | grep -qF "$thought" || fault "the thinking is not shown"
out_has '^</think>$'
run 0 "$MOEFLUX" -m "$model" --temp 0 -p "$sum" --ignore-eos -n 24
out_lacks '<think>'

claim the_same_seed_gives_the_same_text
story() { run 0 "$MOEFLUX" -m "$model" --raw -p 'Once upon a time there was' -n 24 --temp 1.5 "$@"; }
story -s 7 --tokens-out
cp "$tmp/out" "$tmp/seven"
story -s 8 --tokens-out
! cmp -s "$tmp/out" "$tmp/seven" || fault "two seeds give one text"
story --json=full
seed=$(json 'j["seed"]')
text=$(json 'j["tokens"]')
story --json=full -s "$seed"
json_is 'j["tokens"]' "$text"

claim stats_go_to_stderr
run 0 "$MOEFLUX" "$@" -p "$sum" --stats -s 5
out_is 85
err_has '^seed  *5$'
err_has '^prompt  *22 tokens .* tok/s$'
err_has '^decode  *[0-9]* tokens .* tok/s$'
err_has '^first token '
err_has 'stop: eos$'

claim counters_agree_with_each_other
for budget in 1200K 4M 40M; do
    run 0 "$MOEFLUX" "$@" -p "$sum" --json=full --memory $budget
    json_is 'j["text"]' 85
    # 24 tokens choose 4 experts in each of 8 layers; the experts of a chunk are counted once.
    json_is '(lambda s: s["hits"] + s["host_hits"] + s["misses"] <= 24 * 8 * 4)(j["stats"])' True
    json_is '(lambda s: s["predicted_right"] <= min(s["predicted"], s["predictable"]))(j["stats"])' True
    json_is '(lambda s: s["prefetched_used"] + s["prefetched_unused"] == s["prefetched"])(j["stats"])' True
    json_is 'len(j["stats"]["layer_wait_s"])' 8
    json_is 'abs(sum(j["stats"]["layer_wait_s"]) - j["stats"]["wait_read_s"]) < 1e-3' True
done
run 0 "$MOEFLUX" "$@" -p "$sum" --stats --memory 1200K
err_has '^hits  *[0-9.]* % of [0-9]* .*; [0-9.]* % .*disk$'
# Without a wait there is no time of a token.
err_has '^waits  *[0-9.]* s .*disk\( ([0-9.]* ms a token)\)*, [0-9.]* s .*device$'

claim usage_is_kept_from_run_to_run
choices() { awk 'NR > 1 && NF == 3 { n += $3 } END { print n + 0 }' "$tmp/usage"; }
run 0 "$MOEFLUX" "$@" -p "$sum" --usage "$tmp/usage" --memory 1200K
out_is 85
[ "$(head -n 1 "$tmp/usage")" = 'moeflux usage 1 8 32' ] || fault "it begins with $(head -n 1 "$tmp/usage")"
[ "$(tail -n 1 "$tmp/usage")" = end ] || fault "it ends with $(tail -n 1 "$tmp/usage")"
once=$(choices)
[ "$once" -gt 0 ] || fault "no choice was counted"
chmod 600 "$tmp/usage"
run 0 "$MOEFLUX" "$@" -p "$sum" --usage "$tmp/usage" --memory 1200K
out_is 85
[ "$(choices)" -eq $((2 * once)) ] || fault "once $once choices, then $(choices)"
[ "$(stat -c %a "$tmp/usage")" = 600 ] || fault "the mode was 600, it is $(stat -c %a "$tmp/usage")"
cp "$tmp/usage" "$tmp/pin"
run 0 "$MOEFLUX" "$@" -p "$sum" --pin "$tmp/pin" --memory 4M
out_is 85
cmp -s "$tmp/usage" "$tmp/pin" || fault "--pin changed its file"
run 0 "$MOEFLUX" "$@" --bench --bench-prompt 0 --bench-gen 2 --bench-reps 1 --usage "$tmp/usage" --memory \
    1200K
[ "$(choices)" -gt $((2 * once)) ] || fault "--bench did not count"
sed -i '$d' "$tmp/usage"
fails 1 "^moeflux: .*$tmp/usage: line [0-9]*: .*\"end\"" "$@" -p "$sum" --usage "$tmp/usage"
fails 1 "^moeflux: --usage $tmp/no/usage: No such file" "$@" -p "$sum" -n 0 --usage "$tmp/no/usage"
rm "$tmp/usage" "$tmp/pin"

claim invalid_utf8_is_replaced_and_reported_once
run 0 sh -c 'printf "What is 47 \377+\376 38?" | "$0" "$@" -n 3 --json=full' "$MOEFLUX" "$@"
err_line 'UTF-8: 2 '

claim output_is_whole_characters
run 0 "$MOEFLUX" "$@" -p 'What is the capital of Iceland?' -n 12
iconv -f UTF-8 -t UTF-8 "$tmp/out" >/dev/null 2>&1 || fault "the output is not UTF-8"
for n in 6 8 9; do
    run 0 "$MOEFLUX" "$@" --raw -p 'The capital of Iceland is Reykjav' -n "$n" --temp 2 -s "$n" --top-k 0
    iconv -f UTF-8 -t UTF-8 "$tmp/out" >/dev/null 2>&1 || fault "-n $n: the output is not UTF-8"
done

claim prompts_that_do_not_fit_are_refused_with_both_numbers
fails 2 ' 22 tokens, .* 21 (-c)' "$@" -p "$sum" -c 21
fails 2 ' 8193 .* 8192' "$@" -p "$sum" -c 8193
run 0 "$MOEFLUX" "$@" -p "$sum" -c 22 -n 1

claim ids_out_of_range_are_refused
echo 1 2 2048 >"$tmp/ids"
fails 2 'word 3 .* 2048, .* 0 to 2047$' "$@" --tokens-in "$tmp/ids" --tokens-out
echo 2147483647 >"$tmp/ids"
fails 2 'word 1 .* 2147483647, .* 0 to 2047$' "$@" --tokens-in "$tmp/ids" --logits "$tmp/refused"
[ ! -e "$tmp/refused" ] || fault "a refused run wrote logits"

claim a_model_that_does_not_fit_is_refused_with_numbers
fails 3 '--memory .* 1024 bytes, .* [0-9.]* MiB$' "$@" -p "$sum" --device reference --gpu-memory 1K --memory 1K

claim a_directory_without_tokenizer_takes_ids_only
cp -r "$model" "$tmp/bare"
rm "$tmp/bare/tokenizer.json"
python ids $golden case3.tokens >"$tmp/ids"
set -- -m "$tmp/bare" --temp 0
fails 2 "^moeflux: $tmp/bare .*tokenizer.json.*--tokens-in" "$@" -p "$sum"
fails 2 "^moeflux: $tmp/bare .*tokenizer.json.*--tokens-in" "$@" --raw -p "$sum"
fails 2 "^moeflux: $tmp/bare .*tokenizer.json.*--tokens-out" "$@" --tokens-in "$tmp/ids"
run 0 "$MOEFLUX" "$@" --tokens-in "$tmp/ids" --tokens-out -n 4
out_is "$(python ids $golden case3.greedy | cut -d' ' -f1-4)"
run 0 "$MOEFLUX" "$@" --tokens-in "$tmp/ids" --json=full -n 4
json_is 'j["text"], len(j["tokens"])' '(None, 4)'
run 0 "$MOEFLUX" "$@" --tokens-in "$tmp/ids" --logits "$tmp/last"
run 0 "$MOEFLUX" "$@" --bench --bench-prompt 8 --bench-gen 0 --bench-reps 1
set -- -m "$model" --temp 0 --no-think

claim no_output_replaces_a_file_of_the_model
cp -r "$model" "$tmp/own"
ln "$tmp/own/model_weights.bin" "$tmp/hard"
ln -s own/packed_experts/layer_03.bin "$tmp/soft"
mkdir "$tmp/links"
for file in "$tmp/own"/*; do ln -s "$file" "$tmp/links"; done
(cd "$tmp/own" && find . -type f -exec sha256sum {} +) | sort >"$tmp/sums"
echo '{"prompt": "x"}' >"$tmp/lines"
for file in "$tmp/own/model_weights.bin" "$tmp/own/config.json" "$tmp/own/packed_experts/layer_00.bin" \
    "$tmp/hard" "$tmp/soft" "$tmp/own/../own/tokenizer.json"; do
    for flag in --logits --hidden --usage --trace --prompt-cache; do
        fails 2 "^moeflux: $flag: $file .* $tmp/own " -m "$tmp/own" -p x $flag "$file"
    done
    fails 2 "^moeflux: --output: $file .* $tmp/own " -m "$tmp/own" --batch "$tmp/lines" -o "$file"
    fails 2 "^moeflux: --usage: $file .* $tmp/own " -m "$tmp/own" --bench --usage "$file"
done
file=$tmp/own/model_weights.bin
fails 2 "^moeflux: --logits: $file .* $tmp/links " -m "$tmp/links" -p x --logits "$file"
for flag in --logits --hidden; do
    for file in "$tmp/own/new.safetensors" "$tmp/own/packed_experts/new"; do
        fails 2 "^moeflux: $flag: $file .* $tmp/own; " -m "$tmp/own" -p x $flag "$file"
    done
done
(cd "$tmp/own" && find . -type f -exec sha256sum {} +) | sort | cmp -s - "$tmp/sums" ||
    fault 'the model has changed'
# A flag may replace a file that it wrote there before.
for i in 1 2; do
    run 0 "$MOEFLUX" -m "$tmp/own" -p "$sum" -n 1 --memory 1200K --usage "$tmp/own/usage" \
        --prompt-cache "$tmp/own/cache"
    run 0 "$MOEFLUX" -m "$tmp/own" --batch "$tmp/lines" -n 1 -o "$tmp/own/results"
    [ "$i" -eq 1 ] || err_has '1 there already'
done
rm -r "$tmp/own" "$tmp/links" "$tmp/hard" "$tmp/soft"

claim damaged_models_are_named
rm -rf "$tmp/bare/packed_experts"
cp -r "$model/packed_experts" "$tmp/bare"
truncate -s -1 "$tmp/bare/packed_experts/layer_00.bin"
fails 1 "^moeflux: $tmp/bare/packed_experts/layer_00.bin: 884735 bytes, .* 884736 " -m "$tmp/bare" \
    --tokens-in "$tmp/ids" --logits "$tmp/refused"
[ ! -e "$tmp/refused" ] || fault "a failed run wrote logits"

claim numbers_that_are_not_finite_end_the_run_and_leave_no_file
cp -r "$model" "$tmp/broken"
cp -r "$model" "$tmp/overflow"
# Some rows have biases near float's maximum, with all sixteen choices of signs in the four groups, so at
# least two of their products overflow in any order of additions. These are logits of the first model, and
# elements of the hidden state after the first layer of the second one.
python3 - "$tmp/broken" lm_head "$tmp/overflow" model.layers.0.linear_attn.out_proj <<'END'
import json, struct, sys
for folder, name in zip(sys.argv[1::2], sys.argv[2::2]):
    tensor = json.load(open(folder + '/model_weights.json'))['tensors'][name + '.biases']
    with open(folder + '/model_weights.bin', 'r+b') as f:
        n = tensor['shape'][1]
        f.seek(tensor['offset'] + 96 * n * 2)
        for row in range(16):
            f.write(b''.join(struct.pack('<H', 0x7f7f | (row >> g & 1) << 15) for g in range(n)))
END
printf 'Once upon a time there was a kind cat.' >"$tmp/text"
echo '{"prompt": "What is 47 + 38?"}' >"$tmp/lines"
number='-*\(nan\|inf\), '
for device in '' reference; do
    set -- -m "$tmp/broken" --temp 0 --no-think ${device:+--device "$device"}
    logit='.*logit .* token \(9[6-9]\|10[0-9]\|11[01]\) .*'$number
    fails 1 "^moeflux: position 21: $logit" "$@" -p "$sum" --logits "$tmp/refused"
    fails 1 "^moeflux: position 0: $logit" "$@" -p "$sum" --logits "$tmp/refused" --logits-all \
        --hidden "$tmp/hidden"
    fails 1 "^moeflux: position 21: $logit" "$@" -p "$sum" --logits -
    fails 1 "^moeflux: window 1, position 0: $logit" "$@" --perplexity "$tmp/text"
    fails 1 "^moeflux: position [0-9]*: $logit" "$@" --bench --bench-prompt 4 --bench-gen 0 --bench-reps 1
    fails 1 "^moeflux: position [0-9]*: $logit" "$@" --bench --bench-prompt 0 --bench-gen 2 --bench-reps 1
    fails 1 '^moeflux: position 21: .* token [0-9]* of 2048 .*\(not a number\|+infinity\)$' "$@" -p "$sum"
    run 1 "$MOEFLUX" "$@" --batch "$tmp/lines"
    out_empty
    err_has '^moeflux: position 21: .* token [0-9]* of 2048 '
    shift 2
    fails 1 "^moeflux: position [0-9]*, layer 1: .* [0-9]* .*hidden.* $number" -m "$tmp/overflow" "$@" \
        -p "$sum" --hidden "$tmp/hidden"
done
[ -z "$(find "$tmp" -name 'refused*' -o -name 'hidden.*')" ] ||
    fault "a failed run wrote $(find "$tmp" -name 'refused*')"
rm -r "$tmp/broken" "$tmp/overflow"
set -- -m "$model" --temp 0 --no-think

claim bench_prints_a_table_csv_and_json
run 0 "$MOEFLUX" "$@" --bench --bench-prompt 4,8 --bench-gen 3 --bench-reps 3
out_has '.*ids, experts resident, build [0-9.]* *'
out_has '^model  *size  *params B  *bits  *backend  *threads  *test  *reps  *tok/s  *+-  *min'
out_has '^Qwen3.5-MoE 18.2M.A7.2M  *10.3 MB  *0.02  *4.53  *[a-z]*  *[0-9]*  *prefill 8  *3  *[0-9.]'
out_has ' decode 3  *3  *[0-9.]'
run 0 "$MOEFLUX" "$@" --bench --bench-prompt 4,8 --bench-gen 3 --bench-reps 2 --csv
[ "$(awk -F, 'NF >= 19' "$tmp/out" | wc -l)" -eq 4 ] || fault "not 4 lines of 19 fields or more"
# Scripts count columns, so new ones follow the old ones.
# The last one may have commas, in quotes.
more=parallel,threads,deviation_tok_s,device,processor_ms_per_token
columns=test,tokens,reps,median_tok_s,min_tok_s,max_tok_s,spread_percent,median_ms_per_token,depth,model
[ "$(head -n 1 "$tmp/out")" = "$columns,model_bytes,params,bits_per_weight,backend,build,$more" ] ||
    fault "the columns are $(head -n 1 "$tmp/out")"
run 0 "$MOEFLUX" "$@" --bench --bench-prompt 4 --bench-gen 3 --bench-reps 2 --json=full
json_is '[(r["test"], r["tokens"], r["reps"]) for r in j["results"]]' "[('prefill', 4, 2), ('decode', 3, 2)]"
json_is 'all(0 < r["min_tok_s"] <= r["median_tok_s"] <= r["max_tok_s"] for r in j["results"])' True
json_is '" ".join(sorted(j))' \
    'architecture backend build device experts_resident ids load_s model results stats'
json_is '{(r["model_bytes"], r["params"], r["depth"]) for r in j["results"]}' '{(10319520, 18209760, 0)}'
fails 2 ' 8 tokens, .* 7 (-c)' "$@" --bench --bench-prompt 8 --bench-gen 0 -c 7

claim bench_measures_batched_decode_on_the_cpu
run 0 "$MOEFLUX" "$@" --device cpu --bench --bench-prompt 4 --bench-gen 3 --bench-reps 1 --bench-depth 6 \
    --bench-parallel 3 --json=full
json_is '[(r["test"], r["tokens"], r["depth"], r["parallel"]) for r in j["results"]]' \
    "[('prefill', 4, 6, 1), ('decode', 3, 6, 3)]"
run 0 "$MOEFLUX" "$@" --device cpu --memory 4M --expert-io uring --bench --bench-prompt 0 --bench-gen 2 \
    --bench-reps 1 --bench-parallel 8 --stats
err_has '^reads  *[0-9.]* [kM]*B .* token, .*disk .* [0-9.]* ms: .* [0-9.]* tok/s$'
fails 2 '--bench-parallel: .* 1 to 256, .*"257"$' "$@" --device cpu --bench --bench-parallel 257
fails 2 '--bench-parallel 2: CPU .* 1 ' "$@" --device cpu --bench --bench-parallel 2 --trace \
    "$tmp/trace.parallel"
fails 2 '--bench-parallel .*--bench ' "$@" --bench-parallel 2 -p x

claim bench_measures_after_a_context_that_is_computed_once
fails 2 ' 48 tokens, .* 47 (-c)' "$@" --bench --bench-prompt 8 --bench-gen 0 --bench-depth 4,40 -c 47
run 0 "$MOEFLUX" "$@" --bench --bench-prompt 8 --bench-gen 3 --bench-reps 2 --bench-depth 0,40
out_has ' prefill 8  '
out_has ' decode 3 @ d40  '
run 0 "$MOEFLUX" "$@" --bench --bench-prompt 8 --bench-gen 3 --bench-reps 2 --bench-depth 0,40 --json=full
json_is '[(r["test"], r["tokens"], r["depth"]) for r in j["results"]]' \
    "[('prefill', 8, 0), ('decode', 3, 0), ('prefill', 8, 40), ('decode', 3, 40)]"
# The counts begin after the last warm-up: at most 4 experts of 8 layers for 8 tokens and 1 + 3, each twice.
# If every repetition computed the 40 tokens, these would choose nearly all 32 experts of each layer once
# more.
counted='j["stats"]["hits"] + j["stats"]["misses"]'
set -- "$@" --memory 1200K --bench --bench-prompt 8 --bench-gen 3 --bench-reps 2 --json=full
run 0 "$MOEFLUX" "$@"
json_is "0 < $counted <= 768" True
run 0 "$MOEFLUX" "$@" --bench-depth 40
json_is "0 < $counted <= 768" True
set -- -m "$model" --temp 0 --no-think

claim bench_copies_the_rows_of_a_long_context
set -- -m "$model"
run 0 "$MOEFLUX" "$@" --bench --bench-prompt 8 --bench-gen 3 --bench-reps 2 --bench-depth 0,700 --bench-fill 256 \
    --json=full
json_is '[(r["test"], r["depth"]) for r in j["results"]]' \
    "[('prefill', 0), ('decode', 0), ('prefill', 700), ('decode', 700)]"
set -- "$@" --memory 1200K --bench --bench-prompt 0 --bench-gen 3 --bench-reps 1 --bench-depth 4096
run 0 "$MOEFLUX" "$@" --bench-fill 256 --bench-parallel 2
fails 2 '--bench-fill: .*300 ' "$@" --bench-fill 300
fails 2 '--bench-fill .*--bench-depth' -m "$model" --bench --bench-fill 256
set -- -m "$model" --temp 0 --no-think

claim inspect_describes_the_model
run 0 "$MOEFLUX" inspect "$model" --no-measure
out_has '^architecture  *Qwen3.5'
out_has '^layers  *8, 2 '
run 0 "$MOEFLUX" inspect "$model" --no-measure --json
json_is 'j["experts"], j["top_k"], j["layers"], j["vocab_size"]' '(32, 4, 8, 2048)'
json_is '0 < j["floor_bytes"] <= j["resident_bytes"]' True
json_is 'j["token_expert_bytes"] == 8 * 4 * j["one_expert_bytes"]' True

claim a_full_disk_is_reported_and_a_closed_pipe_is_not
got=0
"$MOEFLUX" "$@" -p "$sum" >/dev/full 2>"$tmp/err" || got=$?
[ "$got" -eq 1 ] || fault "full: status $got"
err_has '^moeflux: stdout: write: No space left'
# The reader's end is closed before the program starts.
run 1 python3 -c 'import os, signal, sys
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
reader, writer = os.pipe()
os.close(reader)
os.dup2(writer, 1)
os.execv(sys.argv[1], sys.argv[1:])' "$MOEFLUX" "$@" --raw -p 'Once upon a time' -n 40
err_empty
got=0
"$MOEFLUX" "$@" -p "$sum" >&- 2>"$tmp/err" || got=$?
[ "$got" -eq 1 ] || fault "closed: status $got"
err_has '^moeflux: stdout: write: Bad file descriptor$'

claim a_limit_on_file_sizes_is_a_failed_write_that_leaves_nothing
mkdir "$tmp/limited"
printf old >"$tmp/limited/logits"
run 1 bash -c 'ulimit -f 8; exec "$0" "$@"' "$MOEFLUX" "$@" -p "$sum" --logits-all --logits \
    "$tmp/limited/logits"
one_line
err_has "^moeflux: .*$tmp/limited/logits: write.*: File too large$"
[ "$(ls "$tmp/limited")$(cat "$tmp/limited/logits")" = logitsold ] || fault "$(ls -l "$tmp/limited")"

claim an_interruption_keeps_what_was_printed_and_ends_with_130
# The output of the last run must not end the wait: the signal would come before the program has started.
rm -f "$tmp/out"
"$MOEFLUX" "$@" --raw -p 'Once upon a time' --ignore-eos >"$tmp/out" 2>"$tmp/err" &
pid=$!
await -p $pid test -s "$tmp/out"
kill -INT $pid
ends 130 $pid
err_empty
[ "$(tail -c 1 "$tmp/out" | od -An -c | tr -d ' ')" = '\n' ] || fault "the last line has no end"

end_claim
python3 tests/cli/terminal.py "$MOEFLUX" "$model" || n_failed=$((n_failed + 1))
report
