#!/bin/sh
# Command lines that users of other programs, and newcomers, type: tests/cli/commands.txt has each with its exit
# status and what the answer must name.
# suites: check
. tests/lib/cli.sh

made=$tmp/made model=$tmp/tiny word=
# shellcheck disable=SC2034 # the table uses it
none=$tmp/none
export HF_HOME="$tmp/hf"
run 0 "$MOEFLUX" convert tests/models/tiny "$model"
# shellcheck disable=SC2034 # the table uses it
cpu="-m $model --device cpu --no-think -n 1 -p hi"

mkdir -p "$made/pytorch" "$made/clone" "$made/around/inner" "$made/weights" "$made/dense"
for dir in pytorch clone around/inner; do cp tests/models/tiny/config.json "$made/$dir"; done
touch "$made/pytorch/pytorch_model.bin" "$made/weights/model.safetensors"
printf 'version https://git-lfs.github.com/spec/v1\n' >"$made/clone/model.safetensors"
mkdir "$made/other" "$made/split"
cp tests/models/qwen3-odd/hf/config.json tests/models/qwen3-odd/hf/model.safetensors \
    tests/models/tiny/tokenizer.json "$made/other"
cp tests/models/tiny/config.json "$made/split"
touch "$made/split/model-00002-of-00002.safetensors"
printf '{"weight_map": {"a": "model-00001-of-00002.safetensors"}}' >"$made/split/model.safetensors.index.json"
cp -r "$model" "$made/converted"
rm "$made/converted/model_weights.json"
printf '{"model_type": "qwen3"}' >"$made/dense/config.json"
printf '{%% if %%}' >"$made/bad.jinja"
head -c 1000 tests/models/gguf/gemma4.gguf >"$made/cut.gguf"

# Sets $field to the text before the next " | " of $rest, and $rest to what is after it.
cut_field() {
    field=${rest%% | *}
    rest=${rest#* | }
}

# check_answer WORD: the word is in the streams, or in the one error.
check_answer() {
    if [ "$got" -eq 0 ]; then
        [ "$1" = - ] || grep -q -F -e "$1" "$tmp/out" "$tmp/err" || fault "$line: '$1' is missing"
        return
    fi
    # Notes on flags may come before the error.
    [ "$(grep -c '^moeflux: ' "$tmp/err")" -eq 1 ] || fault "$line: expected one error: $(head -c 300 "$tmp/err")"
    tail -n 1 "$tmp/err" | grep '^moeflux: ' | grep -q -F -e "$1" ||
        fault "$line: the error lacks '$1': $(head -c 300 "$tmp/err")"
    out_empty
}

claim every_command_line_ends_as_the_table_says
n=0
while IFS= read -r line <&3; do
    case $line in '#'* | '') continue ;; esac
    rest=$line
    cut_field && command=$field
    cut_field && status=$field
    eval "set -- $command"
    got=0
    "$MOEFLUX" "$@" >"$tmp/out" 2>"$tmp/err" || got=$?
    # shellcheck disable=SC2254 # the status is a pattern
    case $got in
    $status) ;;
    *) fault "$line: status $got: $(head -c 300 "$tmp/err")" ;;
    esac
    # Its variables are replaced; quotes stay.
    eval "word=\$(cat <<WORD
$rest
WORD
)"
    check_answer "$word"
    n=$((n + 1))
done 3<tests/cli/commands.txt
[ "$n" -ge 120 ] || fault "only $n command lines"
report
