#include "cli/prompt.h"

#include <ctype.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "cli/exit.h"
#include "cli/input.h"
#include "cli/options/number.h"
#include "cli/options/options.h"
#include "cli/terminal/term.h"

/* A prompt is text for one context: a larger file is a mistake. */
#define MAX_PROMPT_BYTES ((size_t)1 << 30)

bool prompt_is_given(const struct options *o, const struct term *t)
{
    return o->prompt || o->file || o->tokens_in || !t->in;
}

/* Reads to the end instead of asking for the size: the file may be a pipe (process substitution). */
static int read_file(const char *path, struct str *out, struct moeflux_err *e)
{
    struct input in;
    int rc = input_open(&in, path, e);
    if (rc)
        return rc;
    while ((rc = input_read(&in, true, out, e)) == INPUT_BYTES)
        if (out->len > MAX_PROMPT_BYTES) {
            rc = err_set(e, ERR_USAGE, "%s: the prompt is over %zu bytes", in.name, MAX_PROMPT_BYTES);
            break;
        }
    input_close(&in);
    return rc;
}

static int parse_ids(const char *name, const struct str *text, struct token_list *ids, struct moeflux_err *e)
{
    const char *at = str_text(text), *end = at + text->len;
    while (at < end) {
        char word[16];
        int64_t id;
        size_t n = 0;
        while (at < end && isspace((unsigned char)*at))
            at++;
        while (at + n < end && !isspace((unsigned char)at[n]))
            n++;
        if (n == 0)
            break;
        size_t kept = n < sizeof word ? n : sizeof word - 1;
        memcpy(word, at, kept);
        word[kept] = '\0';
        if (memchr(word, '\0', kept))
            return err_set(e, ERR_USAGE, "%s: word %zu: expected a token id, found a NUL byte", name,
                           ids->n + 1);
        if (n >= sizeof word || !number_int(word, 0, INT32_MAX, &id))
            return err_set(e, ERR_USAGE, "%s: word %zu: expected a token id, found \"%s\"", name, ids->n + 1,
                           word);
        int rc = token_list_add(ids, (int32_t)id, e);
        if (rc)
            return rc;
        at += n;
    }
    return ids->n ? 0 : err_set(e, ERR_USAGE, "%s: no token ids in it", name);
}

/* Whether the text has only blanks. Chat templates trim messages, so it is no question; --raw takes it. */
static bool is_blank(const struct str *text)
{
    const char *at = str_text(text);
    return strspn(at, " \t\r\n") == text->len;
}

/* Whether stdin is a pipe, a socket or a file, whose text follows -p. A terminal and a device have none. */
static bool is_piped(void)
{
    struct stat st;
    return fstat(STDIN_FILENO, &st) == 0 &&
           (S_ISFIFO(st.st_mode) || S_ISREG(st.st_mode) || S_ISSOCK(st.st_mode));
}

/* Says that the program waits for a pipe: if nobody writes or closes it the program would seem to hang. */
static void tell_waiting(void)
{
    enum { PATIENCE_MS = 3000 };
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    if (poll(&in, 1, PATIENCE_MS) == 0)
        exit_warn("waiting for the rest of the prompt on stdin (</dev/null: there is none)");
}

/* Reads the text of -p and what is piped in, after a blank line; with --raw nothing is put between them. */
static int read_both(struct str *out, const struct options *o, struct moeflux_err *e)
{
    struct str piped = {0};
    str_add_text(out, o->prompt);
    int rc = 0;
    if (o->verb == VERB_RUN && is_piped()) {
        tell_waiting();
        rc = read_file("-", &piped, e);
    }
    if (!rc && !str_ok(&piped))
        rc = err_set(e, ERR_MEMORY, "out of memory for the prompt");
    if (!rc && (o->raw ? piped.len > 0 : !is_blank(&piped))) {
        str_add_text(out, o->raw ? "" : "\n\n");
        str_add(out, str_text(&piped), piped.len);
    }
    str_free(&piped);
    return rc;
}

int prompt_read(struct prompt *p, const struct options *o, struct moeflux_err *e)
{
    int rc = 0;
    const char *path = o->tokens_in ? o->tokens_in : o->file;
    const char *name = o->prompt ? "-p" : path && strcmp(path, "-") != 0 ? path : "stdin";
    *p = (struct prompt){.is_ids = o->tokens_in != NULL};
    if (o->prompt)
        rc = read_both(&p->text, o, e);
    else
        rc = read_file(path, &p->text, e);
    if (!rc && !str_ok(&p->text))
        rc = err_set(e, ERR_MEMORY, "out of memory for the prompt");
    if (!rc && p->is_ids)
        rc = parse_ids(name, &p->text, &p->ids, e);
    if (!rc && (o->raw ? p->text.len == 0 : is_blank(&p->text)))
        rc = err_set(e, ERR_USAGE, "%s: the prompt is empty", name);
    if (rc)
        prompt_free(p);
    return rc;
}

void prompt_free(struct prompt *p)
{
    str_free(&p->text);
    token_list_free(&p->ids);
}
