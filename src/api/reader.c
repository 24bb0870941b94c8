#include "api/reader.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"
#include "generate/chat_api.h"
#include "generate/generator.h"
#include "text/tokenizer/tokenizer.h"

int api_reader_open(struct api_reader *r, struct moeflux_chat *chat, const struct moeflux_request *asked,
                    uint32_t context, const struct moeflux_progress *progress, struct moeflux_err *e)
{
    struct generator *all = &chat->generator;
    int rc = chat_api_read_how(chat, asked, &r->how, e);
    r->defaults.options = r->how.options;
    if (!rc)
        rc = generator_prepare(all, context, e);
    if (rc)
        return rc;
    if (progress)
        tokenizer_set_progress(all->tokenizer, progress);
    if (!(r->generator = mem_new(1, sizeof *r->generator, e)))
        return ERR_MEMORY;
    generator_share(r->generator, all, 0);
    r->generator->model = NULL;
    r->info = all->info;
    r->max_context = all->max_context;
    r->most_prompt_bytes = all->most_prompt_bytes;
    return 0;
}

void api_reader_close(struct api_reader *r)
{
    if (r->generator)
        generator_unshare(r->generator);
    free(r->generator);
    request_free(&r->how);
    *r = (struct api_reader){0};
}

struct json_t *api_reader_special_texts(const struct api_reader *r)
{
    return (struct json_t *)(uintptr_t)tokenizer_special_texts(r->generator->tokenizer);
}
