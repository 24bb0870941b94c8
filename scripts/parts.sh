# shellcheck shell=bash
# Sourced by .ci/run and scripts/nightly: runs every part even when one fails, then says which did. The last line
# counts the tests.
export WERROR=1
exec </dev/null
mkdir -p build
failed='' parts=''

# part NAME COMMAND...: its output goes to build/ci-NAME.log too.
part() {
    local name=$1 begin=$SECONDS result=passed
    shift
    printf '\n=== %s\n' "$name"
    "$@" 2>&1 | tee "build/ci-$name.log"
    if [ "${PIPESTATUS[0]}" -ne 0 ]; then
        result=FAILED
        failed="$failed $name"
    fi
    parts="$parts build/ci-$name.log"
    printf '=== %s %s, %d s\n' "$name" "$result" $((SECONDS - begin))
}

finish() {
    printf '\n=== %s, %d s\n' "${failed:+failed:}${failed:-everything passed}" "$SECONDS"
    # shellcheck disable=SC2086
    cat $parts | awk '
        /^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped$/ { p += $1; f += $3; s += $5; n++ }
        END { if (n) printf "%d passed, %d failed, %d skipped\n", p, f, s; else print "the tests were not run" }'
    [ -z "$failed" ]
}
