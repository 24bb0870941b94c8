#include "server/stored.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "api/response_store.h"
#include "server/endpoints.h"
#include "server/http_request.h"
#include "server/state.h"
#include "text/utf8.h"

static int refuse(struct http_request *req, const char *id)
{
    refusal_set(&req->refusal, 404, "response_id", "response_not_found", "there is no response %.100s", id);
    return http_request_refuse(req);
}

/* Replies with a list of input items. Takes ownership of `items`. */
static int reply_items(struct http_request *req, json_t *items)
{
    return http_request_reply_json(
        req, json_pack("{s: s, s: o, s: b}", "object", "list", "data", items, "has_more", 0));
}

int stored_get(struct http_request *req)
{
    static const char items[] = "/input_items";
    struct response_store *s = req->server->responses;
    const char *id = endpoints_rest(req), *end = strchr(id, '/');
    char own[100];
    if (end && strcmp(end, items) == 0) {
        snprintf(own, sizeof own, "%.*s", (int)(end - id), id);
        json_t *input = response_store_input(s, own);
        return input ? reply_items(req, input) : refuse(req, own);
    }
    json_t *response = response_store_get(s, id);
    return response ? http_request_reply_json(req, response) : refuse(req, id);
}

int stored_delete(struct http_request *req)
{
    const char *id = endpoints_rest(req);
    if (!response_store_delete(req->server->responses, id))
        return refuse(req, id);
    return http_request_reply_json(req, json_pack("{s: o, s: s, s: b}", "id", utf8_json(id, strlen(id)),
                                                  "object", "response", "deleted", 1));
}
