#include "cli/run.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "cli/exit.h"
#include "cli/options/answer_grammar.h"
#include "cli/options/ask.h"
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
#include "moeflux_chat.h"

/* Everything that one run owns; zeroed at first. */
struct run {
    const struct options *options;
    const struct term *term;
    struct output *out;
    struct bar bar;
    struct prompt prompt;
    char *grammar; /* the answer must fit it; NULL: none */
    char *tools;   /* JSON; NULL: none */
    struct probe probe;
    struct printer printer;
    struct loaded loaded;
    struct moeflux_outputs outputs;
    struct moeflux_prompt_file file;
    struct moeflux_request *request;
    struct moeflux_answer *answer;
    struct moeflux_answer_info info; /* the answer's; zeroed: there is none */
};

void run_tell_replaced(const struct options *o, unsigned long n_replaced)
{
    char text[128];
    snprintf(text, sizeof text, "the prompt is not all UTF-8: %lu place%s replaced by U+FFFD", n_replaced,
             n_replaced == 1 ? "" : "s");
    if (n_replaced)
        exit_tell(o->log_level, EXIT_WARN, text);
}

void run_tell_context(const struct options *o, const struct loaded *l, const struct moeflux_answer_info *a)
{
    char text[128];
    if (a->stop != MOEFLUX_STOP_CONTEXT)
        return;
    snprintf(text, sizeof text, "the answer was cut: the context of %u tokens is full%s", l->max_context,
             l->max_context < l->info.max_context ? " (-c makes it larger)" : "");
    exit_tell(o->log_level, EXIT_WARN, text);
}

void run_tell_thinking(const struct moeflux_answer_info *a, bool talks)
{
    static const char *const why[] = {
        [MOEFLUX_STOP_EOS] = "the model ended it there",
        [MOEFLUX_STOP_LENGTH] = "-n ended it there",
        [MOEFLUX_STOP_CONTEXT] = "the context is full (-c)",
        [MOEFLUX_STOP_CALLS] = NULL,
    };
    char text[160];
    if (a->text_len || !a->thinking_len || a->n_calls || !why[a->stop])
        return;
    snprintf(text, sizeof text, "the answer is all thinking: %s; %s answers at once", why[a->stop],
             talks ? "/think off" : "--no-think");
    exit_warn(text);
}

static bool generates(const struct options *o)
{
    return o->predict == OPTIONS_NOT_GIVEN ? !options_probes(o) : o->predict != 0;
}

/* Checks that there is a tokenizer if the prompt or the answer is text. */
static int check_tokenizer(const struct run *r, struct moeflux_err *e)
{
    const struct options *o = r->options;
    if (!r->prompt.is_ids)
        return setup_need_tokenizer(&r->loaded, o, "a text prompt needs (use --tokens-in)", e);
    if (generates(o) && !o->tokens_out && !o->json)
        return setup_need_tokenizer(&r->loaded, o, "a text answer needs (use --tokens-out)", e);
    return 0;
}

static int set_prompt(struct run *r, struct moeflux_err *e)
{
    const struct options *o = r->options;
    const struct prompt *p = &r->prompt;
    struct str text = {0}, system = {0};
    if (p->is_ids)
        return moeflux_request_set_ids(r->request, p->ids.ids, p->ids.n, e);
    size_t n_replaced = prompt_clean(&text, str_text(&p->text), p->text.len);
    n_replaced += o->system ? prompt_clean(&system, o->system, strlen(o->system)) : 0;
    int rc = str_ok(&text) && str_ok(&system) ? 0 : err_set(e, ERR_MEMORY, "out of memory for a prompt");
    if (!rc && o->raw)
        rc = moeflux_request_set_text(r->request, "prompt", str_text(&text), e);
    if (!rc && !o->raw && system.len)
        rc = moeflux_request_say(r->request, "system", str_text(&system), e);
    if (!rc && !o->raw)
        rc = moeflux_request_say(r->request, "user", str_text(&text), e);
    run_tell_replaced(o, n_replaced);
    str_free(&text);
    str_free(&system);
    return rc;
}

static void warn(void *ctx, const char *text)
{
    const struct run *r = ctx;
    exit_tell(r->options->log_level, EXIT_WARN, text);
}

static int evaluated(void *ctx, const float *logits, struct moeflux_err *e)
{
    struct run *r = ctx;
    bar_hold(&r->bar);
    return probe_finish(&r->probe, logits, e);
}

static void set_alone(struct run *r)
{
    const struct options *o = r->options;
    bool old = o->state_format && strcmp(o->state_format, "v2") == 0;
    r->file = (struct moeflux_prompt_file){
        .path = o->prompt_cache ? o->prompt_cache : o->prompt_cache_ro,
        .read_only = !o->prompt_cache,
        .format = old ? MOEFLUX_STATE_V2 : MOEFLUX_STATE_V3,
        .warning = {warn, r},
    };
    const struct moeflux_alone alone = {
        .outputs = &r->outputs, .evaluated = evaluated, .ctx = r, .file = r->file.path ? &r->file : NULL};
    moeflux_request_set_alone(r->request, &alone);
}

static int make_request(struct run *r, struct moeflux_err *e)
{
    const struct options *o = r->options;
    int rc = ask_new(&r->request, o, e);
    if (!rc && !generates(o))
        rc = moeflux_request_set(r->request, "max_tokens", "0", e);
    if (!rc && r->tools)
        rc = moeflux_request_set(r->request, "tools", r->tools, e);
    if (!rc && r->grammar)
        rc = moeflux_request_set_text(r->request, "grammar", r->grammar, e);
    if (!rc)
        rc = set_prompt(r, e);
    if (!rc)
        set_alone(r);
    return rc;
}

/* The engine counts tokens from 0; messages about the file count its words from 1. */
static int check_ids(const struct run *r, struct moeflux_err *e)
{
    const struct token_list *ids = &r->prompt.ids;
    uint32_t vocab = r->loaded.info.vocab_size;
    for (size_t i = 0; i < ids->n; i++)
        if ((uint32_t)ids->ids[i] >= vocab)
            return err_set(e, ERR_USAGE, "--tokens-in: word %zu is %d, expected 0 to %u", i + 1, ids->ids[i],
                           vocab - 1);
    return 0;
}

/* Makes the prompt's tokens, which the probe writes, and compares them with the context. */
static int encode(struct run *r, struct moeflux_err *e)
{
    struct token_list ids = {0};
    if (check_ids(r, e))
        return ERR_USAGE;
    int64_t n = moeflux_chat_encode(r->loaded.chat, r->request, NULL, 0, e);
    if (n < 0)
        return (int)n;
    if (n > r->loaded.max_context)
        return err_set(e, ERR_USAGE, "the prompt has %lld tokens, the context holds %u (-c)", (long long)n,
                       r->loaded.max_context);
    int rc = token_list_resize(&ids, (size_t)n, e);
    if (!rc && moeflux_chat_encode(r->loaded.chat, r->request, ids.ids, ids.n, e) < 0)
        rc = (int)e->code;
    if (!rc)
        rc = probe_begin(&r->probe, &r->loaded.info, &ids, &r->outputs, e);
    token_list_free(&ids);
    return rc;
}

static int print_json(struct run *r, struct moeflux_err *e)
{
    const struct moeflux_answer_info *a = &r->info;
    const struct loaded *l = &r->loaded;
    json_t *object = json_object();
    answer_fields_add(object, moeflux_chat_tokenizer(l->chat), a);
    json_object_set_new(object, "prefill_tok_s",
                        stats_number(stats_rate(a->n_prompt - a->n_reused, a->prompt_ns)));
    json_object_set_new(object, "decode_tok_s", stats_number(stats_rate(a->n_decoded, a->decode_ns)));
    json_object_set_new(object, "time_to_first_token_s", stats_number(stats_first_token_s(a)));
    json_object_set_new(object, "load_s", json_real((double)l->load_ns / 1e9));
    json_object_set_new(object, "seed", json_integer((json_int_t)a->seed));
    json_object_set_new(object, "model", output_json_text(r->options->model, strlen(r->options->model)));
    json_object_set_new(object, "architecture", json_string(l->info.architecture));
    json_object_set_new(object, "device", json_string(l->info.device));
    if (r->options->json_full)
        json_object_set_new(object, "stats", stats_engine_json(l));
    return output_json(r->out, object, e);
}

static int answer(struct run *r, struct moeflux_err *e)
{
    const struct options *o = r->options;
    printer_init(&r->printer, r->out, o, r->term);
    int rc = moeflux_chat_answer(r->loaded.chat, r->loaded.session, r->request,
                                 o->json ? NULL : printer_piece, &r->printer, &r->answer, e);
    struct moeflux_err closing = {0};
    int ended = printer_end(&r->printer, &closing);
    bar_end(&r->bar);
    if (!rc)
        r->info = moeflux_answer_get_info(r->answer);
    return !rc && ended ? err_set(e, closing.code, "%s", closing.text) : rc;
}

static void tell_tools(const struct run *r)
{
    if (r->info.tools_are_unseen)
        exit_tell(r->options->log_level, EXIT_WARN,
                  "--tools: the chat template leaves tools out: the model does not see them");
}

static int report(struct run *r, struct moeflux_err *e)
{
    const struct options *o = r->options;
    int rc = o->json ? print_json(r, e) : 0;
    if (!rc && !o->json)
        logprob_lines_say(moeflux_chat_tokenizer(r->loaded.chat), &r->info);
    if (!rc)
        tell_tools(r);
    if (!rc)
        run_tell_thinking(&r->info, false);
    if (!rc)
        run_tell_context(o, &r->loaded, &r->info);
    if (!rc && o->stats)
        stats_print(&r->loaded, &r->info);
    if (!rc && r->file.err.code)
        rc = err_set(e, r->file.err.code, "%s", r->file.err.text);
    if (!rc && r->info.stop == MOEFLUX_STOP_INTERRUPTED)
        rc = err_set(e, ERR_INTERRUPTED, "interrupted");
    return rc;
}

/* Reads all that the user gives, before the model is opened. */
static int read_all(struct run *r, struct moeflux_err *e)
{
    const struct options *o = r->options;
    int rc = answer_grammar_read(o, &r->grammar, e);
    if (!rc)
        rc = prompt_read(&r->prompt, o, e);
    if (!rc && o->tools)
        rc = moeflux_tools_read(o->tools, &r->tools, e);
    if (!rc && o->prompt_cache)
        rc = place_check("--prompt-cache", o->prompt_cache, e);
    return rc ? rc : probe_open(&r->probe, o, r->out, e);
}

static int run_all(struct run *r, struct moeflux_err *e)
{
    const struct options *o = r->options;
    int rc = read_all(r, e);
    if (!rc)
        rc = setup_open(&r->loaded, o, &r->bar, e);
    if (!rc)
        rc = check_tokenizer(r, e);
    if (!rc)
        rc = setup_chat(&r->loaded, o, e);
    if (!rc && r->tools)
        rc = moeflux_chat_check_tools(r->loaded.chat, "--tools", e);
    if (!rc)
        rc = make_request(r, e);
    if (!rc)
        rc = setup_start(&r->loaded, o, (uint32_t)o->ctx_size, e);
    if (!rc)
        rc = ask_whole(r->request, "seed", (long long)r->loaded.seed, e);
    if (!rc)
        rc = encode(r, e);
    if (!rc)
        rc = answer(r, e);
    return rc ? rc : report(r, e);
}

int run_once(const struct options *o, const struct term *t, struct output *out, struct moeflux_err *e)
{
    struct run r = {.options = o, .term = t, .out = out};
    if (signals_catch_interrupt(e))
        return ERR_IO;
    bar_init(&r.bar, t);
    int rc = run_all(&r, e);
    rc = setup_save_usage(&r.loaded, o, rc, e);
    bar_end(&r.bar);
    moeflux_answer_free(r.answer);
    moeflux_request_free(r.request);
    setup_close(&r.loaded);
    probe_close(&r.probe);
    prompt_free(&r.prompt);
    free(r.grammar);
    free(r.tools);
    return rc;
}
