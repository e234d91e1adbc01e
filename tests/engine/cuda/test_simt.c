/* The emulator sees the mistakes that a device would punish only now and then (simt_check.h). */

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "engine/cuda/cuda_api.h"
#include "tests/engine/cuda/mistakes.h"

static const char *const words[N_MISTAKES] = {
    [NO_MISTAKE] = "",
    [NO_BARRIER] = "shared memory",
    [NO_BARRIER_REUSE] = "while another thread",
    [SHUFFLE_AS_BARRIER] = "while another thread writes it",
    [BLOCKS_WRITE_ALIKE] = "written while another thread",
    [UNWRITTEN_SHARED] = "before it was written",
    [BEYOND_THE_END] = "outside all memory",
    [MISALIGNED] = "not aligned",
    [MISALIGNED_WORD] = "not aligned",
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
    [SHIFT_TOO_FAR] = "", /* a trap */
    [BEYOND_AN_ARRAY] = "",
    [PREFETCH_BEYOND] = "outside all memory",
    [WGMMA_NO_FENCE] = "without wgmma_begin()",
    [WGMMA_NOT_PUBLISHED] = "is not published",
    [WGMMA_NO_BARRIER] = "before it was written",
    [WGMMA_NO_WAIT] = "what wgmma reads has changed",
    [WGMMA_REGISTERS] = "registers of wgmma have changed",
    [WGMMA_NEVER_WAITED] = "products that it has not waited for",
    [WGMMA_STRIDE] = "before it was written",
    [WGMMA_SWIZZLE] = "a swizzle",
    [WGMMA_HALF_A_GROUP] = "have not multiplied together",
};

static void make(enum mistake what) {
    const struct cuda_api *api = cuda_api();
    struct mistake_args a = {.what = what};
    void *stream;

    if (api->stream_new(&stream) || api->alloc((void **)&a.data, 256 * 4) ||
        api->alloc_host((void **)&a.host, 256) || api->fill(a.data, 0, 1024, stream) ||
        api->stream_wait(stream))
        _exit(3);
    struct mistake_args fine = {NO_MISTAKE, a.data, a.host};
    api->launch(kernel_mistake, 2, 1, 64, 0, &fine, false,
                stream); /* TOO_EARLY reads what it writes */
    api->launch(kernel_mistake_wgmma, 1, 1, 128, WGMMA_SHARED, &fine, false, stream);
    if (what < WGMMA_MISTAKES)
        api->launch(kernel_mistake, 2, 1, 64, 0, &a, false, stream);
    else
        api->launch(kernel_mistake_wgmma, 1, 1, 128, WGMMA_SHARED, &a, false, stream);
    api->stream_wait(stream);
    _exit(0);
}

/* What the child said before it ended; *status: how it did. */
static void run(enum mistake what, char *said, size_t size, int *status) {
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

        run(m, said, sizeof(said), &status);
        bool aborted = WIFSIGNALED(status), right = strstr(said, words[m]) != NULL;

        cr_expect(aborted == (m != NO_MISTAKE) && right, "mistake %d: '%s'", (int)m, said);
    }
}
