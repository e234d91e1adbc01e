#include "tests/engine/cuda/simt_banks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KERNELS 256u
#define NOTES (1u << 22) /* most accesses between two barriers */
#define WARP 32u
#define BANKS 32u

struct note { /* an access of one lane */
    uint32_t thread, n;
    uint64_t order; /* number among the lane's accesses by the same instruction */
    uintptr_t a, pc;
};

bool simt_banks_on = getenv("SIMT_BANKS") != NULL;
static struct note *note;
static uint32_t n_notes;
static const char *noted; /* the kernel of the notes */
static struct simt_banks count[KERNELS];
static uint32_t n_counts;

void simt_banks_note(const char *kernel, uint32_t thread, uintptr_t a, size_t n, const void *pc) {
    if (!note)
        note = (struct note *)malloc(NOTES * sizeof(*note));
    if (!note || n_notes == NOTES)
        abort();
    noted = kernel;
    note[n_notes++] = {thread, (uint32_t)n, 0, a, (uintptr_t)pc};
}

/* Orders notes by warp, instruction and size, then by thread; equal ones keep their order, since
 * `order` is still their number among all notes. */
static int compare_threads(const void *x, const void *y) {
    const struct note *a = (const struct note *)x, *b = (const struct note *)y;
    const uint64_t keys[][2] = {{a->thread / WARP, b->thread / WARP},
                                {a->pc, b->pc},
                                {a->n, b->n},
                                {a->thread, b->thread},
                                {a->order, b->order}};

    for (const auto &k : keys)
        if (k[0] != k[1])
            return k[0] < k[1] ? -1 : 1;
    return 0;
}

/* Orders notes by warp, instruction, size and number: the lanes of an access of a warp follow each
 * other. */
static int compare_accesses(const void *x, const void *y) {
    const struct note *a = (const struct note *)x, *b = (const struct note *)y;
    const uint64_t keys[][2] = {{a->thread / WARP, b->thread / WARP},
                                {a->pc, b->pc},
                                {a->n, b->n},
                                {a->order, b->order},
                                {a->thread, b->thread}};

    for (const auto &k : keys)
        if (k[0] != k[1])
            return k[0] < k[1] ? -1 : 1;
    return 0;
}

/* Returns true if two notes are of the same warp and instruction. */
static bool same_place(const struct note *a, const struct note *b) {
    return a->thread / WARP == b->thread / WARP && a->pc == b->pc && a->n == b->n;
}

/* Replaces `order` by the number among the lane's accesses by the same instruction. */
static void number_notes() {
    uint64_t order = 0;

    for (uint32_t i = 0; i < n_notes; i++)
        note[i].order = i;
    qsort(note, n_notes, sizeof(*note), compare_threads);
    for (uint32_t i = 0; i < n_notes; i++) {
        bool again =
            i > 0 && same_place(&note[i], &note[i - 1]) && note[i].thread == note[i - 1].thread;

        order = again ? order + 1 : 0;
        note[i].order = order;
    }
}

/* Adds the passes of lanes that are served together: the most different words of a bank, and the
 * least for as many words. */
static void count_passes(struct simt_banks *c, const struct note *lane, uint32_t n) {
    uintptr_t word[WARP * 4];
    uint32_t n_words = 0, in_bank[BANKS] = {}, most = 0;

    for (uint32_t i = 0; i < n; i++)
        for (uintptr_t w = lane[i].a / 4; w <= (lane[i].a + lane[i].n - 1) / 4; w++) {
            uint32_t k = 0;

            while (k < n_words && word[k] != w)
                k++;
            if (k < n_words)
                continue;
            word[n_words++] = w;
            in_bank[w % BANKS]++;
            if (in_bank[w % BANKS] > most)
                most = in_bank[w % BANKS];
        }
    c->passes += most;
    c->least += (n_words + BANKS - 1) / BANKS;
}

/* Counts an access of a warp by the @n lanes from @lane on. */
static void count_access(struct simt_banks *c, const struct note *lane, uint32_t n) {
    uint32_t together = lane->n <= 4 ? WARP : WARP * 4 / lane->n, first = 0;

    c->accesses++;
    while (first < n) {
        uint32_t part = lane[first].thread % WARP / together, end = first;

        while (end < n && lane[end].thread % WARP / together == part)
            end++;
        count_passes(c, lane + first, end - first);
        first = end;
    }
}

static struct simt_banks *count_of(const char *kernel) {
    for (uint32_t i = 0; i < n_counts; i++)
        if (strcmp(count[i].kernel, kernel) == 0)
            return &count[i];
    if (n_counts == KERNELS)
        abort();
    count[n_counts].kernel = kernel;
    return &count[n_counts++];
}

void simt_banks_count(void) {
    if (n_notes == 0)
        return;
    struct simt_banks *c = count_of(noted);
    number_notes();
    qsort(note, n_notes, sizeof(*note), compare_accesses);
    for (uint32_t first = 0, end; first < n_notes; first = end) {
        end = first + 1;
        while (end < n_notes && same_place(&note[first], &note[end]) &&
               note[first].order == note[end].order)
            end++;
        count_access(c, &note[first], end - first);
    }
    n_notes = 0;
}

struct simt_banks simt_banks_of(const char *kernel) {
    return *count_of(kernel);
}

__attribute__((destructor)) static void write_counts() {
    simt_banks_count();
    FILE *f = simt_banks_on && n_counts > 0 ? fopen(getenv("SIMT_BANKS"), "a") : NULL;

    for (uint32_t i = 0; f && i < n_counts; i++)
        fprintf(f, "%s %llu %llu %llu\n", count[i].kernel, (unsigned long long)count[i].accesses,
                (unsigned long long)count[i].passes, (unsigned long long)count[i].least);
    if (f)
        fclose(f);
}
