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

report
