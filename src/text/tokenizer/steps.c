#include "text/tokenizer/steps.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/progress.h"

/* Of ordinary texts blanks and digits by turns need most: 10 a byte in each split of the patterns in use. */
#define STEPS_A_BYTE 64u
#define STEPS_BASE   (1u << 20)
#define STEPS_AN_ASK (1u << 16) /* well under a millisecond */

struct steps steps_for(size_t len, size_t n_splits, const struct moeflux_progress *p)
{
    struct steps s = {.until_ask = STEPS_AN_ASK, .progress = p};
    if (!size_mul(len, (n_splits + 1) * STEPS_A_BYTE, &s.left) || !size_add(s.left, STEPS_BASE, &s.left))
        s.left = UINT64_MAX;
    return s;
}

bool steps_ask(struct steps *s, uint64_t n)
{
    if (n < s->until_ask) {
        s->until_ask -= n;
        return true;
    }
    s->until_ask = STEPS_AN_ASK;
    if (progress_report(s->progress, "encoding", "B", 0, 0))
        return true;
    s->interrupted = true;
    s->left = 0;
    return false;
}

bool steps_take(struct steps *s, uint64_t n)
{
    if (n > s->left) {
        s->left = 0;
        return false;
    }
    s->left -= n;
    return steps_ask(s, n);
}

int steps_error(const struct steps *s, const char *what, size_t at, size_t len, struct moeflux_err *e)
{
    if (s->interrupted)
        return err_set(e, ERR_INTERRUPTED, "interrupted while %zu bytes of text were encoded", len);
    return err_set(e, ERR_UNSUPPORTED,
                   "tokenizer.json: %s takes too many steps at byte %zu of %zu bytes of text", what, at, len);
}
