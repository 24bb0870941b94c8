#include "cli/measure/encode_text.h"

#include <stdint.h>
#include <string.h>

#include "base/str.h"
#include "moeflux.h"

int encode_text(const struct moeflux_tokenizer *t, const struct str *text, bool specials,
                struct token_list *ids, struct moeflux_err *e)
{
    int32_t bos = moeflux_tokenizer_bos(t);
    size_t n_bos = bos >= 0;
    /* A token has at least one byte, except where a tokenizer writes a space before the text. */
    int rc = token_list_resize(ids, n_bos + text->len + 1, e);
    if (rc)
        return rc;
    int64_t n = moeflux_tokenizer_encode(t, str_text(text), text->len, specials, ids->ids + n_bos,
                                         ids->n - n_bos, e);
    if (n < 0)
        return (int)n;
    if (n_bos && n > 0 && ids->ids[1] == bos)
        n--, memmove(ids->ids, ids->ids + 1, (size_t)n * sizeof *ids->ids);
    else if (n_bos)
        ids->ids[0] = bos;
    ids->n = n_bos + (size_t)n;
    return 0;
}
