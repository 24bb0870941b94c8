#!/bin/sh
# Shards of a batch under GNU parallel, on the native CPU: interrupted, continued, and retried.
# suites: nightly asan-nightly
. tests/lib/cli.sh

if ! command -v parallel >/dev/null || ! parallel --version 2>/dev/null | grep -q GNU; then
    echo "SKIP shards_run_under_gnu_parallel: it is not installed (package parallel)"
    exit 0
fi
export HOME="$tmp"
model=$tmp/tiny
run 0 "$MOEFLUX" convert tests/models/tiny "$model"
for i in $(seq 40); do
    echo "{\"id\": $i, \"raw\": true, \"prompt\": \"Once $i\", \"n\": 40, \"temp\": 0, \"ignore_eos\": true}"
done >"$tmp/in"

# Four shards, two at a time, as in moeflux-shards(7).
set -- parallel -j 2 --joblog "$tmp/log" --resume-failed "$MOEFLUX" -m "$model" --device cpu -t 1 --batch \
    "$tmp/in" \
    --shard '{}/4' -o "$tmp/answers.{}.jsonl" --retry-failed ::: 1 2 3 4
n_results() { cat "$tmp"/answers.*.jsonl 2>/dev/null | wc -l; }

claim shards_that_are_interrupted_continue_with_the_same_command
# Ctrl-C in a terminal interrupts parallel and all that it runs: they are a process group.
setsid env --default-signal=INT "$@" >"$tmp/out" 2>"$tmp/err" &
pid=$!
# shellcheck disable=SC2317 # called by await
has_results() { [ "$(n_results)" -ge "$1" ]; }
await -p $pid has_results 3
kill -s INT -- -$pid
wait $pid
n=$(n_results)
{ [ "$n" -ge 3 ] && [ "$n" -lt 40 ]; } || fault "$n results"
# What parallel ran may end after it; it locks its results.
# shellcheck disable=SC2317 # called by await
unlocked() { for file in "$tmp"/answers.*.jsonl; do flock -n "$file" true || return 1; done; }
await unlocked
cat "$tmp"/answers.*.jsonl | sort >"$tmp/before"
run 0 "$@"
[ "$(n_results)" -eq 40 ] || fault "$(n_results) results: $(cat "$tmp/err")"
cat "$tmp"/answers.*.jsonl | sort | comm -23 "$tmp/before" - >"$tmp/lost"
[ ! -s "$tmp/lost" ] || fault "lost: $(head -c 300 "$tmp/lost")"

claim the_shards_have_the_answers_of_one_run
run 0 "$MOEFLUX" -m "$model" --device cpu --batch "$tmp/in"
cat "$tmp"/answers.*.jsonl >"$tmp/answers"
texts='sorted((x["id"], x["text"]) for x in r)'
json_is "$texts" "$(json "$texts" "$tmp/answers")"

claim a_shard_that_failed_is_run_again_and_no_other
rm -f "$tmp/log" "$tmp"/answers.*
sed '2s/Once 2/'"$(printf '%0300d' 0)"'/' "$tmp/in" >"$tmp/long" && mv "$tmp/long" "$tmp/in"
sed -n 1,8p "$tmp/in" >"$tmp/few" && mv "$tmp/few" "$tmp/in"
run 1 parallel -j 2 --joblog "$tmp/log" "$MOEFLUX" -m "$model" --device cpu -t 1 -c 100 --batch "$tmp/in" \
    --shard '{}/4' -o "$tmp/answers.{}.jsonl" ::: 1 2 3 4
[ "$(n_results)" -eq 8 ] || fault "$(n_results) results"
# parallel wants the command that its log names: the context in it is taken out.
sed -i 's/ -c 100 / /; s/ -o \([^ ]*\)$/ -o \1 --retry-failed/' "$tmp/log"
run 0 "$@"
err_has "^moeflux: $tmp/answers.2.jsonl: 1 "
[ "$(grep -c '^moeflux: [0-9]* answered' "$tmp/err")" -eq 1 ] || fault "other shards ran: $(cat "$tmp/err")"
grep -q '"error"' "$tmp"/answers.*.jsonl && fault 'a failed result is still there'

report
