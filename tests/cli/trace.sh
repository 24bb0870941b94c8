#!/bin/sh
# Traces of the router's choices: how a run writes one, and what inspect makes of it.
# suites: nightly long asan-nightly
. tests/lib/cli.sh

model=$tmp/tiny
refused() {
    fails 1 "^moeflux: .*$tmp/bad: $1" inspect --trace "$tmp/bad"
    fails 1 "^moeflux: .*$tmp/bad: $1" inspect --trace "$tmp/bad" --json
}

"$MOEFLUX" convert tests/models/tiny "$model" 2>/dev/null || exit 1
set -- -m "$model" --device cpu --temp 0 --no-think

claim a_trace_changes_nothing_and_does_not_depend_on_the_cache
run 0 "$MOEFLUX" "$@" -p 'What is 47 + 38?' --tokens-out
cp "$tmp/out" "$tmp/plain"
for memory in 512K 3M 1G; do
    run 0 "$MOEFLUX" "$@" -p 'What is 47 + 38?' --tokens-out --memory $memory --trace "$tmp/trace-$memory"
    err_empty
    cmp -s "$tmp/out" "$tmp/plain" || fault "with --memory $memory the answer is $(cat "$tmp/out")"
    cmp -s "$tmp/trace-512K" "$tmp/trace-$memory" || fault "the trace with --memory $memory is another one"
done
[ "$(head -n 1 "$tmp/trace-1G")" = 'moeflux trace 1 8 32 4 27648' ] ||
    fault "it begins with $(head -n 1 "$tmp/trace-1G")"
[ "$(tail -n 1 "$tmp/trace-1G")" = end ] || fault "it ends with $(tail -n 1 "$tmp/trace-1G")"

# The weights of a token's experts sum to one. The layers follow each other.
claim a_trace_has_each_layer_of_each_token_with_its_weights
python3 - "$tmp/trace-1G" >"$tmp/wrong" 2>&1 <<'END' || fault "$(cat "$tmp/wrong")"
import sys
lines = [line.split() for line in open(sys.argv[1])][1:-1]
n = int(lines[0][2])
assert n > 10 and len(lines) % 8 == 0, (n, len(lines))
assert [(int(a[0]), int(a[1])) for a in lines[:8 * n]] == [(l, t) for l in range(8) for t in range(n)]
assert [(int(a[0]), int(a[1]), a[2]) for a in lines[8 * n:8 * n + 8]] == [(l, n, '1') for l in range(8)]
for a in lines:
    experts, weights = zip(*(pair.split(':') for pair in a[3:]))
    assert len(set(experts)) == 4 and abs(sum(map(float, weights)) - 1) < 0.001, a
    assert sorted(map(float, weights), reverse=True) == list(map(float, weights)), a
END

claim a_token_has_as_many_experts_as_the_flags_say
run 0 "$MOEFLUX" "$@" -p 'What is 47 + 38?' -n 4 --active-experts 3 --trace "$tmp/trace"
[ "$(head -n 1 "$tmp/trace")" = 'moeflux trace 1 8 32 3 27648' ] ||
    fault "it begins with $(head -n 1 "$tmp/trace")"
run 0 "$MOEFLUX" "$@" -p 'What is 47 + 38?' -n 4 --expert-share 0.8 --trace "$tmp/trace"
counts=$(awk 'NF > 3 && !/moeflux/ { print NF - 3 }' "$tmp/trace" | sort -nu | tr '\n' ' ')
[ "$counts" = '1 2 3 4 ' ] || fault "tokens have $counts experts"
run 0 "$MOEFLUX" inspect --trace "$tmp/trace"

# The store and the replay share the cache's code, so their hits are equal.
claim a_replay_has_the_hits_of_the_run
generate() {
    run 0 "$MOEFLUX" -m "$model" --device cpu --raw --temp 0.7 -s 1 -n 300 --ignore-eos --chunk 1 --prefetch \
        none \
        -p 'The river was very quiet.' "$@"
}
for memory in 1200K 3M; do
    generate --memory $memory --trace "$tmp/long" --json=full
    real=$(json '(lambda s: (s["slots"], round(s["hits"] / (s["hits"] + s["misses"]), 6)))(j["stats"])')
    run 0 "$MOEFLUX" inspect --trace "$tmp/long" "$model" --device cpu --memory $memory --json
    json_is '[(r["slots"], round(r["hits"]["frequency"], 6)) for r in j["rows"] if r["plan"]][0]' "$real"
    for policy in lru context; do
        generate --memory $memory --cache-policy $policy --trace "$tmp/trace" --stats
        cmp -s "$tmp/trace" "$tmp/long" || fault "--cache-policy $policy changes the choices"
        real=$(sed -n 's/^hits  *\([0-9.]* %\) of .*/\1/p' "$tmp/err")
        err_has "^replay  *$real hits "
    done
done

# 8 layers of 32 x 32 numbers are 32 KiB, more than the 28 of an expert. With a slot for every expert it
# learns nothing.
claim what_a_policy_learns_takes_the_memory_of_slots
slots() {
    run 0 "$MOEFLUX" -m "$model" --device cpu --plan --json --cache-policy "$@"
    json 'j["slots"]'
}
[ "$(slots frequency --memory 3M)" -gt "$(slots context --memory 3M)" ] || fault 'the slots are as many'
[ "$(slots frequency) $(slots context)" = '256 256' ] || fault 'not all have a slot'

claim the_table_shows_the_hits_of_more_memory
run 0 "$MOEFLUX" inspect --trace "$tmp/long"
err_empty
out_has '^  experts  *8 .* 32, 4 .*, 27.6 kB .*, 7.08 MB '
out_has '^  tokens  *[0-9]* '
out_has '^   slots  of all  *memory frequency  *context  *lru  *lfu  *best'
out_has '^     128    50 %    3.54 MB\(  *[0-9.]* %\)\{5\}\(  *[0-9.]* kB\)\{2\}$'
out_has '^  *80 %  *[0-9.]* MB  *[0-9.]* MB$'
[ "$(grep -c '^    [0-7]  *[0-9]* ' "$tmp/out")" -eq 8 ] || fault "not eight layers: $(cat "$tmp/out")"
out_lacks ' $'
run 0 "$MOEFLUX" inspect --trace "$tmp/long" "$model" --device cpu --memory 1200K
out_has '  this plan$'
out_has '^[0-9.]* .B more .* token reads [0-9]* % less'
run 0 "$MOEFLUX" inspect --trace "$tmp/long" --json
json_is '[r["slots"] for r in j["rows"]]' '[25, 51, 76, 102, 128, 153, 179, 204, 230, 256]'
json_is 'all(h <= r["hits"]["best"] for r in j["rows"] for h in r["hits"].values())' True
json_is 'all(r["token_bytes"]["best"] <= r["token_bytes"]["frequency"] for r in j["rows"])' True
json_is 'len(j["layers"]), j["layers"][7]["layer"], j["top_k"], j["one_expert_bytes"]' '(8, 7, 4, 27648)'
json_is 'all(l["cover_50"] <= l["cover_80"] <= l["cover_95"] <= l["experts_used"] for l in j["layers"])' True
json_is 'all(0 < l["reuse_50"] <= l["reuse_90"] for l in j["layers"])' True

claim the_table_shows_the_hits_of_known_tokens
run 0 "$MOEFLUX" inspect --trace "$tmp/long"
out_has '^slots  *64  *distance  *128  *distance$'
out_has '^frequency  *[0-9.]* %  *0 %  *[0-9.]* %  *0 %$'
out_has '^2 tokens  *[0-9.]* %  *[0-9]* %  *[0-9.]* %  *[0-9]* %$'
out_has '^best  *[0-9.]* %  *100 %  *[0-9.]* %  *100 %$'
run 0 "$MOEFLUX" inspect --trace "$tmp/long" --json
json_is '[a["slots"] for a in j["ahead"]]' '[64, 128]'
json_is 'all([k["tokens"] for k in a["known"]] == [1, 2, 4, 8, 16] for a in j["ahead"])' True
hits='[a["frequency"], *(k["hits"] for k in a["known"][:3])]'
json_is "all($hits == sorted(set($hits)) and ${hits}[3] <= a['best'] for a in j['ahead'])" True

# The trace is long enough for the policy to learn from it.
claim the_policy_that_learns_has_more_hits
run 0 "$MOEFLUX" -m "$model" --device cpu --raw --temp 0.7 -s 1 -n 1500 --ignore-eos --trace "$tmp/longer" \
    -p 'The river was very quiet. A brave owl slept under the tree.'
run 0 "$MOEFLUX" inspect --trace "$tmp/longer" --json
json_is 'all(r["hits"]["context"] > r["hits"]["frequency"] + 0.02 for r in j["rows"][:6])' True

claim stats_have_the_skew_and_the_best_possible_hits
run 0 "$MOEFLUX" "$@" -p 'What is 47 + 38?' --memory 3M --trace "$tmp/trace" --stats
out_is 85
err_has '^skew  *.*experts'
err_has '^replay  *[0-9.]* % hits .* 109 slots .*; .*best.* [0-9.]* %$'
err_has 'reuse after'

claim a_usage_file_shows_the_skew
printf 'moeflux usage 1 2 5\n0 0 10\n0 1 50\n0 3 30\n0 4 10\nend\n' >"$tmp/usage"
run 0 "$MOEFLUX" inspect --usage "$tmp/usage"
err_empty
out_has '^    0        100        4       1     2     4$'
run 0 "$MOEFLUX" inspect --usage "$tmp/usage" --json
json_is 'j["layers"] == [dict(layer=0, uses=100, experts_used=4, cover_50=1, cover_80=2, cover_95=4)]' True
fails 1 "^moeflux: .*$tmp/usage: line 1: .*moeflux usage 1 8 32, .*\"moeflux usage 1 2 5\"$" inspect --usage \
    "$tmp/usage" "$model"
fails 1 "^moeflux: .*$tmp/none: No such file" inspect --usage "$tmp/none"
head -c 60 "$tmp/usage" >"$tmp/bad"
sed -i '$d' "$tmp/usage"
fails 1 "^moeflux: .*$tmp/usage: line 6: .*\"end\"" inspect --usage "$tmp/usage"

claim bad_traces_are_refused_in_a_line
head -n 40 "$tmp/long" >"$tmp/bad" && refused 'line 41: .*"end"'
sed '1s/trace 1/trace 2/' "$tmp/long" >"$tmp/bad" && refused 'line 1: .*"moeflux trace 1 .*"moeflux trace 2 '
sed '3s/ [0-9]*:/ 32:/' "$tmp/long" >"$tmp/bad" && refused 'line 3: .*expert .*32, .* 32:'
sed '3s/^[0-9]*/8/' "$tmp/long" >"$tmp/bad" && refused 'line 3: .*layer .*8 .*"8 '
cp tests/lib/cli.sh "$tmp/bad" && refused 'line 1: .*"moeflux trace .*"# '
: >"$tmp/bad" && refused 'line 1: .*""$'
printf 'moeflux trace 1 8 32 4 27648\nend\n' >"$tmp/bad" && refused '.*choices'
rm "$tmp/bad" && refused 'No such file'
fails 1 "^moeflux: .*$tmp: .*file" inspect --trace "$tmp"
fails 1 "^moeflux: .*$tmp/long: .* 6 .* 12 .* 8 .* 32$" inspect --trace "$tmp/long" tests/models/qwen-odd/mlx
fails 2 ' MODEL .*--help' inspect
fails 2 '--compare .*--trace ' -m "$model" --perplexity "$tmp/long" --compare "$model" --trace "$tmp/x"
fails 2 '--trace .*--usage ' inspect --trace "$tmp/long" --usage "$tmp/usage"
for mode in --plan --selftest --list-devices; do
    fails 2 '--trace .*--plan, --selftest or --list-devices ' -m "$model" $mode --trace "$tmp/x"
done
[ ! -e "$tmp/x" ] || fault 'a refused run has written its trace'

claim a_run_that_fails_leaves_no_trace
mkdir "$tmp/place"
fails 1 "^moeflux: .*$tmp/no/trace: No such file" "$@" -p x --trace "$tmp/no/trace"
fails 2 ' 9006 .* 20 (-c)' "$@" -p "$(head -c 9000 "$tmp/long")" -c 20 --trace "$tmp/place/trace"
# shellcheck disable=SC2016 # the inner shell expands them
run 1 bash -c 'ulimit -f 4; exec "$0" "$@"' "$MOEFLUX" "$@" -p 'What is 47 + 38?' --trace "$tmp/place/trace"
out_is 85
err_line "^moeflux: .*$tmp/place/trace: .*File too large"
[ -z "$(ls -A "$tmp/place")" ] || fault "files: $(ls -A "$tmp/place")"

report
