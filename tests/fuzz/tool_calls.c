/* The text of an answer, in which calls of tools may be. */
#include <jansson.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "fuzz/target.h"
#include "text/chat/tool_calls.h"

/* The parts of templates that tool_form_find looks for. */
static const char *const templates[] = {"<tool_call>",
                                        "<tool_call><function=",
                                        "<｜tool▁call▁begin｜>",
                                        "",
                                        "<|tool_call_argument_begin|>",
                                        "<tool_call><arg_key>",
                                        "<minimax:tool_call>",
                                        "<|message|><|channel|>",
                                        "<|tool_call>call:<tool_call|>",
                                        "｜DSML｜function_calls>",
                                        "｜DSML｜tool_calls>",
                                        "]<]minimax[>["};
enum { N_TEMPLATES = sizeof templates / sizeof *templates };
static const char tools_json[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"put\", \"parameters\": {\"properties\": {"
    "\"path\": {\"type\": \"string\"}, \"n\": {\"type\": \"integer\"}, \"maybe\": {\"type\": [\"string\", "
    "\"null\"]}, \"box\": {\"type\": \"object\", \"properties\": {\"list\": {\"type\": \"array\", "
    "\"items\": {\"$ref\": \"#\"}}}}}}}}]";

struct heard {
    struct str all;     /* text, and whole calls as \1name\2arguments\3 */
    size_t begin, open; /* where the last call and its arguments begin */
    size_t n_calls;
};

static int hear(void *ctx, enum tool_event event, const char *bytes, size_t n, struct moeflux_err *e)
{
    struct heard *h = ctx;
    (void)e;
    if (event == TOOL_BEGINS) {
        target_need(n > 0, "a call without a name");
        h->begin = h->all.len;
        str_add_text(&h->all, "\1");
    }
    str_add(&h->all, bytes, n);
    if (event == TOOL_BEGINS) {
        str_add_text(&h->all, "\2");
        h->open = h->all.len;
    } else if (event == TOOL_BREAKS) {
        str_add_text(&h->all, "\3");
        h->n_calls++;
    } else if (event == TOOL_FAILS) {
        h->all.len = h->begin;
    } else if (event == TOOL_ENDS) {
        json_t *arguments = json_loadb(h->all.data + h->open, h->all.len - h->open, JSON_ALLOW_NUL, NULL);
        target_need(json_is_object(arguments), "arguments that are no object");
        json_decref(arguments);
        str_add_text(&h->all, "\3");
        h->n_calls++;
    }
    return 0;
}

static struct heard listen(const char *template, const json_t *tools, const char *text, size_t n,
                           size_t piece)
{
    struct moeflux_err e = {0};
    struct heard h = {0};
    struct tool_calls t;
    tool_calls_init(&t, tool_form_find(template), tools, (struct tool_sink){hear, &h});
    for (size_t at = 0; at < n; at += piece)
        target_need(tool_calls_push(&t, text + at, piece < n - at ? piece : n - at, &e) == 0, "a failure");
    target_need(tool_calls_end(&t, &e) == 0, "a failure at the end");
    tool_calls_free(&t);
    return h;
}

/* The first byte says which form, and how large the pieces are. */
void target_calls(const uint8_t *data, size_t n)
{
    if (n == 0)
        return;
    const char *template = templates[data[0] % 16 % N_TEMPLATES], *text = (const char *)data + 1;
    json_t *tools = json_loads(tools_json, 0, NULL);
    target_need(tools != NULL, "no tools");
    struct heard whole = listen(template, tools, text, n - 1, n),
                 parts = listen(template, tools, text, n - 1, 1 + data[0] / 16);
    target_need(whole.all.len == parts.all.len &&
                    memcmp(str_text(&whole.all), str_text(&parts.all), whole.all.len) == 0,
                "pieces that make a difference");
    /* A message's header is no text. */
    target_need(whole.n_calls > 0 || tool_form_is_message(tool_form_find(template)) ||
                    (whole.all.len == n - 1 && memcmp(str_text(&whole.all), text, n - 1) == 0),
                "a text without calls that is not all there");
    str_free(&whole.all);
    str_free(&parts.all);
    json_decref(tools);
}
