#include "server/tokens.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>

#include "api/fields.h"
#include "base/err.h"
#include "server/http_request.h"
#include "server/reading.h"
#include "server/state.h"
#include "text/utf8.h"

/* ---- a text to ids ---- */

/* Returns a token with its text, or with its bytes if they are not whole characters. */
static json_t *piece_json(const struct moeflux_tokenizer *t, int32_t id)
{
    const char *bytes;
    size_t n = moeflux_tokenizer_bytes(t, id, &bytes);
    json_t *piece = NULL;
    if (n == 0 || utf8_is_valid(bytes, n)) {
        piece = utf8_json(n ? bytes : "", n);
    } else {
        piece = json_array();
        for (size_t i = 0; i < n; i++)
            json_array_append_new(piece, json_integer((unsigned char)bytes[i]));
    }
    return json_pack("{s: i, s: o}", "id", (int)id, "piece", piece);
}

static int encode(struct http_request *req, const json_t *in)
{
    const struct server *s = req->server;
    struct moeflux_err e;
    const json_t *content = fields_get(in, "content");
    bool add_special = fields_bool(in, "add_special", false, &req->refusal);
    bool special = fields_bool(in, "parse_special", true, &req->refusal);
    req->with_pieces = fields_bool(in, "with_pieces", false, &req->refusal);
    if (!json_is_string(content))
        refusal_field(&req->refusal, "content", "content: expected a text, found %s", fields_kind(content));
    if (req->refusal.status)
        return -1;
    const char *text = json_string_value(content);
    size_t len = json_string_length(content);
    if (len > s->reader.most_prompt_bytes)
        return refusal_set(&req->refusal, 400, "content", "context_length_exceeded",
                           "content: %zu bytes, expected at most %" PRIu64 ": the context holds %u tokens",
                           len, s->reader.most_prompt_bytes, s->reader.max_context);
    int64_t n =
        moeflux_tokenizer_encode_all(s->tokenizer, text, len, special, add_special, &req->ids.ids, &e);
    if (n < 0)
        return refusal_of(&req->refusal, (int)n, &e);
    req->ids.n = req->ids.cap = (size_t)n;
    return 0;
}

static void write_token(struct http_request *req, int32_t id)
{
    if (!req->with_pieces) {
        str_addf(&req->out, "%" PRIi32, id);
        return;
    }
    json_t *piece = piece_json(req->server->tokenizer, id);
    char *text = piece ? json_dumps(piece, JSON_COMPACT) : NULL;
    if (text)
        str_add_text(&req->out, text);
    else
        req->out.failed = true;
    free(text);
    json_decref(piece);
}

/* Writes the next part of the reply. The whole would take 20 times the memory of the ids. */
static long read_ids(void *ctx, uint64_t pos, char *buf, size_t most)
{
    enum { PART = 1000 };
    struct http_request *req = ctx;
    if (req->out_pos == req->out.len && !req->ended) {
        str_clear(&req->out);
        req->out_pos = 0;
        str_add_text(&req->out, pos == 0 ? "{\"tokens\":[" : "");
        for (size_t i = 0; i < PART && req->n_sent < req->ids.n; i++) {
            str_add_text(&req->out, req->n_sent ? "," : "");
            write_token(req, req->ids.ids[req->n_sent++]);
        }
        req->ended = req->n_sent == req->ids.n;
        str_add_text(&req->out, req->ended ? "]}" : "");
    }
    return http_request_read_out(req, buf, most);
}

int tokens_reply_ids(struct http_request *req)
{
    if (reading_begin(req))
        return http_request_refuse(req);
    json_t *in = fields_parse(str_text(&req->body), req->body.len, &req->refusal);
    if (in)
        encode(req, in);
    json_decref(in);
    reading_end(req);
    reading_give(req);
    return req->refusal.status ? http_request_refuse(req)
                               : http_request_reply_stream(req, "application/json", read_ids);
}

/* ---- ids to a text ---- */

static void decode(struct http_request *req, const json_t *ids, struct str *text)
{
    const struct server *s = req->server;
    for (size_t i = 0; !req->refusal.status && i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        int64_t k = json_is_integer(id) ? json_integer_value(id) : -1;
        const char *bytes;
        if (k < 0 || k >= (int64_t)s->reader.info.vocab_size) {
            refusal_field(&req->refusal, "tokens", "tokens: expected token ids from 0 to %u",
                          s->reader.info.vocab_size - 1);
            return;
        }
        size_t n = moeflux_tokenizer_bytes(s->tokenizer, (int32_t)k, &bytes);
        str_add(text, n ? bytes : "", n);
        if (text->len > SERVER_MAX_BODY)
            refusal_field(&req->refusal, "tokens", "tokens: their text has more than %d bytes",
                          SERVER_MAX_BODY);
    }
}

int tokens_reply_text(struct http_request *req)
{
    struct str text = {0};
    if (reading_begin(req))
        return http_request_refuse(req);
    json_t *in = fields_parse(str_text(&req->body), req->body.len, &req->refusal);
    const json_t *ids = in ? fields_array(in, "tokens", &req->refusal) : NULL;
    if (in && !ids)
        refusal_field(&req->refusal, "tokens", "tokens is missing");
    decode(req, ids, &text);
    json_decref(in);
    int rc = req->refusal.status
                 ? http_request_refuse(req)
                 : http_request_reply_json(
                       req, json_pack("{s: o}", "content", utf8_json(str_text(&text), text.len)));
    str_free(&text);
    reading_end(req);
    reading_give(req);
    return rc;
}
