#include "tests/sim/run.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

/* One seed in this many runs a second time, in a process that has run no other seed, and must give
 * the same events. */
#define REPEAT_SEEDS 23
#define RARE_RANGES 4 /* ranges of seeds in which each rare path must be taken */
#define SAYS_MAX 4096
#define HANG_S 60u /* longest time of a case, which takes milliseconds */

/* Memory that a child shares with the process that started it. */
struct shared {
    struct swarm_total total;
    uint64_t seed, at;
};

struct child {
    /* 0: none */
    pid_t pid;
    /* its stderr */
    int fd;
    struct shared *shared;
    /* [seed - run_opts.first] hash of the events of each seed, 0: not run yet; or NULL */
    uint64_t *hash;
    char says[SAYS_MAX];
    size_t n_says;
};

static void *shared_memory(size_t size) {
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED) {
        perror("weft-sim: mmap");
        exit(2);
    }
    return p;
}

/* Runs a seed. @hash: NULL, or the hash of an earlier run, which must be the same; 0: there was
 * none. */
static void run_seed(struct swarm_case *c, struct shared *shared, uint64_t *hash) {
    shared->seed = c->seed;
    swarm_run(c, &shared->total, &shared->at);
    if (!hash)
        return;
    HOLD(NULL, NULL, REPEATS, *hash == 0 || *hash == shared->total.hash);
    *hash = shared->total.hash;
}

/* Starts a process that runs seeds @first, @first + @stride, ... */
static void start(struct child *child, const struct run_opts *o, uint64_t first, uint64_t stride) {
    static struct swarm_case c;
    struct itimerval limit = {.it_value.tv_sec = o->hang_s ? o->hang_s : HANG_S};
    int fd[2];

    child->n_says = 0;
    fflush(stdout); /* otherwise buffered output would be printed twice */
    if (pipe(fd) < 0 || (child->pid = fork()) < 0) {
        perror("weft-sim");
        exit(2);
    }
    if (child->pid > 0) {
        close(fd[1]);
        child->fd = fd[0];
        return;
    }
    close(fd[0]);
    dup2(fd[1], STDERR_FILENO);
    setrlimit(RLIMIT_CORE, &(struct rlimit){0});
    c = o->base;
    for (c.seed = first; c.seed <= o->last; c.seed += stride) {
        if (o->max_steps && child->shared->total.n_steps >= o->max_steps)
            break;
        child->shared->at = 0;
        setitimer(ITIMER_VIRTUAL, &limit, NULL);
        run_seed(&c, child->shared, child->hash ? &child->hash[c.seed - o->first] : NULL);
    }
    exit(0); /* not _exit(), so that the sanitizers look for leaks */
}

/* Waits for the end of a child and keeps its output. Returns true if it failed. */
static bool finish(struct child *child) {
    char more[512];
    ssize_t n;
    int status;

    while ((n = read(child->fd, more, sizeof(more))) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            break;
        size_t room = SAYS_MAX - 1 - child->n_says;
        memcpy(child->says + child->n_says, more, MIN((size_t)n, room));
        child->n_says += MIN((size_t)n, room);
    }
    close(child->fd);
    child->says[child->n_says] = '\0';
    waitpid(child->pid, &status, 0);
    child->pid = 0;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGVTALRM)
        snprintf(child->says, SAYS_MAX, "it does not end\n");
    else if (WIFSIGNALED(status) && child->n_says == 0)
        snprintf(child->says, SAYS_MAX, "it dies of signal %d\n", WTERMSIG(status));
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

bool run_fails(const struct swarm_case *c, char *says, size_t size, uint64_t *at) {
    struct run_opts o = {.first = c->seed, .last = c->seed, .base = *c};
    struct child child = {.shared = shared_memory(sizeof(*child.shared))};

    start(&child, &o, c->seed, 1);
    bool failed = finish(&child);
    if (says)
        snprintf(says, size, "%s", child.says);
    if (at)
        *at = child.shared->at;
    munmap(child.shared, sizeof(*child.shared));
    return failed;
}

void run_processes(const struct run_opts *o, uint32_t n, struct run_result *out) {
    CLEANUP(freep) struct child *child = calloc(n, sizeof(*child));

    if (!child)
        exit(2);
    for (uint32_t i = 0; i < n; i++) {
        child[i].shared = shared_memory(sizeof(*child[i].shared));
        start(&child[i], &o[i], o[i].first, 1);
    }
    for (uint32_t i = 0; i < n; i++) {
        out[i].failed = finish(&child[i]);
        out[i].seed = child[i].shared->seed;
        out[i].n_steps = child[i].shared->total.n_steps + (out[i].failed ? child[i].shared->at : 0);
        snprintf(out[i].says, sizeof(out[i].says), "%s", child[i].says);
        munmap(child[i].shared, sizeof(*child[i].shared));
    }
}

/* ---- making it smaller ---- */

/* Copies the first line without numbers: the broken invariant, independent of the place. */
static void kind_of(const char *says, char *out, size_t size) {
    size_t n = 0;

    for (; *says && *says != '\n' && n + 1 < size; says++)
        if (*says < '0' || *says > '9')
            out[n++] = *says;
    out[n] = '\0';
}

struct shrink {
    struct swarm_case *c;
    char kind[256];
    uint32_t n_tries;
};

#define TRIES_MAX 2000u

static bool still_fails(struct shrink *z, const struct swarm_case *c) {
    char says[SAYS_MAX], kind[256];

    if (z->n_tries++ >= TRIES_MAX || !run_fails(c, says, sizeof(says), NULL))
        return false;
    kind_of(says, kind, sizeof(kind));
    return strcmp(kind, z->kind) == 0;
}

/* Leaves out half of the actions, then quarters, and so on to single ones. */
static void drop_actions(struct shrink *z) {
    static struct swarm_case t;
    uint32_t n = swarm_actions(z->c);

    for (uint32_t part = MAX(n / 2, 1); part > 0; part /= 2)
        for (uint32_t i = 0; i < n; i += part) {
            uint32_t end = MIN(i + part, n);

            if (!memchr(z->c->keep + i, 1, end - i))
                continue;
            t = *z->c;
            memset(t.keep + i, 0, end - i);
            if (still_fails(z, &t))
                *z->c = t;
        }
}

/* Values of features that switch them off or make them simple. Features of arrivals and faults are
 * missing, because they would renumber the actions, which are left out one by one anyway. */
static void drop_features(struct shrink *z) {
    static const struct {
        const char *name;
        uint32_t value;
    } simple[] = {
        {"buggify", 0},     {"states", 0},      {"window", 0},      {"pictures", 0},
        {"draft_pages", 0}, {"constrained", 0}, {"noise", 0},       {"key_ns", 0},
        {"extras", 0},      {"sampling", 0},    {"stops", 0},       {"deadlines", 0},
        {"lonely", 0},      {"priorities", 1},  {"end", 0},         {"no_speculation", 1},
        {"drafts", 0},      {"max_draft", 1},   {"force_draft", 0}, {"no_sharing", 1},
        {"turns", 0},       {"tenants", 1},     {"sessions", 1},    {"keys", 1},
        {"families", 1},    {"depth", 1},       {"seqs", 1},        {"seqs", 2},
        {"page_tokens", 1}, {"page_tokens", 4}, {"hungry", 0},      {"prompt", 8},
        {"prompt", 30},     {"block", 0},       {"output", 2},      {"output", 10},
        {"chunk", 0},
    };
    static struct swarm_case t;

    for (uint32_t i = 0; i < ARRAY_SIZE(simple); i++) {
        uint32_t field = swarm_field(simple[i].name, strlen(simple[i].name));

        t = *z->c;
        if (t.is_set[field])
            continue;
        t.is_set[field] = true;
        ((uint32_t *)&t.set)[field] = simple[i].value;
        if (still_fails(z, &t))
            *z->c = t;
    }
}

/* Switches off rare paths, one after the other. */
static void drop_rare(struct shrink *z) {
    static struct swarm_case t;
    struct swarm w;

    swarm_draw(&w, z->c);
    for (uint32_t i = 0; i < 32; i++) {
        if (!(w.buggify >> i & 1))
            continue;
        t = *z->c;
        t.is_set[swarm_field("buggify", 7)] = true;
        t.set.buggify = w.buggify & ~(1u << i);
        if (!still_fails(z, &t))
            continue;
        *z->c = t;
        w.buggify = t.set.buggify;
    }
}

void run_shrink(struct swarm_case *c) {
    static struct swarm_case t;
    char says[SAYS_MAX];
    struct shrink z = {.c = c};
    uint64_t at;

    if (!run_fails(c, says, sizeof(says), &at))
        return;
    kind_of(says, z.kind, sizeof(z.kind));
    if (!c->some)
        memset(c->keep, 1, sizeof(c->keep));
    c->some = true;
    /* Fewer steps leave out only the last actions, so the others keep their numbers. */
    t = *c;
    t.n_steps = (uint32_t)MIN(at + 1, c->n_steps);
    if (still_fails(&z, &t))
        *c = t;
    for (uint32_t round = 0, before = 0; round < 4 && z.n_tries < TRIES_MAX; round++) {
        before = z.n_tries;
        drop_actions(&z);
        drop_features(&z);
        drop_rare(&z);
        if (z.n_tries == before)
            break;
    }
}

void run_command(const struct swarm_case *c, char *out, size_t size) {
    uint32_t n = swarm_actions(c);
    size_t at = 0;

#define PUT(...) at += (size_t)snprintf(out + MIN(at, size), size - MIN(at, size), __VA_ARGS__)
    PUT("weft-sim run --seeds %llu-%llu --steps %u", (unsigned long long)c->seed,
        (unsigned long long)c->seed, c->n_steps);
    for (uint32_t i = 0; i < SWARM_N; i++)
        if (c->is_set[i])
            PUT(" --set %s=%u", swarm_names[i], ((const uint32_t *)&c->set)[i]);
    bool first = true;
    for (uint32_t i = 0, end; c->some && i < n; i = end + 1) {
        for (end = i; end < n && c->keep[end]; end++)
            ;
        if (end == i)
            continue;
        PUT("%s%u", first ? " --keep " : ",", i);
        if (end > i + 1)
            PUT("-%u", end - 1);
        first = false;
    }
#undef PUT
}

/* ---- many seeds ---- */

static void tell_failure(const struct run_opts *o, const struct child *child) {
    static struct swarm_case c;
    char command[8192], says[SAYS_MAX], line[128];

    c = o->base;
    c.seed = child->shared->seed;
    run_command(&c, command, sizeof(command));
    printf("FAILED: seed %llu at step %llu\n%s  again: %s\n", (unsigned long long)c.seed,
           (unsigned long long)child->shared->at, child->says, command);
    fflush(stdout);
    if (o->no_shrink || !run_fails(&c, NULL, 0, NULL))
        return;
    run_shrink(&c);
    run_command(&c, command, sizeof(command));
    run_fails(&c, says, sizeof(says), NULL);
    printf("smaller: %s\n%s", command, says);
    for (uint32_t i = 0, n = swarm_actions(&c), k = 0; i < n && k < 20; i++)
        if (c.keep[i]) {
            swarm_tell(&c, i, line, sizeof(line));
            printf("  action %u, %s\n", i, line);
            k++;
        }
    fflush(stdout);
}

static void tell_total(const struct swarm_total *t, double seconds) {
    printf(
        "%llu runs, %llu steps, %llu requests: %llu stop, %llu length, %llu cancelled, %llu late, "
        "%llu refused or given up; %llu preemptions, %llu cached tokens, %llu deaths; %llu of %llu "
        "drafted tokens accepted; events %016llx; %.0f steps/s\n",
        (unsigned long long)t->n_runs, (unsigned long long)t->n_steps,
        (unsigned long long)t->n_requests, (unsigned long long)t->n_end[FINISH_STOP],
        (unsigned long long)t->n_end[FINISH_LENGTH], (unsigned long long)t->n_end[FINISH_CANCELLED],
        (unsigned long long)t->n_end[FINISH_DEADLINE], (unsigned long long)t->n_end[FINISH_ERROR],
        (unsigned long long)t->n_preemptions, (unsigned long long)t->n_cached,
        (unsigned long long)t->n_deaths, (unsigned long long)t->n_accepted,
        (unsigned long long)t->n_drafted, (unsigned long long)t->sum, (double)t->n_steps / seconds);
}

/* Prints how often each rare path was taken. */
static void tell_rare(const struct swarm_total *t) {
    fputs("rare paths taken:", stdout);
    for (uint32_t i = 0; i < BUGGIFY_N; i++)
        printf(" %s %llu", buggify_sites[i]->name, (unsigned long long)t->n_taken[i]);
    putchar('\n');
}

static bool all_rare_taken(const struct swarm_total *t) {
    uint32_t n = 0;

    while (n < BUGGIFY_N && t->n_taken[n] > 0)
        n++;
    return n == BUGGIFY_N;
}

static void add(struct swarm_total *sum, const struct swarm_total *t) {
    uint64_t *a = (uint64_t *)sum;
    const uint64_t *b = (const uint64_t *)t;

    for (size_t i = 0; i < sizeof(*t) / sizeof(*b); i++)
        a[i] += b[i];
}

/* Returns the processor time of all children that have ended. */
static double cpu_seconds(void) {
    struct rusage u;

    getrusage(RUSAGE_CHILDREN, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* Runs some of the seeds again, each in a process of its own. Returns true if their events were the
 * same. */
static bool run_again(const struct run_opts *o, uint64_t *hash) {
    struct child child = {.shared = shared_memory(sizeof(*child.shared)), .hash = hash};
    uint64_t seed = round_up(o->first, REPEAT_SEEDS);
    bool failed = false;

    for (; seed <= o->last && !failed; seed += REPEAT_SEEDS) {
        start(&child, o, seed, o->last);
        failed = finish(&child);
        if (failed)
            tell_failure(o, &child);
    }
    munmap(child.shared, sizeof(*child.shared));
    return !failed;
}

/* Runs the seeds of @o and adds what they did to @total. Returns 0, 1 if a seed failed, or 2. */
static int run_range(const struct run_opts *o, struct swarm_total *total) {
    uint32_t n = MAX(o->n_processes, 1);
    size_t n_bytes = (o->last - o->first + 1) * sizeof(uint64_t);
    uint64_t *hash = shared_memory(n_bytes);
    CLEANUP(freep) struct child *child = calloc(n, sizeof(*child));
    bool failed = false;

    if (!child)
        return 2;
    for (uint32_t i = 0; i < n; i++) {
        child[i].shared = shared_memory(sizeof(*child[i].shared));
        child[i].hash = hash;
        start(&child[i], o, o->first + i, n);
    }
    for (uint32_t i = 0; i < n; i++) {
        /* A pipe holds the whole output of a dying process, so children can be awaited in turn. */
        if (finish(&child[i])) {
            failed = true;
            tell_failure(o, &child[i]);
        }
        add(total, &child[i].shared->total);
        munmap(child[i].shared, sizeof(*child[i].shared));
    }
    failed = failed || !run_again(o, hash);
    munmap(hash, n_bytes);
    return failed;
}

int run_seeds(const struct run_opts *o) {
    struct run_opts now = *o;
    struct swarm_total total = {0};
    uint64_t n = o->last - o->first + 1;
    int r = run_range(&now, &total);

    /* Some paths are taken by one seed in a hundred. Any change may move these seeds out of the
     * range, so the next ranges are tried before a path counts as lost. */
    for (int i = 1; i < RARE_RANGES && r == 0 && o->all_rare && !all_rare_taken(&total); i++) {
        now.first += n;
        now.last += n;
        r = run_range(&now, &total);
    }
    tell_total(&total, MAX(cpu_seconds(), 1e-3));
    tell_rare(&total);
    if (r == 0 && o->all_rare && !all_rare_taken(&total))
        r = 1;
    return r;
}
