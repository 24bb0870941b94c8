/* bench_grammar - the cost of a constraint for each token: masks over a synthetic vocabulary of 248,320
 * tokens while a document is written.
 *
 *   bench_grammar [FILE.gbnf TEXTFILE]
 *
 * Without arguments it takes JSON documents of built-in schemas. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/str.h"
#include "fuzz.h"
#include "moeflux.h"
#include "text/grammar/constraint.h"
#include "text/grammar/grammar.h"
#include "text/grammar/json_schema.h"
#include "text/tokenizer/token_trie.h"

enum { N_IDS = 248320 };

/* Returns the processor time of this thread only: others may run at the same time. */
static uint64_t cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static char texts[N_IDS][24];
static uint32_t n_texts;

static void add(const char *text)
{
    if (n_texts < N_IDS)
        snprintf(texts[n_texts++], sizeof *texts, "%s", text);
}

/* Words of syllables share beginnings as real ones do. */
static void add_word(struct fuzz *f, unsigned n, const char *before, const char *after)
{
    static const char *const parts[] = {"in", "er",  "con", "st", "ing", "tion", "a",  "re", "ma",
                                        "lo", "pre", "ble", "s",  "ed",  "to",   "qu", "x",  "th",
                                        "e",  "ou",  "ly",  "un", "de",  "form", "ic", "y"};
    char text[64] = "";
    strcat(text, before);
    for (unsigned i = 0; i < n; i++)
        strcat(text, parts[fuzz_below(f, sizeof parts / sizeof *parts)]);
    strcat(text, after);
    if (strlen(text) < 23)
        add(text);
}

static void add_wide(struct fuzz *f, unsigned n)
{
    char text[24] = "";
    for (unsigned i = 0; i < n; i++) {
        uint32_t point = 0x4e00 + (uint32_t)fuzz_below(f, i ? 0x400 : 0x1800);
        const char c[] = {(char)(0xe0 | point >> 12), (char)(0x80 | (point >> 6 & 63)),
                          (char)(0x80 | (point & 63)), 0};
        strcat(text, c);
    }
    add(text);
}

static void add_marks(struct fuzz *f, unsigned n)
{
    static const char marks[] = "\"\":,{}[]()<>/\\.;'=-_+*&%$#@!?|~ \n\t";
    char text[24] = "";
    for (unsigned i = 0; i < n; i++)
        text[i] = marks[fuzz_below(f, sizeof marks - 1)];
    add(text);
}

static void make_vocabulary(void)
{
    struct fuzz f = {7};
    for (int b = 1; b < 256; b++)
        add((const char[]){(char)b, 0});
    for (unsigned n = 2; n < 23; n++) {
        char spaces[24] = "";
        memset(spaces, ' ', n);
        add(spaces);
        spaces[0] = '\n';
        add(spaces);
    }
    for (int i = 0; i < 12000; i++)
        add_marks(&f, 2 + (unsigned)fuzz_below(&f, 4));
    for (int i = 0; i < 70000; i++)
        add_wide(&f, 1 + (unsigned)fuzz_below(&f, 4));
    while (n_texts < N_IDS)
        add_word(&f, 1 + (unsigned)fuzz_below(&f, 5), fuzz_below(&f, 2) ? " " : "",
                 fuzz_below(&f, 20) ? "" : "\":");
}

static bool text_of(const void *ctx, int32_t id, struct token_text *out)
{
    (void)ctx;
    *out = (struct token_text){texts[id], strlen(texts[id])};
    return true;
}

/* The longest token that the text goes on with. */
static int32_t longest(const struct token_trie *t, const char *text, const uint64_t *bits)
{
    int32_t best = -1;
    uint32_t node = 0;
    for (; *text; text++) {
        uint32_t child = node + 1;
        while (child < t->end[node] && t->byte[child] != (uint8_t)*text)
            child = t->end[child];
        if (child >= t->end[node])
            break;
        node = child;
        if (t->first[node] < t->first[node + 1]) {
            int32_t id = t->ids[t->first[node]];
            best = bits[id / 64] >> id % 64 & 1 ? id : best;
        }
    }
    return best;
}

static void run(struct constraint *c, const struct token_trie *t, const char *what, const char *text)
{
    for (int pass = 0; pass < 3; pass++) {
        uint64_t sum = 0, worst = 0, n = 0, worst_at = 0;
        struct moeflux_err e;
        constraint_reset(c, &e);
        for (const char *at = text; *at; n++) {
            const uint64_t *bits;
            uint64_t start = cpu_ns();
            int rc = constraint_mask(c, &bits, &e);
            uint64_t took = cpu_ns() - start;
            int32_t id = rc ? -1 : longest(t, at, bits);
            start = cpu_ns();
            rc = rc ? rc : constraint_accept(c, id, &e);
            took += cpu_ns() - start;
            if (rc) {
                printf("%s: byte %zu: %s\n", what, (size_t)(at - text), e.text);
                return;
            }
            sum += took;
            if (took > worst) {
                worst = took;
                worst_at = (uint64_t)(at - text);
            }
            at += strlen(texts[id]);
        }
        printf("%-16s pass %d: %4llu tokens, %8.1f us a token, worst %8.1f us at byte %llu\n", what, pass + 1,
               (unsigned long long)n, (double)sum / 1e3 / (double)n, (double)worst / 1e3,
               (unsigned long long)worst_at);
    }
}

static void measure(const struct token_trie *t, const char *what, const char *grammar, size_t len,
                    const char *text)
{
    struct grammar *g;
    struct constraint *c = NULL;
    struct moeflux_err e;
    uint64_t start = cpu_ns();
    if (grammar_compile(&g, grammar, len, what, &e)) {
        printf("%s\n", e.text);
        return;
    }
    printf("%-16s compiled in %.2f ms\n", what, (double)(cpu_ns() - start) / 1e6);
    if (constraint_new(&c, g, t, NULL, 0, &e) == 0)
        run(c, t, what, text);
    constraint_free(c);
}

static void measure_schema(const struct token_trie *t, const char *what, const char *schema, const char *text)
{
    struct str grammar = {0};
    struct moeflux_err e;
    if (json_schema_text_to_grammar(schema, strlen(schema), what, &grammar, &e))
        printf("%s\n", e.text);
    else
        measure(t, what, str_text(&grammar), grammar.len, text);
    str_free(&grammar);
}

static const char any_text[] = "{\"name\": \"constable information\", \"list\": [1, 2.5, -3e10, true, null, "
                               "{\"deep\": [[\"con\", \"form\"], "
                               "{\"a\": \"the tion \xe4\xb8\xad\xe5\x9b\xbd ing the forming lo\"}]}], "
                               "\"text\": \"in the ma of re, to be \\\"quoted\\\" "
                               "and \\u0041 so on until the end of this text, which has several words in "
                               "it\", \"n\": 12345, \"m\": [\"x\", \"y\", "
                               "\"z\"], \"o\": {\"p\": {\"q\": {\"r\": \"deep text in the form\"}}}}";

static const char person[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":60},"
    "\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":150},\"tags\":{\"type\":\"array\",\"items\":{"
    "\"type\":\"string\","
    "\"maxLength\":20},\"maxItems\":8},\"kind\":{\"enum\":[\"alpha\",\"beta\",\"gamma\"]},\"note\":{\"type\":"
    "\"string\"},"
    "\"born\":{\"type\":\"string\",\"format\":\"date\"}},\"required\":[\"name\",\"age\",\"tags\",\"kind\","
    "\"note\",\"born\"],"
    "\"additionalProperties\":false}";
static const char person_text[] = "{\"name\": \"con interform the ma qu\", \"age\": 42, \"tags\": [\"in the "
                                  "form\", \"tion\", \"ing lo\", \"pre con st\"], "
                                  "\"kind\": \"beta\", \"note\": \"a longer text of the form that has no "
                                  "bound and goes on to the end, with commas, and "
                                  "all \\n that\", \"born\": \"1984-02-03\"}";

static char *whole_file(const char *path, size_t *len)
{
    FILE *f = fopen(path, "rb");
    char *text = calloc(1, 1 << 20);
    *len = f && text ? fread(text, 1, (1 << 20) - 1, f) : 0;
    if (f)
        fclose(f);
    return text;
}

int main(int argc, char **argv)
{
    struct token_trie *t;
    struct moeflux_err e;
    make_vocabulary();
    uint64_t start = cpu_ns();
    if (token_trie_new(&t, &(struct token_source){N_IDS, text_of, NULL}, &e)) {
        printf("%s\n", e.text);
        return 1;
    }
    printf("trie of %u tokens: %u nodes, %.1f ms\n", t->n_ids, t->n_nodes, (double)(cpu_ns() - start) / 1e6);
    if (argc == 3) {
        size_t n, n_text;
        char *grammar = whole_file(argv[1], &n), *text = whole_file(argv[2], &n_text);
        if (grammar && text)
            measure(t, argv[1], grammar, n, text);
        free(grammar);
        free(text);
    } else {
        measure_schema(t, "any object", "{\"type\":\"object\"}", any_text);
        measure_schema(t, "schema", person, person_text);
    }
    token_trie_free(t);
    return 0;
}
