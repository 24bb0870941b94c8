#!/bin/sh
# What ends an answer, and what is reported with it: --stop, --logprobs, --tools, in one run and in --batch.
# suites: check fast asan
. tests/lib/cli.sh

set -- -m tests/models/tiny --device cpu --temp 0 -n 12
line_is() { [ "$(sed -n "$1p" "$tmp/out")" = "$2" ] || fault "line $1: $(sed -n "$1p" "$tmp/out")"; }

claim a_stop_text_ends_the_answer_and_is_not_printed
run 0 "$MOEFLUX" "$@" --raw -p 'Hello there'
line_is 1 ' was a small cat named Yara. Yara lived near the library'
run 0 "$MOEFLUX" "$@" --raw -p 'Hello there' --stop nothing --stop 'd Ya'
line_is 1 ' was a small cat name'
run 0 "$MOEFLUX" "$@" --raw -p 'Hello there' --stop 'd Ya' --json
json_is 'j["text"], j["stop_reason"], j["stop_text"], len(j["tokens"])' \
    "(' was a small cat name', 'stop', 'd Ya', 6)"
run 0 "$MOEFLUX" "$@" --raw -p 'Hello there' --stop 'd Yb' --json
json_is 'j["stop_reason"], "stop_text" in j, "logprobs" in j' "('length', False, False)"

claim the_models_generation_config_has_defaults_of_the_sampler_and_tokens_that_are_never_chosen
mkdir "$tmp/own"
ln -s "$PWD"/tests/models/tiny/* "$tmp/own/"
# sampled JSON FLAG...: the answer with this generation_config.json.
sampled() {
    printf '%s' "$1" >"$tmp/own/generation_config.json"
    shift
    run 0 "$MOEFLUX" -m "$tmp/own" --device cpu --raw -p 'Hello there' -s 7 --ignore-eos -n 12 "$@"
    cat "$tmp/out"
}
same() { [ "$1" = "$2" ] || fault "'$1', expected '$2'"; }
plain=$(sampled '{}' --temp 9 --top-k 0 --top-p 1)
same "$(sampled '{"do_sample": true, "temperature": 9, "top_k": 0, "top_p": 1.0}')" "$plain"
same "$(sampled '{"temperature": 9, "top_k": 3, "top_p": null}' --top-k 0 --top-p 1)" "$plain"
for pair in '"top_k": 2,--top-k=2' '"min_p": 0.9,--min-p=0.9' '"repetition_penalty": 5,--repeat-penalty=5'; do
    answer=$(sampled "{${pair%,*}, \"temperature\": 9, \"top_p\": 1}")
    same "$answer" "$(sampled '{}' --temp 9 --top-p 1 "${pair#*,}")"
    [ "$answer" != "$(sampled '{}' --temp 9 --top-p 1)" ] || fault "${pair%,*} has no effect"
done
greedy=$(sampled '{}' --temp 0)
same "$(sampled '{"do_sample": false, "temperature": 9}')" "$greedy"
same "$(sampled '{"temperature": 0}')" "$greedy"
same "$(sampled '{"do_sample": false, "top_k": 0, "top_p": 1}' --temp 9)" "$plain"
printf '{"top_p": 7}' >"$tmp/own/generation_config.json"
fails 1 "^moeflux: $tmp/own/generation_config.json: key top_p: .* --top-p " -m "$tmp/own" --device cpu -p x
run 0 "$MOEFLUX" -m "$tmp/own" --device cpu -p x -n 1 --top-p 0.9
run 0 "$MOEFLUX" "$@" --raw -p 'Hello there' -n 1 --json
first=$(sed -n 's/.*"tokens": \[\([0-9]*\).*/\1/p' "$tmp/out")
printf '{"suppress_tokens": [%s, -1, 99999999]}' "$first" >"$tmp/own/generation_config.json"
run 0 "$MOEFLUX" -m "$tmp/own" --device cpu --raw -p 'Hello there' --temp 0 -n 12 --logprobs 20 --ignore-eos --json
json_is "any($first == t['id'] for l in j['logprobs'] for t in l['top_logprobs'])" False
json_is "len(j['tokens']), $first in j['tokens']" '(12, False)'

claim logprobs_come_with_json_or_as_a_table
run 0 "$MOEFLUX" "$@" --raw -p 'Hello there' --logprobs 2 --json
json_is 'len(j["logprobs"]) == len(j["tokens"]) == 12' True
json_is '"".join(l["token"] for l in j["logprobs"]) == j["text"]' True
json_is 'all(bytes(l["bytes"]).decode() == l["token"] for l in j["logprobs"])' True
json_is '[l["id"] for l in j["logprobs"]] == j["tokens"]' True
json_is 'all(len(l["top_logprobs"]) == 2 for l in j["logprobs"])' True
json_is 'all(l["top_logprobs"][0]["logprob"] == l["logprob"] <= 0 for l in j["logprobs"])' True
run 0 "$MOEFLUX" "$@" --raw -p 'Hello there' -n 2 --logprobs 1
line_is 1 ' was a'
err_has '^ *token *logprob *text *likeliest$'
err_has '^ *1 *-0\.0956 " was" *-0\.0956 " was"$'

claim requests_of_a_batch_have_the_same_fields
f='{"type": "function", "function": {"name": "f"}}'
cat >"$tmp/in" <<END
{"raw": true, "prompt": "Hello there", "stop": ["nothing", "d Ya"]}
{"raw": true, "prompt": "Hello there", "stop": ".", "logprobs": true, "top_logprobs": 1}
{"raw": true, "prompt": "Hello there", "logprobs": 0, "n": 1}
{"raw": true, "prompt": "Hello there", "presence_penalty": 2, "frequency_penalty": 2, "n": 25}
{"prompt": "a", "stop": ["", "b"], "n": 2.0}
{"prompt": "a", "stop": 3}
{"prompt": "a", "logprobs": 21}
{"prompt": "a", "top_logprobs": 2}
{"prompt": "a", "presence_penalty": 3}
{"prompt": "a", "tools": {}}
{"prompt": "a", "tools": [{"type": "function", "function": {}}]}
{"prompt": "a", "tools": [], "tool_choice": "auto"}
{"prompt": "a", "tools": [$f], "tool_choice": "some"}
{"prompt": "a", "tools": [$f], "tool_choice": {"type": "function", "function": {"name": "g"}}}
{"prompt": "a", "tools": [$f]}
{"prompt": "a", "tools": [$f], "tool_choice": "none", "n": 1}
END
run 1 "$MOEFLUX" "$@" --batch "$tmp/in" --ordered
json_is '[(x["text"], x["stop_reason"], x.get("stop_text")) for x in r[:2]]' \
    "[(' was a small cat name', 'stop', 'd Ya'), (' was a small cat named Yara', 'stop', '.')]"
json_is '[len(l["top_logprobs"]) for x in r[1:3] for l in x["logprobs"]]' '[1, 1, 1, 1, 1, 1, 1, 0]'
json_is '"an owl named Max" in r[3]["text"]' True
# error_has LINE PATTERN: the result of this line.
error_has() {
    sed -n "$1p" "$tmp/out" | grep -q "\"error\": \"line $1: $2" ||
        fault "$(sed -n "$1p" "$tmp/out"), expected $2"
}
error_has 6 'stop: .*text'
error_has 7 'logprobs: .* 0 to 20, found 21"'
error_has 8 'top_logprobs .*logprobs.*true'
error_has 9 'presence_penalty: .* -2 to 2, found 3"'
error_has 10 'tools: .*list'
error_has 11 'tools.0..function.name: .*text'
error_has 12 'tool_choice .*tools'
error_has 13 'tool_choice: .*none.*auto.*required.*function'
error_has 14 'tool_choice: .*g\\""'
error_has 15 '.*chat template'
json_is 'r[15]["stop_reason"]' length

claim a_file_of_tools_that_is_none_is_refused
printf '{"tools": []}' >"$tmp/tools"
fails 1 "^moeflux: .*$tmp/tools: .*list, found an object$" "$@" -p a --tools "$tmp/tools"
printf '[1' >"$tmp/tools"
fails 1 "^moeflux: .*$tmp/tools: line 1: " "$@" -p a --tools "$tmp/tools"
fails 1 "^moeflux: .*$tmp/none: No such file" "$@" -p a --tools "$tmp/none"
printf '[{"type": "function", "function": {"name": "f"}}]' >"$tmp/tools"
fails 1 '^moeflux: --tools: .*chat template .*tests/models/tiny' "$@" -p a --tools "$tmp/tools"

# The model has a template with tools.
mkdir "$tmp/tools-model"
for file in config.json model.safetensors model.safetensors.index.json tokenizer.json; do
    ln -s "$PWD/tests/models/tiny/$file" "$tmp/tools-model/$file"
done
ln -s "$PWD/tests/data/tools.jinja" "$tmp/tools-model/chat_template.jinja"
cat >"$tmp/tools" <<'END'
[{"type": "function", "function": {"name": "now"}},
 {"type": "function", "function": {"name": "find",
  "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}}}]
END
set -- -m "$tmp/tools-model" --device cpu --temp 0 --no-think

claim tools_are_in_the_prompt_and_calls_are_lines_of_json
run 0 "$MOEFLUX" "$@" -n 1 -p 'What is 2 + 3?' --json
without=$(json 'j["prompt_tokens"]')
run 0 "$MOEFLUX" "$@" -n 1 -p 'What is 2 + 3?' --json --tools "$tmp/tools"
json_is "j['prompt_tokens'] > $without + 40" True
printf '%s\n' \
    'root ::= "I look.\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"' >"$tmp/grammar"
run 0 "$MOEFLUX" "$@" -p 'When?' --tools "$tmp/tools" --grammar "$tmp/grammar"
line_is 1 'I look.'
sed -i 1d "$tmp/out"
json_is 'j["type"], j["function"], j["id"][:5]' "('function', {'name': 'now', 'arguments': '{}'}, 'call_')"
run 0 "$MOEFLUX" "$@" -p 'When?' --tools "$tmp/tools" --grammar "$tmp/grammar" --json
json_is 'j["text"], j["stop_reason"], [c["function"]["name"] for c in j["tool_calls"]]' \
    "('I look.', 'tool_calls', ['now'])"
run 0 "$MOEFLUX" "$@" -p 'When?' --grammar "$tmp/grammar" --json
json_is 'j["stop_reason"], "tool_calls" in j' "('eos', False)"

claim tools_that_the_chat_template_leaves_out_are_reported_once
mkdir "$tmp/blind-model"
cp -P "$tmp/tools-model"/* "$tmp/blind-model"
rm "$tmp/blind-model/chat_template.jinja"
cat >"$tmp/blind-model/chat_template.jinja" <<'END'
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}{% for c in m.tool_calls or [] %}<minimax:tool_call>{{ c.function.name }}{% endfor %}<|im_end|>
{% endfor %}<|im_start|>assistant
END
for json in '' --json; do
    run 0 "$MOEFLUX" -m "$tmp/blind-model" --device cpu --temp 0 -n 1 -p 'When?' --tools "$tmp/tools" $json
    err_line '^moeflux: --tools: the chat template leaves tools out'
done
printf '%s\n' '{"prompt": "When?"}' '{"prompt": "When?"}' >"$tmp/in"
run 0 "$MOEFLUX" -m "$tmp/blind-model" --device cpu --temp 0 -n 1 --tools "$tmp/tools" --batch "$tmp/in"
[ "$(grep -c 'line 1: the chat template leaves tools out' "$tmp/err")" -eq 1 ] || fault "$(cat "$tmp/err")"
[ "$(grep -c 'leaves tools out' "$tmp/err")" -eq 1 ] || fault "$(cat "$tmp/err")"

claim a_request_may_ask_for_a_call
tools=$(tr -d '\n' <"$tmp/tools") now='{"type": "function", "function": {"name": "now"}}'
cat >"$tmp/in" <<END
{"prompt": "When?", "tools": $tools, "tool_choice": "required"}
{"prompt": "When?", "tools": $tools, "tool_choice": $now}
{"prompt": "When?", "tools": $tools, "tool_choice": "required", "json_object": true}
{"prompt": "When?", "tools": $tools, "tool_choice": "required", "ignore_eos": true}
END
run 1 "$MOEFLUX" "$@" -n 150 --batch "$tmp/in" --ordered
json_is '[(x["stop_reason"], x["text"]) for x in r[:2]]' "[('tool_calls', ''), ('tool_calls', '')]"
json_is '[c["function"]["name"] for c in r[1]["tool_calls"]]' "['now']"
json_is 'all(c["function"]["name"] in ("now", "find") for c in r[0]["tool_calls"])' True
json_is '[type(json.loads(c["function"]["arguments"])).__name__ for c in r[1]["tool_calls"]]' "['dict']"
error_has 3 'tool_choice: .*grammar'
error_has 4 'ignore_eos .*grammar'

claim results_of_calls_are_in_the_prompt
python3 - "$tmp/out" "$tmp/in" <<'END'
import json, sys
answer = json.loads(open(sys.argv[1]).readlines()[1])
question = {'role': 'user', 'content': 'When?'}
said = {'role': 'assistant', 'content': None, 'tool_calls': answer['tool_calls']}
call = answer['tool_calls'][0]['id']
result = {'role': 'tool', 'tool_call_id': call, 'content': 'It is noon by the clock.'}
with open(sys.argv[2], 'w') as f:
    for messages in [question], [question, said, result]:
        print(json.dumps({'messages': messages, 'n': 1}), file=f)
    print(json.dumps({'messages': [question, said], 'n': 1}), file=f)
END
run 1 "$MOEFLUX" "$@" --tools "$tmp/tools" --batch "$tmp/in" --ordered
json_is 'r[1]["prompt_tokens"] > r[0]["prompt_tokens"] + 30' True
error_has 3 'messages.1.: a message with calls'

claim an_answer_that_is_all_thinking_says_so_in_one_line
run 0 "$MOEFLUX" -m tests/models/tiny --temp 0 -p 'What is 47 + 38?' -n 5
out_empty
err_line '^moeflux: .* -n .*--no-think'
run 0 "$MOEFLUX" -m tests/models/tiny --temp 0 -p 'What is 47 + 38?' -n 5 --no-think
err_empty

answer() {
    run 0 "$MOEFLUX" -m tests/models/tiny --temp 0 --no-think -n 20 --json "$@"
    json 'j["prompt_tokens"], j["text"]'
}
claim a_file_follows_the_prompt
printf '38?' >"$tmp/piped"
answer -p "$(printf 'What is 47 +\n\n38?')" >"$tmp/both"
[ "$(answer -p 'What is 47 +' -f "$tmp/piped")" = "$(cat "$tmp/both")" ] ||
    fault "a file is not joined: $(cat "$tmp/both")"
# shellcheck disable=SC2002 # the test is about a pipe
[ "$(cat "$tmp/piped" | answer -p 'What is 47 +' -f -)" = "$(cat "$tmp/both")" ] || fault 'a pipe is not joined'
[ "$(answer -p 'What is 47 + 38?')" = "$(echo ' ' | answer -p 'What is 47 + 38?' -f -)" ] ||
    fault 'blanks are joined'
[ "$(answer --raw -p 'What is 47 +38?')" = "$(answer --raw -p 'What is 47 +' -f "$tmp/piped")" ] ||
    fault '--raw adds something'

claim stdin_is_read_only_if_a_flag_names_it_or_none_gives_a_prompt
printf 'What is 47 + 38?' >"$tmp/question"
answer -p 'What is 47 + 38?' >"$tmp/both"
for flags in '-f -' '-p -' ''; do
    # shellcheck disable=SC2086 # the flags are words
    [ "$(answer $flags <"$tmp/question")" = "$(cat "$tmp/both")" ] || fault "'$flags' does not read stdin"
done
[ "$(answer -f "$tmp/question")" = "$(echo x | answer -f "$tmp/question")" ] || fault '-f reads stdin'
# A loop over lines gets all of them.
printf 'What is 1 + 1?\nWhat is 2 + 2?\nWhat is 3 + 3?\n' |
    while read -r q; do
        "$MOEFLUX" -m tests/models/tiny --temp 0 --no-think -n 20 -p "$q" 2>/dev/null
    done >"$tmp/loop"
[ "$(wc -l <"$tmp/loop")" = 3 ] || fault "a loop over 3 lines gave $(wc -l <"$tmp/loop") answers"

claim a_template_and_its_variables_come_from_the_command_line
plain='{% for m in messages %}{{ m.content }}{% endfor %}'
printf '%s' "$plain" >"$tmp/plain.jinja"
answer --raw -p 'What is 47 + 38?' >"$tmp/both"
[ "$(answer --chat-template "$plain" -p 'What is 47 + 38?')" = "$(cat "$tmp/both")" ] || fault 'a text is no template'
[ "$(answer --chat-template-file "$tmp/plain.jinja" -p 'What is 47 + 38?')" = "$(cat "$tmp/both")" ] ||
    fault 'a file is no template'
[ "$(answer --chat-template "{{ who }}$plain" --chat-template-kwargs '{"who": "What is "}' -p '47 + 38?')" = \
    "$(cat "$tmp/both")" ] || fault 'a variable is not set'
printf '{"id": 1, "prompt": "38?", "chat_template_kwargs": {"who": "What is 47 + "}}\n' >"$tmp/line"
run 0 "$MOEFLUX" -m tests/models/tiny --temp 0 -n 20 --chat-template "{{ who }}$plain" \
    --chat-template-kwargs '{"who": "no"}' --batch "$tmp/line"
json_is 'j["prompt_tokens"], j["text"]' "$(cat "$tmp/both")"
fails 2 '^moeflux: --chat-template: chatml: No such .*built in' -m tests/models/tiny --chat-template chatml -p x
printf '{%% if %%}' >"$tmp/bad.jinja"
printf 'hi' >"$tmp/deaf.jinja"
# A fault of the text is found before the model is looked at.
fails 1 "^moeflux: --chat-template $tmp/bad.jinja:1:7: " -m /nonexistent --chat-template "$tmp/bad.jinja" -p x
fails 1 '^moeflux: --chat-template:1:1: ' -m tests/models/tiny --chat-template '{{ x' -p x
for more in '-p x' '--batch /dev/null' '--no-think -p x'; do
    # shellcheck disable=SC2086
    fails 1 "^moeflux: --chat-template $tmp/deaf.jinja: " -m tests/models/tiny --chat-template "$tmp/deaf.jinja" $more
done
fails 2 '^moeflux: --chat-template-kwargs: byte ' -m tests/models/tiny --chat-template-kwargs '{"a": ' -p x
fails 2 '^moeflux: --chat-template-kwargs: .*object' -m tests/models/tiny --chat-template-kwargs '[]' -p x
fails 2 '^moeflux: --chat-template .*--raw' -m tests/models/tiny --chat-template "$plain" --raw -p x

claim samplers_are_deterministic_and_have_an_effect
sampled() { run 0 "$MOEFLUX" -m tests/models/tiny --raw -n 24 --ignore-eos -s 5 --temp 3 --top-p 1 --top-k 0 -p Once "$@"; cat "$tmp/out"; }
sampled >"$tmp/plain"
for flags in '--typical-p 0.2' '--top-n-sigma 0.2' '--min-p 0.99 --min-keep 3' '--xtc-probability 1 --xtc-threshold 0.01' \
    '--dry-multiplier 5 --dry-allowed-length 0'; do
    # shellcheck disable=SC2086 # the flags are words
    [ "$(sampled $flags)" = "$(sampled $flags)" ] || fault "$flags: two runs differ"
    # shellcheck disable=SC2086 # the flags are words
    [ "$(sampled $flags)" != "$(cat "$tmp/plain")" ] || fault "$flags has no effect"
done

report
