#!/bin/sh
# --active-experts and --expert-share: what they print, change, count and refuse, on the CPU.
# test_active_experts compares their logits.
# suites: check fast asan-nightly
. tests/lib/cli.sh

tiny=tests/models/tiny deepseek=tests/models/deepseek-odd/mlx
story='Once upon a time there was a kind cat. It liked 12 dogs.'
printf '%s' "$story" >"$tmp/text"
set -- -m "$tiny" --device cpu --temp 0
# The one line on stderr: how many experts a token has, of how many, and how many the model asks for.
fewer='^moeflux: 2 of 32 experts .* 4$' share='^moeflux: .* 4 of 32 experts .* 0.7 .* 4$'

claim the_models_own_number_and_all_of_the_weights_change_no_byte
run 0 "$MOEFLUX" "$@" --raw -p 'Once upon a time' -n 40 --ignore-eos
err_empty
cp "$tmp/out" "$tmp/own"
run 0 "$MOEFLUX" "$@" --raw -p 'Once upon a time' -n 40 --ignore-eos --active-experts 4
cmp -s "$tmp/own" "$tmp/out" || fault "another text: $(cat "$tmp/out")"
err_line '^moeflux: 4 of 32 experts .* 4$'
run 0 "$MOEFLUX" "$@" --raw -p 'Once upon a time' -n 40 --ignore-eos --expert-share 1
cmp -s "$tmp/own" "$tmp/out" || fault "another text: $(cat "$tmp/out")"
err_empty

claim all_that_computes_uses_them_and_says_so_once
run 0 "$MOEFLUX" "$@" --perplexity "$tmp/text" --json=full
perplexity=$(json 'j["perplexity"]')
for flags in '--active-experts 2' '--expert-share 0.7'; do
    line=$fewer used='(2, 1.0)'
    [ "$flags" = '--active-experts 2' ] || line=$share used='(4, 0.7)'
    uses_them() {
        err_line "$line"
        json_is 'j["stats"]["active_experts"], j["stats"]["expert_share"]' "$used"
    }
    # shellcheck disable=SC2086 # flags are words
    {
        run 0 "$MOEFLUX" "$@" -p "$story" --no-think -n 3 $flags --json=full
        uses_them
        run 0 "$MOEFLUX" "$@" --bench --bench-prompt 4 --bench-gen 2 --bench-reps 1 $flags --json=full
        uses_them
        run 0 "$MOEFLUX" "$@" --perplexity "$tmp/text" $flags --json=full
        uses_them
        json_is "j['perplexity'] != $perplexity" True
        printf '{"prompt": "%s"}\n{"prompt": "Hello"}\n' "$story" >"$tmp/lines"
        run 0 "$MOEFLUX" "$@" --batch "$tmp/lines" -n 3 $flags
    }
    [ "$(wc -l <"$tmp/out")" -eq 2 ] || fault "$flags: not two answers"
    [ "$(grep -c "$line" "$tmp/err")" -eq 1 ] || fault "$flags: a batch says it not once: $(cat "$tmp/err")"
done

claim a_comparison_counts_what_tokens_had
run 0 "$MOEFLUX" "$@" --perplexity "$tmp/text" --compare --active-experts=2 --compare --expert-share=0.7 \
    --json=full
cp "$tmp/out" "$tmp/compared"
run 0 "$MOEFLUX" inspect "$tiny" --device cpu --no-measure --json
dense=$(json 'j["token_dense_bytes"]') all=$(json 'j["token_expert_bytes"]')
json_is "[round((r['bytes_per_token'] - $dense) / $all, 6) for r in j['results'][:2]]" '[1.0, 0.5]' \
    "$tmp/compared"
run 0 "$MOEFLUX" "$@" --perplexity "$tmp/text" --expert-share 0.7 --json=full
experts=$(json 'j["stats"]["experts_per_token"]')
json_is \
    "1 < $experts < 4 and abs((j['results'][2]['bytes_per_token'] - $dense) / $all - $experts / 4) < 1e-5" \
    True \
    "$tmp/compared"

claim inspect_counts_them
run 0 "$MOEFLUX" inspect "$tiny" --device cpu --no-measure --json
own_bytes=$(json 'j["token_expert_bytes"]')
json_is 'j["top_k"], j["model_top_k"], j["expert_share"]' '(4, 4, 1.0)'
run 0 "$MOEFLUX" inspect "$tiny" --device cpu --json --active-experts 1
json_is 'j["top_k"], j["model_top_k"]' '(1, 4)'
json_is '4 * j["token_expert_bytes"]' "$own_bytes"
disk=$(json 'j["forecast"][0]["disk_s"] * j["speeds"]["disk_bytes_s"]')
json_is "abs($disk / j['token_expert_bytes'] - 1) < 1e-3" True
err_empty
run 0 "$MOEFLUX" inspect "$tiny" --device cpu --no-measure --active-experts 8 --expert-share 0.9
out_has '^experts  *32 .* 8 .* 4), '
out_has '^  routed experts  .*(--expert-share 0.9)'
err_empty
run 0 "$MOEFLUX" "$@" --plan --active-experts 32
fails 3 '^moeflux: --memory .* 0.59 MiB.* 0.88 MiB' "$@" --plan --active-experts 32 --memory 600K

claim fewer_experts_are_fewer_bytes_read
reads() {
    run 0 "$MOEFLUX" "$@" --raw -p 'Once upon a time' -n 20 --ignore-eos --json=full --memory 1200K --prefetch none
    json 'j["stats"]["read_bytes"] if j["stats"]["reads"] else None'
}
all=$(reads "$@") some=$(reads "$@" --expert-share 0.7) two=$(reads "$@" --active-experts 2)
[ "$some" -lt "$all" ] || fault "a share of 0.7 reads $some bytes, all $all"
[ "$two" -lt "$all" ] || fault "two experts read $two bytes, four $all"

claim a_state_of_other_settings_is_not_used
run 0 "$MOEFLUX" "$@" --raw -p "$story" -n 3 --prompt-cache "$tmp/state" --active-experts 2
cp "$tmp/state" "$tmp/was"
run 0 "$MOEFLUX" "$@" --raw -p "$story" -n 3 --prompt-cache "$tmp/state"
err_line "^moeflux: .*$tmp/state: .*model.*experts"
cmp -s "$tmp/state" "$tmp/was" || fault "the state was replaced"
run 0 "$MOEFLUX" "$@" --raw -p "$story" -n 3 --prompt-cache "$tmp/state" --active-experts 2 --json=full
json_is 'j["reused_tokens"] > 0' True

claim what_makes_no_sense_is_refused
for value in 0 -1 1.5 nan x two 99999999999; do
    fails 2 "--active-experts: .* 1 to .*\"$value\"$" "$@" -p x --active-experts "$value"
    fails 2 "--active-experts: .* 1 to .*\"$value\"$" inspect "$tiny" --active-experts "$value"
done
for verb in '-p x' --plan --bench "--perplexity $tmp/text"; do
    # shellcheck disable=SC2086 # words are words
    fails 2 '--active-experts 33, .* 32 ' "$@" $verb --active-experts 33
done
fails 2 '--active-experts 33, .* 32 ' inspect "$tiny" --device cpu --active-experts 33
fails 2 '--active-experts 9, .* 8 (2 .* 4 ' -m "$deepseek" --device cpu -p x --active-experts 9
for value in 0 -0.5 1.5 1e+30; do
    fails 2 "--expert-share: .* 0 .* 1, .* $value$" "$@" -p x --expert-share "$value"
    fails 2 "--expert-share: .* 0 .* 1, .* $value$" inspect "$tiny" --expert-share "$value"
done
for value in nan inf half ''; do
    fails 2 '--expert-share' "$@" -p x --expert-share "$value"
done
report
