# shellcheck shell=sh
# Functions for the shell tests of the program, which source this file in the repository's root. A test:
#
#   claim a_name_that_is_a_claim
#   run 0 "$MOEFLUX" inspect DIR --json     its status must be 0; its streams are in $tmp/out and $tmp/err
#   json_is 'j["layers"]' 8
#   fails 2 '--foo' --foo                   its status must be 2; its one line on stderr must have the pattern
#
# and `report` at the end. Patterns are basic regular expressions. They have the flags, files, fields and
# numbers that a message must name, and none of its sentences.

MOEFLUX=${MOEFLUX:-build/moeflux}
case $MOEFLUX in
/*) ;;
*) MOEFLUX=$PWD/$MOEFLUX ;;
esac
[ -x "$MOEFLUX" ] || {
    echo "[  FAILED  ] $0: no program at $MOEFLUX"
    exit 1
}
tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
name='' faults=0 n_failed=0
# The tests do not depend on the user's history, settings and colours.
export XDG_STATE_HOME="$tmp/state" XDG_CONFIG_HOME="$tmp/config"
unset NO_COLOR MOEFLUX_MODEL MOEFLUX_API_KEY
# The program takes what is piped in as part of a prompt.
exec </dev/null
# One Python process evaluates all expressions of the script: its start takes longer than a run of the program.
mkfifo "$tmp/json.questions" "$tmp/json.values"
python3 -I -S tests/lib/json_values.py <"$tmp/json.questions" >"$tmp/json.values" &
exec 8>"$tmp/json.questions" 9<"$tmp/json.values"
rm "$tmp/json.questions" "$tmp/json.values"

end_claim() {
    if [ -n "$name" ] && [ "$faults" -eq 0 ]; then
        echo "[       OK ] $name"
    elif [ -n "$name" ]; then
        echo "[  FAILED  ] $name"
        n_failed=$((n_failed + 1))
    fi
    name=''
}

claim() {
    end_claim
    name=$1
    faults=0
}

fault() {
    echo "    $name: $*"
    faults=$((faults + 1))
}

run() {
    want=$1
    shift
    got=0
    "$@" >"$tmp/out" 2>"$tmp/err" || got=$?
    [ "$got" -eq "$want" ] ||
        fault "status $got, expected $want: $(echo "$*" | cut -c1-200): $(head -c 300 "$tmp/err")"
}

err_has() { grep -q -e "$1" "$tmp/err" || fault "stderr lacks '$1': $(head -c 300 "$tmp/err")"; }
out_has() { grep -q -e "$1" "$tmp/out" || fault "stdout lacks '$1': $(head -c 300 "$tmp/out")"; }
out_lacks() { ! grep -q -e "$1" "$tmp/out" || fault "stdout has '$1': $(head -c 900 "$tmp/out")"; }
out_is() { [ "$(cat "$tmp/out")" = "$1" ] || fault "stdout is '$(head -c 300 "$tmp/out")', expected '$1'"; }
out_empty() { [ ! -s "$tmp/out" ] || fault "stdout is not empty: $(head -c 300 "$tmp/out")"; }
err_empty() { [ ! -s "$tmp/err" ] || fault "stderr is not empty: $(head -c 300 "$tmp/err")"; }

# One line of the program on stderr, which has the pattern.
err_line() {
    [ "$(wc -l <"$tmp/err")" -eq 1 ] || fault "expected one line on stderr: $(head -c 500 "$tmp/err")"
    grep -q '^moeflux: .' "$tmp/err" ||
        fault "stderr does not begin with 'moeflux: ': $(head -c 300 "$tmp/err")"
    err_has "$1"
}

# A failure: one line on stderr, nothing on stdout.
one_line() {
    out_empty
    err_line ''
}

# fails STATUS PATTERN ARGUMENT...: the program with these arguments prints nothing but one line on stderr.
fails() {
    want_status=$1 pattern=$2
    shift 2
    run "$want_status" "$MOEFLUX" "$@"
    out_empty
    err_line "$pattern"
}

# evaluate EXPRESSION [FILE]: sets $value to that of a Python expression; in it, `j` is the JSON object in
# FILE (stdout), `r` the list of the objects in its lines.
evaluate() {
    printf '%s\n%s\n' "${2:-$tmp/out}" "$1" >&8
    IFS= read -r value <&9
}
json() {
    evaluate "$@"
    printf '%s\n' "$value"
}
# json_is EXPRESSION VALUE [FILE]
json_is() {
    evaluate "$1" "${3:-}"
    [ "$value" = "$2" ] || fault "$1 is $value, expected $2"
}

# await [-p PID] COMMAND...: waits until the command succeeds. It is a fault when process PID ends first, or
# after a minute.
await() {
    awaited=
    if [ "$1" = -p ]; then
        awaited=$2
        shift 2
    fi
    tries=0
    until "$@"; do
        if [ -n "$awaited" ] && ! kill -0 "$awaited" 2>/dev/null && ! "$@"; then
            fault "process $awaited ended before: $*"
            return 1
        elif [ "$((tries += 1))" -gt 1200 ]; then
            fault "not within a minute: $*"
            return 1
        fi
        sleep 0.05
    done
}
# has_lines N FILE: at least N.
has_lines() { [ -e "$2" ] && [ "$(wc -l <"$2")" -ge "$1" ]; }
# has_open PID PATTERN: the process has opened a file of this path.
has_open() { find "/proc/$1/fd" -lname "$2" 2>/dev/null | grep -q .; }

# ends STATUS PID: waits for the process.
ends() {
    got=0
    wait "$2" || got=$?
    [ "$got" -eq "$1" ] || fault "status $got, expected $1: $(head -c 300 "$tmp/err")"
}

report() {
    end_claim
    [ "$n_failed" -eq 0 ]
    exit
}
