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
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/chan.h"
#include "base/log.h"
#include "daemon/worker/worker.h"
#include "proto/flight_tape.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_model.h"

#define FILES_MAX 2

/* A worker and the front's side of its channel. */
struct scene {
    struct chan chan;
    struct chan_frame f;
    /* frames that tell of blocks */
    uint32_t n_blocks;
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
    const int given[] = {channel, page, o->file[0], o->file[1]};
    char *argv[] = {"weftd", WORKER_FLAG, (char *)o->n_shards, NULL};
    int high[ARRAY_SIZE(given)], n = WORKER_FD_MODEL - WORKER_FD_CHANNEL + o->n;

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

static void start(struct scene *s, const struct start *o) {
    int page = memfd_create("page", MFD_CLOEXEC), pair[2];

    *s = (struct scene){0};
    cr_assert_eq(ftruncate(page, (off_t)(FLIGHT_OFFSET + FLIGHT_BYTES)), 0);
    s->crash_page = mmap(NULL, sizeof(*s->crash_page), PROT_READ | PROT_WRITE, MAP_SHARED, page, 0);
    cr_assert(s->crash_page != MAP_FAILED);
    s->log = tmpfile();
    cr_assert(s->log);
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair), 0);
    if (tight)
        setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &(int){1}, sizeof(int));
    s->pid = fork();
    cr_assert_geq(s->pid, 0);
    if (s->pid == 0)
        _exit(be_worker(o, pair[1], page, fileno(s->log)));
    close(pair[1]);
    close(page);
    chan_init(&s->chan, pair[0], MSG_MAX_FRAME, MSG_MAX_QUEUED);
}

/* Receives the next frame. Returns 0, or the negative errno of a channel that has ended. */
static int receive(struct scene *s) {
    int r;

    while ((r = chan_recv(&s->chan, &s->f)) == CHAN_EMPTY)
        cr_assert_eq(chan_wait(&s->chan, 30000), 0);
    s->n_blocks += r == 0 && s->f.type == MSG_BLOCKS;
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
    munmap(s->crash_page, sizeof(*s->crash_page));
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

/* Sends OPEN as @m with the options of a small worker. */
static void open_as(struct scene *s, struct msg_open m) {
    CLEANUP(buf_deinit) struct buf options = {.max = MSG_MAX_FRAME};
    CLEANUP(buf_deinit) struct buf out = {.max = MSG_MAX_FRAME};
    static const char *const set[][2] = {
        {"backend", "cpu"}, {"threads", "1"}, {"kv-memory", "2M"}, {"kv-disk-size", "1M"}};
    CLEANUP(config_deinit) struct config c = {0};
    struct err err;

    cr_assert_eq(config_init(&c), 0);
    for (size_t i = 0; i < ARRAY_SIZE(set); i++)
        cr_assert_eq(config_set(&c, set[i][0], set[i][1], &err), 0, "%s", err.message);
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
        last = p.fraction;
    }
    cr_expect_eq(last, 1);
    cr_assert_eq(s->f.type, MSG_READY);
    cr_assert_eq(msg_ready_parse(s->f.data, s->f.len, &m), 0);
    cr_expect_eq(s->crash_page->loading, 0);
    return m;
}

/* Starts a worker of the model, with @last, the file of a draft model or of the disk tier, if it is
 * not negative, and waits until it serves. */
static struct msg_ready serve(struct scene *s, struct msg_open m, int last) {
    struct start o = {{model_file(), last}, last < 0 ? 1 : 2, m.n_draft_shards ? "2" : "1", false};

    start(s, &o);
    close(o.file[0]);
    expect_hello(s);
    open_as(s, m);
    return expect_ready(s);
}

/* number of workers that died while they had the next request */
static uint8_t n_faults;

/* Submits a request for @n tokens with @grammar, or without one if it is "". */
static void submit(struct scene *s, uint32_t n, const char *grammar) {
    CLEANUP(buf_deinit) struct buf b = {.max = MSG_MAX_FRAME};
    int32_t prompt[] = {1, 5, 9};
    struct submit m = {.id = 7,
                       .n_prompt = 3,
                       .n_tokens = 3,
                       .tokens = prompt,
                       .max_new = n,
                       .n_faults = n_faults,
                       .grammar = {grammar, (uint32_t)strlen(grammar)}};

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

static struct msg_stats next_stats(struct scene *s) {
    struct msg_stats st;

    receive_type(s, MSG_STATS);
    cr_assert_eq(s->f.len, sizeof(st));
    memcpy(&st, s->f.data, sizeof(st));
    return st;
}

/* Returns the first line of the worker's log that has @part; "": none has it. */
static const char *logged(struct scene *s, const char *part) {
    static char line[600];

    rewind(s->log);
    while (fgets(line, sizeof(line), s->log))
        if (strstr(line, part))
            return line;
    return "";
}

Test(worker, serves_from_open_to_the_end_of_the_channel, .timeout = 60) {
    CLEANUP(buf_deinit) struct buf b = {.max = MSG_MAX_FRAME};
    struct scene s;
    int32_t tokens[40];

    struct msg_ready m = serve(&s, (struct msg_open){.tells_blocks = 1}, -1);
    cr_expect(m.n_vocab == 512 && m.n_layer == 5 && m.n_embd == 64, "%u %u %u", m.n_vocab,
              m.n_layer, m.n_embd);
    cr_expect(m.n_threads == 1 && m.page_tokens == 32 && m.n_pages > 0);
    cr_expect(m.arch.len == 5 && memcmp(m.arch.data, "llama", 5) == 0);
    cr_expect(m.backend.len == 3 && memcmp(m.backend.data, "cpu", 3) == 0);
    cr_expect_eq(getpriority(PRIO_PROCESS, (id_t)s.pid), MIN(getpriority(PRIO_PROCESS, 0) + 5, 19));
    const char *line = logged(&s, " memory ");
    cr_expect(strstr(line, "draft_mib=0 kv_mib=1 host_kv_mib=0 free_mib=0 max_context=512"), "%s",
              line);
    struct msg_stats st = next_stats(&s); /* without a request */
    cr_expect(st.at_ns > 0 && st.n_devices == 0 && st.n_grammars == 0);
    cr_expect(st.n_finished == 0 && st.n_prompt_tokens == 0 && st.n_output_tokens == 0,
              "the warm-up is no request");
    generate(&s, 40, R"({"regex":"[a-z]{400}"})", tokens);
    cr_assert_eq(msg_cancel_pack(&b, 99), 0);
    for (int i = 0; i < 2; i++) { /* the first statistics may be those of the end of the request */
        say(&s, MSG_CANCEL, b.data, b.len); /* a request that is unknown */
        st = next_stats(&s);
    }
    cr_expect(st.n_grammars == 1 && st.n_grammars_refused == 0 && st.n_grammar_waiting == 0);
    cr_expect_gt(s.n_blocks, 0);
    cr_expect(st.grammar_bytes > 0 && st.compile_ns_total > 0 && st.n_compiling == 0);
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
    struct scene s;
    FILE *disk = tmpfile();

    cr_assert(disk);
    serve(&s, (struct msg_open){.has_disk = 1}, fileno(disk));
    for (int i = 0; i < 2; i++) {
        say(&s, MSG_DISK_LEAVE, "", 0);
        receive_type(&s, MSG_DISK_LEFT);
        say(&s, MSG_DISK_USE, "", 0);
        say(&s, MSG_DISK_USE, "", 0); /* it has the file already */
    }
    cr_expect_eq(end(&s), WORKER_DONE);
    fclose(disk);
}

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
        cr_expect_eq(s.f.type, MSG_FAILED);
        cr_expect(memmem(s.f.data, s.f.len, why, strlen(why)), "%.*s", (int)s.f.len,
                  (const char *)s.f.data);
        cr_expect_eq(s.crash_page->loading, 1, "it ended while it loaded");
    }
    int is = end(&s);
    cr_expect_eq(is, code, "%d: %s", is, why ? why : "");
}

Test(worker, a_refusal_has_its_reason_and_its_exit_code, .timeout = 60) {
    const struct msg_open plain = {0}, draft = {.n_draft_shards = 1},
                          bad = {.options = {"nonsense", 8}};
    int model = model_file(), nothing = open("/dev/null", O_RDONLY);
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
        {{{nothing}, 1, "1", false}, &plain, "", WORKER_REFUSED},
        {{{model}, 1, "1", false}, &draft, "Protocol error", WORKER_REFUSED},
        {{{model}, 1, "1", true}, &plain, "Too many open files", WORKER_SHORT},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
        expect_refusal(&cases[i].o, cases[i].m, cases[i].why, cases[i].code);
    close(model);
    close(nothing);
}

Test(worker, a_frame_that_it_does_not_know_ends_it, .timeout = 60) {
    struct scene s;

    serve(&s, (struct msg_open){0}, -1);
    say(&s, MSG_SUBMIT, "short", 5);
    receive_type(&s, MSG_FAILED);
    cr_expect(s.f.len == 14 && memcmp(s.f.data, "Protocol error", 14) == 0);
    cr_expect_eq(end(&s), WORKER_CHANNEL);
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
    static const uint16_t types[] = {MSG_TURN_END, MSG_PICTURE, MSG_SERVED};
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
    for (size_t i = 0; i < ARRAY_SIZE(types); i++) {
        serve(&s, (struct msg_open){0}, -1);
        say(&s, types[i], "short", 5);
        receive_type(&s, MSG_FAILED);
        cr_expect_eq(end(&s), WORKER_CHANNEL, "%u", types[i]);
    }
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
        {"kv-memory", "3M", {.memory_bytes = 9, .has_disk = 1}, 3 << 20, 0, 3 << 20, false, false},
        {NULL, NULL, {.has_disk = 1}, 0, 0, 1 << 30, true, true},
    };

    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        CLEANUP(config_deinit) struct config c = {0};
        struct err err = {0};

        cr_assert_eq(config_init(&c), 0);
        if (cases[i].key)
            cr_assert_eq(config_set(&c, cases[i].key, cases[i].value, &err), 0);
        cr_expect_eq(worker_engine_opts(&c, &cases[i].m), cases[i].draft_first, "%zu", i);
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
