/*
 * The process that decodes: the same results as without it, whatever the files are, and nothing
 * left of a file that does damage.
 */

#include <criterion/criterion.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/few.h"
#include "tests/vision/pictures.h"
#include "vision/decoder.h"

enum { FILES = 64 };

static struct decoder *start(void) {
    struct decoder *d = NULL;
    char path[1024];
    int r;

    snprintf(path, sizeof(path), "%s/weft-gguf", getenv("WEFT_BUILD"));
    r = decoder_new(&d, path);
    cr_assert(r == 0, "%s: %s", path, strerror(-r));
    return d;
}

/* Decodes @f both here and there; the results must be equal. Returns that of picture_decode(). */
static int decode_twice(struct decoder *d, const struct file *f, const char *name) {
    CLEANUP(picture_deinit) struct picture here = {0};
    CLEANUP(picture_deinit) struct picture there = {0};
    struct err err_here = {0}, err_there = {0};
    int r = picture_decode(f->data, f->len, &here, &err_here);

    cr_expect(decoder_run(d, f->data, f->len, NULL, &there, NULL, &err_there) == r, "%s: %s, %s",
              name, err_here.message, err_there.message);
    cr_expect(strcmp(err_here.message, err_there.message) == 0, "%s: %s, %s", name,
              err_here.message, err_there.message);
    cr_expect(here.width == there.width && here.height == there.height, "%s", name);
    if (here.rgb && there.rgb)
        cr_expect(memcmp(here.rgb, there.rgb, picture_bytes(here.width, here.height)) == 0, "%s",
                  name);
    return r;
}

Test(decoder, gives_what_decoding_here_gives) {
    CLEANUP(decoder_freep) struct decoder *d = start();
    struct expected e[FILES];
    size_t n = expected_read(e, FILES);

    for (size_t i = 0; i < n; i++) {
        CLEANUP(file_deinit) struct file f = file_read("decode", e[i].name);

        cr_expect((decode_twice(d, &f, e[i].name) == 0) == (*e[i].sha256 != 0), "%s", e[i].name);
    }
}

/* WEFT_DAMAGED=10000 makes as many; each answer is that of picture_decode(), so no child died. */
Test(decoder, outlives_damaged_files) {
    CLEANUP(decoder_freep) struct decoder *d = start();
    struct expected e[FILES];
    size_t n = expected_read(e, FILES), n_decoded = 0, n_refused = 0;
    const char *wanted = getenv("WEFT_DAMAGED");
    int n_files = wanted ? atoi(wanted) : FEWER(400, 60);
    struct rng r = {33};

    for (int i = 0; i < n_files; i++) {
        const char *name = e[rng_below(&r, (uint32_t)n)].name;
        CLEANUP(file_deinit) struct file f = file_read("decode", name);
        CLEANUP(file_deinit) struct file g = file_damage(&f, &r);

        *(decode_twice(d, &g, name) == 0 ? &n_decoded : &n_refused) += 1;
    }
    cr_expect(n_decoded > 0 && n_refused > n_decoded, "%zu and %zu", n_decoded, n_refused);
}

/* Without the address sanitizer, whose memory is not the decoder's. */
#ifndef __SANITIZE_ADDRESS__
/* Decodes @name with 64 MB above what there is, and a second of processor time. */
static int decode_in_little_memory(const char *name) {
    CLEANUP(file_deinit) struct file f = file_read("decode", name);
    unsigned long pages;
    struct picture p;
    struct err err;
    FILE *in = fopen("/proc/self/statm", "r");

    if (!in || fscanf(in, "%lu", &pages) != 1)
        return 1;
    rlim_t bytes = pages * (rlim_t)sysconf(_SC_PAGESIZE) + (64u << 20);
    setrlimit(RLIMIT_AS, &(struct rlimit){bytes, bytes});
    setrlimit(RLIMIT_CPU, &(struct rlimit){1, 1});
    return picture_decode(f.data, f.len, &p, &err) == -EINVAL ? 0 : 2;
}

Test(decoder, a_bomb_takes_little_memory) {
    static const char *const bombs[] = {"bomb-30000x30000-1bit.png", "claims-2e9x2e9.png",
                                        "claims-65500x65500.jpg", "zero-width.png"};

    for (size_t i = 0; i < ARRAY_SIZE(bombs); i++) {
        int status;
        pid_t pid = fork();

        if (pid == 0)
            _exit(decode_in_little_memory(bombs[i]));
        cr_expect(waitpid(pid, &status, 0) == pid && status == 0, "%s: %x", bombs[i], status);
    }
}
#endif

/* The process that this one started, or -1. */
static pid_t find_process(void) {
    DIR *all = opendir("/proc");
    pid_t found = -1;

    for (struct dirent *e; (e = readdir(all));) {
        char path[300], state;
        int parent;

        if (!isdigit((unsigned char)*e->d_name))
            continue;
        snprintf(path, sizeof(path), "/proc/%s/stat", e->d_name);
        FILE *f = fopen(path, "r");
        if (f && fscanf(f, "%*d %*s %c %d", &state, &parent) == 2 && parent == getpid())
            found = atoi(e->d_name);
        if (f)
            fclose(f);
    }
    closedir(all);
    return found;
}

Test(decoder, a_process_that_died_is_replaced) {
    CLEANUP(decoder_freep) struct decoder *d = start();
    CLEANUP(file_deinit) struct file f = file_read("decode", "rgb8.png");
    pid_t pid = find_process();

    cr_assert(pid > 0 && kill(pid, SIGKILL) == 0);
    cr_expect(decode_twice(d, &f, "rgb8.png") == 0);
    cr_expect(find_process() != pid);
}

/* It takes the time of one picture, and neither the next one nor the end waits for it. */
Test(decoder, a_process_that_stopped_is_replaced) {
    CLEANUP(decoder_freep) struct decoder *d = start();
    CLEANUP(file_deinit) struct file f = file_read("decode", "rgb8.png");
    CLEANUP(picture_deinit) struct picture none = {0};
    struct err err = {0};
    pid_t pid = find_process();

    cr_assert(pid > 0 && kill(pid, SIGSTOP) == 0);
    cr_expect_lt(decoder_run(d, f.data, f.len, NULL, &none, NULL, &err), 0);
    cr_expect(strstr(err.message, "longer than"), "%s", err.message);
    cr_expect(decode_twice(d, &f, "rgb8.png") == 0);
    pid = find_process();
    cr_expect(pid > 0 && kill(pid, SIGSTOP) == 0);
}

static void *kill_processes(void *ctx) {
    atomic_bool *over = ctx;

    while (!atomic_load(over)) {
        pid_t pid = find_process();

        if (pid > 0)
            kill(pid, SIGKILL);
    }
    return NULL;
}

/* The client may send the picture again, as nothing says that it is at fault. */
Test(decoder, processes_that_are_killed_are_no_fault_of_the_picture) {
    CLEANUP(decoder_freep) struct decoder *d = start();
    CLEANUP(file_deinit) struct file f = file_read("decode", "rgb8.png");
    atomic_bool over = false;
    pthread_t killer;
    int n_lost = 0;

    cr_assert_eq(pthread_create(&killer, NULL, kill_processes, &over), 0);
    for (int i = 0; i < 5000 && n_lost < 3; i++) {
        CLEANUP(picture_deinit) struct picture p = {0};
        struct err err = {0};
        int r = decoder_run(d, f.data, f.len, NULL, &p, NULL, &err);

        cr_expect(r == 0 || r == -ENOMEM, "%d %s", r, err.message);
        n_lost += r == -ENOMEM;
    }
    atomic_store(&over, true);
    pthread_join(killer, NULL);
    cr_expect_eq(n_lost, 3);
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
Test(decoder, the_process_is_confined) {
    CLEANUP(decoder_freep) struct decoder *d = start();
    CLEANUP(file_deinit) struct file f = file_read("decode", "rgb8.png");
    char path[64], line[256];
    int n_seen = 0;

    cr_expect(decode_twice(d, &f, "rgb8.png") == 0); /* so it has begun */
    snprintf(path, sizeof(path), "/proc/%d/status", find_process());
    FILE *in = fopen(path, "r");
    cr_assert(in);
    while (fgets(line, sizeof(line), in))
        n_seen += strcmp(line, "Seccomp:\t2\n") == 0 || strcmp(line, "NoNewPrivs:\t1\n") == 0;
    fclose(in);
    cr_expect(n_seen == 2);
}
#endif

struct worker {
    struct decoder *d;
    const struct file *f;
    int r;
};

static void *decode_often(void *arg) {
    struct worker *w = arg;

    for (int i = 0; i < 10; i++)
        w->r |= decode_twice(w->d, w->f, "many");
    return NULL;
}

Test(decoder, threads_decode_beside_each_other) {
    static const char *const names[] = {"rgb8.png", "q90-420.jpg", "lossy.webp", "plain.gif"};
    CLEANUP(decoder_freep) struct decoder *d = start();
    struct file f[4];
    struct worker w[4];
    pthread_t t[4];

    for (int i = 0; i < 4; i++) {
        f[i] = file_read("decode", names[i]);
        w[i] = (struct worker){d, &f[i], 0};
        cr_assert(pthread_create(&t[i], NULL, decode_often, &w[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], NULL);
        cr_expect(w[i].r == 0);
        file_deinit(&f[i]);
    }
}
