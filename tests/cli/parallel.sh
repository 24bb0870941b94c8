#!/bin/sh
# Shards of a batch under GNU parallel, on the native CPU: all together, interrupted, and gone on with.
# suites: later asan
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

# shards FLAG...: four of them, two at a time, as in moeflux-shards(7)
# shellcheck disable=SC2317 # called by run
shards() {
    parallel "$@" -j 2 --joblog "$tmp/log" --resume-failed \
        "$MOEFLUX" -m "$model" --device cpu -t 1 --batch "$tmp/in" --shard '{}/4' -o "$tmp/answers.{}.jsonl" \
            --retry-failed \
        ::: 1 2 3 4
}
n_results() { cat "$tmp"/answers.*.jsonl 2>/dev/null | wc -l; }

claim shards_that_are_interrupted_go_on_with_the_same_command
# Ctrl-C in a terminal reaches parallel and all that it runs: they are a group.
python3 - "$MOEFLUX" "$model" "$tmp" >"$tmp/said" 2>&1 <<'END_OF_SCRIPT' || fault "$(cat "$tmp/said")"
import glob, os, signal, subprocess, sys, time
program, model, tmp = sys.argv[1:]
lines = lambda: sum(open(f).read().count('\n') for f in glob.glob(tmp + '/answers.*.jsonl'))
run = subprocess.Popen(['parallel', '-j', '2', '--joblog', tmp + '/log', '--resume-failed',
                        program, '-m', model, '--device', 'cpu', '-t', '1', '--batch', tmp + '/in',
                        '--shard', '{}/4', '-o', tmp + '/answers.{}.jsonl',
                        '--retry-failed', ':::', '1', '2', '3', '4'], stdin=subprocess.DEVNULL, start_new_session=True,
                       preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
while lines() < 3 and run.poll() is None:
    time.sleep(0.02)
os.killpg(run.pid, signal.SIGINT)
run.wait()
assert 3 <= lines() < 40, lines()
END_OF_SCRIPT
# What parallel ran may end after it.
while ! python3 -c 'import fcntl, glob, sys
for f in glob.glob(sys.argv[1]):
    fcntl.flock(open(f), fcntl.LOCK_EX | fcntl.LOCK_NB)' "$tmp/answers.*.jsonl" 2>/dev/null; do
    sleep 0.05
done
cat "$tmp"/answers.*.jsonl | sort >"$tmp/before"
run 0 shards
[ "$(n_results)" -eq 40 ] || fault "$(n_results) results: $(cat "$tmp/err")"
cat "$tmp"/answers.*.jsonl | sort | comm -23 "$tmp/before" - >"$tmp/lost"
[ ! -s "$tmp/lost" ] || fault "lost: $(head -c 300 "$tmp/lost")"

claim all_shards_together_are_one_run
run 0 "$MOEFLUX" -m "$model" --device cpu --batch "$tmp/in"
texts() { python3 -c 'import json, sys; print(sorted((r["id"], r["text"]) for r in map(json.loads, sys.stdin)))'; }
[ "$(cat "$tmp"/answers.*.jsonl | texts)" = "$(texts <"$tmp/out")" ] ||
    fault 'the texts are not those of a single run'

claim a_shard_that_failed_is_run_again_and_no_other
rm -f "$tmp/log" "$tmp"/answers.*
sed '2s/Once 2/'"$(printf '%0300d' 0)"'/' "$tmp/in" >"$tmp/long" && mv "$tmp/long" "$tmp/in"
sed -n 1,8p "$tmp/in" >"$tmp/few" && mv "$tmp/few" "$tmp/in"
run 1 parallel -j 2 --joblog "$tmp/log" "$MOEFLUX" -m "$model" --device cpu -t 1 -c 100 --batch "$tmp/in" \
    --shard '{}/4' \
    -o "$tmp/answers.{}.jsonl" ::: 1 2 3 4
[ "$(n_results)" -eq 8 ] || fault "$(n_results) results"
# The log names the command, so it is the same except for the context, which the environment gives it.
sed -i 's/ -c 100 / /; s/ -o \([^ ]*\)$/ -o \1 --retry-failed/' "$tmp/log"
run 0 shards
err_has '^moeflux: .*/answers.2.jsonl: 1 result that failed is taken out'
[ "$(grep -c '^moeflux: [0-9]* answered' "$tmp/err")" -eq 1 ] || fault "other shards ran: $(cat "$tmp/err")"
grep -q '"error"' "$tmp"/answers.*.jsonl && fault 'a failed result is still there'

report
