#!/bin/sh
# convert --verify of a converted model: compares every file of every directory with its checksum, and changes
# none.
# suites: check fast asan-nightly
. tests/lib/cli.sh

a=$tmp/a b=$tmp/b
run 0 "$MOEFLUX" convert tests/models/tiny "$a" --spread "$b"
cp -R "$a" "$tmp/a.good"
cp -R "$b" "$tmp/b.good"
# Restores both directories from their copies.
mend() {
    rm -rf "$a" "$b"
    cp -R "$tmp/a.good" "$a"
    cp -R "$tmp/b.good" "$b"
}

claim what_was_converted_is_verified_with_all_its_parts
run 0 "$MOEFLUX" convert --verify "$a"
out_empty
err_has "^$a: [0-9]* files, [0-9.]* MB"
n=$(find "$a" "$b" -type f ! -name checksums.json ! -name spread.json | wc -l)
err_has ": $n files"
run 0 "$MOEFLUX" convert --verify "$b"
err_has "^$b: 9 files"

claim a_changed_byte_is_named_and_kept
printf '\377' | dd of="$b/packed_experts/layer_05.bin" bs=1 seek=777 conv=notrunc 2>/dev/null
cp "$b/packed_experts/layer_05.bin" "$tmp/bad"
fails 1 "$b/packed_experts/layer_05.bin: checksum [0-9a-f]*, .* [0-9a-f]*\$" convert --verify "$a"
cmp -s "$tmp/bad" "$b/packed_experts/layer_05.bin" || fault 'the bad file was changed'

claim all_bad_files_are_counted
truncate -s -1 "$a/packed_experts/layer_00.bin"
rm "$a/tokenizer.json"
fails 1 ': .*(.* 2 .* [0-9]* files)$' convert --verify "$a" -t 2
mend
truncate -s 10 "$a/config.json"
fails 1 "$a/config.json: 10 bytes, .* [0-9]*\$" convert --verify "$a"
mend

claim what_is_no_converted_model_is_refused
fails 1 '^moeflux: tests/models/tiny: .*checksums.json.*moeflux convert' convert --verify tests/models/tiny
fails 1 "^moeflux: /nowhere: .*directory" convert --verify /nowhere
rm -r "$b"
fails 1 "^moeflux: $b: part 1 .* $a/spread.json\$" convert --verify "$a"
mend
echo \
    '{"algorithm": "XXH3-64", "files": {"../etc": {"bytes": 1, "xxh3": "0123456789abcdef"}}}' \
    >"$a/checksums.json"
fails 1 "^moeflux: $a/checksums.json: ../etc: .*directory" convert --verify "$a"
echo '{"algorithm": "MD5", "files": {}}' >"$a/checksums.json"
fails 1 "^moeflux: $a/checksums.json: .*XXH3-64" convert --verify "$a"
echo '{"algorithm": "XXH3-64", "files": {"x": {"bytes": -1, "xxh3": "0"}}}' >"$a/checksums.json"
fails 1 "^moeflux: $a/checksums.json: x: .*bytes .*xxh3" convert --verify "$a"

claim other_flags_need_a_source_and_a_destination
fails 2 '--verify .*--threads' convert --verify "$tmp/a.good" --bits 3
fails 2 ' DST .*--help' convert "$tmp/a.good"

report
