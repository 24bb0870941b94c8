#include "exec/code_books.h"

#include "base/format.h"
#include "codebooks.h"
#include "exec/backend.h"

#define BOOK_WORD(word) (word)
static const uint32_t books[] = {CODEBOOK_IQ2_XXS(BOOK_WORD), CODEBOOK_IQ2_XS(BOOK_WORD),
                                 CODEBOOK_IQ2_S(BOOK_WORD),   CODEBOOK_IQ3_XXS(BOOK_WORD),
                                 CODEBOOK_IQ3_S(BOOK_WORD),   CODEBOOK_IQ1(BOOK_WORD)};
_Static_assert(sizeof books ==
                   2ull * (CODEBOOK_IQ2_XXS_ENTRIES + CODEBOOK_IQ2_XS_ENTRIES + CODEBOOK_IQ2_S_ENTRIES +
                           CODEBOOK_IQ3_XXS_ENTRIES + CODEBOOK_IQ3_S_ENTRIES + CODEBOOK_IQ1_ENTRIES),
               "an entry is missing");

int code_books_open(struct exec *x, struct moeflux_err *e)
{
    if (x->code_books.address)
        return 0;
    int rc = exec_buffer_new(x, &x->code_books, EXEC_DEVICE, sizeof books, e);
    if (rc == 0)
        rc = exec_write(x, &x->code_books, 0, books, sizeof books, e);
    if (rc < 0)
        exec_buffer_free(x, &x->code_books);
    return rc;
}

uint64_t code_books_or_scales(const struct exec *x, uint32_t format, uint64_t scales)
{
    return format_is_block(format) ? x->code_books.address : scales;
}

void code_books_put(const struct exec *x, uint32_t *low, uint32_t *high)
{
    *low = (uint32_t)x->code_books.address;
    *high = (uint32_t)(x->code_books.address >> 32);
}
