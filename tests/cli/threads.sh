#!/bin/sh
# Runs with many threads, above all for ThreadSanitizer. The device is the reference, which has no threads of its
# own.
# suites: nightly long tsan-nightly
. tests/lib/cli.sh

run 0 "$MOEFLUX" convert tests/models/tiny "$tmp/tiny"
for i in 1 2 3; do
    echo "{\"id\": $i, \"prompt\": \"What is 1$i + 23?\"}"
done >"$tmp/in"
# The memory has room for a seventh of the experts.
set -- -m "$tmp/tiny" --device reference --memory 1M -t 4 --prefetch both --temp 0 --no-think -n 3 --batch \
    "$tmp/in"

claim a_batch_s_answers_do_not_depend_on_how_its_experts_are_read
run 0 "$MOEFLUX" "$@" --expert-io mmap
grep -o '"tokens": [^]]*' "$tmp/out" >"$tmp/want"
[ "$(wc -l <"$tmp/want")" -eq 3 ] || fault "expected three answers: $(cat "$tmp/out")"
for io in pread uring direct; do
    if "$MOEFLUX" "$@" --expert-io $io --stats >"$tmp/out" 2>"$tmp/err"; then
        grep -o '"tokens": [^]]*' "$tmp/out" | cmp -s - "$tmp/want" || fault "$io: $(cat "$tmp/out")"
        err_has "^read by *$io"
        err_has '^experts *[1-9].* read'
    elif grep -q 'io_uring\|direct' "$tmp/err"; then
        echo "SKIP --expert-io $io: $(tail -n 1 "$tmp/err")"
    else
        fault "$io: $(cat "$tmp/err")"
    fi
done

claim an_interrupted_batch_ends_and_keeps_what_is_done
for i in 1 2 3 4 5 6 7 8; do
    echo "{\"id\": $i, \"prompt\": \"What is 1$i + 23?\"}"
done >"$tmp/in"
env --default-signal=INT "$MOEFLUX" "$@" -o "$tmp/results" 2>"$tmp/err" &
program=$!
await -p $program has_lines 1 "$tmp/results"
kill -INT $program
ends 130 $program
n=$(wc -l <"$tmp/results")
{ [ "$n" -ge 1 ] && [ "$n" -lt 8 ]; } || fault "$n results of 8"

report
