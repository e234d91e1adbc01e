#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "api/http/siphash.h"
#include "stream.h"
#include "tiny.h"

static void started(struct world *w) {
    world_init(w);
    w->port.script = "x";
    world_start(w);
}

static const struct fake_request *last(const struct world *w) {
    cr_assert_gt(w->port.n, 0u);
    return &w->port.r[w->port.n - 1];
}

/* Returns the session of a request with these header lines and this body. */
static uint64_t ask_at(struct world *w, const char *path, const char *head, const char *body) {
    struct reply r;
    uint32_t before = w->port.n;
    int fd = world_connect(w);

    world_say(w, fd, "POST %s HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %zu\r\n\r\n%s", path,
              head, strlen(body), body);
    world_receive(w, fd, &r);
    cr_assert_eq(r.status, 200, "%.*s", (int)r.body.len, r.body.data);
    reply_deinit(&r);
    world_drop(w, fd);
    cr_assert_eq(w->port.n, before + 1);
    return last(w)->m.session;
}

static uint64_t ask(struct world *w, const char *head, const char *body) {
    return ask_at(w, CHAT, head, body);
}

/* Returns the session of a request with the body @form, in which %s stands for @name. */
static uint64_t ask_named(struct world *w, const char *form, const char *name) {
    CLEANUP(buf_deinit) struct buf body = {.max = 512};

    buf_printf(&body, form, name);
    return ask(w, "", body.data);
}

Test(session, is_named_by_header_or_field_and_the_first_of_them_counts) {
    static const char *const headers[] = {
        "X-Claude-Code-Agent-Id",
        "X-Claude-Code-Session-Id",
        "X-Session-Affinity",
        "X-Session-Id",
        "Session-Id",
        "Session_Id",
        "X-Dynamo-Session-Id",
        "X-LLM-D-Inference-Fairness-Id",
    };
    static const char *const bodies[] = {
        "{" HI R"(,"prompt_cache_key":"%s","safety_identifier":"s","user":"u"})",
        "{" HI R"(,"safety_identifier":"%s","user":"u","metadata":{"user_id":"m"}})",
        "{" HI R"(,"user":"%s","metadata":{"user_id":"m"}})",
        "{" HI R"(,"metadata":{"user_id":"%s"}})",
    };
    struct world w;
    char head[256];

    started(&w);
    uint64_t k = ask(&w, "", "{" HI R"(,"user":"k"})");
    cr_expect_neq(k, 0);
    for (size_t i = 0; i < ARRAY_SIZE(headers); i++) {
        const char *after = i + 1 < ARRAY_SIZE(headers) ? headers[i + 1] : "X-Nothing";

        if (i == 0) /* the session of this header counts as well */
            after = "X-Session-Id";
        snprintf(head, sizeof(head), "%s: other\r\n%s: k\r\n", after, headers[i]);
        cr_expect_eq(ask(&w, head, "{" HI R"(,"user":"u"})"), k, "%s", headers[i]);
    }
    for (size_t i = 0; i < ARRAY_SIZE(bodies); i++) {
        cr_expect_eq(ask_named(&w, bodies[i], "k"), k, "%s", bodies[i]);
        cr_expect_neq(ask_named(&w, bodies[i], "l"), k, "%s", bodies[i]);
    }
    cr_expect_neq(ask(&w, "X-Session-Id: \r\n", "{" HI R"(,"user":"u"})"), k, "empty is absent");
    world_stop(&w);
}

Test(session, of_an_agent_is_its_own_inside_the_whole) {
    struct world w;

    started(&w);
    uint64_t whole = ask(&w, "X-Claude-Code-Session-Id: s\r\n", "{" HI "}");
    uint64_t agent =
        ask(&w, "X-Claude-Code-Session-Id: s\r\nX-Claude-Code-Agent-Id: 1\r\n", "{" HI "}");
    uint64_t foreign =
        ask(&w, "X-Claude-Code-Session-Id: t\r\nX-Claude-Code-Agent-Id: 1\r\n", "{" HI "}");
    cr_expect_neq(agent, whole);
    cr_expect_neq(agent, foreign);
    world_stop(&w);
}

Test(session, without_a_name_is_the_conversation) {
    struct world w;

    started(&w);
    uint64_t first = ask(&w, "",
                         R"({"messages":[{"role":"system","content":"s"},)"
                         R"({"role":"user","content":"q"}]})");
    uint64_t second = ask(&w, "",
                          R"({"messages":[{"role":"system","content":"s"},)"
                          R"({"role":"user","content":[{"type":"text","text":"q"}]},)"
                          R"({"role":"assistant","content":"a"},)"
                          R"({"role":"user","content":"r"}]})");
    uint64_t third = ask(&w, "",
                         R"({"messages":[{"role":"system","content":"t"},)"
                         R"({"role":"user","content":"q"}]})");
    uint64_t cut = ask(&w, "",
                       R"({"messages":[{"role":"system","content":"sq"},)"
                       R"({"role":"user","content":""}]})");
    cr_expect_neq(first, 0);
    cr_expect_eq(first, second, "the turns of one conversation meet");
    cr_expect_neq(first, third);
    cr_expect_neq(first, cut);
    cr_expect_eq(ask_at(&w, TEXT, "", R"({"prompt":"q"})"), 0, "a bare prompt tells nothing");
    cr_expect_eq(ask(&w, "", R"({"messages":[{"role":"system","content":"s"}]})"), 0);
    world_stop(&w);
}

/* In the other dialects the session is a name, or else the conversation. */
Test(session, is_told_in_every_dialect) {
    static const struct {
        const char *path, *named, *first, *second, *other;
    } table[] = {
        {"/v1/messages",
         R"({"model":"claude","max_tokens":9,)" HI R"(,"metadata":{"user_id":"k"}})",
         R"({"model":"claude","max_tokens":9,"system":"s",)" HI "}",
         R"({"model":"claude","max_tokens":9,"system":"s","messages":[{"role":"user",)"
         R"("content":"hi"},{"role":"assistant","content":"x"},{"role":"user",)"
         R"("content":"more"}]})",
         R"({"model":"claude","max_tokens":9,"system":"t",)" HI "}"},
        {"/v1/responses", R"({"input":"hi","prompt_cache_key":"k"})",
         R"({"input":"hi","instructions":"s"})",
         R"({"instructions":"s","input":[{"role":"user","content":"hi"},{"role":)"
         R"("assistant","content":"x"},{"role":"user","content":"more"}]})",
         R"({"input":"hi","instructions":"t"})"},
    };
    struct world w;

    started(&w);
    uint64_t k = ask(&w, "", "{" HI R"(,"user":"k"})");
    for (size_t i = 0; i < ARRAY_SIZE(table); i++) {
        uint64_t first = ask_at(&w, table[i].path, "", table[i].first);

        cr_expect_eq(ask_at(&w, table[i].path, "", table[i].named), k, "%s", table[i].path);
        cr_expect_neq(first, 0, "%s", table[i].path);
        cr_expect_eq(ask_at(&w, table[i].path, "", table[i].second), first, "%s", table[i].path);
        cr_expect_neq(ask_at(&w, table[i].path, "", table[i].other), first, "%s", table[i].path);
        cr_expect_eq(ask_at(&w, table[i].path, "X-Session-Id: k\r\n", table[i].first), k, "%s",
                     table[i].path);
    }
    world_stop(&w);
}

Test(session, of_one_name_differs_between_tenants) {
    struct world w;
    char path[64];

    snprintf(path, sizeof(path), "/tmp/weft-test-session-%d", getpid());
    FILE *f = fopen(path, "w");
    cr_assert(f);
    fputs("one:k1\none:k2\ntwo:k3\n", f);
    fclose(f);
    world_init(&w);
    w.port.script = "x";
    w.opts.api_keys_file = path;
    world_start(&w);
    uint64_t a = ask(&w, "Authorization: Bearer k1\r\n", "{" HI R"(,"user":"u"})");
    uint64_t b = ask(&w, "Authorization: Bearer k2\r\n", "{" HI R"(,"user":"u"})");
    uint64_t c = ask(&w, "Authorization: Bearer k3\r\nX-Session-Id: u\r\n", "{" HI "}");
    cr_expect_eq(a, b);
    cr_expect_neq(a, c);
    world_stop(&w);
    unlink(path);
}

Test(session, is_shown_with_its_origin) {
    struct world w;
    struct api_request_info info[4];
    struct reply r;

    started(&w);
    w.port.hold = true;
    int fd = world_connect(&w);
    world_post(&w, fd, CHAT, "{" HI R"(,"user":"u"})");
    world_turns(&w, 5);
    cr_assert_eq(api_requests(w.api, info, 4), 1u);
    cr_expect_eq(info[0].session, last(&w)->m.session);
    cr_expect_str_eq(info[0].session_from, "user");
    w.port.hold = false;
    world_receive(&w, fd, &r);
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

/* The vectors of the reference implementation: key 00 01 .. 0f, input 00 01 .. */
Test(session, hash_is_siphash_2_4) {
    static const uint64_t key[2] = {0x0706050403020100u, 0x0f0e0d0c0b0a0908u};
    uint8_t in[16];

    for (uint8_t i = 0; i < sizeof(in); i++)
        in[i] = i;
    cr_expect_eq(siphash(key, in, 0), 0x726fdb47dd0e0e31u);
    cr_expect_eq(siphash(key, in, 8), 0x93f5f5799a932462u);
    cr_expect_eq(siphash(key, in, 15), 0xa129ca6149be45e5u);
}
