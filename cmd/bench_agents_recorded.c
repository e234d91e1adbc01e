#include "cmd/bench_agents_recorded.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <yyjson.h>
#include "base/try.h"
#include "cmd/bench_json.h"
#include "cmd/bench_record.h"
#include "cmd/bench_result.h"

/*
 * The replay has a slot for each session and each sub-agent of the trace:
 *
 *     IDLE --begin--> WAITING --due, and no sub-agent works--> RUNNING --answer, failure--> WAITING
 *                        |--no turn is left--> ENDED
 *
 * Sub-agents begin as long after their parent's answer as in the trace, and run beside each other
 * and beside the parent's pause; the parent's next turn waits for all of them. At most
 * opts.concurrency sessions of the trace work at once, in its order, none before its time.
 */
struct slot {
    enum { SLOT_IDLE, SLOT_WAITING, SLOT_RUNNING, SLOT_ENDED } state;
    uint32_t turn, n_subs; /* n_subs: number of sub-agents that work */
    struct slot *parent;
    int64_t due_ns;
    struct bench_request q;
    char name[24];
    struct replay *replay;
};

/* State of a replay. n_active: number of sessions of the trace that have begun and not ended. */
struct replay {
    const struct recorded *trace;
    const struct recorded_opts *opts;
    struct bench_target *target;
    struct bench_http *http;
    struct bench_result result;
    struct slot *slot; /* [trace->n_sessions] */
    uint32_t n_active, next, n_sent;
    uint32_t first_token, n_tokens; /* range of token ids */
    struct rng fresh;
    int64_t next_due_ns;
    bool changed; /* next_due_ns may be too late */
    int error;
};

static uint32_t scaled(const struct replay *r, uint32_t n) {
    return (uint32_t)fmax(1, fmin(round(n * r->opts->tokens), RECORDED_TOKENS_MAX));
}

/* Returns a pause of the trace in ns. */
static int64_t pause_ns(const struct replay *r, double s) {
    s *= r->opts->times;
    if (r->opts->max_pause_s > 0)
        s = MIN(s, r->opts->max_pause_s);
    return (int64_t)(MIN(s, 1e9) * 1e9);
}

/* ---- turns ---- */

static void begin_session(struct replay *r, uint32_t i, struct slot *parent, int64_t at_ns);

static void end_session(struct slot *s) {
    s->state = SLOT_ENDED;
    s->replay->changed = true;
    if (s->parent) {
        assert(s->parent->n_subs > 0);
        s->parent->n_subs--;
    } else {
        assert(s->replay->n_active > 0);
        s->replay->n_active--;
    }
}

/* Lets @s wait for turn @turn and its sub-agents; the previous answer arrived at @at_ns. */
static void begin_turn(struct slot *s, uint32_t turn, int64_t at_ns) {
    struct replay *r = s->replay;

    if (turn == RECORDED_NONE) {
        end_session(s);
        return;
    }
    const struct recorded_turn *t = &r->trace->turn[turn];
    s->state = SLOT_WAITING;
    s->turn = turn;
    s->due_ns = at_ns + pause_ns(r, t->pause_s);
    r->changed = true;
    for (uint32_t i = t->subs; i != RECORDED_NONE; i = r->trace->session[i].next_sub) {
        s->n_subs++;
        begin_session(r, i, s, at_ns + pause_ns(r, r->trace->session[i].start_s));
    }
}

static void begin_session(struct replay *r, uint32_t i, struct slot *parent, int64_t at_ns) {
    struct slot *s = &r->slot[i];

    assert(s->state == SLOT_IDLE && !parent == !r->trace->session[i].is_sub);
    s->parent = parent;
    s->replay = r;
    snprintf(s->name, sizeof(s->name), "trace-%u", i);
    begin_turn(s, r->trace->session[i].first, at_ns);
}

/* Begins as many sessions as opts.concurrency allows; each waits for its time in the trace. */
static void begin_sessions(struct replay *r) {
    for (; r->next < r->trace->n_sessions && r->n_active < r->opts->concurrency; r->next++) {
        const struct recorded_session *x = &r->trace->session[r->next];
        int64_t at = r->result.start_ns + (int64_t)(MIN(x->start_s * r->opts->times, 1e9) * 1e9);

        if (x->is_sub)
            continue;
        r->n_active++;
        begin_session(r, r->next, NULL, MAX(at, bench_now_ns()));
    }
}

static void next_turn(struct slot *s, int64_t at_ns) {
    begin_turn(s, s->replay->trace->turn[s->turn].next, at_ns);
}

static void on_done(struct bench_request *q) {
    struct slot *s = q->ctx;
    int64_t end_ns = q->end_ns;

    assert(s->state == SLOT_RUNNING);
    if (bench_result_add(&s->replay->result, q) < 0)
        s->replay->error = -ENOMEM;
    bench_request_deinit(q);
    next_turn(s, end_ns);
}

/* Writes the tokens of a block, which its name determines. */
static int put_block(struct replay *r, struct buf *out, uint64_t name, uint32_t n, bool first) {
    struct rng rng = {name};
    char text[16];

    for (uint32_t i = 0; i < n; i++, first = false) {
        snprintf(text, sizeof(text), "%s%u", first ? "" : ",",
                 r->first_token + rng_below(&rng, r->n_tokens));
        if (buf_add_str(out, text) < 0)
            return -ENOMEM;
    }
    return 0;
}

/* Writes the prompt of @t: its blocks, each scaled in length, and new tokens behind the last
 * one. */
static int put_prompt(struct replay *r, struct buf *out, const struct recorded_turn *t) {
    uint32_t n = scaled(r, t->n_in), size = scaled(r, t->block_tokens);
    int e = 0;

    for (uint32_t i = 0, at = 0; at < n && e == 0; at += size, i++) {
        uint64_t name = i < t->n_blocks ? r->trace->block[t->first_block + i] : rng_next(&r->fresh);

        e = put_block(r, out, name, MIN(size, n - at), at == 0);
    }
    return e;
}

static int put_body(struct replay *r, struct buf *out, const struct recorded_turn *t) {
    const struct load_opts *o = &r->target->load;
    yyjson_mut_doc *d = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = yyjson_mut_obj(d);
    size_t len;

    yyjson_mut_doc_set_root(d, root);
    yyjson_mut_obj_add_str(d, root, "model", r->target->model);
    yyjson_mut_obj_add_uint(d, root, "max_tokens", scaled(r, t->n_out));
    yyjson_mut_obj_add_real(d, root, "temperature", o->temperature);
    yyjson_mut_obj_add_uint(d, root, "seed", o->seed);
    yyjson_mut_obj_add_bool(d, root, "stream", true);
    if (o->ignore_eos)
        yyjson_mut_obj_add_bool(d, root, "ignore_eos", true);
    yyjson_mut_obj_add_bool(d, yyjson_mut_obj_add_obj(d, root, "stream_options"), "include_usage",
                            true);
    CLEANUP(freep) char *text = yyjson_mut_write(d, 0, &len);
    yyjson_mut_doc_free(d);
    if (!text || buf_add(out, text, len - 1) < 0 || buf_add_str(out, ",\"prompt\":[") < 0 ||
        put_prompt(r, out, t) < 0)
        return -ENOMEM;
    return buf_add_str(out, "]}");
}

static int send_turn(struct slot *s) {
    struct replay *r = s->replay;
    struct bench_request *q = &s->q;

    s->state = SLOT_RUNNING;
    r->n_sent++;
    bench_request_init(q);
    q->stream = true;
    q->done = on_done;
    q->ctx = s;
    q->session = r->opts->sessions ? s->name : NULL;
    if (put_body(r, &q->body, &r->trace->turn[s->turn]) < 0)
        return -ENOMEM;
    q->due_ns = bench_now_ns();
    return bench_http_start(r->http, q);
}

/* Sends the requests that are due at @now, and notes when the next turn is due. */
static void send_due(struct replay *r, int64_t now) {
    while (!r->error && (r->changed || now >= r->next_due_ns)) {
        r->changed = false;
        r->next_due_ns = INT64_MAX;
        begin_sessions(r);
        for (uint32_t i = 0; i < r->trace->n_sessions && !r->error; i++) {
            struct slot *s = &r->slot[i];

            if (s->state != SLOT_WAITING || s->n_subs > 0)
                continue;
            if (s->due_ns > now)
                r->next_due_ns = MIN(r->next_due_ns, s->due_ns);
            else if (r->opts->n_requests && r->n_sent == r->opts->n_requests)
                end_session(s);
            else if (r->trace->turn[s->turn].n_out == 0)
                next_turn(s, now);
            else
                r->error = send_turn(s);
        }
    }
}

/* Runs until all sessions have ended or SIGINT arrives. Returns 0 or -errno. */
static int drive(struct replay *r) {
    int64_t now = bench_now_ns();

    r->result.start_ns = now;
    r->changed = true;
    for (;;) {
        send_due(r, now);
        if (r->error || bench_interrupted() || r->n_active == 0)
            return r->error;
        int64_t wait_ms = (r->next_due_ns - bench_now_ns() + 999999) / 1000000;
        TRY(bench_http_run(r->http, (int)MIN(MAX(wait_ms, 0), 500)));
        now = bench_now_ns();
    }
}

/* ---- the report ---- */

/* Adds the statistics of @v as AIPerf names them; null if there are no values. */
static void add_summary(yyjson_mut_doc *d, yyjson_mut_val *root, const char *key,
                        struct samples *v) {
    struct summary s = samples_summary(v);

    if (s.n == 0) {
        yyjson_mut_obj_add_null(d, root, key);
        return;
    }
    yyjson_mut_val *o = yyjson_mut_obj_add_obj(d, root, key);
    yyjson_mut_obj_add_real(d, o, "avg", s.mean * 1e3);
    yyjson_mut_obj_add_real(d, o, "p50", s.p50 * 1e3);
    yyjson_mut_obj_add_real(d, o, "p90", s.p90 * 1e3);
    yyjson_mut_obj_add_real(d, o, "p99", s.p99 * 1e3);
    yyjson_mut_obj_add_real(d, o, "max", s.max * 1e3);
}

/* Adds @v, or null if there is no value (@is false). */
static void add_real(yyjson_mut_doc *d, yyjson_mut_val *root, const char *key, bool is, double v) {
    if (is)
        yyjson_mut_obj_add_real(d, root, key, v);
    else
        yyjson_mut_obj_add_null(d, root, key);
}

static void add_metrics(struct bench_result *r, yyjson_mut_doc *d, yyjson_mut_val *root) {
    yyjson_mut_val *v = yyjson_mut_obj_add_obj(d, root, "metrics");
    double n = (double)r->n[OUTCOME_OK], n_all = (double)bench_result_n_done(r);
    double s = MAX((double)(r->end_ns - r->start_ns) * 1e-9, 1e-9);
    double in = (double)r->prompt_tokens, out = (double)r->output_tokens;
    bool slo = r->slo_ttft_s > 0 || r->slo_itl_s > 0;

    add_summary(d, v, "time_to_first_token", &r->ttft);
    add_summary(d, v, "inter_token_latency", &r->tpot);
    add_summary(d, v, "request_latency", &r->e2e);
    yyjson_mut_obj_add_real(d, v, "request_count", n);
    yyjson_mut_obj_add_real(d, v, "error_request_count", n_all - n);
    yyjson_mut_obj_add_real(d, v, "benchmark_duration", s);
    yyjson_mut_obj_add_real(d, v, "request_throughput", n / s);
    yyjson_mut_obj_add_real(d, v, "output_token_throughput", out / s);
    yyjson_mut_obj_add_real(d, v, "total_token_throughput", (in + out) / s);
    yyjson_mut_obj_add_real(d, v, "total_isl", in);
    yyjson_mut_obj_add_real(d, v, "total_osl", out);
    add_real(d, v, "cached_prompt_share", in > 0, (double)r->cached_tokens / in);
    add_real(d, v, "goodput", slo, (double)r->n_good / s);
    add_real(d, v, "good_request_share", slo && n_all > 0, (double)r->n_good / n_all);
    add_real(d, v, "joules_per_output_token", r->joules > 0 && out > 0, r->joules / out);
}

static int write_record(struct replay *r, const struct energy *energy) {
    yyjson_mut_doc *d = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = yyjson_mut_obj(d);

    yyjson_mut_doc_set_root(d, root);
    yyjson_mut_obj_add_str(d, root, "benchmark", "agents");
    yyjson_mut_obj_add_strcpy(d, root, "model", r->target->model);
    record_json(d, root, r->opts->argc, r->opts->argv, energy);
    yyjson_mut_obj_add_bool(d, root, "interrupted", bench_interrupted());
    if (r->result.first_error[0])
        yyjson_mut_obj_add_strcpy(d, root, "first_error", r->result.first_error);
    add_metrics(&r->result, d, root);
    return bench_json_write(d, r->opts->json);
}

static int report(struct replay *r, const struct energy *energy) {
    const char *json = r->opts->json;
    int code = CLI_OK;

    bench_result_print(&r->result, json && strcmp(json, "-") == 0 ? stderr : stdout);
    if (json)
        code = write_record(r, energy);
    if (code == CLI_OK && r->result.n[OUTCOME_OK] == 0)
        code = cli_fail("no request succeeded: %s",
                        r->result.first_error[0] ? r->result.first_error : "no request finished");
    return files_flush() ? code : CLI_FAILED;
}

/* Runs against the open server and reports. Returns the exit code. */
static int replay(struct replay *r) {
    struct energy before, after;

    r->slot = calloc(r->trace->n_sessions, sizeof(*r->slot));
    if (!r->slot)
        return cli_fail("out of memory");
    bench_watch_interrupts();
    energy_read(&before, r->http);
    int e = drive(r);
    energy_read(&after, r->http);
    r->result.joules = energy_between(&before, &after);
    bench_http_stop(r->http); /* ends requests that still run after an interrupt */
    for (uint32_t i = 0; i < r->trace->n_sessions; i++)
        if (r->slot[i].state == SLOT_RUNNING)
            bench_request_deinit(&r->slot[i].q);
    free(r->slot);
    return e < 0 ? cli_fail("the load generator failed: %s", strerror(-e)) : report(r, &after);
}

int agents_replay_recorded(struct bench_target *target, const struct recorded *trace,
                           const struct recorded_opts *opts) {
    struct replay r = {.trace = trace,
                       .opts = opts,
                       .target = target,
                       .fresh = {target->load.seed},
                       .result.slo_ttft_s = opts->slo_ttft_ms * 1e-3,
                       .result.slo_itl_s = opts->slo_itl_ms * 1e-3};
    uint32_t last;

    if (sscanf(opts->vocab, "%u-%u", &r.first_token, &last) != 2 || last <= r.first_token)
        return cli_usage("--vocab takes A-B, token ids");
    r.n_tokens = last - r.first_token;
    target->load.chat = false;        /* prompts are token ids */
    target->load.words_per_token = 1; /* and not words */
    target->endpoint = "completions";
    int code = bench_target_open(target, &r.http);
    if (code == CLI_OK)
        code = replay(&r);
    bench_result_deinit(&r.result);
    bench_http_freep(&r.http);
    return code;
}
