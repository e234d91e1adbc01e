/*
 * weft-bench serve - measures an OpenAI-compatible server under the load of many agents.
 *
 * Closed loop (--clients N): N agents each send a request as soon as they have the answer to the
 * one before. Open loop (--rate R): sessions arrive as a Poisson process, whatever the server does.
 * A slot is one agent:
 *
 *     FREE --arrival--> WAITING --due--> RUNNING --answer, more turns--> WAITING
 *                                           |----answer of the last turn, or an error--> FREE
 *
 * A slot of a closed loop that becomes free waits for its next session at once. After an error an
 * agent pauses for the time of Retry-After (0.25 to 5 s), so that a server that refuses is not
 * flooded.
 */

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <yyjson.h>

#include "base/text.h"
#include "base/try.h"
#include "cmd/bench_cmd.h"
#include "cmd/bench_http.h"
#include "cmd/bench_json.h"
#include "cmd/bench_load.h"
#include "cmd/bench_result.h"
#include "cmd/bench_target.h"
#include "cmd/cli.h"

#define CLIENTS_MAX 16384u
#define OPEN_SLOTS 8192u /* most sessions at once in an open loop */

static const char usage[] =
    "usage: weft-bench serve --url URL (--clients N | --rate R) [options]\n"
    "Measures an OpenAI-compatible server under load.\n"
    "  --clients N           closed loop: N clients, each sends one request after the other\n"
    "  --rate R              open loop: R sessions per second, as a Poisson process\n"
    "  --requests M          number of requests (default 100, or no limit with --duration)\n"
    "  --duration S          start requests for S seconds\n"
    "  --prompt-tokens DIST  tokens that a turn adds: N, A-B, A,B,C, exp:MEAN or "
    "lognormal:MEDIAN:SIGMA "
    "(256)\n"
    "  --output-tokens DIST  tokens of an answer (128)\n"
    "  --shared-prefix N     every session begins with the same N tokens (0)\n"
    "  --turns N             requests per session, each with the conversation so far (1)\n"
    "  --think S             pause between turns, in seconds (0)\n"
    "  --stream, --no-stream stream the answers, or not (stream)\n"
    "  --slo-ttft MS, --slo-itl MS   objectives; goodput counts the requests that meet them\n"
    "  --json FILE           write the result as JSON (-: stdout; the table then goes to "
    "stderr)\n" TARGET_USAGE;

/* Invariants: in_session: `session` exists; q belongs to the slot except while it is RUNNING; a
 * FREE slot is in no session; n_waiting counts the WAITING slots. */
struct slot {
    enum { SLOT_FREE, SLOT_WAITING, SLOT_RUNNING } state;
    struct bench_request q;
    struct session session;
    bool in_session;
    int64_t due_ns;
    struct serve *serve;
};

struct serve {
    struct bench_target target;
    uint32_t n_clients, turns;
    double rate, duration_s, think_s, slo_ttft_ms, slo_itl_ms;
    uint64_t n_requests;
    const char *prompt_text, *output_text, *json;
    struct dist prompt, output;
    /* open loop */
    bool open;

    struct bench_http *http;
    /* random numbers of the arrivals */
    struct rng rng;
    struct slot *slot;
    uint32_t n_slots, n_waiting;
    uint64_t n_started, n_sessions, n_dropped;
    int64_t next_arrival_ns, last_print_ns;
    struct bench_result result;
    int error;
};

/* Returns true if another request may begin at @now. */
static bool may_start(const struct serve *s, int64_t now) {
    return !bench_interrupted() && !s->error && (!s->n_requests || s->n_started < s->n_requests) &&
           (s->duration_s <= 0 || now < s->result.start_ns + (int64_t)(s->duration_s * 1e9));
}

/* Lets @slot send its next request at @due_ns, or as soon as possible after it. */
static void bench_serve_wait_until(struct slot *slot, int64_t due_ns) {
    assert(slot->state != SLOT_WAITING);
    slot->state = SLOT_WAITING;
    slot->due_ns = due_ns;
    slot->serve->n_waiting++;
    assert(slot->serve->n_waiting <= slot->serve->n_slots);
}

static void end_session(struct slot *slot) {
    if (slot->in_session)
        session_deinit(&slot->session);
    slot->in_session = false;
    slot->state = SLOT_FREE;
}

static int serve_note_answer(struct slot *slot, struct bench_request *q, bool goes_on) {
    struct serve *s = slot->serve;

    TRY(bench_result_add(&s->result, q));
    if (!goes_on)
        return 0;
    return session_answer(&slot->session, &s->target.load, text_or(q->text.data, ""), q->text.len);
}

static void bench_serve_on_done(struct bench_request *q) {
    struct slot *slot = q->ctx;
    struct serve *s = slot->serve;
    bool goes_on = q->outcome == OUTCOME_OK && slot->session.turn < s->turns;
    double pause_s = 0;

    assert(slot->state == SLOT_RUNNING && slot->in_session);
    int r = serve_note_answer(slot, q, goes_on);

    if (goes_on) {
        bench_serve_wait_until(slot, q->end_ns + (int64_t)(s->think_s * 1e9));
    } else {
        if (q->outcome != OUTCOME_OK)
            pause_s = MIN(MAX(q->retry_s, 0.25), 5.0);
        end_session(slot);
        if (!s->open)
            bench_serve_wait_until(slot, q->end_ns + (int64_t)(pause_s * 1e9));
    }
    bench_request_deinit(q);
    if (r < 0)
        s->error = r;
}

/* Sends the slot's next request. */
static int bench_serve_start(struct slot *slot, int64_t now) {
    struct serve *s = slot->serve;
    struct bench_request *q = &slot->q;
    int r = 0;

    assert(slot->state == SLOT_WAITING && s->n_waiting > 0);
    slot->state = SLOT_RUNNING;
    s->n_waiting--;
    if (!slot->in_session)
        r = session_init(&slot->session, &s->target.load, s->n_sessions++);
    slot->in_session = true;
    bench_request_init(q);
    q->stream = s->target.load.stream;
    q->keep_text = s->turns > 1;
    q->done = bench_serve_on_done;
    q->ctx = slot;
    q->due_ns = s->open ? slot->due_ns : now;
    uint32_t n_prompt = dist_draw(&s->prompt, &slot->session.rng);
    uint32_t n_output = dist_draw(&s->output, &slot->session.rng);
    s->n_started++;
    TRY(r);
    TRY(session_ask(&slot->session, &s->target.load, n_prompt, n_output, &q->body));
    return bench_http_start(s->http, q);
}

/* Returns true if another session may arrive at @now. Sessions that wait for their time count as
 * started, since each will send at least one request. */
static bool may_arrive(const struct serve *s, int64_t now) {
    return s->open && may_start(s, now) &&
           (!s->n_requests || s->n_started + s->n_waiting < s->n_requests);
}

/* Begins the sessions that have arrived by @now in an open loop. Without a free slot a session is
 * dropped and counted. */
static void bench_serve_arrive(struct serve *s, int64_t now) {
    while (may_arrive(s, now) && s->next_arrival_ns <= now) {
        uint32_t i = 0;

        while (i < s->n_slots && s->slot[i].state != SLOT_FREE)
            i++;
        if (i < s->n_slots)
            bench_serve_wait_until(&s->slot[i], s->next_arrival_ns);
        else
            s->n_dropped++;
        s->next_arrival_ns += (int64_t)(stats_exponential(&s->rng) / s->rate * 1e9);
    }
}

/* Starts all requests that are due. Returns when the next one is due. */
static int64_t start_due(struct serve *s) {
    int64_t now = bench_now_ns(), next = now + 1000000000;

    bench_serve_arrive(s, now);
    if (may_arrive(s, now))
        next = MIN(next, s->next_arrival_ns);
    bool open = may_start(s, now);
    for (uint32_t i = 0; s->n_waiting && i < s->n_slots; i++) {
        struct slot *slot = &s->slot[i];

        if (slot->state != SLOT_WAITING)
            continue;
        if (!open) {
            s->n_waiting--;
            end_session(slot);
        } else if (slot->due_ns <= now) {
            int r = bench_serve_start(slot, now);

            if (r < 0)
                s->error = r;
            open = may_start(s, now);
        } else {
            next = MIN(next, slot->due_ns);
        }
    }
    return next;
}

static void bench_serve_print_progress(struct serve *s) {
    int64_t now = bench_now_ns();
    bool tty = isatty(STDERR_FILENO);
    double seconds = (double)(now - s->result.start_ns) * 1e-9;

    if (now - s->last_print_ns < (tty ? 500000000 : 10000000000))
        return;
    s->last_print_ns = now;
    fprintf(stderr, "%s%6.0f s  %llu done, %u running, %llu output tokens%s", tty ? "\r" : "",
            seconds, (unsigned long long)bench_result_n_done(&s->result),
            bench_http_n_running(s->http), (unsigned long long)s->result.output_tokens,
            tty ? "   " : "\n");
}

/* Runs until no request may start and none is under way, or SIGINT arrives. Returns 0 or -errno. */
static int bench_serve_drive(struct serve *s) {
    s->result.start_ns = s->last_print_ns = s->next_arrival_ns = bench_now_ns();
    for (uint32_t i = 0; i < s->n_slots; i++) {
        s->slot[i].serve = s;
        if (!s->open)
            bench_serve_wait_until(&s->slot[i], s->result.start_ns);
    }
    for (;;) {
        int64_t next = start_due(s), now = bench_now_ns();

        if (s->error || bench_interrupted())
            break;
        if (!bench_http_n_running(s->http) && !s->n_waiting && !may_start(s, now))
            break;
        int64_t wait_ms = MIN(MAX(next - now, (int64_t)0) / 1000000, (int64_t)500);
        TRY(bench_http_run(s->http, (int)wait_ms));
        bench_serve_print_progress(s);
    }
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r%70s\r", "");
    return s->error;
}

static int bench_serve_write_json(struct serve *s) {
    yyjson_mut_doc *d = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = yyjson_mut_obj(d), *c;

    yyjson_mut_doc_set_root(d, root);
    yyjson_mut_obj_add_str(d, root, "benchmark", "serve");
    c = yyjson_mut_obj_add_obj(d, root, "config");
    bench_target_json(&s->target, d, c);
    yyjson_mut_obj_add_str(d, c, "loop", s->open ? "open" : "closed");
    if (s->open)
        yyjson_mut_obj_add_real(d, c, "rate", s->rate);
    else
        yyjson_mut_obj_add_uint(d, c, "clients", s->n_clients);
    yyjson_mut_obj_add_uint(d, c, "requests", s->n_requests);
    yyjson_mut_obj_add_real(d, c, "duration_s", s->duration_s);
    yyjson_mut_obj_add_str(d, c, "prompt_tokens", s->prompt_text);
    yyjson_mut_obj_add_str(d, c, "output_tokens", s->output_text);
    yyjson_mut_obj_add_uint(d, c, "shared_prefix", s->target.load.shared_prefix);
    yyjson_mut_obj_add_uint(d, c, "turns", s->turns);
    yyjson_mut_obj_add_real(d, c, "think_s", s->think_s);
    yyjson_mut_obj_add_bool(d, c, "stream", s->target.load.stream);
    yyjson_mut_obj_add_real(d, c, "slo_ttft_ms", s->slo_ttft_ms);
    yyjson_mut_obj_add_real(d, c, "slo_itl_ms", s->slo_itl_ms);
    yyjson_mut_obj_add_uint(d, root, "sessions_dropped", s->n_dropped);
    yyjson_mut_obj_add_bool(d, root, "interrupted", bench_interrupted());
    bench_result_json(&s->result, d, root);
    return bench_json_write(d, s->json);
}

static int bench_serve_report(struct serve *s) {
    FILE *f = s->json && strcmp(s->json, "-") == 0 ? stderr : stdout;
    int code = CLI_OK;

    bench_result_print(&s->result, f);
    if (s->n_dropped)
        fprintf(f, "\n%llu sessions were not started: %u were running\n",
                (unsigned long long)s->n_dropped, OPEN_SLOTS);
    if (s->json)
        code = bench_serve_write_json(s);
    if (code == CLI_OK && !s->result.n[OUTCOME_OK])
        code = cli_fail("no request succeeded: %s",
                        text_filled_or(s->result.first_error, "no request finished"));
    return cli_flush(code);
}

static int bench_serve_measure(struct serve *s) {
    int code = bench_target_open(&s->target, &s->http);

    if (code != CLI_OK)
        return code;
    s->rng.state = s->target.load.seed + 1;
    s->n_slots = s->open ? OPEN_SLOTS : s->n_clients;
    s->slot = calloc(s->n_slots, sizeof(*s->slot));
    if (!s->slot)
        return cli_fail("out of memory");
    bench_watch_interrupts();
    double joules = bench_http_metric(s->http, "weft_device_energy_joules_total");
    int r = bench_serve_drive(s);
    if (joules > 0)
        s->result.joules = bench_http_metric(s->http, "weft_device_energy_joules_total") - joules;
    s->http = bench_http_free(s->http); /* ends requests that still run after an interrupt */
    for (uint32_t i = 0; i < s->n_slots; i++) {
        if (s->slot[i].state == SLOT_RUNNING)
            bench_request_deinit(&s->slot[i].q);
        end_session(&s->slot[i]);
    }
    free(s->slot);
    if (r < 0)
        return cli_fail("the load generator failed: %s", strerror(-r));
    return bench_serve_report(s);
}

static int bench_serve_check(struct serve *s) {
    struct err err = {0};

    if (!s->n_clients == !(s->rate > 0))
        return cli_usage("give either --clients or --rate");
    if (dist_parse(&s->prompt, s->prompt_text, &err) < 0)
        return cli_usage("--prompt-tokens: %s", err.message);
    if (dist_parse(&s->output, s->output_text, &err) < 0)
        return cli_usage("--output-tokens: %s", err.message);
    if (!s->target.load.stream && (s->slo_ttft_ms > 0 || s->slo_itl_ms > 0))
        return cli_usage("--slo-ttft and --slo-itl need --stream");
    if (!s->n_requests && s->duration_s <= 0)
        s->n_requests = 100;
    s->open = s->rate > 0;
    s->result.slo_ttft_s = s->slo_ttft_ms * 1e-3;
    s->result.slo_itl_s = s->slo_itl_ms * 1e-3;
    return -1;
}

int bench_cmd_serve(int argc, char **argv) {
    struct serve s = {.turns = 1, .prompt_text = "256", .output_text = "128"};
    const struct cli_option options[] = {
        {"clients", CLI_U32, &s.n_clients, 1, CLIENTS_MAX},
        {"rate", CLI_DOUBLE, &s.rate, 1e-6, 1e6},
        {"requests", CLI_U64, &s.n_requests, 1, 1e12},
        {"duration", CLI_DOUBLE, &s.duration_s, 0.001, 1e9},
        {"prompt-tokens", CLI_TEXT, &s.prompt_text, 0, 0},
        {"output-tokens", CLI_TEXT, &s.output_text, 0, 0},
        {"shared-prefix", CLI_U32, &s.target.load.shared_prefix, 0, LENGTH_MAX},
        {"turns", CLI_U32, &s.turns, 1, 10000},
        {"think", CLI_DOUBLE, &s.think_s, 0, 3600},
        {"stream", CLI_TRUE, &s.target.load.stream, 0, 0},
        {"no-stream", CLI_FALSE, &s.target.load.stream, 0, 0},
        {"slo-ttft", CLI_DOUBLE, &s.slo_ttft_ms, 0, 1e9},
        {"slo-itl", CLI_DOUBLE, &s.slo_itl_ms, 0, 1e9},
        {"json", CLI_TEXT, &s.json, 0, 0},
    };

    bench_target_init(&s.target);
    /* with the prompts of an earlier run, the server's prefix cache would be measured */
    s.target.load.seed = (uint64_t)time(NULL);
    int code = bench_target_parse(&s.target, argc, argv, options, ARRAY_SIZE(options), usage);
    if (code < 0)
        code = bench_serve_check(&s);
    if (code < 0)
        code = bench_serve_measure(&s);
    bench_result_deinit(&s.result);
    bench_http_freep(&s.http);
    return code;
}
