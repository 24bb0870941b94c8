#!/bin/sh
# The page of `moeflux doctor`, on the cpu, on a Vulkan device and without any.
# suites: check vulkan asan-nightly
. tests/lib/cli.sh

model=tests/models/tiny

claim the_cpu_is_tested_and_measured
run 0 "$MOEFLUX" doctor --device cpu --json
err_empty
json_is 'j["healthy"], j["problem"], j["model"]' "(True, '', None)"
json_is '[d["kind"] for d in j["devices"]]' "['cpu']"
json_is 'j["devices"][0]["selftest"]["cases"] > 100, j["devices"][0]["selftest"]["failed"]' '(True, 0)'
json_is 'j["devices"][0]["kernel_bytes_s"] > 0 and j["memory_bytes_s"] > 0 and j["memory_bytes"] > 0' True
json_is 'j["version"] in j["build"]' True
run 0 "$MOEFLUX" doctor --device cpu --no-selftest --no-measure --cpu-isa portable
err_empty
out_has '^moeflux  *[0-9.]*, build '
out_has ' portable, [0-9]* thread'
out_has '^  self-test  *not run$'
out_lacks products
out_lacks ' $'

claim a_vulkan_device_shows_limits_heaps_and_kernels
run 0 "$MOEFLUX" doctor --device 0 --no-selftest --json
json_is 'j["healthy"], j["devices"][0]["device"], j["devices"][0]["selftest"]' "(True, '0', None)"
json_is 'sum(h["bytes"] for h in j["devices"][0]["heaps"] if h["device_local"]) == j["devices"][0]["memory_bytes"]' \
    True
json_is 'j["devices"][0]["subgroup_size"] >= 4 and j["devices"][0]["max_shared_bytes"] >= 16384' True
json_is 'j["devices"][0]["kernel_bytes_s"] > 0 and j["devices"][0]["round_trip_s"] > 0' True
run 0 "$MOEFLUX" doctor --device 0,cpu --no-selftest --no-measure
for what in limits 'heap 0' subgroup 'matrix units' numbers; do
    out_has "^  $what  *[a-zA-Z0-9]"
done
[ "$(grep -c '^device ' "$tmp/out")" -eq 2 ] || fault "not two devices: $(cat "$tmp/out")"

claim a_model_has_a_plan_and_a_forecast_and_no_path
mkdir -p "$tmp/home/secret"
cp -r "$model" "$tmp/home/secret/model"
run 0 env HOME="$tmp/home" "$MOEFLUX" doctor --device cpu --no-selftest -m "$tmp/home/secret/model"
err_empty
out_has '^Plan for CPU'
out_has '  file system  *[a-z0-9]'
out_has '  disk  *[0-9.]* .B/s'
out_has '100 %.*this plan'
out_lacks secret
run 0 "$MOEFLUX" doctor --device cpu --no-selftest -m "$tmp/home/secret/model" --json
json_is 'j["model"]["experts"] > 0 and j["model"]["speeds"]["disk_bytes_s"] > 0' True
out_lacks secret

claim a_model_that_does_not_fit_or_is_damaged_is_a_problem_without_a_path
run 3 "$MOEFLUX" doctor --device cpu --no-selftest --no-measure -m "$tmp/home/secret/model" --memory 1k
out_has '^Problem: .*--memory'
err_line '--memory'
out_lacks secret
rm "$tmp/home/secret/model/"*.safetensors
run 1 "$MOEFLUX" doctor --device cpu --no-selftest --no-measure -m "$tmp/home/secret/model" --json
json_is 'j["healthy"], "MODEL/" in j["problem"], j["model"]' '(False, True, None)'
out_lacks secret
run 1 "$MOEFLUX" doctor --device cpu --no-selftest --no-measure -m "$tmp/home/secret/none"
err_line "$tmp/home/secret/none"
out_has '^Problem: MODEL: '
out_lacks secret

claim a_model_that_cannot_answer_is_a_problem
# broken STATUS PATTERN MODEL [FLAG]...: the page is whole and its problem has the pattern; as JSON, too.
broken() {
    want_status=$1 pattern=$2
    shift 2
    run "$want_status" "$MOEFLUX" doctor --device cpu --no-selftest --no-measure -m "$@"
    out_has '^  self-test  *not run$'
    out_has "^Problem: $pattern"
    out_lacks "$tmp"
    run "$want_status" "$MOEFLUX" doctor --device cpu --no-selftest --no-measure --json -m "$@"
    json_is 'j["healthy"], len(j["problem"]) > 0, j["memory_bytes"] > 0' '(False, True, True)'
    out_lacks "$tmp"
}
# copy NAME: a copy of the model that may be damaged.
copy() {
    cp -r "$model" "$tmp/$1"
    chmod -R u+w "$tmp/$1"
}
copy words
printf '{' >"$tmp/words/tokenizer.json"
broken 1 'MODEL/tokenizer.json' "$tmp/words"
copy template
printf '{{ foo' >"$tmp/template/chat_template.jinja"
broken 1 'MODEL/tokenizer.json: .*template' "$tmp/template"
broken 2 '-c: 100000 tokens, .* 8192' "$model" -c 100000
mkdir "$tmp/empty" "$tmp/gguf"
broken 1 'MODEL: no model' "$tmp/empty"
cp tests/models/gguf/gemma4.gguf "$tmp/gguf"
broken 1 'MODEL: .*GGUF' "$tmp/gguf"
HF_HUB_CACHE=$tmp/hub broken 1 '.*moeflux get' some/name

claim the_problem_has_no_name_of_a_directory
(cd "$tmp" && rm -f words/*.safetensors && mv words w)
# shellcheck disable=SC2016 # the inner shell expands its words
run 1 sh -c 'cd "$1" && "$2" doctor --device cpu --no-selftest --no-measure -m w' sh "$tmp" "$MOEFLUX"
out_has '^Problem: MODEL/'
run 0 "$MOEFLUX" convert "$model" "$tmp/first" --spread "$tmp/secret"
mv "$tmp/secret" "$tmp/moved"
broken 1 'DIR' "$tmp/first"
out_lacks secret

claim a_device_that_cannot_be_used_is_a_problem_of_a_whole_page
run 2 "$MOEFLUX" doctor --device cpu,nonesuch --no-selftest --no-measure
out_has '^device  *cpu'
out_has '^Problem: --device nonesuch'
err_line '--device nonesuch'
# Without any Vulkan driver the cpu is the default, and nothing is wrong; a device that is named is missing.
run 0 env VK_DRIVER_FILES=/dev/null VK_ICD_FILENAMES=/dev/null "$MOEFLUX" doctor --no-selftest --json
json_is '[d["kind"] for d in j["devices"]], j["not_used"]' "(['cpu'], [])"
run 1 env VK_DRIVER_FILES=/dev/null VK_ICD_FILENAMES=/dev/null "$MOEFLUX" doctor --device 0 --no-selftest --json
json_is 'j["healthy"], j["devices"], "--device 0" in j["problem"]' '(False, [], True)'
json_is 'j["memory_bytes"] > 0' True

claim a_report_of_more_used_memory_than_a_heap_has_is_not_believed
# free BUDGET USED: bytes that are free on an integrated GPU whose driver says so.
free() {
    run 0 env VK_LAYER_PATH="$(dirname "$MOEFLUX")/tests" VK_INSTANCE_LAYERS=VK_LAYER_MOEFLUX_test \
        MOEFLUX_VK_KIND=integrated MOEFLUX_VK_BUDGET="$1 $2" \
        "$MOEFLUX" doctor --device 0 --no-selftest --no-measure --json
    json_is '[(d["kind"], d["unified"], d["free_bytes"]) for d in j["devices"]]' "[('integrated', True, $3)]"
}
free 900000000 100000000 800000000
free 900000000 950000000 0
free 900000000 9000000000000000 900000000

claim flags_are_checked
fails 2 '--gpu-memory .*GPU.*--memory ' doctor --device cpu --gpu-memory 1G
fails 2 '"stray" .*--help' doctor stray

report
