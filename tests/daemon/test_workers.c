/* The front's side of a worker process: what it makes of frames, deaths and silence. The test plays
 * the worker; the process that can be killed is a program that sleeps. */

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "api/generation/model.h"
#include "base/chan.h"
#include "base/log.h"
#include "daemon/worker/worker.h"
#include "daemon/workers/expert_file.h"
#include "daemon/workers/workers_private.h"
#include "tests/api/world.h"
#include "tests/support/tiny_model.h"
#include "timer_ms.h"

static struct world world;
static struct clock_virtual machine;
static struct config config;
static struct kept *kept;
static struct workers *workers;
static struct gguf *file;
static const uint8_t print[16] = {1};
static uint8_t keys[2][ENGINE_KEEP_KEY];
static char path[64], told[600]; /* told: calls of the callbacks */
static struct chan chan;         /* the worker's end */
static int pid;
static uint32_t n_spawned, n_killed;
static bool no_program;  /* processes cannot be started */
static const char *ends; /* what the next process does instead of sleeping, for a shell, or NULL */

/* Starts a program that sleeps in place of a worker, and keeps the worker's end
 * of the channel. */
int uv_spawn(uv_loop_t *loop, uv_process_t *process, const uv_process_options_t *o) {
    char *args[] = {"sh", "-c", (char *)(uintptr_t)(ends ? ends : "exec sleep 1000"), NULL};
    uv_process_options_t sleeper = {.file = "/bin/sh", .args = args, .exit_cb = o->exit_cb};
    int (*spawn)(uv_loop_t *, uv_process_t *, const uv_process_options_t *);

    *(void **)&spawn = dlsym(RTLD_NEXT, "uv_spawn");
    if (strcmp(o->file, "/proc/self/exe") != 0)
        return spawn(loop, process, o);
    if (no_program) {
        sleeper.file = "/proc/none";
        return spawn(loop, process, &sleeper);
    }
    cr_expect_str_eq(o->args[0], "weftd");
    cr_expect_str_eq(o->args[1], WORKER_FLAG);
    cr_expect_str_eq(o->args[2], "1");
    cr_expect_null(o->args[3]);
    cr_expect_str_eq(o->cwd, "/");
    cr_expect_eq(o->stdio_count, WORKER_FD_MODEL + 3 + (workers->opts.disk_fd >= 0));
    cr_expect_str_eq(o->env[0], log_level_variable());
    if (n_spawned++ > 0)
        chan_deinit(&chan);
    chan_init(&chan, fcntl(o->stdio[WORKER_FD_CHANNEL].data.fd, F_DUPFD_CLOEXEC, 3), MSG_MAX_FRAME,
              MSG_MAX_QUEUED);
    int r = spawn(loop, process, &sleeper);
    pid = process->pid;
    return r;
}

static struct {
    const uv_timer_t *timer;
    uint64_t ms;
} timers[16];
static uint32_t n_timers;

/* Notes the time. */
int uv_timer_start(uv_timer_t *t, uv_timer_cb cb, uint64_t ms, uint64_t repeat) {
    int (*original)(uv_timer_t *, uv_timer_cb, uint64_t, uint64_t);
    uint32_t i = 0;

    *(void **)&original = dlsym(RTLD_NEXT, "uv_timer_start");
    while (i < n_timers && timers[i].timer != t)
        i++;
    n_timers += i == n_timers && i < ARRAY_SIZE(timers);
    if (i < n_timers) {
        timers[i].timer = t;
        timers[i].ms = ms;
    }
    return original(t, cb, ms, repeat);
}

uint64_t timer_ms(const uv_timer_t *t) {
    for (uint32_t i = 0; i < n_timers; i++)
        if (timers[i].timer == t)
            return timers[i].ms;
    return UINT64_MAX;
}

/* Counts the processes that are killed. */
int uv_process_kill(uv_process_t *process, int signal) {
    n_killed++;
    return uv_kill(process->pid, signal);
}

static void PRINTF(1, 2) note(const char *fmt, ...) {
    size_t n = strlen(told);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(told + n, sizeof(told) - n, fmt, ap);
    va_end(ap);
}

static void on_ready(void *ctx, const struct msg_ready *m) {
    note("ready %u;", m->n_vocab);
}

static void on_refused(void *ctx, const char *why, int error) {
    note("refused %d: %s;", error, why);
}

static void on_progress(void *ctx, float fraction) {
    note("progress %g;", (double)fraction);
}

static void on_unloaded(void *ctx) {
    note("unloaded;");
}

static void on_away(void *ctx) {
    note("away;");
}

static void on_answer(void *ctx) {
    note("answer;");
}

static void on_disk_left(void *ctx) {
    note("disk left;");
}

static void on_closed(void *ctx) {
    note("closed;");
}

static void on_want(void *ctx) {
    note("want;");
}

static void on_use(void *ctx, uint32_t tenant, double weight) {
    note("use %u %g;", tenant, weight);
}

static void on_served(void *ctx, const struct msg_served *m, uint32_t n) {
    note("served %u: %u %lld;", n, m->tenant, (long long)m->ns);
}

/* Compares the calls of the callbacks since the last check with @what. */
static void expect_told(const char *what) {
    cr_expect_str_eq(told, what, "%s", told);
    *told = 0;
}

static void begin(void) {
    const struct tiny_model t = {.n_layer = 1, .n_embd = 32, .n_ff = 32, .head_dim = 8};
    const struct kept_opts none = {0};
    struct err err = {0};

    world_init(&world);
    world.starting = true;
    world_start(&world);
    clock_virtual_init(&machine, 1000000000);
    cr_assert_eq(config_init(&config), 0);
    cr_assert_eq(kept_new(&kept, &none), 0);
    tiny_model_temp(&t, path);
    cr_assert_eq(gguf_open(&file, path, &err), 0, "%s", err.message);
    struct workers_opts o = {.loop = &world.loop,
                             .config = &config,
                             .kv_bytes = 77,
                             .disk_fd = -1,
                             .kept = kept,
                             .clock = &machine.clock,
                             .on_ready = on_ready,
                             .on_refused = on_refused,
                             .on_progress = on_progress,
                             .on_unloaded = on_unloaded,
                             .on_away = on_away,
                             .on_answer = on_answer,
                             .on_disk_left = on_disk_left,
                             .want = on_want,
                             .use = on_use,
                             .on_served = on_served,
                             .on_closed = on_closed};
    cr_assert_eq(workers_new(&workers, &o, &err), 0, "%s", err.message);
    workers_set_files(workers, file, NULL, NULL, keys, print, expert_file_read(print));
    workers_attach(workers, api_first_model(world.api));
    cr_assert_eq(workers_start(workers), 0);
}

static void end(void) {
    workers_stop(workers);
    while (!strstr(told, "closed;"))
        uv_run(&world.loop, UV_RUN_ONCE);
    chan_deinit(&chan);
    workers_free(workers);
    gguf_free(file);
    kept_free(kept);
    config_deinit(&config);
    world_stop(&world);
    unlink(path);
}

TestSuite(workers, .init = begin, .fini = end);

static struct workers_stats stats(void) {
    struct workers_stats s;

    workers_stats(workers, &s);
    return s;
}

static void say(uint16_t type, const void *data, size_t len) {
    cr_assert_eq(chan_send(&chan, type, data, (uint32_t)len), 0);
    world_turns(&world, 3);
}

static void say_hello(int version) {
    struct msg_hello h = {.magic = MSG_MAGIC, .version = (uint32_t)(MSG_VERSION + version)};

    worker_build_id(h.build_id);
    say(MSG_HELLO, &h, sizeof(h));
}

static void say_ready(void) {
    CLEANUP(buf_deinit) struct buf b = {.max = 4096};
    const struct msg_ready m = {.n_vocab = 300,
                                .max_context = 500,
                                .page_tokens = 32,
                                .n_pages = 9,
                                .arch = {"llama", 5},
                                .backend = {"cuda", 4},
                                .isa = {"avx2", 4}};

    cr_assert_eq(msg_ready_pack(&b, &m), 0);
    say(MSG_READY, b.data, b.len);
}

/* Receives a message of type @type. */
static struct chan_frame expect_frame(uint16_t type) {
    struct chan_frame f = {0};

    cr_assert_eq(chan_recv(&chan, &f), 0);
    cr_assert_eq(f.type, type, "%u", f.type);
    return f;
}

static void expect_no_frame(void) {
    struct chan_frame f;

    world_turns(&world, 1);
    cr_expect_eq(chan_recv(&chan, &f), CHAN_EMPTY);
}

static void serve(void) {
    say_hello(0);
    say_ready();
    cr_assert_str_eq(stats().state, "serving");
}

/* Waits until the process @old has ended, and until the next one is started, if
 * one is. */
static void wait_for_end(int old, bool again) {
    while (stats().pid == old || (again && pid == old))
        uv_run(&world.loop, UV_RUN_ONCE);
}

static void kill_and_wait(int signal, bool again) {
    int old = pid;

    kill(old, signal);
    wait_for_end(old, again);
}

Test(workers, one_that_is_ready_serves, .timeout = 60) {
    struct msg_progress p = {{"weights", 7}, 0.5f};
    CLEANUP(buf_deinit) struct buf b = {.max = 4096};
    struct chan_frame f;
    struct msg_open m;

    say_hello(0);
    cr_assert_eq(chan_recv(&chan, &f), 0);
    cr_assert(f.type == MSG_OPEN && msg_open_parse(f.data, f.len, &m) == 0);
    cr_expect(m.kv_bytes == 77 && m.keeps && !m.has_disk && !m.tells_blocks && !m.keeps_place);
    cr_assert_eq(msg_progress_pack(&b, &p), 0);
    say(MSG_PROGRESS, b.data, b.len);
    cr_expect(stats().pid == pid && strcmp(stats().state, "loading") == 0);
    cr_expect_not(workers_on_device(workers));
    say_ready();
    expect_told("progress 0.5;ready 300;");
    cr_expect(stats().stats_age_ms == -1 && workers_on_device(workers));
    cr_expect_gt(workers_ready(workers)->len, 0);
    struct msg_stats s = {.at_ns = machine.ns - 5000000};
    say(MSG_STATS, &s, sizeof(s));
    cr_expect_eq(stats().stats_age_ms, 5);
}

Test(workers, one_that_dies_is_replaced_at_once, .timeout = 60) {
    struct chan_frame f;
    struct msg_open m;

    serve();
    expect_told("ready 300;");
    kill_and_wait(SIGSEGV, true);
    cr_expect_eq(timer_ms(&workers->restart), 0);
    cr_expect(stats().n_deaths == 1 && stats().n_started == 2 && stats().n_hangs == 0);
    cr_expect_str_eq(stats().state, "loading");
    say_hello(0);
    cr_assert_eq(chan_recv(&chan, &f), 0);
    cr_assert_eq(msg_open_parse(f.data, f.len, &m), 0);
    cr_expect(m.keeps_place && memmem(m.options.data, m.options.len, "backend\0cuda", 13));
    say_ready();
    cr_expect_str_eq(stats().state, "serving");
    expect_told(""); /* the model was served before */
}

/* Serves with the present worker, ends it when it has served for @ms, and returns how long the next
 * one was waited for, in ms of the loop. */
static uint64_t wait_after(uint64_t ms) {
    serve();
    machine.ns += (int64_t)ms * 1000000;
    uint64_t begin = uv_now(&world.loop);

    kill_and_wait(SIGKILL, true);
    return uv_now(&world.loop) - begin;
}

Test(workers, those_that_die_as_soon_as_they_serve_are_replaced_with_pauses, .timeout = 60) {
    for (int i = 0; i < 5; i++)
        wait_after(4999);
    cr_expect_geq(wait_after(4999), 150, "the sixth death");
    cr_expect_geq(wait_after(4999), 350, "the seventh death");
    wait_after(5000);
    cr_expect_lt(wait_after(4999), 1000, "one has settled");
    cr_expect_eq(stats().n_deaths, 9);
}

Test(workers, requests_do_not_wait_for_ever_for_those_that_die_as_soon_as_they_serve,
     .timeout = 60) {
    const struct model *m = api_first_model(world.api);

    wait_after(4999);
    cr_expect_eq(workers->early_ns, machine.ns);
    machine.ns += INT64_C(130000000000); /* the next one loads for as long */
    for (int i = 0; i < 3; i++)
        wait_after(0);
    cr_expect_neq(m->state, API_MODEL_FAILED, "four deaths, as many as are replaced at once");
    wait_after(0);
    cr_expect_eq(m->state, API_MODEL_FAILED);
    cr_expect_str_eq(m->failure, "5 workers in a row ended within 5 s of their start");
    cr_expect_geq(m->failure_retry_ms, 1000);
    serve();
    cr_expect_eq(m->state, API_MODEL_READY);
    machine.ns += INT64_C(119000000000);
    kill_and_wait(SIGKILL, true);
    cr_expect_neq(m->state, API_MODEL_FAILED, "one has settled");
    wait_after(0);
    machine.ns += INT64_C(119000000000);
    for (int i = 0; i < 4; i++)
        wait_after(0);
    cr_expect_neq(m->state, API_MODEL_FAILED, "119 s after the first early death");
    wait_after(1000);
    cr_expect_eq(m->state, API_MODEL_FAILED, "120 s");
    wait_after(0);
    cr_expect_neq(m->state, API_MODEL_FAILED, "those that came later have as long");
}

Test(workers, one_that_cannot_load_is_tried_three_times, .timeout = 60) {
    kill_and_wait(SIGTERM, true);
    kill_and_wait(SIGTERM, true);
    expect_told("");
    kill_and_wait(SIGKILL, true);
    expect_told("refused -11: the worker died 3 times while loading it (killed: "
                "is there enough memory?);");
    kill_and_wait(SIGTERM, true);
    expect_told("");
    cr_expect_eq(stats().n_deaths, 4);
    serve();
    expect_told("ready 300;");
}

Test(workers, requests_do_not_wait_for_one_that_loads_no_more, .timeout = 60) {
    const struct model *m = api_first_model(world.api);

    serve();
    kill_and_wait(SIGKILL, true);
    for (int i = 0; i < 3; i++) {
        cr_expect_neq(m->state, API_MODEL_FAILED, "%d", i);
        machine.ns += INT64_C(1000000000);
        kill_and_wait(SIGTERM, true);
    }
    cr_expect_eq(m->state, API_MODEL_FAILED);
    cr_expect_str_eq(m->failure, "3 workers in a row ended while loading it");
    cr_expect_geq(m->failure_retry_ms, 1000);
    serve();
    cr_expect_eq(m->state, API_MODEL_READY);
}

Test(workers, a_reason_refuses_the_model_at_once, .timeout = 60) {
    say_hello(0);
    say(MSG_FAILED, "it is too large", 15);
    kill_and_wait(SIGTERM, false);
    expect_told("refused -22: it is too large;");
}

/* Kills a worker whose weights may be a mixture of two versions of the file. */
Test(workers, one_whose_file_changes_while_it_loads_is_killed, .timeout = 60) {
    say_hello(0);
    cr_assert_eq(truncate(path, 100), 0);
    say_ready();
    wait_for_end(pid, false);
    expect_told("refused -11: its file was changed after weftd had read it;");
}

Test(workers, one_that_says_something_else_is_killed, .timeout = 60) {
    int old = pid; /* it may have been replaced when say() returns */

    say_ready(); /* before HELLO */
    wait_for_end(old, true);
    old = pid;
    say_hello(1);
    wait_for_end(old, true);
    serve();
    old = pid;
    say(MSG_EVENTS, "not an event", 12);
    wait_for_end(old, true);
    old = pid;
    say_hello(0);
    say_hello(0);
    wait_for_end(old, true);
    cr_expect_eq(stats().n_deaths, 4);
    expect_told("ready 300;");
}

Test(workers, one_of_another_build_is_killed, .timeout = 60) {
    for (int i = 0; i < 3; i++) {
        struct msg_hello h = {.magic = MSG_MAGIC, .version = MSG_VERSION};
        int old = pid;

        worker_build_id(h.build_id);
        h.magic += i == 1;
        h.build_id[sizeof(h.build_id) - 1] += i == 2;
        say(MSG_HELLO, &h, sizeof(h) - (i == 0));
        wait_for_end(old, true);
    }
    cr_expect_eq(n_killed, 3);
    expect_told("refused -11: the worker died 3 times while loading it (killed: "
                "is there enough memory?);");
}

Test(workers, exit_codes_say_why_a_model_cannot_be_loaded, .timeout = 60) {
    static const struct {
        int code;
        const char *said, *told;
    } cases[] = {
        {WORKER_CUT_OFF, "", "refused -22: its file ended while it was read;"},
        {WORKER_SHORT, "no memory", "refused -12: no memory;"},
        {WORKER_REFUSED, "no tensor", "refused -22: no tensor;"},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const char *said = cases[i].said;
        char script[20];

        workers_unload(workers);
        cr_expect_null(workers->kept[0], "another model may have the memory");
        wait_for_end(pid, false);
        expect_told("unloaded;");
        snprintf(script, sizeof(script), "exit %d", cases[i].code);
        ends = script;
        cr_assert_eq(workers_start(workers), 0);
        ends = NULL;
        if (*said) /* is read when the process has ended */
            cr_assert_eq(chan_send(&chan, MSG_FAILED, said, (uint32_t)strlen(said)), 0);
        wait_for_end(pid, false);
        expect_told(cases[i].told);
    }
}

static void on_blocks(void *ctx, const struct msg_blocks *m) {
    note("blocks %d;", m ? (int)m->n_gone : -1);
}

/* Routers of requests learn which blocks a worker has, and that a new one has none. */
Test(workers, blocks_are_told_if_they_are_wanted, .timeout = 60) {
    static const uint64_t gone[] = {7, 8};
    const struct msg_blocks m = {.page_tokens = 16, .n_gone = 2, .gone = gone};
    CLEANUP(buf_deinit) struct buf b = {.max = 4096};
    struct chan_frame f;
    struct msg_open o;
    int old = pid;

    cr_assert_eq(msg_blocks_pack(&b, &m), 0);
    workers->opts.on_blocks = on_blocks;
    serve();
    cr_assert_eq(chan_recv(&chan, &f), 0);
    cr_assert_eq(msg_open_parse(f.data, f.len, &o), 0);
    cr_expect(o.tells_blocks);
    expect_told("ready 300;blocks -1;");
    say(MSG_BLOCKS, b.data, b.len);
    expect_told("blocks 2;");
    workers->opts.on_blocks = NULL;
    say(MSG_BLOCKS, b.data, b.len);
    wait_for_end(old, true);
    expect_told("");
}

static void on_news(void *ctx, struct api_guest *g, const struct event *e) {
    note("event %u %.*s;", e->status, (int)e->text.len, e->text.data);
}

static void on_need(void *ctx, struct api_guest *g, uint32_t index) {
    note("need %u;", index);
}

/* Submits a request with a picture, which the fake port of the world takes. */
static void request(void) {
    static const int32_t tokens[] = {'h', 'i'};
    static const struct submit_picture picture = {
        .n_rows = 1, .n_columns = 1, .n_lines = 1, .n_positions = 1, .width = 2, .height = 2};
    CLEANUP(buf_deinit) struct buf b = {.max = 4096};
    struct submit m = {.id = 1,
                       .n_prompt = 2,
                       .n_tokens = 2,
                       .tokens = tokens,
                       .max_new = 20,
                       .n_pictures = 1,
                       .pictures = &picture,
                       .tenant_name = {"alice", 5}};
    struct api_guest *g;

    params_init(&m.sampling);
    cr_assert_eq(msg_submit_pack(&b, &m), 0);
    cr_assert_eq(api_guest_new(&g, api_first_model(world.api), &b, on_news, on_need, NULL), 0);
}

/* Lets the other end of @c ask for the picture of the last request, and refuse the request. */
static void expect_news(struct chan *c) {
    const uint64_t id = world.port.r[world.port.n - 1].id;
    const struct msg_need_picture need = {.id = id};
    const struct event other = {.id = 999, .kind = EVENT_ACCEPTED};
    const struct event e = {
        .id = id, .kind = EVENT_REJECTED, .status = 418, .text = {"I am a teapot", 13}};
    CLEANUP(buf_deinit) struct buf b = {.max = 4096};

    cr_assert_eq(msg_need_picture_pack(&b, &need), 0);
    cr_assert_eq(chan_send(c, MSG_NEED_PICTURE, b.data, (uint32_t)b.len), 0);
    world_turns(&world, 3);
    expect_told("need 0;");
    buf_clear(&b);
    cr_assert_eq(msg_event_pack(&b, &other), 0);
    cr_assert_eq(msg_event_pack(&b, &e), 0);
    cr_assert_eq(msg_event_pack(&b, &other), 0);
    cr_assert_eq(chan_send(c, MSG_EVENTS, b.data, (uint32_t)b.len), 0);
    world_turns(&world, 3);
    expect_told("event 418 I am a teapot;");
}

Test(workers, what_one_says_of_requests_goes_to_the_api, .timeout = 60) {
    struct api_port *port = workers_port(workers);
    struct flight_record r[4];
    uint64_t at = 0;
    int old = pid;

    serve();
    *told = 0;
    request();
    cr_assert_eq(world.port.n, 1);
    expect_news(&chan);
    flight_note(workers->flight, &at, 9, WHY_PAGES, 1, 0, 5);
    cr_expect_eq(port->story(port, 9, r, ARRAY_SIZE(r)), 1);
    cr_expect_eq(r[0].why, WHY_PAGES);
    cr_expect_eq(port->story(port, 8, r, ARRAY_SIZE(r)), 0);
    workers->crash_page->n = 1;
    workers->crash_page->ids[0] = 9;
    cr_expect_eq(workers_n_faults(port, 9), 0);
    kill_and_wait(SIGSEGV, true);
    cr_expect_eq(workers_n_faults(port, 9), 1);
    cr_expect_eq(workers_n_faults(port, 8), 0);
    old = pid;
    say(MSG_EVENTS, "", 0); /* it does not serve yet */
    wait_for_end(old, true);
    cr_expect_eq(n_killed, 1);
    expect_told("");
}

/* Lets @ns pass until the next look at the worker. */
static void pass_ns(int64_t ns) {
    uv_timer_stop(&workers->watch);
    machine.ns += ns;
    workers->watch.timer_cb(&workers->watch);
}

static void pass(int64_t ms) {
    pass_ns(ms * 1000000);
}

/* Ends the time of the timer for the next start. */
static void end_pause(void) {
    uv_timer_stop(&workers->restart);
    workers->restart.timer_cb(&workers->restart);
}

Test(workers, one_that_loads_for_too_long_is_killed, .timeout = 60) {
    config.load_timeout_ms = 1000;
    pass(0);
    pass(5000); /* the front itself was late: of this time 250 ms count */
    pass(450);
    pass(300);
    cr_expect_eq(n_killed, 0, "it has had its time");
    int old = pid;
    pass_ns(1);
    pass(5000); /* its end is awaited */
    cr_expect(n_killed == 1 && stats().n_hangs == 1);
    wait_for_end(old, true);
    pass(0);
    pass(500); /* as late as the front may be */
    pass(500);
    cr_expect_eq(n_killed, 1);
    old = pid;
    pass_ns(1);
    cr_expect_eq(n_killed, 2);
    wait_for_end(old, true);
    pass_ns(INT64_C(1000000001)); /* before the first look nothing was late */
    cr_expect_eq(stats().n_hangs, 3);
}

/* Only requests that run, and no step that ends, make a worker hang. */
Test(workers, one_that_computes_nothing_for_too_long_is_killed, .timeout = 60) {
    struct model *m = api_first_model(world.api);

    config.hang_timeout_ms = 1000;
    serve();
    pass(0);
    for (int i = 0; i < 3; i++)
        pass(450); /* nothing runs */
    m->n_running = 1;
    pass(450);
    pass(450);
    workers->crash_page->step++;
    pass(450);
    pass(450);
    pass(1250); /* the front itself was late: of this time 250 ms count */
    pass(300);
    cr_expect_eq(n_killed, 0);
    int old = pid;
    pass_ns(1);
    m->n_running = 0; /* no generation waits for it */
    wait_for_end(old, false);
    cr_expect_str_eq(workers->refusal, "", "memory is not to blame");
    wait_for_end(old, true);
    cr_expect(n_killed == 1 && stats().n_hangs == 1 && stats().n_deaths == 1);
    workers->last.n_picks = 5;
    pass(600000);
    cr_expect(workers->experts.n_kept == 5 && workers->experts.kept_ns == machine.ns);
}

/* A worker computes with its own copy of the file; the next one would load another model. */
Test(workers, none_is_started_for_a_file_that_was_changed, .timeout = 60) {
    const struct model *m = api_first_model(world.api);

    serve();
    pass(0);
    cr_expect_not(workers->file_changed);
    cr_assert_eq(truncate(path, 100), 0);
    pass(0);
    cr_expect_eq(m->state, API_MODEL_READY);
    cr_expect(workers->file_changed);
    kill_and_wait(SIGKILL, false);
    while (m->state != API_MODEL_FAILED)
        uv_run(&world.loop, UV_RUN_ONCE);
    cr_expect_str_eq(m->failure, "its file was changed after weftd had read it: weftd must be "
                                 "restarted to serve the new one");
    cr_expect_eq(n_spawned, 1);
}

static void count_timer(uv_handle_t *h, void *n) {
    *(uint32_t *)n += uv_handle_get_type(h) == UV_TIMER && uv_is_active(h);
}

/* Returns the number of timers that run. */
static uint32_t count_timers(void) {
    uint32_t n = 0;

    uv_walk(&world.loop, count_timer, &n);
    return n;
}

Test(workers, one_that_writes_to_a_disk_has_time_to_end, .timeout = 60) {
    struct chan_frame f;
    int r;

    workers_unload(workers);
    wait_for_end(pid, false);
    expect_told("unloaded;");
    workers_set_disk(workers, memfd_create("disk", MFD_CLOEXEC));
    cr_assert_eq(workers_start(workers), 0);
    workers_unload(workers); /* it has nothing to write yet */
    cr_expect_eq(n_killed, 2);
    wait_for_end(pid, false);
    expect_told("unloaded;");
    cr_assert_eq(workers_start(workers), 0);
    serve();
    workers_unload(workers);
    expect_told("ready 300;");
    while ((r = chan_recv(&chan, &f)) >= 0)
        world_turns(&world, 1);
    cr_expect_eq(r, -EPIPE);
    cr_expect_eq(n_killed, 2);
    uint32_t n = count_timers();
    cr_expect_eq(timer_ms(&workers->restart), 3000);
    kill_and_wait(SIGTERM, false);
    expect_told("unloaded;");
    cr_expect_eq(count_timers(), n - 1, "the next worker has no end set");
    cr_assert_eq(workers_start(workers), 0);
    serve();
    workers_unload(workers);
    end_pause();
    cr_expect_eq(n_killed, 3, "it had its time");
    wait_for_end(pid, false);
    expect_told("ready 300;unloaded;");
    workers_unload(workers);
    expect_told("");
}

/* The file is free for another daemon when the worker says so, or has ended. */
Test(workers, the_disk_is_left_when_the_worker_has_left_it_or_ended, .timeout = 60) {
    workers_unload(workers);
    wait_for_end(pid, false);
    cr_expect_not(workers_release_disk(workers), "there is no file");
    workers_set_disk(workers, memfd_create("disk", MFD_CLOEXEC));
    cr_expect(workers_use_disk(workers));
    cr_expect_not(workers_release_disk(workers), "there is no worker");
    cr_assert_eq(workers_start(workers), 0);
    cr_expect(workers_use_disk(workers));
    cr_expect_not(workers_release_disk(workers), "the worker does not have the file yet");
    serve();
    *told = 0;
    cr_expect(workers_use_disk(workers));
    cr_expect(workers_release_disk(workers));
    expect_told("");
    say(MSG_DISK_LEFT, "", 0);
    expect_told("disk left;");
    say(MSG_DISK_LEFT, "", 0);
    expect_told("");
    cr_expect(workers_use_disk(workers));
    cr_expect(workers_release_disk(workers));
    kill_and_wait(SIGKILL, true);
    expect_told("disk left;");
    kill_and_wait(SIGKILL, false);
    expect_told("");
}

/* A worker that could not be told that it may use the file is told when its channel has room. */
Test(workers, one_with_a_full_channel_is_told_of_the_disk_later, .timeout = 60) {
    static struct msg_served served[SERVED_MAX];
    struct chan_frame f;
    bool told_it = true;

    workers_unload(workers);
    wait_for_end(pid, false);
    workers_set_disk(workers, memfd_create("disk", MFD_CLOEXEC));
    cr_assert_eq(workers_start(workers), 0);
    serve();
    world.unwatched = true; /* no client fills a channel so far */
    for (size_t sent = 0; sent < MSG_MAX_QUEUED; sent += sizeof(served))
        workers_report_served(workers, served, SERVED_MAX);
    for (int i = 0; i < 100000 && (told_it = workers_use_disk(workers)); i++)
        workers_release_disk(workers); /* both are small and fill the rest */
    cr_assert_not(told_it);
    for (int quiet = 0; quiet < 3; quiet = chan_recv(&chan, &f) == 0 ? 0 : quiet + 1)
        world_turns(&world, quiet > 0);
    cr_expect(workers_use_disk(workers));
    cr_assert_eq(chan_recv(&chan, &f), 0);
    cr_expect_eq(f.type, MSG_DISK_USE);
    cr_expect(workers_release_disk(workers));
    cr_assert_eq(chan_recv(&chan, &f), 0);
    cr_expect_eq(f.type, MSG_DISK_LEAVE);
    cr_expect_not(workers_release_disk(workers), "it has left already");
}

/* Submits parts of a request of 4 MiB until the port takes no more. Returns the bytes that it
 * took. @reads: the worker reads at once. */
static uint32_t submit_long(bool reads, uint16_t flags) {
    static const int32_t tokens[1 << 20];
    const uint32_t n = ARRAY_SIZE(tokens);
    struct submit m = {
        .id = 1, .tokens = tokens, .n_tokens = n, .n_prompt = n, .max_new = 1, .flags = flags};
    struct api_port *port = workers_port(workers);
    struct chan_frame f;
    uint32_t sent = 0;
    int r;

    params_init(&m.sampling);
    while ((r = port->submit(port, &m, &sent)) > 0)
        while (reads && chan_recv(&chan, &f) == 0)
            ;
    cr_expect_eq(r, -EAGAIN);
    return sent;
}

/* Other requests have their turn between the parts of a long one, also if the worker reads them as
 * fast as they are sent. */
Test(workers, a_long_request_is_sent_in_turns, .timeout = 60) {
    serve();
    uint32_t sent = submit_long(true, 0);
    cr_expect_eq(sent, 1 << 20);
    cr_expect_eq(workers->n_turn, sent);
    world_turns(&world, 3);
    cr_expect_eq(workers->n_turn, 0);
}

/* What the worker's socket does not take stays in the order of the tenants. */
Test(workers, a_long_request_waits_for_a_worker_that_does_not_read, .timeout = 60) {
    serve();
    uint32_t sent = submit_long(false, 0);
    cr_expect(sent > 0 && sent < 1 << 20, "%u", sent);
}

/* The rest of a prompt that is computed ahead is not sent later. */
Test(workers, a_long_prewarming_does_not_wait, .timeout = 60) {
    serve();
    cr_expect_eq(submit_long(false, SUBMIT_PREWARM), 1 << 20);
}

/* Submits parts of pictures until the port takes no more. Returns their number. */
static uint32_t send_pictures(bool reads) {
    static const char rgb[40000];
    const struct msg_picture m = {.total = sizeof(rgb), .rgb = {rgb, sizeof(rgb)}};
    struct api_port *port = workers_port(workers);
    struct chan_frame f;
    uint32_t n = 0;
    int r;

    for (; (r = port->picture(port, &m)) == 0; n++)
        while (reads && chan_recv(&chan, &f) == 0)
            ;
    cr_expect_eq(r, -EAGAIN);
    return n;
}

/* 27 parts are the first that are more than a turn's bytes; a worker that does not read gets fewer,
 * and a request behind them waits in the api. */
Test(workers, pictures_are_sent_in_turns_and_delay_no_request, .timeout = 60) {
    static const int32_t token = 5;
    struct submit m = {.id = 9, .tokens = &token, .n_tokens = 1, .n_prompt = 1, .max_new = 1};
    struct api_port *port = workers_port(workers);
    struct chan_frame f;
    uint32_t sent = 0, n;

    params_init(&m.sampling);
    serve();
    cr_expect_eq(send_pictures(true), 27);
    world_turns(&world, 3);
    n = send_pictures(false);
    cr_expect(n > 0 && n < 27, "%u", n);
    cr_expect_eq(port->submit(port, &m, &sent), -EAGAIN);
    for (uint32_t i = 0; i < n; i++) {
        while (chan_recv(&chan, &f) != 0)
            world_turns(&world, 1);
        cr_expect_eq(f.type, MSG_PICTURE);
    }
    world_turns(&world, 3);
    cr_expect_eq(port->submit(port, &m, &sent), 0);
}

/* Lets the process open @n descriptors more, or as many as before if @n is negative. */
static void limit_files(int n) {
    static struct rlimit before;
    struct rlimit now;

    if (n < 0) {
        setrlimit(RLIMIT_NOFILE, &before);
        return;
    }
    int first = fcntl(0, F_DUPFD_CLOEXEC, 3);
    close(first);
    getrlimit(RLIMIT_NOFILE, &before);
    now = before;
    now.rlim_cur = (rlim_t)(first + n);
    setrlimit(RLIMIT_NOFILE, &now);
}

Test(workers, one_that_cannot_be_started_can_be_unloaded, .timeout = 60) {
    for (int again = 0; again < 2; again++) {
        workers_unload(workers);
        wait_for_end(pid, false);
        expect_told("unloaded;");
        limit_files(1);
        cr_expect_eq(workers_start(workers), -EMFILE);
        limit_files(-1);
        workers_unload(workers);
        expect_told("unloaded;");
        cr_assert_eq(workers_start(workers), 0);
    }
}

/* The handle of a process that was not started has to be closed as well. */
Test(workers, one_whose_program_cannot_be_run_is_tried_again, .timeout = 60) {
    workers_unload(workers);
    wait_for_end(pid, false);
    expect_told("unloaded;");
    no_program = true;
    cr_expect_eq(workers_start(workers), -ENOENT);
    cr_expect(workers_run(workers));
    cr_expect_str_eq(stats().state, "down");
    workers_unload(workers);
    expect_told("");
    while (workers_run(workers))
        uv_run(&world.loop, UV_RUN_ONCE);
    expect_told("unloaded;");
    no_program = false;
    cr_assert_eq(workers_start(workers), 0);
    serve();
    no_program = true;
    kill_and_wait(SIGKILL, false);
    while (workers->n_failed < 2)
        uv_run(&world.loop, UV_RUN_ONCE);
    cr_expect_eq(workers->backoff_ms, 400);
    cr_expect_str_eq(workers->refusal, "no worker can be started: no such file or directory");
    no_program = false;
    while (!workers_run(workers))
        uv_run(&world.loop, UV_RUN_ONCE);
    serve();
    cr_expect(workers->n_failed == 0 && stats().n_started == 3);
}

Test(workers, one_that_cannot_be_started_is_tried_again, .timeout = 60) {
    const struct model *m = api_first_model(world.api);

    serve();
    limit_files(0);
    kill_and_wait(SIGKILL, false);
    machine.ns += INT64_C(2000000000);
    while (m->state != API_MODEL_FAILED)
        uv_run(&world.loop, UV_RUN_ONCE);
    limit_files(-1);
    cr_expect_str_eq(m->failure, "no worker can be started: too many open files");
    cr_expect_eq(n_spawned, 1);
    while (n_spawned == 1)
        uv_run(&world.loop, UV_RUN_ONCE);
    serve();
    cr_expect_eq(m->state, API_MODEL_READY);
}

/* Messages of the api go to the worker that serves, and what it has computed for tenants to all. */
Test(workers, messages_of_the_api_go_to_the_worker, .timeout = 60) {
    static const uint8_t rgb[12] = {7};
    static const int32_t token = 5;
    struct submit m = {.id = 9, .tokens = &token, .n_tokens = 1, .n_prompt = 1, .max_new = 1};
    const struct msg_picture picture = {.total = sizeof(rgb),
                                        .rgb = {(const char *)rgb, sizeof(rgb)}};
    const struct turn_end end_of_turn = {.id = 9, .calls = 1};
    const struct msg_served computed = {.tenant = 3, .ns = 7000};
    struct api_port *port = workers_port(workers);
    struct msg_picture seen;
    struct turn_end over;
    uint32_t sent = 0;
    uint64_t id = 0;

    params_init(&m.sampling);
    cr_expect_eq(port->submit(port, &m, &sent), -EAGAIN, "it loads");
    cr_expect_eq(port->picture(port, &picture), -EPIPE);
    port->cancel(port, 1);
    expect_no_frame();
    say_hello(0);
    expect_frame(MSG_OPEN);
    port->cancel(port, 77);
    struct chan_frame f = expect_frame(MSG_CANCEL);
    cr_expect(msg_cancel_parse(f.data, f.len, &id) == 0 && id == 77, "it may have the request");
    workers_report_served(workers, &computed, 1);
    expect_no_frame();
    say_ready();
    *told = 0;
    cr_expect_eq(workers->n_turn, 0);
    cr_expect_eq(port->submit(port, &m, &sent), 0);
    f = expect_frame(MSG_SUBMIT);
    cr_expect_eq(f.len, msg_submit_len(&m));
    cr_expect_eq(workers->n_turn, 8192 + msg_submit_len(&m));
    cr_expect_eq(port->picture(port, &picture), 0);
    f = expect_frame(MSG_PICTURE);
    cr_expect(msg_picture_parse(f.data, f.len, &seen) == 0 && seen.total == sizeof(rgb));
    cr_expect_eq(workers->n_turn, 8192 + msg_submit_len(&m) + sizeof(rgb));
    port->turn_end(port, &end_of_turn);
    f = expect_frame(MSG_TURN_END);
    cr_expect(msg_turn_end_parse(f.data, f.len, &over) == 0 && over.id == 9 && over.calls == 1);
    workers_report_served(workers, &computed, 1);
    f = expect_frame(MSG_SERVED);
    cr_expect(f.len == sizeof(computed) && memcmp(f.data, &computed, f.len) == 0);
    say(MSG_SERVED, &computed, sizeof(computed));
    expect_told("served 1: 3 7000;");
    cr_expect(port->want == NULL && port->use == NULL, "a model that stays loaded");
    workers_on_demand(workers);
    port->want(port);
    port->use(port, 4, 0.5);
    expect_told("want;use 4 0.5;");
    chan_deinit(&chan); /* the worker ends */
    cr_expect_eq(port->picture(port, &picture), -EPIPE);
    cr_expect_eq(port->submit(port, &m, &sent), -EAGAIN);
    chan_init(&chan, dup(STDERR_FILENO), 64, 4096); /* for the end of the test */
}

/* Lists a worker's descriptors and packs its OPEN. */
Test(workers, one_gets_its_files_in_their_order, .timeout = 60) {
    static struct workers_fds f;
    CLEANUP(buf_deinit) struct buf b = {.max = 65536}, options = b;
    int disk = memfd_create("disk", MFD_CLOEXEC);
    struct gguf *draft, *projector;
    struct msg_open m;
    struct err err;

    cr_assert_eq(gguf_open(&draft, path, &err), 0);
    cr_assert_eq(gguf_open(&projector, path, &err), 0);
    workers_unload(workers);
    wait_for_end(pid, false);
    workers_set_files(workers, file, draft, projector, keys, print, expert_file_read(print));
    workers_set_disk(workers, disk);
    workers->opts.memory_bytes = 88;
    cr_assert_eq(workers_list_fds(workers, 77, &f), 0);
    const int want[] = {2,
                        77,
                        workers->crash_page_fd,
                        gguf_shard_fd(file, 0),
                        gguf_shard_fd(draft, 0),
                        gguf_shard_fd(projector, 0),
                        disk,
                        kept_fd(workers->kept[0]),
                        kept_fd(workers->kept[1]),
                        workers->experts.fd};
    cr_expect(f.n == 2 + ARRAY_SIZE(want) && f.n_shards == 2);
    cr_expect(f.stdio[0].flags == UV_IGNORE && f.stdio[1].flags == UV_IGNORE);
    for (size_t i = 0; i < ARRAY_SIZE(want); i++)
        cr_expect(f.stdio[2 + i].flags == UV_INHERIT_FD && f.stdio[2 + i].data.fd == want[i], "%zu",
                  i);
    cr_assert_eq(workers_pack_open(workers, &b), 0);
    cr_assert_eq(msg_open_parse(b.data, (uint32_t)b.len, &m), 0);
    cr_assert_eq(config_pack(&config, "engine", &options), 0);
    cr_expect(m.options.len == options.len &&
              memcmp(m.options.data, options.data, options.len) == 0);
    cr_expect(m.kv_bytes == 77 && m.memory_bytes == 88);
    cr_expect(m.n_draft_shards == 1 && m.n_projector == 1);
    cr_expect(m.has_disk == 1 && m.disk_waits == 1 && m.has_experts == 1);
    cr_expect(m.keeps == 1 && m.keeps_draft == 1 && m.keeps_place == 0 && m.tells_blocks == 0);
    workers_release_weights(workers, false);
    workers_set_files(workers, file, NULL, NULL, keys, print, -1);
    workers->opts.draft = workers->opts.projector = NULL;
    cr_expect_eq(workers->experts.fd, 0);
    cr_assert_eq(workers_list_fds(workers, 77, &f), 0);
    cr_expect(f.n == WORKER_FD_MODEL + 3 && f.n_shards == 1);
    gguf_free(draft);
    gguf_free(projector);
    close(disk);
    workers->opts.disk_fd = -1;
}

/* A frame that is malformed, or that does not fit the state, ends the worker. */
Test(workers, frames_that_do_not_fit_end_it, .timeout = 60) {
    CLEANUP(buf_deinit) struct buf need = {.max = 4096}, blocks = need;
    const struct msg_need_picture picture = {.id = 1};
    const struct msg_blocks none = {.page_tokens = 16};
    const struct msg_stats st = {0};

    cr_assert_eq(msg_need_picture_pack(&need, &picture), 0);
    cr_assert_eq(msg_blocks_pack(&blocks, &none), 0);
    const struct {
        enum { STARTED, OPENED, SERVING } state;
        uint16_t type;
        const void *data;
        size_t len;
    } cases[] = {
        {STARTED, MSG_EVENTS, "", 0},
        {STARTED, MSG_HELLO, "", 0},
        {OPENED, MSG_READY, "short", 5},
        {OPENED, MSG_PROGRESS, "short", 5},
        {OPENED, MSG_EVENTS, "", 0},
        {OPENED, MSG_NEED_PICTURE, need.data, need.len},
        {OPENED, MSG_OPEN, "", 0},
        {SERVING, MSG_NEED_PICTURE, "short", 5},
        {SERVING, MSG_STATS, &st, sizeof(st) - 8},
        {SERVING, MSG_SERVED, "short", 5},
        {SERVING, MSG_SERVED, "", 0},
        {SERVING, MSG_BLOCKS, blocks.data, blocks.len}, /* were not asked for */
        {SERVING, MSG_READY, "", 0},
        {SERVING, MSG_HELLO, "", 0},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        const void *data = cases[i].data;
        size_t len = cases[i].len;
        int old = pid;

        workers->backoff_ms = 0;
        if (cases[i].state >= OPENED)
            say_hello(0);
        if (cases[i].state == SERVING)
            say_ready();
        cr_expect_eq(n_killed, i);
        if (cases[i].type == MSG_READY && cases[i].state == SERVING) /* a right one, too late */
            data = workers->ready.data, len = workers->ready.len;
        say(cases[i].type, data, len);
        cr_expect_eq(n_killed, i + 1, "%zu", i);
        wait_for_end(old, false);
        if (pid == old)
            end_pause();
    }
}

/* Keeps what a worker reports for the admin socket and for /metrics. */
Test(workers, statistics_are_kept, .timeout = 60) {
    const struct model *m = api_first_model(world.api);
    struct msg_stats st = {.at_ns = machine.ns - 7000000, .n_steps = 5};
    struct workers_stats s = stats();

    cr_expect(s.n_started == 1 && s.n_deaths == 0 && s.n_hangs == 0 && s.pid == pid);
    cr_expect_str_eq(s.weights, "");
    cr_expect_str_eq(s.failure, "");
    cr_expect_str_eq(s.state, "loading");
    serve();
    cr_expect_not(m->has_stats);
    say(MSG_STATS, &st, sizeof(st));
    s = stats();
    cr_expect(s.stats_age_ms == 7 && s.last.n_steps == 5 && m->has_stats && m->worker.n_steps == 5);
    cr_expect_str_eq(s.weights, "own");
    cr_expect(workers_run(workers) && workers_flight(workers) == workers->flight);
    workers_unload(workers);
    cr_expect(workers_run(workers), "it has not ended yet");
    wait_for_end(pid, false);
    s = stats();
    cr_expect(s.stats_age_ms == -1 && s.pid == 0 && !workers_run(workers));
    cr_expect_str_eq(s.state, "unloaded");
    cr_expect_not(m->has_stats);
}

/* The reason of a worker is cut at 399 bytes. */
Test(workers, reasons_have_a_limit, .timeout = 60) {
    char why[500], want[500];

    memset(why, 'x', sizeof(why));
    say_hello(0);
    say(MSG_FAILED, why, sizeof(why));
    kill_and_wait(SIGTERM, false);
    snprintf(want, sizeof(want), "refused -22: %.399s;", why);
    expect_told(want);
}

/* The first start after a death is at once, and the pauses between failed ones grow to a minute. */
Test(workers, pauses_between_failed_starts_grow, .timeout = 60) {
    static const uint32_t ms[][2] = {{0, 100},       {100, 200},     {49, 100},     {51, 102},
                                     {30000, 60000}, {30001, 60000}, {60000, 60000}};

    for (size_t i = 0; i < ARRAY_SIZE(ms); i++) {
        workers->backoff_ms = ms[i][0];
        kill_and_wait(SIGTERM, false);
        cr_expect_eq(workers->backoff_ms, ms[i][1]);
        if (ms[i][0] == 0)
            continue; /* is started already */
        cr_expect_eq(timer_ms(&workers->restart), ms[i][0]);
        end_pause();
    }
    cr_expect_eq(stats().n_started, 1 + ARRAY_SIZE(ms));
}

/* The waiting requests fail after two seconds and three starts. */
Test(workers, requests_wait_for_two_seconds_of_failed_starts, .timeout = 60) {
    const struct model *m = api_first_model(world.api);

    serve();
    kill_and_wait(SIGKILL, true);
    machine.ns += 1999999999;
    for (int i = 0; i < 5; i++) {
        workers->backoff_ms = 1;
        kill_and_wait(SIGTERM, true);
        cr_expect_neq(m->state, API_MODEL_FAILED, "%d", i);
    }
    machine.ns++;
    workers->backoff_ms = 3000;
    kill_and_wait(SIGTERM, false);
    cr_expect_eq(m->state, API_MODEL_FAILED);
    cr_expect_str_eq(m->failure, "6 workers in a row ended while loading it");
    cr_expect_eq(m->failure_retry_ms, 3000);
    cr_expect_str_eq(stats().failure, m->failure);
    end_pause();
    workers_unload(workers);
    cr_expect(workers->n_failed == 0 && workers->backoff_ms == 0);
    cr_expect_str_eq(stats().failure, "");
    wait_for_end(pid, false);
    cr_assert_eq(workers_start(workers), 0);
    serve();
}

/* The decisions before the death of a worker that served are written to a file. */
Test(workers, the_death_of_one_that_served_is_recorded, .timeout = 60) {
    char folder[] = "/tmp/weft-workers-XXXXXX", record[60];
    struct err err;

    cr_assert(mkdtemp(folder));
    cr_assert_eq(config_set(&config, "fault-dir", folder, &err), 0);
    kill_and_wait(SIGTERM, true);
    snprintf(record, sizeof(record), "%s/fault-2.flight", folder);
    serve();
    kill_and_wait(SIGTERM, true);
    for (int i = 0; i < 10000 && access(record, F_OK) < 0; i++)
        uv_run(&world.loop, UV_RUN_NOWAIT);
    cr_expect_eq(unlink(record), 0);
    cr_expect_eq(rmdir(folder), 0, "the first one had not served");
}

Test(workers, there_are_none_without_descriptors) {
    const struct workers_opts o = {.loop = &world.loop};
    struct workers *none = NULL;
    struct rlimit few, before;
    struct err err = {0};

    getrlimit(RLIMIT_NOFILE, &before);
    few = before;
    few.rlim_cur = 0;
    setrlimit(RLIMIT_NOFILE, &few);
    cr_expect_eq(workers_new(&none, &o, &err), -EMFILE);
    setrlimit(RLIMIT_NOFILE, &before);
    cr_expect_null(none);
    cr_expect_str_eq(err.message, "cannot prepare the worker: Too many open files");
    cr_expect_null(workers_free(NULL));
}

/* Asks the next daemon to continue the requests. @other: its end of the
 * channel. */
static void offer(struct chan *other) {
    const struct buf *ready = workers_ready(workers);
    struct chan_frame f;
    int pair[2];

    cr_expect_eq(workers_answer(workers), WORKERS_UNASKED);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    chan_init(other, pair[1], MSG_MAX_FRAME, MSG_MAX_QUEUED);
    workers_offer(workers, pair[0]);
    cr_expect_eq(workers_answer(workers), WORKERS_ASKED);
    cr_assert_eq(chan_recv(other, &f), 0);
    cr_assert(f.type == MSG_READY && f.len == ready->len);
    cr_expect_eq(memcmp(f.data, ready->data, f.len), 0);
}

/* Lets the next daemon say @type with the READY of the worker. */
static void answer(struct chan *other, uint16_t type) {
    const struct buf *ready = workers_ready(workers);

    cr_assert_eq(chan_send(other, type, ready->data, (uint32_t)ready->len), 0);
    world_turns(&world, 3);
    expect_told("answer;");
}

/* Returns true if messages about requests go to the next daemon. */
static bool goes_to(struct chan *other) {
    struct api_port *p = workers_port(workers);
    struct chan_frame f;

    p->cancel(p, 5);
    return chan_recv(other, &f) == 0 && f.type == MSG_CANCEL;
}

/* Packs the weights of the model into the file @fd, which is then sealed. */
static void pack_weights(int fd) {
    const struct engine_opts o = {.file = file,
                                  .backend = "cpu",
                                  .isa = "auto",
                                  .n_threads = 1,
                                  .n_pages = 4,
                                  .page_tokens = 16,
                                  .max_rows = 16,
                                  .max_seqs = 1,
                                  .max_wants = 1,
                                  .keep_fd = fd};
    struct engine *e;
    struct err err = {0};

    cr_assert_eq(engine_new(&e, &o, &err), 0, "%s", err.message);
    cr_assert_eq(engine_info(e)->weights, ENGINE_WEIGHTS_PACKED);
    engine_free(e);
}

/* Only a worker that dies while it loads makes its weights suspect, and not one that is ended. */
Test(workers, weights_stay_good_when_a_worker_gives_way_while_it_loads, .timeout = 60) {
    int fd = memfd_create("weights", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    pack_weights(fd);
    engine_keep_key(file, NULL, keys[0]);
    for (int dies = 0; dies < 2; dies++) {
        workers_unload(workers);
        wait_for_end(pid, false);
        if (dies == 0)
            kept_inherit(kept, fd, KEPT_PREFIX "1");
        struct kept_file *other = kept_claim(kept, keys[0]);
        cr_assert_eq(kept_fd(other), fd);
        cr_assert_eq(workers_start(workers), 0);
        if (dies)
            kill_and_wait(SIGTERM, true);
        cr_expect(workers_hand_over(workers));
        wait_for_end(pid, false);
        struct kept_file *again = kept_claim(kept, keys[0]);
        cr_expect_eq(again == other, !dies);
        kept_release(again, false);
        if (dies)
            kept_release(other, false);
        workers_come_back(workers);
    }
}

Test(workers, the_next_daemon_may_take_the_requests, .timeout = 60) {
    for (int early = 0; early < 2; early++) { /* the process ends before the answer, or after it */
        struct chan other;

        serve();
        *told = 0;
        if (early) {
            cr_expect(workers_hand_over(workers));
            wait_for_end(pid, false);
            expect_told("away;");
        }
        offer(&other);
        answer(&other, MSG_READY);
        cr_expect_eq(workers_answer(workers), WORKERS_ACCEPTED);
        cr_expect_not(goes_to(&other));
        cr_expect_eq(workers_hand_over(workers), !early);
        if (!early) {
            wait_for_end(pid, false);
            expect_told("away;");
        }
        cr_expect(goes_to(&other));
        cr_expect_str_eq(stats().state, "away");
        uint32_t n = n_spawned;
        if (early)
            answer(&other, MSG_READY); /* is not expected any more */
        else
            workers_come_back(workers);
        cr_expect_eq(workers_answer(workers), early ? WORKERS_REFUSED : WORKERS_UNASKED);
        chan_deinit(&other);
        while (n_spawned == n)
            uv_run(&world.loop, UV_RUN_ONCE);
        cr_expect_str_eq(stats().state, "loading");
    }
}

/* An unload is no refusal: the next worker's requests are offered, also to a later daemon. */
Test(workers, a_model_that_was_unloaded_is_offered_again, .timeout = 60) {
    struct chan other;

    for (int offered = 0; offered < 2; offered++) {
        serve();
        *told = 0;
        if (offered)
            offer(&other);
        workers_unload(workers);
        wait_for_end(pid, false);
        expect_told(offered ? "answer;unloaded;" : "unloaded;");
        cr_expect_eq(workers_answer(workers), WORKERS_UNASKED);
        cr_assert_eq(workers_start(workers), 0);
    }
    chan_deinit(&other);
}

Test(workers, the_next_daemon_may_refuse_the_requests, .timeout = 60) {
    struct chan other;

    serve();
    *told = 0;
    offer(&other);
    answer(&other, MSG_FAILED);
    cr_expect_eq(workers_answer(workers), WORKERS_REFUSED);
    cr_expect_str_eq(stats().state, "serving");
    chan_deinit(&other);
}

/* What the next daemon's worker computes comes as from an own one. If that daemon fails, this one
 * starts a worker again. */
Test(workers, requests_come_back_from_a_daemon_that_fails, .timeout = 60) {
    for (int closes = 0; closes < 2; closes++) {
        struct chan other;

        serve();
        strcpy(workers->backend, "cpu"); /* its memory is free at once */
        *told = 0;
        offer(&other);
        answer(&other, MSG_READY);
        cr_expect(workers_hand_over(workers));
        wait_for_end(pid, false);
        expect_told("away;");
        request();
        expect_news(&other);
        uint32_t n = n_spawned;
        if (closes)
            shutdown(other.fd, SHUT_RDWR);
        else
            cr_assert_eq(chan_send(&other, MSG_EVENTS, "not an event", 12), 0);
        while (n_spawned == n)
            uv_run(&world.loop, UV_RUN_ONCE);
        expect_told("answer;");
        cr_expect_eq(workers_answer(workers), WORKERS_REFUSED);
        workers_detach_next(workers);
        chan_deinit(&other);
    }
}
