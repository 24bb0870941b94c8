#include "cli/exit.h"

#include "cli/say.h"
#include "cli/signals.h"

int exit_status(int rc)
{
    switch (rc) {
    case ERR_USAGE:
        return EXIT_USAGE;
    case ERR_NO_FIT:
        return EXIT_NO_FIT;
    case ERR_INTERRUPTED:
        return signals_status();
    default:
        return rc < 0 ? EXIT_FAILED : EXIT_OK;
    }
}

void exit_warn(const char *text)
{
    say("moeflux: %s\n", text);
}

void exit_tell(int most, enum exit_level level, const char *text)
{
    if (most >= (int)level)
        exit_warn(text);
}

int exit_report(int rc, const struct moeflux_err *e)
{
    if (rc < 0 && rc != ERR_INTERRUPTED && e->text[0])
        exit_warn(e->text);
    return exit_status(rc);
}
