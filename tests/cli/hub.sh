#!/bin/sh
# -m ORG/NAME: snapshots in the cache of Hugging Face's tools, and what is missing in them.
# suites: check fast
. tests/lib/cli.sh

source=$PWD/tests/models/sources/qwen/hf
unset HF_HOME HF_HUB_CACHE XDG_CACHE_HOME

# Makes snapshot $3 of a repository org/name ($2) in cache $1, as links to the files of $source.
snapshot() {
    mkdir -p "$1/models--$2/snapshots/$3" "$1/models--$2/refs"
    for file in "$source"/*; do
        ln -s "$file" "$1/models--$2/snapshots/$3/"
    done
}

inspects() { run 0 "$MOEFLUX" inspect "$1" --no-measure --json --device cpu; }

claim a_repository_is_found_by_its_name_wherever_the_cache_is
snapshot "$tmp/hub" Org--Some.Model-1b aaa
HF_HUB_CACHE=$tmp/hub inspects Org/Some.Model-1b
json_is 'j["model"]' "$tmp/hub/models--Org--Some.Model-1b/snapshots/aaa"
json_is 'j["expert_formats"]' bf16
mkdir "$tmp/home" "$tmp/home/.cache" "$tmp/home/.cache/huggingface" "$tmp/other"
ln -s "$tmp/hub" "$tmp/home/.cache/huggingface/hub"
ln -s "$tmp/hub" "$tmp/other/hub"
HOME=$tmp/home inspects Org/Some.Model-1b
HF_HOME=$tmp/other inspects Org/Some.Model-1b
XDG_CACHE_HOME=$tmp/home/.cache inspects Org/Some.Model-1b
# shellcheck disable=SC2088 # the program expands it
HOME=$tmp HF_HOME='~/other' inspects Org/Some.Model-1b
# shellcheck disable=SC2016
PLACE=$tmp HF_HUB_CACHE='${PLACE}/hub' inspects Org/Some.Model-1b
# shellcheck disable=SC2016,SC2088
PLACE=hub HOME=$tmp HF_HUB_CACHE='~/$PLACE' inspects Org/Some.Model-1b
# A variable that is set decides, even if another place has the repository.
HF_HOME=$tmp/home
export HF_HOME
fails 1 'Org/Some.Model-1b: .*moeflux get Org/Some.Model-1b' -m Org/Some.Model-1b -p x
HF_HUB_CACHE=$tmp/hub
export HF_HUB_CACHE
inspects Org/Some.Model-1b

claim the_newest_complete_snapshot_is_taken_and_refs_main_first
snapshot "$tmp/hub" o--two old
snapshot "$tmp/hub" o--two new
touch -d '2020-01-01' "$tmp/hub/models--o--two/snapshots/old"
inspects o/two
json_is 'j["model"]' "$tmp/hub/models--o--two/snapshots/new"
printf old >"$tmp/hub/models--o--two/refs/main"
inspects o/two
json_is 'j["model"]' "$tmp/hub/models--o--two/snapshots/old"
rm "$tmp/hub/models--o--two/snapshots/old/config.json"
inspects o/two
json_is 'j["model"]' "$tmp/hub/models--o--two/snapshots/new"

claim missing_files_are_counted
snapshot "$tmp/hub" o--cut bbb
rm "$tmp/hub/models--o--cut/snapshots/bbb/model-00002-of-00002.safetensors"
fails 1 '^moeflux: o/cut: 1 of 4 files .*moeflux get o/cut"' -m o/cut -p x
fails 1 '^moeflux: o/cut: 1 of 4 files ' inspect o/cut
fails 1 '^moeflux: o/cut: 1 of 4 files ' serve --port 0 -m o/cut
fails 1 '^moeflux: o/cut: 1 of 4 files ' convert o/cut "$tmp/out-dir"
# A link to nothing is what an interrupted download leaves.
ln -s "$tmp/nothing" "$tmp/hub/models--o--cut/snapshots/bbb/model-00002-of-00002.safetensors"
fails 1 '^moeflux: o/cut: 1 of 4 files ' inspect o/cut
mkdir -p "$tmp/hub/models--o--bare/snapshots/ccc"
fails 1 '^moeflux: o/bare: 2 of 2 files ' inspect o/bare
fails 1 '^moeflux: o/none: .*moeflux get o/none' inspect o/none

claim a_missing_index_is_missed
snapshot "$tmp/hub" o--index ddd
index=$tmp/hub/models--o--index/snapshots/ddd/model.safetensors.index.json
rm "$index"
fails 1 '^moeflux: o/index: 1 of 4 files ' inspect o/index
ln -s "$tmp/nothing" "$index"
fails 1 '^moeflux: o/index: 1 of 4 files ' inspect o/index
rm "$tmp/hub/models--o--index/snapshots/ddd/model-00001-of-00002.safetensors"
fails 1 '^moeflux: o/index: 2 of 4 files ' inspect o/index
rm "$tmp/hub/models--o--index/snapshots/ddd/model-00002-of-00002.safetensors"
fails 1 '^moeflux: o/index: 1 of 2 files ' inspect o/index

claim an_index_that_cannot_be_used_does_not_hide_another_snapshot
for text in '{"weight_map":' '{"metadata": {}}' '{"weight_map": []}'; do
    rm -rf "$tmp/hub/models--o--torn"
    snapshot "$tmp/hub" o--torn bad
    snapshot "$tmp/hub" o--torn good
    touch -d '2020-01-01' "$tmp/hub/models--o--torn/snapshots/good"
    index=$tmp/hub/models--o--torn/snapshots/bad/model.safetensors.index.json
    rm "$index"
    echo "$text" >"$index"
    inspects o/torn
    json_is 'j["model"]' "$tmp/hub/models--o--torn/snapshots/good"
    rm -r "$tmp/hub/models--o--torn/snapshots/good"
    fails 1 '^moeflux: o/torn: 1 of 2 files ' inspect o/torn
done

claim a_repository_of_one_gguf_file_is_that_file
gguf=$PWD/tests/models/gguf
at=$tmp/hub/models--o--one/snapshots/eee
mkdir -p "$at"
ln -s "$gguf/qwen3moe_even.gguf" "$at/model-Q4.gguf"
ln -s "$gguf/types.gguf" "$at/mmproj-model.gguf"
inspects o/one
json_is 'j["model"], j["gguf"]' "('$at/model-Q4.gguf', True)"
ln -s "$gguf/minimax.gguf" "$at/model-Q8.gguf"
fails 1 "^moeflux: $at: .*GGUF.*$at/model-Q[48].gguf\$" inspect o/one
# A split set, also in a directory of its own.
at=$tmp/hub/models--o--set/snapshots/eee/Q4
mkdir -p "$at"
ln -s "$gguf/deepseek2-00001-of-00002.gguf" "$at/x-00001-of-00002.gguf"
fails 1 '^moeflux: o/set: 1 of 2 files ' inspect o/set
ln -s "$gguf/deepseek2-00002-of-00002.gguf" "$at/x-00002-of-00002.gguf"
inspects o/set
json_is 'j["model"]' "$at/x-00001-of-00002.gguf"
ln -s "$gguf/minimax.gguf" "$at/other.gguf"
fails 1 "^moeflux: $at: .*GGUF.*$at/other.gguf\$" inspect o/set

claim a_repository_of_pytorch_files_is_named
at=$tmp/hub/models--o--torch/snapshots/eee
mkdir -p "$at"
ln -s "$source/config.json" "$at/"
echo x >"$at/pytorch_model.bin"
fails 1 "^moeflux: $at: .*PyTorch" inspect o/torch

claim a_repository_without_its_flag_is_told_to_go_after_m
fails 2 '"o/two".*-m o/two' o/two
fails 2 '"o/none".*-m o/none' o/none

claim a_directory_of_that_name_comes_first
mkdir -p "$tmp/here/o"
ln -s "$source" "$tmp/here/o/cut"
# shellcheck disable=SC2016 # the inner shell expands them
run 0 sh -c 'cd "$1" && "$2" inspect o/cut --no-measure --json --device cpu' sh "$tmp/here" "$MOEFLUX"
json_is 'j["model"]' o/cut

claim dense_models_are_named
mkdir "$tmp/dense"
echo '{"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2}' >"$tmp/dense/config.json"
fails 1 'config.json: model_type is llama.*llama.cpp' inspect "$tmp/dense/config.json"

report
