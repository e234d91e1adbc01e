/* Tests of the decision which models have workers, with a clock that stands still between
 * decisions. No worker is started: a test sets the states that its model has passed through. */

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include "api/generation/model.h"
#include "api/parts.h"
#include "base/chan.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "daemon/models/kvdisk.h"
#include "daemon/models/models_find.h"
#include "daemon/models/models_private.h"
#include "daemon/workers/workers_private.h"
#include "engine/backend.h"
#include "engine/keep.h"
#include "tests/api/world.h"
#include "tests/support/tiny_model.h"

static struct world w; /* the options of its api; the api is the daemon's */
static struct clock_virtual machine;
static struct config config;
static struct kept *kept;
static struct models *models;
static char folder[] = "/tmp/weft_models_XXXXXX";
static atomic_uint n_looks[2]; /* calls of stat(): by threads of the pool, and by the loop's */

static char *file_of(const char *name) {
    static char path[80];

    snprintf(path, sizeof(path), "%s/%s.gguf", folder, name);
    return path;
}

/* Replaces the path of this program, beside which the daemon looks for weftctl. */
ssize_t readlink(const char *path, char *out, size_t size) {
    /* Criterion asks before the test. */
    if (strstr(folder, "XXXXXX"))
        return syscall(SYS_readlink, path, out, size);
    cr_assert_str_eq(path, "/proc/self/exe");
    return snprintf(out, size, "%s/weftd", folder);
}

/* Replaces the call that waits for the file system, which only threads of the pool may do. */
int stat(const char *path, struct stat *out) {
    n_looks[gettid() == getpid()]++;
    return (int)syscall(SYS_newfstatat, AT_FDCWD, path, out, 0);
}

#ifndef __SANITIZE_ADDRESS__
/* Puts an address that nothing may use behind an array, so that a loop that goes on to it fails. */
void *reallocarray(void *old, size_t n, size_t size) {
    const uintptr_t bad = UINTPTR_MAX / 3;
    char *new;

    if (size > 0 && n > PTRDIFF_MAX / size)
        return NULL;
    new = realloc(old, n * size + sizeof(bad));
    if (new)
        memcpy(new + n *size, &bad, sizeof(bad));
    return new;
}
#endif

/* Starts a program that sleeps in place of a worker. */
int uv_spawn(uv_loop_t *loop, uv_process_t *process, const uv_process_options_t *o) {
    char *args[] = {"sleep", "1000", NULL};
    uv_process_options_t sleeper = {.file = "/bin/sleep", .args = args, .exit_cb = o->exit_cb};
    int (*spawn)(uv_loop_t *, uv_process_t *, const uv_process_options_t *);

    *(void **)&spawn = dlsym(RTLD_NEXT, "uv_spawn");
    return spawn(loop, process, strcmp(o->file, "/proc/self/exe") == 0 ? &sleeper : o);
}

static char kept_told[200]; /* calls to the service manager */

static void keep(int fd, const char *name) {
    cr_assert_gt(fd, STDERR_FILENO);
    strncat(kept_told, name, 20);
    strcat(kept_told, " kept;");
}

static void forget(const char *name) {
    strncat(kept_told, name, 20);
    strcat(kept_told, " forgotten;");
}

static int log_file;
static uint32_t n_ready;
static char refusal[100]; /* of the option model; "": none */

static void on_ready(void *ctx) {
    n_ready++;
}

static void on_refused(void *ctx, const char *why, int error) {
    snprintf(refusal, sizeof(refusal), "%d %s", error, why);
}

static void set(const char *key, const char *value) {
    struct err err = {0};

    cr_assert_eq(config_set(&config, key, value, &err), 0, "%s", err.message);
}

/* Lets what is logged go to the file. Returns the descriptor of stderr for log_back(). */
static int log_to_file(void) {
    int saved = dup(STDERR_FILENO);

    cr_assert(saved >= 0 && ftruncate(log_file, 0) == 0);
    cr_assert_geq(dup2(log_file, STDERR_FILENO), 0);
    return saved;
}

static void log_back(int saved) {
    dup2(saved, STDERR_FILENO);
    close(saved);
}

/* Starts the models of a folder, or the one of the option model. */
static void start_models(bool several) {
    const struct tiny_model tiny = {.arch = "bert"}; /* has a vocabulary */
    const struct kept_opts manager = {.store = keep, .forget = forget};
    struct err err = {0};

    log_file = open("/tmp", O_TMPFILE | O_RDWR | O_APPEND, 0600);
    int saved = log_to_file();
    world_init(&w); /* with a terminal as stderr the log would open that once more */
    log_back(saved);
    uv_loop_init(&w.loop);
    clock_virtual_init(&machine, 1000000000);
    cr_assert(mkdtemp(folder));
    tiny_model_save(&tiny, file_of("a"));
    tiny_model_save(&tiny, file_of("b"));
    cr_assert_eq(config_init(&config), 0);
    if (several) {
        set("models-dir", folder);
        set("models-memory", "1G");
    } else {
        set("model", file_of("a"));
    }
    cr_assert_eq(kept_new(&kept, &manager), 0);
    struct models_opts o = {.loop = &w.loop,
                            .config = &config,
                            .clock = &machine.clock,
                            .kept = kept,
                            .disk_fd = -1,
                            .on_ready = on_ready,
                            .on_refused = on_refused};
    cr_assert_eq(models_new(&models, &o), 0);
    cr_assert_eq(models_open(models, &err), 0, "%s", err.message);
    w.opts.rescan = models_rescan;
    w.opts.models_ctx = models;
    cr_assert_eq(models_open_api(models, &w.opts, &w.api), 0);
}

static void start(void) {
    start_models(true);
}

static void start_one(void) {
    start_models(false);
}

static void stop(void) {
    api_close(w.api);
    models_stop(models);
    uv_run(&w.loop, UV_RUN_DEFAULT);
    api_free(w.api);
    models_free(models);
    kept_free(kept);
    cr_expect_eq(uv_loop_close(&w.loop), 0);
    config_deinit(&config);
    unlink(file_of("a"));
    unlink(file_of("b"));
    rmdir(folder);
    world_deinit(&w);
}

TestSuite(models, .init = start, .fini = stop);
TestSuite(only_model, .init = start_one, .fini = stop);

static struct served *find(const char *name) {
    struct err err;
    int i = models_index(models, name, &err);

    cr_assert_geq(i, 0);
    return models->served[i];
}

/* Makes the model ready, as if its worker had become so. */
static struct served *load(const char *name) {
    struct served *s = find(name);

    if (!s->front)
        s->front = calloc(1, sizeof(*s->front));
    cr_assert(s->front);
    models_set_state(s, SERVED_QUEUED);
    models_set_state(s, SERVED_LOADING);
    models_set_state(s, SERVED_READY);
    return s;
}

static void decide_at(int64_t ns) {
    machine.ns = ns;
    models_decide_soon(models);
    uv_run(&w.loop, UV_RUN_NOWAIT);
}

/* Removes the file of @s, which the daemon notices. */
static void lose_file(const struct served *s) {
    unlink(file_of(s->name));
    machine.ns += 10000000000;
    cr_assert(models_rescan(models, NULL));
    while (models->scan.running)
        uv_run(&w.loop, UV_RUN_ONCE);
}

static void end_scans(void) {
    while (models->scan.running)
        uv_run(&w.loop, UV_RUN_ONCE);
}

Test(models, one_whose_file_goes_while_it_is_loaded_goes_after_the_load, .timeout = 60) {
    struct served *s = find("a");

    s->front = calloc(1, sizeof(*s->front));
    cr_assert(s->front);
    models_set_state(s, SERVED_QUEUED);
    models_set_state(s, SERVED_LOADING);
    lose_file(s);
    cr_expect_not(s->retired);
    decide_at(machine.ns);
    cr_expect_not(models->scan.running, "it cannot go yet");
    models_set_state(s, SERVED_READY);
    decide_at(machine.ns);
    end_scans();
    cr_expect(s->retired);
    cr_expect_eq(models_n_live(models), 1);
}

/* The scan under way may have read the file before the change. */
Test(models, one_that_changes_while_the_folder_is_read_is_read_again, .timeout = 60) {
    struct served *before = find("b"), *early;

    machine.ns += 10000000000;
    cr_assert(models_rescan(models, NULL));
    before->stale = true;
    cr_assert(models_rescan_now(models, NULL));
    while (!before->retired)
        uv_run(&w.loop, UV_RUN_ONCE);
    cr_assert(models->scan.running, "the second scan");
    early = find("b");
    end_scans();
    cr_expect(early->retired);
    cr_expect_not(find("b")->stale);
    cr_expect_eq(models_n_live(models), 2);
}

/* Lists describe a model that no worker has loaded by its header. */
Test(models, one_that_was_found_is_described_by_the_header_of_its_file, .timeout = 60) {
    struct served *s = find("b");

    cr_expect_null(s->info.arch);
    cr_expect_eq(s->info.n_params, 0);
    machine.ns += 10000000000;
    cr_assert(models_rescan(models, NULL));
    end_scans();
    cr_assert_not_null(s->info.arch);
    cr_expect_str_eq(s->info.arch, "bert");
    cr_expect_gt(s->info.n_embd, 0);
    cr_expect_gt(s->info.n_vocab, 0);
    cr_expect_gt(s->info.n_params, s->info.n_embd);
    cr_expect_gt(s->info.tensor_bytes, s->info.n_params);
}

/* An upgrade waits for each, also the last of the list. */
Test(models, loads_and_replacements_of_any_are_told) {
    struct served *s = find("b");

    cr_expect_null(models_loading(models));
    cr_expect_null(models_changing(models));
    s->front = calloc(1, sizeof(*s->front));
    cr_assert(s->front);
    models_set_state(s, SERVED_QUEUED);
    cr_expect_str_eq(models_loading(models), "a model is being loaded");
    models_set_state(s, SERVED_LOADING);
    cr_expect_str_eq(models_loading(models), "a model is being loaded");
    models_set_state(s, SERVED_READY);
    cr_expect_null(models_loading(models));
    s->old = find("a");
    cr_expect_str_eq(models_changing(models), "a model is being replaced");
    s->old = NULL;
    cr_expect_null(models_changing(models));
}

Test(models, one_that_is_replaced_waits_for_prompts_for_half_a_minute, .timeout = 60) {
    struct served *s = load("a");

    s->model->n_jobs = 1; /* its prompt may wait for a model that needs the memory of this one */
    lose_file(s);
    int64_t since = machine.ns;
    cr_expect(s->retired);
    decide_at(since + 29999999999);
    cr_expect_eq(s->state, SERVED_LEAVING);
    decide_at(since + 30000000000);
    cr_expect_not(has_memory(s));
    s->model->n_jobs = 0;
}

Test(models, one_that_is_replaced_waits_for_prompts_only_until_they_are_made, .timeout = 60) {
    struct served *s = load("a");

    s->model->n_jobs = 1;
    lose_file(s);
    decide_at(machine.ns);
    cr_expect_eq(s->state, SERVED_LEAVING);
    s->model->n_jobs = 0;
    s->model->n_running = 1; /* it runs, for as long as it takes */
    decide_at(machine.ns + 3600000000000);
    cr_expect_eq(s->state, SERVED_LEAVING);
    s->model->n_running = 0;
    cr_expect_eq(models_n(models), 2);
    decide_at(machine.ns);
    uv_run(&w.loop, UV_RUN_NOWAIT); /* closes its handles */
    cr_expect_eq(models_n(models), 1);
    cr_expect_str_eq(models->served[0]->name, "b");
}

Test(models, one_that_is_only_unloaded_does_not_wait_for_prompts) {
    struct served *s = load("a");

    s->model->n_jobs = 1; /* the request will load it again */
    models_drain(s);
    cr_expect_not(has_memory(s));
    s->model->n_jobs = 0;
}

/* Whose requests use a model decides for how long it stays. */
Test(models, tenants_whose_requests_use_one_are_its_users) {
    struct served *s = find("a");
    struct api_port *port = workers_port(s->workers);

    port->use(port, 3, 2);
    port->use(port, 3, 2);
    cr_assert_eq(s->users.n, 1);
    cr_expect_eq(s->users.user[0].tenant, 3);
    cr_expect_eq(s->users.user[0].at_ns, machine.ns);
    cr_expect_eq(find("b")->users.n, 0);
}

static bool no_frame(void *ctx, const struct chan_frame *f) {
    cr_assert(false, "a message of type %u", f->type);
    return false;
}

/* Lets a worker with @backend serve @s, as far as the front knows. Returns the worker's end of the
 * channel. */
static int serve_on(struct served *s, const char *backend) {
    static const struct worker_chan_opts none = {
        .loop = &w.loop, .clock = &machine.clock, .frame = no_frame};
    struct workers *x = s->workers;
    int fd[2];

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fd), 0);
    uv_timer_stop(&x->watch); /* looks for its process */
    worker_chan_open(&x->chan, fd[0], &none);
    workers_set_state(x, WORKERS_LOADING);
    workers_set_state(x, WORKERS_SERVING);
    x->open_sent = x->was_ready = x->served = true;
    snprintf(x->backend, sizeof(x->backend), "%s", backend);
    return fd[1];
}

/* A worker reports what it has computed for a tenant. The others of its device count it. */
Test(models, what_a_worker_computes_counts_at_others_of_its_device) {
    const struct msg_served m = {.tenant = 3, .ns = 7000};
    static const struct {
        const char *own, *other;
        bool counts;
    } cases[] = {{"cuda", "cuda", true}, {"cpu", "cpu", true}, {"cuda", "cpu", false}};

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct served *own = find("a"), *other = find("b");
        int ends[2] = {serve_on(own, cases[i].own), serve_on(other, cases[i].other)};
        struct chan chan[2];
        struct chan_frame f;

        for (int k = 0; k < 2; k++)
            chan_init(&chan[k], ends[k], 4096, 1 << 16);
        own->workers->opts.on_served(own->workers->opts.ctx, &m, 1);
        uint64_t ns = 0;
        for (uint32_t k = 0; k < own->model->n_tenants; k++)
            ns += own->model->of_tenant[k].device_ns;
        cr_expect_eq(ns, 7000 * (i + 1));
        cr_expect_eq(other->model->n_tenants, 0, "it has computed nothing");
        cr_expect_eq(chan_recv(&chan[0], &f), CHAN_EMPTY, "it knows what it did");
        cr_expect_eq(chan_recv(&chan[1], &f), cases[i].counts ? 0 : CHAN_EMPTY, "case %zu", i);
        if (cases[i].counts) {
            cr_expect_eq(f.type, MSG_SERVED);
            cr_expect(f.len == sizeof(m) && memcmp(f.data, &m, sizeof(m)) == 0);
        }
        for (int k = 0; k < 2; k++) {
            worker_chan_close(&models->served[k]->workers->chan);
            workers_set_state(models->served[k]->workers, WORKERS_IDLE);
            chan_deinit(&chan[k]);
        }
        uv_run(&w.loop, UV_RUN_NOWAIT); /* closes the handles */
    }
}

/* Sets the memory that @s needs. */
static struct served *sized(struct served *s, uint64_t bytes) {
    s->bytes = bytes;
    return s;
}

/* A model that ends leaves its room; only for what is missing then another one is unloaded. */
Test(models, one_that_waits_gets_the_room_of_those_that_end_first, .timeout = 60) {
    tiny_model_save(&(struct tiny_model){.arch = "bert"}, file_of("c"));
    machine.ns += 10000000000;
    cr_assert(models_rescan(models, NULL));
    end_scans();
    unlink(file_of("c"));
    struct served *ends = sized(load("a"), 600), *stays = sized(load("b"), 300), *waits = find("c");
    models_set_state(ends, SERVED_LEAVING);
    models_set_state(ends, SERVED_ENDING);
    waits->front = calloc(1, sizeof(*waits->front));
    cr_assert(waits->front);
    models_set_state(sized(waits, 500), SERVED_QUEUED);
    models->budget = 1000;
    decide_at(machine.ns);
    cr_expect_eq(stays->state, SERVED_READY);
    sized(ends, 400);
    sized(stays, 800);
    sized(waits, 300);
    decide_at(machine.ns);
    cr_expect_neq(stays->state, SERVED_READY);
    cr_expect_eq(waits->state, SERVED_QUEUED);
}

/* The model of the option may also be in the folder. */
Test(models, one_that_is_named_and_in_the_folder_is_one_model) {
    struct models_opts o = models->opts;
    struct models *both;
    struct err err = {0};

    set("model", file_of("b"));
    cr_assert_eq(models_new(&both, &o), 0);
    cr_assert_eq(models_open(both, &err), 0, "%s", err.message);
    cr_expect_eq(both->n, 2);
    cr_expect_str_eq(both->served[0]->name, "b");
    cr_expect_str_eq(both->served[1]->name, "a");
    models_stop(both);
    uv_run(&w.loop, UV_RUN_NOWAIT);
    models_free(both);
}

static struct models_info info_of(const struct served *s) {
    struct models_info info;
    uint32_t i = 0;

    while (models->served[i] != s)
        i++;
    models_info(models, i, &info);
    return info;
}

static int refuse_to_make(struct api *a, const struct api_model *info, struct api_port *port,
                          struct model **out) {
    return -ENOMEM;
}

/* A model is forgotten that the api, or its workers, cannot have. */
Test(models, one_that_cannot_be_made_is_forgotten) {
    for (int prepared = 0; prepared < 2; prepared++) {
        struct config c;
        struct err err = {0};

        cr_assert_eq(config_clone(&c, &config), 0);
        cr_assert_eq(models_add(models, &c, "c", 0, (struct model_file){0}), 0);
        struct served *s = models->served[2];
        struct rlimit all;
        cr_assert_eq(getrlimit(RLIMIT_NOFILE, &all), 0);
        if (!prepared)
            setrlimit(RLIMIT_NOFILE, &(struct rlimit){0, all.rlim_max});
        int r = models_bring(s, refuse_to_make, &err);
        setrlimit(RLIMIT_NOFILE, &all);
        cr_expect_eq(r, prepared ? -ENOMEM : -EMFILE);
        cr_expect_eq(strstr(err.message, "cannot prepare the worker") != NULL, !prepared);
        if (prepared) {
            cr_expect(s->retired && s->closing);
            cr_expect_lt(models_index(models, "c", &err), 0);
            cr_expect_str_eq(info_of(s).swap, "old");
            cr_expect_eq(info_of(s).unload_ms, -1);
            cr_expect_eq(models_n_live(models), 2);
        }
        uv_run(&w.loop, UV_RUN_NOWAIT); /* closes its handles */
        cr_expect_eq(models_n(models), 2);
    }
}

Test(models, an_operator_loads_one_as_a_request_does) {
    struct err err;

    cr_assert_eq(models_load(models, 1, &err), 0);
    cr_expect(models->served[1]->wanted);
    cr_expect_not(models->served[0]->wanted);
    cr_assert_eq(models_unload(models, 1, &err), 0);
    cr_expect_not(models->served[1]->wanted);
    cr_assert_eq(models_load(models, 1, &err), 0);
    cr_assert_eq(models_sleep(models, "b", &err), 0);
    cr_expect_not(models->served[1]->wanted);
    cr_expect_lt(models_sleep(models, "c", &err), 0);
    cr_expect_eq(err.status, 404);
    cr_expect_eq(models_budget(models), 1 << 30);
    models->on_demand = false; /* as with one model, which stays loaded */
    cr_expect_eq(models_budget(models), 0);
}

/* Decides until @s is in @state. */
static void run_until(const struct served *s, enum served_state state) {
    while (s->state != state) {
        models->timer.timer_cb(&models->timer);
        if (s->state != state) /* one iteration of the loop may open a file */
            uv_run(&w.loop, UV_RUN_ONCE);
    }
}

/* An unload ends a load in each of its states, and a later request loads the model. */
Test(models, a_load_that_nobody_waits_for_can_be_called_off, .timeout = 60) {
    static const enum served_state states[] = {SERVED_OPENING, SERVED_QUEUED, SERVED_LOADING};
    struct served *s = models->served[1], *busy = load("a");
    struct err err = {0};

    busy->model->n_running = 1;
    busy->load_ns = 1000000000; /* it stays, since the clock stands still */
    for (size_t i = 0; i < ARRAY_SIZE(states); i++) {
        for (int waits = 0; waits < 2; waits++) {
            struct list waiter;

            busy->bytes = states[i] == SERVED_QUEUED ? models->budget : 0;
            cr_assert_eq(models_load(models, 1, &err), 0);
            run_until(s, states[i]);
            list_init(&waiter);
            if (waits)
                list_push_back(&s->model->waiting, &waiter);
            cr_assert_eq(models_unload(models, 1, &err), 0);
            busy->bytes = 0;
            run_until(s, waits ? SERVED_LOADING : SERVED_ABSENT);
            cr_expect(waits || s->model->state == API_MODEL_ABSENT);
            list_remove(&waiter);
            cr_assert_eq(models_unload(models, 1, &err), 0);
            run_until(s, SERVED_ABSENT);
        }
    }
    busy->model->n_running = 0;
}

/* A file that was opened, or looked at, is gone on with at once, not at the next tick. */
Test(models, a_load_goes_on_when_a_thread_has_read_the_file, .timeout = 60) {
    struct served *s = find("a");
    struct err err = {0};

    for (int again = 0; again < 2; again++) {
        cr_assert_eq(models_load(models, 0, &err), 0);
        run_until(s, SERVED_OPENING);
        uv_timer_stop(&models->timer);
        while (s->state == SERVED_OPENING)
            uv_run(&w.loop, UV_RUN_ONCE);
        uv_run(&w.loop, UV_RUN_NOWAIT);
        cr_expect_eq(s->state, SERVED_LOADING);
        run_until(s, SERVED_LOADING);
        cr_assert_eq(models_unload(models, 0, &err), 0);
        run_until(s, SERVED_ABSENT);
    }
}

/* The file system may not answer when a model is loaded again, swapped, or its file replaced. */
Test(models, only_threads_look_at_files, .timeout = 60) {
    struct served *s = find("a"), *next;
    struct err err = {0};

    cr_assert_eq(models_load(models, 0, &err), 0);
    run_until(s, SERVED_LOADING);
    cr_assert_eq(models_unload(models, 0, &err), 0);
    run_until(s, SERVED_ABSENT);
    n_looks[0] = n_looks[1] = 0;
    cr_assert_eq(models_load(models, 0, &err), 0);
    run_until(s, SERVED_LOADING);
    cr_expect_null(s->next, "the same file");
    cr_expect_eq(n_looks[0], 1);
    cr_assert_eq(models_unload(models, 0, &err), 0);
    run_until(s, SERVED_ABSENT);

    const struct tiny_model other = {.arch = "bert", .n_layer = 2};
    unlink(file_of("a"));
    tiny_model_save(&other, file_of("a"));
    n_looks[0] = n_looks[1] = 0; /* the test's own */
    cr_assert_eq(models_load(models, 0, &err), 0);
    run_until(s, SERVED_OPENING);
    run_until(s, SERVED_ABSENT);
    next = s->next;
    cr_assert_not_null(next, "another file");
    run_until(next, SERVED_LOADING);
    cr_expect_neq(next->file, 0);
    cr_expect_eq(next->file, s->file);
    cr_expect_eq(next->info.created_unix, next->seen.changed_unix);
    cr_expect_geq(n_looks[0], 2u, "one before the swap, one at it");
    cr_expect_eq(n_looks[1], 0);
}

static uint32_t n_away;

static void on_away(void *ctx) {
    n_away++;
}

/* The next daemon gets the device although an operator unloads a model whose worker is ending for
 * it. */
Test(models, the_device_is_free_when_a_model_that_gives_way_is_unloaded, .timeout = 60) {
    struct served *s = models->served[1];
    struct err err = {0};

    models->opts.on_away = on_away;
    cr_assert_eq(models_load(models, 1, &err), 0);
    run_until(s, SERVED_LOADING);
    strcpy(s->workers->backend, "cuda");
    cr_expect(models_hand_over(models));
    cr_assert_eq(models_unload(models, 1, &err), 0);
    cr_expect_eq(n_away, 0);
    run_until(s, SERVED_ABSENT);
    cr_expect_eq(n_away, 1);
    models_come_back(models);
}

static char offered[40]; /* names of the models whose requests were offered */

static void on_offer(void *ctx, const char *name, int fd) {
    size_t n = strlen(offered);

    cr_assert_geq(fd, 0);
    snprintf(offered + n, sizeof(offered) - n, "%s;", name);
}

/* Returns the names of the models whose requests are offered to the next daemon now; static. */
static const char *offer(void) {
    *offered = 0;
    models_offer(models, on_offer);
    return offered;
}

static void on_answer(void *ctx) {
    n_away++;
}

/* Only requests that run, and once; the name of a model in a swap is not unique. */
Test(models, requests_are_offered_to_the_next_daemon_once, .timeout = 60) {
    struct served *a = find("a"), *b = find("b");
    int end = serve_on(a, "cpu");

    models->opts.on_answer = on_answer;
    cr_expect_str_eq(offer(), "", "no request, no READY");
    a->model->n_running = 1;
    cr_expect_str_eq(offer(), "");
    cr_assert_eq(buf_add(&a->workers->ready, "ready", 5), 0);
    a->model->n_running = 0;
    cr_expect_str_eq(offer(), "");
    a->model->n_running = 1;
    a->old = b;
    cr_expect_str_eq(offer(), "");
    a->old = NULL;
    a->retired = true;
    cr_expect_str_eq(offer(), "");
    a->retired = false;
    cr_expect_eq(models_asked(models, WORKERS_ASKED), 0);
    cr_expect_str_eq(offer(), "a;");
    cr_expect_eq(models_asked(models, WORKERS_ASKED), 1);
    cr_expect_eq(models_asked(models, WORKERS_UNASKED), 1);
    cr_expect_str_eq(offer(), "", "it was asked");
    while (models_asked(models, WORKERS_REFUSED) == 0) /* the next daemon's socket was closed */
        uv_run(&w.loop, UV_RUN_ONCE);
    cr_expect_eq(n_away, 1, "the answer is told");
    models_move(models);
    cr_expect_eq(a->workers->state, WORKERS_SERVING, "its requests stay");
    a->model->n_running = 0;
    worker_chan_close(&a->workers->chan);
    workers_set_state(a->workers, WORKERS_IDLE);
    uv_run(&w.loop, UV_RUN_NOWAIT);
    close(end);
}

static void on_over(struct api_rescan *r) {
    list_init(&r->link);
    r->over = NULL;
}

Test(models, who_waits_for_a_scan_goes_on_after_it, .timeout = 60) {
    struct api_rescan wait = {.over = on_over};

    machine.ns += 10000000000;
    cr_assert(models_rescan(models, &wait));
    while (models->scan.running)
        uv_run(&w.loop, UV_RUN_ONCE);
    cr_expect_null(wait.over);
    cr_expect_not(models_rescan(models, &wait), "the next scan comes too early");
}

/* The end of a scan, or of its time, ends the wait; a pause follows. */
Test(models, scans_have_a_pause_and_a_limit, .timeout = 60) {
    struct api_rescan wait = {.over = on_over}, more = wait;
    int64_t since;

    machine.ns += 10000000000;
    cr_assert(models_rescan(models, NULL));
    end_scans();
    since = machine.ns;
    machine.ns = since + 1999999999;
    cr_expect_not(models_rescan(models, NULL));
    machine.ns = since + 2000000000;
    cr_assert(models_rescan(models, &wait));
    since = machine.ns;
    machine.ns = since + 4999999999;
    cr_expect(models_rescan(models, &more));
    models_rescan_tick(models);
    cr_expect(wait.over && more.over);
    machine.ns = since + 5000000000;
    cr_expect_not(models_rescan(models, NULL));
    models_rescan_tick(models);
    cr_expect(!wait.over && !more.over);
    cr_expect(models->scan.running);
    end_scans();
}

static void on_left(void *ctx) {
    models = NULL;
}

Test(models, without_a_disk_tier_nothing_is_waited_for) {
    struct models *all = models;

    models_release_disk(all, on_left);
    cr_expect_null(models);
    models = all;
    cr_expect(models->disk_waits);
    models_use_disk(models);
    cr_expect(models->disk_waits, "there is no file to use");
    for (uint32_t i = 0; i < models->n; i++)
        cr_expect_eq(models->served[i]->workers->opts.disk_fd, -1);
}

/* Returns true if another daemon could lock the file @name of the disk tier now. */
static bool is_free(const char *name) {
    char path[80];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    cr_assert_geq(fd, 0);
    bool is = kvdisk_lock(fd);
    close(fd); /* with its lock */
    return is;
}

/* A daemon locks the files of the disk tier when the one before it has left them, tries again until
 * then, and leaves them for the next one. */
Test(models, files_of_the_disk_tier_have_one_user) {
    static const char *const names[] = {"prefixes.kv", "prefixes-a.kv", "prefixes-b.kv",
                                        "prefixes.key"};
    uint64_t secret[2];
    struct err err = {0};
    struct models *all = models;
    int other;
    char path[80];

    set("kv-disk", folder);
    cr_assert_eq(kvdisk_open(folder, false, &models->opts.disk_fd, secret, &err), 0);
    models->disk_waits = true;
    models_open_disk(find("a")); /* does not lock it yet */
    cr_expect(is_free("prefixes-a.kv"));
    cr_assert_eq(kvdisk_open_model(folder, "b", &other, &err), 0);
    cr_assert(kvdisk_lock(other));
    models_use_disk(models);
    cr_expect(!is_free("prefixes.kv") && !is_free("prefixes-a.kv"));
    struct served *late_one = find("b");
    models->stopping = true;
    models_open_disk(late_one);
    cr_expect_not(uv_is_active((uv_handle_t *)&models->disk_timer));
    models->stopping = false;
    close(late_one->disk_fd);
    late_one->disk_fd = -1;
    models_open_disk(late_one);
    cr_expect_eq(uv_timer_get_due_in(&models->disk_timer), 200);
    cr_expect_eq(uv_timer_get_repeat(&models->disk_timer), 0);
    cr_expect_eq(late_one->workers->opts.disk_fd, late_one->disk_fd);
    int fd = late_one->disk_fd;
    models_open_disk(late_one);
    cr_expect_eq(late_one->disk_fd, fd, "it is open");
    close(other);
    for (int i = 0; i < 500 && is_free("prefixes-b.kv"); i++) {
        usleep(10000);
        uv_run(&w.loop, UV_RUN_NOWAIT);
    }
    cr_expect_not(is_free("prefixes-b.kv"));
    cr_expect_not(uv_is_active((uv_handle_t *)&models->disk_timer));
    struct served *used = find("a");
    int end = serve_on(used, "cpu");
    for (int late = 0; late < 2; late++) { /* the worker answers, or does not in time */
        used->workers->process_open = true;
        models_release_disk(models, on_left);
        cr_assert_not_null(models, "a worker has to leave first");
        cr_expect(models->disk_waits && models->n_disk_leaving == 1);
        cr_expect_eq(uv_timer_get_due_in(&models->disk_timer), 8000);
        cr_expect_eq(uv_timer_get_repeat(&models->disk_timer), 0);
        cr_expect_not(is_free("prefixes-a.kv"));
        if (late)
            models->disk_timer.timer_cb(&models->disk_timer);
        else
            used->workers->opts.on_disk_left(used);
        cr_expect_null(models);
        models = all;
        cr_expect_eq(is_free("prefixes-a.kv"), !late);
        cr_expect_not(uv_is_active((uv_handle_t *)&models->disk_timer));
        models_use_disk(models);
        used->workers->process_open = false;
    }
    worker_chan_close(&used->workers->chan);
    workers_set_state(used->workers, WORKERS_IDLE);
    uv_run(&w.loop, UV_RUN_NOWAIT);
    close(end);
    models_release_disk(models, on_left);
    cr_expect_null(models, "no worker has to leave first");
    models = all;
    for (size_t i = 0; i < 3; i++)
        cr_expect(is_free(names[i]), "%s", names[i]);
    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        unlink(path);
    }
    close(models->opts.disk_fd);
    models->opts.disk_fd = -1;
}

/* The first model has the file that the daemon opened. */
Test(models, the_first_model_opens_no_file_of_the_disk_tier) {
    struct served *s = find("a");

    models->opts.disk_fd = 0;
    s->first = true;
    models_open_disk(s);
    cr_expect_eq(s->disk_fd, -1);
    s->first = false;
    models->opts.disk_fd = -1;
    models_open_disk(s);
    cr_expect_eq(s->disk_fd, -1, "there is no disk tier");
    cr_expect_not(uv_is_active((uv_handle_t *)&models->disk_timer));
}

/* A model and its successor have one file, so the first leaves before the other is loaded. */
Test(models, a_swap_with_a_disk_tier_waits_for_the_old_one, .timeout = 60) {
    struct served *old = load("a"), *next;
    struct stat before, after;
    uint64_t secret[2];
    struct err err = {0};
    char path[80];

    set("kv-disk", folder);
    cr_assert_eq(kvdisk_open(folder, false, &models->opts.disk_fd, secret, &err), 0);
    models_open_disk(old);
    cr_assert_eq(fstat(old->disk_fd, &before), 0);
    old->model->n_running = 1;
    cr_assert_eq(models_swap(models, 0, NULL, &err), 0, "%s", err.message);
    next = old->next;
    run_until(next, SERVED_QUEUED);
    decide_at(machine.ns);
    cr_expect_eq(next->state, SERVED_QUEUED);
    cr_expect_eq(old->state, SERVED_LEAVING, "a request runs");
    cr_expect_eq(next->disk_fd, -1);
    old->model->n_running = 0;
    run_until(next, SERVED_LOADING);
    cr_expect_eq(old->state, SERVED_ABSENT);
    cr_assert_eq(fstat(next->disk_fd, &after), 0);
    cr_expect_eq(after.st_ino, before.st_ino);
    cr_expect_neq(next->disk_fd, old->disk_fd);
    for (const char *const *name =
             (const char *const[]){"prefixes.kv", "prefixes-a.kv", "prefixes.key", NULL};
         *name; name++) {
        snprintf(path, sizeof(path), "%s/%s", folder, *name);
        cr_expect_eq(unlink(path), 0, "%s", path);
    }
    close(models->opts.disk_fd);
    models->opts.disk_fd = -1;
}

/* A model without its disk tier is served, and keeps no prefixes. */
Test(models, one_whose_file_of_the_disk_tier_cannot_be_opened_serves_without) {
    struct served *s = find("a");
    char text[300] = "";

    set("kv-disk", "/none");
    models->opts.disk_fd = 0; /* of another model */
    int saved = log_to_file();
    log_set_level(WLOG_WARN);
    models_open_disk(s);
    log_set_level(WLOG_ERROR);
    log_back(saved);
    models->opts.disk_fd = -1;
    cr_expect_eq(s->disk_fd, -1);
    cr_assert_gt(pread(log_file, text, sizeof(text) - 1, 0), 0);
    cr_expect(strstr(text, R"(model="a" what="kv-disk: /none)"), "%s", text);
}

Test(models, one_whose_worker_cannot_be_started_failed, .timeout = 60) {
    struct served *s = models->served[1], *busy = load("a");
    struct rlimit all;
    struct err err = {0};

    busy->model->n_running = 1;
    busy->load_ns = 1000000000;
    busy->bytes = models->budget;
    cr_assert_eq(models_load(models, 1, &err), 0);
    run_until(s, SERVED_QUEUED);
    busy->bytes = 0;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &all), 0);
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){0, all.rlim_max});
    models->timer.timer_cb(&models->timer);
    setrlimit(RLIMIT_NOFILE, &all);
    run_until(s, SERVED_FAILED);
    cr_expect_str_eq(s->why, "no worker can be started: Too many open files");
    cr_expect_eq(s->model->failure_retry_ms, 5000);
    busy->model->n_running = 0;
}

/* Opens the old daemon's end @c of a connection for requests of model @name, which has asked. */
static void open_guests(struct chan *c, const char *name) {
    int pair[2];

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair), 0);
    chan_init(c, pair[0], MSG_MAX_FRAME, MSG_MAX_QUEUED);
    models_accept_guests(models, name, pair[1]);
    (void)chan_send(c, MSG_READY, NULL, 0); /* fails if no such model is served */
    uv_run(&w.loop, UV_RUN_NOWAIT);
}

/* The model that requests of the previous daemon ask for is loaded; if that cannot succeed, they
 * stay where they are. */
Test(models, requests_of_the_previous_daemon_load_their_model) {
    struct served *a = find("a"), *b = find("b");
    struct chan_frame f;
    struct chan c;

    models->away = true; /* so that the model is wanted, and not loaded */
    open_guests(&c, "a");
    cr_expect(a->wanted && !b->wanted);
    cr_expect_eq(chan_recv(&c, &f), CHAN_EMPTY, "it is not answered yet");
    strcpy(a->why, "it failed");
    models_answer_guests(b);
    uv_run(&w.loop, UV_RUN_NOWAIT);
    cr_expect_eq(chan_recv(&c, &f), CHAN_EMPTY, "the other model's answer");
    models_answer_guests(a);
    uv_run(&w.loop, UV_RUN_NOWAIT);
    cr_expect_eq(chan_recv(&c, &f), -EPIPE);
    chan_deinit(&c);
    open_guests(&c, "none");
    cr_expect_eq(chan_recv(&c, &f), -EPIPE);
    chan_deinit(&c);
    open_guests(&c, "b");
    models_close_guests(models, a);
    uv_run(&w.loop, UV_RUN_NOWAIT);
    cr_expect_eq(chan_recv(&c, &f), CHAN_EMPTY);
    models_close_guests(models, b);
    uv_run(&w.loop, UV_RUN_NOWAIT);
    cr_expect_eq(chan_recv(&c, &f), -EPIPE);
    chan_deinit(&c);
}

Test(models, folders_without_a_model_are_refused) {
    CLEANUP(buf_deinit) struct buf memory = {.max = 4096};
    struct err err = {0};

    cr_expect_eq(models_check(&config, &memory, &err), 0);
    unlink(file_of("a"));
    unlink(file_of("b"));
    cr_expect_lt(models_check(&config, &memory, &err), 0);
    cr_expect(strstr(err.message, "contain no model"), "%s", err.message);
}

Test(models, one_that_failed_is_tried_again_when_it_is_wanted, .timeout = 60) {
    struct served *s = find("a");

    s->front = calloc(1, sizeof(*s->front));
    cr_assert(s->front);
    models_set_state(s, SERVED_QUEUED);
    models_set_state(s, SERVED_FAILED);
    models->budget = 0; /* it fails again */
    decide_at(machine.ns);
    cr_expect_str_eq(s->why, "");
    models_want(s);
    run_until(s, SERVED_OPENING); /* looks at the file again */
    run_until(s, SERVED_FAILED);
    cr_expect(strstr(s->why, "models-memory is 0 MiB"), "%s", s->why);
}

/* A change of the files of models, as a client waits for it. */
struct change {
    struct api_task task;
    struct err err;
    char lines[100];
    uint32_t n_over;
};

static void on_line(struct api_task *t, const char *json, size_t len) {
    struct change *c = CONTAINER_OF(t, struct change, task);
    size_t n = strlen(c->lines);

    snprintf(c->lines + n, sizeof(c->lines) - n, "%.*s", (int)len, json);
}

static void on_end(struct api_task *t, const struct err *err) {
    struct change *c = CONTAINER_OF(t, struct change, task);

    c->n_over++;
    c->err = err ? *err : (struct err){0};
}

static struct change new_change(void) {
    return (struct change){.task = {.line = on_line, .over = on_end}};
}

static void wait_for(struct change *c) {
    while (c->n_over == 0)
        uv_run(&w.loop, UV_RUN_ONCE);
    cr_expect_eq(c->n_over, 1);
}

/* Returns the content of the file @name of the folder, without its last character; "": none. */
static const char *text_of(const char *name) {
    static char text[400], path[80];

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *f = fopen(path, "r");
    size_t n = f ? fread(text, 1, sizeof(text), f) : 0;
    if (f)
        fclose(f);
    text[n > 0 ? n - 1 : 0] = 0;
    return text;
}

/* Writes the weftctl of the test: it notes its arguments and ends with the number at the end of the
 * model's name. */
static void make_weftctl(void) {
    char path[80];

    snprintf(path, sizeof(path), "%s/weftctl", folder);
    FILE *f = fopen(path, "w");
    cr_assert(f);
    fprintf(f,
            "#!/bin/sh\necho \"$*\" >%s/args\n"
            "case $* in *stays*) exec sleep 1000;; rm*) rm %s/a.gguf; exit;; esac\n"
            "echo '{\"part\":1}'\ncase $* in *-69*) echo '{\"error\":\"%s/x: no route\"}';; esac\n"
            "name=${3#hf:}\nname=${name%%:*}\nexit ${name##*-}\n",
            folder, folder, folder);
    fclose(f);
    chmod(path, 0755);
}

static void remove_weftctl(void) {
    static const char *const names[] = {"weftctl", "args"};
    char path[80];

    for (size_t i = 0; i < ARRAY_SIZE(names); i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        unlink(path);
    }
}

Test(models, a_pull_ends_as_weftctl_does, .timeout = 60) {
    static const struct {
        const char *name, *spec, *why;
        uint16_t status;
    } cases[] = {
        {"hf.co/o/r-0:latest", "hf:o/r-0", "", 0},
        {"hf:o/r-0:Q8_0", "hf:o/r-0:Q8_0", "", 0},
        {"https://huggingface.co/o/r-64", "hf:o/r-64",
         "weftctl failed; the server's log has the reason", 400},
        {"huggingface.co/o/r-69", "hf:o/r-69", "models-dir/x: no route", 502},
        {"https://hf.co/o/r-77", "hf:o/r-77", "weftctl failed; the server's log has the reason",
         403},
        {"hf.co/o/r-5", "hf:o/r-5", "weftctl failed; the server's log has the reason", 400},
    };
    char args[200];

    make_weftctl();
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct change c = new_change();

        cr_assert_eq(models_manage.pull(models, cases[i].name, &c.task, &c.err), 0, "%s",
                     c.err.message);
        wait_for(&c);
        size_t n = (size_t)snprintf(args, sizeof(args), "pull --json %s --models=%s", cases[i].spec,
                                    folder);
        uint64_t memory = memory_for_model(models->available);
        if (memory)
            snprintf(args + n, sizeof(args) - n, " --memory=%llu", (unsigned long long)memory);
        cr_expect_str_eq(text_of("args"), args);
        cr_expect_eq(c.err.status, cases[i].status, "%s: %d", cases[i].name, c.err.status);
        cr_expect_str_eq(c.err.message, cases[i].why);
        cr_expect_str_eq(c.lines, R"({"part":1})");
    }
    cr_expect(list_empty(&models->pulls));
    remove_weftctl();
}

static uint32_t n_pulls(void) {
    uint32_t n = 0;

    LIST_FOREACH(node, &models->pulls)
    n++;
    return n;
}

Test(models, a_pull_that_cannot_begin_says_why, .timeout = 60) {
    static const char *const bad[] = {"a",          "hf.co/",       "hf.co/o",  "hf.co//r",
                                      "hf.co/o/-r", "hf.co/o/r;ls", "x.co/o/r", "hf.co/-o/r"};
    static struct change c[5];
    char longest[320];

    for (size_t i = 0; i <= ARRAY_SIZE(bad); i++) {
        c[0] = new_change();
        snprintf(longest, sizeof(longest), "hf.co/o/%0298d", 0);
        cr_expect_lt(models_manage.pull(models, i < ARRAY_SIZE(bad) ? bad[i] : longest, &c[0].task,
                                        &c[0].err),
                     0);
        cr_expect(strstr(c[0].err.message, "only models of the Hugging Face hub"), "%s",
                  c[0].err.message);
        cr_expect_eq(c[0].err.status, 400);
    }
    cr_expect_lt(models_manage.pull(models, "hf.co/o/r", &c[0].task, &c[0].err), 0);
    cr_expect(strstr(c[0].err.message, "/weftctl cannot be run: No such file"), "%s",
              c[0].err.message);
    cr_expect_eq(c[0].err.status, 500);
    make_weftctl();
    for (size_t i = 0; i < ARRAY_SIZE(c); i++) {
        c[i] = new_change();
        int r = models_manage.pull(models, "hf.co/o/stays", &c[i].task, &c[i].err);
        cr_expect_eq(r < 0, i == 4, "%s", c[i].err.message);
    }
    cr_expect(strstr(c[4].err.message, "4 pulls are running"), "%s", c[4].err.message);
    cr_expect_str_eq(models_changing(models), "a model is being pulled");
    cr_expect_eq(c[4].err.status, 429);
    models_manage.cancel(models, &c[0].task);
    while (n_pulls() == 4)
        uv_run(&w.loop, UV_RUN_ONCE);
    set("models-dir", "");
    cr_expect_lt(models_manage.pull(models, "hf.co/o/r", &c[4].task, &c[4].err), 0);
    cr_expect(strstr(c[4].err.message, "no folder for pulled models"), "%s", c[4].err.message);
    remove_weftctl(); /* stop() ends the other pulls, whose clients are not told */
}

Test(models, a_file_is_removed_if_no_other_model_needs_it, .timeout = 60) {
    struct change c = new_change();
    struct served *a = find("a"), *b = find("b");
    char own[80], args[200];

    make_weftctl();
    snprintf(own, sizeof(own), "%s", b->config.model);
    cr_assert_eq(config_set(&b->config, "model", a->config.model, &c.err), 0);
    cr_assert_eq(models_manage.remove(models, "a", &c.task, &c.err), 0, "%s", c.err.message);
    wait_for(&c);
    cr_expect(strstr(c.err.message, "model 'b' uses its file"), "%s", c.err.message);
    cr_expect_eq(c.err.status, 400);
    cr_expect_str_eq(text_of("args"), "");
    cr_assert_eq(config_set(&b->config, "model", own, &c.err), 0);
    c = new_change();
    cr_assert_eq(models_manage.remove(models, "a", &c.task, &c.err), 0, "%s", c.err.message);
    wait_for(&c);
    cr_expect_str_eq(c.err.message, "");
    snprintf(args, sizeof(args), "rm --models=%s -- a", folder);
    cr_expect_str_eq(text_of("args"), args);
    cr_expect(a->retired && !b->retired);
    cr_expect_lt(models_manage.remove(models, "b", &c.task, &c.err), 0);
    cr_expect(strstr(c.err.message, "it is the last one"), "%s", c.err.message);
    cr_expect_lt(models_manage.remove(models, "none", &c.task, &c.err), 0);
    remove_weftctl();
}

/* ---- presets ---- */

static char presets[80]; /* a folder */

static void begin_presets(void) {
    snprintf(presets, sizeof(presets), "%s/presets", folder);
    cr_assert_eq(mkdir(presets, 0700), 0);
    set("models", presets);
}

static void end_presets(void) {
    char command[100];

    snprintf(command, sizeof(command), "rm -r %s", presets);
    cr_assert_eq(system(command), 0);
}

static void write_preset(const char *name, const char *text) {
    char path[120];

    snprintf(path, sizeof(path), "%s/%s.conf", presets, name);
    FILE *f = fopen(path, "w");
    cr_assert(f && fputs(text, f) >= 0 && fclose(f) == 0);
    machine.ns += 10000000000;
    cr_assert(models_rescan(models, NULL));
    end_scans();
}

/* Makes the preset @p and waits for that. Returns the reason why it was not made; static. */
static const char *make(const struct api_preset *p) {
    static struct change c;

    c = new_change();
    if (models_manage.create(models, p, &c.task, &c.err) == 0)
        wait_for(&c);
    return c.err.message;
}

static const char *unmake(const char *name) {
    static struct change c;

    c = new_change();
    if (models_manage.remove(models, name, &c.task, &c.err) == 0)
        wait_for(&c);
    return c.err.message;
}

Test(models, clients_make_change_and_remove_presets, .timeout = 60) {
    struct api_preset p = {.name = "mine", .from = "a", .sampling = "temperature=1"};
    const struct served *first;

    cr_expect(strstr(make(&p), "no folder for presets"));
    begin_presets();
    p.from = "none";
    cr_expect(strstr(make(&p), "no model is named none"));
    p.from = "a";
    p.template = "{{ 1 }}";
    p.max_context = 99;
    cr_expect_str_eq(make(&p), "");
    cr_assert_eq(models_n_live(models), 3);
    first = find("mine");
    cr_expect_str_eq(first->config.sampling[0], "temperature=1");
    cr_expect_eq(first->config.engine.max_context, 99);
    cr_expect_str_eq(first->config.model, find("a")->config.model);
    p.sampling = "temperature=0";
    p.system = "Be brief.";
    cr_expect_str_eq(make(&p), "");
    cr_expect_str_eq(find("mine")->config.sampling[0], "temperature=0");
    cr_expect_str_eq(text_of("presets/mine.system"), "Be brief");
    cr_expect_eq(models_n_live(models), 3);
    p.template = "{% if";
    p.sampling = "temperature=2";
    cr_expect(strstr(make(&p), "must be a Jinja chat template"));
    cr_expect_str_eq(find("mine")->config.sampling[0], "temperature=0");
    write_preset("theirs", "model = a\n");
    cr_expect(strstr(unmake("theirs"), "belongs to the operator"));
    cr_expect_str_eq(unmake("mine"), "");
    cr_expect_str_eq(text_of("presets/mine.conf"), "");
    cr_expect_eq(models_n_live(models), 3, "a, b and theirs");
    end_presets();
}

/* Changes are made one after another; one whose client has gone before its turn is not made. */
Test(models, changes_of_presets_wait_for_each_other, .timeout = 60) {
    static struct change c[17];
    char name[17][4];
    struct err err = {0};

    begin_presets();
    for (size_t i = 0; i < ARRAY_SIZE(c); i++) {
        snprintf(name[i], sizeof(name[i]), "m%zu", i);
        const struct api_preset p = {.name = name[i], .from = "b"};

        c[i] = new_change();
        int r = models_manage.create(models, &p, &c[i].task, &err);
        cr_assert_eq(r < 0, i == 16, "%zu: %s", i, err.message);
    }
    cr_expect_eq(err.status, 429);
    cr_expect(strstr(err.message, "16 presets are being made"), "%s", err.message);
    cr_expect_str_eq(models_changing(models), "a preset is being changed");
    models_manage.cancel(models, &c[5].task);
    for (size_t i = 0; i < 16; i++)
        if (i != 5)
            wait_for(&c[i]);
    cr_expect_eq(models_n_live(models), 17);
    cr_expect_str_eq(text_of("presets/m5.conf"), "");
    cr_expect_eq(c[5].n_over, 0);
    cr_expect_null(models_changing(models));
    end_presets();
}

Test(models, presets_that_cannot_be_read_are_told, .timeout = 60) {
    const char *why = NULL;

    begin_presets();
    write_preset("bad", "nonsense = 1\n");
    cr_assert_not_null(models_bad_preset(models, 0, &why));
    cr_expect_str_eq(models_bad_preset(models, 0, &why), "bad");
    cr_expect(strstr(why, "nonsense"), "%s", why);
    cr_expect_null(models_bad_preset(models, 1, &why));
    cr_expect_eq(models_n_live(models), 2);
    write_preset("bad", "model = a\n");
    cr_expect_null(models_bad_preset(models, 0, &why));
    cr_expect_eq(models_n_live(models), 3);
    cr_expect_str_eq(find("bad")->info.arch, "bert");
    write_preset("worse", "model = b\n");
    write_preset("bad", "nonsense = 1\n");
    write_preset("worse", "nonsense = 2\n");
    cr_expect_str_eq(models_bad_preset(models, 1, &why), "worse");
    cr_expect_eq(models_n_live(models), 4, "they are served as they were read");
    end_presets();
}

/* ---- workers that are ready, and those that are refused ---- */

/* Reports as the worker of @s that it is ready with @bytes of memory and room for 400 tokens.
 * Returns what is logged; static. */
static const char *become_ready(struct served *s, uint64_t bytes) {
    const struct msg_ready m = {.memory_bytes = bytes, .max_context = 400, .page_tokens = 16};
    static char text[1000];

    int saved = log_to_file();
    log_set_level(WLOG_INFO);
    s->workers->opts.on_ready(s->workers->opts.ctx, &m);
    log_set_level(WLOG_ERROR);
    log_back(saved);
    ssize_t n = pread(log_file, text, sizeof(text) - 1, 0);
    text[MAX(n, 0)] = 0;
    return text;
}

Test(models, one_that_is_loaded_says_what_it_has, .timeout = 60) {
    struct served *s = find("a");
    struct err err = {0};

    cr_expect(info_of(s).idle_ms == -1 && info_of(s).memory == 0);
    s->config.engine.max_context = 600;
    s->retry_ms = 5000;
    workers_port(s->workers)->want(workers_port(s->workers));
    cr_expect(s->wanted, "by a request");
    run_until(s, SERVED_LOADING);
    s->workers->opts.on_progress(s->workers->opts.ctx, 0.5f);
    cr_expect_eq(s->model->progress, 0.5f);
    cr_expect_eq(info_of(s).progress, 0.5f);
    machine.ns += 7000000;
    const char *log = become_ready(s, 5000);
    cr_expect(strstr(log, "asked=600 max_context=400"), "%s", log);
    cr_expect(strstr(log, R"(model="a" bytes=5000)"), "%s", log);
    cr_expect_eq(s->model->info->max_context, 400);
    cr_expect(s->load_ns == 7000000 && s->retry_ms == 0);
    machine.ns += 3000000;
    struct models_info info = info_of(s);
    cr_expect_str_eq(info.state, "loaded");
    cr_expect(info.bytes == 5000 && info.memory == 5000 && info.n_loads == 1);
    cr_expect(info.progress == 1 && info.idle_ms == 3 && info.unload_ms == -1);
    cr_expect(*info.swap == 0 && *info.why == 0);
    cr_assert_eq(models_unload(models, 0, &err), 0);
    run_until(s, SERVED_ABSENT);
    cr_expect_eq(info_of(s).memory, 0);
    cr_assert_eq(models_load(models, 0, &err), 0);
    run_until(s, SERVED_LOADING);
    log = become_ready(s, 5000);
    cr_expect_null(strstr(log, "asked=600"), "once is enough");
    cr_expect_eq(info_of(s).n_loads, 2);
}

/* Requests of the previous daemon name no model that could go on with them here. */
Test(models, requests_of_the_previous_daemon_are_answered_when_it_is_loaded, .timeout = 60) {
    struct served *s = find("b");
    struct chan_frame f;
    struct chan c;

    open_guests(&c, "b");
    run_until(s, SERVED_LOADING);
    cr_expect_eq(chan_recv(&c, &f), CHAN_EMPTY);
    cr_assert_eq(buf_add(&s->workers->ready, "ready", 5), 0);
    become_ready(s, 5000);
    uv_run(&w.loop, UV_RUN_NOWAIT);
    cr_expect_eq(chan_recv(&c, &f), -EPIPE);
    chan_deinit(&c);
}

Test(models, a_swap_ends_with_the_new_one_in_its_place, .timeout = 60) {
    struct served *old = load("a"), *next;
    struct err err = {0};

    old->n_loads = 3;
    old->wanted = old->first = true;
    old->model->n_running = 1;
    workers_port(old->workers)->use(workers_port(old->workers), 7, 1);
    cr_assert_eq(models_swap(models, 0, NULL, &err), 0, "%s", err.message);
    next = old->next;
    cr_expect(next->first);
    cr_expect_str_eq(info_of(old).swap, "under way");
    cr_expect_str_eq(info_of(next).swap, "next");
    cr_expect_eq(find("a"), old);
    cr_expect_lt(models_swap(models, 0, NULL, &err), 0);
    cr_expect_eq(err.status, 409);
    run_until(next, SERVED_LOADING);
    cr_expect_eq(old->state, SERVED_READY, "there is room for both");
    models->ready_told = true;
    become_ready(next, 5000);
    cr_expect_eq(find("a"), next);
    cr_expect_eq(models->served[0], next);
    cr_expect_str_eq(info_of(next).swap, "done");
    cr_expect_eq(next->n_loads, 4);
    cr_expect(next->users.n == 1 && next->users.user[0].tenant == 7);
    cr_expect_str_eq(info_of(old).swap, "old");
    cr_expect(old->retired && !old->wanted);
    decide_at(machine.ns);
    cr_expect_eq(old->state, SERVED_LEAVING, "a request still runs");
    old->model->n_running = 0;
    decide_at(machine.ns);
    uv_run(&w.loop, UV_RUN_NOWAIT); /* closes its handles */
    cr_expect_eq(models_n(models), 2);
    cr_expect_eq(n_ready, 0);
}

Test(models, a_swap_to_what_cannot_be_loaded_leaves_the_old_one, .timeout = 60) {
    struct served *old = load("a"), *next;
    struct err err = {0};

    cr_assert_eq(models_swap(models, 0, "/none.gguf", &err), 0, "%s", err.message);
    next = old->next;
    old->model->n_running = 1;
    run_until(next, SERVED_FAILED);
    cr_expect_null(old->next);
    cr_expect_str_eq(old->swap, "failed: model: /none.gguf: No such file or directory");
    cr_expect_eq(find("a"), old);
    cr_expect_eq(old->state, SERVED_READY);
    cr_expect(old->wanted, "requests use it");
    old->model->n_running = 0;
    while (models_n(models) > 2) {
        decide_at(machine.ns);
        uv_run(&w.loop, UV_RUN_NOWAIT);
    }
    models_set_state(old, SERVED_LEAVING);
    cr_expect_lt(models_swap(models, 0, NULL, &err), 0);
    cr_expect_eq(err.status, 409);
}

/* Each failure doubles the pause before the next try, from 5 seconds to a minute. */
Test(models, one_that_no_worker_can_load_pauses_longer_each_time, .timeout = 60) {
    static const uint32_t pauses[] = {5000, 10000, 20000, 40000, 60000, 60000};
    struct served *s = find("a");
    struct err err = {0};

    for (size_t i = 0; i < ARRAY_SIZE(pauses); i++) {
        cr_assert_eq(models_load(models, 0, &err), 0);
        run_until(s, SERVED_LOADING);
        s->workers->opts.on_refused(s->workers->opts.ctx, "no such tensor", -EINVAL);
        run_until(s, SERVED_FAILED);
        cr_expect_str_eq(info_of(s).why, "no such tensor");
        cr_expect_str_eq(s->model->failure, "no such tensor");
        cr_expect_eq(s->model->failure_retry_ms, pauses[i]);
        cr_expect_not(s->wanted);
    }
    cr_assert_eq(models_load(models, 0, &err), 0);
    run_until(s, SERVED_LOADING);
    cr_expect_str_eq(s->why, "");
    become_ready(s, 1);
    cr_expect_eq(s->retry_ms, 0);
    cr_expect_str_eq(refusal, "", "the daemon goes on");
}

Test(models, one_that_no_request_uses_is_unloaded_in_time) {
    struct served *s = load("a");

    s->ready_ns = s->used_ns = machine.ns;
    cr_expect_eq(models_unload_ms(s), -1);
    s->config.keep_alive_s = 60;
    cr_expect_eq(models_unload_ms(s), 60000);
    s->model->keep_alive_s = 90; /* asked for by a request */
    cr_expect_eq(models_unload_ms(s), 90000);
    s->model->keep_alive_s = -1;
    cr_expect_eq(models_unload_ms(s), -1);
    s->model->keep_alive_s = API_KEEP_UNSET;
    s->model->n_running = 1;
    cr_expect_eq(models_unload_ms(s), -1);
    s->model->n_running = 0;
    s->config.pinned = true;
    cr_expect_eq(models_unload_ms(s), -1);
    s->config.pinned = false;
    decide_at(machine.ns + 59999000000);
    cr_expect_eq(models_unload_ms(s), 1);
    cr_expect_eq(s->state, SERVED_READY);
    decide_at(machine.ns + 1000000);
    cr_expect_neq(s->state, SERVED_READY);
}

Test(models, pinned_ones_are_loaded_at_the_start_and_stay, .timeout = 60) {
    struct served *a = find("a"), *b = find("b");
    struct err err = {0};

    b->config.pinned = true;
    cr_assert_eq(models_start(models), 0);
    cr_expect(b->wanted && !a->wanted);
    cr_expect_eq(n_ready, 1, "none has to be ready first");
    run_until(b, SERVED_LOADING);
    become_ready(b, 1 << 20);
    cr_expect_eq(n_ready, 1);
    cr_expect_lt(models_unload(models, 1, &err), 0);
    cr_expect_str_eq(err.code, "pinned");
    models->budget = (1 << 20) + 1;
    cr_assert_eq(models_load(models, 0, &err), 0);
    run_until(a, SERVED_FAILED);
    char needs[40];
    snprintf(needs, sizeof(needs), "it needs %u MiB, but", (unsigned)(a->bytes >> 20));
    cr_expect(a->bytes >> 20 > 1 && strncmp(a->why, needs, strlen(needs)) == 0, "%s", a->why);
    cr_expect(strstr(a->why, "models-memory is 1 MiB and pinned models use 1 MiB"), "%s", a->why);
    end_scans();
}

Test(models, the_device_of_any_is_told) {
    cr_expect_null(models_device(models));
    strcpy(find("b")->workers->backend, "cuda");
    cr_expect_str_eq(models_device(models), "cuda");
}

/* ---- the only model ---- */

Test(only_model, is_loaded_at_the_start, .timeout = 60) {
    struct served *s = models->served[0];
    struct err err = {0};

    cr_expect_str_eq(s->name, "a");
    cr_assert_eq(models_start(models), 0);
    cr_expect_eq(s->state, SERVED_LOADING);
    cr_expect_eq(models_budget(models), 0);
    cr_expect_lt(models_unload(models, 0, &err), 0);
    cr_expect_eq(err.status, 409);
    cr_expect(strstr(err.message, "loaded at the start"), "%s", err.message);
    s->workers->opts.on_refused(s->workers->opts.ctx, "no memory", -ENOMEM);
    cr_expect_str_eq(refusal, "-12 no memory", "ends the daemon");
    cr_expect_eq(s->state, SERVED_LOADING);
    const char *log = become_ready(s, 5000);
    cr_expect_null(strstr(log, "bytes=5000"), "worker_ready says it");
    cr_expect_eq(n_ready, 1);
    cr_expect_eq(models_load(models, 0, &err), 0);
    cr_expect_not(s->wanted);
    /* From here on requests load it. */
    cr_assert_eq(models_unload(models, 0, &err), 0);
    cr_expect_gt(models_budget(models), 0);
    run_until(s, SERVED_ABSENT);
    workers_port(s->workers)->want(workers_port(s->workers));
    run_until(s, SERVED_LOADING);
    become_ready(s, 5000);
    cr_expect_eq(n_ready, 1);
}

/* The daemon that runs may keep its memory. */
Test(only_model, has_to_fit_beside_a_running_daemon) {
    static const struct {
        bool waits;
        uint64_t available;
        bool fits;
    } cases[] = {{true, 1, true}, {false, UINT64_C(1) << 40, true}, {false, 1, false}};
    struct models_opts o = models->opts;
    struct models *beside;

    o.beside = true;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct err err = {0};
        unsigned long long needs = 0, left = 1;

        o.waits = cases[i].waits;
        cr_assert_eq(models_new(&beside, &o), 0);
        beside->available = cases[i].available;
        cr_expect_eq(models_open(beside, &err) == 0, cases[i].fits, "%s", err.message);
        if (cases[i].fits) {
            models_stop(beside);
            uv_run(&w.loop, UV_RUN_NOWAIT);
            models_free(beside);
            continue;
        }
        const char *why = strstr(err.message, "its worker needs");
        cr_assert(why, "%s", err.message);
        sscanf(why, "its worker needs %llu MiB, and %llu MiB are left", &needs, &left);
        cr_expect(needs > 0 && left == 0, "%s", why);
        uv_close((uv_handle_t *)&beside->timer, NULL);
        uv_close((uv_handle_t *)&beside->disk_timer, NULL);
        uv_run(&w.loop, UV_RUN_NOWAIT);
        models_free(beside);
    }
}

/* ---- limits, numbers and texts ---- */

/* Closes @m, which is another one than that of the suite. */
static void close_others(struct models *m) {
    models_stop(m);
    uv_run(&w.loop, UV_RUN_NOWAIT);
    models_free(m);
}

/* A model that is loaded at the start may have a quarter of the memory for its pages; models of a
 * folder share nine tenths, and each may have an eighth of that. */
Test(models, memory_is_divided_by_the_kind_of_daemon) {
    static const struct {
        const char *key, *memory, *keep_alive;
        bool several, on_demand;
    } cases[] = {
        {"model", "", "0", false, false},         {"model", "", "1", false, true},
        {"model", "3G", "0", false, false},       {"models", "", "0", true, true},
        {"models-dir", "", "0", true, true},      {"models-dir", "3G", "0", true, true},
        {"models-dir", "1000G", "1", true, true},
    };
    struct models_opts o = models->opts;

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct err err = {0};
        struct models *m;
        struct config c;

        cr_assert_eq(config_init(&c), 0);
        cr_assert_eq(config_set(&c, cases[i].key, folder, &err), 0);
        cr_assert_eq(config_set(&c, "keep-alive-s", cases[i].keep_alive, &err), 0);
        if (*cases[i].memory)
            cr_assert_eq(config_set(&c, "models-memory", cases[i].memory, &err), 0);
        o.config = &c;
        cr_assert_eq(models_new(&m, &o), 0);
        uint64_t quarter = m->available / 4, all = m->available / 10 * 9;
        if (*cases[i].memory)
            all = c.models_memory;
        cr_expect_eq(m->several, cases[i].several, "%zu", i);
        cr_expect_eq(m->on_demand, cases[i].on_demand, "%zu", i);
        cr_expect_eq(m->budget, all, "%zu", i);
        cr_expect_eq(m->kv_bytes, cases[i].several ? MIN(quarter, all / 8) : quarter, "%zu", i);
        cr_expect_eq(m->started_ns, machine.ns);
        cr_expect_eq(models_budget(m), cases[i].on_demand ? all : 0, "%zu", i);
        cr_expect(!m->ready_told && !m->stopping && !m->disk_waits && m->n == 0);
        close_others(m);
        config_deinit(&c);
    }
}

/* Checks the options of the workers of @s. */
static void expect_workers(const struct served *s, uint64_t kv_bytes, uint64_t memory, int disk_fd,
                           bool waits) {
    const struct workers_opts *o = &s->workers->opts;

    cr_expect(o->loop == &w.loop && o->config == &s->config && o->clock == &machine.clock);
    cr_expect(o->kept == kept && o->ctx == s);
    cr_expect_eq(o->kv_bytes, kv_bytes);
    cr_expect_eq(o->memory_bytes, memory);
    cr_expect_eq(o->disk_fd, disk_fd);
    cr_expect_eq(o->disk_waits, waits);
    cr_expect_null(o->on_blocks);
    cr_expect(s->room.kv_bytes == kv_bytes && s->room.memory_bytes == memory);
}

Test(models, workers_get_the_options_of_their_model) {
    struct models_opts o = models->opts;
    struct models *both;
    struct err err = {0};

    for (uint32_t i = 0; i < 2; i++) {
        expect_workers(models->served[i], models->kv_bytes, 1 << 30, -1, false);
        cr_expect_not(models->served[i]->room.has_disk);
        cr_expect(models->served[i]->workers->port.want && models->served[i]->workers->port.use);
    }
    set("model", file_of("a"));
    o.disk_fd = 0; /* is not read here */
    o.beside = o.waits = true;
    cr_assert_eq(models_new(&both, &o), 0);
    cr_assert_eq(models_open(both, &err), 0, "%s", err.message);
    cr_assert_eq(both->n, 2);
    expect_workers(both->served[0], both->kv_bytes, 1 << 30, 0, true);
    expect_workers(both->served[1], both->kv_bytes, 1 << 30, -1, true);
    cr_expect(both->served[0]->room.has_disk && both->served[1]->room.has_disk);
    cr_expect(both->served[0]->first && !both->served[1]->first);
    cr_expect(!both->served[0]->found && both->served[1]->found);
    cr_expect_eq(models_bytes_at_start(both),
                 memory_for_model(both->available) ? both->served[0]->front->memory_bytes : 0);
    cr_expect_eq(models_bytes_at_start(models), 0, "none is loaded at the start");
    close_others(both);
}

Test(only_model, has_all_memory) {
    struct served *s = models->served[0];

    expect_workers(s, 0, models->available, -1, false);
    cr_expect_null(s->workers->port.want);
    cr_expect_eq(models->kv_bytes, models->available / 4);
    cr_expect_geq(models->budget, s->front->memory_bytes);
    cr_expect(s->first && !s->found);
    cr_expect_eq(models_unload_ms(s), -1);
    s->config.keep_alive_s = 60;
    load("a")->used_ns = machine.ns;
    cr_expect_eq(models_unload_ms(s), -1, "not before it is loaded on demand");
    decide_at(machine.ns);
    cr_expect_not(uv_is_active((uv_handle_t *)&models->timer));
    models->on_demand = true;
    cr_expect_eq(models_unload_ms(s), 60000);
    models->on_demand = false;
}

/* A list shows a model by its file's name and time, and all else when a thread has read it. */
Test(models, one_is_described_by_its_file, .timeout = 60) {
    static const struct timespec times[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    struct served *s = find("b");
    struct stat st;

    cr_assert_eq(lstat(file_of("b"), &st), 0);
    cr_expect_str_eq(s->info.id, "b");
    cr_expect_str_eq(s->info.file, "b.gguf");
    cr_expect_eq(s->info.n_bytes, (uint64_t)st.st_size);
    cr_expect_eq(s->bytes, (uint64_t)st.st_size);
    cr_expect_eq(s->info.created_unix, st.st_mtime);
    cr_expect_eq(s->info.keep_alive_s, 0);
    cr_expect_neq(s->file, 0);
    cr_expect_not(s->model->opened);
    cr_assert_eq(utimensat(AT_FDCWD, file_of("b"), times, 0), 0);
    struct api_model before = s->info;
    models_want(s);
    run_until(s, SERVED_LOADING);
    const struct front_model *f = s->front;
    cr_expect(s->info.id == before.id && s->info.aliases == before.aliases);
    cr_expect_eq(s->info.tags, before.tags);
    cr_expect_eq(s->info.created_unix, 1000);
    cr_expect_eq(s->file, s->seen.id);
    cr_expect_eq(s->bytes, f->memory_bytes);
    cr_expect_eq(s->file_bytes, f->api.n_bytes);
    cr_expect_eq(s->info.n_params, f->api.n_params);
    cr_expect_eq(s->info.tokenizer, f->tokenizer);
    cr_expect_eq(s->workers->opts.file, f->file);
    cr_expect(!s->workers->opts.draft && !s->workers->opts.projector);
    cr_expect_eq(s->workers->keys, f->keep_key);
    cr_expect_eq(s->experts_fd, -1);
    cr_expect_null(s->opened);
    cr_expect(s->model->opened);
    cr_expect(s->loading_ns == machine.ns && s->queued_ns == machine.ns);
}

/* A request names a model in each of its states. */
Test(models, one_is_wanted_unless_it_comes) {
    static const enum served_state states[] = {SERVED_OPENING, SERVED_QUEUED,  SERVED_LOADING,
                                               SERVED_READY,   SERVED_LEAVING, SERVED_ENDING};
    struct served *s = find("a");

    models->away = true; /* nothing is decided */
    s->front = calloc(1, sizeof(*s->front));
    cr_assert(s->front);
    for (size_t i = 0; i < ARRAY_SIZE(states); i++) {
        models_set_state(s, states[i]);
        machine.ns++;
        uv_timer_stop(&models->timer);
        models_want(s);
        cr_expect_eq(s->wanted, s->state < SERVED_QUEUED || s->state > SERVED_READY, "%zu", i);
        cr_expect_eq(s->used_ns, machine.ns);
        cr_expect_eq(uv_timer_get_due_in(&models->timer), 0);
        cr_expect(uv_is_active((uv_handle_t *)&models->timer));
    }
    s->next = find("b");
    models_want(s);
    cr_expect_not(s->wanted, "the next one is");
    s->next = NULL;
    s->retired = true;
    models_want(s);
    cr_expect_not(s->wanted);
    s->retired = false;
    models_want(s);
    cr_expect(s->wanted);
}

/* Requests see the progress of a load only while it lasts. */
Test(models, progress_is_told_during_a_load) {
    struct served *s = load("a");

    s->workers->opts.on_progress(s, 0.25f);
    cr_expect_eq(s->progress, 0.25f);
    cr_expect_eq(s->model->progress, 0);
    cr_expect_eq(s->model->state, API_MODEL_ABSENT);
}

Test(only_model, progress_is_that_of_the_daemon) {
    struct served *s = models->served[0];

    models_set_state(s, SERVED_QUEUED);
    models_set_state(s, SERVED_LOADING);
    s->workers->opts.on_progress(s, 0.25f);
    cr_expect_eq(s->model->progress, 0);
    models->on_demand = true;
    workers_on_demand(s->workers);
    s->workers->opts.on_progress(s, 0.5f);
    cr_expect_eq(s->model->progress, 0.5f);
    models->on_demand = false;
}

/* Makes the memory of the daemon before with weights of @n_bytes under @key. */
static void inherit(const uint8_t key[ENGINE_KEEP_KEY], uint64_t n_bytes) {
    struct keep_header h = {.magic = {'w', 'e', 'f', 't', 'k', 'e', 'e', 'p'}, .n_bytes = n_bytes};
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    memcpy(h.key, key, ENGINE_KEEP_KEY);
    backend_sources(&backend_cpu, NULL, h.sources);
    cr_assert(fd >= 0 && posix_fallocate(fd, 0, (off_t)n_bytes) == 0);
    cr_assert_eq(pwrite(fd, &h, sizeof(h), 0), sizeof(h));
    cr_assert_eq(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW), 0);
    kept_inherit(kept, fd, "weights-test");
}

static const uint8_t some_key[ENGINE_KEEP_KEY] = {1, 2, 3};

Test(models, weights_of_the_last_daemon_wait_for_a_minute) {
    inherit(some_key, 4096);
    cr_expect_eq(kept_unclaimed(kept, NULL), 4096);
    decide_at(models->started_ns + 60000000000);
    cr_expect_eq(kept_unclaimed(kept, NULL), 4096);
    decide_at(models->started_ns + 60000000001);
    cr_expect_eq(kept_unclaimed(kept, NULL), 0);
}

/* Puts @s, whose file is read unless it was, into SERVED_QUEUED; it needs @bytes. */
static struct served *queue(struct served *s, uint64_t bytes) {
    if (s->front) {
        models_set_state(s, SERVED_QUEUED);
    } else {
        models_want(s);
        run_until(s, SERVED_OPENING);
        models->away = true; /* so that it is not loaded yet */
        run_until(s, SERVED_QUEUED);
        models->away = false;
    }
    return sized(s, bytes);
}

/* A model that waits for room is looked at often. */
Test(models, decisions_come_every_half_second) {
    struct served *s = find("a");

    decide_at(machine.ns);
    models->timer.timer_cb(&models->timer);
    cr_expect_eq(uv_timer_get_due_in(&models->timer), 500);
    queue(s, 0);
    models->away = true;
    models->timer.timer_cb(&models->timer);
    cr_expect_eq(uv_timer_get_due_in(&models->timer), 50);
    cr_expect_eq(uv_timer_get_repeat(&models->timer), 0);
    models->stopping = true;
    uv_timer_stop(&models->timer);
    models_decide_soon(models);
    cr_expect_not(uv_is_active((uv_handle_t *)&models->timer));
    models->stopping = false;
}

/* Inherited weights leave for a model only if its own memory does not fit beside them; its own
 * weights are among its memory. */
Test(models, weights_of_the_last_daemon_leave_for_a_load) {
    static const struct {
        uint64_t budget;
        bool own, stay;
    } cases[] = {{8192, false, true}, {8191, false, false}, {8191, true, true}};

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct served *s = queue(find("a"), 4096);
        struct rlimit all;

        inherit(cases[i].own ? s->front->keep_key[0] : some_key, 4096);
        models->budget = cases[i].budget;
        cr_assert_eq(getrlimit(RLIMIT_NOFILE, &all), 0);
        setrlimit(RLIMIT_NOFILE, &(struct rlimit){0, all.rlim_max}); /* no worker is started */
        models->timer.timer_cb(&models->timer);
        setrlimit(RLIMIT_NOFILE, &all);
        cr_expect_eq(kept_unclaimed(kept, NULL), cases[i].stay ? 4096 : 0, "%zu", i);
        run_until(s, SERVED_FAILED);
        kept_drop_unclaimed(kept, NULL);
        models_set_state(s, SERVED_QUEUED);
        models_set_state(s, SERVED_ABSENT);
    }
}

/* Exactly as much room as is there suffices. */
Test(models, room_is_counted_to_the_byte, .timeout = 60) {
    static const struct {
        uint64_t budget, used, bytes;
        /* of the one that waits */
        enum served_state state;
        /* the other one */
        bool stays;
    } cases[] = {
        {1000, 600, 400, SERVED_LOADING, true},
        {1000, 600, 401, SERVED_QUEUED, false},
        {1000, 600, 1000, SERVED_QUEUED, false},
        {1000, 600, 1001, SERVED_FAILED, true},
        {5ull << 20, 600, 6ull << 20, SERVED_FAILED, true},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct served *s = find("a"), *other = sized(load("b"), cases[i].used);
        struct err err = {0};

        models->budget = cases[i].budget;
        queue(s, cases[i].bytes);
        models->timer.timer_cb(&models->timer);
        cr_expect_eq(s->state, cases[i].state, "%zu: %u", i, s->state);
        cr_expect_eq(other->state == SERVED_READY, cases[i].stays, "%zu", i);
        if (s->state == SERVED_FAILED) {
            char why[200];

            snprintf(why, sizeof(why),
                     "it needs %llu MiB, but models-memory is %llu MiB and pinned models use 0 MiB",
                     (unsigned long long)(cases[i].bytes >> 20),
                     (unsigned long long)(cases[i].budget >> 20));
            cr_expect_str_eq(info_of(s).why, why);
        } else {
            cr_assert_eq(models_unload(models, 0, &err), 0);
            run_until(s, SERVED_ABSENT);
        }
        if (other->state == SERVED_READY)
            models_set_state(other, SERVED_LEAVING);
        if (other->state == SERVED_LEAVING)
            models_set_state(other, SERVED_ENDING);
        if (other->state == SERVED_ENDING) /* it never had a process */
            models_set_state(other, SERVED_ABSENT);
    }
}

/* Memory that pinned models have is no room for others, but that of a model is for its own next
 * one. */
Test(models, pinned_ones_leave_no_room, .timeout = 60) {
    struct served *pinned = sized(load("b"), 3ull << 20), *s = find("a");

    pinned->config.pinned = true;
    models->budget = 5ull << 20;
    queue(s, (2ull << 20) + 1);
    decide_at(machine.ns);
    cr_expect_eq(s->state, SERVED_FAILED);
    cr_expect_str_eq(s->why, "it needs 2 MiB, but models-memory is 5 MiB and pinned models use 3 "
                             "MiB");
    cr_expect_eq(pinned->state, SERVED_READY);
}

/* An unknown name gets the nearest one, which may be that of an alias; those of a swap that were
 * replaced are not meant. */
Test(models, an_unknown_name_is_told) {
    static const struct {
        const char *name, *message;
    } cases[] = {
        {"zzzzzz", "no model is named zzzzzz (weftctl ps lists all)"},
        {"models", "no model is named models (weftctl ps lists all)"},
        {"other", "no model is named other; is b meant? (weftctl ps lists all)"},
        {"another", "no model is named another; is b meant? (weftctl ps lists all)"},
        {"great-models", "no model is named great-models; is great-model meant? (weftctl ps lists "
                         "all)"},
    };
    struct served *b = find("b"), *a = find("a");
    char *name = a->name, great[] = "great-model";
    struct err err;

    cr_assert_eq(config_set(&b->config, "aliases", "other,another", &err), 0);
    a->name = great;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        err = (struct err){0};
        cr_expect_eq(models_index(models, cases[i].name, &err), -ENOENT);
        cr_expect_str_eq(err.message, cases[i].message);
        cr_expect_eq(err.status, 404);
        cr_expect_str_eq(err.param, "");
    }
    cr_expect_eq(models_index(models, "great-model", &err), 0);
    cr_expect_eq(models_index(models, "b", &err), 1);
    a->retired = true;
    cr_expect_eq(models_index(models, "great-model", &err), -ENOENT);
    cr_expect_str_eq(err.message, "no model is named great-model (weftctl ps lists all)");
    a->retired = false;
    a->old = b;
    cr_expect_eq(models_index(models, "great-model", &err), -ENOENT);
    cr_expect_str_eq(err.message, "no model is named great-model (weftctl ps lists all)");
    a->old = NULL;
    a->name = name;
}

/* The admin socket shows all of a model. */
Test(models, all_of_one_is_shown) {
    static const char *const names[] = {"unloaded", "opening", "queued", "loading",
                                        "loaded",   "leaving", "ending", "failed"};
    struct served *s = find("b");

    s->front = calloc(1, sizeof(*s->front));
    cr_assert(s->front);
    strcpy(s->why, "it failed");
    s->bytes = 77;
    s->n_loads = 5;
    s->config.pinned = true;
    s->model->n_running = 2;
    s->model->n_jobs = 4;
    struct list waiter;
    list_init(&waiter);
    list_push_back(&s->model->waiting, &waiter);
    s->used_ns = machine.ns - 7999999;
    for (enum served_state k = SERVED_ABSENT; k <= SERVED_FAILED; k++) {
        s->state = k;
        struct models_info i = info_of(s);
        cr_expect_str_eq(i.name, "b");
        cr_expect_str_eq(i.state, names[k]);
        cr_expect_str_eq(i.why, k == SERVED_FAILED ? "it failed" : "");
        cr_expect_str_eq(i.file, file_of("b"));
        cr_expect_eq(i.bytes, 77);
        cr_expect_eq(i.memory, k >= SERVED_LOADING && k <= SERVED_ENDING ? 77 : 0);
        cr_expect(i.pinned && i.n_running == 2 && i.n_waiting == 1 && i.n_loads == 5);
        cr_expect(i.progress == 0 && i.unload_ms == -1 && *i.swap == 0);
        cr_expect_eq(i.idle_ms, 7);
        cr_expect(i.info == &s->info && i.workers == s->workers);
    }
    s->used_ns = 0;
    cr_expect_eq(info_of(s).idle_ms, -1);
    s->model->last_used_ns = machine.ns - 5000000;
    cr_expect_eq(info_of(s).idle_ms, 5);
    s->state = SERVED_ABSENT;
    s->model->n_running = s->model->n_jobs = 0;
    list_remove(&waiter);
    cr_expect_eq(models_n(models), 2);
}

/* A refusal has its reason, for whom it is, and its number. */
Test(models, what_an_operator_cannot_do_is_told) {
    struct served *s = load("a");
    struct err err = {0};

    s->config.pinned = true;
    cr_expect_eq(models_unload(models, 0, &err), -EBUSY);
    cr_expect_str_eq(err.message, "a is pinned: it stays loaded");
    cr_expect_str_eq(err.code, "pinned");
    cr_expect_str_eq(err.param, "model");
    cr_expect_eq(err.status, 400);
    s->config.pinned = false;
    s->first = true;
    err = (struct err){0};
    cr_expect_eq(models_unload(models, 0, &err), -EINVAL);
    cr_expect_str_eq(err.message, "a is loaded at the start; try again later");
    cr_expect_eq(err.status, 409);
    cr_expect_str_eq(err.param, "");
    cr_expect_eq(s->state, SERVED_READY);
    s->first = false;
    models_set_state(s, SERVED_LEAVING);
    for (enum served_state k = SERVED_ABSENT; k <= SERVED_FAILED; k++) {
        if (k == SERVED_ABSENT || k == SERVED_READY || k == SERVED_FAILED)
            continue;
        s->state = k;
        err = (struct err){0};
        cr_expect_eq(models_swap(models, 0, NULL, &err), -EINVAL);
        cr_expect_str_eq(err.message, "a is being loaded, unloaded or swapped; try again later");
        cr_expect_eq(err.status, 409);
        cr_expect_str_eq(err.param, "");
    }
    s->state = SERVED_READY;
    cr_expect_eq(models_n(models), 2);
}

/* Each of the states of a failed or unloaded model can be swapped, and only an own file stays one
 * of the folder. */
Test(models, a_swap_begins_in_each_state_of_rest) {
    static const enum served_state states[] = {SERVED_ABSENT, SERVED_FAILED};
    struct err err = {0};

    models->away = true;
    for (uint32_t i = 0; i < 2; i++) {
        struct served *s = find(i ? "b" : "a");

        s->state = states[i];
        s->front = calloc(1, sizeof(*s->front));
        cr_assert(s->front);
        strcpy(s->swap, "failed: before");
        cr_assert_eq(models_swap(models, i, i ? file_of("a") : NULL, &err), 0, "%s", err.message);
        cr_assert_eq(models_n(models), 3 + i);
        struct served *next = s->next;
        cr_expect(next->old == s && next->wanted && !next->first && next->of == models);
        cr_expect_eq(next->found, i == 0);
        cr_expect_str_eq(next->name, s->name);
        cr_expect_str_eq(next->config.model_name, s->name);
        cr_expect_str_eq(next->config.model, file_of("a"));
        cr_expect_eq(next->file_bytes, s->file_bytes);
        cr_expect_str_eq(s->swap, "");
        cr_expect_str_eq(models_changing(models), "a model is being replaced");
        cr_expect_eq(models_n_live(models), 2, "requests find the old one");
    }
}

/* An invariant that does not hold ends the daemon before more goes wrong. */
Test(models, a_model_without_its_file_cannot_come) {
    int status;
    pid_t pid = fork();

    if (pid == 0) {
        setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
        close(STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        models_set_state(find("a"), SERVED_QUEUED);
        _exit(0);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT, "%x", (unsigned)status);
}

/* ---- scans of the folders ---- */

static void scan(void) {
    machine.ns += 10000000000;
    cr_assert(models_rescan(models, NULL));
    end_scans();
}

/* Returns the names of the models in their order, "-" behind one that is retired; static. */
static const char *order(void) {
    static char names[200];

    *names = 0;
    for (uint32_t i = 0; i < models->n; i++) {
        strcat(names, models->served[i]->name);
        strcat(names, models->served[i]->retired ? "-" : ",");
    }
    return names;
}

/* Models that are found stand behind those that were there, and before those that go. */
Test(models, the_list_has_an_order, .timeout = 60) {
    struct served *a = find("a"), *b = find("b");

    load("a")->model->n_running = 1;
    b->model->n_jobs = 1;
    tiny_model_save(&(struct tiny_model){.arch = "bert"}, file_of("c"));
    tiny_model_save(&(struct tiny_model){.arch = "bert"}, file_of("d"));
    unlink(file_of("a"));
    scan();
    cr_expect_str_eq(order(), "b,c,d,a-");
    cr_expect_eq(a->state, SERVED_LEAVING);
    cr_expect_eq(models_n_live(models), 3);
    cr_expect(find("c")->found && !find("c")->stale && !find("c")->wanted);
    cr_expect_eq(find("c")->file, models_file_state(file_of("c")).id);
    tiny_model_save(&(struct tiny_model){.arch = "bert"}, file_of("e"));
    unlink(file_of("c"));
    scan();
    cr_expect_eq(strncmp(order(), "b,d,e,", 6), 0, "%s", order());
    unlink(file_of("b"));
    unlink(file_of("d"));
    unlink(file_of("e"));
    scan();
    cr_expect_eq(models_n_live(models), 1, "the last one stays");
    cr_expect(!find("e")->retired && !find("e")->goes);
    a->model->n_running = 0;
    b->model->n_jobs = 0;
}

/* A model whose file is gone stays until its load or change is over. */
Test(models, one_goes_in_a_state_of_rest, .timeout = 60) {
    static const struct {
        enum served_state state;
        bool wanted, next, goes;
    } cases[] = {
        {SERVED_OPENING, false, false, false}, {SERVED_QUEUED, false, false, false},
        {SERVED_LOADING, false, false, false}, {SERVED_LEAVING, false, false, false},
        {SERVED_ENDING, false, false, false},  {SERVED_ABSENT, true, false, false},
        {SERVED_FAILED, true, false, false},   {SERVED_ABSENT, false, true, false},
        {SERVED_FAILED, false, false, true},
    };
    struct served *s = find("a");

    models->away = true; /* nothing is decided */
    s->front = calloc(1, sizeof(*s->front));
    cr_assert(s->front);
    unlink(file_of("a"));
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        s->state = cases[i].state;
        s->wanted = cases[i].wanted;
        s->next = cases[i].next ? find("b") : NULL;
        scan();
        cr_expect_neq(s->goes, cases[i].goes, "%zu", i);
        cr_expect_eq(s->retired, cases[i].goes, "%zu", i);
        models_rescan_tick(models);
        cr_expect_not(models->scan.running, "%zu: nothing may go", i);
    }
    s->retired = false;
    s->state = SERVED_ABSENT;
    s->goes = s->wanted = true;
    models_rescan_tick(models);
    cr_expect_not(models->scan.running);
    s->wanted = false;
    models->stopping = true;
    models_rescan_tick(models);
    cr_expect_not(models->scan.running);
    models->stopping = false;
    models_rescan_tick(models);
    cr_expect(models->scan.running);
    end_scans();
}

/* The model of the option stays whatever the folder has. */
Test(models, one_that_was_not_found_stays) {
    struct served *a = find("a");

    a->found = false;
    unlink(file_of("a"));
    scan();
    cr_expect(!a->retired && !a->goes);
    cr_expect_null(a->info.arch, "its header is not shown either");
}

/* Makes the beginning of the file wrong; @hidden: keeps its time. */
static void spoil(const char *path, bool hidden) {
    struct stat st;
    int fd = open(path, O_WRONLY);

    cr_assert(fd >= 0 && fstat(fd, &st) == 0 && pwrite(fd, "none", 4, 0) == 4);
    const struct timespec times[2] = {st.st_atim,
                                      {st.st_mtim.tv_sec - !hidden, st.st_mtim.tv_nsec}};
    cr_assert_eq(futimens(fd, times), 0);
    close(fd);
}

/* A header that was read once is shown whole, and read again when the file is another one. */
Test(models, a_header_is_read_once, .timeout = 60) {
    struct served *b = find("b");
    struct model_header h;

    cr_assert_eq(model_header_open(&h, file_of("b")), 0);
    b->config.engine.max_context = 100;
    scan();
    cr_expect_str_eq(b->info.arch, "bert");
    cr_expect_eq(b->info.max_context, 100);
    cr_expect_eq(b->info.n_ctx_train, h.n_ctx_train);
    cr_expect_eq(b->info.n_embd, h.n_embd);
    cr_expect_eq(b->info.n_vocab, h.n_vocab);
    cr_expect_eq(b->info.vocab_type, h.vocab_type);
    cr_expect_eq(b->info.n_params, h.n_params);
    cr_expect_eq(b->info.tensor_bytes, h.tensor_bytes);
    cr_expect(!b->info.reasons && !b->info.sees);
    cr_expect_eq(models->scan.n_known, 2);
    spoil(file_of("b"), true); /* it looks as before */
    scan();
    cr_expect_str_eq(text_or(b->info.arch, ""), "bert");
    cr_expect_eq(b->info.n_embd, h.n_embd);
    spoil(file_of("b"), false);
    scan();
    cr_expect_null(b->info.arch);
    cr_expect_eq(b->info.n_params, 0);
    tiny_model_save(&(struct tiny_model){.arch = "bert", .n_layer = 1}, file_of("b"));
    scan();
    cr_expect_eq(b->info.n_embd, h.n_embd);
    cr_expect_lt(b->info.n_params, h.n_params);
    cr_expect_eq(find("a")->info.n_embd, h.n_embd);
    b->front = calloc(1, sizeof(*b->front));
    b->info.n_embd = 9;
    scan();
    cr_expect_eq(b->info.n_embd, 9, "it was opened");
}

/* A file is the same while its path, place, size and time are. */
Test(models, the_state_of_a_file_is_of_all_that_can_change) {
    static const struct timespec times[][2] = {
        {{.tv_sec = 1000}, {.tv_sec = 1000}},
        {{.tv_sec = 1000}, {.tv_sec = 1001}},
        {{.tv_sec = 1000}, {.tv_sec = 1001, .tv_nsec = 1}},
    };
    uint64_t ids[8];
    size_t n = 0;
    char path[80];

    snprintf(path, sizeof(path), "%s", file_of("x"));
    cr_expect_eq(models_file_state(path).id, 0);
    cr_expect_eq(models_file_state(path).changed_unix, 0);
    cr_assert_eq(link(file_of("a"), path), 0);
    for (size_t i = 0; i < ARRAY_SIZE(times); i++) {
        cr_assert_eq(utimensat(AT_FDCWD, path, times[i], 0), 0);
        cr_expect_eq(models_file_state(path).changed_unix, times[i][1].tv_sec);
        ids[n++] = models_file_state(path).id;
        cr_expect_eq(models_file_state(path).id, ids[n - 1]);
    }
    ids[n++] = models_file_state(file_of("a")).id;
    cr_assert_eq(truncate(path, 100), 0);
    cr_assert_eq(utimensat(AT_FDCWD, path, times[2], 0), 0);
    ids[n++] = models_file_state(path).id;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < i; k++)
            cr_expect_neq(ids[i], ids[k], "%zu %zu", i, k);
    unlink(path);
}

/* A folder that cannot be read changes nothing. */
Test(models, what_cannot_be_scanned_is_told) {
    char text[600] = "", why[300];

    set("models", "/none");
    int saved = log_to_file();
    log_set_level(WLOG_WARN);
    unlink(file_of("a"));
    scan();
    log_set_level(WLOG_ERROR);
    log_back(saved);
    cr_assert_gt(pread(log_file, text, sizeof(text) - 1, 0), 0);
    snprintf(
        why, sizeof(why), "%s",
        R"(models_not_read reason="models: /none: cannot be read: No such file or directory")");
    cr_expect(strstr(text, why), "%s", text);
    cr_expect_str_eq(order(), "a,b,");
    cr_expect_eq(models->scan.n, 0);
    set("models", "");
}

/* A daemon that stops scans nothing, and the pause between two scans begins at the end of one. */
Test(models, a_scan_begins_unless_the_daemon_stops) {
    struct api_rescan wait = {.over = on_over}, more = wait;

    machine.ns += 10000000000;
    models->stopping = true;
    cr_expect_not(models_rescan(models, &wait));
    models->stopping = false;
    models->several = false;
    cr_expect_not(models_rescan(models, &wait));
    models->several = true;
    cr_expect(models_rescan_now(models, &wait));
    cr_expect_not(models->scan.again);
    cr_expect_eq(models->scan.at_ns, machine.ns);
    cr_expect(models_rescan_now(models, &more));
    cr_expect(models->scan.again && wait.over && more.over);
    machine.ns += 77;
    uv_timer_stop(&models->timer);
    end_scans();
    cr_expect(!models->scan.again && !wait.over && !more.over);
    cr_expect_eq(models->scan.at_ns, machine.ns);
    cr_expect(uv_is_active((uv_handle_t *)&models->timer));
}

/* A scan whose end comes after the stop changes nothing. */
Test(models, a_stop_leaves_a_scan_out) {
    struct models_opts o = models->opts;
    struct models *both;
    struct err err = {0};

    cr_assert_eq(models_new(&both, &o), 0);
    cr_assert_eq(models_open(both, &err), 0, "%s", err.message);
    cr_assert(models_rescan_now(both, NULL));
    unlink(file_of("a"));
    both->api = w.api;
    models_stop(both);
    while (both->scan.running)
        uv_run(&w.loop, UV_RUN_ONCE);
    cr_expect_eq(both->n, 2);
    cr_expect(!both->served[0]->goes && both->scan.n == 0 && both->scan.n_known == 0);
    uv_run(&w.loop, UV_RUN_NOWAIT);
    models_free(both);
}

/* The reason of a preset is logged when it is a new one, and clients see the names. */
Test(models, a_bad_preset_is_told_once, .timeout = 60) {
    static const struct {
        const char *text;
        bool told;
    } steps[] = {
        {"nonsense = 1\n", true}, {"nonsense = 1\n", false}, {"nonsense = 1\nmodel = a\n", false},
        {"model = none\n", true}, {"model = a\n", false},    {"model = none\n", true}};
    char text[600];

    begin_presets();
    for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
        int saved = log_to_file();
        log_set_level(WLOG_WARN);
        write_preset("bad", steps[i].text);
        log_set_level(WLOG_ERROR);
        log_back(saved);
        memset(text, 0, sizeof(text));
        cr_assert_geq(pread(log_file, text, sizeof(text) - 1, 0), 0);
        cr_expect_eq(strstr(text, R"(preset_not_read model="bad" reason=)") != NULL, steps[i].told,
                     "%zu: %s", i, text);
        bool is_bad = i != 4;
        const char *const *names = w.api->env.models.bad_presets;
        cr_expect_eq(names != NULL, is_bad, "%zu", i);
        cr_expect_eq((void *)names, (void *)models->bad_names);
        if (is_bad) {
            cr_expect_str_eq(names[0], "bad");
            cr_expect_null(names[1]);
        }
        cr_expect_eq(models->n_bad, is_bad);
    }
    cr_expect_eq(models_n_live(models), 3, "it is served as it was");
    end_presets();
}

/* ---- pulls and changes as a whole ---- */

/* Expects all of an error. */
static void expect_error(const struct err *err, int status, const char *code, const char *param,
                         const char *message) {
    cr_expect_eq(err->status, status, "%s: %d", message, err->status);
    cr_expect_str_eq(err->code, code);
    cr_expect_str_eq(err->param, param);
    cr_expect_str_eq(err->message, message);
}

/* Writes a weftctl that runs @script. */
static void make_script(const char *script) {
    char path[80];

    snprintf(path, sizeof(path), "%s/weftctl", folder);
    FILE *f = fopen(path, "w");
    cr_assert(f);
    fprintf(f, "#!/bin/sh\n%s\n", script);
    fclose(f);
    chmod(path, 0755);
}

static struct change pull(const char *name) {
    static struct change c;

    c = new_change();
    if (models_manage.pull(models, name, &c.task, &c.err) == 0)
        wait_for(&c);
    return c;
}

Test(models, a_refused_pull_says_all) {
    static const char *const bad[] = {"a",         "hf.co/o",     "hf.co//r", "hf.co/o/-r",
                                      "hf:latest", "hf.co/o/r&s", "x.co/o/r", "hf.co/.o/r"};
    char why[400];
    struct change c;

    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        c = pull(bad[i]);
        snprintf(why, sizeof(why),
                 "model '%s': only models of the Hugging Face hub can be pulled; name them "
                 "hf.co/OWNER/REPO[:QUANT]",
                 bad[i]);
        expect_error(&c.err, 400, "invalid_value", "model", why);
    }
    c = pull("hf.co/o/r");
    snprintf(why, sizeof(why), "%s/weftctl cannot be run: No such file or directory", folder);
    expect_error(&c.err, 500, "", "", why);
    make_script("exit 0");
    snprintf(why, sizeof(why), "%s/weftctl", folder);
    chmod(why, 0644);
    c = pull("hf.co/o/r");
    snprintf(why, sizeof(why), "%s/weftctl cannot be run: Permission denied", folder);
    if (geteuid() != 0) /* root may run none either, since no one may */
        cr_expect_str_eq(c.err.message, why);
    expect_error(&c.err, 500, "", "", why);
    cr_expect(list_empty(&models->pulls));
    make_script("exit 0");
    struct rlimit all;
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &all), 0);
    setrlimit(RLIMIT_NOFILE, &(struct rlimit){0, all.rlim_max});
    c = new_change();
    cr_expect_eq(models_manage.pull(models, "hf.co/o/r", &c.task, &c.err), -EINVAL);
    setrlimit(RLIMIT_NOFILE, &all);
    snprintf(why, sizeof(why), "%s/weftctl cannot be run: too many open files", folder);
    expect_error(&c.err, 500, "", "", why);
    cr_expect_null(c.task.of);
    while (!list_empty(&models->pulls)) /* its handles are being closed */
        uv_run(&w.loop, UV_RUN_ONCE);
    cr_expect_eq(c.n_over, 0);
    set("models-dir", "");
    c = pull("hf.co/o/r");
    expect_error(
        &c.err, 400, "not_managed", "",
        "models-dir: this server has no folder for pulled models; its operator can set the "
        "option models-dir");
    remove_weftctl();
}

/* The lines of weftctl may name the operator's folder, and it may end in many ways. */
Test(models, a_failed_pull_hides_the_folder, .timeout = 60) {
    struct {
        const char *dir, *script, *why;
        int status;
    } cases[] = {
        {"%s", R"(echo '{"error":"%1$s/a and %1$s/b%1$s"}';exit 1)",
         "models-dir/a and models-dir/bmodels-dir", 400},
        {"%s//", R"(echo '{"error":"in %1$s/a: x"}';exit 69)", "in models-dir/a: x", 502},
        {"none", R"(echo '{"error":"none/a: x"}';exit 77)", "none/a: x", 403},
        {"%s", "kill -9 $$", "weftctl failed; the server's log has the reason", 400},
        {"%s", "kill -11 $$", "weftctl failed; the server's log has the reason", 400},
        {"%s", "exit 78", "weftctl failed; the server's log has the reason", 400},
        {"%s", "exit 68", "weftctl failed; the server's log has the reason", 400},
        {"%s", "head -c 200000 /dev/zero | tr '\\0' x; exec sleep 1000",
         "weftctl failed; the server's log has the reason", 400},
        {"%s", "exit 0", "", 0},
    };
    char text[400];

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        snprintf(text, sizeof(text), cases[i].dir, folder);
        set("models-dir", text);
        snprintf(text, sizeof(text), cases[i].script, folder);
        make_script(text);
        struct change c = pull("hf.co/o/r");
        cr_expect_eq(c.n_over, 1);
        expect_error(&c.err, cases[i].status, "", cases[i].status ? "model" : "", cases[i].why);
        cr_expect_null(c.task.of);
    }
    set("models-dir", folder);
    remove_weftctl();
}

/* A name has at most so many letters, and "auto" is weftctl's own folder. */
Test(models, weftctl_gets_names_and_folders, .timeout = 60) {
    char name[420], want[500], long_name[400];
    struct change c;

    make_weftctl();
    set("models-dir", "auto");
    uint64_t memory = memory_for_model(models->available);
    char option[60] = "";
    if (memory)
        snprintf(option, sizeof(option), " --memory=%llu", (unsigned long long)memory);
    for (int n = 296; n < 298; n++) {
        snprintf(long_name, sizeof(long_name), "o/r%0*d-0", n - 5, 0);
        cr_assert_eq(strlen(long_name), (size_t)n);
        snprintf(name, sizeof(name), "hf.co/%s", long_name);
        c = pull(name);
        cr_expect_eq(*c.err.message != 0, n == 297, "%s", c.err.message);
        if (n == 297)
            continue;
        snprintf(want, sizeof(want), "pull --json hf:%s%s", long_name, option);
        cr_expect_str_eq(text_of("args"), want);
    }
    c = pull("hf.co/o/r-0:latest");
    snprintf(want, sizeof(want), "pull --json hf:o/r-0%s", option);
    cr_expect_str_eq(text_of("args"), want);
    c = pull("hf.co/o/r:latest-0");
    snprintf(want, sizeof(want), "pull --json hf:o/r:latest-0%s", option);
    cr_expect_str_eq(text_of("args"), want);
    c = new_change();
    cr_assert_eq(models_remove_file(models, "x", &c.task, &c.err), 0, "%s", c.err.message);
    wait_for(&c);
    cr_expect_str_eq(text_of("args"), "rm -- x");
    remove_weftctl();
}

/* A client that has gone is told nothing. */
Test(models, a_client_may_leave_at_any_time, .timeout = 60) {
    struct change c = new_change(), d = new_change();

    make_weftctl();
    cr_assert_eq(models_manage.pull(models, "hf.co/o/stays", &c.task, &c.err), 0);
    cr_expect_not_null(c.task.of);
    models_manage.cancel(models, &c.task);
    while (!list_empty(&models->pulls))
        uv_run(&w.loop, UV_RUN_ONCE);
    cr_expect(c.n_over == 0 && *c.lines == 0);
    cr_assert_eq(models_manage.pull(models, "hf.co/o/r-0", &d.task, &d.err), 0);
    while (!list_empty(&models->pulls))
        uv_run(&w.loop, UV_RUN_ONCE);
    cr_expect_null(d.task.of, "it waits for the scan");
    cr_expect(models->scan.running);
    models_manage.cancel(models, &d.task);
    end_scans();
    cr_expect_eq(d.n_over, 0);
    cr_expect_str_eq(d.lines, R"({"part":1})");
    remove_weftctl();
    begin_presets();
    const struct api_preset p = {.name = "mine", .from = "a"};
    c = new_change();
    cr_assert_eq(models_manage.create(models, &p, &c.task, &c.err), 0);
    models_manage.cancel(models, &c.task); /* it has begun, so it is made */
    while (!list_empty(&models->changes))
        uv_run(&w.loop, UV_RUN_ONCE);
    end_scans();
    cr_expect_eq(c.n_over, 0);
    cr_expect_eq(models_n_live(models), 3);
    /* The preset is the first of the list when it is made anew. */
    unlink(file_of("b"));
    find("a")->found = true;
    tiny_model_save(&(struct tiny_model){.arch = "bert"}, file_of("z"));
    scan();
    struct served *mine = find("mine");
    uint32_t i = (uint32_t)models_index(models, "mine", &c.err);
    models->served[i] = models->served[0];
    models->served[0] = mine;
    d = new_change();
    const struct api_preset again = {.name = "mine", .from = "a", .max_context = 77};
    cr_assert_eq(models_manage.create(models, &again, &d.task, &d.err), 0, "%s", d.err.message);
    wait_for(&d);
    cr_expect_str_eq(d.err.message, "");
    cr_expect_eq(find("mine")->config.engine.max_context, 77);
    cr_expect_eq(find("a")->config.engine.max_context, 0);
    end_presets();
    unlink(file_of("z"));
}

Test(models, a_refused_change_says_all, .timeout = 60) {
    const struct api_preset p = {.name = "mine", .from = "a"};
    struct served *a = find("a");
    struct change c = new_change();
    char own[80];

    cr_expect_lt(models_manage.create(models, &p, &c.task, &c.err), 0);
    expect_error(&c.err, 400, "not_managed", "",
                 "models: this server has no folder for presets; its operator can set the option "
                 "models");
    a->found = false;
    c = new_change();
    cr_expect_lt(models_manage.remove(models, "a", &c.task, &c.err), 0);
    expect_error(&c.err, 400, "not_removed", "model",
                 "model 'a' cannot be removed: it is the operator's");
    a->found = true;
    find("b")->retired = true;
    c = new_change();
    cr_expect_lt(models_manage.remove(models, "a", &c.task, &c.err), 0);
    expect_error(&c.err, 400, "not_removed", "model",
                 "model 'a' cannot be removed: it is the last one");
    cr_expect(list_empty(&models->changes));
    models->served[1]->retired = false;
    make_weftctl();
    struct served *b = find("b");
    snprintf(own, sizeof(own), "%s", b->config.model);
    cr_assert_eq(config_set(&b->config, "model", a->config.model, &c.err), 0);
    c = new_change();
    cr_assert_eq(models_manage.remove(models, "a", &c.task, &c.err), 0);
    wait_for(&c);
    expect_error(&c.err, 400, "in_use", "model",
                 "model 'b' uses its file; delete that model first");
    cr_assert_eq(config_set(&b->config, "model", own, &c.err), 0);
    begin_presets();
    static struct change all[17];
    static char name[17][4];
    for (size_t i = 0; i < ARRAY_SIZE(all); i++) {
        snprintf(name[i], sizeof(name[i]), "m%zu", i);
        const struct api_preset m = {.name = name[i], .from = "b"};

        all[i] = new_change();
        (void)models_manage.create(models, &m, &all[i].task, &all[i].err);
    }
    expect_error(&all[16].err, 429, "too_many_changes", "",
                 "16 presets are being made or removed, which is the limit; try again later");
    for (size_t i = 0; i < 16; i++)
        wait_for(&all[i]);
    /* A failure without a message has that of its number. */
    static char text[(1 << 20) + 3];
    memset(text, 'a', sizeof(text) - 1);
    const struct api_preset large = {.name = "large", .from = "b", .system = text};
    c = new_change();
    cr_assert_eq(models_manage.create(models, &large, &c.task, &c.err), 0);
    wait_for(&c);
    expect_error(&c.err, 500, "", "model", strerror(EMSGSIZE));
    end_presets();
    remove_weftctl();
}

/* ---- who makes room ---- */

/* Makes @s READY since @ready_ns, with a load of @load_ns and @n_running requests. */
static struct served *since(const char *name, int64_t ready_ns, int64_t load_ns,
                            uint32_t n_running) {
    struct served *s = find(name);

    if (s->state != SERVED_READY)
        load(name);
    s->ready_ns = s->used_ns = ready_ns;
    s->load_ns = load_ns;
    s->model->n_running = n_running;
    return s;
}

Test(models, the_one_that_was_used_first_makes_room, .timeout = 60) {
    tiny_model_save(&(struct tiny_model){.arch = "bert"}, file_of("c"));
    scan();
    unlink(file_of("c"));
    struct served *a = since("a", 5, 0, 0), *b = since("b", 6, 0, 0), *c = find("c");

    cr_expect_eq(models_choose_victim(c), a);
    a->used_ns = 7;
    cr_expect_eq(models_choose_victim(c), b);
    b->model->last_used_ns = 8;
    cr_expect_eq(models_choose_victim(c), a);
    a->config.pinned = true;
    cr_expect_eq(models_choose_victim(c), b);
    c->old = a;
    cr_expect_eq(models_choose_victim(c), a, "its next one takes its place");
    c->old = NULL;
    a->config.pinned = false;
    a->model->n_running = 1;
    cr_expect_eq(models_choose_victim(c), b, "one without requests");
    b->state = SERVED_LEAVING;
    cr_expect_eq(models_choose_victim(c), a, "its load took no time");
    b->state = SERVED_READY;
    /* Both compute. Four times their load, and at most three seconds, are theirs. */
    b->model->n_running = 1;
    a->load_ns = 500000000;
    b->load_ns = 5000000000;
    a->ready_ns = 2000;
    b->ready_ns = 1000;
    machine.ns = 2000 + 1999999999;
    cr_expect_null(models_choose_victim(c));
    c->old = b;
    cr_expect_eq(models_choose_victim(c), b);
    c->old = NULL;
    machine.ns++;
    cr_expect_eq(models_choose_victim(c), a);
    machine.ns = 1000 + 2999999999;
    cr_expect_eq(models_choose_victim(c), a);
    machine.ns++;
    cr_expect_eq(models_choose_victim(c), b, "it has been there for longer");
    b->ready_ns = 3000;
    machine.ns = 10000000000;
    cr_expect_eq(models_choose_victim(c), a);
    a->model->n_running = b->model->n_running = 0;
}

static void use(struct served *s, uint32_t tenant, double weight) {
    model_share_use(&models->share, &s->users, tenant, weight, machine.ns);
}

/* Memory is charged to those who use it while others wait, by its part of all. */
Test(models, memory_costs_while_another_waits, .timeout = 60) {
    struct served *a = since("a", machine.ns, 0, 0), *b = find("b");

    models->budget = 1000;
    sized(a, 500);
    use(a, 1, 2);
    use(b, 3, 1);
    models->charged_ns = machine.ns;
    machine.ns += 4000000000;
    models_charge_memory(models);
    cr_expect_eq(models->share.tenant[1].virtual_ns, 0, "no model waits");
    cr_expect_eq(models->charged_ns, machine.ns);
    cr_expect_null(models_first_queued(models));
    b->front = calloc(1, sizeof(*b->front));
    cr_assert(b->front);
    models_set_state(b, SERVED_QUEUED);
    sized(b, 800);
    machine.ns += 4000000000;
    models_charge_memory(models);
    cr_expect_float_eq(models->share.tenant[1].virtual_ns, 1e9, 1);
    cr_expect_eq(models->share.tenant[3].virtual_ns, 0, "it has no memory yet");
    cr_expect_eq(models->share.virtual_ns, 0);
    cr_expect_eq(models_first_queued(models), b);
    models->share.tenant[3].virtual_ns = 5e9;
    models_charge_memory(models);
    cr_expect_float_eq(models->share.virtual_ns, 1e9, 1, "that of the one who had least");
    cr_expect_eq(models->charged_ns, machine.ns);
    /* The tenant that has had less keeps its model, for a time; one that is not asked leaves. */
    a->model->n_running = 1;
    a->load_ns = 250000000; /* a second is its quantum */
    a->ready_ns = 0;
    cr_expect_null(models_choose_victim(b));
    models->share.tenant[1].virtual_ns = 6e9 - 1;
    cr_expect_null(models_choose_victim(b));
    models->share.tenant[1].virtual_ns = 6e9;
    cr_expect_eq(models_choose_victim(b), a);
    models->share.tenant[1].virtual_ns = 0;
    a->model->n_running = 0;
    machine.ns += MODEL_HOLD_NS;
    a->used_ns = a->ready_ns = machine.ns - MODEL_HOLD_NS + 1;
    cr_expect_null(models_choose_victim(b));
    machine.ns++;
    cr_expect_eq(models_choose_victim(b), a, "it was idle for too long");
    b->old = a;
    machine.ns--;
    cr_expect_eq(models_choose_victim(b), a);
    b->old = NULL;
}

/* A model whose users have had less comes first, and of equals the one that has waited longer. */
Test(models, the_first_to_load_has_had_least) {
    struct served *a = find("a"), *b = find("b");

    a->front = calloc(1, sizeof(*a->front));
    b->front = calloc(1, sizeof(*b->front));
    cr_assert(a->front && b->front);
    use(a, 1, 1);
    use(b, 3, 1);
    models_set_state(b, SERVED_QUEUED);
    machine.ns++;
    models_set_state(a, SERVED_QUEUED);
    cr_expect_eq(models_first_queued(models), b);
    b->queued_ns = a->queued_ns;
    cr_expect_eq(models_first_queued(models), a, "the first of the list");
    models->share.tenant[1].virtual_ns = 1;
    cr_expect_eq(models_first_queued(models), b);
    b->queued_ns = a->queued_ns + 1;
    cr_expect_eq(models_first_queued(models), b);
    models->share.tenant[3].virtual_ns = 2;
    cr_expect_eq(models_first_queued(models), a);
}

Test(models, requests_run_or_wait) {
    struct served *s = find("a");
    struct list waiter;

    cr_expect_not(models_has_requests(s));
    s->model->n_running = 1;
    cr_expect(models_has_requests(s));
    s->model->n_running = 0;
    list_init(&waiter);
    list_push_back(&s->model->waiting, &waiter);
    cr_expect(models_has_requests(s));
    list_remove(&waiter);
    s->model->n_jobs = 1;
    cr_expect_not(models_has_requests(s), "its prompt is being made");
    s->model->n_jobs = 0;
}

/* ---- upgrades ---- */

static int offered_fd;

static void note_offer(void *ctx, const char *name, int fd) {
    offered_fd = fd;
}

/* The device is the next daemon's once no worker has it. */
Test(models, the_device_is_handed_over_and_back, .timeout = 60) {
    struct served *a = find("a"), *b = find("b");

    models->opts.on_away = on_away;
    strcpy(a->workers->backend, "cuda");
    cr_expect_not(models_hand_over(models), "it has no process");
    cr_expect(models->away);
    models_away(a);
    cr_expect_eq(n_away, 1);
    b->workers->process_open = true; /* one of the processor */
    models_away(a);
    cr_expect_eq(n_away, 2);
    b->workers->process_open = false;
    a->workers->process_open = true;
    models_away(a);
    cr_expect_eq(n_away, 2, "it has the device");
    a->workers->process_open = false;
    models_want(b);
    decide_at(machine.ns);
    cr_expect_eq(b->state, SERVED_ABSENT, "no worker is started");
    uv_timer_stop(&models->timer);
    models_come_back(models);
    cr_expect(!models->away && uv_is_active((uv_handle_t *)&models->timer));
    models_away(a);
    cr_expect_eq(n_away, 2);
    run_until(b, SERVED_LOADING);
}

Test(models, a_socket_of_an_offer_is_closed_here) {
    struct served *a = find("a");
    int end = serve_on(a, "cpu");

    cr_assert_eq(buf_add(&a->workers->ready, "ready", 5), 0);
    a->model->n_running = 1;
    models->opts.on_answer = on_answer;
    models_offer(models, note_offer);
    cr_expect_eq(fcntl(offered_fd, F_GETFD), -1);
    cr_expect_eq(models_asked(models, WORKERS_ASKED), 1);
    cr_expect_eq(models_asked(models, WORKERS_UNASKED), 1);
    cr_expect_eq(models_asked(models, WORKERS_ACCEPTED), 0);
    while (n_away == 0)
        uv_run(&w.loop, UV_RUN_ONCE);
    a->model->n_running = 0;
    worker_chan_close(&a->workers->chan);
    workers_set_state(a->workers, WORKERS_IDLE);
    uv_run(&w.loop, UV_RUN_NOWAIT);
    close(end);
}

/* Requests of a daemon that stops, or of one whose only model stays as it is, are not taken. */
Test(models, guests_of_a_daemon_that_stops_are_refused) {
    struct chan_frame f;
    struct chan c;

    models->stopping = true;
    open_guests(&c, "a");
    cr_expect_eq(chan_recv(&c, &f), -EPIPE);
    chan_deinit(&c);
    models->stopping = false;
    models->away = true;
    models->on_demand = false;
    open_guests(&c, "a");
    cr_expect_not(find("a")->wanted);
    cr_expect_eq(chan_recv(&c, &f), CHAN_EMPTY, "it is loaded at the start");
    models->on_demand = true;
    find("a")->retired = true;
    models_answer_guests(models->served[0]);
    uv_run(&w.loop, UV_RUN_NOWAIT);
    cr_expect_eq(chan_recv(&c, &f), -EPIPE);
    chan_deinit(&c);
    models->served[0]->retired = false;
    open_guests(&c, "b"); /* the stop closes it */
    chan_deinit(&c);
}

/* Changes of a prefix cache are published under the model's name if anyone wants them. */
Test(models, changes_of_a_cache_are_published, .timeout = 60) {
    const struct kv_events_opts o = {
        .loop = &w.loop, .endpoint = "inproc://blocks", .replay = "", .topic = "kv"};
    struct kv_events *events;
    struct err err = {0};

    if (kv_events_new(&events, &o, &err) < 0)
        cr_skip_test("%s", err.message);
    models->opts.kv_events = events;
    tiny_model_save(&(struct tiny_model){.arch = "bert"}, file_of("c"));
    scan();
    unlink(file_of("c"));
    struct served *c = find("c");
    cr_assert_not_null(c->workers->opts.on_blocks);
    c->workers->opts.on_blocks(c->workers->opts.ctx, NULL);
    cr_expect_eq(kv_events_counts(events)->n_published, 1);
    kv_events_close(events);
    uv_run(&w.loop, UV_RUN_NOWAIT);
    kv_events_free(events);
}
