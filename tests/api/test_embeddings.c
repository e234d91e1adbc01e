/* The vector of the scripted worker identifies its prompt: first and last token, length, mean or
 * not. */

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <yyjson.h>

#include "api/parts.h"
#include "stream.h"
#include "tiny.h"

#define EMBED "/v1/embeddings"

static void started(struct world *w) {
    world_init(w);
    w->port.script = "";
    world_start(w);
}

static yyjson_doc *ask(struct world *w, const char *body) {
    struct reply r;

    world_ask(w, EMBED, body, &r);
    cr_assert_eq(r.status, 200, "%s: %.*s", body, (int)r.body.len, r.body.data);
    yyjson_doc *d = yyjson_read(r.body.data, r.body.len, 0);
    cr_assert(d);
    reply_deinit(&r);
    return d;
}

static int digit(char c) {
    const char *all = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

    return (int)(strchr(all, c) - all);
}

/* Reads the floats of entry @i, in either format. */
static void vector_of(yyjson_doc *d, uint32_t i, float v[FAKE_EMBD]) {
    yyjson_val *data = yyjson_obj_get(yyjson_doc_get_root(d), "data");
    yyjson_val *entry = yyjson_arr_get(data, i), *e = yyjson_obj_get(entry, "embedding");
    uint8_t bytes[3 * 8];
    size_t n = 0;

    cr_assert_eq(yyjson_get_uint(yyjson_obj_get(entry, "index")), i);
    cr_assert(yyjson_equals_str(yyjson_obj_get(entry, "object"), "embedding"));
    if (yyjson_is_arr(e)) {
        cr_assert_eq(yyjson_arr_size(e), (size_t)FAKE_EMBD);
        for (uint32_t k = 0; k < FAKE_EMBD; k++)
            v[k] = (float)yyjson_get_num(yyjson_arr_get(e, k));
        return;
    }
    const char *s = yyjson_get_str(e);
    cr_assert_eq(yyjson_get_len(e), 24u); /* 16 bytes and two '=' */
    cr_assert_str_eq(s + 22, "==");
    for (size_t k = 0; k < 22; k += 4) {
        uint32_t x = (uint32_t)(digit(s[k]) << 18 | digit(s[k + 1]) << 12);

        if (k + 2 < 22)
            x |= (uint32_t)(digit(s[k + 2]) << 6 | digit(s[k + 3]));
        bytes[n++] = (uint8_t)(x >> 16);
        bytes[n++] = (uint8_t)(x >> 8);
        bytes[n++] = (uint8_t)x;
    }
    memcpy(v, bytes, FAKE_EMBD * sizeof(*v));
}

/* Asserts that entry @i is the vector of a prompt of @n tokens from @first to @last, of length 1 if
 * @unit. */
static void expect(yyjson_doc *d, uint32_t i, int first, int last, int n, bool mean, bool unit) {
    float v[FAKE_EMBD], want[FAKE_EMBD] = {(float)first, (float)last, (float)n, mean};
    float length = 0;

    vector_of(d, i, v);
    for (uint32_t k = 0; k < FAKE_EMBD; k++)
        length += want[k] * want[k];
    for (uint32_t k = 0; k < FAKE_EMBD; k++)
        cr_expect_float_eq(v[k], unit ? want[k] / sqrtf(length) : want[k], 1e-6, "entry %u, %u: %g",
                           i, k, (double)v[k]);
}

static uint64_t usage(yyjson_doc *d, const char *key) {
    return yyjson_get_uint(yyjson_obj_get(yyjson_obj_get(yyjson_doc_get_root(d), "usage"), key));
}

Test(embeddings, have_openai_s_shape) {
    struct world w;
    struct reply r;

    started(&w);
    world_ask(&w, EMBED, R"({"model":"tiny","input":"\u0003","normalize":false})", &r);
    reply_expect(&r, 200,
                 R"({"object":"list","data":[{"object":"embedding","index":0,)"
                 R"("embedding":[3,3,1,0]}],"model":"tiny",)"
                 R"("usage":{"prompt_tokens":1,"total_tokens":1}})");
    world_stop(&w);
}

Test(embeddings, take_text_and_ids_one_and_many_in_order) {
    struct world w;

    started(&w);
    yyjson_doc *d = ask(&w, R"({"input":"xyz"})");
    expect(d, 0, 'x', 'z', 3, false, true);
    yyjson_doc_free(d);
    d = ask(&w, R"({"input":["xyz","q"],"pooling":"mean"})");
    expect(d, 0, 'x', 'z', 3, true, true);
    expect(d, 1, 'q', 'q', 1, true, true);
    cr_expect_eq(usage(d, "prompt_tokens"), 4u);
    cr_expect_eq(usage(d, "total_tokens"), 4u);
    yyjson_doc_free(d);
    d = ask(&w, R"({"input":[{"text":"xyz"},{"type":"text","text":"q"},"b"]})");
    expect(d, 0, 'x', 'z', 3, false, true);
    expect(d, 1, 'q', 'q', 1, false, true);
    expect(d, 2, 'b', 'b', 1, false, true);
    yyjson_doc_free(d);
    d = ask(&w, R"({"input":[7,8,9,10],"encoding_format":"base64"})");
    expect(d, 0, 7, 10, 4, false, true);
    yyjson_doc_free(d);
    d = ask(&w, R"({"input":[[7,8],[9]],"encoding_format":"base64","normalize":false,)"
                R"("dimensions":4,"user":"u","unknown":1})");
    expect(d, 0, 7, 8, 2, false, false);
    expect(d, 1, 9, 9, 1, false, false);
    yyjson_doc_free(d);
    world_stop(&w);
}

/* The front does not trust the worker: tokens beside a vector are an error of the worker that ends
 * only this request. */
Test(embeddings, with_output_tokens_beside_them_fail) {
    struct world w;
    struct reply r;

    world_init(&w);
    world_start(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, EMBED, R"({"input":"abc"})");
    world_turns(&w, 5);
    cr_assert_eq(w.port.n, 1);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "x");
    fake_finish(&w.port, 0, FINISH_STOP);
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 500);
    cr_expect(strstr(r.body.data, "invalid result"), "%.*s", (int)r.body.len, r.body.data);
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

/* Vectors are cut and then normalised to length 1 again. */
Test(embeddings, are_cut_to_the_dimensions_asked_for) {
    struct world w;
    struct reply r;

    started(&w);
    world_ask(&w, EMBED, R"({"input":[3,4],"dimensions":2})", &r);
    cr_assert_eq(r.status, 200);
    yyjson_doc *d = yyjson_read(r.body.data, r.body.len, 0);
    yyjson_val *data = yyjson_obj_get(yyjson_doc_get_root(d), "data");
    yyjson_val *v = yyjson_obj_get(yyjson_arr_get_first(data), "embedding");
    cr_assert_eq(yyjson_arr_size(v), 2u);
    cr_expect_float_eq(yyjson_get_num(yyjson_arr_get(v, 0)), 0.6, 1e-6);
    cr_expect_float_eq(yyjson_get_num(yyjson_arr_get(v, 1)), 0.8, 1e-6);
    yyjson_doc_free(d);
    reply_deinit(&r);
    world_stop(&w);
}

Test(embeddings, are_of_the_token_that_is_asked_for) {
    static const struct {
        const char *pooling;
        uint16_t flag;
    } ways[] = {{"last", SUBMIT_POOL_LAST},
                {"mean", SUBMIT_POOL_MEAN},
                {"cls", SUBMIT_POOL_CLS},
                {"none", SUBMIT_POOL_NONE}};
    struct world w;
    char body[100];

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(ways); i++) {
        snprintf(body, sizeof(body), R"({"input":"xyz","pooling":"%s"})", ways[i].pooling);
        yyjson_doc_free(ask(&w, body));
        cr_expect_eq(w.port.r[i].m.flags & SUBMIT_POOLS, ways[i].flag, "%s", ways[i].pooling);
    }
    world_stop(&w);
}

/* Such vectors are not normalised, whatever the request has; the answer is written on the pool. */
Test(embeddings, are_of_each_token_where_none_is_pooled) {
    struct world w;
    struct reply r;

    started(&w);
    world_ask(&w, EMBED, R"({"input":[[7,8,9],[5]],"pooling":"none","encoding_format":"base64"})",
              &r);
    cr_expect_eq(r.status, 200);
    cr_expect(strstr(r.body.data, R"({"object":"embedding","index":0,"embedding":)"
                                  R"([[7,0,0,0],[8,1,0,0],[9,2,0,0]]},{"object")"),
              "%s", r.body.data);
    cr_expect(strstr(r.body.data, R"("index":1,"embedding":[[5,0,0,0]]}],"model")"), "%s",
              r.body.data);
    reply_deinit(&r);
    world_ask(&w, "/embedding", R"({"content":[[7,8]],"pooling":"none"})", &r);
    cr_expect_str_eq(r.body.data, R"([{"index":0,"embedding":[[7,0,0,0],[8,1,0,0]]}])");
    reply_deinit(&r);
    world_ask(&w, "/embedding", R"({"input":[3,4],"dimensions":2,"embd_normalize":2})", &r);
    cr_expect(strstr(r.body.data, R"([{"index":0,"embedding":[[0.6)"), "%s", r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}

Test(embeddings, that_are_no_whole_rows_are_an_error) {
    struct world w;
    struct reply r;

    world_init(&w);
    w.port.script = "";
    w.model.n_embd = FAKE_EMBD - 1;
    world_start(&w);
    world_ask(&w, "/v1/embeddings", R"({"input":[[7,8]],"pooling":"none"})", &r);
    cr_expect_eq(r.status, 500, "%d %s", r.status, r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}

Test(embeddings, have_ollama_s_shape) {
    struct world w;
    struct reply r;

    started(&w);
    world_ask(&w, "/api/embed",
              R"({"model":"tiny:latest","input":[[3,4],[6]],"dimensions":2,"keep_alive":"5m"})",
              &r);
    cr_expect_eq(r.status, 200);
    cr_expect(strstr(r.body.data, R"({"model":"tiny","embeddings":[[0.6)"), "%s", r.body.data);
    cr_expect(strstr(r.body.data, R"("prompt_eval_count":3})"), "%s", r.body.data);
    reply_deinit(&r);
    world_ask(&w, "/api/embed", R"({"model":"tiny","input":[""]})", &r);
    cr_expect_eq(r.status, 400);
    cr_expect(strstr(r.body.data, R"({"error":"input[0] must not be empty)"), "%s", r.body.data);
    reply_deinit(&r);
    world_stop(&w);
}

Test(embeddings, of_nothing_are_nothing_for_ollama_s_clients) {
    static const struct {
        const char *path, *body, *answer;
    } table[] = {
        {"/api/embed", R"({"model":"tiny","input":[]})", R"("embeddings":[],)"},
        {"/api/embed", R"({"model":"tiny","input":""})", R"("embeddings":[],)"},
        {"/api/embed", R"({"model":"tiny","dimensions":2})", R"("prompt_eval_count":0})"},
        {"/api/embeddings", R"({"model":"tiny","prompt":""})", R"({"embedding":[]})"},
        {"/api/embeddings", R"({"model":"tiny"})", R"({"embedding":[]})"},
    };
    struct world w;
    struct reply r;

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        world_ask(&w, table[i].path, table[i].body, &r);
        cr_expect_eq(r.status, 200, "%zu: %s", i, r.body.data);
        cr_expect(strstr(r.body.data, table[i].answer), "%zu: %s", i, r.body.data);
        reply_deinit(&r);
    }
    world_ask(&w, "/v1/embeddings", R"({"model":"tiny","input":[]})", &r);
    cr_expect_eq(r.status, 400);
    reply_deinit(&r);
    world_stop(&w);
}

/* Ollama's older route returns one vector for one text, with the length of the model's vector. */
Test(embeddings, have_the_shape_of_ollama_s_older_route) {
    static const char *const refused[] = {R"({"model":"tiny","prompt":7})",
                                          R"({"model":"tiny","prompt":["a"]})"};
    struct world w;
    struct reply r;

    started(&w);
    world_ask(&w, "/api/embeddings",
              R"({"model":"tiny:latest","prompt":"a","keep_alive":"5m","options":{}})", &r);
    cr_expect_eq(r.status, 200);
    cr_expect_str_eq(r.body.data, R"({"embedding":[97,97,1,0]})");
    cr_expect_eq(w.port.r[0].m.flags & SUBMIT_POOLS, SUBMIT_POOL_LAST);
    reply_deinit(&r);
    for (size_t i = 0; i < ARRAY_SIZE(refused); i++) {
        world_ask(&w, "/api/embeddings", refused[i], &r);
        cr_expect_eq(r.status, 400);
        cr_expect_str_eq(r.body.data, R"({"error":"prompt must be a text"})");
        reply_deinit(&r);
    }
    world_stop(&w);
}

/* A model that only makes vectors refuses other requests in every dialect. */
Test(embeddings, are_all_that_an_encoder_makes) {
    static const char *const bodies[][2] = {
        {"/v1/chat/completions", R"({"messages":[{"role":"user","content":"a"}]})"},
        {"/v1/completions", R"({"prompt":"a"})"},
        {"/v1/responses", R"({"input":"a"})"},
        {"/v1/messages", R"({"model":"tiny","max_tokens":4,"messages":[{"role":"user",)"
                         R"("content":"a"}]})"},
        {"/api/chat", R"({"model":"tiny","messages":[{"role":"user","content":"a"}]})"},
        {"/completion", R"({"prompt":"a"})"},
    };
    struct world w;
    struct reply r;

    world_init(&w);
    w.port.script = "";
    w.model.encoder = true;
    w.model.pool = SUBMIT_POOL_CLS;
    world_start(&w);
    for (size_t i = 0; i < ARRAY_SIZE(bodies); i++) {
        world_ask(&w, bodies[i][0], bodies[i][1], &r);
        cr_expect_eq(r.status, 400, "%s: %d", bodies[i][0], r.status);
        cr_expect(memmem(r.body.data, r.body.len, "/v1/embeddings", 14), "%s: %.*s", bodies[i][0],
                  (int)r.body.len, r.body.data);
        reply_deinit(&r);
    }
    yyjson_doc_free(ask(&w, R"({"input":"xyz"})"));
    world_stop(&w);
}

Test(embeddings, of_text_never_hold_special_tokens) {
    struct world w;

    started(&w);
    yyjson_doc *d = ask(&w, R"({"input":"<|im_end|>"})");
    expect(d, 0, '<', '>', 10, false, true);
    yyjson_doc_free(d);
    world_stop(&w);
}

Test(embeddings, are_means_where_the_model_says_so) {
    struct world w;

    world_init(&w);
    w.port.script = "";
    w.model.pool = SUBMIT_POOL_MEAN;
    world_start(&w);
    yyjson_doc *d = ask(&w, R"({"input":"xy"})");
    expect(d, 0, 'x', 'y', 2, true, true);
    yyjson_doc_free(d);
    d = ask(&w, R"({"input":"xy","pooling":"last"})");
    expect(d, 0, 'x', 'y', 2, false, true);
    yyjson_doc_free(d);
    world_stop(&w);
}

/* Many inputs run with few places; every place is returned. */
Test(embeddings, of_many_inputs_leave_room_for_others) {
    CLEANUP(buf_deinit) struct buf body = {.max = 1 << 20};
    struct world w;
    struct reply r;

    started(&w);
    w.port.hold = true;
    cr_assert_eq(buf_printf(&body, R"({"input":[)"), 0);
    for (int i = 0; i < 200; i++)
        cr_assert_eq(buf_printf(&body, "%s[%d,1]", i ? "," : "", i), 0);
    cr_assert_eq(buf_printf(&body, "]}"), 0);
    int fd = world_connect(&w);
    world_post(&w, fd, EMBED, body.data);
    world_turns(&w, 5);
    cr_expect_eq(w.port.n, w.opts.max_running / 4);
    w.port.hold = false;
    w.port.script = "x";
    world_ask(&w, CHAT, "{" HI "}", &r);
    cr_expect_eq(r.status, 200);
    reply_deinit(&r);
    w.port.hold = false;
    world_receive(&w, fd, &r);
    cr_assert_eq(r.status, 200);
    yyjson_doc *d = yyjson_read(r.body.data, r.body.len, 0);
    for (int i = 0; i < 200; i++)
        expect(d, (uint32_t)i, i, 1, 2, false, true);
    yyjson_doc_free(d);
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

/* The inputs of a tenant that may have one generation at a time are embedded one after the
 * other. */
Test(embeddings, of_many_inputs_keep_to_the_tenant_s_limit) {
    const struct api_tenant row = {.name = "default", .weight = 1, .max_running = 1};
    struct world w;

    started(&w);
    cr_assert_eq(api_set_tenants(w.api, &row, 1), 0);
    yyjson_doc *d = ask(&w, R"({"input":["x","xy","xyz"]})");
    for (uint32_t i = 0; i < 3; i++) {
        float v[FAKE_EMBD];

        vector_of(d, i, v); /* asserts its index */
    }
    yyjson_doc_free(d);
    world_stop(&w);
}

/* Tokens are charged until the answer is sent or the client has left, and inputs without room are
 * refused. */
Test(embeddings, tokens_and_results_are_charged_to_their_client) {
    CLEANUP(buf_deinit) struct buf body = {.max = 1 << 20};
    struct world w;
    struct reply r;

    started(&w);
    struct quota *q = &w.api->http.payers.quota[PAYER_OUTPUT];
    buf_add_str(&body, R"({"input":[)");
    for (int i = 0; i < 200; i++)
        buf_printf(&body, "%s[%d,1,2,3]", i ? "," : "", i);
    buf_add_str(&body, "]}");
    w.port.hold = true;
    int fd = world_connect(&w);
    world_post(&w, fd, EMBED, body.data);
    while (w.port.n == 0)
        world_turn(&w);
    cr_expect_geq(q->root.used, 200 * 4 * sizeof(int32_t));
    world_drop(&w, fd);
    world_turns(&w, 5);
    cr_expect_eq(q->root.used, 0);
    w.port.hold = false;
    uint64_t n_tokens = 200 * 4 * sizeof(int32_t), limit = q->limit;
    q->limit = q->reserve = n_tokens / 4;
    world_ask(&w, EMBED, body.data, &r);
    cr_expect_eq(r.status, 503);
    cr_expect(memmem(r.body.data, r.body.len, "overloaded", 10));
    reply_deinit(&r);
    cr_expect_eq(q->root.used, 0);
    q->limit = q->reserve = limit;
    yyjson_doc_free(ask(&w, body.data));
    cr_expect_eq(q->root.used, 0);
    world_stop(&w);
}

/* Writes @n inputs "0", "1", ... */
static void many_inputs(struct buf *body, uint32_t n) {
    buf_add_str(body, R"({"input":[)");
    for (uint32_t i = 0; i < n; i++)
        buf_printf(body, R"(%s"%0*u")", i ? "," : "", (int)(1 + i % 5), i);
    buf_add_str(body, "]}");
}

Test(embeddings, of_many_inputs_are_put_together_on_the_pool) {
    CLEANUP(buf_deinit) struct buf body = {.max = 1 << 20};
    struct jobs_stats before, after;
    struct world w;

    started(&w);
    many_inputs(&body, 200);
    jobs_stats(w.api->env.pool.jobs, &before);
    yyjson_doc *d = ask(&w, body.data);
    jobs_stats(w.api->env.pool.jobs, &after);
    cr_expect_eq(after.n_done - before.n_done, 1);
    yyjson_val *data = yyjson_obj_get(yyjson_doc_get_root(d), "data");
    cr_assert_eq(yyjson_arr_size(data), 200);
    for (uint32_t i = 0; i < 200; i++) {
        float v[FAKE_EMBD];

        vector_of(d, i, v); /* asserts its index */
    }
    yyjson_doc_free(d);
    world_stop(&w);
}

Test(embeddings, who_leaves_while_the_pool_writes_leaves_nothing) {
    CLEANUP(buf_deinit) struct buf body = {.max = 1 << 20};
    struct world w;

    started(&w);
    many_inputs(&body, 200);
    for (int i = 0; i < 5; i++) {
        /* each input has at least one token */
        uint64_t n_ready = w.api->env.stats.n_prompt_tokens + 200;
        int fd = world_connect(&w);

        w.port.n = 0;
        world_post(&w, fd, EMBED, body.data);
        while (w.api->env.stats.n_prompt_tokens < n_ready || jobs_n(w.api->env.pool.jobs) == 0)
            world_turn(&w);
        world_drop(&w, fd);
        while (jobs_n(w.api->env.pool.jobs) > 0 || w.api->http.n_exchanges > 0)
            world_turn(&w);
    }
    cr_expect_eq(w.api->env.stats.n_requests, 5);
    world_stop(&w); /* asserts that nothing is left */
}

Test(embeddings, refusals_name_the_place) {
    static const struct {
        const char *body, *param, *code;
    } table[] = {
        {"{}", "input", "missing_required_parameter"},
        {R"({"input":null})", "input", "missing_required_parameter"},
        {R"({"input":""})", "input", "invalid_value"},
        {R"({"input":[]})", "input", "invalid_value"},
        {R"({"input":{}})", "input", "invalid_value"},
        {R"({"input":[{}]})", "input[0]", "invalid_value"},
        {R"({"input":[{"image":"a"}]})", "input[0]", "invalid_value"},
        {R"({"input":[["a"]]})", "input[0]", "invalid_value"},
        {R"({"input":["a",""]})", "input[1]", "invalid_value"},
        {R"({"input":["a",1]})", "input[1]", "invalid_value"},
        {R"({"input":[[1],[]]})", "input[1]", "invalid_value"},
        {R"({"input":[[1],[2,99999]]})", "input[1]", "invalid_value"},
        {R"({"input":[1,-1]})", "input", "invalid_value"},
        {R"({"input":"a","model":"other"})", "model", "model_not_found"},
        {R"({"input":"a","encoding_format":"int8"})", "encoding_format", "invalid_value"},
        {R"({"input":"a","dimensions":5})", "dimensions", "invalid_value"},
        {R"({"input":"a","dimensions":0})", "dimensions", "invalid_value"},
        {R"({"input":"a","pooling":"rank"})", "pooling", "invalid_value"},
        {R"({"input":"a","pooling":"none","dimensions":2})", "dimensions", "unsupported_parameter"},
        {R"({"input":"a","embd_normalize":-1})", "embd_normalize", "unsupported_parameter"},
        {R"({"input":["a","abcdef"],"truncate_prompt_tokens":3})", "truncate_prompt_tokens",
         "unsupported_parameter"},
    };
    struct world w;
    struct reply r;
    char needle[160];

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        world_ask(&w, EMBED, table[i].body, &r);
        snprintf(needle, sizeof(needle), R"("param":"%s","code":"%s")", table[i].param,
                 table[i].code);
        cr_expect_eq(r.status, strcmp(table[i].param, "model") ? 400 : 404, "%s", table[i].body);
        cr_expect(strstr(r.body.data, needle), "%s: %s", table[i].body, r.body.data);
        reply_deinit(&r);
    }
    cr_expect_eq(w.port.n, 0u);
    world_stop(&w);
}

/* Limits that would cut an input are refused; those that cut nothing are accepted. */
Test(embeddings, of_inputs_that_need_no_cut_are_computed) {
    static const char *const limits[] = {"5", "512", "-1", "\"5\""};
    struct world w;
    struct reply r;
    char body[100];

    started(&w);
    for (size_t i = 0; i < ARRAY_SIZE(limits); i++) {
        snprintf(body, sizeof(body), R"({"input":["abcde"],"truncate_prompt_tokens":%s})",
                 limits[i]);
        world_ask(&w, EMBED, body, &r);
        cr_expect_eq(r.status, 200, "%s: %s", body, r.body.data);
        reply_deinit(&r);
    }
    world_stop(&w);
}

Test(embeddings, of_what_is_too_long_or_too_much_are_refused) {
    CLEANUP(buf_deinit) struct buf body = {.max = 1 << 20};
    struct world w;
    struct reply r;

    started(&w);
    cr_assert_eq(buf_printf(&body, R"({"input":["a",[1)"), 0);
    for (int i = 1; i < 512; i++)
        cr_assert_eq(buf_printf(&body, ",1"), 0);
    cr_assert_eq(buf_printf(&body, "]]}"), 0);
    memcpy(strchr(body.data, '"') + 9, "[2],", 4); /* both entries are ids */
    world_ask(&w, EMBED, body.data, &r);
    cr_expect_eq(r.status, 400);
    cr_expect(strstr(r.body.data, R"("param":"input[1]","code":"context_length_exceeded")"), "%s",
              r.body.data);
    reply_deinit(&r);
    buf_clear(&body);
    cr_assert_eq(buf_printf(&body, R"({"input":["a")"), 0);
    for (int i = 0; i < 2048; i++)
        cr_assert_eq(buf_printf(&body, R"(,"a")"), 0);
    cr_assert_eq(buf_printf(&body, "]}"), 0);
    world_ask(&w, EMBED, body.data, &r);
    cr_expect_eq(r.status, 400);
    cr_expect(strstr(r.body.data, "at most 2048"));
    reply_deinit(&r);
    world_stop(&w);
}

Test(embeddings, a_worker_s_refusal_or_failure_is_the_answer) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.hold = true;
    int fd = world_connect(&w);
    world_post(&w, fd, EMBED, R"({"input":["a","b","c"]})");
    world_turns(&w, 5);
    fake_reject(&w.port, 0, 400, "no embeddings here");
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 400);
    cr_expect(strstr(r.body.data, "no embeddings here"));
    cr_expect(w.port.r[1].cancelled);
    reply_deinit(&r);
    uint32_t n = w.port.n;
    world_post(&w, fd, EMBED, R"({"input":"a"})");
    world_turns(&w, 5);
    fake_accept(&w.port, n);
    fake_finish(&w.port, n, FINISH_LENGTH); /* without a vector */
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 500);
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(embeddings, end_with_their_client) {
    struct world w;

    started(&w);
    w.port.hold = true;
    int fd = world_connect(&w);
    world_post(&w, fd, EMBED, R"({"input":["a","b","c"]})");
    world_turns(&w, 5);
    cr_assert_eq(w.port.n, 2u);
    world_drop(&w, fd);
    cr_expect(w.port.r[0].cancelled && w.port.r[1].cancelled);
    cr_expect_eq(w.port.n, 2u);
    world_stop(&w);
}

Test(embeddings, go_on_with_another_worker) {
    struct world w;
    struct reply r;

    started(&w);
    w.port.hold = true;
    int fd = world_connect(&w);
    world_post(&w, fd, EMBED, R"({"input":"a","normalize":false})");
    world_turns(&w, 5);
    fake_accept(&w.port, 0);
    api_worker_down(api_first_model(w.api));
    world_turns(&w, 5);
    api_worker_up(api_first_model(w.api), NULL);
    cr_assert_eq(w.port.r[0].n_submits, 2u);
    fake_finish(&w.port, 0, FINISH_STOP);
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 200);
    cr_expect(strstr(r.body.data, "[97,97,1,0]"));
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(embeddings, are_in_the_list_of_requests_and_can_be_cancelled) {
    struct api_request_info info[4];
    struct world w;
    struct reply r;

    started(&w);
    w.port.hold = true;
    int fd = world_connect(&w);
    world_post(&w, fd, EMBED, R"({"input":"a"})");
    world_turns(&w, 5);
    cr_assert_eq(api_requests(w.api, info, 4), 1u);
    cr_expect_str_eq(info[0].endpoint, EMBED);
    cr_expect(api_cancel(w.api, info[0].id));
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 503);
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(embeddings, are_refused_when_nobody_may_enter) {
    struct world w;
    struct reply r;

    world_init(&w);
    w.opts.max_running = 1;
    w.opts.max_queued = 0;
    w.port.script = "x";
    w.port.hold = true;
    world_start(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, CHAT, "{" HI "}");
    world_turns(&w, 5);
    world_ask(&w, EMBED, R"({"input":["a","b"]})", &r);
    cr_expect_eq(r.status, 429);
    reply_deinit(&r);
    w.port.hold = false;
    world_receive(&w, fd, &r);
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(embeddings, that_wait_longer_than_their_client_are_refused) {
    static const char body[] = R"({"input":["a","b"]})";
    struct world w;
    struct reply r;

    world_init(&w);
    w.opts.max_running = 1;
    world_start(&w);
    int fd = world_connect(&w), late = world_connect(&w);
    world_post(&w, fd, "/v1/completions", R"({"prompt":"a"})");
    world_turns(&w, 5);
    world_say(&w, late,
              "POST " EMBED " HTTP/1.1\r\nHost: localhost\r\nx-stainless-read-timeout: 1\r\n"
              "Content-Length: %zu\r\n\r\n%s",
              strlen(body), body);
    world_turns(&w, 5);
    world_receive(&w, late, &r);
    cr_expect_eq(r.status, 503);
    cr_expect(strstr(r.body.data, R"("code":"queue_timeout")"), "%s", r.body.data);
    cr_expect(strstr(r.body.data, "waited in the queue for longer than its time limit"), "%s",
              r.body.data);
    reply_deinit(&r);
    cr_expect_eq(w.port.n, 1, "none of it reached the worker");
    world_drop(&w, fd);
    world_drop(&w, late);
    world_stop(&w);
}
