/* Every public function with an error takes NULL in its place, and fails as it does with one. A function of
 * the headers that is not called here is a failure.
 *
 * suites: check asan */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "moeflux.h"
#include "moeflux_chat.h"
#include "tmp_tree.h"

enum { CONTEXT = 128, CALLS_ROOM = 1 << 14 };
static const char DIR[] = "tests/models/tiny", NO_FILE[] = "tests/no/such/file";

static char called[CALLS_ROOM];

static int64_t note(const char *name, int64_t rc)
{
    strcat(called, " ");
    strcat(called, name);
    strcat(called, " ");
    return rc;
}

/* Calls a function with NULL for the error. */
#define CALL(name, ...) note(#name, name(__VA_ARGS__, NULL))
#define REFUSED(...)                                                                                         \
    do {                                                                                                     \
        int64_t rc_ = CALL(__VA_ARGS__);                                                                     \
        if (rc_ >= 0)                                                                                        \
            fail_msg("%s: %d", #__VA_ARGS__, (int)rc_);                                                      \
    } while (0)
#define PASSES(...) assert_true(CALL(__VA_ARGS__) >= 0)

static struct moeflux_model *model;
static struct moeflux_session *session;
static struct moeflux_chat *chat;

static int open_all(void **state)
{
    const struct moeflux_options o = {.dir = DIR, .device = "cpu", .context = CONTEXT};
    (void)state;
    PASSES(moeflux_model_open, &model, &o);
    PASSES(moeflux_session_new, &session, model, CONTEXT);
    PASSES(moeflux_chat_open, &chat, model);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    moeflux_chat_close(chat);
    moeflux_session_free(session);
    moeflux_model_close(model);
    return 0;
}

static void models(void **state)
{
    struct moeflux_model *m;
    struct moeflux_needs needs;
    struct moeflux_plan plan;
    struct moeflux_part part;
    struct moeflux_device device;
    const struct moeflux_options o = {.dir = NO_FILE};
    uint64_t fingerprint;
    (void)state;
    REFUSED(moeflux_model_open, &m, &o);
    REFUSED(moeflux_model_open_dir, &m, NO_FILE, "cpu");
    PASSES(moeflux_model_fingerprint, model, &fingerprint);
    REFUSED(moeflux_model_save_usage, model, NO_FILE);
    REFUSED(moeflux_get_needs, NO_FILE, &needs);
    REFUSED(moeflux_get_needs_with, &o, &needs);
    REFUSED(moeflux_make_plan, &o, &plan);
    PASSES(moeflux_list_parts, DIR, &part, 1);
    PASSES(moeflux_list_devices, &device, 0);
}

/* The error comes from a file that is opened late. */
static void a_model_whose_ngrams_lack_their_tokenizer(void **state)
{
    struct moeflux_model *m;
    char *tmp = tmp_tree_new();
    const char *dir = tmp_tree_path(tmp, "model");
    (void)state;
    tmp_tree_copy("tests/models/sources/v41/hf", dir);
    tmp_tree_write_text(dir, "tokenizer.json", "{\"model\": 3}");
    const struct moeflux_options o = {.dir = dir, .device = "cpu", .context = CONTEXT};
    assert_int_equal(CALL(moeflux_model_open, &m, &o), MOEFLUX_ERR_FORMAT);
    tmp_tree_remove(tmp);
}

static void sessions(void **state)
{
    int32_t id = -1, next;
    uint32_t n;
    struct moeflux_session *s;
    struct moeflux_state_info info;
    struct moeflux_sampler *sampler;
    const struct moeflux_sampler_options usual = moeflux_sampler_defaults();
    const struct moeflux_outputs none = {0};
    (void)state;
    REFUSED(moeflux_session_new, &s, model, 0);
    REFUSED(moeflux_session_eval, session, &id, 1, &none);
    REFUSED(moeflux_eval_batched, &session, &id, 1, &(float *){NULL});
    PASSES(moeflux_session_clear, session);
    REFUSED(moeflux_session_truncate, session, 1);
    REFUSED(moeflux_session_reuse, session, &id, 0, &n);
    REFUSED(moeflux_session_fork, session, session, 0);
    PASSES(moeflux_session_checkpoint, session);
    REFUSED(moeflux_session_restore, session, 7);
    REFUSED(moeflux_session_drop_checkpoint, session, 7);
    REFUSED(moeflux_session_set_checkpoint_cap, session, 0);
    REFUSED(moeflux_session_save, session, NO_FILE, MOEFLUX_STATE_V3);
    REFUSED(moeflux_session_load, session, NO_FILE);
    REFUSED(moeflux_read_state_info, NO_FILE, &info);
    PASSES(moeflux_sampler_new, &sampler, &usual, moeflux_model_get_info(model).vocab_size, NULL);
    REFUSED(moeflux_session_step, session, id, sampler, false, &next);
    REFUSED(moeflux_step_batched, &session, &id, 1, &sampler, &next);
    moeflux_sampler_free(sampler);
}

static void texts(void **state)
{
    static const float logits[1] = {0};
    const uint64_t empty = 0;
    int32_t *ids;
    struct moeflux_tokenizer *t;
    struct moeflux_sampler *s;
    struct moeflux_sampler_options o = moeflux_sampler_defaults();
    (void)state;
    REFUSED(moeflux_tokenizer_open, &t, NO_FILE);
    PASSES(moeflux_tokenizer_open, &t, "tests/models/tiny/tokenizer.json");
    PASSES(moeflux_tokenizer_encode, t, "a", 1, false, NULL, 0);
    PASSES(moeflux_tokenizer_encode_all, t, "a", 1, false, false, &ids);
    free(ids);
    moeflux_tokenizer_close(t);
    REFUSED(moeflux_sampler_set, &o, "none", 1);
    PASSES(moeflux_sampler_new, &s, &o, 1, NULL);
    moeflux_sampler_restrict(s, &empty);
    REFUSED(moeflux_sampler_pick, s, logits);
    moeflux_sampler_free(s);
    o.top_p = -1;
    REFUSED(moeflux_sampler_check, &o);
    REFUSED(moeflux_sampler_new, &s, &o, 1, NULL);
}

static struct moeflux_request *ask(const char *name, const char *value)
{
    struct moeflux_request *r;
    PASSES(moeflux_request_new, &r);
    PASSES(moeflux_request_say, r, "user", "a");
    PASSES(moeflux_request_set, r, "max_tokens", "2");
    if (name)
        PASSES(moeflux_request_set, r, name, value);
    return r;
}

/* An answer to a request with this field fails. */
static void refuse(const char *name, const char *value)
{
    struct moeflux_answer *a;
    struct moeflux_request *r = ask(name, value);
    REFUSED(moeflux_chat_answer, chat, session, r, NULL, NULL, &a);
    REFUSED(moeflux_chat_encode, chat, r, NULL, 0);
    moeflux_request_free(r);
}

static void requests(void **state)
{
    char *text;
    struct moeflux_answer *a;
    struct moeflux_request *r = ask(NULL, NULL);
    (void)state;
    REFUSED(moeflux_request_set, r, "none", "1");
    REFUSED(moeflux_request_set_text, r, "none", "1");
    REFUSED(moeflux_request_set_ids, r, NULL, 3);
    REFUSED(moeflux_tools_read, NO_FILE, &text);
    PASSES(moeflux_chat_answer, chat, session, r, NULL, NULL, &a);
    PASSES(moeflux_request_set, r, "messages", "\"a text\"");
    REFUSED(moeflux_request_say, r, "user", "a");
    REFUSED(moeflux_request_add_message, r, "{\"role\": \"user\", \"content\": \"a\"}");
    REFUSED(moeflux_request_add_answer, r, a);
    REFUSED(moeflux_chat_answer_all, chat, NULL, MOEFLUX_MAX_TASKS + 1);
    moeflux_answer_free(a);
    moeflux_request_free(r);
    refuse("messages", "\"a text\"");
    refuse("temperature", "-1");
    refuse("logit_bias", "{\"100000000\": 1}");
    refuse("grammar", "\"root ::= none\"");
    refuse("tools", "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": 3}}]");
}

/* A file that is no state does not fail the answer. */
static void answers_with_a_file_that_is_no_state(void **state)
{
    struct moeflux_answer *a;
    struct moeflux_prompt_file file = {.path = "tests/models/tiny/config.json", .read_only = true};
    struct moeflux_request *r = ask(NULL, NULL);
    (void)state;
    moeflux_request_set_alone(r, &(struct moeflux_alone){.file = &file});
    PASSES(moeflux_chat_answer, chat, session, r, NULL, NULL, &a);
    moeflux_answer_free(a);
    moeflux_request_free(r);
}

static void chats(void **state)
{
    size_t failed;
    const uint64_t *ids;
    char *rules;
    struct moeflux_grammar *g;
    struct moeflux_sampler_options sampling = moeflux_sampler_defaults();
    (void)state;
    REFUSED(moeflux_chat_use_models, chat, NULL, 0);
    PASSES(moeflux_chat_use_models, chat, &model, 1);
    REFUSED(moeflux_template_check, "{% if");
    REFUSED(moeflux_chat_use_template, chat, "{% if", NULL);
    (void)CALL(moeflux_chat_check_tools, chat, "tools");
    PASSES(moeflux_sampler_take_model, &sampling, NULL, NO_FILE, &failed);
    REFUSED(moeflux_options_use_draft, NULL, "draft", "none");
    REFUSED(moeflux_grammar_rules, &rules, MOEFLUX_GRAMMAR_REGEX, "(", 1, "regex");
    REFUSED(moeflux_grammar_new, &g, chat, MOEFLUX_GRAMMAR_RULES, "root ::= none");
    PASSES(moeflux_grammar_new, &g, chat, MOEFLUX_GRAMMAR_REGEX, "a{2,3}");
    PASSES(moeflux_grammar_next, g, &ids);
    REFUSED(moeflux_grammar_accept, g, -1);
    moeflux_grammar_free(g);
}

static void pools(void **state)
{
    struct moeflux_pool *p;
    struct moeflux_job *j = NULL;
    struct moeflux_pool_options o = {.parallel = MOEFLUX_MAX_PARALLEL + 1, .context = CONTEXT};
    struct moeflux_request *wrong = ask("temperature", "-1"), *r = ask(NULL, NULL);
    struct moeflux_job_options of = {.requests = &wrong, .n = 1};
    (void)state;
    REFUSED(moeflux_pool_open, &p, chat, &o);
    o.parallel = 2;
    PASSES(moeflux_pool_open, &p, chat, &o);
    REFUSED(moeflux_job_new, &j, p, &of);
    REFUSED(moeflux_pool_add, p, &j, 1);
    of.requests = &r;
    PASSES(moeflux_job_new, &j, p, &of);
    moeflux_pool_pause(p);
    PASSES(moeflux_pool_restart, p);
    moeflux_job_cancel(j);
    PASSES(moeflux_pool_add, p, &j, 1);
    assert_true(moeflux_job_wait(j, UINT32_MAX));
    REFUSED(moeflux_job_result, j);
    moeflux_job_free(j);
    moeflux_pool_close(p);
    moeflux_request_free(r);
    moeflux_request_free(wrong);
}

static void conversations(void **state)
{
    char *text;
    struct moeflux_answer *a;
    struct moeflux_conversation *v;
    struct moeflux_request *r = ask(NULL, NULL), *wrong = ask("temperature", "-1");
    (void)state;
    REFUSED(moeflux_conversation_read, &v, "{", 1, "text");
    PASSES(moeflux_conversation_new, &v);
    REFUSED(moeflux_conversation_ask, v, "a", false);
    REFUSED(moeflux_conversation_write, v, &text);
    REFUSED(moeflux_conversation_attach, v, chat, session, wrong);
    PASSES(moeflux_session_clear, session);
    PASSES(moeflux_conversation_attach, v, chat, session, r);
    REFUSED(moeflux_conversation_use, v, wrong);
    REFUSED(moeflux_conversation_answer, v, NULL, NULL, &a);
    (void)CALL(moeflux_conversation_continue, v, NULL, NULL, &a);
    PASSES(moeflux_conversation_clear, v, NULL);
    moeflux_conversation_free(v);
    moeflux_request_free(r);
    moeflux_request_free(wrong);
}

/* Returns the first "moeflux_NAME(" of a text that ends at `end`; its length in *n. */
static const char *function_in(const char *text, const char *end, size_t *n)
{
    for (const char *at = text; (at = strstr(at, "moeflux_")) && at < end; at += *n) {
        *n = 0;
        while (isalnum((unsigned char)at[*n]) || at[*n] == '_')
            ++*n;
        if (at[*n] == '(')
            return at;
    }
    return NULL;
}

static void check_header(const char *path)
{
    static const char last[] = "struct moeflux_err *e);";
    char *text = (char *)tmp_tree_read(path, NULL), name[64];
    size_t n_found = 0;
    for (char *end = text, *from; (end = strstr(end, last)); end += strlen(last)) {
        size_t n;
        for (from = end; from > text && !strchr(";}{", from[-1]) && strncmp(from - 2, "*/", 2) != 0;)
            from--;
        const char *at = function_in(from, end, &n);
        if (!at)
            continue; /* a callback */
        snprintf(name, sizeof name, " %.*s ", (int)n, at);
        if (!strstr(called, name))
            fail_msg("%s:%sis not called with NULL for its error", path, name);
        n_found++;
    }
    assert_in_range(n_found, 30, 60);
    free(text);
}

static void all_functions_were_called(void **state)
{
    (void)state;
    check_header("src/moeflux.h");
    check_header("src/moeflux_chat.h");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models),        cmocka_unit_test(a_model_whose_ngrams_lack_their_tokenizer),
        cmocka_unit_test(sessions),      cmocka_unit_test(texts),
        cmocka_unit_test(requests),      cmocka_unit_test(answers_with_a_file_that_is_no_state),
        cmocka_unit_test(chats),         cmocka_unit_test(pools),
        cmocka_unit_test(conversations), cmocka_unit_test(all_functions_were_called),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
