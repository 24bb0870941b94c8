#!/bin/sh
# DeepSeek's family through the program: what begins a prompt, templates and thinking, and that conversions
# give the same tokens. The model is random, so ids are compared and no texts.
# suites: check asan-nightly
. tests/lib/cli.sh

if "$MOEFLUX" inspect --no-measure tests/models/deepseek-odd/mlx 2>/dev/null |
    grep -q 'deepseek_v3 cannot be run'; then
    echo "SKIP deepseek: this program has no architecture for deepseek_v3"
    exit 0
fi

begin='<｜begin▁of▁sentence｜>'
model=$tmp/model
mkdir "$model"
cp tests/models/deepseek-odd/mlx/* "$model"
python3 - "$model" <<'END'
import json, sys
file = json.load(open('tests/data/deepseek_tokenizer.json'))['tokenizer']
json.dump(file, open(sys.argv[1] + '/tokenizer.json', 'w'))
config = {'add_bos_token': True, 'bos_token': {'content': '<｜begin▁of▁sentence｜>'}}
json.dump(config, open(sys.argv[1] + '/tokenizer_config.json', 'w'))
END
# template BEFORE OPENING: the chat template; BEFORE comes before the messages, OPENING begins an answer.
template() {
    cat >"$model/chat_template.jinja" <<END
{{- bos_token -}} $1
{%- for m in messages -%}
    {{- '<｜User｜>' if m.role == 'user' else '<｜Assistant｜>' if m.role == 'assistant' -}}
    {{- m.content -}}
    {{- '<｜end▁of▁sentence｜>' if m.role == 'assistant' -}}
{%- endfor -%}
{{- '<｜Assistant｜>' if add_generation_prompt -}} $2
END
}

# prompt_ids FLAG...: writes the ids of the prompt to $tmp/ids.
prompt_ids() {
    run 0 "$MOEFLUX" -m "$model" "$@" --logits "$tmp/logits"
    python3 tests/lib/tensors.py ids "$tmp/logits" tokens >"$tmp/ids"
}
ids_are() { [ "$(cat "$tmp/ids")" = "$1" ] || fault "the prompt is $(cat "$tmp/ids"), expected $1"; }
count() { tr ' ' '\n' <"$tmp/ids" | grep -c "^$1\$"; }

claim a_raw_prompt_begins_with_the_models_first_token
prompt_ids --raw -p 'hi'
plain=$(cat "$tmp/ids")
[ "$(count 0) ${plain%% *}" = '1 0' ] || fault "the prompt is $plain, expected one 0, at its start"
prompt_ids --raw -p "${begin}hi"
ids_are "$plain"

claim the_models_own_template_says_how_turns_look
fails 1 'chat_template.jinja .* chat_template ' -m "$model" -p hi -n 1
template '' ''
prompt_ids -p 'hi'
ids_are "0 700 ${plain#0 } 701"
prompt_ids -p 'hi' --no-think
ids_are "0 700 ${plain#0 } 701"
fails 1 "template.*--think " -m "$model" -p hi -n 1 --think

claim cogito_thinks_when_it_is_asked_to
template "{{- 'Enable deep thinking subroutine.' if enable_thinking -}}" \
    "{{- '<think>' if enable_thinking -}}"
prompt_ids -p 'hi'
n_plain=$(wc -w <"$tmp/ids")
[ "$(count 0) $(count 700) $(count 701)" = '1 1 1' ] || fault "the prompt is $(cat "$tmp/ids")"
prompt_ids -p 'hi' --think
[ "$(wc -w <"$tmp/ids")" -gt "$n_plain" ] || fault "thinking does not make the prompt longer"
prompt_ids -p 'hi' --think --system 'Be brief.'
[ "$(count 0) $(count 700) $(count 701)" = '1 1 1' ] || fault "the prompt is $(cat "$tmp/ids")"

claim batches_reuse_whole_prefixes_and_answer_as_single_runs
hi='{"role": "user", "content": "hi"}' ho='{"role": "assistant", "content": "ho"}'
cat >"$tmp/batch" <<END
{"id": 1, "system": "Be brief and kind to all.", "prompt": "hi"}
{"id": 2, "system": "Be brief and kind to all.", "prompt": "ho"}
{"id": 3, "system": "Be brief and kind to all.", "messages": [$hi, $ho, $hi]}
END
run 0 "$MOEFLUX" -m "$model" --temp 0 -n 6 --ignore-eos --ordered --batch "$tmp/batch"
cp "$tmp/out" "$tmp/many"
for prompt in hi ho; do
    run 0 "$MOEFLUX" -m "$model" --temp 0 -n 6 --ignore-eos --system 'Be brief and kind to all.' -p $prompt \
        --json
    cat "$tmp/out" >>"$tmp/single"
done
python3 - "$tmp/many" "$tmp/single" <<'END' || fault "many: $(cat "$tmp/many") single: $(cat "$tmp/single")"
import json, sys
many, single = ([json.loads(line) for line in open(path)] for path in sys.argv[1:])
assert len(many) == 3 and [r['tokens'] for r in many[:2]] == [r['tokens'] for r in single]
# The second question differs in a word; the third prompt continues the whole first one.
assert many[0]['reused_tokens'] == 0 and many[1]['prompt_tokens'] - many[1]['reused_tokens'] <= 3, many
assert many[2]['reused_tokens'] == many[0]['prompt_tokens'], many
END

claim every_form_of_the_model_gives_the_same_tokens
echo 0 5 6 7 100 >"$tmp/in"
run 0 "$MOEFLUX" -m tests/models/sources/deepseek/mlx --tokens-in "$tmp/in" --temp 0 -n 12 --ignore-eos \
    --tokens-out
cp "$tmp/out" "$tmp/want"
for source in mlx hf; do
    run 0 "$MOEFLUX" convert "tests/models/sources/deepseek/$source" "$tmp/$source"
    run 0 "$MOEFLUX" -m "$tmp/$source" --tokens-in "$tmp/in" --temp 0 -n 12 --ignore-eos --tokens-out
    cmp -s "$tmp/out" "$tmp/want" || fault "$source gives $(cat "$tmp/out"), expected $(cat "$tmp/want")"
done

report
