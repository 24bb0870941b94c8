/* grammar.h - compiles a grammar in GBNF (the part of llama.cpp's that moeflux-grammar(7) describes) to
 * states over bytes. A compiled grammar is read-only: any number of constraints may share it.
 *
 * Grammars from anywhere are safe: the text, the rules, the nesting of parentheses and the states are
 * bounded. Left recursion is refused. States that cannot lead to a whole text are left out, so every prefix
 * that the states accept can be completed. */
#ifndef MOEFLUX_TEXT_GRAMMAR_GRAMMAR_H
#define MOEFLUX_TEXT_GRAMMAR_GRAMMAR_H

#include <stddef.h>

struct moeflux_err;
struct grammar;
struct str;

enum {
    GRAMMAR_MAX_BYTES = 1 << 19,
    GRAMMAR_MAX_RULES = 1 << 13,
    GRAMMAR_MAX_NESTING = 64,
    GRAMMAR_MAX_REPEAT = 1 << 20,
    GRAMMAR_MAX_STATES = 1 << 18,
};

/* Texts that are one token each, such as the tags of calls. A literal that has one does not have its bytes in
 * the grammar but the byte GRAMMAR_FIRST_MARK + its index, which no UTF-8 has: what the trie gives that
 * byte as its text fits there, and the same letters in other tokens do not. Literals of what is no mark write
 * its first character as an escape (schema_add_literal). */
enum { GRAMMAR_FIRST_MARK = 0xf5, GRAMMAR_MAX_MARKS = 0x100 - GRAMMAR_FIRST_MARK };
struct grammar_marks {
    const char *text[GRAMMAR_MAX_MARKS]; /* [n][len], borrowed */
    size_t len[GRAMMAR_MAX_MARKS];
    unsigned n;
};
/* Returns the index of the longest mark that the text begins with; GRAMMAR_MAX_MARKS: there is none. marks
 * may be NULL. */
unsigned grammar_find_mark(const struct grammar_marks *marks, const char *text, size_t len);

/* Compiles a grammar. name: a file or a flag, which begins the errors. ERR_FORMAT names the line, the column
 * and what was expected, or the left-recursive rule; ERR_UNSUPPORTED names the exceeded bound; ERR_MEMORY. */
int grammar_compile(struct grammar **out, const char *text, size_t len, const char *name,
                    struct moeflux_err *e);
/* Does the same with marks, which must outlive the grammar. NULL: none. */
int grammar_compile_marked(struct grammar **out, const char *text, size_t len, const char *name,
                           const struct grammar_marks *marks, struct moeflux_err *e);
void grammar_free(struct grammar *g);

/* Appends a grammar's text with `prefix` in front of all names of rules: it can stand next to another. */
void grammar_rename(const char *text, const char *prefix, struct str *out);

#endif
