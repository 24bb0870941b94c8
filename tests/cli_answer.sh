#!/bin/sh
# What ends an answer, and what is told of it: --stop, --logprobs, --tools, in one run and in --batch.
. tests/cli.sh

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

report
