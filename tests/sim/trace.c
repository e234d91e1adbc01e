#include "tests/sim/trace.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/*
 * An 8B model in 4 bits (Qwen3-8B Q4_K_M: 4.67 GB read a step, 15.1 GFLOP a row, 147 KB of f16 keys and values a
 * token, 0.59 MFLOP a pair) at 85 % of the bandwidth and 70 % of the matrix peak: H200 4.8 TB/s and 989 TFLOP/s,
 * RTX 5090 1.79 TB/s, 838 TOP/s for weights and 209 TFLOP/s for attention.
 */
static const struct {
    const char *name;
    int64_t step_ns, read_ns, row_ns, seq_ns, key_ns;
    double pair_ns;
} machines[] = {
    {"h200", 250000, 1144000, 21900, 2000, 36, 0.85},
    {"rtx5090", 250000, 3070000, 25800, 2000, 97, 4.03},
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
        return true;
    }
    return false;
}

/* name=value or name=low-high */
struct key {
    const char *name;
    struct range *to;
};

static bool parse_range(const char *s, struct range *out) {
    char *end;

    out->low = out->high = (uint32_t)strtoul(s, &end, 10);
    if (end == s)
        return false;
    if (*end == '-')
        out->high = (uint32_t)strtoul(end + 1, &end, 10);
    return *end == '\0' && out->low <= out->high;
}

/* The words left of the line. NULL, or the word that is wrong. */
static const char *parse_keys(char **rest, const struct key *key, uint32_t n) {
    for (char *word; (word = strtok_r(NULL, " \t\n", rest)) != NULL;) {
        char *value = strchr(word, '=');
        uint32_t i = 0;

        if (!value)
            return word;
        *value++ = '\0';
        while (i < n && strcmp(key[i].name, word) != 0)
            i++;
        if (i == n || !parse_range(value, key[i].to))
            return word;
    }
    return NULL;
}

static const char *parse_agents(struct trace *t, char **rest) {
    const char *name = strtok_r(NULL, " \t\n", rest);

    if (!name || t->n_groups == TRACE_GROUPS)
        return "agents";
    struct trace_group *g = &t->group[t->n_groups++];
    *g = (struct trace_group){
        .weight = {1000, 1000}, .count = {1, 1}, .turns = {1, 1}, .first = {100, 100}};
    g->output = (struct range){100, 100};
    snprintf(g->name, sizeof(g->name), "%s", name);
    const struct key keys[] = {
        {"tenant", &g->tenant},       {"weight", &g->weight},           {"class", &g->class},
        {"count", &g->count},         {"priority", &g->priority},       {"start", &g->start},
        {"turns", &g->turns},         {"system", &g->system},           {"first", &g->first},
        {"more", &g->more},           {"output", &g->output},           {"pause", &g->pause},
        {"think", &g->think},         {"think_every", &g->think_every}, {"subs", &g->subs},
        {"sub_turns", &g->sub_turns}, {"subs_every", &g->subs_every},
    };
    const char *bad = parse_keys(rest, keys, ARRAY_SIZE(keys));
    return bad || (g->first.low > 0 && g->output.low > 0) ? bad : "first and output";
}

static const char *parse_pool(struct trace *t, char **rest) {
    struct range pages = {0}, page = {16, 16};
    const struct key keys[] = {{"pages", &pages}, {"page", &page}};
    const char *bad = parse_keys(rest, keys, ARRAY_SIZE(keys));

    t->sim.n_pages = pages.low;
    t->sim.page_tokens = page.low;
    return bad;
}

static const char *parse_server(struct trace *t, char **rest) {
    struct range seqs = {64, 64}, rows = {2048, 2048}, context = {131072, 131072}, itl = {50, 50},
                 step = {200, 200}, depth = {2, 2}, bypass = {8, 8}, noise = {0};
    const struct key keys[] = {{"seqs", &seqs},     {"rows", &rows},  {"context", &context},
                               {"itl", &itl},       {"step", &step},  {"depth", &depth},
                               {"bypass", &bypass}, {"noise", &noise}};
    const char *bad = parse_keys(rest, keys, ARRAY_SIZE(keys));

    t->sim.sched.max_seqs = seqs.low;
    t->sim.sched.max_rows = rows.low;
    t->sim.max_context = context.low;
    t->sim.sched.itl_target_ms = itl.low;
    t->sim.sched.max_step_ms = step.low;
    t->sim.sched.depth = depth.low;
    t->sim.sched.max_bypass = bypass.low;
    t->sim.machine.noise = noise.low / 100.0;
    return bad;
}

static const char *parse_drafts(struct trace *t, const char *value) {
    static const char *const names[SIM_DRAFTS_KINDS] = {"real", "right", "wrong", "flapping",
                                                        "partly"};

    t->sim.sched.no_speculation = value && strcmp(value, "none") == 0;
    for (uint32_t i = 0; value && i < SIM_DRAFTS_KINDS; i++)
        if (strcmp(names[i], value) == 0) {
            t->sim.drafts = (enum sim_drafts)i;
            return NULL;
        }
    return t->sim.sched.no_speculation ? NULL : "drafts";
}

/* NULL, or what is wrong. */
static const char *parse_line(struct trace *t, char *line) {
    char *rest, *word = strtok_r(line, " \t\n", &rest);

    if (!word || word[0] == '#')
        return NULL;
    if (strcmp(word, "agents") == 0)
        return parse_agents(t, &rest);
    if (strcmp(word, "pool") == 0)
        return parse_pool(t, &rest);
    if (strcmp(word, "server") == 0)
        return parse_server(t, &rest);
    const char *value = strtok_r(NULL, " \t\n", &rest);
    if (strcmp(word, "machine") == 0)
        return value && trace_machine(&t->sim, value) ? NULL : "machine";
    if (strcmp(word, "drafts") == 0)
        return parse_drafts(t, value);
    if (strcmp(word, "seed") == 0 && value)
        t->seed = strtoull(value, NULL, 10);
    else if (strcmp(word, "until") == 0 && value)
        t->until_ms = (uint32_t)strtoul(value, NULL, 10);
    else
        return word;
    return NULL;
}

int trace_read(struct trace *t, const char *path) {
    FILE *f = fopen(path, "r");
    char line[1024];
    char server[] = "server";
    const char *bad;

    *t = (struct trace){.seed = 1};
    t->sim.sched.no_speculation = true;
    parse_line(t, server);
    trace_machine(&t->sim, "h200");
    if (!f) {
        fprintf(stderr, "weft-sim: %s: cannot be read\n", path);
        return -1;
    }
    for (int n = 1; fgets(line, sizeof(line), f); n++)
        if ((bad = parse_line(t, line)) != NULL) {
            fprintf(stderr, "weft-sim: %s:%d: %s\n", path, n, bad);
            fclose(f);
            return -1;
        }
    fclose(f);
    if (t->n_groups > 0 && t->sim.n_pages > 0)
        return 0;
    fprintf(stderr, "weft-sim: %s: no agents, or no pool\n", path);
    return -1;
}
