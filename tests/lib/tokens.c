#include "tokens.h"

#include <string.h>

#include "check.h"
#include "text/tokenizer/tokenizer.h"

void tokens_add(const struct tokenizer *t, const char *text, struct token_list *out)
{
    assert_int_equal(tokenizer_encode(t, text, strlen(text), SPECIALS_AS_TOKENS, out, NULL, NULL), 0);
}

void tokens_expect(const struct tokenizer *t, const char *text, struct token_list *got)
{
    struct token_list want = {0};
    tokens_add(t, text, &want);
    assert_int_equal(got->n, want.n);
    assert_memory_equal(got->ids, want.ids, want.n * sizeof *want.ids);
    token_list_free(&want);
    token_list_free(got);
}
