#include "hub/part_request.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "hub/listing.h"
#include "hub/remote.h"
#include "hub/retry.h"
#include "hub/transfer.h"

/* A running request. */
struct receiving {
    const struct part_request *q;
    uint64_t skip; /* bytes of the body before the part: the server sends the whole file */
    bool begun;    /* the headers are checked */
    int rc;        /* the failure while the body came; 0: none */
    struct moeflux_err *e;
};

/* Checks that the endpoint means the file of the listing. */
static int check_identity(const struct part_request *q, const struct remote_reply *reply,
                          struct moeflux_err *e)
{
    const struct listing_file *f = q->part->file->file;
    if (reply->commit[0] && strcmp(reply->commit, q->commit) != 0)
        return err_set(e, ERR_FORMAT, "%s: the server sends commit %s, expected %s", q->name, reply->commit,
                       q->commit);
    if (reply->linked_etag[0] && strcmp(reply->linked_etag, f->digest) != 0)
        return err_set(e, ERR_FORMAT, "%s: the server sends the file %s, its list says %s", q->name,
                       reply->linked_etag, f->digest);
    if (reply->linked_size >= 0 && (uint64_t)reply->linked_size != f->bytes)
        return err_set(e, ERR_FORMAT, "%s: the server sends %" PRId64 " bytes, its list says %" PRIu64,
                       q->name, reply->linked_size, f->bytes);
    return 0;
}

/* Checks what the body will be, before its first byte is taken. */
static int check_body(struct receiving *r, const struct remote_reply *reply)
{
    const struct part_request *q = r->q;
    struct transfer *t = q->part->file;
    uint64_t total = reply->has_range ? reply->range_total : reply->length < 0 ? 0 : (uint64_t)reply->length;
    int rc = check_identity(q, reply, r->e);
    if (rc)
        return rc;
    if (reply->status == 206 && (!reply->has_range || reply->range_from != q->part->got))
        return err_set(r->e, ERR_FORMAT, "%s: the server sends other bytes than those from %" PRIu64 " on",
                       q->name, q->part->got);
    if (total && total != t->file->bytes)
        return err_set(r->e, ERR_FORMAT, "%s: the server has %" PRIu64 " bytes, its list says %" PRIu64,
                       q->name, total, t->file->bytes);
    pthread_mutex_lock(&t->lock);
    t->no_ranges = reply->status == 200;
    if (reply->moved && str_ok(&reply->url)) {
        str_clear(&t->url);
        str_add_text(&t->url, str_text(&reply->url));
        memcpy(t->etag, reply->etag, sizeof t->etag);
    }
    pthread_mutex_unlock(&t->lock);
    r->skip = reply->status == 200 ? q->part->got : 0;
    return 0;
}

static bool take(void *ctx, const struct remote_reply *reply, const char *bytes, size_t n)
{
    struct receiving *r = ctx;
    struct part *p = r->q->part;
    if (!r->begun)
        r->rc = check_body(r, reply);
    r->begun = true;
    size_t skipped = size_min(n, r->skip);
    r->skip -= skipped;
    uint64_t before = p->got;
    if (r->rc == 0 && n > skipped)
        r->rc = transfer_take(p, bytes + skipped, n - skipped, r->e);
    if (p->got > before) {
        atomic_fetch_add(r->q->done, p->got - before);
        retry_note_progress(r->q->retry);
    }
    /* A body that ends with the part leaves the connection to the next one; a longer one is cut off. */
    return r->rc == 0 && p->got - before == n - skipped;
}

/* Copies where the file lies, if the endpoint has said so. */
static void find_place(struct transfer *t, struct str *url, char *etag, size_t cap)
{
    pthread_mutex_lock(&t->lock);
    str_clear(url);
    str_add(url, str_text(&t->url), t->url.len);
    snprintf(etag, cap, "%s", t->etag);
    pthread_mutex_unlock(&t->lock);
}

/* Forgets it: such places are open for some minutes only. */
static void forget_place(struct transfer *t)
{
    pthread_mutex_lock(&t->lock);
    str_clear(&t->url);
    t->etag[0] = '\0';
    pthread_mutex_unlock(&t->lock);
}

/* Explains a status that another try will not change. */
static int refuse(const struct part_request *q, const struct remote_reply *reply, struct moeflux_err *e)
{
    char why[300];
    retry_explain(reply, why, sizeof why);
    if (reply->status == 416)
        return err_set(e, ERR_FORMAT,
                       "%s: the server has fewer bytes than the %" PRIu64 " that its list says", q->name,
                       q->part->file->file->bytes);
    /* Another host knows neither licences nor the token: its clock or the signature of the URL is wrong. */
    if (reply->moved)
        return err_set(e, ERR_IO, "%s: %s, which the server redirects to, refuses: %s", q->name,
                       reply->origin, why);
    if (reply->status == 401 || reply->status == 403)
        return err_set(e, ERR_IO,
                       "%s: the server refuses (%s): accept the licence on the repository's page, and "
                       "set HF_TOKEN",
                       q->name, why);
    return err_set(e, ERR_IO, "%s: %s", q->name, why);
}

/* Makes one request. Returns 1 if the part needs another one. */
static int request(const struct part_request *q, struct str *place, struct moeflux_err *e)
{
    struct receiving r = {.q = q, .e = e};
    struct remote_reply reply;
    char etag[160];
    find_place(q->part->file, place, etag, sizeof etag);
    bool placed = place->len > 0;
    struct remote_call call = {.url = placed ? str_text(place) : q->url,
                               .from = q->part->got,
                               .to = q->part->to,
                               .if_range = etag[0] ? etag : NULL,
                               .take = take,
                               .ctx = &r};
    int rc = remote_get(q->remote, &call, &reply, e);
    bool ok = !reply.cut && (reply.status == 200 || reply.status == 206);
    if (rc == 0 && ok && !r.begun) /* there was no body */
        r.rc = check_body(&r, &reply);
    rc = rc ? rc : r.rc;
    if (rc == 0 && q->part->got == q->part->to)
        ok = true;
    else if (rc == 0 && stop_is_set(q->retry->stop))
        rc = ERR_INTERRUPTED;
    else if (rc == 0 && placed && !ok)
        forget_place(q->part->file);
    /* A place that has expired says 403; the endpoint names a new one. */
    if (rc == 0 && !ok && !retry_may_help(&reply) && !placed)
        rc = refuse(q, &reply, e);
    else if (rc == 0 && q->part->got < q->part->to)
        rc = retry_wait(q->retry, &reply, q->name, e);
    remote_reply_free(&reply);
    return rc ? rc : q->part->got < q->part->to;
}

int part_request_run(const struct part_request *q, struct moeflux_err *e)
{
    struct str place = {0};
    int rc = 1;
    while (rc == 1)
        rc = request(q, &place, e);
    str_free(&place);
    return rc;
}
