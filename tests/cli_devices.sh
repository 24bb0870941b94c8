#!/bin/sh
# Which device computes, and what a machine without a GPU, or without Vulkan, can do.
. tests/cli.sh

model=tests/models/qwen-odd/mlx
json() { python3 -c 'import json, sys; j = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$tmp/out" "$1"; }
json_is() { [ "$(json "$1")" = "$2" ] || fault "$1 is $(json "$1"), expected $2"; }
echo 1 2 3 5 8 >"$tmp/ids"
set -- -m "$model" --tokens-in "$tmp/ids" --temp 0 -n 4 --ignore-eos

# A software device is used when it is named, never by itself: the CPU is faster.
claim without_a_gpu_the_cpu_computes
"$MOEFLUX" --list-devices --json >"$tmp/out"
gpus=$(json 'sum(d["kind"] in ("discrete", "integrated") and d["usable"] == "yes" for d in j["devices"])')
for device in auto ''; do
    run 0 "$MOEFLUX" -m "$model" ${device:+--device "$device"} --plan --json
    [ "$gpus" -gt 0 ] || json_is 'j["device"].startswith("CPU (")' True
done

claim a_software_device_computes_when_it_is_named
run 0 "$MOEFLUX" -m "$model" --device 0 --plan --json
json_is 'j["device"].startswith("CPU (")' False

claim kernels_compiled_late_are_counted
run 0 "$MOEFLUX" "$@" --device 0 --stats --json
err_has '^kernels  *[1-9][0-9]* compiled in '
json_is '0 < j["stats"]["compiled_kernels"] < 50 and 0 < j["stats"]["compile_s"]' True

# In the loader's place lies a file that is no library.
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
err_has '^moeflux: --device 0: the Vulkan loader cannot be loaded .*libvulkan.so.1'
run 1 env VK_DRIVER_FILES=/nonexistent VK_ICD_FILENAMES=/nonexistent "$MOEFLUX" "$@" --device llvmpipe
one_line
err_has '^moeflux: --device llvmpipe: .*no Vulkan driver is installed'
run 0 env VK_DRIVER_FILES=/nonexistent VK_ICD_FILENAMES=/nonexistent "$MOEFLUX" "$@" --tokens-out
out_is "$(cat "$tmp/want")"

report
