#include "cli/options/check.h"

#include <string.h>

#include "base/err.h"
#include "cli/options/get_flags.h"
#include "cli/options/options.h"
#include "cli/options/secret.h"
#include "moeflux.h"
#include "text/utf8.h"

#define MAX_TOKENS (1 << 30)

/* Runs after the check that none of them was given without --bench. */
static void set_bench_defaults(struct options *o)
{
    if (!o->bench_prompt.n)
        o->bench_prompt = (struct number_list){1, {512}};
    if (!o->bench_gen.n)
        o->bench_gen = (struct number_list){1, {128}};
    if (!o->bench_depth.n)
        o->bench_depth = (struct number_list){1, {0}};
    if (!o->bench_reps)
        o->bench_reps = 5;
}

static int refuse(bool together, const char *a, const char *b, struct moeflux_err *e)
{
    return together ? err_set(e, ERR_USAGE, "%s and %s exclude each other", a, b) : 0;
}

static int check_needs(bool given, const char *flag, bool has, const char *other, struct moeflux_err *e)
{
    return given && !has ? err_set(e, ERR_USAGE, "%s goes with %s only", flag, other) : 0;
}

/* Checks where experts are computed, and how many. */
static int check_experts(const struct options *o, struct moeflux_err *e)
{
    bool both = o->experts.is_given && o->n_cpu_moe != OPTIONS_NOT_GIVEN;
    if (!(o->expert_share > 0 && o->expert_share <= 1))
        return err_set(e, ERR_USAGE, "--expert-share: expected more than 0 and at most 1, found %g",
                       (double)o->expert_share);
    if (!(o->prefer_resident >= 0))
        return err_set(e, ERR_USAGE, "--prefer-resident: expected 0 or more, found %g",
                       (double)o->prefer_resident);
    return refuse(both, "--experts", "--n-cpu-moe", e);
}

static int check_thinking(const struct options *o, struct moeflux_err *e)
{
    bool has_effort = o->effort != OPTIONS_NOT_GIVEN, is_none = o->effort == 0;
    int rc = refuse(o->think && o->no_think, "--think", "--no-think", e);
    if (!rc)
        rc = refuse(o->think && is_none, "--think", "--effort none", e);
    if (!rc)
        rc = refuse(o->no_think && has_effort && !is_none, "--no-think", "--effort", e);
    bool thinks = o->think || (has_effort && !is_none);
    return rc ? rc : refuse(thinks && o->raw, o->think ? "--think" : "--effort", "--raw", e);
}

static int check_prompt(const struct options *o, struct moeflux_err *e)
{
    int rc = refuse(o->prompt && strcmp(o->prompt, "-") == 0 && o->file, "-p -", "-f", e);
    if (!rc)
        rc = refuse(o->prompt && o->tokens_in, "-p", "--tokens-in", e);
    if (!rc)
        rc = refuse(o->file && o->tokens_in, "-f", "--tokens-in", e);
    if (!rc)
        rc = check_thinking(o, e);
    if (!rc)
        rc = refuse(o->system && o->raw, "--system", "--raw", e);
    if (!rc)
        rc = refuse(o->system && o->tokens_in, "--system", "--tokens-in", e);
    if (!rc)
        rc = refuse((o->chat_template || o->chat_template_kwargs) && (o->raw || o->tokens_in),
                    o->chat_template ? "--chat-template" : "--chat-template-kwargs", "--raw or --tokens-in",
                    e);
    if (!rc)
        rc = refuse(o->prompt_cache && o->prompt_cache_ro, "--prompt-cache", "--prompt-cache-ro", e);
    if (!rc)
        rc = refuse((o->prompt_cache || o->prompt_cache_ro) && (o->logits_all || o->hidden), "--prompt-cache",
                    "--logits-all or --hidden, which need every token computed", e);
    if (!rc)
        rc = check_needs(o->state_format, "--state-format", o->prompt_cache, "--prompt-cache", e);
    if (!rc && o->state_format && strcmp(o->state_format, "v2") != 0 && strcmp(o->state_format, "v3") != 0)
        rc = err_set(e, ERR_USAGE, "--state-format: expected v2 or v3, found \"%s\"", o->state_format);
    if (!rc)
        rc = refuse(o->resume && (o->tokens_in || o->raw), "--resume", "--tokens-in or --raw", e);
    if (!rc)
        rc = refuse(o->resume && o->tools, "--resume", "--tools", e);
    if (!rc)
        rc = refuse(o->resume && (o->json || o->tokens_out), "--resume", "--json or --tokens-out", e);
    if (!rc)
        rc = refuse(o->resume && options_probes(o), "--resume", "--logits or --hidden", e);
    if (!rc)
        rc = refuse(o->resume && o->system, "--resume", "--system", e);
    if (!rc)
        rc = refuse(o->tools && (o->raw || o->tokens_in), "--tools", "--raw or --tokens-in", e);
    return rc;
}

/* Reads "2/8". */
static int parse_shard(struct options *o, struct moeflux_err *e)
{
    const char *slash = o->shard ? strchr(o->shard, '/') : NULL;
    int64_t i = 1, n = 1;
    char first[16];
    o->shard_i = o->shard_n = 1;
    if (!o->shard)
        return 0;
    size_t len = slash ? (size_t)(slash - o->shard) : sizeof first;
    if (len < sizeof first) {
        memcpy(first, o->shard, len);
        first[len] = '\0';
    }
    if (len >= sizeof first || !number_int(slash + 1, 1, MAX_TOKENS, &n) || !number_int(first, 1, n, &i))
        return err_set(e, ERR_USAGE, "--shard: expected I/N with 1 <= I <= N, found \"%s\"", o->shard);
    o->shard_i = (uint32_t)i;
    o->shard_n = (uint32_t)n;
    return 0;
}

/* Measurements and reports have no state to keep. */
static int check_state(const struct options *o, struct moeflux_err *e)
{
    static const char others[] = "--bench, --plan, --selftest, --list-devices or --perplexity";
    bool other = o->bench || o->plan || o->selftest || o->list_devices || o->perplexity;
    int rc = refuse(other && (o->prompt_cache || o->prompt_cache_ro), "--prompt-cache", others, e);
    if (!rc)
        rc = refuse(other && o->resume, "--resume", others, e);
    return rc ? rc : refuse(other && o->batch, "--batch", others, e);
}

static int check_copies(const struct options *o, struct moeflux_err *e)
{
    int rc = refuse(o->replicate && o->tensor_split.n, "--replicate", "--tensor-split", e);
    if (!rc)
        rc = refuse(o->replicate && (o->experts.is_cpu || o->n_cpu_moe > 0), "--replicate",
                    "--experts cpu or --n-cpu-moe", e);
    return rc ? rc : refuse(o->replicate && o->trace, "--replicate", "--trace", e);
}

static int check_batch(struct options *o, struct moeflux_err *e)
{
    int rc = refuse(o->batch && (o->prompt || o->file || o->tokens_in), "--batch", "a prompt", e);
    if (!rc)
        rc = refuse(o->batch && options_probes(o), "--batch", "--logits or --hidden", e);
    if (!rc)
        rc = refuse(o->batch && (o->prompt_cache || o->prompt_cache_ro), "--batch", "--prompt-cache", e);
    if (!rc)
        rc = refuse(o->batch && o->resume, "--batch", "--resume", e);
    if (!rc)
        rc = refuse(o->batch && (o->tokens_out || o->show_think), "--batch", "--tokens-out or --show-think",
                    e);
    if (!rc)
        rc = check_needs(o->output, "--output", o->batch, "--batch", e);
    if (!rc)
        rc = check_needs(o->retry_failed, "--retry-failed", o->batch && o->output, "--batch and --output", e);
    if (!rc)
        rc = check_needs(o->mix, "--mix", o->batch && o->output, "--batch and --output", e);
    if (!rc)
        rc = check_needs(o->ordered, "--ordered", o->batch, "--batch", e);
    if (!rc)
        rc = check_needs(o->parallel, "--parallel", o->batch, "--batch", e);
    if (!rc)
        rc = check_needs(o->replicate, "--replicate", o->batch, "--batch or moeflux serve", e);
    if (!rc)
        rc = check_copies(o, e);
    if (!rc)
        rc = check_needs(o->shard, "--shard", o->batch, "--batch", e);
    return rc ? rc : parse_shard(o, e);
}

static int check_grammar(const struct options *o, struct moeflux_err *e)
{
    const char *flag = o->json_schema ? "--json-schema" : o->json_object ? "--json-object" : "--grammar";
    bool other = o->bench || o->plan || o->selftest || o->list_devices || o->perplexity;
    bool any = o->json_schema || o->json_object || o->grammar;
    int rc = refuse(o->json_schema && o->json_object, "--json-schema", "--json-object", e);
    if (!rc)
        rc = refuse((o->json_schema || o->json_object) && o->grammar, flag, "--grammar", e);
    if (!rc)
        rc = refuse(any && o->ignore_eos, flag, "--ignore-eos", e);
    return rc ? rc
              : refuse(any && other, flag, "--bench, --plan, --selftest, --list-devices or --perplexity", e);
}

static int check_output(const struct options *o, struct moeflux_err *e)
{
    bool text_logits = o->logits && strcmp(o->logits, "-") == 0;
    int rc = refuse(o->json && o->csv, "--json", "--csv", e);
    if (!rc)
        rc = refuse(o->json && o->tokens_out, "--json", "--tokens-out", e);
    if (!rc)
        rc = refuse(o->json && text_logits, "--json", "--logits -", e);
    if (!rc)
        rc = refuse(text_logits && (o->predict > 0 || o->predict == OPTIONS_NO_LIMIT), "--logits -", "-n", e);
    if (!rc)
        rc = check_needs(o->logits_all, "--logits-all", o->logits, "--logits", e);
    if (!rc)
        rc = check_needs(o->csv, "--csv", o->bench || o->list_devices || o->compare.n,
                         "--bench, --list-devices or --compare", e);
    if (!rc && o->logits && o->hidden && strcmp(o->logits, o->hidden) == 0)
        rc = err_set(e, ERR_USAGE, "--logits and --hidden name the same file, %s", o->hidden);
    if (!rc && o->hidden && strcmp(o->hidden, "-") == 0)
        rc = err_set(e, ERR_USAGE, "--hidden: expected a file, found \"-\"");
    return rc;
}

static int check_modes(const struct options *o, struct moeflux_err *e)
{
    int rc = refuse(o->bench && o->selftest, "--bench", "--selftest", e);
    if (!rc)
        rc = refuse(o->plan && o->bench, "--plan", "--bench", e);
    if (!rc)
        rc = refuse(o->perplexity && (o->bench || o->plan || o->selftest || o->list_devices), "--perplexity",
                    "--bench, --plan, --selftest or --list-devices", e);
    if (!rc)
        rc = refuse(o->perplexity && (o->prompt || o->file || o->tokens_in), "--perplexity", "a prompt", e);
    if (!rc)
        rc = refuse(o->perplexity && options_probes(o), "--perplexity", "--logits or --hidden", e);
    if (!rc)
        rc = check_needs(o->compare.n, "--compare", o->perplexity, "--perplexity", e);
    if (!rc)
        rc = refuse(o->compare.n && o->usage, "--compare", "--usage", e);
    if (!rc)
        rc = refuse(o->compare.n && o->trace, "--compare", "--trace", e);
    if (!rc)
        rc = refuse(o->plan && o->selftest, "--plan", "--selftest", e);
    if (!rc)
        rc = refuse(o->plan && o->list_devices, "--plan", "--list-devices", e);
    if (!rc)
        rc = refuse(o->plan && options_probes(o), "--plan", "--logits or --hidden", e);
    if (!rc)
        rc = refuse(o->list_devices && o->selftest, "--list-devices", "--selftest", e);
    if (!rc)
        rc = refuse(o->list_devices && o->bench, "--list-devices", "--bench", e);
    if (!rc)
        rc = refuse(o->selftest && o->json, "--selftest", "--json", e);
    if (!rc)
        rc = refuse(o->bench && options_probes(o), "--bench", "--logits or --hidden", e);
    if (!rc)
        rc = refuse(o->trace && (o->plan || o->selftest || o->list_devices), "--trace",
                    "--plan, --selftest or --list-devices", e);
    return rc;
}

static int check_bench(struct options *o, struct moeflux_err *e)
{
    int rc = check_needs(o->bench_prompt.n, "--bench-prompt", o->bench, "--bench", e);
    if (!rc)
        rc = check_needs(o->bench_gen.n, "--bench-gen", o->bench, "--bench", e);
    if (!rc)
        rc = check_needs(o->bench_depth.n, "--bench-depth", o->bench, "--bench", e);
    if (!rc)
        rc = check_needs(o->bench_fill, "--bench-fill", o->bench && o->bench_depth.n, "--bench-depth", e);
    if (!rc && o->bench_fill % 256)
        rc = err_set(e, ERR_USAGE, "--bench-fill: %lld tokens, expected a multiple of 256",
                     (long long)o->bench_fill);
    if (!rc)
        rc = check_needs(o->bench_reps, "--bench-reps", o->bench, "--bench", e);
    if (!rc)
        rc = check_needs(o->bench_parallel, "--bench-parallel", o->bench, "--bench", e);
    if (!rc)
        rc = refuse(o->bench && !o->batch && o->predict != OPTIONS_NOT_GIVEN, "-n", "--bench (--bench-gen N)",
                    e);
    set_bench_defaults(o);
    bool any = false;
    for (uint32_t i = 0; i < o->bench_prompt.n; i++)
        any = any || o->bench_prompt.values[i];
    for (uint32_t i = 0; i < o->bench_gen.n; i++)
        any = any || o->bench_gen.values[i];
    if (!rc && o->bench && !any)
        rc = err_set(e, ERR_USAGE, "--bench-prompt and --bench-gen are 0: nothing is measured");
    return rc;
}

/* Checks how tokens are sampled and where the answer stops. */
/* Checks how tokens are sampled and drafted. */
static int check_sampling(const struct options *o, struct moeflux_err *e)
{
    int rc = moeflux_options_use_draft(NULL, "--draft", o->draft, e);
    return rc ? rc : options_check_sampling(o, e);
}

static int check_answer(const struct options *o, struct moeflux_err *e)
{
    for (uint32_t i = 0; i < o->stop.n; i++)
        if (!utf8_is_valid(o->stop.values[i], strlen(o->stop.values[i])))
            return err_set(e, ERR_USAGE, "--stop: expected UTF-8");
    return check_sampling(o, e);
}

bool check_names_cpu(const char *device, bool all)
{
    uint32_t n = 0, n_cpu = 0;
    for (const char *at = device; at; n++) {
        size_t len = strcspn(at, ",");
        n_cpu += len == 3 && memcmp(at, "cpu", 3) == 0;
        at = at[len] ? at + len + 1 : NULL;
    }
    return n_cpu > 0 && (!all || n_cpu == n);
}

bool check_takes_cpu(const char *device)
{
    struct moeflux_device all[2];
    struct moeflux_err ignored;
    if (device && strcmp(device, "auto") != 0)
        return check_names_cpu(device, true);
    /* The default device comes first. */
    return moeflux_list_devices(all, 2, &ignored) > 0 && strcmp(all[0].kind, "cpu") == 0;
}

_Static_assert((int)NUMBER_LIST_MAX == (int)MOEFLUX_MAX_DEVICES, "a list has an entry for each device");

static int check_device(const struct options *o, struct moeflux_err *e)
{
    if (o->selftest && o->device && (strchr(o->device, ',') || strcmp(o->device, "all") == 0))
        return err_set(e, ERR_USAGE, "--selftest checks one device, --device names several");
    if (!o->gpu_memory.n || !check_takes_cpu(o->device))
        return 0;
    return err_set(e, ERR_USAGE, "--gpu-memory goes with a GPU; here the CPU computes, and --memory counts");
}

int check_engine(const struct options *o, struct moeflux_err *e)
{
    int rc = check_device(o, e);
    return rc ? rc : check_experts(o, e);
}

static int need_model(const struct options *o, struct moeflux_err *e)
{
    return o->model
               ? 0
               : err_set(e, ERR_USAGE,
                         "-m DIR is missing: which model? DIR is a directory of safetensors files, or what "
                         "moeflux convert made of one (MOEFLUX_MODEL sets it too; --help shows the usage)");
}

int check_conversation(const struct options *o, struct moeflux_err *e)
{
    const struct {
        const char *flag;
        bool given;
    } of_prompts[] = {
        {"--raw", o->raw},       {"--json", o->json},   {"--logits", o->logits},
        {"--hidden", o->hidden}, {"--tools", o->tools},
    };
    for (size_t i = 0; i < sizeof of_prompts / sizeof *of_prompts; i++)
        if (of_prompts[i].given)
            return err_set(e, ERR_USAGE,
                           "%s goes with a prompt (-p, -f, standard input)%s, not with a conversation",
                           of_prompts[i].flag, o->tools ? " or --batch" : "");
    return 0;
}

static int check_run(struct options *o, struct moeflux_err *e)
{
    o->json |= o->json_full;
    int rc = check_modes(o, e);
    if (!rc)
        rc = check_bench(o, e);
    if (!rc)
        rc = check_engine(o, e);
    if (!rc)
        rc = check_prompt(o, e);
    if (!rc)
        rc = check_state(o, e);
    if (!rc)
        rc = check_batch(o, e);
    if (!rc)
        rc = check_grammar(o, e);
    if (!rc)
        rc = check_output(o, e);
    if (!rc)
        rc = check_answer(o, e);
    if (rc)
        return rc;
    o->verb = o->list_devices ? VERB_LIST_DEVICES
              : o->selftest   ? VERB_SELFTEST
              : o->plan       ? VERB_PLAN
              : o->perplexity ? VERB_PERPLEXITY
              : o->bench      ? VERB_BENCH
              : o->batch      ? VERB_BATCH
                              : VERB_RUN;
    return o->verb == VERB_LIST_DEVICES || o->verb == VERB_SELFTEST ? 0 : need_model(o, e);
}

static int check_inspect(const struct options *o, struct moeflux_err *e)
{
    int rc = o->model || o->trace || o->usage
                 ? 0
                 : err_set(e, ERR_USAGE,
                           "MODEL is missing: a directory or a config.json (--help shows the usage)");
    if (!rc)
        rc = refuse(o->trace && o->usage, "--trace", "--usage", e);
    return rc ? rc : check_engine(o, e);
}

static int check_serve(struct options *o, struct moeflux_err *e)
{
    int rc = need_model(o, e);
    if (!rc)
        rc = check_engine(o, e);
    if (!rc)
        rc = check_thinking(o, e);
    if (!rc)
        rc = check_sampling(o, e);
    if (!rc)
        rc = secret_take(o, e);
    if (!rc && o->cors && strcmp(o->cors, "*") != 0 && !strstr(o->cors, "://"))
        rc = err_set(e, ERR_USAGE,
                     "--cors: expected * or an origin such as http://localhost:3000, found \"%s\"", o->cors);
    if (!rc && o->sequences && o->sequences < o->parallel)
        rc = err_set(e, ERR_USAGE, "--sequences: expected at least the %lld of --parallel, found %lld",
                     (long long)o->parallel, (long long)o->sequences);
    return rc ? rc : check_copies(o, e);
}

/* A single directory is only verified. */
static int check_convert(const struct options *o, struct moeflux_err *e)
{
    bool settings = o->lossy || o->half_scales || o->no_mtp || o->mtp || o->bits || o->group ||
                    o->expert_bits || o->expert_group || o->spread || o->recipe != OPTIONS_NOT_GIVEN ||
                    o->scales != OPTIONS_NOT_GIVEN || o->mode != OPTIONS_NOT_GIVEN ||
                    o->expert_mode != OPTIONS_NOT_GIVEN;
    if (o->mtp && o->no_mtp)
        return err_set(e, ERR_USAGE, "--mtp: expected none with --no-mtp");
    if (!o->src)
        return err_set(e, ERR_USAGE, "%s is missing (--help shows the usage)", o->verify ? "DST" : "SRC");
    if (o->dst)
        return 0;
    if (!o->verify)
        return err_set(e, ERR_USAGE, "DST is missing (--help shows the usage)");
    return settings
               ? err_set(e, ERR_USAGE, "--verify of a converted model takes no other flag than --threads")
               : 0;
}

int check_options(struct options *o, struct moeflux_err *e)
{
    switch (o->verb) {
    case VERB_CONVERT:
        return check_convert(o, e);
    case VERB_SERVE:
        return check_serve(o, e);
    case VERB_INSPECT:
        return check_inspect(o, e);
    case VERB_DOCTOR:
        return check_engine(o, e);
    case VERB_GET:
        return get_flags_check(o, e);
    default:
        return check_run(o, e);
    }
}
