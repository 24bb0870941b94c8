#include "generate/tools.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"
#include "base/json.h"
#include "base/str.h"
#include "generate/constrain.h"
#include "generate/generator.h"
#include "moeflux_chat.h"
#include "text/chat/sections.h"
#include "text/chat/tool_calls.h"
#include "text/grammar/grammar.h"

#define MAX_BYTES ((uint64_t)16 << 20)

/* Checks a function and appends it without members that are null. */
static int take_one(const json_t *tool, size_t i, const char *where, json_t *out, struct moeflux_err *e)
{
    const json_t *function = json_member(tool, "function"), *name = json_member(function, "name"),
                 *parameters = json_member(function, "parameters");
    if (!json_is_string(name) || json_string_length(name) == 0)
        return err_set(e, ERR_FORMAT, "%s: tools[%zu].function.name: expected a text, found %s", where, i,
                       json_quote(name).text);
    if (parameters && !json_is_object(parameters))
        return err_set(e, ERR_FORMAT, "%s: tools[%zu].function.parameters: expected an object, found %s",
                       where, i, json_quote(parameters).text);
    json_t *own = json_copy((json_t *)(uintptr_t)tool), *inner = json_copy((json_t *)(uintptr_t)function);
    if (!parameters)
        json_object_del(inner, "parameters");
    if (!own || json_object_set_new(own, "function", inner) < 0 || json_array_append(out, own) < 0) {
        json_decref(own);
        return err_set(e, ERR_MEMORY, "%s: out of memory for the tools", where);
    }
    json_decref(own);
    return 0;
}

int tools_take(const struct json_t *tools, const char *where, struct json_t **out, const char **skipped,
               struct moeflux_err *e)
{
    size_t n = json_array_size(tools);
    int rc = 0;
    *out = NULL;
    *skipped = NULL;
    if (!json_is_array(tools))
        return err_set(e, ERR_FORMAT, "%s: tools: expected a list, found %s", where, json_quote(tools).text);
    if (n > TOOLS_MAX)
        return err_set(e, ERR_FORMAT, "%s: tools: expected at most %d, found %zu", where, TOOLS_MAX, n);
    json_t *own = json_array();
    for (size_t i = 0; !rc && i < n; i++) {
        const json_t *tool = json_array_get(tools, i);
        const char *type = json_string_value(json_member(tool, "type"));
        if (!type)
            rc = err_set(e, ERR_FORMAT, "%s: tools[%zu].type: expected a text, found %s", where, i,
                         json_quote(json_member(tool, "type")).text);
        else if (strcmp(type, "function") == 0)
            rc = take_one(tool, i, where, own, e);
        else if (!*skipped)
            *skipped = type;
    }
    if (!rc && json_array_size(own))
        *out = json_incref(own);
    json_decref(own);
    return rc;
}

/* Parses the array as the member of an object, because json_read takes only objects. */
static int parse(const char *text, size_t len, const char *path, json_t **root, struct moeflux_err *e)
{
    static const char before[] = "{\"tools\":";
    struct str all = {0};
    str_add_text(&all, before);
    str_add(&all, text, len);
    str_add_text(&all, "}");
    int rc = str_ok(&all) ? json_read(all.data, all.len, path, JSON_MAX_SMALL, root, e)
                          : err_set(e, ERR_MEMORY, "%s: out of memory", path);
    str_free(&all);
    if (!rc && json_object_size(*root) != 1)
        rc = err_set(e, ERR_FORMAT, "%s: expected a list of tools alone", path);
    return rc;
}

/* Checks the text of a file. */
static int check_text(const char *text, size_t len, const char *path, struct moeflux_err *e)
{
    json_t *root = NULL, *tools = NULL;
    const char *skipped = NULL;
    int rc = parse(text, len, path, &root, e);
    if (!rc)
        rc = tools_take(json_object_get(root, "tools"), path, &tools, &skipped, e);
    /* A file is written for this program: nothing in it should be left out. */
    if (!rc && skipped)
        rc = err_set(e, ERR_FORMAT, "%s: type: expected \"function\", found \"%.40s\"", path, skipped);
    json_decref(tools);
    json_decref(root);
    return rc;
}

int moeflux_tools_read(const char *path, char **out, struct moeflux_err *e)
{
    struct moeflux_err why;
    size_t len;
    *out = NULL;
    int rc = err_need(&why, "path", path);
    if (!rc)
        rc = file_read_text(path, MAX_BYTES, out, &len, &why);
    if (!rc)
        rc = check_text(*out, len, path, &why);
    if (!rc)
        return 0;
    free(*out);
    *out = NULL;
    return err_set(e, rc, "%s", why.text);
}

const struct json_t *tools_find(const struct json_t *tools, const char *name)
{
    size_t i = 0;
    while (i < json_array_size(tools) &&
           !json_is_text(json_member(json_member(json_array_get(tools, i), "function"), "name"), name))
        i++;
    return json_array_get(tools, i);
}

int tools_check_model(const struct generator *s, const char *where, struct moeflux_err *e)
{
    if (s->tokenizer && tool_form_of(s->tokenizer, s->info.chat_template))
        return 0;
    return err_set(
        e, ERR_UNSUPPORTED,
        "%s: tools: the chat template of %s has no form of calls that is known (those of DeepSeek-V3 to "
        "V4.1, "
        "Gemma 4, GLM-4.5 to 5, gpt-oss, Kimi-K2 and K3, MiniMax-M2 and M3, Qwen3 and Qwen3.5 are)",
        where, s->dir);
}

int tools_use(struct generator *s, const char *where, struct moeflux_err *e)
{
    int rc = tools_check_model(s, where, e);
    return rc ? rc : chat_use_tools(&s->chat, tool_form_of(s->tokenizer, s->info.chat_template), e);
}

int tools_grammar(const struct generator *s, const struct tool_choice *c, struct str *out,
                  struct moeflux_err *e)
{
    char name[80];
    int rc = tool_form_grammar(tool_form_of(s->tokenizer, s->info.chat_template), c, out, e);
    snprintf(name, sizeof name, "%.60s: tools", c->where);
    return rc ? rc : constrain_check(out, name, e);
}

/* Each grammar begins with what tells it apart from the other: in forms whose calls are messages these begin
 * with the name of a tool and a newline (channels.h), and texts with the newline; in sections calls follow an
 * empty text. */
int tools_grammar_or(const struct generator *s, const struct tool_choice *c, const char *text,
                     struct str *out, struct moeflux_err *e)
{
    const struct tool_form *form = tool_form_of(s->tokenizer, s->info.chat_template);
    struct str calls = {0};
    char name[80];
    int rc = tool_form_grammar(form, c, &calls, e);
    str_addf(out, "root ::= %sc-root | %sf-root\n", s->chat.sections.is_used ? "\"" SECTIONS_EMPTY "\" " : "",
             tool_form_is_message(form) ? "\"\\n\" " : "");
    grammar_rename(str_text(&calls), "c-", out);
    str_add_text(out, "\n");
    grammar_rename(text, "f-", out);
    snprintf(name, sizeof name, "%.60s: tools", c->where);
    str_free(&calls);
    return rc ? rc : constrain_check(out, name, e);
}
