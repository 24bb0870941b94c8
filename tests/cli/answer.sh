#!/bin/sh
# What ends an answer, and what is told of it: --stop, --logprobs, --tools, in one run and in --batch.
# suites: check fast asan
. tests/lib/cli.sh

set -- -m tests/models/tiny --device cpu --temp 0 -n 12
# value EXPRESSION: of the object `o` on stdout
value() { python3 -c 'import json, sys; o = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$tmp/out" "$1"; }
value_is() { [ "$(value "$1")" = "$2" ] || fault "$1 is $(value "$1" 2>&1), expected $2"; }
line_is() { [ "$(sed -n "$1p" "$tmp/out")" = "$2" ] || fault "line $1: $(sed -n "$1p" "$tmp/out")"; }

claim a_stop_text_ends_the_answer_and_is_not_printed
run 0 "$MOEFLUX" "$@" --raw -p 'Hello there'
line_is 1 ' was a small cat named Yara. Yara lived near the library'
run 0 "$MOEFLUX" "$@" --raw -p 'Hello there' --stop nothing --stop 'd Ya'
line_is 1 ' was a small cat name'
run 0 "$MOEFLUX" "$@" --raw -p 'Hello there' --stop 'd Ya' --json
value_is 'o["text"], o["stop_reason"], o["stop_text"], len(o["tokens"])' "(' was a small cat name', 'stop', 'd Ya', 6)"
run 0 "$MOEFLUX" "$@" --raw -p 'Hello there' --stop 'd Yb' --json
value_is 'o["stop_reason"], "stop_text" in o, "logprobs" in o' "('length', False, False)"

claim logprobs_come_with_json_or_as_a_table
run 0 "$MOEFLUX" "$@" --raw -p 'Hello there' --logprobs 2 --json
value_is 'len(o["logprobs"]) == len(o["tokens"]) == 12' True
value_is '"".join(l["token"] for l in o["logprobs"]) == o["text"]' True
value_is 'all(bytes(l["bytes"]).decode() == l["token"] for l in o["logprobs"])' True
value_is '[l["id"] for l in o["logprobs"]] == o["tokens"]' True
value_is 'all(len(l["top_logprobs"]) == 2 and l["top_logprobs"][0]["logprob"] == l["logprob"] <= 0 for l in o["logprobs"])' True
run 0 "$MOEFLUX" "$@" --raw -p 'Hello there' -n 2 --logprobs 1
line_is 1 ' was a'
err_has '^ *token *logprob *text *likeliest$'
err_has '^ *1 *-0\.0956 " was" *-0\.0956 " was"$'

claim requests_of_a_batch_have_the_same_fields
cat >"$tmp/in" <<'END'
{"raw": true, "prompt": "Hello there", "stop": ["nothing", "d Ya"]}
{"raw": true, "prompt": "Hello there", "stop": ".", "logprobs": true, "top_logprobs": 1}
{"raw": true, "prompt": "Hello there", "logprobs": 0, "n": 1}
{"raw": true, "prompt": "Hello there", "presence_penalty": 2, "frequency_penalty": 2, "n": 25}
{"prompt": "a", "stop": ["", "b"]}
{"prompt": "a", "stop": 3}
{"prompt": "a", "logprobs": 21}
{"prompt": "a", "top_logprobs": 2}
{"prompt": "a", "presence_penalty": 3}
{"prompt": "a", "tools": {}}
{"prompt": "a", "tools": [{"type": "function", "function": {}}]}
{"prompt": "a", "tools": [], "tool_choice": "auto"}
{"prompt": "a", "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "some"}
{"prompt": "a", "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": {"type": "function", "function": {"name": "g"}}}
{"prompt": "a", "tools": [{"type": "function", "function": {"name": "f"}}]}
{"prompt": "a", "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "none", "n": 1}
END
run 1 "$MOEFLUX" "$@" --batch "$tmp/in" --ordered
sed 's/^/,/; 1s/^,/[/; $s/$/]/' "$tmp/out" >"$tmp/list" && mv "$tmp/list" "$tmp/out"
value_is '[(r["text"], r["stop_reason"], r.get("stop_text")) for r in o[:2]]' \
    "[(' was a small cat name', 'stop', 'd Ya'), (' was a small cat named Yara', 'stop', '.')]"
value_is '[len(l["top_logprobs"]) for r in o[1:3] for l in r["logprobs"]]' '[1, 1, 1, 1, 1, 1, 1, 0]'
value_is '"an owl named Max" in o[3]["text"]' True
value_is '[r["error"] for r in o[4:6]]' "['line 5: stop: expected a text that is not empty, or a list of them', 'line 6: stop: expected a text that is not empty, or a list of them']"
value_is 'o[6]["error"]' 'line 7: logprobs: expected a whole number from 0 to 20'
value_is 'o[7]["error"]' 'line 8: top_logprobs goes with "logprobs": true only'
value_is 'o[8]["error"]' 'line 9: presence-penalty is 3, expected -2 to 2'
value_is 'o[9]["error"]' 'line 10: tools: expected a list'
value_is 'o[10]["error"]' 'line 11: tool 1: function: name: expected a text'
value_is 'o[11]["error"]' 'line 12: tool_choice goes with tools only'
value_is 'o[12]["error"]' 'line 13: tool_choice: expected "none", "auto", "required" or a function'
value_is 'o[13]["error"]' 'line 14: tool_choice: no tool is called "g"'
value_is '"chat template" in o[14]["error"]' True
value_is 'o[15]["stop_reason"]' length

claim a_file_of_tools_that_is_none_is_refused
printf '{"tools": []}' >"$tmp/tools"
run 1 "$MOEFLUX" "$@" -p a --tools "$tmp/tools"
err_has 'tools: expected a list$'
printf '[1' >"$tmp/tools"
run 1 "$MOEFLUX" "$@" -p a --tools "$tmp/tools"
err_has "tools: line 1: "
run 1 "$MOEFLUX" "$@" -p a --tools "$tmp/none"
err_has 'none: No such file'
printf '[{"type": "function", "function": {"name": "f"}}]' >"$tmp/tools"
run 1 "$MOEFLUX" "$@" -p a --tools "$tmp/tools"
err_has 'tools: the chat template of tests/models/tiny has no form'

# The model with a template that has tools.
mkdir "$tmp/tools-model"
for file in config.json model.safetensors model.safetensors.index.json tokenizer.json; do
    ln -s "$PWD/tests/models/tiny/$file" "$tmp/tools-model/$file"
done
ln -s "$PWD/tests/data/tools.jinja" "$tmp/tools-model/chat_template.jinja"
cat >"$tmp/tools" <<'END'
[{"type": "function", "function": {"name": "now"}},
 {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {"text": {"type": "string"}}}}}]
END
set -- -m "$tmp/tools-model" --device cpu --temp 0 --no-think

claim tools_are_in_the_prompt_and_calls_are_lines_of_json
run 0 "$MOEFLUX" "$@" -n 1 -p 'What is 2 + 3?' --json
without=$(value 'o["prompt_tokens"]')
run 0 "$MOEFLUX" "$@" -n 1 -p 'What is 2 + 3?' --json --tools "$tmp/tools"
[ "$(value 'o["prompt_tokens"]')" -gt "$((without + 40))" ] || fault "the prompt has no tools"
printf '%s\n' 'root ::= "I look.\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>"' >"$tmp/grammar"
run 0 "$MOEFLUX" "$@" -p 'When?' --tools "$tmp/tools" --grammar "$tmp/grammar"
line_is 1 'I look.'
sed -i 1d "$tmp/out"
value_is 'o["type"], o["function"], o["id"][:5]' "('function', {'name': 'now', 'arguments': '{}'}, 'call_')"
run 0 "$MOEFLUX" "$@" -p 'When?' --tools "$tmp/tools" --grammar "$tmp/grammar" --json
value_is 'o["text"], o["stop_reason"], [c["function"]["name"] for c in o["tool_calls"]]' "('I look.', 'tool_calls', ['now'])"
run 0 "$MOEFLUX" "$@" -p 'When?' --grammar "$tmp/grammar" --json
value_is 'o["stop_reason"], "tool_calls" in o' "('eos', False)"

claim a_request_may_ask_for_a_call
tools=$(tr -d '\n' <"$tmp/tools")
cat >"$tmp/in" <<END
{"prompt": "When?", "tools": $tools, "tool_choice": "required"}
{"prompt": "When?", "tools": $tools, "tool_choice": {"type": "function", "function": {"name": "now"}}}
{"prompt": "When?", "tools": $tools, "tool_choice": "required", "json_object": true}
{"prompt": "When?", "tools": $tools, "tool_choice": "required", "ignore_eos": true}
END
run 1 "$MOEFLUX" "$@" -n 150 --batch "$tmp/in" --ordered
sed 's/^/,/; 1s/^,/[/; $s/$/]/' "$tmp/out" >"$tmp/list" && mv "$tmp/list" "$tmp/out"
value_is '[(r["stop_reason"], r["text"]) for r in o[:2]]' "[('tool_calls', ''), ('tool_calls', '')]"
value_is '[c["function"]["name"] for c in o[1]["tool_calls"]]' "['now']"
value_is 'all(c["function"]["name"] in ("now", "find") for c in o[0]["tool_calls"])' True
value_is '[type(json.loads(c["function"]["arguments"])).__name__ for c in o[1]["tool_calls"]]' "['dict']"
value_is 'o[2]["error"]' 'line 3: tool_choice: a call cannot fit a grammar of its own too'
value_is 'o[3]["error"]' 'line 4: ignore_eos and a grammar exclude each other'

claim results_of_calls_are_told_to_the_model
python3 - "$tmp/out" "$tmp/in" <<'END'
import json, sys
answer = json.load(open(sys.argv[1]))[1]
question = {'role': 'user', 'content': 'When?'}
said = {'role': 'assistant', 'content': None, 'tool_calls': answer['tool_calls']}
result = {'role': 'tool', 'tool_call_id': answer['tool_calls'][0]['id'], 'content': 'It is noon by the clock.'}
with open(sys.argv[2], 'w') as f:
    for messages in [question], [question, said, result]:
        print(json.dumps({'messages': messages, 'n': 1}), file=f)
    print(json.dumps({'messages': [question, said], 'n': 1}), file=f)
END
run 1 "$MOEFLUX" "$@" --tools "$tmp/tools" --batch "$tmp/in" --ordered
sed 's/^/,/; 1s/^,/[/; $s/$/]/' "$tmp/out" >"$tmp/list" && mv "$tmp/list" "$tmp/out"
value_is 'o[1]["prompt_tokens"] > o[0]["prompt_tokens"] + 30' True
value_is '"message 2" in o[2]["error"]' True

claim an_answer_that_is_all_thinking_says_so_in_one_line
run 0 "$MOEFLUX" -m tests/models/tiny --temp 0 -p 'What is 47 + 38?' -n 5
out_empty
[ "$(cat "$tmp/err")" = 'moeflux: the answer is all thinking: -n ended it there; --no-think answers at once' ] ||
    fault "$(cat "$tmp/err")"
run 0 "$MOEFLUX" -m tests/models/tiny --temp 0 -p 'What is 47 + 38?' -n 5 --no-think
err_empty

claim what_is_piped_in_stands_behind_the_prompt
answer() { run 0 "$MOEFLUX" -m tests/models/tiny --temp 0 --no-think -n 20 --json "$@"; value 'o["prompt_tokens"], o["text"]'; }
printf '38?' >"$tmp/piped"
answer -p "$(printf 'What is 47 +\n\n38?')" >"$tmp/both"
[ "$(answer -p 'What is 47 +' <"$tmp/piped")" = "$(cat "$tmp/both")" ] || fault "a file is not joined: $(cat "$tmp/both")"
# shellcheck disable=SC2002 # a pipe is wanted
[ "$(cat "$tmp/piped" | answer -p 'What is 47 +')" = "$(cat "$tmp/both")" ] || fault 'a pipe is not joined'
[ "$(answer -p 'What is 47 + 38?')" = "$(echo ' ' | answer -p 'What is 47 + 38?')" ] || fault 'blanks are joined'
[ "$(answer --raw -p 'What is 47 +38?')" = "$(answer --raw -p 'What is 47 +' <"$tmp/piped")" ] || fault '--raw adds something'
[ "$(answer -f "$tmp/piped")" = "$(echo x | answer -f "$tmp/piped")" ] || fault '-f is joined'

report
