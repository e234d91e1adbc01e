/*
 * layerbench - measures the kernels of a few layers, each alone and all in a graph, in several
 * variants of the engine. It needs a file of two layers, not a whole model: it records the launches
 * of a step (launches.h) and repeats them with the same arguments on the same device memory.
 *
 * usage: layerbench [--dump [--ada]] [--steps] [--reps N] [--rows LIST] [--context N] [--shared N]
 *                   [--variant NAME:VARIABLE=VALUE,...]... MODEL.gguf
 *   --dump      prints the launches as JSON lines for launches.py and measures nothing; with the
 *               emulator's weft-cuda.so, no kernel but plan() runs, and the device has an H200's
 *               sizes, or with --ada those of an RTX 4090
 *   --steps     measures whole steps, and no kernel alone
 *   --reps N    repetitions of each measurement (200)
 *   --rows L    rows of a step (1,5,16,64): 5 verify a draft of one sequence, more than 128 are a
 *               prompt, the others decode as many sequences
 *   --context   tokens of each sequence (1024)
 *   --shared    tokens of these in common pages (0)
 *   --variant   environment with which the engine is opened; without it there is one, "as built"
 *
 * Variants take turns (ABAB), so that a drift of the clock affects all of them. A JSON line to
 * $GPU_JSON has n, median, p10 and p90 in microseconds of:
 *
 *     step      all launches in one graph, with early launch where the engine has it
 *     in graph  GRAPH_COPIES of one kernel in a graph, per kernel: warm L2 cache and code
 *     flushed   one launch after FLUSH_BYTES were written: the L2 cache is cold; the time between
 *               two events, which includes 1 to 3 us of the launch itself
 *
 * It checks that all variants have the same bits.
 */

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "base/util.h"
#include "engine/cuda/kernels.h"
#include "tests/engine/cuda/fake_api.h"
#include "tests/gpu/launches.h"
#include "tests/gpu/report.h"
#include "tests/support/engine_driver.h"

enum {
    VARIANTS = 16,
    SEQS = 128,
    PROMPT = 2048,
    GRAPH_COPIES = 20,
    DRAFTED = 5,
    MOST_REPS = 1000,
    MOST_LINES = 64
};
#define FLUSH_BYTES ((size_t)256 << 20)

struct variant {
    const char *name;
    /* VARIABLE=VALUE, separated by commas; NULL: none */
    char *settings;
    struct driver d;
    struct driver_seq *seq[SEQS];
    uint32_t n_seqs, n_launches;
    /* [n_launches] of the current step */
    struct launch_record *launch;
    void *stream;
    /* of the outputs of the last step */
    uint64_t digest;
    double us[MOST_REPS];
};

static struct bench {
    const char *path;
    uint32_t reps, context, shared, n_variants, n_rows, rows[8];
    bool dump, ada, steps;
    struct variant variant[VARIANTS];
    struct launches *launches;
    struct fake_cuda *fake;
    void *from, *to, *flush;
} bench = {.reps = 200, .context = 1024, .n_rows = 4, .rows = {1, 5, 16, 64}};

static void bench_must(int e, const char *what) {
    if (!e)
        return;
    printf("FAILED %s: %s\n", what, bench.launches->api->text(e));
    exit(1);
}

/* Finds the state of weft-cuda.so, which is in the folder of the program. */
static void bench_find(void) {
    char path[4096];

    if (bench.dump) /* as on a device */
        setenv("WEFT_CUDA_EARLY", "1", 1);
    ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 20);

    if (n < 0)
        exit(1);
    path[n] = 0;
    strcpy(strrchr(path, '/'), "/weft-cuda.so");
    void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    bench.launches = lib ? dlsym(lib, "weft_launches") : NULL;
    if (!bench.launches) {
        printf("FAILED %s is not linked with launches.c: %s\n", path,
               lib ? "no symbol" : dlerror());
        exit(1);
    }
    bench.fake = dlsym(lib, "fake_cuda");
    if (bench.fake && bench.dump) {
        bench.fake->idle = true;
        bench.fake->not_idle = "plan"; /* its lists tell what attention reads */
        bench.fake->n_multiprocessors = bench.ada ? 128 : 132;
        bench.fake->bytes = (size_t)(bench.ada ? 24 : 141) << 30;
        bench.fake->major = bench.ada ? 8 : 9;
        bench.fake->minor = bench.ada ? 9 : 0;
    }
}

/* Sets the environment of a variant, or removes it. */
static void variant_environment(const struct variant *v, bool set) {
    char *all = v->settings ? strdup(v->settings) : NULL, *rest = all, *one;

    while (all && (one = strsep(&rest, ","))) {
        char *value = strchr(one, '=');

        if (!value)
            continue;
        *value = 0;
        if (set)
            setenv(one, value + 1, 1);
        else
            unsetenv(one);
    }
    free(all);
}

static void bench_look(void *ctx, struct driver_seq *s, uint32_t pos, const struct engine_out *out,
                       const float *logits) {
    struct variant *v = ctx;

    (void)s;
    (void)logits;
    v->digest = (v->digest ^ out->digest ^ pos) * 1099511628211u;
}

static void variant_open(struct variant *v) {
    struct err err = {0};
    uint32_t each = bench.context + 64, tokens = SEQS * (each - bench.shared) + each + PROMPT;
    struct driver_opts o = {.backend = "cuda",
                            .path = bench.path,
                            .page_tokens = 32,
                            .max_rows = PROMPT,
                            .n_pages = tokens / 32 + 2 * SEQS,
                            .max_wants = SEQS,
                            .max_seqs = SEQS + 1,
                            .on_out = bench_look,
                            .ctx = v};

    variant_environment(v, true);
    int r = driver_open(&v->d, &o, &err);
    variant_environment(v, false);
    if (r < 0) {
        printf("FAILED to open %s: %s\n", bench.path, err.message);
        exit(1);
    }
    v->launch = calloc(LAUNCHES_MAX, sizeof(*v->launch));
    if (!v->launch)
        abort();
}

/* Tokens that replace what is sampled, so that all variants compute the same. */
static const int32_t *forced_tokens(void) {
    static int32_t token[256];
    struct rng rng = {7};

    for (size_t i = 0; i < ARRAY_SIZE(token); i++)
        token[i] = (int32_t)rng_below(&rng, 256);
    return token;
}

/* Adds sequences until there are @n. */
static void variant_grow(struct variant *v, uint32_t n) {
    int32_t *prompt = calloc(bench.context + 64, sizeof(*prompt));
    struct rng rng = {3};

    for (uint32_t i = 0; prompt && i < bench.context + 64; i++)
        prompt[i] = (int32_t)rng_below(&rng, 256);
    for (; prompt && v->n_seqs < n; v->n_seqs++) {
        prompt[bench.shared] = (int32_t)v->n_seqs;
        v->seq[v->n_seqs] = driver_add(&v->d, prompt, bench.context, 32, NULL);
        v->seq[v->n_seqs]->forced = forced_tokens();
        if (v->n_seqs > 0)
            driver_share(&v->d, v->seq[v->n_seqs], v->seq[0], bench.shared);
        driver_prefill(&v->d, v->seq[v->n_seqs], 512);
    }
    free(prompt);
}

/* Runs a prompt of @rows tokens in one step. */
static void variant_prompt(struct variant *v, uint32_t rows) {
    int32_t prompt[PROMPT];

    for (uint32_t i = 0; i < rows; i++)
        prompt[i] = (int32_t)(i * i % 256);
    struct driver_seq *s = driver_add(&v->d, prompt, rows, 1, NULL);
    driver_step(&v->d, &(struct driver_part){s, rows}, 1);
    driver_drop(&v->d, s);
}

/* Runs one step of @rows rows. */
static void variant_step(struct variant *v, uint32_t rows) {
    struct driver_part part = {v->seq[0], DRAFTED};

    v->digest = 0;
    if (rows > SEQS) {
        variant_prompt(v, rows);
        return;
    }
    if (rows != DRAFTED) {
        driver_decode(&v->d, v->seq, rows, 1, false);
        return;
    }
    struct driver_seq *s = v->seq[0];
    for (uint32_t i = 1; i < DRAFTED; i++)
        s->token[s->n_tokens++] = (int32_t)i;
    s->every_row = true;
    driver_step(&v->d, &part, 1);
    s->every_row = false;
}

#include "tests/gpu/launch_items.h"

/* Records the launches of a step of @rows rows, after one that is not recorded. */
static void variant_record(struct variant *v, uint32_t rows) {
    if (rows <= SEQS)
        variant_grow(v, rows == DRAFTED ? 1 : rows);
    variant_step(v, rows);
    bench.launches->n = 0;
    bench.launches->on = true;
    variant_step(v, rows);
    bench.launches->on = false;
    v->n_launches = MIN(bench.launches->n, LAUNCHES_MAX);
    memcpy(v->launch, bench.launches->record, v->n_launches * sizeof(*v->launch));
    v->stream = bench.launches->stream;
    if (bench.dump)
        items_note(v);
}

static void launch_again(const struct variant *v, const struct launch_record *r, uint32_t how) {
    bench_must(bench.launches->api->launch(r->kernel, r->grid_x, r->grid_y, r->n_threads, r->shared,
                                           r->args, how, v->stream),
               r->name);
}

/* Returns a graph of @n launches from @r on, @copies of each. */
static void *graph_of_launches(const struct variant *v, const struct launch_record *r, uint32_t n,
                               uint32_t copies) {
    const struct cuda_api *api = bench.launches->api;
    void *graph = NULL;

    bench_must(api->capture_begin(v->stream), "capture");
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < copies; k++)
            launch_again(v, &r[i], i + k > 0 ? r[i].how : r[i].how & ~(uint32_t)LAUNCH_EARLY);
    bench_must(api->capture_end(v->stream, &graph), "capture");
    return graph;
}

/* Returns the microseconds of a graph, or, with @graph NULL, of one launch of @r with a cold
 * cache. */
static double time_once(const struct variant *v, void *graph, const struct launch_record *r) {
    const struct cuda_api *api = bench.launches->api;
    float us = 0;

    if (!graph)
        bench_must(api->fill(bench.flush, 0, FLUSH_BYTES, v->stream), "fill");
    bench_must(api->event_record(bench.from, v->stream), "event");
    if (graph)
        bench_must(api->graph_launch(graph, v->stream), "graph");
    else
        launch_again(v, r, r->how & ~(uint32_t)LAUNCH_EARLY);
    bench_must(api->event_record(bench.to, v->stream), "event");
    bench_must(api->stream_wait(v->stream), "kernel");
    bench_must(api->elapsed(bench.from, bench.to, &us), "elapsed");
    return (double)us;
}

/* Prints a line of JSON, in whose form ' stands for the quotation mark. */
__attribute__((format(printf, 2, 3))) static void print_json(FILE *f, const char *form, ...) {
    char line[1024];
    va_list args;

    va_start(args, form);
    vsnprintf(line, sizeof(line), form, args);
    va_end(args);
    for (char *c = line; *c; c++)
        if (*c == '\'')
            *c = '"';
    fputs(line, f);
}

static int compare_times(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void report_times(struct variant *v, uint32_t rows, const char *what, const char *mode) {
    uint32_t n = bench.reps;

    qsort(v->us, n, sizeof(*v->us), compare_times);
    printf("%2u rows %-20s %-9s %-20s %9.2f us  p10 %9.2f  p90 %9.2f\n", rows, what, mode, v->name,
           v->us[n / 2], v->us[n / 10], v->us[n * 9 / 10]);
    if (report_json())
        print_json(report_json(),
                   "{'layer': '%s', 'mode': '%s', 'variant': '%s', 'rows': %u, "
                   "'n': %u, 'us': %.3f, 'p10': %.3f, 'p90': %.3f}\n",
                   what, mode, v->name, rows, n, v->us[n / 2], v->us[n / 10], v->us[n * 9 / 10]);
    report_flush();
}

/* Measures launches [first, first + n) of all variants in turns. @copies: of each in a graph; 0:
 * launched alone, with a cold cache. */
static void bench_measure(uint32_t rows, const uint32_t *first, uint32_t n, uint32_t copies,
                          const char *what, const char *mode) {
    void *graph[VARIANTS] = {NULL};

    for (uint32_t i = 0; i < bench.n_variants && copies; i++)
        graph[i] = graph_of_launches(&bench.variant[i], bench.variant[i].launch + first[i],
                                     n ? n : bench.variant[i].n_launches, copies);
    for (int32_t k = -2; k < (int32_t)bench.reps; k++) /* the first two warm up */
        for (uint32_t i = 0; i < bench.n_variants; i++) {
            struct variant *v = &bench.variant[i];
            double us = time_once(v, graph[i], v->launch + first[i]);

            v->us[MAX(k, 0)] = copies && n ? us / copies : us;
        }
    for (uint32_t i = 0; i < bench.n_variants; i++) {
        if (graph[i])
            bench.launches->api->graph_free(graph[i]);
        report_times(&bench.variant[i], rows, what, mode);
    }
}

/* Returns true if two launches are the same kernel with the same grid on as many bytes. */
static bool same_launch(const struct launch_record *a, const struct launch_record *b) {
    return strcmp(a->name, b->name) == 0 && a->grid_x == b->grid_x && a->grid_y == b->grid_y &&
           a->weight_bytes == b->weight_bytes;
}

/* Finds launch @i of the first variant in variant @v: the k-th of the kernel's name. */
static bool find_launch(const struct variant *v, uint32_t i, uint32_t *at) {
    const struct variant *first = &bench.variant[0];
    uint32_t k = 0;

    for (uint32_t j = 0; j < i; j++)
        k += strcmp(first->launch[j].name, first->launch[i].name) == 0;
    for (*at = 0; *at < v->n_launches; ++*at)
        if (strcmp(v->launch[*at].name, first->launch[i].name) == 0 && k-- == 0)
            return true;
    return false;
}

/* Measures each kernel of the first variant that all variants have, once for each grid. */
static void measure_kernels(uint32_t rows) {
    const struct variant *v = &bench.variant[0];
    uint32_t at[VARIANTS], n_lines = 0;

    for (uint32_t i = 0; i < v->n_launches && n_lines < MOST_LINES; i++) {
        bool again = false;

        for (uint32_t j = 0; j < i; j++)
            again |= same_launch(&v->launch[i], &v->launch[j]);
        for (uint32_t k = 0; k < bench.n_variants && !again; k++)
            again = !find_launch(&bench.variant[k], i, &at[k]);
        if (again)
            continue;
        n_lines++;
        bench_measure(rows, at, 1, GRAPH_COPIES, v->launch[i].name, "in graph");
        bench_measure(rows, at, 1, 0, v->launch[i].name, "flushed");
    }
}

/* Prints the launches of a step of @rows rows, after a line with its sizes. */
static void dump_launches(const struct variant *v, uint32_t rows) {
    FILE *f = report_json() ? report_json() : stdout;
    uint32_t n_seqs = rows == DRAFTED || rows > SEQS ? 1 : rows;

    print_json(f, "{'step': %u, 'sequences': %u, 'context': %u, 'kv_bytes': %llu}\n", rows, n_seqs,
               bench.context,
               (unsigned long long)(v->d.info->page_bytes / v->d.opts.page_tokens * bench.context));
    for (uint32_t i = 0; i < v->n_launches; i++) {
        const struct launch_record *r = &v->launch[i];

        print_json(f,
                   "{'launch': '%s', 'grid': [%u, %u], 'threads': %u, 'shared': %u, "
                   "'registers': %u, 'early': %s, 'rows': %u, 'n_in': %u, 'splits': %u, "
                   "'weights': %llu, 'read': %llu, 'ahead': %llu, 'items': %u, "
                   "'item_bytes': %llu, 'memory': %llu, 'item_tiles': %u, 'tiles': %llu}\n",
                   r->name, r->grid_x, r->grid_y, r->n_threads, r->shared, r->n_registers,
                   r->how & LAUNCH_EARLY ? "true" : "false", r->n_rows, r->n_in, r->n_splits,
                   (unsigned long long)r->weight_bytes, (unsigned long long)r->read_bytes,
                   (unsigned long long)r->ahead_bytes, r->n_items,
                   (unsigned long long)r->item_bytes, (unsigned long long)r->memory_bytes,
                   r->item_tiles, (unsigned long long)r->n_tiles);
    }
}

static void bench_rows(uint32_t rows) {
    static const uint32_t all[VARIANTS];
    char name[80];

    for (uint32_t i = 0; i < bench.n_variants; i++)
        variant_record(&bench.variant[i], rows);
    if (bench.dump) {
        dump_launches(&bench.variant[0], rows);
        return;
    }
    bench_measure(rows, all, 0, 1, "step", "in graph");
    if (!bench.steps)
        measure_kernels(rows);
    for (uint32_t i = 0; i < bench.n_variants; i++) {
        /* The repeated launches have written what the step had written. */
        variant_step(&bench.variant[i], rows);
        snprintf(name, sizeof(name), "layerbench, %u rows: bits of %s", rows,
                 bench.variant[i].name);
        report_check(name, bench.variant[i].digest != bench.variant[0].digest, 0);
    }
}

static void bench_open(void) {
    const struct cuda_api *api;

    setenv("WEFT_CUDA_GRAPHS", "0", 1); /* a step launches its kernels one by one */
    for (uint32_t i = 0; i < bench.n_variants; i++)
        variant_open(&bench.variant[i]);
    api = bench.launches->api;
    bench_must(api->timer_new(&bench.from), "event");
    bench_must(api->timer_new(&bench.to), "event");
    if (!bench.dump)
        bench_must(api->alloc(&bench.flush, FLUSH_BYTES), "cudaMalloc");
}

static uint32_t number_of(const char *text, uint32_t most) {
    unsigned long n = strtoul(text, NULL, 10);

    if (n == 0 || n > most) {
        printf("not a number from 1 to %u: %s\n", most, text);
        exit(64);
    }
    return (uint32_t)n;
}

static void take_rows(char *list) {
    char *one;

    bench.n_rows = 0;
    while ((one = strsep(&list, ",")) && bench.n_rows < ARRAY_SIZE(bench.rows))
        bench.rows[bench.n_rows++] = number_of(one, PROMPT);
}

static void take_variant(char *text) {
    struct variant *v = &bench.variant[bench.n_variants++];

    if (bench.n_variants > VARIANTS)
        exit(64);
    v->name = strsep(&text, ":");
    v->settings = text;
}

/* Reads the options, of which all but --dump, --ada and --steps have a value. */
static void take_options(int argc, char **argv) {
    int i = 1;

    for (; i + 1 < argc; i++) {
        char *value = argv[i + 1];

        if (strcmp(argv[i], "--dump") == 0) {
            bench.dump = true;
            continue;
        }
        if (strcmp(argv[i], "--ada") == 0) {
            bench.ada = true;
            continue;
        }
        if (strcmp(argv[i], "--steps") == 0) {
            bench.steps = true;
            continue;
        }
        if (strcmp(argv[i], "--reps") == 0)
            bench.reps = number_of(value, MOST_REPS);
        else if (strcmp(argv[i], "--context") == 0)
            bench.context = number_of(value, 32768);
        else if (strcmp(argv[i], "--shared") == 0)
            bench.shared = number_of(value, 32768);
        else if (strcmp(argv[i], "--rows") == 0)
            take_rows(value);
        else if (strcmp(argv[i], "--variant") == 0)
            take_variant(value);
        else
            break;
        i++;
    }
    if (i + 1 != argc || argv[i][0] == '-') {
        printf(
            "usage: layerbench [--dump [--ada]] [--steps] [--reps N] [--rows LIST] [--context N] "
            "[--shared N] [--variant NAME:VARIABLE=VALUE,...]... MODEL.gguf\n");
        exit(argc == 2 && strcmp(argv[1], "--help") == 0 ? 0 : 64);
    }
    if (bench.shared >= bench.context) {
        printf("--shared must be less than --context\n");
        exit(64);
    }
    bench.path = argv[i];
    if (bench.n_variants == 0)
        bench.variant[bench.n_variants++].name = "as built";
}

int main(int argc, char **argv) {
    take_options(argc, argv);
    bench_find();
    bench_open();
    for (uint32_t i = 0; i < bench.n_rows; i++)
        bench_rows(bench.rows[i]);
    return bench.dump ? 0 : report_end("layerbench");
}
