/*
 * Cost of a request on the pool: it is bounded for the request however many parts it has, charged
 * before a grammar is compiled, and ends with the client. Work is measured by the pool's own clock.
 */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "api/parts.h"
#include "stream.h"
#include "tests/support/few.h"
#include "tiny.h"

#define CHAT "/v1/chat/completions"
#define HARD "(a|b)*a(a|b){16}"

static void started(struct world *w) {
    world_init(w);
    w->opts.max_body_bytes = 8 << 20;
    w->model.max_context = 1 << 20;
    w->port.script = "ok";
    world_start(w);
}

/* A chat with @n tools, each of which needs the whole work that a compilation may have. */
static void hard_tools(struct buf *b, uint32_t n, const char *more) {
    b->max = 1 << 22;
    buf_add_str(b, R"({"messages":[{"role":"user","content":"a"}],"tools":[)");
    for (uint32_t i = 0; i < n; i++)
        buf_printf(b,
                   R"(%s{"type":"function","function":{"name":"f%u","parameters":{)"
                   R"("type":"object","properties":{"a":{"pattern":")" HARD
                   R"(%u"}},"required":["a"]}}})",
                   i ? "," : "", i, i);
    buf_printf(b, "]%s}", more);
}

static double busy_s(struct world *w) {
    struct jobs_stats s;

    jobs_stats(w->api->env.pool.jobs, &s);
    return (double)s.busy_ns / 1e9;
}

static double ask_for_tools(struct world *w, uint32_t n, const char *more, struct reply *r) {
    CLEANUP(buf_deinit) struct buf b = {0};
    double before = busy_s(w);

    hard_tools(&b, n, more);
    world_ask(w, CHAT, b.data, r);
    return busy_s(w) - before;
}

/* One tool alone takes some part of the budget; a hundred must not take a hundred times as much. */
Test(pool, the_grammars_of_a_request_have_one_budget) {
    struct world w;
    struct reply r;

    started(&w);
    double few = ask_for_tools(&w, 4, "", &r);
    cr_expect_eq(r.status, 200, "%s", r.body.data);
    reply_deinit(&r);
    double many = ask_for_tools(&w, 100, "", &r);
    cr_expect_eq(r.status, 200, "%s", r.body.data);
    reply_deinit(&r);
    cr_expect_lt(many, 8 * few + 0.5, "%f s for 4, %f s for 100", few, many);
    world_stop(&w);
}

/* Returns how many jobs of the pool a request with a schema of much work and @salt takes. */
static uint64_t jobs_under(struct world *w, const char *salt) {
    struct jobs_stats before, after;
    char body[512];
    struct reply r;

    snprintf(body, sizeof(body),
             R"({"prompt":"a","guided_json":{"pattern":"(a|b)*a(a|b){12}"},)"
             R"("cache_salt":"%s"})",
             salt);
    jobs_stats(w->api->env.pool.jobs, &before);
    world_ask(w, "/v1/completions", body, &r);
    jobs_stats(w->api->env.pool.jobs, &after);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    reply_deinit(&r);
    return after.n_done - before.n_done;
}

/* A cached grammar needs no job; a client could see by the time whether one was needed. */
Test(pool, grammars_are_remembered_by_tenant_and_salt) {
    struct world w;

    started(&w);
    cr_expect_eq(jobs_under(&w, "one"), 1);
    cr_expect_eq(jobs_under(&w, "one"), 0);
    cr_expect_eq(jobs_under(&w, "two"), 1);
    cr_expect_eq(jobs_under(&w, "two"), 0);
    world_stop(&w);
}

/* Constraints depend on the request alone, not on what is cached from others. */
Test(pool, the_same_tools_are_held_again) {
    CLEANUP(buf_deinit) struct buf b = {0};
    struct world w;
    struct reply r;

    started(&w);
    hard_tools(&b, 30, "");
    for (uint32_t i = 0; i < FEWEST(3u, 2u); i++) {
        world_ask(&w, CHAT, b.data, &r);
        cr_assert_eq(r.status, 200, "%s", r.body.data);
        reply_deinit(&r);
        cr_assert_eq(w.port.n, i + 1);
        cr_expect_str_eq(w.port.r[i].grammar, w.port.r[0].grammar);
        if (i == 0) /* other grammars in between, which are cached too */
            ask_for_tools(&w, 3, R"(,"temperature":0)", &r), reply_deinit(&r), w.port.n--;
    }
    world_stop(&w);
}

Test(pool, a_prompt_that_does_not_fit_costs_no_grammar) {
    struct world w;
    struct reply r;

    started(&w);
    w.model.max_context = 16;
    double busy = ask_for_tools(&w, 100, "", &r);
    cr_expect_eq(r.status, 400);
    cr_expect(strstr(r.body.data, "context_length_exceeded"), "%s", r.body.data);
    reply_deinit(&r);
    cr_expect_lt(busy, 0.5);
    world_stop(&w);
}

Test(pool, work_for_a_client_that_has_left_ends) {
    CLEANUP(buf_deinit) struct buf b = {0};
    struct world w;

    started(&w);
    hard_tools(&b, 200, "");
    int fd = world_connect(&w);
    world_post(&w, fd, CHAT, b.data);
    for (uint64_t end = world_limit(); busy_s(&w) == 0 && uv_hrtime() < end;)
        world_turn(&w);
    world_drop(&w, fd);
    for (uint64_t end = world_limit(); jobs_n(w.api->env.pool.jobs) > 0 && uv_hrtime() < end;) {
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        world_turn(&w);
    }
    cr_expect_eq(jobs_n(w.api->env.pool.jobs), 0u);
    cr_expect_lt(busy_s(&w), 0.3);
    cr_expect_eq(w.port.n, 0u);
    world_stop(&w);
}

/* A template that never ends and refuses nothing: other forms of the messages are not tried. */
Test(pool, a_rendering_without_end_is_not_tried_in_other_forms) {
    static const char endless[] = "{%- for i in range(100000) -%}{%- for k in range(100000) -%}"
                                  "{%- set x = messages[0].content -%}{%- endfor -%}{%- endfor -%}";
    struct world w;
    struct reply r;

    world_init(&w);
    w.port.script = "ok";
    world_use_template(&w, endless, strlen(endless));
    world_start(&w);
    world_ask(&w, CHAT,
              R"({"messages":[{"role":"user","content":"a"},{"role":"system",)"
              R"("content":"b"},{"role":"user","content":"c"}]})",
              &r);
    cr_expect_eq(r.status, 400);
    cr_expect(strstr(r.body.data, "takes too many steps") &&
                  strstr(r.body.data, R"("template_error")"),
              "%s", r.body.data);
    reply_deinit(&r);
    struct jobs_stats s;
    jobs_stats(w.api->env.pool.jobs, &s);
    cr_expect_eq(s.n_done, 1u, "the loop gave it to the pool");
    world_stop(&w);
}
