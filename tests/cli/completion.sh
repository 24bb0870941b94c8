#!/bin/sh
# Completion of command lines: `moeflux completion SHELL`, in the shells themselves.
# suites: check fast asan
. tests/lib/cli.sh

# flags_of COMMAND: the names of the flags in its help text.
flags_of() {
    # shellcheck disable=SC2086 # an empty command is no argument
    "$MOEFLUX" $1 --help | sed -n 's/^  \(-[a-zA-Z], \)\{0,1\} *--\([a-z-]*\).*/\2/p'
}

for shell in bash zsh fish; do
    run 0 "$MOEFLUX" completion $shell
    cp "$tmp/out" "$tmp/script.$shell"
done

claim the_scripts_have_every_flag_of_the_help_texts
for command in '' convert inspect serve get doctor; do
    flags_of "$command" >"$tmp/flags"
    [ "$(wc -l <"$tmp/flags")" -ge 9 ] || fault "the help text of '$command' names too few flags"
    while read -r flag; do
        grep -q -w -e "--$flag" "$tmp/script.bash" || fault "bash lacks --$flag"
        grep -q -e "--${flag}[=[]" "$tmp/script.zsh" || fault "zsh lacks --$flag"
        grep -q -w -e "__moeflux_is ${command:-run}' .*-l $flag" "$tmp/script.fish" ||
            fault "fish lacks --$flag of '$command'"
    done <"$tmp/flags"
done

claim another_shell_is_refused
fails 2 'completion: .* bash, zsh or fish, .*"tcsh"$' completion tcsh
fails 2 ' SHELL .*--help' completion

end_claim
for shell in bash zsh fish; do
    if ! command -v $shell >/dev/null; then
        echo "SKIP ${shell}_completes: $shell is not installed"
        continue
    fi
    claim ${shell}_completes
    mkdir "$tmp/$shell"
    python3 tests/cli/completion.py $shell "$tmp/script.$shell" "$tmp/$shell" >"$tmp/found" 2>&1 ||
        fault "$(cat "$tmp/found")"
done

report
