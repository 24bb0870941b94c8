#include "generate/constrain.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "generate/generator.h"
#include "text/grammar/constraint.h"
#include "text/grammar/grammar.h"
#include "text/chat/harmony.h"
#include "text/grammar/json_schema.h"
#include "text/grammar/schema_writer.h"
#include "text/tokenizer/token_trie.h"
#include "text/chat/tool_calls.h"

enum { MAX_KEPT = 8 };

struct kept {
    char *grammar;
    bool calls;               /* tags of calls are tokens */
    struct constraint *start; /* state at the beginning of an answer */
    uint64_t used;
};

struct constrain {
    pthread_mutex_t lock;
    struct token_trie *tries[2];  /* ordinary tokens; these and the tags of calls */
    struct grammar_marks marks;   /* the tags that are tokens */
    const struct tool_form *form; /* the form of calls that has these tags; NULL: none is known yet */
    struct kept kept[MAX_KEPT];
    uint64_t n_used;
};

int constrain_check(const struct str *grammar, const char *name, struct moeflux_err *e)
{
    struct grammar *g;
    if (!str_ok(grammar))
        return err_set(e, ERR_MEMORY, "out of memory for the grammar of %s", name);
    int rc = grammar_compile(&g, str_text(grammar), grammar->len, name, e);
    if (rc == 0)
        grammar_free(g);
    return rc;
}

/* Appends the grammar of the texts that a regular expression matches as a whole: anchors at its ends change
 * nothing. */
static int regex_grammar(const char *text, size_t len, const char *name, struct str *out,
                         struct moeflux_err *e)
{
    size_t n_backslashes = 0, from = len > 0 && text[0] == '^';
    while (n_backslashes + 1 < len && text[len - 2 - n_backslashes] == '\\')
        n_backslashes++;
    if (len > from && text[len - 1] == '$' && n_backslashes % 2 == 0)
        len--;
    struct str root = {0};
    json_t *schema = json_pack("{s: s, s: o}", "type", "string", "pattern",
                               json_sprintf("^(?:%.*s)$", (int)(len - from), text + from));
    struct json_schema_part part = {.root = schema, .name = name, .out = out};
    int rc = schema ? json_schema_add(&part, schema, true, &root, e)
                    : err_set(e, ERR_FORMAT, "%s: expected UTF-8", name);
    str_addf(out, "root ::= %s\n", str_text(&root));
    str_free(&root);
    json_decref(schema);
    return rc;
}

int constrain_grammar(enum constrain_kind kind, const char *text, size_t len, const char *name,
                      struct str *out, struct moeflux_err *e)
{
    static const char object[] = "{\"type\":\"object\"}";
    int rc = 0;
    switch (kind) {
    case CONSTRAIN_GRAMMAR:
        str_add(out, text, len);
        break;
    case CONSTRAIN_REGEX:
        rc = regex_grammar(text, len, name, out, e);
        break;
    case CONSTRAIN_JSON_SCHEMA:
        rc = json_schema_text_to_grammar(text, len, name, out, e);
        break;
    case CONSTRAIN_JSON_OBJECT:
        rc = json_schema_text_to_grammar(object, sizeof object - 1, name, out, e);
        break;
    }
    return rc ? rc : constrain_check(out, name, e);
}

int constrain_choices(const struct json_t *choices, const char *name, struct str *out, struct moeflux_err *e)
{
    json_t *choice;
    size_t i;
    if (!json_is_array(choices))
        return err_set(e, ERR_FORMAT, "%s: expected an array of texts", name);
    str_add_text(out, "root ::= ");
    json_array_foreach(choices, i, choice)
    {
        if (!json_string_length(choice))
            return err_set(e, ERR_FORMAT, "%s: item %zu: expected a text that is not empty", name, i + 1);
        str_add_text(out, i ? " | " : "");
        schema_add_literal(json_string_value(choice), json_string_length(choice), out);
    }
    str_add_text(out, "\n");
    return constrain_check(out, name, e);
}

int constrain_schema(const struct json_t *schema, const char *name, struct str *out, struct moeflux_err *e)
{
    int rc = json_schema_to_grammar(schema, name, out, e);
    return rc ? rc : constrain_check(out, name, e);
}

/* Returns whether a token is a tag of calls. */
static bool is_tag(const struct generator *s, int32_t id)
{
    const char *bytes;
    size_t n = tokenizer_is_added(s->tokenizer, id) ? tokenizer_bytes(s->tokenizer, id, &bytes) : 0;
    return n > 0 && tool_form_has_tag(tool_form_of(s->tokenizer, s->info.chat_template), bytes, n);
}

/* Finds the tags that are tokens. In a call only the token is the tag: the model was trained with it, and the
 * reader may take its letters in other tokens for text. Tags beyond the limit may be spelled. */
static void find_marks(struct generator *s)
{
    struct grammar_marks *m = &s->constrain->marks;
    m->n = 0;
    for (uint32_t i = 0; i < s->info.vocab_size && m->n < GRAMMAR_MAX_MARKS; i++)
        if (is_tag(s, (int32_t)i)) {
            m->len[m->n] = tokenizer_bytes(s->tokenizer, (int32_t)i, &m->text[m->n]);
            m->n++;
        }
}

/* Returns the text of an ordinary token, or the byte that stands for a tag of calls; false for others. What
 * no UTF-8 has stands for tags alone. */
static bool text_with_tags(const void *ctx, int32_t id, struct token_text *out)
{
    static const uint8_t bytes[] = {0xf5, 0xf6, 0xf7, 0xf8, 0xf9, 0xfa, 0xfb, 0xfc, 0xfd, 0xfe, 0xff};
    const struct generator *s = ctx;
    _Static_assert(sizeof bytes == GRAMMAR_MAX_MARKS, "a byte for each mark");
    out->len = tokenizer_bytes(s->tokenizer, id, &out->bytes);
    if (!tokenizer_is_added(s->tokenizer, id)) {
        size_t i = 0;
        while (i < out->len && (uint8_t)out->bytes[i] < GRAMMAR_FIRST_MARK)
            i++;
        return out->len > 0 && i == out->len;
    }
    if (!is_tag(s, id))
        return false;
    unsigned mark = grammar_find_mark(&s->constrain->marks, out->bytes, out->len);
    if (mark < GRAMMAR_MAX_MARKS && s->constrain->marks.len[mark] == out->len)
        *out = (struct token_text){(const char *)&bytes[mark], 1};
    return true;
}

int constrain_share(struct generator *s, struct moeflux_err *e)
{
    if (s->constrain)
        return 0;
    struct constrain *c = mem_new(1, sizeof *c, e);
    if (!c)
        return ERR_MEMORY;
    if (pthread_mutex_init(&c->lock, NULL) != 0) {
        free(c);
        return err_set(e, ERR_MEMORY, "out of memory for a lock");
    }
    s->constrain = c;
    return 0;
}

static int open_trie(struct generator *s, bool calls, struct moeflux_err *e)
{
    struct token_trie **trie = &s->constrain->tries[calls];
    if (*trie)
        return 0;
    if (!calls)
        return token_trie_of(trie, s->tokenizer, s->info.vocab_size, e);
    find_marks(s);
    return token_trie_new(trie, &(struct token_source){s->info.vocab_size, text_with_tags, s}, e);
}

static void forget(struct kept *k)
{
    constraint_free(k->start);
    free(k->grammar);
    *k = (struct kept){0};
}

/* Returns whether calls have tags. Calls that are messages have none, but a token that ends them. */
static bool has_tags(const struct generator *s)
{
    return !tool_form_is_message(tool_form_of(s->tokenizer, s->info.chat_template));
}

static int add(struct generator *s, const char *grammar, bool calls, struct kept *k, struct moeflux_err *e)
{
    struct grammar *g;
    bool is_message = calls && !has_tags(s), has_marks = calls && !is_message;
    size_t n_ends = s->info.n_eos;
    int32_t *ends = mem_new(n_ends + 1, sizeof *ends, e);
    forget(k);
    if (!ends)
        return ERR_MEMORY;
    for (size_t i = 0; i < n_ends; i++)
        ends[i] = s->info.eos[i];
    if (is_message)
        ends[n_ends++] = tokenizer_added_id(s->tokenizer, HARMONY_CALL_END);
    int rc = grammar_compile_marked(&g, grammar, strlen(grammar), "grammar",
                                    has_marks ? &s->constrain->marks : NULL, e);
    if (rc == 0)
        rc = constraint_new(&k->start, g, s->constrain->tries[has_marks], ends, n_ends, e);
    free(ends);
    if (rc == 0 && !(k->grammar = mem_text(grammar, e)))
        rc = ERR_MEMORY;
    k->calls = calls;
    if (rc)
        forget(k);
    return rc;
}

static bool is_of(const struct kept *k, const char *grammar, bool calls)
{
    return k->grammar && k->calls == calls && strcmp(k->grammar, grammar) == 0;
}

/* Forgets what belongs to another form of calls: the chat's template was replaced, and no answer is computed
 * meanwhile. */
static void use_form(struct generator *s)
{
    struct constrain *c = s->constrain;
    const struct tool_form *form = tool_form_of(s->tokenizer, s->info.chat_template);
    if (c->form == form)
        return;
    for (size_t i = 0; i < MAX_KEPT; i++)
        if (c->kept[i].calls)
            forget(&c->kept[i]);
    token_trie_free(c->tries[1]);
    c->tries[1] = NULL;
    c->form = form;
}

/* Begins a constraint; the caller holds the lock. */
static int begin_kept(struct generator *s, const char *grammar, bool calls, struct constraint **out,
                      struct moeflux_err *e)
{
    if (calls)
        use_form(s);
    int rc = open_trie(s, calls && has_tags(s), e);
    if (rc)
        return rc;
    struct kept *all = s->constrain->kept, *found = all;
    for (struct kept *k = all; k < all + MAX_KEPT; k++) {
        if (is_of(k, grammar, calls)) {
            found = k;
            break;
        }
        found = k->used < found->used ? k : found;
    }
    if (!is_of(found, grammar, calls))
        rc = add(s, grammar, calls, found, e);
    if (rc)
        return rc;
    found->used = ++s->constrain->n_used;
    *out = constraint_clone(found->start, e);
    return *out ? 0 : ERR_MEMORY;
}

static int begin(struct generator *s, const char *grammar, bool calls, struct constraint **out,
                 struct moeflux_err *e)
{
    if (!s->tokenizer)
        return err_set(e, ERR_USAGE, "%s has no tokenizer.json, which a grammar needs", s->dir);
    int rc = constrain_share(s, e);
    if (rc)
        return rc;
    pthread_mutex_lock(&s->constrain->lock);
    rc = begin_kept(s, grammar, calls, out, e);
    pthread_mutex_unlock(&s->constrain->lock);
    return rc;
}

int constrain_begin(struct generator *s, const char *grammar, struct constraint **out, struct moeflux_err *e)
{
    return begin(s, grammar, false, out, e);
}

int constrain_begin_calls(struct generator *s, const char *grammar, struct constraint **out,
                          struct moeflux_err *e)
{
    return begin(s, grammar, true, out, e);
}

static void *make_ahead(void *ctx)
{
    struct constrain_ahead *a = ctx;
    const uint64_t *first;
    a->rc = begin(a->generator, a->grammar, a->calls, &a->made, &a->error);
    /* A failure here is ignored: it comes again when the answer begins. */
    if (a->rc == 0)
        constraint_mask(a->made, &first, NULL);
    return NULL;
}

void constrain_ahead(struct constrain_ahead *a, struct generator *s, const char *grammar, bool calls)
{
    *a = (struct constrain_ahead){.generator = s, .grammar = grammar, .calls = calls};
    if (!grammar)
        return;
    a->is_running = pthread_create(&a->thread, NULL, make_ahead, a) == 0;
    if (!a->is_running)
        make_ahead(a);
}

int constrain_await(struct constrain_ahead *a, struct constraint **out, struct moeflux_err *e)
{
    if (a->is_running)
        pthread_join(a->thread, NULL);
    a->is_running = false;
    *out = a->made;
    return a->rc ? err_set(e, a->rc, "%s", a->error.text) : 0;
}

void constrain_free(struct constrain *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < MAX_KEPT; i++)
        forget(&c->kept[i]);
    token_trie_free(c->tries[0]);
    token_trie_free(c->tries[1]);
    pthread_mutex_destroy(&c->lock);
    free(c);
}
