#include "cli/options/get_flags.h"

#include <stddef.h>
#include <string.h>

#include "base/err.h"
#include "cli/hub.h"
#include "cli/options/flags.h"
#include "cli/options/options.h"
#include "hub/download.h"
#include "hub/listing.h"

/* The order is that of enum exit_level. */
static const char LOG_LEVEL[] = "error, warn or info";

/* clang-format off */
#define AT(field) offsetof(struct options, field)
const struct flag get_flags[GET_FLAGS] = {
    {FLAG_OPERAND, NULL, NULL, "ORG/NAME", "the repository", AT(repository), 0, 0, NULL},
    {FLAG_TEXTS, NULL, "include", "GLOB", "fetch these files only; repeatable", AT(include), 0, 0, NULL},
    {FLAG_TEXTS, NULL, "exclude", "GLOB", "leave out these files; repeatable", AT(exclude), 0, 0, NULL},
    {FLAG_TEXT, NULL, "revision", "NAME", "branch, tag or commit (main)", AT(revision), 0, 0, NULL},
    {FLAG_INT, NULL, "parallel", "N", "connections (8)", AT(connections), 1, DOWNLOAD_MAX_PARALLEL, NULL},
    {FLAG_INT, NULL, "tries", "N", "tries without a new byte before it gives up (10)",
     AT(tries), 1, 1000000, NULL},
    {FLAG_SWITCH, NULL, "dry-run", NULL, "show what fits and what would be fetched, and end",
     AT(dry_run), 0, 0, NULL},
    {FLAG_SWITCH, "q", "quiet", NULL, "print only errors (--log-level error)", AT(quiet), 0, 0, NULL},
    {FLAG_CHOICE, NULL, "log-level", "LEVEL", "messages on stderr: error, warn, info (info)",
     AT(log_level), 0, 0, LOG_LEVEL},
    {FLAG_SWITCH, "h", "help", NULL, "print this help", AT(help), 0, 0, NULL},
};
/* clang-format on */

int get_flags_check(const struct options *o, struct moeflux_err *e)
{
    if (!hub_is_name(o->repository))
        return err_set(e, ERR_USAGE, "get: expected a repository's name, ORG/NAME, found \"%s\"",
                       o->repository);
    /* Names of git do not begin with "-": a flag has taken another's place. */
    if (o->revision && (!listing_is_safe(o->revision) || o->revision[0] == '-'))
        return err_set(e, ERR_USAGE, "--revision: expected a branch, a tag or a commit, found \"%s\"",
                       o->revision);
    return 0;
}
