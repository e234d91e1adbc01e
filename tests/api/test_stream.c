/*
 * Streams compared with a naive reading of the whole output: random texts with stop strings, cut
 * into events anywhere, sent twice, interrupted by the death of the worker, read by a slow client.
 */

#include <criterion/criterion.h>
#include <string.h>
#include <yyjson.h>

#include "base/rng.h"
#include "stream.h"

#define ROUNDS 400

static const char *const letters[] = {
    "a", "b",  "ab",   "\xC3\xA9", "\xE2\x82\xAC", "\xF0\x9F\x98\x80", "S",
    "T", "ST", "STOP", "\n",       R"(")",         "\xE2\x82\xAC\xE2"};

struct story {
    struct rng rng;
    /* the whole output of the worker */
    char text[600];
    size_t len;
    const char *stop[3];
    uint32_t n_stops;
};

static void tell(struct story *s) {
    static const char *const stops[] = {"STOP",
                                        "TS",
                                        "\xAC\xE2",
                                        "bab",
                                        "\xF0\x9F\x98\x80"
                                        "a",
                                        "aaa"};
    uint32_t n = rng_below(&s->rng, 120);

    s->len = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = rng_below(&s->rng, ARRAY_SIZE(letters) - 1); /* the last is half a character */
        size_t len = strlen(letters[k]);

        memcpy(s->text + s->len, letters[k], len);
        s->len += len;
    }
    s->text[s->len] = 0;
    s->n_stops = rng_below(&s->rng, 4);
    for (uint32_t i = 0; i < s->n_stops; i++)
        do
            s->stop[i] = stops[rng_below(&s->rng, ARRAY_SIZE(stops))];
        /* excludes a stop string that is not text, which JSON cannot carry */
        while (s->stop[i][0] == '\xAC');
}

/* Returns the length of the text before the stop string that is complete first; of several, the
 * longest. */
static size_t visible(const struct story *s, size_t *n_tokens) {
    for (size_t end = 1; end <= s->len; end++) {
        size_t longest = 0;

        for (uint32_t i = 0; i < s->n_stops; i++) {
            size_t n = strlen(s->stop[i]);

            if (n <= end && n > longest && memcmp(s->text + end - n, s->stop[i], n) == 0)
                longest = n;
        }
        if (longest) {
            *n_tokens = end;
            return end - longest;
        }
    }
    *n_tokens = s->len;
    return s->len;
}

static void ask(struct world *w, int fd, const struct story *s) {
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 16};

    buf_add_str(&b, "{" HI R"(,"stream":true,"stream_options":{"include_usage":true},)"
                    R"("return_token_ids":true,"max_tokens":480,"stop":[)");
    for (uint32_t i = 0; i < s->n_stops; i++)
        buf_printf(&b, R"(%s"%s")", i ? "," : "", s->stop[i]);
    buf_add_str(&b, "]}");
    world_post(w, fd, CHAT, b.data);
    world_turns(w, 4);
}

/* Plays the worker: pieces, repetitions, deaths. */
static void perform(struct world *w, struct story *s) {
    const struct fake_request *r = &w->port.r[0];
    char piece[700];

    fake_accept(&w->port, 0);
    for (size_t at = 0; at < s->len && !r->cancelled && !r->cut;) {
        size_t n = rng_below(&s->rng, 9) + 1, back = rng_below(&s->rng, 4);

        back = MIN(back, at);
        n = MIN(n, s->len - at);
        memcpy(piece, s->text + at - back, back + n);
        piece[back + n] = 0;
        fake_tokens_from(&w->port, 0, (uint32_t)(at - back), piece);
        at += n;
        if (rng_below(&s->rng, 12) == 0 && !r->cancelled && !r->cut) {
            api_worker_down(api_first_model(w->api));
            world_turns(w, (int)rng_below(&s->rng, 3));
            api_worker_up(api_first_model(w->api), NULL);
            at = r->m.n_tokens - r->m.n_prompt;
            fake_accept(&w->port, 0);
        }
        world_turns(w, (int)rng_below(&s->rng, 2));
    }
    if (!r->cancelled && !r->cut)
        fake_finish(&w->port, 0, FINISH_STOP);
}

/* Assembles the events and checks each of them against the rules. */
static void check(const struct story *s, struct buf *body) {
    size_t n_tokens, n_visible = visible(s, &n_tokens), n_ids = 0;
    CLEANUP(buf_deinit) struct buf text = {.max = 1 << 16};
    char *save = NULL;
    int n_finish = 0, n_usage = 0, n_done = 0;

    for (char *line = strtok_r(body->data, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        cr_assert_eq(strncmp(line, "data: ", 6), 0, "%s", line);
        cr_assert_eq(n_done, 0, "after the end: %s", line);
        if (strcmp(line + 6, "[DONE]") == 0) {
            n_done++;
            continue;
        }
        /* the parser refuses broken UTF-8 */
        yyjson_doc *doc = yyjson_read(line + 6, strlen(line + 6), 0);
        cr_assert(doc, "%s", line);
        yyjson_val *root = yyjson_doc_get_root(doc);
        yyjson_val *choice = yyjson_arr_get_first(yyjson_obj_get(root, "choices"));
        yyjson_val *content = yyjson_ptr_get(choice, "/delta/content");
        if (content) {
            cr_assert_eq(n_finish, 0);
            buf_add(&text, yyjson_get_str(content), yyjson_get_len(content));
            cr_assert_leq(text.len, n_visible);
            cr_assert_eq(memcmp(text.data ? text.data : "", s->text, text.len), 0);
        }
        n_ids += yyjson_arr_size(yyjson_obj_get(choice, "token_ids"));
        n_finish += yyjson_is_str(yyjson_obj_get(choice, "finish_reason"));
        yyjson_val *usage = yyjson_obj_get(root, "usage");
        if (yyjson_is_obj(usage)) {
            n_usage++;
            cr_assert_eq(yyjson_get_uint(yyjson_obj_get(usage, "completion_tokens")), n_tokens);
        }
        yyjson_doc_free(doc);
    }
    cr_expect_eq(text.len, n_visible, "%zu of %zu: %s", text.len, n_visible, s->text);
    cr_expect_eq(n_ids, n_tokens);
    cr_expect_eq(n_finish + n_usage + n_done, 3);
}

static void run(uint64_t seed, uint32_t buffer) {
    struct story s = {.rng = {seed}};
    struct world w;
    struct reply r;

    world_init(&w);
    w.opts.stream_buffer_bytes = buffer;
    w.model.max_context = 4096;
    world_start(&w);
    int fd = world_connect_unix(&w);
    for (int round = 0; round < ROUNDS; round++) {
        tell(&s);
        w.port.n = 0;
        ask(&w, fd, &s);
        cr_assert_eq(w.port.n, 1);
        perform(&w, &s);
        world_receive(&w, fd, &r);
        cr_assert_eq(r.status, 200);
        check(&s, &r.body);
        reply_deinit(&r);
    }
    world_drop(&w, fd);
    world_stop(&w);
}

Test(stream, is_what_a_naive_reader_makes_of_the_output) {
    run(1, 256 << 10);
}

Test(stream, is_the_same_with_a_tiny_buffer) {
    run(2, 300);
}

/* The answer ends in a turn in which its connection sends. The request behind it is read in the
 * same turn, which is not to be had again for it. */
Test(stream, is_followed_by_a_request_that_came_early) {
    static const char body[] = "{" HI R"(,"stream":true})";
    struct world w;
    struct reply r;

    world_init(&w);
    w.opts.stream_buffer_bytes = 1; /* the end waits until what was before it is sent */
    world_start(&w);
    int fd = world_connect(&w);
    for (int i = 0; i < 2; i++)
        world_post(&w, fd, CHAT, body);
    world_turns(&w, 4);
    cr_assert_eq(w.port.n, 1);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "a text that is longer than the buffer of the stream");
    fake_finish(&w.port, 0, FINISH_STOP);
    world_receive(&w, fd, &r);
    cr_assert_eq(r.status, 200);
    cr_assert(strstr(r.body.data, DONE));
    reply_deinit(&r);
    world_turns(&w, 4);
    cr_assert_eq(w.port.n, 2);
    fake_accept(&w.port, 1);
    fake_tokens(&w.port, 1, "another");
    fake_finish(&w.port, 1, FINISH_STOP);
    world_receive(&w, fd, &r);
    cr_expect_eq(r.status, 200);
    cr_expect(strstr(r.body.data, DONE));
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}
