#include "cli/report/answer_fields.h"
#include "cli/run.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "cli/exit.h"
#include "cli/options/answer_grammar.h"
#include "cli/report/logprob_lines.h"
#include "cli/options/options.h"
#include "cli/output.h"
#include "cli/place.h"
#include "cli/measure/probe.h"
#include "cli/prompt.h"
#include "cli/setup.h"
#include "cli/signals.h"
#include "cli/report/stats.h"
#include "cli/terminal/bar.h"
#include "cli/terminal/printer.h"
#include "cli/terminal/term.h"
#include "generate/answer.h"
#include "generate/answer_json.h"
#include "generate/constrain.h"
#include "generate/generator.h"
#include "generate/prompt_cache.h"
#include "generate/tools.h"
#include "moeflux.h"
#include "text/grammar/constraint.h"

/* Everything that one run owns; zeroed at first. */
struct run {
    const struct options *options;
    const struct term *term;
    struct output *out;
    struct bar bar;
    struct prompt prompt;
    struct str grammar; /* the answer must fit it; empty: none */
    struct constraint *constraint;
    struct probe probe;
    struct generator generator;
    struct prompt_cache cache;
    struct token_list tokens; /* the prompt's */
    uint32_t n_system;        /* leading tokens that are the system text's */
    struct json_t *tools;     /* NULL: none */
    struct answer answer;
    struct stats stats;
};

void run_tell_replaced(const struct options *o, unsigned long n_replaced)
{
    char text[128];
    snprintf(text, sizeof text, "the prompt is not all UTF-8: %lu place%s replaced by U+FFFD", n_replaced,
             n_replaced == 1 ? "" : "s");
    if (n_replaced)
        exit_tell(o->log_level, EXIT_WARN, text);
}

void run_tell_thinking(const struct answer *a)
{
    static const char *const why[ANSWER_N_STOPS] = {
        [ANSWER_EOS] = "the model ended it there",
        [ANSWER_LENGTH] = "-n ended it there",
        [ANSWER_CONTEXT] = "the context is full (-c)",
    };
    char text[160];
    if (a->text.len || !a->thinking.len || a->n_calls || !why[a->stop])
        return;
    snprintf(text, sizeof text, "the answer is all thinking: %s; --no-think answers at once", why[a->stop]);
    exit_warn(text);
}

static int64_t answer_limit(const struct options *o)
{
    if (o->predict == OPTIONS_NOT_GIVEN)
        return options_probes(o) ? 0 : OPTIONS_NO_LIMIT;
    return o->predict;
}

static bool uses_chat(const struct run *r)
{
    return !r->prompt.is_ids && !r->options->raw;
}

/* Checks that there is a tokenizer if the prompt or the answer is text. */
static int check_tokenizer(struct run *r, struct moeflux_err *e)
{
    const struct options *o = r->options;
    if (uses_chat(r))
        return setup_chat(&r->generator, o, "a text prompt", e);
    if (r->generator.tokenizer)
        return 0;
    if (!r->prompt.is_ids)
        return err_set(e, ERR_USAGE, "%s has no tokenizer.json, which a text prompt needs (use --tokens-in)",
                       o->model);
    if (answer_limit(o) != 0 && !o->tokens_out && !o->json)
        return err_set(e, ERR_USAGE, "%s has no tokenizer.json, which a text answer needs (use --tokens-out)",
                       o->model);
    return 0;
}

static int encode_messages(struct run *r, const char *text, size_t len, size_t *n_replaced,
                           struct moeflux_err *e)
{
    const char *system = r->options->system;
    json_t *messages = json_array();
    struct chat_prompt prompt = {.messages = messages, .tools = r->tools, .opens_answer = true};
    int rc = messages ? 0 : err_set(e, ERR_MEMORY, "out of memory for a prompt");
    if (!rc && system && *system)
        rc = chat_say(messages, "system", system, strlen(system), n_replaced, e);
    if (!rc)
        rc = chat_say(messages, "user", text, len, n_replaced, e);
    if (!rc)
        rc = chat_prompt_tokens(&r->generator.chat, &prompt, &r->tokens, &r->n_system, e);
    json_decref(messages);
    return rc;
}

static int encode(struct run *r, struct moeflux_err *e)
{
    const struct options *o = r->options;
    const struct str *text = &r->prompt.text;
    size_t n_replaced = 0;
    int rc = 0;
    if (r->prompt.is_ids) {
        /* The list is moved, so that one of them owns the ids. */
        r->tokens = r->prompt.ids;
        r->prompt.ids = (struct token_list){0};
        return 0;
    }
    if (o->raw) {
        rc = generator_encode(&r->generator, str_text(text), text->len, SPECIALS_AS_TOKENS, &r->tokens,
                              &n_replaced, e);
        run_tell_replaced(o, n_replaced);
        return rc;
    }
    rc = encode_messages(r, str_text(text), text->len, &n_replaced, e);
    run_tell_replaced(o, n_replaced);
    return rc;
}

static int check_length(const struct run *r, struct moeflux_err *e)
{
    size_t n = r->tokens.n;
    uint32_t most = r->generator.max_context;
    if (n > most)
        return err_set(e, ERR_USAGE, "the prompt has %zu tokens, the context holds %u (-c)", n, most);
    return 0;
}

static int prefill(struct run *r, struct moeflux_err *e)
{
    struct moeflux_outputs outputs = {0};
    struct generator *s = &r->generator;
    int rc = probe_begin(&r->probe, &s->info, &r->tokens, &outputs, e);
    if (rc)
        return rc;
    r->stats.start_ns = clock_ns();
    r->cache.n_system = r->n_system;
    rc = prompt_cache_eval(&r->cache, s, &r->tokens, &outputs, e);
    r->stats.prefill_ns = clock_ns() - r->stats.start_ns;
    r->stats.n_reused = r->cache.n_reused;
    r->stats.n_prompt = (uint32_t)r->tokens.n - r->cache.n_reused;
    bar_end(&r->bar);
    return rc ? rc : probe_finish(&r->probe, s->logits, e);
}

static int print_json(struct run *r, struct moeflux_err *e)
{
    const struct answer *a = &r->answer;
    const struct generator *s = &r->generator;
    json_t *object = json_object();
    answer_fields_add(object, s->tokenizer, a, r->tokens.n, r->stats.n_reused,
                      r->options->logprobs != REQUEST_NO_LOGPROBS);
    json_object_set_new(object, "prefill_tok_s",
                        stats_number(stats_rate(r->stats.n_prompt, r->stats.prefill_ns)));
    json_object_set_new(object, "decode_tok_s", stats_number(stats_rate(a->n_decoded, a->decode_ns)));
    json_object_set_new(object, "time_to_first_token_s", stats_number(stats_first_token_s(&r->stats, a)));
    json_object_set_new(object, "load_s", json_real((double)s->load_ns / 1e9));
    json_object_set_new(object, "seed", json_integer((json_int_t)s->seed));
    json_object_set_new(object, "model", output_json_text(r->options->model, strlen(r->options->model)));
    json_object_set_new(object, "architecture", json_string(s->info.architecture));
    json_object_set_new(object, "device", json_string(s->info.device));
    if (r->options->json_full)
        json_object_set_new(object, "stats", stats_engine_json(s));
    return output_json(r->out, object, e);
}

/* Evaluates the prompt, and compiles the grammar at the same time. */
static int prepare(struct run *r, struct moeflux_err *e)
{
    struct constrain_ahead ahead;
    constrain_ahead(&ahead, &r->generator, r->grammar.len ? str_text(&r->grammar) : NULL, false);
    int rc = prefill(r, e), made = constrain_await(&ahead, &r->constraint, rc ? NULL : e);
    return rc ? rc : made;
}

static int generate(struct run *r, struct moeflux_err *e)
{
    const struct options *o = r->options;
    struct printer printer;
    struct request_options request = options_request(o);
    int rc = uses_chat(r) ? request_use_chat(&request, &r->generator, "the answer", e) : 0;
    if (rc)
        return rc;
    struct answer_options ao = request_answer(&request);
    ao.limit = answer_limit(o);
    ao.chat = uses_chat(r);
    ao.tools = r->tools;
    ao.constraint = r->constraint;
    printer_init(&printer, r->out, o, r->term);
    if (!o->json)
        ao.sink = printer_sink(&printer);
    bar_hold(&r->bar);
    rc = answer_run(&r->answer, &r->generator, &ao, e);
    struct moeflux_err closing = {0};
    int ended = printer_end(&printer, &closing);
    bar_end(&r->bar);
    if (!rc && ended)
        rc = err_set(e, closing.code, "%s", closing.text);
    return rc;
}

static void warn(void *ctx, const char *text)
{
    const struct run *r = ctx;
    exit_tell(r->options->log_level, EXIT_WARN, text);
}

static int load_cache(struct run *r, struct moeflux_err *e)
{
    const struct options *o = r->options;
    bool old = o->state_format && strcmp(o->state_format, "v2") == 0;
    struct prompt_cache_options cache = {
        .path = o->prompt_cache ? o->prompt_cache : o->prompt_cache_ro,
        .read_only = !o->prompt_cache,
        .format = old ? MOEFLUX_STATE_V2 : MOEFLUX_STATE_V3,
        .tell = warn,
        .ctx = r,
    };
    return prompt_cache_load(&r->cache, &cache, &r->generator, e);
}

static int run_all(struct run *r, struct moeflux_err *e)
{
    const struct options *o = r->options;
    int rc = answer_grammar_read(o, &r->grammar, e);
    if (!rc)
        rc = prompt_read(&r->prompt, o, e);
    if (!rc && o->tools)
        rc = tools_read(o->tools, &r->tools, e);
    if (!rc && o->prompt_cache)
        rc = place_check("--prompt-cache", o->prompt_cache, e);
    if (!rc)
        rc = probe_open(&r->probe, o, r->out, e);
    if (!rc)
        rc = setup_open(&r->generator, o, &r->bar, e);
    if (!rc)
        rc = check_tokenizer(r, e);
    if (!rc && r->tools)
        rc = tools_check_model(&r->generator, "--tools", e);
    if (!rc)
        rc = encode(r, e);
    if (!rc)
        rc = setup_start(&r->generator, o, (uint32_t)o->ctx_size, e);
    if (!rc)
        rc = check_length(r, e);
    if (!rc)
        rc = load_cache(r, e);
    if (!rc)
        rc = prepare(r, e);
    if (!rc)
        rc = generate(r, e);
    if (!rc && o->json)
        rc = print_json(r, e);
    if (!rc && !o->json)
        logprob_lines_say(r->generator.tokenizer, &r->answer);
    if (!rc)
        run_tell_thinking(&r->answer);
    if (!rc && o->stats)
        stats_print(&r->stats, &r->answer, &r->generator);
    if (!rc && r->cache.unwritten.code)
        rc = err_set(e, r->cache.unwritten.code, "%s", r->cache.unwritten.text);
    if (!rc && r->answer.stop == ANSWER_INTERRUPTED)
        rc = err_set(e, ERR_INTERRUPTED, "interrupted");
    return rc;
}

int run_once(const struct options *o, const struct term *t, struct output *out, struct moeflux_err *e)
{
    struct run r = {.options = o, .term = t, .out = out};
    if (signals_catch_interrupt(e))
        return ERR_IO;
    bar_init(&r.bar, t);
    int rc = run_all(&r, e);
    rc = setup_save_usage(&r.generator, o, rc, e);
    bar_end(&r.bar);
    answer_free(&r.answer);
    constraint_free(r.constraint);
    json_decref(r.tools);
    token_list_free(&r.tokens);
    generator_close(&r.generator);
    probe_close(&r.probe);
    prompt_free(&r.prompt);
    str_free(&r.grammar);
    return rc;
}
