#include "cli/run.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "cli/exit.h"
#include "cli/options/answer_grammar.h"
#include "cli/report/answer_fields.h"
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
#include "generate/choice.h"
#include "generate/generator.h"
#include "generate/prompt_cache.h"
#include "generate/tools.h"
#include "moeflux.h"

/* Everything that one run owns; zeroed at first. */
struct run {
    const struct options *options;
    const struct term *term;
    struct output *out;
    struct bar bar;
    struct prompt prompt;
    char *grammar; /* the answer must fit it; NULL: none */
    struct probe probe;
    struct generator generator;
    struct prompt_cache cache;
    struct choice choice; /* its strings are borrowed */
    uint32_t n_system;    /* leading tokens that are the system text's */
    struct json_t *tools; /* NULL: none */
    struct answer answer;
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
    struct token_list *tokens = &r->choice.request.tokens;
    struct chat_prompt prompt = {.messages = messages, .tools = r->tools, .opens_answer = true};
    int rc = messages ? 0 : err_set(e, ERR_MEMORY, "out of memory for a prompt");
    if (!rc && system && *system)
        rc = chat_say(messages, "system", system, strlen(system), n_replaced, e);
    if (!rc)
        rc = chat_say(messages, "user", text, len, n_replaced, e);
    if (!rc)
        rc = chat_prompt_tokens(&r->generator.chat, &prompt, tokens, &r->n_system, e);
    json_decref(messages);
    return rc;
}

static int encode(struct run *r, struct moeflux_err *e)
{
    const struct options *o = r->options;
    const struct str *text = &r->prompt.text;
    struct token_list *tokens = &r->choice.request.tokens;
    size_t n_replaced = 0;
    int rc = 0;
    if (r->prompt.is_ids) {
        /* The list is moved, so that one of them owns the ids. */
        *tokens = r->prompt.ids;
        r->prompt.ids = (struct token_list){0};
        return 0;
    }
    if (o->raw) {
        rc = generator_encode(&r->generator, str_text(text), text->len, SPECIALS_AS_TOKENS, tokens,
                              &n_replaced, e);
    } else {
        rc = encode_messages(r, str_text(text), text->len, &n_replaced, e);
    }
    run_tell_replaced(o, n_replaced);
    return rc ? rc : generator_check_ids(&r->generator, tokens, e);
}

static int check_length(const struct run *r, struct moeflux_err *e)
{
    size_t n = r->choice.request.tokens.n;
    uint32_t most = r->generator.max_context;
    if (n > most)
        return err_set(e, ERR_USAGE, "the prompt has %zu tokens, the context holds %u (-c)", n, most);
    return 0;
}

/* Evaluates the prompt, for choice_answer. */
static int prefill(void *ctx, const struct choice *c, const struct sampler_options *sampling,
                   uint32_t *n_reused, struct moeflux_err *e)
{
    struct run *r = ctx;
    struct moeflux_outputs outputs = {0};
    struct generator *s = &r->generator;
    const struct token_list *tokens = &c->request.tokens;
    int rc = probe_begin(&r->probe, &s->info, tokens, &outputs, e);
    if (rc)
        return rc;
    r->cache.n_system = r->n_system;
    rc = prompt_cache_eval(&r->cache, s, tokens, sampling, &outputs, e);
    *n_reused = r->cache.n_reused;
    bar_hold(&r->bar);
    return rc ? rc : probe_finish(&r->probe, s->logits, e);
}

static int print_json(struct run *r, struct moeflux_err *e)
{
    const struct answer *a = &r->answer;
    const struct generator *s = &r->generator;
    const struct stats st = stats_of(&r->choice);
    json_t *object = json_object();
    answer_fields_add(object, s->tokenizer, a, r->choice.request.tokens.n, st.n_reused,
                      r->options->logprobs != REQUEST_NO_LOGPROBS);
    json_object_set_new(object, "prefill_tok_s", stats_number(stats_rate(st.n_prompt, st.prefill_ns)));
    json_object_set_new(object, "decode_tok_s", stats_number(stats_rate(a->n_decoded, a->decode_ns)));
    json_object_set_new(object, "time_to_first_token_s", stats_number(stats_first_token_s(st.start_ns, a)));
    json_object_set_new(object, "load_s", json_real((double)s->load_ns / 1e9));
    json_object_set_new(object, "seed", json_integer((json_int_t)s->seed));
    json_object_set_new(object, "model", output_json_text(r->options->model, strlen(r->options->model)));
    json_object_set_new(object, "architecture", json_string(s->info.architecture));
    json_object_set_new(object, "device", json_string(s->info.device));
    if (r->options->json_full)
        json_object_set_new(object, "stats", stats_engine_json(s));
    return output_json(r->out, object, e);
}

static int answer(struct run *r, struct moeflux_err *e)
{
    const struct options *o = r->options;
    struct request_options *request = &r->choice.request.options;
    struct printer printer;
    *request = options_request(o);
    request->raw = !uses_chat(r);
    request->predict = answer_limit(o);
    request->tools = r->tools;
    request->grammar = r->grammar;
    r->choice.seed = r->generator.seed;
    int rc = request->raw ? 0 : request_use_chat(request, &r->generator, "the answer", e);
    if (rc)
        return rc;
    struct choice_call call = {
        .generator = &r->generator, .grammars = &r->generator, .prefill = prefill, .ctx = r};
    printer_init(&printer, r->out, o, r->term);
    if (!o->json)
        call.sink = printer_sink(&printer);
    rc = choice_answer(&r->choice, &call, &r->answer, e);
    struct moeflux_err closing = {0};
    int ended = printer_end(&printer, &closing);
    bar_end(&r->bar);
    return !rc && ended ? err_set(e, closing.code, "%s", closing.text) : rc;
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
        rc = answer(r, e);
    if (!rc && o->json)
        rc = print_json(r, e);
    if (!rc && !o->json)
        logprob_lines_say(r->generator.tokenizer, &r->answer);
    if (!rc)
        run_tell_thinking(&r->answer);
    const struct stats st = stats_of(&r->choice);
    if (!rc && o->stats)
        stats_print(&st, &r->answer, &r->generator);
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
    json_decref(r.tools);
    choice_free(&r.choice);
    generator_close(&r.generator);
    probe_close(&r.probe);
    prompt_free(&r.prompt);
    free(r.grammar);
    return rc;
}
