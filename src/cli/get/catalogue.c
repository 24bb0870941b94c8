#include "cli/get/catalogue.h"

#include <string.h>

#include "base/err.h"
#include "base/str.h"
#include "cli/options/number.h"
#include "cli/say.h"
#include "hub/download.h"
#include "hub/listing.h"
#include "hub/retry.h"
#include "hub/selection.h"

/* Explains a status of the list. endpoint: for messages. The server says 401 for a repository that does not
 * exist, too. */
static int refuse(const struct download_options *d, const char *endpoint, const char *revision,
                  const struct remote_reply *reply, struct moeflux_err *e)
{
    const char *code = reply->error_code;
    char why[300];
    bool has_token = d->host.token != NULL;
    retry_explain(reply, why, sizeof why);
    if (reply->moved)
        return err_set(e, ERR_IO, "%s: %s, which %s redirects to: %s", d->name, reply->origin, endpoint, why);
    if (strcmp(code, "GatedRepo") == 0 || (reply->status == 403 && !code[0]))
        return err_set(e, ERR_IO, "%s: its licence has to be accepted at %s/%s, and HF_TOKEN set%s (%s)",
                       d->name, endpoint, d->name, has_token ? " to a token of that account" : "", why);
    if (strcmp(code, "RevisionNotFound") == 0)
        return err_set(e, ERR_IO, "%s: it has no revision \"%s\" (%s)", d->name, revision, why);
    if (reply->status == 401 || reply->status == 404)
        return err_set(e, ERR_IO, "%s: no such repository at %s, or a private one that %s (%s)", d->name,
                       endpoint, has_token ? "the token in use may not read" : "needs HF_TOKEN", why);
    return err_set(e, ERR_IO, "%s: %s: %s", d->name, endpoint, why);
}

int catalogue_read(const struct download_options *d, const char *revision, struct listing *l,
                   struct moeflux_err *e)
{
    struct str path = {0}, text = {0}, endpoint = {0};
    struct remote_reply reply;
    str_add_text(&path, "/api/models/");
    remote_add_escaped(&path, d->name, true);
    str_add_text(&path, "/revision/");
    remote_add_escaped(&path, revision, false);
    str_add_text(&path, "?blobs=true");
    remote_add_shown(&endpoint, d->host.endpoint);
    if (!str_ok(&path) || !str_ok(&endpoint)) {
        str_free(&path);
        str_free(&endpoint);
        return err_set(e, ERR_MEMORY, "out of memory for a URL");
    }
    int rc = download_text(d, str_text(&path), &text, &reply, e);
    if (rc == 0 && reply.status != 200)
        rc = refuse(d, str_text(&endpoint), revision, &reply, e);
    if (rc == 0)
        rc = listing_read(l, str_text(&text), text.len, d->name, e);
    remote_reply_free(&reply);
    str_free(&path);
    str_free(&text);
    str_free(&endpoint);
    return rc;
}

int catalogue_ask(const struct listing *l, const char *name, struct moeflux_err *e)
{
    struct selection_set set;
    uint32_t n = 0;
    for (uint32_t i = 0; selection_next_set(l, &i, &set); n++) {
        char amount[32];
        number_show_bytes(amount, sizeof amount, (double)set.bytes);
        say("%12s  %2u file%s  --include '%s'\n", amount, set.n_files, set.n_files == 1 ? " " : "s",
            set.pattern);
    }
    return err_set(e, ERR_USAGE, "%s: %u GGUF models: choose one of these with --include", name, n);
}
