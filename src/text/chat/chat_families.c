#include "text/chat/chat_families.h"

#include <stddef.h>
#include <string.h>

#define TURN_OPEN   "<|im_start|>"
#define TURN_CLOSE  "<|im_end|>"
#define THINK_OPEN  "<think>"
#define THINK_CLOSE "</think>"

/* Qwen. Thinking of past answers is written if it is given. */
#define QWEN_TURNS(trimmed, thinks)                                                                          \
    "{%- for m in messages %}"                                                                               \
    "{{- '" TURN_OPEN "' + m.role + '\\n' }}"                                                                \
    "{%- if m.reasoning_content is defined" thinks " %}"                                                     \
    "{{- '" THINK_OPEN "\\n' + m.reasoning_content + '\\n" THINK_CLOSE "\\n\\n' }}"                          \
    "{%- endif %}"                                                                                           \
    "{{- m.content" trimmed " + '" TURN_CLOSE "\\n' }}"                                                      \
    "{%- endfor %}"

/* DeepSeek-V3.2, whose repository has a program instead of a template. Thinking stays between the calls of
 * one answer, and is left out of the answers before the last question. */
/* clang-format off */
#define BAR         "\xef\xbd\x9c" /* U+FF5C */
#define BLOCK       "\xe2\x96\x81" /* U+2581 */
#define DSML        BAR "DSML" BAR
#define SENTENCE    "<" BAR "end" BLOCK "of" BLOCK "sentence" BAR ">"
#define USER        "<" BAR "User" BAR ">"
#define ASSISTANT   "<" BAR "Assistant" BAR ">"
#define SYSTEM      "<" BAR "System" BAR ">"
#define DSML_INVOKE(name, rest) "<" DSML "invoke name=\"$" name "\">\\n" rest "...\\n</" DSML "invoke>\\n"

/* What the model was trained to read. */
static const char deepseek32[] =
    "{%- set thinks = thinking if thinking is defined else enable_thinking if enable_thinking is defined %}"
    "{%- set ns = namespace(system='', asked=-1) %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'system' %}"
    "{%- set ns.system = ns.system + ('\\n\\n' if ns.system else '') + (m.content or '') %}"
    "{%- elif m.role == 'user' %}{%- set ns.asked = loop.index0 %}{%- endif %}{%- endfor %}"
    "{{- bos_token + ns.system }}"
    "{%- if tools %}"
    "{{- '\\n\\n## Tools\\n\\n"
    "You have access to a set of tools you can use to answer the user\\'s question.\\n"
    "You can invoke functions by writing a \"<" DSML "function_calls>\" block like the following as part of "
    "your reply to the user:\\n<" DSML "function_calls>\\n"
    DSML_INVOKE("FUNCTION_NAME", "<" DSML "parameter name=\"$PARAMETER_NAME\" string=\"true|false\">"
                "$PARAMETER_VALUE</" DSML "parameter>\\n")
    DSML_INVOKE("FUNCTION_NAME2", "")
    "</" DSML "function_calls>\\n\\n"
    "String and scalar parameters should be specified as is without any escaping or quotes, while lists and "
    "objects should use JSON format. The \"string\" attribute should be set to \"true\" for string type "
    "parameters and \"false\" for other types (numbers, booleans, arrays, objects).\\n\\n"
    "If the thinking_mode is enabled, then after function results you should strongly consider outputting a "
    "thinking block. Here is an example:\\n\\n<" DSML "function_calls>\\n...\\n</" DSML
    "function_calls>\\n\\n"
    "<function_results>\\n...\\n</function_results>\\n\\n"
    THINK_OPEN "...thinking about results" THINK_CLOSE "\\n\\n"
    "Here are the functions available in JSONSchema format:\\n<functions>\\n' }}"
    "{%- for t in tools %}{{- t.function | tojson + '\\n' }}{%- endfor %}"
    "{{- '</functions>\\n' }}"
    "{%- endif %}"
    "{%- for m in messages %}"
    "{%- set opens = (not loop.last or add_generation_prompt) %}"
    "{%- if m.role == 'user' %}"
    "{{- '" USER "' + (m.content or '') }}"
    "{%- if opens %}{{- '" ASSISTANT "' + ('" THINK_OPEN "' if thinks and loop.index0 == ns.asked else '"
    THINK_CLOSE "') }}{%- endif %}"
    "{%- elif m.role == 'tool' %}"
    "{{- '\\n\\n<function_results>' if messages[loop.index0 - 1].role != 'tool' else '' }}"
    "{{- '\\n<result>' + (m.content or '') + '</result>' }}"
    "{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}"
    "{{- '\\n</function_results>' }}"
    "{%- if opens %}{{- '\\n\\n' + ('" THINK_OPEN "' if thinks and loop.index0 > ns.asked else '" THINK_CLOSE
    "') }}{%- endif %}{%- endif %}"
    "{%- elif m.role == 'assistant' %}"
    "{{- (m.reasoning_content or '') + '" THINK_CLOSE "' if thinks and loop.index0 > ns.asked else '' }}"
    "{{- m.content or '' }}"
    "{%- if m.tool_calls %}{{- '\\n\\n<" DSML "function_calls>\\n' }}"
    "{%- for c in m.tool_calls %}{{- '<" DSML "invoke name=\"' + c.function.name + '\">\\n' }}"
    "{%- for k, v in c.function.arguments.items() %}"
    "{{- '<" DSML "parameter name=\"' + k + '\" string=\"' + ('true\">' + v if v is string else 'false\">' + "
    "v | tojson) + '</" DSML "parameter>\\n' }}{%- endfor %}"
    "{{- ('' if c.function.arguments else '\\n') + '</" DSML "invoke>\\n' }}{%- endfor %}"
    "{{- '</" DSML "function_calls>' }}{%- endif %}"
    "{{- '" SENTENCE "' }}{%- endif %}{%- endfor %}";

/* DeepSeek-V4's tools and calls; the words are the tags' names. */
#define V4_INVOKE(invoke, name, rest) \
    "<" DSML invoke " name=\"$" name "\">\\n" rest "...\\n</" DSML invoke ">\\n"
#define V4_TOOLS(calls, invoke, parameter) \
    "## Tools\\n\\n" \
    "You have access to a set of tools to help answer the user\\'s question. You can invoke tools by " \
    "writing a \"<" DSML calls ">\" block like the following:\\n\\n<" DSML calls ">\\n" \
    V4_INVOKE(invoke, "TOOL_NAME", "<" DSML parameter " name=\"$PARAMETER_NAME\" string=\"true|false\">" \
                                   "$PARAMETER_VALUE</" DSML parameter ">\\n") \
    V4_INVOKE(invoke, "TOOL_NAME2", "") \
    "</" DSML calls ">\\n\\n" \
    "String parameters should be specified as is and set `string=\"true\"`. For all other types (numbers, " \
    "booleans, arrays, objects), pass the value in JSON format and set `string=\"false\"`.\\n\\n" \
    "If thinking_mode is enabled (triggered by " THINK_OPEN "), you MUST output your complete reasoning " \
    "inside " THINK_OPEN "..." THINK_CLOSE " BEFORE any tool calls or final response.\\n\\n" \
    "Otherwise, output directly after " THINK_CLOSE " with tool calls or final response.\\n\\n" \
    "### Available Tool Schemas\\n\\n' }}" \
    "{%- for t in tools if t.type == 'function' %}{{- t.function | tojson + '\\n' }}{%- endfor %}" \
    "{{- '\\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool " \
    "calls.\\n' }}"
#define V4_CALLS(calls, invoke, parameter) \
    "{%- if m.tool_calls %}{{- '\\n\\n<" DSML calls ">\\n' }}" \
    "{%- for c in m.tool_calls %}{{- '<" DSML invoke " name=\"' + c.function.name + '\">\\n' }}" \
    "{%- for k, v in c.function.arguments.items() %}" \
    "{{- '<" DSML parameter " name=\"' + k + '\" string=\"' + ('true\">' + v if v is string else " \
    "'false\">' + v | tojson) + '</" DSML parameter ">\\n' }}{%- endfor %}" \
    "{{- ('' if c.function.arguments else '\\n') + '</" DSML invoke ">\\n' }}{%- endfor %}" \
    "{{- '</" DSML calls ">' }}{%- endif %}"

/* Makes ns.results, the results of calls: those of one turn in the order of the calls. ns.run: {call, text}
 * of the turn so far; ns.order: places of the last calls by their ids; ns.n: results that are written. */
#define V4_RESULTS \
    "{%- set ns.results = [] %}{%- set ns.run = [] %}{%- set ns.order = {} %}{%- set ns.n = 0 %}" \
    "{%- for m in messages + [{'role': 'assistant'}] %}" \
    "{%- if m.role == 'tool' %}" \
    "{%- set _ = ns.run.append({'call': ns.order.get(m.tool_call_id or '', 0), 'text': m.content or ''}) %}" \
    "{%- elif m.role != 'user' %}" \
    "{%- for r in ns.run | sort(attribute='call') %}{%- set _ = ns.results.append(r.text) %}{%- endfor %}" \
    "{%- set ns.run = [] %}{%- if m.tool_calls %}{%- set ns.order = {} %}" \
    "{%- for c in m.tool_calls %}{%- if c.id %}{%- set _ = ns.order.update({c.id: loop.index0}) %}" \
    "{%- endif %}{%- endfor %}{%- endif %}{%- endif %}{%- endfor %}"
#define V4_USER \
    "{{- '\\n\\n' if ns.in_user else '" USER "' }}" \
    "{%- set ns.in_user = true %}" \
    "{%- if m.role == 'tool' %}" \
    "{{- '<tool_result>' + ns.results[ns.n] + '</tool_result>' }}{%- set ns.n = ns.n + 1 %}" \
    "{%- else %}{{- m.content or '' }}{%- endif %}"

/* DeepSeek-V4's. Thinking before the last question is left out unless there are tools. */
static const char deepseek4[] =
    "{%- set thinks = thinking if thinking is defined else enable_thinking if enable_thinking is defined %}"
    "{%- set ns = namespace(system='', n=0, last=-1, in_user=false) %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'system' %}"
    "{%- set ns.system = ns.system + ('\\n\\n' if ns.n else '') + (m.content or '') %}{%- set ns.n = 1 %}"
    "{%- elif m.role != 'assistant' %}"
    "{%- set ns.last = loop.index0 %}"
    "{%- endif %}{%- endfor %}"
    V4_RESULTS
    "{{- bos_token }}"
    "{%- if thinks and reasoning_effort == 'max' %}"
    "{{- 'Reasoning Effort: Absolute maximum with no shortcuts permitted.\\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to resolve the "
    "root cause, rigorously stress-testing your logic against all potential paths, edge cases, and "
    "adversarial scenarios.\\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, considered "
    "alternative, and rejected hypothesis to ensure absolutely no assumption is left unchecked.\\n\\n' }}"
    "{%- endif %}"
    "{{- ns.system }}"
    "{%- if tools %}"
    "{{- '\\n\\n"
    V4_TOOLS("tool_calls", "invoke", "parameter")
    "{%- endif %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'assistant' %}"
    "{%- set ns.in_user = false %}"
    "{{- '" ASSISTANT "' + ('" THINK_OPEN "' + (m.reasoning_content or '') if thinks and (tools or "
    "loop.index0 > ns.last) else '') + '" THINK_CLOSE "' + (m.content or '') }}"
    V4_CALLS("tool_calls", "invoke", "parameter")
    "{{- '" SENTENCE "' }}"
    "{%- elif m.role != 'system' %}"
    V4_USER
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '" ASSISTANT "' + ('" THINK_OPEN "' if thinks else '" THINK_CLOSE
    "') }}{%- endif %}";
/* Kimi-K3's, whose repository has a program instead of a template: tags of control tokens (sections.h), with
 * attributes; tools with sorted keys; results in the order of their calls. */
#define TAG(text)     "<|open|>" text "<|sep|>"
#define END(name)     "<|close|>" name "<|sep|>"
#define END_MESSAGE   END("message") "<|end_of_msg|>"
#define SYSTEM_OF(type)  "{{- '" TAG("message role=\"system\" type=\"" type "\"")
#define JSON_OF(what) what " | tojson(sort_keys=true, separators=(',', ':'))"

static const char kimi3[] =
    "{%- set thinks = thinking if thinking is defined else enable_thinking if enable_thinking is defined "
    "else true %}"
    "{%- set effort = thinking_effort if thinking_effort is defined else reasoning_effort if "
    "reasoning_effort is defined else 'max' %}"
    "{%- macro attribute(name, value) %}"
    "{{- ' ' + name + '=\"' + (value | string | replace('&', '&amp;') | replace('\"', '&quot;')) + '\"' }}"
    "{%- endmacro %}"
    "{%- macro content(c) %}"
    "{%- if c is string %}{{- c }}{%- elif c %}{%- for part in c %}"
    "{{- '<|kimi_image_placeholder|>' if part.type in ['image', 'image_url'] else part.text }}"
    "{%- endfor %}{%- endif %}{%- endmacro %}"
    "{%- macro opening(m) %}"
    "{{- '<|open|>message role=\"' + m.role + '\"' }}"
    "{{- attribute('name', m.name) if m.name else '' }}{{- '<|sep|>' }}{%- endmacro %}"
    "{%- macro result(m, name, index) %}"
    "{%- if name is none or name is undefined %}"
    "{{- raise_exception('a tool message: expected the id of a call before it, or a name') }}{%- endif %}"
    "{{- '<|open|>message role=\"tool\"' }}{{- attribute('tool', name) }}{{- attribute('index', index) }}"
    "{{- '<|sep|>' }}{{- content(m.content) }}{{- '" END_MESSAGE "' }}{%- endmacro %}"
    "{%- if tools %}"
    SYSTEM_OF("tool-declare") "# Tools\\nHere are the available tools, described in "
    "JSONSchema.\\n\\n```json\\n' + (" JSON_OF("tools") ") + '\\n```" END_MESSAGE "' }}"
    "{%- endif %}"
    "{%- if thinks and effort is not none %}"
    "{%- if effort not in ['low', 'high', 'max'] %}"
    "{{- raise_exception('thinking_effort: expected low, high or max') }}{%- endif %}"
    SYSTEM_OF("thinking-effort") "`thinking_effort` guides on how much to think in your thinking channel "
    "(not including the response channel), supported values include `low`, `medium`, `high`, and `max`.\\n"
    "Now the system is invoked with `thinking_effort=' + effort + '`." END_MESSAGE "' }}"
    "{%- endif %}"
    "{%- set ns = namespace(calls=[], results=[], found=0, index=0, done=[]) %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'system' and m.tools %}"
    SYSTEM_OF("tool-declare") "## New Tools Available\\nThe system dynamically extends the toolset via "
    "lazy-loading.\\nYou have access to all existing and extended tools.\\nHere are the specs for the "
    "extended tools.\\n\\n```json\\n' + (" JSON_OF("m.tools") ") + '\\n```" END_MESSAGE "' }}"
    "{%- elif m.role in ['system', 'user'] %}"
    "{{- opening(m) }}{{- content(m.content) }}{{- '" END_MESSAGE "' }}"
    "{%- elif m.role == 'assistant' %}"
    "{%- set ns.calls = m.tool_calls or [] %}{%- set ns.index = 0 %}"
    "{{- opening(m) }}"
    "{%- if thinks %}"
    "{%- set thought = m.reasoning_content or m.reasoning or '' %}"
    "{{- '" TAG("think") "' + (thought if thought | trim else '') + '" END("think") "' }}{%- endif %}"
    "{{- '" TAG("response") "' }}{{- content(m.content) }}{{- '" END("response") "' }}"
    "{%- if ns.calls %}{{- '" TAG("tools") "' }}"
    "{%- for c in ns.calls %}{%- set f = c.function if c.function is mapping else c %}"
    "{{- '<|open|>call' }}{{- attribute('tool', f.name) }}{{- attribute('index', loop.index) }}"
    "{{- '<|sep|>' }}"
    "{%- if f.arguments is mapping %}"
    "{%- for k, v in f.arguments.items() %}"
    "{{- '<|open|>argument' }}{{- attribute('key', k) }}"
    "{{- attribute('type', 'boolean' if v is boolean else 'null' if v is none else 'number' if v is "
    "number else 'string' if v is string else 'object' if v is mapping else 'array') }}"
    "{{- '<|sep|>' }}{{- v if v is string else v | tojson }}{{- '" END("argument") "' }}{%- endfor %}"
    "{%- elif f.arguments and f.arguments | trim %}"
    "{{- '" TAG("json type=\"object\"") "' + f.arguments + '" END("json") "' }}{%- endif %}"
    "{{- '" END("call") "' }}{%- endfor %}"
    "{{- '" END("tools") "' }}{%- endif %}"
    "{{- '" END_MESSAGE "' }}"
    "{%- elif m.role == 'tool' and (loop.first or messages[loop.index0 - 1].role != 'tool') %}"
    /* The results of one turn. If each belongs to a call, they stand in the order of the calls. */
    "{%- set ns.results = [] %}{%- set ns.found = 0 %}{%- set ns.done = [] %}"
    "{%- set run = namespace(open=true) %}"
    "{%- for t in messages[loop.index0:] %}"
    "{%- set run.open = run.open and t.role == 'tool' %}"
    "{%- if run.open %}{%- set ns.results = ns.results + [t] %}"
    "{%- set id = t.tool_call_id or t.id %}{%- set hit = namespace(is=false) %}"
    "{%- for c in ns.calls if id and c.id == id %}{%- set hit.is = true %}{%- endfor %}"
    "{%- set ns.found = ns.found + (1 if hit.is else 0) %}{%- endif %}{%- endfor %}"
    "{%- if ns.found == ns.results | length %}"
    "{%- for c in ns.calls if c.id and c.id not in ns.done %}{%- set ns.done = ns.done + [c.id] %}"
    "{%- for t in ns.results if (t.tool_call_id or t.id) == c.id %}"
    "{%- set ns.index = ns.index + 1 %}{{- result(t, (c.function or c).name, ns.index) }}"
    "{%- endfor %}{%- endfor %}"
    "{%- else %}"
    "{%- for t in ns.results %}{%- set ns.index = ns.index + 1 %}"
    "{%- set c = ns.calls[ns.index - 1] if ns.index <= ns.calls | length else {} %}"
    "{{- result(t, t.tool or t.name or (c.function or c).name, ns.index) }}{%- endfor %}"
    "{%- endif %}{%- endif %}{%- endfor %}"
    "{%- if tool_choice is defined and tool_choice in ['required', 'none'] %}"
    SYSTEM_OF("tool-choice") "The system is invoked with `tool_choice=' + tool_choice + '`.\\nYou MUST ' + "
    "('call tools' if tool_choice == 'required' else 'NOT call any tools') + ' in the next message."
    END_MESSAGE "' }}{%- endif %}"
    "{%- if add_generation_prompt %}"
    "{{- '" TAG("message role=\"assistant\"") "<|open|>' + ('think' if thinks else 'response') + '<|sep|>' }}"
    "{%- endif %}";

/* DeepSeek-V4.1's: a token before system texts, which may stand between questions; how much is thought, as a
 * number; other names of tags. */
static const char deepseek41[] =
    "{%- set thinks = thinking if thinking is defined else enable_thinking if enable_thinking is defined %}"
    "{%- set effort = 50 if reasoning_effort == 'low' else 100 if reasoning_effort == 'max' else "
    "reasoning_effort if reasoning_effort is number else 75 %}"
    "{%- set ns = namespace(last=-1, in_user=false) %}"
    "{%- set begins = messages and messages[0].role == 'system' %}"
    "{%- for m in messages %}{%- if m.role != 'assistant' and (m.role != 'system' or loop.index0 > 0) %}"
    "{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}"
    V4_RESULTS
    "{{- bos_token + ('" SYSTEM "' if thinks or begins or tools else '') }}"
    "{%- if thinks %}{{- 'Reasoning Effort: ' + effort | string + ' (range 1-100, the higher the value, the "
    "more thorough the reasoning)\\n\\n' }}{%- endif %}"
    "{{- messages[0].content or '' if begins else '' }}"
    "{%- if tools %}"
    "{{- '\\n\\n"
    V4_TOOLS(" calls", " invoke", " parameter")
    "{%- endif %}"
    "{%- for m in messages %}"
    "{%- if m.role == 'assistant' %}"
    "{%- set ns.in_user = false %}"
    "{{- '" ASSISTANT "' + ('" THINK_OPEN "' + (m.reasoning_content or '') if thinks and (tools or "
    "loop.index0 > ns.last) else '') + '" THINK_CLOSE "' + (m.content or '') }}"
    V4_CALLS(" calls", " invoke", " parameter")
    "{{- '" SENTENCE "' }}"
    "{%- elif m.role == 'system' %}"
    "{%- set ns.in_user = false %}"
    "{{- '" SYSTEM "' + (m.content or '') if loop.index0 > 0 else '' }}"
    "{%- else %}"
    V4_USER
    "{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '" ASSISTANT "' + ('" THINK_OPEN "' if thinks else '" THINK_CLOSE
    "') }}{%- endif %}";
/* clang-format on */

static const struct chat_family families[] = {
    {"qwen3.5", TURN_OPEN, TURN_CLOSE,
     QWEN_TURNS("|trim", "") "{%- if add_generation_prompt %}"
                             "{{- '" TURN_OPEN "assistant\\n" THINK_OPEN "\\n' }}"
                             "{%- if enable_thinking is defined and not enable_thinking %}"
                             "{{- '\\n" THINK_CLOSE "\\n\\n' }}"
                             "{%- endif %}{%- endif %}"},
    {"qwen3", TURN_OPEN, TURN_CLOSE,
     QWEN_TURNS("", " and (m.reasoning_content or enable_thinking is defined and not "
                    "enable_thinking)") "{%- if add_generation_prompt %}"
                                        "{{- '" TURN_OPEN "assistant\\n' }}"
                                        "{%- if enable_thinking is defined and not enable_thinking %}"
                                        "{{- '" THINK_OPEN "\\n\\n" THINK_CLOSE "\\n\\n' }}"
                                        "{%- endif %}{%- endif %}"},
    {"deepseek-v3.2", USER, SENTENCE, deepseek32},
    {"deepseek-v4", USER, SENTENCE, deepseek4},
    {"kimi-k3", "<|open|>", "<|end_of_msg|>", kimi3},
    {"deepseek-v4.1", USER, SENTENCE, deepseek41},
};

const struct chat_family *chat_family_find(const char *name)
{
    for (size_t i = 0; name && i < sizeof families / sizeof *families; i++)
        if (strcmp(name, families[i].name) == 0)
            return &families[i];
    return NULL;
}
