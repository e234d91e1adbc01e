#include "tests/front_sim/scenario.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/messages.h"
#include "tests/front_sim/client.h"
#include "tests/front_sim/crowd.h"
#include "tests/front_sim/model.h"
#include "tests/front_sim/process.h"
#include "tests/front_sim/sim.h"
#include "tests/front_sim/worker.h"

#define CLIENTS_MAX 14
#define TICK_NS 20000000
#define LOAD_NOTED_NS 100000000        /* longest until the front knows that a model is loaded */
#define SETTLE_NS INT64_C(40000000000) /* time for all charges to return to zero */
#define TCP "tcp:8080"
#define UNIX "api.sock"
#define ADMIN "admin.sock"

enum phase { PHASE_START, PHASE_RUN, PHASE_SETTLE, PHASE_STOP };

static struct {
    struct scenario *s;
    struct actor actor;
    enum phase phase;
    struct client *client[CLIENTS_MAX];
    uint32_t n_started, n_asked;
    /* GET of the metrics */
    struct client *get;
    /* request of the administrator */
    struct client *admin;
    int64_t settle_ns;
    bool told_to_stop;
} d;

/* ---- the options ---- */

static void add(struct scenario *s, const char *fmt, ...) PRINTF(2, 3);

static void add(struct scenario *s, const char *fmt, ...) {
    va_list ap;

    va_start(ap, fmt);
    if (s->argc + 1 >= SCENARIO_ARGS || vasprintf(&s->argv[s->argc++], fmt, ap) < 0)
        sim_fail("SIMULATOR", "too many options");
    va_end(ap);
}

static void write_file(const char *path, const char *text) {
    FILE *f = fopen(path, "we");

    if (!f || fputs(text, f) < 0 || fclose(f) != 0)
        sim_fail("SIMULATOR", "%s cannot be written", path);
}

static void draw_tenants(struct scenario *s) {
    char text[400];

    write_file("keys", "ann:key-of-ann\nbob:key-of-bob\nkey-of-none\n");
    snprintf(text, sizeof(text),
             "[default]\nrequests-per-minute = %u\n[ann]\nweight = 4\nmax-running = %u\n"
             "[bob]\nclass = batch\nmax-queued = %u\n",
             sim_one_in(2) ? 0 : sim_between(1, 10), sim_between(1, 4), sim_between(1, 4));
    write_file("tenants", text);
    add(s, "--api-keys=keys");
    add(s, "--tenants=tenants");
    tolerance.refuse_429 = true;
}

static void draw_limits(struct scenario *s) {
    uint32_t keepalive_ms = sim_between(500, 5000);

    tolerance.head_ns = tolerance.silence_ns + INT64_C(8000000) * keepalive_ms;
    add(s, "--keepalive-ms=%u", keepalive_ms);
    add(s, "--header-timeout-ms=%u", sim_between(2000, 10000));
    add(s, "--body-timeout-ms=%u", sim_between(2000, 10000));
    add(s, "--idle-timeout-ms=%u", sim_between(8000, 75000));
    add(s, "--stall-timeout-ms=%u", sim_between(20000, 60000));
    add(s, "--hang-timeout-ms=%u", sim_between(1000, 5000));
    add(s, "--load-timeout-ms=%u", sim_between(20000, 60000));
    add(s, "--drain-timeout-ms=%u", sim_between(1000, 30000));
    if (sim_one_in(3))
        add(s, "--stream-buffer=4096");
    if (!s->tight)
        return;
    add(s, "--max-connections=%u", sim_between(1, 8));
    add(s, "--max-running=%u", sim_between(1, 4));
    add(s, "--max-queued=%u", sim_between(0, 3));
    tolerance.refuse_429 = tolerance.refuse_503 = tolerance.cut = true;
}

static void draw_faults(struct scenario *s) {
    struct worker_faults *f = &worker_faults;

    f->step_ns = sim_between(200000, 8000000);
    f->load_ns = sim_between(1000000, 900000000);
    if (s->n_models == 1)
        tolerance.loaded_ns = sim.ns + 3 * (int64_t)f->load_ns + LOAD_NOTED_NS;
    f->n_pages = sim_one_in(3) ? sim_between(140, 200) : 600;
    f->dies_serving = s->deaths ? sim_between(10, 300) : 0;
    f->dies_loading = s->deaths && sim_one_in(3) ? 8 : 0;
    f->hangs = s->hangs ? sim_between(20, 400) : 0;
    f->refuses = s->refuses ? 12 : 0;
    f->damages = s->damages ? sim_between(10, 100) : 0;
    tolerance.damage = s->damages;
    process_spawn_fails = s->refuses && sim_one_in(2) ? 6 : 0;
    tolerance.fail_500 = s->deaths || s->hangs || s->damages;
    tolerance.refuse_503 |= s->deaths || s->hangs || s->refuses || s->manages || s->damages;
}

static void draw_models(struct scenario *s) {
    if (s->n_models == 1) {
        add(s, "--model=models/m0.gguf");
        add(s, "--model-name=m0");
        return;
    }
    add(s, "--models-dir=models");
    add(s, "--models-memory=%uK", sim_one_in(2) ? 2100 : 1050);
    if (sim_one_in(3))
        add(s, "--keep-alive-s=%u", sim_between(1, 20));
}

static void draw(struct scenario *s) {
    s->calm = sim_one_in(5) && !s->damages;
    s->n_models = sim_one_in(3) ? MODELS_MAX : 1;
    s->n_clients = sim_between(1, CLIENTS_MAX);
    if (!s->calm) {
        s->deaths = sim_one_in(3);
        s->hangs = sim_one_in(5);
        s->refuses = sim_one_in(8);
        s->tenants = sim_one_in(3);
        s->tight = sim_one_in(2);
        s->tenants |= s->tight && sim_one_in(2);
        s->drains_early = sim_one_in(5);
        s->reloads = sim_one_in(4);
        s->manages = s->n_models > 1 && sim_one_in(2);
        s->upgrades = sim_one_in(6);
        s->resets = !sim_one_in(3);
    }
    tolerance.wait_ns = INT64_C(240000000000);
    sim.pauses = sim.seed % 4 == 3 && !s->calm; /* drawn without a number, as seeds are kept */
    s->crowd = sim.seed % 4 == 1 && !s->tight && !s->damages; /* likewise */
    tolerance.silence_ns = INT64_C(7000000000);
    tolerance.stall_ns = INT64_C(130000000000); /* an answer, and its flush */
    if (sim.pauses)
        tolerance.silence_ns += SIM_PAUSE_MS * INT64_C(1000000);
    add(s, "weftd");
    add(s, "--listen=127.0.0.1:8080,unix:" UNIX);
    add(s, "--admin-socket=" ADMIN);
    add(s, "--log-level=%s", sim.verbose ? "debug" : "error");
    draw_models(s);
    draw_limits(s);
    draw_faults(s);
    if (s->tenants)
        draw_tenants(s);
    s->argv[s->argc] = NULL;
    msg_submit_whole = sim_one_in(2) ? SUBMIT_WHOLE : 700; /* every request in parts */
}

/* ---- events ---- */

static void start_client(void) {
    static const char *const keys[] = {"key-of-ann", "key-of-bob", "key-of-none"};
    const struct scenario *s = d.s;
    bool local = sim_one_in(4);
    enum fate fate = s->resets && sim_one_in(2) ? sim_below(CLIENT_FATES) : CLIENT_NICE;
    uint32_t number = ++d.n_started;
    const char *key = s->tenants ? keys[sim_below(ARRAY_SIZE(keys))] : NULL;

    d.client[number - 1] =
        client_new(number, local ? UNIX : TCP, sim_below(4), fate, s->n_models, key);
}

static void admin_acts(void) {
    static const char *const paths[] = {
        "/stats",          "/requests",       "/tenants",          "/health",
        "/models",         "/models/m1/load", "/models/m1/unload", "/models/m0/unload",
        "/models/m2/swap", "/models/m0/swap", "/reload",           "/models/m0/load",
    };
    uint32_t n = d.s->manages ? ARRAY_SIZE(paths) : 5, k = sim_below(n);

    if (d.admin && !client_is_done(d.admin))
        return;
    if (d.admin)
        client_free(d.admin);
    d.admin = client_get(2000 + d.n_asked++, ADMIN, k < 5 ? "GET" : "POST", paths[k]);
}

static void stop(void) {
    if (d.told_to_stop)
        return;
    d.told_to_stop = true;
    /* the documentation allows answers that the end cuts off */
    tolerance.cut = tolerance.refuse_503 = true;
    if (sim.seed % 32 == 6) { /* drawn without a number, as seeds are kept */
        sim.files_hang = true;
        sim_signal(SIGHUP);
    }
    sim_signal(sim_one_in(2) ? SIGTERM : SIGINT);
    if (sim_one_in(8))
        sim_signal(SIGTERM); /* ends at once */
}

static bool all_done(void) {
    for (uint32_t i = 0; i < d.n_started; i++)
        if (!client_is_done(d.client[i]))
            return false;
    return d.n_started == d.s->n_clients && crowd_is_done();
}

static void run(void) {
    const struct scenario *s = d.s;

    if (d.n_started < s->n_clients && sim_one_in(3))
        start_client();
    if (s->reloads && sim_one_in(40))
        sim_signal(SIGHUP);
    if (s->upgrades && sim_one_in(60))
        sim_signal(SIGUSR2);
    if (sim_one_in(s->manages ? 20 : 100))
        admin_acts();
    if (s->drains_early && sim_one_in(100)) {
        stop();
        d.phase = PHASE_STOP;
    } else if (all_done()) {
        d.phase = PHASE_SETTLE;
        sim.pauses = false;
        d.settle_ns = sim.ns;
    }
}

/* Returns the value of a metric without labels except the model's; -1: there is none. */
static double metric(const struct buf *page, const char *name) {
    size_t n = strlen(name);

    for (const char *p = page->data; p && *p; p = strchr(p, '\n')) {
        p += *p == '\n';
        if (strncmp(p, name, n) != 0 || (p[n] != '{' && p[n] != ' '))
            continue;
        const char *value = p[n] == '{' ? strchr(p, '}') : p + n;

        return value ? strtod(value + 1, NULL) : -1;
    }
    return -1;
}

/* Returns true if all charges of requests have been returned; otherwise *@what names one. */
static bool is_settled(const struct buf *page, const char **what) {
    static const char *const zero[] = {"vllm:num_requests_running", "vllm:num_requests_waiting",
                                       "weft_tenant_requests_running",
                                       "weft_tenant_requests_waiting"};

    for (size_t i = 0; i < ARRAY_SIZE(zero); i++) {
        *what = zero[i];
        if (metric(page, zero[i]) > 0)
            return false;
    }
    *what = "weft_connections";
    if (metric(page, *what) > 2) /* this connection, and the administrator's */
        return false;
    *what = "requests at the worker";
    return workers_sim_requests() == 0;
}

static void settle(void) {
    const char *what = "an answer to /metrics";
    int status = 0;

    if (!d.get) {
        d.get = client_get(1000 + d.n_asked++, UNIX, "GET", "/metrics");
    } else if (client_is_done(d.get)) {
        const struct buf *page = client_body(d.get, &status);
        bool settled = status == 200 && is_settled(page, &what);

        if (settled) {
            stop();
            d.phase = PHASE_STOP;
            return;
        }
        if (sim.ns - d.settle_ns > SETTLE_NS)
            sim_fail("RETURNS", "%s: status %d: %s", what, status, page->data ? page->data : "");
        client_free(d.get);
        d.get = NULL;
    } else if (sim.ns - d.settle_ns > 2 * SETTLE_NS) {
        sim_fail("RETURNS", "/metrics gets no answer");
    }
}

static void act(struct actor *a) {
    switch (d.phase) {
    case PHASE_START:
        if (listeners_n() < 3)
            break;
        d.phase = PHASE_RUN;
        sim.crowded = d.s->crowd;
        if (d.s->crowd)
            crowd_begin(TCP, d.s->tenants ? "key-of-none" : NULL,
                        !d.s->drains_early && sim.seed % 16 == 1);
        break;
    case PHASE_RUN:
        run();
        break;
    case PHASE_SETTLE:
        settle();
        break;
    case PHASE_STOP:
        if (sim_one_in(200))
            sim_signal(SIGTERM);
        return;
    }
    actor_wake(&d.actor, d.phase == PHASE_SETTLE ? 500000000 : 1000 + sim_below(TICK_NS));
}

void scenario_begin(struct scenario *s) {
    *s = (struct scenario){.damages = s->damages};
    d.s = s;
    draw(s);
    actor_start(&d.actor, act, 0);
}

void scenario_end(struct scenario *s, int code, bool gave_up) {
    if (gave_up && !sim.files_hang)
        sim_fail("ENDS", "weftd ends without its threads, which were about to end");
    if (code != 0 && !(s->refuses || s->deaths || s->hangs || s->damages || d.told_to_stop))
        sim_fail("EXIT", "weftd ends with status %d", code);
    if (code != 0 || gave_up) /* the system closes what is left open */
        return;
    if (fds_open() > 0) {
        fds_list();
        sim_fail("DESCRIPTORS", "%u descriptors are open at the end", fds_open());
    }
    if (processes_n() > 0)
        sim_fail("PROCESSES", "%u processes are left", processes_n());
    if (!d.told_to_stop && code == 0)
        sim_fail("EXIT", "weftd ends and nobody asked it to");
    for (uint32_t i = 0; i < d.n_started; i++)
        client_free(d.client[i]);
    crowd_end();
    if (d.get)
        client_free(d.get);
    if (d.admin)
        client_free(d.admin);
}
