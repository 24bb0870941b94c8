#include "cli/talk/talk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/exit.h"
#include "cli/report/logprob_lines.h"
#include "cli/options/options.h"
#include "cli/output.h"
#include "cli/run.h"
#include "cli/talk/saved.h"
#include "cli/say.h"
#include "cli/signals.h"
#include "cli/terminal/line.h"
#include "cli/terminal/printer.h"
#include "cli/terminal/term.h"
#include "generate/choice.h"
#include "generate/prefill.h"
#include "moeflux.h"

static void say_dressed(const struct talk *t, const char *text)
{
    bool dress = t->term->err_dress;
    if (dress)
        say_escape(term_dim);
    say("%s", text);
    if (dress)
        say_escape(term_plain);
}

void talk_note(const struct talk *t, const char *text)
{
    say_dressed(t, text);
    say("\n");
}

/* ---- evaluation ---- */

static int new_sampler(struct talk *t, uint64_t seed, uint32_t n, struct moeflux_err *e)
{
    struct sampler_options sampling = options_sampling(t->options, seed);
    return generator_new_sampler(&t->generator, &sampling, t->conversation.tokens.ids, n, e);
}

/* Keeps the logits after the question and a checkpoint, so that /retry need not evaluate it again. */
static int keep_first(struct talk *t, struct moeflux_err *e)
{
    struct generator *s = &t->generator;
    if (!t->first_logits && !(t->first_logits = mem_new(s->info.vocab_size, sizeof(float), e)))
        return ERR_MEMORY;
    int rc = moeflux_session_checkpoint(s->sequence, e);
    if (rc)
        return rc == ERR_MEMORY ? 0 : rc;
    memcpy(t->first_logits, s->logits, s->info.vocab_size * sizeof(float));
    t->first_at = moeflux_session_position(s->sequence);
    return 0;
}

/* Evaluates the part of the conversation, up to the last question's end, that the sequence lacks; a function
 * for choice_answer. The sampler stays, unless the text was another one. */
static int evaluate(void *ctx, const struct choice *c, const struct sampler_options *sampling, uint32_t *n,
                    struct moeflux_err *e)
{
    struct talk *t = ctx;
    (void)c, (void)sampling;
    struct generator *s = &t->generator;
    struct prefill p = {.ids = t->conversation.tokens.ids, .n = conversation_last(&t->conversation)->asked};
    uint32_t before = moeflux_session_position(s->sequence), old_first = t->first_at, n_reused = 0;
    /* The next question's prompt will differ from this one there. */
    if (s->chat.n_opening > 0 && s->chat.n_opening < p.n)
        prefix_stop_at(&p.stops, p.n - s->chat.n_opening, 1);
    t->is_kept = false;
    t->first_at = 0;
    int rc = prefill_begin(s, &p, &n_reused, e);
    if (!rc && (n_reused != before || t->is_reseeded))
        rc = new_sampler(t, s->seed, n_reused, e);
    t->is_reseeded = false;
    /* Only the last question can be asked again; /undo goes to the checkpoint before the question. */
    if (!rc && old_first && old_first != n_reused)
        moeflux_session_drop_checkpoint(s->sequence, old_first, NULL);
    prefix_stop_at(&p.stops, n_reused, 1);
    t->stats = (struct stats){.n_prompt = p.n - n_reused, .n_reused = n_reused, .start_ns = clock_ns()};
    if (!rc)
        rc = prefill_run(s, &p, NULL, e);
    t->stats.prefill_ns = clock_ns() - t->stats.start_ns;
    *n = n_reused;
    bar_hold(&t->bar);
    return rc ? rc : keep_first(t, e);
}

/* Does nothing: the sequence is at the last question's end. */
static int stay(void *ctx, const struct choice *c, const struct sampler_options *sampling, uint32_t *n,
                struct moeflux_err *e)
{
    const struct talk *t = ctx;
    (void)c, (void)sampling, (void)e;
    *n = t->first_at;
    return 0;
}

/* Restores the checkpoint at the last question's end. False: there is none. */
static bool restore_question(struct talk *t)
{
    struct generator *s = &t->generator;
    uint32_t at = t->first_at;
    if (!at || at != conversation_last(&t->conversation)->asked ||
        moeflux_session_restore(s->sequence, at, NULL))
        return false;
    memcpy(s->logits, t->first_logits, s->info.vocab_size * sizeof(float));
    t->stats = (struct stats){.n_reused = at, .start_ns = clock_ns()};
    t->is_kept = false;
    return true;
}

/* ---- answers ---- */

/* evaluated: the sequence is at the answer's beginning, or at `continues`, the text that it goes on from;
 * NULL: it begins. */
static int generate(struct talk *t, bool evaluated, const char *continues, bool in_thinking,
                    struct moeflux_err *e)
{
    const struct options *o = t->options;
    struct printer printer;
    struct choice choice = {.request.options = options_request(o)};
    struct request_options *request = &choice.request.options;
    request->raw = false;
    request->continues = continues;
    request->continues_thinking = in_thinking;
    request->grammar = t->grammar;
    int rc = request_use_chat(request, &t->generator, "the answer", e);
    if (rc)
        return rc;
    printer_init(&printer, t->out, o, t->term);
    const struct choice_call call = {.generator = &t->generator,
                                     .grammars = &t->generator,
                                     .sink = printer_sink(&printer),
                                     .prefill = evaluated ? stay : evaluate,
                                     .ctx = t};
    rc = choice_answer(&choice, &call, &t->answer, e);
    struct moeflux_err closing;
    int ended = printer_end(&printer, &closing);
    bar_end(&t->bar);
    return !rc && ended ? err_set(e, closing.code, "%s", closing.text) : rc;
}

/* Prints how fast the answer came, unless --stats says it. */
static void tell_speed(const struct talk *t)
{
    const struct options *o = t->options;
    const struct answer *a = &t->answer;
    char text[128], prompt[48] = "", speed[32] = "";
    if (o->no_speed || o->stats || o->log_level < EXIT_INFO || !a->tokens.n)
        return;
    if (t->stats.n_prompt && t->stats.prefill_ns)
        snprintf(prompt, sizeof prompt, "prompt %u tokens, %.4g tok/s; ", t->stats.n_prompt,
                 stats_rate(t->stats.n_prompt, t->stats.prefill_ns));
    if (a->n_decoded && a->decode_ns)
        snprintf(speed, sizeof speed, ", %.4g tok/s", stats_rate(a->n_decoded, a->decode_ns));
    snprintf(text, sizeof text, "[%sanswer %zu tokens%s]", prompt, a->tokens.n, speed);
    talk_note(t, text);
}

static void tell_stop(const struct talk *t)
{
    char text[96];
    snprintf(text, sizeof text, "[stopped at -n %lld: /continue goes on]", (long long)t->options->predict);
    if (t->answer.stop == ANSWER_INTERRUPTED)
        talk_note(t, t->answer.tokens.n ? "[stopped: /continue goes on]" : "[stopped: /retry asks again]");
    else if (t->answer.stop == ANSWER_LENGTH)
        talk_note(t, text);
    else if (t->answer.stop == ANSWER_CONTEXT)
        talk_note(t, "[the context is full: /undo goes back, /clear starts anew, -c makes it larger]");
}

/* Answers the last question. A failure leaves it without an answer. */
static void report_answer(const struct talk *t)
{
    signals_clear();
    if (!t->is_script)
        tell_stop(t);
    run_tell_thinking(&t->answer);
    logprob_lines_say(t->generator.tokenizer, &t->answer);
    if (t->options->stats)
        stats_print(&t->stats, &t->answer, &t->generator);
    if (!t->is_script)
        tell_speed(t);
}

static int answer_last(struct talk *t, bool evaluated, struct moeflux_err *e)
{
    /* The question is saved before its answer, which may take long. */
    talk_keep_quietly(t, false);
    answer_free(&t->answer);
    t->answer.stop = ANSWER_INTERRUPTED;
    if (t->line)
        line_hold(t->line);
    int rc = generate(t, evaluated, NULL, false, e);
    if (rc && rc != ERR_INTERRUPTED)
        return rc;
    report_answer(t);
    return t->answer.tokens.n ? conversation_answer(&t->conversation, &t->generator, &t->answer, e) : 0;
}

static int answer_or_report(struct talk *t, bool evaluated, struct moeflux_err *e)
{
    int rc = answer_last(t, evaluated, e);
    if (rc && (t->out->fault.code || t->is_script)) {
        /* The question is saved for another try, with what was answered. */
        talk_keep_quietly(t, false);
        return rc;
    }
    if (rc) {
        exit_report(rc, e);
        talk_note(t, "[the question has no answer: /retry asks it again]");
    }
    talk_keep_quietly(t, false);
    return 0;
}

/* Appends the question, or replaces the last one (`instead`). Works on a copy: a question that does not fit
 * changes nothing. */
static int put_question(struct talk *t, const char *question, bool instead, struct moeflux_err *e)
{
    struct conversation next;
    size_t n_replaced = 0;
    /* An attached file stays attached until a question takes it. */
    struct str whole = {0};
    str_addf(&whole, "%s%s", str_text(&t->attached), question);
    int rc = str_ok(&whole) ? conversation_copy(&next, &t->conversation, e)
                            : err_set(e, ERR_MEMORY, "out of memory for the question");
    if (rc) {
        str_free(&whole);
        return rc;
    }
    if (instead)
        conversation_undo(&next);
    rc = conversation_ask(&next, &t->generator.chat, str_text(&whole), &n_replaced, e);
    run_tell_replaced(t->options, n_replaced);
    if (!rc)
        rc = generator_check_ids(&t->generator, &next.tokens, e);
    if (!rc && next.tokens.n > t->generator.max_context)
        rc = err_set(e, ERR_USAGE,
                     "with this question the conversation has %zu tokens, the context holds %u "
                     "(/undo goes back, /clear starts a new one, -c makes it larger)",
                     next.tokens.n, t->generator.max_context);
    struct conversation old = rc ? next : t->conversation;
    if (!rc) {
        t->conversation = next;
        str_clear(&t->attached);
    }
    conversation_free(&old);
    str_free(&whole);
    return rc;
}

/* Draws a seed for the next answer if --seed or /set seed is -1. */
static int draw_seed(struct talk *t, struct moeflux_err *e)
{
    if (t->options->seed >= 0)
        return 0;
    t->is_reseeded = true;
    return generator_draw_seed(&t->generator.seed, e);
}

static int ask(struct talk *t, const char *text, bool instead, struct moeflux_err *e)
{
    int rc = put_question(t, text, instead, e);
    if (!rc)
        rc = draw_seed(t, e);
    if (rc && !t->is_script)
        exit_report(rc, e);
    if (rc)
        return t->is_script ? rc : 0;
    return answer_or_report(t, false, e);
}

int talk_ask(struct talk *t, const char *text, struct moeflux_err *e)
{
    return ask(t, text, false, e);
}

int talk_ask_instead(struct talk *t, const char *text, struct moeflux_err *e)
{
    return ask(t, text, true, e);
}

int talk_retry(struct talk *t, struct moeflux_err *e)
{
    struct turn *last = conversation_last(&t->conversation);
    if (!last) {
        talk_note(t, "[nothing was asked yet]");
        return 0;
    }
    if (last->answered && last->stop != ANSWER_INTERRUPTED && t->options->sampling.temperature == 0)
        talk_note(t, "[--temp 0 gives the same answer each time]");
    int rc = conversation_ask_again(&t->conversation, &t->generator.chat, e);
    bool evaluated = !rc && restore_question(t);
    t->generator.seed++;
    t->is_reseeded = true;
    if (!rc)
        rc = draw_seed(t, e);
    if (!rc)
        rc = evaluated ? new_sampler(t, t->generator.seed, last->asked, e) : 0;
    if (!rc)
        return answer_or_report(t, evaluated, e);
    exit_report(rc, e);
    return 0;
}

/* Evaluates the answer so far, of which the sequence mostly has all but the last token. */
static int evaluate_rest(struct talk *t, struct moeflux_err *e)
{
    struct generator *s = &t->generator;
    struct prefill p = {.ids = t->conversation.tokens.ids, .n = (uint32_t)t->conversation.tokens.n};
    uint32_t before = moeflux_session_position(s->sequence), n_reused;
    t->is_kept = false;
    int rc = prefill_begin(s, &p, &n_reused, e);
    if (!rc && (n_reused != before || t->is_reseeded))
        rc = new_sampler(t, s->seed, n_reused, e);
    t->is_reseeded = false;
    t->first_at = n_reused < t->first_at ? 0 : t->first_at;
    t->stats = (struct stats){.n_prompt = p.n - n_reused, .n_reused = n_reused, .start_ns = clock_ns()};
    if (!rc)
        rc = prefill_run(s, &p, NULL, e);
    t->stats.prefill_ns = clock_ns() - t->stats.start_ns;
    bar_hold(&t->bar);
    return rc;
}

static int continue_last(struct talk *t, bool in_thinking, struct moeflux_err *e)
{
    const struct turn *last = conversation_last(&t->conversation);
    char *text = mem_text(str_text(&last->answer), e);
    answer_free(&t->answer);
    t->answer.stop = ANSWER_INTERRUPTED;
    if (t->line)
        line_hold(t->line);
    int rc = text ? evaluate_rest(t, e) : ERR_MEMORY;
    if (!rc)
        rc = generate(t, true, text, in_thinking, e);
    free(text);
    /* Without more tokens it is closed as it was. */
    struct moeflux_err closing;
    int closed = conversation_continue(&t->conversation, &t->generator, &t->answer, rc ? &closing : e);
    if (!rc || rc == ERR_INTERRUPTED)
        report_answer(t);
    return rc == ERR_INTERRUPTED || !rc ? closed : rc;
}

int talk_continue(struct talk *t, struct moeflux_err *e)
{
    bool in_thinking;
    if (t->conversation.tokens.n >= t->generator.max_context) {
        talk_note(t, "[the context is full: /undo goes back, /clear starts anew, -c makes it larger]");
        return 0;
    }
    if (!conversation_reopen(&t->conversation, &t->generator.chat, &in_thinking)) {
        talk_note(t, "[no answer was stopped before its end]");
        return 0;
    }
    int rc = continue_last(t, in_thinking, e);
    if (rc && t->out->fault.code)
        return rc;
    if (rc)
        exit_report(rc, e);
    talk_keep_quietly(t, false);
    return 0;
}

int talk_undo(struct talk *t, struct moeflux_err *e)
{
    (void)e;
    struct conversation *c = &t->conversation;
    if (!conversation_last(c)) {
        talk_note(t, "[nothing was asked yet]");
        return 0;
    }
    conversation_undo(c);
    char text[96];
    snprintf(text, sizeof text, "[back before the last question: %zu tokens are left]", c->tokens.n);
    talk_note(t, text);
    talk_keep_quietly(t, false);
    return 0;
}

int talk_clear(struct talk *t, struct moeflux_err *e)
{
    talk_keep_quietly(t, true);
    free(t->name);
    t->name = NULL;
    t->n_kept = t->first_at = 0;
    conversation_clear(&t->conversation);
    sampler_reset(t->generator.sampler);
    return moeflux_session_clear(t->generator.sequence, e);
}

/* ---- files ---- */

/* Whether the sequence has grown by an eighth, at least 256 tokens, since its state was saved. So the time
 * for saving stays in proportion to the conversation. */
static bool has_grown(const struct talk *t)
{
    uint32_t least = t->n_kept / 8 > 256 ? t->n_kept / 8 : 256;
    return moeflux_session_position(t->generator.sequence) > t->n_kept + least;
}

static int keep_state(struct talk *t, struct moeflux_err *e)
{
    char *path = saved_state_path(t->name, e);
    int rc = path ? moeflux_session_save(t->generator.sequence, path, MOEFLUX_STATE_V3, e) : ERR_IO;
    bar_end(&t->bar);
    if (!rc) {
        chmod(path, 0600);
        t->n_kept = moeflux_session_position(t->generator.sequence);
        t->is_kept = true;
    }
    free(path);
    return rc;
}

/* Saves the conversation under another name, since another program has changed the session: both are kept. */
static int keep_under_other_name(struct talk *t, uint64_t fingerprint, struct moeflux_err *e)
{
    enum { MOST = 99 };
    char text[256], *name = NULL;
    int rc = SAVED_CHANGED;
    for (unsigned n = 2; rc == SAVED_CHANGED && n <= MOST; n++) {
        free(name);
        if (!(name = saved_other_name(t->name, n, e)))
            return ERR_MEMORY;
        t->seen = 0;
        rc = saved_write(name, &t->conversation, t->options->model, fingerprint, &t->seen, e);
    }
    if (rc == SAVED_CHANGED)
        rc = err_set(e, ERR_IO, "session %s was changed by another program, and so were %d others", t->name,
                     MOST);
    if (rc) {
        free(name);
        return rc;
    }
    snprintf(text, sizeof text,
             "[session %s was changed by another program; this conversation is saved as %s from now on]",
             t->name, name);
    talk_note(t, text);
    free(t->name);
    t->name = name;
    t->is_kept = false;
    t->n_kept = 0;
    return 0;
}

int talk_keep(struct talk *t, bool all, struct moeflux_err *e)
{
    uint64_t fingerprint;
    if (!t->name)
        return 0;
    int rc = moeflux_model_fingerprint(t->generator.model, &fingerprint, e);
    if (!rc)
        rc = saved_write(t->name, &t->conversation, t->options->model, fingerprint, &t->seen, e);
    if (rc == SAVED_CHANGED)
        rc = keep_under_other_name(t, fingerprint, e);
    if (!rc && !t->is_kept && (all || has_grown(t)))
        rc = keep_state(t, e);
    return rc;
}

bool talk_keep_quietly(struct talk *t, bool all)
{
    struct moeflux_err e;
    int rc = talk_keep(t, all, &e);
    if (rc == ERR_INTERRUPTED)
        talk_note(t, "[the state was not saved; its tokens are]");
    else if (rc)
        exit_report(rc, &e);
    signals_clear();
    return rc == 0 || rc == ERR_INTERRUPTED;
}

static int check_saved(const struct talk *t, const char *name, const struct saved *s, struct moeflux_err *e)
{
    const struct token_list *tokens = &s->conversation.tokens;
    uint64_t own;
    int rc = moeflux_model_fingerprint(t->generator.model, &own, e);
    if (rc)
        return rc;
    if (own != s->fingerprint)
        return err_set(e, ERR_USAGE,
                       "session %s was held with another model, or other --active-experts, --expert-share or "
                       "--prefer-resident: %s",
                       name, str_text(&s->model));
    for (size_t i = 0; i < tokens->n; i++)
        if ((uint32_t)tokens->ids[i] >= t->generator.info.vocab_size)
            return err_set(e, ERR_FORMAT, "session %s: token %zu is %d, expected less than %u", name, i,
                           tokens->ids[i], t->generator.info.vocab_size);
    const struct turn *last = conversation_last(&s->conversation);
    if (last && last->asked > t->generator.max_context)
        return err_set(e, ERR_USAGE, "session %s has %u tokens, the context holds %u (-c)", name, last->asked,
                       t->generator.max_context);
    return 0;
}

/* Loads the state. Without it the tokens are evaluated again, which only takes time. */
static int load_state(struct talk *t, struct moeflux_err *e)
{
    struct moeflux_err why = {0};
    char *path = saved_state_path(t->name, e);
    if (!path)
        return ERR_IO;
    int rc = moeflux_session_load(t->generator.sequence, path, &why);
    bar_end(&t->bar);
    free(path);
    t->is_kept = rc == 0;
    t->n_kept = moeflux_session_position(t->generator.sequence);
    t->is_reseeded = true;
    if (rc == 0)
        return 0;
    if (rc == ERR_DEVICE || rc == ERR_LOST)
        return err_set(e, rc, "%s", why.text);
    char text[sizeof why.text + 80];
    snprintf(text, sizeof text, "%s; the conversation is computed again with the next question",
             rc == ERR_INTERRUPTED ? "interrupted" : why.text);
    exit_warn(text);
    signals_clear();
    return 0;
}

int talk_load(struct talk *t, const char *name, struct moeflux_err *e)
{
    struct saved s;
    int rc = saved_read(name, &s, e);
    if (rc)
        return rc;
    rc = check_saved(t, name, &s, e);
    char *copy = rc ? NULL : mem_text(name, e);
    if (!rc && !copy)
        rc = ERR_MEMORY;
    if (!rc)
        rc = talk_clear(t, e);
    if (!rc) {
        conversation_free(&t->conversation);
        t->conversation = s.conversation;
        s.conversation = (struct conversation){0};
        t->name = copy;
        t->seen = s.seen;
        copy = NULL;
        rc = load_state(t, e);
    }
    free(copy);
    saved_free(&s);
    return rc;
}

/* ---- what was said ---- */

void talk_show(const struct talk *t, size_t n)
{
    const struct conversation *c = &t->conversation;
    size_t first = n < c->n_turns ? c->n_turns - n : 0;
    for (size_t i = first; i < c->n_turns; i++) {
        const struct turn *turn = &c->turns[i];
        struct str question = {0};
        str_addf(&question, "[%zu] %s", i + 1, str_text(&turn->question));
        say_dressed(t, str_text(&question));
        say("\n%s\n", turn->answered ? str_text(&turn->answer) : "[no answer: /retry asks again]");
        str_free(&question);
    }
    if (first)
        talk_note(t, "[/show prints what was before]");
}

void talk_free(struct talk *t)
{
    free(t->first_logits);
    free(t->name);
    answer_free(&t->answer);
    conversation_free(&t->conversation);
    free(t->grammar);
    str_free(&t->attached);
    free(t->set_text);
    generator_close(&t->generator);
}
