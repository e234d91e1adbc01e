#include <criterion/criterion.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "proto/messages.h"

/* A submit that uses every field. */
static struct submit full_submit(void) {
    static const int32_t tokens[] = {1, 2, 3, 4}, stop_ids[] = {7, 8};
    static const struct submit_bias bias[] = {{5, -1.5f}};
    static const struct submit_picture pictures[] = {{0, 1, 1, 1, 1, 28, 28, {9}},
                                                     {1, 2, 2, 1, 2, 56, 28, {8, 7}}};
    struct submit m = {
        .id = 42,
        .seed = 9,
        .n_prompt = 3,
        .max_new = 10,
        .n_tokens = 4,
        .n_stop_ids = 2,
        .n_bias = 1,
        .n_stops = 2,
        .tokens = tokens,
        .stop_ids = stop_ids,
        .bias = bias,
        .stops = {{"END", 3}, {"\n\n", 2}},
        .prediction = {"abc", 3},
        .allowed = {"defg", 4},
        .bad_words = {"hijk", 4},
        .breakers = {"lmno", 4},
        .tenant_name = {"alice", 5},
        .n_top = 3,
        .n_pictures = 2,
        .pictures = pictures,
    };

    params_init(&m.sampling);
    m.sampling.temperature = 0.7;
    return m;
}

/* A copy of the payload in memory that ends exactly at its last byte, so that a sanitizer sees a
 * read past the end. */
static void *exact(const struct buf *b) {
    void *p = malloc(MAX(b->len, 1u));

    cr_assert(p);
    memcpy(p, b->data, b->len);
    return p;
}

Test(messages, submit_survives_the_wire) {
    struct submit m = full_submit(), got;
    struct buf b;

    buf_init(&b, 1 << 20);
    cr_assert_eq(msg_submit_pack(&b, &m), 0);
    cr_assert_eq(msg_submit_parse(b.data, (uint32_t)b.len, &got), 0);
    cr_expect_eq(got.id, 42);
    cr_expect_eq(got.n_tokens, 4);
    cr_expect_arr_eq(got.tokens, m.tokens, 4 * sizeof(int32_t));
    cr_expect_eq(got.stop_ids[1], 8);
    cr_expect_float_eq(got.bias[0].bias, -1.5f, 0);
    cr_expect_arr_eq(got.stops[0].data, "END", 3);
    cr_expect_eq(got.stops[1].len, 2);
    cr_expect_arr_eq(got.prediction.data, "abc", 3);
    cr_expect_arr_eq(got.allowed.data, "defg", 4);
    cr_expect_arr_eq(got.bad_words.data, "hijk", 4);
    cr_expect_arr_eq(got.breakers.data, "lmno", 4);
    cr_expect_arr_eq(got.tenant_name.data, "alice", got.tenant_name.len);
    cr_expect_eq(got.tenant_name.len, 5);
    cr_expect_eq(got.sampling.temperature, 0.7);
    cr_assert_eq(got.n_pictures, 2);
    cr_expect_arr_eq(got.pictures, m.pictures, 2 * sizeof(*m.pictures));
    buf_deinit(&b);
}

/* Packs @m in parts, of which the receiver takes each, and compares the whole with
 * msg_submit_pack(). Returns the number of parts. */
static int join_parts(const struct submit *m) {
    CLEANUP(buf_deinit) struct buf whole = {.max = 16 << 20}, part = {.max = 1 << 20};
    CLEANUP(submit_parts_deinit) struct submit_parts parts = {0};
    uint32_t len = msg_submit_len(m), at = 0;
    int n_parts = 0, r = 0;

    cr_assert_eq(msg_submit_pack(&whole, m), 0);
    cr_assert_eq(len, whole.len);
    for (int n = 0; at < len; at += (uint32_t)n, n_parts++) {
        cr_assert_eq(r, 0);
        buf_clear(&part);
        cr_assert_gt(n = msg_submit_pack_part(&part, m, at), 0);
        cr_assert(n <= (int)SUBMIT_WHOLE && part.len <= SUBMIT_WHOLE + 16);
        r = msg_submit_add_part(&parts, part.data, (uint32_t)part.len);
    }
    cr_assert_eq(r, 1);
    cr_assert_eq(parts.text.len, whole.len);
    cr_assert_eq(memcmp(parts.text.data, whole.data, whole.len), 0);
    return n_parts;
}

Test(messages, a_submit_in_parts_is_the_whole) {
    static int32_t tokens[100000];
    static char grammar[300000];
    struct submit m = full_submit();

    cr_expect_eq(join_parts(&m), 1);
    for (size_t i = 0; i < ARRAY_SIZE(tokens); i++)
        tokens[i] = (int32_t)i;
    memset(grammar, 'g', sizeof(grammar));
    m.tokens = tokens;
    m.max_new = 1000;
    m.grammar.data = grammar;
    for (uint32_t i = 0; i < 40; i++) { /* so that a part ends at every place of its neighbours */
        m.n_tokens = m.n_prompt = 16000 + i;
        m.grammar.len = 7 * i;
        cr_expect_geq(join_parts(&m), 1);
    }
    m.n_tokens = m.n_prompt = ARRAY_SIZE(tokens);
    m.grammar.len = sizeof(grammar);
    cr_expect_eq(join_parts(&m), 11);
}

/* Makes the part of @m at byte @at in @b, and takes it. */
static int take_part_at(struct submit_parts *parts, const struct submit *m, struct buf *b,
                        uint32_t at) {
    buf_clear(b);
    cr_assert_gt(msg_submit_pack_part(b, m, at), 0);
    return msg_submit_add_part(parts, b->data, (uint32_t)b->len);
}

Test(messages, parts_follow_each_other) {
    static int32_t tokens[50000];
    CLEANUP(submit_parts_deinit) struct submit_parts parts = {0};
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
    struct submit m = full_submit();
    uint32_t at[4] = {0};

    m.tokens = tokens;
    m.n_tokens = m.n_prompt = ARRAY_SIZE(tokens);
    for (int i = 0; i < 3; i++) {
        at[i + 1] = at[i] + (uint32_t)msg_submit_pack_part(&b, &m, at[i]);
        buf_clear(&b);
    }
    cr_expect_eq(take_part_at(&parts, &m, &b, at[1]), -EPROTO, "there is no beginning");
    cr_expect_eq(take_part_at(&parts, &m, &b, at[0]), 0);
    cr_expect_eq(take_part_at(&parts, &m, &b, at[2]), -EPROTO, "one is missing");
    cr_expect_eq(take_part_at(&parts, &m, &b, at[1]), 0);
    cr_expect_eq(take_part_at(&parts, &m, &b, at[1]), -EPROTO, "it came already");
    msg_submit_drop(&parts, m.id + 1);
    cr_expect_eq(take_part_at(&parts, &m, &b, at[2]), 0, "another request was dropped");
    msg_submit_drop(&parts, m.id);
    cr_expect_eq(take_part_at(&parts, &m, &b, at[3]), -EPROTO, "it was dropped");
    cr_expect_eq(take_part_at(&parts, &m, &b, at[0]), 0);
    m.id++;
    cr_expect_eq(take_part_at(&parts, &m, &b, at[1]), -EPROTO, "of another request");
    cr_expect_eq(take_part_at(&parts, &m, &b, at[0]), 0, "which begins");
    cr_expect_eq(take_part_at(&parts, &m, &b, at[1]), 0);
    cr_expect_eq(msg_submit_add_part(&parts, b.data, sizeof(struct msg_submit_part)), -EPROTO);
    cr_expect_eq(msg_submit_add_part(&parts, b.data, 7), -EPROTO);
}

/* Packs full_submit() without pictures, copies the @size bytes of @value to byte @at, and parses
 * it. */
static int parse_changed(size_t at, const void *value, size_t size) {
    CLEANUP(buf_deinit) struct buf b = {.max = 1 << 20};
    struct submit m = full_submit(), got;

    m.n_pictures = 0;
    cr_assert_eq(msg_submit_pack(&b, &m), 0);
    memcpy(b.data + at, value, size);
    return msg_submit_parse(b.data, (uint32_t)b.len, &got);
}

Test(messages, every_field_of_a_submit_has_its_limit) {
    const size_t at = offsetof(struct submit, n_prompt);
    const uint32_t good[][2] = {{4, 1}, {3, 1}, {1, 3}}; /* n_prompt, max_new; it has four tokens */
    const uint32_t bad[][2] = {{0, 4}, {5, 10}, {4, 0}, {1, 2}};

    for (size_t i = 0; i < ARRAY_SIZE(good); i++)
        cr_expect_eq(parse_changed(at, good[i], 8), 0, "%zu", i);
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++)
        cr_expect_eq(parse_changed(at, bad[i], 8), -EPROTO, "%zu", i);
#define CHANGED(field, v)                                                                          \
    parse_changed(offsetof(struct submit, field), &(__typeof__(((struct submit *)0)->field)){v},   \
                  sizeof(((struct submit *)0)->field))
    cr_expect_eq(CHANGED(n_stops, 3), -EPROTO);
    cr_expect_eq(CHANGED(n_stops, 1), -EPROTO);
    cr_expect_eq(CHANGED(n_top, SUBMIT_TOP_MAX), 0);
    cr_expect_eq(CHANGED(n_top, SUBMIT_TOP_MAX + 1), -EPROTO);
    cr_expect_eq(CHANGED(n_prompt_top, SUBMIT_TOP_MAX), 0);
    cr_expect_eq(CHANGED(n_prompt_top, SUBMIT_TOP_MAX + 1), -EPROTO);
    cr_expect_eq(CHANGED(class, 2), 0);
    cr_expect_eq(CHANGED(class, 3), -EPROTO);
    cr_expect_eq(CHANGED(sampling.temperature, NAN), -EPROTO);
#undef CHANGED
}

/* Packs a submit with the pictures of full_submit() and writes @p over the second one of them. */
static int parse_with(const struct submit_picture *p) {
    struct submit m = full_submit(), got;
    struct buf b;

    buf_init(&b, 1 << 20);
    cr_assert_eq(msg_submit_pack(&b, &m), 0);
    char *at = memmem(b.data, b.len, &m.pictures[1], sizeof(m.pictures[1]));
    cr_assert(at);
    memcpy(at, p, sizeof(*p));
    int r = msg_submit_parse(b.data, (uint32_t)b.len, &got);
    buf_deinit(&b);
    return r;
}

Test(messages, pictures_lie_in_the_prompt_one_behind_the_other) {
    struct submit m = full_submit();
    const struct submit_picture good = m.pictures[1];
    struct submit_picture p = good;

    cr_expect_eq(parse_with(&good), 0);
#define REFUSED(field, value)                                                                      \
    do {                                                                                           \
        p = good;                                                                                  \
        p.field = value;                                                                           \
        cr_expect_eq(parse_with(&p), -EPROTO, #field " " #value);                                  \
    } while (0)
    REFUSED(at, 0);
    REFUSED(at, 2);
    REFUSED(at, UINT32_MAX);
    REFUSED(n_rows, 0);
    REFUSED(n_rows, 3);
    REFUSED(n_rows, UINT32_MAX);
    REFUSED(n_columns, 0);
    REFUSED(n_columns, UINT32_MAX);
    REFUSED(n_lines, 0);
    REFUSED(n_lines, 2);
    REFUSED(n_positions, 0);
    REFUSED(n_positions, 3);
    REFUSED(width, 0);
    REFUSED(width, UINT32_MAX);
    REFUSED(height, 0);
    REFUSED(height, PICTURE_BYTES_MAX);
#undef REFUSED
}

Test(messages, pixels_come_in_parts_or_there_is_a_reason) {
    struct msg_picture part = {.id = 5, .index = 2, .offset = 6, .total = 12, .rgb = {"abcdef", 6}},
                       none = {.id = 5, .status = 400, .why = {"cut", 3}, .code = {"bad", 3}}, got;
    struct msg_need_picture need = {5, SUBMIT_PICTURES_MAX - 1, 0}, need2;
    struct buf b;

    buf_init(&b, 1 << 12);
    cr_assert_eq(msg_picture_pack(&b, &part), 0);
    cr_assert_eq(msg_picture_parse(b.data, (uint32_t)b.len, &got), 0);
    cr_expect(got.id == 5 && got.index == 2 && got.offset == 6 && got.total == 12);
    cr_expect_arr_eq(got.rgb.data, "abcdef", 6);
    /* The fixed part begins with the struct: its offset is where the parser has to look. */
    uint32_t behind = 7;
    memcpy(b.data + offsetof(struct msg_picture, offset), &behind, sizeof(behind));
    cr_expect_eq(msg_picture_parse(b.data, (uint32_t)b.len, &got), -EPROTO);
    buf_clear(&b);
    cr_assert_eq(msg_picture_pack(&b, &none), 0);
    cr_assert_eq(msg_picture_parse(b.data, (uint32_t)b.len, &got), 0);
    cr_expect(got.status == 400 && got.why.len == 3 && got.code.len == 3 && got.rgb.len == 0);
    uint16_t well = 200;
    memcpy(b.data + offsetof(struct msg_picture, status), &well, sizeof(well));
    cr_expect_eq(msg_picture_parse(b.data, (uint32_t)b.len, &got), -EPROTO);
    buf_clear(&b);
    cr_assert_eq(msg_need_picture_pack(&b, &need), 0);
    cr_assert_eq(msg_need_picture_parse(b.data, (uint32_t)b.len, &need2), 0);
    cr_expect_eq(need2.index, SUBMIT_PICTURES_MAX - 1);
    need.index = SUBMIT_PICTURES_MAX;
    cr_expect_eq(msg_need_picture_parse(&need, sizeof(need), &need2), -EPROTO);
    buf_deinit(&b);
}

Test(messages, no_change_of_a_frame_makes_the_parser_read_outside) {
    struct submit m = full_submit(), got;
    struct buf b;
    struct rng r = {3};
    int refused = 0;

    buf_init(&b, 1 << 20);
    cr_assert_eq(msg_submit_pack(&b, &m), 0);
    for (uint32_t cut = 0; cut < b.len; cut++) {
        struct buf part = {.data = b.data, .len = cut};
        void *p = exact(&part);

        cr_assert_eq(msg_submit_parse(p, cut, &got), -EPROTO);
        free(p);
    }
    for (int i = 0; i < 20000; i++) {
        unsigned char *p = exact(&b);
        uint64_t sum = 0;

        for (uint32_t k = 1 + rng_below(&r, 4); k > 0; k--)
            p[rng_below(&r, (uint32_t)b.len)] = (unsigned char)rng_next(&r);
        if (msg_submit_parse(p, (uint32_t)b.len, &got) == 0) {
            for (uint32_t k = 0; k < got.n_tokens; k++)
                sum += (uint32_t)got.tokens[k];
            for (uint32_t k = 0; k < got.n_pictures; k++)
                sum += (uint32_t)got.tokens[got.pictures[k].at + got.pictures[k].n_rows - 1];
            for (uint32_t k = 0; k < got.n_stops; k++)
                for (uint32_t j = 0; j < got.stops[k].len; j++)
                    sum += (unsigned char)got.stops[k].data[j];
        } else {
            refused++;
        }
        __asm__ volatile("" ::"r"(sum));
        free(p);
    }
    cr_expect_gt(refused, 1000);
    buf_deinit(&b);
}

Test(messages, events_are_read_back_in_order) {
    static const int32_t t1[] = {5, 6}, t2[] = {7};
    static const float lp[] = {-0.5f, -1};
    static const struct event_top top[] = {{1, -1}, {2, -2}, {3, -3}, {4, -4}};
    static const uint64_t digest[] = {11};
    static const float vector[] = {0.25f, -3, 7};
    struct event a = {.id = 1,
                      .kind = EVENT_TOKENS,
                      .n_tokens = 2,
                      .first_step_ns = 10,
                      .prompt_end_ns = 20,
                      .computed_ns = 30,
                      .tokens = t1,
                      .logprobs = lp,
                      .top = top,
                      .n_top = 2},
                 b = {.id = 2,
                      .kind = EVENT_FINISH,
                      .finish = FINISH_ERROR,
                      .status = 500,
                      .n_tokens = 1,
                      .tokens = t2,
                      .digests = digest,
                      .text = {"why", 3},
                      .code = {"code", 4},
                      .param = {"a.b", 3},
                      .n_vector = 3,
                      .vector = vector},
                 got;
    struct event_cursor c;
    struct buf out;

    buf_init(&out, 1 << 16);
    cr_assert_eq(msg_event_pack(&out, &a), 0);
    cr_assert_eq(msg_event_pack(&out, &b), 0);
    msg_events_begin(&c, out.data, (uint32_t)out.len);
    cr_assert_eq(msg_events_next(&c, &got), 0);
    cr_expect_eq(got.tokens[1], 6);
    cr_expect(got.first_step_ns == 10 && got.prompt_end_ns == 20 && got.computed_ns == 30);
    cr_expect_eq(got.top[3].token, 4);
    cr_expect_null(got.digests);
    cr_assert_eq(msg_events_next(&c, &got), 0);
    cr_expect_eq(got.digests[0], 11);
    cr_expect_eq(got.text.len, 3);
    cr_expect(got.code.len == 4 && memcmp(got.code.data, "code", 4) == 0);
    cr_expect(got.param.len == 3 && memcmp(got.param.data, "a.b", 3) == 0);
    cr_assert_eq(got.n_vector, 3);
    cr_expect_eq(got.vector[2], 7);
    cr_expect_eq(msg_events_next(&c, &got), 1);

    for (uint32_t cut = 1; cut < out.len; cut++) {
        int r;

        msg_events_begin(&c, out.data, cut);
        while ((r = msg_events_next(&c, &got)) == 0)
            ;
        cr_assert(r == -EPROTO || r == 1);
    }
    buf_deinit(&out);
}

/* Times of events are subtracted from each other. */
Test(messages, times_of_events_are_not_negative) {
    static const size_t fields[] = {offsetof(struct event, first_step_ns),
                                    offsetof(struct event, prompt_end_ns),
                                    offsetof(struct event, computed_ns)};
    const struct event e = {.id = 1, .kind = EVENT_ACCEPTED};
    const int64_t bad = INT64_MIN;

    for (size_t i = 0; i < ARRAY_SIZE(fields); i++) {
        CLEANUP(buf_deinit) struct buf out = {.max = 4096};
        struct event_cursor c;
        struct event got;

        cr_assert_eq(msg_event_pack(&out, &e), 0);
        memcpy(out.data + 2 * sizeof(uint32_t) + fields[i], &bad, sizeof(bad));
        msg_events_begin(&c, out.data, (uint32_t)out.len);
        cr_expect_eq(msg_events_next(&c, &got), -EPROTO);
    }
}

Test(messages, a_full_buffer_takes_nothing_of_an_event) {
    static const int32_t t[100];
    struct event a = {.id = 1, .kind = EVENT_TOKENS, .n_tokens = 100, .tokens = t};
    struct buf out;

    buf_init(&out, 300);
    cr_expect_eq(msg_event_pack(&out, &a), -EMSGSIZE);
    cr_expect_eq(out.len, 0);
    buf_deinit(&out);
}

Test(messages, ready_and_open_survive) {
    struct msg_ready ready = {.n_vocab = 5,
                              .max_context = 64,
                              .page_tokens = 16,
                              .arch = {"llama", 5},
                              .backend = {"cpu", 3},
                              .weights = 2},
                     ready2;
    struct msg_open open = {.kv_bytes = 7,
                            .memory_bytes = 8,
                            .options = {"isa\0auto", 9},
                            .has_disk = 1,
                            .keeps_draft = 1},
                    open2;
    struct buf b;

    buf_init(&b, 4096);
    cr_assert_eq(msg_ready_pack(&b, &ready), 0);
    cr_assert_eq(msg_ready_parse(b.data, (uint32_t)b.len, &ready2), 0);
    cr_expect_eq(ready2.n_vocab, 5);
    cr_expect_arr_eq(ready2.arch.data, "llama", 5);
    cr_expect_eq(ready2.weights, 2);
    ready.weights = READY_WEIGHTS;
    buf_clear(&b);
    cr_assert_eq(msg_ready_pack(&b, &ready), 0);
    cr_expect_eq(msg_ready_parse(b.data, (uint32_t)b.len, &ready2), -EPROTO);
    ready = (struct msg_ready){.max_context = 64};
    buf_clear(&b);
    cr_assert_eq(msg_ready_pack(&b, &ready), 0);
    cr_expect_eq(msg_ready_parse(b.data, (uint32_t)b.len, &ready2), -EPROTO);
    ready = (struct msg_ready){.page_tokens = 16};
    buf_clear(&b);
    cr_assert_eq(msg_ready_pack(&b, &ready), 0);
    cr_expect_eq(msg_ready_parse(b.data, (uint32_t)b.len, &ready2), -EPROTO);
    buf_clear(&b);
    cr_assert_eq(msg_open_pack(&b, &open), 0);
    cr_assert_eq(msg_open_parse(b.data, (uint32_t)b.len, &open2), 0);
    cr_expect_eq(open2.kv_bytes, 7);
    cr_expect_eq(open2.memory_bytes, 8);
    cr_expect(open2.has_disk && !open2.keeps && open2.keeps_draft);
    cr_expect_eq(open2.options.len, 9);
    cr_expect_arr_eq(open2.options.data, "isa\0auto", 9);
    buf_deinit(&b);
}

/* Whatever a worker sends that is to be shown, or multiplied. */
Test(messages, progress_is_a_fraction) {
    const float good[] = {0, 0.25f, 1}, bad[] = {-0.01f, 1.01f, NAN, INFINITY, -INFINITY, 1e30f};
    struct msg_progress m = {{"weights", 7}, 0.5f}, got;
    struct buf b;

    buf_init(&b, 1 << 20);
    for (size_t i = 0; i < ARRAY_SIZE(good) + ARRAY_SIZE(bad); i++) {
        bool is_good = i < ARRAY_SIZE(good);

        buf_clear(&b);
        cr_assert_eq(msg_progress_pack(&b, &m), 0);
        memcpy(b.data + offsetof(struct msg_progress, fraction),
               is_good ? &good[i] : &bad[i - ARRAY_SIZE(good)], sizeof(float));
        got.fraction = -7;
        cr_expect_eq(msg_progress_parse(b.data, (uint32_t)b.len, &got), is_good ? 0 : -EPROTO,
                     "%zu", i);
        cr_expect_eq(got.fraction, is_good ? good[i] : -7.0f);
    }
    buf_deinit(&b);
}

Test(messages, the_end_of_a_turn_has_one_form) {
    struct turn_end m = {.id = 5, .session = 7, .calls = 1}, got = {0};
    struct buf b;

    buf_init(&b, 4096);
    cr_assert_eq(msg_turn_end_pack(&b, &m), 0);
    cr_assert_eq(msg_turn_end_parse(b.data, (uint32_t)b.len, &got), 0);
    cr_expect(got.id == 5 && got.session == 7 && got.calls == 1);
    for (uint32_t len = 0; len < b.len; len++)
        cr_expect_eq(msg_turn_end_parse(b.data, len, &got), -EPROTO);
    cr_assert_eq(buf_add(&b, "", 1), 0);
    cr_expect_eq(msg_turn_end_parse(b.data, (uint32_t)b.len, &got), -EPROTO);
    m.calls = 2;
    cr_expect_eq(msg_turn_end_parse(&m, sizeof(m), &got), -EPROTO);
    buf_deinit(&b);
}

Test(messages, served_is_an_array_of_tenants) {
    struct msg_served m[2] = {{.tenant = 3, .ns = 7}, {.tenant = 4, .ns = UINT64_MAX}};
    static struct msg_served many[SERVED_MAX + 1];
    const struct msg_served *got;

    for (uint32_t len = 0; len < sizeof(m); len++)
        cr_expect_eq(msg_served_parse(m, len, &got), len == sizeof(*m) ? 1 : -EPROTO);
    cr_assert_eq(msg_served_parse(m, sizeof(m), &got), 2);
    cr_expect(got[1].tenant == 4 && got[1].ns == UINT64_MAX);
    cr_expect_eq(msg_served_parse(many, sizeof(many) - sizeof(*many), &got), SERVED_MAX);
    cr_expect_eq(msg_served_parse(many, sizeof(many), &got), -EPROTO);
    m[1].zero = 1;
    cr_expect_eq(msg_served_parse(m, sizeof(m), &got), -EPROTO);
    cr_expect_eq(msg_served_parse(m, sizeof(*m), &got), 1);
}

Test(messages, blocks_have_as_many_tokens_as_their_pages) {
    uint64_t gone[] = {9, UINT64_MAX};
    struct msg_block came[] = {{1, 0, {9}}, {2, 1, {9}}};
    int32_t tokens[] = {1, 2, 3, 4, 5, 6};
    struct msg_block_picture pictures[] = {{0, 2, {7}}, {1, -1, {7}}};
    struct msg_blocks m = {3, BLOCKS_DISK, BLOCKS_WINDOW, 64,     2,       2,
                           2, gone,        came,          tokens, pictures};
    struct msg_blocks got = {0};
    struct buf b;

    buf_init(&b, 4096);
    cr_assert_eq(msg_blocks_pack(&b, &m), 0);
    cr_assert_eq(msg_blocks_parse(b.data, (uint32_t)b.len, &got), 0);
    cr_expect(got.page_tokens == 3 && got.n_gone == 2 && got.n_came == 2);
    cr_expect(memcmp(got.gone, gone, sizeof(gone)) == 0 &&
              memcmp(got.came, came, sizeof(came)) == 0);
    cr_expect(memcmp(got.tokens, tokens, sizeof(tokens)) == 0);
    cr_expect(got.tier == BLOCKS_DISK && got.kind == BLOCKS_WINDOW && got.window == 64);
    cr_expect(got.n_pictures == 2 && memcmp(got.pictures, pictures, sizeof(pictures)) == 0);
    for (uint32_t len = 0; len < b.len; len++)
        cr_expect_eq(msg_blocks_parse(b.data, len, &got), -EPROTO);
    const uint32_t bad_field[][2] = {{1, BLOCK_TIERS}, {2, BLOCK_KINDS}, {5, 1}}; /* 5: n_came */
    for (size_t i = 0; i < ARRAY_SIZE(bad_field); i++) {
        uint32_t *at = (uint32_t *)b.data + bad_field[i][0], good = *at;

        *at = bad_field[i][1];
        cr_expect_eq(msg_blocks_parse(b.data, (uint32_t)b.len, &got), -EPROTO);
        *at = good;
    }
    for (uint64_t bad = 0; bad <= BLOCKS_MAX_PAGE + 1; bad += bad == 4 ? BLOCKS_MAX_PAGE - 3 : 1) {
        memcpy(b.data, &bad, sizeof(bad)); /* tokens of a page */
        cr_expect_eq(msg_blocks_parse(b.data, (uint32_t)b.len, &got), bad == 3 ? 0 : -EPROTO);
    }
    buf_clear(&b);
    cr_assert_eq(msg_blocks_pack(&b, &(struct msg_blocks){.page_tokens = BLOCKS_MAX_PAGE}), 0);
    cr_expect_eq(msg_blocks_parse(b.data, (uint32_t)b.len, &got), 0);
    for (uint32_t block = 0; block < 3; block++) { /* in the order of the blocks, and of one */
        pictures[1].block = block;
        pictures[0].block = 1;
        buf_clear(&b);
        cr_assert_eq(msg_blocks_pack(&b, &m), 0);
        cr_expect_eq(msg_blocks_parse(b.data, (uint32_t)b.len, &got), block == 1 ? 0 : -EPROTO);
    }
    buf_deinit(&b);
}

Test(params, every_row_refuses_what_is_out_of_range_and_names_itself) {
    struct sampling s;
    struct err large;

    params_init(&s);
    cr_expect_eq(params_check(&s, NULL), 0, "defaults are in range");
    for (uint32_t i = 0; i < params_count; i++) {
        const struct param *p = &params_table[i];
        const double bad[] = {p->min - 1, p->max + 1, NAN, INFINITY, -INFINITY, 1e300};

        for (size_t k = 0; k < ARRAY_SIZE(bad); k++) {
            struct err err = {0};

            cr_assert_eq(params_set(&s, p, bad[k], &err), -EINVAL, "%s = %g", p->name, bad[k]);
            cr_assert_str_eq(err.param, p->name);
            cr_assert_eq(err.status, 400);
        }
        cr_assert_eq(params_set(&s, p, p->min, NULL), 0);
        cr_assert_eq(params_set(&s, p, p->max, NULL), 0);
        if (p->type != PARAM_NUMBER)
            cr_assert_eq(params_set(&s, p, 0.5, NULL), -EINVAL);
        cr_assert_eq(params_find(p->name), p);
    }
    cr_expect_null(params_find("top_pp"));
    params_init(&s);
    cr_assert_eq(params_set(&s, params_find("top_k"), 40, NULL), 0);
    cr_assert_eq(params_set(&s, params_find("min_p"), 0.5, NULL), 0);
    cr_expect(s.top_k == 40 && s.min_p == 0.5);
    cr_assert_eq(params_set(&s, params_find("top_k"), 2e9, &large), -EINVAL);
    cr_expect_str_eq(large.message, "top_k must be between -1 and 1000000");
}
