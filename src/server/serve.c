#include "server/serve.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/err.h"
#include "moeflux_chat.h"

static uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t most(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* Chooses the numbers that the user leaves open: with several devices so many answers that each has work. */
static int choose_parallel(const struct serve_options *o, struct server_options *so, struct moeflux_err *e)
{
    enum {
        ANSWERS_OF_A_DEVICE = 4,
        MOST = 64,
        DEFAULT_SEQUENCES = 4,
        CONNECTIONS = 128,
        MORE_CONNECTIONS = 64
    };
    uint32_t n = o->n_devices, asked = so->parallel, wanted = so->sequences;
    so->parallel = asked ? asked : n > 1 ? least(n * ANSWERS_OF_A_DEVICE, MOST) : 1;
    if (!asked && wanted)
        so->parallel = least(so->parallel, wanted);
    so->sequences = wanted ? wanted : most(so->parallel, DEFAULT_SEQUENCES);
    /* One client may ask for all answers at once. */
    if (so->address_connections == SERVE_CHOOSES)
        so->address_connections = most(CONNECTIONS, so->parallel + MORE_CONNECTIONS);
    if (o->replicate && so->parallel < n)
        return err_set(e, ERR_USAGE,
                       "--parallel: expected at least %u with --replicate, an answer a copy, found %u", n,
                       so->parallel);
    return 0;
}

/* Says what a loss does. */
static void tell_loss(const struct serve_options *o, const char *why)
{
    char text[sizeof((struct moeflux_err *)0)->text + 64];
    snprintf(text, sizeof text, "%s; the model is opened again", why);
    o->server.tell(o->server.ctx, text);
}

/* Keeps what `closing` saves; its failure is no reason to end. */
static void close_lost(const struct serve_options *o)
{
    struct moeflux_err why;
    if (o->closing(o->ctx, 0, &why))
        o->server.tell(o->server.ctx, why.text);
}

/* Opens the model a second time for the chat, which goes on with its tokenizer: other threads use it. */
static int open_again(const struct serve_options *o, uint32_t n_sequences, struct server *s,
                      struct moeflux_chat *chat, struct moeflux_err *e)
{
    uint64_t before, now;
    int rc = moeflux_model_fingerprint(moeflux_chat_model(chat), &before, e);
    close_lost(o);
    if (!rc)
        rc = o->open(o->ctx, &chat, n_sequences, server_progress(s, o->loading), e);
    if (!rc)
        rc = moeflux_model_fingerprint(moeflux_chat_model(chat), &now, e);
    if (!rc && now != before)
        rc = err_set(e, ERR_FORMAT, "%s: another model than the one that was served",
                     moeflux_model_get_info(moeflux_chat_model(chat)).dir);
    return rc;
}

/* Goes on after a loss, whose failure is in `e`. *opened_ns: when the model was opened again the last time;
 * 0: never. */
static int recover(const struct serve_options *o, uint32_t n_sequences, struct server *s,
                   struct moeflux_chat *chat, uint64_t *opened_ns, struct moeflux_err *e)
{
    const struct moeflux_err why = *e;
    uint64_t past_s = (clock_ns() - *opened_ns) / 1000000000;
    if (o->opens_once)
        return ERR_LOST;
    if (*opened_ns && past_s < SERVE_LOSS_S)
        return err_set(e, ERR_LOST, "%s, %u s after the model was opened again", why.text, (unsigned)past_s);
    tell_loss(o, why.text);
    int rc = open_again(o, n_sequences, s, chat, e);
    *opened_ns = clock_ns();
    return rc ? rc : server_resume(s, e);
}

/* Serves until the caller asks for the end. */
static int serve(const struct serve_options *o, uint32_t n_sequences, struct server *s,
                 struct moeflux_chat *chat, struct moeflux_err *e)
{
    uint64_t opened_ns = 0;
    int rc;
    do {
        o->wait(o->ctx);
        rc = server_await_loss(s, e);
        if (!rc)
            return 0;
        if (rc == ERR_LOST)
            rc = recover(o, n_sequences, s, chat, &opened_ns, e);
    } while (!rc);
    /* The user asked for the end while the model was opened, as between two losses. */
    return rc == ERR_INTERRUPTED ? 0 : rc;
}

int serve_run(const struct serve_options *o, struct moeflux_err *e)
{
    struct server_options so = o->server;
    struct moeflux_chat *chat = NULL;
    struct server *s = NULL;
    int rc = choose_parallel(o, &so, e);
    if (!rc)
        rc = server_new(&s, &so, e);
    if (!rc)
        rc = o->open(o->ctx, &chat, so.sequences, server_progress(s, o->loading), e);
    if (!rc)
        rc = server_start(s, chat, e);
    if (!rc) {
        o->listening(o->ctx, server_url(s));
        rc = serve(o, so.sequences, s, chat, e);
        server_stop(s);
    }
    server_free(s);
    return o->closing(o->ctx, rc, e);
}
