/* Grammars are compiled by a thread: each request is answered exactly once, equal texts under one
 * isolation key are compiled once, memory has a limit, and tenants do not wait in one queue. */

#include <criterion/criterion.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/worker/compiler.h"
#include "grammar/constraint.h"
#include "tests/support/json_vocab.h"

#define TOLD_MAX 256

static struct tokenizer *tokenizer;
static struct compiler *compiler;
static struct crash_page crash_page;

static struct told {
    uint64_t id;
    const struct constraint *constraint;
    struct err err;
} told[TOLD_MAX];
static uint32_t n_told;
static uint32_t tenant_of[512]; /* by the id of the request */

static void begin(size_t max_bytes) {
    tokenizer = json_vocab_new();
    n_told = 0;
    cr_assert_eq(compiler_new(&compiler, tokenizer, max_bytes, &crash_page), 0);
}

static void end(void) {
    compiler_free(compiler);
    tokenizer_free(tokenizer);
}

static bool on_ready(void *ctx, uint64_t id, const struct constraint *c, const struct err *why) {
    cr_assert(n_told < TOLD_MAX && !ctx && (c != NULL) == (why == NULL));
    told[n_told++] = (struct told){id, c, why ? *why : (struct err){0}};
    return true;
}

static int ask_for(uint64_t id, uint32_t tenant, const char *grammar, const char *triggers,
                   const struct constraint **out) {
    const struct sched_constraints *s = compiler_source(compiler);
    struct submit m = {.id = id,
                       .tenant = tenant,
                       .grammar = {grammar, (uint32_t)strlen(grammar)},
                       .triggers = {triggers, (uint32_t)strlen(triggers)}};
    struct err err;

    tenant_of[id] = tenant;
    return s->ask(s->ctx, &m, out, &err);
}

static void release(const struct constraint *c, uint32_t tenant) {
    const struct sched_constraints *s = compiler_source(compiler);

    s->release(s->ctx, c, tenant);
}

static void release_told(uint32_t i) {
    release(told[i].constraint, tenant_of[told[i].id]);
}

/* Sleeps as the step loop does, until @n requests have been answered. */
static void wait_for(uint32_t n) {
    struct pollfd p = {compiler_fd(compiler), POLLIN, 0};

    while (n_told < n) {
        cr_assert_eq(poll(&p, 1, 30000), 1);
        compiler_deliver(compiler, on_ready, NULL);
    }
    compiler_deliver(compiler, on_ready, NULL);
    cr_assert_eq(n_told, n);
}

static void wait_for_more(uint32_t than) {
    struct pollfd p = {compiler_fd(compiler), POLLIN, 0};

    while (n_told == than) {
        cr_assert_eq(poll(&p, 1, 30000), 1);
        compiler_deliver(compiler, on_ready, NULL);
    }
}

static struct compiler_stats stats(void) {
    struct compiler_stats s;

    compiler_stats(compiler, &s);
    return s;
}

/* Waits until at least @n grammars are prepared. */
static void wait_until_prepared(uint64_t n) {
    struct pollfd p = {compiler_fd(compiler), POLLIN, 0};

    while (stats().n_prepared < n) {
        cr_assert_eq(poll(&p, 1, 30000), 1);
        compiler_deliver(compiler, on_ready, NULL);
    }
}

Test(compiler, equal_texts_are_compiled_once) {
    const struct constraint *c = NULL;

    begin(1 << 20);
    for (uint64_t id = 1; id <= 5; id++)
        cr_assert_eq(ask_for(id, 0, R"({"json_object":true})", "", &c), 1);
    wait_for(5);
    for (uint32_t i = 0; i < 5; i++) {
        cr_assert_eq(told[i].id, i + 1);
        cr_assert_eq(told[i].constraint, told[0].constraint);
    }
    cr_assert_eq(ask_for(6, 0, R"({"json_object":true})", "", &c), 0);
    cr_assert_eq(c, told[0].constraint);
    /* The triggers belong to the text that is compared. */
    cr_assert_eq(ask_for(7, 0, R"({"json_object":true})", R"({"after":["x"]})", &c), 1);
    wait_for(6);
    wait_until_prepared(2);
    cr_assert_eq(stats().n_prepared, 2);
    cr_assert_neq(told[5].constraint, told[0].constraint);
    cr_assert_eq(ask_for(8, 0, R"({"json_object":true})", R"({"after":["x"]})", &c), 0);
    cr_expect_eq(c, told[5].constraint);
    cr_assert_eq(ask_for(9, 0, R"({"json_object":true})", R"({"after":["y"]})", &c), 1);
    wait_for(7);
    cr_expect_neq(told[6].constraint, told[5].constraint);
    cr_expect_eq(stats().n_hits, 6);
    for (int i = 0; i < 6; i++)
        release_told(0);
    for (int i = 0; i < 2; i++)
        release_told(5);
    release_told(6);
    cr_expect_eq(stats().used, 0);
    cr_assert_eq(stats().n_compiled, 3);
    cr_assert_eq(stats().n_entries, 3);
    cr_assert_eq(crash_page.n_compiling, 0);
    end();
}

static int ask_under(uint64_t id, uint8_t key, const struct constraint **out) {
    const struct sched_constraints *s = compiler_source(compiler);
    struct submit m = {.id = id, .grammar = {R"({"regex":"a"})", 13}};
    struct err err;

    memset(m.isolation_key, key, sizeof(m.isolation_key));
    return s->ask(s->ctx, &m, out, &err);
}

/* A grammar that another isolation key has compiled or waits for is compiled again. */
Test(compiler, grammars_are_shared_under_one_isolation_key_only) {
    const struct constraint *a = NULL, *b = NULL;

    begin(1 << 20);
    cr_assert_eq(ask_under(1, 1, &a), 1);
    cr_assert_eq(ask_under(2, 2, &b), 1);
    cr_expect_eq(stats().n_entries, 2);
    cr_expect_eq(stats().n_hits, 0);
    wait_for(2);
    cr_assert_eq(ask_under(3, 1, &a), 0);
    cr_assert_eq(ask_under(4, 2, &b), 0);
    cr_expect_neq(a, b);
    cr_assert_eq(ask_under(5, 3, &b), 1, "a third key finds neither");
    wait_for(3);
    cr_expect_eq(stats().n_compiled, 3);
    for (uint32_t i = 0; i < 3; i++)
        release_told(i);
    release(a, 0);
    release(b, 0);
    end();
}

/* Grammars that are dropped while they are prepared are freed once, and the next ones are
 * prepared. */
Test(compiler, grammars_in_use_are_prepared) {
    const struct constraint *c;
    char text[128];

    begin(1);
    for (uint64_t id = 1; id <= 30; id++) {
        /* Is read before the request: its preparation may end within wait_for(). */
        const uint64_t n_before = stats().n_prepared;

        snprintf(text, sizeof(text), R"({"json_schema":{"pattern":"[^a]%d*[^bc]"}})", (int)id);
        cr_assert_eq(ask_for(id, 0, text, "", &c), 1);
        wait_for((uint32_t)id);
        if (id % 3 == 0)
            wait_until_prepared(n_before + 1);
        release_told((uint32_t)id - 1);
        cr_assert_eq(stats().n_entries, 0);
    }
    cr_expect_geq(stats().n_prepared, 10);
    end();
}

Test(compiler, refusals_are_told_and_forgotten) {
    const struct constraint *c;

    begin(1 << 20);
    cr_assert_eq(ask_for(1, 0, R"({"regex":"("})", "", &c), 1);
    cr_assert_eq(ask_for(2, 0, R"({"regex":"("})", "", &c), 1);
    cr_assert_eq(ask_for(3, 0, R"({"regex":"a"})", "[]", &c), 1);
    wait_for(3);
    for (int i = 0; i < 3; i++) {
        cr_assert_null(told[i].constraint);
        cr_assert_eq(told[i].err.status, 400);
        cr_assert_str_eq(told[i].err.code, "grammar_invalid");
    }
    cr_assert_eq(stats().n_entries, 0);
    cr_assert_eq(stats().n_refused, 2);
    end();
}

Test(compiler, what_is_not_in_use_makes_room) {
    const struct constraint *c, *kept = NULL;
    char text[64];

    begin(30000);
    for (uint64_t id = 1; id <= 100; id++) {
        snprintf(text, sizeof(text), R"({"regex":"[a-z]{%d}"})", (int)id);
        cr_assert_eq(ask_for(id, 0, text, "", &c), 1);
        wait_for((uint32_t)id);
        if (id == 3)
            kept = told[id - 1].constraint;
        else
            release_told((uint32_t)id - 1);
    }
    cr_assert_leq(stats().bytes, 30000);
    cr_assert(stats().n_entries > 1 && stats().n_entries < 60);
    /* The grammar in use still exists, and so does the last one. */
    cr_assert_eq(ask_for(200, 0, R"({"regex":"[a-z]{3}"})", "", &c), 0);
    cr_assert_eq(c, kept);
    cr_assert_eq(ask_for(201, 0, R"({"regex":"[a-z]{100}"})", "", &c), 0);
    cr_assert_eq(ask_for(202, 0, R"({"regex":"[a-z]{1}"})", "", &c), 1);
    wait_for(101);
    release(kept, 0), release(kept, 0), release_told(99), release_told(100);
    end();
}

/* An entry keeps its texts, so they count as what they compile to does. */
Test(compiler, texts_are_counted) {
    static const char grammar[] = R"({"regex":"a"})", triggers[] = R"({"after":["x"]})";
    const struct constraint *c;
    char longer[2][200];
    size_t bytes[4];

    snprintf(longer[0], sizeof(longer[0]), "%-100s", grammar);
    snprintf(longer[1], sizeof(longer[1]), "%-100s", triggers);
    const char *const texts[4][2] = {
        {grammar, triggers}, {longer[0], triggers}, {grammar, longer[1]}, {longer[0], longer[1]}};
    begin(1 << 20);
    for (uint32_t i = 0; i < ARRAY_SIZE(texts); i++) {
        size_t before = stats().bytes;

        cr_assert_eq(ask_for(i + 1, 0, texts[i][0], texts[i][1], &c), 1);
        wait_for(i + 1);
        bytes[i] = stats().bytes - before;
    }
    cr_expect_eq(bytes[1] - bytes[0], 100 - strlen(grammar));
    cr_expect_eq(bytes[2] - bytes[0], 100 - strlen(triggers));
    cr_expect_eq(bytes[3] - bytes[0], 200 - strlen(grammar) - strlen(triggers));
    for (uint32_t i = 0; i < ARRAY_SIZE(texts); i++)
        release_told(i);
    end();
}

Test(compiler, tenants_take_turns) {
    const struct constraint *c;
    uint32_t at = 0;
    char text[64];

    begin(1 << 20);
    for (uint64_t id = 1; id <= 40; id++) {
        snprintf(text, sizeof(text), R"({"regex":"[a-z]{%d}"})", (int)id);
        cr_assert_eq(ask_for(id, 1, text, "", &c), 1);
    }
    cr_assert_eq(ask_for(100, 2, R"({"regex":"x"})", "", &c), 1);
    wait_for(41);
    while (told[at].id != 100)
        at++;
    cr_assert_leq(at, 3, "%u others came first", at);
    for (uint32_t i = 0; i < n_told; i++)
        release_told(i);
    end();
}

/* A tenant has two entries at the pool, and all tenants have six. */
Test(compiler, the_pool_gets_some_of_each_tenant) {
    const struct constraint *c;
    char text[64];

    begin(1 << 20);
    for (uint64_t id = 1; id <= 5; id++) {
        snprintf(text, sizeof(text), R"({"regex":"[a-z]{%d}"})", (int)id);
        cr_assert_eq(ask_for(id, 1, text, "", &c), 1);
        cr_expect_eq(stats().n_away, MIN(id, 2));
    }
    for (uint64_t id = 6; id <= 20; id++) {
        snprintf(text, sizeof(text), R"({"regex":"[a-z]{%d}"})", (int)id);
        cr_assert_eq(ask_for(id, 1 + (uint32_t)id % 5, text, "", &c), 1);
    }
    struct compiler_stats s = stats();
    cr_expect(s.n_away == 6 && s.n_queued == 14 && s.n_entries == 20, "%u %u", s.n_away,
              s.n_queued);
    cr_expect(s.bytes == 0 && s.used == 0 && s.n_held == 0 && s.n_hits == 0 && s.n_compiled == 0);
    wait_for(20);
    s = stats();
    cr_expect(s.n_away == 0 && s.n_queued == 0 && s.n_entries == 20 && s.n_compiled == 20);
    cr_expect(s.bytes > 20 * 1024 && s.bytes == s.used && s.ns > 0 && s.n_refused == 0);
    for (uint32_t i = 0; i < 20; i++)
        release_told(i);
    cr_expect(stats().used == 0 && stats().bytes == s.bytes);
    int fd = compiler_fd(compiler);
    end();
    cr_expect_eq(fcntl(fd, F_GETFD), -1, "it is closed");
    cr_expect_null(compiler_free(NULL));
}

/* Texts whose entries are in one slot of the table are told apart. */
Test(compiler, every_text_has_its_entry) {
    const struct constraint *c;
    char text[64];

    begin(1 << 20);
    for (int again = 0; again < 2; again++) {
        for (uint64_t id = 1; id <= 2500; id++) {
            snprintf(text, sizeof(text), R"({"regex":"[a-z]{%04d}"})", (int)id);
            struct submit m = {.id = id + 3000 * (uint64_t)again,
                               .tenant = 1,
                               .grammar = {text, (uint32_t)strlen(text)}};
            struct err err;

            cr_assert_eq(compiler_source(compiler)->ask(compiler, &m, &c, &err), 1);
        }
        cr_expect_eq(stats().n_entries, 2500);
        cr_expect_eq(stats().n_hits, again ? 2500 : 0);
    }
    for (uint64_t id = 2500; id > 0; id--) /* the entries before it in its slot stay */
        compiler_source(compiler)->forget(compiler, id);
    cr_expect_eq(stats().n_entries, 2500);
    end();
}

/* A job of the scheduler that looks at what the crash page says during its turn. */
static struct look_job {
    struct constrain_job job;
    uint32_t n;
    uint64_t id;
    bool done;
} looks;

static void look_run(struct job *j) {
    looks.n = crash_page.n_compiling;
    looks.id = crash_page.compiling[0];
}

static void look_done(struct job *j) {
    looks.done = true;
}

Test(compiler, a_job_of_the_scheduler_has_its_request_to_blame) {
    const struct constraint *c;

    begin(1 << 20);
    cr_assert_eq(ask_for(1, 0, R"({"regex":"a"})", "", &c), 1); /* so that results are read */
    wait_for(1);
    wait_until_prepared(1);
    looks.job = (struct constrain_job){
        .id = 77, .job = {.run = look_run, .done = look_done, .tenant = 256 + 5, .weight = 1}};
    cr_assert_eq(compiler_source(compiler)->submit(compiler, &looks.job), 0);
    cr_expect_eq(looks.job.job.tenant, 5);
    for (struct pollfd p = {compiler_fd(compiler), POLLIN, 0}; !looks.done;) {
        cr_assert_eq(poll(&p, 1, 30000), 1);
        compiler_deliver(compiler, on_ready, NULL);
    }
    cr_expect(looks.n == 1 && looks.id == 77, "%u: %u", looks.n, (uint32_t)looks.id);
    cr_expect_eq(crash_page.n_compiling, 0);
    release_told(0);
    end();
}

/* A grammar that takes many turns of the pool. */
#define HARD R"({"regex":"(a|b)*a(a|b){15}(c|d)*c(c|d){14}"})"

static void wait_until_compiling(void) {
    for (int i = 0; __atomic_load_n(&crash_page.n_compiling, __ATOMIC_ACQUIRE) == 0; i++) {
        cr_assert_lt(i, 100000);
        usleep(50);
    }
}

Test(compiler, a_small_grammar_is_ready_in_the_middle_of_a_hard_one) {
    const struct constraint *c;

    begin(1 << 20);
    cr_assert_eq(ask_for(1, 1, HARD, "", &c), 1);
    wait_until_compiling();
    cr_assert_eq(ask_for(2, 2, R"({"regex":"x"})", "", &c), 1);
    wait_for(2);
    cr_expect_eq(told[0].id, 2);
    release_told(0);
    if (told[1].constraint)
        release_told(1);
    end();
}

/* The first sixteen of those that wait when it begins are to blame. */
Test(compiler, all_that_wait_for_a_grammar_are_to_blame) {
    const struct sched_constraints *s;
    const struct constraint *c;

    begin(1 << 20);
    s = compiler_source(compiler);
    cr_assert_eq(ask_for(1, 1, HARD, "", &c), 1);
    wait_until_compiling();
    cr_expect(crash_page.n_compiling == 1 && crash_page.compiling[0] == 1);
    cr_assert_eq(ask_for(2, 1, HARD " ", "", &c), 1);
    for (uint64_t id = 11; id < 29; id++)
        cr_assert_eq(ask_for(id, 1, HARD "  ", "", &c), 1);
    cr_expect(stats().n_away == 2 && stats().n_queued == 1);
    s->forget(s->ctx, 1);
    s->forget(s->ctx, 2);
    while (stats().n_queued > 0 ||
           __atomic_load_n(&crash_page.n_compiling, __ATOMIC_ACQUIRE) < 16) {
        usleep(50);
        compiler_deliver(compiler, on_ready, NULL);
    }
    cr_expect_eq(crash_page.n_compiling, 16);
    for (uint64_t i = 0; i < 16; i++)
        cr_expect_eq(crash_page.compiling[i], 11 + i);
    for (uint64_t id = 11; id < 29; id++)
        s->forget(s->ctx, id);
    while (stats().n_entries > 0) {
        usleep(50);
        compiler_deliver(compiler, on_ready, NULL);
    }
    cr_expect(n_told == 0 && stats().n_refused == 0 && stats().n_compiled == 0);
    end();
}

Test(compiler, what_no_request_waits_for_is_not_compiled_to_its_end) {
    const struct sched_constraints *s;
    const struct constraint *c;
    uint64_t ns;

    begin(1 << 20);
    s = compiler_source(compiler);
    cr_assert_eq(ask_for(1, 1, HARD, "", &c), 1);
    wait_for(1);
    ns = stats().ns;
    if (told[0].constraint)
        release_told(0); /* and it is too large to be kept */
    for (uint64_t id = 2; id < 6; id++) {
        cr_assert_eq(ask_for(id, 1, HARD, "", &c), 1);
        wait_until_compiling();
        s->forget(s->ctx, id);
        while (stats().n_away > 0) {
            usleep(50);
            compiler_deliver(compiler, on_ready, NULL);
        }
    }
    cr_expect_eq(n_told, 1);
    cr_expect_eq(stats().n_entries, 0);
    cr_expect_lt(stats().ns - ns, ns, "four that were given up cost more than one");
    /* A grammar requested again after that is compiled again. */
    cr_assert_eq(ask_for(7, 1, HARD, "", &c), 1);
    wait_until_compiling();
    s->forget(s->ctx, 7);
    cr_assert_eq(ask_for(8, 1, HARD, "", &c), 1);
    wait_for(2);
    cr_expect_eq(told[1].id, 8);
    if (told[1].constraint)
        release_told(1);
    end();
}

Test(compiler, who_has_gone_is_not_told) {
    const struct sched_constraints *s;
    const struct constraint *c;
    char text[64];

    begin(1 << 20);
    s = compiler_source(compiler);
    for (uint64_t id = 1; id <= 20; id++) {
        snprintf(text, sizeof(text), R"({"regex":"[a-z]{%d}"})", (int)id);
        cr_assert_eq(ask_for(id, 1, text, "", &c), 1);
    }
    for (uint64_t id = 1; id < 20; id++)
        s->forget(s->ctx, id);
    s->forget(s->ctx, 999);
    cr_assert_eq(stats().n_queued, 1);
    wait_for(1);
    cr_assert_eq(told[0].id, 20);
    release_told(0);
    end();
}

static bool on_late(void *ctx, uint64_t id, const struct constraint *c, const struct err *why) {
    n_told++;
    return false;
}

/* The loop sends statistics when jobs have come back. */
Test(compiler, it_says_whether_jobs_came_back) {
    const struct constraint *c;
    bool came = false;

    begin(1 << 20);
    cr_expect_not(compiler_deliver(compiler, on_ready, NULL), "none was given");
    cr_assert_eq(ask_for(1, 0, R"({"regex":"a"})", "", &c), 1);
    for (struct pollfd p = {compiler_fd(compiler), POLLIN, 0}; n_told == 0;) {
        cr_assert_eq(poll(&p, 1, 30000), 1);
        came |= compiler_deliver(compiler, on_ready, NULL);
    }
    cr_expect(came);
    wait_until_prepared(1);
    cr_expect_not(compiler_deliver(compiler, on_ready, NULL), "none is left");
    release_told(0);
    end();
}

/* The scheduler does not take a grammar for a request that has ended: no one is charged. */
Test(compiler, a_grammar_that_is_not_taken_is_kept_and_not_charged) {
    const struct constraint *c = NULL;

    begin(1 << 20);
    struct pollfd p = {compiler_fd(compiler), POLLIN, 0};
    cr_assert_eq(ask_for(1, 0, R"({"regex":"a"})", "", &c), 1);
    while (n_told == 0) {
        cr_assert_eq(poll(&p, 1, 30000), 1);
        compiler_deliver(compiler, on_late, NULL);
    }
    cr_expect_eq(stats().used, 0);
    cr_assert_eq(ask_for(2, 0, R"({"regex":"a"})", "", &c), 0);
    cr_expect_eq(stats().used, stats().bytes);
    release(c, 0);
    cr_expect_eq(stats().used, 0);
    end();
}

Test(compiler, ends_while_requests_wait_for_memory) {
    const struct constraint *c;

    begin(1);
    cr_assert_eq(ask_for(1, 1, R"({"regex":"[a-z]{5}"})", "", &c), 1);
    cr_assert_eq(ask_for(2, 1, R"({"regex":"[a-z]{6}"})", "", &c), 1);
    wait_for(1);
    while (stats().n_compiled < 2)
        compiler_deliver(compiler, on_ready, NULL);
    cr_expect_eq(stats().n_held, 1);
    release_told(0);
    cr_assert_eq(ask_for(3, 2, R"({"regex":"[a-z]{7}"})", "", &c), 1);
    end(); /* calls no function for the request that would have room now */
}

/* A grammar that is not in use yet stays for the request that waits for memory. */
Test(compiler, what_a_request_waits_for_is_not_dropped) {
    const struct constraint *c;

    begin(1);
    cr_assert_eq(ask_for(1, 1, R"({"regex":"[a-z]{5}"})", "", &c), 1);
    cr_assert_eq(ask_for(2, 1, R"({"regex":"[a-z]{6}"})", "", &c), 1);
    wait_for(1);
    while (stats().n_compiled < 2)
        compiler_deliver(compiler, on_ready, NULL);
    cr_expect(stats().n_held == 1 && stats().n_entries == 2);
    release_told(0);
    cr_expect(stats().n_held == 1 && stats().n_entries == 1);
    compiler_deliver(compiler, on_ready, NULL);
    cr_assert_eq(n_told, 2);
    cr_expect(told[1].id == 2 && stats().n_held == 0);
    release_told(1);
    cr_expect_eq(stats().n_entries, 0);
    end();
}

Test(compiler, memory_in_use_has_a_limit) {
    const struct constraint *c;
    uint32_t n, held = 0;
    char text[64];

    begin(20000);
    for (uint64_t id = 1; id <= 60; id++) {
        snprintf(text, sizeof(text), R"({"regex":"[a-z]{%d}"})", (int)id + 20);
        cr_assert_eq(ask_for(id, 1 + (uint32_t)id % 6, text, "", &c), 1);
    }
    while (n_told < 60) {
        struct pollfd p = {compiler_fd(compiler), POLLIN, 0};

        n = n_told;
        while (poll(&p, 1, stats().n_away ? 30000 : 0) > 0)
            compiler_deliver(compiler, on_ready, NULL);
        /* The next grammars wait: each tenant got one for which it had room. */
        cr_assert_leq(stats().used, 20000 * COMPILER_USED_FACTOR + 6 * 8000);
        cr_assert(n_told > n && (n > 0 || n_told < 60));
        for (; held < n_told; held++)
            release_told(held);
    }
    cr_assert_eq(stats().used, 0);
    end();
}

/* A grammar in use is charged to the tenant that requested it, including the room for its token
 * classes: beyond the limit the tenant's next grammars wait, and those of another tenant do not. */
Test(compiler, memory_in_use_is_charged_to_the_tenant) {
    const struct constraint *c;
    uint32_t n_first;
    char text[64];

    begin(20000);
    for (uint64_t id = 1; id <= 30; id++) {
        snprintf(text, sizeof(text), R"({"regex":"[a-z]{%d}"})", (int)id + 20);
        cr_assert_eq(ask_for(id, 1, text, "", &c), 1);
    }
    while (stats().used < 20000 * COMPILER_USED_FACTOR || stats().n_away) {
        struct pollfd p = {compiler_fd(compiler), POLLIN, 0};

        cr_assert_eq(poll(&p, 1, 30000), 1);
        compiler_deliver(compiler, on_ready, NULL);
    }
    n_first = n_told;
    cr_assert(n_first > 0 && n_first < 30 && stats().n_queued + stats().n_held == 30 - n_first);
    cr_assert_eq(ask_for(31, 2, R"({"regex":"[b-z]{40}"})", "", &c), 1);
    wait_for(n_first + 1);
    cr_expect_eq(told[n_first].id, 31);
    cr_expect_eq(stats().n_queued + stats().n_held, 30 - n_first, "the others still wait");
    for (uint32_t i = 0; i < n_told; i++) {
        uint32_t n = n_told;

        release_told(i);
        if (i + 1 == n && n < 31)
            wait_for_more(n);
    }
    cr_expect_eq(n_told, 31);
    cr_expect_eq(stats().used, 0);
    end();
}

static void charge(uint32_t tenant, int64_t more) {
    const struct sched_constraints *s = compiler_source(compiler);

    s->charge(s->ctx, tenant, more);
}

/* The states of requests in their grammars count as well: a tenant above its share waits for its
 * own requests, also for a grammar that is ready; another tenant does not. */
Test(compiler, places_are_charged_to_the_tenant) {
    const struct sched_constraints *s;
    const int64_t all = 20000 * COMPILER_USED_FACTOR;
    const struct constraint *c, *mine;
    const char *text = R"({"regex":"[a-z]{3}"})";

    begin(20000);
    s = compiler_source(compiler);
    cr_assert_eq(ask_for(1, 1, text, "", &mine), 1);
    wait_for(1);
    mine = told[0].constraint;
    charge(1, all);
    cr_assert_eq(ask_for(2, 1, text, "", &c), 1);
    cr_assert_eq(ask_for(3, 1, text, "", &c), 1);
    cr_assert_eq(ask_for(4, 2, text, "", &c), 0, "another tenant has its share");
    cr_assert_eq(c, mine);
    charge(258, 5000); /* in the slot of tenant 2 */
    cr_assert_eq(ask_for(5, 258, text, "", &c), 0, "all of it");
    charge(2, all / 2 - 5000);
    cr_assert_eq(ask_for(6, 2, text, "", &c), 1, "and no more");
    compiler_deliver(compiler, on_ready, NULL);
    cr_assert_eq(n_told, 1);
    cr_assert_eq(stats().n_held, 3);
    cr_assert_eq(stats().state_bytes, (size_t)(all + all / 2));
    s->forget(s->ctx, 3);
    cr_assert_eq(stats().n_held, 2);
    charge(2, -all / 2); /* tenant 1 may have the whole limit again, and uses it */
    wait_for(2);
    cr_expect_eq(told[1].id, 6);
    cr_expect_eq(stats().n_held, 1);
    charge(1, -all);
    wait_for(3);
    cr_expect_eq(told[2].id, 2);
    cr_expect_eq(stats().n_held, 0);
    for (uint32_t i = 0; i < 5; i++)
        release(mine, i < 2 ? 1 : 256 + 2);
    cr_expect_eq(stats().used, 0);
    end();
}

/* Two tenants request one text, and one of them has no room. */
Test(compiler, another_tenants_request_for_the_same_text_does_not_wait) {
    const struct constraint *c;

    begin(20000);
    cr_assert_eq(ask_for(1, 1, R"({"regex":"a"})", "", &c), 1);
    wait_for(1);
    charge(1, 20000 * COMPILER_USED_FACTOR);
    cr_assert_eq(ask_for(2, 1, R"({"regex":"b"})", "", &c), 1);
    cr_assert_eq(stats().n_away, 0);
    cr_assert_eq(ask_for(3, 2, R"({"regex":"b"})", "", &c), 1);
    wait_for(2);
    cr_expect_eq(told[1].id, 3);
    cr_expect_eq(stats().n_held, 1);
    charge(1, -20000 * COMPILER_USED_FACTOR);
    wait_for(3);
    cr_expect_eq(told[2].id, 2);
    for (uint32_t i = 0; i < 3; i++)
        release_told(i);
    end();
}

/* When its first tenant has ended, a grammar in use is charged to the tenant with the most
 * requests. */
Test(compiler, the_charge_of_a_shared_grammar_moves_to_who_uses_it) {
    const int64_t all = 20000 * COMPILER_USED_FACTOR;
    const struct constraint *c, *shared;
    const char *text = R"({"regex":"[a-z]{3}"})";

    begin(20000);
    cr_assert_eq(ask_for(1, 1, text, "", &c), 1);
    wait_for(1);
    shared = told[0].constraint;
    int64_t bytes = (int64_t)stats().used;

    cr_assert_eq(ask_for(2, 1, text, "", &c), 0);
    cr_assert_eq(ask_for(3, 2, text, "", &c), 0);
    cr_assert_eq(ask_for(4, 3, text, "", &c), 0);
    cr_assert_eq(ask_for(5, 3, text, "", &c), 0);
    cr_assert_eq(ask_for(6, 3, text, "", &c), 0);
    charge(4, all); /* each of the four has a quarter */
    for (uint32_t tenant = 1; tenant <= 3; tenant++)
        charge(tenant, all / 4 - bytes);
    cr_expect_eq(ask_for(7, 1, text, "", &c), 1, "it is charged");
    release(shared, 1);
    cr_expect_eq(ask_for(8, 1, text, "", &c), 1, "one of it still runs");
    release(shared, 1);
    compiler_deliver(compiler, on_ready, NULL);
    cr_assert_eq(n_told, 3, "it is charged no more");
    cr_expect_eq(ask_for(9, 2, text, "", &c), 0);
    cr_expect_eq(ask_for(10, 3, text, "", &c), 1, "it had the most");
    for (uint32_t tenant = 1; tenant <= 4; tenant++)
        charge(tenant, tenant == 4 ? -all : bytes - all / 4);
    wait_for(4);
    cr_expect_eq(stats().used, (size_t)bytes);
    for (uint32_t i = 0; i < 9; i++) {
        static const uint32_t TENANTS[] = {3, 3, 3, 3, 1, 2, 2, 1};

        if (i < 8)
            release(shared, TENANTS[i]);
        cr_expect_eq(stats().used, i < 7 ? (size_t)bytes : 0);
    }
    end();
}

/* A tenant of three times the weight has three times as much. */
Test(compiler, shares_are_by_weight) {
    const struct sched_constraints *s;
    const int64_t all = 20000 * COMPILER_USED_FACTOR;
    const struct constraint *c;
    struct submit m = {.tenant = 2, .weight_milli = 3000, .grammar = {R"({"regex":"a"})", 13}};
    struct err err;

    begin(20000);
    s = compiler_source(compiler);
    cr_assert_eq(ask_for(1, 1, R"({"regex":"a"})", "", &c), 1);
    wait_for(1);
    charge(1, all / 4);
    m.id = 2;
    cr_assert_eq(s->ask(s->ctx, &m, &c, &err), 0);
    charge(2, all * 3 / 4 - 1);
    m.id = 3;
    cr_expect_eq(s->ask(s->ctx, &m, &c, &err), 0, "its share is not used up");
    cr_expect_eq(ask_for(4, 1, R"({"regex":"a"})", "", &c), 1);
    charge(2, 1 - all * 3 / 4);
    wait_for(2);
    charge(1, -all / 4);
    for (uint32_t i = 0; i < 4; i++)
        release(told[0].constraint, i < 2 ? 1 : 2);
    end();
}

static uint32_t n_blamed[4];

static bool look(void *ctx, uint64_t id, const struct constraint *c, const struct err *why) {
    n_blamed[id] = crash_page.n_compiling;
    return on_ready(ctx, id, c, why);
}

Test(compiler, a_quarantined_one_is_compiled_when_nothing_else_runs) {
    const struct sched_constraints *s;
    const struct constraint *c;
    struct submit m = {.id = 2, .n_faults = 1, .grammar = {R"({"regex":"b"})", 13}};
    struct err err;

    begin(1 << 20);
    s = compiler_source(compiler);
    cr_assert_eq(ask_for(1, 0, R"({"regex":"[a-z]{1,90}"})", "", &c), 1);
    cr_assert_eq(s->ask(s->ctx, &m, &c, &err), 1);
    cr_assert_eq(ask_for(3, 0, R"({"regex":"c"})", "", &c), 1);
    cr_assert(compiler_has_quarantined(compiler));
    while (stats().n_away > 0) { /* the other tenants do not wait for it */
        struct pollfd p = {compiler_fd(compiler), POLLIN, 0};

        cr_assert_eq(poll(&p, 1, 30000), 1);
        compiler_deliver(compiler, look, NULL);
    }
    cr_assert_eq(n_told, 2);
    cr_assert(compiler_has_quarantined(compiler));
    compiler_run_quarantined(compiler, look, NULL);
    cr_assert_not(compiler_has_quarantined(compiler));
    cr_assert_eq(n_told, 3);
    cr_assert_eq(told[2].id, 2);
    cr_assert_eq(n_blamed[2], 0, "the thread is done when it is told");
    /* Wait for the thread's wake-up and consume it. */
    struct pollfd p = {compiler_fd(compiler), POLLIN, 0};
    for (int i = 0; i < 1000 && poll(&p, 1, 0) == 0; i++)
        usleep(100);
    compiler_deliver(compiler, look, NULL);
    cr_assert_eq(poll(&p, 1, 0), 0);
    for (uint32_t i = 0; i < 3; i++)
        release_told(i);
    end();
}

/* Masks of a quarantined request are computed alone, too, and others go on afterwards. */
Test(compiler, a_quarantined_one_is_prepared_when_nothing_else_runs) {
    const struct sched_constraints *s;
    const struct constraint *c;
    struct submit m = {.id = 50, .tenant = 2, .n_faults = 1, .grammar = {R"({"regex":"b"})", 13}};
    struct err err;
    char text[64];

    begin(1 << 20);
    s = compiler_source(compiler);
    cr_expect_not(compiler_has_quarantined(compiler));
    cr_assert_eq(s->ask(s->ctx, &m, &c, &err), 1);
    cr_expect(stats().n_away == 0 && stats().n_queued == 1, "it waits for the step loop");
    compiler_run_quarantined(compiler, on_ready, NULL);
    cr_expect(n_told == 1 && told[0].id == 50 && stats().n_prepared == 1 && stats().n_away == 0);
    m.id = 51;
    m.grammar.data = R"({"regex":"c"})";
    cr_assert_eq(s->ask(s->ctx, &m, &c, &err), 1);
    for (uint64_t id = 1; id <= 5; id++) {
        snprintf(text, sizeof(text), R"({"regex":"[a-z]{%d}"})", (int)id);
        cr_assert_eq(ask_for(id, 1, text, "", &c), 1);
    }
    cr_expect(stats().n_away == 2 && stats().n_queued == 4);
    compiler_run_quarantined(compiler, on_ready, NULL);
    cr_expect_eq(n_told, 4, "the two at the pool came first");
    cr_expect_eq(told[3].id, 51);
    cr_expect(stats().n_away == 2 && stats().n_queued == 1 && stats().n_prepared >= 2);
    wait_for(7);
    tenant_of[50] = tenant_of[51] = 2;
    for (uint32_t i = 0; i < 7; i++)
        release_told(i);
    cr_expect_eq(stats().used, 0);
    end();
}

Test(compiler, a_quarantined_one_makes_others_leave_its_room) {
    const char *text = R"({"regex":"[b-z]{90}"})";
    const struct sched_constraints *s;
    const struct constraint *c;
    struct submit m = {.id = 101, .n_faults = 1, .grammar = {text, (uint32_t)strlen(text)}};
    struct err err;

    begin(30000);
    s = compiler_source(compiler);
    for (uint32_t id = 1; id <= 100; id++) {
        char other[64];

        snprintf(other, sizeof(other), R"({"regex":"[a-z]{%u}"})", id);
        cr_assert_eq(ask_for(id, 0, other, "", &c), 1);
        wait_for(id);
        release_told(id - 1);
    }
    cr_assert_gt(stats().bytes, 20000);
    cr_assert_eq(s->ask(s->ctx, &m, &c, &err), 1);
    compiler_run_quarantined(compiler, on_ready, NULL);
    cr_assert_eq(n_told, 101);
    cr_expect_leq(stats().bytes, 30000);
    release_told(100);
    end();
}

Test(compiler, ends_with_work_under_way) {
    const struct constraint *c;
    char text[64];

    for (int round = 0; round < 5; round++) {
        begin(1 << 20);
        for (uint64_t id = 1; id <= 10; id++) {
            snprintf(text, sizeof(text), R"({"regex":"([a-z]{%d}x?){3}"})", (int)id);
            cr_assert_eq(ask_for(id, 1, text, "", &c), 1);
        }
        end();
    }
}
