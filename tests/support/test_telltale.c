/*
 * Tests of the oracle: a correct driver gets the expected text at every depth, chunk and company,
 * and each kind of mistake of a driver is detected, in the text or at once.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rng.h"
#include "tests/support/telltale.h"

enum { SEQS = 5, PAGE = 4, SEQ_PAGES = 16, OUT = 24, PROMPT_MAX = 30, ROWS = SEQS * PROMPT_MAX };

/* Mistakes of a driver. */
enum mistake {
    NONE,
    /* exchanges two pages of a table */
    PAGES_SWAPPED,
    /* reads a page that another sequence has written, with other tokens */
    PAGE_OF_OTHER,
    /* reads a page of equal tokens at equal positions after different ones */
    OTHER_CONTEXT,
    /* a decode row carries another token */
    WRONG_TOKEN,
    /* a want points to the parameters of another request */
    WRONG_PARAM,
    /* a position is never computed */
    LOST_ROW,
    /* two sequences write a page */
    WRITES_SHARED,
    /* a want is numbered one too high */
    WRONG_OUT_POS,
    /* feeds from the want of another request, at another position */
    WRONG_FEED,
    /* the page table ends before the rows */
    TABLE_TOO_SHORT,
    /* the batch is changed while it runs */
    CHANGED_BATCH,
    NOT_SEALED,
};

struct request {
    int32_t prompt[PROMPT_MAX], out[OUT];
    struct engine_param param;
    /* tokens for the penalties */
    int32_t tokens[PROMPT_MAX + OUT];
    uint32_t n_prompt, n_computed, n_sampled, n_got;
    /* want: its index in the last step; UINT32_MAX: there is none */
    uint32_t page[SEQ_PAGES], want;
    uint64_t digest[OUT];
};

struct slot {
    struct engine_batch batch;
    int32_t token[ROWS];
    struct engine_seq seq[SEQS];
    uint32_t start[SEQS + 1], page[SEQS * SEQ_PAGES], owner[SEQS];
    struct engine_want want[SEQS];
    struct engine_param param[SEQS];
};

struct driver {
    struct engine *engine;
    struct request r[SEQS];
    struct slot slot[2];
    uint32_t chunk, depth;
    enum mistake mistake;
    uint64_t launched, waited;
};

static const struct engine_param plain = {.temperature = 1.0f, .top_p = 1.0f, .repetition = 1.0f};

/* Requests 0 and 1 have equal tokens in their second page, after different first pages. */
static void init_requests(struct driver *d) {
    struct rng rng = {7};

    for (uint32_t i = 0; i < SEQS; i++) {
        struct request *r = &d->r[i];

        *r = (struct request){.n_prompt = 9 + 4 * i, .param = plain, .want = UINT32_MAX};
        r->param.seed = i * 17;
        r->param.repetition = i == 2 ? 1.5f : 1.0f;
        r->param.frequency = i == 3 ? 0.5f : 0.0f;
        r->param.temperature = i == 4 ? 0.0f : 1.0f;
        for (uint32_t j = 0; j < r->n_prompt; j++)
            r->prompt[j] = (int32_t)rng_below(&rng, 256);
        for (uint32_t j = 0; j < SEQ_PAGES; j++)
            r->page[j] = (i + j * SEQS) * 2 % (SEQS * SEQ_PAGES + 1);
        memcpy(r->tokens, r->prompt, sizeof(r->prompt));
    }
    memcpy(d->r[1].prompt + PAGE, d->r[0].prompt + PAGE, PAGE * sizeof(int32_t));
    memcpy(d->r[1].tokens, d->r[1].prompt, sizeof(d->r[1].prompt));
}

static void driver_init(struct driver *d, const struct telltale *t, uint32_t chunk) {
    struct engine_opts o = {.n_pages = SEQS * SEQ_PAGES + 1,
                            .page_tokens = PAGE,
                            .max_rows = ROWS,
                            .max_seqs = SEQS,
                            .max_wants = SEQS,
                            .digest = true};
    struct err err = {0};

    memset(d, 0, sizeof(*d));
    telltale_set(t);
    cr_assert_eq(engine_new(&d->engine, &o, &err), 0, "%s", err.message);
    d->chunk = chunk;
    d->depth = engine_info(d->engine)->depth;
    init_requests(d);
}

static void add_want(struct driver *d, struct slot *s, uint32_t i, uint32_t row) {
    struct engine_batch *b = &s->batch;
    struct request *r = &d->r[i];
    struct engine_param *p = &s->param[b->n_params];

    *p = r->param;
    if (p->repetition != 1.0f || p->frequency != 0.0f) {
        p->tokens = r->tokens;
        p->n_prompt = r->n_prompt;
        p->n_tokens = r->n_prompt + r->n_got;
    }
    r->want = b->n_wants;
    s->want[b->n_wants++] = (struct engine_want){.row = row,
                                                 .param = b->n_params++,
                                                 .out_pos = r->n_sampled++,
                                                 .what = WANT_SAMPLE,
                                                 .logprob = true};
}

static void add_seq(struct driver *d, struct slot *s, uint32_t i) {
    struct engine_batch *b = &s->batch;
    struct request *r = &d->r[i];
    struct engine_seq *q = &s->seq[b->n_seqs];
    uint32_t want_before = r->want;
    bool prompt = r->n_computed < r->n_prompt;

    *q = (struct engine_seq){
        .row0 = b->n_rows, .n_rows = 1, .pos0 = r->n_computed, .n_prompt = r->n_prompt, .feed = -1};
    r->want = UINT32_MAX;
    if (prompt) {
        q->n_rows = MIN(d->chunk, r->n_prompt - r->n_computed);
        memcpy(s->token + b->n_rows, r->prompt + r->n_computed, q->n_rows * sizeof(int32_t));
    } else if (r->n_got == r->n_sampled) {
        s->token[b->n_rows] = r->out[r->n_got - 1];
    } else {
        q->feed = (int32_t)want_before;
        s->token[b->n_rows] = -1;
    }
    s->owner[b->n_seqs] = i;
    s->start[b->n_seqs + 1] = s->start[b->n_seqs] + SEQ_PAGES;
    memcpy(s->page + s->start[b->n_seqs], r->page, sizeof(r->page));
    r->n_computed += q->n_rows;
    b->n_seqs++;
    b->n_rows += q->n_rows;
    if (r->n_computed >= r->n_prompt)
        add_want(d, s, i, b->n_rows - 1);
}

static uint32_t *page_of(struct slot *s, uint32_t seq, uint32_t i) {
    return &s->page[s->start[seq] + i];
}

static void spoil(struct driver *d, struct slot *s) {
    struct engine_batch *b = &s->batch;
    uint32_t x;

    switch (d->mistake) {
    case PAGES_SWAPPED:
        x = *page_of(s, 1, 0);
        *page_of(s, 1, 0) = *page_of(s, 1, 1);
        *page_of(s, 1, 1) = x;
        break;
    case PAGE_OF_OTHER:
        *page_of(s, 1, 0) = *page_of(s, 0, 0);
        break;
    case OTHER_CONTEXT:
        *page_of(s, 1, 1) = *page_of(s, 0, 1);
        break;
    case WRONG_TOKEN:
        s->token[s->seq[1].row0] ^= 1;
        break;
    case WRONG_PARAM:
        s->param[1].seed++;
        break;
    case LOST_ROW:
        s->seq[1].pos0++;
        s->want[1].out_pos++;
        break;
    case WRITES_SHARED:
        *page_of(s, 1, s->seq[1].pos0 / PAGE) = *page_of(s, 0, s->seq[0].pos0 / PAGE);
        break;
    case WRONG_OUT_POS:
        s->want[1].out_pos++;
        break;
    case WRONG_FEED:
        s->seq[1].feed = s->seq[0].feed;
        break;
    case TABLE_TOO_SHORT:
        b->n_seqs = b->n_rows = b->n_wants = 1;
        s->start[1] = s->seq[0].pos0 / PAGE;
        break;
    default:
        break;
    }
}

static bool launch(struct driver *d) {
    struct slot *s = &d->slot[(d->launched + 1) % 2];
    struct engine_batch *b = &s->batch;

    memset(s, 0, sizeof(*s));
    *b =
        (struct engine_batch){.token = s->token, .seq = s->seq, .want = s->want, .param = s->param};
    b->table[KV_GLOBAL].start = s->start;
    b->table[KV_GLOBAL].page = s->page;
    for (uint32_t i = 0; i < SEQS; i++)
        if (d->r[i].n_sampled < OUT)
            add_seq(d, s, i);
    if (b->n_seqs == 0)
        return false;
    b->step = ++d->launched;
    if (b->step == 12) /* all prompts are computed */
        spoil(d, s);
    cr_assert_eq(engine_launch(d->engine, b), 0);
    if (d->mistake != NOT_SEALED)
        cr_assert_eq(engine_seal(d->engine, b->step), 0);
    return true;
}

static void wait_one(struct driver *d) {
    struct slot *s = &d->slot[++d->waited % 2];
    struct engine_result result;

    if (d->mistake == CHANGED_BATCH && d->waited == 5)
        s->param[0].seed++;
    cr_assert_eq(engine_wait(d->engine, d->waited, &result), 0);
    cr_assert_eq(result.n_outs, s->batch.n_wants);
    for (uint32_t i = 0; i < s->batch.n_seqs; i++) {
        const struct engine_seq *q = &s->seq[i];
        struct request *r = &d->r[s->owner[i]];

        for (uint32_t w = 0; w < result.n_outs; w++) {
            if (s->want[w].row != q->row0 + q->n_rows - 1)
                continue;
            r->tokens[r->n_prompt + r->n_got] = result.out[w].token;
            r->digest[r->n_got] = result.out[w].digest;
            r->out[r->n_got++] = result.out[w].token;
        }
    }
}

static void run(struct driver *d) {
    bool more = true;

    while (more || d->waited < d->launched) {
        more = more && launch(d);
        if (d->launched - d->waited == d->depth || !more)
            if (d->waited < d->launched)
                wait_one(d);
    }
}

/* Returns the number of requests that got their right tokens. */
static uint32_t n_right(const struct driver *d) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < SEQS; i++) {
        const struct request *r = &d->r[i];
        struct telltale_ask ask = {
            .prompt = r->prompt, .n_prompt = r->n_prompt, .n_out = OUT, .param = r->param};
        int32_t want[OUT];
        uint64_t digest[OUT];

        cr_assert_eq(telltale_expect(&ask, want, digest, NULL), OUT);
        n += r->n_got == OUT && memcmp(want, r->out, sizeof(want)) == 0 &&
             memcmp(digest, r->digest, sizeof(digest)) == 0;
    }
    return n;
}

static uint32_t right_with(enum mistake mistake, uint32_t depth, uint32_t chunk) {
    static struct driver d;
    struct telltale t = {.depth = depth, .poison = chunk};

    driver_init(&d, &t, chunk);
    d.mistake = mistake;
    run(&d);
    uint32_t n = n_right(&d);
    engine_free(d.engine);
    return n;
}

Test(telltale, a_correct_driver_gets_the_expected_text) {
    for (uint32_t depth = 1; depth <= 2; depth++)
        for (uint32_t chunk = 3; chunk <= 30; chunk++)
            cr_assert_eq(right_with(NONE, depth, chunk), SEQS, "depth %u chunk %u", depth, chunk);
}

Test(telltale, each_wrong_content_changes_the_text_of_that_request_only) {
    static const enum mistake wrong[] = {PAGES_SWAPPED, PAGE_OF_OTHER, OTHER_CONTEXT,
                                         WRONG_TOKEN,   WRONG_PARAM,   LOST_ROW};

    for (uint32_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
        cr_expect_eq(right_with(wrong[i], 1, 8), SEQS - 1, "mistake %d", wrong[i]);
}

/* Runs the driver in a child and reads its last output. */
static void die_of(enum mistake mistake, uint32_t depth, const char *words) {
    char text[400] = "";
    int fd[2], status;

    cr_assert_eq(pipe(fd), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fd[1], STDERR_FILENO);
        right_with(mistake, depth, 8);
        _exit(0);
    }
    close(fd[1]);
    for (size_t len = 0; len < sizeof(text) - 1;) {
        ssize_t n = read(fd[0], text + len, sizeof(text) - 1 - len);

        if (n <= 0)
            break;
        len += (size_t)n;
    }
    close(fd[0]);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "mistake %d", mistake);
    cr_expect(strstr(text, words), "mistake %d: %s", mistake, text);
}

Test(telltale, malformed_batches_abort_and_say_why) {
    die_of(WRITES_SHARED, 1, "another sequence of the batch writes");
    die_of(WRONG_OUT_POS, 1, "w->out_pos == pos + 1 - s->n_prompt");
    die_of(WRONG_FEED, 2, "r->before->pos[s->feed] + 1 == s->pos0");
    die_of(TABLE_TOO_SHORT, 1, "start[i + 1] - start[i] >= n");
    die_of(CHANGED_BATCH, 2, "the batch was changed while it ran");
    die_of(NOT_SEALED, 1, "f->sealed");
}

Test(telltale, the_end_token_comes_and_bans_hold_it_back) {
    struct telltale t = {.first = 32, .last = 126, .end = 2, .end_per_1024 = 100};
    const int32_t prompt[] = {5, 6, 7}, bans[] = {2};
    struct telltale_ask ask = {.prompt = prompt, .n_prompt = 3, .n_out = 400, .param = plain};
    int32_t free_run[400], held[400];
    uint32_t shortest = UINT32_MAX, n = 0;

    telltale_set(&t);
    for (ask.param.seed = 0; ask.param.seed < 20; ask.param.seed++) {
        ask.param.n_bans = 0;
        n = telltale_expect(&ask, free_run, NULL, NULL);
        cr_assert(n < 400 && free_run[n - 1] == 2);
        for (uint32_t i = 0; i + 1 < n; i++)
            cr_assert(free_run[i] >= 32 && free_run[i] <= 126);
        shortest = MIN(shortest, n);
        ask.param.bans = bans;
        ask.param.n_bans = 1;
        ask.n_ban = n;
        cr_assert_gt(telltale_expect(&ask, held, NULL, NULL), n);
        cr_assert_eq(memcmp(free_run, held, (n - 1) * sizeof(*held)), 0);
    }
    cr_assert_lt(shortest, 10);
}

Test(telltale, top_lists_are_ordered_and_agree_with_logprobs) {
    const int32_t tokens[] = {1, 2, 3};
    struct engine_top top[ENGINE_TOP_MAX];
    float lp[2];

    telltale_set(NULL);
    telltale_expect_top(tokens, 2, ENGINE_TOP_MAX, top);
    telltale_expect_prompt(tokens, NULL, 3, lp);
    for (uint32_t i = 0; i < ENGINE_TOP_MAX; i++) {
        cr_assert(i == 0 || top[i].logprob <= top[i - 1].logprob);
        cr_assert(top[i].token != 3 || top[i].logprob == lp[1]);
    }
    cr_assert_leq(lp[1], top[0].logprob);
}

Test(telltale, steps_take_virtual_time_and_faults_come_when_they_are_due) {
    static struct driver d;
    struct clock_virtual clock;
    struct telltale t = {.clock = &clock,
                         .depth = 2,
                         .step_ns = 1000,
                         .row_ns = 10,
                         .fail_wait = 4,
                         .hang_step = 2,
                         .hang_ns = 5000000};
    struct engine_result result;

    clock_virtual_init(&clock, 0);
    driver_init(&d, &t, 2);
    launch(&d);
    launch(&d);
    cr_assert_eq(clock.ns, 0);
    wait_one(&d);
    cr_assert_eq(clock.ns, 1000 + 10 * 2 * SEQS);
    wait_one(&d);
    cr_assert_eq(clock.ns, 2 * (1000 + 10 * 2 * SEQS) + 5000000);
    launch(&d);
    launch(&d);
    wait_one(&d);
    cr_assert_eq(engine_wait(d.engine, 4, &result), -EIO);
    cr_assert_eq(engine_launch(d.engine, &d.slot[1].batch), -EIO);
    engine_free(d.engine);
}

Test(telltale, copied_pages_are_read_like_the_originals) {
    static struct driver d;
    struct telltale t = {.strict = true};
    struct engine_copy copy = {
        .dst = SEQS * SEQ_PAGES, .n_tokens = PAGE, .cls = KV_GLOBAL, .dir = COPY_D2D};
    struct telltale_seen seen;
    bool copied = false;

    driver_init(&d, &t, 8);
    for (uint32_t i = 0; i < SEQS; i++) /* the last page is free */
        for (uint32_t j = 0; j < SEQ_PAGES; j++)
            d.r[i].page[j] = i * SEQ_PAGES + j;
    while (launch(&d)) {
        wait_one(&d);
        if (copied || d.r[1].n_got == 0)
            continue;
        copied = true;
        struct slot *s = &d.slot[(d.launched + 1) % 2];
        memset(s, 0, sizeof(*s));
        s->batch = (struct engine_batch){.step = ++d.launched,
                                         .token = s->token,
                                         .seq = s->seq,
                                         .want = s->want,
                                         .param = s->param,
                                         .before = &copy,
                                         .n_before = 1};
        s->batch.table[KV_GLOBAL].start = s->start;
        s->batch.table[KV_GLOBAL].page = s->page;
        add_seq(&d, s, 1);
        copy.src = d.r[1].page[0];
        d.r[1].page[0] = s->page[0] = copy.dst;
        cr_assert_eq(engine_launch(d.engine, &s->batch), 0);
        cr_assert_eq(engine_seal(d.engine, s->batch.step), 0);
        wait_one(&d);
    }
    cr_assert_eq(n_right(&d), SEQS);
    telltale_seen(d.engine, &seen);
    cr_assert(copied && seen.n_copies == 1 && seen.n_stale == 0);
    engine_free(d.engine);
}

/* Runs a step of @n sequences of @n_rows rows each from @pos0 on; the first 256 positions are in
 * the same pages. Returns the time that it takes. */
static int64_t take(struct engine *e, uint64_t step, const struct clock_virtual *clock, uint32_t i0,
                    uint32_t n, uint32_t pos0, uint32_t n_rows) {
    static int32_t token[512];
    static uint32_t page[64], start[3];
    struct engine_seq seq[2];
    struct engine_batch b = {
        .step = step, .n_seqs = n, .n_rows = n * n_rows, .token = token, .seq = seq};
    struct engine_result result;
    int64_t before = clock->ns;

    b.table[KV_GLOBAL].start = start;
    b.table[KV_GLOBAL].page = page;
    for (uint32_t i = 0; i < n; i++) {
        seq[i] = (struct engine_seq){
            .row0 = i * n_rows, .n_rows = n_rows, .pos0 = pos0, .n_prompt = 400, .feed = -1};
        start[i + 1] = start[i] + 20;
        for (uint32_t k = 0; k < 20; k++)
            page[start[i] + k] = k < 16 ? k : 16 + (i0 + i) * 4 + k - 16;
    }
    cr_assert_eq(engine_launch(e, &b), 0);
    cr_assert_eq(engine_seal(e, step), 0);
    cr_assert_eq(engine_wait(e, step, &result), 0);
    return clock->ns - before;
}

Test(telltale, neighbours_read_a_common_beginning_once) {
    struct engine_opts o = {
        .n_pages = 32, .page_tokens = 16, .max_rows = 512, .max_seqs = 2, .max_wants = 2};
    struct clock_virtual clock;

    for (uint32_t together = 1; together <= 2; together++) {
        struct telltale t = {.clock = &clock, .step_ns = 1000, .key_ns = 10, .together = together};
        struct engine *e;
        struct err err = {0};

        clock_virtual_init(&clock, 0);
        telltale_set(&t);
        cr_assert_eq(engine_new(&e, &o, &err), 0);
        cr_expect_eq(take(e, 1, &clock, 0, 1, 0, 300), 1000 + 10 * 300);
        cr_expect_eq(take(e, 2, &clock, 1, 1, 256, 44), 1000 + 10 * 300);
        cr_expect_eq(take(e, 3, &clock, 0, 2, 300, 1),
                     1000 + 10 * (2 * 301 - (together > 1 ? 256 : 0)));
        cr_expect_eq(take(e, 4, &clock, 0, 2, 301, 2), 1000 + 10 * 2 * 303, "rows of prompts");
        engine_free(e);
    }
}
