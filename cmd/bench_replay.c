#include "cmd/bench_replay.h"

#include <errno.h>
#include <yyjson.h>

#include "base/json_read.h"
#include "base/try.h"
#include "cmd/cli.h"

struct reader {
    const struct gguf *model;
    /* made when the first text has to be tokenised */
    struct tokenizer *tokenizer;
    uint32_t n_vocab;
    struct err *err;
};

static int replay_add_text(struct reader *r, yyjson_val *v, unsigned flags, struct tokens *out) {
    TRY(r->tokenizer ? 0 : tokenizer_new(&r->tokenizer, r->model, r->err));
    return tokenizer_encode(r->tokenizer, json_text(v), json_len(v), flags | TOKENIZE_SPECIAL, NULL,
                            0, out);
}

/* Adds the tokens of @v, which is text or an array of ids. Returns 0 or -errno. */
static int replay_add_part(struct reader *r, uint32_t number, const char *name, yyjson_val *v,
                           unsigned flags, struct tokens *out) {
    size_t before = out->n;

    if (yyjson_is_str(v))
        TRY(replay_add_text(r, v, flags, out));
    else if (!yyjson_is_arr(v))
        return err_set(r->err, 0, NULL, "request %u: %s is neither text nor an array of token ids",
                       number, name);
    JSON_EACH_AT(i, id, v) {
        if (!yyjson_is_uint(id) || yyjson_get_uint(id) >= r->n_vocab)
            return err_set(r->err, 0, NULL, "request %u: %s[%zu] is not a token id below %u",
                           number, name, i, r->n_vocab);
        TRY(tokens_add(out, (int32_t)yyjson_get_uint(id)));
    }
    if (out->n <= before)
        return err_set(r->err, 0, NULL, "request %u: %s is empty", number, name);
    return 0;
}

/* Reads one object of the file as tokens. Returns 0 or -errno. */
static int replay_read_request(struct reader *r, struct replay *out, yyjson_val *v) {
    struct replay_request *q = &out->request[out->n++];

    q->token = (struct tokens){.max = REPLAY_TOKENS_MAX};
    TRY(replay_add_part(r, out->n, "prompt", yyjson_obj_get(v, "prompt"), TOKENIZE_BOS, &q->token));
    q->n_prompt = (uint32_t)q->token.n;
    TRY(replay_add_part(r, out->n, "output", yyjson_obj_get(v, "output"), 0, &q->token));
    q->prediction = (struct tokens){.max = REPLAY_TOKENS_MAX};
    if (yyjson_obj_get(v, "prediction"))
        TRY(replay_add_part(r, out->n, "prediction", yyjson_obj_get(v, "prediction"), 0,
                            &q->prediction));
    out->longest = MAX(out->longest, (uint32_t)q->token.n);
    return 0;
}

static int read_requests(struct reader *r, struct replay *out, yyjson_val *root) {
    yyjson_val *list = yyjson_obj_get(root, "requests");
    size_t n = list ? yyjson_arr_size(list) : 1;

    if (!yyjson_is_obj(root) || n == 0)
        return err_set(r->err, 0, NULL, "the file contains no requests");
    if (n > REPLAY_REQUESTS_MAX)
        return err_set(r->err, 0, NULL, "%zu requests, at most %u", n, REPLAY_REQUESTS_MAX);
    out->request = calloc(n, sizeof(*out->request));
    if (!out->request)
        return -ENOMEM;
    if (!list)
        return replay_read_request(r, out, root);
    JSON_EACH(v, list) TRY(replay_read_request(r, out, v));
    return 0;
}

int replay_read(struct replay *out, const char *path, const struct gguf *model, struct err *err) {
    const struct tensor *embd = gguf_find(model, "token_embd.weight");
    struct reader r = {.model = model, .n_vocab = embd ? (uint32_t)embd->ne[1] : 0, .err = err};
    CLEANUP(freep) char *text = NULL;
    struct replay replay = {0};
    size_t len;

    TRY(cli_read_file(path, (size_t)1 << 30, &text, &len));
    yyjson_doc *doc = yyjson_read(text, len, 0);
    int e;
    if (doc)
        e = read_requests(&r, &replay, yyjson_doc_get_root(doc));
    else
        e = err_set(err, 0, NULL, "not JSON");
    yyjson_doc_free(doc);
    tokenizer_free(r.tokenizer);
    if (e < 0)
        replay_deinit(&replay);
    else
        *out = replay;
    return e;
}

static void request_deinit(struct replay_request *q) {
    tokens_deinit(&q->token);
    tokens_deinit(&q->prediction);
}

void replay_deinit(struct replay *r) {
    for (uint32_t i = 0; i < r->n; i++)
        request_deinit(&r->request[i]);
    free(r->request);
    *r = (struct replay){0};
}
