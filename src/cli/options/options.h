/* options.h - what the user asked for: every flag, checked, with its default.
 * Texts are borrowed from argv, or lie in `defaults`. */
#ifndef MOEFLUX_CLI_OPTIONS_OPTIONS_H
#define MOEFLUX_CLI_OPTIONS_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "cli/options/defaults.h"
#include "cli/options/flags.h"
#include "cli/options/foreign.h"
#include "cli/options/number.h"
#include "moeflux_chat.h"

struct str;
struct moeflux_options;

enum verb {
    VERB_RUN, /* one answer, or a conversation when stdin is a terminal and no prompt is given */
    VERB_BATCH,
    VERB_BENCH,
    VERB_PERPLEXITY,
    VERB_PLAN,
    VERB_SELFTEST,
    VERB_LIST_DEVICES,
    VERB_CONVERT,
    VERB_INSPECT,
    VERB_SERVE,
    VERB_GET,
    VERB_DOCTOR,
    VERB_COMPLETION,
    VERB_HELP,
    VERB_VERSION,
};

enum { OPTIONS_NOT_GIVEN = -2, OPTIONS_NO_LIMIT = -1, OPTIONS_NO_LOGPROBS = -1 };

enum { BENCH_MAX_PARALLEL = MOEFLUX_MAX_PARALLEL };

struct options {
    enum verb verb;
    int log_level;                          /* enum exit_level */
    const struct defaults_command *command; /* whose flags were parsed; NULL: none */
    char *hub_path;                         /* the snapshot that `model` or `src` stands for; NULL: none */
    struct defaults defaults;
    struct foreign foreign; /* the words that were parsed, and notes on them for the user */

    struct moeflux_err model_fault; /* doctor: why the model is no model; code 0: it may be one */

    char *model_name; /* owned: the name of the model's directory or file */
    const char *model, *device, *cpu_isa, *usage, *pin, *trace;
    int expert_io, prefetch, cache_policy, kv_type, prompt_type; /* enums of moeflux.h */
    struct expert_place experts;
    float expert_share, prefer_resident;
    int64_t n_cpu_moe;      /* layers; OPTIONS_NOT_GIVEN */
    int64_t active_experts; /* 0: the model's own number */
    int64_t ctx_size;       /* 0: the smaller of MOEFLUX_DEFAULT_CONTEXT and the model's maximum */
    int64_t threads, chunk;
    uint64_t memory; /* bytes; 0: a share of what is free */
    /* bytes: one for each device, or one for all; none: a share of what is free */
    struct bytes_list gpu_memory;
    struct share_list tensor_split; /* one for each device; none: by the devices' memory */

    const char *prompt, *file, *tokens_in;      /* no more than one is given */
    const char *system;                         /* text of the system message */
    const char *chat_template;                  /* a file, or the template's text; NULL: the model's own */
    const char *chat_template_kwargs;           /* JSON: more variables of the template */
    const char *prompt_cache, *prompt_cache_ro; /* no more than one is given */
    const char *state_format;                   /* "v2" or "v3"; NULL: v3 */
    const char *resume;                         /* name of a saved conversation */
    bool raw, think, no_think, show_think;
    int effort;           /* index of the choices, 0: none; OPTIONS_NOT_GIVEN */
    int64_t think_budget; /* tokens; OPTIONS_NOT_GIVEN */

    bool ordered;               /* results in the order of the lines */
    bool retry_failed;          /* failed results in `output` count as missing */
    bool mix;                   /* `output` may have results of other settings */
    bool no_speed;              /* a conversation has no line about the speed of an answer */
    int color;                  /* formatted answers: 0: on a terminal, 1: always, 2: never */
    const char *batch, *output; /* files; batch may be "-", output NULL: stdout */
    const char *shard;          /* "I/N"; shard_i and shard_n are its parts */
    uint32_t shard_i, shard_n;  /* every shard_n-th line from line shard_i on, 1 <= shard_i <= shard_n */

    int64_t predict;                         /* tokens; OPTIONS_NO_LIMIT; OPTIONS_NOT_GIVEN */
    int64_t seed;                            /* -1: a random one */
    const char *draft;                       /* moeflux_options_use_draft; NULL: auto */
    int64_t draft_max;                       /* tokens; 0: MOEFLUX_MAX_DRAFT */
    struct moeflux_sampler_options sampling; /* its numbers (options_sampling) */
    struct texts dry_breakers;
    char *breakers; /* owned: these texts without escape sequences */
    /* [i] of moeflux_sampler_fields: set by the command line or the user's file; else a model may set it */
    bool given[MOEFLUX_N_SAMPLER_FIELDS];
    struct texts stop;
    const char *tools;                 /* a file */
    int64_t logprobs;                  /* number of likeliest tokens for each; OPTIONS_NO_LOGPROBS */
    const char *json_schema, *grammar; /* files; json_schema may be the text itself */
    bool json_object;                  /* no more than one of these three is given */
    bool ignore_eos;

    bool tokens_out, json, csv, stats, logits_all;
    bool json_full;              /* --json=full: `json` too */
    const char *logits, *hidden; /* files; logits may be "-" */
    const char *perplexity;      /* a file, or "-" */
    struct texts compare;        /* one text for each --compare; options_setting parses them */

    const char *host, *api_key_file, *cors, *alias, *state_dir; /* serve; NULL: not given (host always is) */
    const char *api_key; /* serve: keys with commas between them; in secret_key, or MOEFLUX_API_KEY's value */
    char *secret_key;    /* owned; the command line has stars in its place */
    int64_t port, queue, sequences, state_files;
    int64_t address_connections;       /* OPTIONS_NOT_GIVEN: serve chooses */
    int64_t grace;                     /* seconds */
    int64_t parallel;                  /* serve and --batch; 0: not given */
    uint64_t state_memory, state_disk; /* bytes; 0: no limit */

    bool replicate; /* serve and --batch */
    bool list_devices, selftest, bench, plan;
    const char *word; /* a word without a flag: "full", with selftest */
    struct number_list bench_prompt, bench_gen, bench_depth;
    int64_t bench_reps;
    int64_t bench_fill;     /* tokens that are evaluated of a depth, the rest are copies; 0: all */
    int64_t bench_parallel; /* sequences, at most BENCH_MAX_PARALLEL; 0 or 1: one */

    const char *shell; /* completion */

    const char *repository, *revision; /* get; revision NULL: main */
    struct texts include, exclude;     /* get: patterns */
    int64_t connections, tries;        /* get */
    bool dry_run;                      /* get */

    bool help, version, quiet, verify, lossy, half_scales, no_mtp, no_measure, no_selftest;
    const char *src, *dst;                          /* convert; inspect uses `model` */
    const char *spread;                             /* convert: directories with commas between them */
    const char *mtp;                                /* convert: a file of the layer alone */
    int64_t bits, group, expert_bits, expert_group; /* convert; 0: not given */
    int recipe, scales, mode, expert_mode;          /* indices of the choices; OPTIONS_NOT_GIVEN */
};

/* Parses the command line. Flags that it lacks are taken from the environment and the configuration file
 * (defaults.h). ERR_USAGE names the flag at fault, or the file and line. options_free is legal after a
 * failure, too. */
int options_parse(struct options *o, int argc, char **argv, struct moeflux_err *e);
void options_free(struct options *o);

/* Sets what a command line without flags means. */
void options_defaults(struct options *o);

/* The commands and their flags. The first is run, which has no name on the command line. */
enum { OPTIONS_COMMANDS = 6 };
extern const struct defaults_command options_commands[OPTIONS_COMMANDS];
/* It takes no settings from the configuration file. */
extern const struct defaults_command options_completion;

/* Takes the sampler's settings that neither the command line nor the user's file gives from the model's file
 * (model_sampling_take). ERR_FORMAT: the message names the flag that replaces the value, too. */
int options_take_model(struct options *o, struct moeflux_err *e);

/* Parses a setting of --compare into *out: `base` with the flags of argv, of which argv[0] is skipped. Only
 * flags of the model and of how it runs are allowed. A first word that is no flag is the model's directory.
 * ERR_USAGE. */
int options_setting(const struct options *base, int argc, char **argv, struct options *out,
                    struct moeflux_err *e);

/* Returns the model's name for clients: --alias, else its directory's name. Borrowed. */
const char *options_model_name(const struct options *o);

/* Returns the name of the CPU's instruction set: --cpu-isa, else MOEFLUX_CPU_ISA, which counts only if the
 * CPU computes. NULL: the best one. */
const char *options_cpu_isa(const struct options *o);

/* Fills what the engine is opened with; `progress` stays as it is. */
void options_engine(const struct options *o, struct moeflux_options *out);

/* Returns the option of the sampler that a flag sets; NULL: none. */
const struct moeflux_sampler_field *options_sampler_field(const struct flag *f);
/* Returns the options of the sampler without seed and bias; the texts are borrowed. */
struct moeflux_sampler_options options_sampling(const struct options *o);
/* Replaces -1 of the sampler's whole numbers, UINT32_MAX, by what it stands for: all, as in a request. */
void options_take_all(struct options *o);
/* Checks the options of the sampler. ERR_USAGE. */
int options_check_sampling(const struct options *o, struct moeflux_err *e);

/* Whether the run writes logits or hidden states. It then generates nothing unless -n is given. */
static inline bool options_probes(const struct options *o)
{
    return o->logits || o->hidden;
}

#endif
