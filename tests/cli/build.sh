#!/bin/sh
# What the Makefile and scripts/lint promise. Nothing is built: make prints what it would do.
# suites: check fast
. tests/lib/cli.sh

build=$(dirname "$MOEFLUX")
build=${build#"$PWD"/}
# The tested makes do not inherit flags and variables of the make that runs the tests.
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES CFLAGS CPPFLAGS LDFLAGS LDLIBS OPT SAN CI WERROR CC

plan() { run 0 make -n BUILD="$build" "$@"; }

claim the_program_is_hardened
run 0 readelf -hdW "$MOEFLUX"
out_has 'Type: *DYN'
out_has 'BIND_NOW'
run 0 readelf -lW "$MOEFLUX"
out_has 'GNU_RELRO'
plan -B "$build/src/base/err.o"
out_has '-D_FORTIFY_SOURCE=2'
out_has '-fstack-protector-strong'
plan -B "$build/src/base/err.o" OPT=-O0
out_lacks FORTIFY

claim the_users_flags_are_added_to_ours
plan -B "$build/src/base/err.o" CFLAGS='-march=native -ffp-contract=fast' CPPFLAGS=-DTHEIRS
out_has ' -Wconversion .* -march=native '
out_has ' -Isrc .* -DTHEIRS '
# No flag of the user changes the bits of results.
out_has '-ffp-contract=fast .*-ffp-contract=off'
plan -B "$build/moeflux" LDFLAGS=-L/theirs LDLIBS=-ltheirs
out_has '-z,now .*-L/theirs .*-ljansson .*-ltheirs'

claim a_warning_is_an_error_in_ci_alone
plan -B "$build/src/base/err.o"
out_has '-Wall'
out_lacks '-Werror'
plan -B "$build/src/base/err.o" WERROR=1
out_has '-Werror'
run 0 env CI=true make -n BUILD="$build" -B "$build/src/base/err.o"
out_has '-Werror'

claim a_shaders_header_rebuilds_only_those_that_include_it
plan -B
all=$(grep -c -e '-mfmt=c' "$tmp/out")
plan
! grep -q -e '-mfmt=c' "$tmp/out" || fault "the shaders are not up to date"
# The header that the fewest shaders include, after the files of dependencies that glslc wrote.
fewest=$all rarest=none
for h in kernels/*.glsl kernels/*/*.glsl; do
    n=$(find "$build/kernels" -name '*.d' -exec grep -l -F " $h" {} + | wc -l)
    if [ "$n" -gt 0 ] && [ "$n" -lt "$fewest" ]; then
        fewest=$n rarest=$h
    fi
done
plan -W "$rarest"
n=$(grep -c -e '-mfmt=c' "$tmp/out")
{ [ "$n" -gt 0 ] && [ $((10 * n)) -le "$all" ]; } || fault "$rarest: $n shaders of $all would be built"
plan -W kernels/args.h
[ "$(grep -c -e '-mfmt=c' "$tmp/out")" -eq "$all" ] || fault "args.h, which all include, does not rebuild all"

# small_tree OPERATION TEST: a tree for lint, with these two sources.
small_tree() {
    rm -rf "$tmp/tree"
    mkdir -p "$tmp/tree/scripts" "$tmp/tree/kernels" "$tmp/tree/src/ops" "$tmp/tree/tests/unit"
    cp scripts/lint scripts/long-ones scripts/kernels "$tmp/tree/scripts"
    cp kernels/swiglu.comp "$tmp/tree/kernels"
    printf '%s\n' "$1" >"$tmp/tree/src/ops/x.c"
    printf '%s\n' "$2" >"$tmp/tree/tests/unit/test_x.c"
}

claim lint_wants_every_kernel_in_the_code_of_an_operation_and_of_a_test
missing=
for tool in clang-format clang-tidy cppcheck shellcheck groff; do
    command -v "$tool" >/dev/null || missing="$missing $tool"
done
if [ -n "$missing" ]; then
    name=''
    echo "SKIP lint_wants_every_kernel_in_the_code_of_an_operation_and_of_a_test: lint needs$missing"
else
    small_tree 'const char *op = "swiglu"; /* "//" */' 'const char *t = "// \" swiglu";'
    run 0 "$tmp/tree/scripts/lint" kernels
    small_tree '/* "swiglu" */ int x; // "swiglu"' 'int swiglu;'
    run 1 "$tmp/tree/scripts/lint" kernels
    out_has 'no src/ops/\*.c names "swiglu"'
    small_tree 'const char *op = "swiglu";' '/* swiglu
    swiglu */ int x; // swiglu'
    run 1 "$tmp/tree/scripts/lint" kernels
    out_has 'no test names swiglu'
fi

report
