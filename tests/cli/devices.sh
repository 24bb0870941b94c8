#!/bin/sh
# Which device computes, and what works on a machine without a GPU, or without Vulkan.
# suites: check drivers fast asan-nightly
. tests/lib/cli.sh

model=tests/models/qwen-odd/mlx
echo 1 2 3 5 8 >"$tmp/ids"
set -- -m "$model" --tokens-in "$tmp/ids" --temp 0 -n 4 --ignore-eos

# A software device computes only when --device names it: the CPU is faster.
claim without_a_gpu_the_cpu_computes
run 0 "$MOEFLUX" --list-devices --json -t 1
cp "$tmp/out" "$tmp/listed"
gpus=$(json 'sum(d["kind"] in ("discrete", "integrated") and d["usable"] == "yes" for d in j["devices"])')
for device in auto ''; do
    run 0 "$MOEFLUX" -m "$model" ${device:+--device "$device"} --plan --json
    [ "$gpus" -gt 0 ] || json_is 'j["device"].startswith("CPU (")' True
done

claim a_software_device_computes_when_it_is_named
run 0 "$MOEFLUX" -m "$model" --device 0 --plan --json
json_is 'j["device"].startswith("CPU (")' False

claim kernels_that_are_compiled_after_the_load_are_counted
seq 1 40 >"$tmp/long"
run 0 "$MOEFLUX" -m "$model" --tokens-in "$tmp/long" --temp 0 -n 2 --ignore-eos --device 0 --stats --json=full
err_has '^kernels  *[1-9][0-9]* compiled in '
json_is '0 < j["stats"]["compiled_kernels"] < 50 and 0 < j["stats"]["compile_s"]' True
echo 7 >"$tmp/one"
run 0 "$MOEFLUX" -m "$model" --tokens-in "$tmp/one" --temp 0 -n 2 --ignore-eos --device 0 --stats --json=full
json_is 'j["stats"]["compiled_kernels"]' 0

# Infinite products of the router, of both signs, make a NaN in their softmax.
claim infinities_in_the_router_end_the_run_on_every_device
run 0 "$MOEFLUX" convert "$model" "$tmp/broken"
python3 - "$tmp/broken" <<'END'
import json, struct, sys
folder = sys.argv[1]
tensors = json.load(open(folder + '/model_weights.json'))['tensors']
with open(folder + '/model_weights.bin', 'r+b') as f:
    for kind in 'scales', 'biases':
        tensor = tensors['model.layers.0.mlp.gate.' + kind]
        f.seek(tensor['offset'])
        f.write(struct.pack('<H', 0x7f7f) * (tensor['size'] // 2))
END
for device in 0 cpu reference; do
    fails 1 '^moeflux: position 39: .* token [0-9]* .* -*\(nan\|inf\), ' \
        -m "$tmp/broken" --device "$device" --tokens-in "$tmp/long" --logits "$tmp/refused"
done
[ -z "$(find "$tmp" -name 'refused*')" ] || fault "a failed run wrote $(find "$tmp" -name 'refused*')"
rm -r "$tmp/broken"

# The file in the loader's place is no library.
mkdir "$tmp/no-loader"
echo none >"$tmp/no-loader/libvulkan.so.1"
without_loader() {
    status=$1
    shift
    run "$status" env LD_LIBRARY_PATH="$tmp/no-loader" "$MOEFLUX" "$@"
}

claim nothing_is_linked_to_the_vulkan_loader
run 0 ldd "$MOEFLUX"
! grep -q vulkan "$tmp/out" || fault "$(grep vulkan "$tmp/out")"

claim without_the_vulkan_loader_the_cpu_computes
run 0 "$MOEFLUX" "$@" --device cpu --tokens-out
cp "$tmp/out" "$tmp/want"
without_loader 0 "$@" --tokens-out
err_empty
out_is "$(cat "$tmp/want")"
without_loader 0 -m "$model" --plan
err_empty

claim a_device_that_was_asked_for_needs_the_vulkan_loader
without_loader 1 "$@" --device 0
one_line
err_has "^moeflux: --device 0: .*$tmp/no-loader/libvulkan.so.1"
run 1 env VK_DRIVER_FILES=/nonexistent VK_ICD_FILENAMES=/nonexistent "$MOEFLUX" "$@" --device llvmpipe
one_line
err_has '^moeflux: --device llvmpipe: .*Vulkan driver'
run 0 env VK_DRIVER_FILES=/nonexistent VK_ICD_FILENAMES=/nonexistent "$MOEFLUX" "$@" --tokens-out
out_is "$(cat "$tmp/want")"

# The dynamic linker logs which libraries the program looks for while it runs.
claim what_needs_no_gpu_does_not_load_vulkan
looked_for_vulkan() {
    rm -f "$tmp"/linker.*
    run "$1" env LD_DEBUG=libs LD_DEBUG_OUTPUT="$tmp/linker" "$MOEFLUX" -m "$model" --plan --device "$2"
    grep -q libvulkan "$tmp"/linker.*
}
for device in cpu cpu,cpu reference,cpu; do
    looked_for_vulkan 0 "$device" && fault "--device $device loads Vulkan"
done
looked_for_vulkan 2 cpu,nobody || fault 'the linker does not log it'

claim devices_are_listed_with_the_cpu
cpu='[(d["threads"], d["usable"], d["memory_bytes_s"] > 1e8) for d in j["devices"] if d["device"] == "cpu"]'
json_is "$cpu" "[(1, 'yes', True)]" "$tmp/listed"
json_is 'sum(d["default"] == "yes" for d in j["devices"])' 1 "$tmp/listed"
without_loader 0 --list-devices
err_empty
out_has '^cpu  .*  [1-9][0-9]*  [0-9.]* .B/s  yes$'
[ "$(grep -c '  yes$' "$tmp/out") $(grep -c '^[a-z0-9]*  .* .B/s ' "$tmp/out")" = '1 1' ] ||
    fault "$(cat "$tmp/out")"

claim inspect_measures_memory_and_names_a_faster_device
run 0 "$MOEFLUX" inspect "$model" --device cpu -t 1
out_has '^  memory  *[0-9.]* .B/s  .* 1 thread$'
out_lacks '--tensor-split'
run 0 "$MOEFLUX" inspect "$model" --device reference
out_has '^--device [^ ]* .*faster: '

# The reference multiplies a hundred times slower than the CPU.
claim inspect_names_a_better_split
run 0 "$MOEFLUX" inspect "$model" --device cpu,reference
out_has '^    on device 2  *[0-9.]* .B/s$'
out_has '^--tensor-split 5,1 .* [0-9.]* ms .*[0-9.]*'
run 0 "$MOEFLUX" inspect "$model" --device reference,cpu --tensor-split 1,5 --json
json_is 'j["tensor_split"]["is_better"], j["tensor_split"]["best"]' "(False, '1,5')"
json_is 'j["speeds"]["devices"][0]["kernel_bytes_s"] < j["speeds"]["devices"][1]["kernel_bytes_s"]' True

claim every_instruction_set_gives_the_same_logits_in_float32
sets=$("$MOEFLUX" --selftest --device cpu --cpu-isa none 2>&1 | sed 's/.*there are //')
n=0
for isa in $sets; do
    "$MOEFLUX" -m "$model" --cpu-isa "$isa" --device cpu --plan >"$tmp/out" 2>"$tmp/err" || {
        err_has "--cpu-isa $isa: this processor does not have it"
        continue
    }
    out_has "^Plan for CPU ($isa, "
    run 0 "$MOEFLUX" -m "$model" --device cpu --cpu-isa "$isa" --prompt-type f32 --tokens-in "$tmp/long" \
        --logits-all --logits "$tmp/logits-$isa"
    cmp -s "$tmp/logits-portable" "$tmp/logits-$isa" || fault "$isa and portable differ"
    n=$((n + 1))
done
[ "$n" -gt 0 ] || fault "no instruction set ran: $sets"

# A processor may have amx_int8 and the kernel may refuse it to the process, so a run decides whether there is
# a set amx.
claim amx_is_a_set_of_its_own
case " $sets " in *' amx '*)
    if [ -e "$tmp/logits-amx" ]; then
        run 0 "$MOEFLUX" -m "$model" --device cpu --cpu-isa amx --tokens-in "$tmp/long" --logits-all \
            --logits "$tmp/tiles"
        cmp -s "$tmp/logits-portable" "$tmp/tiles" && fault 'the tiles were not used'
        run 0 "$MOEFLUX" --list-devices
        out_has '^cpu .* amx '
    else
        fails 2 '--cpu-isa amx: .*processor does not' "$@" --device cpu --cpu-isa amx
    fi ;;
*) fails 2 '--cpu-isa amx .*family of processors' "$@" --device cpu --cpu-isa amx ;;
esac

radv=$(find /usr/share/vulkan/icd.d -name 'radeon_icd*.json' 2>/dev/null | head -n 1)
if [ "$radv" ]; then
    claim a_device_without_hardware_is_listed_and_refused
    null() {
        status=$1
        shift
        run "$status" env RADV_FORCE_FAMILY=navi21 VK_DRIVER_FILES="$radv" VK_ICD_FILENAMES="$radv" "$MOEFLUX" "$@"
    }
    null 0 --list-devices --json
    json_is '[d["usable"] for d in j["devices"] if d["kind"] != "cpu"]' "['no: hardware (RADV_FORCE_FAMILY is set)']"
    null 1 -m "$model" --device 0 -p a
    err_line '--device 0: .*RADV_FORCE_FAMILY'
    null 0 -m "$model" --plan
    out_has '^Plan for CPU '
fi

claim the_flag_wins_over_the_environment
run 0 env MOEFLUX_CPU_ISA=portable "$MOEFLUX" -m "$model" --device cpu --plan
out_has '^Plan for CPU (portable, '
run 0 env MOEFLUX_CPU_ISA=none "$MOEFLUX" -m "$model" --device cpu --cpu-isa portable --plan
out_has '^Plan for CPU (portable, '
run 2 env MOEFLUX_CPU_ISA=none "$MOEFLUX" -m "$model" --device cpu --plan
err_line '--cpu-isa none: .* portable '
# Other devices ignore it.
run 0 env MOEFLUX_CPU_ISA=none "$MOEFLUX" -m "$model" --device reference --plan

claim threads_and_the_affinity_mask_are_obeyed
run 0 "$MOEFLUX" -m "$model" --device cpu -t 3 --plan
out_has '^Plan for CPU (.*, 3 threads)'
run 0 taskset -c "$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')" "$MOEFLUX" -m "$model" --device cpu --plan
out_has '^Plan for CPU (.*, 1 thread)'

claim flags_that_do_not_apply_are_refused
for verb in --plan --bench; do
    fails 2 '--gpu-memory .*GPU.*--memory ' -m "$model" $verb --device cpu --gpu-memory 1G
done
fails 2 '--gpu-memory .*GPU.*--memory ' "$@" --device cpu --gpu-memory 1G
fails 2 '--gpu-memory .*GPU.*--memory ' inspect "$model" --device cpu --gpu-memory 1G
fails 2 '--cpu-isa sse9: .*; .* portable ' "$@" --device cpu --cpu-isa sse9
fails 2 '--cpu-isa sse9: .*; .* portable ' --selftest --device cpu --cpu-isa sse9
case $(uname -m) in x86_64) other=neon ;; *) other=avx2 ;; esac
fails 2 "--cpu-isa $other .*family of processors; .* portable " "$@" --device cpu --cpu-isa $other
fails 2 '--cpu-isa portable .*--device cpu; .* reference ' "$@" --device reference --cpu-isa portable

claim several_devices_share_the_layers
run 0 "$MOEFLUX" "$@" --device cpu --tokens-out
cp "$tmp/out" "$tmp/want"
run 0 "$MOEFLUX" "$@" --device cpu,cpu --tensor-split 2,1 --tokens-out --stats
out_is "$(cat "$tmp/want")"
err_has '^device 1  *layers 0 to 3, CPU'
err_has '^device 2  *layers 4 to 5, CPU'
err_has 'busy [0-9.]* s, .* [0-9.]* s .*disk; idle'
run 0 "$MOEFLUX" -m "$model" --device cpu,cpu --tensor-split 5,1 --plan
out_has '^Plan for CPU (.*) + CPU (.*)'
out_has '^  1: layers 0 to 4  CPU'
out_has '^  2: layers 5 to 5  CPU'
run 0 "$MOEFLUX" -m "$model" --device cpu,cpu --plan --json
json_is '[(d["first_layer"], d["layers"]) for d in j["devices"]]' '[(0, 3), (3, 3)]'
run 0 "$MOEFLUX" "$@" --device cpu,cpu --stats --json=full
json_is '[d["layers"] for d in j["stats"]["devices"]]' '[3, 3]'

claim layers_that_cannot_be_split_are_refused
for value in 0 1,0 -1,1 '1,' ',1' x nan,1 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17; do
    fails 2 "--tensor-split: .*3,1, .*\"$value\"$" "$@" --device cpu,cpu --tensor-split "$value"
done
fails 2 '--tensor-split .* 3 .* 2: .*device' "$@" --device cpu,cpu --tensor-split 1,1,1
fails 2 '--gpu-memory .* 2 .* 3: .*device' "$@" --device cpu,reference,cpu --gpu-memory 1G,2G
fails 2 '--gpu-memory: .*512M, 4G or 1.5GiB, .*"1G,x"$' "$@" --gpu-memory 1G,x
fails 2 '--gpu-memory .*GPU.*--memory ' "$@" --device cpu,cpu --gpu-memory 1G
fails 2 '--device: device 2 .*name' "$@" --device cpu,
fails 2 '--device .* 7 devices, .* 6 layers' "$@" --device cpu,cpu,cpu,cpu,cpu,cpu,cpu
fails 2 '--n-cpu-moe .*GPU.*; CPU (.*--device$' "$@" --device cpu,cpu --n-cpu-moe 1
fails 2 '--device 99: .*--list-devices' "$@" --device cpu,99
fails 2 '--device: all .*GPU' "$@" --device cpu,all
fails 3 'device 2 of 2 (reference .*, layers 3 to 5): .* MiB .*--gpu-memory .* 1.0 MiB' "$@" --device \
    reference,reference --gpu-memory 1G,1M
fails 2 '--selftest .*--device ' --selftest --device cpu,cpu
fails 3 '--memory .* 0.00 MiB, .* 2 devices .* MiB' "$@" --device cpu,cpu --memory 1k

report
