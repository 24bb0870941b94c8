#include "cli/report/logprob_lines.h"

#include <jansson.h>
#include <stdlib.h>

#include "base/str.h"
#include "cli/say.h"
#include "generate/answer.h"
#include "text/utf8.h"

enum { TEXT_COLUMNS = 16 };

/* Adds "-0.0123 "text"": the text is quoted, so that a space or a line feed can be seen. */
static void add(struct str *to, const struct tokenizer *t, const struct logprob *l, int columns)
{
    const char *bytes = "";
    size_t n = t ? tokenizer_bytes(t, l->id, &bytes) : 0;
    json_t *text = t ? utf8_json(n ? bytes : "", n) : json_integer(l->id);
    char *quoted = json_dumps(text, JSON_ENCODE_ANY);
    str_addf(to, "%9.4f %-*s", (double)l->value, columns, quoted ? quoted : "");
    free(quoted);
    json_decref(text);
}

void logprob_lines_say(const struct tokenizer *t, const struct answer *a)
{
    const struct logprobs *l = &a->logprobs;
    struct str lines = {0};
    if (l->n > 0)
        str_addf(&lines, "%6s %9s %-*s%s\n", "token", "logprob", TEXT_COLUMNS, "text",
                 l->n_top ? "   likeliest" : "");
    for (size_t i = 0; i < l->n; i++) {
        const struct logprob *of = logprobs_of(l, i);
        str_addf(&lines, "%6zu ", i + 1);
        add(&lines, t, &of[0], l->n_top ? TEXT_COLUMNS : 0);
        for (uint32_t k = 1; k <= l->n_top && of[k].id >= 0; k++)
            add(&lines, t, &of[k], 0);
        str_add_text(&lines, "\n");
    }
    say_text(&lines);
    str_free(&lines);
}
