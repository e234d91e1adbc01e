/*
 * Runs a target on the given inputs and then, with a fixed seed, on random changes of them.
 *
 * usage: TARGET [--cpu-ms N] [--input-ms N] INPUT...
 *   --cpu-ms N      run changed inputs until N ms of processor time are spent (0)
 *   --input-ms N    processor time that one input may take (2000)
 * An input that fails is written to ./crash-TARGET.
 */

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/rng.h"
#include "tests/fuzz/fuzz.h"

#define INPUT_MAX (64u << 10)

__attribute__((weak)) size_t LLVMFuzzerCustomMutator(uint8_t *, size_t, size_t, unsigned);

struct input {
    uint8_t *data;
    size_t len;
};

static struct input *inputs;
static size_t n_inputs;
static const uint8_t *now; /* the input that is running */
static size_t now_len;
static const char *name;
static struct rng rng = {1};

static void keep(const void *data, size_t len) {
    inputs = realloc(inputs, (n_inputs + 1) * sizeof(*inputs));
    FUZZ_ASSERT(inputs);
    inputs[n_inputs++] = (struct input){(uint8_t *)fuzz_text(data, len), len};
}

static void read_input(const char *path) {
    CLEANUP(buf_deinit) struct buf b = {.max = 64u << 20};
    char part[65536];
    size_t n;
    FILE *f = fopen(path, "rbe");

    if (!f) {
        perror(path);
        exit(1);
    }
    while ((n = fread(part, 1, sizeof(part), f)) > 0)
        FUZZ_ASSERT(buf_add(&b, part, n) == 0);
    fclose(f);
    keep(b.data ? b.data : "", b.len);
}

/* Writes the running input to a file; safe in a signal handler. */
static void save(int sig) {
    char path[128] = "crash-";
    ssize_t r;

    strncat(path, name, sizeof(path) - 16);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    r = write(fd, now, now_len);
    r = write(2, path, strlen(path));
    r = write(2, " has the input\n", 15);
    (void)r;
    signal(sig, SIG_DFL);
    raise(sig);
}

static int64_t cpu_ms(void) {
    struct timespec t;

    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void run(const uint8_t *data, size_t len, int64_t limit) {
    /* A separate allocation, so that AddressSanitizer detects a read beyond its end. */
    uint8_t *own = malloc(len ? len : 1);
    int64_t begin = cpu_ms();

    FUZZ_ASSERT(own);
    memcpy(own, data, len);
    now = own;
    now_len = len;
    LLVMFuzzerTestOneInput(own, len);
    if (cpu_ms() - begin > limit) {
        fprintf(stderr, "one input took %d ms of processor time\n", (int)(cpu_ms() - begin));
        abort();
    }
    free(own);
}

/* Changes a byte, or cuts a range, doubles it, or takes it from another input. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t len, size_t max) {
    size_t at = rng_below(&rng, (uint32_t)len + 1), n = 1 + rng_below(&rng, 16);
    const struct input *from = &inputs[rng_below(&rng, (uint32_t)n_inputs)];

    switch (rng_below(&rng, 4)) {
    case 0:
        if (at < len)
            data[at] = (uint8_t)rng_next(&rng);
        return len;
    case 1:
        n = MIN(n, len - at);
        memmove(data + at, data + at + n, len - at - n);
        return len - n;
    case 2:
        n = MIN(MIN(n, len - at), max - len);
        memmove(data + at + n, data + at, len - at);
        return len + n;
    default:
        n = MIN(MIN(n * n, from->len), max - len);
        memmove(data + at + n, data + at, len - at);
        memcpy(data + at, from->data + rng_below(&rng, (uint32_t)(from->len - n) + 1), n);
        return len + n;
    }
}

static size_t change(uint8_t *data, size_t len) {
    for (uint32_t n = 1 + rng_below(&rng, 4); n; n--)
        len = LLVMFuzzerCustomMutator && rng_below(&rng, 2)
                  ? LLVMFuzzerCustomMutator(data, len, INPUT_MAX, (unsigned)rng_next(&rng))
                  : LLVMFuzzerMutate(data, len, INPUT_MAX);
    return len;
}

static void read_all(char **paths) {
    CLEANUP(buf_deinit) struct buf b = {.max = 64u << 20};

    for (; *paths; paths++)
        read_input(*paths);
    for (size_t i = 0; fuzz_made(i, &b); i++, buf_clear(&b))
        keep(b.data, b.len);
    keep("", 0);
}

int main(int argc, char **argv) {
    static uint8_t data[INPUT_MAX];
    int64_t limit = 2000, budget = 0;
    uint64_t n = 0;

    LLVMFuzzerInitialize(&argc, &argv);
    name = strrchr(argv[0], '/') ? strrchr(argv[0], '/') + 1 : argv[0];
    for (argv++; *argv && strncmp(*argv, "--", 2) == 0 && argv[1]; argv += 2) {
        budget = strcmp(*argv, "--cpu-ms") == 0 ? atoi(argv[1]) : budget;
        limit = strcmp(*argv, "--input-ms") == 0 ? atoi(argv[1]) : limit;
    }
    read_all(argv);
    signal(SIGABRT, save);
    signal(SIGILL, save);
    for (size_t i = 0; i < n_inputs; i++, n++)
        run(inputs[i].data, inputs[i].len, limit);
    for (int64_t begin = cpu_ms(); cpu_ms() - begin < budget; n++) {
        const struct input *from = &inputs[rng_below(&rng, (uint32_t)n_inputs)];
        size_t len = MIN(from->len, INPUT_MAX / 2);

        memcpy(data, from->data, len);
        run(data, change(data, len), limit);
    }
    printf("%s: %zu inputs, %llu executions\n", name, n_inputs, (unsigned long long)n);
    for (size_t i = 0; i < n_inputs; i++)
        free(inputs[i].data);
    free(inputs);
    return 0;
}
