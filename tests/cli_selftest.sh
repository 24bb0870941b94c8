#!/bin/sh
# moeflux --selftest; tests/test_ops.c runs the same cases.
. tests/cli.sh

claim the_selftest_counts_the_cases_that_the_device_has_no_kernels_for
run 0 "$MOEFLUX" --selftest --device reference
n=$(grep -c '  SKIP$' "$tmp/out")
[ "$n" -gt 0 ] || fault "the reference has kernels for prompts of its own?"
out_has "^[1-9][0-9]* cases, 0 failed, $n skipped: this device has no kernels for them$"

claim the_selftest_compares_each_instruction_set_of_the_cpu
run 0 "$MOEFLUX" --selftest --device cpu --cpu-isa portable
out_has '^CPU (portable, '
out_has '^[1-9][0-9]* cases, 0 failed, '
n=$(sed -n 's/ cases, .*//p' "$tmp/out")
run 0 "$MOEFLUX" --selftest --device cpu
sets=$(grep -c '^CPU (' "$tmp/out")
[ "$sets" -ge 1 ] || fault "no instruction set was named"
out_has "^$((n * sets)) cases, 0 failed, "

report
