#!/bin/sh
# `moeflux serve` with the small trained model, over a socket; tests/cli/server_client.py has the claims on
# answers.
# suites: check asan
. tests/lib/cli.sh

model=$tmp/tiny
run 0 "$MOEFLUX" convert tests/models/tiny "$model"
server='' url=''
trap 'if [ -n "$server" ]; then kill "$server" 2>/dev/null; fi; rm -rf "$tmp"' EXIT

# start FLAG...: starts a server on a free port.
start() {
    rm -f "$tmp/log"
    "$MOEFLUX" serve -m "$model" --device cpu --port 0 "$@" >"$tmp/served" 2>"$tmp/log" &
    server=$!
    await -p "$server" has_lines 1 "$tmp/log"
    url=$(sed -n 's/^moeflux: listening on //p' "$tmp/log")
    [ -n "$url" ] || fault "the server did not start: $(cat "$tmp/log")"
}

# stop [SIGNAL]: the server ends with status 0 and has printed only where it listens.
stop() {
    kill "-${1:-TERM}" "$server"
    stopped
}
stopped() {
    got=0
    wait "$server" || got=$?
    server=''
    [ "$got" -eq 0 ] || fault "the server ended with status $got: $(cat "$tmp/log")"
    [ "$(wc -l <"$tmp/log")" -eq 1 ] || fault "on stderr: $(cat "$tmp/log")"
    [ ! -s "$tmp/served" ] || fault "it printed: $(cat "$tmp/served")"
}

# The server has said once that its template does not write the tools.
tools_are_unseen() {
    [ "$(grep -c 'the chat template leaves tools out' "$tmp/log")" -eq 1 ] || fault "on stderr: $(cat "$tmp/log")"
    sed -i '/leaves tools out/d' "$tmp/log"
}

# holds CLAIM [ARGUMENT...]: a claim of tests/cli/server_client.py
holds() {
    python3 tests/cli/server_client.py "$url" "$@" >"$tmp/said" 2>&1 && return
    fault "$(tail -c 1500 "$tmp/said")"
    return 1
}
# ends_by CLAIM [ARGUMENT...]: one that ends the server itself.
ends_by() {
    ended_by=$1
    shift
    holds "$ended_by" "$server" "$@" || kill "$server"
    stopped
}
holds_claim() {
    claim "$1"
    holds "$@"
}

start -c 256
holds_claim whole_answers_and_events_say_the_same
holds_claim a_conversation_computes_its_new_tokens_only
holds_claim two_alternating_conversations_keep_their_prefixes
holds_claim completions_take_texts_ids_and_lists
holds_claim the_same_seed_gives_the_same_text
holds_claim echo_and_logprobs_score_a_prompt
holds_claim stops_end_an_answer
holds_claim answers_fit_a_schema_or_a_grammar
holds_claim forms_and_thinking_of_other_servers_are_obeyed
holds_claim texts_may_have_nul_and_halves_of_characters
holds_claim tokens_and_texts_are_inverse
holds_claim wrong_requests_are_refused_by_name
holds_claim broken_http_does_not_end_it
holds_claim pages_of_other_sites_are_refused
holds_claim the_page_is_whole
holds_claim models_health_and_metrics_are_there

claim a_port_in_use_is_one_line
port=${url##*:}
fails 1 "127.0.0.1 port $port: Address already in use" serve -m "$model" --device cpu --port "$port"

# The port is taken, so a server that is not refused cannot listen either.
claim no_output_replaces_a_file_of_the_model
for flag in --trace --usage; do
    fails 2 "^moeflux: $flag: $model/tokenizer.json .* $model " \
        serve -m "$model" --device cpu --port "$port" $flag "$model/tokenizer.json"
done

claim sigterm_ends_it_with_status_0
stop

# Its answers are long, so that they are cut and do not end by themselves.
start -c 8192
holds_claim a_client_that_hangs_up_stops_its_answer
stop

claim a_running_answer_is_cut_with_its_last_event
start --grace 0
ends_by a_running_answer_is_cut_with_its_last_event

claim a_prompt_that_was_not_answered_can_be_asked_again
for how in whole stream; do
    start --grace 0 --chunk 1
    ends_by a_prompt_that_was_not_answered_can_be_asked_again $how
done

claim tools_are_called_and_their_results_answered
cat >"$model/chat_template.jinja" <<'END'
{%- if tools %}
{{- '<|im_start|>system\n# Tools\n<tools>\n' + tools | tojson + '\n</tools>\nReply with <tool_call>\n' }}
{{- '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n' }}
{%- endif %}
{%- for m in messages %}
{{- '<|im_start|>' + ('user' if m.role == 'tool' else m.role) + '\n' + (m.content or '') }}
{%- for c in m.tool_calls or [] %}
{{- '\n<tool_call>\n{"name": "' + c.function.name + '", "arguments": ' + c.function.arguments | tojson }}
{{- '}\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
END
start
holds tools_are_called_and_their_results_answered
holds_claim calls_may_be_sent_back
holds_claim a_template_without_thinking_ignores_the_switch
stop

claim calls_may_be_sent_back_to_a_template_of_objects
cat >"$model/chat_template.jinja" <<'END'
{%- for m in messages %}
{{- '<|im_start|>' + ('user' if m.role == 'tool' else m.role) + '\n' + (m.content or '') }}
{%- for c in m.tool_calls or [] %}
{{- '\n<tool_call>\n<function=' + c.function.name + '>\n' }}
{%- for name, value in c.function.arguments | items %}
{{- '<parameter=' + name + '>\n' + value | string + '\n</parameter>\n' }}
{%- endfor %}
{{- '</function>\n</tool_call>' }}{%- endfor %}
{{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
END
start
holds calls_may_be_sent_back_to_a_template_of_objects
tools_are_unseen
stop

claim thinking_is_switched_by_either_name
cat >"$model/chat_template.jinja" <<'END'
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\n<think>\n' + ('' if thinking is defined and thinking else '\n</think>\n\n') }}
{%- endif %}
END
start
holds thinking_is_switched_by_either_name
stop
rm "$model/chat_template.jinja"

claim a_full_queue_refuses_requests
start --queue 1
holds a_full_queue_refuses_requests
stop INT

claim concurrent_answers_are_those_of_single_requests
start --parallel 3
holds concurrent_answers_are_those_of_single_requests 3
stop

claim they_are_with_experts_from_files
start --parallel 8 --memory 3M --expert-io uring
holds concurrent_answers_are_those_of_single_requests 8
stop

claim a_key_is_needed
printf ' # a comment\n\n  secret-one\r\nsecret-two  \n' >"$tmp/keys"
start --api-key-file "$tmp/keys" --cors https://chat.example
holds a_key_is_needed secret-one
holds a_key_is_needed secret-two
stop

claim a_key_of_the_command_line_is_needed_and_not_shown
start --api-key 'secret-one, secret-two' --api-key-file "$tmp/keys"
holds a_key_is_needed secret-one
holds a_key_is_needed secret-two
! tr '\0' ' ' <"/proc/$server/cmdline" | grep secret || fault 'the command line shows the key'
stop

claim a_key_of_the_environment_is_needed
export MOEFLUX_API_KEY=secret-one
start
unset MOEFLUX_API_KEY
holds a_key_is_needed secret-one
stop

claim a_page_of_a_named_site_may_use_it
start --cors https://chat.example
holds a_page_of_a_named_site_may_use_it
stop

claim evicted_sequences_are_read_from_files
start --sequences 1 --state-dir "$tmp/states"
holds leave_two_conversations
holds both_conversations_are_known
stop
[ "$(find "$tmp/states" -name '*.moeflux-state' | wc -l)" -eq 2 ] || fault "files: $(ls "$tmp/states")"

claim killing_it_loses_no_saved_state
start --sequences 1 --state-dir "$tmp/states"
{
    kill -KILL "$server"
    wait "$server" || :
} 2>/dev/null
start --sequences 1 --state-dir "$tmp/states"
holds both_conversations_are_known
stop

claim a_damaged_state_is_reported_and_computed_again
for file in "$tmp/states"/*.moeflux-state; do
    printf x | dd of="$file" bs=1 seek=3000 conv=notrunc 2>/dev/null
done
start --sequences 1 --state-dir "$tmp/states"
holds leave_two_conversations
holds both_conversations_are_known
kill -TERM "$server"
wait "$server" || fault 'it failed'
server=''
grep -q "$tmp/states/.*checksum" "$tmp/log" || fault "on stderr: $(cat "$tmp/log")"

# get PATH: the status in $code, the body in $tmp/out
get() { code=$(curl -s -o "$tmp/out" -w '%{http_code}' "$url$1"); }

claim the_name_is_that_of_the_directory_however_it_is_written
given=$model
for model in "$given/" "$given//" "$given/../tiny/." "$given/."; do
    start
    get /v1/models
    json_is 'j["data"][0]["id"]' tiny
    stop
done
model=$given
(cd "$model" && "$MOEFLUX" -m . --device cpu --no-think --temp 0 -n 1 --batch - -o "$tmp/o" -q) <<'END' || fault failed
{"prompt": "x"}
END
echo '{"prompt": "x"}' | run 0 "$MOEFLUX" -m "$model/" --device cpu --no-think --temp 0 -n 1 --batch - -o "$tmp/o"
err_has ', 1 there already'

claim a_server_whose_answers_fail_says_so
cp -r "$model" "$tmp/cut"
model=$tmp/cut
start --memory 200K --expert-io pread
truncate -s 4096 "$tmp/cut/packed_experts"/*.bin
for i in 1 2; do
    code=$(curl -s -o "$tmp/out" -w '%{http_code}' "$url/v1/completions" -d '{"prompt": "The", "max_tokens": 2}')
    [ "$code" -eq 500 ] || fault "answer $i: status $code"
done
get /health
[ "$code" -eq 503 ] || fault "status $code"
json_is 'j["status"]' failing
[ "$(wc -l <"$tmp/log")" -eq 2 ] || fault "on stderr: $(cat "$tmp/log")"
tail -n 1 "$tmp/log" | grep -q "^moeflux: an answer failed: $tmp/cut/packed_experts/.* 4096 bytes" ||
    fault "on stderr: $(cat "$tmp/log")"
kill -TERM "$server"
wait "$server" || fault 'it failed'
server='' model=$given

claim faults_at_the_start_are_one_line
fails 2 ' -m DIR ' serve
fails 2 '--port: .* 0 to 65535, .*"70000"$' serve -m "$model" --port 70000
fails 2 '--sequences: .* 4 .*--parallel, .* 2$' serve -m "$model" --parallel 4 --sequences 2
fails 2 '--host no.such.host.invalid: ' serve -m "$model" --host no.such.host.invalid
fails 2 '--state-files: .* 1 to .*"0"$' serve -m "$model" --state-files 0
fails 1 "^moeflux: --api-key-file $tmp/none: No such file" serve -m "$model" --api-key-file "$tmp/none" --port 0
: >"$tmp/empty"
fails 2 "^moeflux: --api-key-file $tmp/empty: .*key" serve -m "$model" --api-key-file "$tmp/empty" --port 0
run 2 env MOEFLUX_API_KEY= "$MOEFLUX" serve -m "$model" --port 0
err_line '^moeflux: MOEFLUX_API_KEY .*empty'
fails 1 "^moeflux: $tmp/missing: No such file" serve -m "$tmp/missing" --port 0
fails 1 "^moeflux: --state-dir $tmp/keys/x: Not a directory" serve -m "$model" --port 0 --state-dir "$tmp/keys/x"

report
