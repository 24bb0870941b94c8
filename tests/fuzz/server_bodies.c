/* Bodies of requests to the server. */
#include <string.h>

#include "fuzz/target.h"
#include "generate/generator.h"
#include "generate/choice.h"
#include "api/api_request.h"
#include "api/dialect.h"
#include "api/refusal.h"

static void check_request(const struct api_request *c, const struct generator *g)
{
    target_need(c->n_choices > 0 && c->n_choices % c->n == 0, "a request without its choices");
    for (uint32_t i = 0; i < c->n_choices; i++) {
        const struct choice *j = api_request_choice(c, i);
        size_t n = j->request.tokens.n;
        target_need(n > 0 && n <= g->max_context, "a prompt that is empty or too long");
        for (size_t k = 0; k < n; k++)
            target_need(j->request.tokens.ids[k] >= 0 &&
                            j->request.tokens.ids[k] < (int32_t)g->info.vocab_size,
                        "an id that the model does not have");
        for (uint32_t k = 0; k < j->stops.n; k++)
            target_need(j->stops.at[k] > 0 && j->stops.at[k] < n &&
                            (!k || j->stops.at[k - 1] < j->stops.at[k]),
                        "a place that is not inside the prompt");
    }
}

/* Returns the dialect of a body, by its first byte, which is skipped; most are chats. */
static const struct dialect *choose_dialect(const uint8_t **data, size_t *n)
{
    static const struct {
        uint8_t mark;
        const struct dialect *dialect;
    } marks[] = {{'#', &dialect_completions}, {'@', &dialect_responses}, {'&', &dialect_messages}};
    for (size_t i = 0; *n > 0 && i < sizeof marks / sizeof *marks; i++) {
        if (**data != marks[i].mark)
            continue;
        ++*data;
        --*n;
        return marks[i].dialect;
    }
    return &dialect_chat;
}

void target_completions(const uint8_t *data, size_t n)
{
    static struct generator g;
    static const struct api_request_defaults defaults = {
        {.predict = 8,
         .seed = -1,
         .sampling = {.temperature = 1, .top_p = 1, .repeat_penalty = 1},
         .logprobs = REQUEST_NO_LOGPROBS},
        .turns = true};
    struct moeflux_err e = {0};
    struct refusal refusal = {0};
    struct api_request c;
    const struct dialect *d = choose_dialect(&data, &n);
    if (!g.tokenizer)
        g = (struct generator){.dir = "tests/models/tiny",
                               .max_context = 256,
                               .info = {.vocab_size = 2048, .chat_template = "qwen3.5"},
                               .tokenizer = tokenizer_open("tests/models/tiny/tokenizer.json", &e)};
    target_need(g.tokenizer != NULL, "no tokenizer; run it from the repository's root");
    int rc = dialect_read(d, &c, (const char *)data, n, &g, &defaults, &refusal);
    target_need((rc == 0) == (refusal.status == 0), "a refusal without its reason");
    if (rc == 0)
        check_request(&c, &g);
    else
        target_need(refusal.status >= 400 && refusal.text[0] &&
                        memchr(refusal.text, 0, sizeof refusal.text) != NULL,
                    "a refusal without a text");
    api_request_free(&c);
}
