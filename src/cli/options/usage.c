#include "cli/options/usage.h"

#include "base/str.h"
#include "cli/options/flags.h"
#include "cli/options/options.h"

static const char RUN[] = "usage: moeflux -m DIR -p TEXT          one answer on stdout\n"
                          "       moeflux -m DIR                  a conversation (in a terminal)\n"
                          "       moeflux -m DIR --batch FILE     one answer per line of JSON\n"
                          "       moeflux serve -m DIR            OpenAI's API on http://127.0.0.1:8080\n"
                          "       moeflux -m DIR --bench          speed of prefill and decode\n"
                          "       moeflux -m DIR --perplexity FILE [--compare SETTING]...\n"
                          "       moeflux convert SRC DST         a checkpoint to a model directory\n"
                          "       moeflux get ORG/NAME            a model from Hugging Face\n"
                          "       moeflux inspect DIR             what a model is, needs and can reach here\n"
                          "       moeflux doctor                  a page on this machine for a bug report\n"
                          "       moeflux --selftest              check this device's operations\n",
                  CONVERT[] = "usage: moeflux convert SRC DST [OPTION]...\n"
                              "       moeflux convert --verify DST\n\n",
                  COMPLETION[] = "usage: moeflux completion SHELL\n\n",
                  SERVE[] = "usage: moeflux serve -m DIR [OPTION]...\n",
                  INSPECT[] = "usage: moeflux inspect MODEL [--no-measure] [--json] [OPTION]...\n"
                              "       moeflux inspect --trace FILE|--usage FILE [MODEL] [OPTION]...\n\n",
                  DOCTOR[] = "usage: moeflux doctor [-m MODEL] [--no-selftest] [--json] [OPTION]...\n\n",
                  GET[] = "usage: moeflux get ORG/NAME [OPTION]...\n\n";

void usage_add(const struct options *o, struct str *out)
{
    static const struct {
        enum verb verb;
        const char *text;
        const struct defaults_command *command;
    } known[] = {
        {VERB_CONVERT, CONVERT, &options_commands[1]}, {VERB_INSPECT, INSPECT, &options_commands[2]},
        {VERB_SERVE, SERVE, &options_commands[3]},     {VERB_GET, GET, &options_commands[4]},
        {VERB_DOCTOR, DOCTOR, &options_commands[5]},   {VERB_COMPLETION, COMPLETION, &options_completion}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (known[i].verb != o->verb)
            continue;
        str_add_text(out, known[i].text);
        flags_help(known[i].command->flags, known[i].command->n, out);
        return;
    }
    str_add_text(out, RUN);
    flags_help(options_commands[0].flags, options_commands[0].n, out);
    str_add_text(out, "\nMore: man moeflux; for each command COMMAND --help and man moeflux-COMMAND.\n");
}
