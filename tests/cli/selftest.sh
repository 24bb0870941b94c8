#!/bin/sh
# moeflux --selftest. test_ops and test_ops_cpu run the same cases on all kinds of devices.
# suites: nightly long
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
out_has "^$((n + skipped)) cases, 0 failed, $skipped skipped"

claim an_instruction_set_that_is_named_is_the_only_one
[ "$(grep -c '^CPU (' "$tmp/out")" -eq 1 ] || fault "$(grep '^CPU (' "$tmp/out")"
out_has "^CPU ($last, "

# The slowest set comes first; the test does not wait for its end.
claim the_selftest_begins_with_the_lowest_set_when_none_is_named
rm -f "$tmp/out"
"$MOEFLUX" --selftest --device cpu >"$tmp/out" 2>"$tmp/err" &
pid=$!
await -p $pid has_lines 1 "$tmp/out"
kill $pid
wait $pid
out_has '^CPU (portable, '

report
