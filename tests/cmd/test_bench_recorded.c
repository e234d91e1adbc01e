#include "cmd/bench_recorded.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/rng.h"
#include "base/util.h"

static const char weka[] =
    "{\"block_size\": 64, \"requests\": [\n"
    " {\"t\": 0, \"type\": \"n\", \"in\": 100, \"out\": 5, \"hash_ids\": [1, 2], \"api_time\": "
    "2},\n"
    " {\"t\": 3, \"type\": \"subagent\", \"requests\": [\n"
    "  {\"t\": 0, \"type\": \"n\", \"in\": 64, \"out\": 2, \"hash_ids\": [1], \"think_time\": 0},\n"
    "  {\"t\": 6, \"type\": \"s\", \"in\": 128, \"out\": 0, \"hash_ids\": [1, 9], \"think_time\": "
    "3}]},\n"
    " {\"t\": 9, \"type\": \"s\", \"in\": 200, \"out\": 7, \"hash_ids\": [1, 2, 3, 4]},\n"
    " {\"t\": 10, \"type\": \"subagent\", \"requests\": []}]}\n";
static const char mooncake[] =
    "{\"timestamp\": 1000, \"input_length\": 600, \"output_length\": 5, \"hash_ids\": [0, 1]}\n"
    "{\"timestamp\": 2000, \"session_id\": \"s\", \"input_length\": 512, \"output_length\": 5}\n"
    "{\"delay\": 500, \"session_id\": \"s\", \"input_length\": 700, \"output_length\": 6, "
    "\"hash_ids\": [0, 7]}\n"
    "{\"timestamp\": 2500, \"session_id\": \"s\", \"input_length\": 9, \"output_length\": 6}\n";

static struct recorded read_text(const char *text) {
    struct recorded x = {0};
    struct err err = {0};

    cr_assert(recorded_is(text, strlen(text)));
    cr_assert_eq(recorded_read(&x, text, strlen(text), &err), 0, "%s", err.message);
    return x;
}

Test(bench_recorded, sessions_and_sub_agents_of_weka) {
    struct recorded x = read_text(weka);
    const struct recorded_turn *a = &x.turn[x.session[0].first], *b = &x.turn[a->next];
    const struct recorded_turn *end = &x.turn[b->next];
    const struct recorded_session *sub = &x.session[b->subs];
    const struct recorded_turn *c = &x.turn[sub->first], *d = &x.turn[c->next];

    cr_assert(x.n_sessions == 3 && x.n_turns == 5 && !x.session[0].is_sub && sub->is_sub);
    cr_expect(a->n_in == 100 && a->n_out == 5 && a->block_tokens == 64 && a->n_blocks == 2);
    cr_expect(b->n_in == 200 && b->pause_s == 7, "9 s less 2 s of the answer");
    cr_expect_eq(sub->start_s, 1, "3 s less 2 s of the answer");
    cr_expect(c->pause_s == 0 && d->pause_s == 3 && d->n_out == 1 && d->next == RECORDED_NONE);
    cr_expect_eq(x.block[a->first_block], x.block[b->first_block]);
    cr_expect_eq(x.block[a->first_block], x.block[c->first_block], "names count in the session");
    cr_expect(a->subs == RECORDED_NONE && sub->next_sub == RECORDED_NONE);
    cr_expect(end->n_out == 0 && end->subs == 2 && end->next == RECORDED_NONE);
    cr_expect_eq(x.session[2].first, RECORDED_NONE);
    recorded_deinit(&x);
}

Test(bench_recorded, names_of_joined_sessions_differ) {
    char text[2 * sizeof(weka)];

    snprintf(text, sizeof(text), "%s%s", weka, weka);
    struct recorded x = read_text(text);
    cr_assert_eq(x.n_sessions, 6);
    cr_expect_neq(x.block[x.turn[x.session[0].first].first_block],
                  x.block[x.turn[x.session[3].first].first_block]);
    recorded_deinit(&x);
}

Test(bench_recorded, sessions_of_mooncake) {
    struct recorded x = read_text(mooncake);
    const struct recorded_turn *a = &x.turn[x.session[0].first], *b = &x.turn[x.session[1].first];
    const struct recorded_turn *c = &x.turn[b->next], *d = &x.turn[c->next];

    cr_assert(x.n_sessions == 2 && x.n_turns == 4);
    cr_expect(x.session[0].start_s == 1 && x.session[1].start_s == 2);
    cr_expect(a->next == RECORDED_NONE && a->block_tokens == 512 && a->n_blocks == 2);
    cr_expect(b->n_blocks == 0 && b->pause_s == 0 && c->pause_s == 0.5 && c->n_in == 700);
    cr_expect(d->pause_s == 0.5 && d->next == RECORDED_NONE, "2500 ms less 2000 ms");
    cr_expect_eq(x.block[a->first_block], x.block[c->first_block]);
    recorded_deinit(&x);
}

Test(bench_recorded, interleaved_sessions_are_found_again) {
    enum { N = 300, ROW = 80 };
    static char text[2 * N * ROW];

    for (uint32_t i = 0, at = 0; i < 2 * N; i++)
        at += (uint32_t)snprintf(
            text + at, ROW, "{\"session_id\": %u, \"input_length\": %u, \"output_length\": 1}\n",
            i % N, i + 1);
    struct recorded x = read_text(text);
    cr_assert_eq(x.n_sessions, N);
    for (uint32_t i = 0; i < N; i++) {
        const struct recorded_turn *t = &x.turn[x.session[i].first];
        cr_expect(t->n_in == i + 1 && x.turn[t->next].n_in == N + i + 1, "session %u", i);
    }
    recorded_deinit(&x);
}

Test(bench_recorded, damaged_traces_are_refused_with_a_reason) {
    static const char *const bits[] = {
        "", "-", "999999999999999999999", "[", "}", "null", "\"", "1e999", "true", "\n", "{}"};
    static const char *const from[] = {weka, mooncake};
    struct rng rng = {1};
    uint32_t n_refused = 0;

    for (uint32_t i = 0; i < 4000; i++) {
        const char *text = from[i % 2], *bit = bits[rng_below(&rng, ARRAY_SIZE(bits))];
        uint32_t len = (uint32_t)strlen(text), at = rng_below(&rng, len);
        uint32_t cut = MIN(rng_below(&rng, 3), len - at);
        char damaged[1024];
        struct recorded x = {0};
        struct err err = {0};

        snprintf(damaged, sizeof(damaged), "%.*s%s%s", (int)at, text, bit, text + at + cut);
        int e = recorded_read(&x, damaged, strlen(damaged), &err);
        cr_assert(e == 0 || (e == -EINVAL && err.message[0] && !strchr(err.message, '\n')));
        n_refused += e < 0;
        recorded_deinit(&x);
    }
    cr_expect(n_refused > 1000 && n_refused < 4000, "%u", n_refused);
}

Test(bench_recorded, depth_and_sizes_have_limits) {
    char text[4096] = "";
    struct recorded x = {0};
    struct err err = {0};

    for (int i = 0; i < 10; i++)
        strcat(text,
               i ? "{\"type\":\"subagent\",\"requests\":[" : "{\"block_size\":1,\"requests\":[");
    for (int i = 0; i < 10; i++)
        strcat(text, "]}");
    cr_expect_eq(recorded_read(&x, text, strlen(text), &err), -EINVAL);
    cr_expect(strstr(err.message, "too deeply"), "%s", err.message);
    const char *const wrong[] = {
        "",
        "  ",
        "[]",
        "{}",
        "{\"requests\": []}",
        "{\"block_size\": 0, \"requests\": []}",
        "{\"block_size\": 64, \"requests\": []}",
        "{\"block_size\": 64, \"requests\": [{\"t\": 0, \"type\": \"x\", \"in\": 1, \"out\": 1}]}",
        "{\"input_length\": 0, \"output_length\": 1}",
        "{\"input_length\": 99999999, \"output_length\": 1}",
        "{\"input_length\": 1, \"output_length\": 1, \"hash_ids\": [\"a\"]}",
        "{\"input_length\": 1, \"output_length\": 1, \"delay\": -1}"};
    for (size_t i = 0; i < ARRAY_SIZE(wrong); i++)
        cr_expect_eq(recorded_read(&x, wrong[i], strlen(wrong[i]), &err), -EINVAL, "%s", wrong[i]);
}
