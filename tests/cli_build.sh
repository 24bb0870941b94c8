#!/bin/sh
# What the Makefile and scripts/lint promise. Nothing is built: make says what it would do.
. tests/cli.sh

build=$(dirname "$MOEFLUX")
build=${build#"$PWD"/}
# The flags and variables of a make that runs the tests are not those of the ones that are tested.
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
! grep -q 'FORTIFY' "$tmp/out" || fault "_FORTIFY_SOURCE without optimisation"

claim the_users_flags_are_added_to_ours
plan -B "$build/src/base/err.o" CFLAGS='-march=native -ffp-contract=fast' CPPFLAGS=-DTHEIRS
out_has ' -Wconversion .* -march=native '
out_has ' -Isrc .* -DTHEIRS '
# Results have the same bits whatever the user wishes.
out_has '-ffp-contract=fast .*-ffp-contract=off'
plan -B "$build/moeflux" LDFLAGS=-L/theirs LDLIBS=-ltheirs
out_has '-z,now .*-L/theirs .*-ljansson .*-ltheirs'

claim a_warning_is_an_error_in_ci_alone
plan -B "$build/src/base/err.o"
out_has '-Wall'
! grep -q -e '-Werror' "$tmp/out" || fault "a user's build fails at a warning"
plan -B "$build/src/base/err.o" WERROR=1
out_has '-Werror'
run 0 env CI=true make -n BUILD="$build" -B "$build/src/base/err.o"
out_has '-Werror'

claim a_shaders_header_rebuilds_only_those_that_include_it
plan -B
all=$(grep -c -e '-mfmt=c' "$tmp/out")
plan
! grep -q -e '-mfmt=c' "$tmp/out" || fault "the shaders are not up to date"
# The header that the fewest shaders have read, as glslc wrote down.
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

# Compilers that know everything, or nothing. They write what they were called with.
mkdir "$tmp/bin"
cat >"$tmp/bin/knows" <<'EOS'
#!/bin/sh
echo "$*" >>"${0%/*}/calls"
while [ $# -gt 1 ]; do
    case $1 in
    -o) printf '\t// 1\n\t0x07230203,0x00010600\n' >"$2" ;;
    --depfile) echo "${2%.deps}.words: a.comp b.glsl" >"$2" ;;
    esac
    shift
done
EOS
printf '#!/bin/sh\nexit 1\n' >"$tmp/bin/knows-not"
chmod +x "$tmp/bin/knows" "$tmp/bin/knows-not"
khr() { plan -B "$build/kernels/table.inc" "$@"; }
has_no_khr() { ! grep -q 'khr\.inc' "$tmp/out" || fault "kernels for KHR's matrices are built: $1"; }

claim kernels_for_khr_matrices_are_built_where_a_compiler_knows_them
khr GLSLC="$tmp/bin/knows"
out_has "^$tmp/bin/knows --target-env=vulkan1.3 .* -DCOOP_KHR .*/linear/prefill_khr.inc"
ln -s knows "$tmp/bin/glslangValidator"
run 0 env PATH="$tmp/bin:$PATH" make -n BUILD="$build" -B "$build/kernels/table.inc" GLSLC="$tmp/bin/knows-not"
out_has "^scripts/khr-compiler glslang glslangValidator --target-env=vulkan1.3 .*/linear/prefill_khr.inc"
out_has "^$tmp/bin/knows-not .*/linear/prefill_coop.inc"
khr GLSLC="$tmp/bin/knows-not" KHR_GLSLC="$tmp/bin/knows"
out_has "^$tmp/bin/knows .*/linear/prefill_khr.inc"

claim without_such_a_compiler_they_are_left_out
rm "$tmp/bin/glslangValidator"
ln -s knows-not "$tmp/bin/glslangValidator"
run 0 env PATH="$tmp/bin:$PATH" make -n BUILD="$build" -B "$build/kernels/table.inc" GLSLC="$tmp/bin/knows-not"
has_no_khr 'no compiler knows them'
out_has '/linear/prefill_coop.inc'
khr GLSLC="$tmp/bin/knows" KHR_GLSLC=no
has_no_khr 'they are not wanted'

claim a_compiler_that_is_named_has_to_know_them
run 2 make -n BUILD="$build" KHR_GLSLC="$tmp/bin/knows-not"
err_has "KHR_GLSLC=$tmp/bin/knows-not does not compile GL_KHR_cooperative_matrix"

claim glslang_is_called_with_its_own_options_for_those_of_glslc
rm -f "$tmp/bin/calls"
run 0 scripts/khr-compiler glslang "$tmp/bin/knows" --target-env=vulkan1.3 -O -DX -Ikernels -mfmt=c -MD -MF "$tmp/x.d" -o "$tmp/x.inc" x.comp
grep -q -e '--target-env vulkan1.3 -Os -DX -Ikernels -x --depfile .* x.comp$' "$tmp/bin/calls" || fault "$(cat "$tmp/bin/calls")"
[ "$(tr -d '\t\n' <"$tmp/x.inc")" = '{// 10x07230203,0x00010600}' ] || fault "words: $(cat "$tmp/x.inc")"
[ "$(cat "$tmp/x.d")" = "$tmp/x.inc: a.comp b.glsl" ] || fault "dependencies: $(cat "$tmp/x.d")"
run 1 scripts/khr-compiler glslang "$tmp/bin/knows-not" -o "$tmp/y.inc" x.comp
[ ! -e "$tmp/y.inc" ] || fault 'a shader that does not compile leaves a file'

# spirv-val knows their instructions since 2023.4.
claim kernels_for_khr_matrices_are_valid
year=$(spirv-val --version 2>/dev/null | sed -n 's/^SPIRV-Tools v\(20[0-9]*\).*/\1/p')
if [ ! -e "$build/kernels/linear/prefill_khr.inc" ] || ! grep -q prefill_khr "$build/kernels/names"; then
    name=''
    echo "SKIP kernels_for_khr_matrices_are_valid: this build has none"
elif [ "${year:-0}" -lt 2024 ]; then
    name=''
    echo "SKIP kernels_for_khr_matrices_are_valid: no spirv-val of 2024 or later"
else
    for k in "$build"/kernels/*/*khr.inc; do
        python3 -c 'import re, struct, sys
words = re.findall("0x[0-9a-f]{8}", open(sys.argv[1]).read())
open(sys.argv[2], "wb").write(struct.pack("<%dI" % len(words), *(int(w, 16) for w in words)))' "$k" "$tmp/k.spv"
        run 0 spirv-val --target-env vulkan1.3 "$tmp/k.spv"
    done
fi

# A tree with one operation and one test, for lint.
small_tree() {
    rm -rf "$tmp/tree"
    mkdir -p "$tmp/tree/scripts" "$tmp/tree/kernels" "$tmp/tree/src/ops" "$tmp/tree/tests"
    cp scripts/lint scripts/long-ones "$tmp/tree/scripts"
    cp kernels/swiglu.comp "$tmp/tree/kernels"
    printf '%s\n' "$1" >"$tmp/tree/src/ops/x.c"
    printf '%s\n' "$2" >"$tmp/tree/tests/test_x.c"
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
