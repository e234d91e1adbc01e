/*
 * graph - CUDA graphs of small steps (docs/design/cuda-step.md). From begin to seal a step is only
 * launches whose arguments never change (struct batch_head). Just their grids depend on the batch,
 * and for attention on whether many sequences share keys. The first step of a size enqueues its
 * launches one by one and notes them; then the notes are captured in a graph, and later steps of
 * that size are a single launch.
 *
 * Experts on the host are host nodes of the graph, on a branch parallel to the device's; they read
 * the number of rows from memory that the preceding kernel writes.
 *
 * With several devices one graph has the launches of all: the other streams join the capture by
 * waiting for the first one's event, meet as they did in the step (ranks.c), and return to it at
 * the end. Meetings around the graph order it with work before and after it in their own streams.
 */

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cuda/cuda.h"
#include "engine/cuda/several.h"

/* Rows are computed as those of the next size: half a step between large ones costs at most a third
 * more, a whole one twice as much. */
static const uint32_t sizes[GRAPHS] = {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128};

uint32_t graph_rows(uint32_t i) {
    if (i >= GRAPHS)
        return 0;
    return sizes[i];
}

/* Returns the graph of the step's pass and size, with or without shared items of many queries;
 * *NULL: not made yet. */
static void **graph_of(const struct step *s) {
    assert(s->graph < GRAPHS);
    assert(step_pass(s) < PASSES);
    return &s->be->graphs.graph[step_pass(s)][s->many_share][s->graph];
}

void graph_forget(struct be *b) {
    for (uint32_t i = 0; i < PASSES * 2 * GRAPHS; i++) {
        void **graph = &b->graphs.graph[i / (2 * GRAPHS)][i / GRAPHS % 2][i % GRAPHS];

        if (*graph)
            b->api->graph_free(*graph);
        *graph = NULL;
    }
}

void graph_close(struct be *b) {
    graph_forget(b);
    b->graphs.on = false;
}

/* Returns the smallest size that holds the batch, or GRAPHS. */
static uint32_t size_for(const struct step *s) {
    uint32_t i = 0;

    if (!s->be->graphs.on || s->n_scored == 0 ||
        s->pictures) /* steps with pictures launch other kernels */
        return GRAPHS;
    while (i < GRAPHS && sizes[i] < MAX(s->batch->n_rows, s->n_scored))
        i++;
    return i;
}

uint32_t graph_blocks(const struct step *s, uint32_t group, uint32_t few) {
    uint32_t n = 0;

    if (s->graph < GRAPHS)
        return s->grid.rows * ((group + few - 1) / few);
    for (uint32_t i = 0; i < s->batch->n_seqs; i++)
        n += (s->batch->seq[i].n_rows * group + few - 1) / few;
    return n;
}

/* The first step of a pass and size notes its launches, later ones replay them. Grids are those of
 * the size, not of the batch: kernels look up in the head how much of them there is. */
bool graph_begin(struct step *s) {
    struct be *b = s->be;
    uint32_t i = size_for(s);

    assert(!b->graphs.noting && !b->graphs.replaying);
    s->graph = i;
    if (i == GRAPHS)
        return false;
    s->grid = (struct step_grid){
        .rows = MIN(sizes[i], b->opts->max_rows),
        .seqs = MIN(sizes[i], b->opts->max_seqs),
        .wants = MIN(sizes[i], b->opts->max_wants),
    };
    b->graphs.n_notes = 0;
    b->graphs.noting = !*graph_of(s);
    b->graphs.replaying = !b->graphs.noting;
    assert(s->grid.rows >= s->batch->n_rows && s->grid.wants >= s->n_scored);
    return b->graphs.replaying;
}

void graph_follow(struct step *s, const struct step *first) {
    assert(first->be == s->be->group.first && s->batch == first->batch);
    s->graph = first->graph;
    s->grid = first->grid;
}

int graph_launch(struct step *s) {
    struct be *b = s->be;

    assert(b->graphs.replaying && *graph_of(s));
    return cuda_check(b, b->fault.lost ? 0 : b->api->graph_launch(*graph_of(s), b->queue.stream),
                      "cudaGraphLaunch");
}

/* Logs that graphs are off: not an error, but small steps are slower from now on. */
static void graph_disable(struct be *b, const char *what, const char *why) {
    b->graphs.on = false;
    fprintf(stderr, "weft-cuda: no graphs: %s: %s\n", what, why);
}

void graph_note(struct be *b, enum note kind, const struct launch *l, uint32_t how,
                const void *args, size_t n) {
    struct graphs *g = &b->group.first->graphs;

    assert(g->noting && !g->replaying && n <= sizeof(g->note->args));
    if (g->n_notes == g->capacity) {
        uint32_t more = MAX(2 * g->capacity, 256u);
        void *note = realloc(g->note, more * sizeof(*g->note));

        if (!note) {
            graph_disable(b->group.first, "notes", "out of memory");
            g->noting = false;
            return;
        }
        g->note = note;
        g->capacity = more;
    }
    g->note[g->n_notes].be = b;
    g->note[g->n_notes].kind = kind;
    g->note[g->n_notes].how = how;
    if (kind == NOTE_LAUNCH)
        g->note[g->n_notes].launch = *l;
    memcpy(g->note[g->n_notes++].args, args, n);
}

/* Enqueues note @i again, into the graph; returns 0 or an error of the runtime. */
static int graph_again(const struct graphs *g, uint32_t i) {
    struct be *b = g->note[i].be;
    const struct launch *l = &g->note[i].launch;
    const void *args = g->note[i].args;
    const struct host_call *c = args;

    switch (g->note[i].kind) {
    case NOTE_LAUNCH:
        return b->api->launch(l->kernel, l->grid_x, l->grid_y, l->n_threads, l->shared, args,
                              g->note[i].how, b->queue.stream);
    case NOTE_CALL:
        return step_host_call(b, c->fn, c->ctx);
    case NOTE_MEETING:
        return ranks_meet(b->group.ranks, args, NULL);
    }
    assert(false);
    return 0;
}

/* Captures the noted launches in a graph. The step itself was enqueued before, so a failed capture
 * costs only the graph. */
static void capture(struct step *s) {
    static const struct meeting fork = {FIRST_RANK, OTHER_RANKS}, join = {OTHER_RANKS, FIRST_RANK};
    struct be *b = s->be;
    struct graphs *g = &b->graphs;
    bool several = b->group.n > 1;
    int e = b->api->capture_begin(b->queue.stream);

    if (e) {
        graph_disable(b, "cudaStreamBeginCapture", b->api->text(e));
        return;
    }
    if (several)
        e = ranks_meet(b->group.ranks, &fork, NULL);
    else
        e = 0;
    for (uint32_t i = 0; i < g->n_notes && e == 0; i++) {
        if (several)
            e = b->api->use(g->note[i].be->about.number);
        if (e)
            break;
        e = graph_again(g, i);
    }
    if (!e && several)
        e = ranks_meet(b->group.ranks, &join, NULL);
    if (several) /* between calls the first device must be current, also after failures */
        cuda_check(b, b->api->use(b->about.number), "cudaSetDevice");
    void **graph = graph_of(s);
    int end = b->api->capture_end(b->queue.stream, graph);
    if (e || end)
        graph_disable(b, e ? "a launch" : "cudaGraphInstantiate", b->api->text(e ? e : end));
    if (*graph && e) { /* half a step */
        b->api->graph_free(*graph);
        *graph = NULL;
    }
}

void graph_end(struct step *s) {
    struct graphs *g = &s->be->graphs;

    assert(!(g->noting && g->replaying));
    if (g->noting && !s->be->fault.lost)
        capture(s);
    g->noting = g->replaying = false;
}
