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
# A variable that is set decides, even if another place has the repository.
HF_HOME=$tmp/home
export HF_HOME
fails 1 'Org/Some.Model-1b: .*hf download Org/Some.Model-1b' -m Org/Some.Model-1b -p x
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
fails 1 '^moeflux: o/cut: 1 of 3 files .*hf download o/cut again' -m o/cut -p x
fails 1 '^moeflux: o/cut: 1 of 3 files ' inspect o/cut
fails 1 '^moeflux: o/cut: 1 of 3 files ' serve -m o/cut
fails 1 '^moeflux: o/cut: 1 of 3 files ' convert o/cut "$tmp/out-dir"
# A link to nothing is what an interrupted download leaves.
ln -s "$tmp/nothing" "$tmp/hub/models--o--cut/snapshots/bbb/model-00002-of-00002.safetensors"
fails 1 '^moeflux: o/cut: 1 of 3 files ' inspect o/cut
mkdir -p "$tmp/hub/models--o--bare/snapshots/ccc"
fails 1 '^moeflux: o/bare: 2 of 2 files ' inspect o/bare
fails 1 '^moeflux: o/none: .*hf download o/none' inspect o/none

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
