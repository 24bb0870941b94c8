#include "server/serve.h"

#include "base/err.h"
#include "generate/generator.h"

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

int serve_run(const struct serve_options *o, struct moeflux_err *e)
{
    struct server_options so = o->server;
    struct generator g = {0};
    struct server *s = NULL;
    int rc = choose_parallel(o, &so, e);
    if (!rc)
        rc = server_new(&s, &so, e);
    if (!rc)
        rc = o->open(o->ctx, &g, so.sequences, server_progress(s, o->loading), e);
    if (!rc)
        rc = server_start(s, &g, e);
    if (!rc) {
        o->listening(o->ctx, server_url(s));
        o->wait(o->ctx);
        server_stop(s);
    }
    server_free(s);
    rc = o->ended(o->ctx, &g, rc, e);
    generator_close(&g);
    return rc;
}
