/* Tests the trace of kernels in the emulator, and the table that is made of it. */

#include <criterion/criterion.h>
#include <stdio.h>

#include "tests/engine/cuda/simt.h"
#include "tests/engine/cuda/trace_kernel.h"
#include "tests/gpu/trace_table.h"

static void launch_traced(struct trace_ring *ring) {
    static uint32_t done[8];
    const struct traced_args a = {ring, done};

    memset(done, 0, sizeof(done));
    simt_launch(kernel_traced, (struct simt_dim){4, 2, 1}, 0, &a);
    cr_expect(done[0] == 1 && done[3] == 1);
}

static struct trace_ring ring;

Test(trace, one_thread_of_a_launch_notes_its_times_in_order) {
    for (int i = 0; i < 3; i++)
        launch_traced(&ring);
    cr_assert(ring.n == 3, "%zu", (size_t)ring.n);
    for (int i = 0; i < 3; i++) {
        const struct trace_slot *s = &ring.slot[i];

        cr_expect(s->entered < s->waited && s->waited < s->left);
        cr_expect(i == 0 || s->entered > s[-1].left);
        cr_expect(s->grid_x == 4 && s->grid_y == 2);
        cr_expect(memcmp(s->name.word, "a name of thirty-two characters, and more", 32) == 0);
    }
}

Test(trace, a_full_ring_begins_again) {
    ring.n = TRACE_SLOTS - 1;
    launch_traced(&ring);
    launch_traced(&ring);
    cr_expect(ring.n == TRACE_SLOTS + 1);
    cr_expect(ring.slot[TRACE_SLOTS - 1].left > 0 && ring.slot[0].left > 0);
    cr_expect(ring.slot[0].left > ring.slot[TRACE_SLOTS - 1].left);
}

Test(trace, nothing_is_noted_without_a_ring) {
    launch_traced(NULL);
    cr_expect(ring.n == 0);
}

/* Appends a launch whose wait ends @us after the one before. */
static void add_slot(struct trace_slot *slot, uint32_t *n, const char *name, uint32_t grid,
                     uint64_t us) {
    struct trace_slot *s = &slot[*n];

    strncpy((char *)s->name.word, name, TRACE_NAME);
    s->grid_x = grid;
    s->grid_y = 1;
    s->waited = (*n ? s[-1].waited : 1000000) + us * 1000;
    s->entered = s->waited - 500;
    ++*n;
}

Test(trace, the_table_tells_places_of_a_layer_apart) {
    static struct trace_slot slot[64];
    static struct trace_row row[TRACE_ROWS];
    uint32_t n = 0;

    add_slot(slot, &n, "rope", 1, 1);
    for (uint64_t layer = 0; layer < 5; layer++) {
        add_slot(slot, &n, "store", 1, 2);
        add_slot(slot, &n, "matvec", 256, 3);     /* ends `store`: 3 us */
        add_slot(slot, &n, "pack", 1, 5 + layer); /* the product `o` took 5 to 9 us */
        add_slot(slot, &n, "matvec", 256, 1);
    }
    add_slot(slot, &n, "sample", 1, 11);
    uint32_t n_rows = trace_rows(row, slot, n);
    cr_assert(n_rows == 5, "%u", n_rows);
    cr_expect(strcmp(row[1].name, "store") == 0 && row[1].n == 5 && row[1].us[2] == 3);
    cr_expect(strcmp(row[2].name, "matvec") == 0 && row[2].place == 0);
    cr_expect(row[2].us[0] == 5 && row[2].us[2] == 7 && row[2].us[4] == 9 &&
              row[2].early[0] == 0.5);
    cr_expect(strcmp(row[4].name, "matvec") == 0 && row[4].place == 1 && row[4].n == 5);
    cr_expect(row[4].us[0] == 2 && row[4].us[4] == 11);
}
