/*
 * What speculation gains on recorded requests: `auto` against `off` through the scheduler and a
 * real engine. The recorded token takes the place of whatever was sampled, while everything is
 * computed: so drafts are right as often as they are for real text, not for that of a small model
 * that loops.
 *
 * Both modes serve the same requests side by side: the one that is behind in tokens makes the next
 * step, on a clock that stands still while the other one does. So both are at the same place of the
 * text at the same time, and what else happens on the machine meets both. Time is cut into pairs of
 * some seconds.
 *
 * Beside the measured ratio stands an accounted one, which the machine's noise hardly touches: the
 * steps of each mode priced with the mean time that a step of so many rows took in both. And with
 * --virtual nothing is computed at all: a step takes the time that the option says, so a run is the
 * same each time, and a loss of a thousandth is seen.
 *
 * The engine's functions are wrapped (-Wl,--wrap): the scheduler under test is the one that serves.
 * Each stream has its own isolation key, and every round new ones, so that no draft comes from an
 * output of the same text in another stream or an earlier round. Prompts are computed before the
 * clock starts (a request of one token leaves its pages cached); the measured time is that of
 * decoding.
 */

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <yyjson.h>

#include "base/rng.h"
#include "cmd/bench_clock.h"
#include "cmd/bench_json.h"
#include "cmd/bench_replay.h"
#include "cmd/cli.h"
#include "engine/engine.h"
#include "scheduler/scheduler_private.h"

enum { STREAMS_MAX = 64, PAIRS_MAX = 100, WANTS_MAX = 512, ROWS_MAX = 512, POINTS_MAX = 16 };
enum mode { OFF, AUTO, MODES };

static const char usage[] =
    "usage: bench_spec --model FILE --transcript FILE [options]\n"
    "Speculation `auto` against `off` on recorded requests (tests/bench/transcripts).\n"
    "  --streams N,N,...  requests decoded at once, at most 64 (1)\n"
    "  --pairs N          (10)\n"
    "  --seconds S        of a pair, both modes together (6)\n"
    "  --draft-model FILE a small model; what it drafts is right as often as --acceptance says\n"
    "  --block P          the model's own block drafts, as often right; with --virtual a pass of "
    "it takes P of the\n"
    "                     model's, and its keys in each of the model's a sixth of that\n"
    "  --acceptance P     (0.7)\n"
    "  --threads N        0: all cores (0)\n"
    "  --cpu-time         of the process, with one thread: others on the machine do not count\n"
    "  --virtual N:MS,... compute nothing: a step of N rows takes MS, between two points in "
    "proportion\n"
    "  --keys MS          and so much for each 1024 keys that a sequence, or 4 rows of it, looks "
    "at (0)\n"
    "  --host MS          of each step the host takes so long, and two steps are under way (0: "
    "one)\n"
    "  --noise P          of virtual times: up to so much more or less (0)\n"
    "  --json FILE        the result as JSON (-: stdout)\n";

static struct replay replay;
static bool cpu_time;

/* ---- the two modes, each with a clock of its own */

/* A step that was launched. */
struct launched {
    struct engine_out out[WANTS_MAX];
    int32_t token[WANTS_MAX];
    uint32_t n, n_rows;
    int64_t begin_ns, end_ns;
};

static struct side {
    struct clock clock;
    /* since: when it was resumed; 0: it stands still */
    int64_t ns, since;
    /* virtual: when the device is */
    int64_t free_ns;
    struct engine *engine;
    struct engine_info info;
    struct sched *sched;
    struct launched flight[SCHED_DEPTH_MAX];
    uint64_t n_tokens;
    /* requests that have not ended; that have a token */
    uint32_t n_live, n_begun;
    /* steps are counted now */
    bool counts;
    /* Steps by rows, and the time they took; with [1] and without drafts: what was expected of
     * them. */
    uint64_t n_steps[ROWS_MAX + 1], step_ns[ROWS_MAX + 1];
    uint64_t n[2], took_ns[2], expect_ns[2];
    uint64_t n_drafted, n_accepted;
} sides[MODES];

static struct {
    double rows[POINTS_MAX], ms[POINTS_MAX], keys_ms, host_ms, noise;
    /* 0: real time */
    uint32_t n;
    struct rng rng;
} machine;

static int64_t real_now(void) {
    struct timespec t;

    if (!cpu_time)
        return bench_now_ns();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static int64_t side_now(struct clock *c) {
    const struct side *d = CONTAINER_OF(c, struct side, clock);

    return d->ns + (d->since ? real_now() - d->since : 0);
}

static void resume(struct side *d) {
    d->since = machine.n ? 0 : real_now();
}

static void pause_clock(struct side *d) {
    d->ns = side_now(&d->clock);
    d->since = 0;
}

static double virtual_ms(const struct engine_batch *b) {
    double rows = b->n_rows, keys = 0;
    uint32_t i = 1;

    for (uint32_t k = 0; k < b->n_seqs; k++)
        keys += (b->seq[k].n_rows + 3) / 4 * (b->seq[k].pos0 + b->seq[k].n_rows / 2.0);

    while (i + 1 < machine.n && machine.rows[i] < rows)
        i++;
    double slope = (machine.ms[i] - machine.ms[i - 1]) / (machine.rows[i] - machine.rows[i - 1]);
    double noise = 1 + machine.noise * (2 * rng_unit(&machine.rng) - 1);
    return (machine.ms[i - 1] + slope * (rows - machine.rows[i - 1]) +
            keys / 1024 * machine.keys_ms) *
           noise;
}

static int parse_machine(const char *list) {
    CLEANUP(freep) char *copy = strdup(list);
    char *rest = copy, *item;

    while (copy && (item = strsep(&rest, ",")) != NULL) {
        double rows, ms;
        char after;

        if (machine.n == POINTS_MAX || sscanf(item, "%lf:%lf%c", &rows, &ms, &after) != 2 ||
            ms <= 0 || (machine.n && rows <= machine.rows[machine.n - 1]))
            return cli_usage(R"(--virtual: "%s" is no list of rows:ms, rows rising)", list);
        machine.rows[machine.n] = rows;
        machine.ms[machine.n++] = ms;
    }
    if (machine.n < 2)
        return copy ? cli_usage("--virtual: at least two points") : -ENOMEM;
    return 0;
}

/* ---- the engine, with recorded tokens */

static struct {
    /* NULL: none */
    const struct engine *draft;
    double acceptance, block;
    /* of the draft model */
    struct launched flight;
} forced;

const struct engine_info *__real_engine_info(const struct engine *e);
const struct engine_info *__wrap_engine_info(const struct engine *e);
int __real_engine_launch(struct engine *e, const struct engine_batch *b);
int __real_engine_wait(struct engine *e, uint64_t step, struct engine_result *out);
int __real_engine_seal(struct engine *e, uint64_t step);
int __wrap_engine_launch(struct engine *e, const struct engine_batch *b);
int __wrap_engine_seal(struct engine *e, uint64_t step);
int __wrap_engine_wait(struct engine *e, uint64_t step, struct engine_result *out);

/* A request's seed is the index of its record. */
static int32_t recorded(uint64_t seed, uint32_t out_pos) {
    const struct replay_request *q = &replay.request[seed];

    return q->token.id[MIN(q->n_prompt + out_pos, q->token.n - 1)];
}

/* The recorded token, or another one as often as the draft model is to be wrong; the same at each
 * call. */
static int32_t predicted(uint64_t seed, uint32_t out_pos) {
    struct rng r = {seed << 32 | out_pos};
    int32_t token = recorded(seed, out_pos);

    return rng_unit(&r) < forced.acceptance ? token : token > 0 ? token - 1 : 1;
}

static struct side *side_of(const struct engine *e) {
    for (int mode = 0; mode < MODES; mode++)
        if (sides[mode].engine == e)
            return &sides[mode];
    return NULL; /* the draft model's */
}

static struct launched *launched_of(const struct engine *e, uint64_t step) {
    struct side *d = side_of(e);

    return d ? &d->flight[step % SCHED_DEPTH_MAX] : &forced.flight;
}

const struct engine_info *__wrap_engine_info(const struct engine *e) {
    const struct engine_info *info = __real_engine_info(e);
    struct side *d = side_of(e);

    if (!d || !machine.n)
        return info;
    d->info = *info;
    d->info.depth = machine.host_ms > 0 ? 2 : 1;
    if (forced.block > 0 && d == &sides[AUTO]) { /* nothing is computed: any model has one */
        d->info.n_slots = STREAMS_MAX;
        d->info.draft_bytes = (uint64_t)(forced.block * (double)info->weight_bytes);
    }
    return &d->info;
}

/* What a pass takes, of a pass of the model without a block. */
static double block_part(const struct side *d, const struct engine_batch *b) {
    return b->model ? forced.block : d == &sides[AUTO] && !b->holes ? 1 + forced.block / 6 : 1;
}

int __wrap_engine_launch(struct engine *e, const struct engine_batch *b) {
    struct launched *f = launched_of(e, b->step);
    struct side *d = side_of(e);

    assert(b->n_wants <= WANTS_MAX && b->n_rows <= ROWS_MAX);
    f->n = b->n_wants;
    f->n_rows = b->n_rows;
    for (uint32_t i = 0; i < b->n_wants; i++) {
        uint64_t seed = b->param[b->want[i].param].seed;
        uint32_t at = b->want[i].out_pos;

        f->token[i] = d && !b->model ? recorded(seed, at) : predicted(seed, at);
    }
    if (d) {
        d->ns += (int64_t)(machine.host_ms * 1e6);
        f->begin_ns = MAX(side_now(&d->clock), d->free_ns);
    }
    if (!machine.n)
        return __real_engine_launch(e, b);
    if (d)
        f->end_ns = d->free_ns = f->begin_ns + (int64_t)(virtual_ms(b) * block_part(d, b) * 1e6);
    return 0;
}

int __wrap_engine_seal(struct engine *e, uint64_t step) {
    return machine.n ? 0 : __real_engine_seal(e, step);
}

/* What the step took, and what was expected. */
static void account(struct side *d, uint64_t step) {
    const struct launched *f = &d->flight[step % SCHED_DEPTH_MAX];
    const struct batch *t = d->sched->batch;
    int64_t ns = side_now(&d->clock) - f->begin_ns;

    while (t < d->sched->batch + SCHED_DEPTH_MAX && t->b.step != step)
        t++;
    if (t == d->sched->batch + SCHED_DEPTH_MAX || t->prefills || !d->counts) /* or of the block */
        return;
    d->n_steps[f->n_rows]++;
    d->step_ns[f->n_rows] += (uint64_t)ns;
    d->n[t->drafts]++;
    d->took_ns[t->drafts] += (uint64_t)ns;
    d->expect_ns[t->drafts] += (uint64_t)t->expect_ns;
}

int __wrap_engine_wait(struct engine *e, uint64_t step, struct engine_result *out) {
    struct launched *f = launched_of(e, step);
    struct side *d = side_of(e);
    int r = 0;

    *out = (struct engine_result){.step = step, .n_outs = f->n, .out = f->out};
    if (!machine.n)
        r = __real_engine_wait(e, step, out);
    else if (d)
        d->ns = MAX(d->ns, f->end_ns);
    if (r < 0)
        return r;
    assert(out->n_outs == f->n);
    for (uint32_t i = 0; i < f->n; i++) {
        f->out[i] = machine.n ? (struct engine_out){0} : out->out[i];
        f->out[i].token = f->token[i];
    }
    out->out = f->out;
    if (d)
        account(d, step);
    return 0;
}

/* ---- rounds */

struct bench {
    const char *model, *transcript, *streams, *json, *draft_model, *machine;
    uint32_t n_threads, n_pairs;
    double seconds;
    struct gguf *file, *draft_file;
    struct engine *draft;
    struct buf events;
    uint64_t n_rounds, n_ids;
    /* record of the first stream */
    uint32_t first;
};

/* The request of stream @stream: the prompt alone, so that its pages are cached, or all of it. */
static int submit(struct bench *b, struct sched *s, uint32_t stream, bool warm) {
    uint32_t record = (b->first + stream) % replay.n;
    const struct replay_request *q = &replay.request[record];
    struct submit m = {
        .id = b->n_ids + stream + 1,
        .seed = record,
        .n_prompt = q->n_prompt,
        .n_tokens = q->n_prompt,
        .max_new = warm ? 1 : (uint32_t)q->token.n - q->n_prompt,
        .tokens = q->token.id,
        .prediction = {(const char *)q->prediction.id,
                       warm ? 0 : (uint32_t)(q->prediction.n * sizeof(int32_t))},
        .session = stream + 1,
    };

    params_init(&m.sampling);
    m.sampling.temperature = 0;
    memcpy(m.isolation_key, &b->n_rounds, sizeof(b->n_rounds));
    m.isolation_key[8] = (uint8_t)(stream + 1);
    return sched_submit(s, &m);
}

/* Counts what @d has to say. */
static int listen(struct bench *b, struct side *d) {
    struct event_cursor at;
    struct event e;

    buf_clear(&b->events);
    if (sched_events(d->sched, &b->events) != 0)
        return 0;
    msg_events_begin(&at, b->events.data, (uint32_t)b->events.len);
    while (msg_events_next(&at, &e) == 0) {
        if (e.kind == EVENT_REJECTED || e.finish == FINISH_ERROR)
            return cli_fail("a request was refused: %.*s", (int)e.text.len, e.text.data);
        d->n_tokens += e.n_tokens;
        d->n_begun += e.n_tokens > 0 && e.from == 0;
        d->n_live -= e.kind == EVENT_FINISH;
    }
    sched_delivered(d->sched);
    return 0;
}

static int step(struct bench *b, struct side *d) {
    resume(d);
    int r = sched_step(d->sched);
    if (r >= 0)
        r = listen(b, d);
    pause_clock(d);
    return r;
}

/* Until none of its requests is left. */
static int drain(struct bench *b, struct side *d) {
    int r = 0;

    while (r == 0 && d->n_live)
        r = step(b, d);
    return r;
}

/* @n requests for each mode: their prompts are computed, or all is ready to be decoded. */
static int begin(struct bench *b, uint32_t n, bool warm) {
    int r = 0;

    for (int mode = 0; mode < MODES && r == 0; mode++) {
        struct side *d = &sides[mode];

        d->n_live = n;
        d->n_begun = 0;
        for (uint32_t i = 0; r == 0 && i < n; i++)
            r = submit(b, d->sched, i, warm);
        while (r == 0 && warm && d->n_live)
            r = step(b, d);
    }
    b->n_ids += n;
    return r;
}

static int end(struct bench *b, uint32_t n) {
    int r = 0;

    for (int mode = 0; mode < MODES && r == 0; mode++) {
        for (uint64_t id = b->n_ids - n + 1; id <= b->n_ids; id++)
            sched_cancel(sides[mode].sched, id);
        r = drain(b, &sides[mode]);
    }
    return r;
}

/* ---- pairs */

struct pairs {
    double log_ratio[PAIRS_MAX];
    /* of all pairs */
    uint64_t tokens[MODES], ns[MODES];
    /* counters at the beginning of the one at hand */
    uint64_t tokens0[MODES], ns0[MODES];
    uint32_t n, n_max;
};

static void mark(struct pairs *p) {
    for (int mode = 0; mode < MODES; mode++) {
        p->tokens0[mode] = sides[mode].n_tokens;
        p->ns0[mode] = (uint64_t)sides[mode].ns;
    }
}

/* Ends the pair at hand. */
static void cut(struct pairs *p, uint32_t n_streams) {
    double rate[MODES];

    for (int mode = 0; mode < MODES; mode++) {
        uint64_t n = sides[mode].n_tokens - p->tokens0[mode];
        uint64_t ns = (uint64_t)sides[mode].ns - p->ns0[mode];

        p->tokens[mode] += n;
        p->ns[mode] += ns;
        rate[mode] = (double)n / ((double)ns * 1e-9);
    }
    p->log_ratio[p->n++] = log(rate[AUTO] / rate[OFF]);
    fprintf(stderr, "%u streams, pair %u: off %.1f, auto %.1f tokens/s\n", n_streams, p->n,
            rate[OFF], rate[AUTO]);
    mark(p);
}

/* Until all @n streams decode, in both modes: how they come to that is no matter of speculation. */
static int start(struct bench *b, uint32_t n, struct pairs *p) {
    int r = 0;

    for (int mode = 0; mode < MODES; mode++) {
        struct side *d = &sides[mode];

        d->counts = false;
        while (r == 0 && d->n_begun < n)
            r = step(b, d);
        d->counts = true;
        d->n_tokens = 0;
    }
    mark(p);
    return r;
}

/* A round of @n streams, cut into pairs; it ends when a quarter of the streams has ended. */
static int serve(struct bench *b, uint32_t n, struct pairs *p) {
    uint32_t least = n - n / 4, before = p->n;
    struct side *off = &sides[OFF], *on = &sides[AUTO];
    int r;

    b->n_rounds++;
    if ((r = begin(b, n, true)) == 0 && (r = begin(b, n, false)) == 0)
        r = start(b, n, p);
    while (r == 0 && p->n < p->n_max && on->n_live >= least && off->n_live >= least) {
        r = step(b, on->n_tokens < off->n_tokens || (on->n_tokens == off->n_tokens && p->n % 2 == 0)
                        ? on
                        : off);
        double spent = (double)(on->ns + off->ns) - (double)(p->ns0[OFF] + p->ns0[AUTO]);
        if (r == 0 && spent * 1e-9 >= b->seconds && on->n_tokens >= off->n_tokens &&
            on->n_tokens < off->n_tokens + MAX(n, 4))
            cut(p, n);
    }
    if (r == 0 && p->n == before) /* a round that is shorter than a pair is one */
        cut(p, n);
    return r ? r : end(b, n);
}

/* Student's t: the lower end of the two-sided 90 % interval is the one-sided 95 % bound. */
static double t_quantile(uint32_t n) {
    static const double t[] = {0, 6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83};

    return n < 2 ? INFINITY : n - 1 < ARRAY_SIZE(t) ? t[n - 1] : 1.83;
}

struct ratio {
    /* of auto's rate over off's: geometric mean, 95 % bound */
    double mean, lower, least, greatest;
};

static struct ratio ratio_of(const double *log_ratio, uint32_t n) {
    double sum = 0, squares = 0, least = INFINITY, greatest = -INFINITY;

    for (uint32_t i = 0; i < n; i++) {
        sum += log_ratio[i];
        least = fmin(least, log_ratio[i]);
        greatest = fmax(greatest, log_ratio[i]);
    }
    double mean = sum / n;
    for (uint32_t i = 0; i < n; i++)
        squares += (log_ratio[i] - mean) * (log_ratio[i] - mean);
    double error = n > 1 ? sqrt(squares / (n - 1) / n) : INFINITY;
    return (struct ratio){exp(mean), exp(mean - t_quantile(n) * error), exp(least), exp(greatest)};
}

/*
 * Auto's rate over off's, with each step at the mean time of steps of so many rows in both modes:
 * what the other rows and tokens mean, without what happened on the machine meanwhile.
 */
static double accounted(const struct pairs *p) {
    double ns[MODES] = {0}, all[MODES] = {0};

    for (uint32_t rows = 1; rows <= ROWS_MAX; rows++) {
        uint64_t n = sides[OFF].n_steps[rows] + sides[AUTO].n_steps[rows];
        double each = (double)(sides[OFF].step_ns[rows] + sides[AUTO].step_ns[rows]) / (double)n;

        for (int mode = 0; mode < MODES && n; mode++) {
            ns[mode] += (double)sides[mode].n_steps[rows] * each;
            all[mode] += (double)sides[mode].step_ns[rows];
        }
    }
    /* What was no decoding step, and the host's time, as measured. */
    for (int mode = 0; mode < MODES; mode++)
        ns[mode] += fmax((double)p->ns[mode] - all[mode], 0);
    return (double)p->tokens[AUTO] / ns[AUTO] / ((double)p->tokens[OFF] / ns[OFF]);
}

/* Time that steps with (@drafts) or without drafts took, over what was expected. */
static double surprise(bool drafts) {
    const struct side *d = &sides[AUTO];

    return d->expect_ns[drafts] ? (double)d->took_ns[drafts] / (double)d->expect_ns[drafts] : 1;
}

static void add_row(uint32_t n, const struct pairs *p, yyjson_mut_doc *doc, yyjson_mut_val *rows) {
    const struct side *d = &sides[AUTO];
    struct ratio q = ratio_of(p->log_ratio, p->n);
    struct {
        const char *name;
        double value;
    } const real[] = {
        {"off_tokens_per_s", (double)p->tokens[OFF] * 1e9 / (double)p->ns[OFF]},
        {"auto_tokens_per_s", (double)p->tokens[AUTO] * 1e9 / (double)p->ns[AUTO]},
        {"ratio", q.mean},
        {"lower_95", q.lower},
        {"least", q.least},
        {"greatest", q.greatest},
        {"accounted_ratio", accounted(p)},
        {"took_of_expected_with_drafts", surprise(true)},
        {"took_of_expected_without", surprise(false)},
    };
    const struct {
        const char *name;
        uint64_t value;
    } whole[] = {
        {"streams", n},
        {"pairs", p->n},
        {"tokens", p->tokens[AUTO]},
        {"drafted", d->n_drafted},
        {"accepted", d->n_accepted},
        {"steps_with_drafts", d->n[1]},
        {"steps_without", d->n[0]},
    };
    yyjson_mut_val *row = yyjson_mut_arr_add_obj(doc, rows);

    for (size_t i = 0; i < ARRAY_SIZE(whole); i++)
        yyjson_mut_obj_add_uint(doc, row, whole[i].name, whole[i].value);
    for (size_t i = 0; i < ARRAY_SIZE(real); i++)
        yyjson_mut_obj_add_real(doc, row, real[i].name, real[i].value);
    printf(
        "%3u streams  off %7.1f  auto %7.1f tokens/s  ratio %.4f (lower 95 %% %.4f, %.3f to %.3f), "
        "accounted %.4f\n             drafted %.3f a token, %.0f %% right, in %lu of %lu steps; "
        "took %.3f of what was "
        "expected with, %.3f without\n",
        n, real[0].value, real[1].value, q.mean, q.lower, q.least, q.greatest, real[6].value,
        (double)d->n_drafted / (double)p->tokens[AUTO],
        d->n_drafted ? 100 * (double)d->n_accepted / (double)d->n_drafted : 0, d->n[1],
        d->n[0] + d->n[1], surprise(true), surprise(false));
}

static int measure(struct bench *b, uint32_t n, yyjson_mut_doc *doc, yyjson_mut_val *rows) {
    struct pairs p = {.n_max = b->n_pairs};
    struct msg_stats before, after;
    int r = 0;

    for (int mode = 0; mode < MODES; mode++) {
        struct side *d = &sides[mode];

        memset(d->n_steps, 0, sizeof(d->n_steps));
        memset(d->step_ns, 0, sizeof(d->step_ns));
        for (int k = 0; k < 2; k++)
            d->n[k] = d->took_ns[k] = d->expect_ns[k] = 0;
    }
    sched_stats(sides[AUTO].sched, &before);
    for (b->first = 0; r == 0 && p.n < p.n_max; b->first += n)
        r = serve(b, n, &p);
    sched_stats(sides[AUTO].sched, &after);
    sides[AUTO].n_drafted = after.n_drafted - before.n_drafted;
    sides[AUTO].n_accepted = after.n_accepted - before.n_accepted;
    if (r == 0)
        add_row(n, &p, doc, rows);
    return r;
}

static int open_mode(struct bench *b, enum mode mode, struct err *err) {
    struct side *d = &sides[mode];
    struct engine_opts eo = {
        .file = b->file,
        .backend = "auto",
        .isa = "auto",
        .n_threads = b->n_threads,
        .n_pages = STREAMS_MAX * (replay.longest / 32 + 2),
        .n_snapshots = 2 * STREAMS_MAX,
        .page_tokens = 32,
        .max_rows = ROWS_MAX,
        .max_seqs = STREAMS_MAX,
        .max_wants = WANTS_MAX,
    };
    struct sched_opts so = {
        .max_seqs = STREAMS_MAX,
        .max_rows = ROWS_MAX,
        .itl_target_ms = 50,
        .max_step_ms = 200,
        .depth = machine.host_ms > 0 ? 2 : 1,
        .max_bypass = 8,
        .no_speculation = mode == OFF,
    };

    eo.drafts = forced.block > 0 && mode == AUTO;
    int r = engine_new(&d->engine, &eo, err);

    if (r == 0 && b->draft_file && mode == AUTO) {
        eo.file = b->draft_file;
        r = engine_new(&b->draft, &eo, err);
        forced.draft = so.draft_engine = b->draft;
    }
    if (r == 0 && engine_info(d->engine)->note[0])
        fprintf(stderr, "%s\n", engine_info(d->engine)->note);
    d->clock.now_ns = side_now;
    d->ns = 1000000000;
    return r < 0 ? r : sched_new(&d->sched, &so, d->engine, &d->clock);
}

static int measure_all(struct bench *b) {
    yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = yyjson_mut_obj(doc), *rows;
    char *list = strdup(b->streams), *rest = list, *item;
    int r = list ? 0 : -ENOMEM;

    yyjson_mut_doc_set_root(doc, root);
    yyjson_mut_obj_add_str(doc, root, "transcript", b->transcript);
    yyjson_mut_obj_add_str(doc, root, "model", b->model);
    yyjson_mut_obj_add_str(doc, root, "isa", engine_info(sides[OFF].engine)->isa);
    if (b->machine)
        yyjson_mut_obj_add_str(doc, root, "virtual", b->machine);
    rows = yyjson_mut_obj_add_arr(doc, root, "results");
    while (r == 0 && (item = strsep(&rest, ",")) != NULL) {
        uint32_t n;

        r = cli_u32(item, 1, STREAMS_MAX, &n) ? measure(b, n, doc, rows)
                                              : cli_usage("bad --streams %s", b->streams);
    }
    if (r == 0 && b->json)
        r = bench_json_write(doc, b->json); /* frees it */
    else
        yyjson_mut_doc_free(doc);
    free(list);
    return r;
}

int main(int argc, char **argv) {
    struct bench b = {.streams = "1", .n_pairs = 10, .seconds = 6};
    const struct cli_option options[] = {
        {"model", CLI_TEXT, &b.model, 0, 0},
        {"transcript", CLI_TEXT, &b.transcript, 0, 0},
        {"draft-model", CLI_TEXT, &b.draft_model, 0, 0},
        {"block", CLI_DOUBLE, &forced.block, 0, 1},
        {"acceptance", CLI_DOUBLE, &forced.acceptance, 0, 1},
        {"streams", CLI_TEXT, &b.streams, 0, 0},
        {"cpu-time", CLI_TRUE, &cpu_time, 0, 0},
        {"threads", CLI_U32, &b.n_threads, 0, 1024},
        {"pairs", CLI_U32, &b.n_pairs, 1, PAIRS_MAX},
        {"seconds", CLI_DOUBLE, &b.seconds, 0.01, 600},
        {"virtual", CLI_TEXT, &b.machine, 0, 0},
        {"keys", CLI_DOUBLE, &machine.keys_ms, 0, 1000},
        {"host", CLI_DOUBLE, &machine.host_ms, 0, 100},
        {"noise", CLI_DOUBLE, &machine.noise, 0, 0.9},
        {"json", CLI_TEXT, &b.json, 0, 0},
    };
    struct err err = {0};
    int n_args = 0;

    forced.acceptance = 0.7;
    int r = cli_parse(argc, argv, options, ARRAY_SIZE(options), usage, &n_args);

    if (r >= 0)
        return r;
    if (!b.model || !b.transcript || n_args)
        return cli_usage("--model and --transcript are needed");
    if (b.machine && (r = parse_machine(b.machine)) != 0)
        return r;
    if (machine.host_ms > 0 && !b.machine)
        return cli_usage("--host goes with --virtual");
    if (b.machine && b.draft_model)
        return cli_usage("--virtual: what a draft model takes is not known");
    buf_init(&b.events, 16u << 20);
    if ((r = gguf_open(&b.file, b.model, &err)) < 0)
        return cli_fail_err(b.model, &err, r);
    if (b.draft_model && (r = gguf_open(&b.draft_file, b.draft_model, &err)) < 0)
        return cli_fail_err(b.draft_model, &err, r);
    if ((r = replay_read(&replay, b.transcript, b.file, &err)) < 0)
        return cli_fail_err(b.transcript, &err, r);
    for (int mode = 0; mode < MODES; mode++)
        if ((r = open_mode(&b, mode, &err)) < 0)
            return cli_fail_err(b.model, &err, r);
    r = measure_all(&b);
    for (int mode = 0; mode < MODES; mode++) {
        sched_free(sides[mode].sched);
        engine_free(sides[mode].engine);
    }
    engine_free(b.draft);
    replay_deinit(&replay);
    gguf_free(b.draft_file);
    gguf_free(b.file);
    buf_deinit(&b.events);
    return r < 0 ? cli_fail_err("scheduler", NULL, r) : r;
}
