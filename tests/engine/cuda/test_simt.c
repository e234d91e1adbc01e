/* Tests that the emulator reports mistakes that a device would punish only sometimes
 * (simt_check.h). */

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/cuda/cuda_api.h"
#include "engine/cuda/ranks/kernels_ranks.h"
#include "tests/engine/cuda/fake_api.h"
#include "tests/engine/cuda/mistakes.h"
#include "tests/engine/cuda/simt.h"

static const char *const words[N_MISTAKES] = {
    [NO_MISTAKE] = "",
    [NO_BARRIER] = "shared memory",
    [NO_BARRIER_REUSE] = "while another thread",
    [SHUFFLE_AS_BARRIER] = "while another thread writes it",
    [BLOCKS_WRITE_ALIKE] = "written while another thread",
    [UNWRITTEN_SHARED] = "before it was written",
    [BEYOND_THE_END] = "outside all memory",
    [MISALIGNED] = "not aligned",
    [MISALIGNED_WORD] = "", /* reported by a trap */
    [MISALIGNED_DOUBLE] = "",
    [HOST_MEMORY] = "no business in the host's memory",
    [OTHER_BARRIER] = "at the barriers of",
    [OTHER_SHUFFLE] = "another lane of the warp at",
    [HALF_A_WARP] = "wait for each other",
    [COPY_NOT_WAITED_FOR] = "before the copy to it was waited for",
    [COPY_OVER_A_READER] = "while another thread",
    [TOO_EARLY] = "before wait_for_previous()",
    [NO_ARRIVAL] = "while another thread writes it",
    [NO_BARRIER_BEFORE] = "while another thread writes it",
    [NO_BARRIER_BEHIND] = "while another thread writes it",
    [SHIFT_TOO_FAR] = "",
    [BEYOND_AN_ARRAY] = "",
    [NOT_DEVICE_MEMORY] = "taken for device memory",
    [PREFETCH_BEYOND] = "outside all memory",
    [PREFETCH_MISALIGNED] = "not aligned",
    [PREFETCH_ELSEWHERE] = "outside all memory",
    [NEVER_WAITS] = "ends without wait_for_previous()",
    [WGMMA_NO_FENCE] = "without wgmma_begin()",
    [WGMMA_NOT_PUBLISHED] = "is not published",
    [WGMMA_STORED_BEHIND] = "is not published",
    [WGMMA_NO_BARRIER] = "before it was written",
    [WGMMA_NO_WAIT] = "what wgmma reads has changed",
    [WGMMA_REGISTERS] = "registers of wgmma have changed",
    [WGMMA_NEVER_WAITED] = "products that it has not waited for",
    [WGMMA_SUMS_OF_OTHERS] = "other sums are under way",
    [WGMMA_STRIDE] = "before it was written",
    [WGMMA_SWIZZLE] = "a swizzle",
    [WGMMA_HALF_A_GROUP] = "have not multiplied together",
    [WGMMA_OTHER_OPERAND] = "have not multiplied together",
    [BULK_NOT_PUBLISHED] = "without bulk_publish()",
    [BULK_NOT_ORDERED] = "before wait_for_previous()",
    [BULK_NOT_INITIALISED] = "before it was written",
    [BULK_NOT_WAITED_FOR] = "before the copy to it was waited for",
    [BULK_WAITED_BY_ANOTHER] = "before the copy to it was waited for",
    [BULK_WRONG_PHASE] = "before the copy to it was waited for",
    [BULK_PHASE_TO_COME] = "waits for phase 2, and 1 is under way",
    [BULK_FEWER_BYTES] = "for 768 bytes, of which 512",
    [ROLES_MORE_ARRIVALS] = "for 1 of 1 arrivals",
    [ROLES_FEWER_ARRIVALS] = "is complete and was not waited for",
    [ROLES_COPIES_AT_ONCE] = "again before it was waited for",
    [ROLES_NOT_FENCED] = "without a fence",
    [ROLES_TELLS_EARLY] = "while another thread",
    [ROLES_NO_WARP_BARRIER] = "while another thread",
    [ROLES_NO_BARRIER] = "while another thread",
    [ROLES_BARRIER_OF_OTHERS] = "at a barrier of the first 64",
    [ROLES_REGISTERS] = "different numbers of registers",
    [BULK_TOO_MANY_BYTES] = "more than a barrier counts",
    [BULK_MORE_BYTES] = "copies of 512 bytes, 256 were announced",
    [BULK_ANNOUNCED_TWICE] = "again before it was waited for",
    [BULK_MISALIGNED] = "not aligned",
    [BULK_ODD_BYTES] = "not aligned",
    [BULK_OVER_A_READER] = "while another thread",
    [BULK_OVER_A_WRITER] = "over what threads have touched",
    [BULK_NOT_FENCED] = "over what threads have touched",
    [BULK_OF_STORES] = "what its kernel has written",
    [BULK_NEVER_WAITED] = "ends with a copy",
    [CLUSTER_NOT_MET] = "that may not have begun",
    [CLUSTER_READ_EARLY] = "read ",
    [CLUSTER_STORED_LATE] = "read ",
    [CLUSTER_OWN_BARRIER] = "read ",
    [CLUSTER_NOT_LEFT] = "ends while other blocks of the cluster may access its memory",
    [CLUSTER_TWO_ARRIVALS] = "arrives again before it has waited",
    [CLUSTER_NO_ARRIVAL] = "and has not arrived",
    [CLUSTER_NEVER_WAITS] = "between its arrival",
    [CLUSTER_OTHER_RANK] = "block 2 of a cluster of 2",
    [CLUSTER_STATIC] = "static shared memory, in a cluster",
    [COPIES_NOT_MET] = "that may not have begun",
    [COPIES_OVER_READERS] = "while another thread",
    [COPIES_OTHER_RANK] = "blocks 0x6 of a cluster of 2",
    [COPIES_NO_RANK] = "blocks 0 of a cluster of 2",
    [COPIES_FEWER_BYTES] = "read before it was written",
};

static void make(int what) {
    const struct cuda_api *api = cuda_api();
    struct mistake_args a = {.what = (enum mistake)what};
    void *stream;

    if (api->stream_new(&stream) || api->alloc((void **)&a.data, 256 * 4) ||
        api->alloc_host((void **)&a.host, 256) || api->fill(a.data, 0, 1024, stream) ||
        api->stream_wait(stream))
        _exit(3);
    struct mistake_args fine = {NO_MISTAKE, a.data, a.host};
    api->launch(kernel_mistake, 2, 1, 64, 0, &fine, false,
                stream); /* TOO_EARLY reads what this launch writes */
    api->launch(kernel_mistake_wgmma, 1, 1, 128, WGMMA_SHARED, &fine, true, stream);
    api->launch(kernel_mistake_bulk, 1, 1, 64, WGMMA_SHARED, &fine, true, stream);
    api->launch(kernel_mistake_roles, 1, 1, 96, WGMMA_SHARED, &fine, true, stream);
    api->launch(kernel_mistake_cluster, 4, 1, 64, WGMMA_SHARED, &fine, true, stream);
    api->launch(kernel_mistake_copies, 4, 1, 64, WGMMA_SHARED, &fine, true, stream);
    if (what < WGMMA_MISTAKES)
        api->launch(kernel_mistake, 2, 1, 64, 0, &a, true, stream);
    else if (what >= COPIES_MISTAKES)
        api->launch(kernel_mistake_copies, 4, 1, 64, WGMMA_SHARED, &a, false, stream);
    else if (what >= CLUSTER_MISTAKES)
        api->launch(kernel_mistake_cluster, 4, 1, 64, WGMMA_SHARED, &a, false, stream);
    else if (what >= ROLES_MISTAKES)
        api->launch(kernel_mistake_roles, 1, 1, 96, WGMMA_SHARED, &a, false, stream);
    else if (what >= BULK_MISTAKES) /* early: the launches before have written its source */
        api->launch(kernel_mistake_bulk, 1, 1, 64, WGMMA_SHARED, &a, what == BULK_NOT_ORDERED,
                    stream);
    else
        api->launch(kernel_mistake_wgmma, 1, 1, 128, WGMMA_SHARED, &a, false, stream);
    api->stream_wait(stream);
    _exit(0);
}

/* A read before the wait of what a launch writes that is not looked at. @what: whether the reading
 * launch runs ahead. */
static void make_ahead(int what) {
    const struct cuda_api *api = cuda_api();
    struct mistake_args fine = {.what = NO_MISTAKE}, early = {.what = TOO_EARLY};
    const struct simt_dim grid = {1, 1, 1};
    struct simt_ahead ahead = {0};
    void *stream;

    if (api->stream_new(&stream) || api->alloc((void **)&fine.data, 256 * 4) ||
        api->fill(fine.data, 0, 1024, stream) || api->stream_wait(stream))
        _exit(3);
    early.data = fine.data;
    simt_look(UINT32_MAX);
    if (what)
        simt_run_ahead(kernel_mistake, grid, 0, &early, &ahead);
    simt_look(0);
    simt_launch(kernel_mistake, grid, 0, &fine);
    simt_look(UINT32_MAX);
    simt_expect(&ahead);
    simt_launch(kernel_mistake, grid, 0, &early);
    _exit(0);
}

/* Access of two devices to each other's memory. */
enum way { WAY, NO_WAY, OTHER_WAY, WRITTEN, OTHER_KERNEL, N_WAYS };

static const char *const way_words[N_WAYS] = {
    [WAY] = "",
    [NO_WAY] = "memory of another device",
    [OTHER_WAY] = "memory of another device",
    [WRITTEN] = "memory of another device",
    [OTHER_KERNEL] = "memory of another device",
};

/* Device 0 gathers four columns of its own and four of device 1's. */
static void make_way(int what) {
    const struct cuda_api *api = cuda_api();
    float *here = NULL, *there = NULL, *to = NULL;
    bool direct = true;
    void *stream;

    fake_cuda.n_devices = 2;
    if (api->use(1) || api->alloc((void **)&there, 16) ||
        (what == OTHER_WAY && api->reach(1, 0, &direct)) || api->use(0) ||
        api->alloc((void **)&here, 16) || api->alloc((void **)&to, 32) ||
        api->stream_new(&stream) || api->fill(here, 0, 16, stream))
        _exit(3);
    fake_cuda.no_peers = what == NO_WAY;
    if ((what != OTHER_WAY && api->reach(0, 1, &direct)) || direct != (what != NO_WAY))
        _exit(3);
    struct gather_args a = {
        .to = what == WRITTEN ? there : to,
        .from = {.n = what == WRITTEN ? 4 : 8,
                 .period = what == WRITTEN ? 4 : 8,
                 .n_shares = what == WRITTEN ? 1 : 2,
                 .share = {{here, 0, 4}, {there, 4, 4}}},
    };
    struct mistake_args other = {NO_MISTAKE, (void *)there, NULL};
    if (what == OTHER_KERNEL)
        api->launch(kernel_mistake, 2, 1, 64, 0, &other, false, stream);
    else
        api->launch(kernel_gather, 1, 1, CUDA_THREADS, 0, &a, false, stream);
    api->stream_wait(stream);
    _exit(0);
}

/* Returns the output of the child process; *status: how it ended. */
static void run(void (*make)(int what), int what, char *said, size_t size, int *status) {
    int pipe_fd[2];
    size_t used = 0;
    ssize_t n;

    cr_assert(pipe(pipe_fd) == 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        dup2(pipe_fd[1], 2);
        close(pipe_fd[0]);
        make(what);
    }
    close(pipe_fd[1]);
    while (used + 1 < size && (n = read(pipe_fd[0], said + used, size - 1 - used)) > 0)
        used += (size_t)n;
    said[used] = 0;
    close(pipe_fd[0]);
    cr_assert(waitpid(child, status, 0) == child);
}

Test(simt, mistakes_are_seen) {
    for (enum mistake m = NO_MISTAKE; m < N_MISTAKES; m++) {
        char said[500];
        int status;

        run(make, (int)m, said, sizeof(said), &status);
        bool aborted = WIFSIGNALED(status), right = strstr(said, words[m]) != NULL;

        cr_expect(aborted == (m != NO_MISTAKE) && right, "mistake %d: '%s'", (int)m, said);
    }
}

/* A cluster of two blocks exchanges floats: what a thread sees is from the thread opposite. */
Test(simt, blocks_of_a_cluster_run_together) {
    const struct cuda_api *api = cuda_api();
    struct mistake_args a = {.what = NO_MISTAKE};
    void *stream;

    cr_assert(api->stream_new(&stream) == 0 && api->alloc((void **)&a.data, 256 * 4) == 0);
    for (uint64_t order = 0; order < 5; order++) {
        fake_cuda.order = order;
        cr_assert(api->fill(a.data, 0, 1024, stream) == 0);
        api->launch(kernel_mistake_cluster, 4, 1, 64, WGMMA_SHARED, &a, false, stream);
        cr_assert(api->stream_wait(stream) == 0);
        for (uint32_t i = 0; i < 256; i++)
            cr_expect_eq(a.data[i], 2 * (63 - i % 64), "order %lu, %u", (unsigned long)order, i);
    }
}

/* What a block of a cluster copies for both arrives in both, whatever the order of the threads. */
Test(simt, blocks_of_a_cluster_copy_for_each_other) {
    const struct cuda_api *api = cuda_api();
    struct mistake_args a = {.what = NO_MISTAKE};
    uint32_t words[256] = {0};
    void *stream;

    for (uint32_t i = 0; i < 64; i++)
        words[i] = i * i;
    cr_assert(api->stream_new(&stream) == 0 && api->alloc((void **)&a.data, sizeof(words)) == 0);
    for (uint64_t order = 0; order < 5; order++) {
        fake_cuda.order = order;
        memcpy(a.data, words, sizeof(words));
        api->launch(kernel_mistake_copies, 4, 1, 64, WGMMA_SHARED, &a, false, stream);
        cr_assert(api->stream_wait(stream) == 0);
        for (uint32_t i = 0; i < 128; i++) {
            uint32_t want = 2 * (words[i % 32] + words[i % 32 + 32]);

            cr_expect_eq(a.data[64 + i], want, "order %lu, %u", (unsigned long)order, i);
        }
    }
}

Test(simt, blocks_run_ahead_of_earlier_launches) {
    for (int ahead = 0; ahead < 2; ahead++) {
        char said[500];
        int status;

        run(make_ahead, ahead, said, sizeof(said), &status);
        cr_expect_eq(WIFSIGNALED(status), ahead, "'%s'", said);
        cr_expect(!ahead || strstr(said, "what an earlier launch changes"), "'%s'", said);
    }
}

Test(simt, kernels_read_what_their_device_reaches) {
    for (int way = 0; way < N_WAYS; way++) {
        char said[500];
        int status;

        run(make_way, way, said, sizeof(said), &status);
        bool aborted = WIFSIGNALED(status), right = strstr(said, way_words[way]) != NULL;

        cr_expect(aborted == (way != WAY) && right, "way %d: '%s'", way, said);
        cr_expect(aborted || WEXITSTATUS(status) == 0, "way %d: %d", way, status);
    }
}
