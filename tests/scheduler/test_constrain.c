/*
 * Constrained requests: when they begin, the events that they get, and how they end. That masks are
 * right in any company is shown by the simulation (tests/sim) and by test_identity.c.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "grammar/constraint.h"
#include "scheduler/scheduler_private.h"
#include "tests/support/json_vocab.h"
#include "tests/support/telltale.h"

enum { IDS = 40, OUT = 400 };

static struct heard {
    bool accepted;
    uint32_t n, n_ends, status;
    enum event_kind end;
    enum finish_reason finish;
    int32_t token[OUT];
    char why[200];
} heard[IDS];

static struct clock_virtual virtual_clock;
static struct tokenizer *tokenizer;
static struct grammar_vocab *vocab;
static struct engine *engine;
static struct sched *sched;
static bool later;     /* the test decides when constraints are ready */
static bool no_memory; /* for a grammar */
static uint64_t forgotten;
static uint32_t n_handed_out;
static struct constraint *kept[IDS]; /* [id] constraint compiled for the request */

static int ask(void *ctx, const struct submit *m, const struct constraint **out, struct err *err) {
    if (no_memory)
        return -ENOMEM;
    int r = constraint_new(&kept[m->id], vocab, m->grammar.data, m->grammar.len, m->triggers.data,
                           m->triggers.len, NULL, err);

    if (later)
        return 1;
    n_handed_out += r == 0;
    *out = kept[m->id];
    return r;
}

static void forget(void *ctx, uint64_t id) {
    forgotten = id;
}

static void release(void *ctx, const struct constraint *c, uint32_t tenant) {
    cr_assert(c && n_handed_out > 0);
    n_handed_out--;
}

static struct constrain_job *job; /* job given to a thread and not done */
static bool force_late;

static int put(void *ctx, struct constrain_job *j) {
    cr_assert_null(job);
    job = j;
    return 0;
}

static void run_job(void) {
    struct job *j = &job->job;

    job = NULL;
    j->run(j);
    j->done(j);
}

static const struct sched_constraints source = {NULL, ask, forget, NULL, release, put};

static void begin(uint32_t depth, uint32_t end_per_1024) {
    struct telltale t = {.n_vocab = JSON_VOCAB,
                         .depth = 2,
                         .first = 3,
                         .last = JSON_VOCAB - 1,
                         .end = JSON_VOCAB_END,
                         .end_per_1024 = end_per_1024,
                         .strict = true,
                         .clock = &virtual_clock,
                         .step_ns = 1000000};
    struct engine_opts e = {.n_pages = 200,
                            .page_tokens = 16,
                            .max_context = 2000,
                            .max_rows = 64,
                            .max_seqs = 8,
                            .max_wants = 64};
    struct sched_opts o = {.max_seqs = 8,
                           .max_rows = 64,
                           .itl_target_ms = 100,
                           .max_step_ms = 200,
                           .depth = depth,
                           .max_bypass = 4,
                           .check = true,
                           .force_late = force_late,
                           .constraints = &source};
    struct err err = {0};

    later = false;
    n_handed_out = 0;
    forgotten = 0;
    memset(heard, 0, sizeof(heard));
    clock_virtual_init(&virtual_clock, 1000000000);
    o.tokenizer = tokenizer = json_vocab_new();
    cr_assert_eq(grammar_vocab_of(&vocab, tokenizer), 0);
    telltale_set(&t);
    cr_assert_eq(engine_new(&engine, &e, &err), 0, "%s", err.message);
    cr_assert_eq(sched_new(&sched, &o, engine, &virtual_clock.clock), 0);
}

static void end(void) {
    sched = sched_free(sched);
    cr_assert_eq(n_handed_out, 0);
    engine = engine_free(engine);
    for (int i = 0; i < IDS; i++)
        kept[i] = constraint_free(kept[i]);
    vocab = grammar_vocab_free(vocab);
    tokenizer = tokenizer_free(tokenizer);
}

static struct submit request(uint64_t id, const char *grammar, const char *triggers) {
    static int32_t prompt[20];
    struct submit m = {.id = id,
                       .seed = id,
                       .n_prompt = 20,
                       .n_tokens = 20,
                       .max_new = 200,
                       .tokens = prompt,
                       .grammar = {grammar, (uint32_t)strlen(grammar)},
                       .triggers = {triggers, (uint32_t)strlen(triggers)}};

    for (int i = 0; i < 20; i++)
        prompt[i] = 3 + i;
    params_init(&m.sampling);
    m.sampling.temperature = 1;
    return m;
}

static void submit(const struct submit *m) {
    cr_assert_eq(sched_submit(sched, m), 0);
}

static void hear(const struct event *e) {
    struct heard *h = &heard[e->id];

    if (e->kind == EVENT_ACCEPTED)
        h->accepted = true;
    for (uint32_t i = 0; i < e->n_tokens; i++)
        h->token[h->n++] = e->tokens[i];
    if (e->kind != EVENT_REJECTED && e->kind != EVENT_FINISH)
        return;
    h->n_ends++;
    h->end = e->kind;
    h->finish = e->finish;
    h->status = e->status;
    snprintf(h->why, sizeof(h->why), "%.*s", (int)e->text.len, e->text.data);
}

static int step(void) {
    struct event_cursor at;
    struct event e;
    struct buf b;
    int r = sched_step(sched);

    cr_assert_geq(r, 0);
    buf_init(&b, 1 << 20);
    if (sched_events(sched, &b) == 0) {
        msg_events_begin(&at, b.data, (uint32_t)b.len);
        while (msg_events_next(&at, &e) == 0)
            hear(&e);
        sched_delivered(sched);
    }
    buf_deinit(&b);
    return r;
}

static void run(void) {
    while (step() == 0)
        ;
}

static void expect_text(uint64_t id, const char *text) {
    struct buf b;

    buf_init(&b, 1 << 16);
    for (uint32_t i = 0; i < heard[id].n; i++) {
        size_t n;
        const char *piece = tokenizer_piece(tokenizer, heard[id].token[i], false, &n);

        buf_add(&b, piece, n);
    }
    cr_expect(b.len == strlen(text) && memcmp(b.data, text, b.len) == 0, "%.*s", (int)b.len,
              b.data);
    buf_deinit(&b);
}

Test(constrain, a_request_waits_for_its_grammar_while_others_run) {
    struct submit a = request(1, R"({"literal":"abcd"})", ""), b = request(2, "", "");

    begin(2, 0);
    later = true;
    submit(&a);
    submit(&b);
    run();
    cr_expect(heard[2].n == 200 && heard[2].n_ends == 1);
    cr_expect_not(heard[1].accepted);
    n_handed_out++;
    sched_constraint_ready(sched, 1, kept[1], NULL);
    run();
    cr_expect(heard[1].accepted);
    cr_expect_eq(heard[1].finish, FINISH_STOP);
    expect_text(1, "abcd");
    end();
}

Test(constrain, others_go_on_while_a_mask_is_made) {
    for (uint32_t depth = 1; depth <= 2; depth++) {
        struct submit a = request(1, R"({"literal":"abcd"})", ""), b = request(2, "", "");

        force_late = true;
        begin(depth, 0);
        submit(&a);
        submit(&b);
        while (!job)
            cr_assert_eq(step(), 0);
        uint32_t before = heard[2].n, n = heard[1].n;

        for (int i = 0; i < 20; i++)
            cr_assert_eq(step(), 0);
        cr_expect_geq(heard[2].n, before + 19);
        cr_expect_eq(heard[1].n, n);
        while (heard[1].n_ends == 0) {
            if (job)
                run_job();
            cr_assert_eq(step(), 0);
        }
        expect_text(1, "abcd");
        run();
        end();
    }
}

Test(constrain, a_request_can_end_while_its_mask_is_made) {
    struct submit a = request(1, R"({"literal":"abcd"})", ""), b = request(2, "", "");

    force_late = true;
    begin(2, 0);
    submit(&a);
    submit(&b);
    while (!job)
        cr_assert_eq(step(), 0);
    sched_cancel(sched, 1);
    run();
    cr_expect_eq(heard[1].finish, FINISH_CANCELLED);
    cr_expect_eq(heard[2].n, 200);
    sched = sched_free(sched);
    cr_expect_eq(n_handed_out, 1);
    run_job();
    end();
}

Test(constrain, a_grammar_that_is_refused_refuses_the_request) {
    struct submit a = request(1, R"({"regex":"("})", ""), b = request(2, R"({"regex":"("})", "");
    struct err why = {.status = 400, .message = "this is no grammar"};

    begin(1, 0);
    submit(&a);
    later = true;
    submit(&b);
    sched_constraint_ready(sched, 2, NULL, &why);
    run();
    for (int i = 1; i <= 2; i++) {
        cr_expect_eq(heard[i].end, EVENT_REJECTED);
        cr_expect_eq(heard[i].status, 400);
        cr_expect_not(heard[i].accepted);
        cr_expect_eq(heard[i].n_ends, 1);
    }
    cr_expect_str_eq(heard[2].why, "this is no grammar");
    cr_expect_gt(strlen(heard[1].why), 0);
    end();
}

Test(constrain, lack_of_memory_for_a_grammar_refuses_only_its_request) {
    struct submit a = request(1, R"({"choice":["true"]})", ""), b = request(2, "", "");

    begin(1, 0);
    no_memory = true;
    submit(&a);
    submit(&b);
    run();
    no_memory = false;
    cr_expect_eq(heard[1].end, EVENT_REJECTED);
    cr_expect_eq(heard[1].status, 503);
    cr_expect_str_eq(heard[1].why, "Out of memory for the grammar.");
    cr_expect_eq(heard[2].n, 200);
    end();
}

Test(constrain, who_waits_can_be_cancelled_and_be_late) {
    struct submit a = request(1, R"({"json_object":true})", ""), b = a;

    begin(1, 0);
    later = true;
    b.id = 2;
    b.deadline_ns = virtual_clock.ns + 1000;
    submit(&a);
    submit(&b);
    sched_cancel(sched, 1);
    cr_expect_eq(forgotten, 1);
    run();
    cr_expect_eq(heard[1].finish, FINISH_CANCELLED);
    cr_expect_eq(sched_wake_ns(sched), b.deadline_ns);
    virtual_clock.ns += 5000;
    run();
    cr_expect_eq(heard[2].finish, FINISH_DEADLINE);
    cr_expect_eq(forgotten, 2);
    cr_expect_not(sched_constraint_ready(sched, 1, kept[1], NULL), "what comes all the same");
    cr_expect_eq(n_handed_out, 0);
    end();
}

Test(constrain, an_end_is_normal_when_nothing_else_may_come) {
    for (uint32_t depth = 1; depth <= 2; depth++) {
        struct submit m = request(1, R"({"choice":["true"]})", "");

        begin(depth, 0);
        submit(&m);
        m.id = 2;
        m.sampling.ignore_eos = true;
        submit(&m);
        m.id = 3;
        m.min_new = 100;
        submit(&m);
        run();
        for (int i = 1; i <= 3; i++) {
            expect_text((uint64_t)i, "true");
            cr_expect_eq(heard[i].finish, FINISH_STOP);
            cr_expect_eq(heard[i].token[heard[i].n - 1], JSON_VOCAB_END);
        }
        end();
    }
}

Test(constrain, ignored_and_early_ends_are_not_taken_where_the_text_can_go_on) {
    struct submit m = request(1, R"({"regex":"(ab)*"})", "");

    begin(2, 1000);
    m.max_new = 40;
    submit(&m);
    m.id = 2;
    m.min_new = 20;
    submit(&m);
    m.id = 3;
    m.min_new = 0;
    m.sampling.ignore_eos = true;
    submit(&m);
    run();
    cr_expect_eq(heard[1].finish, FINISH_STOP);
    cr_expect_leq(heard[1].n, 5);
    cr_expect_eq(heard[2].finish, FINISH_STOP);
    cr_expect(heard[2].n >= 20 && heard[2].n < 40);
    cr_expect_eq(heard[3].finish, FINISH_LENGTH);
    cr_expect_eq(heard[3].n, 40);
    end();
}

Test(constrain, max_tokens_cut_the_text) {
    struct submit m = request(1, R"({"regex":"[a-d]{30}"})", "");

    begin(2, 0);
    m.max_new = 5;
    submit(&m);
    run();
    cr_expect_eq(heard[1].finish, FINISH_LENGTH);
    cr_expect_eq(heard[1].n, 5);
    end();
}

/* Returns true if the output of @id is complete under the constraint of @m. */
static bool is_whole(const struct submit *m) {
    CLEANUP(constraint_state_freep) struct constraint_state *s = NULL;

    cr_assert_eq(constraint_state_new(&s, kept[m->id]), 0);
    for (uint32_t i = 0; i < heard[m->id].n; i++)
        cr_assert_eq(constraint_accept(s, heard[m->id].token[i]), 0);
    return constraint_is_done(s) || constraint_can_end(s);
}

#define OBJECT                                                                                     \
    R"({"json_schema":{"type":"object","properties":{"name":{"type":"string"},)"                   \
    R"("items":{"type":"array","minItems":2,"items":{"type":"integer"}}},)"                        \
    R"("required":["name","items"],"additionalProperties":false}})"

Test(constrain, what_must_be_complete_is_when_max_tokens_cut_it) {
    static const char *const triggers[] = {"", R"({"after":["</think>"],"required":true})",
                                           R"({"after":["id","a"],"repeat":true})"};
    uint32_t n_cut = 0, n_refused = 0;

    for (uint32_t id = 1; id < IDS; id++) {
        struct submit m = request(id, OBJECT, triggers[id % 3]);

        begin(1 + id % 2, 0);
        m.flags = SUBMIT_COMPLETE;
        m.max_new = 3 + id;
        m.n_prompt = m.n_tokens = id % 4 ? 20 : 8;
        submit(&m);
        run();
        if (heard[id].end == EVENT_REJECTED) {
            cr_expect(heard[id].status == 400 && strstr(heard[id].why, "tokens"));
            cr_expect_lt(m.max_new, 14);
            n_refused++;
        } else {
            cr_expect(is_whole(&m), "request %u", id);
            n_cut += heard[id].finish == FINISH_LENGTH;
        }
        end();
    }
    cr_expect(n_cut > 20 && n_refused > 4, "%u cut, %u refused", n_cut, n_refused);
}

Test(constrain, the_context_ends_a_text_as_max_tokens_do) {
    static int32_t prompt[1970];
    struct submit m = request(1, OBJECT, "");

    for (uint32_t i = 0; i < ARRAY_SIZE(prompt); i++)
        prompt[i] = 3 + (int32_t)(i % 300);
    m.tokens = prompt;
    m.n_prompt = m.n_tokens = ARRAY_SIZE(prompt);
    begin(2, 0);
    m.flags = SUBMIT_COMPLETE;
    m.max_new = 100000;
    submit(&m);
    run();
    cr_expect(heard[1].n_ends == 1 && heard[1].n > 10);
    cr_expect(is_whole(&m));
    end();
}

/* Resumes the request after each of its tokens. */
static void resume_everywhere(struct submit m, enum finish_reason finish) {
    int32_t tokens[60];

    begin(2, 0);
    submit(&m);
    run();
    struct heard whole = heard[1];
    cr_expect_eq(whole.finish, finish);
    memcpy(tokens, m.tokens, 20 * sizeof(*tokens));
    memcpy(tokens + 20, whole.token, whole.n * sizeof(*tokens));
    m.tokens = tokens;
    for (uint32_t n = 0; n <= whole.n; n++) {
        m.id = 2 + n;
        m.n_tokens = 20 + n;
        submit(&m);
        run();
        cr_expect_eq(heard[m.id].finish, finish);
        cr_expect_eq(heard[m.id].n, whole.n - n);
        cr_expect_eq(memcmp(heard[m.id].token, whole.token + n, heard[m.id].n * sizeof(*tokens)),
                     0);
    }
    end();
}

Test(constrain, a_resumed_request_goes_on_where_it_was) {
    struct submit m = request(1, R"({"regex":"[a-d]{30}"})", "");

    resume_everywhere(m, FINISH_STOP);
    m = request(1, R"({"regex":"([a-d]{9}-)*"})", "");
    m.flags = SUBMIT_COMPLETE;
    m.sampling.ignore_eos = true; /* at the limit only the end is allowed */
    m.max_new = 30;
    resume_everywhere(m, FINISH_STOP);
}

/* Makes a vocabulary that cannot write a q. */
static void poor_vocabulary(void) {
    struct grammar_token token[JSON_VOCAB] = {0};
    const int32_t ends = JSON_VOCAB_END;

    for (int32_t i = 0; i < JSON_VOCAB; i++) {
        token[i].special = tokenizer_is_special(tokenizer, i);
        token[i].bytes = tokenizer_piece(tokenizer, i, token[i].special, &token[i].len);
        if (token[i].len > 0 && memchr(token[i].bytes, 'q', token[i].len))
            token[i].len = 0;
    }
    grammar_vocab_free(vocab);
    cr_assert_eq(grammar_vocab_new(&vocab, token, JSON_VOCAB, &ends, 1), 0);
}

Test(constrain, where_no_token_fits_the_request_ends_with_an_error) {
    for (uint32_t depth = 1; depth <= 2; depth++) {
        struct submit m = request(1, R"({"regex":"[ab]{9}qc"})", ""), other = request(2, "", "");
        struct msg_stats stats;

        begin(depth, 0);
        poor_vocabulary();
        submit(&other);
        submit(&m);
        m.id = 3;
        m.grammar = (struct str){R"({"literal":"q"})", 15};
        submit(&m);
        run();
        cr_expect_eq(heard[2].n, 200, "others go on");
        for (int i = 1; i <= 3; i += 2) {
            cr_expect_eq(heard[i].n_ends, 1);
            cr_expect_eq(heard[i].finish, FINISH_ERROR);
            cr_expect_eq(heard[i].end, i == 1 ? EVENT_FINISH : EVENT_REJECTED);
            cr_expect_eq(heard[i].status, 400);
            cr_expect(strstr(heard[i].why, "no token"), "%s", heard[i].why);
        }
        cr_expect(heard[1].n >= 3 && heard[1].n <= 9);
        sched_stats(sched, &stats);
        cr_expect_eq(stats.n_used, 0);
        end();
    }
}

Test(constrain, settling_leaves_nothing_under_way) {
    struct submit m = request(1, R"({"regex":"[a-d]{30}"})", ""), other = request(2, "", "");

    begin(2, 0);
    submit(&m);
    submit(&other);
    for (int i = 0; i < 10; i++)
        step();
    cr_expect_gt(sched_n_in_flight(sched), 0);
    cr_expect_eq(sched_settle(sched), 0);
    cr_expect_eq(sched_n_in_flight(sched), 0);
    cr_expect_eq(sched_settle(sched), 0);
    run();
    cr_expect_eq(heard[1].finish, FINISH_STOP);
    cr_expect_eq(heard[2].n, 200);
    end();
}

Test(constrain, forced_text_is_drafted) {
    struct submit m =
        request(1,
                R"({"json_schema":{"type":"object","properties":{"temp":{"type":"boolean"},)"
                R"("city":{"type":"boolean"},"items":{"type":"boolean"},"kind":{"type":)"
                R"("boolean"},"name":{"type":"boolean"},"unit":{"type":"boolean"}},)"
                R"("required":["temp","city","items","kind","name","unit"],)"
                R"("additionalProperties":false},"compact":true})",
                "");
    struct msg_stats stats;

    begin(1, 0);
    for (m.id = 1; m.id <= 20; m.id++)
        submit(&m);
    run();
    sched_stats(sched, &stats);
    for (int i = 1; i <= 20; i++)
        cr_expect_eq(heard[i].finish, FINISH_STOP);
    cr_expect_gt(stats.n_drafted, 20, "%lu", stats.n_drafted);
    cr_expect_gt(stats.n_accepted, 0);
    end();
}

/* ---- allowed_token_ids and bad_words ---- */

static bool has_word(const struct heard *h, const int32_t *word, uint32_t len) {
    for (uint32_t i = 0; i + len <= h->n; i++)
        if (memcmp(h->token + i, word, len * sizeof(*word)) == 0)
            return true;
    return false;
}

static struct str list_of(const int32_t *ids, size_t n) {
    return (struct str){(const char *)ids, (uint32_t)(n * sizeof(*ids))};
}

Test(constrain, only_allowed_tokens_come_and_no_bad_words) {
    static const int32_t allowed[] = {5, 6, 7, 40}, bad[] = {2, 5, 6, 3, 6, 7, 7, 1, 40};
    struct heard before[2];

    for (uint32_t depth = 1; depth <= 2; depth++) {
        struct submit m[] = {request(1, "", ""), request(2, "", "")};

        begin(depth, 0);
        for (int i = 0; i < 2; i++) {
            m[i].seed = 9;
            m[i].allowed = list_of(allowed, ARRAY_SIZE(allowed));
        }
        m[1].bad_words = list_of(bad, ARRAY_SIZE(bad));
        submit(&m[0]);
        submit(&m[1]);
        run();
        for (int i = 1; i <= 2; i++) {
            const struct heard *h = &heard[i];

            cr_assert(h->n == 200 && h->finish == FINISH_LENGTH, "%u tokens: %s", h->n, h->why);
            for (uint32_t k = 0; k < h->n; k++)
                cr_assert((h->token[k] >= 5 && h->token[k] <= 7) || h->token[k] == 40);
            cr_expect_eq(has_word(h, bad + 1, 2), i == 1);
            cr_expect_eq(has_word(h, bad + 4, 3), i == 1);
            cr_expect_eq(has_word(h, bad + 8, 1), i == 1);
            if (depth == 1)
                before[i - 1] = *h;
            cr_expect_arr_eq(h->token, before[i - 1].token, sizeof(h->token));
        }
        end();
    }
}

Test(constrain, bad_words_hold_inside_a_grammar_and_over_a_resumption) {
    struct submit m = request(1, R"({"regex":"[ab]{60}"})", "");
    int32_t tokens[20 + 200];

    begin(2, 0);
    int32_t a = tokenizer_find(tokenizer, "a", 1), b = tokenizer_find(tokenizer, "b", 1);
    const int32_t word[] = {2, a, b};
    cr_assert(a >= 0 && b >= 0);
    m.bad_words = list_of(word, 3);
    submit(&m);
    run();
    cr_expect_eq(heard[1].finish, FINISH_STOP, "%s", heard[1].why);
    cr_expect(heard[1].n >= 30 && !has_word(&heard[1], word + 1, 2));
    m.id = 2;
    memcpy(tokens, m.tokens, 20 * sizeof(*tokens));
    memcpy(tokens + 20, heard[1].token, 10 * sizeof(*tokens));
    m.tokens = tokens;
    m.n_tokens = 30;
    submit(&m);
    run();
    cr_assert_eq(heard[2].n, heard[1].n - 10);
    cr_expect_arr_eq(heard[2].token, heard[1].token + 10, heard[2].n * sizeof(int32_t));
    end();
}

Test(constrain, lists_that_leave_nothing_or_are_wrong_refuse) {
    static const int32_t five[] = {5}, word[] = {1, 5}, far[] = {JSON_VOCAB}, cut[] = {3, 5, 6};
    struct submit m[] = {request(1, "", ""), request(2, "", ""), request(3, "", "")};

    begin(2, 0);
    m[0].allowed = list_of(five, 1);
    m[0].bad_words = list_of(word, 2);
    m[1].allowed = list_of(far, 1);
    m[2].bad_words = list_of(cut, 3);
    for (int i = 0; i < 3; i++)
        submit(&m[i]);
    run();
    for (int i = 1; i <= 3; i++)
        cr_expect(heard[i].n == 0 && heard[i].n_ends == 1 && heard[i].status == 400, "%d", i);
    cr_expect(strstr(heard[1].why, "together allow no token"), "%s", heard[1].why);
    cr_expect(strstr(heard[2].why, "allowed_token_ids"), "%s", heard[2].why);
    cr_expect(strstr(heard[3].why, "bad_words"), "%s", heard[3].why);
    end();
}
