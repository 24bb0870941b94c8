#!/bin/sh
# --prefer-resident on the CPU: what it prints, changes, records and refuses. test_prefer_resident has every
# backend.
# suites: check fast asan-nightly
. tests/lib/cli.sh

tiny=tests/models/tiny
story='Once upon a time there was a kind cat. It liked 12 dogs. Nobody saw the old goat near the lake.'
story="$story Ivy likes bread."
printf '%s' "$story" >"$tmp/text"
# A quarter of the experts has a slot. Without prefetches the resident experts do not depend on the speed of
# reads.
set -- -m "$tiny" --device cpu --temp 0 --memory 1770K --prefetch none
# The one line on stderr: the margin, and what the text depends on.
margin='^moeflux: .* 0.5 higher, so the text depends on what is in memory$'

claim off_changes_no_byte
run 0 "$MOEFLUX" "$@" --raw -p "$story" -n 40 --ignore-eos
cp "$tmp/out" "$tmp/plain"
run 0 "$MOEFLUX" "$@" --raw -p "$story" -n 40 --ignore-eos --prefer-resident 0
cmp -s "$tmp/plain" "$tmp/out" || fault "another text: $(cat "$tmp/out")"
err_empty

claim where_all_experts_are_in_memory_it_says_so_and_changes_no_byte
run 0 "$MOEFLUX" -m "$tiny" --device cpu --temp 0 --raw -p "$story" -n 40 --ignore-eos --prefer-resident 9
cmp -s "$tmp/plain" "$tmp/out" || fault "another text: $(cat "$tmp/out")"
err_line '^moeflux: --prefer-resident .*experts '

claim all_that_computes_uses_it_and_says_so_once
wanted='(lambda s: (s["prefer_resident"], s["preferred"] > 0))(j["stats"])'
run 0 "$MOEFLUX" "$@" --raw -p "$story" -n 20 --ignore-eos --prefer-resident 0.5 --json=full
err_line "$margin"
json_is "$wanted" '(0.5, True)'
run 0 "$MOEFLUX" "$@" --bench --bench-prompt 4 --bench-gen 9 --bench-reps 1 --prefer-resident 0.5 --json=full
err_line "$margin"
json_is "$wanted" '(0.5, True)'
run 0 "$MOEFLUX" "$@" --perplexity "$tmp/text" --prefer-resident 0.5 --json=full
err_line "$margin"
json_is "$wanted" '(0.5, True)'
printf '{"prompt": "%s"}\n{"prompt": "Hello"}\n' "$story" >"$tmp/lines"
run 0 "$MOEFLUX" "$@" --batch "$tmp/lines" -n 3 --prefer-resident 0.5
[ "$(grep -c "$margin" "$tmp/err")" -eq 1 ] || fault "a batch says it not once: $(cat "$tmp/err")"
run 0 "$MOEFLUX" "$@" --raw -p "$story" -n 20 --ignore-eos --prefer-resident 0.5 --stats
err_has '^preferred  *[1-9][0-9]* .*experts'

claim a_comparison_shows_more_hits_fewer_bytes_and_what_it_costs
run 0 "$MOEFLUX" "$@" --perplexity "$tmp/text" --compare --prefer-resident=0.3 --compare --prefer-resident=3 \
    --json=full
pairs='for a, b in zip(j["results"], j["results"][1:])'
json_is "all(a['hit_rate_percent'] + 5 < b['hit_rate_percent'] $pairs)" True
json_is "all(a['read_bytes_per_token'] > 1.1 * b['read_bytes_per_token'] $pairs)" True
json_is 'all(r["kl_divergence"] > 1e-5 for r in j["results"][1:])' True
# All settings are evaluated token by token, so only the margin differs, and one near 0 changes nothing.
run 0 "$MOEFLUX" "$@" --perplexity "$tmp/text" --compare --prefer-resident=0 --compare \
    --prefer-resident=1e-30 --json=full
json_is '[r["kl_divergence"] for r in j["results"]]' '[None, 0.0, 0.0]'
run 0 "$MOEFLUX" -m "$tiny" --device cpu --perplexity "$tmp/text" --compare --active-experts=4 --json=full
json_is '[r["hit_rate_percent"] for r in j["results"]]' '[None, None]'

claim a_trace_has_the_experts_that_were_taken
# A replay of the trace has as many hits as the run, with a cache like the run's.
run 0 "$MOEFLUX" "$@" --perplexity "$tmp/text" --prefer-resident 1 --trace "$tmp/trace" --json=full
real=$(json '(lambda s: (s["slots"], round(s["hits"] / (s["hits"] + s["misses"]), 6)))(j["stats"])')
run 0 "$MOEFLUX" inspect --trace "$tmp/trace" "$tiny" --device cpu --memory 1770K --json
json_is '[(r["slots"], round(r["hits"]["frequency"], 6)) for r in j["rows"] if r["plan"]][0]' "$real"

claim a_state_of_another_margin_is_not_used
run 0 "$MOEFLUX" "$@" --raw -p "$story" -n 3 --prompt-cache "$tmp/state" --prefer-resident 0.5
run 0 "$MOEFLUX" "$@" --raw -p "$story" -n 3 --prompt-cache "$tmp/state" --prefer-resident 0.5 --json=full
json_is 'j["reused_tokens"] > 0' True
run 0 "$MOEFLUX" "$@" --raw -p "$story" -n 3 --prompt-cache "$tmp/state"
err_line "^moeflux: .*$tmp/state: .*model.*experts"

claim what_is_no_margin_is_refused
for verb in '-p x' --plan --bench "--perplexity $tmp/text"; do
    # shellcheck disable=SC2086 # words are words
    fails 2 '^moeflux: --prefer-resident: .* 0 .* -1$' "$@" $verb --prefer-resident -1
done
for value in nan x inf 1e39; do
    fails 2 "^moeflux: --prefer-resident: .*number, .*\"$value\"$" "$@" -p x --prefer-resident "$value"
done
fails 2 '^moeflux: --prefer-resident .*value' "$@" -p x --prefer-resident ''
fails 2 '^moeflux: --compare "--prefer-resident=-2": --prefer-resident: .* 0 .* -2$' "$@" --perplexity \
    "$tmp/text" \
    --compare --prefer-resident=-2
report
