#include "engine/run/layers.h"

#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/run/chosen.h"

/* Layers recorded after the last layer whose experts the CPU computes: LAYERS_AHEAD before the CPU is done,
 * then LAYERS_AT_ONCE at a time while the device computes the ones before. Recording a layer takes the host
 * 27 us, computing it takes a large GPU 40 us. */
enum { LAYERS_AHEAD = 2, LAYERS_AT_ONCE = 4 };

/* ---- what the host needs of a layer ---- */

/* When the host needs a layer's choice. */
enum choice {
    CHOICE_UNSEEN, /* never: every expert has a slot */
    CHOICE_LATER,  /* when the token's batch is finished (stage.seen): the device can read every expert */
    CHOICE_NOW,    /* before the experts compute */
};

/* Whether the device can read every expert of its own that a token may choose in the layer, some of them in
 * host memory. */
static bool reads_any(const struct pass *p, uint32_t layer)
{
    return p->chunk.n == 1 && !p->chunk.each && !pass_prefers(p, layer) && p->at->seen.host &&
           expert_store_is_complete(p->at->sides[SIDE_DEVICE].store);
}

static enum choice choice_of(const struct pass *p, uint32_t layer)
{
    const struct expert_side *sides[PASS_MAX_SIDES];
    uint32_t n = pass_sides(p, layer, sides);
    if (n > 1 || pass_is_cpu(p, sides[0]) || p->m->trace)
        return CHOICE_NOW;
    if (expert_store_holds_all(sides[0]->store))
        return CHOICE_UNSEEN;
    return reads_any(p, layer) ? CHOICE_LATER : CHOICE_NOW;
}

/* Whether the device computes its part of a layer's experts before the host knows the choice. */
static bool device_goes_ahead(const struct pass *p, uint32_t layer)
{
    bool has_all = expert_store_holds_all(p->at->sides[SIDE_DEVICE].store);
    return (has_all && !pass_prefers(p, layer)) || reads_any(p, layer);
}

bool layers_are_at_once(const struct pass *p)
{
    /* Layers differ: those with experts by token have nothing to prefer (pass_prefers). */
    for (uint32_t i = p->at->layers.first; i < p->at->layers.end; i++)
        if (config_has_experts(&p->m->dir.config, i) && choice_of(p, i) == CHOICE_NOW)
            return false;
    return true;
}

/* Records the copies of what the host needs besides the choice: the weights, and the hidden states for the
 * CPU's experts. The shared expert changes the hidden states meanwhile, so they are copied even if they are
 * mapped. */
static void copy_to_host(const struct pass *p, bool computes)
{
    struct moeflux_model *m = p->m;
    const struct config *c = &m->dir.config;
    if (computes)
        exec_copy(p->at->exec, &p->at->host.x, 0, &p->at->view.experts_in, 0,
                  (uint64_t)p->chunk.n * config_expert_hidden(c) * sizeof(float));
    if (p->at->weights.host)
        exec_copy(p->at->exec, &p->at->weights, 0, &p->at->view.weights, 0,
                  (uint64_t)p->chunk.n * c->top_k * sizeof(float));
}

/* Makes the choice and records the copies of what the host needs of a layer: the router's choice, a
 * prediction, the inputs of the CPU's experts. */
static void show_choice(const struct pass *p, uint32_t layer)
{
    struct moeflux_model *m = p->m;
    uint64_t bytes = (uint64_t)m->dir.config.top_k * sizeof(uint32_t);
    arch_choose_experts(p->at->arch, &p->chunk, layer);
    bool has_prediction = chosen_predict_next(p, layer), uses_cpu = pass_uses_cpu(p, layer);
    if (uses_cpu || m->trace || pass_prefers(p, layer))
        copy_to_host(p, uses_cpu);
    if (pass_prefers(p, layer))
        prefer_show(p);
    if (p->at->view.idx.host)
        return;
    exec_copy(p->at->exec, &p->at->choice, 0, &p->at->view.idx, 0, p->chunk.n * bytes);
    if (has_prediction)
        exec_copy(p->at->exec, &p->at->choice, p->at->view.idx.bytes, &p->at->view.predicted, 0,
                  p->chunk.n * bytes);
}

/* Keeps for layers_see what the host knows of a layer's choice, if the device was not asked for its
 * experts. */
static void keep_choice(const struct pass *p, uint32_t layer)
{
    const struct expert_store *store = p->at->sides[SIDE_DEVICE].store;
    uint32_t top_k = p->m->dir.config.top_k, n = pass_n_chosen(p, pass_choice(p)), n_own = 0;
    uint32_t *seen = (uint32_t *)(void *)p->at->seen.host + (uint64_t)layer * top_k;
    for (uint32_t k = 0; k < n; k++)
        if (expert_store_provides(store, layer, pass_choice(p)[k]))
            seen[n_own++] = pass_choice(p)[k];
    while (n_own < top_k)
        seen[n_own++] = NO_EXPERT;
    p->at->is_seen[layer] = true;
}

/* Records the copy of a choice that the host needs only after the batch. */
static void show_later(const struct pass *p, uint32_t layer)
{
    struct moeflux_model *m = p->m;
    uint64_t bytes = (uint64_t)m->dir.config.top_k * sizeof(uint32_t);
    exec_copy(p->at->exec, &p->at->seen, layer * bytes, &p->at->view.idx, 0, bytes);
    p->at->is_seen[layer] = true;
}

int layers_see(const struct pass *p, struct moeflux_err *e)
{
    struct moeflux_model *m = p->m;
    uint32_t top_k = m->dir.config.top_k, n_seen = 0;
    struct expert_store *store = p->at->sides[SIDE_DEVICE].store;
    for (uint32_t layer = 0; layer < m->dir.config.n_layers; layer++) {
        if (!p->at->is_seen[layer])
            continue;
        const uint32_t *choice = (const uint32_t *)(const void *)p->at->seen.host + (uint64_t)layer * top_k;
        uint32_t n = pass_n_chosen(p, choice);
        expert_store_record_use(store, layer, choice, n);
        n_seen++;
        if (pass_uses_cpu(p, layer)) /* chosen_see has counted them */
            continue;
        p->at->n_choices++;
        p->at->n_chosen += n;
    }
    return n_seen ? expert_store_submit_promotions(store, e) : 0;
}

/* Copies the output of layer `layer` (0: the embedding) if hidden states are asked for. */
static void copy_hidden(const struct pass *p, uint32_t layer)
{
    uint64_t row = pass_hidden_bytes(p->m, 1);
    if (p->outputs->hidden)
        exec_copy(p->at->exec, &p->at->hidden,
                  (uint64_t)(layer - p->at->layers.first) * p->m->max_chunk * row, &p->at->view.x, 0,
                  p->chunk.n * row);
}

/* ---- layers ---- */

/* Submits what was recorded and begins another batch, so that the device starts while the rest is
 * recorded. */
static int submit_and_go_on(const struct pass *p, struct moeflux_err *e)
{
    uint64_t ticket;
    int rc = exec_submit(p->at->exec, &ticket, e);
    exec_begin(p->at->exec);
    return rc;
}

/* Waits for the n-gram rows. If they are late, the device begins with the layers before. */
static int await_rows(const struct pass *p, struct moeflux_err *e)
{
    struct stage *at = p->at;
    int rc = ngram_rows_are_there(&at->ngrams) ? 0 : submit_and_go_on(p, e);
    return rc < 0 ? rc : ngram_rows_wait(&at->ngrams, at->exec, e);
}

/* Whether a pass that is recorded now is submitted after its first n layers: 2, 8, 32 ... A submission
 * costs the host about as much as a layer. */
static bool is_piece(const struct pass *p, uint32_t n)
{
    uint32_t end = 2;
    while (end < n)
        end *= 4;
    return p->is_in_pieces && n == end;
}

/* Records the experts of a layer whose choice stays on the device. */
static void compute_all(const struct pass *p, uint32_t layer, enum choice when)
{
    const struct expert_side *sides[PASS_MAX_SIDES];
    (void)pass_sides(p, layer, sides);
    const struct arch_experts x = {.layer = layer,
                                   .table = expert_store_table(sides[0]->store, layer),
                                   .n = p->chunk.n,
                                   .chooses = true};
    arch_experts_up(p->at->arch, &p->chunk, &x);
    arch_experts_down(p->at->arch, &p->chunk, &x);
    if (p->at->computes_at_once)
        chosen_count(p);
    if (when == CHOICE_LATER)
        show_later(p, layer);
}

/* Records layers from `layer` on, up to one whose choice the host needs. *next: that one, or `end`. */
static int record_layers(const struct pass *p, uint32_t layer, uint32_t end, uint32_t *next,
                         struct moeflux_err *e)
{
    struct moeflux_model *m = p->m;
    for (; layer < end; layer++) {
        if (p->progress)
            p->progress->layer = layer;
        int rc = p->awaits_rows && layer == p->at->ngrams.first_layer ? await_rows(p, e) : 0;
        if (rc < 0)
            return rc;
        if (p->at->computes_at_once)
            chosen_predict_again(p, layer);
        arch_before_experts(p->at->arch, &p->chunk, layer);
        if (config_has_experts(&m->dir.config, layer)) {
            enum choice when = choice_of(p, layer);
            if (when == CHOICE_NOW) {
                show_choice(p, layer);
                break;
            }
            compute_all(p, layer, when);
        }
        exec_split(p->at->exec);
        copy_hidden(p, layer + 1);
        if (is_piece(p, layer + 1 - p->at->layers.first))
            rc = submit_and_go_on(p, e);
        if (rc < 0)
            return rc;
    }
    *next = layer;
    return 0;
}

/* Computes the chosen experts on the device. *next: the next layer whose choice the host needs, or the end of
 * the stage's layers. */
static int experts_on_device(const struct pass *p, uint32_t layer, uint32_t *next, struct moeflux_err *e)
{
    int rc = exec_finish(p->at->exec, e);
    stage_release(p->at);
    exec_begin(p->at->exec);
    if (rc == 0) {
        chosen_see(p, layer);
        rc = chosen_run(p, layer, false, e);
    }
    copy_hidden(p, layer + 1);
    return rc < 0 ? rc : record_layers(p, layer + 1, p->at->layers.end, next, e);
}

/* Records what the device computes of a layer's experts without the host: its part of them, or the shared
 * expert alone. Returns whether that is anything. */
static bool record_own(const struct pass *p, uint32_t layer)
{
    const struct config *c = &p->m->dir.config;
    struct arch_experts x = {.layer = layer, .n = p->chunk.n, .part = pass_part(p, layer, false)};
    if (pass_is_split(p, layer)) {
        x.table = expert_store_table(p->at->sides[SIDE_DEVICE].store, layer);
        arch_experts_up(p->at->arch, &p->chunk, &x);
        arch_experts_down(p->at->arch, &p->chunk, &x);
        return true;
    }
    if (!c->shared_inner || c->moe_latent)
        return false;
    arch_shared_expert(p->at->arch, &p->chunk, layer, p->at->sides[SIDE_DEVICE].round_tables.address);
    return true;
}

/* Submits the batch that ends with the choice, then what the device can compute of the experts without the
 * host (goes_ahead). *choice: the first one's ticket. */
static int submit_choice(const struct pass *p, uint32_t layer, bool goes_ahead, uint64_t *choice,
                         struct moeflux_err *e)
{
    int rc = exec_submit(p->at->exec, choice, e);
    exec_begin(p->at->exec);
    return rc == 0 && goes_ahead && record_own(p, layer) ? submit_and_go_on(p, e) : rc;
}

/* Records the addition of the CPU's experts and the layers after it, as record_layers does. */
static int record_sum(const struct pass *p, uint32_t layer, uint32_t end, uint32_t *next,
                      struct moeflux_err *e)
{
    arch_add_experts(p->at->arch, &p->chunk, layer, p->at->host.sum.address);
    copy_hidden(p, layer + 1);
    return record_layers(p, layer + 1, end, next, e);
}

/* Submits what was recorded up to the layer *next and records the layers from there, so that the device
 * starts while the rest is recorded. *next: as in experts_on_device. */
static int record_the_rest(const struct pass *p, uint32_t *next, struct moeflux_err *e)
{
    uint32_t end = p->at->layers.end, to = *next;
    int rc = 0;
    while (rc == 0 && *next == to && to < end) {
        rc = submit_and_go_on(p, e);
        to = (uint32_t)size_min(to + LAYERS_AT_ONCE, end);
        if (rc == 0)
            rc = record_layers(p, *next, to, next, e);
    }
    return rc;
}

/* Computes the sum of the CPU's chosen experts in host.sum. */
static int compute_on_cpu(const struct pass *p, uint32_t layer, struct moeflux_err *e)
{
    struct stage *at = p->at;
    const struct expert_side *side = &at->sides[SIDE_HOST];
    const struct expert_part part = pass_part(p, layer, true);
    uint64_t start = clock_ns();
    memset(at->host.sum.host, 0,
           (uint64_t)p->chunk.n * config_expert_hidden(&p->m->dir.config) * sizeof(float));
    exec_begin(side->exec);
    int rc = chosen_run(p, layer, true, e);
    int done = exec_finish(side->exec, rc < 0 ? NULL : e);
    expert_store_release(side->store);
    rc = rc < 0 ? rc : done;
    at->host.n_computed += rc == 0 ? chosen_n_all(p, &part) : 0;
    at->host.ns += clock_ns() - start;
    return rc;
}

/* Returns the end of the layers that are recorded before the CPU has computed `layer`: none that would wait
 * for n-gram rows, which may submit what was recorded. */
static uint32_t end_ahead(const struct pass *p, uint32_t layer)
{
    uint32_t end = p->at->layers.end, rows = p->at->ngrams.first_layer;
    if (layer + 1 >= p->m->n_cpu_layers)
        end = (uint32_t)size_min(layer + 1 + LAYERS_AHEAD, end);
    return p->awaits_rows && rows > layer ? (uint32_t)size_min(end, rows) : end;
}

/* Computes and submits the device's part of the experts, whose choice the host knows. */
static int compute_part(const struct pass *p, uint32_t layer, struct moeflux_err *e)
{
    int rc = chosen_run(p, layer, false, e);
    return rc < 0 ? rc : submit_and_go_on(p, e);
}

/* Computes the CPU's experts, or its part of them, while the device computes the others and the shared
 * one. *next: as in experts_on_device. The device goes ahead if it can read all of its part. Then the
 * batch that adds the CPU's sum is recorded while the device still computes up to the choice, unless it is
 * watched: then it may be submitted in pieces, so it has to wait for the sum. */
static int experts_on_cpu(const struct pass *p, uint32_t layer, uint32_t *next, struct moeflux_err *e)
{
    uint32_t end = p->at->layers.end, ahead = end_ahead(p, layer);
    bool is_split = pass_is_split(p, layer), goes_ahead = !is_split || device_goes_ahead(p, layer),
         records = goes_ahead && !p->is_watched;
    uint64_t choice;
    int rc = submit_choice(p, layer, goes_ahead, &choice, e);
    if (rc < 0)
        return rc;
    exec_wake(p->at->sides[SIDE_HOST].exec);
    if (records)
        rc = record_sum(p, layer, ahead, next, e);
    int waited = exec_wait(p->at->exec, choice, rc < 0 ? NULL : e);
    rc = rc < 0 ? rc : waited;
    stage_release(p->at);
    if (rc == 0)
        chosen_see(p, layer);
    if (rc == 0 && is_split && goes_ahead && !expert_store_holds_all(p->at->sides[SIDE_DEVICE].store))
        keep_choice(p, layer);
    if (rc == 0 && !goes_ahead)
        rc = compute_part(p, layer, e);
    if (rc == 0)
        rc = compute_on_cpu(p, layer, e);
    if (rc == 0 && !records)
        rc = record_sum(p, layer, end, next, e);
    else if (rc == 0 && *next == ahead)
        rc = record_the_rest(p, next, e);
    return rc;
}

static int all_layers(const struct pass *p, struct moeflux_err *e)
{
    uint32_t end = p->at->layers.end, i;
    int rc = record_layers(p, p->at->layers.first, end, &i, e);
    while (rc == 0 && i < end)
        rc = pass_uses_cpu(p, i) ? experts_on_cpu(p, i, &i, e) : experts_on_device(p, i, &i, e);
    return rc;
}

/* ---- a pass ---- */

int layers_run(const struct pass *p, struct moeflux_err *e)
{
    const struct stage *at = p->at;
    uint64_t bytes = pass_hidden_bytes(p->m, p->chunk.n), lagged = pass_lagged_bytes(p->m, p->chunk.n),
             off = pass_lagged_off(p->m);
    exec_begin(at->exec);
    if (at->fed.host)
        exec_copy(at->exec, &at->view.fed, 0, &at->fed, 0, bytes);
    if (at == p->m->stages) {
        arch_embed(at->arch, &p->chunk);
        copy_hidden(p, 0);
    } else if (p->in.buffer) {
        exec_copy(at->exec, &at->view.x, 0, p->in.buffer, p->in.off, bytes);
        if (lagged)
            exec_copy(at->exec, &at->view.x, off, p->in.buffer, p->in.off + off, lagged);
    }
    int rc = all_layers(p, e);
    if (at->last.host)
        exec_copy(at->exec, &at->last, 0, &at->view.x, 0, bytes);
    if (!pass_is_last(p) && p->out.buffer) {
        exec_copy(at->exec, p->out.buffer, p->out.off, &at->view.x, 0, bytes);
        if (lagged)
            exec_copy(at->exec, p->out.buffer, p->out.off + off, &at->view.x, off, lagged);
    }
    return rc;
}

void layers_head(const struct pass *p, uint32_t from, uint32_t n)
{
    const struct stage *at = p->at;
    arch_head(at->arch, &p->chunk, from, n);
    if (!at->view.logits.host && !p->chooses)
        exec_copy(at->exec, &at->logits, p->half * at->view.logits.bytes, &at->view.logits, 0,
                  (uint64_t)n * p->m->dir.config.vocab_size * sizeof(float));
}

int layers_run_tokens(const struct pass *p, struct moeflux_err *e)
{
    int rc = layers_run(p, e);
    if (pass_is_last(p))
        layers_head(p, 0, pass_n_rows(p));
    return rc;
}
