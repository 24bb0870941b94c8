#!/bin/sh
# examples/batch.sbatch as a job array of a real Slurm on this machine: cancelled, killed, and continued. It is
# in no suite, since it needs the packages slurm-wlm and munge, which start daemons. usage: tests/lib/slurm.sh
. tests/lib/cli.sh
. tests/lib/slurm_node.sh

model=$tmp/tiny
trap 'slurm_stop; rm -rf "$tmp"' EXIT
run 0 "$MOEFLUX" convert tests/models/tiny "$model"
mkdir "$tmp/slurm" "$tmp/work"
job=$PWD/examples/batch.sbatch
slurm_start "$tmp/slurm" || {
    echo "[  FAILED  ] Slurm did not start: $(tail -n 3 "$tmp"/slurm/*.log 2>&1)"
    exit 1
}
PATH=$(dirname "$MOEFLUX"):$PATH
cd "$tmp/work" || exit 1

# The requests have both forms.
python3 - questions.jsonl <<'END_OF_SCRIPT'
import json, sys
with open(sys.argv[1], 'w') as f:
    for i in range(80):
        text = f'Once {i}'
        if i % 2:
            line = {'custom_id': f'q{i}', 'method': 'POST', 'url': '/v1/completions',
                    'body': {'prompt': text, 'max_tokens': 100, 'temperature': 0, 'ignore_eos': True}}
        else:
            line = {'id': f'q{i}', 'prompt': text, 'raw': True, 'n': 100, 'temp': 0, 'ignore_eos': True}
        print(json.dumps(line), file=f)
END_OF_SCRIPT

# submit: prints the job's number.
submit() { sbatch --parsable "$job" "$model" questions.jsonl answers; }
n_results() { cat answers.*.jsonl 2>/dev/null | wc -l; }
# shellcheck disable=SC2317 # called by await
has_ended() { [ -z "$(squeue -h -j "$1" 2>/dev/null)" ]; }
# has_results N JOB: at least N, or the job has ended.
# shellcheck disable=SC2317 # called by await
has_results() { [ "$(n_results)" -ge "$1" ] || has_ended "$2"; }
# whole: every line of every file is JSON, and no id is there twice.
whole() {
    cat answers.*.jsonl | python3 -c '
import json, sys
ids = [r.get("custom_id") or r["id"] for r in map(json.loads, sys.stdin)]
assert len(ids) == len(set(ids)), "an id is there twice"' 2>"$tmp/err" || fault "$(cat "$tmp/err")"
}

claim scancel_ends_the_tasks_after_the_current_request
first=$(submit)
await has_results 6 "$first"
scancel "$first"
await has_ended "$first"
whole
n=$(n_results)
{ [ "$n" -ge 6 ] && [ "$n" -lt 80 ]; } || fault "$n results"
grep -q 'Ctrl-C' moeflux-"$first"-*.log || fault "$(cat moeflux-*.log)"
cat answers.*.jsonl | sort >"$tmp/before"

claim a_task_that_is_killed_loses_nothing_that_was_finished
second=$(submit)
await has_results $((n + 4)) "$second"
scancel --signal=KILL --batch "$second"
scancel "$second"
await has_ended "$second"
n_then=$(n_results)
{ [ "$n_then" -ge $((n + 4)) ] && [ "$n_then" -lt 80 ]; } || fault "$n_then results"
cat answers.*.jsonl | sort | comm -23 "$tmp/before" - >"$tmp/lost"
[ ! -s "$tmp/lost" ] || fault "lost: $(head -c 300 "$tmp/lost")"

claim the_same_job_continues_and_all_results_are_those_of_one_run
third=$(submit)
await has_ended "$third"
whole
[ "$(n_results)" -eq 80 ] || fault "$(n_results) results: $(tail -n 2 moeflux-"$third"-*.log)"
run 0 "$MOEFLUX" -m "$model" --batch questions.jsonl
texts() {
    python3 -c '
import json, sys
for r in map(json.loads, sys.stdin):
    body = (r.get("response") or {}).get("body")
    text = body["choices"][0]["text"] if body else r["text"]
    print(r.get("custom_id") or r["id"], json.dumps(text))' | sort
}
texts <"$tmp/out" >"$tmp/single"
cat answers.*.jsonl | texts | cmp -s - "$tmp/single" || fault 'the texts are not those of a single run'
fourth=$(submit)
await has_ended "$fourth"
[ "$(cat moeflux-"$fourth"-*.log | grep -c '0 answered, 0 failed, 20 there already')" -eq 4 ] ||
    fault "$(cat moeflux-"$fourth"-*.log)"

cd - >/dev/null || exit 1
report
