/*
 * Tests weights that outlive their engine: the next engine of the same file finds them and computes
 * the same bits; differing weights are not used and have no effect.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/keep.h"
#include "tests/support/engine_driver.h"
#include "tests/support/tiny_model.h"

enum { N_PROMPT = 9, N_MORE = 4, SEALED = F_SEAL_WRITE | F_SEAL_SHRINK | F_SEAL_GROW };

/* Results, and the place of the weights. */
struct answer {
    enum engine_weights weights;
    int32_t token[N_MORE];
    uint64_t digest[N_MORE];
};

static struct answer ask_with(const char *path, int keep_fd, const char *isa, const char *backend,
                              uint32_t n_threads) {
    static const int32_t prompt[N_PROMPT] = {3, 1, 4, 1, 5, 9, 2, 6, 5};
    struct driver_opts o = {
        .backend = backend, .isa = isa, .path = path, .n_threads = n_threads, .keep_fd = keep_fd};
    struct answer a = {0};
    struct driver d;
    struct err err = {0};

    cr_assert(driver_open(&d, &o, &err) == 0, "%s", err.message);
    a.weights = d.info->weights;
    struct driver_seq *s = driver_add(&d, prompt, N_PROMPT, N_MORE, NULL);
    driver_prefill(&d, s, 0);
    driver_decode(&d, &s, 1, N_MORE - 1, false);
    cr_assert(s->n_out == N_MORE);
    for (int i = 0; i < N_MORE; i++) {
        a.token[i] = s->out[i].token;
        a.digest[i] = s->out[i].digest;
        cr_assert(a.digest[i] != 0);
    }
    driver_drop(&d, s);
    driver_close(&d);
    return a;
}

static struct answer ask(const char *path, int keep_fd) {
    return ask_with(path, keep_fd, "auto", "cpu", 2);
}

static bool same(const struct answer *a, const struct answer *b) {
    return memcmp(a->token, b->token, sizeof(a->token)) == 0 &&
           memcmp(a->digest, b->digest, sizeof(a->digest)) == 0;
}

static int new_file(void) {
    int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);

    cr_assert(fd > 0);
    return fd;
}

/* A model file, and its kept weights. */
struct kept {
    char path[64];
    int fd;
    struct answer own;
};

static struct kept make(const char *arch, enum tensor_type type) {
    struct kept k = {.fd = new_file()};

    tiny_model_temp(&(struct tiny_model){.arch = arch, .type = type}, k.path);
    k.own = ask(k.path, 0);
    cr_assert(k.own.weights == ENGINE_WEIGHTS_OWN);
    struct answer first = ask(k.path, k.fd);
    cr_assert(first.weights == ENGINE_WEIGHTS_PACKED, "%s", arch);
    cr_assert(same(&first, &k.own), "%s", arch);
    return k;
}

static void drop(struct kept *k) {
    close(k->fd);
    unlink(k->path);
}

Test(keep, the_next_engine_finds_them_and_computes_the_same_bits) {
    static const char *const archs[] = {"llama", "qwen2", "qwen3moe", "qwen3next", "qwen35moe"};
    static const enum tensor_type types[] = {TENSOR_Q4_K, TENSOR_Q8_0, TENSOR_F32};

    for (size_t i = 0; i < ARRAY_SIZE(archs); i++)
        for (size_t t = 0; t < ARRAY_SIZE(types); t++) {
            struct kept k = make(archs[i], types[t]);
            struct answer again = ask(k.path, k.fd);

            cr_expect(again.weights == ENGINE_WEIGHTS_KEPT, "%s", archs[i]);
            cr_expect(same(&again, &k.own), "%s", archs[i]);
            drop(&k);
        }
}

Test(keep, threads_and_instruction_sets_find_the_same) {
    static const char *const isas[] = {"generic", "avx2", "avx512"};
    struct kept k = make("qwen3", TENSOR_Q4_K);

    for (size_t i = 0; i < ARRAY_SIZE(isas); i++) {
        struct err err;
        struct engine *e = NULL;
        struct gguf *g = NULL;
        struct engine_opts o = {.backend = "cpu",
                                .isa = isas[i],
                                .page_tokens = 16,
                                .n_pages = 4,
                                .max_rows = 8,
                                .max_seqs = 1,
                                .max_wants = 1,
                                .keep_fd = k.fd};

        cr_assert(gguf_open(&g, k.path, &err) == 0);
        o.file = g;
        if (engine_new(&e, &o, &err) == 0) { /* otherwise this machine cannot compute with them */
            cr_expect(engine_info(e)->weights == ENGINE_WEIGHTS_KEPT);
            engine_free(e);
            struct answer a = ask_with(k.path, k.fd, isas[i], "cpu", 1 + (uint32_t)i);
            cr_expect(same(&a, &k.own), "%s", isas[i]);
        } else {
            cr_expect(i > 0, "every machine has the generic one");
        }
        gguf_free(g);
    }
    drop(&k);
}

Test(keep, what_is_kept_cannot_be_changed) {
    struct kept k = make("llama", TENSOR_Q4_K);
    int missing = SEALED & ~fcntl(k.fd, F_GET_SEALS);

    cr_expect(missing == 0);
    cr_expect(pwrite(k.fd, "x", 1, 0) < 0 && errno == EPERM);
    cr_expect(ftruncate(k.fd, 0) < 0 && errno == EPERM);
    cr_expect(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, k.fd, 0) == MAP_FAILED);
    drop(&k);
}

Test(keep, a_file_that_was_touched_or_replaced_is_another) {
    struct kept k = make("llama", TENSOR_Q4_K);
    struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = 1000}};
    struct stat st;

    cr_assert(stat(k.path, &st) == 0);
    cr_assert(utimensat(AT_FDCWD, k.path, times, 0) == 0);
    struct answer a = ask(k.path, k.fd);
    cr_expect(a.weights == ENGINE_WEIGHTS_OWN && same(&a, &k.own), "another time");
    times[1] = st.st_mtim;
    cr_assert(utimensat(AT_FDCWD, k.path, times, 0) == 0);
    a = ask(k.path, k.fd);
    cr_expect(a.weights == ENGINE_WEIGHTS_KEPT, "the time is what it was");

    char copy[80], command[200];
    snprintf(copy, sizeof(copy), "%s.copy", k.path);
    snprintf(command, sizeof(command), "cp -p %s %s", k.path, copy);
    cr_assert(system(command) == 0);
    a = ask(copy, k.fd);
    cr_expect(a.weights == ENGINE_WEIGHTS_OWN && same(&a, &k.own), "the same bytes elsewhere");
    unlink(copy);
    drop(&k);
}

/* Seals @fd. The kernel may still hold pages that were just written (EBUSY). */
static void spoiled_seal(int fd, int seals) {
    int r = fcntl(fd, F_ADD_SEALS, seals);

    for (int tries = 0; tries < 1000 && r < 0 && errno == EBUSY; tries++) {
        usleep(10000);
        r = fcntl(fd, F_ADD_SEALS, seals);
    }
    cr_assert(r == 0, "%s", strerror(errno));
}

/* The first @len bytes of the kept weights, with @n of them at @at changed. */
static int spoiled(const struct kept *k, size_t len, size_t at, size_t n, int seals) {
    int fd = new_file();
    char *bytes = malloc(len + 1);

    cr_assert(bytes && pread(k->fd, bytes, len, 0) == (ssize_t)len);
    for (size_t i = at; i < at + n && i < len; i++)
        bytes[i] ^= 1;
    cr_assert(pwrite(fd, bytes, len, 0) == (ssize_t)len);
    free(bytes);
    if (seals)
        spoiled_seal(fd, seals);
    return fd;
}

static void expect_own(const struct kept *k, int fd, const char *what) {
    uint8_t key[ENGINE_KEEP_KEY];
    uint64_t n_bytes;
    struct answer a = ask(k->path, fd);

    cr_expect(a.weights == ENGINE_WEIGHTS_OWN, "%s", what);
    cr_expect(same(&a, &k->own), "%s", what);
    if (strcmp(what, "key") != 0)
        cr_expect(engine_keep_read(fd, key, &n_bytes) == -EINVAL, "%s", what);
    close(fd);
}

Test(keep, what_is_not_whole_and_sealed_is_not_used) {
    static const struct {
        const char *name;
        size_t at, n;
    } fields[] = {
        {"magic", offsetof(struct keep_header, magic), 1},
        {"sources", offsetof(struct keep_header, sources) + 19, 1},
        {"key", offsetof(struct keep_header, key) + 31, 1},
        {"size", offsetof(struct keep_header, n_bytes), 1},
    };
    struct kept k = make("llama", TENSOR_Q4_K);
    struct stat st;

    cr_assert(fstat(k.fd, &st) == 0);
    size_t len = (size_t)st.st_size;
    for (size_t i = 0; i < ARRAY_SIZE(fields); i++)
        expect_own(&k, spoiled(&k, len, fields[i].at, fields[i].n, SEALED), fields[i].name);
    expect_own(&k, spoiled(&k, len, 0, 0, 0), "not sealed");
    expect_own(&k, spoiled(&k, len, 0, 0, F_SEAL_WRITE | F_SEAL_GROW), "can be cut off");
    expect_own(&k, spoiled(&k, len, 0, 0, F_SEAL_SHRINK | F_SEAL_GROW), "can be written to");
    expect_own(&k, spoiled(&k, len - KEEP_PAGE, 0, 0, SEALED), "cut off");
    expect_own(&k, spoiled(&k, 100, 0, 0, SEALED), "cut off in the header");
    expect_own(&k, spoiled(&k, 0, 0, 0, SEALED), "empty and sealed");
    expect_own(&k, open("/dev/null", O_RDWR), "not a file in memory");
    expect_own(&k, open(k.path, O_RDONLY), "the model itself");
    expect_own(&k, memfd_create("x", MFD_CLOEXEC), "cannot be sealed");
    /* An unchanged copy is as good as the original. */
    int fd = spoiled(&k, len, 0, 0, SEALED);
    struct answer a = ask(k.path, fd);
    cr_expect(a.weights == ENGINE_WEIGHTS_KEPT && same(&a, &k.own));
    close(fd);
    drop(&k);
}

Test(keep, the_header_says_whose_they_are) {
    struct kept k = make("llama", TENSOR_Q4_K);
    uint8_t key[ENGINE_KEEP_KEY], wanted[ENGINE_KEEP_KEY];
    struct gguf *g = NULL;
    struct err err;
    uint64_t n_bytes = 0;

    cr_assert(gguf_open(&g, k.path, &err) == 0);
    engine_keep_key(g, NULL, wanted);
    cr_assert(engine_keep_read(k.fd, key, &n_bytes) == 0);
    cr_expect(memcmp(key, wanted, sizeof(key)) == 0);
    cr_expect(n_bytes >= gguf_bytes(g) / 2 && n_bytes <= 16 << 20, "%lu bytes",
              (unsigned long)n_bytes);
    gguf_free(g);
    drop(&k);
}

Test(keep, without_room_for_the_file_the_memory_is_the_engines_own) {
    struct rlimit limit = {1 << 20, RLIM_INFINITY};
    char path[64];
    int fd = new_file();

    tiny_model_temp(&(struct tiny_model){.arch = "llama", .type = TENSOR_Q4_K}, path);
    struct answer own = ask(path, 0);
    signal(SIGXFSZ, SIG_IGN);
    cr_assert(setrlimit(RLIMIT_FSIZE, &limit) == 0);
    struct answer a = ask(path, fd);
    limit.rlim_cur = RLIM_INFINITY;
    setrlimit(RLIMIT_FSIZE, &limit);
    cr_expect(a.weights == ENGINE_WEIGHTS_OWN && same(&a, &own));
    unlink(path);
    close(fd);
}

Test(keep, the_reference_keeps_nothing) {
    char path[64];
    struct stat st;
    int fd = new_file();

    tiny_model_temp(&(struct tiny_model){.arch = "llama", .type = TENSOR_Q4_K}, path);
    struct answer a = ask_with(path, fd, "auto", "reference", 1);
    cr_expect(a.weights == ENGINE_WEIGHTS_OWN);
    cr_expect(fstat(fd, &st) == 0 && st.st_size == 0);
    unlink(path);
    close(fd);
}
