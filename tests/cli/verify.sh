#!/bin/sh
# convert --verify of a converted model: every file of every directory is compared with its checksum, and
# none is changed.
# suites: check fast asan
. tests/lib/cli.sh

a=$tmp/a b=$tmp/b
run 0 "$MOEFLUX" convert tests/models/tiny "$a" --spread "$b"
cp -R "$a" "$tmp/a.good"
cp -R "$b" "$tmp/b.good"
# Brings both directories back to how they were written.
mend() {
    rm -rf "$a" "$b"
    cp -R "$tmp/a.good" "$a"
    cp -R "$tmp/b.good" "$b"
}

claim what_was_converted_is_verified_with_all_its_parts
run 0 "$MOEFLUX" convert --verify "$a"
out_empty
err_has "^$a: [0-9]* files, [0-9.]* MB, as they were written$"
n=$(find "$a" "$b" -type f ! -name checksums.json ! -name spread.json | wc -l)
err_has ": $n files"
run 0 "$MOEFLUX" convert --verify "$b"
err_has "^$b: 9 files"

claim a_flipped_bit_is_named_and_left_alone
printf '\377' | dd of="$b/packed_experts/layer_05.bin" bs=1 seek=777 conv=notrunc 2>/dev/null
cp "$b/packed_experts/layer_05.bin" "$tmp/bad"
fails 1 "$b/packed_experts/layer_05.bin: checksum [0-9a-f]*, expected [0-9a-f]*\$" convert --verify "$a"
cmp -s "$tmp/bad" "$b/packed_experts/layer_05.bin" || fault 'the bad file was changed'

claim all_bad_files_are_counted
truncate -s -1 "$a/packed_experts/layer_00.bin"
rm "$a/tokenizer.json"
fails 1 '(and 2 more of [0-9]* files)' convert --verify "$a" -t 2
mend
truncate -s 10 "$a/config.json"
fails 1 "$a/config.json: 10 bytes, expected [0-9]*\$" convert --verify "$a"
mend

claim what_is_no_converted_model_is_refused
fails 1 'tests/models/tiny: no checksums.json, which moeflux convert writes' convert --verify \
    tests/models/tiny
fails 1 "/nowhere: expected the directory" convert --verify /nowhere
rm -r "$b"
fails 1 "$b" convert --verify "$a"
mend
echo '{"algorithm": "XXH3-64", "files": {"../etc": {"bytes": 1, "xxh3": "0123456789abcdef"}}}' \
    >"$a/checksums.json"
fails 1 'checksums.json: ../etc: expected a name in the directory' convert --verify "$a"
echo '{"algorithm": "MD5", "files": {}}' >"$a/checksums.json"
fails 1 'expected the algorithm XXH3-64' convert --verify "$a"
echo '{"algorithm": "XXH3-64", "files": {"x": {"bytes": -1, "xxh3": "0"}}}' >"$a/checksums.json"
fails 1 'checksums.json: x: expected' convert --verify "$a"

claim other_flags_need_a_source_and_a_destination
fails 2 'takes no other flag than --threads' convert --verify "$tmp/a.good" --bits 3
fails 2 'DST is missing' convert "$tmp/a.good"

report
