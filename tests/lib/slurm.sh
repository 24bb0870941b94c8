#!/bin/sh
# examples/batch.sbatch as a job array of a real Slurm, on this machine alone: run, cancelled, killed, and
# gone on with. Not one of
# the suite's: it needs the packages slurm-wlm and munge, whose daemons a machine should not get by the way.
# usage: tests/lib/slurm.sh
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

# Both forms of requests.
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

# submit: the job's number
submit() { sbatch --parsable "$job" "$model" questions.jsonl answers; }
n_results() { cat answers.*.jsonl 2>/dev/null | wc -l; }
# until_results N JOB: there are so many, or the job has ended
until_results() {
    while [ "$(n_results)" -lt "$1" ] && [ -n "$(squeue -h -j "$2" 2>/dev/null)" ]; do sleep 0.1; done
}
until_ended() { while [ -n "$(squeue -h -j "$1" 2>/dev/null)" ]; do sleep 0.2; done; }
# whole: every line of every file is JSON, and no id is there twice
whole() {
    cat answers.*.jsonl | python3 -c '
import json, sys
ids = [r.get("custom_id") or r["id"] for r in map(json.loads, sys.stdin)]
assert len(ids) == len(set(ids)), "an id is there twice"' 2>"$tmp/err" || fault "$(cat "$tmp/err")"
}

claim scancel_ends_the_tasks_after_the_request_at_hand
first=$(submit)
until_results 6 "$first"
scancel "$first"
until_ended "$first"
whole
n=$(n_results)
{ [ "$n" -ge 6 ] && [ "$n" -lt 80 ]; } || fault "$n results"
grep -q 'ending after the current request' moeflux-"$first"-*.log || fault "$(cat moeflux-*.log)"
cat answers.*.jsonl | sort >"$tmp/before"

claim a_task_that_is_killed_loses_nothing_that_was_finished
second=$(submit)
until_results $((n + 4)) "$second"
scancel --signal=KILL --batch "$second"
scancel "$second"
until_ended "$second"
n_then=$(n_results)
{ [ "$n_then" -ge $((n + 4)) ] && [ "$n_then" -lt 80 ]; } || fault "$n_then results"
cat answers.*.jsonl | sort | comm -23 "$tmp/before" - >"$tmp/lost"
[ ! -s "$tmp/lost" ] || fault "lost: $(head -c 300 "$tmp/lost")"

claim the_same_job_goes_on_and_all_of_them_together_are_one_run
third=$(submit)
until_ended "$third"
whole
[ "$(n_results)" -eq 80 ] || fault "$(n_results) results: $(tail -n 2 moeflux-"$third"-*.log)"
run 0 "$MOEFLUX" -m "$model" --batch questions.jsonl
texts() {
    python3 -c '
import json, sys
for r in map(json.loads, sys.stdin):
    body = (r.get("response") or {}).get("body")
    print(r.get("custom_id") or r["id"], json.dumps(body["choices"][0]["text"] if body else r["text"]))' | sort
}
texts <"$tmp/out" >"$tmp/single"
cat answers.*.jsonl | texts | cmp -s - "$tmp/single" || fault 'the texts are not those of a single run'
fourth=$(submit)
until_ended "$fourth"
[ "$(cat moeflux-"$fourth"-*.log | grep -c '0 answered, 0 failed, 20 there already')" -eq 4 ] ||
    fault "$(cat moeflux-"$fourth"-*.log)"

cd - >/dev/null || exit 1
report
