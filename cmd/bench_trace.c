#include "cmd/bench_trace.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/try.h"

/* A key of a line: name=value or name=low-high. */
struct key {
    const char *name;
    struct range *to;
};

/* Parses N or A-B. Returns false for other texts. */
static bool bench_trace_parse_range(const char *s, struct range *out) {
    char *end;

    out->low = out->high = (uint32_t)strtoul(s, &end, 10);
    if (end == s)
        return false;
    if (*end == '-')
        out->high = (uint32_t)strtoul(end + 1, &end, 10);
    return *end == '\0' && out->low <= out->high;
}

/* Parses the remaining words of the line. Returns NULL, or the word that is wrong. */
static const char *parse_keys(char **rest, const struct key *key, uint32_t n) {
    for (char *word; (word = strtok_r(NULL, " \t\n", rest)) != NULL;) {
        char *value = strchr(word, '=');
        uint32_t i = 0;

        if (!value)
            return word;
        *value++ = '\0';
        while (i < n && strcmp(key[i].name, word) != 0)
            i++;
        if (i == n || !bench_trace_parse_range(value, key[i].to))
            return word;
    }
    return NULL;
}

/* Parses KEY=RANGE ... of a line "agents". Returns NULL, or the word that is wrong. */
static const char *parse_group(struct trace_group *g, char **rest) {
    const struct key keys[] = {
        {"tenant", &g->tenant},       {"weight", &g->weight},           {"class", &g->class},
        {"count", &g->count},         {"priority", &g->priority},       {"start", &g->start},
        {"turns", &g->turns},         {"system", &g->system},           {"first", &g->first},
        {"more", &g->more},           {"output", &g->output},           {"pause", &g->pause},
        {"think", &g->think},         {"think_every", &g->think_every}, {"subs", &g->subs},
        {"sub_turns", &g->sub_turns}, {"subs_every", &g->subs_every},   {"leave", &g->leave},
    };
    const char *bad = parse_keys(rest, keys, ARRAY_SIZE(keys));

    if (bad || (g->first.low > 0 && g->output.low > 0))
        return bad;
    return "a group without first or without output";
}

/* Parses a line "agents NAME KEY=RANGE ...". Returns NULL, or the word that is wrong. */
static const char *parse_agents(struct trace_file *t, char **rest) {
    const char *name = strtok_r(NULL, " \t\n", rest);

    if (!name || t->n_groups == TRACE_GROUPS)
        return "agents";
    struct trace_group *g = &t->group[t->n_groups++];
    *g = (struct trace_group){
        .weight = {1000, 1000}, .count = {1, 1}, .turns = {1, 1}, .first = {100, 100}};
    g->output = (struct range){100, 100};
    snprintf(g->name, sizeof(g->name), "%s", name);
    return parse_group(g, rest);
}

static const char *parse_pool(struct trace_file *t, char **rest) {
    struct range pages = {0}, page = {16, 16}, host = {0}, states = {0}, snapshots = {0};
    const struct key keys[] = {{"pages", &pages},
                               {"page", &page},
                               {"host", &host},
                               {"states", &states},
                               {"snapshots", &snapshots}};
    const char *bad = parse_keys(rest, keys, ARRAY_SIZE(keys));

    t->n_pages = pages.low;
    t->page_tokens = page.low;
    t->n_host_pages = host.low;
    t->n_states = states.low;
    t->n_snapshots = snapshots.low;
    return bad;
}

static const char *parse_server(struct trace_file *t, char **rest) {
    struct range seqs = {64, 64}, rows = {2048, 2048}, context = {131072, 131072}, itl = {50, 50},
                 step = {200, 200}, depth = {2, 2}, bypass = {8, 8}, noise = {0};
    const struct key keys[] = {{"seqs", &seqs},     {"rows", &rows},  {"context", &context},
                               {"itl", &itl},       {"step", &step},  {"depth", &depth},
                               {"bypass", &bypass}, {"noise", &noise}};
    const char *bad = parse_keys(rest, keys, ARRAY_SIZE(keys));

    t->max_seqs = seqs.low;
    t->max_rows = rows.low;
    t->max_context = context.low;
    t->itl_ms = itl.low;
    t->step_ms = step.low;
    t->depth = depth.low;
    t->max_bypass = bypass.low;
    t->noise = noise.low;
    return bad;
}

/* Parses one line. Returns NULL, or the word that is wrong. */
static const char *parse_line(struct trace_file *t, char *line) {
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
    if (!value)
        return word;
    if (strcmp(word, "machine") == 0)
        snprintf(t->machine, sizeof(t->machine), "%s", value);
    else if (strcmp(word, "drafts") == 0)
        snprintf(t->drafts, sizeof(t->drafts), "%s", value);
    else if (strcmp(word, "seed") == 0)
        t->seed = strtoull(value, NULL, 10);
    else if (strcmp(word, "until") == 0)
        t->until_ms = (uint32_t)strtoul(value, NULL, 10);
    else
        return word;
    return NULL;
}

int bench_trace_read(struct trace_file *t, const char *path,
                     bool (*check)(const struct trace_file *t), struct err *err) {
    FILE *f = fopen(path, "r");
    char line[1024], server[] = "server";
    int r = 0;

    *t = (struct trace_file){.seed = 1, .machine = "h200", .drafts = "none"};
    parse_line(t, server);
    if (!f)
        return err_set(err, 0, NULL, "%s: cannot be read: %s", path, strerror(errno));
    for (int n = 1; r == 0 && fgets(line, sizeof(line), f); n++) {
        const char *bad = parse_line(t, line);

        if (!bad && check && !check(t))
            bad = "unknown name of a machine or of drafts";
        if (bad)
            r = err_set(err, 0, NULL, "%s:%d: cannot use: %s", path, n, bad);
    }
    fclose(f);
    TRY(r);
    if (t->n_groups == 0 || t->n_pages == 0)
        return err_set(err, 0, NULL, "%s: must define agents and a pool", path);
    return 0;
}

/* Applies one value of --set. Returns NULL, or the word that is wrong. */
static const char *set_value(struct trace_file *t, char *text) {
    char *mark = strpbrk(text, ".="), *rest;
    bool of_group = mark && *mark == '.';

    if (!mark)
        return text;
    *mark = ' ';
    if (!of_group)
        return parse_line(t, text);
    const char *name = strtok_r(text, " \t\n", &rest);
    for (uint32_t i = 0; name && i < t->n_groups; i++)
        if (strcmp(t->group[i].name, name) == 0)
            return parse_group(&t->group[i], &rest);
    return text;
}

int bench_trace_set(struct trace_file *t, const char *values, struct err *err) {
    CLEANUP(freep) char *copy = strdup(values);
    char *rest = copy;

    if (!copy)
        return -ENOMEM;
    for (char *text; (text = strsep(&rest, ",")) != NULL;) {
        const char *bad = set_value(t, text);

        if (bad)
            return err_set(err, 0, NULL, "%s", bad);
    }
    return 0;
}
