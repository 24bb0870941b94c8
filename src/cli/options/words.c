#include "cli/options/words.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

static const char BLANKS[] = " \t\r\n";

/* Whether a \ before `next` stands for itself. */
static bool is_plain_backslash(char quote, char next)
{
    return quote == '\'' || (quote == '"' && next != '"' && next != '\\');
}

/* Copies the word at *at to *to without its quotes; moves both past it. */
static int copy_word(const char **at, char **to, struct moeflux_err *e)
{
    char quote = '\0';
    for (; **at && (quote || !strchr(BLANKS, **at)); ++*at) {
        char c = **at;
        if (quote ? c == quote : c == '\'' || c == '"') {
            quote = (char)(quote ? '\0' : c);
            continue;
        }
        if (c == '\\' && !is_plain_backslash(quote, (*at)[1]))
            c = *++*at;
        if (!c)
            return err_set(e, ERR_USAGE, "nothing follows the \\ at the end");
        *(*to)++ = c;
    }
    *(*to)++ = '\0';
    return quote ? err_set(e, ERR_USAGE, "the last %c has no second one", quote) : 0;
}

int words_split(struct words *w, const char *text, struct moeflux_err *e)
{
    /* A blank or the end follows each word. */
    size_t len = strlen(text), n_most = len / 2 + 1;
    int rc = 0;
    *w = (struct words){.argc = 1, .argv = mem_new((n_most + 2) * sizeof(char *) + len + 2, 1, e)};
    if (!w->argv)
        return ERR_MEMORY;
    char *to = (char *)(w->argv + n_most + 2);
    w->argv[0] = to++;
    for (const char *at = text + strspn(text, BLANKS); *at && !rc; at += strspn(at, BLANKS)) {
        w->argv[w->argc++] = to;
        rc = copy_word(&at, &to, e);
    }
    if (rc)
        words_free(w);
    return rc;
}

void words_free(struct words *w)
{
    free(w->argv);
    *w = (struct words){0};
}
