/*
 * What speculation gains on recorded requests: `auto` against `off`, in turn, through the scheduler and a real
 * engine. The recorded token takes the place of whatever was sampled, while everything is computed: so
 * drafts are right as often as they are for real text, not for that of a small model that loops.
 *
 * The engine's functions are wrapped (-Wl,--wrap): the scheduler under test is the one that serves. Each stream has
 * its own share key, and every run new ones, so that nobody drafts from an output of the same text in another
 * stream or an earlier run. Prompts are computed before the clock starts (a request of one token leaves its pages
 * cached); the measured time is that of decoding.
 */

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/rng.h"
#include "cmd/bench_clock.h"
#include "cmd/bench_json.h"
#include "cmd/bench_replay.h"
#include "cmd/cli.h"
#include "engine/engine.h"
#include "scheduler/scheduler.h"

enum { STREAMS_MAX = 64, PAIRS_MAX = 100, WANTS_MAX = 512 };

static const char usage[] =
    "usage: bench_spec --model FILE --transcript FILE [options]\n"
    "Speculation `auto` against `off` on recorded requests (tests/bench/transcripts).\n"
    "  --streams N,N,...  requests decoded at once, at most 64 (1)\n"
    "  --pairs N          of runs (10)\n"
    "  --draft-model FILE a small model; what it guesses is right as often as --acceptance says\n"
    "  --acceptance P     (0.7)\n"
    "  --threads N        0: all cores (0)\n"
    "  --json FILE        the result as JSON (-: stdout)\n";

static struct replay replay;

/* ---- the engine, with recorded tokens */

static struct {
    const struct engine *draft; /* NULL: none */
    double acceptance;
    struct engine_out out[WANTS_MAX];
    int32_t token[WANTS_MAX];
    uint32_t n;
} forced;

int __real_engine_launch(struct engine *e, const struct engine_batch *b);
int __real_engine_wait(struct engine *e, uint64_t step, struct engine_result *out);
int __wrap_engine_launch(struct engine *e, const struct engine_batch *b);
int __wrap_engine_wait(struct engine *e, uint64_t step, struct engine_result *out);

/* A request's seed is the index of its record. */
static int32_t recorded(uint64_t seed, uint32_t out_pos) {
    const struct replay_request *q = &replay.request[seed];

    return q->token.id[MIN(q->n_prompt + out_pos, q->token.n - 1)];
}

/* The recorded token, or another one as often as the draft model is to be wrong; the same at each call. */
static int32_t guessed(uint64_t seed, uint32_t out_pos) {
    struct rng r = {seed << 32 | out_pos};
    int32_t token = recorded(seed, out_pos);

    return rng_unit(&r) < forced.acceptance ? token : token > 0 ? token - 1 : 1;
}

int __wrap_engine_launch(struct engine *e, const struct engine_batch *b) {
    assert(b->n_wants <= WANTS_MAX);
    forced.n = b->n_wants;
    for (uint32_t i = 0; i < b->n_wants; i++) {
        uint64_t seed = b->param[b->want[i].param].seed;
        uint32_t at = b->want[i].out_pos;

        forced.token[i] = e == forced.draft ? guessed(seed, at) : recorded(seed, at);
    }
    return __real_engine_launch(e, b);
}

int __wrap_engine_wait(struct engine *e, uint64_t step, struct engine_result *out) {
    int r = __real_engine_wait(e, step, out);

    if (r < 0)
        return r;
    assert(out->n_outs == forced.n);
    for (uint32_t i = 0; i < forced.n; i++) {
        forced.out[i] = out->out[i];
        forced.out[i].token = forced.token[i];
    }
    out->out = forced.out;
    return 0;
}

/* ---- a run */

enum mode { OFF, AUTO, MODES };

struct bench {
    const char *model, *transcript, *streams, *json, *draft_model;
    uint32_t n_threads, n_pairs;
    struct gguf *file, *draft_file;
    struct engine *engine[MODES], *draft;
    struct sched *sched[MODES];
    struct buf events;
    uint64_t n_runs, n_ids;
    uint32_t first; /* record of the first stream */
};

struct outcome {
    double rate; /* output tokens per second, all streams together */
    uint64_t n_tokens, n_drafted, n_accepted;
};

/* The request of stream @stream: the prompt alone, so that its pages are cached, or all of it. */
static int submit(struct bench *b, struct sched *s, uint32_t stream, bool warm) {
    uint32_t record = (b->first + stream) % replay.n;
    const struct replay_request *q = &replay.request[record];
    struct submit m = {
        .id = ++b->n_ids,
        .seed = record,
        .n_prompt = q->n_prompt,
        .n_tokens = q->n_prompt,
        .max_new = warm ? 1 : (uint32_t)q->token.n - q->n_prompt,
        .tokens = q->token.id,
        .prediction = {(const char *)q->prediction.id,
                       warm ? 0 : (uint32_t)(q->prediction.n * sizeof(int32_t))},
        .program = stream + 1,
    };

    params_init(&m.sampling);
    m.sampling.temperature = 0;
    memcpy(m.share_key, &b->n_runs, sizeof(b->n_runs));
    m.share_key[8] = (uint8_t)(stream + 1);
    return sched_submit(s, &m);
}

/* Counts what @s has to say; *n_live falls by the requests that ended. */
static int listen(struct bench *b, struct sched *s, struct outcome *o, uint32_t *n_live) {
    struct event_cursor at;
    struct event e;

    buf_clear(&b->events);
    if (sched_events(s, &b->events) != 0)
        return 0;
    msg_events_begin(&at, b->events.data, (uint32_t)b->events.len);
    while (msg_events_next(&at, &e) == 0) {
        if (e.kind == EVENT_REJECTED || e.finish == FINISH_ERROR)
            return cli_fail("a request was refused: %.*s", (int)e.text.len, e.text.data);
        o->n_tokens += e.n_tokens;
        if (e.kind != EVENT_FINISH)
            continue;
        o->n_drafted += e.n_drafted;
        o->n_accepted += e.n_accepted;
        (*n_live)--;
    }
    sched_delivered(s);
    return 0;
}

/* Serves one request for each of @n streams until all have ended. */
static int serve(struct bench *b, struct sched *s, uint32_t n, bool warm, struct outcome *o) {
    int64_t start = bench_now_ns();
    uint32_t n_live = n;
    int r = 0;

    *o = (struct outcome){0};
    for (uint32_t i = 0; r == 0 && i < n; i++)
        r = submit(b, s, i, warm);
    while (r == 0 && n_live) {
        r = sched_step(s);
        if (r >= 0)
            r = listen(b, s, o, &n_live);
    }
    o->rate = (double)o->n_tokens / ((double)(bench_now_ns() - start) * 1e-9);
    return r;
}

static int run(struct bench *b, enum mode mode, uint32_t n, struct outcome *o) {
    struct outcome ignored;

    b->n_runs++;
    int r = serve(b, b->sched[mode], n, true, &ignored);
    return r ? r : serve(b, b->sched[mode], n, false, o);
}

/* ---- pairs */

/* Student's t: the lower end of the two-sided 90 % interval is the one-sided 95 % bound. */
static double t_quantile(uint32_t n) {
    static const double t[] = {0, 6.31, 2.92, 2.35, 2.13, 2.02, 1.94, 1.89, 1.86, 1.83};

    return n < 2 ? INFINITY : n - 1 < ARRAY_SIZE(t) ? t[n - 1] : 1.83;
}

struct ratio {
    double mean, lower, least, greatest; /* of auto's rate over off's: geometric mean, 95 % bound */
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

static int measure(struct bench *b, uint32_t n, yyjson_mut_doc *doc, yyjson_mut_val *rows) {
    double log_ratio[PAIRS_MAX], rate[MODES] = {0};
    struct outcome o[MODES], all = {0};
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < b->n_pairs; i++) {
        b->first = i;
        for (uint32_t k = 0; r == 0 && k < MODES; k++) {
            enum mode mode = (i + k) % MODES; /* which comes first changes from pair to pair */

            r = run(b, mode, n, &o[mode]);
            rate[mode] += o[mode].rate / b->n_pairs;
        }
        if (r)
            return r;
        log_ratio[i] = log(o[AUTO].rate / o[OFF].rate);
        all.n_drafted += o[AUTO].n_drafted;
        all.n_accepted += o[AUTO].n_accepted;
        all.n_tokens += o[AUTO].n_tokens;
        fprintf(stderr, "%u streams, pair %u: off %.1f, auto %.1f tokens/s\n", n, i + 1,
                o[OFF].rate, o[AUTO].rate);
    }
    struct ratio q = ratio_of(log_ratio, b->n_pairs);
    double right = all.n_drafted ? (double)all.n_accepted / (double)all.n_drafted : 0;
    printf(
        "%3u streams  off %7.1f  auto %7.1f tokens/s  ratio %.3f (lower 95 %% %.3f, %.3f to %.3f)  "
        "drafted %.2f a token, %.0f %% right\n",
        n, rate[OFF], rate[AUTO], q.mean, q.lower, q.least, q.greatest,
        (double)all.n_drafted / (double)all.n_tokens, 100 * right);
    yyjson_mut_val *row = yyjson_mut_arr_add_obj(doc, rows);
    yyjson_mut_obj_add_uint(doc, row, "streams", n);
    yyjson_mut_obj_add_uint(doc, row, "pairs", b->n_pairs);
    yyjson_mut_obj_add_real(doc, row, "off_tokens_per_s", rate[OFF]);
    yyjson_mut_obj_add_real(doc, row, "auto_tokens_per_s", rate[AUTO]);
    yyjson_mut_obj_add_real(doc, row, "ratio", q.mean);
    yyjson_mut_obj_add_real(doc, row, "lower_95", q.lower);
    yyjson_mut_obj_add_real(doc, row, "least", q.least);
    yyjson_mut_obj_add_real(doc, row, "greatest", q.greatest);
    yyjson_mut_obj_add_uint(doc, row, "tokens", all.n_tokens);
    yyjson_mut_obj_add_uint(doc, row, "drafted", all.n_drafted);
    yyjson_mut_obj_add_uint(doc, row, "accepted", all.n_accepted);
    return 0;
}

static int open_mode(struct bench *b, enum mode mode, struct err *err) {
    struct engine_opts eo = {
        .file = b->file,
        .backend = "auto",
        .isa = "auto",
        .n_threads = b->n_threads,
        .n_pages = STREAMS_MAX * (replay.longest / 32 + 2),
        .page_tokens = 32,
        .max_rows = 512,
        .max_seqs = STREAMS_MAX,
        .max_wants = 512,
    };
    struct sched_opts so = {
        .max_seqs = STREAMS_MAX,
        .max_rows = 512,
        .itl_target_ms = 50,
        .max_step_ms = 200,
        .depth = 1, /* what a host engine has; so no sample is fed without being read */
        .max_bypass = 8,
        .no_speculation = mode == OFF,
    };
    int r = engine_new(&b->engine[mode], &eo, err);

    if (r == 0 && b->draft_file && mode == AUTO) {
        eo.file = b->draft_file;
        r = engine_new(&b->draft, &eo, err);
        forced.draft = so.draft_engine = b->draft;
    }
    return r < 0 ? r : sched_new(&b->sched[mode], &so, b->engine[mode], clock_monotonic());
}

static int measure_all(struct bench *b) {
    yyjson_mut_doc *doc = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = yyjson_mut_obj(doc), *rows;
    char *list = strdup(b->streams), *rest = list, *item;
    int r = list ? 0 : -ENOMEM;

    yyjson_mut_doc_set_root(doc, root);
    yyjson_mut_obj_add_str(doc, root, "transcript", b->transcript);
    yyjson_mut_obj_add_str(doc, root, "model", b->model);
    yyjson_mut_obj_add_str(doc, root, "isa", engine_info(b->engine[0])->isa);
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
    struct bench b = {.streams = "1", .n_pairs = 10};
    const struct cli_option options[] = {
        {"model", CLI_TEXT, &b.model, 0, 0},
        {"transcript", CLI_TEXT, &b.transcript, 0, 0},
        {"draft-model", CLI_TEXT, &b.draft_model, 0, 0},
        {"acceptance", CLI_DOUBLE, &forced.acceptance, 0, 1},
        {"streams", CLI_TEXT, &b.streams, 0, 0},
        {"threads", CLI_U32, &b.n_threads, 0, 1024},
        {"pairs", CLI_U32, &b.n_pairs, 1, PAIRS_MAX},
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
        sched_free(b.sched[mode]);
        engine_free(b.engine[mode]);
    }
    engine_free(b.draft);
    replay_deinit(&replay);
    gguf_free(b.draft_file);
    gguf_free(b.file);
    buf_deinit(&b.events);
    return r < 0 ? cli_fail_err("scheduler", NULL, r) : r;
}
