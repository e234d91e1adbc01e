/*
 * bench_constrain VOCABULARY.gguf [hostile|ambiguous]: what constrained requests cost the step loop
 * with a real vocabulary. The engine is a stub that takes any allowed token; the time inside it
 * does not count. Prints, for 1 to 64 requests, the host's time of a step without constraints, with
 * a JSON object, with a tool call's schema, and while output is free before a trigger.
 *
 * hostile: CPU time of the step thread, step by step, with 16 constrained requests of one tenant,
 * alone and while 100 schemas of another, each as hard as it may be, are with the worker's compiler
 * or wait for it; and how long a small schema of a third waits in both cases. The device takes 3 ms
 * a step, in which the thread sleeps. ambiguous: the same with 250 requests of that tenant besides,
 * at any time, whose texts have 200 readings each with a stack of its own.
 */

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/rng.h"
#include "daemon/worker/compiler.h"
#include "grammar/constraint.h"
#include "scheduler/scheduler.h"
#include "text/tokenizer.h"

enum { SEQS = 64, STEPS = 2000, PROMPT = 32 };

struct engine {
    struct engine_info info;
    const struct engine_batch *batch[2];
    const uint32_t *mask[2][SEQS];
    struct engine_out out[2][SEQS];
    struct rng rng;
};

static double inside;    /* seconds in the stub */
static uint32_t step_ms; /* that a step of the device takes: the thread sleeps */

static clockid_t clock_of = CLOCK_MONOTONIC;

static double now(void) {
    struct timespec t;

    clock_gettime(clock_of, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

const struct engine_info *engine_info(const struct engine *e) {
    return &e->info;
}

int engine_launch(struct engine *e, const struct engine_batch *b) {
    e->batch[b->step % 2] = b;
    memset(e->mask[b->step % 2], 0, sizeof(e->mask[0]));
    return 0;
}

int engine_mask(struct engine *e, uint64_t step, uint32_t want, const uint32_t *bits) {
    e->mask[step % 2][want] = bits;
    return 0;
}

int engine_seal(struct engine *e, uint64_t step) {
    return 0;
}

void *engine_host_page(struct engine *e, uint32_t page) {
    return NULL;
}

void *engine_host_snapshot(struct engine *e, uint32_t snapshot) {
    return NULL;
}

void engine_set_snapshot(struct engine *e, uint32_t snapshot, uint32_t n_tokens) {}

/* Some allowed token, never the end while there is another. */
static int32_t pick(struct engine *e, const uint32_t *mask) {
    uint32_t n = e->info.n_vocab, words = (n + 31) / 32, at = rng_below(&e->rng, words);

    if (!mask)
        return (int32_t)rng_below(&e->rng, 50000);
    for (uint32_t i = 0; i < words; i++, at = (at + 1) % words)
        if (mask[at])
            return (int32_t)(at * 32 + (uint32_t)__builtin_ctz(mask[at]));
    return 0;
}

float engine_score(struct engine *e, const float *hidden) {
    (void)e;
    return hidden[0];
}

void engine_widen(struct engine *e, float *pooled) {
    (void)e;
    (void)pooled;
}

int engine_wait(struct engine *e, uint64_t step, struct engine_result *out) {
    const struct engine_batch *b = e->batch[step % 2];
    const struct timespec pause = {0, step_ms * 1000000L};
    double t = now();

    if (step_ms)
        nanosleep(&pause, NULL);

    for (uint32_t i = 0; i < b->n_wants; i++)
        e->out[step % 2][i] = (struct engine_out){.token = pick(e, e->mask[step % 2][i])};
    *out = (struct engine_result){step, b->n_wants, e->out[step % 2]};
    inside += now() - t;
    return 0;
}

/* The model takes no pictures: the scheduler calls none of these. */
uint64_t engine_picture_work(const struct engine *e, const struct picture_layout *l) {
    abort();
}

int engine_picture_begin(struct engine *e, const uint8_t *rgb, const struct picture_layout *l,
                         float *out, struct err *err) {
    abort();
}

int engine_picture_step(struct engine *e, uint64_t work, uint64_t *left) {
    abort();
}

void engine_picture_end(struct engine *e) {
    abort();
}

static struct constraint *constraint;

static int ask(void *ctx, const struct submit *m, const struct constraint **out, struct err *err) {
    *out = constraint;
    return 0;
}

static void release(void *ctx, const struct constraint *c, uint32_t tenant) {}

static void submit_of(struct sched *s, uint64_t id, uint32_t tenant, uint32_t max_new,
                      const char *grammar, const char *triggers) {
    int32_t tokens[PROMPT];
    struct submit m = {.id = id,
                       .n_prompt = PROMPT,
                       .n_tokens = PROMPT,
                       .max_new = max_new,
                       .tenant = tenant,
                       .tokens = tokens,
                       .flags = SUBMIT_NO_SPECULATION,
                       .grammar = {grammar, (uint32_t)strlen(grammar)},
                       .triggers = {triggers, (uint32_t)strlen(triggers)}};

    for (int i = 0; i < PROMPT; i++)
        tokens[i] = (100 + i + (int32_t)id) % 50000;
    params_init(&m.sampling);
    m.sampling.ignore_eos = true;
    if (sched_submit(s, &m) < 0)
        exit(1);
}

static void submit(struct sched *s, uint64_t id, const char *grammar, const char *triggers) {
    submit_of(s, id, 0, 100000, grammar, triggers);
}

/* Microseconds of the host in a step with @n requests; who ends is replaced. */
static double measure(const struct tokenizer *t, uint32_t n, const char *grammar,
                      const char *triggers) {
    struct engine e = {.info = {.n_vocab = tokenizer_n_vocab(t),
                                .max_context = 1 << 20,
                                .page_tokens = 32,
                                .n_pages = 400000,
                                .depth = 2}};
    struct sched_constraints source = {NULL, ask, NULL, NULL, release, NULL};
    struct sched_opts o = {.max_seqs = SEQS,
                           .max_rows = 2048,
                           .max_step_ms = 200,
                           .itl_target_ms = 50,
                           .depth = 2,
                           .no_speculation = true,
                           .tokenizer = t,
                           .constraints = &source};
    CLEANUP(sched_freep) struct sched *s = NULL;
    struct msg_stats stats = {0};
    struct buf events;
    uint64_t id = 0;
    double begin = 0;

    if (sched_new(&s, &o, &e, clock_monotonic()) < 0)
        exit(1);
    buf_init(&events, 1 << 26);
    for (uint32_t i = 0; i < STEPS; i++) {
        sched_stats(s, &stats);
        for (uint32_t k = stats.n_running + stats.n_waiting; k < n; k++)
            submit(s, ++id, grammar, triggers);
        if (i == STEPS / 4) {
            begin = now();
            inside = 0;
        }
        sched_step(s);
        buf_clear(&events);
        if (sched_events(s, &events) == 0)
            sched_delivered(s);
    }
    double seconds = now() - begin - inside;

    buf_deinit(&events);
    return seconds * 1e6 / (STEPS - STEPS / 4);
}

static const struct {
    const char *name, *grammar, *triggers;
} CASES[] = {
    {"no constraint", "", ""},
    {"any JSON object", R"({"json_object":true})", ""},
    {"a tool's parameters",
     R"({"json_schema":{"type":"object","properties":{"path":{"type":"string"},)"
     R"("mode":)"
     R"({"enum":["read","write"]},"limit":{"type":"integer","minimum":1,"maximum":)"
     R"(1000},"tags":{"type":"array","items":{"type":"string"}},"edits":{"type":)"
     R"("array","items":{"type":"object","properties":{"old":{"type":"string"},)"
     R"("new":{"type":"string"}},"required":["old","new"]}}},"required":["path",)"
     R"("mode","edits"],"additionalProperties":false}})",
     ""},
    {"free before a trigger", R"({"json_object":true})",
     R"({"after":["</think>"],"required":true})"},
    {"free, may end", R"({"json_object":true})", R"({"after":["</think>"]})"},
};

/* ---- hostile */

enum { VICTIMS = 16, HOSTILE = 100, ALONE = 2000, THIRD = 1000000, STEP_MS = 3, SECONDS = 25 };
enum { AMBIGUOUS = 250, READINGS = 200, FIRST_AMBIGUOUS = 10000 };

/* Never ends. */
static const char victim[] =
    R"({"json_schema":{"type":"array","minItems":100000,"items":{"type":"object",)"
    R"("properties":{"path":{"type":"string"},"mode":{"enum":["read","write"]},)"
    R"("limit":{"type":"integer","maximum":1000},"tags":{"type":"array","items":)"
    R"({"type":"string"}}},"required":["path","mode"],"additionalProperties":false}}})";

static struct compiler *compiler;
static double third_ready; /* when the small schema was */
static uint32_t n_hostile; /* that were told */

static bool on_compiled(void *ctx, uint64_t id, const struct constraint *c, const struct err *why) {
    n_hostile += id > VICTIMS && id < FIRST_AMBIGUOUS;
    if (id >= THIRD)
        third_ready = (double)clock_now(clock_monotonic()) * 1e-9;
    return sched_constraint_ready(ctx, id, c, why);
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* One turn of the loop; the CPU time of this thread in microseconds, without the stub's. */
static double one_step(struct sched *s, struct buf *events) {
    double begin = now();

    inside = 0;
    compiler_deliver(compiler, on_compiled, s);
    sched_step(s);
    buf_clear(events);
    if (sched_events(s, events) == 0)
        sched_delivered(s);
    return (now() - begin - inside) * 1e6;
}

/* The node of requests that there are always AMBIGUOUS of; NULL: none. */
static const char *ambiguous;

/* Each reading has a stack of its own, which every "a" makes one higher. */
static void write_ambiguous(struct buf *b) {
    buf_add_str(b, R"({"ebnf":"root ::= y0)");
    for (int i = 1; i < READINGS; i++)
        buf_printf(b, " | y%d", i);
    for (int i = 0; i < READINGS; i++)
        buf_printf(b, "\\ny%d ::= [a] y%d [c] [%c] | [b]", i, i, 'd' + i % 20);
    buf_add_str(b, R"("})");
}

/* How many of them have been submitted. */
static uint64_t top_up(struct sched *s) {
    static uint64_t id = FIRST_AMBIGUOUS;
    struct msg_stats m;

    sched_stats(s, &m);
    for (uint64_t n = m.n_running + m.n_waiting; ambiguous && n < VICTIMS + AMBIGUOUS; n++, id++)
        submit_of(s, id, 2, 60 + (uint32_t)(id % 20), ambiguous, "");
    return id - FIRST_AMBIGUOUS;
}

/* Turns of the loop, @n or for SECONDS, while hostile schemas are not all told. */
static void measure_steps(struct sched *s, struct buf *events, const char *name, uint32_t n) {
    static double us[SECONDS * 1000];
    uint32_t at = 0;
    int64_t end = clock_now(clock_monotonic()) + SECONDS * INT64_C(1000000000);
    struct msg_stats old, new;

    sched_stats(s, &old);
    while (at < MIN(n, (uint32_t)ARRAY_SIZE(us)) && clock_now(clock_monotonic()) < end &&
           n_hostile < HOSTILE) {
        top_up(s);
        us[at++] = one_step(s, events);
    }
    qsort(us, at, sizeof(*us), by_size);
    sched_stats(s, &new);
    double masks = (double)(new.n_masks - old.n_masks);

    printf("%-8s %6u steps, %.1f masks each, %.1f %% late, us of CPU: p50 %.0f p99 %.0f p99.9 %.0f "
           "worst %.0f\n",
           name, at, masks / at, (double)(new.n_masks_late - old.n_masks_late) * 100 / masks,
           us[at / 2], us[at - 1 - at / 100], us[at - 1 - at / 1000], us[at - 1]);
}

static void hostile_schema(char *out, size_t size, int i) {
    if (i % 2)
        snprintf(out, size,
                 R"({"json_schema":{"type":"object","properties":{"a%d":{"type":"string",)"
                 R"("pattern":"(a|b)*a(a|b){13}%d"}},"required":["a%d"]}})",
                 i, i, i);
    else
        snprintf(out, size,
                 R"({"json_schema":{"type":"array","items":{"type":"string","allOf":[{)"
                 R"("pattern":)"
                 R"("x.{%d}y"},{"pattern":"[^z]{9}q.{8}w"},{"format":"uri"}]}}})",
                 6 + i % 5);
}

/* Until the small schema of a third tenant is there: milliseconds of wall time. */
static double wait_for_third(struct sched *s, struct buf *events, const char *text) {
    static uint64_t id = THIRD;
    double begin = (double)clock_now(clock_monotonic()) * 1e-9;

    third_ready = 0;
    submit_of(s, id++, 3, 1, text, "");
    while (third_ready == 0)
        one_step(s, events);
    return (third_ready - begin) * 1e3;
}

/* @more: the node of ambiguous requests, or NULL. */
static int hostile(const struct tokenizer *t, const char *more) {
    char text[600];
    struct engine e = {.info = {.n_vocab = tokenizer_n_vocab(t),
                                .max_context = 1 << 20,
                                .page_tokens = 32,
                                .n_pages = 400000,
                                .depth = 2}};
    CLEANUP(sched_freep) struct sched *s = NULL;
    struct compiler_stats c;
    struct msg_stats stats = {0};
    struct buf events;

    clock_of = CLOCK_THREAD_CPUTIME_ID;
    step_ms = STEP_MS;
    if (compiler_new(&compiler, t, 128 << 20, NULL) < 0)
        return 1;
    struct sched_opts o = {.max_seqs = SEQS,
                           .max_rows = 2048,
                           .max_step_ms = 200,
                           .itl_target_ms = 50,
                           .depth = 2,
                           .no_speculation = true,
                           .tokenizer = t,
                           .constraints = compiler_source(compiler)};

    if (sched_new(&s, &o, &e, clock_monotonic()) < 0)
        return 1;
    buf_init(&events, 1 << 26);
    for (uint64_t id = 1; id <= VICTIMS; id++)
        submit_of(s, id, 1, 500000, victim, "");
    for (int i = 0; i < ALONE / 2; i++) /* what is made when it is first needed is there */
        one_step(s, &events);
    measure_steps(s, &events, "alone", ALONE);
    double alone_ms = wait_for_third(s, &events, R"({"choice":["yes","no"]})");

    ambiguous = more;
    while (more && stats.n_running < 2 * VICTIMS) {
        top_up(s);
        one_step(s, &events);
        sched_stats(s, &stats);
    }
    for (int i = 0; i < HOSTILE; i++) {
        hostile_schema(text, sizeof(text), i);
        submit_of(s, 100 + (uint64_t)i, 2, 1, text, "");
    }
    double attacked_ms = wait_for_third(s, &events, R"({"choice":["more","less"]})");

    measure_steps(s, &events, "attacked", UINT32_MAX);
    sched_stats(s, &stats);
    compiler_stats(compiler, &c);
    printf("at the end %u requests run; %llu ambiguous ones in all\n", stats.n_running,
           (unsigned long long)top_up(s));
    printf("a small schema of a third tenant, ms of wall time: alone %.1f, attacked %.1f\n"
           "%llu compiled, %llu refused, %.2f s\n",
           alone_ms, attacked_ms, (unsigned long long)c.n_compiled, (unsigned long long)c.n_refused,
           (double)c.ns * 1e-9);
    s = sched_free(s);
    buf_deinit(&events);
    compiler_free(compiler);
    return 0;
}

int main(int argc, char **argv) {
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    CLEANUP(tokenizer_freep) struct tokenizer *t = NULL;
    CLEANUP(grammar_vocab_freep) struct grammar_vocab *v = NULL;
    struct err err = {0};

    if (argc < 2 || argc > 3 || gguf_open(&g, argv[1], &err) < 0 ||
        tokenizer_new(&t, g, &err) < 0 || grammar_vocab_of(&v, t) < 0) {
        fprintf(stderr, "usage: bench_constrain VOCABULARY.gguf [hostile|ambiguous]\n%s\n",
                err.message);
        return 2;
    }
    if (argc == 3) {
        struct buf b = {.max = 1 << 20};

        if (argv[2][0] == 'a')
            write_ambiguous(&b);
        int r = hostile(t, b.data);

        buf_deinit(&b);
        return r;
    }
    printf("%-24s %10s", "us a step, requests:", "compile ms");
    for (uint32_t n = 1; n <= SEQS; n *= 4)
        printf(" %8u", n);
    printf("\n");
    for (size_t i = 0; i < ARRAY_SIZE(CASES); i++) {
        double ms = 0;

        if (*CASES[i].grammar) {
            double begin = now();

            if (constraint_new(&constraint, v, CASES[i].grammar, strlen(CASES[i].grammar),
                               CASES[i].triggers, strlen(CASES[i].triggers), NULL, &err) < 0)
                return 1;
            ms = (now() - begin) * 1e3;
        }
        printf("%-24s %10.1f", CASES[i].name, ms);
        for (uint32_t n = 1; n <= SEQS; n *= 4)
            printf(" %8.1f", measure(t, n, CASES[i].grammar, CASES[i].triggers));
        printf("\n");
        constraint = constraint_free(constraint);
    }
    return 0;
}
