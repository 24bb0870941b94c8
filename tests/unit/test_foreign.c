/* Flags and commands of llama.cpp and Ollama are obeyed, accepted, or refused with what to do instead.
 * None is read as another flag with a value.
 *
 * suites: check fast asan */
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "cli/options/options.h"
#include "cli/options/words.h"

/* A command line, without the program's name. */
struct line {
    const char *command; /* "run": no command */
    const char *words;
    const char *becomes; /* the words after the translation; NULL: it is refused */
    const char *says;    /* part of the note or of the message; NULL: it says nothing */
};

static const struct line lines[] = {
    {"run", "-ngl 99 -p hi", "-p hi", "-ngl: a GPU"},
    {"run", "-ngl 0", "--device=cpu", NULL},
    {"run", "--n-gpu-layers all", "", "--gpu-memory"},
    {"run", "--gpu-layers=auto", "", "--gpu-memory"},
    {"run", "-ngl many", NULL, "-ngl: the value \"many\""},
    {"run", "-ngl", NULL, "-ngl needs a value"},
    {"run", "--max-tokens 5 --kv-bits 8", "--predict 5 --kv-type=q8_0", NULL},
    {"run", "--kv-bits 4", NULL, "--kv-bits 4: keys and values"},
    {"convert", "--q-bits 4 --q-group-size 32 A B", "--bits 4 --group 32 A B", NULL},
    {"run", "--q-bits 4", NULL, "--q-bits, here --bits"},
    {"run", "--num_ctx 4096 --format json", "--ctx-size 4096 --json-object", NULL},
    {"run", "--think=false", "--no-think", NULL},
    {"run", "--think=high", "--effort=high", NULL},
    {"run", "--think=much", NULL, "--think: expected"},
    {"run", "--json=much", NULL, "--json=full"},
    {"run", "-sys 'be short' -p x", "--system 'be short' -p x", NULL},
    {"run", "-sys -ngl", "--system -ngl", NULL},
    {"run", "-p -ngl", "-p -ngl", NULL},
    {"run", "--prompt -fa", "--prompt -fa", NULL},
    {"run", "--system=-fa -n -1", "--system=-fa -n -1", NULL},
    {"run", "-ctk q8_0 -ctv q8_0", "--kv-type q8_0 --kv-type q8_0", NULL},
    {"run", "-ctk f16 -ctv q8_0", NULL, "-ctv q8_0: --kv-type is f16"},
    {"run", "-ctk q4_0", NULL, "-ctk q4_0: keys and values"},
    {"run", "-ncmoe 20", "--n-cpu-moe 20", NULL},
    {"run", "-cmoe", "--experts=cpu", NULL},
    {"run", "-ot exps=CPU", "--experts=cpu", NULL},
    {"run", "-ot '.ffn_.*_exps.=CPU'", "--experts=cpu", NULL},
    {"run", "-ot '\\.ffn_.*_exps\\.=CPU'", "--experts=cpu", NULL},
    {"run", "-ot 'blk.1.ffn_.*_exps.=CPU'", NULL, "--n-cpu-moe"},
    {"run", "-ts 3,1", "--tensor-split 3,1", NULL},
    {"run", "-dev none", "--device=cpu", NULL},
    {"run", "-dev 0,1 -sm layer", "--device 0,1", "-sm: several devices"},
    {"run", "-sm row", NULL, "-sm row"},
    {"run", "-mg 1", NULL, "--device N"},
    {"run", "-b 512", "--chunk 512", NULL},
    {"run", "-b 2048 -ub 512", "--chunk 2048", "-ub: prompts"},
    {"run", "-fa", "", "-fa: attention"},
    {"run", "-fa on -p x", "-p x", "-fa: attention"},
    {"run", "-fa off", NULL, "-fa off"},
    {"run", "--flash-attn=auto", "", "attention"},
    {"run", "-hf a/b", "--model a/b", NULL},
    {"run", "-hf a/b:Q4_K_M", NULL, "-hf a/b:Q4_K_M"},
    {"run", "-hff x", NULL, "moeflux get"},
    {"run", "-st -cnv -p x", "-p x", "-st: -p gives one answer"},
    {"run", "-no-cnv -p x", "--raw -p x", NULL},
    {"run", "-tb 4", NULL, "-t"},
    {"run", "-md draft.gguf", NULL, "-md: there are no draft models"},
    {"run", "--spec-draft-n-max 4", NULL, "--spec-draft-n-max: there are no draft models"},
    {"run", "--mlock", NULL, "--memory"},
    {"run", "--no-mmap", "--expert-io=pread", NULL},
    {"run", "--jinja --no-warmup", "", "--jinja: the model's chat template"},
    {"run", "-rea off", "--no-think", NULL},
    {"run", "--reasoning-budget -1", "", "not limited"},
    {"run", "--keep 4", NULL, "make it larger with -c"},
    {"serve", "--keep 4", NULL, "make it larger with -c"},
    {"convert", "--keep 4 A B", NULL, "--keep: moeflux convert has nothing like it"},
    {"get", "--keep 4 a/b", NULL, "--keep: moeflux get has nothing like it"},
    {"convert", "-hf a/b", NULL, "-hf, here --model, is no flag of moeflux convert"},
    {"run", "--reasoning-effort max", "--effort max", NULL},
    {"run", "--reasoning-effort default", "", "template decides"},
    {"run", "--reasoning-budget 500", "--think-budget 500", NULL},
    {"run", "-lv 1 -p x", "--log-level=error -p x", NULL},
    {"run", "-lv 3 -p x", "--log-level=info -p x", NULL},
    {"run", "-lv x", NULL, "--log-level LEVEL"},
    {"run", "-bs -p x", "-p x", "-bs: a GPU"},
    {"run", "-pg 3,4", NULL, "unknown option -pg"},
    {"run", "-embd -p x", NULL, "unknown option -embd"},
    {"run", "-mdir", NULL, "a blank follows -m"},
    {"run", "-n5 -p x", "-n5 -p x", NULL},
    {"run", "-r User:", "--stop User:", NULL},
    {"run", "-j '{}'", "--json-schema {}", NULL},
    {"run", "--mirostat 2", NULL, "--mirostat: there is no mirostat"},
    {"run", "--mirostat-lr 0.1", NULL, "--mirostat-lr: there is no mirostat"},
    {"run", "--samplers top_k", NULL, "--samplers: the order"},
    {"run", "--dynatemp-range 1", NULL, "there is no such sampler"},
    {"run", "--typical 0.9 --top-nsigma 1", "--typical 0.9 --top-nsigma 1", NULL},
    {"run", "--xtc-probability 0.5 --xtc-threshold 0.2", "--xtc-probability 0.5 --xtc-threshold 0.2", NULL},
    {"run", "--dry-multiplier 0.8 --dry-base 2", "--dry-multiplier 0.8 --dry-base 2", NULL},
    {"run", "--dry-sequence-breaker a --dry-sequence-breaker b",
     "--dry-sequence-breakers a --dry-sequence-breakers b", NULL},
    {"run", "--dry-sequence-breaker '\\n'", "--dry-sequence-breakers '\\n'", NULL},
    {"run", "-r a -r b", "--stop a --stop b", NULL},
    {"run", "--chat-template-file t.jinja", "--chat-template t.jinja", NULL},
    {"run", "--chat-template-kwargs '{}'", "--chat-template-kwargs {}", NULL},
    {"run", "--rope-scaling yarn", NULL, "config.json"},
    {"run", "--image a.png", NULL, "--image: images"},
    {"run", "--perf", "--stats", NULL},
    {"run", "--log-disable", "--quiet", NULL},
    {"run", "--host 0.0.0.0", NULL, "--host belongs to moeflux serve"},
    {"run", "--api-key secret", NULL, "--api-key belongs to moeflux serve"},
    {"run", "--api-key=secret", NULL, "--api-key belongs to moeflux serve"},
    {"run", "-- -ngl", "-- -ngl", NULL},
    {"run", "-ngl -h", NULL, NULL},
    {"run", "-m -h", NULL, NULL},
    {"run", "-p -h", "-p -h", NULL},
    {"run", "-n --help", NULL, NULL},
    {"run", "help", NULL, NULL},
    {"run", "run DIR 'why not' -n 5", "--model DIR --prompt 'why not' -n 5", NULL},
    {"run", "run -n 5 DIR", "-n 5 --model DIR", NULL},
    {"run", "chat -m DIR", "-m DIR", NULL},
    {"run", "run -m DIR hi", "-m DIR --prompt hi", NULL},
    {"run", "bench -m DIR -p 512,64 -n 128 -r 3 -o csv",
     "--bench -m DIR --bench-prompt 512,64 --bench-gen 128 --bench-reps 3 --csv", NULL},
    {"run", "bench DIR -o sql", NULL, "-o sql"},
    {"run", "bench DIR -pg 3,4", NULL, "-pg: --bench-prompt"},
    {"run", "bench DIR -mmp 0 -dio 1", "--bench --model DIR --expert-io=pread --expert-io=direct", NULL},
    {"run", "bench DIR -oe md", NULL, "-oe md"},
    {"run", "bench DIR -nopo 1", NULL, "-nopo 1"},
    {"run", "bench DIR -embd 1", NULL, "-embd 1: there are no embeddings"},
    {"run", "bench DIR -rpc x", NULL, "-rpc: other machines"},
    {"run", "bench DIR --no-warmup", NULL, "--no-warmup: a warm-up run comes first"},
    {"run", "pull a/b", NULL, "\"pull\" is no command: \"moeflux get"},
    {"run", "list", NULL, "hf cache ls"},
    {"run", "show x", NULL, "moeflux inspect"},
    {"run", "server -m x", NULL, "moeflux serve"},
    {"serve", "-np 4 -cb -a name", "--parallel 4 --alias name", "-cb: answers"},
    {"serve", "-m x --cors-origins '*' --metrics", "-m x --cors '*'", "--metrics"},
    {"serve", "--slot-save-path d", "--state-dir d", NULL},
    {"serve", "-m x --cors-methods GET --cors-headers x", "-m x", "--cors-methods: --cors ORIGIN"},
    {"serve", "--ssl-key-file k", NULL, "proxy"},
    {"serve", "-r stop", NULL, "-r, here --stop, is no flag of moeflux serve"},
    {"serve", "--json-object", NULL, "--json-object belongs to moeflux"},
    {"serve", "--no-webui", NULL, "chat page"},
    {"inspect", "-m DIR --json", "DIR --json", NULL},
    {"inspect", "--model=DIR", "DIR", NULL},
    {"run", "create x", NULL, "moeflux-config"},
    {"inspect", "DIR -fa on", "DIR", "attention"},
    {"inspect", "DIR -ngl 0", "DIR --device=cpu", NULL},
};

static const struct defaults_command *command_of(const char *name)
{
    for (size_t i = 0; i < OPTIONS_COMMANDS; i++)
        if (strcmp(options_commands[i].section, name) == 0)
            return &options_commands[i];
    fail_msg("no command %s", name);
    return NULL;
}

static void check_words(const struct line *l, const struct foreign *x)
{
    struct words want = {0};
    struct moeflux_err e = {0};
    check_ok(words_split(&want, l->becomes, &e), &e);
    if (want.argc != x->argc)
        fail_msg("%s: %d words, expected %d", l->words, x->argc - 1, want.argc - 1);
    for (int i = 1; i < want.argc; i++)
        assert_string_equal(x->argv[i], want.argv[i]);
    assert_null(x->argv[x->argc]);
    words_free(&want);
}

static void lines_of_others_become_ours_or_say_what_to_do(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        const struct line *l = &lines[i];
        const struct defaults_command *c = command_of(l->command);
        struct words w = {0};
        struct foreign x = {0};
        struct moeflux_err e = {0};
        check_ok(words_split(&w, l->words, &e), &e);
        int argc = w.argc;
        char **argv = w.argv;
        int rc = foreign_command(&x, &argc, &argv, &e);
        if (!rc)
            rc = foreign_translate(&x, c, options_commands, OPTIONS_COMMANDS, argc, argv, &e);
        const char *said = rc ? e.text : str_text(&x.notes);
        if (!l->becomes && !l->says)
            assert_true(rc == 0 && x.help);
        else if ((rc == 0) != (l->becomes != NULL) || (rc && rc != ERR_USAGE))
            fail_msg("%s: returns %d: %s", l->words, rc, e.text);
        else if (l->becomes)
            check_words(l, &x);
        if (l->says ? !strstr(said, l->says) : *said)
            fail_msg("%s: says \"%s\", expected \"%s\"", l->words, said, l->says ? l->says : "");
        assert_null(strstr(said, "secret"));
        foreign_free(&x);
        words_free(&w);
    }
}

/* Returns what parsing one flag of llama.cpp says, with `value` after it if it has one. */
static void parse_one(const char *command, char *flag, bool has_value, char *said, size_t cap)
{
    static char program[] = "moeflux", serve[] = "serve", one[] = "1";
    char *argv[5] = {program};
    int argc = 1;
    struct options o;
    struct moeflux_err e = {0};
    if (strcmp(command, "serve") == 0)
        argv[argc++] = serve;
    argv[argc++] = flag;
    if (has_value)
        argv[argc++] = one;
    argv[argc] = NULL;
    int rc = options_parse(&o, argc, argv, &e);
    if (rc != 0 && rc != ERR_USAGE)
        fail_msg("%s: returns %d: %s", flag, rc, e.text);
    snprintf(said, cap, "%s", e.text);
    options_free(&o);
}

static void every_flag_of_llama_cpp_is_known(void **state)
{
    static const char *const commands[] = {"run", "serve"};
    (void)state;
    char line[128], said[512];
    unsigned n = 0;
    FILE *f = fopen("tests/lib/llama_flags.txt", "r");
    assert_non_null(f);
    for (; fgets(line, sizeof line, f); n++) {
        line[strcspn(line, "\n")] = '\0';
        char *space = strchr(line, ' ');
        if (space)
            *space = '\0';
        for (size_t i = 0; i < 2; i++) {
            parse_one(commands[i], line, space != NULL, said, sizeof said);
            if (strstr(said, "unknown") || strstr(said, "unexpected") || strstr(said, "did you mean"))
                fail_msg("%s %s: %s", commands[i], line, said);
        }
    }
    assert_int_equal(n, 545);
    fclose(f);
}

static void a_key_is_hidden_and_an_empty_one_refused(void **state)
{
    char program[] = "moeflux", serve[] = "serve", m[] = "-m", dir[] = "x", key[] = "--api-key=secret",
         *argv[] = {program, serve, m, dir, key, NULL};
    struct options o;
    struct moeflux_err e = {0};
    (void)state;
    unsetenv("MOEFLUX_API_KEY");
    check_ok(options_parse(&o, 5, argv, &e), &e);
    assert_string_equal(o.api_key, "secret");
    assert_string_equal(key, "--api-key=******");
    options_free(&o);
    check_ok(options_parse(&o, 4, argv, &e), &e);
    assert_null(o.api_key);
    options_free(&o);
    setenv("MOEFLUX_API_KEY", "other", 1);
    check_ok(options_parse(&o, 4, argv, &e), &e);
    assert_string_equal(o.api_key, "other");
    options_free(&o);
    setenv("MOEFLUX_API_KEY", "", 1);
    assert_int_equal(options_parse(&o, 4, argv, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "MOEFLUX_API_KEY"));
    options_free(&o);
    unsetenv("MOEFLUX_API_KEY");
}

/* llama.cpp replaces them in the texts of its flag; what JSON or the defaults have stays. */
static void escape_sequences_of_breakers_are_replaced(void **state)
{
    char text[][40] = {"moeflux",
                       "-m",
                       "x",
                       "--dry-sequence-breakers",
                       "\\n",
                       "--dry-sequence-breaker",
                       "a\\x41\\\\n\\q\\",
                       "--dry-sequence-breakers=\\x00\\t"};
    static const char *const expected[] = {"\n", "aA\\n\\q\\", "\\x00\t"};
    char *argv[9] = {0};
    struct options o;
    struct moeflux_err e = {0};
    (void)state;
    for (int i = 0; i < 8; i++)
        argv[i] = text[i];
    check_ok(options_parse(&o, 8, argv, &e), &e);
    assert_int_equal(o.dry_breakers.n, 3);
    for (int i = 0; i < 3; i++)
        assert_string_equal(o.dry_breakers.values[i], expected[i]);
    options_free(&o);
    check_ok(options_parse(&o, 3, argv, &e), &e);
    assert_string_equal(o.dry_breakers.values[0], "\n");
    options_free(&o);
}

/* The first name of each row, or what is before its *, is in moeflux-coming-from(7). */
static void the_manual_names_every_flag(void **state)
{
    static char page[1 << 16];
    char name[96];
    (void)state;
    FILE *f = fopen("man/moeflux-coming-from.7", "r");
    assert_non_null(f);
    size_t n = 0;
    for (int c; (c = fgetc(f)) != EOF && n + 1 < sizeof page;)
        if (c != '\\')
            page[n++] = (char)c;
    page[n] = '\0';
    fclose(f);
    for (const struct foreign_flag *r = foreign_flags; r->names; r++) {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(r->names, ",*?"), r->names);
        if (!strstr(page, name))
            fail_msg("man/moeflux-coming-from.7 lacks %s", name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_of_others_become_ours_or_say_what_to_do),
        cmocka_unit_test(every_flag_of_llama_cpp_is_known),
        cmocka_unit_test(a_key_is_hidden_and_an_empty_one_refused),
        cmocka_unit_test(escape_sequences_of_breakers_are_replaced),
        cmocka_unit_test(the_manual_names_every_flag),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
