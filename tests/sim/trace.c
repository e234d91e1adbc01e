#include "tests/sim/trace.h"

#include <stdio.h>
#include <string.h>

/*
 * An 8B model in 4 bits (Qwen3-8B Q4_K_M: 4.67 GB read a step, 15.1 GFLOP a row, 147 KB of f16 keys
 * and values a token, 0.59 MFLOP a pair) at 85 % of the bandwidth and 70 % of the matrix peak: H200
 * 4.8 TB/s and 989 TFLOP/s, RTX 5090 1.79 TB/s, 838 TOP/s for weights and 209 TFLOP/s for
 * attention. Four sequences read a common beginning once (engine/ops/attention/plan.cu with groups
 * of four heads). Pages go to host memory and back over PCIe 5 at 50 GB/s, before the step's rows.
 *
 * 27b: a hybrid model of 27B (48 recurrent layers and 16 others with 4 heads of keys of 256: 16.5
 * GB read a step, 54 GFLOP a row, 64 KiB a token, 150 MiB of state a sequence) on the same devices.
 *
 * Slow devices, whose decode alone misses the usual target. offload: a 70B model in 4 bits (40 GB,
 * 140 GFLOP a row, 328 KB a token) of which 16.8 GB come over PCIe in each step. desktop: the 8B
 * model on a processor with 60 GB/s and 2 TOP/s. busy: a 0.6B model on two cores with 16 busy loops
 * beside it, as a recording shows: most of a step is waits at barriers. mini: a model of 26M
 * parameters in 8 bits on two cores.
 */
#define TOGETHER 4
#define COPY_NS 2950     /* time of copying a token */
#define STATE_NS 3100000 /* time of copying the state of a sequence */

static const struct {
    const char *name;
    int64_t step_ns, read_ns, row_ns, seq_ns, key_ns;
    double pair_ns;
    bool device;
} machines[] = {
    {"h200", 250000, 1144000, 21900, 2000, 36, 0.85, true},
    {"rtx5090", 250000, 3070000, 25800, 2000, 97, 4.03, true},
    {"offload", 250000, 336000000, 240000, 2000, 215, 18, false},
    {"desktop", 250000, 77800000, 7550000, 2000, 2450, 590, false},
    {"busy", 1000000000, 0, 62000000, 5000000, 5000, 500, false},
    {"mini", 100000, 1500000, 150000, 20000, 150, 4, false},
    {"h200-27b", 250000, 4040000, 78000, 2000, 16, 0.57, true},
    {"rtx5090-27b", 250000, 10800000, 92000, 2000, 43, 2.7, true},
};

bool trace_machine(struct sim_opts *o, const char *name) {
    for (uint32_t i = 0; i < ARRAY_SIZE(machines); i++) {
        if (strcmp(machines[i].name, name) != 0)
            continue;
        o->step_ns = machines[i].step_ns;
        o->row_ns = machines[i].row_ns;
        o->key_ns = machines[i].key_ns;
        o->machine.read_ns = machines[i].read_ns;
        o->machine.seq_ns = machines[i].seq_ns;
        o->machine.pair_ns = machines[i].pair_ns;
        o->machine.together = TOGETHER;
        o->machine.device = machines[i].device;
        return true;
    }
    return false;
}

static bool parse_drafts(struct sim_opts *o, const char *value) {
    static const char *const names[SIM_DRAFTS_KINDS] = {"real", "right", "wrong", "flapping",
                                                        "partly"};

    o->sched.no_speculation = strcmp(value, "none") == 0;
    for (uint32_t i = 0; i < SIM_DRAFTS_KINDS; i++)
        if (strcmp(names[i], value) == 0) {
            o->drafts = (enum sim_drafts)i;
            return true;
        }
    return o->sched.no_speculation;
}

/* Applies the file. Returns false if it has an unknown name. */
static bool apply(struct sim_opts *o, const struct trace_file *f) {
    o->n_pages = f->n_pages;
    o->n_host_pages = f->n_host_pages;
    o->machine.copy_ns = (int64_t)COPY_NS * f->page_tokens;
    o->machine.state_ns = STATE_NS;
    o->n_states = f->n_states;
    o->n_snapshots = f->n_snapshots;
    o->page_tokens = f->page_tokens;
    o->max_context = f->max_context;
    o->machine.noise = f->noise / 100.0;
    o->sched.max_seqs = f->max_seqs;
    o->sched.max_rows = f->max_rows;
    o->sched.itl_target_ms = f->itl_ms;
    o->sched.max_step_ms = f->step_ms;
    o->sched.depth = f->depth;
    o->sched.max_bypass = f->max_bypass;
    return trace_machine(o, f->machine) && parse_drafts(o, f->drafts);
}

static bool known(const struct trace_file *f) {
    struct sim_opts o = {0};

    return apply(&o, f);
}

int trace_read(struct trace *t, const char *path) {
    struct trace_file file;
    struct err err = {0};

    if (bench_trace_read(&file, path, known, &err) < 0) {
        fprintf(stderr, "weft-sim: %s\n", err.message);
        return -1;
    }
    *t = (struct trace){.n_groups = file.n_groups, .seed = file.seed, .until_ms = file.until_ms};
    memcpy(t->group, file.group, sizeof(t->group));
    apply(&t->sim, &file);
    return 0;
}
