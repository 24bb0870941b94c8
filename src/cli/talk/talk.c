#include "cli/talk/talk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "cli/exit.h"
#include "cli/report/logprob_lines.h"
#include "cli/options/ask.h"
#include "cli/options/options.h"
#include "cli/output.h"
#include "cli/prompt.h"
#include "cli/report/stats.h"
#include "cli/run.h"
#include "cli/talk/saved.h"
#include "cli/say.h"
#include "cli/signals.h"
#include "cli/terminal/line.h"
#include "cli/terminal/printer.h"
#include "cli/terminal/term.h"
#include "moeflux_chat.h"

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

/* ---- the conversation ---- */

const char *talk_system(const struct talk *t)
{
    return moeflux_conversation_get_info(t->conversation).system;
}

static size_t n_tokens(const struct talk *t)
{
    return moeflux_conversation_get_info(t->conversation).n_tokens;
}

/* Returns the turns, from malloc; NULL: there are none. */
static struct moeflux_turn *list_turns(const struct moeflux_conversation *c, size_t *n)
{
    *n = moeflux_conversation_list(c, NULL, 0);
    struct moeflux_turn *all = *n ? mem_new(*n, sizeof *all, NULL) : NULL;
    *n = all ? moeflux_conversation_list(c, all, *n) : 0;
    return all;
}

static struct moeflux_turn last_of(const struct moeflux_conversation *c)
{
    size_t n;
    struct moeflux_turn *all = list_turns(c, &n);
    struct moeflux_turn last = n ? all[n - 1] : (struct moeflux_turn){0};
    free(all);
    return last;
}

struct moeflux_turn talk_last(const struct talk *t)
{
    return last_of(t->conversation);
}

int talk_how(const struct talk *t, struct moeflux_request **out, struct moeflux_err *e)
{
    int rc = ask_new(out, t->options, e);
    if (!rc && t->grammar)
        rc = moeflux_request_set_text(*out, "grammar", t->grammar, e);
    return rc;
}

int talk_use_options(struct talk *t, struct moeflux_err *e)
{
    struct moeflux_request *how;
    int rc = talk_how(t, &how, e);
    if (!rc)
        rc = moeflux_conversation_use(t->conversation, how, e);
    moeflux_request_free(how);
    return rc;
}

/* ---- answers ---- */

static bool print_piece(void *ctx, const struct moeflux_piece *p)
{
    struct talk *t = ctx;
    bar_hold(&t->bar);
    return printer_piece(&t->printer, p);
}

typedef int answering(struct moeflux_conversation *v, bool (*piece)(void *, const struct moeflux_piece *),
                      void *ctx, struct moeflux_answer **out, struct moeflux_err *e);

/* Computes an answer and prints it. */
static int generate(struct talk *t, answering *compute, struct moeflux_err *e)
{
    moeflux_answer_free(t->answer);
    t->answer = NULL;
    t->info = (struct moeflux_answer_info){.stop = MOEFLUX_STOP_INTERRUPTED, .seed = t->loaded.seed};
    t->is_kept = false;
    if (t->line)
        line_hold(t->line);
    printer_init(&t->printer, t->out, t->options, t->term);
    int rc = compute(t->conversation, print_piece, t, &t->answer, e);
    struct moeflux_err closing;
    int ended = printer_end(&t->printer, &closing);
    bar_end(&t->bar);
    if (t->answer)
        t->info = moeflux_answer_get_info(t->answer);
    return !rc && ended ? err_set(e, closing.code, "%s", closing.text) : rc;
}

/* Prints how fast the answer came, unless --stats says it. */
static void tell_speed(const struct talk *t)
{
    const struct options *o = t->options;
    const struct moeflux_answer_info *a = &t->info;
    char text[128], prompt[48] = "", speed[32] = "";
    uint32_t n_prompt = a->n_prompt - a->n_reused;
    if (o->no_speed || o->stats || o->log_level < EXIT_INFO || !a->n_tokens)
        return;
    if (n_prompt && a->prompt_ns)
        snprintf(prompt, sizeof prompt, "prompt %u tokens, %.4g tok/s; ", n_prompt,
                 stats_rate(n_prompt, a->prompt_ns));
    if (a->n_decoded && a->decode_ns)
        snprintf(speed, sizeof speed, ", %.4g tok/s", stats_rate(a->n_decoded, a->decode_ns));
    snprintf(text, sizeof text, "[%sanswer %u tokens%s]", prompt, a->n_tokens, speed);
    talk_note(t, text);
}

/* Says what to do about a full context. */
static void note_full(const struct talk *t)
{
    bool grows = t->loaded.max_context < t->loaded.info.max_context;
    talk_note(t, grows ? "[the context is full: /undo goes back, /clear starts anew, -c makes it larger]"
                       : "[the context is full: /undo goes back, /clear starts anew]");
}

static void tell_stop(const struct talk *t)
{
    char text[96];
    snprintf(text, sizeof text, "[stopped at -n %lld: /continue goes on]", (long long)t->options->predict);
    if (t->info.stop == MOEFLUX_STOP_INTERRUPTED)
        talk_note(t, t->info.n_tokens ? "[stopped: /continue goes on]" : "[stopped: /retry asks again]");
    else if (t->info.stop == MOEFLUX_STOP_LENGTH)
        talk_note(t, text);
    else if (t->info.stop == MOEFLUX_STOP_CONTEXT)
        note_full(t);
}

static void report_answer(const struct talk *t)
{
    signals_clear();
    if (t->is_script)
        run_tell_context(t->options, &t->loaded, &t->info);
    else
        tell_stop(t);
    run_tell_thinking(&t->info, !t->is_script);
    logprob_lines_say(moeflux_chat_tokenizer(t->loaded.chat), &t->info);
    if (t->options->stats)
        stats_print(&t->loaded, &t->info);
    if (!t->is_script)
        tell_speed(t);
}

/* Answers the last question. A failure leaves it without an answer. */
static int answer_last(struct talk *t, struct moeflux_err *e)
{
    /* The question is saved before its answer, which may take long. */
    talk_keep_quietly(t, false);
    int rc = generate(t, moeflux_conversation_answer, e);
    if (!rc)
        report_answer(t);
    else if (t->out->fault.code)
        moeflux_conversation_unanswer(t->conversation);
    return rc;
}

static int answer_or_report(struct talk *t, struct moeflux_err *e)
{
    int rc = answer_last(t, e);
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

/* Appends the question, or replaces the last one (`instead`). */
static int put_question(struct talk *t, const char *question, bool instead, struct moeflux_err *e)
{
    /* An attached file stays attached until a question takes it. */
    struct str whole = {0}, clean = {0};
    str_addf(&whole, "%s%s", str_text(&t->attached), question);
    size_t n_replaced = prompt_clean(&clean, str_text(&whole), whole.len);
    int rc = str_ok(&whole) && str_ok(&clean) ? 0 : err_set(e, ERR_MEMORY, "out of memory for the question");
    struct moeflux_err why;
    if (!rc)
        rc = moeflux_conversation_ask(t->conversation, str_text(&clean), instead, &why);
    run_tell_replaced(t->options, n_replaced);
    if (rc == ERR_NO_FIT) {
        bool grows = t->loaded.max_context < t->loaded.info.max_context;
        const char *more = t->is_script ? (grows ? " (-c makes it larger)" : "")
                           : grows      ? " (/undo goes back, /clear starts a new one, -c makes it larger)"
                                        : " (/undo goes back, /clear starts a new one)";
        rc = err_set(e, ERR_USAGE, "%s%s", why.text, more);
    } else if (rc && rc != ERR_MEMORY)
        err_set(e, rc, "%s", why.text);
    if (!rc)
        str_clear(&t->attached);
    str_free(&whole);
    str_free(&clean);
    return rc;
}

static int ask(struct talk *t, const char *text, bool instead, struct moeflux_err *e)
{
    int rc = put_question(t, text, instead, e);
    if (rc && !t->is_script)
        exit_report(rc, e);
    if (rc)
        return t->is_script ? rc : 0;
    return answer_or_report(t, e);
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
    const struct moeflux_turn last = talk_last(t);
    if (!last.question) {
        talk_note(t, "[nothing was asked yet]");
        return 0;
    }
    if (last.answer && last.stop != MOEFLUX_STOP_INTERRUPTED && t->options->sampling.temperature == 0)
        talk_note(t, "[--temp 0 gives the same answer each time]");
    moeflux_conversation_unanswer(t->conversation);
    return answer_or_report(t, e);
}

int talk_continue(struct talk *t, struct moeflux_err *e)
{
    if (n_tokens(t) >= t->loaded.max_context) {
        note_full(t);
        return 0;
    }
    int rc = generate(t, moeflux_conversation_continue, e);
    if (rc == 1) {
        talk_note(t, "[no answer was stopped before its end]");
        return 0;
    }
    if (!rc)
        report_answer(t);
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
    if (!talk_last(t).question) {
        talk_note(t, "[nothing was asked yet]");
        return 0;
    }
    moeflux_conversation_undo(t->conversation);
    char text[128];
    snprintf(text, sizeof text, "[the last question is taken back; the conversation has %zu tokens]",
             n_tokens(t));
    talk_note(t, text);
    talk_keep_quietly(t, false);
    return 0;
}

int talk_clear(struct talk *t, const char *system, struct moeflux_err *e)
{
    talk_keep_quietly(t, true);
    free(t->name);
    t->name = NULL;
    t->n_kept = 0;
    return moeflux_conversation_clear(t->conversation, system, e);
}

/* ---- files ---- */

/* Whether the sequence has grown by an eighth, at least 256 tokens, since its state was saved. So the time
 * for saving stays in proportion to the conversation. */
static bool has_grown(const struct talk *t)
{
    uint32_t least = t->n_kept / 8 > 256 ? t->n_kept / 8 : 256;
    return moeflux_session_position(t->loaded.session) > t->n_kept + least;
}

static int keep_state(struct talk *t, struct moeflux_err *e)
{
    char *path = saved_state_path(t->name, e);
    int rc = path ? moeflux_session_save(t->loaded.session, path, MOEFLUX_STATE_V3, e) : ERR_IO;
    bar_end(&t->bar);
    if (!rc) {
        chmod(path, 0600);
        t->n_kept = moeflux_session_position(t->loaded.session);
        t->is_kept = true;
    }
    free(path);
    return rc;
}

/* Saves the conversation under another name, since another program has changed the session: both are kept. */
static int keep_under_other_name(struct talk *t, struct moeflux_err *e)
{
    enum { MOST = 99 };
    char text[256], *name = NULL;
    int rc = SAVED_CHANGED;
    for (unsigned n = 2; rc == SAVED_CHANGED && n <= MOST; n++) {
        free(name);
        if (!(name = saved_other_name(t->name, n, e)))
            return ERR_MEMORY;
        t->seen = 0;
        rc = saved_write(name, t->conversation, &t->seen, e);
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
    if (!t->name)
        return 0;
    int rc = saved_write(t->name, t->conversation, &t->seen, e);
    if (rc == SAVED_CHANGED)
        rc = keep_under_other_name(t, e);
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

/* Checks that the conversation was held with this model, and fits the session. */
static int check_saved(const struct talk *t, const char *name, const struct moeflux_conversation *c,
                       struct moeflux_err *e)
{
    const struct moeflux_conversation_info info = moeflux_conversation_get_info(c);
    uint64_t own;
    int rc = moeflux_model_fingerprint(t->loaded.models[0], &own, e);
    if (rc)
        return rc;
    if (own != info.fingerprint)
        return err_set(e, ERR_USAGE,
                       "session %s was held with another model, or other --active-experts, --expert-share or "
                       "--prefer-resident: %s",
                       name, info.model);
    uint32_t n = last_of(c).n_asked;
    return n > t->loaded.max_context
               ? err_set(e, ERR_USAGE, "session %s has %zu tokens, the context holds %u (-c)", name,
                         info.n_tokens, t->loaded.max_context)
               : 0;
}

/* Lets a conversation be held in the session. */
static int attach(const struct talk *t, struct moeflux_conversation *c, struct moeflux_err *e)
{
    struct moeflux_request *how;
    int rc = talk_how(t, &how, e);
    if (!rc)
        rc = moeflux_conversation_attach(c, t->loaded.chat, t->loaded.session, how, e);
    moeflux_request_free(how);
    return rc;
}

int talk_begin(struct talk *t, const char *system, struct moeflux_err *e)
{
    t->info.seed = t->loaded.seed;
    int rc = moeflux_conversation_new(&t->conversation, e);
    if (!rc)
        rc = attach(t, t->conversation, e);
    return rc ? rc : moeflux_conversation_clear(t->conversation, system, e);
}

/* Attaches a conversation that was read. */
static int attach_saved(const struct talk *t, const char *name, struct moeflux_conversation *c,
                        struct moeflux_err *e)
{
    struct moeflux_err why;
    int rc = attach(t, c, &why);
    return rc ? err_set(e, rc, "session %s: %s", name, why.text) : 0;
}

/* Loads the state. Without it the tokens are evaluated again, which only takes time. */
static int load_state(struct talk *t, struct moeflux_err *e)
{
    struct moeflux_err why = {0};
    char *path = saved_state_path(t->name, e);
    if (!path)
        return ERR_IO;
    int rc = moeflux_session_load(t->loaded.session, path, &why);
    bar_end(&t->bar);
    free(path);
    t->is_kept = rc == 0;
    t->n_kept = moeflux_session_position(t->loaded.session);
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
    rc = check_saved(t, name, s.conversation, e);
    if (!rc)
        rc = attach_saved(t, name, s.conversation, e);
    char *copy = rc ? NULL : mem_text(name, e);
    if (!rc && !copy)
        rc = ERR_MEMORY;
    if (!rc)
        rc = talk_clear(t, NULL, e);
    if (rc) {
        moeflux_conversation_free(s.conversation);
        free(copy);
        return rc;
    }
    moeflux_conversation_free(t->conversation);
    t->conversation = s.conversation;
    t->name = copy;
    t->seen = s.seen;
    return load_state(t, e);
}

/* ---- what was said ---- */

void talk_show(const struct talk *t, size_t n)
{
    size_t n_turns;
    struct moeflux_turn *all = list_turns(t->conversation, &n_turns);
    size_t first = n < n_turns ? n_turns - n : 0;
    for (size_t i = first; i < n_turns; i++) {
        struct str question = {0};
        str_addf(&question, "[%zu] %s", i + 1, all[i].question);
        say_dressed(t, str_text(&question));
        say("\n%s\n", all[i].answer ? all[i].answer : "[no answer: /retry asks again]");
        str_free(&question);
    }
    if (first)
        talk_note(t, "[/show prints what was before]");
    free(all);
}

void talk_free(struct talk *t)
{
    free(t->name);
    moeflux_answer_free(t->answer);
    moeflux_conversation_free(t->conversation);
    free(t->grammar);
    str_free(&t->attached);
    free(t->set_text);
    setup_close(&t->loaded);
}
