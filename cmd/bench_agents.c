/*
 * weft-bench agents - runs the agents of a trace against a server, each in a closed loop: when an
 * answer has arrived and the tool has run, the next turn sends the whole conversation and the
 * tool's result.
 *
 *     WAITING --due--> RUNNING --answer--> sub-agents? DELEGATING --all done--> WAITING
 *        ^                |--answer of the last turn, or a failure--> ENDED
 *        |----refused-----|   (again after Retry-After; the turn is still due when it was)
 *
 * The requests do not depend on the server (bench_agent.h). Without --echo, the conversation
 * continues with words in place of the server's answer, of as many tokens: the text of models with
 * random weights has other tokens when it is read again, so two servers would get different
 * requests.
 */

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <yyjson.h>

#include "base/text.h"
#include "base/try.h"
#include "cmd/bench_agent.h"
#include "cmd/bench_cmd.h"
#include "cmd/bench_json.h"
#include "cmd/bench_target.h"
#include "cmd/bench_tenants.h"
#include "cmd/cli.h"

#define AGENTS_MAX 65536u
#define RETRY_S 1.0 /* wait after a refusal without Retry-After */

static const char usage[] =
    "usage: weft-bench agents --trace FILE --url URL [options]\n"
    "Replays agents that work in turns against a server.\n"
    "  --trace FILE          a trace of the simulator (docs/design/simulator.md)\n"
    "  --tokens X            multiply numbers of tokens by X (1)\n"
    "  --times X             multiply times by X (1)\n"
    "  --no-sessions         do not send session ids (x-session-id)\n"
    "  --json FILE           write the result as JSON (-: stdout; the table then goes to "
    "stderr)\n"
    "  --set GROUP.KEY=RANGE,until=MS,...   replace values of the trace, before they are scaled\n"
    "  --without TENANT      leave this tenant out\n"
    "  --keys PREFIX         tenant N sends the API key PREFIXN (default: all send one key)\n"
    "  --echo                continue conversations with the server's answers\n"
    "  --during TENANT       also measure inter-token times while a turn of this tenant waits\n"
    "  --retries N           give up a turn after N refusals (no limit)\n" TARGET_USAGE;

/*
 * An agent or sub-agent. WAITING: in agents.due until due_ns. RUNNING: its request is under way.
 * DELEGATING: pause.n_subs of its sub-agents have not ended. `asking` is set from the first sending
 * of a turn to its answer or failure, refusals included: the times of the turn count from due_ns of
 * the first sending.
 */
struct slot {
    enum { SLOT_WAITING, SLOT_RUNNING, SLOT_DELEGATING, SLOT_ENDED } state;
    struct agent agent;
    struct slot *parent;
    struct load_opts load;
    struct session session;
    struct bench_request q;
    struct agent_turn turn;
    /* n_subs: number of sub-agents that still work */
    struct agent_pause pause;
    /* a turn was sent and is not over */
    bool asking;
    /* number of refusals of this turn */
    uint32_t n_refusals;
    /* number of tokens of the conversation according to the trace */
    uint64_t n_said;
    /* due_ns: time of the next request */
    int64_t begin_ns, due_ns;
    /* serial number of the wait: orders waits that are due at the same time */
    uint64_t wait;
    struct agents *all;
};

/* Invariants: n_due <= n_slots <= AGENTS_MAX, due[] are the slots that are WAITING; n_left counts
 * the agents of the trace, not their sub-agents, that have not ENDED. */
struct agents {
    struct bench_target target;
    const char *trace_path, *values, *keys, *json;
    double tokens, times;
    uint32_t without, during, max_retries;
    bool sessions, echo;

    struct trace_file trace;
    char key[TENANTS][96];
    struct bench_http *http;
    /* [AGENTS_MAX] agents and sub-agents */
    struct slot **slot;
    /* [AGENTS_MAX] waiting slots: a heap, the next one first */
    struct slot **due;
    /* n_left: agents that have not ended */
    uint32_t n_slots, n_left;
    uint32_t n_due;
    uint64_t n_waits;
    int64_t last_print_ns;
    struct bench_tenants result;
    int error;
};

static struct tenant *agents_tenant(struct agents *s, const struct slot *slot) {
    return &s->result.tenant[slot->agent.group->tenant.low % TENANTS];
}

/* Returns a slot that begins at @begin_ns and is not waiting yet. NULL: s->error has the reason. */
static struct slot *new_slot(struct agents *s, int64_t begin_ns) {
    struct slot *slot = s->n_slots < AGENTS_MAX ? calloc(1, sizeof(*slot)) : NULL;

    if (!slot) {
        s->error = s->n_slots < AGENTS_MAX ? -ENOMEM : -E2BIG;
        return NULL;
    }
    bench_request_init(&slot->q);
    slot->all = s;
    slot->begin_ns = slot->due_ns = begin_ns;
    s->slot[s->n_slots++] = slot;
    return slot;
}

/* ---- waiting agents ---- */

static bool agents_is_before(const struct slot *a, const struct slot *b) {
    if (a->due_ns != b->due_ns)
        return a->due_ns < b->due_ns;
    return a->wait < b->wait;
}

/* Puts @slot into the heap of waiting slots, in the order of due_ns and, at the same time, of
 * arrival. */
static void agents_wait_until(struct slot *slot, int64_t due_ns) {
    struct agents *s = slot->all;
    uint32_t i = s->n_due++;

    assert(s->n_due <= s->n_slots && slot->state != SLOT_ENDED);
    slot->state = SLOT_WAITING;
    slot->due_ns = due_ns;
    slot->wait = s->n_waits++;
    for (; i > 0 && agents_is_before(slot, s->due[(i - 1) / 2]); i = (i - 1) / 2)
        s->due[i] = s->due[(i - 1) / 2];
    s->due[i] = slot;
}

/* Removes and returns the next waiting slot, which must exist. */
static struct slot *pop_due(struct agents *s) {
    assert(s->n_due > 0);
    struct slot *first = s->due[0], *last = s->due[--s->n_due];
    uint32_t i = 0, child;

    assert(first->state == SLOT_WAITING);
    while ((child = 2 * i + 1) < s->n_due) {
        child += child + 1 < s->n_due && agents_is_before(s->due[child + 1], s->due[child]);
        if (agents_is_before(last, s->due[child]))
            break;
        s->due[i] = s->due[child];
        i = child;
    }
    s->due[i] = last;
    return first;
}

static int64_t next_due_ns(const struct agents *s) {
    if (!s->n_due)
        return INT64_MAX;
    return s->due[0]->due_ns;
}

/* ---- turns ---- */

static uint64_t agents_hash_name(const char *name) {
    uint64_t h = 0xCBF29CE484222325u;

    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * 0x100000001B3u;
    return h;
}

/* Begins the conversation. Agents of a group begin alike, agents of different groups
 * differently. */
static int begin_session(struct slot *slot) {
    struct agents *s = slot->all;

    slot->load = s->target.load;
    slot->load.seed = agents_hash_name(slot->agent.group->name) ^ s->target.load.seed;
    slot->load.shared_prefix = slot->turn.n_system;
    slot->n_said = slot->turn.n_system;
    return session_init(&slot->session, &slot->load, agents_hash_name(slot->agent.name));
}

static void agents_on_done(struct bench_request *q);

/* Composes the request of the next turn of @slot. Returns 0 or -ENOMEM. */
static int make_turn(struct slot *slot) {
    struct agents *s = slot->all;
    const struct trace_group *g = slot->agent.group;
    struct tenant *t = agents_tenant(s, slot);
    struct bench_request *q = &slot->q;
    bool first = slot->agent.turn == 0;

    assert(!slot->asking && !slot->q.transfer);
    slot->turn = agent_next(&slot->agent);
    if (first)
        TRY(begin_session(slot));
    slot->load.priority = (int16_t)g->priority.low;
    TRY(session_ask(&slot->session, &slot->load, slot->turn.n_new, slot->turn.n_output, &q->body));
    slot->n_said += slot->turn.n_new;
    q->stream = true;
    q->keep_text = s->echo;
    q->done = agents_on_done;
    q->ctx = slot;
    q->due_ns = slot->due_ns;
    q->api_key = s->keys ? s->key[g->tenant.low % TENANTS] : NULL;
    q->session = s->sessions ? slot->agent.name : NULL;
    t->n_turns++;
    t->n_planned += slot->n_said;
    slot->asking = true;
    slot->n_refusals = 0;
    return 0;
}

static int start_request(struct slot *slot) {
    if (slot->asking)
        bench_request_reset(&slot->q);
    else
        TRY(make_turn(slot));
    return bench_http_start(slot->all->http, &slot->q);
}

/* Sends the turn of @slot, a new one or one that was refused. An error sets s->error and ends the
 * run. */
static void send_request(struct slot *slot) {
    struct agents *s = slot->all;

    assert(slot->state == SLOT_WAITING);
    slot->state = SLOT_RUNNING;
    int r = start_request(slot);
    if (r < 0) {
        slot->state = SLOT_ENDED;
        s->error = r;
    }
}

/* Ends @slot, which has finished (@finished) or failed. The end of the last sub-agent lets its
 * parent continue after its pause. */
static void end_agent(struct slot *slot, bool finished, int64_t now) {
    struct agents *s = slot->all;
    struct slot *parent = slot->parent;
    struct tenant *t = agents_tenant(s, slot);

    assert(slot->state == SLOT_RUNNING && !slot->asking);
    slot->state = SLOT_ENDED;
    session_deinit(&slot->session);
    if (parent) {
        assert(parent->state == SLOT_DELEGATING && parent->pause.n_subs > 0);
        if (--parent->pause.n_subs == 0)
            agents_wait_until(parent, now + (int64_t)(parent->pause.seconds * 1e9));
        return;
    }
    assert(s->n_left > 0);
    s->n_left--;
    if (!finished)
        return;
    t->n_jobs++;
    if (samples_add(&t->job, (double)(now - slot->begin_ns) * 1e-9) < 0)
        s->error = -ENOMEM;
}

/* Starts the sub-agents of @slot, which continues when all of them have ended. */
static void begin_subs(struct slot *slot, int64_t now) {
    uint32_t n = slot->pause.n_subs;

    assert(n > 0 && slot->state == SLOT_RUNNING && !slot->parent);
    slot->state = SLOT_DELEGATING;
    for (uint32_t i = 0; i < n; i++) {
        struct slot *sub = new_slot(slot->all, now);

        if (!sub)
            return;
        agent_init_sub(&sub->agent, &slot->agent);
        sub->parent = slot;
        agents_wait_until(sub, now);
    }
}

/* Adds the answer to the conversation. Returns 0 or -ENOMEM. */
static int continue_session(struct slot *slot) {
    struct bench_request *q = &slot->q;
    const struct load_opts *o = &slot->load;

    slot->n_said += slot->turn.n_output;
    if (slot->all->echo)
        return session_answer(&slot->session, o, text_or(q->text.data, ""), q->text.len);
    return session_answer_words(&slot->session, o, slot->turn.n_output);
}

static int agents_note_answer(struct slot *slot) {
    struct agents *s = slot->all;

    TRY(bench_tenants_finished(&s->result, agents_tenant(s, slot), &slot->q, slot->turn.n_output));
    return continue_session(slot);
}

/* Counts a turn that was answered and begins the next state of its agent. Returns 0 or -ENOMEM. */
static int handle_answer(struct slot *slot) {
    struct bench_request *q = &slot->q;
    int64_t end_ns = q->end_ns;
    int r = agents_note_answer(slot);

    if (agent_ended(&slot->agent)) {
        end_agent(slot, true, end_ns);
        return r;
    }
    slot->pause = agent_pause(&slot->agent);
    if (slot->pause.n_subs)
        begin_subs(slot, end_ns);
    else
        agents_wait_until(slot, end_ns + (int64_t)(slot->pause.seconds * 1e9));
    return r;
}

static void agents_on_done(struct bench_request *q) {
    struct slot *slot = q->ctx;
    struct agents *s = slot->all;
    struct tenant *t = agents_tenant(s, slot);
    int r = 0;

    assert(slot->state == SLOT_RUNNING && slot->asking);
    if (q->outcome == OUTCOME_REJECTED) {
        r = bench_tenants_refused(t, q);
        if (slot->n_refusals++ < s->max_retries) {
            agents_wait_until(slot,
                              q->end_ns + (int64_t)((q->retry_s > 0 ? q->retry_s : RETRY_S) * 1e9));
            if (r < 0)
                s->error = r;
            return;
        }
    }
    slot->asking = false;
    if (q->outcome == OUTCOME_OK) {
        r = handle_answer(slot);
    } else {
        bench_tenants_failed(&s->result, t, q);
        end_agent(slot, false, q->end_ns);
    }
    bench_request_deinit(q);
    bench_request_init(q);
    if (r < 0)
        s->error = r;
}

/* ---- the run ---- */

/* Draws the agents of every group of the trace and puts each before its first turn. */
static void begin_agents(struct agents *s, int64_t start_ns) {
    struct agent_scale scale = {s->tokens, s->times};
    uint64_t seed = s->trace.seed * 0x9E3779B97F4A7C15u ^ s->target.load.seed;
    uint32_t number = 0;

    for (uint32_t i = 0; i < s->trace.n_groups; i++) {
        const struct trace_group *g = &s->trace.group[i];
        struct tenant *t = &s->result.tenant[g->tenant.low % TENANTS];
        struct rng rng = {seed ^ agents_hash_name(g->name)};
        uint32_t n = g->count.low + rng_below(&rng, g->count.high - g->count.low + 1);

        if (g->tenant.low == s->without) {
            number += n; /* keeps the numbers of the other agents */
            continue;
        }
        if (!t->here)
            memcpy(t->name, g->name, sizeof(t->name));
        t->here = true;
        t->weight = g->weight.low * 1e-3;
        for (; n > 0; n--) {
            struct slot *slot = new_slot(s, start_ns);

            if (!slot)
                return;
            double after_s = agent_init(&slot->agent, g, number++, seed, scale);
            slot->begin_ns = start_ns + (int64_t)(after_s * 1e9);
            agents_wait_until(slot, slot->begin_ns);
            t->n_jobs_all++;
            s->n_left++;
        }
    }
}

static void send_due(struct agents *s, int64_t now) {
    while (!s->error && next_due_ns(s) <= now)
        send_request(pop_due(s));
}

static void agents_print_progress(struct agents *s, int64_t now) {
    bool tty = isatty(STDERR_FILENO);
    uint64_t n_finished = 0;

    if (now - s->last_print_ns < (tty ? 500000000 : 10000000000))
        return;
    s->last_print_ns = now;
    for (uint32_t i = 0; i < TENANTS; i++)
        n_finished += s->result.tenant[i].n_finished;
    fprintf(stderr, "%s%6.0f s  %llu turns finished, %u running, %u agents left%s", tty ? "\r" : "",
            (double)(now - s->result.start_ns) * 1e-9, (unsigned long long)n_finished,
            bench_http_n_running(s->http), s->n_left, tty ? "   " : "\n");
}

/* Stops the requests that still run, and counts the turns that are not over as cut off. */
static void agents_cut(struct agents *s, int64_t now) {
    s->result.end_ns = now;
    bench_http_stop(s->http);
    for (uint32_t i = 0; i < s->n_slots; i++) {
        struct slot *slot = s->slot[i];
        const struct bench_request *q = slot->state == SLOT_RUNNING ? &slot->q : NULL;

        if (slot->asking &&
            bench_tenants_cut(&s->result, agents_tenant(s, slot), q, slot->q.due_ns) < 0)
            s->error = -ENOMEM;
    }
}

/* Runs until all agents have ended, the time is over or SIGINT arrives. Returns 0 or -errno. */
static int agents_drive(struct agents *s) {
    int64_t now = bench_now_ns(), end_ns = INT64_MAX;

    s->result.start_ns = s->last_print_ns = now;
    if (s->trace.until_ms)
        end_ns = now + (int64_t)(s->trace.until_ms * s->times * 1e6);
    begin_agents(s, now);
    while (s->n_left && !s->error && !bench_interrupted() && now < end_ns) {
        send_due(s, now);
        int64_t wait_ns = MIN(next_due_ns(s), end_ns) - bench_now_ns();
        TRY(bench_http_run(s->http, (int)MIN(MAX((wait_ns + 999999) / 1000000, 0), 500)));
        now = bench_now_ns();
        agents_print_progress(s, now);
    }
    if (s->n_left)
        agents_cut(s, now);
    if (isatty(STDERR_FILENO))
        fprintf(stderr, "\r%70s\r", "");
    return s->error;
}

static void free_slots(struct agents *s) {
    for (uint32_t i = 0; i < s->n_slots; i++) {
        session_deinit(&s->slot[i]->session);
        bench_request_deinit(&s->slot[i]->q);
        free(s->slot[i]);
    }
    free(s->slot);
    free(s->due);
}

static struct tenant *during(struct agents *s) {
    if (s->during >= TENANTS)
        return NULL;
    return &s->result.tenant[s->during];
}

static int agents_write_json(struct agents *s) {
    yyjson_mut_doc *d = yyjson_mut_doc_new(NULL);
    yyjson_mut_val *root = yyjson_mut_obj(d), *c;

    yyjson_mut_doc_set_root(d, root);
    yyjson_mut_obj_add_str(d, root, "benchmark", "agents");
    c = yyjson_mut_obj_add_obj(d, root, "config");
    bench_target_json(&s->target, d, c);
    yyjson_mut_obj_add_str(d, c, "trace", s->trace_path);
    yyjson_mut_obj_add_str(d, c, "set", text_or(s->values, ""));
    yyjson_mut_obj_add_real(d, c, "tokens", s->tokens);
    yyjson_mut_obj_add_real(d, c, "times", s->times);
    yyjson_mut_obj_add_bool(d, c, "keys", s->keys != NULL);
    yyjson_mut_obj_add_bool(d, c, "sessions", s->sessions);
    yyjson_mut_obj_add_bool(d, c, "echo", s->echo);
    yyjson_mut_obj_add_bool(d, root, "interrupted", bench_interrupted());
    bench_tenants_json(&s->result, during(s), d, root);
    return bench_json_write(d, s->json);
}

static int agents_report(struct agents *s) {
    uint64_t n = 0;
    int code = CLI_OK;

    bench_tenants_print(&s->result, during(s),
                        s->json && strcmp(s->json, "-") == 0 ? stderr : stdout);
    for (uint32_t i = 0; i < TENANTS; i++)
        n += s->result.tenant[i].n_finished;
    if (s->json)
        code = agents_write_json(s);
    if (code == CLI_OK && n == 0)
        code = cli_fail("no turn was finished%s%s", s->result.first_error[0] ? ": " : "",
                        s->result.first_error);
    return cli_flush(code);
}

/* Opens the server, runs and reports. Returns the exit code. */
static int agents_replay(struct agents *s) {
    int code = bench_target_open(&s->target, &s->http);

    if (code != CLI_OK)
        return code;
    s->slot = calloc(AGENTS_MAX, sizeof(*s->slot));
    s->due = calloc(AGENTS_MAX, sizeof(*s->due));
    if (!s->slot || !s->due) {
        free_slots(s);
        return cli_fail("out of memory");
    }
    bench_watch_interrupts();
    int r = agents_drive(s);
    s->http = bench_http_free(s->http);
    free_slots(s);
    if (r < 0)
        return cli_fail("the load generator failed: %s", strerror(-r));
    return agents_report(s);
}

/* Reads the trace and applies the options that change it. Returns -1 to continue, or an exit
 * code. */
static int read_trace(struct agents *s) {
    struct err err = {0};

    if (!s->trace_path)
        return cli_usage("--trace is missing: the file with the agents");
    if (bench_trace_read(&s->trace, s->trace_path, NULL, &err) < 0)
        return cli_fail("%s", err.message);
    if (s->values && bench_trace_set(&s->trace, s->values, &err) < 0)
        return cli_usage("--set: %s is not valid", err.message);
    for (uint32_t i = 0; s->keys && i < TENANTS; i++)
        snprintf(s->key[i], sizeof(s->key[i]), "%.80s%u", s->keys, i);
    if (s->keys) /* key for the requests that examine the server */
        s->target.api_key = s->key[s->trace.group[0].tenant.low % TENANTS];
    return -1;
}

int bench_cmd_agents(int argc, char **argv) {
    struct agents s = {.tokens = 1,
                       .times = 1,
                       .without = UINT32_MAX,
                       .during = UINT32_MAX,
                       .max_retries = UINT32_MAX,
                       .sessions = true};
    const struct cli_option options[] = {
        {"trace", CLI_TEXT, &s.trace_path, 0, 0},
        {"tokens", CLI_DOUBLE, &s.tokens, 1e-6, 1e6},
        {"times", CLI_DOUBLE, &s.times, 1e-6, 1e6},
        {"set", CLI_TEXT, &s.values, 0, 0},
        {"without", CLI_U32, &s.without, 0, TENANTS - 1},
        {"during", CLI_U32, &s.during, 0, TENANTS - 1},
        {"keys", CLI_TEXT, &s.keys, 0, 0},
        {"no-sessions", CLI_FALSE, &s.sessions, 0, 0},
        {"echo", CLI_TRUE, &s.echo, 0, 0},
        {"retries", CLI_U32, &s.max_retries, 0, 1e9},
        {"json", CLI_TEXT, &s.json, 0, 0},
    };

    bench_target_init(&s.target);
    int code = bench_target_parse(&s.target, argc, argv, options, ARRAY_SIZE(options), usage);
    if (code < 0)
        code = read_trace(&s);
    if (code < 0)
        code = agents_replay(&s);
    bench_tenants_deinit(&s.result);
    bench_http_freep(&s.http);
    return code;
}
