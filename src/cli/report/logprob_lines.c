#include "cli/report/logprob_lines.h"

#include <jansson.h>
#include <stdlib.h>

#include "base/str.h"
#include "cli/say.h"
#include "text/utf8.h"

enum { TEXT_COLUMNS = 16 };

/* Adds "-0.0123 "text"": the text is quoted, so that a space or a line feed can be seen. */
static void add(struct str *to, const struct moeflux_tokenizer *t, const struct moeflux_logprob *l,
                int columns)
{
    const char *bytes = "";
    size_t n = t ? moeflux_tokenizer_bytes(t, l->id, &bytes) : 0;
    json_t *text = t ? utf8_json(n ? bytes : "", n) : json_integer(l->id);
    char *quoted = json_dumps(text, JSON_ENCODE_ANY);
    str_addf(to, "%9.4f %-*s", (double)l->value, columns, quoted ? quoted : "");
    free(quoted);
    json_decref(text);
}

void logprob_lines_say(const struct moeflux_tokenizer *t, const struct moeflux_answer_info *a)
{
    uint32_t n = a->logprobs ? a->n_tokens : 0, n_top = a->n_logprobs;
    struct str lines = {0};
    if (n > 0)
        str_addf(&lines, "%6s %9s %-*s%s\n", "token", "logprob", TEXT_COLUMNS, "text",
                 n_top ? "   likeliest" : "");
    for (uint32_t i = 0; i < n; i++) {
        const struct moeflux_logprob *of = a->logprobs + (size_t)i * (1 + n_top);
        str_addf(&lines, "%6u ", i + 1);
        add(&lines, t, &of[0], n_top ? TEXT_COLUMNS : 0);
        for (uint32_t k = 1; k <= n_top && of[k].id >= 0; k++)
            add(&lines, t, &of[k], 0);
        str_add_text(&lines, "\n");
    }
    say_text(&lines);
    str_free(&lines);
}
