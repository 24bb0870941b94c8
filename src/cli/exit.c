#include "cli/exit.h"

#include <stdio.h>
#include <string.h>

#include "base/str.h"
#include "cli/say.h"
#include "cli/signals.h"

/* What messages from below call `NAME`, an option's field, and what the user calls it. */
static const char *const flags[][2] = {
    {"active_experts", "--active-experts"},
    {"bits", "--bits"},
    {"chunk", "--chunk"},
    {"context", "-c"},
    {"cpu_isa", "--cpu-isa"},
    {"cpu_share", "--experts cpu:SHARE"},
    {"device", "--device"},
    {"expert_bits", "--expert-bits"},
    {"expert_group", "--expert-group"},
    {"expert_mode", "--expert-mode"},
    {"expert_share", "--expert-share"},
    {"gpu_memory_bytes", "--gpu-memory"},
    {"gpu_memory_each", "--gpu-memory"},
    {"group", "--group"},
    {"half_scales", "--half-scales"},
    {"lossy", "--lossy"},
    {"memory_bytes", "--memory"},
    {"mode", "--mode"},
    {"moeflux_list_devices", "--list-devices"},
    {"n_cpu_layers", "--n-cpu-moe (or --experts cpu)"},
    {"n_parallel", "--parallel"},
    {"pin", "--pin"},
    {"prefer_resident", "--prefer-resident"},
    {"prompt_type", "--prompt-type"},
    {"raw", "--raw"},
    {"recipe", "--recipe"},
    {"spread", "--spread"},
    {"drafter_file", "--mtp"},
    {"tensor_split", "--tensor-split"},
    {"thinking off", "--no-think"},
    {"thinking on", "--think"},
};

/* Returns the flag of a field, name[n], with a backquote after it; NULL: it is none. */
static const char *flag_of(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (name[n] == '`' && strlen(flags[i][0]) == n && memcmp(flags[i][0], name, n) == 0)
            return flags[i][1];
    return NULL;
}

static void add_text(struct str *out, const char *text)
{
    while (*text) {
        size_t n = *text == '`' ? strcspn(text + 1, "`") : 0;
        const char *flag = n ? flag_of(text + 1, n) : NULL;
        if (flag)
            str_add_text(out, flag);
        else
            str_add(out, text, 1);
        text += flag ? n + 2 : 1;
    }
}

void exit_name_flags(struct moeflux_err *e)
{
    struct str shown = {0};
    add_text(&shown, e->text);
    if (str_ok(&shown))
        snprintf(e->text, sizeof e->text, "%s", str_text(&shown));
    str_free(&shown);
}

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
    struct str shown = {0};
    add_text(&shown, text);
    say("moeflux: %s\n", str_ok(&shown) ? str_text(&shown) : text);
    str_free(&shown);
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
