#include "cli/options/options.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "cli/exit.h"
#include "cli/options/check.h"
#include "cli/options/escapes.h"
#include "cli/options/flags.h"
#include "cli/options/foreign.h"
#include "cli/options/get_flags.h"
#include "cli/which_model.h"
#include "moeflux_chat.h"

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
#define PLACE(l, value, f, choices, help)     {FLAG_PLACE, NULL, l, value, help, AT(f), 0, 0, choices}
#define MAY_OPERAND(value, f, help)           {FLAG_OPERAND, NULL, NULL, value, help, AT(f), 0, 1, NULL}
#define OPERAND(value, f, help)               {FLAG_OPERAND, NULL, NULL, value, help, AT(f), 0, 0, NULL}

/* The order is that of the enums of moeflux.h. */
static const char EXPERT_IO[] = "auto, mmap, pread, uring or direct",
                  PREFETCH[] = "auto, none, previous, router or both",
                  CACHE_POLICY[] = "auto, lru, frequency or context", NUMBER_TYPE[] = "auto, f32 or f16",
                  KV_TYPE[] = "auto, f32, f16 or q8_0",
                  EFFORT[] = "none, minimal, low, medium, high, xhigh or max",
                  COLOR[] = "auto, always or never";
/* Values that completion offers: these flags take others too, or are checked elsewhere. */
static const char DEVICES[] = "auto, cpu or reference",
                  ISAS[] = "portable, avx2, avx512, amx, neon or dotprod",
                  STATES[] = "v2 or v3", EXPERTS[] = "gpu or cpu";
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
    PLACE("experts", "WHERE", experts, EXPERTS, "compute routed experts on: gpu, cpu, cpu:SHARE (gpu)"), \
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

/* How a chat becomes a prompt, and how much an answer thinks. */
#define CHAT_FLAGS \
    TEXT(NULL, "chat-template", "FILE", chat_template, "chat template (FILE or text) for the model's own"), \
    TEXT(NULL, "chat-template-kwargs", "JSON", chat_template_kwargs, "more variables of the chat template"), \
    SWITCH(NULL, "think", think, "think first (default: the chat template's choice)"), \
    SWITCH(NULL, "no-think", no_think, "answer without thinking first"), \
    CHOICE("effort", "LEVEL", effort, EFFORT, "none, minimal, low, medium, high, xhigh, max"), \
    INT(NULL, "think-budget", "N", think_budget, 0, MAX_TOKENS, "end the thinking after N tokens")

/* How an answer is chosen. */
#define SAMPLER_REAL_FLAG(f, name, flags, value, lo, hi, help) REAL(NULL, flags, value, sampling.f, help),
#define SAMPLER_WHOLE_FLAG(f, name, flags, value, lo, hi, all, help) \
    U32(NULL, flags, value, sampling.f, -1, hi, help),
#define SAMPLER_LIST_FLAG(f, name, flags, value, help) TEXTS(flags, value, dry_breakers, help),
#define SAMPLING_FLAGS \
    TEXT(NULL, "draft", "KIND", draft, "drafts: off, ngram, mtp[:PATH], file:PATH (auto)"), \
    INT(NULL, "draft-max", "N", draft_max, 1, MOEFLUX_MAX_DRAFT, "tokens drafted at once (7)"), \
    INT("s", "seed", "N", seed, -1, MAX_SEED, "random seed, -1: another one each time (-1)"), \
    MOEFLUX_SAMPLER_FIELDS(SAMPLER_REAL_FLAG, SAMPLER_WHOLE_FLAG, SAMPLER_LIST_FLAG)

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
    CHAT_FLAGS,
    SWITCH(NULL, "show-think", show_think, "print the thinking too"),
    HEADING("Answer:"),
    INT("n", "predict,n-predict", "N", predict, -1, MAX_TOKENS, "limit of generated tokens, -1: none (-1)"),
    SWITCH(NULL, "ignore-eos", ignore_eos, "do not stop at end-of-text tokens"),
    SAMPLING_FLAGS
    TEXTS("stop", "TEXT", stop, "end the answer before this text; repeatable"),
    TEXT(NULL, "tools", "FILE", tools, "JSON file of tools that the model may call"),
    INT(NULL, "logprobs", "N", logprobs, 0, MOEFLUX_MAX_LOGPROBS,
        "print log-probabilities and the N likeliest tokens"),
    TEXT(NULL, "json-schema", "FILE", json_schema, "answer in JSON that fits the schema (FILE or text)"),
    SWITCH(NULL, "json-object", json_object, "answer with a JSON object"),
    TEXT(NULL, "grammar", "FILE", grammar, "constrain the answer by a GBNF grammar"),
    HEADING("Many prompts:"),
    TEXT(NULL, "batch", "FILE", batch, "answer requests, one JSON per line, - for stdin"),
    TEXT("o", "output", "FILE", output, "append results; skip requests that have one"),
    SWITCH(NULL, "retry-failed", retry_failed, "with --output: repeat requests that failed"),
    SWITCH(NULL, "mix", mix, "accept an output with other settings' results"),
    SWITCH(NULL, "ordered", ordered, "write results in the order of the lines"),
    TEXT(NULL, "shard", "I/N", shard, "take every N-th line, beginning with line I"),
    INT(NULL, "parallel", "N", parallel, 1, MOEFLUX_MAX_PARALLEL, "answer N requests at the same time"),
    SWITCH(NULL, "replicate", replicate, "the whole model on each device"),
    HEADING("Output:"),
    CHOICE("color", "WHEN", color, COLOR, "format answers: auto, always, never (auto)"),
    SWITCH(NULL, "tokens-out", tokens_out, "print token ids instead of text"),
    SWITCH(NULL, "json", json, "print one JSON object"),
    SWITCH(NULL, "json-full", json_full, "likewise, with counters (also --json=full)"),
    SWITCH(NULL, "csv", csv, "print tables as CSV"),
    SWITCH(NULL, "stats", stats, "print speeds and times on stderr"),
    SWITCH(NULL, "no-speed", no_speed, "print no line about the speed of answers"),
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
         "generation lengths to measure, 0: none (128)"),
    LIST(NULL, "bench-depth", "N,..", bench_depth, 0, MAX_LENGTH, "tokens of context before each (0)"),
    INT(NULL, "bench-fill", "N", bench_fill, 256, MAX_LENGTH, "evaluated tokens of a depth, rest: copies"),
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
    MAY_OPERAND("SRC", src, "MLX, f32, f16, bf16, fp8, nvfp4, mxfp4, int4, GGUF"),
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
    TEXT(NULL, "mtp", "FILE", mtp, "GGUF: multi-token prediction is in this file"),
    SWITCH(NULL, "no-mtp", no_mtp, "leave the layer of multi-token prediction out"),
    SWITCH(NULL, "verify", verify, "check DST after writing; --verify DST: at any time"),
    INT("t", "threads", "N", threads, 1, 4096, "threads (all cores)"),
    SAY_FLAGS,
    SWITCH("h", "help", help, "print this help"),
};

static const struct flag inspect_flags[] = {
    /* The long name is for the configuration file. */
    {FLAG_OPERAND, NULL, "model", "MODEL", "a directory, GGUF file, ORG/NAME or config.json",
     AT(model), 0, 1, NULL},
    TEXT(NULL, "trace", "FILE", trace, "replay a run's trace with other cache sizes"),
    TEXT(NULL, "usage", "FILE", usage, "show how evenly the experts were used"),
    TEXT_OF("device", "NAME,..", device, DEVICES, "as for a run, like the flags below"),
    SHARES("tensor-split", "N,N,..", tensor_split, "each device's share of the layers"),
    TEXT_OF("cpu-isa", "NAME", cpu_isa, ISAS, "portable, avx2, avx512, amx, neon, dotprod (best)"),
    INT("c", "ctx-size", "N", ctx_size, 1, MAX_TOKENS, "context size to plan for (8192)"),
    BYTES(NULL, "memory", "SIZE", memory, "host memory for experts and checkpoints, e.g. 4G"),
    SIZES("gpu-memory", "SIZE,..", gpu_memory, "device memory to use on each GPU, e.g. 20G"),
    PLACE("experts", "WHERE", experts, EXPERTS, "compute routed experts on: gpu, cpu, cpu:SHARE (gpu)"),
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

static const struct flag doctor_flags[] = {
    TEXT("m", "model", "DIR", model, "a model to plan for, whose disk is measured"),
    TEXT_OF("device", "NAME,..", device, DEVICES, "devices to report (as a run would choose)"),
    TEXT_OF("cpu-isa", "NAME", cpu_isa, ISAS, "portable, avx2, avx512, amx, neon, dotprod (best)"),
    INT("c", "ctx-size", "N", ctx_size, 1, MAX_TOKENS, "context size to plan for (8192)"),
    BYTES(NULL, "memory", "SIZE", memory, "host memory for experts and checkpoints, e.g. 4G"),
    SIZES("gpu-memory", "SIZE,..", gpu_memory, "device memory to use on each GPU, e.g. 20G"),
    INT("t", "threads", "N", threads, 1, 4096, "threads that compute and read (all cores)"),
    SWITCH(NULL, "no-selftest", no_selftest, "do not check the operations"),
    SWITCH(NULL, "no-measure", no_measure, "do not measure speeds"),
    SWITCH(NULL, "json", json, "print one JSON object"),
    SWITCH("h", "help", help, "print this help"),
};

static const struct flag completion_flags[] = {
    {FLAG_OPERAND, NULL, NULL, "SHELL", "bash, zsh or fish", AT(shell), 0, 0, "bash, zsh or fish"},
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
    INT(NULL, "parallel", "N", parallel, 1, MOEFLUX_MAX_PARALLEL,
        "answers at a time (1; 4 per device of several)"),
    SWITCH(NULL, "replicate", replicate, "the whole model on each device"),
    INT(NULL, "queue", "N", queue, 1, 4096, "requests that may wait (64)"),
    INT(NULL, "address-connections", "N", address_connections, 0, 384,
        "connections of one address, 0: all (128; 64 more than --parallel)"),
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
    CHAT_FLAGS,
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
    {"doctor", "a page about this machine for a bug report", doctor_flags, COUNT(doctor_flags)},
};
const struct defaults_command options_completion = {"completion", "a shell's completion script",
                                                    completion_flags, COUNT(completion_flags)};

void options_defaults(struct options *o)
{
    *o = (struct options){
        .log_level = EXIT_INFO,
        .predict = OPTIONS_NOT_GIVEN,
        .n_cpu_moe = OPTIONS_NOT_GIVEN,
        .recipe = OPTIONS_NOT_GIVEN,
        .scales = OPTIONS_NOT_GIVEN,
        .mode = OPTIONS_NOT_GIVEN,
        .expert_mode = OPTIONS_NOT_GIVEN,
        .effort = OPTIONS_NOT_GIVEN,
        .think_budget = OPTIONS_NOT_GIVEN,
        .expert_share = 1,
        .seed = -1,
        .sampling = moeflux_request_sampler_defaults(),
        .host = "127.0.0.1",
        .port = 8080,
        .queue = 64,
        .address_connections = OPTIONS_NOT_GIVEN,
        .grace = 10,
        .state_disk = (uint64_t)16 << 30,
        .state_files = 1000,
        .connections = 8,
        .tries = 10,
        .logprobs = OPTIONS_NO_LOGPROBS,
    };
    struct texts *t = &o->dry_breakers;
    t->n = o->sampling.n_dry_sequence_breakers;
    memcpy(t->values, o->sampling.dry_sequence_breakers, t->n * sizeof *t->values);
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
    static const size_t settings[] = {AT(show_think), AT(stats),     AT(no_speed), AT(threads),
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

/* A setting is not used if the command line has a flag that excludes it, or lacks the one it goes with. */
static bool is_used(const struct defaults_command *c, const struct flag *f, const bool *given,
                    const void *into)
{
    static const struct {
        size_t at, excluded_by;
    } rivals[] = {
        {AT(think), AT(no_think)},
        {AT(no_think), AT(think)},
        {AT(no_think), AT(effort)},
        {AT(effort), AT(no_think)},
        {AT(think), AT(effort)},
        {AT(effort), AT(think)},
        {AT(experts), AT(n_cpu_moe)},
        {AT(n_cpu_moe), AT(experts)},
        {AT(system), AT(raw)},
        {AT(think), AT(raw)},
        {AT(effort), AT(raw)},
        {AT(predict), AT(bench)},
        {AT(chat_template), AT(raw)},
        {AT(chat_template), AT(tokens_in)},
        {AT(chat_template_kwargs), AT(raw)},
        {AT(chat_template_kwargs), AT(tokens_in)},
        {AT(system), AT(tokens_in)},
        {AT(system), AT(resume)},
        {AT(predict), AT(logits)},
        {AT(usage), AT(compare)},
        {AT(show_think), AT(batch)},
        {AT(quiet), AT(log_level)},
        {AT(log_level), AT(quiet)},
        {AT(cpu_isa), AT(device)},
        {AT(tensor_split), AT(device)},
    };
    const struct options *o = into;
    for (size_t i = 0; i < COUNT(rivals); i++)
        if (rivals[i].at == f->at && has(c, given, rivals[i].excluded_by))
            return false;
    if ((f->at == AT(parallel) || f->at == AT(replicate)) && c->flags == run_flags &&
        !has(c, given, AT(batch)))
        return false;
    if (f->at == AT(gpu_memory) && has(c, given, AT(device)))
        return !check_takes_cpu(o->device);
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
    for (size_t i = 0; i < c->n; i++) {
        const struct moeflux_sampler_field *f = options_sampler_field(&c->flags[i]);
        if (f && (given[i] || is_used_default(&o->defaults, &c->flags[i])))
            o->given[f - moeflux_sampler_fields()] = true;
    }
}

/* Replaces the escape sequences of the texts, as llama.cpp does. */
static int unescape_breakers(struct options *o, struct moeflux_err *e)
{
    struct texts *t = &o->dry_breakers;
    size_t bytes = 0, at = 0;
    for (uint32_t i = 0; i < t->n; i++)
        bytes += strlen(t->values[i]) + 1;
    if (!(o->breakers = mem_new(bytes, 1, e)))
        return ERR_MEMORY;
    for (uint32_t i = 0; i < t->n; i++) {
        size_t n = strlen(t->values[i]) + 1;
        memcpy(o->breakers + at, t->values[i], n);
        escapes_replace(o->breakers + at);
        t->values[i] = o->breakers + at;
        at += n;
    }
    return 0;
}

/* "none" stands for no texts; what comes after it is added to none. */
static int take_breakers(struct options *o, struct moeflux_err *e)
{
    struct texts *t = &o->dry_breakers;
    uint32_t first = t->n;
    while (first > 0 && strcmp(t->values[first - 1], "none") != 0)
        first--;
    memmove(t->values, t->values + first, (t->n - first) * sizeof *t->values);
    t->n -= first;
    return unescape_breakers(o, e);
}

void options_take_all(struct options *o)
{
    for (size_t i = 0; i < MOEFLUX_N_SAMPLER_FIELDS; i++) {
        const struct moeflux_sampler_field *f = &moeflux_sampler_fields()[i];
        uint32_t *value = (uint32_t *)((char *)&o->sampling + f->at);
        if (f->kind == MOEFLUX_SAMPLER_WHOLE && *value == UINT32_MAX)
            *value = f->all;
    }
}

/* Refuses flags of the command line that bound a directory which nothing names. A setting of the file may
 * stand there for other calls. */
static int check_bounds(const struct options *o, const struct defaults_command *c, const bool *given,
                        struct moeflux_err *e)
{
    bool disk = has(c, given, AT(state_disk)), files = has(c, given, AT(state_files));
    return (disk || files) && !o->state_dir ? err_set(e, ERR_USAGE, "%s goes with --state-dir only",
                                                      disk ? "--state-disk" : "--state-files")
                                            : 0;
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
    if (rc == 0)
        rc = take_breakers(o, e);
    if (rc == 0)
        rc = check_bounds(o, c, given, e);
    options_take_all(o);
    free(scratch);
    if (o->quiet)
        o->log_level = EXIT_ERROR;
    return rc;
}

/* Returns fresh memory: the last part of a path without slashes at its end. NULL: the path has none, or no
 * memory. */
static char *last_part(const char *path)
{
    size_t end = strlen(path);
    while (end > 0 && path[end - 1] == '/')
        end--;
    size_t at = end;
    while (at > 0 && path[at - 1] != '/')
        at--;
    bool is_dots = strncmp(path + at, "..", end - at) == 0 && end - at <= 2;
    char *name = is_dots ? NULL : mem_text(path + at, NULL);
    if (name)
        name[end - at] = '\0';
    return name;
}

/* Completion writes "tiny/", and "." has its name elsewhere. */
static int name_model(struct options *o, struct moeflux_err *e)
{
    char *name = last_part(o->model), *real = name ? NULL : realpath(o->model, NULL);
    if (!name)
        name = last_part(real ? real : "");
    o->model_name = name ? name : mem_text(o->model, e);
    free(real);
    return o->model_name ? 0 : ERR_MEMORY;
}

/* Checks the word without a flag: it may only follow --selftest. is_first: it is the first argument. */
static int check_word(const struct options *o, bool is_first, struct moeflux_err *e)
{
    if (o->selftest)
        return strcmp(o->word, "full") == 0
                   ? 0
                   : err_set(e, ERR_USAGE, "--selftest: expected nothing or \"full\", found \"%s\"", o->word);
    return which_model_refuse_word(o->word, is_first, e);
}

int options_parse(struct options *o, int argc, char **argv, struct moeflux_err *e)
{
    static const enum verb verbs[OPTIONS_COMMANDS] = {VERB_RUN,   VERB_CONVERT, VERB_INSPECT,
                                                      VERB_SERVE, VERB_GET,     VERB_DOCTOR};
    size_t at = 0;
    options_defaults(o);
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
        o->help = o->foreign.help;
        if (o->help)
            return 0;
        return flags_parse(completion_flags, COUNT(completion_flags), argc - 1, argv + 1, o, &o->help, e);
    }
    const struct defaults_command *c = o->command = &options_commands[at];
    if (o->foreign.help && at == 0 && argc > 1 && !foreign_has_help(argv[1]))
        return err_set(e, ERR_USAGE, "help: there is no command \"%s\"", argv[1]);
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
    bool takes_m = at == 0 || o->verb == VERB_SERVE || o->verb == VERB_DOCTOR;
    if (rc && takes_m && argc > 1 && argv[1][0] && argv[1][0] != '-')
        return which_model_refuse_word(argv[1], true, e);
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
    rc = check_options(o, e);
    if (!rc && o->model)
        rc = name_model(o, e);
    return rc;
}

void options_free(struct options *o)
{
    defaults_free(&o->defaults);
    foreign_free(&o->foreign);
    free(o->breakers);
    free(o->secret_key);
    free(o->hub_path);
    free(o->model_name);
}

int options_take_model(struct options *o, struct moeflux_err *e)
{
    bool samples = o->verb == VERB_RUN || o->verb == VERB_BATCH || o->verb == VERB_SERVE;
    struct moeflux_err why;
    size_t failed = 0;
    if (!samples || !o->model)
        return 0;
    int rc = moeflux_sampler_take_model(&o->sampling, o->given, o->model, &failed, &why);
    if (!rc)
        return 0;
    const char *flags = moeflux_sampler_fields()[failed].flags;
    return err_set(e, rc, "%.400s; --%.*s replaces it", why.text, (int)strcspn(flags, ","), flags);
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
    return o->alias ? o->alias : o->model_name;
}

const char *options_cpu_isa(const struct options *o)
{
    const char *wish = getenv("MOEFLUX_CPU_ISA");
    if (o->cpu_isa)
        return o->cpu_isa;
    bool computes = o->experts.is_cpu || o->n_cpu_moe > 0 || check_takes_cpu(o->device) ||
                    check_names_cpu(o->device, false);
    return wish && *wish && computes ? wish : NULL;
}

/* Returns moeflux_options.n_parallel. */
static uint32_t n_parallel(const struct options *o)
{
    return (uint32_t)(o->parallel > o->bench_parallel ? o->parallel : o->bench_parallel);
}

void options_engine(const struct options *o, struct moeflux_options *out)
{
    out->dir = o->model;
    out->device = o->device;
    out->cpu_isa = options_cpu_isa(o);
    bool is_whole = o->experts.is_cpu && !(o->experts.share > 0);
    out->n_cpu_layers = is_whole ? UINT32_MAX : o->n_cpu_moe > 0 ? (uint32_t)o->n_cpu_moe : 0;
    out->cpu_share = o->experts.share;
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
    out->n_parallel = n_parallel(o);
    out->context = (uint32_t)o->ctx_size;
    moeflux_options_use_draft(out, "--draft", o->draft, NULL); /* check.c has checked it */
    out->drafter_auto = out->drafter_auto && !o->bench && !o->perplexity;
    out->profile = o->stats;
}

const struct moeflux_sampler_field *options_sampler_field(const struct flag *f)
{
    const struct moeflux_sampler_field *all = moeflux_sampler_fields();
    for (size_t i = 0; f->kind != FLAG_HEADING && f->longs && i < MOEFLUX_N_SAMPLER_FIELDS; i++)
        if (strcmp(f->longs, all[i].flags) == 0)
            return &all[i];
    return NULL;
}

struct moeflux_sampler_options options_sampling(const struct options *o)
{
    struct moeflux_sampler_options sampling = o->sampling;
    sampling.dry_sequence_breakers = o->dry_breakers.values;
    sampling.n_dry_sequence_breakers = o->dry_breakers.n;
    return sampling;
}

/* Begins an error that begins with an option's name with its flag instead. */
static void name_flag(struct moeflux_err *e)
{
    for (size_t i = 0; i < MOEFLUX_N_SAMPLER_FIELDS; i++) {
        const struct moeflux_sampler_field *f = &moeflux_sampler_fields()[i];
        size_t n = strlen(f->name);
        if (strncmp(e->text, f->name, n) != 0 || !strchr(" :", e->text[n]))
            continue;
        struct moeflux_err old = *e;
        err_set(e, old.code, "--%.*s%s", (int)strcspn(f->flags, ","), f->flags, old.text + n);
        return;
    }
}

int options_check_sampling(const struct options *o, struct moeflux_err *e)
{
    const struct moeflux_sampler_options sampling = options_sampling(o);
    int rc = moeflux_sampler_check(&sampling, e);
    if (rc)
        name_flag(e);
    for (size_t i = 0; !rc && i < MOEFLUX_N_SAMPLER_FIELDS; i++) {
        const struct moeflux_sampler_field *f = &moeflux_sampler_fields()[i];
        double x = moeflux_sampler_get(&sampling, f);
        if (f->kind == MOEFLUX_SAMPLER_REAL && !(x >= f->lo && x <= f->hi))
            rc = err_set(e, ERR_USAGE, "--%.*s: expected a number from %g to %g, found %g",
                         (int)strcspn(f->flags, ","), f->flags, f->lo, f->hi, x);
    }
    return rc;
}
