/*
 * weft-front-sim - the whole front of weftd in virtual time: docs/design/front-simulator.md.
 *
 * Each seed runs in its own process, since the front has variables that live as long as the
 * process.
 */

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/front_sim/client.h"
#include "tests/front_sim/model.h"
#include "tests/front_sim/scenario.h"
#include "tests/front_sim/sim.h"
#include "tests/front_sim/worker.h"

/* Limits the processor time of a seed: seeded bugs may loop for ever. Most seeds take 0.1 s; those
 * with a long answer and a socket of a few bytes take up to 30 s on a slow processor. */
#define SEED_CPU_S 90

int weftd_main(int argc, char **argv); /* daemon/front/main.c */

static char folder[64];
static bool damages; /* option --damaged */
/* State of a seed's process. */
static struct scenario scenario;
static int result_fd; /* its pipe to the parent */

/* Result that a seed's process writes to its pipe. */
struct told {
    uint64_t n_events, trace;
    int64_t ns;
    struct tolerance t;
    uint32_t n_deaths, n_hangs, n_refused, n_ready;
};

struct totals {
    uint64_t n_seeds, n_failed, n_events;
    struct told sum;
};

static void remove_files(void) {
    char command[128];

    snprintf(command, sizeof(command), "rm -rf %s", folder);
    if (system(command) != 0)
        fprintf(stderr, "%s is left\n", folder);
}

static void make_files(void) {
    snprintf(folder, sizeof(folder), "/tmp/weft-front-sim-XXXXXX");
    if (!mkdtemp(folder) || chdir(folder) < 0 || mkdir("models", 0700) < 0) {
        fprintf(stderr, "%s: %s\n", folder, strerror(errno));
        exit(2);
    }
    for (uint32_t i = 0; i < MODELS_MAX; i++) {
        char path[32];

        snprintf(path, sizeof(path), "models/m%u.gguf", i);
        model_write(i, path);
    }
}

/* Limits the processor time, which ends a loop that calls nothing. */
static void limit_cpu(void) {
    struct itimerval v = {.it_value = {.tv_sec = SEED_CPU_S}};

    syscall(SYS_setitimer, ITIMER_VIRTUAL, &v, NULL);
}

/* Checks the end of the seed's front and tells the parent. */
static _Noreturn void end_seed(int code, bool gave_up) {
    sim.in_front = false;
    sim_event("exit", (uint64_t)code, 0);
    scenario_end(&scenario, code, gave_up);
    struct told told = {sim.n_events,    sim.trace,      sim.ns,           tolerance,
                        worker_n_deaths, worker_n_hangs, worker_n_refused, worker_n_ready};
    if (write(result_fd, &told, sizeof(told)) != sizeof(told))
        _exit(2);
    _exit(0);
}

/* Replaces the function of libc, by which the front ends without its threads. */
_Noreturn void quick_exit(int code) {
    end_seed(code, true);
}

static _Noreturn void run_seed(uint64_t seed, bool verbose, int out) {
    char path[80];

    scenario = (struct scenario){.damages = damages};
    result_fd = out;
    limit_cpu();
    snprintf(path, sizeof(path), "seed-%llu", (unsigned long long)seed);
    if (mkdir(path, 0700) < 0 || chdir(path) < 0 || symlink("../models", "models") < 0)
        _exit(2);
    sim =
        (struct sim){.seed = seed, .rng = {seed}, .ns = INT64_C(1000000000000), .verbose = verbose};
    list_init(&sim.actors);
    scenario_begin(&scenario);
    sim.in_front = true;
    end_seed(weftd_main(scenario.argc, scenario.argv), false);
}

struct child {
    pid_t pid;
    int from;
    uint64_t seed;
};

static void begin(struct child *c, uint64_t seed, bool verbose) {
    int pair[2];

    if (pipe(pair) < 0)
        exit(2);
    fflush(NULL);
    c->seed = seed;
    c->pid = fork();
    if (c->pid == 0)
        run_seed(seed, verbose, pair[1]);
    close(pair[1]);
    c->from = pair[0];
}

/* Waits for the end of a child. Returns false if a rule is broken. */
static bool end(struct child *c, struct told *told) {
    int status = 0;
    bool right = read(c->from, told, sizeof(*told)) == sizeof(*told);

    close(c->from);
    waitpid(c->pid, &status, 0);
    c->pid = 0;
    if (WIFSIGNALED(status))
        fprintf(stderr, "seed %llu: ended by signal %d%s\n", (unsigned long long)c->seed,
                WTERMSIG(status), WTERMSIG(status) == SIGVTALRM ? ": it computes for ever" : "");
    return right && status == 0;
}

static void add_up(struct totals *all, const struct told *t, bool right) {
    struct told *s = &all->sum;

    all->n_seeds++;
    all->n_failed += !right;
    if (!right)
        return;
    all->n_events += t->n_events;
    s->t.n_right += t->t.n_right;
    s->t.n_503 += t->t.n_503;
    s->t.n_429 += t->t.n_429;
    s->t.n_500 += t->t.n_500;
    s->t.n_408 += t->t.n_408;
    s->t.n_cut += t->t.n_cut;
    s->n_deaths += t->n_deaths;
    s->n_hangs += t->n_hangs;
    s->n_refused += t->n_refused;
    s->n_ready += t->n_ready;
    s->ns += t->ns - INT64_C(1000000000000);
}

static void print(const struct totals *a, double seconds) {
    const struct told *s = &a->sum;

    printf(
        "%llu seeds, %llu failed, %llu events in %.1f s: %.0f a second; %.0f s of virtual time\n",
        (unsigned long long)a->n_seeds, (unsigned long long)a->n_failed,
        (unsigned long long)a->n_events, seconds, (double)a->n_events / seconds,
        (double)s->ns / 1e9);
    printf(
        "answers: %u right, %u of 503, %u of 429, %u of 500, %u of 408, %u cut; workers: %u ready, "
        "%u deaths, %u hangs, %u refused\n",
        s->t.n_right, s->t.n_503, s->t.n_429, s->t.n_500, s->t.n_408, s->t.n_cut, s->n_ready,
        s->n_deaths, s->n_hangs, s->n_refused);
}

static double wall_s(void) {
    struct timespec t;

    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static _Noreturn void usage(void) {
    fprintf(stderr, "usage: weft-front-sim [--seed N | --seeds A-B] [--damaged] [--twice] "
                    "[--first] [--verbose]\n");
    exit(2);
}

int main(int argc, char **argv) {
    unsigned long long first = 1, last = 50;
    bool verbose = false, twice = false, first_only = false;
    struct totals all = {0};

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            first = last = strtoull(argv[++i], NULL, 10);
        else if (strcmp(argv[i], "--seeds") == 0 && i + 1 < argc &&
                 sscanf(argv[i + 1], "%llu-%llu", &first, &last) == 2)
            i++;
        else if (strcmp(argv[i], "--verbose") == 0)
            verbose = true;
        else if (strcmp(argv[i], "--damaged") == 0) /* workers send damaged frames */
            damages = true;
        else if (strcmp(argv[i], "--twice") == 0)
            twice = true;
        else if (strcmp(argv[i], "--first") == 0) /* after a failed seed the others do not run */
            first_only = true;
        else
            usage();
    }
    make_files();
    double began = wall_s();
    for (uint64_t seed = first; seed <= last && !(first_only && all.n_failed > 0); seed++) {
        struct child c;
        struct told told = {0}, again = {0};

        begin(&c, seed, verbose);
        bool right = end(&c, &told);
        if (right && twice) {
            char command[64];

            snprintf(command, sizeof(command), "rm -rf seed-%llu", (unsigned long long)seed);
            if (system(command) != 0)
                right = false;
            begin(&c, seed, verbose);
            right &= end(&c, &again);
            if (right && (told.trace != again.trace || told.n_events != again.n_events)) {
                fprintf(stderr, "seed %llu: two runs differ\n", (unsigned long long)seed);
                right = false;
            }
        }
        add_up(&all, &told, right);
    }
    print(&all, wall_s() - began);
    remove_files();
    return all.n_failed > 0;
}
