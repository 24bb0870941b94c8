#!/bin/sh
# The command line without a model: help texts, the version, and what is refused.
# suites: check fast asan-nightly
. tests/lib/cli.sh

claim help_fits_80_columns_and_goes_to_stdout
for words in --help -h 'convert --help' 'inspect -h' 'get -h' 'doctor -h' '--help --foo'; do
    # shellcheck disable=SC2086 # words are words
    run 0 "$MOEFLUX" $words
    err_empty
    out_has '^usage: moeflux'
    [ "$(awk '{ if (length($0) > n) n = length($0) } END { print n }' "$tmp/out")" -le 80 ] ||
        fault "$words: a line is over 80 columns"
done

# names_flags VERB PAGE LEAST: the page has every flag of the help text, and these are at least LEAST.
names_flags() {
    # shellcheck disable=SC2086 # an empty verb is no argument
    run 0 "$MOEFLUX" $1 --help
    grep -o -e '--[a-z][a-z-]*' "$tmp/out" | sort -u >"$tmp/help"
    sed 's/\\-/-/g' "man/$2" >"$tmp/man"
    while read -r flag; do
        grep -q -w -e "$flag" "$tmp/man" || fault "$2 lacks $flag"
    done <"$tmp/help"
    [ "$(wc -l <"$tmp/help")" -ge "$3" ] || fault "the help text of '$1' names too few flags"
}

claim help_and_man_pages_name_the_same_flags
names_flags '' moeflux.1 35
names_flags convert moeflux-convert.1 10
names_flags inspect moeflux-inspect.1 10
names_flags get moeflux-get.1 9
names_flags doctor moeflux-doctor.1 9
names_flags completion moeflux.1 1

claim the_unit_for_systemd_has_flags_of_serve_only
run 0 "$MOEFLUX" serve --help
sed -n '/^ExecStart=/,/[^\\]$/p' examples/moeflux.service | grep -o -e '--[a-z][a-z-]*' >"$tmp/unit"
while read -r flag; do
    out_has " $flag "
done <"$tmp/unit"
[ "$(wc -l <"$tmp/unit")" -eq 3 ] || fault "flags of the unit: $(tr '\n' ' ' <"$tmp/unit")"
[ "$(grep -c -e '--api-key-file %d/keys' examples/moeflux.service)" -eq 1 ] ||
    fault 'the unit does not take its credential'

claim version_is_one_line
run 0 "$MOEFLUX" --version
err_empty
out_has '^moeflux [0-9]*\.[0-9]*\.[0-9]*$'
[ "$(wc -l <"$tmp/out")" -eq 1 ] || fault "more than one line"
cp "$tmp/out" "$tmp/version"
run 0 "$MOEFLUX" -V
cmp -s "$tmp/out" "$tmp/version" || fault "-V says something else"

claim unknown_flags_are_refused_by_name
fails 2 '--foo .*--help' --foo
fails 2 '--foo=3 .*--help' --foo=3
fails 2 ' -x .*--help' -m dir -x
fails 2 '"stray" .*--help' -m dir stray
fails 2 '--verify .*--help' -m dir --verify
fails 2 '--temp .*--help' convert a b --temp 1

claim near_misses_of_flags_and_verbs_are_suggested
fails 2 ' --tmep: .* --temp?$' -m dir -p x --tmep 0
fails 2 ' --tmep=0: .* --temp?$' -m dir --tmep=0
fails 2 ' --promt-cache: .* --prompt-cache?$' -m dir --promt-cache x
fails 2 ' --n-predct: .* --n-predict?$' -m dir --n-predct 3
fails 2 ' --grup: .* --group?$' convert a b --grup 32
fails 2 ' "inspct": .* inspect?$' inspct dir
fails 2 ' "sevre": .* serve?$' sevre -m dir
# There is no suggestion for a word that is far from all flags.
fails 2 ' --zzzzzz (--help [^?]*$' -m dir --zzzzzz
fails 2 ' "stray" (--help [^?]*$' stray
fails 2 ' --x (--help [^?]*$' -m dir --x

# next STATUS PATTERN DIR-OR-FILE: -m, inspect, convert and serve refuse it, and each says what to do next.
next() {
    status=$1 pattern=$2 what=$3
    fails "$status" "$pattern" -m "$what" -p x
    fails "$status" "$pattern" inspect "$what"
    fails "$status" "$pattern" convert "$what" "$tmp/converted"
    fails "$status" "$pattern" serve --port 0 -m "$what"
    [ ! -e "$tmp/converted" ] || fault "$what: something was written"
}

claim what_is_no_model_directory_says_what_to_do_next
fails 2 ' -m DIR .*moeflux convert .*MOEFLUX_MODEL.*--help'
mkdir "$tmp/gguf" "$tmp/pt" "$tmp/lfs" "$tmp/void" "$tmp/bare" "$tmp/outer" "$tmp/outer/snapshots" \
    "$tmp/outer/snapshots/a1"
printf 'GGUF\003' >"$tmp/gguf/x.gguf"
cp "$tmp/gguf/x.gguf" "$tmp/renamed"
echo '{}' | tee "$tmp/pt/config.json" "$tmp/lfs/config.json" >"$tmp/outer/snapshots/a1/config.json"
echo x | tee "$tmp/pt/pytorch_model-00001-of-00002.bin" >"$tmp/bare/model.safetensors"
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 3\n' >"$tmp/lfs/model.safetensors"
next 1 "^moeflux: $tmp/gguf: .*GGUF.* $tmp/gguf/x.gguf\$" "$tmp/gguf"
for what in "$tmp/gguf/x.gguf" "$tmp/renamed"; do
    next 1 "^moeflux: $what: .*byte 4 of 5" "$what"
    fails 2 "\"$what\".*-m $what" "$what"
done
fails 2 '--lossy: tests/models/qwen3-odd/hf .*GGUF' convert tests/models/qwen3-odd/hf "$tmp/converted" --lossy
fails 2 '--half-scales: tests/models/qwen3-odd/hf .*GGUF' convert tests/models/qwen3-odd/hf "$tmp/converted" \
    --half-scales
fails 2 '--verify .*--threads' convert --verify "$tmp/converted" --lossy
fails 2 '--verify .*--threads' convert --verify "$tmp/converted" --half-scales
next 1 "^moeflux: $tmp/pt: .*PyTorch.*safetensors" "$tmp/pt"
next 1 "^moeflux: $tmp/lfs: model.safetensors .*git lfs pull" "$tmp/lfs"
next 1 "^moeflux: $tmp/bare: .*config.json" "$tmp/bare"
next 1 "^moeflux: $tmp/bare/model.safetensors: .* $tmp/bare\$" "$tmp/bare/model.safetensors"
next 1 "^moeflux: $tmp/outer: .* $tmp/outer/snapshots/a1\$" "$tmp/outer"
next 1 "^moeflux: $tmp/void: .*config.json.*tokenizer.json.*safetensors" "$tmp/void"
next 1 '^moeflux: Qwen/Qwen3-30B-A3B: .*"moeflux get Qwen/Qwen3-30B-A3B"' Qwen/Qwen3-30B-A3B
next 1 '^moeflux: no-such-dir: No such file' no-such-dir
# Without -m it is a usage error, with the same advice.
fails 2 " \"$tmp/pt\": .*-m $tmp/pt" "$tmp/pt"
fails 2 'GGUF' "$tmp/renamed"
fails 2 '"Qwen/Qwen3-30B-A3B".*-m Qwen/Qwen3-30B-A3B' Qwen/Qwen3-30B-A3B

claim flags_say_whether_they_take_a_value
fails 2 '--temp .*value' -m dir -p x --temp
fails 2 '-p/--prompt.*value.*""' -m dir -p ''
fails 2 '--prompt .*value' -m dir --prompt ''
fails 2 '--json: .*--json=full' -m dir --json=yes

claim bad_numbers_are_refused_with_the_range
for value in x '' 1x ' 1' 1.5 99999999999999999999 -2 0x10; do
    [ -z "$value" ] || fails 2 "-n/--predict: .* -1 to .*\"$value\"$" -m dir -p x -n "$value"
done
for value in 0 -1 x 5000; do
    fails 2 "-t/--threads: .* 1 to 4096, .*\"$value\"$" -m dir -p x -t "$value"
done
for value in 0 x 1e3; do
    fails 2 "-c/--ctx-size: .* 1 to .*\"$value\"$" -m dir -p x -c "$value"
    fails 2 "--chunk: .* 1 to .*\"$value\"$" -m dir -p x --chunk "$value"
done
fails 2 '-s/--seed: .* -1 to 9007199254740991' -m dir -p x -s 9007199254740992
fails 2 '--top-k: .* -1 to .*"-3"' -m dir -p x --top-k -3
for value in x nan inf 1e400 0x1p3 ' 1' 1,5; do
    fails 2 "--temp: .*\"$value\"$" -m dir -p x --temp "$value"
done

claim bad_sizes_are_refused
for value in 0 -1 x 12Q 1.5.2G G 4GiBB 99999999999T; do
    fails 2 "--memory: .*512M, 4G or 1.5GiB, .*\"$value\"$" -m dir -p x --memory "$value"
    fails 2 "--gpu-memory: .*512M, 4G or 1.5GiB, .*\"$value\"$" -m dir -p x --gpu-memory "$value"
done

claim only_the_listed_choices_are_taken
# choices FLAG LIST VALUE...: takes each value, so that only the directory is missing, and nothing else.
choices() {
    flag=$1 listed=$2
    shift 2
    for value in "$@"; do
        fails 1 'no-such-dir' -m no-such-dir -p x "$flag" "$value"
    done
    for value in x "$1 " "${1}x" "$listed" or ','; do
        fails 2 "$flag: .*$listed, .*\"$value\"$" -m dir -p x "$flag" "$value"
    done
}
choices --expert-io 'auto, mmap, pread, uring or direct' auto mmap pread uring direct
choices --prefetch 'auto, none, previous, router or both' auto none previous router both
choices --cache-policy 'auto, lru, frequency or context' auto lru frequency context
choices --kv-type 'auto, f32, f16 or q8_0' auto f32 f16 q8_0
choices --experts 'gpu, cpu or cpu:SHARE' gpu cpu cpu:0.5 cpu:1e-3
for share in 0 1 1.5 -0.5 '' x 0.5x nan inf 1e-60 0,5; do
    fails 2 "--experts: .*gpu, cpu or cpu:SHARE.*\"cpu:$share\"$" -m dir -p x --experts "cpu:$share"
done
choices --prompt-type 'auto, f32 or f16' auto f32 f16
choices --color 'auto, always or never' auto always never

claim sampling_out_of_range_is_refused
fails 2 '--temp .*-1, .* 0 ' -m dir -p x --temp -1
fails 2 'top-p .*0, .* 0 .* 1$' -m dir -p x --top-p 0
fails 2 'top-p .*1.5, .* 0 .* 1$' -m dir -p x --top-p 1.5
fails 2 'min-p .*-0.1, .* 0 .* 1$' -m dir -p x --min-p -0.1
fails 2 'repeat-penalty .*0, .* 0$' -m dir -p x --repeat-penalty 0
fails 2 'presence-penalty .*2.5, .*-2 to 2$' -m dir -p x --presence-penalty 2.5
fails 2 'frequency-penalty .*-3, .*-2 to 2$' -m dir -p x --frequency-penalty -3
fails 2 '--logprobs: .* 0 to 20, .*"21"$' -m dir -p x --logprobs 21
fails 2 '--stop: .*UTF-8' -m dir -p x --stop "$(printf 'a\377')"
fails 2 '--stop' -m dir -p x --stop ''
# shellcheck disable=SC2046 # each word is an argument
fails 2 '--stop' -m dir -p x $(printf ' --stop %s' 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16)
fails 2 '--tools .*--raw .*--tokens-in ' -m dir -p x --raw --tools y

claim flags_that_exclude_each_other_are_named
fails 2 '--experts .*--n-cpu-moe ' -m dir -p x --experts cpu --n-cpu-moe 3
fails 2 '--experts .*--n-cpu-moe ' -m dir -p x --experts cpu:0.5 --n-cpu-moe 3
fails 2 '--experts .*--n-cpu-moe ' inspect dir --experts gpu --n-cpu-moe 0
fails 2 '--n-cpu-moe: .* 0 to .*"-1"$' -m dir -p x --n-cpu-moe -1
fails 2 ' -p - .*-f ' -m dir -p - -f y
fails 2 ' -p .*--tokens-in ' -m dir -p x --tokens-in y
fails 2 ' -f .*--tokens-in ' -m dir -f x --tokens-in y
fails 2 '--think .*--no-think ' -m x -p x --think --no-think
fails 2 '--system .*--raw ' -m dir -p x --raw --system y
fails 2 '--json .*--tokens-out ' -m dir -p x --json --tokens-out
fails 2 '--json .*--csv ' -m dir --bench --json --csv
fails 2 '--csv .*--bench, --list-devices or --compare ' -m dir -p x --csv
fails 2 '--logits-all .*--logits ' -m dir -p x --logits-all
fails 2 '--json .*--logits - ' -m dir -p x --json --logits -
fails 2 '--logits - .*-n ' -m dir -p x --logits - -n 3
fails 2 '--hidden: .*"-"$' -m dir -p x --hidden -
fails 2 '--logits .*--hidden .* x$' -m dir -p x --logits x --hidden x
fails 2 '--bench .*--selftest ' -m dir --bench --selftest
fails 2 '--bench-prompt: .*16 .* 0 to 16777216 .*"1,,2"$' -m dir --bench --bench-prompt 1,,2
for value in -1 '1,' ',1' 4k 16777217; do
    fails 2 "--bench-depth: .*16 .* 0 to 16777216 .*\"$value\"$" -m dir --bench --bench-depth "$value"
done

claim flags_of_bench_go_with_bench_only
for flag in prompt gen depth reps; do
    fails 2 "^moeflux: --bench-$flag .*--bench " -m dir -p x --bench-$flag 1
    fails 2 "^moeflux: --bench-$flag .*--bench " -m dir --perplexity x --bench-$flag 1
done

claim formats_that_convert_does_not_write_are_refused
for flag in bits expert-bits; do
    fails 2 "^moeflux: --$flag: .* 2, 3, 4, 5, 6 or 8, .* 7$" convert a b --$flag 7
    fails 2 "--$flag: .* 1 to .*\"0\"$" convert a b --$flag 0
    fails 2 "--$flag: .* 1 to .*\"mxfp4\"$" convert a b --$flag mxfp4
done
for flag in group expert-group; do
    fails 2 "^moeflux: --$flag: .* 32, 64 or 128, .* 16$" convert a b --$flag 16
done
fails 2 '--recipe: .* mixed_2_6, mixed_3_4, mixed_3_6 or mixed_4_6, .*"mixed_2_4"$' convert a b --recipe \
    mixed_2_4
fails 2 '--scales: .* minmax or search, .*"best"$' convert a b --scales best
fails 2 ' --recipe .*--bits ' convert a b --recipe mixed_3_6 --bits 4
fails 2 ' --mode: .* affine, mxfp4, mxfp8 or nvfp4, .*"fp4"$' convert a b --mode fp4
fails 2 ' --expert-mode: .* affine, mxfp4, mxfp8 or nvfp4, .*"int4"$' convert a b --expert-mode int4
fails 2 ' --mode mxfp4 .*--bits ' convert a b --mode mxfp4 --bits 4
fails 2 ' --expert-mode nvfp4 .*--expert-group ' convert a b --expert-mode nvfp4 --expert-group 32
fails 2 ' --bits .*--help' -m dir -p x --bits 4

claim what_is_missing_is_named
fails 2 ' -m DIR ' -p x
fails 2 ' -m DIR '
fails 2 ' SRC .*--help' convert
fails 2 ' DST .*--help' convert a
fails 2 ' "c" .*--help' convert a b c
fails 2 '--spread .*value' convert a b --spread
fails 2 ' MODEL .*--help' inspect

claim missing_files_are_named
fails 1 "^moeflux: .*$tmp/none: No such file" -m dir -f "$tmp/none"
fails 1 "^moeflux: .*$tmp/none: No such file" -m dir --tokens-in "$tmp/none"
fails 1 "$tmp/none" -m "$tmp/none" -p x
fails 1 "$tmp/none" inspect "$tmp/none"
fails 1 "$tmp/none" convert "$tmp/none" "$tmp/converted"
[ ! -e "$tmp/converted" ] || fault "a failed conversion left a directory"

claim empty_prompts_and_bad_ids_are_refused
: >"$tmp/empty"
printf ' \n\t\n' >"$tmp/blank"
printf '1 2 three 4' >"$tmp/words"
printf '1 -2 3' >"$tmp/negative"
printf '1 99999999999999999999' >"$tmp/huge"
printf '1 2\0003 4' >"$tmp/nul"
fails 2 "^moeflux: .*$tmp/empty: .*empty" -m dir -f "$tmp/empty"
fails 2 "^moeflux: .*$tmp/blank: .*empty" -m dir -f "$tmp/blank"
fails 2 "^moeflux: .*$tmp/blank: .*token ids" -m dir --tokens-in "$tmp/blank"
fails 2 "^moeflux: .*$tmp/words: word 3: .*\"three\"" -m dir --tokens-in "$tmp/words"
fails 2 "^moeflux: .*$tmp/negative: word 2: .*\"-2\"" -m dir --tokens-in "$tmp/negative"
fails 2 "^moeflux: .*$tmp/huge: word 2: .*\"99999" -m dir --tokens-in "$tmp/huge"
fails 2 "^moeflux: .*$tmp/nul: word 2: .*NUL" -m dir --tokens-in "$tmp/nul"
run 2 "$MOEFLUX" -m dir <"$tmp/blank"
out_empty
err_line '^moeflux: stdin: .*empty'

claim output_files_that_cannot_be_are_refused_before_the_model_is_read
fails 1 "^moeflux: .*$tmp/no/x: No such file" -m dir -p x --logits "$tmp/no/x"
fails 1 '^moeflux: --logits /dev/null: ' -m dir -p x --logits /dev/null
fails 1 "^moeflux: --hidden $tmp: " -m dir -p x --hidden "$tmp"
[ -c /dev/null ] || fault "/dev/null was replaced"

claim a_failed_run_leaves_no_output_file
fails 1 '^moeflux: dir: No such file' -m dir -p x --logits "$tmp/logits" --hidden "$tmp/hidden"
for file in "$tmp"/logits* "$tmp"/hidden*; do
    [ ! -e "$file" ] || fault "$file was left"
done

claim a_full_or_closed_stdout_ends_with_status_1
if [ -e /dev/full ]; then
    got=0
    "$MOEFLUX" --help >/dev/full 2>"$tmp/err" || got=$?
    [ "$got" -eq 1 ] || fault "full: status $got"
    err_has '^moeflux: stdout: write: No space left'
fi
got=0
"$MOEFLUX" --help >&- 2>"$tmp/err" || got=$?
[ "$got" -eq 1 ] || fault "closed: status $got"
err_has '^moeflux: stdout: write: Bad file descriptor$'

report
