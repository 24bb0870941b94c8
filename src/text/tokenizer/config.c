#include "text/tokenizer/config.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/file.h"
#include "text/tokenizer/vocab.h"

/* The file repeats the added tokens, of which some models have thousands. */
#define MAX_CONFIG_BYTES  ((uint64_t)16 << 20)
#define MAX_CONFIG_VALUES (1 << 19)

/* --- post_processor --- */

static int fail_post(const char *what, struct moeflux_err *e)
{
    return err_set(e, ERR_UNSUPPORTED, "post_processor: %s", what);
}

/* Reads the single id of a template's special token. */
static int read_special(struct tokenizer *t, const json_t *template, const json_t *special,
                        struct moeflux_err *e)
{
    const char *name = json_string_value(json_object_get(special, "id"));
    const json_t *entry = name ? json_object_get(json_object_get(template, "special_tokens"), name) : NULL;
    const json_t *ids = json_object_get(entry, "ids");
    json_int_t id = json_integer_value(json_array_get(ids, 0));
    if (json_array_size(ids) != 1 || !json_is_integer(json_array_get(ids, 0)) || id < 0 ||
        id >= VOCAB_MAX_IDS)
        return err_set(e, ERR_FORMAT, "post_processor: special_tokens gives %s no single id",
                       json_quote_member(special, "id").text);
    if (t->bos >= 0)
        return fail_post("more than one token before a text", e);
    t->bos = (int32_t)id;
    return 0;
}

static int read_template(struct tokenizer *t, const json_t *template, struct moeflux_err *e)
{
    const json_t *single = json_object_get(template, "single"), *item;
    bool seen_text = false;
    if (!json_is_array(single))
        return err_set(e, ERR_FORMAT, "post_processor: single is missing or not an array");
    size_t i;
    json_array_foreach(single, i, item)
    {
        const json_t *special = json_object_get(item, "SpecialToken");
        if (special && seen_text)
            return fail_post("a token after the text, which would stand inside a continued prompt", e);
        int rc = special ? read_special(t, template, special, e) : 0;
        if (rc < 0)
            return rc;
        if (!special && !json_object_get(item, "Sequence"))
            return err_set(e, ERR_FORMAT, "post_processor: single[%zu] is neither SpecialToken nor Sequence",
                           i);
        seen_text = seen_text || !special;
    }
    return 0;
}

static int read_post_step(struct tokenizer *t, const json_t *step, struct moeflux_err *e)
{
    const json_t *type = json_object_get(step, "type");
    /* ByteLevel only changes the offsets of tokens. */
    if (json_is_text(type, "ByteLevel"))
        return 0;
    if (json_is_text(type, "TemplateProcessing"))
        return read_template(t, step, e);
    return err_set(e, ERR_UNSUPPORTED, "post_processor: type %s, expected ByteLevel or TemplateProcessing",
                   json_quote_member(step, "type").text);
}

int tokenizer_config_post(struct tokenizer *t, const json_t *root, struct moeflux_err *e)
{
    const json_t *post = json_member(root, "post_processor"), *step;
    t->bos = -1;
    if (!post)
        return 0;
    if (!json_is_text(json_object_get(post, "type"), "Sequence"))
        return read_post_step(t, post, e);
    const json_t *steps = json_object_get(post, "processors");
    if (!json_is_array(steps))
        return err_set(e, ERR_FORMAT, "post_processor: processors is missing or not an array");
    size_t i;
    json_array_foreach(steps, i, step)
    {
        int rc = read_post_step(t, step, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* --- the files next to tokenizer.json --- */

int tokenizer_config_sibling(const char *path, const char *name, char **where, char **text, size_t *len,
                             struct moeflux_err *e)
{
    const char *slash = strrchr(path, '/');
    char *dir = mem_text(slash ? path : ".", e);
    if (!dir)
        return ERR_MEMORY;
    if (slash)
        dir[slash - path + (slash == path)] = '\0';
    *where = file_join(dir, name, e);
    free(dir);
    if (!*where)
        return ERR_MEMORY;
    return file_exists(*where) ? file_read_text(*where, MAX_CONFIG_BYTES, text, len, e) : 0;
}

/* A token is given as its text or as an object with "content". */
static int read_bos(struct tokenizer *t, const json_t *root, const char *where, struct moeflux_err *e)
{
    const json_t *add = json_member(root, "add_bos_token"), *token = json_member(root, "bos_token");
    if (!add)
        return 0;
    if (!json_is_boolean(add))
        return err_set(e, ERR_FORMAT, "%s: add_bos_token is not a boolean", where);
    t->bos = -1;
    if (!json_is_true(add))
        return 0;
    const char *content =
        json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
    if (!content)
        return err_set(e, ERR_FORMAT, "%s: add_bos_token is true, but bos_token is missing or not a string",
                       where);
    t->bos = tokenizer_added_id(t, content);
    if (t->bos < 0)
        return err_set(e, ERR_FORMAT, "%s: bos_token %s is not among the added tokens", where,
                       quote_bytes(content, strlen(content)).text);
    return 0;
}

/* Returns the template, or the one of this name from a list of templates; NULL: there is none. */
static const char *template_of(const json_t *root, const char *name)
{
    const json_t *template = json_member(root, "chat_template"), *item;
    if (!json_is_array(template))
        return strcmp(name, "default") == 0 ? json_string_value(template) : NULL;
    size_t i;
    json_array_foreach(template, i, item)
    {
        if (json_is_text(json_object_get(item, "name"), name))
            return json_string_value(json_object_get(item, "template"));
    }
    return NULL;
}

static int copy_template(const json_t *root, const char *name, char **copy, struct moeflux_err *e)
{
    const char *template = template_of(root, name);
    return template && !(*copy = mem_text(template, e)) ? ERR_MEMORY : 0;
}

/* Reads the members named ..._token: a string, or an object with "content". A known name keeps its text. */
static int read_special_texts(struct tokenizer *t, json_t *root, struct moeflux_err *e)
{
    static const char tail[] = "_token";
    const char *name;
    json_t *value;
    if (!t->special_texts && !(t->special_texts = json_object()))
        return err_set(e, ERR_MEMORY, "out of memory");
    json_object_foreach(root, name, value)
    {
        size_t n = strlen(name), n_tail = sizeof tail - 1;
        json_t *text = json_is_object(value) ? json_object_get(value, "content") : value;
        if (n < n_tail || strcmp(name + n - n_tail, tail) != 0 || !json_is_string(text) ||
            json_object_get(t->special_texts, name))
            continue;
        if (json_object_set(t->special_texts, name, text) < 0)
            return err_set(e, ERR_MEMORY, "out of memory");
    }
    return 0;
}

int tokenizer_config_read_text(struct tokenizer *t, const char *text, size_t len, const char *where,
                               struct moeflux_err *e)
{
    json_t *root = NULL;
    int rc = json_read(text, len, where, MAX_CONFIG_VALUES, &root, e);
    if (rc == 0)
        rc = read_bos(t, root, where, e);
    if (rc == 0)
        rc = read_special_texts(t, root, e);
    if (rc == 0)
        rc = copy_template(root, "default", &t->chat_template, e);
    if (rc == 0)
        rc = copy_template(root, "tool_use", &t->tool_template, e);
    json_decref(root);
    return rc;
}

/* Older checkpoints have the special tokens' texts in this file only. */
static int read_special_map(struct tokenizer *t, const char *path, struct moeflux_err *e)
{
    char *where = NULL, *text = NULL;
    size_t len = 0;
    json_t *root = NULL;
    int rc = tokenizer_config_sibling(path, "special_tokens_map.json", &where, &text, &len, e);
    if (rc == 0 && text)
        rc = json_read(text, len, where, MAX_CONFIG_VALUES, &root, e);
    if (rc == 0)
        rc = read_special_texts(t, root, e);
    json_decref(root);
    free(text);
    free(where);
    return rc;
}

/* Reads the files of templates, which win over all templates of tokenizer_config.json, as in transformers. */
static int read_template_files(struct tokenizer *t, const char *path, struct moeflux_err *e)
{
    static const char *const names[] = {"chat_template.jinja", "additional_chat_templates/tool_use.jinja"};
    char **const kept[] = {&t->chat_template, &t->tool_template};
    bool is_first = true;
    int rc = 0;
    for (int i = 0; i < 2 && rc == 0; i++) {
        char *where = NULL, *text = NULL;
        size_t len = 0;
        rc = tokenizer_config_sibling(path, names[i], &where, &text, &len, e);
        free(where);
        if (rc < 0 || !text)
            continue;
        if (is_first) {
            free(t->tool_template);
            t->tool_template = NULL;
        }
        is_first = false;
        free(*kept[i]);
        *kept[i] = text;
    }
    return rc;
}

int tokenizer_config_read(struct tokenizer *t, const char *path, struct moeflux_err *e)
{
    char *where = NULL, *text = NULL;
    size_t len = 0;
    int rc = tokenizer_config_sibling(path, "tokenizer_config.json", &where, &text, &len, e);
    if (rc == 0 && text)
        rc = tokenizer_config_read_text(t, text, len, where, e);
    free(text);
    free(where);
    if (rc == 0)
        rc = read_special_map(t, path, e);
    return rc < 0 ? rc : read_template_files(t, path, e);
}
