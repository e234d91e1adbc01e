/*
 * Long answers of lookups are written on the pool, short ones on the loop. The JSON writer's calls
 * for numbers, and the bytes of its texts, are counted by thread. Texts that json_print() writes
 * are not counted, so lookups write long texts by json_string().
 */

#include <criterion/criterion.h>
#include <pthread.h>

#include "api/http/json.h"
#include "stream.h"
#include "tiny.h"

#define LONG 20000u
#define SHORT 300u
/* limit of the calls and bytes of short answers, and of the head of a long one */
#define SMALL 1000u

static pthread_t loop;
static _Atomic uint64_t on_loop, on_pool;

static void count(uint64_t n) {
    if (pthread_equal(pthread_self(), loop))
        on_loop += n;
    else
        on_pool += n;
}

/* The linker replaces the functions of api/http/json.c by these (--wrap). */
void __real_json_int(struct json *j, int64_t v);
void __wrap_json_int(struct json *j, int64_t v);
void __real_json_string(struct json *j, const char *s, size_t len);
void __wrap_json_string(struct json *j, const char *s, size_t len);
void __real_json_valid(struct json *j, const char *s, size_t len);
void __wrap_json_valid(struct json *j, const char *s, size_t len);

void __wrap_json_int(struct json *j, int64_t v) {
    count(1);
    __real_json_int(j, v);
}

void __wrap_json_string(struct json *j, const char *s, size_t len) {
    count(len);
    __real_json_string(j, s, len);
}

void __wrap_json_valid(struct json *j, const char *s, size_t len) {
    count(len);
    __real_json_valid(j, s, len);
}

static void started(struct world *w) {
    loop = pthread_self();
    world_init(w);
    w->model.max_context = 1 << 20;
    world_start(w);
}

static void ask(struct world *w, const char *path, const char *body) {
    struct reply r;

    on_loop = on_pool = 0;
    world_ask(w, path, body, &r);
    cr_assert_eq(r.status, 200, "%s: %.*s", path, (int)r.body.len, r.body.data);
    cr_assert_geq(on_loop + on_pool, 1);
    reply_deinit(&r);
}

/* Sends @head, @n times @unit with commas between, and @tail: long requests are answered on the
 * pool, short ones are not. */
static void expect_on_pool(struct world *w, const char *path, const char *head, const char *unit,
                           const char *comma, const char *tail) {
    for (uint32_t n = SHORT; n <= LONG; n += LONG - SHORT) {
        CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};

        buf_add_str(&b, head);
        for (uint32_t i = 0; i < n; i++)
            buf_printf(&b, "%s%s", i ? comma : "", unit);
        buf_add_str(&b, tail);
        ask(w, path, b.data);
        if (n == SHORT)
            cr_expect(on_loop >= SHORT && on_pool == 0, "%s: a short one needs no thread", path);
        else
            cr_expect(on_pool >= LONG && on_loop < SMALL, "%s: %u on the loop, %u on the pool",
                      path, (unsigned)on_loop, (unsigned)on_pool);
    }
}

Test(lookup, a_long_answer_is_written_on_the_pool) {
    struct world w;

    started(&w);
    expect_on_pool(&w, "/tokenize", R"({"prompt":")", "a", "", R"("})");
    expect_on_pool(&w, "/tokenize", R"({"prompt":")", "a", "", R"(","with_pieces":true})");
    expect_on_pool(&w, "/tokenize", R"({"prompt":")", "a", "", R"(","return_token_strs":true})");
    expect_on_pool(&w, "/detokenize", R"({"tokens":[)", "97", ",", "]}");
    expect_on_pool(&w, "/apply-template", R"({"messages":[{"role":"user","content":")", "a", "",
                   R"("}]})");
    expect_on_pool(&w, "/v1/completions/render", R"({"prompt":")", "a", "", R"("})");
    expect_on_pool(&w, "/v1/chat/completions/render", R"({"messages":[{"role":"user","content":")",
                   "a", "", R"("}]})");
    world_stop(&w);
}
