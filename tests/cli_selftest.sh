#!/bin/sh
# moeflux --selftest; tests/test_ops.c runs the same cases.
. tests/cli.sh

# One run: the reference takes most of its time.
run 0 "$MOEFLUX" --selftest --device cpu
awk '/^CPU \(/ { if (n) print n; n = 0 } /  ok$/ { n++ } END { print n }' "$tmp/out" >"$tmp/cases"

claim the_selftest_counts_its_cases
[ "$(head -n 1 "$tmp/cases")" -gt 100 ] || fault "$(head -n 1 "$tmp/cases") cases"
out_has "^$(awk '{ n += $1 } END { print n }' "$tmp/cases") cases, 0 failed$"

claim the_selftest_compares_each_instruction_set_of_the_cpu
out_has '^CPU (portable, '
[ "$(uniq "$tmp/cases" | wc -l)" -eq 1 ] || fault "the sets have $(tr '\n' ' ' <"$tmp/cases")cases"

report
