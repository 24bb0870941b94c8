# shellcheck shell=sh
# What the shell tests of the program share; sourced from the repository root. A test:
#
#   claim a_name_that_is_a_claim
#   run 2 "$MOEFLUX" --foo        the status it must end with; its streams are in $tmp/out and $tmp/err
#   err_has 'unknown option'
#
# and `report` at the end.

MOEFLUX=${MOEFLUX:-build/moeflux}
case $MOEFLUX in
/*) ;;
*) MOEFLUX=$PWD/$MOEFLUX ;;
esac
[ -x "$MOEFLUX" ] || {
    echo "[  FAILED  ] $0: no program at $MOEFLUX"
    exit 1
}
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
name='' faults=0 n_failed=0
# History, settings and colours as the tests want them, whoever runs them.
export XDG_STATE_HOME="$tmp/state" XDG_CONFIG_HOME="$tmp/config"
unset NO_COLOR MOEFLUX_MODEL
# What is piped in belongs to a prompt.
exec </dev/null

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
    [ "$got" -eq "$want" ] || fault "status $got, expected $want: $(echo "$*" | cut -c1-200): $(head -c 300 "$tmp/err")"
}

# Basic regular expressions.
err_has() { grep -q -e "$1" "$tmp/err" || fault "stderr lacks '$1': $(head -c 300 "$tmp/err")"; }
out_has() { grep -q -e "$1" "$tmp/out" || fault "stdout lacks '$1': $(head -c 300 "$tmp/out")"; }
out_is() { [ "$(cat "$tmp/out")" = "$1" ] || fault "stdout is '$(head -c 300 "$tmp/out")', expected '$1'"; }
out_empty() { [ ! -s "$tmp/out" ] || fault "stdout is not empty: $(head -c 300 "$tmp/out")"; }
err_empty() { [ ! -s "$tmp/err" ] || fault "stderr is not empty: $(head -c 300 "$tmp/err")"; }

# A Python expression of j, the JSON object on stdout.
json() { python3 -S -c 'import json, sys; j = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$tmp/out" "$1"; }
json_is() {
    is=$(json "$1")
    [ "$is" = "$2" ] || fault "$1 is $is, expected $2"
}

# A failure as the program tells them: one line on stderr, nothing on stdout.
one_line() {
    out_empty
    [ "$(wc -l <"$tmp/err")" -eq 1 ] || fault "expected one line on stderr: $(head -c 500 "$tmp/err")"
    grep -q '^moeflux: .' "$tmp/err" || fault "stderr does not begin with 'moeflux: ': $(head -c 300 "$tmp/err")"
}

# fails STATUS PATTERN ARGUMENT...: the program with these arguments.
fails() {
    want_status=$1 pattern=$2
    shift 2
    run "$want_status" "$MOEFLUX" "$@"
    one_line
    err_has "$pattern"
}

report() {
    end_claim
    [ "$n_failed" -eq 0 ]
    exit
}
