/* foreign_flags.c - the flags of llama.cpp, mlx-lm and Ollama, and what they are here. */
#include "cli/options/foreign.h"

/* clang-format off */
#define ALIAS(names, value, flag) {FOREIGN_ALIAS, names, value, flag}
#define WORD(names, value, word)  {FOREIGN_WORD, names, value, word}
#define ALWAYS(names, value, why) {FOREIGN_ALWAYS, names, value, why}
#define NONE(names, instead)      {FOREIGN_NONE, names, NULL, instead}
/* The flag has other values, which mean something here. */
#define NOT(names, value, instead) {FOREIGN_NONE, names, value, instead}
/* clang-format on */

static const char DOWNLOAD[] = "\"moeflux get USER/MODEL\" fetches a model, then -m USER/MODEL",
                  DRAFT[] = "there are no draft models; --draft ngram needs none, and --draft mtp:FILE reads "
                            "a layer of multi-token prediction",
                  VISION[] = "images and sound are not read: the vision part of a model is left out",
                  ROPE[] = "the model's config.json sets it",
                  POOLING[] = "there are no embeddings and no reranking (--hidden writes hidden states)",
                  AFFINITY[] = "use taskset(1) or numactl(8)",
                  ONE_MODEL[] = "a server has one model: start one for each",
                  SAMPLER[] = "there is no such sampler; man moeflux-sampling lists those that there are",
                  ORDER[] = "the order of the samplers is fixed: man moeflux-sampling has it",
                  MIROSTAT[] =
                      "there is no mirostat; --top-n-sigma, --min-p or --typical-p also take few tokens "
                      "where the model is sure",
                  CORS[] = "--cors ORIGIN allows what pages need",
                  ENDPOINT[] = "the server has no such endpoint (man moeflux-server lists them)",
                  TLS[] = "put a proxy such as nginx or Caddy in front of the server",
                  LORA[] = "there are no adapters and no control vectors: merge them into the model",
                  CONVERSATION[] = "-p gives one answer; without a prompt a terminal gets a conversation",
                  AGENT[] = "the server runs no tools: clients send theirs with a request",
                  PROGRAM[] = "it belongs to another program of llama.cpp, which has no counterpart here",
                  TENSORS[] = "tensors cannot be placed one by one: --experts cpu or --n-cpu-moe N",
                  KV_TYPES[] = "keys and values have the type f32, f16 or q8_0 (--kv-type)",
                  SPLIT[] = "layers are split, not rows or tensors: leave it out",
                  MEMORY[] = "--memory SIZE and --gpu-memory SIZE bound what is used; --plan shows it",
                  MESSAGES[] =
                      "--log-level LEVEL says which messages are printed, and 2>FILE writes them to a file";

/* clang-format off */
const struct foreign_flag foreign_flags[] = {
    /* Models */
    NOT("-hf,-hfr,--hf-repo", "*:*",
        "a name has no :QUANT here: \"moeflux get USER/MODEL --include GLOB\", then -m USER/MODEL"),
    ALIAS("-hf,-hfr,--hf-repo", "*", "--model"),
    NONE("-hff,--hf-file,-hft,--hf-token,-mu,--model-url,-dr,--docker-repo", DOWNLOAD),
    NONE("-cl,--cache-list", "\"hf cache ls\" lists what is downloaded"),
    ALWAYS("--offline", NULL, "only moeflux get downloads"),
    NONE("--check-tensors", "\"moeflux convert --verify DIR\" checks a converted model"),
    NONE("--override-kv,--rope-*,--yarn-*,-gan,--grp-attn-n,-gaw,--grp-attn-w", ROPE),
    NONE("--lora*,--control-vector*", LORA),
    NONE("-mm,--mmproj*,-mmu,--image*,--audio,--video*,--mtmd-*", VISION),
    ALWAYS("--no-mmproj,--no-mmproj-auto,--no-mmproj-offload", NULL, "vision parts are left out"),
    NONE("-md,--model-draft,--spec-*,--no-spec-*,-hfd,-hfrd,--hf-repo-draft,-td,-tbd,"
         "--threads-*draft,-Cd,-Crd,-Cbd,-Crbd,"

                 "--cpu-*-draft,--prio-*draft,--poll-*draft,-ctkd,-ctvd,--cache-type-?-draft,-otd,"
         "--override-tensor-draft,-cmoed,"

                 "-ncmoed,--n-cpu-moe-draft,--draft*,-devd,--device-draft,-ngld,--gpu-layers-draft,"
         "--n-gpu-layers-draft,--dflash,--eagle3,-lcs,--lookup-cache-static,-lcd,"
         "--lookup-cache-dynamic", DRAFT),
    NONE("--mtp", "--draft mtp proposes tokens with the layer of multi-token prediction"),
    NONE("--embd-gemma-default,--fim-*,--gpt-oss-*-default,--vision-gemma-*", DOWNLOAD),

    /* Context and speed */
    ALWAYS("-fa,--flash-attn", "on|auto|1|true", "attention is always fused"),
    NOT("-fa,--flash-attn", "off|0|false", "attention is always fused: leave it out"),
    ALWAYS("-fa,--flash-attn", NULL, "attention is always fused"),
    ALIAS("-ctk,--cache-type-k,-ctv,--cache-type-v", "f32|f16|q8_0", "--kv-type"),
    NOT("-ctk,--cache-type-k,-ctv,--cache-type-v", "*", KV_TYPES),
    ALIAS("-b,--batch-size", "*", "--chunk"),
    ALWAYS("-ub,--ubatch-size", "*", "prompts are evaluated in chunks of one size (-b or --chunk)"),
    NONE("-tb,--threads-batch", "prompts use the threads of -t"),
    NONE("--keep,--context-shift", "a full context ends the answer: make it larger with -c"),
    ALWAYS("--no-context-shift", NULL, "a full context ends the answer"),
    ALWAYS("--no-warmup", NULL, "an answer has no warm-up run"),
    NONE("--warmup", "an answer has no warm-up run"),
    NONE("--poll,--poll-batch,--prio,--prio-batch", "use nice(1) or chrt(1)"),
    NONE("-C,--cpu-mask,-Cr,--cpu-range,--cpu-strict,-Cb,--cpu-mask-batch,-Crb,"
         "--cpu-range-batch,--cpu-strict-batch,--numa",
         AFFINITY),
    WORD("--perf,--show-timings", NULL, "--stats"),
    ALWAYS("--no-perf,--no-show-timings", NULL, "speeds are printed with --stats only"),
    NONE("--swa-full", "a layer with a window keeps its window only"),
    NONE("-kvu,--kv-unified,-no-kvu,--no-kv-unified,--kv-unified-per-slot",
         "each conversation has a KV cache of its own"),
    ALWAYS("-kvo,--kv-offload", NULL, "the KV cache is on the device that computes the layer"),
    NONE("-nkvo,--no-kv-offload",
         "the KV cache is on the device that computes the layer: --device cpu computes all"),
    NONE("-dt,--defrag-thold", "the KV cache needs no defragmentation"),

    /* Where the model is */
    WORD("-ngl,--gpu-layers,--n-gpu-layers", "0", "--device=cpu"),
    ALWAYS("-ngl,--gpu-layers,--n-gpu-layers", "auto|all|-1|[1-9]*",
         "a GPU, if there is one, computes all layers; what does not fit in its memory is streamed "
         "(--gpu-memory SIZE)"),
    WORD("-cmoe,--cpu-moe", NULL, "--experts=cpu"),
    ALIAS("-ncmoe", "*", "--n-cpu-moe"),
    NONE("-ncffn,--n-cpu-ffn", TENSORS),
    WORD("-ot,--override-tensor",
         "exps=CPU|?ffn_?[*]_exps?=CPU|??ffn_?[*]_exps?[.]=CPU|?[*]exps?[*]=CPU",
         "--experts=cpu"),
    NONE("-ot,--override-tensor", TENSORS),
    WORD("-dev", "none", "--device=cpu"),
    ALIAS("-dev", "*", "--device"),
    ALIAS("-ts", "*", "--tensor-split"),
    ALWAYS("-sm,--split-mode", "layer", "several devices share the layers"),
    NOT("-sm,--split-mode", "none", "--device N takes one device"),
    NOT("-sm,--split-mode", "*", SPLIT),
    NONE("-mg,--main-gpu", "--device N takes one device"),
    NONE("--rpc", "other machines do not compute"),
    ALWAYS("-fit,--fit", "on", "memory is always planned to fit (--plan)"),
    NOT("-fit,--fit", "*", MEMORY),
    NONE("-fitp,--fit-print,-fitt,--fit-target,-fitc,--fit-ctx", MEMORY),
    NONE("--mlock", MEMORY),
    WORD("--mmap", NULL, "--expert-io=mmap"),
    WORD("--no-mmap", NULL, "--expert-io=pread"),
    WORD("-lm,--load-mode", "mmap", "--expert-io=mmap"),
    WORD("-lm,--load-mode", "none", "--expert-io=pread"),
    WORD("-lm,--load-mode", "dio", "--expert-io=direct"),
    NOT("-lm,--load-mode", "*",
         "--expert-io MODE says how experts are read: mmap, pread, uring or direct"),
    NONE("-lzm,--lazy-mode",
         "--expert-io MODE says how experts are read: mmap, pread, uring or direct"),
    NONE("--repack,-nr,--no-repack,--no-host,--op-offload,--no-op-offload",
         "it has no counterpart: leave it out"),

    /* Prompt and conversation */
    ALIAS("-sys,--system-prompt", "*", "--system"),
    NONE("-sysf,--system-prompt-file", "--system \"$(cat FILE)\""),
    ALWAYS("-st,--single-turn", NULL, CONVERSATION),
    ALWAYS("-cnv,--conversation,-i,--interactive", NULL, CONVERSATION),
    WORD("-no-cnv,--no-conversation", NULL, "--raw"),
    NONE("-if,--interactive-first,--in-prefix*,--in-suffix",
         "chat templates do that: a conversation begins without -p"),
    NONE("-e,--escape", "the shell's $'...' has escapes: -p $'two\\nlines'"),
    ALWAYS("--no-escape", NULL, "prompts are taken as they are"),
    ALWAYS("--no-display-prompt", NULL, "the prompt is not printed"),
    NONE("--display-prompt,--verbose-prompt,-sp,--special,-ptc,--print-token-count",
         "--tokens-out and --stats show tokens"),
    NONE("-bf,--binary-file", "use -f FILE"),
    ALWAYS("-mli,--multiline-input", NULL, "paste several lines, or end a line with \\"),
    ALWAYS("--simple-io", NULL, "a terminal with TERM=dumb gets plain text"),
    WORD("-co", "on|1", "--color=always"),
    WORD("-co", "off|0", "--color=never"),
    WORD("-co", "auto", "--color=auto"),
    WORD("-co", NULL, "--color=always"),
    NONE("--prompt-cache-all", "--prompt-cache keeps the prompt"),
    ALIAS("-r,--reverse-prompt", "*", "--stop"),
    ALWAYS("--jinja", NULL, "the model's chat template is always run"),
    NONE("--no-jinja", "--raw takes the prompt without the chat template"),
    ALIAS("--chat-template-file", "*", "--chat-template"),
    NONE("--skip-chat-parsing,--prefill-assistant,--no-prefill-assistant",
         "it has no counterpart: leave it out"),
    ALWAYS("--no-skip-chat-parsing", NULL, "answers are always parsed"),
    WORD("-rea,--reasoning", "on", "--think"),
    WORD("-rea,--reasoning", "off", "--no-think"),
    ALWAYS("-rea,--reasoning", "auto", "the chat template decides"),
    WORD("--reasoning-budget", "0", "--no-think"),
    ALWAYS("--reasoning-budget", "-1", "thinking is not limited"),
    ALIAS("--reasoning-budget", "*", "--think-budget"),
    ALWAYS("--reasoning-effort", "default", "the chat template decides"),
    ALIAS("--reasoning-effort", "*", "--effort"),
    NONE("--reasoning-budget-message,--reasoning-preserve,--no-reasoning-preserve",
         "--think, --no-think, --effort and --think-budget say how much the model thinks"),
    WORD("--reasoning-format", "none", "--show-think"),
    ALWAYS("--reasoning-format", "auto|deepseek|deepseek-legacy",
         "thinking is always told apart from the answer"),
    WORD("--log-disable", NULL, "--quiet"),
    ALWAYS("-v,--verbose,--log-verbose", NULL, "messages are printed already (--stats prints more)"),
    WORD("-lv,--verbosity,--log-verbosity", "0|1", "--log-level=error"),
    WORD("-lv,--verbosity,--log-verbosity", "2", "--log-level=warn"),
    WORD("-lv,--verbosity,--log-verbosity", "[3-9]", "--log-level=info"),
    NOT("-lv,--verbosity,--log-verbosity", "*", MESSAGES),
    NONE("--log-*,--no-log-*", MESSAGES),
    NONE("--context-file,--chunk-size,--chunk-separator", PROGRAM),

    /* Sampling */
    NONE("--samplers,--sampler-seq,--sampling-seq", ORDER),
    ALWAYS("-bs,--backend-sampling", NULL, "a GPU that can sample does"),
    ALIAS("--dry-sequence-breaker", "*", "--dry-sequence-breakers"),
    NONE("--adaptive-*,--dynatemp-*", SAMPLER),
    NONE("--mirostat*", MIROSTAT),
    NONE("-l,--logit-bias", "requests of --batch and of the server have logit_bias"),
    ALIAS("--grammar-file", "*", "--grammar"),
    ALIAS("-j", "*", "--json-schema"),
    ALIAS("-jf,--json-schema-file", "*", "--json-schema"),

    /* Server */
    ALIAS("-np", "*", "--parallel"),
    ALIAS("-a", "*", "--alias"),
    NONE("--tags", "/v1/models has the name (--alias)"),
    ALWAYS("-cb,--cont-batching", NULL, "answers are always decoded in batches"),
    NONE("-nocb,--no-cont-batching",
         "answers are decoded in batches, with the same result: --parallel 1 has one at a time"),
    ALIAS("--cors-origins", "*", "--cors"),
    ALWAYS("--cors-methods,--cors-headers", "*", CORS),
    NONE("--cors-credentials,--no-cors-credentials", CORS),
    ALIAS("--slot-save-path", "*", "--state-dir"),
    NONE("-cram,--cache-ram,-ctxcp,--ctx-checkpoints,--swa-checkpoints,-cms,"
         "--checkpoint-min-step,--cache-idle-slots",
         "--sequences N, --state-memory SIZE and --memory SIZE bound what is kept"),
    NONE("--no-cache-idle-slots,-sps,--slot-prompt-similarity",
         "--sequences N says how many conversations are kept"),
    ALWAYS("--cache-prompt", NULL, "common prefixes are always reused"),
    NONE("--no-cache-prompt", "common prefixes are always reused: leave it out"),
    NONE("--cache-reuse", "common prefixes are reused, and no other parts"),
    ALWAYS("--metrics", NULL, "/metrics is always there"),
    ALWAYS("--no-slots", NULL, "the server has no /slots"),
    ALWAYS("--props", NULL, "/props is always there, to be read"),
    NONE("--slots,--path,--media-path,--api-prefix,--spm-infill", ENDPOINT),
    ALWAYS("--ui,--webui", NULL, "the chat page is always there"),
    NONE("--no-ui,--no-webui,--ui-*,--webui-*,--no-ui-*,--no-webui-*",
         "the chat page has no settings: leave it out"),
    NONE("--tools-runtime,--mcp-*,-ag,--agent", AGENT),
    ALWAYS("-no-ag,--no-agent", NULL, "the server runs no tools"),
    NONE("--embedding*,--rerank*,--pooling,--attention,--embd-*,--cls-separator", POOLING),
    NONE("--ssl-key-file,--ssl-cert-file", TLS),
    NONE("-to,--timeout,--sse-ping-interval,--threads-http,--reuse-port,--sleep-idle-seconds",
         "it has no counterpart: leave it out"),
    NONE("--models-*,--no-models-autoload", ONE_MODEL),
    NONE("--server-base", "clients of OpenAI's API connect to a server"),

    /* mlx-lm */
    ALIAS("--max-tokens", "*", "--predict"),
    NONE("--max-kv-size", "-c N bounds the context, which does not rotate"),
    ALIAS("--prefill-step-size", "*", "--chunk"),
    WORD("--kv-bits", "8", "--kv-type=q8_0"),
    NOT("--kv-bits", "*", KV_TYPES),
    NONE("--kv-group-size,--quantized-kv-start", KV_TYPES),
    ALIAS("--extra-eos-token", "*", "--stop"),
    ALWAYS("--trust-remote-code", NULL, "no code of a model is run"),
    NONE("--adapter-path", LORA),
    WORD("--ignore-chat-template", NULL, "--raw"),
    ALIAS("--chat-template-config,--chat-template-args", "*", "--chat-template-kwargs"),
    ALIAS("--prompt-cache-file", "*", "--prompt-cache"),
    NONE("--prefill-response,--quantize-activations", "it has no counterpart: leave it out"),
    ALIAS("--allowed-origins", "*", "--cors"),
    ALIAS("--decode-concurrency", "*", "--parallel"),
    ALIAS("--prompt-cache-size", "*", "--sequences"),
    ALIAS("--prompt-cache-bytes", "*", "--state-memory"),
    NONE("--hf-path,--mlx-path", "moeflux convert SRC DST"),
    ALIAS("--q-bits", "*", "--bits"),
    ALIAS("--q-group-size", "*", "--group"),
    ALIAS("--q-mode", "*", "--mode"),
    ALIAS("--quant-predicate", "*", "--recipe"),
    ALWAYS("--quantize", NULL, "moeflux convert quantises what is not"),
    NONE("--dequantize,--dtype,--upload-repo", "it has no counterpart: leave it out"),

    /* Ollama */
    ALIAS("--num-ctx,--num_ctx", "*", "--ctx-size"),
    WORD("--format", "json", "--json-object"),
    ALIAS("--format", "*", "--json-schema"),
    ALWAYS("--keepalive", "*", "a model stays loaded until the program ends"),
    NONE("--nowordwrap", "--color never prints lines as they are"),
    NONE("--hidethinking", "thinking is dim on a terminal, hidden elsewhere; --no-think: none"),
    NONE("--insecure", DOWNLOAD),

    /* Programs */
    NONE("--completion-bash", "\"moeflux completion bash\""),
    NONE("--kl-divergence", "--perplexity FILE --compare SETTING"),
    NONE("--save-all-logits,--kl-divergence-base,--save-logits,--logits-output-dir",
         "--logits FILE writes logits"),
    NONE("--ppl,--no-ppl,--ppl-*,--chunks,--hellaswag*,--winogrande*,--multiple-choice*",
         "--perplexity FILE measures a text"),
    NONE("--ids,--no-bos,--show-count", "the server's /tokenize has them"),
    NONE("-ns,-npp,-ntg,-npl,-pps,-tgs", "--bench measures speeds (--bench-parallel N)"),
    NONE("--in-file,--junk,--pos,-ofreq,--output-frequency,--output-file,--output-format,"
         "--save-frequency,--process-output,--from-chunk,"

                 "--show-statistics,--parse-special,--no-parse-special,--stdin,--positive-file,"
         "--negative-file,--pca-*,--method,"

                 "--tts-*,--diffusion-*,-lr,--learning-rate*,-lr-min,-decay-epochs,-wd,"
         "--weight-decay,-val-split,--val-split,-epochs,--epochs,-opt,--optimizer,--check,"
         "--tensor-filter", PROGRAM),
    {0},
};

const struct foreign_flag foreign_bench_flags[] = {
    ALIAS("-p,--n-prompt", "*", "--bench-prompt"),
    ALIAS("-n,--n-gen", "*", "--bench-gen"),
    ALIAS("-d,--n-depth", "*", "--bench-depth"),
    ALIAS("-r,--repetitions", "*", "--bench-reps"),
    WORD("-o,--output", "csv", "--csv"),
    WORD("-o,--output", "json", "--json"),
    NOT("-o,--output", "*", "--csv, --json, or a table without it"),
    ALWAYS("-oe,--output-err", "none", "a table is printed once"),
    NOT("-oe,--output-err", "*", "a table is printed once: 2>FILE has the messages"),
    NONE("-pg", "--bench-prompt N and --bench-gen N measure each by itself; --bench-depth N decodes after N "
                "tokens"),
    NONE("--no-warmup", "a warm-up run comes first and is not counted: leave it out"),
    WORD("-mmp,--mmap", "0", "--expert-io=pread"),
    WORD("-mmp,--mmap", "1", "--expert-io=mmap"),
    ALWAYS("-dio,--direct-io", "0", "--expert-io MODE says how experts are read"),
    WORD("-dio,--direct-io", "1", "--expert-io=direct"),
    ALWAYS("-embd,--embeddings", "0", "text is generated"),
    NOT("-embd,--embeddings", "*", POOLING),
    ALWAYS("-nkvo,--no-kv-offload", "0", "the KV cache is on the device that computes the layer"),
    ALWAYS("-nopo,--no-op-offload,--no-host", "0", "there is one place for each operation"),
    NOT("-nopo,--no-op-offload,--no-host", "*", "there is one place for each operation: leave it out"),
    NONE("-rpc", "other machines do not compute"),
    ALWAYS("--progress", NULL, "a terminal shows the progress"),
    NONE("--delay", "it has no counterpart: leave it out"),
    {0},
};
/* clang-format on */
