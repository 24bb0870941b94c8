#!/bin/bash
# A model with experts on several disks, on the CPU: convert --spread, and every way to read its result.
# suites: check fast asan-nightly
. tests/lib/cli.sh

whole=$tmp/whole spread=$tmp/spread list=$tmp/a,$tmp/b
on=(--device cpu --memory 1M)

claim convert_says_over_how_many_directories
run 0 "$MOEFLUX" convert tests/models/tiny "$whole"
! grep -q directories "$tmp/err" || fault "without --spread: $(cat "$tmp/err")"
run 0 "$MOEFLUX" convert tests/models/tiny "$spread" --spread "$list" --verify
err_has ', verified$'
err_has '^.*spread .* 3 directories$'
[ -z "$(find "$tmp" -name '*.partial*' -o -name 'convert.state')" ] || fault 'something half-written is left'

claim text_and_logits_are_those_of_one_disk
echo '1 5 9 2 77 8 100 12 4' >"$tmp/ids"
for model in tiny qwen-odd/mlx sources/deepseek/hf deepseek-odd/mlx qwen3-odd/mlx; do
    one=$tmp/${model//\//-}-one two=$tmp/${model//\//-}-two
    rm -rf "$one" "$two" "$two-part"
    run 0 "$MOEFLUX" convert "tests/models/$model" "$one"
    run 0 "$MOEFLUX" convert "tests/models/$model" "$two" --spread "$two-part"
    run 0 "$MOEFLUX" -m "$one" "${on[@]}" --tokens-in "$tmp/ids" --logits "$tmp/one.logits" --logits-all
    run 0 "$MOEFLUX" -m "$one" "${on[@]}" --tokens-in "$tmp/ids" --temp 0 -n 12 --tokens-out
    cp "$tmp/out" "$tmp/one.text"
    for io in auto mmap pread uring direct; do
        if ! "$MOEFLUX" -m "$two" "${on[@]}" --expert-io "$io" --plan >"$tmp/out" 2>"$tmp/err" &&
            grep -q '^moeflux: experts .* read by [ud]' "$tmp/err"; then
            echo "SKIP $model: $(cat "$tmp/err")"
            continue
        fi
        run 0 "$MOEFLUX" -m "$two" "${on[@]}" --expert-io $io --tokens-in "$tmp/ids" --logits \
            "$tmp/two.logits" \
            --logits-all
        cmp -s "$tmp/one.logits" "$tmp/two.logits" || fault "$model, $io: other logits"
        run 0 "$MOEFLUX" -m "$two" "${on[@]}" --expert-io $io --tokens-in "$tmp/ids" --temp 0 -n 12 \
            --tokens-out
        cmp -s "$tmp/one.text" "$tmp/out" || fault "$model, $io: other tokens"
    done
done

claim eight_disks_need_no_higher_limit_of_open_files
run 0 "$MOEFLUX" convert tests/models/tiny "$tmp/eight" --spread "$(printf "$tmp/e%d," 1 2 3 4 5 6)$tmp/e7"
run 0 "$MOEFLUX" -m "$whole" "${on[@]}" --tokens-in "$tmp/ids" --temp 0 -n 8 --tokens-out
cp "$tmp/out" "$tmp/one.text"
run 0 bash -c 'ulimit -Sn 64 && exec "$@"' few "$MOEFLUX" -m "$tmp/eight" "${on[@]}" --tokens-in "$tmp/ids" \
    --temp 0 -n 8 \
    --tokens-out
cmp -s "$tmp/one.text" "$tmp/out" || fault 'other tokens'
rm -r "$tmp/eight" "$tmp"/e[1-7]

claim a_state_of_one_disk_is_used_with_several
run 0 "$MOEFLUX" -m "$whole" "${on[@]}" --tokens-in "$tmp/ids" --prompt-cache "$tmp/state" -n 1 --json
run 0 "$MOEFLUX" -m "$spread" "${on[@]}" --tokens-in "$tmp/ids" --prompt-cache-ro "$tmp/state" -n 1 --json
json_is 'j["reused_tokens"] >= 8' True

claim inspect_shows_the_parts
run 0 "$MOEFLUX" inspect "$spread" --no-measure
out_has "^  routed experts  *7.08 MB "
out_has "^    part 0  *2.36 MB  $spread$"
out_has "^    part 2  *2.36 MB  $tmp/b$"
run 0 "$MOEFLUX" inspect "$spread" --no-measure --json
json_is 'j["parts"]' "['$spread', '$tmp/a', '$tmp/b']"
run 0 "$MOEFLUX" inspect "$whole" --no-measure
out_lacks 'part 0'

claim outputs_do_not_replace_files_of_any_part
sums() { find "$spread" "$tmp/a" "$tmp/b" -type f -exec sha256sum {} + | sort; }
sums >"$tmp/sums"
for file in "$tmp/a/part.json" "$tmp/b/packed_experts/layer_03.bin"; do
    fails 2 "^moeflux: --logits: $file .* $tmp/[ab] " -m "$spread" -p x --logits "$file"
done
fails 2 "^moeflux: --logits: $tmp/a/packed_experts/new .* $tmp/a; " -m "$spread" -p x --logits \
    "$tmp/a/packed_experts/new"
sums | cmp -s - "$tmp/sums" || fault 'the model has changed'

claim a_missing_part_is_named_with_the_file_that_has_its_path
mv "$tmp/b" "$tmp/moved"
for verb in "-m $spread -p x" "inspect $spread" "-m $spread --plan"; do
    # shellcheck disable=SC2086 # words are words
    fails 1 "^moeflux: $tmp/b: part 2 .* $spread/spread.json\$" $verb
done
sed -i "s|$tmp/b|../moved|" "$spread/spread.json"
run 0 "$MOEFLUX" -m "$spread" "${on[@]}" --tokens-in "$tmp/ids" --tokens-out --temp 0 -n 4

claim another_models_part_is_refused
mv "$tmp/moved" "$tmp/own"
cp -r "$tmp/tiny-two-part" "$tmp/moved"
fails 1 "moved/part.json: .*(id [0-9a-f]*, .* part 2 .* $spread/spread.json\$" -m "$spread" -p x
fails 1 "^moeflux: $tmp/moved: .*part .*spread.json" -m "$tmp/moved" -p x
rm -r "$tmp/moved"
mv "$tmp/own" "$tmp/moved"

claim bad_directories_are_refused_and_nothing_is_written
fails 2 "^moeflux: --spread: $tmp/x .*twice$" convert tests/models/tiny "$tmp/new" --spread "$tmp/x,$tmp/x"
fails 2 "^moeflux: --spread: $tmp/new .*twice$" convert tests/models/tiny "$tmp/new" --spread \
    "$tmp/x,$tmp/new"
fails 2 "^moeflux: --spread: .*empty.*\"$tmp/x,\"$" convert tests/models/tiny "$tmp/new" --spread "$tmp/x,"
fails 2 "^moeflux: $tmp/moved exists" convert tests/models/tiny "$tmp/new" --spread "$tmp/moved"
fails 1 "^moeflux: $tmp/none: No such file" convert tests/models/tiny "$tmp/new" --spread "$tmp/none/x"
[ -z "$(find "$tmp" -name 'new*' -o -name 'x*')" ] || fault "made: $(find "$tmp" -name 'new*' -o -name 'x*')"

report
