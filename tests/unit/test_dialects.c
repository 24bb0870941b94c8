/* The dialects of the API without a server: items of an answer, stored responses, bodies.
 * tests/cli/dialects.sh has whole requests.
 *
 * suites: check fast asan */
#include "check.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "api/api_request.h"
#include "generate/choice.h"
#include "api/dialect.h"
#include "api/items.h"
#include "api/refusal.h"
#include "api/response_store.h"
#include "generate/answer.h"
#include "generate/generator.h"

/* ---- items ---- */

struct heard {
    struct items items;
    char text[400];
};

static void heard_begins(void *ctx, size_t idx)
{
    struct heard *h = ctx;
    size_t n = strlen(h->text);
    snprintf(h->text + n, sizeof h->text - n, "[%zu:%d ", idx, (int)h->items.list[idx].kind);
}

static void heard_grows(void *ctx, size_t idx, const char *text, size_t len)
{
    struct heard *h = ctx;
    size_t n = strlen(h->text);
    (void)idx;
    snprintf(h->text + n, sizeof h->text - n, "%.*s", (int)len, text);
}

static void heard_ends(void *ctx, size_t idx)
{
    struct heard *h = ctx;
    snprintf(h->text + strlen(h->text), 3, "%s", h->items.list[idx].failed ? "!]" : "]");
}

static void hear(struct heard *h, enum moeflux_piece_kind kind, const char *text)
{
    const struct item_sink sink = {heard_begins, heard_grows, heard_ends, h};
    const struct moeflux_call call = {.id = "call_1", .name = "f", .arguments = ""};
    const struct moeflux_piece p = {.id = 1,
                                    .kind = kind,
                                    .text = text,
                                    .len = strlen(text),
                                    .call = kind < MOEFLUX_PIECE_CALL_BEGINS ? NULL : &call};
    items_take(&h->items, &p, &sink);
}

static void end(struct heard *h, const char *expected)
{
    const struct item_sink sink = {heard_begins, heard_grows, heard_ends, h};
    items_end(&h->items, &sink);
    assert_string_equal(h->text, expected);
    assert_false(h->items.failed);
    items_free(&h->items);
    *h = (struct heard){0};
}

static void an_item_ends_before_the_next_begins(void **state)
{
    (void)state;
    struct heard h = {0};
    hear(&h, MOEFLUX_PIECE_THINKING, "a");
    hear(&h, MOEFLUX_PIECE_THINKING, "b");
    hear(&h, MOEFLUX_PIECE_TEXT, "c");
    hear(&h, MOEFLUX_PIECE_CALL_BEGINS, "");
    hear(&h, MOEFLUX_PIECE_CALL_ARGUMENTS, "{");
    hear(&h, MOEFLUX_PIECE_CALL_ARGUMENTS, "}");
    hear(&h, MOEFLUX_PIECE_CALL_ENDS, "");
    hear(&h, MOEFLUX_PIECE_CALL_BEGINS, "");
    assert_int_equal(h.items.n_thinking, 2);
    assert_string_equal(h.items.list[2].call_id.data, "call_1");
    end(&h, "[0:0 ab][1:1 c][2:2 {}][3:2 ]");
}

static void white_space_counts_once_something_follows(void **state)
{
    (void)state;
    struct heard h = {0};
    hear(&h, MOEFLUX_PIECE_THINKING, "\n");
    hear(&h, MOEFLUX_PIECE_TEXT, "\n");
    hear(&h, MOEFLUX_PIECE_TEXT, " ");
    hear(&h, MOEFLUX_PIECE_CALL_BEGINS, "");
    hear(&h, MOEFLUX_PIECE_CALL_ENDS, "");
    hear(&h, MOEFLUX_PIECE_TEXT, "\n");
    end(&h, "[0:2 ]");
    hear(&h, MOEFLUX_PIECE_TEXT, " ");
    hear(&h, MOEFLUX_PIECE_TEXT, "\t");
    hear(&h, MOEFLUX_PIECE_TEXT, "x");
    hear(&h, MOEFLUX_PIECE_TEXT, " ");
    end(&h, "[0:1  \tx ]");
}

static void a_call_that_fails_is_marked_and_its_text_follows(void **state)
{
    (void)state;
    struct heard h = {0};
    hear(&h, MOEFLUX_PIECE_CALL_BEGINS, "");
    hear(&h, MOEFLUX_PIECE_CALL_ARGUMENTS, "{x");
    hear(&h, MOEFLUX_PIECE_CALL_FAILS, "");
    hear(&h, MOEFLUX_PIECE_TEXT, "<tool_call>{x");
    end(&h, "[0:2 {x!][1:1 <tool_call>{x]");
}

/* ---- stored responses ---- */

/* Puts a response whose input and output are one item each. */
static void put(struct response_store *s, const char *id, const char *previous, size_t bytes)
{
    json_t *input = json_pack("[{s: s}]", "in", id);
    json_t *response = json_pack("{s: s, s: [{s: s}]}", "id", id, "output", "out", id);
    char *filler = calloc(1, bytes + 1);
    memset(filler, 'x', bytes);
    json_object_set_new(response, "filler", json_string(filler));
    response_store_put(s, previous, input, response);
    free(filler);
    json_decref(input);
    json_decref(response);
}

static size_t count_items(struct response_store *s, const char *id)
{
    json_t *items = response_store_items(s, id);
    size_t n = json_array_size(items);
    json_decref(items);
    return n;
}

static void a_conversation_outlives_its_deleted_parts(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct response_store *s = response_store_new(1 << 20, &e);
    put(s, "a", NULL, 0);
    put(s, "b", "a", 0);
    put(s, "c", "b", 0);
    put(s, "d", "nobody", 0);
    assert_int_equal(count_items(s, "c"), 6);
    assert_true(response_store_delete(s, "b") && response_store_delete(s, "a"));
    assert_false(response_store_delete(s, "a"));
    assert_null(response_store_get(s, "a"));
    assert_int_equal(count_items(s, "c"), 6);
    /* Its beginning is not known. */
    assert_null(response_store_get(s, "d"));
    json_t *items = response_store_items(s, "c");
    assert_string_equal(json_string_value(json_object_get(json_array_get(items, 0), "in")), "a");
    assert_string_equal(json_string_value(json_object_get(json_array_get(items, 5), "out")), "c");
    json_decref(items);
    response_store_free(s);
}

static void the_oldest_responses_are_dropped(void **state)
{
    (void)state;
    struct moeflux_err e = {0};
    struct response_store *s = response_store_new(10000, &e);
    char id[24];
    for (int i = 0; i < 20; i++) {
        snprintf(id, sizeof id, "r%d", i);
        put(s, id, NULL, 1000);
    }
    assert_int_equal(count_items(s, "r0") + count_items(s, "r9"), 0);
    assert_int_equal(count_items(s, "r19") + count_items(s, "r15"), 4);
    put(s, "large", NULL, 20000);
    assert_int_equal(count_items(s, "large"), 0);
    /* One conversation that is larger than the bound cannot be continued, and its memory is free again. */
    put(s, "c0", NULL, 1000);
    for (int i = 1; i < 20; i++) {
        char previous[24];
        snprintf(previous, sizeof previous, "c%d", i - 1);
        snprintf(id, sizeof id, "c%d", i);
        put(s, id, previous, 1000);
    }
    assert_int_equal(count_items(s, "c19"), 0);
    put(s, "last", NULL, 8000);
    assert_int_equal(count_items(s, "last"), 2);
    response_store_free(s);
}

/* ---- bodies ---- */

static const struct api_request_defaults defaults = {
    .options = {.predict = -1,
                .seed = -1,
                .sampling = {.temperature = 1, .top_p = 1, .repeat_penalty = 1},
                .logprobs = REQUEST_NO_LOGPROBS},
    .turns = true};

static struct generator tokenizer_alone(void)
{
    struct moeflux_err e = {0};
    struct generator g = {.dir = "tests/models/tiny",
                          .max_context = 256,
                          .info = {.vocab_size = 2048, .chat_template = "qwen3.5"},
                          .tokenizer = tokenizer_open("tests/models/tiny/tokenizer.json", &e)};
    assert_non_null(g.tokenizer);
    return g;
}

static const char chat_body[] =
    "{'messages': [{'role': 'system', 'content': 'Be\\nbrief.'}, {'role': 'user', 'content': 'a\\nb'}, "
    "{'role': 'assistant', 'content': 'c'}, {'role': 'user', 'content': 'd'}], 'max_tokens': 5, "
    "'temperature': 0.5, 'top_k': 3, 'stop': ['x']}";

/* Bodies that mean the same. */
static const struct {
    const struct dialect *dialect;
    const char *text;
} bodies[] = {
    {&dialect_chat, chat_body},
    {&dialect_messages,
     "{'system': 'Be\\nbrief.', 'messages': [{'role': 'user', 'content': 'a\\nb'}, {'role': 'assistant', "
     "'content': 'c'}, {'role': 'user', 'content': 'd'}], 'max_tokens': 5, 'temperature': 0.5, 'top_k': 3, "
     "'stop_sequences': ['x']}"},
    {&dialect_messages,
     "{'system': [{'type': 'text', 'text': 'x-anthropic-billing-header: 1'}, {'type': 'text', 'text': 'Be'}, "
     "{'type': 'text', 'text': 'brief.', 'cache_control': {'type': 'ephemeral'}}], 'messages': [{'role': "
     "'user', 'content': [{'type': 'text', 'text': 'a'}, {'type': 'text', 'text': 'b'}]}, {'role': "
     "'assistant', 'content': [{'type': 'redacted_thinking', 'data': 'x'}, {'type': 'text', 'text': 'c'}]}, "
     "{'role': 'user', 'content': 'd'}], 'max_tokens': 5, 'temperature': 0.5, 'top_k': 3, "
     "'stop_sequences': ['x'], 'metadata': {}}"},
    {&dialect_responses,
     "{'instructions': 'Be', 'input': [{'role': 'developer', 'content': 'brief.'}, {'role': 'user', "
     "'content': [{'type': 'input_text', 'text': 'a'}, {'type': 'input_text', 'text': 'b'}]}, {'type': "
     "'message', 'role': 'assistant', 'content': [{'type': 'output_text', 'text': 'c'}]}, {'role': 'user', "
     "'content': 'd'}], 'max_output_tokens': 5, 'temperature': 0.5, 'top_k': 3, 'stop': 'x'}"},
};

/* Replaces ' by ". */
static size_t quote(const char *text, char *out)
{
    size_t n = strlen(text);
    for (size_t i = 0; i <= n; i++)
        out[i] = (char)(text[i] == '\'' ? '"' : text[i]);
    return n;
}

static void bodies_of_all_dialects_make_the_same_request(void **state)
{
    (void)state;
    struct generator g = tokenizer_alone();
    struct api_request all[sizeof bodies / sizeof *bodies];
    char text[1000];
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        struct refusal refusal = {0};
        size_t n = quote(bodies[i].text, text);
        if (dialect_read(bodies[i].dialect, &all[i], text, n, &g, &defaults, &refusal))
            fail_msg("%zu: %s", i, refusal.text);
        const struct request *a = &api_request_choice(&all[0], 0)->request,
                             *b = &api_request_choice(&all[i], 0)->request;
        assert_int_equal(a->tokens.n, b->tokens.n);
        assert_memory_equal(a->tokens.ids, b->tokens.ids, a->tokens.n * sizeof *a->tokens.ids);
        const struct request_options *o = &b->options;
        const struct moeflux_sampler_options *s = &o->sampling;
        assert_true(o->predict == 5 && s->top_k == 3 && o->n_stops == 1);
        assert_true(s->temperature > 0.4f && s->temperature < 0.6f);
        assert_string_equal(o->stops[0], "x");
    }
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        api_request_free(&all[i]);
    tokenizer_free(g.tokenizer);
}

static void a_body_that_is_cut_anywhere_is_refused(void **state)
{
    (void)state;
    struct generator g = tokenizer_alone();
    char text[1000];
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
        size_t len = quote(bodies[i].text, text);
        for (size_t n = 0; n < len; n++) {
            struct refusal refusal = {0};
            struct api_request c;
            assert_int_equal(dialect_read(bodies[i].dialect, &c, text, n, &g, &defaults, &refusal), -1);
            assert_true(refusal.status == 400 && refusal.text[0]);
            api_request_free(&c);
        }
    }
    tokenizer_free(g.tokenizer);
}

static void errors_name_the_fields_of_the_body(void **state)
{
    (void)state;
    static const struct {
        const struct dialect *dialect;
        const char *text, *param;
    } wrong[] = {
        {&dialect_responses, "{'input': 'x', 'max_output_tokens': -2}", "max_output_tokens"},
        {&dialect_responses, "{'input': 'x', 'text': {'format': {'type': 'x'}}}", "text.format"},
        {&dialect_messages, "{'messages': [{'role': 'user', 'content': 'x'}], 'stop_sequences': [5]}",
         "stop_sequences"},
    };
    struct generator g = tokenizer_alone();
    char text[200];
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct refusal refusal = {0};
        struct api_request c;
        size_t n = quote(wrong[i].text, text);
        assert_int_equal(dialect_read(wrong[i].dialect, &c, text, n, &g, &defaults, &refusal), -1);
        assert_string_equal(refusal.param, wrong[i].param);
        assert_memory_equal(refusal.text, wrong[i].param, strlen(wrong[i].param));
        api_request_free(&c);
    }
    tokenizer_free(g.tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_item_ends_before_the_next_begins),
        cmocka_unit_test(white_space_counts_once_something_follows),
        cmocka_unit_test(a_call_that_fails_is_marked_and_its_text_follows),
        cmocka_unit_test(a_conversation_outlives_its_deleted_parts),
        cmocka_unit_test(the_oldest_responses_are_dropped),
        cmocka_unit_test(bodies_of_all_dialects_make_the_same_request),
        cmocka_unit_test(a_body_that_is_cut_anywhere_is_refused),
        cmocka_unit_test(errors_name_the_fields_of_the_body),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
