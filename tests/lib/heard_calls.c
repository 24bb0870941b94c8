#include "heard_calls.h"

#include <jansson.h>
#include <string.h>

#include "check.h"
#include "fuzz.h"
#include "tool_texts.h"

int heard_event(void *ctx, enum tool_event event, const char *bytes, size_t n, struct moeflux_err *e)
{
    struct heard *h = ctx;
    (void)e;
    bool ends = event == TOOL_ENDS || event == TOOL_BREAKS || event == TOOL_FAILS;
    assert_true(ends == (n == 0));
    assert_true(h->in_call == (event == TOOL_ARGUMENTS || ends));
    h->in_call = event == TOOL_BEGINS || event == TOOL_ARGUMENTS;
    h->n_calls += event == TOOL_ENDS;
    str_add_text(&h->all, event == TOOL_BEGINS ? "[" : "");
    str_add(&h->all, bytes, n);
    str_add_text(&h->all, event == TOOL_BEGINS   ? "|"
                          : event == TOOL_ENDS   ? "]"
                          : event == TOOL_BREAKS ? "~"
                          : event == TOOL_FAILS  ? "!"
                                                 : "");
    return 0;
}

struct heard heard_of(const char *template, const char *text, struct fuzz *f, size_t most)
{
    struct moeflux_err e = {0};
    struct heard h = {0};
    struct tool_calls t;
    json_t *tools = json_loads(TOOLS, 0, NULL);
    assert_non_null(tools);
    tool_calls_init(&t, tool_form_find(template), tools, (struct tool_sink){heard_event, &h});
    for (size_t at = 0, n, len = strlen(text); at < len; at += n) {
        n = most ? 1 + (size_t)fuzz_below(f, most) : len;
        n = n < len - at ? n : len - at;
        check_ok(tool_calls_push(&t, text + at, n, &e), &e);
    }
    check_ok(tool_calls_end(&t, &e), &e);
    assert_false(h.in_call);
    tool_calls_free(&t);
    json_decref(tools);
    return h;
}
