#!/bin/sh
# What agents and their tools cost a model with a recurrent state: tests/cli/agents.py plays them.
# suites: check
. tests/lib/cli.sh

model=$tmp/tiny
run 0 "$MOEFLUX" convert tests/models/tiny "$model"
cp tests/data/agent.jinja "$model/chat_template.jinja"

# plays ARGUMENT...
plays() {
    python3 tests/cli/agents.py "$model" "$@" >"$tmp/said" 2>&1 || fault "$(tail -c 1500 "$tmp/said")"
}

claim a_tool_loop_computes_its_new_tokens_only
plays loops 24 2 60
plays loops 12 8 30 --parallel 8

# MiniMax-M2's template writes a line end before a call, which joins the one before it in a token.
claim a_call_that_begins_with_a_line_end_costs_no_turn
sed "s/'<tool_call>.n{\"name\": ' + call/'\\\\n<tool_call>\\\\n{\"name\": ' + call/" \
    tests/data/agent.jinja >"$tmp/lines.jinja"
! cmp -s "$tmp/lines.jinja" tests/data/agent.jinja || fault "the template stayed as it is"
plays loops 24 2 60 --chat-template "$tmp/lines.jinja"

claim many_conversations_are_kept_in_files_and_after_a_restart
plays loops 12 6 30 --sequences 2 --state-dir "$tmp/states"

claim a_text_with_other_last_words_is_computed_twice_at_most
plays documents 1
plays documents 3 --parallel 3

report
