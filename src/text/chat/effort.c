/* How much an answer thinks: by the template, or by a limit of tokens. */
#include <string.h>
#include <strings.h>

#include "base/err.h"
#include "text/chat/chat.h"
#include "text/chat/harmony.h"
#include "text/chat/probe.h"

enum { MAX_WORDS = 5 };

static const struct {
    const char *name;
    /* what templates call it, the nearest first; a name of its own comes before those of others */
    const char *words[MAX_WORDS];
    int level;           /* one of `levels`; 0: none */
    const char *harmony; /* gpt-oss has three efforts, and writes any word into its prompt */
    int64_t budget;      /* tokens; -1: no limit */
} efforts[CHAT_N_EFFORTS] = {
    [CHAT_EFFORT_AUTO] = {"", {NULL}, 0, NULL, -1},
    [CHAT_EFFORT_NONE] = {"none", {"none"}, 0, "low", -1},
    [CHAT_EFFORT_MINIMAL] = {"minimal", {"minimal", "low", "medium", "high"}, 1, "low", 512},
    [CHAT_EFFORT_LOW] = {"low", {"low", "medium", "high"}, 1, "low", 2048},
    [CHAT_EFFORT_MEDIUM] = {"medium", {"medium", "high"}, 2, "medium", 8192},
    [CHAT_EFFORT_HIGH] = {"high", {"high", "xhigh"}, 3, "high", -1},
    [CHAT_EFFORT_XHIGH] = {"xhigh", {"xhigh", "max", "high"}, 4, "high", -1},
};

/* Words of templates. Those of one level mean about the same. */
static const struct {
    const char *word;
    int level;
} levels[] = {{"high", 3}, {"max", 4}, {"xhigh", 4}, {"medium", 2}, {"low", 1}, {"minimal", 1}};
enum { N_LEVELS = sizeof levels / sizeof *levels };

enum chat_effort chat_effort_find(const char *name)
{
    enum chat_effort effort = CHAT_EFFORT_NONE;
    if (strcmp(name, "max") == 0)
        return CHAT_EFFORT_XHIGH;
    while (effort < CHAT_N_EFFORTS && strcmp(efforts[effort].name, name) != 0)
        effort++;
    return effort;
}

/* Returns the level of a template's word; 0: it is another word, or NULL. */
static int level_of(const char *word)
{
    for (size_t i = 0; word && i < N_LEVELS; i++)
        if (strcmp(levels[i].word, word) == 0)
            return levels[i].level;
    return 0;
}

/* What a template makes of a word that it does not know. */
struct fallback {
    struct chat_text text; /* a question */
    bool fails;            /* the template refuses the word */
    const char *word;      /* the effort that the text names, one of `levels`; NULL: none */
};

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Returns whether the n bytes have the word, in letters of any case. */
static bool has_word(const char *text, size_t n, const char *word)
{
    size_t len = strlen(word);
    for (size_t i = 0; i + len <= n; i++)
        if (strncasecmp(text + i, word, len) == 0 && (i == 0 || !is_letter(text[i - 1])) &&
            (i + len == n || !is_letter(text[i + len])))
            return true;
    return false;
}

/* Returns the only word of `levels` that a text has where another text differs; NULL: none, or several. */
static const char *find_name(const char *text, const char *other)
{
    const char *found = NULL;
    size_t n = strlen(text), n_other = strlen(other), from = 0, same = 0;
    while (from < n && text[from] == other[from])
        from++;
    while (same < n - from && from + same < n_other && text[n - 1 - same] == other[n_other - 1 - same])
        same++;
    while (from > 0 && is_letter(text[from - 1]))
        from--;
    while (same > 0 && is_letter(text[n - same]))
        same--;
    for (size_t i = 0; i < N_LEVELS; i++)
        if (has_word(text + from, n - same - from, levels[i].word)) {
            if (found)
                return NULL;
            found = levels[i].word;
        }
    return found;
}

/* Finds out whether the template distinguishes a word from those that it does not know. text: the question
 * with the word. */
static int is_known(struct chat *c, const char *word, const struct fallback *f, struct chat_text *text,
                    bool *known, struct moeflux_err *e)
{
    bool fails;
    int rc = probe_effort(c, word, text, &fails, e);
    *known = rc == 0 && !fails && (f->fails || strcmp(str_text(&text->text), str_text(&f->text.text)) != 0);
    return rc;
}

static int find_fallback(struct chat *c, struct fallback *f, struct moeflux_err *e)
{
    bool known = false;
    int rc = probe_effort(c, "so \x1a so", &f->text, &f->fails, e);
    for (size_t i = 0; rc == 0 && !f->fails && !known && i < N_LEVELS; i++) {
        struct chat_text text = {0};
        rc = is_known(c, levels[i].word, f, &text, &known, e);
        if (known)
            f->word = find_name(str_text(&f->text.text), str_text(&text.text));
        chat_text_free(&text);
    }
    return rc;
}

/* Sets c->effort_word to the nearest word that the template knows; NULL: none. A word for more than was asked
 * is better only than a higher effort, or none. */
static int choose_word(struct chat *c, struct moeflux_err *e)
{
    const char *const *words = efforts[c->effort].words;
    struct fallback f = {0};
    int rc = find_fallback(c, &f, e);
    for (size_t i = 0; rc == 0 && i < MAX_WORDS && words[i] && !c->effort_word; i++) {
        struct chat_text text = {0};
        bool known = false;
        int level = level_of(words[i]);
        if (level <= efforts[c->effort].level || f.fails || level < level_of(f.word))
            rc = is_known(c, words[i], &f, &text, &known, e);
        if (known || (f.word && strcmp(f.word, words[i]) == 0))
            c->effort_word = words[i];
        chat_text_free(&text);
    }
    chat_text_free(&f.text);
    return rc;
}

int chat_use_effort(struct chat *c, enum chat_effort effort, struct moeflux_err *e)
{
    int rc = 0;
    if (effort == c->effort)
        return 0;
    c->effort = effort;
    c->effort_word = NULL;
    if (c->harmony.is_used)
        c->effort_word = efforts[effort].harmony;
    else if (effort != CHAT_EFFORT_AUTO)
        rc = choose_word(c, e);
    return rc ? rc : probe_thinking(c, e);
}

int64_t chat_effort_budget(const struct chat *c)
{
    bool is_told = c->effort_word && level_of(c->effort_word) <= efforts[c->effort].level;
    return is_told ? -1 : efforts[c->effort].budget;
}

static int add_tag(const struct chat *c, struct token_list *out, struct moeflux_err *e)
{
    const char *tag = c->harmony.is_used ? HARMONY_ANSWER : c->tags->close;
    return tokenizer_encode(c->tokenizer, tag, strlen(tag), SPECIALS_AS_TOKENS, out, NULL, e);
}

/* Returns how many of the tokens come up to the end of the closing tag; 0: they have none. */
static size_t find_tag(const struct chat *c, const struct token_list *ids)
{
    struct str text = {0};
    size_t i = 0;
    bool found = false;
    for (; !found && i < ids->n; i++) {
        const char *bytes;
        size_t n = tokenizer_bytes(c->tokenizer, ids->ids[i], &bytes);
        str_add(&text, n ? bytes : "", n);
        found = strstr(str_text(&text), c->tags->close) != NULL;
    }
    str_free(&text);
    return found ? i : 0;
}

int chat_close_thinking(const struct chat *c, struct token_list *out, size_t *n_tag, struct moeflux_err *e)
{
    struct chat_text between = {0};
    bool found = false;
    int rc = c->harmony.is_used ? 0 : probe_between(c, &between, &found, e);
    if (rc == 0 && found)
        rc = chat_encode(c, &between, 0, out, e);
    *n_tag = rc == 0 ? find_tag(c, out) : 0;
    if (rc == 0 && *n_tag == 0) {
        out->n = 0;
        rc = add_tag(c, out, e);
        *n_tag = c->harmony.is_used ? 1 : out->n;
    }
    chat_text_free(&between);
    return rc;
}
