/*
 * load_sizes - loads each model file that is named and prints a line of what `weft-gguf info` tells
 * of it and what the load takes, for test_estimates.py:
 *
 *     weights WEIGHTS STORED kv KV LOADED sum SUM LOADED context CONTEXT LOADED
 *     refused TEXT
 *
 * All but the last are bytes and tokens. STORED are the bytes of the file in memory that the load
 * packs the weights into.
 */

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/gguf.h"
#include "base/try.h"
#include "cmd/model_fit.h"

/* Memory in which each model fits, KV memory that each gets, and the context that is asked for. */
enum { MEMORY = 1 << 30, KV = 64 << 20, CONTEXT = 512 };

/* Options of weftd's configuration where it is empty. */
static struct engine_opts load_opts(const struct gguf *file, uint64_t memory, int fd) {
    return (struct engine_opts){
        .file = file,
        .backend = "cpu",
        .isa = "auto",
        .n_threads = 1,
        .page_tokens = 32,
        .memory = memory,
        .max_context = CONTEXT,
        .max_rows = 512,
        .max_seqs = 64,
        .max_wants = 512,
        .windows = true,
        .drafts = true,
        .keep_fd = fd,
    };
}

static void print_sizes(const struct engine_fit *f, const struct engine_info *i, uint64_t stored) {
    uint64_t kv = i->n_pages * i->page_bytes + i->n_windows * i->window_bytes +
                  ((uint64_t)i->n_states + i->n_snapshots) * i->state_bytes;

    printf("weights %llu %llu ", (unsigned long long)f->weight_bytes, (unsigned long long)stored);
    printf("kv %llu %llu ", (unsigned long long)f->kv_bytes, (unsigned long long)kv);
    printf("sum %llu %llu ", (unsigned long long)(f->weight_bytes + f->buffer_bytes + f->kv_bytes),
           (unsigned long long)i->memory_bytes);
    printf("context %u %u\n", f->context, i->max_context);
}

/* Loads @file with @memory and prints its line. */
static int load(const struct gguf *file, const struct model_fit *told, uint64_t memory,
                struct err *err) {
    CLEANUP(engine_freep) struct engine *e = NULL;
    int fd = memfd_create("weights", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct engine_opts o = load_opts(file, memory, fd);
    struct stat st;

    int r = engine_new(&e, &o, err);
    if (r == 0 && fstat(fd, &st) == 0)
        print_sizes(&told->engine, engine_info(e), (uint64_t)st.st_blocks * 512);
    close(fd);
    return r;
}

static int load_path(const char *path, struct err *err) {
    struct machine machine = {.memory = MEMORY, .bandwidth = 1};
    CLEANUP(gguf_freep) struct gguf *file = NULL;
    struct model_fit told;

    TRY(gguf_open(&file, path, err));
    model_fit(&told, file, &machine, CONTEXT);
    if (told.fits) {
        /* A sixteenth of the memory stays free. */
        machine.memory = (told.engine.weight_bytes + told.engine.buffer_bytes + KV) / 15 * 16;
        model_fit(&told, file, &machine, CONTEXT);
    }
    if (told.fits)
        return load(file, &told, machine.memory, err);
    printf("refused %s\n", told.why.message);
    return 0;
}

int main(int argc, char **argv) {
    struct err err = {0};

    for (int i = 1; i < argc; i++)
        if (load_path(argv[i], &err) < 0) {
            fprintf(stderr, "%s: %s\n", argv[i], err.message);
            return 1;
        }
    return 0;
}
