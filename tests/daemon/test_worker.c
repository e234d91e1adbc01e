/* The worker process from its first frame to its exit code. The test is the front: a child that it
 * forks runs worker_main() with the descriptors of a worker. */

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/chan.h"
#include "base/log.h"
#include "daemon/worker/worker.h"
#include "proto/flight_file.h"
#include "proto/flight_tape.h"
#include "tests/support/synth/synth.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_model.h"
#include "vision/projector.h"

#define FILES_MAX 6
#define PAGE_BYTES (FLIGHT_OFFSET + FLIGHT_BYTES)

/* A worker and the front's side of its channel. */
struct scene {
    struct chan chan;
    struct chan_frame f;
    /* frames that tell of blocks, and the blocks that came and went */
    uint32_t n_blocks, n_came, n_gone;
    /* frames that tell that the file of the disk tier is left */
    uint32_t n_left;
    /* the shared page, which begins with crash_page */
    char *shared;
    struct crash_page *crash_page;
    pid_t pid;
    FILE *log;
};

/* the socket of the next worker takes a few frames */
static bool tight;

/* Arguments and descriptors with which a worker is started. */
struct start {
    /* descriptors from WORKER_FD_MODEL on, of which the first n exist */
    int file[FILES_MAX];
    int n;
    /* argv[2] */
    const char *n_shards;
    /* the process may open no more descriptors */
    bool few;
};

/* Becomes the worker in the child. Returns its exit code. */
static int be_worker(const struct start *o, int channel, int page, int log) {
    char *argv[] = {"weftd", WORKER_FLAG, (char *)o->n_shards, NULL};
    int given[2 + FILES_MAX] = {channel, page}, high[ARRAY_SIZE(given)];
    int n = WORKER_FD_MODEL - WORKER_FD_CHANNEL + o->n;

    memcpy(given + 2, o->file, sizeof(o->file));
    for (int i = 0; i < n; i++)
        high[i] = fcntl(given[i], F_DUPFD, 100);
    dup2(log, STDERR_FILENO);
    for (int i = 0; i < n; i++)
        dup2(high[i], WORKER_FD_CHANNEL + i);
    n += WORKER_FD_CHANNEL;
    close_range((unsigned)n, ~0u, 0);
    if (o->few)
        setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)n, (rlim_t)n});
    return worker_main(3, argv);
}

/* Makes the page and the channel of a front and its worker, whose end is @channel. */
static void prepare(struct scene *s, int *page, int *channel) {
    int pair[2];

    *s = (struct scene){0};
    *page = memfd_create("page", MFD_CLOEXEC);
    cr_assert_eq(ftruncate(*page, (off_t)PAGE_BYTES), 0);
    s->shared = mmap(NULL, PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, *page, 0);
    cr_assert(s->shared != MAP_FAILED);
    s->crash_page = (struct crash_page *)s->shared;
    s->log = tmpfile();
    cr_assert(s->log);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    if (tight)
        setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &(int){1}, sizeof(int));
    *channel = pair[1];
    chan_init(&s->chan, pair[0], MSG_MAX_FRAME, MSG_MAX_QUEUED);
}

static void start(struct scene *s, const struct start *o) {
    int page, channel;

    prepare(s, &page, &channel);
    s->pid = fork();
    cr_assert_geq(s->pid, 0);
    if (s->pid == 0)
        _exit(be_worker(o, channel, page, fileno(s->log)));
    close(channel);
    close(page);
}

/* Receives the next frame. Returns 0, or the negative errno of a channel that has ended. */
static int receive(struct scene *s) {
    int r;

    while ((r = chan_recv(&s->chan, &s->f)) == CHAN_EMPTY)
        cr_assert_eq(chan_wait(&s->chan, 30000), 0);
    s->n_left += r == 0 && s->f.type == MSG_DISK_LEFT;
    if (r == 0 && s->f.type == MSG_BLOCKS) {
        struct msg_blocks m;

        cr_assert_eq(msg_blocks_parse(s->f.data, s->f.len, &m), 0);
        cr_expect(m.tier == BLOCKS_DEVICE && m.kind == BLOCKS_FULL && m.page_tokens == 32);
        s->n_blocks++;
        s->n_came += m.n_came;
        s->n_gone += m.n_gone;
    }
    return r;
}

/* Receives frames up to the first of @type. */
static void receive_type(struct scene *s, uint16_t type) {
    do
        cr_assert_eq(receive(s), 0, "the worker ended before a frame of type %u", type);
    while (s->f.type != type);
}

static void say(struct scene *s, uint16_t type, const void *data, size_t len) {
    cr_assert_eq(chan_send(&s->chan, type, data, (uint32_t)len), 0);
}

/* Closes the channel and returns the exit code. */
static int end(struct scene *s) {
    int status;

    chan_deinit(&s->chan);
    cr_assert_eq(waitpid(s->pid, &status, 0), s->pid);
    munmap(s->shared, PAGE_BYTES);
    fclose(s->log);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

/* Returns an open file with a small model that has a vocabulary. */
static int model_file(void) {
    char path[TEST_DATA_PATH];
    int fd = open(test_data_file(path, "models", "stories260K-f32", ".gguf"), O_RDONLY | O_CLOEXEC);

    cr_assert_geq(fd, 0, "%s", path);
    return fd;
}

/* options of the next workers beside those of a small one; NULL ends them */
static const char *more[5][2];

/* Makes the options of a small worker. */
static void small_options(struct config *c) {
    static const char *const set[][2] = {
        {"backend", "cpu"}, {"threads", "1"}, {"kv-memory", "2M"}, {"kv-disk-size", "1M"}};
    struct err err;

    cr_assert_eq(config_init(c), 0);
    for (size_t i = 0; i < ARRAY_SIZE(set); i++)
        cr_assert_eq(config_set(c, set[i][0], set[i][1], &err), 0, "%s", err.message);
    for (size_t i = 0; more[i][0]; i++)
        cr_assert_eq(config_set(c, more[i][0], more[i][1], &err), 0, "%s", err.message);
}

/* Sends OPEN as @m with these options. */
static void open_as(struct scene *s, struct msg_open m) {
    CLEANUP(buf_deinit) struct buf options = {.max = MSG_MAX_FRAME};
    CLEANUP(buf_deinit) struct buf out = {.max = MSG_MAX_FRAME};
    CLEANUP(config_deinit) struct config c = {0};

    small_options(&c);
    cr_assert_eq(config_pack(&c, "engine", &options), 0);
    if (!m.options.data)
        m.options = (struct str){options.data, (uint32_t)options.len};
    cr_assert_eq(msg_open_pack(&out, &m), 0);
    say(s, MSG_OPEN, out.data, out.len);
}

static void expect_hello(struct scene *s) {
    struct msg_hello h;
    uint8_t id[20];

    worker_build_id(id);
    cr_assert_eq(receive(s), 0);
    cr_assert(s->f.type == MSG_HELLO && s->f.len == sizeof(h));
    memcpy(&h, s->f.data, sizeof(h));
    cr_expect(h.magic == MSG_MAGIC && h.version == MSG_VERSION);
    cr_expect_arr_eq(h.build_id, id, sizeof(id));
}

/* Expects PROGRESS, which grows, and then READY. */
static struct msg_ready expect_ready(struct scene *s) {
    struct msg_progress p;
    struct msg_ready m;
    float last = -1;

    while (receive(s) == 0 && s->f.type == MSG_PROGRESS) {
        cr_assert_eq(msg_progress_parse(s->f.data, s->f.len, &p), 0);
        cr_expect(p.fraction >= 0 && p.fraction <= 1 && p.fraction != last && p.what.len > 0);
        cr_expect(p.fraction < last || p.fraction > last + 0.0099f || p.fraction == 1);
        last = p.fraction;
    }
    cr_expect_eq(last, 1);
    cr_assert_eq(s->f.type, MSG_READY, "%.*s", (int)s->f.len, (const char *)s->f.data);
    cr_assert_eq(msg_ready_parse(s->f.data, s->f.len, &m), 0);
    cr_expect_eq(s->crash_page->loading, 0);
    return m;
}

/* Starts a worker of the @n files, and waits until it serves. */
static struct msg_ready serve_files(struct scene *s, struct msg_open m, const int *file, int n) {
    struct start o = {.n = n, .n_shards = m.n_draft_shards ? "2" : "1"};

    memcpy(o.file, file, (size_t)n * sizeof(*file));
    start(s, &o);
    expect_hello(s);
    open_as(s, m);
    return expect_ready(s);
}

/* Starts a worker of the model, with @last, the file of a draft model or of the disk tier, if it is
 * not negative, and waits until it serves. */
static struct msg_ready serve(struct scene *s, struct msg_open m, int last) {
    int file[] = {model_file(), last};
    struct msg_ready ready = serve_files(s, m, file, last < 0 ? 1 : 2);

    close(file[0]);
    return ready;
}

/* number of workers that died while they had the next request */
static uint8_t n_faults;

/* number of tokens of the next prompts */
static uint32_t n_prompt = 3;

/* Submits a request for @n tokens with @grammar, or without one if it is "". */
static void submit(struct scene *s, uint32_t n, const char *grammar) {
    CLEANUP(buf_deinit) struct buf b = {.max = MSG_MAX_FRAME};
    int32_t prompt[400];
    struct submit m = {.id = 7,
                       .tenant = 3,
                       .n_prompt = n_prompt,
                       .n_tokens = n_prompt,
                       .tokens = prompt,
                       .max_new = n,
                       .n_faults = n_faults,
                       .grammar = {grammar, (uint32_t)strlen(grammar)}};

    cr_assert_leq(n_prompt, ARRAY_SIZE(prompt));
    for (uint32_t i = 0; i < n_prompt; i++)
        prompt[i] = (int32_t)(1 + 4 * i % 500);
    params_init(&m.sampling);
    m.sampling.temperature = 0;
    cr_assert_eq(msg_submit_pack(&b, &m), 0);
    say(s, MSG_SUBMIT, b.data, b.len);
}

/* Lets the worker generate @n tokens with @grammar, or without one if it is "", and writes them to
 * @out. */
static void generate(struct scene *s, uint32_t n, const char *grammar, int32_t *out) {
    struct event_cursor at;
    struct event e;

    submit(s, n, grammar);
    for (uint32_t have = 0;;) {
        receive_type(s, MSG_EVENTS);
        for (msg_events_begin(&at, s->f.data, s->f.len); msg_events_next(&at, &e) == 0;) {
            cr_assert_eq(e.id, 7);
            cr_assert_neq(e.kind, EVENT_REJECTED, "%.*s", (int)e.text.len, e.text.data);
            cr_assert(e.n_tokens == 0 || (e.from <= have && e.from + e.n_tokens <= n));
            for (uint32_t i = 0; i < e.n_tokens; i++)
                out[e.from + i] = e.tokens[i];
            have = MAX(have, e.from + e.n_tokens);
            if (e.kind == EVENT_FINISH) {
                cr_expect(have == n && e.finish == FINISH_LENGTH);
                return;
            }
        }
    }
}

/* Receives events up to the one that ends a request. Its tokens and text are not valid. */
static struct event next_end(struct scene *s) {
    struct event_cursor at;
    struct event e;

    for (;;) {
        receive_type(s, MSG_EVENTS);
        for (msg_events_begin(&at, s->f.data, s->f.len); msg_events_next(&at, &e) == 0;)
            if (e.kind == EVENT_FINISH || e.kind == EVENT_REJECTED)
                return e;
    }
}

static struct msg_stats next_stats(struct scene *s) {
    struct msg_stats st;

    receive_type(s, MSG_STATS);
    cr_assert_eq(s->f.len, sizeof(st));
    memcpy(&st, s->f.data, sizeof(st));
    return st;
}

/* Returns the first line of the worker's log that has @part, without its time; "": none has it. */
static const char *logged(struct scene *s, const char *part) {
    static char line[900];

    rewind(s->log);
    while (fgets(line, sizeof(line), s->log)) {
        line[strcspn(line, "\n")] = 0;
        if (strstr(line, part))
            return strchr(line, ' ') + 1;
    }
    return "";
}

/* Opens the engine that a worker of @file opens after OPEN @m. @c outlives it. */
static struct engine *engine_of(struct config *c, struct gguf *file, const struct msg_open *m) {
    struct err err = {0};
    struct engine *e;

    small_options(c);
    worker_engine_opts(c, m);
    c->engine.file = file;
    cr_assert_eq(engine_new(&e, &c->engine, &err), 0, "%s", err.message);
    return e;
}

static struct gguf *open_model_file(void) {
    int fd = model_file();
    struct gguf *file;
    struct err err = {0};

    cr_assert_eq(gguf_open_fds(&file, &fd, 1, &err), 0, "%s", err.message);
    close(fd);
    return file;
}

static bool is_text(struct str s, const char *text) {
    return s.len == strlen(text) && memcmp(s.data, text, s.len) == 0;
}

/* Compares READY and the line of the log with what an engine of the same options is. The digest
 * covers sources and formats, too. */
Test(worker, ready_tells_what_its_engine_is, .timeout = 60) {
    const struct msg_open open = {.has_disk = 1, .memory_bytes = 5 << 20};
    CLEANUP(config_deinit) struct config c = {0};
    struct gguf *file = open_model_file();
    FILE *disk = tmpfile();
    uint8_t print[16];
    char line[400];
    struct scene s;

    more[0][0] = "kv-memory", more[0][1] = "6M";
    more[1][0] = "page-tokens", more[1][1] = "16";
    cr_assert(disk);
    struct msg_ready m = serve(&s, open, fileno(disk));
    struct engine *e = engine_of(&c, file, &open);
    const struct engine_info *i = engine_info(e);
    cr_expect_eq(m.n_vocab, i->n_vocab);
    cr_expect_eq(m.n_embd, i->n_embd);
    cr_expect_eq(m.n_layer, i->n_layer);
    cr_expect_eq(m.max_context, i->max_context);
    cr_expect_eq(m.page_tokens, i->page_tokens);
    cr_expect_eq(m.n_pages, i->n_pages);
    cr_expect_eq(m.n_threads, i->n_threads);
    cr_expect_eq(m.memory_bytes, i->memory_bytes);
    cr_expect_eq(m.page_bytes, i->page_bytes);
    cr_expect_eq(m.n_params, i->n_params);
    cr_expect(is_text(m.arch, i->arch) && is_text(m.backend, i->backend) && is_text(m.isa, i->isa));
    cr_expect_eq(m.weights, ENGINE_WEIGHTS_OWN);
    memcpy(print, i->fingerprint, sizeof(print));
    for (uint32_t k = 0; k < sizeof(i->sources); k++)
        print[k % 16] ^= i->sources[k];
    cr_expect(i->kv_type.k == 0 && i->kv_type.v == 0 && c.engine.digest);
    print[0] ^= 1;
    cr_expect_arr_eq(m.fingerprint, print, sizeof(print));
    uint64_t host = i->n_host_pages * i->page_bytes;
    uint64_t kv = i->n_pages * i->page_bytes + i->n_windows * i->window_bytes;
    cr_expect(host > 1 << 20 && kv > 1 << 20);
    snprintf(line, sizeof(line),
             "info worker memory model_mib=%llu host_experts_mib=0 draft_mib=0 kv_mib=%llu "
             "host_kv_mib=%llu free_mib=5 max_context=512",
             (unsigned long long)(i->memory_bytes - kv - host) >> 20, (unsigned long long)kv >> 20,
             (unsigned long long)host >> 20);
    cr_expect_str_eq(logged(&s, " memory "), line);
    cr_expect_str_eq(logged(&s, " device_watch "), "");
    cr_expect_eq(end(&s), WORKER_DONE);
    engine_free(e);
    gguf_free(file);
    fclose(disk);
}

/* A draft model takes its part of the memory first, unless an option gives the memory for pages. */
Test(worker, a_draft_model_takes_memory_of_the_model, .timeout = 60) {
    const struct msg_open open = {.n_draft_shards = 1, .memory_bytes = 120 << 20};
    struct gguf *file = open_model_file();
    CLEANUP(config_deinit) struct config c = {0};
    struct err err = {0};
    struct engine *draft, *e;
    char part[60];
    struct scene s;

    more[0][0] = "kv-memory", more[0][1] = "0";
    more[1][0] = "draft-kv-memory", more[1][1] = "3M";
    struct msg_ready m = serve(&s, open, model_file());
    small_options(&c);
    cr_expect(worker_engine_opts(&c, &open));
    struct engine_opts o = engine_draft_opts(&c.engine, 3 << 20);
    o.file = file;
    cr_assert_eq(engine_new(&draft, &o, &err), 0, "%s", err.message);
    uint64_t bytes = engine_info(draft)->memory_bytes;
    c.engine.memory -= bytes;
    c.engine.file = file;
    cr_assert_eq(engine_new(&e, &c.engine, &err), 0, "%s", err.message);
    cr_expect_eq(m.n_pages, engine_info(e)->n_pages);
    cr_expect_eq(m.memory_bytes, engine_info(e)->memory_bytes + bytes);
    snprintf(part, sizeof(part), " draft_mib=%llu ", (unsigned long long)bytes >> 20);
    cr_expect(strstr(logged(&s, " memory "), part) && bytes >= 3 << 20, "%s",
              logged(&s, " memory "));
    cr_expect_eq(end(&s), WORKER_DONE);
    more[2][0] = "speculation", more[2][1] = "off";
    struct msg_ready without = serve(&s, open, model_file());
    cr_expect_lt(without.memory_bytes, m.memory_bytes);
    cr_expect(strstr(logged(&s, " memory "), " draft_mib=0 "));
    cr_expect_eq(end(&s), WORKER_DONE);
    engine_free(draft);
    engine_free(e);
    gguf_free(file);
}

/* Reads the file @name of the process @pid in /proc. */
static void read_proc(pid_t pid, const char *name, char out[4096]) {
    char path[60];

    snprintf(path, sizeof(path), "/proc/%d/%s", pid, name);
    FILE *f = fopen(path, "re");
    cr_assert(f, "%s", path);
    out[fread(out, 1, 4095, f)] = 0;
    fclose(f);
}

/* Returns the number behind @name in the status of the process @pid. */
static uint64_t status_of(pid_t pid, const char *name, int base) {
    char text[4096];

    read_proc(pid, "status", text);
    const char *at = strstr(text, name);
    cr_assert(at, "%s", name);
    return strtoull(at + strlen(name), NULL, base);
}

static int oom_score_adj_of(pid_t pid) {
    char text[4096];

    read_proc(pid, "oom_score_adj", text);
    return atoi(text);
}

/* Signals that are for the front do not end it, the kernel takes it before the front where memory
 * is short, and its system calls are filtered. */
Test(worker, its_process_is_that_of_a_worker, .timeout = 60) {
    static const int ignored[] = {SIGPIPE, SIGINT, SIGHUP, SIGXFSZ};
    uint64_t mask = status_of(getpid(), "\nSigIgn:", 16);
    int before = oom_score_adj_of(getpid());
    char name[4096];
    struct scene s;

    for (size_t i = 0; i < ARRAY_SIZE(ignored); i++)
        mask |= UINT64_C(1) << (ignored[i] - 1);
    serve(&s, (struct msg_open){0}, -1);
    cr_expect_eq(status_of(s.pid, "\nSigIgn:", 16), mask);
    cr_expect(status_of(s.pid, "\nSigCgt:", 16) >> (SIGBUS - 1) & 1);
    cr_expect_eq(status_of(s.pid, "\nSeccomp:", 10), *logged(&s, " no_sandbox ") ? 0 : 2);
    read_proc(s.pid, "comm", name);
    cr_expect_str_eq(name, "weft-worker\n");
    cr_expect_eq(oom_score_adj_of(s.pid), MIN(before + 100, 1000));
    next_stats(&s);
    kill(s.pid, SIGINT);
    kill(s.pid, SIGHUP);
    cr_expect_eq(end(&s), WORKER_DONE);
    FILE *f = fopen("/proc/self/oom_score_adj", "we");
    cr_assert(f && fputs("960", f) >= 0 && fclose(f) == 0);
    serve(&s, (struct msg_open){0}, -1);
    cr_expect_eq(oom_score_adj_of(s.pid), 1000);
    cr_expect_eq(end(&s), WORKER_DONE);
}

/* The process between is the front of the worker, and this one has the channel. */
Test(worker, ends_with_its_front, .timeout = 60) {
    struct start o = {.file = {model_file()}, .n = 1, .n_shards = "1"};
    int page, channel, status, numbers[2];
    struct scene s;

    cr_assert_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    cr_assert_eq(pipe2(numbers, O_CLOEXEC), 0);
    prepare(&s, &page, &channel);
    pid_t front = fork();
    cr_assert_geq(front, 0);
    if (front == 0) {
        pid_t pid = fork();

        if (pid == 0)
            _exit(be_worker(&o, channel, page, fileno(s.log)));
        (void)!write(numbers[1], &pid, sizeof(pid));
        pause();
        _exit(0);
    }
    close(channel);
    close(page);
    cr_assert_eq(read(numbers[0], &s.pid, sizeof(s.pid)), sizeof(s.pid));
    expect_hello(&s);
    kill(front, SIGKILL);
    cr_assert_eq(waitpid(front, &status, 0), front);
    cr_assert_eq(waitpid(s.pid, &status, 0), s.pid);
    cr_expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "%d", status);
    chan_deinit(&s.chan);
    munmap(s.shared, PAGE_BYTES);
    fclose(s.log);
}

/* Returns a file in memory with the model. */
static int model_in_memory(void) {
    int fd = memfd_create("model", MFD_CLOEXEC), from = model_file();
    struct stat st;

    cr_assert_eq(fstat(from, &st), 0);
    cr_assert_eq(sendfile(fd, from, NULL, (size_t)st.st_size), st.st_size);
    close(from);
    return fd;
}

/* The reference backend computes with the layout of the file, others with their own. */
Test(worker, computes_with_its_own_copy_of_the_file, .timeout = 60) {
    static const char *const backends[] = {"cpu", "reference"};

    for (size_t i = 0; i < ARRAY_SIZE(backends); i++) {
        int32_t before[6], after[6];
        int fd = model_in_memory();
        struct scene s;

        more[0][0] = "backend", more[0][1] = backends[i];
        struct msg_ready m = serve_files(&s, (struct msg_open){0}, &fd, 1);
        cr_expect(is_text(m.backend, backends[i]), "%s", backends[i]);
        generate(&s, 6, "", before);
        cr_assert_eq(ftruncate(fd, 0), 0);
        generate(&s, 6, "", after);
        cr_expect_arr_eq(after, before, sizeof(before));
        cr_expect_eq(end(&s), WORKER_DONE);
        close(fd);
    }
}

/* Behind the models come the disk tier, the files of the weights and that of the experts. */
Test(worker, files_come_in_their_order, .timeout = 60) {
    const struct msg_open open = {
        .n_draft_shards = 1, .has_disk = 1, .keeps = 1, .keeps_draft = 1, .has_experts = 1};
    uint8_t key[2][ENGINE_KEEP_KEY], is[ENGINE_KEEP_KEY];
    int file[FILES_MAX] = {model_file(), model_in_memory()};
    struct stat st[FILES_MAX];
    struct gguf *g;
    struct err err;
    uint64_t n_bytes;
    struct scene s;

    for (int i = 0; i < 2; i++) {
        cr_assert_eq(gguf_open_fds(&g, &file[i], 1, &err), 0);
        engine_keep_key(g, NULL, key[i]);
        gguf_free(g);
    }
    for (int i = 2; i < FILES_MAX; i++)
        file[i] = memfd_create("file", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    for (int again = 0; again < 2; again++) {
        struct msg_ready m = serve_files(&s, open, file, FILES_MAX);

        cr_expect_eq(m.weights, again ? ENGINE_WEIGHTS_KEPT : ENGINE_WEIGHTS_PACKED);
        cr_expect_eq(end(&s), WORKER_DONE);
        for (int i = 0; i < 2; i++) {
            cr_expect_eq(engine_keep_read(file[3 + i], is, &n_bytes), 0, "%d", i);
            cr_expect_arr_eq(is, key[i], sizeof(is));
        }
    }
    for (int i = 2; i < FILES_MAX; i++)
        cr_expect(fstat(file[i], &st[i]) == 0 && st[i].st_size > 0, "%d", i);
    cr_expect_leq(st[2].st_size, 1 << 20, "the size of the disk tier");
    struct msg_ready m =
        serve_files(&s, (struct msg_open){.keeps = 1}, (int[]){file[0], file[3]}, 2);
    cr_expect_eq(m.weights, ENGINE_WEIGHTS_KEPT, "there is no disk tier");
    cr_expect_eq(end(&s), WORKER_DONE);
    for (int i = 0; i < FILES_MAX; i++)
        close(file[i]);
}

Test(worker, serves_from_open_to_the_end_of_the_channel, .timeout = 60) {
    CLEANUP(buf_deinit) struct buf b = {.max = MSG_MAX_FRAME};
    const struct msg_served *served;
    struct flight_record story[64];
    int32_t tokens[40], again[40];
    struct scene s;
    uint32_t n;

    struct msg_ready m = serve(&s, (struct msg_open){.tells_blocks = 1}, -1);
    cr_expect(m.n_vocab == 512 && m.n_layer == 5 && m.n_embd == 64, "%u %u %u", m.n_vocab,
              m.n_layer, m.n_embd);
    cr_expect(m.n_threads == 1 && m.page_tokens == 32 && m.n_pages > 0);
    cr_expect(m.arch.len == 5 && memcmp(m.arch.data, "llama", 5) == 0);
    cr_expect(m.backend.len == 3 && memcmp(m.backend.data, "cpu", 3) == 0);
    cr_expect_eq(getpriority(PRIO_PROCESS, (id_t)s.pid), MIN(getpriority(PRIO_PROCESS, 0) + 5, 19));
    struct msg_stats st = next_stats(&s); /* without a request */
    cr_expect(st.at_ns > 0 && st.n_devices == 0 && st.n_grammars == 0);
    cr_expect(st.n_finished == 0 && st.n_prompt_tokens == 0 && st.n_output_tokens == 0,
              "the warm-up is no request");
    cr_expect_eq(st.n_steps, 2);
    generate(&s, 40, R"({"regex":"[a-z]{400}"})", tokens);
    receive_type(&s, MSG_SERVED);
    cr_assert_eq(msg_served_parse(s.f.data, s.f.len, &served), 1);
    cr_expect(served->tenant == 3 && served->ns > 0);
    generate(&s, 40, R"({"regex":"[a-z]{400}"})", again);
    cr_expect_arr_eq(again, tokens, sizeof(tokens));
    cr_assert_eq(msg_cancel_pack(&b, 99), 0);
    for (int i = 0; i < 2; i++) { /* the first statistics may be those of the end of the request */
        say(&s, MSG_CANCEL, b.data, b.len); /* a request that is unknown */
        st = next_stats(&s);
    }
    cr_expect(st.n_grammars == 1 && st.n_grammars_refused == 0 && st.n_grammar_waiting == 0);
    cr_expect(st.n_grammar_hits == 1 && st.grammar_state_bytes == 0 && st.n_compiling == 0);
    cr_expect(st.grammar_bytes > 0 && st.compile_ns_total > 0 && st.grammar_shared_bytes > 0);
    cr_expect_eq(st.n_finished, 2);
    cr_expect_eq(st.n_output_tokens, 80);
    cr_expect_eq(st.n_prompt_tokens + st.n_cached_tokens, 6);
    cr_expect(s.n_blocks > 0 && s.n_came == 1 && s.n_gone == 0, "%u: %u", s.n_blocks, s.n_came);
    cr_expect_gt(s.crash_page->step, 0);
    const struct flight *flight = (const struct flight *)(s.shared + FLIGHT_OFFSET);
    n = flight_story(flight, 7, story, ARRAY_SIZE(story));
    cr_expect(n > 0 && story[n - 1].why == WHY_ENDED && story[n - 1].detail == FINISH_LENGTH);
    cr_assert_eq(flight_file_write(&b, flight, FLIGHT_TAPE_BYTES, "", 0), 0);
    cr_expect_gt(b.len, 2000, "the decisions are on the tape");
    cr_expect_eq(end(&s), WORKER_DONE);
}

/* Its grammar may be what ended the worker before, so nothing runs while it is compiled. */
Test(worker, a_request_that_may_end_a_worker_is_served, .timeout = 60) {
    struct scene s;
    int32_t tokens[5];

    serve(&s, (struct msg_open){0}, -1);
    n_faults = 1;
    for (int i = 0; i < 2; i++)
        generate(&s, ARRAY_SIZE(tokens), R"({"regex":"[a-z]{400}"})", tokens);
    cr_expect_eq(end(&s), WORKER_DONE);
}

Test(worker, a_draft_model_changes_no_token, .timeout = 60) {
    struct scene s;
    int32_t alone[40], together[40];

    struct msg_ready m = serve(&s, (struct msg_open){0}, -1);
    generate(&s, ARRAY_SIZE(alone), "", alone);
    cr_expect_eq(end(&s), WORKER_DONE);
    struct msg_ready with = serve(&s, (struct msg_open){.n_draft_shards = 1}, model_file());
    cr_expect_gt(with.memory_bytes, m.memory_bytes);
    cr_expect_arr_eq(with.fingerprint, m.fingerprint, sizeof(m.fingerprint));
    generate(&s, ARRAY_SIZE(together), "", together);
    cr_expect_eq(s.n_blocks, 0);
    cr_expect_arr_eq(together, alone, sizeof(alone));
    cr_expect_eq(end(&s), WORKER_DONE);
}

Test(worker, the_file_of_the_disk_tier_is_released_on_request, .timeout = 60) {
    CLEANUP(buf_deinit) struct buf cancel = {.max = MSG_MAX_FRAME};
    struct scene s;
    FILE *disk = tmpfile();
    struct stat st;
    int32_t token;

    cr_assert_eq(msg_cancel_pack(&cancel, 99), 0);
    cr_assert(disk);
    serve(&s, (struct msg_open){.has_disk = 1, .disk_waits = 1}, fileno(disk));
    next_stats(&s);
    cr_expect(fstat(fileno(disk), &st) == 0 && st.st_size == 0, "another process has the file");
    say(&s, MSG_DISK_USE, "", 0);
    generate(&s, 1, "", &token);
    for (uint32_t i = 0; i < 2; i++) {
        if (i == 0)
            cr_expect(fstat(fileno(disk), &st) == 0 && st.st_size > 0);
        say(&s, MSG_DISK_LEAVE, "", 0);
        receive_type(&s, MSG_DISK_LEFT);
        say(&s, MSG_CANCEL, cancel.data, cancel.len);
        next_stats(&s);
        say(&s, MSG_CANCEL, cancel.data, cancel.len);
        next_stats(&s);
        cr_expect_eq(s.n_left, i + 1, "told once");
        say(&s, MSG_DISK_USE, "", 0);
        say(&s, MSG_DISK_USE, "", 0); /* it has the file already */
    }
    cr_expect_eq(end(&s), WORKER_DONE);
    fclose(disk);
}

#define NO_MODEL "not a regular file"

/* Runs a worker that refuses to serve for the reason @why, or without a reason, and expects its
 * exit code. */
static void expect_refusal(const struct start *o, const struct msg_open *m, const char *why,
                           int code) {
    struct scene s;
    int r;

    start(&s, o);
    if (receive(&s) == 0 && s.f.type == MSG_HELLO) {
        if (m)
            open_as(&s, *m);
        else
            say(&s, MSG_CANCEL, "", 0);
    }
    while ((r = receive(&s)) == 0 && s.f.type == MSG_PROGRESS)
        ;
    cr_expect_eq(r == 0, why != NULL, "%s", why ? why : "");
    if (r == 0 && why) {
        char line[400];

        cr_expect_eq(s.f.type, MSG_FAILED);
        cr_expect(is_text((struct str){s.f.data, s.f.len}, why), "%.*s", (int)s.f.len,
                  (const char *)s.f.data);
        cr_expect_eq(s.crash_page->loading, 1, "it ended while it loaded");
        cr_expect_eq(receive(&s), -EPIPE);
        snprintf(line, sizeof(line), R"(debug worker worker_failed reason="%s")", why);
        cr_expect_str_eq(logged(&s, " worker_failed "), line);
    }
    int is = end(&s);
    cr_expect_eq(is, code, "%d: %s", is, why ? why : "");
}

/* Without a front the log has the reason. */
static void expect_refusal_in_log(const char *why) {
    struct start o = {.file = {open("/dev/null", O_RDONLY)}, .n = 1, .n_shards = "1"};
    char line[400];
    struct scene s;
    int status;

    start(&s, &o);
    close(o.file[0]);
    expect_hello(&s);
    kill(s.pid, SIGSTOP);
    open_as(&s, (struct msg_open){0});
    chan_deinit(&s.chan);
    kill(s.pid, SIGCONT);
    cr_assert_eq(waitpid(s.pid, &status, 0), s.pid);
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == WORKER_REFUSED);
    snprintf(line, sizeof(line), R"(error worker worker_failed reason="%s")", why);
    cr_expect_str_eq(logged(&s, " worker_failed "), line);
    munmap(s.shared, PAGE_BYTES);
    fclose(s.log);
}

Test(worker, a_refusal_has_its_reason_and_its_exit_code, .timeout = 60) {
    const struct msg_open plain = {0}, draft = {.n_draft_shards = 1},
                          bad = {.options = {"nonsense", 8}}, many = {.n_projector = 257},
                          picture = {.n_projector = 1};
    const struct tiny_model hybrid = {.arch = "qwen3next"};
    int model = model_file(), nothing = open("/dev/null", O_RDONLY);
    char path[64];

    tiny_model_temp(&hybrid, path);
    int states = open(path, O_RDONLY | O_CLOEXEC);
    unlink(path);
    setenv("WEFT_LOG_LEVEL", "7", 1);
    const struct {
        struct start o;
        const struct msg_open *m;
        const char *why;
        int code;
    } cases[] = {
        {{{model}, 1, "0", false}, &plain, NULL, WORKER_CHANNEL},
        {{{model}, 1, "257", false}, &plain, NULL, WORKER_CHANNEL},
        {{{model}, 1, "1", false}, NULL, NULL, WORKER_CHANNEL},
        {{{model}, 1, "1", false}, &bad, NULL, WORKER_CHANNEL},
        {{{model}, 1, "1", false}, &many, NULL, WORKER_CHANNEL},
        {{{nothing}, 1, "1", false}, &plain, NO_MODEL, WORKER_REFUSED},
        {{{model, nothing}, 2, "2", false}, &draft, NO_MODEL, WORKER_REFUSED},
        {{{model, nothing}, 2, "1", false}, &picture, NO_MODEL, WORKER_REFUSED},
        {{{model, states}, 2, "2", false},
         &draft,
         "draft-model: qwen3next models cannot be draft models, because rejected tokens would stay "
         "in their recurrent state",
         WORKER_REFUSED},
        {{{model}, 1, "1", false}, &draft, "Protocol error", WORKER_REFUSED},
        {{{model}, 1, "1", true}, &plain, "Too many open files", WORKER_SHORT},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        expect_refusal(&cases[i].o, cases[i].m, cases[i].why, cases[i].code);
    close(model);
    close(nothing);
    close(states);
    expect_refusal_in_log(NO_MODEL);
}

/* Another model may need less memory, and this one may fit later. */
Test(worker, a_want_of_memory_has_its_exit_code, .timeout = 60) {
    struct start o = {.file = {model_file()}, .n = 1, .n_shards = "1"};
    static const char why[] = "does not fit: weights ";
    struct scene s;

    more[0][0] = "kv-memory", more[0][1] = "0";
    start(&s, &o);
    close(o.file[0]);
    expect_hello(&s);
    open_as(&s, (struct msg_open){.memory_bytes = 1 << 20});
    receive_type(&s, MSG_FAILED);
    cr_expect(s.f.len > sizeof(why) && memcmp(s.f.data, why, sizeof(why) - 1) == 0);
    cr_expect_eq(end(&s), WORKER_SHORT);
}

/* A worker whose front ends while it loads, or whose memory cannot be shared, ends with the code
 * for that. */
Test(worker, without_a_front_none_serves, .timeout = 60) {
    struct start o = {.file = {model_file()}, .n = 1, .n_shards = "1"};
    int page, channel, status;
    struct scene s;

    start(&s, &o);
    expect_hello(&s);
    kill(s.pid, SIGSTOP);
    open_as(&s, (struct msg_open){0});
    chan_deinit(&s.chan);
    kill(s.pid, SIGCONT);
    cr_assert_eq(waitpid(s.pid, &status, 0), s.pid);
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == WORKER_CHANNEL, "%d", status);
    prepare(&s, &page, &channel);
    s.pid = fork();
    cr_assert_geq(s.pid, 0);
    if (s.pid == 0)
        _exit(be_worker(&o, channel, o.file[0], fileno(s.log))); /* may only be read */
    close(channel);
    cr_expect_eq(receive(&s), -EPIPE);
    cr_expect_eq(end(&s), WORKER_CHANNEL);
    close(o.file[0]);
}

/* A grammar that takes long. */
#define HARD R"({"regex":"(a|b)*a(a|b){16}(c|d)*c(c|d){15}"})"

/* The end of a request that waits for its grammar is told, and so is that one is refused. */
Test(worker, requests_wait_for_grammars, .timeout = 60) {
    CLEANUP(buf_deinit) struct buf cancel = {.max = MSG_MAX_FRAME};
    struct msg_stats st;
    struct scene s;

    cr_assert_eq(msg_cancel_pack(&cancel, 7), 0);
    serve(&s, (struct msg_open){0}, -1);
    next_stats(&s);
    submit(&s, 4, HARD);
    do
        st = next_stats(&s);
    while (st.n_compiling == 0);
    cr_expect(st.n_compiling == 1 && st.n_waiting == 1 && st.n_running == 0);
    say(&s, MSG_CANCEL, cancel.data, cancel.len);
    struct event e = next_end(&s);
    cr_expect(e.kind == EVENT_FINISH && e.finish == FINISH_CANCELLED);
    submit(&s, 4, R"({"regex":"("})");
    e = next_end(&s);
    cr_expect(e.kind == EVENT_REJECTED && e.status == 400);
    do
        st = next_stats(&s);
    while (st.n_grammars_refused == 0);
    cr_expect(st.n_grammars_refused == 1 && st.n_grammars == 0 && st.n_cancelled == 1);
    cr_expect_eq(end(&s), WORKER_DONE);
}

/* Makes the file of an image encoder for the model. */
static int projector_file(void) {
    char folder[] = "/tmp/weft-worker-XXXXXX", path[60];
    const char *args[] = {"synth",    "--projector", "internvl", "--shape", "tiny,n_out=64",
                          "--format", "F16",         "-o",       path,      NULL};

    cr_assert(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/projector", folder);
    cr_assert_eq(synth_main(ARRAY_SIZE(args) - 1, (char **)args), 0);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    unlink(path);
    rmdir(folder);
    return fd;
}

/* Returns the layout of a small picture for the encoder in @fd. */
static struct picture_layout layout_of(int fd) {
    const struct picture_budget whole = {.whole = true};
    struct picture_layout l;
    struct projector p;
    struct gguf *file;
    struct err err;

    cr_assert_eq(gguf_open_fds(&file, &fd, 1, &err), 0, "%s", err.message);
    cr_assert_eq(projector_read(&p, file, &err), 0, "%s", err.message);
    projector_layout(&p, 64, 64, &whole, &l);
    gguf_free(file);
    return l;
}

/* Submits a request with a picture of layout @l. */
static void submit_picture(struct scene *s, const struct picture_layout *l, uint64_t id,
                           int64_t deadline_ns) {
    CLEANUP(buf_deinit) struct buf b = {.max = MSG_MAX_FRAME};
    static int32_t prompt[400];
    const struct submit_picture picture = {.at = 1,
                                           .n_rows = l->n_rows,
                                           .n_columns = l->n_columns,
                                           .n_lines = l->n_lines,
                                           .n_positions = l->n_positions,
                                           .width = l->width,
                                           .height = l->height,
                                           .digest = {(uint8_t)id}};
    struct submit m = {.id = id,
                       .n_prompt = l->n_rows + 2,
                       .n_tokens = l->n_rows + 2,
                       .tokens = prompt,
                       .max_new = 2,
                       .deadline_ns = deadline_ns,
                       .n_pictures = 1,
                       .pictures = &picture};

    cr_assert_leq(m.n_prompt, ARRAY_SIZE(prompt));
    params_init(&m.sampling);
    cr_assert_eq(msg_submit_pack(&b, &m), 0);
    say(s, MSG_SUBMIT, b.data, b.len);
}

/* Asks for pixels, which are found or not, or do not come in time. */
Test(worker, pictures_are_asked_for, .timeout = 60) {
    static const char rgb[1 << 20];
    static const uint8_t finish[] = {
        [1] = FINISH_LENGTH, [2] = FINISH_ERROR, [3] = FINISH_DEADLINE};
    CLEANUP(buf_deinit) struct buf b = {.max = MSG_MAX_FRAME};
    const struct msg_open open = {.n_projector = 1};
    int file[] = {model_file(), projector_file()};
    struct picture_layout l = layout_of(file[1]);
    uint32_t n_bytes = 3 * l.width * l.height;
    struct msg_need_picture need;
    struct scene s;

    cr_assert_leq(n_bytes, sizeof(rgb));
    serve_files(&s, open, file, 2);
    for (uint64_t id = 1; id <= 3; id++) {
        struct msg_picture p = {.id = id, .total = n_bytes, .rgb = {rgb, n_bytes}};

        if (id == 2)
            p = (struct msg_picture){.id = id, .status = 404, .why = {"gone", 4}};
        submit_picture(&s, &l, id, id == 3 ? clock_now(clock_monotonic()) + 20000000 : 0);
        receive_type(&s, MSG_NEED_PICTURE);
        cr_assert_eq(msg_need_picture_parse(s.f.data, s.f.len, &need), 0);
        cr_expect(need.id == id && need.index == 0);
        buf_clear(&b);
        cr_assert_eq(msg_picture_pack(&b, &p), 0);
        if (id < 3)
            say(&s, MSG_PICTURE, b.data, b.len);
        struct event e = next_end(&s);
        cr_expect_eq(e.id, id);
        cr_expect(e.finish == finish[id], "%u: %u %u %.*s", (uint32_t)id, e.kind, e.finish,
                  (int)e.text.len, e.text.data);
    }
    cr_expect_eq(end(&s), WORKER_DONE);
}

/* Receives the reason for which it ends. */
static void expect_end_for(struct scene *s, const char *why) {
    receive_type(s, MSG_FAILED);
    cr_expect(is_text((struct str){s->f.data, s->f.len}, why));
    cr_expect_eq(receive(s), -EPIPE);
    cr_expect_eq(end(s), WORKER_CHANNEL);
}

Test(worker, a_frame_that_it_does_not_know_ends_it, .timeout = 60) {
    static const uint16_t types[] = {MSG_SUBMIT,  MSG_SUBMIT_PART,    MSG_CANCEL,
                                     MSG_PICTURE, MSG_TURN_END,       MSG_SERVED,
                                     MSG_HELLO,   MSG_SUBMIT_PART + 1};
    struct scene s;

    for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
        serve(&s, (struct msg_open){0}, -1);
        say(&s, types[i], "short", 5);
        expect_end_for(&s, "Protocol error");
    }
    serve(&s, (struct msg_open){0}, -1);
    say(&s, MSG_SERVED, "", 0);
    expect_end_for(&s, "Protocol error");
    serve(&s, (struct msg_open){0}, -1);
    submit(&s, 400, "");
    submit(&s, 400, ""); /* its id is in use */
    expect_end_for(&s, "Protocol error");
}

/* The front has sent more, and reads only after a while. */
Test(worker, its_last_words_wait_for_room, .timeout = 60) {
    CLEANUP(buf_deinit) struct buf cancel = {.max = MSG_MAX_FRAME};
    struct scene s;

    cr_assert_eq(msg_cancel_pack(&cancel, 99), 0);
    tight = true;
    serve(&s, (struct msg_open){0}, -1);
    submit(&s, 200, "");
    usleep(200000); /* the channel is full */
    say(&s, MSG_SUBMIT, "short", 5);
    for (int i = 0; i < 100; i++) {
        say(&s, MSG_CANCEL, cancel.data, cancel.len);
        usleep(3000);
    }
    receive_type(&s, MSG_FAILED);
    cr_expect(s.f.len == 14 && memcmp(s.f.data, "Protocol error", 14) == 0);
    cr_expect_eq(end(&s), WORKER_CHANNEL);
}

/* Returns the processor time of the worker in ms. */
static int64_t cpu_ms(const struct scene *s) {
    struct timespec t;
    clockid_t clock;

    cr_assert_eq(clock_getcpuclockid(s->pid, &clock), 0);
    cr_assert_eq(clock_gettime(clock, &t), 0);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

Test(worker, rests_while_nothing_runs, .timeout = 60) {
    struct scene s;
    int32_t tokens[4];

    serve(&s, (struct msg_open){0}, -1);
    generate(&s, ARRAY_SIZE(tokens), "", tokens);
    next_stats(&s);
    usleep(50000);
    int64_t before = cpu_ms(&s);
    usleep(400000);
    cr_expect_lt(cpu_ms(&s) - before, 20);
    cr_expect_eq(end(&s), WORKER_DONE);
}

/* Messages about requests that have ended here, or that other workers have, end no worker if they
 * are well formed. */
Test(worker, news_of_others_is_taken, .timeout = 60) {
    CLEANUP(buf_deinit) struct buf turn = {.max = MSG_MAX_FRAME}, picture = turn;
    const struct turn_end over = {.id = 99, .calls = 1};
    const struct msg_picture lost = {.id = 99, .status = 404, .why = {"gone", 4}};
    const struct msg_served other = {.tenant = 3, .ns = 7000};
    struct scene s;
    int32_t tokens[4];

    cr_assert_eq(msg_turn_end_pack(&turn, &over), 0);
    cr_assert_eq(msg_picture_pack(&picture, &lost), 0);
    serve(&s, (struct msg_open){0}, -1);
    say(&s, MSG_TURN_END, turn.data, turn.len);
    say(&s, MSG_PICTURE, picture.data, picture.len);
    say(&s, MSG_SERVED, &other, sizeof(other));
    generate(&s, ARRAY_SIZE(tokens), "", tokens);
    cr_expect_eq(end(&s), WORKER_DONE);
}

/* Statistics come ten times a second at most while something runs, and at once if nothing does. */
Test(worker, statistics_have_a_rate, .timeout = 60) {
    struct msg_stats st = {0};
    struct event_cursor at;
    struct event e = {0};
    int64_t last = 0;
    struct scene s;

    serve(&s, (struct msg_open){0}, -1);
    submit(&s, 480, "");
    do {
        cr_assert_eq(receive(&s), 0);
        if (s.f.type == MSG_EVENTS)
            for (msg_events_begin(&at, s.f.data, s.f.len); msg_events_next(&at, &e) == 0;)
                ;
        if (s.f.type != MSG_STATS)
            continue;
        memcpy(&st, s.f.data, sizeof(st));
        cr_expect(st.n_running == 0 || st.at_ns - last >= 100000000);
        last = st.at_ns;
    } while (e.kind != EVENT_FINISH);
    while (st.n_finished == 0)
        st = next_stats(&s);
    cr_expect(st.n_running == 0 && st.n_output_tokens == 480);
    cr_expect_eq(end(&s), WORKER_DONE);
}

/* Expects the refusal of a request in parts, which is too long for the model. */
static void expect_parts_to_be_joined(struct scene *s, uint64_t id) {
    static int32_t prompt[40000];
    CLEANUP(buf_deinit) struct buf b = {.max = MSG_MAX_FRAME};
    struct submit m = {.id = id,
                       .tokens = prompt,
                       .n_prompt = ARRAY_SIZE(prompt),
                       .n_tokens = ARRAY_SIZE(prompt),
                       .max_new = 1};
    struct event_cursor at;
    struct event e;
    int n;

    params_init(&m.sampling);
    for (uint32_t sent = 0; sent < msg_submit_len(&m); sent += (uint32_t)n) {
        buf_clear(&b);
        n = msg_submit_pack_part(&b, &m, sent);
        cr_assert_gt(n, 0);
        say(s, MSG_SUBMIT_PART, b.data, b.len);
    }
    receive_type(s, MSG_EVENTS);
    msg_events_begin(&at, s->f.data, s->f.len);
    cr_assert_eq(msg_events_next(&at, &e), 0);
    cr_expect(e.id == id && e.kind == EVENT_REJECTED && e.status == 400, "%u", e.status);
}

Test(worker, parts_of_a_request_are_joined, .timeout = 60) {
    struct scene s;
    int32_t tokens[4];

    serve(&s, (struct msg_open){0}, -1);
    expect_parts_to_be_joined(&s, 11);
    expect_parts_to_be_joined(&s, 12);
    generate(&s, ARRAY_SIZE(tokens), "", tokens);
    cr_expect_eq(end(&s), WORKER_DONE);
}

/* Runs a worker with the file of the disk tier and returns its first event about it, or "". Its
 * prefix lies in the file afterwards. @model: with the draft model behind it. */
static const char *run_with_disk(const int model[2], int disk, uint32_t *n_used) {
    const int file[] = {model[0], model[1], disk};
    static char line[400];
    struct scene s;
    int32_t token;

    serve_files(&s, (struct msg_open){.n_draft_shards = 1, .has_disk = 1}, file, 3);
    *n_used = next_stats(&s).n_disk_used;
    generate(&s, 1, "", &token);
    snprintf(line, sizeof(line), "%s", logged(&s, " kv_disk "));
    cr_expect_eq(end(&s), WORKER_DONE);
    return line;
}

/* Pages of another file, even of one with the name and the size, are not used. */
Test(worker, the_file_of_the_disk_tier_belongs_to_the_models_file, .timeout = 60) {
    int model[] = {model_in_memory(), model_in_memory()};
    struct timespec times[2] = {{.tv_sec = 5, .tv_nsec = 5}, {.tv_sec = 5, .tv_nsec = 5}};
    char path[] = "/tmp/weft-worker-disk-XXXXXX", other[200];
    int disk = mkstemp(path);
    uint32_t n_used;

    n_prompt = 300;
    snprintf(other, sizeof(other),
             R"(warn worker kv_disk what="the file was of another model, backend or )"
             R"(version, or damaged, and begins anew" path="%s")",
             path);
    cr_assert_geq(disk, 0);
    cr_assert_eq(futimens(model[0], times), 0);
    for (int change = 0; change < 6; change++) {
        times[1].tv_nsec += change == 2;
        times[1].tv_sec += change == 3;
        if (change == 4)
            cr_assert_eq(pwrite(model[0], "", 1, lseek(model[0], 0, SEEK_END)), 1);
        cr_assert_eq(futimens(model[0], times), 0);
        if (change == 5)
            cr_assert_eq(futimens(model[1], times), 0);
        const char *line = run_with_disk(model, disk, &n_used);
        cr_expect_str_eq(line, change >= 2 && change <= 4 ? other : "", "%d", change);
        cr_expect_eq(n_used > 0, change == 1 || change == 5, "%d: %u", change, n_used);
    }
    close(disk);
    close(model[0]);
    close(model[1]);
    unlink(path);
}

/* The disk tier never fails a request. */
Test(worker, a_file_that_is_no_disk_tier_is_only_logged, .timeout = 60) {
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    int32_t token;
    struct scene s;

    n_prompt = 300;
    serve(&s, (struct msg_open){.has_disk = 1}, null);
    generate(&s, 1, "", &token);
    cr_expect_str_eq(logged(&s, " kv_disk "),
                     R"(warn worker kv_disk what="the file cannot be used" )"
                     R"(error="Invalid argument" path="/dev/null")");
    cr_expect_eq(end(&s), WORKER_DONE);
    close(null);
}

/* The front sends no part behind a cancel: the parts before it are forgotten. */
Test(worker, a_cancel_drops_the_parts_of_a_request, .timeout = 60) {
    static int32_t prompt[40000];
    CLEANUP(buf_deinit) struct buf first = {.max = MSG_MAX_FRAME}, next = first, cancel = first;
    struct submit m = {.id = 8,
                       .tokens = prompt,
                       .n_prompt = ARRAY_SIZE(prompt),
                       .n_tokens = ARRAY_SIZE(prompt),
                       .max_new = 1};
    struct scene s;

    params_init(&m.sampling);
    int n = msg_submit_pack_part(&first, &m, 0);
    cr_assert_gt(n, 0);
    cr_assert_gt(msg_submit_pack_part(&next, &m, (uint32_t)n), 0);
    cr_assert_eq(msg_cancel_pack(&cancel, m.id), 0);
    serve(&s, (struct msg_open){0}, -1);
    say(&s, MSG_SUBMIT_PART, first.data, first.len);
    say(&s, MSG_CANCEL, cancel.data, cancel.len);
    say(&s, MSG_SUBMIT_PART, next.data, next.len);
    receive_type(&s, MSG_FAILED);
    cr_expect(s.f.len == 14 && memcmp(s.f.data, "Protocol error", 14) == 0);
    cr_expect_eq(end(&s), WORKER_CHANNEL);
}

/* The memory of the machine is for pages, pictures and the disk tier, unless the options say
 * otherwise. */
Test(worker, memory_that_no_option_gives_is_divided) {
    static const struct {
        const char *key, *value;
        struct msg_open m;
        uint64_t kv, memory, host;
        bool share, draft_first;
    } cases[] = {
        {NULL, NULL, {.kv_bytes = 5, .memory_bytes = 9000}, 5, 9000, 0, true, true},
        {"kv-pages", "8", {.memory_bytes = 9000}, 0, 9000, 0, true, false},
        {"kv-memory", "3M", {.kv_bytes = 5, .memory_bytes = 9000}, 3 << 20, 0, 0, false, false},
        {NULL, NULL, {.memory_bytes = 1600, .n_projector = 1}, 0, 1500, 0, true, true},
        {NULL, NULL, {.n_projector = 1}, 0, 0, 0, true, true},
        {"kv-memory", "3M", {.memory_bytes = 9, .has_disk = 1}, 3 << 20, 0, 3 << 20, false, false},
        {NULL, NULL, {.has_disk = 1}, 0, 0, 1 << 30, true, true},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        CLEANUP(config_deinit) struct config c = {0};
        struct err err = {0};

        cr_assert_eq(config_init(&c), 0);
        if (cases[i].key)
            cr_assert_eq(config_set(&c, cases[i].key, cases[i].value, &err), 0);
        uint64_t pictures = c.sched.picture_bytes;
        cr_expect_eq(worker_engine_opts(&c, &cases[i].m), cases[i].draft_first, "%zu", i);
        uint64_t part = cases[i].m.n_projector ? cases[i].m.memory_bytes / 16 : 0;
        cr_expect_eq(c.sched.picture_bytes, part ? part : pictures, "%zu", i);
        cr_expect_eq(c.engine.kv_bytes, cases[i].kv, "%zu", i);
        cr_expect_eq(c.engine.memory, cases[i].memory, "%zu", i);
        cr_expect_eq(c.engine.host_kv_bytes, cases[i].host, "%zu", i);
        cr_expect_eq(c.engine.device_share, cases[i].share, "%zu", i);
        cr_expect_eq(c.engine.max_wants, c.engine.max_rows);
        cr_expect(c.engine.drafts && c.engine.windows);
    }
}

/* The block of multi-token prediction drafts unless another model is named, or none drafts. */
Test(worker, the_block_drafts_unless_the_options_say_otherwise) {
    static const struct {
        const char *key, *value;
        bool drafts;
    } cases[] = {{"speculation", "auto", true},
                 {"speculation", "off", false},
                 {"draft-model", "/d.gguf", false},
                 {"draft-sources", "mtp", true},
                 {"draft-sources", "suffix", false}};

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        CLEANUP(config_deinit) struct config c = {0};
        const struct msg_open m = {0};
        struct err err = {0};

        cr_assert_eq(config_init(&c), 0);
        cr_assert_eq(config_set(&c, cases[i].key, cases[i].value, &err), 0, "%s", err.message);
        worker_engine_opts(&c, &m);
        cr_expect_eq(c.engine.drafts, cases[i].drafts, "%s %s", cases[i].key, cases[i].value);
    }
}

Test(worker, keys_and_values_may_have_their_own_formats) {
    static const struct {
        const char *both, *k, *v;
        enum engine_kv_type want_k, want_v;
        bool automatic;
    } cases[] = {
        {"f16", "", "", ENGINE_KV_F16, ENGINE_KV_F16, false},
        {"q4_0", "", "", ENGINE_KV_Q4_0, ENGINE_KV_Q4_0, false},
        {"q8_0", "f16", "", ENGINE_KV_F16, ENGINE_KV_Q8_0, false},
        {"f16", "", "q4_0", ENGINE_KV_F16, ENGINE_KV_Q4_0, false},
        {"auto", "", "", ENGINE_KV_F16, ENGINE_KV_F16, true},
        {"auto", "q8_0", "", ENGINE_KV_Q8_0, ENGINE_KV_F16, false},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        CLEANUP(config_deinit) struct config c = {0};
        struct msg_open m = {0};
        struct err err = {0};

        cr_assert_eq(config_init(&c), 0);
        cr_assert_eq(config_set(&c, "kv-type", cases[i].both, &err), 0, "%s", err.message);
        if (*cases[i].k)
            cr_assert_eq(config_set(&c, "kv-type-k", cases[i].k, &err), 0, "%s", err.message);
        if (*cases[i].v)
            cr_assert_eq(config_set(&c, "kv-type-v", cases[i].v, &err), 0, "%s", err.message);
        worker_engine_opts(&c, &m);
        cr_expect_eq(c.engine.kv_type.k, cases[i].want_k, "%zu", i);
        cr_expect_eq(c.engine.kv_type.v, cases[i].want_v, "%zu", i);
        cr_expect_eq(c.engine.kv_auto, cases[i].automatic, "%zu", i);
    }
}

Test(worker, a_build_is_named_by_its_version_and_messages) {
    unsigned char id[21];
    char sizes[40];

    memset(id, 'x', sizeof(id));
    worker_build_id(id);
    cr_expect_eq(id[20], 'x');
    snprintf(sizes, sizeof(sizes), " %zx.%zx", sizeof(struct submit), sizeof(struct event));
    const char *at = strchr((const char *)id, ' ');
    cr_assert(at && at > (const char *)id);
    cr_expect_str_eq(at, sizes);
    for (size_t i = strlen((const char *)id); i < 20; i++)
        cr_expect_eq(id[i], 0);
}

Test(worker, its_environment_has_few_variables) {
    static const char *const kept[] = {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
                                       "JOURNAL_STREAM",       "LD_LIBRARY_PATH",
                                       "WEFT_CUDA_LIBRARY",    "WEFT_LOG_FORMAT"};
    char *env[WORKER_ENVIRONMENT_MAX], name[32];
    uint32_t n = 0;

    clearenv();
    setenv("HOME", "/root", 1);
    for (size_t i = 0; i < ARRAY_SIZE(kept); i++)
        setenv(kept[i], "1", 1);
    setenv("WEFT_LOG_FORMATS", "no", 1);
    worker_environment(env);
    cr_expect_str_eq(env[0], log_level_variable());
    for (size_t i = 0; i < ARRAY_SIZE(kept); i++) {
        snprintf(name, sizeof(name), "%s=1", kept[i]);
        cr_expect_str_eq(env[i + 1], name);
    }
    cr_expect_null(env[ARRAY_SIZE(kept) + 1]);
    for (uint32_t i = 0; i < 2 * WORKER_ENVIRONMENT_MAX; i++) {
        snprintf(name, sizeof(name), "WEFT_CUDA_%u", i);
        setenv(name, "1", 1);
    }
    worker_environment(env);
    while (n < WORKER_ENVIRONMENT_MAX && env[n])
        n++;
    cr_expect_eq(n, WORKER_ENVIRONMENT_MAX - 1, "the last place is that of NULL");
}
