#include "text/tokenizer/gguf_file.h"

#include "base/err.h"
#include "base/gguf.h"
#include "base/mem.h"
#include "text/tokenizer/config.h"
#include "text/tokenizer/file.h"
#include "text/tokenizer/gguf_vocab.h"

static int read_template(const struct gguf *g, struct tokenizer *t, struct moeflux_err *e)
{
    struct str text = {0};
    int rc = gguf_vocab_template(g, &text, e);
    if (rc == 0 && text.len > 0 && !(t->chat_template = mem_text(str_text(&text), e)))
        rc = ERR_MEMORY;
    str_free(&text);
    return rc;
}

int tokenizer_gguf_read(const char *path, struct tokenizer *t, struct moeflux_err *e)
{
    struct gguf g;
    struct str text = {0};
    int rc = gguf_open(&g, path, e);
    if (rc < 0)
        return rc;
    rc = gguf_vocab_tokenizer(&g, &text, e);
    if (rc == 0)
        rc = tokenizer_file_read_text(path, text.data, text.len, t, e);
    str_clear(&text);
    if (rc == 0)
        rc = gguf_vocab_config(&g, &text, e);
    if (rc == 0)
        rc = tokenizer_config_read_text(t, text.data, text.len, path, e);
    if (rc == 0)
        rc = read_template(&g, t, e);
    str_free(&text);
    gguf_close(&g);
    return rc;
}
