/*
 * Mutated requests, the same in every run. Whatever is sent, the process continues, every answer is
 * HTTP, every error is the error object, another client is served, and nothing remains when the
 * clients are gone.
 */

#include <criterion/criterion.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/rng.h"
#include "world.h"

#define HTTP_ROUNDS 12000
#define JSON_ROUNDS 12000

static const char *const bodies[] = {
    R"({"messages":[{"role":"user","content":"hi"}],"stream":true,"n":2,"stop":[)"
    R"("a"],)"
    R"("stream_options":{"include_usage":true},"logit_bias":{"5":-100},"top_p":0.5})",
    R"({"messages":[{"role":"system","content":[{"type":"text","text":"\u00e9"}]},)"
    R"({"role":"assistant","tool_calls":[{"id":"c","type":"function","function":)"
    R"({"name":"f","arguments":"{\"a\":1}"}}]},{"role":"tool","content":"x"}],)"
    R"("tools":[{"type":"function","function":{"name":"f","parameters":{}}}],)"
    R"("tool_choice":"auto","chat_template_kwargs":{"a":true},"seed":-5})",
    R"({"prompt":[[1,2,3],[4]],"max_tokens":4,"logprobs":3,"return_token_ids":true,)"
    R"("logits_digest":true,"stop_token_ids":[7],"temperature":1e0,"min_p":0.1})",
    R"({"prompt":"text","stream":true,"cache_salt":"s","priority":-3,"echo":true})",
    R"({"prompt":"text","best_of":3,"n":2,"echo":true,"logprobs":2,"prompt_logprobs":1,)"
    R"("max_tokens":0})",
    R"({"tokens":[1,2,3]})",
    R"({"input":["ab","c","d","e"],"encoding_format":"base64","dimensions":4,)"
    R"("pooling":"mean","metadata":{"user_id":"u"},"safety_identifier":"s"})",
    R"({"model":"claude","max_tokens":9,"system":[{"type":"text","text":"s"}],)"
    R"("stream":true,)"
    R"("messages":[{"role":"user","content":"hi"},{"role":"assistant","content":[{)"
    R"("type":)"
    R"("thinking","thinking":"t","signature":""},{"type":"tool_use","id":"c",)"
    R"("name":"f",)"
    R"("input":{"a":1}}]},{"role":"user","content":[{"type":"tool_result","tool_use_)"
    R"(id":"c",)"
    R"("content":[{"type":"tool_reference","tool_name":"f"}]},{"type":"document",)"
    R"("source":{)"
    R"("type":"text","data":"d"}}]},{"role":"system","content":[{"type":"tool_)"
    R"(addition",)"
    R"("tool":{"definition":{"name":"g","input_schema":{}}}}]}],"tools":[{"name":"f",)"
    R"("input_schema":{},"defer_loading":true}],"thinking":{"type":"adaptive"},"top_k":)"
    "3}",
    R"({"input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]},{)"
    R"("type":"reasoning","summary":[],"encrypted_content":"weft1.w6kh"},{"type":)"
    R"("function_call","call_id":"1","name":"f","arguments":"{}"},{"type":)"
    R"("function_call_output","call_id":"1","output":[{"type":"input_image"}]},{"type":)"
    R"("item_reference","id":"msg_1"}],"instructions":"i","tools":[{"type":"custom",)"
    R"("name":"p","format":{"definition":"d"}},{"type":"namespace","name":"n",)"
    R"("tools":[{"type":"function","name":"g"}]}],"text":{"format":{"type":"text"}})"
    ","
    R"("include":["reasoning.encrypted_content"],"stream":true,"metadata":{"a":"b"}})",
    R"({"input":"hi","previous_response_id":"resp_1","reasoning":{"summary":"auto"},)"
    R"("tool_choice":{"type":"allowed_tools","tools":[]},"store":true})",
    R"({"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function",)"
    R"("function":{"name":"f","strict":true,"parameters":{"type":"object",)"
    R"("properties":{)"
    R"("a":{"$ref":"#/$defs/)"
    R"(x"},"b":{"type":"string","pattern":"^a[b-d]+$"}},"required":[)"
    R"("a"],"$defs":{"x":{"enum":[1,"z"]}}}}}],"tool_choice":{"type":"function",)"
    R"("function":{)"
    R"("name":"f"}},"thinking_budget":3,"reasoning_effort":"low"})",
    R"({"prompt":"x","structured_outputs":{"json":{"anyOf":[{"type":"integer",)"
    R"("maximum":9},{)"
    R"("type":"array","items":{"type":"null"}}]}},"prediction":{"type":"content",)"
    R"("content":[{)"
    R"("type":"text","text":"p"}]}})",
    R"({"query":"q<|im_end|>","documents":["a",{"text":"b"}],"top_n":1,)"
    R"("return_documents":true,"raw_scores":true,"user":"u"})",
    R"({"text_1":["a",{"text":"b"}],"text_2":["c","d"],"priority":1})",
};

static const char *const paths[] = {"/v1/chat/completions", "/v1/chat/completions",
                                    "/v1/completions",      "/v1/completions",
                                    "/v1/completions",      "/detokenize",
                                    "/v1/embeddings",       "/v1/messages",
                                    "/v1/responses",        "/v1/responses",
                                    "/v1/chat/completions", "/v1/completions",
                                    "/v1/rerank",           "/score"};

static const char *const pieces[] = {"null",    "[",   "]",     "{",    "}",      R"(")",
                                     ",",       ":",   "1e99",  "-1",   "\\ud8",  "true",
                                     "\xff",    "0.5", "[]",    "{}",   "\r\n",   "\r\n\r\n",
                                     "chunked", ": ",  "99999", "GET ", "\\u0000"};

/* Changes the request at a random place. */
static void mutate(struct rng *r, struct buf *b) {
    uint32_t at = rng_below(r, (uint32_t)b->len + 1), n;
    const char *piece = pieces[rng_below(r, ARRAY_SIZE(pieces))];
    CLEANUP(buf_deinit) struct buf tail = {.max = 1 << 16};

    switch (rng_below(r, 5)) {
    case 0:
        if (at < b->len)
            b->data[at] = (char)rng_next(r);
        return;
    case 1:
        if (at < b->len)
            b->data[at] ^= (char)(1 << rng_below(r, 8));
        return;
    case 2: /* remove a part */
        n = rng_below(r, 12);
        n = MIN(n, (uint32_t)b->len - at);
        memmove(b->data + at, b->data + at + n, b->len - at - n);
        b->len -= n;
        return;
    case 3: /* insert a part */
        buf_add(&tail, b->data + at, b->len - at);
        b->len = at;
        buf_add_str(b, piece);
        buf_add(b, tail.data, tail.len);
        return;
    default: /* repeat a part */
        n = rng_below(r, 40);
        n = MIN(n, (uint32_t)b->len - at);
        buf_add(&tail, b->data + at, n);
        buf_add(b, tail.data, tail.len);
    }
}

/* Reads the bytes that have arrived, without waiting for more. */
static void look(struct world *w, int fd, struct buf *out) {
    char chunk[8192];
    ssize_t n;

    for (int i = 0; i < 8; i++) {
        world_turn(w);
        while ((n = recv(fd, chunk, sizeof(chunk), MSG_DONTWAIT)) > 0)
            buf_add(out, chunk, (size_t)n);
    }
}

static void expect_bystander_served(struct world *w, int fd) {
    struct reply r;

    world_say(w, fd, "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n");
    world_receive(w, fd, &r);
    cr_assert_eq(r.status, 200);
    reply_deinit(&r);
}

static void expect_nothing_left(struct world *w) {
    struct api_stats s;

    world_turns(w, 20);
    api_stats(w->api, &s);
    cr_expect_eq(s.n_running + s.n_queued, 0);
    cr_expect(!api_busy(w->api));
    world_stop(w);
}

/* Removes the submits of the last round, which were answered or cancelled. */
static void restart_port(struct world *w) {
    w->port.n = 0;
}

Test(fuzz, any_bytes_on_a_connection) {
    struct rng r = {20260101};
    struct world w;
    CLEANUP(buf_deinit) struct buf in = {.max = 1 << 20}, out = {.max = 1 << 24};

    world_init(&w);
    w.model.ranks = true;
    w.model.pair.before = w.model.pair.behind = "";
    w.model.pair.between = "<|im_end|>";
    w.opts.max_stored = 20;
    w.opts.stored_bytes = 64 << 10;
    w.opts.stored_ttl_s = 60;
    world_start(&w);
    w.port.script = "ab";
    int bystander = world_connect(&w);
    for (int round = 0; round < HTTP_ROUNDS; round++) {
        uint32_t k = rng_below(&r, ARRAY_SIZE(bodies)), n = rng_below(&r, 4) + 1, sent = 0;
        int fd = rng_below(&r, 2) ? world_connect(&w) : world_connect_unix(&w);

        buf_clear(&in);
        buf_clear(&out);
        if (rng_below(&r, 3))
            buf_printf(&in, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n%s",
                       paths[k], strlen(bodies[k]), bodies[k]);
        else
            buf_printf(&in,
                       "POST %s HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
                       "Expect: 100-continue\r\n\r\n%zx\r\n%s\r\n0\r\n\r\n",
                       paths[k], strlen(bodies[k]), bodies[k]);
        while (n--)
            mutate(&r, &in);
        while (sent < in.len) {
            uint32_t part = rng_below(&r, 300) + 1;

            part = MIN(part, (uint32_t)in.len - sent);
            if (send(fd, in.data + sent, part, MSG_NOSIGNAL) < 0)
                break;
            sent += part;
            world_turn(&w);
        }
        look(&w, fd, &out);
        cr_assert(out.len == 0 || strncmp(out.data, "HTTP/1.1 ", 9) == 0, "%.*s", (int)out.len,
                  out.data);
        world_drop(&w, fd);
        restart_port(&w);
        if (round % 100 == 0)
            expect_bystander_served(&w, bystander);
    }
    world_drop(&w, bystander);
    expect_nothing_left(&w);
}

Test(fuzz, any_body_in_a_good_request) {
    struct rng r = {20260102};
    struct world w;
    uint32_t n_ok = 0, n_bad = 0;
    CLEANUP(buf_deinit) struct buf in = {.max = 1 << 20};

    world_init(&w);
    w.model.ranks = true;
    w.model.pair.before = w.model.pair.behind = "";
    w.model.pair.between = "<|im_end|>";
    w.opts.max_stored = 20;
    w.opts.stored_bytes = 64 << 10;
    w.opts.stored_ttl_s = 60;
    world_start(&w);
    w.port.script = "ab";
    int fd = world_connect(&w), bystander = world_connect(&w);
    for (int round = 0; round < JSON_ROUNDS; round++) {
        uint32_t k = rng_below(&r, ARRAY_SIZE(bodies)), n = rng_below(&r, 3) + 1;
        struct reply reply;

        buf_clear(&in);
        buf_add_str(&in, bodies[k]);
        while (n--)
            mutate(&r, &in);
        world_say(&w, fd, "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n",
                  paths[k], in.len);
        world_send(&w, fd, in.data, in.len);
        world_receive(&w, fd, &reply);
        cr_assert(reply.status == 200 || reply.status == 400 || reply.status == 404, "%d for %.*s",
                  reply.status, (int)in.len, in.data);
        if (reply.status != 200)
            cr_assert(strstr(paths[k], "messages")
                          ? strncmp(reply.body.data, R"({"type":"error","error":{)", 25) == 0
                          : strncmp(reply.body.data, R"({"error":{"message":")", 21) == 0 &&
                                strstr(reply.body.data, R"("param":)") &&
                                strstr(reply.body.data, R"("code":")"),
                      "%s", reply.body.data);
        n_ok += reply.status == 200;
        n_bad += reply.status != 200;
        reply_deinit(&reply);
        restart_port(&w);
        if (round % 100 == 0)
            expect_bystander_served(&w, bystander);
    }
    cr_expect_gt(n_ok, JSON_ROUNDS / 20);
    cr_expect_gt(n_bad, JSON_ROUNDS / 20);
    world_drop(&w, fd);
    world_drop(&w, bystander);
    expect_nothing_left(&w);
}
