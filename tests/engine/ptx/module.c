/* Modules and their kernels. */

#include <dirent.h>

#include "tests/engine/ptx/parser.h"

struct function ptx_functions[MAX_FUNCTIONS];
uint32_t ptx_n_functions;
static int target_family;

int ptx_target(void) {
    return target_family;
}

static void resolve_labels(struct parser *ps) {
    for (uint32_t i = 0; i < ps->n_uses; i++) {
        const struct label *u = &ps->uses[i], *l = ps->labels;

        while (l < ps->labels + ps->n_labels &&
               (l->inlined != u->inlined || strcmp(l->name, u->name) != 0))
            l++;
        if (l == ps->labels + ps->n_labels)
            refuse_at(ps, "a branch to an unknown label");
        ps->k->ops[u->at].target = l->at;
    }
}

static void set_dynamic_shared(struct parser *ps) {
    struct ptx_kernel *k = ps->k;

    k->shared_bytes = (k->shared_bytes + 127) / 128 * 128;
    for (uint32_t i = 0; i < ps->n_patched; i++) {
        uint64_t start = SHARED_BASE + k->shared_bytes;
        uint32_t width = ps->patched[i] & 1 ? 8 : 4;

        for (uint32_t lane = 0; lane < LANES; lane++)
            memcpy(k->consts + (ps->patched[i] & ~1) + lane * width, &start, width);
    }
}

static void declare_dynamic(struct parser *ps, const char *text) {
    size_t none = 0;

    for (const char *p = strstr(text, ".extern .shared"); p; p = strstr(p + 1, ".extern .shared"))
        declare_variable(ps, p + strlen(".extern "), SYM_SHARED, &none, true);
}

/* Declares the shared variables of a module, which precede the first function. Several kernels may
 * name them; each kernel has its own. */
static void declare_of_module(struct parser *ps, const char *text) {
    const char *end = strchr(text, '{');

    for (const char *p = strstr(text, "\n.shared"); p && p < end; p = strstr(p + 1, "\n.shared"))
        declare_variable(ps, p + 1, SYM_SHARED, &ps->k->shared_bytes, false);
}

static void declare_params(struct parser *ps, const struct function *f) {
    for (const char *p = f->params; *p && *p != ')';) {
        if (*p == '.')
            p = declare_variable(ps, p, SYM_PARAM, &ps->k->param_bytes, false);
        else
            p++;
    }
}

static struct ptx_kernel *compile(const struct function *f) {
    struct parser *ps = calloc(1, sizeof(*ps));
    struct ptx_kernel *k = calloc(1, sizeof(*k));

    if (!ps || !k)
        abort();
    ps->function = f;
    ps->k = k;
    k->name = strdup(f->name);
    k->module = strdup(f->module);
    k->max_threads = f->max_threads;
    k->cluster = f->cluster;
    k->reg_bytes = FIRST_PLACE;
    k->n_preds = 2; /* predicates false and true */
    k->params = aligned_alloc(64, 4096);
    declare_dynamic(ps, f->text);
    declare_of_module(ps, f->text);
    declare_params(ps, f);
    ps->p = f->body;
    ps->line = 1;
    for (const char *c = f->text; c < f->body; c++)
        ps->line += *c == '\n';
    parse_body(ps);
    k->n_ops = ps->n_ops;
    k->ran = calloc(k->n_ops ? k->n_ops : 1, 1);
    resolve_labels(ps);
    set_dynamic_shared(ps);
    k->local_bytes = (k->local_bytes + 15) / 16 * 16;
    find_joins(k);
    free(ps->labels);
    free(ps->uses);
    free(ps);
    return k;
}

static const char *behind_brace(const char *p) {
    int depth = 1;

    for (; *p && depth; p++)
        depth += (*p == '{') - (*p == '}');
    return p;
}

void ptx_read(const char *name, const char *text) {
    const char *p = text, *sm = strstr(text, "\n.target sm_");

    char *behind = NULL;

    if (!sm) {
        snprintf(ptx_message, sizeof(ptx_message), "%s: no .target", name);
        ptx_end();
    }
    target_family = (int)strtol(sm + strlen("\n.target sm_"), &behind, 10);
    bool is_own = *behind == 'a';
    while ((p = strstr(p, "\n.")) != NULL) {
        bool entry;

        p++;
        while (strncmp(p, ".visible ", 9) == 0 || strncmp(p, ".weak ", 6) == 0)
            p += strcspn(p, " ") + 1;
        entry = strncmp(p, ".entry", 6) == 0;
        if (!entry && strncmp(p, ".func", 5) != 0) {
            if (strncmp(p, ".global", 7) == 0 || strncmp(p, ".const", 6) == 0) {
                snprintf(ptx_message, sizeof(ptx_message), "%s: a variable of a module: %.100s",
                         name, p);
                ptx_end();
            }
            continue;
        }
        struct function *f = &ptx_functions[ptx_n_functions];
        if (ptx_n_functions == MAX_FUNCTIONS)
            abort();
        *f = (struct function){.module = name, .text = text, .is_entry = entry};
        f->family = target_family;
        f->is_own = is_own;
        p += entry ? 6 : 5;
        blanks(&p);
        read_name(&p, f->name, sizeof(f->name));
        const char *bracket = strchr(p, '('), *brace = strchr(p, '{');
        const char *threads = strstr(p, ".maxntid"), *cluster = strstr(p, ".reqnctapercluster");
        if (!bracket || !brace || !f->name[0] || bracket > brace)
            continue;
        f->params = bracket + 1;
        f->body = brace + 1;
        if (threads && threads < brace)
            f->max_threads = (uint32_t)strtoul(threads + 8, NULL, 10);
        if (cluster && cluster < brace)
            f->cluster = (uint32_t)strtoul(cluster + 18, NULL, 10);
        p = behind_brace(f->body);
        ptx_n_functions++;
    }
}

void ptx_read_folder(const char *folder) {
    DIR *d = opendir(folder);
    struct dirent *e;

    if (!d) {
        snprintf(ptx_message, sizeof(ptx_message), "cannot open the folder %.200s", folder);
        ptx_end();
    }
    while ((e = readdir(d)) != NULL) {
        char path[600];
        size_t n = strlen(e->d_name);

        if (n < 4 || strcmp(e->d_name + n - 4, ".ptx") != 0)
            continue;
        snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
        FILE *f = fopen(path, "r");
        if (!f || fseek(f, 0, SEEK_END) != 0)
            abort();
        size_t bytes = (size_t)ftell(f);
        char *text = malloc(bytes + 1);
        rewind(f);
        if (!text || fread(text, 1, bytes, f) != bytes)
            abort();
        text[bytes] = 0;
        fclose(f);
        ptx_read(strdup(e->d_name), text);
    }
    closedir(d);
}

/* A mangled name: _Z, the length of the name, the name. */
static bool is_called(const char *mangled, const char *name) {
    size_t n = strlen(name);
    char *rest;

    if (strcmp(mangled, name) == 0)
        return true;
    if (strncmp(mangled, "_Z", 2) != 0)
        return false;
    mangled += 2;
    mangled += *mangled == 'L';
    return strtoul(mangled, &rest, 10) == n && strncmp(rest, name, n) == 0;
}

struct ptx_kernel *ptx_find(const char *name) {
    for (uint32_t i = ptx_n_functions; i-- > 0;) {
        struct function *f = &ptx_functions[i];

        if (!f->is_entry || !is_called(f->name, name))
            continue;
        if (!f->kernel)
            f->kernel = compile(f);
        return f->kernel;
    }
    return NULL;
}

void ptx_report(FILE *f) {
    for (uint32_t i = 0; i < ptx_n_functions; i++) {
        const struct ptx_kernel *k = ptx_functions[i].kernel;
        uint32_t ran = 0;

        for (uint32_t j = 0; k && j < k->n_ops; j++)
            ran += k->ran[j];
        if (!k || !k->n_launches)
            continue;
        fprintf(f, "%s %s launches %llu executed %llu ops %u ran %u\n", k->module, k->name,
                (unsigned long long)k->n_launches, (unsigned long long)k->n_executed, k->n_ops,
                ran);
        for (uint32_t j = 0; j < k->n_ops; j++)
            if (!k->ran[j])
                fprintf(f, "%s %s line %u\n", k->module, k->name, k->ops[j].line);
    }
}

uint64_t ptx_executed(void) {
    uint64_t n = 0;

    for (uint32_t i = 0; i < ptx_n_functions; i++)
        n += ptx_functions[i].kernel ? ptx_functions[i].kernel->n_executed : 0;
    return n;
}
