#!/bin/sh
# What the command line leaves open: MOEFLUX_MODEL, the configuration file; --log-level.
# suites: check fast asan
. tests/lib/cli.sh

export MOEFLUX_DEVICE=cpu
model=tests/models/tiny
file=$tmp/config/moeflux/config
mkdir -p "$tmp/config/moeflux"
# settings LINE...: writes the configuration file.
settings() { printf '%s\n' "$@" >"$file"; }
ask() { run 0 "$MOEFLUX" "$@" -p 'What is 47 + 38?' -n 40; }

claim a_flag_wins_over_the_environment_and_that_over_the_file
settings 'model = /of/the/file'
fails 1 "^moeflux: /of/the/file: .* $file:1)$" -p x
MOEFLUX_MODEL=/of/the/environment fails 1 '^moeflux: /of/the/environment: .* MOEFLUX_MODEL)$' -p x
MOEFLUX_MODEL=/of/the/environment fails 1 '^moeflux: /of/a/flag: [^(]*(a model is [^(]*)$' -m /of/a/flag -p x
settings "model = $model" 'temp = 0' 'no-think = true'
ask
out_is 85
settings '# nothing'
MOEFLUX_MODEL=$model run 0 "$MOEFLUX" --temp 0 --no-think -p 'What is 47 + 38?'
out_is 85
MOEFLUX_MODEL='' fails 2 ' -m DIR .*MOEFLUX_MODEL' -p x

claim plan_and_inspect_say_where_settings_come_from
settings "model = $model" 'threads = 1' '[inspect]' 'ctx-size = 99'
run 0 "$MOEFLUX" --plan -c 100
out_has "^  threads  *1  $file:2$"
out_has "^  model  *$model  $file:1$"
out_lacks ctx-size
MOEFLUX_MODEL=$model run 0 "$MOEFLUX" inspect --no-measure
out_has "^  model  *$model  MOEFLUX_MODEL$"
out_has '^  states .*  99 tokens (-c)$'
run 0 "$MOEFLUX" --plan --json
out_has "\"threads\": {\"value\": \"1\", \"from\": \"$file:2\"}"

claim a_line_for_a_command_wins_and_a_later_one_over_an_earlier
settings "model = $model" '[run]' 'threads = 2' 'threads = 1' '[serve]' 'threads = 3'
run 0 "$MOEFLUX" --plan
out_has '^Plan for CPU (.*, 1 thread)'
settings 'threads = 2' "model = \"$model\"" '[run]' 'threads = 1'
run 0 "$MOEFLUX" --plan
out_has '^Plan for CPU (.*, 1 thread)'

claim a_flag_takes_the_place_of_what_it_excludes
settings "model = $model" 'think = true' 'temp = 0' 'system = be brief' 'usage = /nowhere/u' 'experts = gpu'
ask --no-think --usage "$tmp/u"
run 0 "$MOEFLUX" --raw -p 'Hello' -n 1 --usage "$tmp/u" --n-cpu-moe 0
settings "model = $model" 'quiet = true'
run 2 "$MOEFLUX" --log-level much -p x
run 0 "$MOEFLUX" --raw -p 'Hello' -n 1 --log-level info --active-experts 2
err_line '^moeflux: 2 of 32 '

claim settings_of_batches_and_servers_are_no_matter_to_one_answer
settings "model = $model" 'no-think = true' 'temp = 0' 'parallel = 2' 'replicate = true'
ask
printf '{"prompt": "Hello", "max_tokens": 1}\n' >"$tmp/one.jsonl"
settings "model = $model" 'no-think = true' 'parallel = 2'
run 0 "$MOEFLUX" --batch "$tmp/one.jsonl"
fails 2 '^moeflux: --parallel goes with --batch' --parallel 2 -p x

claim a_path_may_begin_at_home
ln -s "$PWD/$model" "$tmp/of-home"
# shellcheck disable=SC2088 # the program expands it
settings 'model = ~/of-home'
HOME=$tmp run 0 "$MOEFLUX" --plan
HOME=$tmp run 0 "$MOEFLUX" inspect --no-measure

# bad PATTERN LINE...: the last line is refused.
bad() {
    wrong=$1
    shift
    settings "$@"
    fails 2 "^moeflux: $file:$#: $wrong" -m "$model" -p x
}

claim a_bad_setting_is_refused_with_its_line
bad '.*setting tmep, ' '# a comment' '' 'tmep = 0'
bad '--temp: .*"hot"$' 'temp = hot'
bad '--port: .* 0 to 65535, .*"x"$' 'port = x'
bad '--stats: .*true or false, .*"yes"$' 'stats = yes'
bad '--device: .*value, .*""$' 'device ='
bad '.*NAME = VALUE' 'temp'
bad '.*\[run\], \[serve\], \[inspect\], \[convert\], \[get\] or \[doctor\], .*\[srve\]$' '[srve]'
bad '.*\[run\], \[serve\], \[inspect\], \[convert\], \[get\] or \[doctor\], .*\[$' '['
bad 'prompt .*command line' 'prompt = x'
bad 'help .*command line' 'help = true'
bad '.*setting port .*\[run\]' '[run]' 'port = 80'
bad '.*setting , ' '= 3'
bad '-m/--model: .*value, .*""$' 'model = ""'
printf 'temp = 0\0' >"$file"
fails 2 "^moeflux: $file: .*zero byte" -m "$model" -p x
bad '--experts: .*cpu:SHARE.*, .*"cpu:2"$' 'experts = cpu:2'
settings 'experts = cpu:0.5' 'n-cpu-moe = 1'
fails 2 "--experts .*--n-cpu-moe .*experts .*$file:1, n-cpu-moe .*$file:2" -m "$model" -p x
run 0 "$MOEFLUX" --help
err_empty
run 0 "$MOEFLUX" --version

claim a_message_about_a_setting_says_where_it_is
# placed STATUS SETTING [ARGUMENT...]: the message names the option and the file's line.
placed() {
    want_status=$1
    settings '# machine' "$2"
    setting=${2%% *}
    shift 2
    fails "$want_status" "$setting is set by $file:2)$" "$@" -m "$model"
}
placed 2 'ctx-size = 100000' -p x
placed 2 'chunk = 1000000' -p x
placed 3 'memory = 1.5' -p x
err_has '^moeflux: --memory is 1 byte,'
placed 1 'prompt-type = f16' --device cpu -p x
placed 2 'cpu-isa = foo' -p x
placed 2 'active-experts = 400' -p x
placed 2 'n-cpu-moe = 3' --device cpu -p x
placed 2 'tensor-split = 1,2' -p x
placed 1 'usage = /nowhere/u' -p x
placed 1 'pin = /nowhere/u' -p x
placed 1 'draft = file:/nowhere/d' -p x
err_has '^moeflux: --draft /nowhere/d: '
placed 2 'draft = none' -p x
placed 1 'api-key-file = /nowhere/k' serve --port 0
placed 1 'state-dir = /dev/null/d' serve --port 0
placed 2 'host = no.such.host.invalid' serve --port 0
placed 1 'chat-template = /nowhere/t' -p x
placed 2 'chat-template-kwargs = [1]' -p x
placed 2 'temp = 900' -p x
settings '# nothing'
MOEFLUX_CPU_ISA=foo fails 2 '^moeflux: --cpu-isa foo: .*(cpu-isa is set by MOEFLUX_CPU_ISA)$' -m "$model" -p x
# A flag of the command line is not the file's.
settings 'chunk = 5'
fails 2 '^moeflux: --chunk ' -m "$model" --chunk 1000000 -p x
! grep -q "$file" "$tmp/err" || fault "$(cat "$tmp/err")"

claim any_bytes_are_settings_or_one_line
for i in 1 2 3 4 5 6 7 8; do
    { printf 'temp = 0\nx' && head -c $((i * 40)) /dev/urandom; } >"$file"
    fails 2 "^moeflux: $file" -m "$model" -p x
done
yes 'temp = 0.5' | head -n 5000 >"$file"
run 0 "$MOEFLUX" -m "$model" --plan
out_has "^  temp  *0.5  $file:5000$"

claim without_a_home_there_is_no_file
settings 'nonsense'
run 0 env -u HOME -u XDG_CONFIG_HOME "$MOEFLUX" -m "$model" --raw -p Hello -n 1
XDG_CONFIG_HOME=config HOME=/nowhere run 0 "$MOEFLUX" -m "$model" --raw -p Hello -n 1
mkdir -p "$tmp/home/.config/moeflux"
cp "$file" "$tmp/home/.config/moeflux/config"
XDG_CONFIG_HOME='' HOME=$tmp/home fails 2 "$tmp/home/.config/moeflux/config:1: .*NAME = VALUE" -m "$model" \
    -p x

claim log_level_chooses_what_goes_to_stderr
settings "model = $model"
printf 'a \377 b' >"$tmp/bytes"
run 0 "$MOEFLUX" --raw -f "$tmp/bytes" -n 1
err_line 'UTF-8: 1 '
run 0 "$MOEFLUX" --raw -f "$tmp/bytes" -n 1 --log-level warn
err_line 'UTF-8: 1 '
run 0 "$MOEFLUX" --raw -f "$tmp/bytes" -n 1 -q
err_empty
echo '{"prompt": "Hello"}' >"$tmp/batch"
run 0 "$MOEFLUX" --batch "$tmp/batch" -n 1 --raw
err_line '^moeflux: 1 answered, 0 failed'
run 0 "$MOEFLUX" --batch "$tmp/batch" -n 1 --raw --log-level warn
err_empty
run 0 "$MOEFLUX" -q --stats --raw -p Hello -n 1
err_has '^decode'
run 1 "$MOEFLUX" -q -m /nowhere -p x
one_line
run 0 "$MOEFLUX" convert -q "$model" "$tmp/converted"
err_empty
fails 2 '--log-level: .* error, warn or info, .*"loud"$' --log-level loud -p x

report
