#include "cli/options/options.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/exit.h"
#include "cli/options/flags.h"
#include "cli/options/foreign.h"
#include "cli/options/get_flags.h"
#include "cli/options/secret.h"
#include "cli/which_model.h"
#include "generate/logprobs.h"
#include "moeflux.h"
#include "sample/sampler.h"
#include "text/utf8.h"

/* Seeds stay below 2^53 so that every JSON reader gets them exactly. */
#define MAX_SEED   (((int64_t)1 << 53) - 1)
#define MAX_TOKENS (1 << 30)
#define MAX_LENGTH (1 << 24)

/* clang-format off */
#define AT(field)                             offsetof(struct options, field)
#define HEADING(title)                        {FLAG_HEADING, NULL, NULL, NULL, title, 0, 0, 0, NULL}
#define SWITCH(s, l, f, help)                 {FLAG_SWITCH, s, l, NULL, help, AT(f), 0, 0, NULL}
#define TEXT(s, l, value, f, help)            {FLAG_TEXT, s, l, value, help, AT(f), 0, 0, NULL}
#define TEXTS(l, value, f, help)              {FLAG_TEXTS, NULL, l, value, help, AT(f), 0, 0, NULL}
#define INT(s, l, value, f, lo, hi, help)     {FLAG_INT, s, l, value, help, AT(f), lo, hi, NULL}
#define U32(s, l, value, f, lo, hi, help)     {FLAG_U32, s, l, value, help, AT(f), lo, hi, NULL}
#define REAL(s, l, value, f, help)            {FLAG_REAL, s, l, value, help, AT(f), 0, 0, NULL}
#define TEXT_OF(l, value, f, choices, help)   {FLAG_TEXT, NULL, l, value, help, AT(f), 0, 0, choices}
#define BYTES(s, l, value, f, help)           {FLAG_BYTES, s, l, value, help, AT(f), 0, 0, NULL}
#define LIST(s, l, value, f, lo, hi, help)    {FLAG_LIST, s, l, value, help, AT(f), lo, hi, NULL}
#define SHARES(l, value, f, help)             {FLAG_SHARES, NULL, l, value, help, AT(f), 0, 0, NULL}
#define SIZES(l, value, f, help)              {FLAG_SIZES, NULL, l, value, help, AT(f), 0, 0, NULL}
#define CHOICE(l, value, f, choices, help)    {FLAG_CHOICE, NULL, l, value, help, AT(f), 0, 0, choices}
#define MAY_OPERAND(value, f, help)           {FLAG_OPERAND, NULL, NULL, value, help, AT(f), 0, 1, NULL}
#define OPERAND(value, f, help)               {FLAG_OPERAND, NULL, NULL, value, help, AT(f), 0, 0, NULL}

/* The order is that of the enums of moeflux.h. */
static const char EXPERT_IO[] = "auto, mmap, pread, uring or direct",
                  PREFETCH[] = "auto, none, previous, router or both",
                  CACHE_POLICY[] = "auto, lru, frequency or context", NUMBER_TYPE[] = "auto, f32 or f16",
                  KV_TYPE[] = "auto, f32, f16 or q8_0",
                  EFFORT[] = "none, minimal, low, medium, high or xhigh",
                  EXPERTS[] = "gpu or cpu", COLOR[] = "auto, always or never";
/* Values that completion offers: these flags take others too, or are checked elsewhere. */
static const char DEVICES[] = "auto, cpu or reference",
                  ISAS[] = "portable, avx2, avx512, amx, neon or dotprod",
                  STATES[] = "v2 or v3";
/* The order is that of the enums of convert/settings.h without their first value, which stands for none. */
static const char RECIPE[] = "mixed_2_6, mixed_3_4, mixed_3_6 or mixed_4_6", SCALES[] = "minmax or search",
                  QUANT_MODE[] = "affine, mxfp4, mxfp8 or nvfp4";

/* The order is that of enum exit_level. */
static const char LOG_LEVEL[] = "error, warn or info";

/* Which messages stderr gets. */
#define SAY_FLAGS \
    SWITCH("q", "quiet", quiet, "print only errors (--log-level error)"), \
    CHOICE("log-level", "LEVEL", log_level, LOG_LEVEL, "messages on stderr: error, warn, info (info)")

/* How a model is opened and run. */
#define MODEL_FLAGS \
    TEXT("m", "model", "DIR", model, "the model's directory, or a GGUF file"), \
    TEXT_OF("device", "NAME,..", device, DEVICES, "auto, cpu, reference, a GPU's index or name (auto)"), \
    SHARES("tensor-split", "N,N,..", tensor_split, "each device's share of the layers (by memory)"), \
    TEXT_OF("cpu-isa", "NAME", cpu_isa, ISAS, "portable, avx2, avx512, amx, neon, dotprod (best)"), \
    INT("c", "ctx-size", "N", ctx_size, 1, MAX_TOKENS, "context size: tokens of prompt and answers (8192)"), \
    INT("t", "threads", "N", threads, 1, 4096, "threads that compute and read (all cores)"), \
    BYTES(NULL, "memory", "SIZE", memory, "host memory for experts and checkpoints, e.g. 4G"), \
    SIZES("gpu-memory", "SIZE,..", gpu_memory, "device memory to use on each GPU, e.g. 20G"), \
    CHOICE("experts", "WHERE", experts, EXPERTS, "where routed experts are computed: gpu, cpu (gpu)"), \
    INT(NULL, "n-cpu-moe", "N", n_cpu_moe, 0, MAX_TOKENS, "compute the first N layers' experts on the CPU"), \
    INT(NULL, "active-experts", "N", active_experts, 1, MAX_TOKENS, \
        "routed experts per token (the model's number)"), \
    REAL(NULL, "expert-share", "P", expert_share, "the fewest experts with P of the weights (1: all)"), \
    REAL(NULL, "prefer-resident", "X", prefer_resident, "resident experts replace ones up to X better (0)"), \
    CHOICE("expert-io", "MODE", expert_io, EXPERT_IO, "read by: auto, mmap, pread, uring, direct (auto)"), \
    CHOICE("prefetch", "WHAT", prefetch, PREFETCH, "prefetch: auto, none, previous, router, both (auto)"), \
    CHOICE("kv-type", "TYPE", kv_type, KV_TYPE, "type of the KV cache: auto, f32, f16, q8_0 (auto)"), \
    CHOICE("prompt-type", "TYPE", prompt_type, NUMBER_TYPE, "arithmetic of prefill: auto, f32, f16 (auto)"), \
    CHOICE("cache-policy", "NAME", cache_policy, CACHE_POLICY, \
           "eviction: auto, lru, frequency, context (auto)"), \
    TEXT(NULL, "usage", "FILE", usage, "preload the most used experts; update FILE"), \
    TEXT(NULL, "pin", "FILE", pin, "pin the most used experts of a usage file"), \
    TEXT(NULL, "trace", "FILE", trace, "record the router's choices for inspect --trace"), \
    INT(NULL, "chunk", "N", chunk, 1, 1 << 20, "prompt tokens that are evaluated at once")

/* How much an answer thinks. */
#define THINKING_FLAGS \
    SWITCH(NULL, "think", think, "think first (default: the chat template's choice)"), \
    SWITCH(NULL, "no-think", no_think, "answer without thinking first"), \
    CHOICE("effort", "LEVEL", effort, EFFORT, "none, minimal, low, medium, high, xhigh"), \
    INT(NULL, "think-budget", "N", think_budget, 0, MAX_TOKENS, "end the thinking after N tokens")

/* How an answer is chosen. */
#define SAMPLER_REAL(f, name, flags, value, lo, hi, help) REAL(NULL, flags, value, sampling.f, help),
#define SAMPLER_WHOLE(f, name, flags, value, lo, hi, all, help) \
    U32(NULL, flags, value, sampling.f, lo, hi, help),
#define SAMPLING_FLAGS \
    INT("s", "seed", "N", seed, -1, MAX_SEED, "random seed, -1: another one each time (-1)"), \
    SAMPLER_FIELDS(SAMPLER_REAL, SAMPLER_WHOLE)

static const struct flag run_flags[] = {
    HEADING("Model:"),
    MODEL_FLAGS,
    SWITCH(NULL, "list-devices", list_devices, "list the devices, and end"),
    HEADING("Prompt: one of -p, -f, --tokens-in, or standard input:"),
    TEXT("p", "prompt", "TEXT", prompt, "the prompt"),
    TEXT("f", "file", "FILE", file, "read the prompt from a file, - for stdin"),
    TEXT(NULL, "tokens-in", "FILE", tokens_in, "read token ids instead of text, - for stdin"),
    TEXT(NULL, "system", "TEXT", system, "system prompt of the conversation"),
    TEXT(NULL, "prompt-cache", "FILE", prompt_cache, "reuse the state of a common prefix; update FILE"),
    TEXT(NULL, "prompt-cache-ro", "FILE", prompt_cache_ro, "like --prompt-cache, but leave FILE as it is"),
    TEXT_OF("state-format", "NAME", state_format, STATES, "format of --prompt-cache: v3, v2 (v3)"),
    TEXT(NULL, "resume", "NAME", resume, "continue a saved conversation (-p: one question)"),
    SWITCH(NULL, "raw", raw, "use the prompt as it is, without the chat template"),
    THINKING_FLAGS,
    SWITCH(NULL, "show-think", show_think, "print the thinking too"),
    HEADING("Answer:"),
    INT("n", "predict,n-predict", "N", predict, -1, MAX_TOKENS, "limit of generated tokens, -1: none (-1)"),
    SWITCH(NULL, "ignore-eos", ignore_eos, "do not stop at end-of-text tokens"),
    SAMPLING_FLAGS
    TEXTS("stop", "TEXT", stop, "end the answer before this text; repeatable"),
    TEXT(NULL, "tools", "FILE", tools, "JSON file of tools that the model may call"),
    INT(NULL, "logprobs", "N", logprobs, 0, LOGPROBS_MAX,
        "print log-probabilities and the N likeliest tokens"),
    TEXT(NULL, "json-schema", "FILE", json_schema, "answer in JSON that fits the schema (FILE or text)"),
    SWITCH(NULL, "json-object", json_object, "answer with a JSON object"),
    TEXT(NULL, "grammar", "FILE", grammar, "constrain the answer by a GBNF grammar"),
    HEADING("Many prompts:"),
    TEXT(NULL, "batch", "FILE", batch, "answer requests, one JSON per line, - for stdin"),
    TEXT("o", "output", "FILE", output, "append results; skip requests that have one"),
    SWITCH(NULL, "retry-failed", retry_failed, "with --output: repeat requests that failed"),
    SWITCH(NULL, "ordered", ordered, "write results in the order of the lines"),
    TEXT(NULL, "shard", "I/N", shard, "take every N-th line, beginning with line I"),
    INT(NULL, "parallel", "N", parallel, 1, 64, "answer N requests at the same time"),
    SWITCH(NULL, "replicate", replicate, "the whole model on each device"),
    HEADING("Output:"),
    CHOICE("color", "WHEN", color, COLOR, "format answers: auto, always, never (auto)"),
    SWITCH(NULL, "tokens-out", tokens_out, "print token ids instead of text"),
    SWITCH(NULL, "json", json, "print one JSON object"),
    SWITCH(NULL, "csv", csv, "print tables as CSV"),
    SWITCH(NULL, "stats", stats, "print speeds and times on stderr"),
    SAY_FLAGS,
    TEXT(NULL, "logits", "FILE", logits, "write the last logits (safetensors; -: text)"),
    SWITCH(NULL, "logits-all", logits_all, "with --logits: after every token of the prompt"),
    TEXT(NULL, "hidden", "FILE", hidden, "write the hidden states (safetensors)"),
    HEADING("Measure and check:"),
    SWITCH(NULL, "plan", plan, "print what goes where in memory, and end"),
    SWITCH(NULL, "bench", bench, "measure prefill and decode speed"),
    LIST(NULL, "bench-prompt", "N,..", bench_prompt, 0, MAX_LENGTH,
         "prompt lengths to measure, 0: none (512)"),
    LIST(NULL, "bench-gen", "N,..", bench_gen, 0, MAX_LENGTH,
         "generation lengths to measure, 0: none (64)"),
    LIST(NULL, "bench-depth", "N,..", bench_depth, 0, MAX_LENGTH, "tokens of context before each (0)"),
    INT(NULL, "bench-parallel", "N", bench_parallel, 1, BENCH_MAX_PARALLEL,
        "sequences that decode in one batch (1)"),
    INT(NULL, "bench-reps", "N", bench_reps, 1, 1000, "repetitions of each (5)"),
    TEXT(NULL, "perplexity", "FILE", perplexity, "measure the perplexity of a text, - for stdin"),
    TEXTS("compare", "SETTING", compare, "perplexity with other flags or model; repeatable"),
    SWITCH(NULL, "selftest", selftest, "check every operation; \"--selftest full\": all sizes"),
    {FLAG_OPERAND, NULL, NULL, "WORD", NULL, AT(word), 0, 1, NULL},
    SWITCH("h", "help", help, "print this help"),
    SWITCH("V", "version", version, "print the version"),
};

static const struct flag convert_flags[] = {
    OPERAND("SRC", src, "safetensors (MLX, bf16, f16, f32, fp8), or GGUF"),
    MAY_OPERAND("DST", dst, "directory to write; must not exist"),
    INT(NULL, "bits", "N", bits, 1, MAX_TOKENS, "bits per weight: 2, 3, 4, 5, 6, 8 (4, or as in SRC)"),
    INT(NULL, "group", "N", group, 1, MAX_TOKENS, "columns per scale: 32, 64, 128 (64)"),
    INT(NULL, "expert-bits", "N", expert_bits, 1, MAX_TOKENS, "bits of the routed experts (as --bits)"),
    INT(NULL, "expert-group", "N", expert_group, 1, MAX_TOKENS, "group of the routed experts (as --group)"),
    CHOICE("mode", "NAME", mode, QUANT_MODE, "MLX format: affine, mxfp4, mxfp8, nvfp4 (affine)"),
    CHOICE("expert-mode", "NAME", expert_mode, QUANT_MODE, "format of the routed experts (as --mode)"),
    CHOICE("recipe", "NAME", recipe, RECIPE, "mlx-lm's mixed_2_6, _3_4, _3_6, _4_6"),
    CHOICE("scales", "RULE", scales, SCALES, "minmax, search (search if a flag above is given)"),
    TEXT(NULL, "spread", "DIR,..", spread, "spread the experts over these directories too"),
    SWITCH(NULL, "half-scales", half_scales, "GGUF: round scales, so Q4_K takes 5 bits, not 6"),
    SWITCH(NULL, "lossy", lossy, "GGUF: accept types that change by more than 4 %"),
    SWITCH(NULL, "verify", verify, "check DST after writing; --verify DST: at any time"),
    INT("t", "threads", "N", threads, 1, 4096, "threads (all cores)"),
    SAY_FLAGS,
    SWITCH("h", "help", help, "print this help"),
};

static const struct flag inspect_flags[] = {
    /* The long name is for the configuration file. */
    {FLAG_OPERAND, NULL, "model", "MODEL", "directory or config.json; optional with the next two",
     AT(model), 0, 1, NULL},
    TEXT(NULL, "trace", "FILE", trace, "replay a run's trace with other cache sizes"),
    TEXT(NULL, "usage", "FILE", usage, "show how evenly the experts were used"),
    TEXT_OF("device", "NAME,..", device, DEVICES, "as for a run, like the flags below"),
    SHARES("tensor-split", "N,N,..", tensor_split, "each device's share of the layers"),
    TEXT_OF("cpu-isa", "NAME", cpu_isa, ISAS, "portable, avx2, avx512, amx, neon, dotprod (best)"),
    INT("c", "ctx-size", "N", ctx_size, 1, MAX_TOKENS, "context size to plan for (8192)"),
    BYTES(NULL, "memory", "SIZE", memory, "host memory for experts and checkpoints, e.g. 4G"),
    SIZES("gpu-memory", "SIZE,..", gpu_memory, "device memory to use on each GPU, e.g. 20G"),
    CHOICE("experts", "WHERE", experts, EXPERTS, "where routed experts are computed: gpu, cpu (gpu)"),
    INT(NULL, "n-cpu-moe", "N", n_cpu_moe, 0, MAX_TOKENS, "compute the first N layers' experts on the CPU"),
    INT(NULL, "active-experts", "N", active_experts, 1, MAX_TOKENS,
        "routed experts per token (the model's number)"),
    REAL(NULL, "expert-share", "P", expert_share, "the fewest experts with P of the weights (1: all)"),
    CHOICE("expert-io", "MODE", expert_io, EXPERT_IO, "read by: auto, mmap, pread, uring, direct (auto)"),
    INT("t", "threads", "N", threads, 1, 4096, "threads that compute and read (all cores)"),
    CHOICE("kv-type", "TYPE", kv_type, KV_TYPE, "type of the KV cache: auto, f32, f16, q8_0 (auto)"),
    CHOICE("prompt-type", "TYPE", prompt_type, NUMBER_TYPE, "arithmetic of prefill: auto, f32, f16 (auto)"),
    INT(NULL, "chunk", "N", chunk, 1, 1 << 20, "prompt tokens that are evaluated at once"),
    SWITCH(NULL, "no-measure", no_measure, "do not measure speeds"),
    SWITCH(NULL, "json", json, "print one JSON object"),
    SWITCH("h", "help", help, "print this help"),
};

static const struct flag completion_flags[] = {
    OPERAND("SHELL", shell, "bash, zsh or fish"),
    SWITCH("h", "help", help, "print this help"),
};

static const struct flag serve_flags[] = {
    HEADING("Server:"),
    TEXT(NULL, "host", "NAME", host, "address to listen on (127.0.0.1: this machine only)"),
    INT(NULL, "port", "N", port, 0, 65535, "port, 0: any free one (8080)"),
    TEXT(NULL, "api-key-file", "FILE", api_key_file, "keys, one per line, of which clients send one"),
    TEXT(NULL, "api-key", "KEY,..", api_key, "keys, of which clients send one (or MOEFLUX_API_KEY)"),
    TEXT(NULL, "cors", "ORIGIN", cors, "origin whose pages may use the API, *: any"),
    TEXT(NULL, "alias", "NAME", alias, "the model's name for clients (the directory's)"),
    INT(NULL, "parallel", "N", parallel, 1, 64, "answers at a time (1; 4 per device of several)"),
    SWITCH(NULL, "replicate", replicate, "the whole model on each device"),
    INT(NULL, "queue", "N", queue, 1, 4096, "requests that may wait (64)"),
    INT(NULL, "address-connections", "N", address_connections, 0, 256,
        "connections of one address, 0: all of 256 (128)"),
    INT(NULL, "grace", "SECONDS", grace, 0, 3600, "time for running answers at the end (10)"),
    INT(NULL, "sequences", "N", sequences, 1, 1024, "conversations kept in memory (4, or --parallel)"),
    BYTES(NULL, "state-memory", "SIZE", state_memory, "limit of the memory of idle conversations"),
    TEXT(NULL, "state-dir", "DIR", state_dir, "directory for conversations that leave memory"),
    BYTES(NULL, "state-disk", "SIZE", state_disk, "limit of the size of --state-dir (16G)"),
    INT(NULL, "state-files", "N", state_files, 1, 1000000, "limit of the files in --state-dir (1000)"),
    HEADING("Model:"),
    MODEL_FLAGS,
    SAY_FLAGS,
    HEADING("Defaults of requests:"),
    TEXT(NULL, "system", "TEXT", system, "system prompt of a conversation without one"),
    THINKING_FLAGS,
    INT("n", "predict,n-predict", "N", predict, -1, MAX_TOKENS,
        "limit of tokens of a chat answer, -1: none (-1)"),
    SAMPLING_FLAGS
    SWITCH("h", "help", help, "print this help"),
};
/* clang-format on */

#define COUNT(array) (sizeof(array) / sizeof *(array))

const struct defaults_command options_commands[OPTIONS_COMMANDS] = {
    {"run", "an answer, a conversation, many answers, measurements", run_flags, COUNT(run_flags)},
    {"convert", "a checkpoint to a model directory", convert_flags, COUNT(convert_flags)},
    {"inspect", "what a model is, needs and can reach here", inspect_flags, COUNT(inspect_flags)},
    {"serve", "OpenAI's API and a chat page", serve_flags, COUNT(serve_flags)},
    {"get", "a model of Hugging Face into its tools' cache", get_flags, GET_FLAGS},
};
const struct defaults_command options_completion = {"completion", "a shell's completion script",
                                                    completion_flags, COUNT(completion_flags)};

static void set_defaults(struct options *o)
{
    *o = (struct options){
        .log_level = EXIT_INFO,
        .predict = OPTIONS_NOT_GIVEN,
        .experts = OPTIONS_NOT_GIVEN,
        .n_cpu_moe = OPTIONS_NOT_GIVEN,
        .recipe = OPTIONS_NOT_GIVEN,
        .scales = OPTIONS_NOT_GIVEN,
        .mode = OPTIONS_NOT_GIVEN,
        .expert_mode = OPTIONS_NOT_GIVEN,
        .effort = OPTIONS_NOT_GIVEN,
        .think_budget = OPTIONS_NOT_GIVEN,
        .expert_share = 1,
        .seed = -1,
        .sampling = request_defaults().sampling,
        .host = "127.0.0.1",
        .port = 8080,
        .queue = 64,
        .address_connections = 128,
        .grace = 10,
        .state_disk = (uint64_t)16 << 30,
        .state_files = 1000,
        .connections = 8,
        .tries = 10,
        .logprobs = REQUEST_NO_LOGPROBS,
    };
}

/* Runs after the check that none of them was given without --bench. */
static void set_bench_defaults(struct options *o)
{
    if (!o->bench_prompt.n)
        o->bench_prompt = (struct number_list){1, {512}};
    if (!o->bench_gen.n)
        o->bench_gen = (struct number_list){1, {64}};
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
    bool both = o->experts != OPTIONS_NOT_GIVEN && o->n_cpu_moe != OPTIONS_NOT_GIVEN;
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
    bool has_effort = o->effort != OPTIONS_NOT_GIVEN, is_none = o->effort == CHAT_EFFORT_NONE - 1;
    int rc = refuse(o->think && o->no_think, "--think", "--no-think", e);
    if (!rc)
        rc = refuse(o->think && is_none, "--think", "--effort none", e);
    return rc ? rc : refuse(o->no_think && has_effort && !is_none, "--no-think", "--effort", e);
}

static int check_prompt(const struct options *o, struct moeflux_err *e)
{
    int rc = refuse(o->prompt && o->file, "-p", "-f", e);
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
        rc = refuse(o->replicate && (o->experts == 1 || o->n_cpu_moe > 0), "--replicate",
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
        rc = check_needs(o->bench_reps, "--bench-reps", o->bench, "--bench", e);
    if (!rc)
        rc = check_needs(o->bench_parallel, "--bench-parallel", o->bench, "--bench", e);
    set_bench_defaults(o);
    return rc;
}

/* Checks how tokens are sampled and where the answer stops. */
static int check_answer(const struct options *o, struct moeflux_err *e)
{
    struct sampler_options sampling = options_sampling(o, 0);
    for (uint32_t i = 0; i < o->stop.n; i++)
        if (!utf8_is_valid(o->stop.values[i], strlen(o->stop.values[i])))
            return err_set(e, ERR_USAGE, "--stop: expected UTF-8");
    return sampler_check(&sampling, e);
}

/* Whether the CPU is among the devices; all: whether it is the only one. */
static bool names_cpu(const char *device, bool all)
{
    uint32_t n = 0, n_cpu = 0;
    for (const char *at = device; at; n++) {
        size_t len = strcspn(at, ",");
        n_cpu += len == 3 && memcmp(at, "cpu", 3) == 0;
        at = at[len] ? at + len + 1 : NULL;
    }
    return n_cpu > 0 && (!all || n_cpu == n);
}

/* Whether --device, or its default, is the CPU alone. */
static bool takes_cpu(const char *device)
{
    struct moeflux_device all[2];
    struct moeflux_err ignored;
    if (device && strcmp(device, "auto") != 0)
        return names_cpu(device, true);
    /* The default device comes first. */
    return moeflux_list_devices(all, 2, &ignored) > 0 && strcmp(all[0].kind, "cpu") == 0;
}

_Static_assert((int)NUMBER_LIST_MAX == (int)MOEFLUX_MAX_DEVICES, "a list has an entry for each device");

static int check_device(const struct options *o, struct moeflux_err *e)
{
    if (o->selftest && o->device && (strchr(o->device, ',') || strcmp(o->device, "all") == 0))
        return err_set(e, ERR_USAGE, "--selftest checks one device, --device names several");
    if (!o->gpu_memory.n || !takes_cpu(o->device))
        return 0;
    return err_set(e, ERR_USAGE, "--gpu-memory goes with a GPU; here the CPU computes, and --memory counts");
}

/* Checks the flags that a model is opened with, in a run or in one setting of --compare. */
static int check_engine(const struct options *o, struct moeflux_err *e)
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

static int check_run(struct options *o, struct moeflux_err *e)
{
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
    struct sampler_options sampling = options_sampling(o, 0);
    int rc = need_model(o, e);
    if (!rc)
        rc = check_engine(o, e);
    if (!rc)
        rc = check_thinking(o, e);
    if (!rc)
        rc = sampler_check(&sampling, e);
    if (!rc)
        rc = secret_take(o, e);
    if (!rc)
        rc = refuse(o->replicate && o->state_dir, "--replicate", "--state-dir", e);
    if (!rc && o->sequences && o->sequences < o->parallel)
        rc = err_set(e, ERR_USAGE, "--sequences: expected at least the %lld of --parallel, found %lld",
                     (long long)o->parallel, (long long)o->sequences);
    return rc ? rc : check_copies(o, e);
}

/* --- the environment and the configuration file --- */

static bool is_one_of(size_t at, const size_t *fields, size_t n)
{
    while (n > 0 && fields[n - 1] != at)
        n--;
    return n > 0;
}

/* A configuration file may set what belongs to the machine, the model or taste. It may not set what one
 * call is about, nor what would silently change the result of a conversion. */
static bool may_set(const struct defaults_command *c, const struct flag *f)
{
    static const size_t settings[] = {AT(show_think), AT(stats),     AT(threads),
                                      AT(quiet),      AT(log_level), AT(color)};
    static const size_t others[] = {AT(help), AT(trace), AT(api_key)};
    if (c->flags == convert_flags || c->flags == inspect_flags)
        return (f->at == AT(model) || f->kind != FLAG_OPERAND) &&
               !(c->flags == inspect_flags && f->at == AT(usage)) && f->at != AT(json) &&
               f->at != AT(no_measure) && !is_one_of(f->at, others, COUNT(others)) &&
               (c->flags == inspect_flags || is_one_of(f->at, settings, COUNT(settings)));
    for (size_t i = 0; i < COUNT(serve_flags); i++)
        if (serve_flags[i].kind != FLAG_HEADING && serve_flags[i].at == f->at)
            return !is_one_of(f->at, others, COUNT(others));
    return is_one_of(f->at, settings, COUNT(settings));
}

/* Whether a flag with this field is on the command line. */
static bool has(const struct defaults_command *c, const bool *given, size_t at)
{
    for (size_t i = 0; i < c->n; i++)
        if (given[i] && c->flags[i].kind != FLAG_HEADING && c->flags[i].at == at)
            return true;
    return false;
}

/* A setting is not used if the command line has a flag that excludes it. */
static bool is_used(const struct defaults_command *c, const struct flag *f, const bool *given,
                    const void *into)
{
    static const struct {
        size_t at, excluded_by;
    } rivals[] = {
        {AT(think), AT(no_think)},    {AT(no_think), AT(think)},    {AT(no_think), AT(effort)},
        {AT(effort), AT(no_think)},   {AT(think), AT(effort)},      {AT(effort), AT(think)},
        {AT(experts), AT(n_cpu_moe)}, {AT(n_cpu_moe), AT(experts)}, {AT(system), AT(raw)},
        {AT(system), AT(tokens_in)},  {AT(system), AT(resume)},     {AT(predict), AT(logits)},
        {AT(usage), AT(compare)},     {AT(show_think), AT(batch)},  {AT(quiet), AT(log_level)},
        {AT(log_level), AT(quiet)},   {AT(cpu_isa), AT(device)},    {AT(tensor_split), AT(device)},
    };
    const struct options *o = into;
    for (size_t i = 0; i < COUNT(rivals); i++)
        if (rivals[i].at == f->at && has(c, given, rivals[i].excluded_by))
            return false;
    if (f->at == AT(gpu_memory) && has(c, given, AT(device)))
        return !takes_cpu(o->device);
    return c->flags != inspect_flags || f->at != AT(model) || !(o->trace || o->usage);
}

static bool is_used_default(const struct defaults *d, const struct flag *f)
{
    for (uint32_t i = 0; i < d->n_used; i++)
        if (d->used[i].flag == f)
            return true;
    return false;
}

/* Notes which settings of the sampler are the user's. */
static void note_given(struct options *o, const struct defaults_command *c, const bool *given)
{
    const size_t base = AT(sampling);
    for (size_t i = 0; i < c->n; i++)
        for (size_t k = 0; k < SAMPLER_N_FIELDS && c->flags[i].kind != FLAG_HEADING; k++)
            if (c->flags[i].at == base + sampler_fields[k].at &&
                (given[i] || is_used_default(&o->defaults, &c->flags[i])))
                o->given[k] = true;
}

static int take_defaults(struct options *o, const struct defaults_command *c, int argc, char **argv,
                         struct moeflux_err *e)
{
    static const struct defaults_rules rules = {options_commands, OPTIONS_COMMANDS, may_set, is_used};
    bool given[FLAGS_MAX];
    struct options *scratch = mem_new(1, sizeof *scratch, e);
    int rc = scratch ? flags_given(c->flags, c->n, argc, argv, given, e) : ERR_MEMORY;
    if (rc == 0)
        rc = defaults_apply(&o->defaults, &rules, c, given, o, scratch, e);
    if (rc == 0)
        note_given(o, c, given);
    free(scratch);
    if (o->quiet)
        o->log_level = EXIT_ERROR;
    return rc;
}

/* A single directory is only verified. */
static int check_convert(const struct options *o, struct moeflux_err *e)
{
    bool settings = o->lossy || o->half_scales || o->bits || o->group || o->expert_bits || o->expert_group ||
                    o->spread || o->recipe != OPTIONS_NOT_GIVEN || o->scales != OPTIONS_NOT_GIVEN ||
                    o->mode != OPTIONS_NOT_GIVEN || o->expert_mode != OPTIONS_NOT_GIVEN;
    if (o->dst)
        return 0;
    if (!o->verify)
        return err_set(e, ERR_USAGE, "DST is missing (--help shows the usage)");
    return settings
               ? err_set(e, ERR_USAGE, "--verify of a converted model takes no other flag than --threads")
               : 0;
}

static int check(struct options *o, struct moeflux_err *e)
{
    switch (o->verb) {
    case VERB_CONVERT:
        return check_convert(o, e);
    case VERB_SERVE:
        return check_serve(o, e);
    case VERB_INSPECT:
        return check_inspect(o, e);
    case VERB_GET:
        return get_flags_check(o, e);
    default:
        return check_run(o, e);
    }
}

/* Checks the word without a flag: it may only follow --selftest. is_first: it is the first argument. */
static int check_word(const struct options *o, bool is_first, struct moeflux_err *e)
{
    if (o->selftest)
        return strcmp(o->word, "full") == 0
                   ? 0
                   : err_set(e, ERR_USAGE, "--selftest: expected nothing or \"full\", found \"%s\"", o->word);
    return is_first ? which_model_refuse_word(o->word, e)
                    : err_set(e, ERR_USAGE, "unexpected argument \"%s\" (--help shows the usage)", o->word);
}

int options_parse(struct options *o, int argc, char **argv, struct moeflux_err *e)
{
    static const enum verb verbs[OPTIONS_COMMANDS] = {VERB_RUN, VERB_CONVERT, VERB_INSPECT, VERB_SERVE,
                                                      VERB_GET};
    size_t at = 0;
    set_defaults(o);
    if (foreign_command(&o->foreign, &argc, &argv, e))
        return ERR_USAGE;
    for (size_t i = 1; i < OPTIONS_COMMANDS && argc > 1; i++)
        if (strcmp(argv[1], options_commands[i].section) == 0)
            at = i;
    o->verb = verbs[at];
    argc -= at > 0;
    argv += at > 0;
    if (argc > 1 && strcmp(argv[1], "completion") == 0) {
        o->verb = VERB_COMPLETION;
        return flags_parse(completion_flags, COUNT(completion_flags), argc - 1, argv + 1, o, &o->help, e);
    }
    const struct defaults_command *c = &options_commands[at];
    int rc = foreign_translate(&o->foreign, c, options_commands, OPTIONS_COMMANDS, argc, argv, e);
    if (rc)
        return rc;
    o->help = o->foreign.help;
    if (o->help && at == 0)
        o->verb = VERB_HELP;
    if (o->help)
        return 0;
    argc = o->foreign.argc;
    argv = o->foreign.argv;
    rc = flags_parse(c->flags, c->n, argc, argv, o, &o->help, e);
    if (rc && at == 0 && argc > 1 && argv[1][0] && argv[1][0] != '-')
        return which_model_refuse_word(argv[1], e);
    if (rc)
        return rc;
    if (o->word && !o->help)
        rc = check_word(o, o->word == argv[1], e);
    if (rc)
        return rc;
    if (at == 0 && (o->help || o->version))
        o->verb = o->help ? VERB_HELP : VERB_VERSION;
    if (o->help || o->version)
        return 0;
    rc = take_defaults(o, c, argc, argv, e);
    if (rc)
        return rc;
    rc = check(o, e);
    if (rc == ERR_USAGE)
        defaults_explain(&o->defaults, e);
    return rc;
}

void options_free(struct options *o)
{
    defaults_free(&o->defaults);
    foreign_free(&o->foreign);
    free(o->secret_key);
    free(o->hub_path);
}

void options_explain(const struct options *o, struct moeflux_err *e)
{
    char place[300];
    struct moeflux_err first = *e;
    const char *from = o->model ? defaults_source(&o->defaults, AT(model), place, sizeof place) : NULL;
    if (from && strstr(first.text, o->model))
        err_set(e, first.code, "%s (the model is set by %s)", first.text, from);
}

/* Whether a setting of --compare may have the flag: those of the group "Model:", except the context, which
 * is the same for all, the list of devices and files that are written. */
static bool is_of_setting(const struct flag *f)
{
    const struct flag *end = run_flags + 1;
    while (end->kind != FLAG_HEADING)
        end++;
    return f < end && f->at != AT(list_devices) && f->at != AT(ctx_size) && f->at != AT(usage) &&
           f->at != AT(trace);
}

int options_setting(const struct options *base, int argc, char **argv, struct options *out,
                    struct moeflux_err *e)
{
    bool has_model = argc > 1 && argv[1][0] != '-';
    *out = *base;
    if (has_model)
        out->model = argv[1];
    int rc = flags_parse_part(run_flags, COUNT(run_flags), is_of_setting, argc - has_model, argv + has_model,
                              out, e);
    return rc ? rc : check_engine(out, e);
}

const char *options_model_name(const struct options *o)
{
    const char *slash = strrchr(o->model, '/');
    return o->alias ? o->alias : slash && slash[1] ? slash + 1 : o->model;
}

const char *options_cpu_isa(const struct options *o)
{
    const char *wish = getenv("MOEFLUX_CPU_ISA");
    if (o->cpu_isa)
        return o->cpu_isa;
    bool computes =
        o->experts == 1 || o->n_cpu_moe > 0 || takes_cpu(o->device) || names_cpu(o->device, false);
    return wish && *wish && computes ? wish : NULL;
}

void options_engine(const struct options *o, struct moeflux_options *out)
{
    out->dir = o->model;
    out->device = o->device;
    out->cpu_isa = options_cpu_isa(o);
    out->n_cpu_layers = o->experts == 1 ? UINT32_MAX : o->n_cpu_moe > 0 ? (uint32_t)o->n_cpu_moe : 0;
    out->active_experts = (uint32_t)o->active_experts;
    out->expert_share = o->expert_share;
    out->prefer_resident = o->prefer_resident;
    out->memory_bytes = o->memory;
    for (uint32_t i = 0; i < o->gpu_memory.n; i++)
        out->gpu_memory_each[i] = o->gpu_memory.values[i];
    out->n_gpu_memory = o->gpu_memory.n > 1 ? o->gpu_memory.n : 0;
    out->gpu_memory_bytes = o->gpu_memory.n == 1 ? o->gpu_memory.values[0] : 0;
    memcpy(out->tensor_split, o->tensor_split.values, sizeof out->tensor_split);
    out->n_tensor_split = o->tensor_split.n;
    out->expert_io = (enum moeflux_expert_io)o->expert_io;
    out->prefetch = (enum moeflux_prefetch)o->prefetch;
    out->cache_policy = (enum moeflux_cache_policy)o->cache_policy;
    out->kv_type = (enum moeflux_kv_type)o->kv_type;
    out->prompt_type = (enum moeflux_prompt_type)o->prompt_type;
    out->pin = o->pin;
    out->usage = o->usage;
    out->n_threads = (uint32_t)o->threads;
    out->chunk = (uint32_t)o->chunk;
    out->context = (uint32_t)o->ctx_size;
    out->profile = o->stats;
}

struct request_options options_request(const struct options *o)
{
    struct request_options r = {
        .prompt = o->prompt,
        .system = o->system,
        .raw = o->raw,
        .think = o->think,
        .no_think = o->no_think,
        .ignore_eos = o->ignore_eos,
        .predict = o->predict == OPTIONS_NOT_GIVEN ? OPTIONS_NO_LIMIT : o->predict,
        .seed = o->seed,
        .sampling = o->sampling,
        .n_stops = o->stop.n,
        .logprobs = o->logprobs,
    };
    memcpy(r.stops, o->stop.values, o->stop.n * sizeof *r.stops);
    r.limit_thinking = o->think_budget != OPTIONS_NOT_GIVEN;
    r.think_budget = r.limit_thinking ? (uint32_t)o->think_budget : 0;
    if (o->effort == OPTIONS_NOT_GIVEN)
        return r;
    r.effort = (enum chat_effort)(o->effort + 1);
    if (!r.think && !r.no_think) {
        r.think = r.effort != CHAT_EFFORT_NONE;
        r.no_think = !r.think;
        r.switching = REQUEST_SWITCH_LIMIT;
    }
    return r;
}

struct sampler_options options_sampling(const struct options *o, uint64_t seed)
{
    struct sampler_options sampling = o->sampling;
    sampling.seed = seed;
    return sampling;
}
