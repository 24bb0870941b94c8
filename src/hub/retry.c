#include "hub/retry.h"

#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "hub/remote.h"
#include "hub/stop.h"

/* Milliseconds. A server's own wish may be longer. */
enum { FIRST_WAIT = 250, LONGEST_WAIT = 60000, LONGEST_WISH = 900000, WORTH_TELLING = 2000 };
enum { SLICE = 50000000 }; /* nanoseconds between two looks at `stop` */

bool retry_may_help(const struct remote_reply *reply)
{
    return reply->cut ? !reply->hopeless
                      : reply->status == 408 || reply->status == 429 || reply->status >= 500;
}

void retry_note_progress(struct retry *r)
{
    r->n = 0;
    r->has_progress = true;
}

void retry_explain(const struct remote_reply *reply, char *out, uint32_t cap)
{
    if (reply->cut)
        snprintf(out, cap, "%.250s", reply->fault);
    else if (reply->error_text[0])
        snprintf(out, cap, "status %d: %.190s", reply->status, reply->error_text);
    else
        snprintf(out, cap, "status %d%s", reply->status, reply->status == 429 ? ", too many requests" : "");
}

static int wait_ms(const struct retry *r, uint64_t ms)
{
    uint64_t end = clock_ns() + ms * 1000000;
    while (!stop_is_set(r->stop) && clock_ns() < end)
        nanosleep(&(struct timespec){0, SLICE}, NULL);
    return stop_is_set(r->stop) ? ERR_INTERRUPTED : 0;
}

int retry_wait(struct retry *r, const struct remote_reply *reply, const char *what, struct moeflux_err *e)
{
    char why[300], text[700];
    uint64_t ms = 0;
    r->n += !r->has_progress;
    r->has_progress = false;
    if (r->n >= r->most) {
        retry_explain(reply, why, sizeof why);
        return err_set(e, ERR_IO, "%s: nothing received after %u %s: %s", what, r->n,
                       r->n == 1 ? "try" : "tries", why);
    }
    if (r->n > 1 || !reply->cut) {
        uint32_t doublings = r->n == 0 ? 0 : r->n < 9 ? r->n - 1 : 8;
        ms = (uint64_t)FIRST_WAIT << doublings;
        ms = ms < LONGEST_WAIT ? ms : LONGEST_WAIT;
    }
    if (!reply->cut && reply->retry_after >= 0)
        ms = reply->retry_after < LONGEST_WISH / 1000 ? (uint64_t)reply->retry_after * 1000 : LONGEST_WISH;
    if (ms >= WORTH_TELLING && r->tell) {
        retry_explain(reply, why, sizeof why);
        snprintf(text, sizeof text, "%.300s: %s; again in %u s", what, why, (unsigned)(ms / 1000));
        r->tell(r->ctx, text);
    }
    return ms ? wait_ms(r, ms) : 0;
}
