#!/bin/sh
# --batch: many requests in one run, with the embedded model.
# suites: check long asan-nightly
# shellcheck disable=SC2016 # the inner shells expand their words
. tests/lib/cli.sh

model=$tmp/tiny
# by_line FILE: its results in the order of the requests' lines
by_line() { sed 's/.*"line": \([0-9]*\).*/\1 &/' "$1" | sort -n | cut -d ' ' -f 2-; }
# results_are EXPRESSION VALUE: `r` is the list of the results in $tmp/results.
results_are() { json_is "$1" "$2" "$tmp/results"; }
answered='[(x["id"], x["text"]) for x in r]'

run 0 "$MOEFLUX" convert tests/models/tiny "$model"
set -- -m "$model" --temp 0 --no-think -n 12

claim the_answers_are_those_of_single_runs_and_common_prefixes_are_computed_once
python3 - "$tmp/in" <<'END'
import json, random, sys
random.seed(5)
plain = ['The river was very quiet.', 'A brave owl slept under the tree.', 'Leo likes bread and honey.',
         'Nobody saw the green cup near the lake.', 'The old goat walked to the market.']
two = [' '.join(random.choice(plain) for _ in range(12)) for _ in range(2)]
number = lambda: random.randrange(10, 99)
with open(sys.argv[1], 'w') as f:
    for i in range(6):
        ask = [f'What is {number()} + {number()}?',
               f'Sort these numbers: {number()}, {number()}, {number()}.',
               'What is the capital of ' + random.choice(['Iceland', 'Japan', 'Kenya']) + '?'][i % 3]
        # The two system texts alternate, so the order of the lines is not that of the least work.
        print(json.dumps({'id': f'q{i}', 'system': two[i % 2], 'prompt': ask}), file=f)
END
run 0 "$MOEFLUX" "$@" --batch "$tmp/in"
by_line "$tmp/out" >"$tmp/results"
results_are \
    '[x["line"] for x in r] == list(range(1, 7)) and [x["id"] for x in r] == ["q%d" % i for i in range(6)]' \
    True
err_line '^moeflux: 6 answered, 0 failed; [0-9]* of [0-9]* '
python3 - "$MOEFLUX" "$tmp" "$@" >"$tmp/single" <<'END' || fault "$(cat "$tmp/single")"
import json, subprocess, sys
program, tmp, flags = sys.argv[1], sys.argv[2], sys.argv[3:]
nodes, computed = set(), 0
for asked, line in zip(open(tmp + '/in'), open(tmp + '/results')):
    asked, got = json.loads(asked), json.loads(line)
    computed += got['prompt_tokens'] - got['reused_tokens']
    output = lambda *command: subprocess.run(command, capture_output=True, text=True, check=True).stdout
    single = json.loads(output(program, *flags, '--system', asked['system'], '-p', asked['prompt'], '--json',
                               '--logits', tmp + '/logits'))
    assert (single['text'], single['tokens']) == (got['text'], got['tokens']), (single, got)
    ids = output('python3', 'tests/lib/tensors.py', 'ids', tmp + '/logits', 'tokens').split()
    assert len(ids) == got['prompt_tokens'], (len(ids), got)
    nodes |= {tuple(ids[:i + 1]) for i in range(len(ids))}
# Tokens with the same tokens before them are one.
print(f'{computed} tokens were computed, {len(nodes)} are unique')
sys.exit(computed > 1.05 * len(nodes))
END

claim results_are_written_as_they_are_computed_or_in_the_order_of_the_lines
# All questions with the first system text come first.
cp "$tmp/out" "$tmp/results"
results_are '[x["line"] for x in r]' '[1, 3, 5, 2, 4, 6]'
tokens='[(x["line"], x["id"], x["tokens"]) for x in sorted(r, key=lambda x: x["line"])]'
computed=$(json "$tokens")
run 0 "$MOEFLUX" "$@" --batch "$tmp/in" --ordered
json_is '[x["line"] for x in r]' '[1, 2, 3, 4, 5, 6]'
json_is "$tokens" "$computed"

claim a_bad_line_has_an_error_with_its_number_and_the_others_their_answers
cat >"$tmp/in" <<'END'
{"id": "sum", "prompt": "What is 47 + 38?"}
not JSON

{"id": "sum", "prompt": "What is 47 + 38?"}
{"id": 5, "prompt": "What is 47 + 38?", "temprature": 0}
{"id": "5", "prompt": "What is 47 + 38?", "top_p": 2}
{"id": 1.5, "prompt": "What is 47 + 38?"}
{"id": "blank", "prompt": "  "}
{"id": "none"}
{"id": "long", "prompt": "LONG"}
{"id": "roles", "messages": [{"role": "user", "content": "x"}, {"role": "boss", "content": "y"}]}
{"prompt": "What is the capital of Iceland?"}
END
printf '{"id": "end", "prompt": "What is 47 + 38?"}' >>"$tmp/in"
sed -i "s/LONG/$(printf '%0200d' 0)/" "$tmp/in"
run 1 "$MOEFLUX" "$@" -c 100 --batch - <"$tmp/in"
by_line "$tmp/out" >"$tmp/results"
err_has '^moeflux: 3 answered, 9 failed; '
err_has '^moeflux: 9 '
results_are '[x["line"] for x in r]' '[1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]'
results_are '[x.get("text") for x in r if "text" in x]' "['85', 'The capital of Iceland is Reykjavík.', '85']"
results_are 'all(x["error"].startswith("line %d: " % x["line"]) for x in r if "error" in x)' True
results_are '[x["id"] for x in r]' \
    "['sum', None, 'sum', 5, '5', None, 'blank', 'none', 'long', 'roles', None, 'end']"
while read -r line words; do
    grep -q "\"error\": \"line $line: .*$words" "$tmp/results" || fault "no error of line $line has '$words'"
done <<'END'
2 near
4 line 1 .*id
5 temprature
6 top_p: .* found 2
7 id:
8 empty
9 prompt .*messages
10 tokens, .* 100
11 role: .*system
END

claim lines_of_nul_bytes_and_lines_that_are_too_long_have_an_error
python3 - "$tmp/in" <<'END'
import sys
good = b'{"id": %d, "prompt": "What is 47 + 38?"}\n'
with open(sys.argv[1], 'wb') as f:
    f.write(good % 1 + bytes(9) + b'\n' + b'  \0\n' + good[:-1] % 4 + b'\0\n' + good % 5)
    f.write(b'{"id": 6, "prompt": "' + b'x' * (64 << 20) + b'"}\n' + good % 7)
    f.write(b'{"id": 8, "prompt": [' + b'0,' * 300000 + b'0]}\n' + good % 9)
    f.write(b'x' * (64 << 20 | 1))
END
run 1 "$MOEFLUX" "$@" --batch "$tmp/in"
by_line "$tmp/out" >"$tmp/results"
results_are '[x["line"] for x in r]' '[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]'
results_are '[x["line"] for x in r if x.get("text") == "85"]' '[1, 5, 7, 9]'
results_are '[x["id"] for x in r]' '[1, None, None, None, 5, None, 7, None, 9, None]'
results_are 'all(x["error"].startswith("line %d: " % x["line"]) for x in r if "error" in x)' True
results_are '" 67108864 bytes" in r[5]["error"] and " 67108864 bytes" in r[9]["error"]' True
results_are '" 262144 values" in r[7]["error"]' True
err_has '^moeflux: 4 answered, 6 failed;'

claim refused_lines_do_not_stay_in_memory
python3 - "$MOEFLUX" "$tmp/in" "$@" >"$tmp/peaks" 2>&1 <<'END' || fault "$(cat "$tmp/peaks")"
import os, sys
program, path, flags = sys.argv[1], sys.argv[2], sys.argv[3:]
line = '{"id": %d, "prompt": ["' + 'x' * (2 << 20) + '"]}\n'

def peak(n, *more):
    """The peak, in KiB, of a run with n lines that are refused."""
    with open(path, 'w') as f:
        # Answered last, so that with --ordered no error waits for it.
        f.writelines([line % i for i in range(n)] + ['{"prompt": "What is 47 + 38?"}\n'])
    pid = os.fork()
    if pid == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        os.execv(program, [program, *flags, *more, '--batch', path])
    _, status, usage = os.wait4(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 1, status
    return usage.ru_maxrss

few = peak(5)
for more in ([], ['--ordered']):
    many = peak(25, *more)
    print(f'{many - few} KiB for 40 MiB of refused lines', more)
    assert many - few < 25 << 10
END

claim requests_have_fields_of_their_own
cat >"$tmp/in" <<'END'
{"id": "few", "prompt": "What is the capital of Iceland?", "max_tokens": 2}
{"id": "raw", "prompt": "Once upon a time there was", "raw": true, "n": 6}
{"id": "a", "prompt": "Once upon a time there was", "raw": true, "n": 9, "temp": 1.5, "seed": 7}
{"id": "b", "prompt": "Once upon a time there was", "raw": true, "n": 9, "temp": 1.5, "seed": 8}
{"prompt": "Once upon a time there was", "raw": true, "n": 9, "temperature": 1.5, "seed": 7, "top-k": 20}
{"id": "think", "prompt": "What is 47 + 38?", "think": true, "n": 6}
END
python3 - >>"$tmp/in" <<'END'
import json
texts = ['You know codes.', 'The code of Max is 5128. The river was very quiet. What is the code of Max?',
         'The code of Max is 5128.', 'What is the code of Max?']
roles = 'system', 'user', 'assistant', 'user'
print(json.dumps({'id': 'talk', 'messages': [{'role': a, 'content': b} for a, b in zip(roles, texts)]}))
END
run 0 "$MOEFLUX" "$@" --batch "$tmp/in" --ordered
cp "$tmp/out" "$tmp/results"
results_are 'r[0]["text"], r[0]["stop_reason"], len(r[0]["tokens"])' "('The capital', 'length', 2)"
results_are 'r[1]["text"]' ' a kind cat named Victor.'
results_are '(r[2]["text"] == r[4]["text"], r[2]["text"] == r[3]["text"])' '(True, False)'
results_are 'r[5]["text"] == "" and len(r[5]["thinking"]) > 0' True
results_are '"5128" in r[6]["text"]' True
run 0 "$MOEFLUX" -m "$model" --raw -p 'Once upon a time there was' -n 9 --temp 1.5 -s 7 --json
results_are 'r[2]["tokens"]' "$(json 'j["tokens"]')"

claim a_run_goes_on_where_the_output_ends
for i in 1 2 3 4 5 6 7 8; do echo "{\"id\": $i, \"prompt\": \"What is 4$i + 38?\"}"; done >"$tmp/in"
eight="[(1, '79'), (2, '80'), (3, '81'), (4, '82'), (5, '83'), (6, '84'), (7, '85'), (8, '86')]"
head -n 3 "$tmp/in" >"$tmp/first"
rm "$tmp/results"
run 0 "$MOEFLUX" "$@" --batch "$tmp/first" -o "$tmp/results"
out_empty
cp "$tmp/results" "$tmp/three"
run 0 "$MOEFLUX" "$@" --batch "$tmp/in" --output "$tmp/results"
err_line '^moeflux: 5 answered, 0 failed, 3 there already;'
results_are "sorted($answered)" "$eight"
head -n 3 "$tmp/results" | cmp -s - "$tmp/three" || fault "results that were there have changed"
cp "$tmp/results" "$tmp/eight"
run 0 "$MOEFLUX" "$@" --batch "$tmp/in" -o "$tmp/results"
cmp -s "$tmp/results" "$tmp/eight" || fault "a run with nothing to do has changed the output"

claim results_keep_their_settings_and_others_are_refused
head -n 1 "$tmp/in" >"$tmp/first"
rm "$tmp/results"
run 0 "$MOEFLUX" "$@" --batch "$tmp/first" -o "$tmp/results" --min-p 0.1
results_are 'r[0]["settings"]["min_p"], "top_p" in r[0]["settings"]' '(0.1, False)'
cp "$tmp/results" "$tmp/one"
run 0 "$MOEFLUX" "$@" --batch "$tmp/first" -o "$tmp/results" --min-p 0.1
run 2 "$MOEFLUX" "$@" --batch "$tmp/in" -o "$tmp/results" --min-p 0.2
err_line '^moeflux: .*/results: line 1 has .*other settings: min_p is 0.1 there, 0.2 here (--mix'
run 2 "$MOEFLUX" "$@" --batch "$tmp/in" -o "$tmp/results"
err_line '^moeflux: .*other settings: min_p is 0.1 there, not given here'
run 2 "$MOEFLUX" "$@" --batch "$tmp/in" -o "$tmp/results" --min-p 0.1 --system 'Be short.'
err_line '^moeflux: .*other settings: system is not given there, "Be short." here'
cmp -s "$tmp/results" "$tmp/one" || fault 'a refused run has changed the output'
run 0 "$MOEFLUX" "$@" --batch "$tmp/in" -o "$tmp/results" --mix
results_are '[x["settings"].get("min_p") for x in r]' '[0.1, None, None, None, None, None, None, None]'
fails 2 '--mix .*--batch .*--output' -m "$model" --mix -p x
# Results of an older version have none.
sed 's/, "settings": .*/}/' "$tmp/eight" >"$tmp/results"
run 0 "$MOEFLUX" "$@" --batch "$tmp/in" -o "$tmp/results" --min-p 0.1

claim results_of_another_arithmetic_or_model_are_refused
rm "$tmp/results"
run 0 "$MOEFLUX" "$@" --batch "$tmp/first" -o "$tmp/results" -c 200
cp "$tmp/results" "$tmp/one"
results_are 'len(r[0]["settings"]["fingerprint"])' '16'
while read -r setting flags; do
    # shellcheck disable=SC2086
    run 2 "$MOEFLUX" "$@" --batch "$tmp/in" -o "$tmp/results" $flags
    err_line "^moeflux: .*/results: line 1 .*$setting"
done <<'END'
prompt_type.*"f32" -c 200 --prompt-type f32
kv_type.*"f16" -c 200 --kv-type f16
effort.*"none" -c 200 --effort none
END
# Another model, in the directory that had the first one.
mv "$model" "$model.first"
run 0 "$MOEFLUX" convert tests/models/tiny "$model"
run 0 "$MOEFLUX" "$@" --batch "$tmp/first" -o "$tmp/results" -c 200
rm -r "$model"
run 0 "$MOEFLUX" convert tests/models/tiny "$model" --expert-bits 3
run 2 "$MOEFLUX" "$@" --batch "$tmp/in" -o "$tmp/results" -c 200
err_line '^moeflux: .*/results: line 1 .*fingerprint .*--mix'
cmp -s "$tmp/results" "$tmp/one" || fault 'a refused run has changed the output'
run 0 "$MOEFLUX" "$@" --batch "$tmp/in" -o "$tmp/results" -c 200 --mix
results_are 'len(r), len({x["settings"]["fingerprint"] for x in r})' '(8, 2)'
# A file of two models, which --mix has made.
run 2 "$MOEFLUX" "$@" --batch "$tmp/in" -o "$tmp/results" -c 200
err_line '^moeflux: .*/results: line 2 .*line 1'
rm -r "$model"
mv "$model.first" "$model"

claim errors_of_an_earlier_run_are_not_forgotten
printf '{"prompt": "What is 1 + 1?"}\n{"prompt": 7}\n' >"$tmp/bad"
rm "$tmp/results"
run 1 "$MOEFLUX" "$@" --batch "$tmp/bad" -o "$tmp/results"
run 1 "$MOEFLUX" "$@" --batch "$tmp/bad" -o "$tmp/results"
err_has '^moeflux: 0 answered, 0 failed, 2 there already'
err_has '^moeflux: 1 of the requests failed in an earlier run (--retry-failed'
# The error is another shard's.
run 0 "$MOEFLUX" "$@" --batch "$tmp/bad" -o "$tmp/results" --shard 1/2

claim a_second_line_of_an_id_fails_in_every_run
for form in '{"id": "a", "prompt": "What is 1 + 1?"}' \
    '{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "2", "max_tokens": 1}}'; do
    printf '%s\n%s\n' "$form" "$form" >"$tmp/bad"
    rm -f "$tmp/results"
    run 1 "$MOEFLUX" "$@" --batch "$tmp/bad" -o "$tmp/results"
    err_has '^moeflux: 1 answered, 1 failed; '
    run 1 "$MOEFLUX" "$@" --batch "$tmp/bad" -o "$tmp/results"
    err_has '^moeflux: 0 answered, 0 failed, 2 there already'
    err_has '^moeflux: 1 of the requests failed in an earlier run'
    run 1 "$MOEFLUX" "$@" --batch "$tmp/bad" -o "$tmp/results" --retry-failed
    err_has '^moeflux: 0 answered, 1 failed, 1 there already'
    results_are 'len(r)' 2
done

claim a_half_written_result_is_computed_again
for cut in 1 40 $(($(tail -n 1 "$tmp/eight" | wc -c) - 1)); do
    head -c -"$cut" "$tmp/eight" >"$tmp/results"
    run 0 "$MOEFLUX" "$@" --batch "$tmp/in" -o "$tmp/results"
    results_are "sorted($answered)" "$eight"
    [ "$cut" -eq 1 ] || err_has "^moeflux: .*$tmp/results: .*cut"
done

claim files_that_are_no_results_are_left_alone
for content in 'hello' '{"id": 1, "prompt": "What is 47 + 38?"}\n' '\n' \
    '{"id": 1, "line": 1, "text": ""}\nhello\n'; do
    # shellcheck disable=SC2059
    printf "$content" >"$tmp/results"
    cp "$tmp/results" "$tmp/before"
    fails 1 "^moeflux: .*$tmp/results: .*no result" "$@" --batch "$tmp/in" -o "$tmp/results"
    cmp -s "$tmp/results" "$tmp/before" || fault "it was changed"
done
fails 1 "^moeflux: .*$tmp/none: No such file" "$@" --batch "$tmp/none"
fails 1 "^moeflux: .*$tmp/no/results: No such file" "$@" --batch "$tmp/in" -o "$tmp/no/results"

claim shards_take_every_nth_line_and_cover_all
rm -f "$tmp/results"
for i in 1 2 3; do
    run 0 "$MOEFLUX" "$@" --batch "$tmp/in" --shard $i/3
    cat "$tmp/out" >>"$tmp/results"
done
results_are '[sorted(x["id"] for x in r[a:b]) for a, b in ((0, 3), (3, 6), (6, 8))]' \
    '[[1, 4, 7], [2, 5, 8], [3, 6]]'
for bad in 0/3 4/3 3 1/0 /2 1/ a/b 1/2/3; do
    fails 2 "^moeflux: --shard: .* I/N .*\"$bad\"$" "$@" --batch "$tmp/in" --shard $bad
done

claim flags_that_exclude_each_other_are_refused
fails 2 '--shard .*--batch ' "$@" --shard 1/2
fails 2 '--output .*--batch ' "$@" -o "$tmp/results"
fails 2 '--ordered .*--batch ' "$@" -p x --ordered
fails 2 '--batch .*prompt ' "$@" --batch "$tmp/in" -p x
fails 2 '--batch .*--prompt-cache ' "$@" --batch "$tmp/in" --prompt-cache x
fails 2 '--batch .*--logits ' "$@" --batch "$tmp/in" --logits x
fails 2 '--batch .*--bench' "$@" --batch "$tmp/in" --bench

# There are far more requests than are answered before the run is ended. The second one has no common prefix
# with the others, so it is computed after 200 of them.
for i in $(seq 500); do
    [ "$i" -eq 2 ] && text='It was a dark night and' || text='Once upon a time there was'
    echo "{\"id\": $i, \"raw\": true, \"prompt\": \"$text\", \"n\": 50, \"ignore_eos\": true}"
done >"$tmp/long"
# start FLAG...: a run over them, up to its third result. It ignores no signal, even if this test does, under
# nohup.
start() {
    rm -f "$tmp/results"
    : >"$tmp/results"
    env --default-signal "$MOEFLUX" "$@" --batch "$tmp/long" -o "$tmp/results" >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    await -p $pid has_lines 3 "$tmp/results"
}
# go_on FLAG...: the same run, with three requests more than there are results
go_on() {
    results_are '2 not in [x["id"] for x in r]' True
    n=$(($(wc -l <"$tmp/results") + 3))
    head -n $n "$tmp/long" >"$tmp/more"
    run 0 "$MOEFLUX" "$@" --batch "$tmp/more" -o "$tmp/results"
    results_are "sorted(x[\"id\"] for x in r) == list(range(1, $n + 1))" True
}

claim signals_end_the_run_after_the_current_request_and_keep_what_is_finished
for signal in INT:130 TERM:143 HUP:129; do
    start "$@"
    kill -s "${signal%:*}" $pid
    # Systems send some of them twice.
    [ "$signal" = INT:130 ] || kill -s "${signal%:*}" $pid 2>/dev/null
    ends "${signal#*:}" $pid
    err_has 'Ctrl-C'
    results_are '3 <= len(r) < 250 and all(len(x["tokens"]) == 50 for x in r)' True
    go_on "$@"
done

mkfifo "$tmp/pipe"
claim a_signal_that_is_ignored_stays_ignored
head -n 3 "$tmp/long" >"$tmp/more"
# The results of the last run must not end the wait for those of this one: a shell empties the file only when
# the pipe has a writer.
rm -f "$tmp/results"
(
    trap '' HUP
    exec "$MOEFLUX" "$@" --batch - <"$tmp/pipe" >"$tmp/results" 2>"$tmp/err"
) &
pid=$!
exec 3>"$tmp/pipe"
head -n 1 "$tmp/long" >&3
await -p $pid has_lines 1 "$tmp/results"
kill -HUP $pid
sed -n '2,3p' "$tmp/long" >&3
exec 3>&-
ends 0 $pid
results_are 'len(r)' 3

claim a_killed_run_loses_nothing_that_was_written
start "$@"
fails 2 "^moeflux: .*$tmp/results: .*run" "$@" --batch "$tmp/in" -o "$tmp/results"
kill -KILL $pid
wait $pid 2>/dev/null
cp "$tmp/results" "$tmp/before"
go_on "$@"
head -c "$(wc -c <"$tmp/before")" "$tmp/results" | cmp -s - "$tmp/before" ||
    fault "the first results have changed"

claim results_come_as_soon_as_they_are_there
rm -f "$tmp/results"
"$MOEFLUX" "$@" --batch - <"$tmp/pipe" >"$tmp/results" 2>"$tmp/err" &
pid=$!
exec 3>"$tmp/pipe"
head -n 1 "$tmp/in" >&3
await -p $pid has_lines 1 "$tmp/results"
results_are 'len(r)' 1
sed -n 2p "$tmp/in" >&3
exec 3>&-
ends 0 $pid
results_are "$answered" "[(1, '79'), (2, '80')]"

claim a_full_file_ends_the_run_at_once_with_whole_lines
rm "$tmp/results"
head -n 9 "$tmp/long" >"$tmp/more"
run 1 bash -c 'ulimit -f 3; exec "$0" "$@"' "$MOEFLUX" "$@" --batch "$tmp/more" -o "$tmp/results"
[ "$(tail -n 1 "$tmp/err")" = "moeflux: --output $tmp/results: write: File too large" ] || fault "$(cat "$tmp/err")"
n=$(wc -l <"$tmp/results")
err_has "^moeflux: $n answered, 0 failed;"
case $n in [2-8]) ;; *) fault "$n results" ;; esac
[ "$(tail -c 1 "$tmp/results" | od -An -c | tr -d ' ')" = '\n' ] || fault 'the last line was cut'
run 0 "$MOEFLUX" "$@" --batch "$tmp/more" -o "$tmp/results"
err_line ' 0 failed, '
results_are 'sorted(x["id"] for x in r) == list(range(1, 10))' True

claim a_full_disk_ends_the_run
if [ -e /dev/full ]; then
    run 1 "$MOEFLUX" "$@" --batch "$tmp/in" -o /dev/full
    err_has '/dev/full: .*No space left'
fi

claim what_lines_begin_with_is_computed_once_and_changes_no_answer
# A system text; and messages of examples after another one, some of which have a common beginning.
python3 - "$tmp/in" <<'END'
import json, sys
text = 'The river was very quiet. Leo likes bread and honey. The mouse ate some berries. '
examples = [{'role': 'system', 'content': text * 8}]
for i in range(8):
    examples += [{'role': 'user', 'content': f'What is {i} + 2? ' + text},
                 {'role': 'assistant', 'content': str(i + 2)}]
with open(sys.argv[1], 'w') as f:
    for i in range(12):
        own = f'x + {i}' if i % 4 == 0 else f'What is {17 + i} + {38 + i}?'
        ask = {'system': text * 8, 'prompt': own} if i < 7 else \
            {'messages': examples + [{'role': 'user', 'content': own}]}
        print(json.dumps({'id': i, 'n': 6, 'temp': 0, 'ignore_eos': True, 'logprobs': 2, **ask}), file=f)
END
shared() { run 0 "$MOEFLUX" -m tests/models/tiny --device cpu --no-think -c 1024 --chunk 96 --parallel 4 --batch "$@"; }
answers='sorted((x["id"], x["text"], str(x["logprobs"])) for x in r)'
shared "$tmp/in"
# Each beginning was computed once; the examples begin with the system text.
json_is 'sum(x["reused_tokens"] == 0 for x in r), len({x["reused_tokens"] for x in r})' '(1, 3)'
together=$(json "$answers")
# Answers the lines of $tmp/in one by one, to $tmp/each.
each_alone() {
    : >"$tmp/each"
    while read -r line; do
        printf '%s\n' "$line" >"$tmp/one"
        shared "$tmp/one"
        cat "$tmp/out" >>"$tmp/each"
    done <"$tmp/in"
}
each_alone
[ "$(json "$answers" "$tmp/each")" = "$together" ] || fault 'a line alone has another answer'
sort -R --random-source="$tmp/in" "$tmp/in" >"$tmp/shuffled"
shared "$tmp/shuffled"
json_is "$answers" "$together"

claim raw_prompts_share_what_comes_before_their_last_paragraph
python3 - "$tmp/in" <<'END'
import json, sys
examples = ''.join(f'What is {i} + {i}?\nThe river was very quiet.\n{2 * i}\n\n' for i in range(16))
with open(sys.argv[1], 'w') as f:
    for i in range(6):
        print(json.dumps({'id': i, 'n': 6, 'temp': 0, 'ignore_eos': True, 'raw': True,
                          'prompt': f'{examples}What is {i + 3} + {i}?\n'}), file=f)
END
shared "$tmp/in"
shares='sum(x["reused_tokens"] == 0 for x in r), sum(x["reused_tokens"] > 128 for x in r)'
json_is "$shares" '(1, 5)'
together=$(json "$answers")
each_alone
[ "$(json "$answers" "$tmp/each")" = "$together" ] || fault 'a line alone has another answer'

# So do prompts whose lines end with CR LF.
sed 's/\\n/\\r\\n/g' "$tmp/in" >"$tmp/crlf"
shared "$tmp/crlf"
json_is "$shares" '(1, 5)'

claim the_echo_of_a_text_has_no_token_that_was_added
mkdir "$tmp/begins"
for file in tests/models/tiny/config.json tests/models/tiny/model.* tests/models/tiny/tokenizer.json; do
    ln -s "$PWD/$file" "$tmp/begins"
done
echo '{"bos_token": "<|endoftext|>", "add_bos_token": true}' >"$tmp/begins/tokenizer_config.json"
for prompt in '"The river was"' '"<|endoftext|>The river was"'; do
    printf '{"custom_id": "%d", "method": "POST", "url": "/v1/completions", "body": {"prompt": %s, "echo": true, %s}}\n' \
        "${#prompt}" "$prompt" '"logprobs": 1, "max_tokens": 1'
done >"$tmp/in"
run 0 "$MOEFLUX" -m "$tmp/begins" --device cpu --ordered --batch "$tmp/in"
choices='[x["response"]["body"]["choices"][0] for x in r]'
json_is "[x['text'][:20] for x in $choices]" "['The river was very', '<|endoftext|>The riv']"
json_is "[x['logprobs']['text_offset'][:3] for x in $choices]" '[[0, 3, 9], [0, 13, 16]]'

claim an_id_beyond_64_bits_stays_as_it_is_written
echo '{"id": 123456789012345678901234, "prompt": "What is 47 + 38?"}' >"$tmp/in"
run 0 "$MOEFLUX" "$@" --batch "$tmp/in" -o "$tmp/ids"
run 0 "$MOEFLUX" "$@" --batch "$tmp/in" -o "$tmp/ids"
err_has '^moeflux: 0 answered, 0 failed, 1 there already'
json_is '[x["id"] for x in r]' '[123456789012345678901234]' "$tmp/ids"

claim stats_have_the_times_of_the_answers
printf '{"prompt": "Who is Leo?", "n": %d}\n' 8 9 1 >"$tmp/in"
run 0 "$MOEFLUX" -m tests/models/tiny --device cpu --no-think --parallel 2 --stats --batch "$tmp/in"
err_has '^first token *half of 3 answers within [0-9.]* s, 95 % within [0-9.]* s$'
# The answer of one token has no time between tokens.
err_has '^each token *half of 2 answers within [0-9.]* ms, 95 % within [0-9.]* ms$'

report
