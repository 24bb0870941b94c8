#!/bin/sh
# moeflux --selftest; tests/test_ops.c runs the same cases.
. tests/cli.sh

claim the_selftest_counts_its_cases
run 0 "$MOEFLUX" --selftest --device reference
n=$(grep -c '  ok$' "$tmp/out")
out_has "^$n cases, 0 failed$"

claim the_selftest_compares_each_instruction_set_of_the_cpu
run 0 "$MOEFLUX" --selftest --device cpu
sets=$(grep -c '^CPU (' "$tmp/out")
out_has '^CPU (portable, '
out_has "^$((n * sets)) cases, 0 failed$"

report
