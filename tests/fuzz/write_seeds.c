/* The inputs that fuzzing starts from. */
#include <dirent.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/str.h"
#include "check.h"
#include "cli/talk/saved.h"
#include "experts/usage.h"
#include "fuzz/target.h"
#include "gguf_writer.h"
#include "sequence.h"
#include "small_model.h"
#include "snapshot_writer.h"
#include "tmp_tree.h"
#include "text/chat/chat_families.h"
#include "tokenizer_build.h"

struct seeds {
    const char *dir;
    unsigned n;
};

/* `before`: what the target takes before a file's bytes; may be "". */
static void put(struct seeds *s, const char *target, const char *before, const void *bytes, size_t n)
{
    char path[512];
    struct str all = {0};
    snprintf(path, sizeof path, "%s/%s", s->dir, target);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/%s/seed-%u", s->dir, target, s->n++);
    str_add_text(&all, before);
    str_add(&all, bytes, n);
    assert_true(str_ok(&all));
    target_put(path, (const uint8_t *)all.data, all.len);
    str_free(&all);
}

static void put_text(struct seeds *s, const char *target, const char *text)
{
    put(s, target, "", text, strlen(text));
}

static void put_file(struct seeds *s, const char *target, const char *before, const char *path)
{
    size_t n;
    uint8_t *bytes = tmp_tree_read(path, &n);
    put(s, target, before, bytes, n);
    free(bytes);
}

static void put_header(struct seeds *s, const char *target, const char *before, const char *path)
{
    uint64_t len;
    uint8_t *bytes = tmp_tree_read(path, NULL);
    memcpy(&len, bytes, sizeof len);
    put(s, target, before, bytes + 8, len);
    free(bytes);
}

static void write_models(struct seeds *s)
{
    static const char *const sources[] = {
        "tests/models/qwen-odd/mlx",        "tests/models/qwen3-odd/mlx",   "tests/models/deepseek-odd/mlx",
        "tests/models/sources/deepseek/hf", "tests/models/qwen3-plain/mlx", "tests/models/formats/every-f16",
        "tests/models/formats/mixed-3-6",   "tests/models/formats/nvfp4"};
    char path[512];
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++) {
        snprintf(path, sizeof path, "%s/config.json", sources[i]);
        put_file(s, "config", "", path);
    }
    put_file(s, "config", "", "tests/models/tiny/config.json");
    put_file(s, "model", "p", "tests/models/qwen3-odd/mlx/config.json");
    put_header(s, "model", "h", "tests/models/qwen3-odd/mlx/model.safetensors");
    put_text(s, "safetensors",
             "{\"__metadata__\":{\"format\":\"pt\"},\"model.a.weight\":{\"dtype\":\"U32\",\"shape\":[2,8],"
             "\"data_offsets\":[0,64]},"
             "\"model.a.scales\":{\"dtype\":\"BF16\",\"shape\":[2,1],\"data_offsets\":[64,68]},"
             "\"model.b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[68,72]},"
             "\"model.c\":{\"dtype\":\"F8_E4M3\",\"shape\":[1,1,1,1,3],\"data_offsets\":[72,75]}}");
    put_text(s, "safetensors",
             "{\"model.a.weight\":{\"dtype\":\"U32\",\"shape\":[2,4],\"data_offsets\":[0,32]},"
             "\"model.a.scales\":{\"dtype\":\"U8\",\"shape\":[2,1],\"data_offsets\":[32,34]},"
             "\"model.b\":{\"dtype\":\"F16\",\"shape\":[3],\"data_offsets\":[34,40]}}");
    put_text(s, "config",
             "{\"quantization\":{\"group_size\":32,\"bits\":4,\"mode\":\"mxfp4\","
             "\"language_model.model.layers.0.mlp.gate\":{\"group_size\":16,\"bits\":4,\"mode\":\"nvfp4\"},"
             "\"lm_head\":false,\"x\":{\"bits\":8,\"mode\":\"mxfp8\",\"global_scale\":true}}}");
    put_text(s, "config",
             "{\"quantization_config\":{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\"}}");
    put_text(s, "config",
             "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"transform_config\":{},"
             "\"format\":\"nvfp4-pack-quantized\",\"config_groups\":{\"g\":{\"weights\":{"
             "\"type\":\"float\",\"num_bits\":4,\"group_size\":16}}}}}");
    put_text(
        s, "config",
        "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"mixed-precision\","
        "\"ignore\":[\"lm_head\",\"re:.*mlp\\\\.gate$\"],\"config_groups\":{\"g\":{\"format\":\"float-"
        "quantized\","
        "\"targets\":[\"Linear\"],\"weights\":{\"type\":\"float\",\"num_bits\":8,\"strategy\":\"block\","
        "\"block_structure\":[128,128]}},\"h\":{\"targets\":[\"re:^a.b$\"],\"weights\":null}}}}");
    put(s, "safetensors", "#", "\x02\0\0\0\0\0\0\0{}", 10);
    const char *packed = small_model_make(target_new_dir("seed-model"), 9);
    put_file(s, "config", "", tmp_tree_path(packed, "config.json"));
    put_file(s, "model", "c", tmp_tree_path(packed, "config.json"));
    put_file(s, "manifest", "", tmp_tree_path(packed, "model_weights.json"));
    put_file(s, "model", "m", tmp_tree_path(packed, "model_weights.json"));
    put(s, "model", "w", "\0\0\1\0\x80\x7f\x80\x7f\1\0\2\0\0\0\xc0\x7f", 16);
    put_text(s, "manifest",
             "{\"model\":\"m\",\"num_tensors\":2,\"tensors\":{"
             "\"lm_head.weight\":{\"offset\":0,\"size\":512,\"shape\":[4,32],\"dtype\":\"U32\",\"bits\":4},"
             "\"lm_head.scales\":{\"offset\":512,\"size\":32,\"shape\":[4,4],\"dtype\":\"BF16\"}},"
             "\"config\":{\"hidden_size\":256,\"expert_bits\":4}}");
    put_text(s, "manifest",
             "{\"tensors\":{\"lm_head.weight\":{\"offset\":0,\"size\":512,\"shape\":[4,32],\"dtype\":\"U32\","
             "\"bits\":4,\"group_size\":16,\"mode\":\"nvfp4\"},"
             "\"lm_head.scales\":{\"offset\":512,\"size\":64,\"shape\":[4,16],\"dtype\":\"U8\"}},"
             "\"experts\":[null,{\"gate_up\":{\"bits\":3,\"group_size\":128,\"scales\":\"F16\"},"
             "\"down\":{\"bits\":8,\"group_size\":32,\"mode\":\"mxfp8\"}}]}");
    /* Plain; packed; packed below artifacts and root. */
    put(s, "layout", "", "\0\1\2", 3);
    put(s, "layout", "", "\0\3\4\x14", 4);
    put(s, "layout", "", "\x16\x17\x15\x09\x0b\x0c\x1c", 7);
}

/* Small models, of codes that are kept and of some that are not, and a tokenizer. */
static void write_gguf(struct seeds *s)
{
    enum { NVFP4 = 40 };
    static const uint32_t types[] = {2, 7, 39, NVFP4};
    static const char *const tokens[] = {"a", "b", "ab", "<|end|>"}, *const merges[] = {"a b"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct gguf_writer w = {0};
        gguf_writer_model(&w, 64, 64, types[i]);
        if (types[i] == NVFP4) {
            gguf_writer_tensor(&w, "blk.0.ffn_gate_exps.scale", 0, 2, 1, 1);
            gguf_writer_tensor(&w, "blk.0.ffn_up_exps.scale", 0, 2, 1, 1);
        }
        gguf_writer_text(&w, "tokenizer.ggml.model", "gpt2");
        gguf_writer_text(&w, "tokenizer.ggml.pre", "qwen2");
        gguf_writer_texts(&w, "tokenizer.ggml.tokens", tokens, 4);
        gguf_writer_texts(&w, "tokenizer.ggml.merges", merges, 1);
        gguf_writer_whole(&w, "tokenizer.ggml.eos_token_id", 3);
        gguf_writer_text(&w, "tokenizer.chat_template", "{{ messages }}");
        struct str bytes = gguf_writer_take(&w);
        put(s, "gguf", "", bytes.data, bytes.len);
        str_free(&bytes);
    }
}

/* SentencePiece's BPE in its three forms: tokenizer.json, and GGUF with merges and with scores. */
static void write_pieces(struct seeds *s)
{
    enum { N = 261 };
    static const char *const normal[] = {"a", "b", "ab", "\342\226\201", "\342\226\201a"},
                             *const merges[] = {"a b", "\xe2\x96\x81 a"};
    static char bytes[256][8];
    const char *tokens[N];
    uint32_t types[N];
    float scores[N];
    struct str json = {0};
    str_add_text(&json,
                 "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":"
                 "\"\xe2\x96\x81\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":"
                 "\"\xe2\x96\x81\"}]},\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":"
                 "\"Replace\",\"pattern\":{\"String\":\"\xe2\x96\x81\"},\"content\":\" \"},{\"type\":"
                 "\"ByteFallback\"},{\"type\":\"Strip\",\"content\":\" "
                 "\",\"start\":1,\"stop\":0}]},\"model\":{\"type\":\"BPE\",\"byte_fallback\":"
                 "true,\"merges\":[[\"a\",\"b\"],\"\xe2\x96\x81 a\"],\"vocab\":{");
    for (unsigned i = 0; i < N; i++) {
        if (i < 256)
            snprintf(bytes[i], sizeof bytes[i], "<0x%02X>", i);
        tokens[i] = i < 256 ? bytes[i] : normal[i - 256];
        types[i] = i < 256 ? 6 : 1;
        scores[i] = i < 256 ? 0 : -(float)i;
        str_addf(&json, "%s\"%s\":%u", i ? "," : "", tokens[i], i);
    }
    str_add_text(&json, "}}}");
    put_text(s, "tokenizer", str_text(&json));
    str_free(&json);
    for (int has_scores = 0; has_scores < 2; has_scores++) {
        struct gguf_writer w = {0};
        gguf_writer_text(&w, "tokenizer.ggml.model", has_scores ? "llama" : "gemma4");
        gguf_writer_texts(&w, "tokenizer.ggml.tokens", tokens, N);
        gguf_writer_wholes(&w, "tokenizer.ggml.token_type", types, N);
        if (has_scores)
            gguf_writer_floats(&w, "tokenizer.ggml.scores", scores, N);
        else
            gguf_writer_texts(&w, "tokenizer.ggml.merges", merges, 2);
        struct str file = gguf_writer_take(&w);
        put(s, "tokenizer", "", file.data, file.len);
        str_free(&file);
    }
}

static void write_templates(struct seeds *s)
{
    static const char *const templates[] = {
        "{%- macro m(a, b='x\\n\\u00e9') -%}{{ a|default(b, true) }}{{ caller() if caller else varargs }}{%- "
        "endmacro -%}"
        "{# c #}{% raw %}{{ }}{% endraw %}{% call(q) m(1, *[2], **{'k': 3}) %}{{ q }}{% endcall %}",
        "{% for m in messages if m.content is not none %}{{ loop.index ~ m['role'][::-1]|upper }}{% if "
        "loop.last %}{% break %}"
        "{% else %}{% continue %}{% endif %}{% else %}none{% endfor %}{{ bos_token }}",
        "{% set ns = namespace(a=[1, 2.5e3, (3,)], b={'k': n}) %}{% set ns.c, d = ns.a[1:], -x ** 2 // 3 "
        "%}{{ ns.b.k % 7 }}"
        "{% set t | trim %} {{ ns.a|map('string')|join('-') }} {% endset %}{{ t }}{{ ns.a|tojson(indent=2) "
        "}}",
        "{% with a = 'a b'.split(), b = messages|selectattr('role', 'in', ['user'])|list %}{{ "
        "a|sort(reverse=true) }}{{ b }}"
        "{% endwith %}{% filter replace('a', 'b')|indent(2, true) %}a\na{% endfilter %}{{ strftime_now('%d "
        "%b %Y') }}",
        "{% generation %}{{ '%s{}'.format(1)|title|reverse|e }}{{ [3, "
        "1]|unique|batch(2)|list|first|sum|round(1)|int }}"
        "{% endgeneration %}{{ tools|length > 1 and 1 < n <= 2 or not x in [1] }}{{ raise_exception('no') if "
        "n is odd }}",
    };
    for (size_t i = 0; i < sizeof templates / sizeof *templates; i++)
        put_text(s, "jinja", templates[i]);
    put_text(s, "jinja", chat_family_find("deepseek-v3.2")->text);
    put_text(s, "jinja", chat_family_find("deepseek-v4")->text);
    static const char own_context[] = "{{ a.b|dictsort }}\0{\"a\":{\"b\":{\"k\":[null]}}}";
    put(s, "jinja", "", own_context, sizeof own_context - 1);
}

/* Writes as many whole lines as fit the fuzzer's largest input. */
static void write_tiktoken(struct seeds *s)
{
    size_t n;
    uint8_t *bytes = tmp_tree_read("tests/data/tiktoken/tiktoken.model", &n);
    for (n = 4000; bytes[n - 1] != '\n';)
        n--;
    put(s, "tiktoken", "", bytes, n);
    free(bytes);
}

static void write_tokenizers(struct seeds *s)
{
    write_tiktoken(s);
    write_gguf(s);
    write_pieces(s);
    static const char qwen[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "
                               "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    static const char *const patterns[] = {
        qwen, "\\p{N}{1,3}", "(?<=[0-9])[a-z]++x|(?>a*)b", "(?:ab?)*+[xy]|[^x]*?y{2,}", "=.*",
    };
    static const char text[] = "It's 12 e\xcc\x81x \n\n aab!";
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        struct str both = {0};
        str_add(&both, patterns[i], strlen(patterns[i]) + 1);
        str_add(&both, text, sizeof text - 1);
        put(s, "pattern", "", both.data, both.len);
        json_t *root = tokenizer_build(), *list = json_pack("[s]", patterns[i]);
        tokenizer_build_splits(root, list);
        char *json = json_dumps(root, JSON_COMPACT);
        put_text(s, "tokenizer", json);
        free(json);
        json_decref(list);
        json_decref(root);
        str_free(&both);
    }
    json_t *root = tokenizer_build();
    json_object_set_new(
        root, "post_processor",
        json_loads(
            "{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<end>\"}},"
            "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<end>\":{\"id\":\"<end>\",\"ids\":[258]}}}",
            0, NULL));
    tokenizer_build_added(root, "e\xcc\x81", 259, true, false);
    char *json = json_dumps(root, JSON_INDENT(1));
    put_text(s, "tokenizer", json);
    free(json);
    json_decref(root);
}

static void write_states(struct seeds *s)
{
    struct str file = {0};
    for (uint32_t version = 1; version <= 2; version++) {
        snapshot_write(&file, version, 1, NULL);
        put(s, "snapshot", "", file.data, file.len);
    }
    str_free(&file);
    const char *path = tmp_tree_path(target_dir(), "state");
    static const int32_t ids[] = {5, 6, 7};
    struct moeflux_err e = {0};
    /* That of states.c. */
    struct sequence q =
        sequence_open(small_model_make(target_new_dir("seed-states"), 1), "reference", 0, 0, 64);
    for (int i = 0; i < 3; i++) {
        sequence_eval(&q, ids + i, 1, NULL);
        if (i == 1)
            check_ok(moeflux_session_checkpoint(q.s, &e), &e);
        check_ok(moeflux_session_save(q.s, path, MOEFLUX_STATE_V3, &e), &e);
        put_file(s, "snapshot", "", path);
        put_file(s, "snapshot", "#", path);
    }
    sequence_close(&q);
    static const char *const marks[] = {"q", "l"};
    for (int i = 0; i < 2; i++) {
        const char *dir =
            i ? "tests/models/deepseek-lone/mlx" : small_model_make(target_new_dir("seed-states-q8_0"), 1);
        q = sequence_open_kv(dir, "reference", MOEFLUX_KV_TYPE_Q8_0, 0, 0, 64);
        sequence_eval(&q, ids, 3, NULL);
        check_ok(moeflux_session_save(q.s, path, MOEFLUX_STATE_V3, &e), &e);
        put_file(s, "snapshot", marks[i], path);
        sequence_close(&q);
    }
}

static void write_parts(struct seeds *s)
{
    put_text(s, "spread",
             "{\"id\": \"0123456789abcdef\", \"stripe\": 8192, \"parts\": [\".\", \"x\"]}"
             "|{\"id\": \"0123456789abcdef\", \"part\": 1, \"parts\": 3}");
    put_text(s, "spread",
             "{\"id\": \"a92c4e510d0a6d86\", \"stripe\": 1099511627776, \"parts\": [\".\"]}"
             "|{\"id\": \"a92c4e510d0a6d87\", \"part\": 2, \"parts\": 2}");
    put_text(s, "spread", "{\"id\": \"0123456789abcdef\", \"parts\": [\".\", \"x\"]}|{}");
}

static void write_grammars(struct seeds *s)
{
    put_text(s, "grammar",
             "root ::= \"a\" (b | [^a-c]{2,30})* # end\nb ::= \n \"\\x62\\u00e9\" b? |\n .+ \"c\"\n");
    put_text(s, "grammar", "root ::= \"{\" (p (\",\" p){,3})? \"}\"\np ::= [a-z]+ \":\" (root | [0-9]{1,4})");
    put_text(
        s, "schema",
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\",\"minimum\":-3,\"maximum\":120},"
        "\"b\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":9},\"c\":{\"enum\":[1,\"x\",null]}},"
        "\"required\":[\"a\"],\"additionalProperties\":{\"$ref\":\"#/$defs/d\"},\"$defs\":{\"d\":{\"anyOf\":["
        "{\"const\":true},{\"$ref\":\"#\"}]}}}");
    put_text(
        s, "schema",
        "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"string\",\"pattern\":\"^[a-c\\\\d]+(x|y)?$\"}],"
        "\"items\":{\"type\":[\"number\",\"null\"],\"exclusiveMinimum\":0},\"minItems\":1,\"maxItems\":4}");
    put_text(s, "schema",
             "{\"allOf\":[{\"properties\":{\"k\":{\"type\":\"string\",\"format\":\"date\"}}},{\"required\":["
             "\"k\"]}],"
             "\"title\":\"t\"}");
    put_text(s, "schema",
             "{\"oneOf\":[{\"type\":\"boolean\"},{\"type\":\"object\",\"additionalProperties\":false}]}");
}

static void write_user_files(struct seeds *s)
{
    put_text(s, "session",
             "{\"moeflux_session\":1,\"model\":\"/m\",\"fingerprint\":\"0123456789abcdef\",\"system\":\"Be "
             "brief.\",\"turns\":["
             "{\"question\":\"a\",\"thinking\":\"b\",\"answer\":\"c\",\"stop_reason\":\"eos\",\"tokens_"
             "before\":0,\"tokens_asked\":2},"
             "{\"question\":\"d\",\"tokens_before\":3,\"tokens_asked\":4}],\"tokens\":[1,2,3,4]}");
    put_text(s, "usage", "moeflux usage 1 3 5\n0 1 7\n0 4 1\n2 0 4294967295\n2 4 7\nend\n");
    put_text(s, "trace",
             "moeflux trace 1 3 5 2 4096\n1 0 2 4:0.7500 0:0.2500\n1 1 2 0:1.0000 2:nan\n2 0 1 3:0.5000 "
             "4:0.5000\nend\n");
    put_text(
        s, "batch",
        "{\"id\": \"a\", \"prompt\": \"one two\", \"n_predict\": 3, \"temperature\": 0.5, \"seed\": 1}\n\n"
        "{\"id\": 5, \"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"top_k\": 3}\r\nno "
        "JSON\n{\"prompt\": \"x\"}");
    put_text(s, "batch",
             "{\"prompt\": \"a\", \"stop\": [\"x\", \"yz\"], \"logprobs\": true, \"top_logprobs\": 2, "
             "\"presence_penalty\": 1, \"frequency_penalty\": -0.5}\n"
             "{\"prompt\": \"a\", \"stop\": \"x\", \"logprobs\": 3, \"tools\": [{\"type\": \"function\", "
             "\"function\": {\"name\": \"f\", \"parameters\": {}}}], \"tool_choice\": \"auto\"}");
    put_text(s, "calls",
             "\x10 a <tool_call>\n{\"name\": \"put\", \"arguments\": {\"n\": 1}}\n</tool_call>\n b");
    put_text(s, "calls", "\x20<tool_call>{\"arguments\": \"{}\", \"name\": \"put\"}</tool_call>");
    put_text(s, "calls",
             "\x11<tool_call>\n<function=put>\n<parameter=path>\na\"b\n</parameter>\n<parameter=n>\n12\n"
             "</parameter>\n<parameter=maybe>null</parameter></function>\n</tool_call>");
    put_text(
        s, "calls",
        "\x12<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>put\n```json\n{\"n\": 1}\n```"
        "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><"
        "｜tool▁calls▁end｜>");
    put_text(s, "calls",
             "\x14<|tool_calls_section_begin|><|tool_call_begin|>functions.put:0<|tool_call_argument_begin|>"
             "{\"n\": 1}<|tool_call_end|><|tool_calls_section_end|>");
    put_text(s, "calls",
             "\x15<tool_call>put\n<arg_key>path</arg_key>\n<arg_value>a</arg_value>\n<arg_key>n</arg_key>\n"
             "<arg_value>2</arg_value>\n</tool_call>");
    put_text(s, "calls",
             "\x16<minimax:tool_call>\n<invoke name=\"put\">\n<parameter name=\"path\">a <b></parameter>\n"
             "<parameter name=\"n\">3</parameter>\n</invoke>\n</minimax:tool_call>");
    put_text(s, "calls",
             "\x18<|tool_call>call:put{n:1,path:<|\"|>a b<|\"|>,maybe:{a:[true,null,\"c\"]}}<tool_call|>");
    put_text(s, "calls",
             "\x19<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"put\">\n<｜DSML｜parameter name=\"path\" "
             "string=\"true\">a</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>");
    put_text(s, "calls",
             "\x1a<｜DSML｜tool_calls><｜DSML｜invoke name=\"put\"><｜DSML｜parameter name=\"n\" "
             "string=\"false\">[1]</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>");
    put_text(s, "calls",
             "\x1b]<]minimax[>[<tool_call>\n]<]minimax[>[<invoke "
             "name=\"put\">]<]minimax[>[<box>]<]minimax[>[<list>"
             "]<]minimax[>[<item>]<]minimax[>[<n>1]<]minimax[>[</n>]<]minimax[>[</item>]<]minimax[>[</list>"
             "]<]minimax[>[</box>]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>");
    put_text(s, "calls", "\x17<|channel|>commentary to=functions.put<|message|>{\"n\": 1}<|call|>");
    put_text(s, "completions",
             "{\"messages\": [{\"role\": \"system\", \"content\": \"a\"}, {\"role\": \"user\", \"content\": "
             "[{\"type\": "
             "\"text\", \"text\": \"b\"}]}], \"max_completion_tokens\": 3, \"temperature\": 0.5, "
             "\"top_logprobs\": 2, "
             "\"logprobs\": true, \"stop\": [\"x\"], \"n\": 2, \"stream\": true, \"stream_options\": "
             "{\"include_usage\": "
             "true}, \"chat_template_kwargs\": {\"enable_thinking\": false}}");
    put_text(s, "completions",
             "#{\"prompt\": [[1, 2], [3]], \"echo\": true, \"logprobs\": 1, \"seed\": -7, \"top_k\": -1}");
    put_text(s, "completions", "#{\"prompt\": [\"a\", \"b c\"], \"presence_penalty\": -1, \"best_of\": 1}");
    put_text(
        s, "completions",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"\\u0000 \\ud83d\\ude00 \\ud83d \\ude00\"}]}");
    put_text(s, "listing",
             "{\"sha\": \"0123456789012345678901234567890123456789\", \"siblings\": [{\"rfilename\": "
             "\"a/b-00001-of-00002.gguf\", \"size\": 9, \"blobId\": \"\", \"lfs\": {\"sha256\": "
             "\"0123456789012345678901234567890123456789012345678901234567890123\", \"size\": 9}}, "
             "{\"rfilename\": \"c\", \"size\": 0, \"blobId\": "
             "\"e69de29bb2d1d6434b8b29ae775ad8c2e48c5391\", \"lfs\": null}]}");
    put_text(s, "tokens", "1 2 3\n\t2147483647 0\r\n17");
}

/* Bodies of responses and messages; the first byte chooses the dialect. */
static void write_dialects(struct seeds *s)
{
    put_text(s, "completions",
             "@{\"input\": [{\"role\": \"developer\", \"content\": \"a\"}, {\"role\": \"user\", \"content\": "
             "[{\"type\": \"input_text\", \"text\": \"b\"}]}, {\"type\": \"reasoning\", \"summary\": [], "
             "\"encrypted_content\": \"moeflux:x\"}, {\"type\": \"function_call\", \"call_id\": \"c\", "
             "\"name\": \"f\", \"namespace\": \"n\", \"arguments\": \"{}\"}, {\"type\": "
             "\"function_call_output\", \"call_id\": \"c\", \"output\": \"d\"}], \"instructions\": \"e\", "
             "\"text\": {\"format\": {\"type\": \"json_object\"}}, \"reasoning\": {\"effort\": \"none\"}}");
    put_text(s, "completions",
             "@{\"input\": \"a\", \"max_output_tokens\": 3, \"include\": [\"x\"], \"store\": false, "
             "\"previous_response_id\": null, \"truncation\": \"auto\"}");
    put_text(s, "completions",
             "&{\"system\": [{\"type\": \"text\", \"text\": \"x-anthropic-billing-header: 1\\na\"}], "
             "\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"b\"}]}, "
             "{\"role\": \"assistant\", \"content\": [{\"type\": \"thinking\", \"thinking\": \"\", "
             "\"signature\": \"moeflux:x\"}, {\"type\": \"tool_use\", \"id\": \"c\", \"name\": \"f\", "
             "\"input\": {}}]}, {\"role\": \"user\", \"content\": [{\"type\": \"tool_result\", "
             "\"tool_use_id\": \"c\", \"content\": \"d\", \"is_error\": true}]}], \"max_tokens\": 3, "
             "\"stop_sequences\": [\"x\"], \"thinking\": {\"type\": \"enabled\", \"budget_tokens\": 5}}");
    put_text(s, "completions",
             "&{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"output_config\": {\"effort\": "
             "\"max\", \"format\": {\"type\": \"json_schema\", \"schema\": {}}}}");
}

void target_write_seeds(const char *dir)
{
    struct seeds s = {.dir = dir};
    write_models(&s);
    write_dialects(&s);
    write_templates(&s);
    write_tokenizers(&s);
    write_states(&s);
    write_parts(&s);
    write_user_files(&s);
    write_grammars(&s);
}
