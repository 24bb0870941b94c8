#!/bin/sh
# --perplexity with --compare: its table agrees with dumped logits; what it refuses.
# suites: check fast long asan-nightly
. tests/lib/cli.sh

python() { python3 tests/lib/tensors.py "$@"; }
# near A B TOLERANCE: all decimal
near() {
    awk -v a="$1" -v b="$2" -v t="$3" 'BEGIN { d = a - b; exit !(d <= t && d >= -t) }' ||
        fault "$1 is not within $3 of $2"
}

# The same model quantised more coarsely: the experts' codes lack their last bit.
model=tests/models/tiny
coarse="$tmp/the coarse one"
cp -r $model "$coarse"
python3 - "$coarse/model.safetensors" <<'END'
import json, struct, sys
data = bytearray(open(sys.argv[1], 'rb').read())
(n,) = struct.unpack_from('<Q', data)
lose = bytes(x & 0xee for x in range(256))
for name, tensor in json.loads(data[8:8 + n]).items():
    if '.switch_mlp.' in name and name.endswith('.weight'):
        a, b = (8 + n + x for x in tensor['data_offsets'])
        data[a:b] = data[a:b].translate(lose)
open(sys.argv[1], 'wb').write(data)
END
text=$tmp/text
printf \
    'Once upon a time there was a kind cat. It liked 12 dogs. What is 47 + 38? The capital of Iceland.' \
    >"$text"
mkdir "$tmp/kept"
export TMPDIR="$tmp/kept"
nothing_kept() { [ -z "$(ls -A "$tmp/kept")" ] || fault "a temporary file was left: $(ls -A "$tmp/kept")"; }

claim a_model_and_itself_have_no_divergence_and_agree
run 0 "$MOEFLUX" -m $model --perplexity "$text" --compare $model --compare "-m $PWD/$model" --json
err_empty
json_is '[r["kl_divergence"] for r in j["results"]]' '[None, 0.0, 0.0]'
json_is '[r["top1_agreement_percent"] for r in j["results"]]' '[None, 100.0, 100.0]'
json_is 'len({r["perplexity"] for r in j["results"]})' 1
nothing_kept

claim a_GGUF_file_is_compared_too_and_so_is_a_model_of_the_cache
gguf=tests/models/gguf/qwen35moe.gguf
snapshot=$tmp/hf/hub/models--Org--Some/snapshots/1
mkdir -p "$snapshot"
cp $gguf "$snapshot"
HF_HOME=$tmp/hf run 0 "$MOEFLUX" -m $gguf --perplexity "$text" --compare "--device cpu" --compare Org/Some --json
err_empty
json_is '[r["kl_divergence"] is None or r["kl_divergence"] < 1e-6 for r in j["results"]]' '[True, True, True]'
json_is 'len({r["perplexity"] for r in j["results"][::2]})' 1
HF_HOME=$tmp/hf run 1 "$MOEFLUX" -m $gguf --perplexity "$text" --compare Org/Other
err_has 'moeflux: --compare "Org/Other": '
nothing_kept

claim the_numbers_are_those_of_the_dumped_logits
for dir in $model "$coarse"; do
    run 0 "$MOEFLUX" -m "$dir" --raw -f "$text" --logits "$tmp/rows${dir##*[/ ]}" --logits-all
done
python compare "$tmp/rowstiny" "$tmp/rowsone" >"$tmp/expected"
read -r kl error same <"$tmp/expected"
run 0 "$MOEFLUX" -m $model --perplexity "$text" --compare "-m '$coarse'" --json
near "$(json 'j["results"][1]["kl_divergence"]')" "$kl" 1e-9
near "$(json 'j["results"][1]["kl_divergence_standard_error"]')" "$error" 1e-9
near "$(json 'j["results"][1]["top1_agreement_percent"]')" "$same" 1e-4
json_is 'j["results"][1]["kl_divergence"] > 1e-3 and j["results"][1]["top1_agreement_percent"] < 100' True
json_is '"%.4f" % j["results"][0]["perplexity"]' "$(python perplexity "$tmp/rowstiny")"
json_is '"%.4f" % j["results"][1]["perplexity"]' "$(python perplexity "$tmp/rowsone")"
json_is 'j["tokens_scored"]' "$(($(python ids "$tmp/rowstiny" tokens | wc -w) - 1))"

claim each_row_equals_the_single_form
for dir in $model "$coarse"; do
    run 0 "$MOEFLUX" -m "$dir" --perplexity "$text" -c 7
    awk 'NR == 1 { print $2, $4 + 0 }' "$tmp/out"
done >"$tmp/single"
run 0 "$MOEFLUX" -m $model --perplexity - -c 7 --compare "'$coarse'" --csv <"$text"
err_empty
[ "$(awk -F, 'NR > 1 { print $5, $6 + 0 }' "$tmp/out")" = "$(cat "$tmp/single")" ] ||
    fault "$(cat "$tmp/out"), expected $(cat "$tmp/single")"

claim flags_of_a_setting_override_those_before
run 0 "$MOEFLUX" -m $model --device cpu --kv-type f32 --perplexity "$text" --compare '--kv-type f16' \
    --compare '--device reference' --json
json_is '0 < j["results"][1]["kl_divergence"] < 1e-4 and 0 < j["results"][2]["kl_divergence"] < 1e-4' True
json_is '[r["setting"] for r in j["results"]]' "['$model', '--kv-type f16', '--device reference']"
json_is '["reference" in r["device"] for r in j["results"]]' '[False, False, True]'
json_is '{r["model"] for r in j["results"]}' "{'$model'}"

claim bits_and_bytes_are_those_of_the_files
# 4 bits with two scales of 16 for 64 weights; routers and shared gates at 8, the rest dense.
json_is '{r["expert_bits_per_weight"] for r in j["results"]}' '{4.5}'
json_is '4.5 < j["results"][0]["bits_per_weight"] < 4.6' True
run 0 "$MOEFLUX" inspect $model --no-measure --json
bytes=$(json 'j["token_dense_bytes"] + j["token_expert_bytes"]')
run 0 "$MOEFLUX" -m $model --perplexity "$text" --compare "'$coarse'" --json
json_is '{r["bytes_per_token"] for r in j["results"]}' "{$bytes}"

claim the_table_has_a_line_for_each_setting
run 0 "$MOEFLUX" -m $model --perplexity "$text" --compare "-m '$coarse'" --compare '-t 1' --stats
[ "$(wc -l <"$tmp/out")" -eq 5 ] || fault "$(cat "$tmp/out")"
out_has '^setting  *expert bits  *bits  *MB/token  *perplexity  *+-  *KL  *+-  *top-1 % '
out_has ' top-1 %  *tok/s  *hits %  *kB read$'
out_has '^-t 1  *4.50 .* 0.000000  0.000000   100.00 '
[ "$(grep -c '^device time ' "$tmp/err")" -eq 3 ] ||
    fault "the speeds of each are not on stderr: $(cat "$tmp/err")"

claim only_flags_of_the_model_are_a_setting
set -- -m $model --perplexity "$text" --compare
fails 2 '^moeflux: --compare "--temp 3": --temp [a-z ]*$' "$@" '--temp 3'
fails 2 '^moeflux: --compare "-c 9": -c/--ctx-size [a-z ]*$' "$@" '-c 9'
fails 2 '^moeflux: --compare "--usage x": --usage [a-z ]*$' "$@" '--usage x'
fails 2 '^moeflux: --compare "--trace x": --trace [a-z ]*$' "$@" '--trace x'
fails 2 '^moeflux: --compare "--list-devices": --list-devices [a-z ]*$' "$@" --list-devices
fails 2 "^moeflux: --compare \"$model --json\": --json [a-z ]*$" "$@" "$model --json"
fails 2 '^moeflux: --compare "--compare x": --compare [a-z ]*$' "$@" '--compare x'
fails 2 '^moeflux: --compare "--help": -h/--help [a-z ]*$' "$@" --help
fails 2 '^moeflux: --compare "--foo": .*--foo (--help ' "$@" --foo
fails 2 '^moeflux: --compare "-m": -m .*value' "$@" -m
fails 2 '^moeflux: --compare "--kv-type f64": --kv-type: .* auto, f32, f16 or q8_0, .*"f64"$' "$@" '--kv-type f64'
fails 2 "^moeflux: --compare \"$model b\": .*\"b\"" "$@" "$model b"
fails 2 '": --experts .*--n-cpu-moe ' "$@" '--experts cpu --n-cpu-moe 2'
fails 2 "^moeflux: --compare \"-m '$model\": .* ' " "$@" "-m '$model"
fails 2 '^moeflux: --compare "a\\": .* \\ ' "$@" "a\\"
fails 2 '^moeflux: --compare .*value' "$@" ''

claim compare_goes_with_perplexity_and_a_model
fails 2 '^moeflux: --compare .*--perplexity ' -m $model --compare $model
fails 2 '^moeflux: --compare .*--perplexity ' -m $model -p x --compare $model
fails 2 ' -m DIR ' --perplexity "$text" --compare $model
fails 2 '^moeflux: --csv .*--compare ' -m $model --perplexity "$text" --csv
fails 2 '--compare .*--usage ' "$@" $model --usage "$tmp/usage"
fails 2 '^moeflux: -c 1: .* 2 ' "$@" $model -c 1
fails 2 '^moeflux: -c 1: .* 2 ' -m $model --perplexity "$text" -c 1
set -- -m $model --perplexity "$text"
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do set -- "$@" --compare "-t $i"; done
fails 2 '^moeflux: --compare .* 16 .* 15$' "$@"

claim what_cannot_be_compared_is_refused_before_anything_is_evaluated
set -- -m $model --perplexity "$text" --compare
fails 1 "^moeflux: .*$tmp/none: No such file" "$@" "$tmp/none"
cp -r tests/models/deepseek-small/mlx "$tmp/small"
fails 2 "^moeflux: .*$tmp/small: .* 2048 .*$model .* 97$" "$@" "$tmp/small"
cp -r $model "$tmp/other"
rm "$tmp/other/tokenizer.json"
fails 2 "^moeflux: $tmp/other .*tokenizer.json.*--perplexity " "$@" "$tmp/other"
fails 2 "^moeflux: $tmp/other .*tokenizer.json.*--perplexity " -m "$tmp/other" --perplexity "$text" \
    --compare $model
# Two tokens change places.
python3 - $model/tokenizer.json "$tmp/other/tokenizer.json" <<'END'
import json, sys
j = json.load(open(sys.argv[1]))
v = j['model']['vocab']
a, b = (next(k for k in v if v[k] == i) for i in (1000, 1001))
v[a], v[b] = v[b], v[a]
json.dump(j, open(sys.argv[2], 'w'))
END
fails 2 "^moeflux: $tmp/other: .*tokenizer of $model: token 1000 .*\" sto\".*\"ndle\"" "$@" "$tmp/other"
python3 - $model/tokenizer.json "$tmp/other/tokenizer.json" <<'END'
import json, sys
j = json.load(open(sys.argv[1]))
j['model']['merges'] = j['model']['merges'][::-1]
json.dump(j, open(sys.argv[2], 'w'))
END
fails 2 "^moeflux: $tmp/other: .*tokenizer of $model; .*text" "$@" "$tmp/other"
fails 3 '^moeflux: --memory 1K: .* 1024 bytes.* 0.11 MiB' "$@" '--memory 1K'
: >"$tmp/empty"
fails 2 "^moeflux: .*$tmp/empty: .*empty" -m $model --perplexity "$tmp/empty" --compare $model
printf a >"$tmp/empty"
fails 2 "^moeflux: .*$tmp/empty: 1 token, .* 2" -m $model --perplexity "$tmp/empty" --compare $model
fails 1 "^moeflux: .*$tmp/no: No such file" -m $model --perplexity "$tmp/no" --compare $model
TMPDIR="$tmp/no" fails 1 "^moeflux: .*$tmp/no: .*: No such file" "$@" $model
nothing_kept

claim an_interruption_leaves_nothing
for i in $(seq 100); do cat "$text"; done >"$tmp/long"
"$MOEFLUX" -m $model --device reference --perplexity "$tmp/long" --compare '--kv-type f16' >"$tmp/out" \
    2>"$tmp/err" &
pid=$!
await -p $pid has_open $pid "$tmp/kept/moeflux-*"
nothing_kept
kill -INT $pid
ends 130 $pid
out_empty
err_empty
nothing_kept

report
