#include "experts/reader_work.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "model/expert_places.h"
#include "model/extent_rule.h"
#include "model/model_dir_read.h"

/* Pieces of an expert that threads copy from the page cache: their number, their least bytes. */
enum { COPY_PIECES = 8, COPY_PIECE_BYTES = 128 << 10 };
/* After so many interruptions without a byte in between a read counts as failed. MAX_ASK: bytes of one
 * read. */
enum { MAX_STALLS = 1000, MAX_ASK = 1 << 30 };
/* The most speculative parts in flight on each disk: enough to keep it busy, few enough to end soon. */
enum { MAX_SPECULATIVE = 8 };

void reader_work_init(struct reader_work *w, const struct model_dir *m, const struct reader_hook *hook)
{
    *w = (struct reader_work){.model = m, .hook = hook, .wake_fd = -1};
    staging_init(&w->staging);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->more, NULL);
    pthread_cond_init(&w->finished, NULL);
}

void reader_work_free(struct reader_work *w)
{
    reader_files_close(&w->files);
    staging_free(&w->staging);
    pthread_cond_destroy(&w->finished);
    pthread_cond_destroy(&w->more);
    pthread_mutex_destroy(&w->lock);
}

/* --- lists; with the lock held --- */

static struct read_list *list_of(struct reader_work *w, const struct read_request *q)
{
    return q->speculative ? &w->speculative : &w->demanded;
}

static void append(struct reader_work *w, struct read_request *q)
{
    struct read_list *l = list_of(w, q);
    q->next = NULL;
    q->prev = l->last;
    *(l->last ? &l->last->next : &l->first) = q;
    l->last = q;
    q->queued = true;
}

static void unlink_request(struct reader_work *w, struct read_request *q)
{
    struct read_list *l = list_of(w, q);
    *(q->prev ? &q->prev->next : &l->first) = q->next;
    *(q->next ? &q->next->prev : &l->last) = q->prev;
    q->queued = false;
}

static void wake(struct reader_work *w)
{
    pthread_cond_broadcast(&w->more);
    if (!w->is_asleep)
        return;
    /* An eventfd's counter cannot overflow here, so the write cannot fail. */
    static const uint64_t one = 1;
    if (write(w->wake_fd, &one, sizeof one) == sizeof one)
        w->is_asleep = false;
}

/* Returns whether a speculative read may start. Next to a demanded read it would take its bandwidth. */
static bool may_speculate(const struct reader_work *w)
{
    uint64_t at_a_disk = (uint64_t)MAX_SPECULATIVE * w->model->parts.spread.n_parts;
    uint64_t most = size_max(size_min(w->depth / 2, at_a_disk), 1);
    bool is_idle = w->n_in_flight == w->n_in_flight_speculative;
    return w->speculative.first && (w->stopping || (is_idle && w->n_in_flight_speculative < most));
}

/* Wakes threads after a part has ended: those that found too many in flight sleep. */
static void wake_if_there_is_work(struct reader_work *w)
{
    if (w->demanded.first || may_speculate(w))
        pthread_cond_broadcast(&w->more);
}

static void count_flights(struct reader_work *w)
{
    uint64_t now = clock_ns();
    if (w->n_in_flight) {
        w->stats.busy_ns += now - w->counted_ns;
        w->stats.in_flight_ns += (now - w->counted_ns) * w->n_in_flight;
    }
    w->counted_ns = now;
}

static struct read_part *take(struct reader_work *w)
{
    struct read_request *q = w->demanded.first;
    if (w->n_in_flight >= w->depth || (!q && !may_speculate(w)))
        return NULL;
    q = q ? q : w->speculative.first;
    struct read_part *p = &q->parts[q->n_taken++];
    if (q->n_taken == q->n_parts)
        unlink_request(w, q);
    count_flights(w);
    p->speculative = q->speculative;
    w->n_in_flight++;
    w->n_in_flight_speculative += p->speculative;
    w->stats.n_parts++;
    return p;
}

static void publish(struct reader_work *w, struct read_request *q)
{
    w->stats.bytes += q->code < 0 ? 0 : w->model->experts[q->layer].bytes;
    w->stats.n_reads += q->code == 0;
    w->stats.n_failed += q->code < 0 && q->code != ERR_INTERRUPTED;
    w->stats.n_dropped += q->code == ERR_INTERRUPTED;
    q->done = true;
    pthread_cond_broadcast(&w->finished);
}

/* --- requests --- */

/* Adds the piece that begins `at` bytes into the extent. */
static void add_part(struct read_request *q, struct extent x, uint64_t at, uint64_t piece)
{
    x.off += at;
    x.at += at;
    x.from += at;
    x.bytes = size_min(piece, x.bytes - at);
    q->parts[q->n_parts++] = (struct read_part){.request = q, .extent = x};
}

/* Adds pieces of the extents alternately. They lie on different disks, so that all have equally many reads
 * queued, even if few are in flight. */
static void add_in_turn(struct read_request *q, const struct extent *extents, uint32_t n, uint64_t piece)
{
    for (uint64_t at = 0, n_left = n; n_left > 0; at += piece) {
        n_left = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (at < extents[i].bytes)
                add_part(q, extents[i], at, piece);
            n_left += at + piece < extents[i].bytes;
        }
    }
}

/* Returns the bytes of a piece of an expert with n extents. Each extent adds at most two shorter pieces, so
 * that all find room. */
static uint64_t piece_of(uint64_t expert_bytes, uint32_t n, uint64_t piece)
{
    uint64_t least = size_round_up(expert_bytes / (READER_MAX_PARTS - 2 * n) + 1, READER_TARGET_ALIGN);
    return size_max(piece, least);
}

/* Adds the pieces of an extent. All but the first begin at a block of direct reads, so that no block is read
 * twice; a rule's do not, because they are whole scales. block: 0 if reads are not direct. */
static void add_pieces(struct read_request *q, const struct extent *x, uint64_t piece, uint32_t block)
{
    uint64_t before = x->rule || block == 0 ? 0 : x->off % block;
    add_part(q, *x, 0, piece - before);
    for (uint64_t at = piece - before; at < x->bytes; at += piece)
        add_part(q, *x, at, piece);
}

/* Divides the expert into pieces of `piece` bytes, or larger ones if these were too many. */
static void fill_parts(const struct reader_work *w, struct read_request *q, uint64_t piece)
{
    struct extent extents[EXPERT_MAX_EXTENTS];
    uint32_t n = model_dir_expert(w->model, q->layer, q->expert, extents);
    piece = piece_of(w->model->experts[q->layer].bytes, n, piece);
    q->n_taken = q->n_copied = 0;
    q->queued = q->done = false;
    q->code = 0;
    q->err = (struct moeflux_err){0};
    q->n_parts = 0;
    bool is_spread = w->model->parts.spread.n_parts > 1;
    if (is_spread)
        add_in_turn(q, extents, n, piece);
    for (uint32_t i = 0; !is_spread && i < n; i++)
        add_pieces(q, &extents[i], piece, w->files.block);
    q->n_open = q->n_parts;
}

/* Returns the size that pieces of the layer's experts are to have. The nodes' shares of rows apply to whole
 * experts. */
static uint64_t wanted_piece(const struct reader_work *w, uint64_t expert_bytes)
{
    return w->files.maps && w->files.shares ? size_max(expert_bytes, 1) : w->piece_bytes;
}

void reader_work_add(struct reader_work *w, struct read_request *q)
{
    fill_parts(w, q, wanted_piece(w, w->model->experts[q->layer].bytes));
    pthread_mutex_lock(&w->lock);
    if (w->staging.bytes == 0) {
        uint64_t most = w->model->max_expert_bytes;
        w->staging.bytes =
            piece_of(most, EXPERT_MAX_EXTENTS, wanted_piece(w, most)) + 2 * (uint64_t)READER_TARGET_ALIGN;
    }
    if (w->files.block && (uintptr_t)q->dst % READER_TARGET_ALIGN) {
        q->code = err_set(&q->err, ERR_USAGE,
                          "layer %u expert %u: direct reads need memory at multiples of %d, not %p", q->layer,
                          q->expert, READER_TARGET_ALIGN, (void *)q->dst);
        publish(w, q);
    } else {
        append(w, q);
        wake(w);
    }
    pthread_mutex_unlock(&w->lock);
}

uint32_t reader_work_split(struct reader_work *w, struct read_request *q)
{
    uint64_t bytes = w->model->experts[q->layer].bytes;
    if (w->model->has_rules)
        return 0;
    fill_parts(w, q, size_max(size_round_up(bytes / COPY_PIECES, READER_TARGET_ALIGN), COPY_PIECE_BYTES));
    pthread_mutex_lock(&w->lock);
    count_flights(w);
    w->n_in_flight++;
    pthread_mutex_unlock(&w->lock);
    return q->n_parts;
}

/* Copies a part if the page cache holds all of it. Does not call the hook, which is for answers of a disk. */
static bool copy_cached(const struct reader_work *w, const struct read_part *p)
{
    const struct extent *x = &p->extent;
    struct iovec to = {p->request->dst + x->at, x->bytes};
    ssize_t n = preadv2(w->files.fds[x->file], &to, 1, (off_t)x->off, RWF_NOWAIT);
    return n >= 0 && (uint64_t)n == x->bytes;
}

/* Checks the scales and biases in the part's bytes. */
static int check_part(const struct reader_work *w, const struct read_part *p, struct moeflux_err *e)
{
    const struct read_request *q = p->request;
    const struct extent *x = &p->extent;
    return model_dir_check_expert_part(w->model, q->layer, q->expert, q->dst, x->at, x->at + x->bytes, e);
}

void reader_work_copy(struct reader_work *w, struct read_request *q, uint32_t i)
{
    struct moeflux_err why = {0};
    bool is_copied = copy_cached(w, &q->parts[i]);
    int code = is_copied ? check_part(w, &q->parts[i], &why) : 0;
    pthread_mutex_lock(&w->lock);
    q->n_copied += is_copied;
    if (code < 0 && q->code == 0) {
        q->code = code;
        q->err = why;
    }
    bool last = --q->n_open == 0, whole = q->n_copied == q->n_parts;
    if (last) {
        count_flights(w);
        w->n_in_flight--;
        wake_if_there_is_work(w); /* the caller is no thread of the pool, which would look for work itself */
    }
    pthread_mutex_unlock(&w->lock);
    if (!last || !whole)
        return;
    pthread_mutex_lock(&w->lock);
    w->stats.n_parts += q->n_parts;
    publish(w, q);
    pthread_mutex_unlock(&w->lock);
}

/* Drops the parts that were not taken. */
static void cut_short(struct reader_work *w, struct read_request *q, int code)
{
    if (q->queued)
        unlink_request(w, q);
    q->code = code;
    q->n_open -= q->n_parts - q->n_taken;
    q->n_parts = q->n_taken;
}

enum reader_cancelled reader_work_cancel(struct reader_work *w, struct read_request *q)
{
    enum reader_cancelled how = READER_NOT_CANCELLED;
    pthread_mutex_lock(&w->lock);
    if (q->queued) {
        how = q->n_taken ? READER_CUT_SHORT : READER_CANCELLED;
        cut_short(w, q, ERR_INTERRUPTED);
        err_set(&q->err, ERR_INTERRUPTED, "layer %u expert %u: the read was cancelled", q->layer, q->expert);
        w->stats.n_dropped += how == READER_CANCELLED;
        if (how == READER_CUT_SHORT && q->n_open == 0)
            publish(w, q);
    }
    pthread_mutex_unlock(&w->lock);
    return how;
}

static void demand(struct reader_work *w, struct read_request *q)
{
    if (q->queued && q->speculative) {
        unlink_request(w, q);
        q->speculative = false;
        w->stats.n_promoted++;
        append(w, q);
        wake(w);
    }
}

void reader_work_demand(struct reader_work *w, struct read_request *q)
{
    pthread_mutex_lock(&w->lock);
    demand(w, q);
    pthread_mutex_unlock(&w->lock);
}

void reader_work_wait(struct reader_work *w, struct read_request *q)
{
    pthread_mutex_lock(&w->lock);
    demand(w, q);
    while (!q->done)
        pthread_cond_wait(&w->finished, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

void reader_work_stop(struct reader_work *w)
{
    pthread_mutex_lock(&w->lock);
    w->stopping = true;
    wake(w);
    pthread_mutex_unlock(&w->lock);
}

/* --- parts --- */

static bool is_drained(const struct reader_work *w)
{
    return w->stopping && !w->demanded.first && !w->speculative.first;
}

/* Returns whether the part is read to its place in the slot. A direct read writes whole blocks: those of a
 * run that has them to itself, or after the expert's last byte, where there is room for the rest of one. */
static bool is_read_in_place(const struct reader_work *w, const struct read_part *p)
{
    const struct extent *x = &p->extent;
    uint32_t block = w->files.block;
    bool ends = x->at + x->bytes == w->model->experts[p->request->layer].bytes;
    if (x->rule || block == 0)
        return !x->rule;
    if (w->model->experts[p->request->layer].owns_blocks && EXPERT_BLOCK % block == 0)
        return x->off % block == x->at % block;
    return x->off % block == 0 && x->at % block == 0 && (ends || x->bytes % block == 0);
}

/* Gives a part memory if it needs some. Returns false if there is none; then the part has failed. */
static bool stage(struct reader_work *w, struct read_part *p)
{
    p->lead = w->files.block ? (uint32_t)(p->extent.off % w->files.block) : 0;
    if (is_read_in_place(w, p))
        return true;
    p->staged = staging_take(&w->staging);
    if (p->staged)
        return true;
    reader_work_fail(w, p, ENOMEM);
    return false;
}

struct read_part *reader_work_take(struct reader_work *w)
{
    struct read_part *p;
    do {
        pthread_mutex_lock(&w->lock);
        while (!(p = take(w)) && !is_drained(w))
            pthread_cond_wait(&w->more, &w->lock);
        pthread_mutex_unlock(&w->lock);
    } while (p && !stage(w, p));
    return p;
}

struct read_part *reader_work_take_or_sleep(struct reader_work *w, bool *over)
{
    pthread_mutex_lock(&w->lock);
    struct read_part *p = take(w);
    w->is_asleep = !p;
    *over = !p && is_drained(w) && w->n_in_flight == 0;
    pthread_mutex_unlock(&w->lock);
    return !p || stage(w, p) ? p : reader_work_take_or_sleep(w, over);
}

void reader_work_count_submit(struct reader_work *w)
{
    pthread_mutex_lock(&w->lock);
    w->stats.n_submits++;
    pthread_mutex_unlock(&w->lock);
}

/* Returns the bytes of a part's reads, up to the extent's end. */
static uint64_t bytes_to_read(const struct read_part *p)
{
    return p->lead + p->extent.bytes;
}

struct file_read reader_work_next_read(const struct reader_work *w, const struct read_part *p)
{
    const struct extent *x = &p->extent;
    uint64_t n = bytes_to_read(p) - p->n_done;
    if (w->files.block)
        n = size_round_up(n, w->files.block);
    return (struct file_read){.layer = p->request->layer,
                              .file = x->file,
                              .n = (uint32_t)size_min(n, MAX_ASK),
                              .off = x->off - p->lead + p->n_done,
                              .dst = (p->staged ? p->staged : p->request->dst + x->at - p->lead) + p->n_done};
}

bool reader_work_tries_cached(const struct reader_work *w, const struct read_part *p)
{
    return !w->files.block && !w->files.maps && !p->waits;
}

static bool follows(const struct extent *x, const struct extent *before)
{
    return !x->rule && !before->rule && x->file == before->file && x->off == before->off + before->bytes &&
           x->at == before->at + before->bytes;
}

void reader_work_take_over(struct reader_work *w, struct read_part *p)
{
    struct read_request *q = p->request;
    p->waits = true;
    pthread_mutex_lock(&w->lock);
    while (q->queued && follows(&q->parts[q->n_taken].extent, &p->extent)) {
        p->extent.bytes += q->parts[q->n_taken].extent.bytes;
        q->n_open--;
        if (++q->n_taken == q->n_parts)
            unlink_request(w, q);
    }
    pthread_mutex_unlock(&w->lock);
}

/* Puts the part's bytes to their places in the slot, and checks them. */
static int place_part(const struct reader_work *w, const struct read_part *p, struct moeflux_err *e)
{
    const struct read_request *q = p->request;
    const struct extent *x = &p->extent;
    if (!x->rule) {
        if (p->staged)
            memcpy(q->dst + x->at, p->staged + p->lead, x->bytes);
        return check_part(w, p, e);
    }
    if (extent_rule_place(x->rule, &x->factor, x->from, p->staged + p->lead, x->bytes, q->dst))
        return 0;
    return err_set(e, ERR_FORMAT, "layer %u expert %u: %.300s: a scale at offset %" PRIu64 " is not finite",
                   q->layer, q->expert, w->model->files[x->file].path, x->off);
}

/* Ends a part. Returns whether it was the request's last one. */
static bool end_part(struct reader_work *w, struct read_part *p, int code, const struct moeflux_err *why)
{
    struct read_request *q = p->request;
    pthread_mutex_lock(&w->lock);
    count_flights(w);
    w->n_in_flight--;
    w->n_in_flight_speculative -= p->speculative;
    if (code < 0 && q->code == 0) {
        q->err = *why;
        cut_short(w, q, code); /* the other parts are of no use any more */
    }
    bool last = --q->n_open == 0;
    wake_if_there_is_work(w);
    pthread_mutex_unlock(&w->lock);
    return last;
}

static void end(struct reader_work *w, struct read_part *p, int code, const struct moeflux_err *why)
{
    struct read_request *q = p->request;
    struct moeflux_err bad = {0};
    if (code == 0) {
        code = place_part(w, p, &bad);
        why = &bad;
    }
    if (p->staged)
        staging_give(&w->staging, p->staged);
    p->staged = NULL;
    if (!end_part(w, p, code, why))
        return;
    pthread_mutex_lock(&w->lock);
    publish(w, q);
    pthread_mutex_unlock(&w->lock);
}

/* Returns the extent's bytes among the first n that were read. */
static uint64_t without_lead(const struct read_part *p, uint64_t n)
{
    return n > p->lead ? size_min(n - p->lead, p->extent.bytes) : 0;
}

/* Describes a read that failed with an errno. */
static void describe(const struct reader_work *w, const struct read_part *p, int number,
                     struct moeflux_err *e)
{
    const struct read_request *q = p->request;
    const struct extent *x = &p->extent;
    errno = number;
    err_errno(e, ERR_IO, "layer %u expert %u: %.300s: %" PRIu64 " of %" PRIu64 " bytes at offset %" PRIu64,
              q->layer, q->expert, w->model->files[x->file].path, without_lead(p, p->n_done), x->bytes,
              x->off);
}

void reader_work_fail(struct reader_work *w, struct read_part *p, int number)
{
    struct moeflux_err e;
    describe(w, p, number, &e);
    end(w, p, ERR_IO, &e);
}

/* Has a failed read tried again, unless it has failed too often: disks and network file systems recover from
 * some errors. Returns whether it will be. */
static bool retry(struct reader_work *w, struct read_part *p, int number)
{
    struct moeflux_err e;
    char text[sizeof e.text + 32];
    if (p->n_errors == READER_RETRIES)
        return false;
    p->n_errors++;
    pthread_mutex_lock(&w->lock);
    w->stats.n_retried++;
    bool first = !w->has_warned;
    w->has_warned = true;
    pthread_mutex_unlock(&w->lock);
    if (first && w->warning.tell) {
        describe(w, p, number, &e);
        snprintf(text, sizeof text, "%s; the read is tried again", e.text);
        w->warning.tell(w->warning.ctx, text);
    }
    return true;
}

static void fail_short(struct reader_work *w, struct read_part *p, uint64_t n)
{
    const struct read_request *q = p->request;
    const struct extent *x = &p->extent;
    struct moeflux_err e;
    err_set(&e, ERR_IO,
            "layer %u expert %u: %.300s: %" PRIu64 " of %" PRIu64 " bytes at offset %" PRIu64
            ", then the file ends",
            q->layer, q->expert, w->model->files[x->file].path, without_lead(p, p->n_done + n), x->bytes,
            x->off);
    end(w, p, ERR_IO, &e);
}

/* Returns how many bytes of the part have arrived after a read of n more. A direct read continues at a whole
 * block. */
static uint64_t advance(const struct reader_work *w, const struct read_part *p, uint64_t n)
{
    uint64_t there = p->n_done + n;
    if (there >= bytes_to_read(p))
        return bytes_to_read(p);
    return w->files.block ? there / w->files.block * w->files.block : there;
}

static void count_continued(struct reader_work *w)
{
    pthread_mutex_lock(&w->lock);
    w->stats.n_continued++;
    pthread_mutex_unlock(&w->lock);
}

static bool stall(struct reader_work *w, struct read_part *p, int64_t result)
{
    if (++p->n_stalls > MAX_STALLS) {
        reader_work_fail(w, p, (int)-result);
        return false;
    }
    count_continued(w);
    return true;
}

bool reader_work_finish_read(struct reader_work *w, struct read_part *p, int64_t result)
{
    if (w->hook)
        result = w->hook->result(w->hook->ctx, p, reader_work_next_read(w, p).dst, result);
    if (result == -EINTR || result == -EAGAIN)
        return stall(w, p, result);
    if (result < 0) {
        if (retry(w, p, (int)-result))
            return true;
        reader_work_fail(w, p, (int)-result);
        return false;
    }
    uint64_t there = advance(w, p, (uint64_t)result);
    if (there == p->n_done) {
        fail_short(w, p, (uint64_t)result);
        return false;
    }
    p->n_done = there;
    p->n_stalls = 0;
    if (there < bytes_to_read(p)) {
        count_continued(w);
        return true;
    }
    end(w, p, 0, NULL);
    return false;
}
