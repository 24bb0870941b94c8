/* The fuzz target of chat templates: parses and renders them. */
#include <jansson.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "fuzz/target.h"
#include "text/jinja/jinja.h"
#include "text/utf8.h"

static const char CONTEXT[] = "{\"messages\":[{\"role\":\"system\",\"content\":\" s "
                              "\"},{\"role\":\"user\",\"content\":\"h\xc3\xa9<x>\"},{\"role\":"
                              "\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{\"name\":\"f\","
                              "\"arguments\":{\"a\":[1,2.5,true]}}}]}],"
                              "\"tools\":[{\"type\":\"function\"}],\"add_generation_prompt\":true,\"n\":-3,"
                              "\"x\":0.1,\"bos_token\":\"<s>\"}";

/* What is rendered is UTF-8, and every byte has an author; the same again. */
static void check_text(const struct str *out, const struct str *authors)
{
    target_need(utf8_is_valid(str_text(out), out->len), "a text that is not UTF-8");
    target_need(authors->len == out->len, "bytes without an author");
    for (size_t i = 0; i < authors->len; i++)
        target_need(authors->data[i] == JINJA_TEMPLATE || authors->data[i] == JINJA_CONTEXT,
                    "an unknown author");
}

static void render(const struct jinja *t, const json_t *context)
{
    const struct jinja_limits limits = {.steps = 20000, .memory = 4 << 20, .output = 1 << 16};
    struct moeflux_err e = {0};
    struct str out = {0}, authors = {0};
    int rc = jinja_render_authors(t, context, 1763874123, &limits, &out, &authors, &e);
    if (target_answered(rc, &e))
        check_text(&out, &authors);
    else
        target_need(out.len == 0, "a text in spite of a failure");
    str_free(&out);
    str_free(&authors);
}

void target_jinja(const uint8_t *data, size_t n)
{
    const uint8_t *end = n ? memchr(data, 0, n) : NULL;
    size_t len = end ? (size_t)(end - data) : n;
    struct moeflux_err e = {0};
    struct jinja *t = NULL;
    const char *json = end ? (const char *)end + 1 : CONTEXT;
    json_t *context = json_loadb(json, end ? n - len - 1 : sizeof CONTEXT - 1, 0, NULL);
    if (!target_answered(jinja_parse(&t, (const char *)data, len, "t", &e), &e))
        target_need(!t, "a template in spite of a failure");
    if (t && json_is_object(context))
        render(t, context);
    json_decref(context);
    jinja_free(t);
}
