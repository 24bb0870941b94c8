#include "cli/prompt.h"

#include <ctype.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "cli/exit.h"
#include "cli/input.h"
#include "cli/options/number.h"
#include "cli/options/options.h"
#include "cli/terminal/term.h"
#include "text/utf8.h"

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

/* Says that the program waits for a pipe: if nobody writes or closes it the program would seem to hang. */
static void tell_waiting(void)
{
    enum { PATIENCE_MS = 3000 };
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    if (!isatty(STDIN_FILENO) && poll(&in, 1, PATIENCE_MS) == 0)
        exit_warn("waiting for the prompt on stdin");
}

/* Reads the text of -p and that of -f, after a blank line; with --raw nothing is put between them. stdin
 * is read only if a flag names it: in a shell's loop it is the loop's. */
static int read_text(struct str *out, const struct options *o, struct moeflux_err *e)
{
    struct str file = {0};
    bool is_stdin = o->prompt && strcmp(o->prompt, "-") == 0;
    const char *path = is_stdin ? "-" : o->file;
    if (!is_stdin)
        str_add_text(out, o->prompt);
    if (!path)
        return 0;
    if (strcmp(path, "-") == 0)
        tell_waiting();
    int rc = read_file(path, &file, e);
    if (!rc && !str_ok(&file))
        rc = err_set(e, ERR_MEMORY, "out of memory for the prompt");
    if (!rc && (o->raw || is_stdin ? file.len > 0 : !is_blank(&file))) {
        str_add_text(out, o->raw || is_stdin ? "" : "\n\n");
        str_add(out, str_text(&file), file.len);
    }
    str_free(&file);
    return rc;
}

int prompt_read(struct prompt *p, const struct options *o, struct moeflux_err *e)
{
    int rc = 0;
    const char *path = o->tokens_in ? o->tokens_in : o->file;
    bool is_text = o->prompt && strcmp(o->prompt, "-") != 0;
    const char *name = is_text ? "-p" : path && strcmp(path, "-") != 0 ? path : "stdin";
    *p = (struct prompt){.is_ids = o->tokens_in != NULL};
    if (o->prompt)
        rc = read_text(&p->text, o, e);
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

size_t prompt_clean(struct str *out, const char *text, size_t len)
{
    size_t n_replaced = 0;
    for (const char *at = text, *end = text + len; at < end;) {
        size_t n = strnlen(at, (size_t)(end - at));
        n_replaced += utf8_clean(at, n, out);
        at += n;
        if (at == end)
            break;
        str_add_text(out, "\xef\xbf\xbd");
        n_replaced++;
        at++;
    }
    return n_replaced;
}

void prompt_free(struct prompt *p)
{
    str_free(&p->text);
    token_list_free(&p->ids);
}
