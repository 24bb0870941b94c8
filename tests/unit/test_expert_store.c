/* Experts of a card: a device whose memory is not mapped, with a host that keeps experts too. The card is
 * the reference's backend with memory that is hidden from the host, so that its moves can fail.
 *
 * suites: check fast asan */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "exec/backend.h"
#include "experts/store.h"
#include "experts/store_fill.h"
#include "experts/slots.h"
#include "experts/usage.h"
#include "model/model_dir.h"
#include "tmp_tree.h"

static const char TINY[] = "tests/models/tiny";
enum { N_DEVICE = 8, N_HOST = 40, LAYER = 2 };

/* ---- the card ---- */

static struct backend card;
static const struct backend *host;
static bool moves_fail;

static int card_buffer_new(struct exec *x, struct exec_buffer *b, enum exec_memory kind,
                           struct moeflux_err *e)
{
    int rc = host->buffer_new(x, b, kind, e);
    b->host = kind == EXEC_DEVICE ? NULL : b->host;
    return rc;
}

static uint8_t *bytes_at(uint64_t address)
{
    return (uint8_t *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr): a host's address */
}

static void card_buffer_free(struct exec *x, struct exec_buffer *b)
{
    b->host = bytes_at(b->address);
    host->buffer_free(x, b);
}

static void card_move(struct exec *x, const struct exec_buffer *dst, uint64_t dst_off,
                      const struct exec_buffer *src, uint64_t src_off, uint64_t bytes)
{
    (void)x;
    if (!moves_fail)
        memcpy(bytes_at(dst->address + dst_off), bytes_at(src->address + src_off), bytes);
}

static int card_move_submit(struct exec *x, uint64_t *ticket, struct moeflux_err *e)
{
    (void)x;
    *ticket = 1;
    return moves_fail ? err_set(e, ERR_DEVICE, "the card is gone") : 0;
}

static bool card_move_is_done(const struct exec *x, uint64_t ticket)
{
    (void)x, (void)ticket;
    return true;
}

static int card_move_wait(struct exec *x, uint64_t ticket, struct moeflux_err *e)
{
    (void)x, (void)ticket, (void)e;
    return 0;
}

static void card_after_moves(struct exec *x, uint64_t ticket)
{
    (void)x, (void)ticket;
}

static struct exec *open_card(void)
{
    struct exec *x;
    struct moeflux_err e = {0};
    check_ok(exec_open(&x, &(struct exec_options){.device = "reference"}, &e), &e);
    moves_fail = false;
    host = x->backend;
    card = *host;
    card.buffer_new = card_buffer_new;
    card.buffer_free = card_buffer_free;
    card.move = card_move;
    card.move_submit = card_move_submit;
    card.move_is_done = card_move_is_done;
    card.move_wait = card_move_wait;
    card.after_moves = card_after_moves;
    x->backend = &card;
    return x;
}

/* ---- its experts ---- */

struct place {
    struct model_dir model;
    struct exec *x;
    struct expert_store *store;
};

static void open_place(struct place *p, const char *usage)
{
    struct moeflux_err e = {0};
    p->x = open_card();
    check_ok(model_dir_open(&p->model, TINY, &e), &e);
    uint64_t stride = slots_stride(p->model.max_expert_bytes);
    const struct expert_store_options o = {.set = {.layers = {0, p->model.config.n_layers}},
                                           .budget_bytes = N_DEVICE * stride,
                                           .host_slots_bytes = N_HOST * stride,
                                           .n_threads = 2,
                                           .io = READER_PREAD,
                                           .usage = usage};
    check_ok(expert_store_open(&p->store, p->x, &p->model, &o, &e), &e);
}

static void close_place(struct place *p)
{
    expert_store_close(p->store);
    model_dir_close(&p->model);
    exec_close(p->x);
}

/* Brings the experts to the device and lets go of them again. */
static int bring(struct place *p, const uint32_t *experts, uint32_t n, struct moeflux_err *e)
{
    exec_begin(p->x);
    int rc = expert_store_want(p->store, LAYER, experts, n, USE_TOKENS, NULL, e);
    if (rc == 0)
        rc = expert_store_await(p->store, e);
    rc = rc == 0 ? exec_finish(p->x, e) : (exec_abandon(p->x), rc);
    expert_store_release(p->store);
    return rc;
}

/* ---- the claims ---- */

/* Nobody knows which data is where after a failed submission. */
static void no_expert_is_given_out_after_moves_have_failed(void **state)
{
    (void)state;
    static const uint32_t first[] = {1, 2, 3, 4}, again[] = {1}, others[] = {9, 10, 11, 12, 13, 14, 15, 16};
    struct place p;
    struct moeflux_err e = {0};
    open_place(&p, NULL);
    check_ok(bring(&p, again, 1, &e), &e);
    moves_fail = true;
    assert_int_equal(bring(&p, first, 4, &e), ERR_DEVICE);
    assert_string_equal(e.text, "the card is gone");
    moves_fail = false;
    e = (struct moeflux_err){0};
    assert_int_equal(bring(&p, again, 1, &e), ERR_DEVICE);
    assert_string_equal(e.text, "the card is gone");
    assert_int_equal(bring(&p, first, 4, &e), ERR_DEVICE);
    assert_int_equal(bring(&p, others, 8, &e), ERR_DEVICE);
    assert_false(expert_store_is_complete(p.store));
    close_place(&p);
}

/* ---- filling at the start ---- */

/* A file in which every expert of the model was chosen. */
static const char *write_usage(const char *tmp)
{
    enum { N_LAYERS = 8, N_EXPERTS = 32 };
    static uint32_t counts[N_LAYERS * N_EXPERTS];
    struct moeflux_err e = {0};
    const char *path = tmp_tree_path(tmp, "usage");
    for (uint32_t i = 0; i < N_LAYERS * N_EXPERTS; i++)
        counts[i] = i + 1;
    check_ok(usage_write(path, N_LAYERS, N_EXPERTS, counts, &e), &e);
    return path;
}

struct listener {
    uint64_t until; /* bytes after which it says stop; 0: never */
    uint64_t done, total;
    uint32_t n_calls;
};

static bool listen(void *ctx, const char *what, const char *unit, uint64_t done, uint64_t total)
{
    struct listener *l = ctx;
    (void)what, (void)unit;
    assert_true(done >= l->done && done <= total);
    l->done = done;
    l->total = total;
    l->n_calls++;
    return l->until == 0 || done < l->until;
}

static uint32_t count_present(const struct place *p)
{
    uint32_t n = 0;
    for (uint32_t layer = 0; layer < p->model.config.n_layers; layer++)
        for (uint32_t i = 0; i < p->model.config.n_experts; i++)
            n += expert_store_has(p->store, layer, i);
    return n;
}

static void a_host_that_is_filled_reports_progress(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    struct place p;
    struct moeflux_err e = {0};
    struct listener l = {0};
    open_place(&p, write_usage(tmp));
    check_ok(store_fill_load(p.store, &(struct moeflux_progress){listen, &l}, &e), &e);
    /* The device's are spare copies on the host. */
    assert_int_equal(count_present(&p), N_HOST);
    assert_int_equal(l.total, (N_DEVICE + N_HOST) * (uint64_t)p.model.experts[0].bytes);
    assert_int_equal(l.done, l.total);
    assert_true(l.n_calls > 1);
    close_place(&p);
    tmp_tree_remove(tmp);
}

static void a_host_that_is_filled_can_be_stopped(void **state)
{
    (void)state;
    char *tmp = tmp_tree_new();
    struct place p;
    struct moeflux_err e = {0};
    open_place(&p, write_usage(tmp));
    struct listener l = {.until = N_DEVICE * (uint64_t)p.model.experts[0].bytes + 1};
    assert_int_equal(store_fill_load(p.store, &(struct moeflux_progress){listen, &l}, &e), ERR_INTERRUPTED);
    assert_string_equal(e.text, "interrupted while reading the experts");
    close_place(&p);
    tmp_tree_remove(tmp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_host_that_is_filled_reports_progress),
        cmocka_unit_test(a_host_that_is_filled_can_be_stopped),
        cmocka_unit_test(no_expert_is_given_out_after_moves_have_failed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
