#include "tests/front_sim/sim.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"

struct sim sim;

void sim_fail(const char *rule, const char *fmt, ...) {
    va_list ap;

    sim.in_front = false;
    fprintf(stderr, "seed %llu broke %s at %lld us, event %llu: ", (unsigned long long)sim.seed,
            rule, (long long)(sim.ns / 1000), (unsigned long long)sim.n_events);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    fflush(stderr);
    _exit(1);
}

void sim_event(const char *what, uint64_t a, uint64_t b) {
    uint64_t h = sim.trace;

    for (const char *p = what; *p; p++)
        h = (h ^ (uint8_t)*p) * 0x100000001B3u;
    h = (h ^ a) * 0x9E3779B97F4A7C15u;
    h ^= h >> 29;
    h = (h ^ b) * 0xBF58476D1CE4E5B9u;
    sim.trace = (h ^ h >> 32) + (uint64_t)sim.ns;
    sim.n_events++;
    if (sim.verbose)
        fprintf(stderr, "%10lld us  %s %llu %llu\n", (long long)(sim.ns / 1000), what,
                (unsigned long long)a, (unsigned long long)b);
}

void sim_note(const char *fmt, ...) {
    va_list ap;

    if (!sim.verbose)
        return;
    va_start(ap, fmt);
    fprintf(stderr, "%10lld us  ", (long long)(sim.ns / 1000));
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
}

uint32_t sim_below(uint32_t n) {
    return rng_below(&sim.rng, n);
}

uint32_t sim_between(uint32_t least, uint32_t most) {
    return least + sim_below(most - least + 1);
}

bool sim_one_in(uint32_t n) {
    return sim_below(n) == 0;
}

bool sim_enter(void) {
    bool was = sim.in_front;

    sim.in_front = false;
    if (was && ++sim.n_calls > SIM_CALLS_MAX)
        sim_fail("BOUNDED", "one callback of the loop does not end");
    return was;
}

void sim_leave(bool was) {
    sim.in_front = was;
}

void sim_spend(int64_t ns) {
    sim.ns += ns;
    sim.spent_ns += ns;
    sim.front_ns += ns;
}

void sim_price(size_t bytes, size_t items) {
    if (sim.in_front)
        sim_spend((int64_t)(bytes * SIM_BYTE_NS + items * SIM_ITEM_NS));
}

void sim_iteration(void) {
    if (sim.spent_ns > SIM_ITERATION_NS)
        sim_fail("ITERATION", "an iteration of the loop costs %lld us",
                 (long long)sim.spent_ns / 1000);
    sim.spent_ns = 0;
}

/* ---- actors ---- */

void actor_start(struct actor *a, void (*step)(struct actor *a), int64_t delay_ns) {
    a->step = step;
    a->next_ns = sim.ns + delay_ns;
    list_push_back(&sim.actors, &a->link);
}

void actor_stop(struct actor *a) {
    if (a->step)
        list_remove(&a->link);
    a->step = NULL;
}

void actor_wake(struct actor *a, int64_t ns) {
    if (a && a->next_ns > sim.ns + ns)
        a->next_ns = sim.ns + ns;
}

bool actors_act(void) {
    struct actor *chosen = NULL;
    uint32_t n = 0;

    LIST_FOREACH(i, &sim.actors) {
        struct actor *a = LIST_ENTRY(i, struct actor, link);

        if (a->next_ns <= sim.ns && sim_below(++n) == 0)
            chosen = a;
    }
    if (!chosen)
        return false;
    chosen->next_ns = INT64_MAX;
    chosen->step(chosen);
    return true;
}

int64_t actors_next_ns(void) {
    int64_t next = INT64_MAX;

    LIST_FOREACH(i, &sim.actors)
    next = MIN(next, LIST_ENTRY(i, struct actor, link)->next_ns);
    return next;
}

/* ---- time: replaces base/clock.c ---- */

/* Reading the clock takes time, and now and then another process has had the core. */
static int64_t read_clock(struct clock *c) {
    if (sim.in_front) {
        bool was = sim_enter();

        sim.ns += 40 + sim_below(400);
        if (sim_one_in(4000))
            sim.ns += sim_below(3000000);
        sim_leave(was);
    }
    return sim.ns;
}

struct clock *clock_monotonic(void) {
    static struct clock c = {read_clock};

    return &c;
}

static int64_t read_virtual(struct clock *c) {
    return CONTAINER_OF(c, struct clock_virtual, clock)->ns;
}

void clock_virtual_init(struct clock_virtual *v, int64_t start_ns) {
    *v = (struct clock_virtual){{read_virtual}, start_ns};
}
