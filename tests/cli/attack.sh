#!/bin/sh
# What is done to a server and its files by those who do not mean well: clients that ask for too much, send half of a
# request or go; files that are cut, overwritten or cannot be written. tests/cli/attack.py has the clients.
# suites: check asan
. tests/lib/cli.sh

model=$tmp/tiny
run 0 "$MOEFLUX" convert tests/models/tiny "$model"
server='' url=''
trap 'if [ -n "$server" ]; then kill "$server" 2>/dev/null; fi; rm -rf "$tmp"' EXIT

start() {
    rm -f "$tmp/log"
    "$MOEFLUX" serve -m "$model" --device cpu --port 0 "$@" >"$tmp/served" 2>"$tmp/log" &
    server=$!
    await -p "$server" has_lines 1 "$tmp/log"
    url=$(sed -n 's/^moeflux: listening on //p' "$tmp/log")
    [ -n "$url" ] || fault "the server did not start: $(cat "$tmp/log")"
}
stop() {
    kill -TERM "$server"
    stopped
}
stopped() {
    got=0
    wait "$server" || got=$?
    server=''
    [ "$got" -eq 0 ] || fault "the server ended with status $got: $(cat "$tmp/log")"
    [ "$(wc -l <"$tmp/log")" -eq 1 ] || fault "on stderr: $(cat "$tmp/log")"
}
holds() {
    python3 tests/cli/attack.py "$url" "$@" >"$tmp/said" 2>&1 || fault "$(tail -c 1500 "$tmp/said")"
}
holds_claim() {
    claim "$1"
    holds "$@"
}

# ---- requests ----

start
holds_claim texts_that_cannot_fit_are_refused_before_they_are_encoded "$server"
holds_claim token_ids_are_written_while_they_are_sent "$server"
holds_claim requests_of_clients_that_left_are_not_read "$server"
holds_claim ambiguous_requests_are_refused
holds_claim the_second_request_of_an_ambiguous_one_is_not_answered
holds_claim clients_that_send_nothing_keep_nobody_out
stop

claim one_address_gets_all_answers_at_once
start --parallel 150
holds one_address_gets_all_answers_at_once
stop

claim one_address_has_its_share
start --address-connections 4 --parallel 4
holds one_address_has_its_share
stop

# ---- conversations ----

claim sigterm_saves_conversations_while_requests_arrive
mkdir -m 755 "$tmp/states"
start --state-dir "$tmp/states" --grace 0
python3 tests/cli/attack.py "$url" leave_two_conversations_and_half_a_request >"$tmp/ready" 2>&1 &
client=$!
await -p "$client" has_lines 1 "$tmp/ready"
stop
ends 0 "$client"
[ "$(find "$tmp/states" -name '*.moeflux-state' | wc -l)" -eq 2 ] || fault "files: $(ls -l "$tmp/states")"

claim saved_conversations_are_private
[ -z "$(find "$tmp/states" -type f ! -perm 600)" ] || fault "$(ls -l "$tmp/states")"
run 0 "$MOEFLUX" -m "$model" --device cpu -p hello -n 1 --prompt-cache "$tmp/cache"
[ "$(stat -c %a "$tmp/cache")" = 600 ] || fault "$(ls -l "$tmp/cache")"

claim parts_of_killed_servers_are_removed
part=$tmp/states/0123.moeflux-state.moeflux-part0
echo part >"$part"
echo other >"$tmp/states/other.moeflux-part0"
start --state-dir "$tmp/states"
[ ! -e "$part" ] || fault "$(ls "$tmp/states")"
[ -e "$tmp/states/other.moeflux-part0" ] || fault 'it removed another file'
stop

claim a_directory_that_cannot_be_written_is_reported_at_the_start
fails 1 '^moeflux: .*/proc/self/probe: ' serve -m "$model" --device cpu --port 0 --state-dir /proc/self

claim keys_that_no_client_can_send_are_refused
printf '\357\273\277secret\n' >"$tmp/mark"
fails 2 "^moeflux: .*$tmp/mark: .*byte order mark" serve -m "$model" --api-key-file "$tmp/mark" --port 0
printf 'one\ntw\0o\n' >"$tmp/nul"
fails 2 "^moeflux: .*$tmp/nul: line 2 .*NUL" serve -m "$model" --api-key-file "$tmp/nul" --port 0

# ---- files of the model ----

copy=$tmp/copy
fresh_copy() {
    rm -rf "$copy"
    cp -a "$model" "$copy"
}
# answer_while_cut FILE BYTES FLAG...: the program fails in one line, wherever it is when the file is cut.
answer_while_cut() {
    cut_file=$1 cut_to=$2
    shift 2
    fresh_copy
    : >"$tmp/out"
    "$MOEFLUX" -m "$copy" --device cpu --raw -p 'The river' -n 7000 --ignore-eos "$@" >"$tmp/out" 2>"$tmp/err" &
    answer=$!
    await -p "$answer" test -s "$tmp/out"
    truncate -s "$cut_to" "$copy/$cut_file"
    ends 1 "$answer"
    err_line "$cut_file has $cut_to bytes"
}
claim a_mapped_file_that_is_cut_is_one_line
for io in auto mmap; do
    answer_while_cut model_weights.bin 0 --expert-io $io
    answer_while_cut model_weights.bin 1621504 --expert-io $io
    answer_while_cut packed_experts/layer_03.bin 0 --expert-io $io
done

claim a_file_that_is_overwritten_in_place_is_reported
for io in mmap pread; do
    fresh_copy
    model=$copy start --expert-io $io --memory 3M
    printf x | dd of="$copy/packed_experts/layer_03.bin" bs=1 seek=70000 conv=notrunc 2>/dev/null
    holds a_change_of_the_model_is_reported layer_03.bin
    grep -q '^moeflux: an answer failed: .*layer_03.bin was written in place' "$tmp/log" || fault "$(cat "$tmp/log")"
    sed -i '/an answer failed/d' "$tmp/log"
    stop
done

claim a_conversion_notices_that_its_source_changes
cp -a tests/models/tiny "$tmp/source"
is_overwritten=false
for _ in 1 2 3 4 5; do
    rm -rf "$tmp/made" "$tmp/made.partial"
    "$MOEFLUX" convert "$tmp/source" "$tmp/made" --bits 3 >"$tmp/out" 2>"$tmp/err" &
    convert=$!
    await has_open "$convert" "$tmp/source/model.safetensors" && kill -STOP "$convert" 2>/dev/null
    if [ ! -e "$tmp/made" ] && kill -0 "$convert" 2>/dev/null; then
        head -c 100000 /dev/zero | dd of="$tmp/source/model.safetensors" bs=100000 seek=20 conv=notrunc 2>/dev/null
        is_overwritten=true
        kill -CONT "$convert"
        ends 1 "$convert"
        err_line "$tmp/source/model.safetensors"
        [ ! -e "$tmp/made" ] || fault 'there is a model'
        break
    fi
    kill -CONT "$convert" 2>/dev/null
    wait "$convert"
done
$is_overwritten || fault 'the conversion always ended before'

report
