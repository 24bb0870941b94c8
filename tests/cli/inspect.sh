#!/bin/sh
# What inspect and --plan report about a model and this machine before anything is loaded.
# suites: check drivers fast asan-nightly
. tests/lib/cli.sh

model=tests/models/qwen-odd/mlx
other=tests/models/deepseek-odd/mlx

claim inspect_measures_and_names_the_fastest_flags
run 0 "$MOEFLUX" inspect "$model" --device 0
err_empty
out_has '^Plan for '
out_has '  disk  *[0-9.]* .B/s  .* read by [a-z]*, 3 '
out_has '  products  *[0-9.]* .B/s'
[ "$(grep -c '^  *[0-9]* %  *[0-9.]*  *[0-9.]*  *[0-9.]*  *[0-9.]*  *[0-9.]*' "$tmp/out")" -ge 6 ] ||
    fault "fewer than six rows: $(cat "$tmp/out")"
out_has '100 %.*this plan'
out_has '^Limit: the device\. .*experts .*memory'
out_has '  on the CPU  *[0-9.]* .B/s  '
out_has '  --experts cpu  *[0-9.]* ms'
out_has '  --[a-z-]* [a-z0-9:.]*  *[0-9.]* ms  .*fastest$'
out_lacks ' $'

claim no_measure_prints_what_files_and_memory_show
run 0 "$MOEFLUX" inspect "$model" --no-measure --memory 98304
out_has '^architecture '
out_has 'experts on device  *98.3 kB  4 of '
out_lacks Measured

claim formats_are_shown_for_each_layer
run 0 "$MOEFLUX" inspect tests/models/formats/mixed-3-6 --no-measure --device reference
out_has '^  routed experts .* 0.0[0-9]* MB '
out_has '^  expert formats  *3 bits g64, down 6 bits g64 .* 2 of 4 layers$'
out_has '^  dense formats  *3 bits g64 [0-9.]* %, 6 bits g64 [0-9.]* %, bf16 [0-9.]* %'
run 0 "$MOEFLUX" inspect tests/models/formats/mxfp4 --no-measure --device reference --json
json_is 'j["expert_formats"]' mxfp4
run 0 "$MOEFLUX" inspect tests/models/formats/q2-g32-f16 --no-measure --device reference
out_has '^  expert formats  *2 bits g32 f16$'
run 0 "$MOEFLUX" inspect tests/models/sources/qwen/hf --no-measure --device reference
out_has '^  routed experts  *1.47 MB'
out_has '^  expert formats  *bf16$'
run 0 "$MOEFLUX" inspect tests/models/sources/kimi/hf --no-measure --device reference
out_has '^  expert formats  *4 bits g32$'
run 0 "$MOEFLUX" inspect tests/models/gptoss/mxfp4 --no-measure --device reference
out_has '^  expert formats  *mxfp4$'

claim inspect_as_json_is_one_object
run 0 "$MOEFLUX" inspect "$model" --json --memory 98304
json_is 'j["plan"]["slots"]' 4
json_is 'j["plan"]["experts_resident"]' False
json_is 'j["speeds"]["disk_bytes_s"] > 0 and j["speeds"]["kernel_bytes_s"] > 0' True
json_is '[r["hits"] for r in j["forecast"]]' '[0.0, 0.25, 0.5, 0.8, 0.95, 1.0]'
json_is 'all(r["tok_s"] <= r["best_tok_s"] for r in j["forecast"])' True
json_is 'abs(j["here"]["hits"] - j["plan"]["slots"] / j["plan"]["experts"]) < 1e-6' True
json_is 'type(j["advice"])' "<class 'str'>"
json_is 'j["tensor_split"]' None
run 0 "$MOEFLUX" inspect "$model" --json --no-measure
json_is '"speeds" in j' False

claim a_configuration_alone_has_the_sizes_of_the_whole_model
of_the_directory='("model", "parts", "packed", "plan", "config_alone", "set_elsewhere")'
for dir in tests/models/tiny "$model" "$other" tests/models/qwen3-odd/mlx \
    tests/models/formats/mixed-3-6 tests/models/formats/mxfp4 tests/models/formats/deepseek-nvfp4; do
    for path in "$dir" "$dir/config.json"; do
        run 0 "$MOEFLUX" inspect "$path" --no-measure --json --device cpu
        json "{k: j[k] for k in j if k not in $of_the_directory}" >"$tmp/needs.$(basename "$path" .json)"
        [ "$path" = "$dir" ] ||
            json_is 'j["config_alone"], j["formats_assumed"], j["packed"]' '(True, False, None)'
    done
    cmp -s "$tmp/needs.$(basename "$dir")" "$tmp/needs.config" ||
        fault "$dir: $(diff "$tmp/needs.$(basename "$dir")" "$tmp/needs.config")"
done

claim configurations_of_all_families_have_the_sizes_of_their_models
for dir in tests/models/families/*/; do
    # Published checkpoints; the claim below converts some. mlx-lm leaves matrices of kimilin-mlx and ling-mlx as they
    # are, of which their tables say nothing.
    case $dir in *qw4-plain/ | *qw4-odd/ | */glm5-plain/ | */glm5-odd/ | */dsv32/ | */gemma4-*) continue ;; esac
    case $dir in */kimilin-* | */ling-* | */m3-* | */step-* | */mimo-* | */v4-* | */glm53f-*) continue ;; esac
    case $dir in */nemo-* | */k3-* | */v41-*) continue ;; esac
    run 0 "$MOEFLUX" inspect "$dir" --no-measure --json --device cpu
    wanted=$(json 'j["expert_bytes"], j["one_expert_bytes"], j["params"], j["table_bytes"]')
    dense=$(json 'j["dense_bytes"]')
    run 0 "$MOEFLUX" inspect "${dir}config.json" --no-measure --json --device cpu
    json_is 'j["expert_bytes"], j["one_expert_bytes"], j["params"], j["table_bytes"]' "$wanted"
    # The files have some small vectors as float32, others than the configuration implies.
    json_is "abs(j['dense_bytes'] - $dense) <= 1024" True
done

claim the_router_of_gpt_oss_has_the_bits_that_the_table_gives_it
run 0 "$MOEFLUX" inspect tests/models/families/gptoss-odd --no-measure --json --device cpu
wanted=$(json 'j["dense_bytes"], j["token_dense_bytes"], j["dense_formats"]')
run 0 "$MOEFLUX" inspect tests/models/families/gptoss-odd/config.json --no-measure --json --device cpu
json_is 'j["dense_bytes"], j["token_dense_bytes"], j["dense_formats"]' "$wanted"

claim the_least_is_no_more_than_all_of_a_model_with_a_short_context
run 0 "$MOEFLUX" inspect tests/models/qwen3-plain/mlx --no-measure --json --device cpu
json_is 'j["max_context"], j["floor_bytes"] <= j["resident_bytes"]' '(512, True)'

claim layers_with_windows_are_counted_separately
run 0 "$MOEFLUX" inspect tests/models/families/gptoss-odd --no-measure --device cpu
out_has '^layers  *3, 1 .*attention, 2 .* 5 positions$'
run 0 "$MOEFLUX" inspect tests/models/gptoss/mxfp4/config.json --no-measure --json --device cpu
json_is 'j["window_layers"], j["window"], j["attention_layers"], j["formats_assumed"]' '(1, 9, 2, False)'

claim a_table_of_a_published_8_bit_model_stays_as_it_is
mkdir "$tmp/fp8"
sed '0,/{/s//{"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},/' \
    tests/models/families/qw4-plain/config.json >"$tmp/fp8/config.json"
run 0 "$MOEFLUX" inspect "$tmp/fp8/config.json" --no-measure --json --device cpu
json_is 'j["table_bytes"]' $((1280 * 32))
# Rows of words have scales of their own.
run 0 "$MOEFLUX" inspect tests/models/sources/v41/hf/config.json --no-measure --json --device cpu
json_is 'j["table_bytes"]' $((608 * 33))

claim a_configuration_without_a_table_has_the_formats_that_convert_makes
for dir in families/qw4-plain families/qw4-odd families/glm5-plain families/glm5-odd families/dsv32 \
    families/gemma4-plain families/gemma4-odd families/m3-odd families/step-plain families/mimo-odd families/nemo-odd \
    families/nemo-latent \
    sources/qwen/hf sources/deepseek/hf; do
    dir=tests/models/$dir
    rm -rf "$tmp/made"
    run 0 "$MOEFLUX" convert "$dir" "$tmp/made"
    run 0 "$MOEFLUX" inspect "$tmp/made" --no-measure --json --device cpu
    wanted=$(json 'j["dense_bytes"], j["expert_bytes"], j["token_expert_bytes"], j["params"], j["table_bytes"]')
    run 0 "$MOEFLUX" inspect "$dir/config.json" --no-measure --json --device cpu
    json_is 'j["dense_bytes"], j["expert_bytes"], j["token_expert_bytes"], j["params"], j["table_bytes"]' "$wanted"
    json_is 'j["formats_assumed"]' True
done
run 0 "$MOEFLUX" inspect "$dir/config.json" --no-measure
out_has 'configuration.* moeflux convert .* 4 bits$'
out_has '^  free there  *[0-9.]* .B'

claim gates_of_pooled_keys_stay_plain_and_experts_of_4_bit_floats_as_they_are
for dir in families/glm53f-plain sources/v4/hf; do
    dir=tests/models/$dir
    rm -rf "$tmp/made"
    run 0 "$MOEFLUX" convert "$dir" "$tmp/made"
    run 0 "$MOEFLUX" inspect "$tmp/made" --no-measure --json --device cpu
    wanted=$(json 'j["expert_bytes"], j["expert_formats"]')
    dense=$(json 'j["dense_bytes"]')
    run 0 "$MOEFLUX" inspect "$dir/config.json" --no-measure --json --device cpu
    json_is 'j["expert_bytes"], j["expert_formats"]' "$wanted"
    # DeepSeek-V4 has the weights of its residual streams as float32, too.
    [ "$dir" = tests/models/sources/v4/hf ] || json_is "abs(j['dense_bytes'] - $dense) <= 1024" True
done

claim a_configuration_alone_is_measured_and_no_file_is_left
mkdir "$tmp/alone"
cp "$model/config.json" "$tmp/alone/"
run 0 "$MOEFLUX" inspect "$tmp/alone/config.json" --device cpu
err_empty
out_has '  disk  *[0-9.]* .B/s  .* file .*read by'
out_has '  experts read by  *not known'
out_has '100 %.*this plan'
[ "$(ls "$tmp/alone")" = config.json ] || fault "files: $(ls "$tmp/alone")"
run 0 "$MOEFLUX" inspect "$tmp/alone/config.json" --device cpu --memory 1 --no-measure
out_has '^It cannot run here: '

claim what_is_no_configuration_is_refused
echo '{"model_type": "llama"}' >"$tmp/other.json"
fails 1 "^moeflux: $tmp/other.json: .*llama.*dense" inspect "$tmp/other.json"
echo '{"model_type": "parrot", "num_experts": 8}' >"$tmp/other.json"
fails 1 "^moeflux: $tmp/other.json: .*parrot.*qwen3_moe" inspect "$tmp/other.json"
echo 'x' >"$tmp/none.json"
fails 1 "^moeflux: $tmp/none.json: line 1: " inspect "$tmp/none.json"
fails 1 "^moeflux: $model/config.json: .*directory" -m "$model/config.json" -p x

claim a_model_that_cannot_run_is_described
run 0 "$MOEFLUX" inspect "$other" --memory 1k
out_has '^architecture  *DeepSeek-V3'
out_has '^It cannot run here: --memory .* 1024 bytes'
out_has '  disk  *[0-9.]* .B/s'
run 0 "$MOEFLUX" inspect "$other" --json --no-measure --memory 1k
json_is 'j["plan"], "--memory" in j["no_plan"]' '(None, True)'

claim inspect_knows_the_other_family
run 0 "$MOEFLUX" inspect "$other" --no-measure --memory 114688
out_has '^architecture  *DeepSeek-V3'
out_has 'experts on device  *[0-9.]* kB  4 of 48'

claim without_the_device_that_was_asked_for_the_disk_is_measured
run 0 env VK_DRIVER_FILES=/nonexistent VK_ICD_FILENAMES=/nonexistent "$MOEFLUX" inspect "$model" --device 0
out_has '^It cannot run here: .*Vulkan'
out_has '  disk  *[0-9.]* .B/s'
out_has '  device  *unknown  .*Vulkan'

claim plan_prints_the_decision_and_ends
run 0 "$MOEFLUX" -m "$model" --plan --memory 98304 -c 100
err_empty
out_has '^Plan for '
out_has '  experts on device  *98.3 kB  4 of '
out_has '  states .* 100 tokens'
out_has '  checkpoints  *\([0-9.]* .B\)  .* 1 of \1, '
out_has 'read by  *[a-z]* ('
run 0 "$MOEFLUX" -m "$other" --plan
# It has no recurrent layers.
out_lacks checkpoints
run 0 "$MOEFLUX" -m "$model" --plan --json
json_is 'j["checkpoints"], 0 < j["checkpoint_bytes"] < j["state_bytes"] / 2' '(32, True)'
json_is 'j["slots"] == j["experts"], j["experts_resident"]' '(True, True)'

claim what_does_not_fit_has_status_3
fails 3 '^moeflux: --memory .* 1024 bytes, .* 0.07 MiB' -m "$model" --plan --memory 1k
fails 3 '^moeflux: .* [0-9.]* MiB .*--gpu-memory .* 0.0 MiB; .*-c .*--chunk ' -m "$model" --device reference \
    --plan --gpu-memory 1k
fails 3 '^moeflux: .* [0-9.]* MiB .*--gpu-memory .* 0.0 MiB; .*-c .*--chunk ' -m "$model" --device reference \
    --bench --gpu-memory 1k

claim the_plan_counts_pinned_experts_as_a_run_does
echo 1 2 3 >"$tmp/ids"
printf 'moeflux usage 1 6 12\n0 1 5\n0 2 5\n1 3 4\n2 3 1\n3 7 1\nend\n' >"$tmp/usage"
run 0 "$MOEFLUX" -m "$model" --plan --memory 221184 --pin "$tmp/usage" --json
json_is 'j["slots"], j["pinned"]' '(9, 3)'
run 0 "$MOEFLUX" -m "$model" --plan --memory 221184 --pin "$tmp/usage"
out_has '  of them pinned  *73.7 kB  3 of 72'
fails 3 '--pin: .* 6 experts, .* 6 ' -m "$model" --plan --memory 147456 --pin "$tmp/usage"
fails 3 '--pin: .* 6 experts, .* 6 ' -m "$model" --tokens-in "$tmp/ids" --memory 147456 --pin "$tmp/usage"
fails 1 "--pin: .* $tmp/none\$" -m "$model" --plan --pin "$tmp/none"

claim plan_says_which_experts_the_cpu_computes
run 0 "$MOEFLUX" -m "$model" --device 0 --plan --n-cpu-moe 2 --json
json_is 'j["cpu_layers"], j["cpu_experts"], j["cpu_slots"], j["slots"], j["experts"]' '(2, 24, 24, 48, 72)'
json_is 'j["experts_resident"]' True
run 0 "$MOEFLUX" -m "$model" --device 0 --plan --experts cpu
out_has '  experts on device  *0 B  0 of 72, 0 %$'
out_has '  experts on CPU  *1.77 MB  72 of 72, 100 %: '
run 0 "$MOEFLUX" -m "$model" --device 0 --plan --n-cpu-moe 1000 --json
json_is 'j["cpu_layers"], j["slots"]' '(6, 0)'
run 0 "$MOEFLUX" -m "$model" --device 0 --tokens-in "$tmp/ids" -n 3 --temp 0 --n-cpu-moe 1 --stats --json=full
json_is '0 < j["stats"]["cpu_experts_s"] < 100' True
err_has '^CPU  *[1-9][0-9]* .*experts '
run 0 "$MOEFLUX" -m "$model" --device 0 --plan --experts cpu:0.25 --json
json_is 'j["cpu_layers"], j["cpu_experts"], j["cpu_slots"], j["slots"], j["experts"]' '(6, 18, 18, 54, 72)'
run 0 "$MOEFLUX" -m "$model" --device 0 --plan --experts cpu:0.25
out_has '  experts on device  *1.33 MB  54 of 72, 75 %$'
out_has "  host's activations .*  for 0.25 of each layer's experts$"
run 0 "$MOEFLUX" -m "$model" --device 0 --tokens-in "$tmp/ids" -n 3 --temp 0 --experts cpu:0.5 --stats --json=full
json_is '0 < j["stats"]["cpu_experts"] < 100' True
err_has '^CPU  *[1-9][0-9]* .*experts '
for device in cpu reference; do
    fails 2 '--experts cpu:SHARE .*GPU .*--device$' -m "$model" --plan --experts cpu:0.5 --device $device
    fails 2 '--experts cpu:SHARE .*GPU .*--device$' inspect "$model" --experts cpu:0.5 --device $device
    fails 2 '--n-cpu-moe .*GPU .*--device$' -m "$model" --plan --experts cpu --device $device
    fails 2 '--n-cpu-moe .*GPU .*--device$' -m "$model" --tokens-in "$tmp/ids" --n-cpu-moe 1 --device $device
    fails 2 '--n-cpu-moe .*GPU .*--device$' inspect "$model" --n-cpu-moe 1 --device $device
done

claim plan_and_inspect_refuse_flags_that_do_not_apply
fails 2 '--plan .*--bench ' -m "$model" --plan --bench
fails 2 ' -m DIR ' --plan
fails 2 '--expert-io: .* auto, mmap, pread, uring or direct, .*"post"$' inspect "$model" --expert-io post
fails 2 '--chunk 100000, .* 4096 ' inspect "$model" --chunk 100000

report
