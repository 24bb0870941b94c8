/* tool_texts.h - the parts of chat templates that tell the form of calls, for each form, and tools with
 * parameters of every kind. */
#ifndef TOOL_TEXTS_H
#define TOOL_TEXTS_H

#define BEGIN_ALL "<｜tool▁calls▁begin｜>"
#define END_ALL   "<｜tool▁calls▁end｜>"
#define BEGIN     "<｜tool▁call▁begin｜>"
#define END       "<｜tool▁call▁end｜>"
#define SEP       "<｜tool▁sep｜>"

/* The part that tool_form_find reads. */
#define HERMES   "{{- '<tool_call>\\n{\"name\": \"' }}"
#define XML      "{{- '\\n<tool_call>\\n<function=' + tool_call.name + '>\\n' }}"
#define DEEPSEEK "{{'" BEGIN_ALL BEGIN "' + tool['type'] + '" SEP "'}}"

#define KIMI    "{{ tool_call['id'] }}<|tool_call_argument_begin|>{{ arguments }}<|tool_call_end|>"
#define GLM     "<tool_call>{{ tc.name }}\n<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>\n"
#define GLM47   "<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value>"
#define MINIMAX "{%- set toolcall_begin_token = '<minimax:tool_call>' -%}"

#define GEMMA  "{{- '<|tool_call>call:' + function['name'] + '{' -}}{{- '}<tool_call|>' -}}"
#define DSML   "｜DSML｜"
#define DSML32 "{%- set dsml_token = '" DSML "' -%}{{- '</' + dsml_token + 'function_calls>' -}}"
#define DSML41 "{%- set dsml_token = '" DSML "' -%}{{- '</' + dsml_token + ' calls>' -}}"
#define DSML4  "{%- set dsml_token = '" DSML "' -%}{{- '</' + dsml_token + 'tool_calls>' -}}"
#define NESTED "{%- set ns_token = ']<]minimax[>[' -%}{{ ns_token ~ '<tool_call>' }}{{ '<think>' }}"
#define KIMI3  "{{- '<|open|>' + tag + '<|sep|>' }}{{- '<|end_of_msg|>' }}"

static const char TOOLS[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"put\", \"parameters\": {\"type\": \"object\", "
    "\"properties\": {"
    "\"path\": {\"type\": \"string\"}, \"n\": {\"type\": \"integer\"}, \"deep\": {\"type\": \"object\"},"
    "\"on\": {\"type\": \"boolean\"}, \"maybe\": {\"type\": [\"string\", \"null\"]},"
    "\"either\": {\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"null\"}]},"
    "\"any\": {\"type\": [\"string\", \"integer\", \"object\"]},"
    "\"rows\": {\"$ref\": \"#/$defs/rows\"}, \"box\": {\"type\": \"object\", \"properties\": {\"item\": "
    "{\"type\": "
    "\"integer\"}, \"tags\": {\"type\": \"array\", \"items\": {\"type\": \"string\"}}}}},"
    "\"$defs\": {\"rows\": {\"type\": \"array\", \"items\": {\"type\": \"array\", \"items\": {\"type\": "
    "\"integer\"}}}}, \"required\": [\"path\", "
    "\"n\"]}}}, "
    "{\"type\": \"function\", \"function\": {\"name\": \"now\"}}]";

#endif
