#include "server/metrics.h"

#include <inttypes.h>

#include "base/err.h"
#include "base/str.h"

/* Seconds; the last bucket has no bound. */
static const double first_bounds[METRICS_BUCKETS - 1] = {0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 100},
                                                   between_bounds[METRICS_BUCKETS - 1] = {
                                                       0.002, 0.005, 0.01, 0.02, 0.03, 0.05,
                                                       0.1,   0.2,   0.5,  1,    5};

int metrics_init(struct metrics *m, struct moeflux_err *e)
{
    *m = (struct metrics){0};
    return pthread_mutex_init(&m->lock, NULL) ? err_set(e, ERR_MEMORY, "out of memory for a lock") : 0;
}

void metrics_free(struct metrics *m)
{
    pthread_mutex_destroy(&m->lock);
}

void metrics_request(struct metrics *m, unsigned status)
{
    pthread_mutex_lock(&m->lock);
    m->n_requests++;
    m->n_refused += status >= 400;
    pthread_mutex_unlock(&m->lock);
}

static void add(struct metrics *m, struct metrics_times *t, const double *bounds, uint64_t ns)
{
    int i = 0;
    while (i < METRICS_BUCKETS - 1 && (double)ns > bounds[i] * 1e9)
        i++;
    pthread_mutex_lock(&m->lock);
    t->buckets[i]++;
    t->n++;
    t->ns += ns;
    pthread_mutex_unlock(&m->lock);
}

void metrics_first_token(struct metrics *m, uint64_t ns)
{
    add(m, &m->first, first_bounds, ns);
}

void metrics_next_token(struct metrics *m, uint64_t ns)
{
    add(m, &m->between, between_bounds, ns);
}

void metrics_job(struct metrics *m, const struct metrics_job *j)
{
    pthread_mutex_lock(&m->lock);
    m->n_prompt += j->n_prompt;
    m->n_cached += j->n_cached;
    m->n_answered += j->n_answered;
    m->n_drafted += j->n_drafted;
    m->n_accepted += j->n_accepted;
    m->n_evaluations += j->n_evaluations;
    m->decode_ns += j->decode_ns;
    m->n_cancelled += j->cancelled;
    m->n_failed += j->failed;
    pthread_mutex_unlock(&m->lock);
}

void metrics_loss(struct metrics *m)
{
    pthread_mutex_lock(&m->lock);
    m->n_losses++;
    pthread_mutex_unlock(&m->lock);
}

void metrics_engine(struct metrics *m, const struct moeflux_stats *engine,
                    const struct moeflux_sequence_counts *q)
{
    pthread_mutex_lock(&m->lock);
    m->engine = *engine;
    m->sequences = *q;
    pthread_mutex_unlock(&m->lock);
}

static void head(struct str *out, const char *name, const char *kind, const char *help)
{
    str_addf(out, "# HELP moeflux_%s %s\n# TYPE moeflux_%s %s\n", name, help, name, kind);
}

static void counter(struct str *out, const char *name, uint64_t value, const char *help)
{
    head(out, name, "counter", help);
    str_addf(out, "moeflux_%s %" PRIu64 "\n", name, value);
}

static void gauge(struct str *out, const char *name, uint64_t value, const char *help)
{
    head(out, name, "gauge", help);
    str_addf(out, "moeflux_%s %" PRIu64 "\n", name, value);
}

static void seconds(struct str *out, const char *name, uint64_t ns, const char *help)
{
    head(out, name, "counter", help);
    str_addf(out, "moeflux_%s %.6f\n", name, (double)ns / 1e9);
}

static void histogram(struct str *out, const char *name, const struct metrics_times *t, const double *bounds,
                      const char *help)
{
    uint64_t n = 0;
    head(out, name, "histogram", help);
    for (int i = 0; i < METRICS_BUCKETS - 1; i++) {
        n += t->buckets[i];
        str_addf(out, "moeflux_%s_bucket{le=\"%g\"} %" PRIu64 "\n", name, bounds[i], n);
    }
    str_addf(out, "moeflux_%s_bucket{le=\"+Inf\"} %" PRIu64 "\n", name, t->n);
    str_addf(out, "moeflux_%s_sum %.6f\n", name, (double)t->ns / 1e9);
    str_addf(out, "moeflux_%s_count %" PRIu64 "\n", name, t->n);
}

static void engine_text(const struct metrics *m, struct str *out)
{
    const struct moeflux_stats *s = &m->engine;
    counter(out, "expert_device_hits_total", s->n_hits, "Chosen experts that were in a device slot.");
    counter(out, "expert_host_hits_total", s->n_host_hits, "Chosen experts that were in the host's cache.");
    counter(out, "expert_misses_total", s->n_misses, "Chosen experts that were in neither.");
    counter(out, "expert_read_bytes_total", s->read_bytes, "Bytes of experts read.");
    seconds(out, "wait_read_seconds_total", s->wait_read_ns, "Time that evaluations waited for the disk.");
    gauge(out, "weights_bytes", s->weights_bytes, "Device memory of the dense weights.");
    gauge(out, "state_bytes", s->state_bytes, "Device memory of all sequences' states.");
    gauge(out, "sequences", m->sequences.n, "Sequences in memory.");
    gauge(out, "saved_sequences", m->sequences.n_saved, "Sequences in files.");
    gauge(out, "saved_bytes", m->sequences.dir_bytes, "Bytes of these files.");
    counter(out, "sequence_loads_total", m->sequences.n_loads, "Sequences loaded from files.");
    counter(out, "sequence_saves_total", m->sequences.n_saves, "Sequences saved to files.");
}

void metrics_text(struct metrics *m, uint32_t n_waiting, uint32_t n_running, struct str *out)
{
    pthread_mutex_lock(&m->lock);
    struct metrics now = *m;
    pthread_mutex_unlock(&m->lock);
    counter(out, "http_requests_total", now.n_requests, "Requests with a reply.");
    counter(out, "http_errors_total", now.n_refused, "Requests with a status of 400 or more.");
    counter(out, "answers_cancelled_total", now.n_cancelled, "Answers whose client went away.");
    counter(out, "answers_failed_total", now.n_failed, "Answers that failed.");
    counter(out, "device_losses_total", now.n_losses, "Times that a device was lost.");
    gauge(out, "requests_waiting", n_waiting, "Answers that wait; a request with n has several.");
    gauge(out, "requests_running", n_running, "Answers that are computed; a request with n has several.");
    counter(out, "prompt_tokens_total", now.n_prompt, "Tokens of prompts, reused ones included.");
    counter(out, "cached_tokens_total", now.n_cached, "Tokens of prompts that were not computed again.");
    counter(out, "generated_tokens_total", now.n_answered, "Tokens of answers.");
    counter(out, "drafted_tokens_total", now.n_drafted, "Drafted tokens that were evaluated.");
    counter(out, "accepted_tokens_total", now.n_accepted, "Drafted tokens that are part of answers.");
    counter(out, "draft_evaluations_total", now.n_evaluations,
            "Evaluations of answers that may draft: their tokens by these are the tokens per evaluation.");
    seconds(out, "decode_seconds_total", now.decode_ns, "Time from answers' first tokens to their ends.");
    histogram(out, "time_to_first_token_seconds", &now.first, first_bounds,
              "From a request's arrival to its first token.");
    histogram(out, "time_between_tokens_seconds", &now.between, between_bounds,
              "From one token of an answer to the next one.");
    engine_text(&now, out);
}
