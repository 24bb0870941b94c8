#include "base/token_list.h"

#include <stdlib.h>

#include "base/mem.h"

int token_list_add(struct token_list *l, int32_t id, struct moeflux_err *e)
{
    if (l->n == l->cap) {
        void *ids = l->ids;
        int rc = mem_grow(&ids, &l->cap, l->n + 1, sizeof *l->ids, e);
        if (rc < 0)
            return rc;
        l->ids = ids;
    }
    l->ids[l->n++] = id;
    return 0;
}

int token_list_resize(struct token_list *l, size_t n, struct moeflux_err *e)
{
    void *ids = l->ids;
    int rc = mem_grow(&ids, &l->cap, n, sizeof *l->ids, e);
    if (rc < 0)
        return rc;
    l->ids = ids;
    l->n = n;
    return 0;
}

void token_list_free(struct token_list *l)
{
    free(l->ids);
    *l = (struct token_list){0};
}
