#!/bin/sh
# moeflux --selftest; tests/unit/test_ops.c and tests/unit/test_ops_cpu.c run the same cases to their end on
# all kinds of devices.
# suites: later long
. tests/lib/cli.sh

# The last set that this processor has is the fastest.
for isa in $("$MOEFLUX" --selftest --device cpu --cpu-isa none 2>&1 | sed 's/.*there are //'); do
    ! "$MOEFLUX" -m tests/models/tiny --cpu-isa "$isa" --device cpu --plan >/dev/null 2>&1 || last=$isa
done

claim the_selftest_counts_its_cases
run 0 "$MOEFLUX" --selftest --device cpu --cpu-isa "$last"
n=$(grep -c '  ok$' "$tmp/out")
skipped=$(grep -c '  SKIP$' "$tmp/out")
[ "$n" -gt 100 ] || fault "$n cases"
[ "$skipped" -lt 10 ] || fault "$skipped skipped"
out_has "^$((n + skipped)) cases, 0 failed, $skipped skipped: this device has no kernels for them\$"

claim an_instruction_set_that_is_named_is_the_only_one
[ "$(grep -c '^CPU (' "$tmp/out")" -eq 1 ] || fault "$(grep '^CPU (' "$tmp/out")"
out_has "^CPU ($last, "

# The slowest comes first; to see it end would take long. Nothing of an earlier run may end the wait.
claim the_selftest_begins_with_the_lowest_set_when_none_is_named
rm -f "$tmp/out"
"$MOEFLUX" --selftest --device cpu >"$tmp/out" 2>"$tmp/err" &
pid=$!
while [ ! -s "$tmp/out" ] && kill -0 $pid 2>/dev/null; do sleep 0.1; done
kill $pid
wait $pid
out_has '^CPU (portable, '

report
