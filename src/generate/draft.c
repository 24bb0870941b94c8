#include "generate/draft.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "engine/sequence.h"
#include "generate/generator.h"
#include "generate/lookup.h"

enum {
    LEAST_NGRAM = 3, /* two tokens are often repeated by chance */
    LEAST_FILE = 2,
    FILE_BYTES = 64 << 20,
    FIRST_WANTED = 3,
};

struct draft {
    struct draft_options options;
    struct lookup lookup; /* table of the sequence's tokens, or of the file's */
    uint64_t mark;        /* the sequence whose tokens were added */
    struct token_list file;
    uint32_t most;            /* tokens that may be proposed */
    uint32_t seen;            /* tokens of the sequence that were compared with the file */
    uint32_t at;              /* the next token of the file */
    bool is_off;              /* the last token of the answer was not the file's */
    bool is_lost;             /* nor was the one before it: nothing is proposed */
    int32_t ids[VERIFY_ROWS]; /* the current token, then n_ids - 1 proposed ones */
    uint32_t n_ids;
    uint32_t room;      /* tokens that fit the context */
    int32_t guess;      /* the first proposed one; -1: none */
    uint32_t class_idx; /* index of draft_costs.rates */
    bool waits;
    uint32_t wanted, n_right; /* mtp: tokens to propose next; those of the last chain that were right */
    uint32_t n_by_layer;      /* auto: tokens of the last chain that the layer proposed; 0: none did */
    struct draft_counts counts;
};

/* ---- options ---- */

int draft_options_parse(struct draft_options *o, const char *name, const char *text, struct moeflux_err *e)
{
    static const struct {
        const char *word;
        enum draft_kind kind;
    } words[] = {{"off", DRAFT_OFF}, {"ngram", DRAFT_NGRAM}, {"auto", DRAFT_AUTO}, {"mtp", DRAFT_MTP}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(text, words[i].word) == 0 && !(o->no_layer && words[i].kind == DRAFT_MTP)) {
            o->kind = words[i].kind;
            return 0;
        }
    const char *of_file = str_after(text, "file:"), *of_layer = str_after(text, "mtp:");
    const char *path = of_file ? of_file : of_layer;
    if (path && *path && !o->no_files && !(of_layer && o->no_layer)) {
        o->kind = of_file ? DRAFT_FILE : DRAFT_MTP;
        o->path = path;
        return 0;
    }
    bool no_layer_file = o->no_layer || o->no_files;
    return err_set(e, ERR_USAGE, "%s: expected off, ngram%s%s%s or auto, found \"%.80s\"", name,
                   o->no_layer ? "" : ", mtp", no_layer_file ? "" : ", mtp:PATH",
                   o->no_files ? "" : ", file:PATH", text);
}

_Static_assert((int)MOEFLUX_MAX_DRAFT == VERIFY_ROWS - 1, "with the current token they are a chain");

int moeflux_options_use_draft(struct moeflux_options *o, const char *name, const char *draft,
                              struct moeflux_err *e)
{
    int null = err_need(e, "name", name);
    if (null)
        return null;
    struct draft_options read = {0};
    int rc = draft ? draft_options_parse(&read, name, draft, e) : 0;
    if (rc || !o)
        return rc;
    o->drafter = read.kind == DRAFT_MTP;
    o->drafter_file = o->drafter ? read.path : NULL;
    o->drafter_auto = read.kind == DRAFT_AUTO;
    return 0;
}

/* ---- making one ---- */

/* Makes room for chains. ERR_NO_FIT: of more than the current token. */
static int reserve(struct draft *d, const struct generator *g, struct moeflux_err *e)
{
    uint32_t rows = verify_reserve(g->sequence, d->most + 1);
    d->most = rows > 0 ? rows - 1 : 0;
    return d->most > 0 ? 0
                       : err_set(e, ERR_NO_FIT,
                                 "draft: no memory for the recurrent states after two tokens; leave it out");
}

/* Reads the text to follow. */
static int read_file(struct draft *d, const struct generator *g, struct moeflux_err *e)
{
    char *text = NULL;
    size_t len = 0;
    if (!g->tokenizer)
        return err_set(e, ERR_USAGE, "draft file:%s: %s has no tokenizer.json, which it needs",
                       d->options.path, g->dir);
    int rc = file_read_text(d->options.path, FILE_BYTES, &text, &len, e);
    if (rc == 0)
        rc = tokenizer_encode(g->tokenizer, text, len, SPECIALS_AS_TOKENS, &d->file, NULL, e);
    free(text);
    if (rc == 0)
        rc = lookup_open(&d->lookup, (uint32_t)size_max(d->file.n, 1), e);
    if (rc == 0)
        lookup_add(&d->lookup, d->file.ids, (uint32_t)d->file.n);
    return rc;
}

static const char *kind_name(enum draft_kind kind)
{
    return kind == DRAFT_FILE ? "file" : kind == DRAFT_MTP ? "mtp" : "ngram";
}

static int refuse(const struct draft_options *o, struct moeflux_err *e)
{
    return err_set(
        e, ERR_UNSUPPORTED,
        "draft %s: an evaluation takes a single token with a trace, `prefer_resident` or `chunk` 1, "
        "and on matrix units with `n_parallel` above %d",
        kind_name(o->kind), EXEC_MAX_INVARIANT);
}

static void begin_costs(struct draft_costs *c)
{
    static const float rates[DRAFT_CLASSES] = {0.3f, 0.4f, 0.5f, 0.7f, 0.8f};
    if (c->is_known)
        return;
    *c = (struct draft_costs){.is_known = true, .slope = 0.5f};
    memcpy(c->rates, rates, sizeof rates);
}

static struct layer_prices prices_of(const struct generator *g)
{
    const struct draft_costs *c = &g->draft_costs;
    uint32_t waiting = drafter_n_waiting(g->sequence);
    float more = waiting > VERIFY_ROWS ? (float)waiting / (float)g->info.n_layers : 0;
    return (struct layer_prices){
        .single_ns = c->single_ns, .pick_ns = c->pick_ns, .slope = c->slope, .more_rows = more};
}

/* Says what the sequence keeps for the layer. */
static void set_use(const struct draft_options *o, struct generator *g)
{
    const struct layer_prices p = prices_of(g);
    const struct layer_costs *l = &g->draft_costs.layer;
    enum drafter_use use = DRAFTER_RESTS;
    if (o->kind == DRAFT_MTP || (o->kind == DRAFT_AUTO && layer_costs_pays(l, &p)))
        use = DRAFTER_FOLLOWS;
    else if (o->kind == DRAFT_AUTO && !layer_costs_rests(l, &p))
        use = DRAFTER_WAITS;
    drafter_set_use(g->sequence, use);
}

int draft_new(struct draft **out, const struct draft_options *o, struct generator *g, struct moeflux_err *e)
{
    uint32_t rows = verify_most(g->model), most = o->most ? o->most : MOEFLUX_MAX_DRAFT;
    *out = NULL;
    if (o->kind == DRAFT_OFF || (o->kind == DRAFT_AUTO && !verify_pays(g->model))) {
        drafter_set_use(g->sequence, DRAFTER_RESTS);
        return 0;
    }
    set_use(o, g);
    if (rows < 2)
        return refuse(o, e);
    if (o->kind == DRAFT_MTP && !g->model->drafter)
        return err_set(e, ERR_UNSUPPORTED,
                       "draft mtp: the model was opened without the layer: open it with `draft` mtp");
    struct draft *d = mem_new(1, sizeof *d, e);
    if (!d)
        return ERR_MEMORY;
    d->options = *o;
    d->most = (uint32_t)size_min(most, rows - 1);
    d->seen = moeflux_session_position(g->sequence);
    d->guess = -1;
    d->is_lost = true;
    d->wanted = FIRST_WANTED;
    begin_costs(&g->draft_costs);
    int rc = o->kind == DRAFT_AUTO ? 0 : reserve(d, g, e);
    if (rc == 0 && o->kind != DRAFT_MTP)
        rc = o->kind == DRAFT_FILE ? read_file(d, g, e) : lookup_open(&d->lookup, g->max_context, e);
    if (rc) {
        draft_free(d);
        return rc;
    }
    *out = d;
    return 0;
}

void draft_free(struct draft *d)
{
    if (!d)
        return;
    lookup_close(&d->lookup);
    token_list_free(&d->file);
    free(d);
}

/* ---- proposals ---- */

/* Adds a proposed token. Returns whether more may follow. */
static bool propose(struct draft *d, const struct generator *g, int32_t id)
{
    bool is_token = id >= 0 && (uint32_t)id < g->info.vocab_size;
    if (is_token && d->n_ids <= d->most && d->n_ids < d->room)
        d->ids[d->n_ids++] = id;
    return is_token && d->n_ids <= d->most && d->n_ids < d->room;
}

/* Proposes what followed an earlier occurrence of the text's end. Past the end comes what was proposed: the
 * text repeats. Returns the length of the occurrence. */
static uint32_t propose_again(struct draft *d, const struct generator *g, const struct lookup_end *end)
{
    uint32_t len, at = lookup_find(&d->lookup, end->ids, end, LEAST_NGRAM, &len);
    for (uint32_t i = at; at && propose(d, g, i < end->n ? end->ids[i] : d->ids[i - end->n]); i++)
        ;
    return len;
}

/* Moves on in the file after a token of the answer. After a mismatch the end of the answer is looked for; if
 * the file does not have it, the token may stand for the file's, but not two of them. */
static void follow(struct draft *d, const struct lookup_end *end)
{
    uint32_t len, n = (uint32_t)d->file.n;
    bool is_here = d->at < n && (!d->is_lost || d->at == 0) && d->file.ids[d->at] == end->last;
    uint32_t found = is_here ? d->at + 1 : lookup_find(&d->lookup, d->file.ids, end, LEAST_FILE, &len);
    bool agreed = !d->is_lost && !d->is_off;
    d->is_off = found == 0;
    d->is_lost = found == 0 && !agreed;
    if (found)
        d->at = found;
    else if (agreed && d->at < n)
        d->at++;
}

static void propose_file(struct draft *d, const struct generator *g, const struct lookup_end *end)
{
    for (; d->seen <= end->n; d->seen++) {
        bool is_last = d->seen == end->n;
        const struct lookup_end to = {end->ids, d->seen, is_last ? end->last : end->ids[d->seen]};
        follow(d, &to);
    }
    for (uint32_t i = d->at; !d->is_lost && i < d->file.n && propose(d, g, d->file.ids[i]); i++)
        ;
}

/* ---- how many pay ---- */

static uint32_t class_of(uint32_t len)
{
    static const uint32_t from[DRAFT_CLASSES] = {0, 4, 6, 10, 20};
    uint32_t i = DRAFT_CLASSES - 1;
    while (len < from[i])
        i--;
    return i;
}

/* Returns how many of the proposed tokens are expected to save the most time. Less than a tenth is not worth
 * a chain: times vary. */
static uint32_t how_many(const struct draft *d, const struct draft_costs *c)
{
    float rate = c->rates[d->class_idx], best = 1.1f, expected = 1, power = 1;
    float pick = c->single_ns ? (float)c->pick_ns / (float)c->single_ns : 0;
    uint32_t n = 0;
    for (uint32_t k = 1; k < d->n_ids; k++) {
        power *= rate;
        expected += power;
        float gain = expected / (1 + c->slope * (float)k + pick * expected);
        if (gain > best) {
            best = gain;
            n = k;
        }
    }
    return n;
}

/* Notes whether the last first proposal was right, evaluated or not. */
static void learn(struct draft *d, struct draft_costs *c, int32_t id)
{
    float *rate = &c->rates[d->class_idx];
    if (d->guess >= 0 && d->options.kind != DRAFT_FILE)
        *rate += ((d->guess == id ? 1.0f : 0.0f) - *rate) / 16;
}

/* Fills d->ids with the token and what may follow. */
static int prepare(struct draft *d, struct generator *g, int32_t id)
{
    const struct moeflux_session *s = g->sequence;
    const struct lookup_end end = {moeflux_session_history(s), moeflux_session_position(s), id};
    uint32_t len = 0;
    learn(d, &g->draft_costs, id);
    d->ids[0] = id;
    d->n_ids = 1;
    d->room = g->max_context > end.n ? g->max_context - end.n : 1;
    if (d->options.kind == DRAFT_FILE) {
        propose_file(d, g, &end);
    } else {
        if (d->mark != s->mark || d->lookup.n > end.n)
            lookup_clear(&d->lookup);
        d->mark = s->mark;
        lookup_add(&d->lookup, end.ids, end.n);
        len = propose_again(d, g, &end);
    }
    d->class_idx = class_of(len);
    d->guess = d->n_ids > 1 ? d->ids[1] : -1;
    if (d->options.kind == DRAFT_AUTO && d->n_ids > 1)
        d->n_ids = 1 + how_many(d, &g->draft_costs);
    return 0;
}

/* Chooses how many tokens the layer proposes: one more than were right in the last chain. */
static void adapt(struct draft *d)
{
    if (d->n_ids > 1)
        d->wanted = (uint32_t)size_min(d->n_right + 1, d->most);
    d->n_right = 0;
}

static int prepare_mtp(struct draft *d, struct generator *g, int32_t id, struct moeflux_err *e)
{
    uint32_t pos = moeflux_session_position(g->sequence);
    uint32_t room = g->max_context > pos ? g->max_context - pos : 1;
    adapt(d);
    d->ids[0] = id;
    d->n_ids = 1;
    uint32_t most = (uint32_t)size_min(size_min(d->wanted, d->most), room - 1);
    int n = drafter_propose(g->sequence, id, most, d->ids + 1, e);
    d->n_ids += n > 0 ? (uint32_t)n : 0;
    return n < 0 ? n : 0;
}

/* Learns from the last chain if the layer has proposed its tokens. */
static void learn_layer(struct draft *d, struct generator *g)
{
    const struct layer_prices p = prices_of(g);
    if (d->n_by_layer)
        layer_costs_end(&g->draft_costs.layer, &p, d->n_by_layer, d->n_right);
    d->n_by_layer = d->n_right = 0;
}

/* Asks the layer where the text does not repeat, if that pays or is to be tried. */
static int prepare_auto(struct draft *d, struct generator *g, int32_t id, struct moeflux_err *e)
{
    struct draft_costs *c = &g->draft_costs;
    uint64_t start = clock_ns();
    learn_layer(d, g);
    const struct layer_prices p = prices_of(g);
    uint32_t most = (uint32_t)size_min(size_min(d->most, LAYER_MOST), d->room - 1);
    set_use(&d->options, g);
    if (d->n_ids > 1 || verify_is_late(g->sequence))
        return 0;
    uint32_t wanted = layer_costs_wanted(&c->layer, &p, most);
    int n = wanted ? drafter_propose(g->sequence, id, wanted, d->ids + 1, e) : 0;
    if (n <= 0)
        return n;
    d->n_ids += (uint32_t)n;
    d->n_by_layer = (uint32_t)n;
    layer_costs_begin(&c->layer, &p, (uint32_t)n, clock_ns() - start);
    return 0;
}

/* ---- evaluations ---- */

/* Notes the time of a chain of n tokens. A single measurement may be far off: another process ran. */
static void time_chain(struct draft_costs *c, uint32_t n, uint64_t ns)
{
    if (c->single_ns == 0)
        return;
    float more = ((float)ns / (float)c->single_ns - 1) / (float)(n - 1);
    more = more < 0 ? 0 : more > 2 * c->slope + 0.1f ? 2 * c->slope + 0.1f : more;
    c->slope += (more - c->slope) / 4;
}

/* Evaluates d->ids. Returns the number of tokens evaluated. */
static int run(struct draft *d, struct generator *g, struct moeflux_err *e)
{
    uint64_t start = clock_ns();
    const struct sampler *sampler = d->options.needs_logits ? NULL : g->sampler;
    /* Without room a chain is shorter. */
    if (g->room.make)
        g->room.make(g->room.ctx, g->sequence, d->n_ids, NULL);
    int n = verify_run(g->sequence, d->ids, d->n_ids, sampler, e);
    if (n < 0)
        return n;
    if ((uint32_t)n < d->n_ids) /* there is no memory for more */
        d->most = n > 0 ? (uint32_t)n - 1 : 0;
    if (n > 1)
        time_chain(&g->draft_costs, (uint32_t)n, clock_ns() - start);
    if (d->n_by_layer)
        d->n_by_layer = n > 0 ? (uint32_t)n - 1 : 0;
    g->draft_costs.layer.spent_ns += clock_ns() - start;
    d->counts.n_runs += n > 0;
    d->counts.n_drafted += n > 1 ? (uint64_t)n - 1 : 0;
    return n;
}

bool draft_has(const struct generator *g, int32_t id)
{
    return g->draft && verify_has(g->sequence, id);
}

/* Appends a token to the sequence, if it was in a chain or a chain is worth while. Returns 1: *row are the
 * logits after it, [vocab_size], borrowed until the next call; or NULL, and *result is what the device has
 * sampled (sequence_choose). Returns 0: the caller evaluates the token. */
static int eval(struct draft *d, struct generator *g, int32_t id, const float **row, const uint32_t **result,
                struct moeflux_err *e)
{
    if (d->most == 0)
        return 0;
    bool has = draft_has(g, id);
    bool is_auto = d->options.kind == DRAFT_AUTO && g->model->drafter;
    int prepared = d->options.kind != DRAFT_MTP ? prepare(d, g, id) : has ? 0 : prepare_mtp(d, g, id, e);
    if (prepared == 0 && is_auto && !has)
        prepared = prepare_auto(d, g, id, e);
    if (prepared < 0)
        return prepared;
    d->waits = d->n_ids > 1;
    d->n_right += has;
    d->counts.n_accepted += has;
    /* The device has begun this token already: the chain begins with the next one. */
    bool runs = !has && d->n_ids > 1 && !verify_is_late(g->sequence);
    int rc = runs ? run(d, g, e) : 0;
    if (rc < 0)
        return rc;
    if (!has && rc == 0)
        return 0;
    *row = verify_take(g->sequence, result);
    return 1;
}

/* Counts the evaluation of a token by itself, with the sampling after it, which took so long. */
static void count(struct draft *d, struct generator *g, uint64_t ns)
{
    struct draft_costs *c = &g->draft_costs;
    d->counts.n_runs++;
    ns = layer_costs_single(&c->layer, ns, !drafter_wants(g->sequence));
    c->single_ns = c->single_ns ? c->single_ns - c->single_ns / 8 + ns / 8 : ns;
    /* A price that nothing has paid for long was perhaps another process's. */
    if (d->guess >= 0)
        c->slope -= c->slope / 256;
}

/* Counts the time of the sampling after a token of a chain. */
static void count_pick(struct draft_costs *c, uint64_t ns)
{
    c->pick_ns = c->pick_ns ? c->pick_ns - c->pick_ns / 8 + ns / 8 : ns;
    c->layer.spent_ns += ns;
}

int draft_step(struct generator *g, int32_t id, bool more, int32_t *next, struct moeflux_err *e)
{
    struct draft *d = g->draft;
    const float *row;
    const uint32_t *result;
    if (!d)
        return sequence_step(g->sequence, id, g->sampler, more, next, e);
    int rc = eval(d, g, id, &row, &result, e);
    if (rc < 0)
        return rc;
    uint64_t start = clock_ns();
    if (rc > 0) {
        rc = sequence_choose(g->sequence, g->sampler, id, row, result, next, e);
        count_pick(&g->draft_costs, clock_ns() - start);
    } else {
        /* Tokens are to be proposed after this one: then the device does not begin the next one. */
        rc = sequence_step(g->sequence, id, g->sampler, more && !d->waits, next, e);
        count(d, g, clock_ns() - start);
    }
    return rc;
}

int draft_token(struct generator *g, int32_t id, struct moeflux_err *e)
{
    const float *row;
    const uint32_t *result;
    int rc = g->draft ? eval(g->draft, g, id, &row, &result, e) : 0;
    if (rc < 0)
        return rc;
    if (rc > 0) {
        assert(row); /* draft_options.needs_logits */
        memcpy(g->logits, row, g->info.vocab_size * sizeof *row);
        return 0;
    }
    uint64_t start = clock_ns();
    rc = moeflux_session_eval(g->sequence, &id, 1, &(struct moeflux_outputs){.logits = g->logits}, e);
    if (g->draft)
        count(g->draft, g, clock_ns() - start);
    return rc;
}

struct draft_counts draft_counts_of(const struct draft *d)
{
    return d ? d->counts : (struct draft_counts){0};
}
