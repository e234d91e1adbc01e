/* weft-sim - the scheduler in virtual time: random scenarios, replays of traces.
 * docs/design/simulator.md. */

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/files.h"
#include "tests/sim/mutate.h"
#include "tests/sim/replay.h"
#include "tests/sim/replay_flight.h"
#include "tests/sim/run.h"

#define STEPS 2000 /* steps of a seed before its faults end */

static int usage(FILE *out) {
    fprintf(
        out,
        "usage: weft-sim run [--seeds A-B] [--steps N] [--threads N] [--set NAME=VALUE]... "
        "[--keep I,J-K]\n"
        "                [--no-shrink] [--flight FILE] [--recorder] [--all-rare]\n"
        "  --seeds    seeds of the scenarios to run (1-1000)\n"
        "  --steps    scheduler steps of a scenario before its faults end (2000)\n"
        "  --threads  processes that run at the same time (1)\n"
        "  --set      replace a value that the seed draws; --set alone lists the names\n"
        "  --keep     run only these actions of each seed\n"
        "  --flight   write the last plans of a failing seed to FILE, for weft-sim replay\n"
        "  --recorder compare the flight recorder with what happened, too\n"
        "  --all-rare fail if no seed of four such ranges takes one of the rare paths\n"
        "\n"
        "       weft-sim replay TRACE [--policy NAME] [--machine h200|rtx5090] [--without TENANT]\n"
        "  --policy   %s\n"
        "\n"
        "       weft-sim replay FLIGHT [--verbose] [--step N] [--request ID]\n"
        "  makes the plans of a recording again: a file of `weftctl dump`, or one that weftd "
        "wrote\n"
        "  when a worker died\n"
        "  --verbose  print all requests of all plans; --step, --request: only the named ones\n"
        "\n"
        "       weft-sim mutants [--runs N] [--threads N] [--only NAME] [--need PERCENT] [--steps "
        "N]\n"
        "                        [--try-first FILE]\n"
        "  runs scenarios against deliberate bugs, one after the other, and counts the bugs found\n"
        R"(  --try-first  with --runs 1: lines "NAME SEED" of seeds that found bugs before)"
        "\n"
        "\n"
        "exit status: 0 every invariant held; 1 an invariant failed; 2 nothing was run\n",
        replay_policies);
    return out != stdout ? 2 : files_flush() ? 0 : 1;
}

static int wrong(const char *what) {
    fprintf(stderr,
            R"(weft-sim: "%s": unknown option,)"
            " or its value is missing or wrong; see weft-sim --help"
            "\n",
            what);
    return 2;
}

static bool number(const char *s, long *out) {
    char *end;

    errno = 0;
    *out = strtol(s, &end, 10);
    return errno == 0 && end != s && *end == '\0' && *out >= 0;
}

static bool count(const char *s, uint32_t *out) {
    long n;

    if (!number(s, &n) || n > UINT32_MAX)
        return false;
    *out = (uint32_t)n;
    return true;
}

static bool range(const char *s, uint64_t *a, uint64_t *b, const char **end) {
    char *e;

    *b = *a = strtoull(s, &e, 10);
    if (e == s)
        return false;
    if (*e == '-')
        *b = strtoull(e + 1, &e, 10);
    *end = e;
    return *b >= *a;
}

static bool parse_keep(struct swarm_case *c, const char *s) {
    uint64_t a, b;

    for (c->some = true; *s; s += *s == ',') {
        if (!range(s, &a, &b, &s) || b >= SWARM_ACTIONS || (*s && *s != ','))
            return false;
        memset(c->keep + a, 1, b - a + 1);
    }
    return true;
}

static bool parse_set(struct swarm_case *c, const char *s) {
    size_t len = strcspn(s, "=");
    uint32_t i = swarm_field(s, len);

    if (i == SWARM_N || s[len] != '=')
        return false;
    c->is_set[i] = true;
    return count(s + len + 1, &((uint32_t *)&c->set)[i]) &&
           swarm_allows(i, ((uint32_t *)&c->set)[i]);
}

/* Parses the options of a run. Returns 0, or 2 after an error message. */
static int parse_run(struct run_opts *o, int argc, char **argv) {
    for (int i = 0; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL, *end;
        bool ok = value != NULL;

        if (strcmp(argv[i], "--all-rare") == 0) {
            o->all_rare = true;
            continue;
        }
        if (strcmp(argv[i], "--recorder") == 0) {
            o->base.recorder = true;
            continue;
        }
        if (strcmp(argv[i], "--no-shrink") == 0) {
            o->no_shrink = true;
            continue;
        }
        if (strcmp(argv[i], "--set") == 0 && !value) {
            for (uint32_t k = 0; k < SWARM_N; k++)
                fprintf(stderr, "%s\n", swarm_names[k]);
            return 2;
        }
        if (ok && strcmp(argv[i], "--seeds") == 0)
            ok = range(value, &o->first, &o->last, &end) && *end == '\0';
        else if (ok && strcmp(argv[i], "--steps") == 0)
            ok = count(value, &o->base.n_steps) && o->base.n_steps > 0;
        else if (ok && strcmp(argv[i], "--threads") == 0)
            ok = count(value, &o->n_processes) && o->n_processes <= 1024;
        else if (ok && strcmp(argv[i], "--set") == 0)
            ok = parse_set(&o->base, value);
        else if (ok && strcmp(argv[i], "--keep") == 0)
            ok = parse_keep(&o->base, value);
        else if (ok && strcmp(argv[i], "--flight") == 0)
            o->base.flight_file = value;
        else
            ok = false;
        if (!ok)
            return wrong(argv[i]);
        i++;
    }
    return 0;
}

static int replay_of_flight(int argc, char **argv) {
    struct flight_opts o = {.step = -1, .request = -1};

    for (int i = 0; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;

        if (argv[i][0] != '-' && !o.path)
            o.path = argv[i];
        else if (strcmp(argv[i], "--verbose") == 0)
            o.verbose = true;
        else if (value && strcmp(argv[i], "--step") == 0 && number(value, &o.step))
            i++;
        else if (value && strcmp(argv[i], "--request") == 0 && number(value, &o.request))
            i++;
        else
            return wrong(argv[i]);
    }
    return replay_flight(&o);
}

static int replay(int argc, char **argv) {
    struct replay_opts o = {.without = -1};

    for (int i = 0; i < argc; i++)
        if (argv[i][0] != '-' && replay_flight_is(argv[i]))
            return replay_of_flight(argc, argv);
    for (int i = 0; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;

        if (argv[i][0] != '-' && !o.trace) {
            o.trace = argv[i];
            continue;
        }
        if (value && strcmp(argv[i], "--policy") == 0)
            o.policy = value;
        else if (value && strcmp(argv[i], "--machine") == 0)
            o.machine = value;
        else if (!value || strcmp(argv[i], "--without") != 0 || !number(value, &o.without))
            return wrong(argv[i]);
        i++;
    }
    return o.trace ? replay_run(&o) : wrong("replay");
}

#ifdef WEFT_MUTANTS
static int mutants(int argc, char **argv) {
    struct mutate_opts o = {.n_runs = 20, .n_processes = 1, .needed = 95, .max_steps = 1000000};

    for (int i = 0; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--runs") == 0)
            o.n_runs = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--threads") == 0)
            o.n_processes = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--need") == 0)
            o.needed = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--only") == 0)
            o.only = argv[i + 1];
        else if (strcmp(argv[i], "--steps") == 0)
            o.max_steps = strtoull(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--try-first") == 0)
            o.try_first = argv[i + 1];
        else
            return wrong(argv[i]);
    }
    return argc % 2 == 0 && o.n_runs > 0 && o.n_processes > 0 ? mutate(&o) : wrong("mutants");
}
#else
/* Mutants are in a separate program: the pager and the scheduler of this one are those of weftd. */
static int mutants(int argc, char **argv) {
    char self[4096], other[4200];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

    if (n < 0)
        return 2;
    self[n] = '\0';
    snprintf(other, sizeof(other), "%s-mutants", self);
    execv(other, argv - 2);
    perror(other);
    return 2;
}
#endif

int main(int argc, char **argv) {
    static struct run_opts o = {.first = 1, .last = 1000, .base.n_steps = STEPS};

    for (int i = 1; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return usage(stdout);
    if (argc < 2)
        return usage(stderr);
    if (strcmp(argv[1], "replay") == 0)
        return replay(argc - 2, argv + 2);
    if (strcmp(argv[1], "mutants") == 0)
        return mutants(argc - 2, argv + 2);
    if (strcmp(argv[1], "run") != 0)
        return wrong(argv[1]);
    return parse_run(&o, argc - 2, argv + 2) == 0 ? run_seeds(&o) : 2;
}
