#include "text/tokenizer/work_limit.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/progress.h"

/* Alternating blanks and digits need the most steps of ordinary texts: 10 a byte in each published split. */
#define STEPS_PER_BYTE     64u
#define STEPS_BASE         (1u << 20)
#define STEPS_BETWEEN_ASKS (1u << 16) /* well under a millisecond */

struct work_limit work_limit_for(size_t len, size_t n_splits, const struct moeflux_progress *p)
{
    struct work_limit s = {.until_ask = STEPS_BETWEEN_ASKS, .progress = p};
    if (!size_mul(len, (n_splits + 1) * STEPS_PER_BYTE, &s.left) || !size_add(s.left, STEPS_BASE, &s.left))
        s.left = UINT64_MAX;
    return s;
}

bool work_limit_ask(struct work_limit *s, uint64_t n)
{
    if (n < s->until_ask) {
        s->until_ask -= n;
        return true;
    }
    s->until_ask = STEPS_BETWEEN_ASKS;
    if (progress_report(s->progress, "encoding", "B", 0, 0))
        return true;
    s->interrupted = true;
    s->left = 0;
    return false;
}

bool work_limit_take(struct work_limit *s, uint64_t n)
{
    if (n > s->left) {
        s->left = 0;
        return false;
    }
    s->left -= n;
    return work_limit_ask(s, n);
}

int work_limit_error(const struct work_limit *s, const char *what, size_t at, size_t len,
                     struct moeflux_err *e)
{
    if (s->interrupted)
        return err_set(e, ERR_INTERRUPTED, "interrupted while %zu bytes of text were encoded", len);
    return err_set(e, ERR_UNSUPPORTED,
                   "tokenizer.json: %s takes too many steps at byte %zu of %zu bytes of text", what, at, len);
}
