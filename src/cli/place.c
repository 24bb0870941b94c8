#include "cli/place.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err.h"
#include "base/str.h"

int place_check(const char *flag, const char *path, struct moeflux_err *e)
{
    char dir[4096];
    const char *slash = strrchr(path, '/');
    size_t n = slash ? (size_t)(slash - path) + 1 : 1;
    if (n >= sizeof dir)
        return err_set(e, ERR_USAGE, "%s: the path is longer than %zu bytes", flag, sizeof dir);
    memcpy(dir, slash ? path : ".", n);
    dir[n] = '\0';
    return access(dir, W_OK) == 0 ? 0 : err_errno(e, ERR_IO, "%s %s", flag, path);
}

/* Makes every directory of `path` above its last part; what is there already is fine. */
static void make_parents(const char *path)
{
    char part[4096];
    for (const char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        if ((size_t)(slash - path) >= sizeof part)
            return;
        memcpy(part, path, (size_t)(slash - path));
        part[slash - path] = '\0';
        mkdir(part, 0700);
    }
}

char *place_of_state(const char *name)
{
    struct str path = {0};
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    /* The XDG rules: a path that is not absolute counts as unset. */
    if (state && state[0] == '/')
        str_addf(&path, "%s/moeflux/%s", state, name);
    else if (home && home[0] == '/')
        str_addf(&path, "%s/.local/state/moeflux/%s", home, name);
    if (!path.len || !str_ok(&path)) {
        str_free(&path);
        return NULL;
    }
    make_parents(path.data);
    return path.data;
}
