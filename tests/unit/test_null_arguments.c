/* The library's functions with NULL where it is not allowed, and options with numbers out of their range.
 * suites: check fast asan */
#include "check.h"

#include <string.h>

#include "moeflux_chat.h"

static const char DIR[] = "tests/models/tiny";

/* What a call must say. The error begins empty. */
#define REFUSES(call, words)                                                                                 \
    do {                                                                                                     \
        e = (struct moeflux_err){0};                                                                         \
        assert_int_equal(call, MOEFLUX_ERR_USAGE);                                                           \
        if (!strstr(e.text, words))                                                                          \
            fail_msg("%s: %s", #call, e.text);                                                               \
    } while (0)

static struct moeflux_err e;
static struct moeflux_model *model;
static struct moeflux_session *session;
static struct moeflux_chat *chat;
static struct moeflux_request *request;

static int open_all(void **state)
{
    const struct moeflux_options o = {.dir = DIR, .device = "cpu", .n_threads = 1, .context = 64};
    (void)state;
    check_ok(moeflux_model_open(&model, &o, &e), &e);
    check_ok(moeflux_session_new(&session, model, 64, &e), &e);
    check_ok(moeflux_chat_open(&chat, model, &e), &e);
    check_ok(moeflux_request_new(&request, &e), &e);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    moeflux_request_free(request);
    moeflux_chat_close(chat);
    moeflux_session_free(session);
    moeflux_model_close(model);
    return 0;
}

static void of_models_and_plans(void **state)
{
    struct moeflux_model *m;
    struct moeflux_needs needs;
    struct moeflux_plan plan;
    uint64_t number;
    (void)state;
    REFUSES(moeflux_model_open(&m, NULL, &e), "options");
    assert_null(m);
    REFUSES(moeflux_model_open(&m, &(struct moeflux_options){0}, &e), "`dir` is NULL");
    REFUSES(moeflux_model_open_dir(&m, "", NULL, &e), "`dir` is empty");
    REFUSES(moeflux_get_needs(NULL, &needs, &e), "`dir`");
    REFUSES(moeflux_get_needs(DIR, NULL, &e), "result");
    REFUSES(moeflux_make_plan(NULL, &plan, &e), "options");
    REFUSES(moeflux_list_parts(NULL, NULL, 0, &e), "directory");
    REFUSES(moeflux_list_devices(NULL, 1, &e), "list of devices");
    REFUSES(moeflux_model_fingerprint(NULL, &number, &e), "model");
    REFUSES(moeflux_model_save_usage(model, NULL, &e), "path");
}

static void numbers_out_of_their_range_are_named_as_fields(void **state)
{
    struct moeflux_model *m;
    struct moeflux_pool *p;
    struct moeflux_options o = {.dir = DIR, .device = "cpu", .n_threads = 1000000};
    (void)state;
    REFUSES(moeflux_model_open(&m, &o, &e), "`n_threads` is 1000000");
    o.n_threads = 1;
    o.expert_io = (enum moeflux_expert_io)77;
    REFUSES(moeflux_model_open(&m, &o, &e), "`expert_io` is 77");
    const struct moeflux_pool_options wrong[] = {
        {.reuse = (enum moeflux_pool_reuse)9}, {.parallel = 9999}, {.parallel = 2, .sequences = 1}};
    REFUSES(moeflux_pool_open(&p, chat, &wrong[0], &e), "`reuse` is 9");
    REFUSES(moeflux_pool_open(&p, chat, &wrong[1], &e), "`parallel` is 9999");
    REFUSES(moeflux_pool_open(&p, chat, &wrong[2], &e), "`sequences` is 1");
}

static void of_sessions(void **state)
{
    static const int32_t ids[] = {1, 2};
    static const struct moeflux_outputs none;
    struct moeflux_session *s;
    struct moeflux_state_info info;
    uint32_t n;
    (void)state;
    REFUSES(moeflux_session_new(&s, NULL, 8, &e), "model");
    REFUSES(moeflux_session_eval(NULL, ids, 2, &none, &e), "session");
    REFUSES(moeflux_session_eval(session, NULL, 2, &none, &e), "ids");
    REFUSES(moeflux_session_eval(session, ids, 2, NULL, &e), "outputs");
    REFUSES(moeflux_eval_batched(NULL, ids, 1, NULL, &e), "sessions");
    REFUSES(moeflux_eval_batched(&session, ids, 1, NULL, &e), "logits");
    REFUSES(moeflux_session_clear(NULL, &e), "session");
    REFUSES(moeflux_session_truncate(NULL, 0, &e), "session");
    REFUSES(moeflux_session_reuse(session, NULL, 2, &n, &e), "ids");
    REFUSES(moeflux_session_fork(session, NULL, 1, &e), "session");
    REFUSES(moeflux_session_checkpoint(NULL, &e), "session");
    REFUSES(moeflux_session_restore(NULL, 0, &e), "session");
    REFUSES(moeflux_session_drop_checkpoint(NULL, 0, &e), "session");
    REFUSES(moeflux_session_set_checkpoint_cap(NULL, 1, &e), "session");
    REFUSES(moeflux_session_save(session, NULL, MOEFLUX_STATE_V3, &e), "path");
    REFUSES(moeflux_session_load(session, NULL, &e), "path");
    REFUSES(moeflux_read_state_info(NULL, &info, &e), "path");
}

static void of_tokenizers_and_samplers(void **state)
{
    struct moeflux_tokenizer *t;
    struct moeflux_sampler *s;
    struct moeflux_sampler_options o = moeflux_sampler_defaults();
    size_t failed;
    int32_t next;
    (void)state;
    check_ok(moeflux_tokenizer_open(&t, moeflux_model_get_info(model).tokenizer_path, &e), &e);
    check_ok(moeflux_sampler_new(&s, &o, moeflux_model_get_info(model).vocab_size, t, &e), &e);
    REFUSES((int)moeflux_tokenizer_encode(NULL, "a", 1, false, NULL, 0, &e), "tokenizer");
    REFUSES((int)moeflux_tokenizer_encode(t, NULL, 1, false, NULL, 0, &e), "text");
    REFUSES((int)moeflux_tokenizer_encode(t, "a", 1, false, NULL, 5, &e), "ids");
    REFUSES(moeflux_sampler_check(NULL, &e), "sampler");
    REFUSES(moeflux_sampler_set(&o, NULL, 1, &e), "name");
    REFUSES(moeflux_sampler_pick(s, NULL, &e), "logits");
    REFUSES(moeflux_session_step(session, 1, NULL, false, &next, &e), "sampler");
    REFUSES(moeflux_step_batched(&session, &next, 1, NULL, &next, &e), "samplers");
    REFUSES(moeflux_sampler_take_model(&o, NULL, NULL, &failed, &e), "directory");
    moeflux_sampler_free(s);
    REFUSES(moeflux_sampler_new(&s, NULL, 10, t, &e), "sampler");
    moeflux_tokenizer_close(t);
}

static void of_chats_and_pools(void **state)
{
    struct moeflux_pool *p;
    struct moeflux_grammar *g;
    char *text;
    (void)state;
    REFUSES(moeflux_chat_use_models(chat, NULL, 1, &e), "models");
    REFUSES(moeflux_template_check(NULL, &e), "template");
    REFUSES(moeflux_chat_check_tools(NULL, "tools", &e), "chat");
    REFUSES(moeflux_tools_read(NULL, &text, &e), "path");
    REFUSES(moeflux_options_use_draft(NULL, NULL, "off", &e), "name");
    REFUSES(moeflux_grammar_rules(&text, MOEFLUX_GRAMMAR_RULES, "root ::= \"a\"", 12, NULL, &e), "name");
    check_ok(moeflux_grammar_new(&g, chat, MOEFLUX_GRAMMAR_RULES, "root ::= \"a\"", &e), &e);
    REFUSES(moeflux_grammar_next(g, NULL, &e), "ids");
    REFUSES(moeflux_grammar_accept(NULL, 1, &e), "grammar");
    moeflux_grammar_free(g);
    check_ok(moeflux_pool_open(&p, chat, &(struct moeflux_pool_options){.context = 64}, &e), &e);
    REFUSES(moeflux_pool_add(p, NULL, 1, &e), "list of jobs");
    REFUSES(moeflux_pool_add(NULL, NULL, 0, &e), "pool");
    REFUSES(moeflux_pool_restart(NULL, &e), "pool");
    REFUSES(moeflux_job_result(NULL, &e), "job");
    moeflux_pool_close(p);
}

static void of_conversations(void **state)
{
    struct moeflux_conversation *v;
    char *text;
    (void)state;
    REFUSES(moeflux_conversation_read(&v, NULL, 0, "x", &e), "text");
    REFUSES(moeflux_conversation_read(&v, "{}", 2, NULL, &e), "name");
    check_ok(moeflux_conversation_new(&v, &e), &e);
    REFUSES(moeflux_conversation_attach(v, NULL, session, request, &e), "chat");
    REFUSES(moeflux_conversation_attach(v, chat, NULL, request, &e), "session");
    REFUSES(moeflux_conversation_attach(v, chat, session, NULL, &e), "request");
    REFUSES(moeflux_conversation_use(v, NULL, &e), "request");
    REFUSES(moeflux_conversation_ask(NULL, "a", false, &e), "conversation");
    REFUSES(moeflux_conversation_answer(NULL, NULL, NULL, NULL, &e), "conversation");
    REFUSES(moeflux_conversation_continue(NULL, NULL, NULL, NULL, &e), "conversation");
    REFUSES(moeflux_conversation_clear(NULL, NULL, &e), "conversation");
    REFUSES(moeflux_conversation_write(NULL, &text, &e), "conversation");
    moeflux_conversation_free(v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(of_models_and_plans),
        cmocka_unit_test(numbers_out_of_their_range_are_named_as_fields),
        cmocka_unit_test(of_sessions),
        cmocka_unit_test(of_tokenizers_and_samplers),
        cmocka_unit_test(of_chats_and_pools),
        cmocka_unit_test(of_conversations),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
