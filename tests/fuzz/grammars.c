/* Grammars and JSON Schemas that a user or a client gives. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "fuzz/target.h"
#include "text/grammar/constraint.h"
#include "text/grammar/grammar.h"
#include "text/grammar/json_schema.h"
#include "text/tokenizer/token_trie.h"

/* Id 0 ends a text. */
static const char *const tokens[] = {"",      "a",    "b",    "c",    "ab",   "abc",      "\"",     "{",
                                     "}",     "[",    "]",    ":",    ",",    " ",        "\n",     "0",
                                     "1",     "9",    "-",    ".",    "\",",  "{\"",      "\\",     "u00",
                                     "tru",   "e",    "null", "\xc3", "\xa9", "\xe4\xb8", "\xad",   "x",
                                     "\"a\"", "\xf0", "\x80", "true", "10",   "]}",       "a\": [1"};
enum { N_TOKENS = sizeof tokens / sizeof *tokens, MOST_TOKENS = 8 };

static bool text_of(const void *ctx, int32_t id, struct token_text *out)
{
    (void)ctx;
    *out = (struct token_text){tokens[id], strlen(tokens[id])};
    return true;
}

/* What the mask allows is accepted, what it does not is refused. */
static void check_mask(struct constraint *c, uint64_t mask)
{
    struct moeflux_err e = {0};
    for (int32_t id = 0; id < N_TOKENS; id++) {
        struct constraint *other = constraint_clone(c, &e);
        target_need(other != NULL, "no clone");
        int rc = constraint_accept(other, id, &e);
        target_need(rc == ERR_UNSUPPORTED || (rc == 0) == (mask >> id & 1),
                    "a mask that is not what is accepted");
        constraint_free(other);
    }
}

/* Takes the token over that the mask allows, `pick` of them. False: the text has ended, or the grammar is too
 * ambiguous. */
static bool take_token(struct constraint *c, unsigned pick, bool check)
{
    struct moeflux_err e = {0};
    const uint64_t *bits;
    if (!target_answered(constraint_mask(c, &bits, &e), &e))
        return false;
    uint64_t mask = bits[0];
    if (check)
        check_mask(c, mask);
    for (int32_t id = 1; id < N_TOKENS; id++)
        if ((mask >> id & 1) && pick-- % 4 == 0)
            return target_answered(constraint_accept(c, id, &e), &e);
    target_need((mask & 1) == constraint_may_end(c), "an end that is not the grammar's");
    return false;
}

/* Takes the grammar over. */
static void use_grammar(struct grammar *g, const uint8_t *data, size_t n)
{
    static struct token_trie *trie;
    struct constraint *c = NULL;
    struct moeflux_err e = {0};
    if (!trie)
        target_need(token_trie_new(&trie, &(struct token_source){N_TOKENS, text_of, NULL}, &e) == 0,
                    "no trie");
    if (!target_answered(constraint_new(&c, g, trie, (const int32_t[]){0}, 1, &e), &e))
        return;
    for (size_t i = 0; i < MOST_TOKENS && take_token(c, data[i % n], i == 2 && data[0] % 4 == 0); i++)
        ;
    constraint_free(c);
}

void target_grammar(const uint8_t *data, size_t n)
{
    struct grammar *g = NULL;
    struct moeflux_err e = {0};
    if (target_answered(grammar_compile(&g, (const char *)data, n, "grammar", &e), &e))
        use_grammar(g, data, n);
}

void target_schema(const uint8_t *data, size_t n)
{
    struct str text = {0};
    struct grammar *g = NULL;
    struct moeflux_err e = {0};
    if (target_answered(json_schema_text_to_grammar((const char *)data, n, "schema", &text, &e), &e)) {
        int rc = grammar_compile(&g, str_text(&text), text.len, "grammar", &e);
        /* What was written is a grammar; only schemas that begin with themselves, have no end or are too
         * large are none. */
        target_need(rc == 0 || strstr(e.text, "begins with itself") || strstr(e.text, "no text fits") ||
                        rc == ERR_UNSUPPORTED,
                    e.text);
        if (rc == 0)
            use_grammar(g, data, n);
    }
    str_free(&text);
}
