#include "cmd/bench_recorded.h"

#include <ctype.h>
#include <errno.h>
#include "base/hash_index.h"
#include "base/json_read.h"
#include "base/try.h"
#include "base/util.h"

#define MOONCAKE_BLOCK 512u
#define BLOCK_MAX (1u << 20) /* most tokens of a block */

struct reader {
    struct recorded *out;
    struct err *err;
    struct hash_index named; /* index of sessions that have an id */
    uint32_t number;         /* number of the object in the file, from 1 */
};

static int refuse(const struct reader *r, const char *what) {
    return err_set(r->err, 0, NULL, "object %u of the trace: %s", r->number, what);
}

/* Reads a number in [@least, @most]. */
static int number(const struct reader *r, yyjson_val *row, const char *key, double least,
                  double most, double *out) {
    yyjson_val *v = yyjson_obj_get(row, key);
    double d = yyjson_get_num(v);

    if (!yyjson_is_num(v) || !(d >= least && d <= most))
        return err_set(r->err, 0, NULL, "object %u of the trace: %s is not a number from %g to %g",
                       r->number, key, least, most);
    *out = d;
    return 0;
}

/* Reads a time in seconds, which the trace has in units of @unit_s; @without if it is missing or
 * null. */
static int seconds(const struct reader *r, yyjson_val *row, const char *key, double unit_s,
                   double without, double *out) {
    yyjson_val *v = yyjson_obj_get(row, key);

    *out = without;
    if (!v || yyjson_is_null(v))
        return 0;
    TRY(number(r, row, key, 0, 1e12, out));
    *out *= unit_s;
    return 0;
}

static int add_session(struct reader *r, uint32_t *out) {
    struct recorded *x = r->out;

    if (!ARRAY_GROW(x->session, x->n_sessions, x->cap_sessions, 64))
        return -ENOMEM;
    *out = x->n_sessions++;
    x->session[*out] = (struct recorded_session){
        .last_s = -1, .first = RECORDED_NONE, .last = RECORDED_NONE, .next_sub = RECORDED_NONE};
    return 0;
}

static int add_turn(struct reader *r, uint32_t session, const struct recorded_turn *t) {
    struct recorded *x = r->out;
    struct recorded_session *s = &x->session[session];

    if (x->n_turns == RECORDED_TURNS_MAX)
        return refuse(r, "too many requests");
    if (!ARRAY_GROW(x->turn, x->n_turns, x->cap_turns, 256))
        return -ENOMEM;
    x->turn[x->n_turns] = *t;
    x->turn[x->n_turns].next = RECORDED_NONE;
    if (s->last == RECORDED_NONE)
        s->first = x->n_turns;
    else
        x->turn[s->last].next = x->n_turns;
    s->last = x->n_turns++;
    return 0;
}

/* Adds the names of the row's blocks; a name identifies a block only within @scope. */
static int add_blocks(struct reader *r, yyjson_val *row, uint32_t scope, struct recorded_turn *t) {
    struct recorded *x = r->out;
    yyjson_val *ids = yyjson_obj_get(row, "hash_ids");

    t->first_block = x->n_blocks;
    if (ids && !yyjson_is_null(ids) && !yyjson_is_arr(ids))
        return refuse(r, "hash_ids is no array");
    JSON_EACH(id, ids) {
        if (!yyjson_is_int(id) || x->n_blocks == UINT32_MAX / 2)
            return refuse(r, "hash_ids are not numbers, or too many");
        if (!ARRAY_GROW(x->block, x->n_blocks, x->cap_blocks, 1024))
            return -ENOMEM;
        x->block[x->n_blocks++] = hash_step(hash_step(scope, 1), yyjson_get_uint(id));
    }
    t->n_blocks = x->n_blocks - t->first_block;
    return 0;
}

/* Adds a request whose lengths are the members @in and @out_key of the row. */
static int add_request(struct reader *r, yyjson_val *row, uint32_t session, const char *in,
                       const char *out_key, uint32_t scope, struct recorded_turn *t) {
    double n_in, n_out;

    TRY(number(r, row, in, 1, RECORDED_TOKENS_MAX, &n_in));
    TRY(number(r, row, out_key, 0, RECORDED_TOKENS_MAX, &n_out));
    t->n_in = (uint32_t)n_in;
    t->n_out = MAX((uint32_t)n_out, 1u);
    TRY(add_blocks(r, row, scope, t));
    return add_turn(r, session, t);
}

static int read_weka(struct reader *r, yyjson_val *requests, uint32_t session,
                     uint32_t block_tokens, uint32_t depth);

/* Reads the sub-agent of @row, which begins after the parent's answer at @answer_s. */
static int read_sub(struct reader *r, yyjson_val *row, uint32_t block_tokens, uint32_t depth,
                    double answer_s, uint32_t *subs) {
    uint32_t sub;
    double at;

    if (depth == RECORDED_DEPTH_MAX)
        return refuse(r, "sub-agents are nested too deeply");
    TRY(seconds(r, row, "t", 1, 0, &at));
    TRY(add_session(r, &sub));
    r->out->session[sub].is_sub = true;
    r->out->session[sub].start_s = MAX(at - answer_s, 0);
    r->out->session[sub].next_sub = *subs;
    *subs = sub;
    return read_weka(r, yyjson_obj_get(row, "requests"), sub, block_tokens, depth + 1);
}

/* Reads the requests of a session in Weka's format. */
static int read_weka(struct reader *r, yyjson_val *requests, uint32_t session,
                     uint32_t block_tokens, uint32_t depth) {
    uint32_t subs = RECORDED_NONE, scope = r->number;
    double answer_s = -1, at, took;

    if (!yyjson_is_arr(requests))
        return refuse(r, "requests is no array");
    JSON_EACH(row, requests) {
        yyjson_val *type = yyjson_obj_get(row, "type");
        struct recorded_turn t = {.block_tokens = block_tokens, .subs = subs};

        if (yyjson_equals_str(type, "subagent")) {
            TRY(read_sub(r, row, block_tokens, depth, MAX(answer_s, 0), &subs));
            continue;
        }
        if (!yyjson_equals_str(type, "n") && !yyjson_equals_str(type, "s"))
            return refuse(r, "the type of a request is none of n, s and subagent");
        TRY(number(r, row, "t", 0, 1e12, &at));
        TRY(seconds(r, row, "think_time", 1, answer_s < 0 ? 0 : MAX(at - answer_s, 0), &t.pause_s));
        TRY(seconds(r, row, "api_time", 1, 0, &took));
        TRY(add_request(r, row, session, "in", "out", scope, &t));
        answer_s = at + took;
        subs = RECORDED_NONE;
    }
    if (subs == RECORDED_NONE)
        return 0;
    return add_turn(r, session, &(struct recorded_turn){.subs = subs});
}

/* Finds the session of a row in Mooncake's format, or adds one. */
static int session_of(struct reader *r, yyjson_val *row, uint32_t *out) {
    yyjson_val *v = yyjson_obj_get(row, "session_id");
    const char *text = json_text(v);
    size_t n = json_len(v);
    uint64_t id = 0;

    if (yyjson_is_int(v))
        id = hash_step(1, yyjson_get_uint(v)) | 1;
    for (size_t i = 0; i < n; i++)
        id = hash_step(id, (unsigned char)text[i]) | 1;
    HASH_INDEX_EACH(r->named, id >> 32, i) {
        *out = i;
        if (r->out->session[i].id == id)
            return 0;
    }
    TRY(add_session(r, out));
    r->out->session[*out].id = id;
    return id ? hash_index_add(&r->named, id >> 32, *out) : 0;
}

static int read_mooncake(struct reader *r, yyjson_val *row) {
    struct recorded_turn t = {.block_tokens = MOONCAKE_BLOCK, .subs = RECORDED_NONE};
    struct recorded_session *s;
    uint32_t session;
    double at;

    TRY(session_of(r, row, &session));
    s = &r->out->session[session];
    TRY(seconds(r, row, "timestamp", 1e-3, -1, &at));
    TRY(seconds(r, row, "delay", 1e-3, at < 0 || s->last_s < 0 ? 0 : MAX(at - s->last_s, 0),
                &t.pause_s));
    if (s->first == RECORDED_NONE)
        s->start_s = MAX(at, 0);
    if (at >= 0)
        s->last_s = at;
    return add_request(r, row, session, "input_length", "output_length", 0, &t);
}

static int read_object(struct reader *r, yyjson_val *root) {
    double block_tokens;
    uint32_t session;

    if (!yyjson_is_obj(root))
        return refuse(r, "it is no object");
    if (!yyjson_obj_get(root, "requests"))
        return read_mooncake(r, root);
    TRY(number(r, root, "block_size", 1, BLOCK_MAX, &block_tokens));
    TRY(add_session(r, &session));
    return read_weka(r, yyjson_obj_get(root, "requests"), session, (uint32_t)block_tokens, 0);
}

bool recorded_is(const char *text, size_t len) {
    while (len > 0 && isspace((unsigned char)*text))
        text++, len--;
    return len > 0 && *text == '{';
}

/* Reads one object after the other. @text is modified, and YYJSON_PADDING_SIZE zeros must follow
 * it. */
static int read_objects(struct reader *r, char *text, size_t len) {
    for (size_t at = 0;;) {
        yyjson_doc *doc;

        while (at < len && isspace((unsigned char)text[at]))
            at++;
        if (at == len)
            return 0;
        r->number++;
        int e =
            json_parse(&doc, text + at, len - at, YYJSON_READ_INSITU | YYJSON_READ_STOP_WHEN_DONE);
        if (e < 0)
            return e == -EINVAL ? refuse(r, "it is not JSON") : e;
        at += yyjson_doc_get_read_size(doc);
        e = read_object(r, yyjson_doc_get_root(doc));
        yyjson_doc_free(doc);
        TRY(e);
    }
}

int recorded_read(struct recorded *out, const char *text, size_t len, struct err *err) {
    CLEANUP(freep) char *own = calloc(1, len + YYJSON_PADDING_SIZE);
    struct recorded x = {0};
    struct reader r = {.out = &x, .err = err};

    if (!own)
        return -ENOMEM;
    memcpy(own, text, len);
    int e = read_objects(&r, own, len);
    hash_index_deinit(&r.named);
    if (e == 0 && x.n_turns == 0)
        e = err_set(err, 0, NULL, "the trace contains no requests");
    if (e < 0)
        recorded_deinit(&x);
    else
        *out = x;
    return e;
}

void recorded_deinit(struct recorded *r) {
    free(r->session);
    free(r->turn);
    free(r->block);
    *r = (struct recorded){0};
}
