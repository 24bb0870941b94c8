#include "api/response_store.h"

#include <jansson.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

enum { MOST_RESPONSES = 4096 };

struct entry {
    struct entry *previous;      /* the response that it continues; NULL: none */
    struct entry *older, *newer; /* neighbours in the list */
    char *input, *response;      /* JSON */
    size_t bytes;
    uint32_t n_next; /* entries that continue it */
    bool listed;
    char id[64];
};

struct response_store {
    pthread_mutex_t lock;
    struct entry *oldest, *newest;
    size_t n_bytes, most_bytes;
    uint32_t n_listed;
};

struct response_store *response_store_new(size_t most_bytes, struct moeflux_err *e)
{
    struct response_store *s = mem_new(1, sizeof *s, e);
    if (!s)
        return NULL;
    s->most_bytes = most_bytes;
    if (pthread_mutex_init(&s->lock, NULL) == 0)
        return s;
    err_set(e, ERR_MEMORY, "no mutex for the responses");
    free(s);
    return NULL;
}

/* Frees an entry that nobody can find or continues, then those before it that are so. */
static void release(struct response_store *s, struct entry *x)
{
    while (x && !x->listed && x->n_next == 0) {
        struct entry *previous = x->previous;
        s->n_bytes -= x->bytes;
        if (previous)
            previous->n_next--;
        free(x->input);
        free(x->response);
        free(x);
        x = previous;
    }
}

static void unlist(struct response_store *s, struct entry *x)
{
    *(x->older ? &x->older->newer : &s->oldest) = x->newer;
    *(x->newer ? &x->newer->older : &s->newest) = x->older;
    x->listed = false;
    s->n_listed--;
    release(s, x);
}

void response_store_free(struct response_store *s)
{
    if (!s)
        return;
    while (s->oldest)
        unlist(s, s->oldest);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

static struct entry *find(const struct response_store *s, const char *id)
{
    struct entry *x = s->newest;
    while (x && strcmp(x->id, id) != 0)
        x = x->older;
    return x;
}

/* Makes an entry; NULL: no memory. */
static struct entry *new_entry(const json_t *input, const json_t *response)
{
    const char *id = json_string_value(json_object_get(response, "id"));
    struct entry *x = calloc(1, sizeof *x);
    if (x) {
        x->input = json_dumps(input, JSON_COMPACT);
        x->response = json_dumps(response, JSON_COMPACT);
    }
    if (x && x->input && x->response && id && strlen(id) < sizeof x->id) {
        memcpy(x->id, id, strlen(id) + 1);
        x->bytes = sizeof *x + strlen(x->input) + strlen(x->response);
        return x;
    }
    if (x) {
        free(x->input);
        free(x->response);
    }
    free(x);
    return NULL;
}

void response_store_put(struct response_store *s, const char *previous, const struct json_t *input,
                        const struct json_t *response)
{
    struct entry *x = new_entry(input, response);
    if (!x)
        return;
    pthread_mutex_lock(&s->lock);
    x->previous = previous ? find(s, previous) : NULL;
    /* What it continues may be gone by now; then it would be a conversation with a hole. */
    bool whole = !previous || x->previous;
    if (x->previous)
        x->previous->n_next++;
    s->n_bytes += x->bytes;
    x->listed = true;
    x->older = s->newest;
    *(s->newest ? &s->newest->newer : &s->oldest) = x;
    s->newest = x;
    s->n_listed++;
    if (!whole)
        unlist(s, x);
    while (s->oldest && (s->n_bytes > s->most_bytes || s->n_listed > MOST_RESPONSES))
        unlist(s, s->oldest);
    pthread_mutex_unlock(&s->lock);
}

static json_t *parse(const char *text)
{
    return json_loads(text, JSON_ALLOW_NUL, NULL);
}

struct json_t *response_store_get(struct response_store *s, const char *id)
{
    pthread_mutex_lock(&s->lock);
    const struct entry *x = find(s, id);
    json_t *response = x ? parse(x->response) : NULL;
    pthread_mutex_unlock(&s->lock);
    return response;
}

struct json_t *response_store_input(struct response_store *s, const char *id)
{
    pthread_mutex_lock(&s->lock);
    const struct entry *x = find(s, id);
    json_t *input = x ? parse(x->input) : NULL;
    pthread_mutex_unlock(&s->lock);
    return input;
}

/* Appends the items of an entry. Returns 0, or -1: no memory. */
static int append_items(json_t *items, const struct entry *x)
{
    json_t *input = parse(x->input), *response = parse(x->response);
    int rc = json_array_extend(items, input);
    if (rc == 0)
        rc = json_array_extend(items, json_object_get(response, "output"));
    json_decref(input);
    json_decref(response);
    return rc;
}

/* Returns the items of a conversation; NULL: no memory. */
static json_t *collect_items(const struct entry *last)
{
    size_t n = 0;
    for (const struct entry *x = last; x; x = x->previous)
        n++;
    const struct entry **chain = calloc(n, sizeof *chain);
    json_t *items = json_array();
    int rc = chain && items ? 0 : -1;
    size_t first = n;
    for (const struct entry *x = last; rc == 0 && x; x = x->previous)
        chain[--first] = x;
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = append_items(items, chain[i]);
    free(chain);
    if (rc == 0)
        return items;
    json_decref(items);
    return NULL;
}

struct json_t *response_store_items(struct response_store *s, const char *id)
{
    pthread_mutex_lock(&s->lock);
    const struct entry *x = find(s, id);
    json_t *items = x ? collect_items(x) : NULL;
    pthread_mutex_unlock(&s->lock);
    return items;
}

bool response_store_delete(struct response_store *s, const char *id)
{
    pthread_mutex_lock(&s->lock);
    struct entry *x = find(s, id);
    if (x)
        unlist(s, x);
    pthread_mutex_unlock(&s->lock);
    return x != NULL;
}
