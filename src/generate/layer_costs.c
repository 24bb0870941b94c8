#include "generate/layer_costs.h"

#include "base/mem.h"

enum {
    FEW = 4,           /* chains that say whether others pay */
    FIRST_SINGLES = 4, /* tokens that say what one costs */
    REST = 512,        /* tokens between trials */
    WARM = 16,         /* tokens before a trial whose hidden states are kept */
    SAMPLE = 64,       /* chains between measurements of one token by itself */
    MEMORY = 16,       /* proposals that shares are made of */
    SHARE = 100        /* the inverse of what may be lost */
};
static const float FIRST_RATE = 0.7f;
static const float MANY_ROWS = 0.5f;   /* layer_prices.more_rows of a proposal whose time says nothing */
static const float LEAST_GAIN = 1.03f; /* times vary */

/* Returns how much faster chains of up to `most` proposed tokens are. *n: the best number. */
static float gain_of(const struct layer_costs *l, const struct layer_prices *p, uint32_t most, uint32_t *n)
{
    float single = (float)p->single_ns, best = 0, expected = 1, right = 1, proposal = (float)l->first_ns;
    *n = 0;
    for (uint32_t k = 1; k <= most && k <= LAYER_MOST; k++) {
        right *= l->n_seen[k - 1] ? l->rates[k - 1] : FIRST_RATE;
        expected += right;
        float cost = 1 + p->slope * (float)k + ((float)p->pick_ns * expected + proposal) / single;
        proposal += (float)l->next_ns;
        if (expected / cost > best) {
            best = expected / cost;
            *n = k;
        }
    }
    return best;
}

/* Returns whether `more` may be lost. */
static bool may_lose(const struct layer_costs *l, uint64_t more)
{
    return (l->loss_ns + more) * SHARE <= l->total_ns;
}

bool layer_costs_pays(const struct layer_costs *l, const struct layer_prices *p)
{
    uint32_t n;
    return l->n_chains >= FEW && p->single_ns && gain_of(l, p, LAYER_MOST, &n) > LEAST_GAIN;
}

/* Returns what a trial of chains may lose before it is known to. */
static uint64_t trial_ns(const struct layer_prices *p)
{
    return (uint64_t)((0.5f + p->more_rows) * (float)p->single_ns);
}

/* Returns the tokens until a trial is due. */
static uint64_t until_trial(const struct layer_costs *l, const struct layer_prices *p)
{
    uint64_t needed = (l->loss_ns + trial_ns(p)) * SHARE;
    uint64_t rest = l->n_chains >= FEW && l->n_singles < REST ? REST - l->n_singles : 0;
    return size_max(rest, needed > l->total_ns ? (needed - l->total_ns) / p->single_ns : 0);
}

bool layer_costs_rests(const struct layer_costs *l, const struct layer_prices *p)
{
    return p->single_ns == 0 || (!layer_costs_pays(l, p) && until_trial(l, p) > WARM);
}

uint32_t layer_costs_wanted(struct layer_costs *l, const struct layer_prices *p, uint32_t most)
{
    uint32_t n;
    if (p->single_ns == 0 || most == 0 || l->total_ns < FIRST_SINGLES * p->single_ns)
        return 0;
    bool pays = layer_costs_pays(l, p);
    bool is_due = l->n_singles >= REST;
    if (l->n_chains >= FEW && !pays && !is_due)
        return 0;
    if (pays && l->n_chains % SAMPLE == 0 && l->n_singles == 0)
        return 0;
    if (!may_lose(l, pays ? 0 : trial_ns(p)))
        return 0;
    if (l->n_chains >= FEW && !pays)
        l->n_chains = 0;
    gain_of(l, p, most, &n);
    return n;
}

static uint64_t smooth(uint64_t old, uint64_t ns)
{
    return old ? old - old / 4 + ns / 4 : ns;
}

uint64_t layer_costs_single(struct layer_costs *l, uint64_t ns, bool rests)
{
    uint64_t *usual = rests ? &l->rest_ns : &l->wait_ns, least = ns;
    *usual = smooth(*usual, ns);
    if (!rests && l->rest_ns && l->rest_ns + l->rest_ns / 16 < l->wait_ns) /* times vary */
        least = (uint64_t)((double)ns * (double)l->rest_ns / (double)l->wait_ns);
    l->total_ns += ns;
    l->loss_ns += ns - least;
    l->n_singles++;
    return least;
}

void layer_costs_begin(struct layer_costs *l, const struct layer_prices *p, uint32_t n, uint64_t ns)
{
    l->spent_ns = ns;
    if (p->more_rows > MANY_ROWS)
        return;
    if (n == 1)
        l->first_ns = smooth(l->first_ns, ns);
    else if (n > 1 && l->first_ns == 0)
        l->first_ns = l->next_ns = ns / n;
    else if (n > 1)
        l->next_ns = smooth(l->next_ns, (ns > l->first_ns ? ns - l->first_ns : 0) / (n - 1));
}

void layer_costs_end(struct layer_costs *l, const struct layer_prices *p, uint32_t n, uint32_t n_right)
{
    uint64_t usual = (n_right + 1) * p->single_ns;
    for (uint32_t i = 0; i < n && i <= n_right && i < LAYER_MOST; i++) {
        float *rate = &l->rates[i];
        if (l->n_seen[i]++ == 0)
            *rate = FIRST_RATE;
        *rate += ((i < n_right ? 1.0f : 0.0f) - *rate) / (float)size_min(l->n_seen[i] + 1, MEMORY);
    }
    l->total_ns += l->spent_ns;
    if (l->spent_ns > usual)
        l->loss_ns += l->spent_ns - usual;
    else
        l->loss_ns -= size_min(l->loss_ns, usual - l->spent_ns);
    l->n_chains++;
    l->n_singles = 0;
}
