#include "text/tokenizer/normalise.h"

#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "text/tokenizer/nfc.h"
#include "text/tokenizer/vocab.h"

static void mark_spaces(const char *text, size_t len, struct str *out)
{
    for (const char *end = text + len, *next; text < end; text = next) {
        const char *space = memchr(text, ' ', (size_t)(end - text));
        next = space ? space + 1 : end;
        str_add(out, text, (size_t)((space ? space : end) - text));
        if (space)
            str_add_text(out, VOCAB_SPACE);
    }
}

int normalise_add(const struct normaliser *n, const char *text, size_t len, struct str *out,
                  struct moeflux_err *e)
{
    struct str composed = {0};
    int rc = n->nfc ? nfc_add(text, len, &composed, e) : 0;
    if (rc < 0)
        return rc;
    const char *from = n->nfc ? str_text(&composed) : text;
    size_t n_from = n->nfc ? composed.len : len;
    if (n->space_prefix && n_from > 0)
        str_add_text(out, VOCAB_SPACE);
    if (n->marks_spaces)
        mark_spaces(from, n_from, out);
    else
        str_add(out, from, n_from);
    str_free(&composed);
    return str_ok(out) ? 0 : err_set(e, ERR_MEMORY, "out of memory for %zu bytes of text", len);
}
