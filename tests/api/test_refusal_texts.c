/* The texts of refusals name the error, its place and the accepted input. refusals.json and
 * the tables here have one request for each text that no other test compares. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yyjson.h>

#include "stream.h"
#include "tiny.h"

#define MESSAGES "/v1/messages"
#define RESPONSES "/v1/responses"
/* A whole request of Anthropic's dialect, and one more member. */
#define ASK R"({"model":"tiny","max_tokens":5,)" HI

struct refusal {
    const char *path, *body;
    int status;
    /* text in the JSON of the answer */
    const char *text;
};

static void ask(struct world *w, const struct refusal *r) {
    struct reply got;

    world_ask(w, r->path, r->body, &got);
    cr_expect_eq(got.status, r->status, "%.200s: %d, not %d: %s", r->body, got.status, r->status,
                 got.body.data);
    cr_expect(got.body.data && strstr(got.body.data, r->text), "%.200s: %s has no %s", r->body,
              got.body.data, r->text);
    reply_deinit(&got);
}

/* Sends each body of refusals.json to its path; a row is [path, body, status, text of the answer].
 * A body that is a string is sent as it is. */
Test(refusal_texts, of_bodies_in_all_dialects) {
    yyjson_doc *all = yyjson_read_file(getenv("WEFT_REFUSALS"), 0, NULL, NULL);
    yyjson_val *row;
    struct world w;
    size_t i, n;

    cr_assert(all, "WEFT_REFUSALS must name refusals.json");
    world_init(&w);
    w.port.script = "ok"; /* a request that is not refused is answered */
    world_start(&w);
    yyjson_arr_foreach(yyjson_doc_get_root(all), i, n, row) {
        yyjson_val *body = yyjson_arr_get(row, 1);
        char *text = yyjson_is_str(body) ? NULL : yyjson_val_write(body, 0, NULL);

        ask(&w, &(struct refusal){yyjson_get_str(yyjson_arr_get(row, 0)),
                                  text ? text : yyjson_get_str(body),
                                  yyjson_get_int(yyjson_arr_get(row, 2)),
                                  yyjson_get_str(yyjson_arr_get(row, 3))});
        free(text);
    }
    cr_expect_eq(w.port.n, 0, "nothing of it reached the worker");
    cr_expect_gt(n, 100);
    world_stop(&w);
    yyjson_doc_free(all);
}

/* Appends @n times @item, with commas between. */
static void repeat(struct buf *b, size_t n, const char *item) {
    for (size_t i = 0; i < n; i++)
        cr_assert_eq(buf_printf(b, "%s%s", i ? "," : "", item), 0);
}

Test(refusal_texts, of_lists_that_are_too_long) {
    const struct {
        const char *path, *before, *item, *after;
        size_t n;
        const char *text;
    } cases[] = {
        {MESSAGES, ASK R"(,"tools":[)", "5", "]}", 1025,
         "tools: must be an array of at most 1024 tools."},
        {CHAT, "{" HI R"(,"functions":[)", "5", "]}", 1025,
         "functions must be an array of at most 1024 functions"},
        {RESPONSES, R"({"input":"a","tools":[)", R"({"type":"function","name":"f"})", "]}", 1025,
         "tools must have at most 1024 tools"},
        {"/completion", R"({"prompt":"a","logit_bias":[[")", "aaaaaaaa", R"(",1]]})", 200,
         "logit_bias must be a list of at most 1024 tokens"},
    };
    struct world w;

    world_init(&w);
    world_start(&w);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};

        cr_assert_eq(buf_add_str(&b, cases[i].before), 0);
        repeat(&b, cases[i].n, cases[i].item);
        cr_assert_eq(buf_add_str(&b, cases[i].after), 0);
        ask(&w, &(struct refusal){cases[i].path, b.data, 400, cases[i].text});
    }
    world_stop(&w);
}

Test(refusal_texts, of_bodies) {
    struct world w;

    world_init(&w);
    w.opts.max_body_bytes = 1000;
    world_start(&w);
    ask(&w,
        &(struct refusal){CHAT, "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
                          400, "The JSON body is nested deeper than 64 levels."});
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
    cr_assert_eq(buf_printf(&b,
                            "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
                            "chunked\r\n\r\n3e9\r\n%01001d",
                            0),
                 0);
    world_expect(&w, b.data, 413, "The request body is larger than 1000 bytes.");
    world_stop(&w);
}

/* Sends a body with @n times @item in it. */
static void ask_long(struct world *w, const char *path, const char *before, size_t n,
                     const char *item, const char *after, const char *text) {
    CLEANUP(buf_deinit) struct buf b = {.max = 2 << 20};

    cr_assert_eq(buf_add_str(&b, before), 0);
    repeat(&b, n, item);
    cr_assert_eq(buf_add_str(&b, after), 0);
    ask(w, &(struct refusal){path, b.data, 400, text});
}

Test(refusal_texts, of_inputs_that_are_too_long) {
    struct world w;

    world_init(&w);
    world_start(&w);
    ask_long(&w, "/v1/embeddings", R"({"input":[[1],[)", 512, "1", "]]}",
             "This model's maximum context length is 512 tokens, so an input has up to 511. "
             "However, input[1] has 512.");
    ask_long(&w, "/detokenize", R"({"tokens":[)", 66561, "1", "]}",
             "tokens must have at most 66560 entries.");
    ask_long(&w, TEXT, R"({"logprobs":20,"prompt_logprobs":20,"prompt":[)", 512, "1", "]}",
             "This model's maximum context length is 512 tokens. However, your prompt resulted in "
             "512 tokens. Please reduce the length of the prompt.");
    ask_long(&w, CHAT, R"({"messages":[{"role":"user","content":")", 512, "a", R"("}]})",
             "tokens. Please reduce the length of the messages.");
    ask_long(&w, CHAT,
             R"({"tools":[{"type":"function","function":{"name":"f"}}],)"
             R"("messages":[{"role":"user",")"
             R"(content":")",
             512, "a", R"("}]})", "tokens. Please reduce the length of the messages or tools.");
    world_stop(&w);
    world_init(&w);
    w.model.ranks = true;
    w.model.pair.before = w.model.pair.behind = "";
    w.model.pair.between = "<|im_end|>";
    world_start(&w);
    ask_long(&w, "/v1/rerank", R"({"query":"q","documents":["a",")", 512, "a", R"("]})",
             "This model's maximum context length is 512 tokens. However, documents[1] has more "
             "than 511 together with its query and the model's special tokens.");
    world_stop(&w);
    world_init(&w);
    w.model.max_context = 1 << 18;
    world_start(&w);
    ask_long(&w, TEXT, R"({"logprobs":1,"prompt_logprobs":20,"prompt":[)", 60000, "1", "]}",
             "The request asks for more than 1048576 log probabilities of its prompt: shorten the "
             "prompt or ask for fewer.");
    world_stop(&w);
}

/* Models that write no text or have no template for messages. */
Test(refusal_texts, of_models_of_other_kinds) {
    const struct refusal of_reranker[] = {
        {"/v1/rerank", R"({"query":5,"documents":["b"]})", 400,
         "query must be a text that is not empty, or an object with one as text."},
        {"/v1/rerank", R"({"query":"a","documents":["b",""]})", 400,
         "documents[1] must be a text that is not empty, or an object with one as text."},
        {"/v1/rerank", R"({"query":["a"],"documents":["b"]})", 400, "query must be one text."},
        {"/v1/score", R"({"text_1":["a","b"],"text_2":["a"]})", 400,
         "text_1 must be one text, or as many as text_2 has."},
    };
    struct world w;

    world_init(&w);
    w.model.ranks = true;
    w.model.pair.before = w.model.pair.behind = "";
    w.model.pair.between = "<|im_end|>";
    world_start(&w);
    for (size_t i = 0; i < ARRAY_SIZE(of_reranker); i++)
        ask(&w, &of_reranker[i]);
    world_stop(&w);
    world_init(&w);
    template_free((struct template *)(uintptr_t)w.model.template);
    w.model.template = NULL;
    w.opts.digests = false;
    world_start(&w);
    ask(&w, &(struct refusal){CHAT, "{" HI "}", 400,
                              "This model has no chat template. Use /v1/completions."});
    ask(&w, &(struct refusal){TEXT, R"({"prompt":"a","logits_digest":true})", 400,
                              "logits_digest is not available: the server runs without the option "
                              "logits-digest."});
    world_stop(&w);
}

/* Tokenising stops far beyond the context, here at 66,560 tokens. */
Test(refusal_texts, of_prompts_that_are_far_too_long) {
#define FAR                                                                                        \
    "This model's maximum context length is 512 tokens. However, your %2$s resulted in more than " \
    "%1$s tokens. Please reduce the length of the %2$s"
    static const char openai[] = FAR ".", tools[] = FAR " or tools.";
    const struct {
        const char *path, *before, *after, *text, *place, *n;
    } cases[] = {
        {"/v1/completions", R"({"prompt":")", R"("})", openai, "prompt", "66560"},
        {"/v1/completions", R"({"prompt":["a",")", R"("]})", openai, "prompt[1]", "66560"},
        {CHAT,
         R"({"messages":[{"role":"user",)"
         R"("content":")",
         R"("}]})", openai, "messages", "66560"},
        {CHAT,
         R"({"tools":[{"type":"function","function":{"name":"f"}}],"messages":[{"role":"user",")"
         R"(content":")",
         R"("}]})", tools, "messages", "66560"},
        {RESPONSES, R"({"input":")", R"("})", openai, "input", "66560"},
        {MESSAGES, R"({"model":"tiny","max_tokens":5,"messages":[{"role":"user","content":")",
         R"("}]})", "prompt is too long: 66560 tokens > 511 maximum", "", ""},
        {"/api/generate", R"({"model":"tiny","raw":true,"prompt":")", R"("})", openai, "prompt",
         "66560"},
        {"/completion", R"({"prompt":[1,")", R"("]})",
         "request (%1$s tokens) exceeds the available context size (512 tokens), shorten it", "",
         "65536"},
    };
    CLEANUP(freep) char *text = malloc(70001);
    struct world w;

    memset(text, 'x', 70000);
    text[70000] = 0;
    world_init(&w);
    world_start(&w);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
        char want[200];

        cr_assert_eq(buf_printf(&b, "%s%s%s", cases[i].before, text, cases[i].after), 0);
        snprintf(want, sizeof(want), cases[i].text, cases[i].n, cases[i].place);
        ask(&w, &(struct refusal){cases[i].path, b.data, 400, want});
    }
    world_stop(&w);
}

#define GET(path, headers) "GET " path " HTTP/1.1\r\nHost: localhost\r\n" headers "\r\n"

Test(refusal_texts, of_heads) {
    struct world w;

    world_init(&w);
    world_start(&w);
    world_expect(&w, "\x16\x03\x01\x02", 400,
                 "This is not an HTTP request. Is it TLS, sent to an address without TLS?");
    world_expect(&w, GET("/health", "Origin: https://evil.example\r\n"), 403,
                 "Pages of this origin may not use the server (option cors-origins).");
    world_expect(&w, "GET /health HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421,
                 "The Host of the request is not a name of this server (option allowed-hosts).");
    world_expect(&w, GET("/v1/responses/resp_x", ""), 404, "Response with id 'resp_x' not found.");
    world_expect(&w, GET(CHAT, "Connection: upgrade\r\nUpgrade: websocket\r\n"), 426,
                 "This path does not speak WebSocket. Send a POST request.");
    world_expect(&w,
                 "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: br\r\n"
                 "Content-Length: 2\r\n\r\n{}",
                 415,
                 "The request body has the Content-Encoding br, which is not supported here: send "
                 "gzip, zstd or no encoding.");
    world_expect(&w,
                 "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\n"
                 "Content-Length: 2\r\n\r\n{}",
                 400, "The request body cannot be decoded as its Content-Encoding says.");
    world_expect(&w,
                 "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\n"
                 "Content-Length: 2\r\n\r\n\x1f\x8b",
                 400, "The compressed request body is cut off.");
    world_expect(&w,
                 GET("/v1/responses", "Connection: upgrade\r\nUpgrade: websocket\r\n"
                                      "Sec-WebSocket-Version: 13\r\n"
                                      "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"),
                 426, "A WebSocket needs responses that are kept (stored-responses).");
    world_stop(&w);
    world_init(&w);
    w.opts.max_stored = 10;
    w.opts.stored_ttl_s = 60;
    w.opts.stored_bytes = 1 << 20;
    world_start(&w);
    world_expect(&w,
                 GET("/v1/responses", "Connection: upgrade\r\nUpgrade: websocket\r\n"
                                      "Sec-WebSocket-Version: 8\r\n"
                                      "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"),
                 426, "The only supported Sec-WebSocket-Version is 13.");
    world_stop(&w);
}

Test(refusal_texts, of_keys) {
    static const char *const wrong[][2] = {
        {"al\tice\x01:ka\n", ":1: NAME must be text in UTF-8 without control characters"},
        {"alice:ka\nbob:ka\n", ":2: a line above has this key, with another name"},
        {"alice:ka\nalice:ka operator\n", ":2: a line above has this key, with another name"},
        {"alice:ka until=2030-01-01\n", "may be followed by expires=YYYY-MM-DD and operator"},
    };
    char path[] = "/tmp/weft-test-keys-XXXXXX";
    struct world w;
    struct err err;

    FILE *f = fdopen(mkstemp(path), "w");
    cr_assert(f && fputs("old:ko expires=2001-01-01\nalice:ka\n", f) >= 0 && fclose(f) == 0);
    world_init(&w);
    w.opts.api_keys_file = path;
    world_start(&w);
    world_expect(&w, GET("/v1/models", ""), 401,
                 R"(No API key was given. Send \"Authorization: Bearer KEY\".)");
    world_expect(
        &w, GET("/v1/models", "x-api-key: ko\r\n"), 401,
        "The API key expired at the end of 2001-01-01 (UTC): ask the operator for another.");
    world_expect(&w, GET("/v1/models", "x-api-key: ka\r\nx-api-key: ka\r\n"), 401,
                 "More than one API key was given.");
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++) {
        f = fopen(path, "w");
        cr_assert(f && fputs(wrong[i][0], f) >= 0 && fclose(f) == 0);
        err = (struct err){0};
        cr_expect_eq(world_reload_keys(&w, &err), -EINVAL);
        cr_expect(strstr(err.message, wrong[i][1]), "%s", err.message);
    }
    world_stop(&w);
    unlink(path);
}

/* A worker's reasons to refuse a request, and what its client is told. */
Test(refusal_texts, of_the_worker) {
    static const struct {
        struct err why;
        int status;
        const char *text;
    } cases[] = {
        {{400, "stop", "bad", "Too much.", 0, 0},
         400,
         R"("message":"Too much.","type":"invalid_request_error","param":"stop","code":"bad")"},
        {{400, "", "", "", 0, 0},
         400,
         R"("message":"The inference worker refused the request without a reason.",)"},
        {{399, "", "bad", "T.", 0, 0}, 500, R"("code":"engine_error")"},
        {{600, "", "bad", "T.", 0, 0}, 500, R"("code":"engine_error")"},
        {{599, "", "bad", "T.", 0, 0}, 500, R"("code":"bad")"},
        {{500, "", "bad", "T.", 0, 0}, 500, R"("code":"engine_error")"},
        {{501, "", "bad", "T.", 0, 0}, 501, R"("code":"bad")"},
        {{501, "", "", "T.", 0, 0}, 501, R"("code":"engine_error")"},
        {{503, "", "", "T.", 0, 0},
         503,
         R"("type":"overloaded_error","param":null,"code":"engine)"},
        {{429, "", "", "T.", 0, 0}, 429, R"("param":null,"code":"rate_limit_exceeded")"},
    };
    struct world w;

    world_init(&w);
    world_start(&w);
    for (uint32_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct reply r;

        int fd = world_connect(&w);
        world_post(&w, fd, CHAT, "{" HI "}");
        world_turns(&w, 5);
        cr_assert_eq(w.port.n, i + 1);
        fake_refuse(&w.port, i, &cases[i].why);
        world_receive(&w, fd, &r);
        cr_expect_eq(r.status, cases[i].status, "%u: %d", i, r.status);
        cr_expect(strstr(r.body.data, cases[i].text), "%u: %s", i, r.body.data);
        reply_deinit(&r);
        world_drop(&w, fd);
    }
    world_stop(&w);
}

/* The worker ends a request on its own. */
Test(refusal_texts, of_requests_that_the_worker_ends) {
    static const struct {
        enum finish_reason why;
        int status;
        const char *text;
    } cases[] = {
        {FINISH_CANCELLED, 503, "The server has cancelled the request. Send it again."},
        {FINISH_DEADLINE, 504, "The request took longer than its time limit"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct world w;
        struct reply r;

        world_init(&w);
        world_start(&w);
        int fd = world_connect(&w);
        world_post(&w, fd, CHAT, "{" HI "}");
        world_turns(&w, 5);
        cr_assert_eq(w.port.n, 1);
        fake_accept(&w.port, 0);
        fake_finish(&w.port, 0, cases[i].why);
        world_receive(&w, fd, &r);
        cr_expect_eq(r.status, cases[i].status, "%d: %s", r.status, r.body.data);
        cr_expect(strstr(r.body.data, cases[i].text), "%s", r.body.data);
        reply_deinit(&r);
        world_drop(&w, fd);
        world_stop(&w);
    }
}

/* The operator, or the end of the service, ends a running request. */
Test(refusal_texts, of_requests_that_the_service_ends) {
    static const char *const texts[] = {"The generation was cancelled by the operator.",
                                        "The server is stopping. Send the request again."};

    for (size_t i = 0; i < ARRAY_SIZE(texts); i++) {
        struct api_request_info info[1];
        struct world w;
        struct reply r;

        world_init(&w);
        world_start(&w);
        int fd = world_connect(&w);
        world_post(&w, fd, CHAT, "{" HI "}");
        world_turns(&w, 5);
        cr_assert_eq(w.port.n, 1);
        fake_accept(&w.port, 0);
        cr_assert_eq(api_requests(w.api, info, 1), 1);
        if (i == 0)
            cr_expect(api_cancel(w.api, info[0].id));
        else
            api_close(w.api);
        world_receive(&w, fd, &r);
        cr_expect_eq(r.status, 503, "%d: %s", r.status, r.body.data);
        cr_expect(strstr(r.body.data, texts[i]), "%s", r.body.data);
        reply_deinit(&r);
        world_drop(&w, fd);
        world_stop(&w);
    }
}

/* Sends @body and copies the id in the answer that begins with @prefix. */
static void id_of(struct world *w, const char *path, const char *body, const char *prefix,
                  char id[80]) {
    struct reply r;

    world_ask(w, path, body, &r);
    const char *at = r.body.data ? strstr(r.body.data, prefix) : NULL;
    cr_assert(r.status == 200 && at, "%d: %s", r.status, r.body.data);
    snprintf(id, 80, "%.*s", (int)strcspn(at, R"(")"), at);
    reply_deinit(&r);
}

Test(refusal_texts, of_what_is_stored) {
    char id[80], path[160], request[300];
    struct world w;

    world_init(&w);
    w.port.script = "ok";
    w.opts.max_stored = 10;
    w.opts.stored_ttl_s = 60;
    w.opts.stored_bytes = 1 << 20;
    world_start(&w);
    id_of(&w, "/v1/conversations", "{}", "conv_", id);
    snprintf(path, sizeof(path), "/v1/conversations/%s/items", id);
    ask(&w, &(struct refusal){path, R"({"items":[]})", 400, "items must not be empty."});
    ask(&w, &(struct refusal){path, "{}", 400, "items must be an array."});
    ask(&w, &(struct refusal){RESPONSES, R"({"input":"a","conversation":"conv_x"})", 404,
                              "Conversation with id 'conv_x' not found."});
    id_of(&w, RESPONSES, R"({"input":"a"})", "resp_", id);
    snprintf(request, sizeof(request), GET("/v1/responses/%s?stream=true&starting_after=-1", ""),
             id);
    world_expect(&w, request, 400, "starting_after must be the sequence_number of an event.");
    snprintf(request, sizeof(request), GET("/v1/responses/%s?stream=true", ""), id);
    world_expect(&w, request, 400,
                 "stream: only the events of a response with background are kept");
    snprintf(path, sizeof(path), "/v1/responses/%s/cancel", id);
    ask(&w, &(struct refusal){path, "{}", 400, "has already ended."});
    ask(&w,
        &(struct refusal){
            RESPONSES,
            R"({"input":"a","context_management":[{"type":"compaction","compact_threshold":1}]})",
            400, "the compact_threshold is 1. Make it shorter with"});
    world_stop(&w);
}
