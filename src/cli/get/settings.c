#include "cli/get/settings.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/hub.h"
#include "hub/remote.h"

#define MAX_TOKEN_FILE ((uint64_t)64 << 10)

static bool is_true(const char *name)
{
    static const char *const words[] = {"1", "on", "yes", "true"};
    const char *value = hub_variable(name);
    for (size_t i = 0; value && i < sizeof words / sizeof *words; i++)
        if (strcasecmp(value, words[i]) == 0)
            return true;
    return false;
}

static int read_endpoint(struct settings *s, struct moeflux_err *e)
{
    const char *value = hub_variable("HF_ENDPOINT");
    s->endpoint = mem_text(value ? value : "https://huggingface.co", e);
    if (!s->endpoint)
        return ERR_MEMORY;
    for (size_t n = strlen(s->endpoint); n > 0 && s->endpoint[n - 1] == '/';)
        s->endpoint[--n] = '\0';
    if (strncasecmp(s->endpoint, "http://", 7) == 0 || strncasecmp(s->endpoint, "https://", 8) == 0)
        return 0;
    struct str shown = {0};
    remote_add_shown(&shown, s->endpoint);
    int rc =
        err_set(e, ERR_USAGE, "HF_ENDPOINT: expected a URL of http or https, found \"%s\"", str_text(&shown));
    str_free(&shown);
    return rc;
}

/* --- the token --- */

/* Returns the file that `hf auth login` writes; the caller frees it. NULL: there is no home, or no
 * memory (then `e` is filled). */
static char *find_token_file(struct moeflux_err *e)
{
    static const struct hub_place places[] = {{"HF_TOKEN_PATH", NULL},
                                              {"HF_HOME", "token"},
                                              {"XDG_CACHE_HOME", "huggingface/token"},
                                              {"HOME", ".cache/huggingface/token"}};
    return hub_place(places, sizeof places / sizeof *places, e);
}

/* Keeps the token of a text without the blanks around it. A blank inside would be another header. */
static int take_token(struct settings *s, const char *text, const char *where, struct moeflux_err *e)
{
    static const char blanks[] = " \t\r\n";
    text += strspn(text, blanks);
    size_t n = strlen(text);
    while (n > 0 && strchr(blanks, text[n - 1]))
        n--;
    if (n == 0)
        return 0;
    for (size_t i = 0; i < n; i++)
        if (text[i] <= ' ' || text[i] > '~')
            return err_set(e, ERR_USAGE, "%s: expected a token, found a text with other characters", where);
    s->token = mem_new(n + 1, 1, e);
    if (!s->token)
        return ERR_MEMORY;
    memcpy(s->token, text, n);
    return 0;
}

static int read_token(struct settings *s, struct moeflux_err *e)
{
    static const char *const names[] = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"};
    char *text = NULL;
    size_t n;
    if (is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN"))
        return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names && !s->token; i++)
        if (hub_variable(names[i]) && take_token(s, hub_variable(names[i]), names[i], e))
            return (int)e->code;
    char *path = s->token ? NULL : find_token_file(e);
    int rc = path ? 0 : (int)e->code;
    if (path && file_exists(path))
        rc = file_read_text(path, MAX_TOKEN_FILE, &text, &n, e);
    if (rc == 0 && text)
        rc = take_token(s, text, path, e);
    free(text);
    free(path);
    return rc;
}

static int read_ca_file(struct settings *s, struct moeflux_err *e)
{
    static const char *const names[] = {"CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"};
    const char *name = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !name; i++)
        name = hub_variable(names[i]) ? names[i] : NULL;
    s->ca_file = name ? hub_variable(name) : NULL;
    if (!name || file_exists(s->ca_file))
        return 0;
    return err_set(e, ERR_USAGE, "%s: expected a file of certificates, found \"%s\"", name, s->ca_file);
}

int settings_read(struct settings *s, struct moeflux_err *e)
{
    *s = (struct settings){.offline = is_true("HF_HUB_OFFLINE") || is_true("TRANSFORMERS_OFFLINE")};
    int rc = read_endpoint(s, e);
    if (rc == 0)
        rc = read_ca_file(s, e);
    if (rc == 0)
        rc = read_token(s, e);
    if (rc == 0 && !(s->cache = hub_cache(e)))
        rc = (int)e->code;
    return rc;
}

void settings_free(struct settings *s)
{
    free(s->endpoint);
    free(s->token);
    free(s->cache);
    *s = (struct settings){0};
}
