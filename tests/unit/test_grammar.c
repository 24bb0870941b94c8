/* Grammars against a slow recogniser of their trees, and masks against every token of a vocabulary.
 *
 * suites: check fast asan */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "check.h"
#include "fuzz.h"
#include "text/grammar/constraint.h"
#include "text/grammar/grammar.h"
#include "text/grammar/tree.h"
#include "text/tokenizer/token_trie.h"

/* ---- vocabularies ---- */

struct vocabulary {
    char text[512][12];
    uint32_t n;
};

static bool text_of(const void *ctx, int32_t id, struct token_text *out)
{
    const struct vocabulary *v = ctx;
    *out = (struct token_text){v->text[id], strlen(v->text[id])};
    return true;
}

static void add(struct vocabulary *v, const char *text)
{
    snprintf(v->text[v->n++], sizeof *v->text, "%s", text);
}

/* Id 0 is the end, then every byte but NUL. */
static struct vocabulary bytes_only(void)
{
    static const struct vocabulary empty;
    struct vocabulary v = empty;
    add(&v, "");
    for (unsigned b = 1; b < 256; b++)
        add(&v, (const char[]){(char)b, '\0'});
    return v;
}

static struct token_trie *trie_of(const struct vocabulary *v)
{
    struct token_trie *t;
    struct moeflux_err e;
    check_ok(token_trie_new(&t, &(struct token_source){v->n, text_of, v}, &e), &e);
    return t;
}

static struct grammar *compiled(const char *text)
{
    struct grammar *g;
    struct moeflux_err e;
    check_ok(grammar_compile(&g, text, strlen(text), "g", &e), &e);
    return g;
}

/* ---- what a grammar takes ---- */

enum { TAKES_NOT, BEGINS, FITS };

/* NULL: the grammar is too ambiguous. */
static struct constraint *begun(struct grammar *g, const struct token_trie *t)
{
    struct constraint *c = NULL;
    struct moeflux_err e;
    if (constraint_new(&c, g, t, &(int32_t){0}, 1, &e) < 0 && !strstr(e.text, "too ambiguous"))
        fail_msg("%s", e.text);
    return c;
}

static int takes(const char *grammar, const char *text)
{
    struct vocabulary v = bytes_only();
    struct token_trie *t = trie_of(&v);
    struct grammar *g = compiled(grammar);
    struct constraint *c = begun(g, t);
    assert_non_null(c);
    int rc = constraint_accept_bytes(c, text, strlen(text), NULL) < 0 ? TAKES_NOT
             : constraint_may_end(c)                                  ? FITS
                                                                      : BEGINS;
    constraint_free(c);
    token_trie_free(t);
    return rc;
}

static void a_literal_fits_itself_alone(void **state)
{
    (void)state;
    assert_int_equal(takes("root ::= \"h\\u00e9\\n\\x41\\U0001F600\"", "h\xc3\xa9\nA\xf0\x9f\x98\x80"), FITS);
    assert_int_equal(takes("root ::= \"yes\"", "ye"), BEGINS);
    assert_int_equal(takes("root ::= \"yes\"", "yess"), TAKES_NOT);
    assert_int_equal(takes("root ::= \"\"", ""), FITS);
}

static void classes_take_whole_characters(void **state)
{
    (void)state;
    assert_int_equal(takes("root ::= [a-cx\\]]", "]"), FITS);
    assert_int_equal(takes("root ::= [^a-c]", "b"), TAKES_NOT);
    assert_int_equal(takes("root ::= [^a-c]", "\xe4\xb8"), BEGINS);
    assert_int_equal(takes("root ::= [^a-c]", "\xe4\xb8\xad"), FITS);
    assert_int_equal(takes("root ::= [^\xe4\xb8\xad]", "\xe4\xb8\xad"), TAKES_NOT);
    assert_int_equal(takes("root ::= .", "\xed\xa0"), TAKES_NOT);
    assert_int_equal(takes("root ::= .", "\xc0"), TAKES_NOT);
    assert_int_equal(takes("root ::= .", "\xf4\x8f\xbf\xbf"), FITS);
    assert_int_equal(takes("root ::= .", "\xf4\x90"), TAKES_NOT);
    assert_int_equal(takes("root ::= [\xc3\xa0-\xf0\x9f\x98\x80]", "\xc3\x9f"), TAKES_NOT);
    assert_int_equal(takes("root ::= [\xc3\xa0-\xf0\x9f\x98\x80]", "\xef\xbf\xbf"), FITS);
    assert_int_equal(takes("root ::= [\xc3\xa0-\xf0\x9f\x98\x80]", "\xf0\x9f\x98\x81"), TAKES_NOT);
}

static void repetitions_count(void **state)
{
    (void)state;
    assert_int_equal(takes("root ::= \"a\"{2,3}", "a"), BEGINS);
    assert_int_equal(takes("root ::= \"a\"{2,3}", "aaa"), FITS);
    assert_int_equal(takes("root ::= \"a\"{2,3}", "aaaa"), TAKES_NOT);
    assert_int_equal(takes("root ::= [^x]{3,100} \"x\"", "aax"), TAKES_NOT);
    assert_int_equal(takes("root ::= [^x]{3,100} \"x\"", "aaax"), FITS);
    assert_int_equal(takes("root ::= (\"ab\" | \"c\"){20,}", "abababababababababcccccccccc"), BEGINS);
    assert_int_equal(takes("root ::= (\"ab\" | \"c\"){20,}", "abababababababababccccccccccc"), FITS);
    assert_int_equal(takes("root ::= \"a\"{0} \"b\"", "b"), FITS);
    assert_int_equal(takes("root ::= \"a\"{,2} \"b\"?", "aab"), FITS);
    assert_int_equal(takes("root ::= (\"a\"?){9} \"b\"", "aaaaaaaaab"), FITS);
    assert_int_equal(takes("root ::= (\"a\"*)* \"b\"+", "aabb"), FITS);
}

static void rules_nest_and_end_where_they_must(void **state)
{
    static const char pairs[] = "# pairs\nroot ::= pair\npair ::=\n  \"(\" pair? \")\" |\n  \"[]\" # end\n";
    (void)state;
    assert_int_equal(takes(pairs, "((([])))"), FITS);
    assert_int_equal(takes(pairs, "((([]))"), BEGINS);
    assert_int_equal(takes(pairs, "((([]]"), TAKES_NOT);
    assert_int_equal(takes("root ::= a | b\na ::= \"x\" a | \"y\"\nb ::= \"x\" b | \"z\"", "xxxz"), FITS);
    /* `b` never comes to an end: nothing may begin with it. */
    assert_int_equal(takes("root ::= \"a\" b | \"c\"\nb ::= \"x\" b", "a"), TAKES_NOT);
}

static void grammars_with_faults_are_refused_with_their_place(void **state)
{
    static const struct {
        const char *grammar, *error;
    } faults[] = {
        {"root ::= \"a", "g: line 1, column 10: this text has no closing quotation mark in its line"},
        {"root ::= \"a\"\nx ::= [b-a]", "g: line 2, column 8: this range ends before it begins"},
        {"root ::= [ab", "g: line 1, column 10: this class has no closing bracket in its line"},
        {"root ::= []", "g: line 1, column 10: no character is in this class"},
        {"root ::= \"\\q\"", "one of n r t"},
        {"root ::= \"\\x4\"", "expected 2 hexadecimal digits"},
        {"root ::= \"\\ud800\"", "this is no character's number"},
        {"root ::= \"\xff\"", "this is not UTF-8"},
        {"root ::= (\"a\"", "expected | or ), found the end of the grammar"},
        {"root ::= \"a\" )", "line 1, column 14: expected a text in quotation marks"},
        {"root = \"a\"", "expected ::= after the rule's name"},
        {"root ::= \"a\"\n::= b", "line 2, column 1: expected a rule's name"},
        {"root ::= x y\nx ::= \"a\"", "line 1, column 12: the rule \"y\" is not defined"},
        {"root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: this rule is defined already"},
        {"other ::= \"a\"", "g: there is no rule \"root\""},
        {"", "g: there is no rule \"root\""},
        {"root ::= \"a\"{3,2}", "this repetition ends before it begins"},
        {"root ::= \"a\"{x}", "expected a number, found \"x}\""},
        {"root ::= \"a\"{2000000}", "more repetitions than"},
        {"root ::= \"a\"+*", "a repetition of a repetition needs parentheses"},
        {"root ::= (\"a\"?){17}", "a repetition up to 17 times of what may be empty"},
        {"root ::= a \"x\"\na ::= b? c\nb ::= \"y\"\nc ::= a", "the rule \"a\" begins with itself"},
        {"root ::= (\"x\" | root){2,100}", "the rule \"root\" begins with itself"},
        {"root ::= \"a\" root", "no text fits the rule \"root\""},
        {"root ::= <think>", "tokens as parts of a grammar are not supported"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) {
        struct grammar *g;
        struct moeflux_err e;
        assert_true(grammar_compile(&g, faults[i].grammar, strlen(faults[i].grammar), "g", &e) < 0);
        if (!strstr(e.text, faults[i].error))
            fail_msg("%s: %s", faults[i].grammar, e.text);
    }
}

static void nesting_and_size_are_bounded(void **state)
{
    (void)state;
    struct str s = {0};
    struct grammar *g;
    struct moeflux_err e;
    str_add_text(&s, "root ::= ");
    for (int i = 0; i < 65; i++)
        str_add_text(&s, "(");
    assert_int_equal(grammar_compile(&g, str_text(&s), s.len, "g", &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "nested deeper"));
    str_clear(&s);
    str_add_text(&s, "root ::= ");
    for (int i = 0; i < GRAMMAR_MAX_RULES; i++)
        str_addf(&s, "r%d ", i);
    assert_int_equal(grammar_compile(&g, str_text(&s), s.len, "g", &e), ERR_UNSUPPORTED);
    assert_non_null(strstr(e.text, "more rules"));
    str_clear(&s);
    str_add_text(&s, "root ::= ");
    for (int i = 0; i < 9; i++)
        str_add_text(&s, "(");
    str_add_text(&s, "\"a\" \"b\"");
    for (int i = 0; i < 9; i++)
        str_add_text(&s, "\"c\"? ){2} [^a]{2}");
    check_ok(grammar_compile(&g, str_text(&s), s.len, "g", &e), &e);
    grammar_free(g);
    str_free(&s);
}

static bool allows(struct constraint *c, char byte)
{
    const uint64_t *bits;
    struct moeflux_err e;
    check_ok(constraint_mask(c, &bits, &e), &e);
    return bits[(uint8_t)byte / 64] >> (uint8_t)byte % 64 & 1;
}

static void take(struct constraint *c, char byte, unsigned n)
{
    struct moeflux_err e;
    for (unsigned i = 0; i < n; i++) {
        if (!allows(c, byte))
            fail_msg("byte %u, '%c', is not allowed", i, byte);
        check_ok(constraint_accept(c, (uint8_t)byte, &e), &e);
    }
}

/* More places than are remembered: the results for later ones are discarded. */
static void a_long_text_is_counted_to_its_end_and_so_are_clones_of_it(void **state)
{
    (void)state;
    struct vocabulary v = bytes_only();
    struct token_trie *t = trie_of(&v);
    struct constraint *c = begun(compiled("root ::= \"(\" root \")\" | \"a\"{9000,9001}"), t);
    take(c, '(', 30);
    take(c, 'a', 100);
    struct constraint *clone = constraint_clone(c, NULL);
    take(c, 'a', 8899);
    assert_false(allows(c, ')'));
    take(c, 'a', 1);
    assert_true(allows(c, 'a'));
    take(c, ')', 30);
    assert_true(constraint_must_end(c));
    take(clone, 'a', 8901);
    assert_false(allows(clone, 'a'));
    take(clone, ')', 29);
    assert_false(constraint_may_end(clone));
    assert_true(allows(clone, ')'));
    constraint_free(c);
    take(clone, ')', 1);
    assert_true(constraint_may_end(clone));
    constraint_free(clone);
    token_trie_free(t);
}

/* ---- the slow recogniser ---- */

enum { MAX_TEXT = 12, N_RULES = 4, MAX_NODES = 512 };
#define KNOWN (1u << 31)

struct oracle {
    const struct grammar_tree *tree;
    const char *grammar, *text;
    size_t len;
    bool *ends;                                 /* [rules] can come to an end */
    uint32_t known[MAX_NODES][2][MAX_TEXT + 1]; /* ends from a place, with KNOWN */
    bool partial; /* the text was used up somewhere, and its rest can come to an end */
};

static bool can_end(const struct oracle *o, int32_t node)
{
    const struct tree_node *n = &o->tree->nodes[node];
    bool any = false, all = true;
    if (n->kind == TREE_RULE)
        return o->ends[n->rule];
    if (n->kind == TREE_REPEAT && n->min == 0)
        return true;
    for (int32_t c = n->child; c != TREE_NONE; c = o->tree->nodes[c].sibling) {
        bool one = can_end(o, c);
        any |= one;
        all &= one;
    }
    return n->kind == TREE_ALT ? any : all;
}

/* The ends of what the node matches from any of `from`, as bits. rest: what follows the node can come to an
 * end. */
static uint32_t match(struct oracle *o, int32_t node, uint32_t from, bool rest);

static uint32_t match_seq(struct oracle *o, int32_t node, uint32_t from, bool rest)
{
    /* The last child comes first. */
    if (node == TREE_NONE)
        return from;
    const struct tree_node *n = &o->tree->nodes[node];
    uint32_t before = match_seq(o, n->sibling, from, rest && can_end(o, node));
    return before ? match(o, node, before, rest) : 0;
}

static uint32_t match_repeat(struct oracle *o, const struct tree_node *n, uint32_t from, bool rest)
{
    uint32_t out = n->min == 0 ? from : 0, at = from;
    bool again = can_end(o, n->child);
    for (int32_t i = 1; at && (n->max == TREE_NO_MAX ? i <= n->min + MAX_TEXT : i <= n->max); i++) {
        at = match(o, n->child, at, rest && (i >= n->min || again));
        out |= i >= n->min ? at : 0;
    }
    return out;
}

static uint32_t match_node(struct oracle *o, int32_t node, uint32_t from, bool rest)
{
    const struct tree_node *n = &o->tree->nodes[node];
    uint32_t out = 0;
    switch (n->kind) {
    case TREE_EMPTY:
        return from;
    case TREE_CHARS:
        o->partial |= rest && (from >> o->len & 1);
        for (size_t i = 0; i < o->len; i++)
            for (uint32_t r = n->first; (from >> i & 1) && r < n->first + n->n_ranges; r++)
                if ((uint8_t)o->text[i] >= o->tree->ranges[r].lo &&
                    (uint8_t)o->text[i] <= o->tree->ranges[r].hi)
                    out |= 2u << i;
        return out;
    case TREE_SEQ:
        return match_seq(o, n->child, from, rest);
    case TREE_ALT:
        for (int32_t c = n->child; c != TREE_NONE; c = o->tree->nodes[c].sibling)
            out |= match(o, c, from, rest);
        return out;
    case TREE_REPEAT:
        return match_repeat(o, n, from, rest);
    case TREE_RULE:
        return match(o, o->tree->rules[n->rule].body, from, rest);
    }
    return 0;
}

/* Place by place, each once. */
static uint32_t match(struct oracle *o, int32_t node, uint32_t from, bool rest)
{
    uint32_t out = 0;
    assert_true(node < MAX_NODES);
    for (uint32_t at = 0; at <= o->len; at++) {
        uint32_t *known = &o->known[node][rest][at];
        if (!(from >> at & 1))
            continue;
        if (!*known)
            *known = match_node(o, node, 1u << at, rest) | KNOWN;
        out |= *known & ~KNOWN;
    }
    return out;
}

static int oracle_takes(struct oracle *o, const char *text)
{
    o->text = text;
    o->len = strlen(text);
    o->partial = false;
    memset(o->known, 0, o->tree->n_nodes * sizeof *o->known);
    uint32_t ends = match(o, o->tree->rules[o->tree->root].body, 1, true);
    return ends >> o->len & 1 ? FITS : o->partial ? BEGINS : TAKES_NOT;
}

/* ---- random grammars ---- */

/* rule: whose body it is; calls of those after it never recurse. */
static void random_node(struct fuzz *f, struct str *out, unsigned depth, unsigned rule)
{
    static const char *const leaves[] = {"\"a\"", "\"b\"", "\"ab\"", "[ab]",
                                         "[^a]",  "[b-c]", "\"\"",   "\"cab\""};
    static const char *const repeats[] = {"",  "",    "",      "",     "?",     "*",
                                          "+", "{2}", "{1,3}", "{2,}", "{0,4}", "{3,9}"};
    uint64_t kind = fuzz_below(f, depth ? 5 : 3);
    if (kind < 2) {
        str_add_text(out, leaves[fuzz_below(f, 8)]);
    } else if (kind == 2) {
        if (fuzz_below(f, 3) == 0)
            str_addf(out, "\"c\" r%u", (unsigned)fuzz_below(f, N_RULES));
        else
            str_addf(out, rule + 1 < N_RULES ? "r%u" : "\"b\"",
                     rule + 1 + (unsigned)fuzz_below(f, rule + 1 < N_RULES ? N_RULES - rule - 1 : 1));
    } else {
        uint64_t n = 1 + fuzz_below(f, 3);
        str_add_text(out, "(");
        for (uint64_t i = 0; i < n; i++) {
            str_add_text(out, i && fuzz_below(f, 2) ? " | " : " ");
            random_node(f, out, depth - 1, rule);
        }
        str_add_text(out, ")");
    }
    str_add_text(out, repeats[fuzz_below(f, kind < 3 || fuzz_below(f, 8) == 0 ? 12 : 6)]);
}

static void random_grammar(struct fuzz *f, struct str *out)
{
    str_clear(out);
    str_add_text(out, "root ::= r0");
    for (unsigned r = 0; r < N_RULES; r++) {
        str_addf(out, "\nr%u ::=", r);
        for (uint64_t i = 0, n = 1 + fuzz_below(f, 3); i < n; i++) {
            str_add_text(out, i && fuzz_below(f, 3) == 0 ? " | " : " ");
            random_node(f, out, 2, r);
        }
    }
}

static void random_text(struct fuzz *f, char *out, uint64_t most)
{
    uint64_t n = fuzz_below(f, most);
    for (uint64_t i = 0; i < n; i++)
        out[i] = (char)('a' + fuzz_below(f, 3));
    out[n] = '\0';
}

static struct vocabulary random_vocabulary(struct fuzz *f)
{
    struct vocabulary v = bytes_only();
    v.n = 128; /* the recogniser takes a byte for a character */
    while (v.n < 300) {
        char text[8];
        random_text(f, text, 7);
        add(&v, text);
    }
    return v;
}

/* Follows random tokens that are allowed; at each step every token of the vocabulary is asked about. */
static void compare_masks(struct fuzz *f, struct oracle *o, struct grammar *g, const struct token_trie *t,
                          const struct vocabulary *v)
{
    struct constraint *c = begun(g, t);
    struct moeflux_err e;
    char text[MAX_TEXT + 1] = "";
    while (c) {
        const uint64_t *bits;
        uint32_t allowed[512], n = 0;
        size_t len = strlen(text);
        if (constraint_mask(c, &bits, &e) < 0 && strstr(e.text, "too ambiguous"))
            break;
        for (uint32_t id = 0; id < v->n; id++) {
            bool is_allowed = bits[id / 64] >> id % 64 & 1, expected;
            if (len + strlen(v->text[id]) > MAX_TEXT)
                continue;
            strcpy(text + len, v->text[id]);
            expected = id == 0 ? constraint_may_end(c) : v->text[id][0] && oracle_takes(o, text) != TAKES_NOT;
            if (expected != is_allowed)
                fail_msg("%s: text \"%s\" with token \"%s\": expected %d", o->grammar, text, v->text[id],
                         expected);
            if (is_allowed && id)
                allowed[n++] = id;
        }
        text[len] = '\0';
        assert_int_equal(constraint_may_end(c), oracle_takes(o, text) == FITS);
        if (n == 0)
            break;
        uint32_t id = allowed[fuzz_below(f, n)];
        if (constraint_accept(c, (int32_t)id, &e) < 0 && strstr(e.text, "too ambiguous"))
            break;
        strcpy(text + len, v->text[id]);
    }
    constraint_free(c);
}

static void masks_are_what_a_slow_recogniser_says_of_each_token(void **state)
{
    (void)state;
    struct fuzz f = {2026};
    struct str text = {0};
    unsigned n_compared = 0;
    const char *seed = getenv("MOEFLUX_SEED");
    f.state += seed ? strtoull(seed, NULL, 10) : 0;
    for (unsigned round = 0; round < 150; round++) {
        struct grammar_tree tree = {0};
        struct grammar *g;
        struct moeflux_err e;
        random_grammar(&f, &text);
        if (grammar_compile(&g, str_text(&text), text.len, "g", &e) < 0) {
            assert_true(strstr(e.text, "begins with itself") || strstr(e.text, "no text fits") ||
                        strstr(e.text, "what may be empty"));
            continue;
        }
        check_ok(grammar_tree_parse(&tree, str_text(&text), text.len, "g", NULL, &e), &e);
        bool ends[N_RULES + 1] = {0};
        struct oracle o = {.tree = &tree, .grammar = str_text(&text), .ends = ends};
        for (unsigned pass = 0; pass <= N_RULES; pass++)
            for (size_t i = 0; i < tree.n_rules; i++)
                ends[i] = ends[i] || can_end(&o, tree.rules[i].body);
        struct vocabulary v = random_vocabulary(&f);
        struct token_trie *t = trie_of(&v);
        compare_masks(&f, &o, g, t, &v);
        token_trie_free(t);
        grammar_tree_free(&tree);
        n_compared++;
    }
    assert_true(n_compared > 100);
    str_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_literal_fits_itself_alone),
        cmocka_unit_test(classes_take_whole_characters),
        cmocka_unit_test(repetitions_count),
        cmocka_unit_test(rules_nest_and_end_where_they_must),
        cmocka_unit_test(grammars_with_faults_are_refused_with_their_place),
        cmocka_unit_test(nesting_and_size_are_bounded),
        cmocka_unit_test(a_long_text_is_counted_to_its_end_and_so_are_clones_of_it),
        cmocka_unit_test(masks_are_what_a_slow_recogniser_says_of_each_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
