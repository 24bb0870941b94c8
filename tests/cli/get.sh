#!/bin/sh
# moeflux get: a model by Hugging Face's interface into its tools' cache, from tests/cli/hub_server.py, which cuts
# connections, lies, refuses and redirects. Suite nightly has 200 runs with cut connections, check 10.
# suites: check parts long asan-nightly
. tests/lib/cli.sh

unset HF_HOME HUGGINGFACE_HUB_CACHE HF_TOKEN HUGGING_FACE_HUB_TOKEN HF_TOKEN_PATH HF_HUB_OFFLINE TRANSFORMERS_OFFLINE \
    HF_HUB_DISABLE_IMPLICIT_TOKEN XDG_CACHE_HOME
unset CURL_CA_BUNDLE REQUESTS_CA_BUNDLE SSL_CERT_FILE
unset http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
export HOME="$tmp/home" HF_HUB_CACHE="$tmp/hub"
repositories=$tmp/repositories
mkdir -p "$tmp/home" "$repositories/org/tiny/original" "$repositories/org/large"
for file in config.json model.safetensors model.safetensors.index.json tokenizer.json; do
    cp "tests/models/tiny/$file" "$repositories/org/tiny/"
done
echo x >"$repositories/org/tiny/original/model.safetensors"
echo x >"$repositories/org/tiny/pytorch_model.bin"
# More than two parts of 16 MiB, and one that is not full.
python3 -c 'import random, sys; sys.stdout.buffer.write(random.Random(1).randbytes((36 << 20) + 123))' \
    >"$repositories/org/large/a.bin"
for i in 1 2 3; do echo "file $i" >"$repositories/org/large/small $i#.txt"; done
: >"$repositories/org/large/empty.txt"

faulty() { printf '%s\n' "$1" >"$tmp/control.new" && mv "$tmp/control.new" "$tmp/control"; }
faulty '{}'
python3 tests/cli/hub_server.py "$repositories" "$tmp/control" "$tmp/log" >"$tmp/ports" 2>"$tmp/served" &
server=$!
trap 'kill "$server" 2>/dev/null; rm -rf "$tmp"' EXIT
await -p "$server" has_lines 1 "$tmp/ports"
read -r port _ <"$tmp/ports"
export HF_ENDPOINT="http://127.0.0.1:$port/"

forget() { rm -rf "$HF_HUB_CACHE" && : >"$tmp/log"; }
gets() { run 0 "$MOEFLUX" get -q "$@"; }
log_has() { grep -q -e "$1" "$tmp/log" || fault "the server saw no '$1': $(head -c 500 "$tmp/log")"; }
log_lacks() { ! grep -q -e "$1" "$tmp/log" || fault "the server saw '$1': $(grep -m 3 -e "$1" "$tmp/log")"; }
# The snapshot that stdout names has the same files as repository $1, those of $2.
is_same() {
    snapshot=$(cat "$tmp/out")
    [ -d "$snapshot" ] || fault "no snapshot: $snapshot"
    (cd "$repositories/$1" && find . -type f -path "./${2:-*}") | while read -r file; do
        [ -L "$snapshot/$file" ] || echo "$file is no link"
        cmp "$repositories/$1/$file" "$snapshot/$file"
    done >"$tmp/differ" 2>&1
    [ ! -s "$tmp/differ" ] || fault "$(head -c 300 "$tmp/differ")"
    [ -z "$(find "$HF_HUB_CACHE" -name '*.incomplete')" ] || fault "parts are left"
}

cut_runs() {
    i=1
    while [ "$i" -le "$1" ]; do
        faulty "{\"cut\": 0.4, \"drop\": 0.05, \"seed\": $i}"
        forget
        gets org/large --include '*' --tries 100
        is_same org/large
        i=$((i + 1))
    done
    faulty '{}'
}
if [ "${MOEFLUX_PART:-}" = rest ]; then
    claim two_hundred_downloads_with_cut_connections_have_the_right_bytes
    cut_runs 200
    report
fi

claim a_model_is_fetched_and_runs_by_its_name
run 0 "$MOEFLUX" get org/tiny
err_has 'Qwen3.5-MoE'
err_has 'left out: 2 files'
is_same org/tiny '[mct]*[ns]*'
for given in original pytorch_model.bin; do
    [ ! -e "$snapshot/$given" ] || fault "$given was fetched"
done
[ "$(cat "$HF_HUB_CACHE/models--org--tiny/refs/main")" = "$(basename "$snapshot")" ] || fault "refs/main"
run 0 "$MOEFLUX" -m org/tiny --device cpu --seed 1 --temp 0 -p 'What is 47 + 38?'
out_is 85

claim what_is_there_is_not_fetched_again
: >"$tmp/log"
gets org/tiny
log_lacks resolve
# Nothing is asked of the network.
HF_HUB_OFFLINE=1 gets org/tiny
is_same org/tiny 'config.json'
HF_HUB_OFFLINE=TRUE fails 1 'HF_HUB_OFFLINE.*org/other' get org/other
for flags in '--revision main' '--include x' '--exclude x' --dry-run; do
    # shellcheck disable=SC2086 # a flag and its value
    HF_HUB_OFFLINE=1 fails 2 "${flags%% *}: .*HF_HUB_OFFLINE" get org/tiny $flags
done
[ "$(wc -l <"$tmp/log")" -eq 1 ] || fault "requests: $(cat "$tmp/log")"

claim patterns_choose_files
forget
gets org/large --include 'small*' --exclude '*2*'
ls "$(cat "$tmp/out")" >"$tmp/names"
printf 'small 1#.txt\nsmall 3#.txt\n' | cmp -s - "$tmp/names" || fault "$(cat "$tmp/names")"
gets org/tiny --include original/
[ "$(ls "$(cat "$tmp/out")")" = original ] || fault "$(ls "$(cat "$tmp/out")")"
fails 2 'org/large: .*--include' get org/large --include '*.none'
fails 1 'org/large: .*safetensors.*GGUF' get org/large

claim a_revision_has_a_reference_of_its_own
gets org/large --include empty.txt --revision refs/pr/1
cmp -s "$HF_HUB_CACHE/models--org--large/refs/refs/pr/1" "$HF_HUB_CACHE/models--org--large/refs/main" || fault reference
fails 1 'org/large: .*"none"' get org/large --revision none
fails 2 '--revision.*\.\./x' get org/large --revision ../x

claim ten_downloads_with_cut_connections_have_the_right_bytes
cut_runs 10
faulty '{"cut": 0.4, "seed": 11}'
forget
gets org/large --include '*' --tries 100 --parallel 1
is_same org/large
# Each request after the first asks for the bytes that are missing.
log_has ' bytes=[1-9][0-9]*-'

claim a_connection_serves_more_than_one_part
faulty '{}'
forget
gets org/large --include a.bin --parallel 1
[ "$(grep -c '^1 ' "$tmp/log")" -eq 3 ] || fault "requests: $(cat "$tmp/log")"
[ "$(sed -n 's/^1 .* //p' "$tmp/log" | sort -u | wc -l)" -eq 1 ] || fault "connections: $(cat "$tmp/log")"

claim servers_without_ranges_and_lengths
for control in '{"no_ranges": 1}' '{"no_ranges": 1, "cut": 0.3, "seed": 2}' '{"chunked": 1}' \
    '{"chunked": 1, "cut": 0.3}'; do
    faulty "$control"
    forget
    gets org/large --include '*' --tries 100
    is_same org/large
done

claim requests_are_repeated_as_the_server_asks
faulty '{"statuses": [[500, null], [429, 0], [503, 1], [429, null]], "api": [[500, null], [429, 1], [502, null]]}'
forget
gets org/large --include 'small 1*'
is_same org/large 'small 1*'
[ "$(grep -c resolve "$tmp/log")" -eq 5 ] || fault "requests: $(cat "$tmp/log")"
faulty '{"statuses": [[429, "\"resolvers\";r=0;t=3"]]}'
forget
run 0 "$MOEFLUX" get org/large --include 'small 1*'
err_has 'small 1#.txt: status 429, .* 3 s'
for given in 1 3; do
    faulty '{"statuses": [[500, 0], [500, 0], [500, 0], [500, 0], [500, 0]]}'
    forget
    fails 1 "org/large/small 1#.txt: .*$given tr.*500" get -q org/large --include 'small 1*' --tries "$given"
    [ "$(grep -c resolve "$tmp/log")" -eq "$given" ] || fault "$given: requests: $(cat "$tmp/log")"
    faulty '{}'
done

claim bodies_of_errors_and_redirects_are_not_read_to_their_end
faulty '{"endless": 1, "statuses": [[500, 0]], "api": [[429, 0]]}'
forget
gets org/large --include a.bin
is_same org/large a.bin
fails 1 'org/none: no such repository' get org/none

claim a_place_that_has_expired_is_asked_for_again
faulty '{"expire": 1}'
forget
gets org/large --include a.bin --parallel 1
is_same org/large a.bin

claim the_token_goes_to_the_endpoint_alone
faulty '{"token": "hf_secret"}'
forget
fails 1 'org/large: .*licence.*HF_TOKEN' get -q org/large --include '*'
HF_TOKEN=hf_wrong fails 1 'org/large: .*licence.*HF_TOKEN' get -q org/large --include '*'
! grep -q hf_ "$tmp/err" || fault 'the token is printed'
: >"$tmp/log"
HF_TOKEN=' hf_secret ' gets org/large --include '*'
is_same org/large
log_has '^0 .* Bearer hf_secret'
log_has '^1 '
log_lacks '^1 .*Bearer'
mkdir -p "$tmp/home/.cache/huggingface"
echo hf_secret >"$tmp/home/.cache/huggingface/token"
gets org/large --include '*'
HF_HUB_DISABLE_IMPLICIT_TOKEN=1 fails 1 'HF_TOKEN' get -q org/large --include '*'
mv "$tmp/home/.cache/huggingface/token" "$tmp/token"
HF_TOKEN_PATH=$tmp/token gets org/large --include '*'
CURL_CA_BUNDLE=$tmp/none fails 2 'CURL_CA_BUNDLE.*none' get -q org/large
HF_TOKEN=$(printf 'a\nEvil: b') fails 2 'HF_TOKEN' get -q org/large

claim a_refusal_of_another_host_is_not_that_of_a_licence
faulty '{"expire": 0}'
forget
fails 1 "a.bin: http://127.0.0.1:[0-9]*, .*status 403" get -q org/large --include a.bin
! grep -q 'licence\|HF_TOKEN\|signature' "$tmp/err" || fault "$(cat "$tmp/err")"

claim users_and_passwords_in_addresses_are_not_printed
faulty '{}'
forget
HF_ENDPOINT=http://me:hf_pass@127.0.0.1:$port gets org/large --include 'small 1*'
log_has 'Basic'
quiet_about() { ! grep -q 'me:\|hf_pass' "$tmp/err" || fault "the password is printed: $(cat "$tmp/err")"; }
HF_ENDPOINT=http://me:hf_pass@127.0.0.1:$port fails 1 "org/none: .*http://127.0.0.1:$port" get org/none
quiet_about
HF_ENDPOINT=http://me:hf_pass@127.0.0.1:1 fails 1 'http://127.0.0.1:1/api' get org/large --tries 1
quiet_about
HF_ENDPOINT=ftp://me:hf_pass@x fails 2 'HF_ENDPOINT.*ftp://x' get org/large
quiet_about
for proxy in 'http://me:hf_pass@127.0.0.1:1' 'nothing://me:hf_pass@127.0.0.1:1' 'http://me:hf_pass@127.0.0.1:port'; do
    http_proxy=$proxy fails 1 'org/large' get org/large --tries 1
    quiet_about
done

claim proxies_of_the_environment_are_used
faulty '{}'
forget
HF_ENDPOINT=http://hub.invalid http_proxy=http://127.0.0.1:$port gets org/large --include 'small 1*'
is_same org/large 'small 1*'
log_has '^0 http://hub.invalid/org/large/resolve/'

claim missing_repositories_and_endpoints_are_named
fails 1 'org/none: no such repository' get org/none
fails 2 'ORG/NAME' get org
# A flag is not a revision; one of another command is named, wherever it stands.
for words in '--revision -m org/large' 'org/large --revision -m' '--revision=-m org/large'; do
    # shellcheck disable=SC2086 # words are words
    fails 2 '--revision.*-m' get $words
done
for words in '--revision v1 -m org/large' '-m org/large --revision v1' 'org/large --revision v1 -m x'; do
    # shellcheck disable=SC2086 # words are words
    fails 2 '-m belongs to moeflux' get $words
done
HF_ENDPOINT=ftp://x fails 2 'HF_ENDPOINT.*ftp' get org/large
HF_ENDPOINT=http://127.0.0.1:1 fails 1 '127.0.0.1:1/api' get org/large --tries 1
faulty '{"loop": 1}'
forget
fails 1 'redirects too often' get -q org/large --include 'small 1*'

claim names_that_leave_the_directory_are_refused
for given in ../x /etc/x a/../../x a//b . 'a/' '' 'a\\b' 'a\nb'; do
    faulty "{\"extra\": [{\"rfilename\": \"$given\", \"size\": 1, \"blobId\": \"$(printf x | sha1sum | cut -c1-40)\"}]}"
    forget
    fails 1 'org/large: .*list of files' get -q org/large --include '*'
    [ ! -e "$HF_HUB_CACHE" ] || fault "something was written for '$given'"
done
faulty '{"extra": [{"rfilename": "x", "size": 1, "blobId": "../../x"}]}'
fails 1 '"x".*blobId' get -q org/large --include '*'
faulty '{"extra": [{"rfilename": "x", "size": -1, "blobId": "1111111111111111111111111111111111111111"}]}'
fails 1 '"x".*size' get -q org/large --include '*'

claim sizes_and_sums_that_lie_are_found
for control in '{"sizes": {"a.bin": 37748860}}' '{"sizes": {"a.bin": 1000}}' '{"total": 99}' '{"range": 1}' \
    '{"sizes": {"a.bin": 37748860}, "no_ranges": 1}'; do
    faulty "$control"
    forget
    fails 1 'org/large/a.bin: the server ' get -q org/large --include a.bin
    [ -z "$(find "$HF_HUB_CACHE" -name a.bin)" ] || fault "$control: there is a file"
done
for given in a.bin 'small 1#.txt'; do
    faulty "{\"corrupt\": [\"$given\"]}"
    forget
    fails 1 "$given: .*SHA-.*removed" get -q org/large --include "$given"
    [ -z "$(find "$HF_HUB_CACHE/models--org--large" -type f)" ] || fault "$given: a wrong file is left"
done
faulty "{\"sums\": {\"a.bin\": \"$(printf x | sha256sum | cut -c1-64)\"}}"
fails 1 'a.bin: the server sends the file' get -q org/large --include a.bin

claim ctrl_c_leaves_a_part_that_the_next_run_goes_on_with
faulty '{"slow": 0.02}'
forget
"$MOEFLUX" get org/large --include a.bin --parallel 1 >"$tmp/out" 2>"$tmp/err" &
pid=$!
# shellcheck disable=SC2317 # await calls it
part() { [ "$(find "$HF_HUB_CACHE" -name '*.incomplete' -size +2048k 2>/dev/null | wc -l)" -eq 1 ]; }
await -p "$pid" part
kill -INT "$pid"
ends 130 "$pid"
err_has 'interrupted; .* of 37.7 MB'
# Who asks for quiet sees the status alone.
"$MOEFLUX" get -q org/large --include a.bin --parallel 1 >"$tmp/out" 2>"$tmp/err" &
pid=$!
size=$(find "$HF_HUB_CACHE" -name '*.incomplete' -printf %s)
# shellcheck disable=SC2317 # await calls it
grew() { [ "$(find "$HF_HUB_CACHE" -name '*.incomplete' -printf %s)" -gt "$size" ]; }
await -p "$pid" grew
kill -INT "$pid"
ends 130 "$pid"
err_empty
kept=$(find "$HF_HUB_CACHE" -name '*.incomplete' -size +1024k -printf %s)
faulty '{}'
: >"$tmp/log"
gets org/large --include a.bin
log_has " bytes=$kept-"
log_lacks ' bytes=0-'
is_same org/large a.bin

claim a_part_of_something_else_is_fetched_anew
forget
gets org/large --include a.bin
blob=$(readlink -f "$(cat "$tmp/out")/a.bin")
rm "$blob"
head -c 40000000 /dev/zero >"$blob.incomplete"
gets org/large --include a.bin
is_same org/large a.bin
rm "$blob"
head -c 4000 /dev/zero >"$blob.incomplete"
fails 1 'a.bin: .*SHA-256.*removed' get -q org/large --include a.bin
gets org/large --include a.bin
is_same org/large a.bin

claim two_at_once_fetch_each_file_once
faulty '{"slow": 0.001}'
forget
"$MOEFLUX" get -q org/large --include '*' >"$tmp/first" 2>&1 &
pid=$!
gets org/large --include '*'
ends 0 "$pid"
is_same org/large
[ "$(grep -c ' bytes=0-.*' "$tmp/log")" -eq 5 ] || fault "requests: $(cat "$tmp/log")"
faulty '{}'

claim a_repository_of_many_files_needs_few_descriptors
mkdir -p "$repositories/org/many"
for i in $(seq 60); do echo "file $i" >"$repositories/org/many/$i.txt"; done
run 0 sh -c "ulimit -n 40; exec \"$MOEFLUX\" get -q org/many --include '*' --parallel 4"
is_same org/many

claim two_names_of_the_same_bytes_are_one_blob
mkdir -p "$repositories/org/twins/sub"
head -c 5000 "$repositories/org/large/a.bin" >"$repositories/org/twins/one.bin"
cp "$repositories/org/twins/one.bin" "$repositories/org/twins/sub/two.bin"
gets org/twins --include '*'
is_same org/twins
[ "$(find "$HF_HUB_CACHE/models--org--twins/blobs" -type f | wc -l)" -eq 1 ] || fault "not one blob"

claim a_disk_without_room_is_refused_and_a_full_one_named
mkdir -p "$repositories/org/huge"
echo x >"$repositories/org/huge/a.bin"
faulty '{"sizes": {"a.bin": 9007199254740992}}'
fails 3 'org/huge: 9[0-9.]* [PT]B .*HF_HUB_CACHE' get -q org/huge --include '*'
faulty '{}'
forget
run 1 sh -c "ulimit -f 8192; exec \"$MOEFLUX\" get -q org/large --include a.bin"
err_line 'incomplete: .*same command goes on'
gets org/large --include a.bin
is_same org/large a.bin

claim gguf_files_are_listed_and_asked_for
mkdir -p "$repositories/org/gguf/Q8"
cp tests/models/gguf/qwen3moe_even.gguf "$repositories/org/gguf/x-Q4.gguf"
cp tests/models/gguf/deepseek2-0000?-of-00002.gguf "$repositories/org/gguf/Q8/"
cp tests/models/gguf/types.gguf "$repositories/org/gguf/mmproj-f16.gguf"
run 2 "$MOEFLUX" get org/gguf
err_has " 1 file   --include 'x-Q4.gguf'"
err_has " 2 files  --include 'Q8/deepseek2-\*.gguf'"
err_has '^moeflux: org/gguf: 2 .*--include'
gets org/gguf --include 'Q8/deepseek2-*.gguf'
run 0 "$MOEFLUX" inspect org/gguf --no-measure --json --device cpu
rm -r "$repositories/org/gguf/Q8"
gets org/gguf
is_same org/gguf 'x-Q4.gguf'
[ "$(ls "$(cat "$tmp/out")")" = x-Q4.gguf ] || fault "$(ls "$(cat "$tmp/out")")"

claim a_model_that_cannot_run_is_refused_before_its_weights
mkdir -p "$repositories/org/dense"
echo '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2}' >"$repositories/org/dense/config.json"
echo x >"$repositories/org/dense/model.safetensors"
fails 1 'config.json: model_type is llama' get org/dense
[ -z "$(find "$HF_HUB_CACHE/models--org--dense" -name model.safetensors)" ] || fault 'the weights were fetched'
run 0 "$MOEFLUX" get org/dense --include '*'
err_has 'config.json: model_type is llama'

# Without a config.json, what the server says about GGUF files counts.
fails_without_weights() {
    forget
    fails 1 "$1" get "$2"
    [ -z "$(find "$HF_HUB_CACHE" -type f -path '*/blobs/*' 2>/dev/null)" ] || fault 'the weights were fetched'
}
faulty '{"gguf": {"architecture": "llama"}}'
fails_without_weights 'org/gguf: .*llama' org/gguf
run 0 "$MOEFLUX" get org/gguf --include '*.gguf'
err_has 'org/gguf: .*llama'
faulty '{"gguf": {"architecture": "qwen3moe"}}'
forget
gets org/gguf
faulty '{}'
rm "$repositories/org/dense/config.json"
fails_without_weights 'org/dense: .*config.json' org/dense

claim a_dry_run_fetches_the_configuration_alone
forget
run 0 "$MOEFLUX" get org/tiny --dry-run
err_has 'everything resident'
out_empty
[ "$(find "$HF_HUB_CACHE/models--org--tiny/blobs" -type f | wc -l)" -eq 1 ] || fault 'more than one file'

claim other_programs_words_lead_here
fails 2 '"pull".*moeflux get' pull org/tiny
fails 1 'org/none: .*moeflux get org/none' -m org/none -p x

report
