/* The file of slots, and pages that are entered from it. */

#include <criterion/criterion.h>
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/rng.h"
#include "kvpager/store.h"

#define T 4u
#define BYTES 300u
#define SLOT 8192u /* a block for the head, one for the bytes */
/* bytes of it that are used: head, tokens and pictures */
#define HEAD (1128u + STORE_MEDIA * (uint32_t)sizeof(struct kv_medium))

#define STATE 9000u       /* bytes of a state */
#define STATE_SLOT 16384u /* bytes of a state in the file: as many as two pages */
#define GROUP (STATE_SLOT + 2 * SLOT)

static const int32_t tokens_of_page[T] = {1, 2, 3, 4};
static int fd;
static uint32_t state_bytes;
static struct store *store;
static uint8_t page[STATE], got[STATE];
static struct kv_medium media[STORE_MEDIA];

/* A disk may move fewer bytes than it is asked for, and a signal may interrupt a call. */
static size_t most; /* most bytes of a call; 0: all */
static bool interrupted;

static size_t part_of(size_t n) {
    interrupted = most > 0 && !interrupted;
    errno = interrupted ? EINTR : errno;
    return most > 0 ? MIN(n, most) : n;
}

/* Replaces the C library's function, as do the next ones. */
ssize_t pread(int file, void *out, size_t n, off_t at) {
    n = part_of(n);
    return interrupted ? -1 : syscall(SYS_pread64, file, out, n, at);
}

ssize_t pwrite(int file, const void *data, size_t n, off_t at) {
    n = part_of(n);
    return interrupted ? -1 : syscall(SYS_pwrite64, file, data, n, at);
}

static int open_file(const char *identity, uint64_t n_bytes, uint32_t page_bytes) {
    struct store_opts o = {
        .fd = fd,
        .n_bytes = n_bytes,
        .page_tokens = T,
        .page_bytes = page_bytes,
        .state_bytes = state_bytes,
        .identity = identity,
        .n_identity = strlen(identity),
    };

    store = store_free(store);
    return store_open(&store, &o);
}

static void setup(void) {
    fd = memfd_create("store", 0);
    cr_assert_geq(fd, 0);
    cr_assert_eq(open_file("a", 4096 + 8 * SLOT, BYTES), STORE_NEW);
    cr_assert_eq(store_n_slots(store), 8);
}

/* Opens a file with three groups of a state and two pages. */
static void open_with_states(void) {
    state_bytes = STATE;
    cr_assert_eq(open_file("a", 4096 + 3 * GROUP, BYTES), STORE_CLEARED);
    cr_assert_eq(store_n_slots(store), 6);
    cr_assert_eq(store_n_states(store), 3);
}

static void teardown(void) {
    store_free(store);
    close(fd);
}

TestSuite(kv_store, .init = setup, .fini = teardown);

static struct store_head head_of(uint64_t n) {
    return (struct store_head){
        .id = {9, n}, .parent = {9, n - 1}, .isolation.key = {7}, .depth = 3, .stamp = n};
}

static uint32_t bytes_of(uint32_t slot) {
    return slot < store_n_slots(store) ? BYTES : STATE;
}

static struct store_io *io;

/* Transfers all pieces after the answer @r; @io is not set if that is not 0. */
static int go_through(int r) {
    if (r != 0)
        return r;
    while ((r = store_go_on(io)) == STORE_MORE)
        ;
    io = store_io_free(io);
    return r;
}

static int put(uint32_t slot, uint64_t n) {
    struct store_head h = head_of(n);
    int32_t tokens[T];
    struct rng r = {n};

    for (uint32_t i = 0; i < T; i++)
        tokens[i] = (int32_t)(100 * n + i);
    for (uint32_t i = 0; i < bytes_of(slot); i++)
        page[i] = (uint8_t)rng_next(&r);
    return go_through(store_write(&io, store, slot, &h, tokens, NULL, page));
}

/* Returns 0 if slot @slot holds page or state @n, or else the answer of store_read(). */
static int get(uint32_t slot, uint64_t n) {
    struct store_id id = {9, n};
    struct rng r = {n};
    int e = go_through(store_read(&io, store, slot, &id, got));

    for (uint32_t i = 0; i < bytes_of(slot) && e == 0; i++)
        cr_assert_eq(got[i], (uint8_t)rng_next(&r));
    return e;
}

Test(kv_store, what_was_written_is_there_after_opening_again) {
    struct store_head h, should = head_of(5);
    int32_t tokens[T];

    cr_assert_eq(put(2, 5), 0);
    cr_assert_eq(put(7, 6), 0);
    cr_assert_eq(open_file("a", 4096 + 8 * SLOT, BYTES), 0);
    cr_expect_eq(store_read_head(store, 2, &h, tokens, media), 0);
    cr_expect_eq(memcmp(&h, &should, sizeof(h)), 0);
    cr_expect_eq(tokens[3], 503);
    cr_expect_eq(get(2, 5), 0);
    cr_expect_eq(get(7, 6), 0);
    cr_expect_eq(store_read_head(store, 3, &h, tokens, media), STORE_FREE);
}

Test(kv_store, a_slot_of_another_page_is_not_taken_for_it) {
    cr_assert_eq(put(2, 5), 0);
    cr_assert_eq(put(2, 6), 0);
    cr_expect_eq(get(2, 5), STORE_BAD);
    cr_expect_eq(get(2, 6), 0);
}

static void flip(uint64_t at, int bit) {
    uint8_t b;

    cr_assert_eq(pread(fd, &b, 1, (off_t)at), 1);
    b ^= (uint8_t)(1 << bit);
    cr_assert_eq(pwrite(fd, &b, 1, (off_t)at), 1);
}

Test(kv_store, a_flipped_bit_anywhere_is_seen) {
    cr_assert_eq(put(1, 5), 0);
    for (uint32_t at = 0; at < SLOT; at++) {
        bool counts = at < HEAD || (at >= 4096 && at < 4096 + BYTES);
        uint64_t where = 4096 + SLOT + at;

        flip(where, (int)(at % 8));
        cr_assert_eq(get(1, 5) != 0, counts, "byte %u", at);
        flip(where, (int)(at % 8));
    }
    cr_expect_eq(get(1, 5), 0);
}

/* The process dies between any two writes of a page over an older one. */
Test(kv_store, a_torn_write_is_neither_the_old_page_nor_the_new_one) {
    uint8_t old[SLOT], new[SLOT];

    cr_assert_eq(put(1, 5), 0);
    cr_assert_eq(pread(fd, old, SLOT, 4096 + SLOT) > 0, 1);
    cr_assert_eq(put(1, 6), 0);
    cr_assert_eq(pread(fd, new, SLOT, 4096 + SLOT) > 0, 1);
    for (uint32_t cut = 1; cut < BYTES; cut += 7) { /* the bytes are written first */
        memcpy(old + 4096, new + 4096, cut);
        cr_assert_eq(pwrite(fd, old, SLOT, 4096 + SLOT), SLOT);
        cr_expect_neq(get(1, 5), 0);
        cr_expect_neq(get(1, 6), 0);
    }
    memcpy(old + 4096, new + 4096, BYTES); /* and the head was not written */
    cr_assert_eq(pwrite(fd, old, SLOT, 4096 + SLOT), SLOT);
    cr_expect_neq(get(1, 5), 0);
    cr_expect_neq(get(1, 6), 0);
    cr_assert_eq(pwrite(fd, new, SLOT, 4096 + SLOT), SLOT);
    cr_expect_eq(get(1, 6), 0);
}

Test(kv_store, a_file_that_ends_early_has_lost_its_last_slots) {
    struct store_head h;
    int32_t tokens[T];

    cr_assert_eq(put(1, 5), 0);
    cr_assert_eq(put(6, 6), 0);
    cr_assert_eq(ftruncate(fd, 4096 + 4 * SLOT), 0);
    errno = EINTR; /* left by an earlier call */
    cr_expect_eq(get(6, 6), STORE_FREE);
    cr_expect_eq(store_read_head(store, 1, &h, tokens, media), 0);
    cr_expect_eq(store_read_head(store, 6, &h, tokens, media), STORE_FREE, "not the head before");
    cr_assert_eq(open_file("a", 4096 + 8 * SLOT, BYTES), 0);
    cr_expect_eq(get(1, 5), 0);
    cr_expect_eq(get(6, 6), STORE_FREE);
}

Test(kv_store, a_disk_that_moves_a_part_of_what_it_is_asked_for_keeps_all) {
    struct store_head h, should = head_of(5);
    int32_t tokens[T];

    most = 7;
    cr_assert_eq(put(2, 5), 0);
    cr_expect_eq(get(2, 5), 0);
    cr_assert_eq(open_file("b", 4096 + 8 * SLOT, BYTES), STORE_CLEARED);
    cr_assert_eq(put(2, 5), 0);
    most = 0;
    cr_assert_eq(open_file("b", 4096 + 8 * SLOT, BYTES), 0);
    cr_expect_eq(store_read_head(store, 2, &h, tokens, media), 0);
    cr_expect_eq(memcmp(&h, &should, sizeof(h)), 0);
    cr_expect_eq(get(2, 5), 0);
}

Test(kv_store, what_another_engine_wrote_is_gone) {
    cr_assert_eq(put(1, 5), 0);
    cr_expect_eq(open_file("b", 4096 + 8 * SLOT, BYTES), STORE_CLEARED);
    cr_expect_eq(get(1, 5), STORE_FREE);
    cr_expect_eq(open_file("a", 4096 + 8 * SLOT, BYTES), STORE_CLEARED);
    cr_expect_eq(get(1, 5), STORE_FREE);
    cr_assert_eq(put(1, 5), 0);
    cr_expect_eq(open_file("a", 4096 + 8 * SLOT, BYTES - 1), STORE_CLEARED);
}

Test(kv_store, a_page_may_have_one_byte) {
    struct store_head h = head_of(1);
    uint8_t in = 0x5A, out = 0;

    cr_assert_eq(open_file("a", 4096 + 8 * SLOT, 1), STORE_CLEARED);
    cr_assert_eq(go_through(store_write(&io, store, 3, &h, tokens_of_page, NULL, &in)), 0);
    cr_assert_eq(go_through(store_read(&io, store, 3, &h.id, &out)), 0);
    cr_expect_eq(out, in);
}

/* Only the id of all zeros is the id of no page. */
Test(kv_store, either_half_makes_an_id) {
    const struct store_id id[] = {{9, 0}, {0, 9}};

    for (uint32_t i = 0; i < ARRAY_SIZE(id); i++) {
        struct store_head h = {.id = id[i]};

        cr_assert_eq(go_through(store_write(&io, store, i, &h, tokens_of_page, NULL, page)), 0);
        cr_expect_eq(go_through(store_read(&io, store, i, &id[i], got)), 0, "%u", i);
        cr_expect_eq(go_through(store_read(&io, store, i, &id[1 - i], got)), STORE_BAD, "%u", i);
    }
}

/* The slot does not fit even if its head is put there by hand. */
Test(kv_store, a_slot_of_another_engine_does_not_fit) {
    uint8_t slot[SLOT];

    cr_assert_eq(put(1, 5), 0);
    cr_assert_eq(pread(fd, slot, SLOT, 4096 + SLOT) > 0, 1);
    cr_assert_eq(open_file("b", 4096 + 8 * SLOT, BYTES), STORE_CLEARED);
    cr_assert_eq(pwrite(fd, slot, SLOT, 4096 + SLOT), SLOT);
    cr_expect_eq(get(1, 5), STORE_BAD);
}

Test(kv_store, a_damaged_first_block_empties_the_file) {
    cr_assert_eq(put(1, 5), 0);
    flip(9, 1);
    cr_expect_eq(open_file("a", 4096 + 8 * SLOT, BYTES), STORE_CLEARED);
    cr_expect_eq(get(1, 5), STORE_FREE);
}

Test(kv_store, the_size_is_a_cap_and_may_change) {
    struct stat st;

    cr_assert_eq(put(1, 5), 0);
    cr_assert_eq(put(6, 6), 0);
    cr_assert_eq(open_file("a", 4096 + 4 * SLOT + 100, BYTES), 0);
    cr_expect_eq(store_n_slots(store), 4);
    cr_assert_eq(fstat(fd, &st), 0);
    cr_expect_eq(st.st_size, 4096 + 4 * SLOT);
    cr_assert_eq(open_file("a", 4096 + 100 * SLOT, BYTES), 0);
    cr_expect_eq(get(1, 5), 0);
    cr_expect_eq(get(6, 6), STORE_FREE);
    cr_expect_eq(open_file("a", SLOT, BYTES), -ENOSPC);
}

/* ---- states ---- */

Test(kv_store, states_and_pages_lie_beside_each_other) {
    struct store_head h, should = head_of(107);
    int32_t tokens[T] = {-1};

    open_with_states();
    for (uint32_t i = 0; i < 9; i++)
        cr_assert_eq(put(i, 100 + i), 0);
    cr_assert_eq(open_file("a", 4096 + 3 * GROUP, BYTES), 0);
    for (uint32_t i = 0; i < 9; i++)
        cr_expect_eq(get(i, 100 + i), 0, "slot %u", i);
    cr_expect_eq(store_read_head(store, 7, &h, tokens, media), 0);
    cr_expect_eq(memcmp(&h, &should, sizeof(h)), 0);
    cr_expect_eq(tokens[0], -1);
    cr_expect_eq(store_slot_bytes(store, 5), SLOT);
    cr_expect_eq(store_slot_bytes(store, 6), STATE_SLOT);
}

Test(kv_store, a_flipped_bit_of_a_state_is_seen) {
    open_with_states();
    cr_assert_eq(put(7, 5), 0);
    for (uint32_t at = 0; at < STATE_SLOT; at += 3) {
        bool counts = at < HEAD || (at >= 4096 && at < 4096 + STATE);
        uint64_t where = 4096 + GROUP + at;

        flip(where, (int)(at % 8));
        cr_assert_eq(get(7, 5) != 0, counts, "byte %u", at);
        flip(where, (int)(at % 8));
    }
    cr_expect_eq(get(7, 5), 0);
}

Test(kv_store, states_stay_where_they_are_when_the_size_changes) {
    struct stat st;

    open_with_states();
    for (uint32_t i = 0; i < 9; i++)
        cr_assert_eq(put(i, 100 + i), 0);
    cr_assert_eq(open_file("a", 4096 + 2 * GROUP + STATE_SLOT, BYTES), 0);
    cr_expect_eq(store_n_slots(store), 4);
    cr_expect_eq(store_n_states(store), 2, "a state without pages is of no use");
    cr_assert_eq(open_file("a", 4096 + 2 * GROUP + STATE_SLOT + SLOT, BYTES), 0);
    cr_expect_eq(store_n_slots(store), 5);
    cr_expect_eq(store_n_states(store), 3);
    cr_assert_eq(fstat(fd, &st), 0);
    cr_expect_eq(st.st_size, 4096 + 2 * GROUP + STATE_SLOT + SLOT);
    for (uint32_t i = 0; i < 4; i++)
        cr_expect_eq(get(i, 100 + i), 0, "page %u", i);
    cr_expect_eq(get(5, 106), 0);
    cr_expect_eq(get(6, 107), 0);
    cr_expect_eq(get(7, 108), STORE_FREE);
    cr_expect_eq(open_file("a", 4096 + STATE_SLOT, BYTES), -ENOSPC);
    state_bytes = 0;
    cr_expect_eq(open_file("a", 4096 + 3 * GROUP, BYTES), STORE_CLEARED);
}

/* Behind the largest number of states there are only pages. */
Test(kv_store, states_are_bounded) {
    struct stat st;
    uint64_t n_bytes = 4096 + STORE_STATES_MAX * (uint64_t)GROUP + 3 * SLOT;
    uint32_t n = 2 * STORE_STATES_MAX + 3;

    state_bytes = STATE;
    cr_assert_eq(open_file("a", n_bytes + 100, BYTES), STORE_CLEARED);
    cr_expect_eq(store_n_slots(store), n);
    cr_expect_eq(store_n_states(store), STORE_STATES_MAX);
    cr_assert_eq(fstat(fd, &st), 0);
    cr_expect_eq(st.st_size, n_bytes);
    cr_assert_eq(put(n - 1, 1), 0);
    cr_assert_eq(put(n - 4, 2), 0);
    cr_assert_eq(put(n + STORE_STATES_MAX - 1, 3), 0);
    cr_expect_eq(get(n - 1, 1), 0);
    cr_expect_eq(get(n - 4, 2), 0);
    cr_expect_eq(get(n + STORE_STATES_MAX - 1, 3), 0);
}

/* ---- pages of an earlier pager ---- */

static const struct kv_isolation mine = {{1}}, yours = {{2}};
static struct kv_pager *pager;

static void new_pager(void) {
    struct kv_opts o = {
        .n_pages = 8, .page_tokens = T, .max_seqs = 4, .max_seq_tokens = 8 * T, .n_snapshots = 3};

    cr_assert_eq(kv_pager_new(&pager, &o), 0);
}

static void free_pager(void) {
    kv_pager_check(pager);
    kv_pager_free(pager);
}

TestSuite(kv_restore, .init = new_pager, .fini = free_pager);

/* Returns the tokens of page @i of chain @c, which depend only on these numbers. */
static const int32_t *tokens_of(int32_t c, uint32_t i) {
    static int32_t tokens[8 * T];

    for (uint32_t k = 0; k < 8 * T; k++)
        tokens[k] = c * 1000 + (int32_t)k;
    return tokens + (size_t)i * T;
}

static uint32_t found(const struct kv_isolation *share, int32_t c) {
    return kv_pager_match(pager, share, tokens_of(c, 0), 8 * T).n_found / T;
}

static void restore(kv_page p, kv_page parent, const struct kv_isolation *share, int32_t c,
                    uint32_t i) {
    cr_assert_eq(kv_pager_restore(pager, p, parent, share, tokens_of(c, i)), 0);
    kv_pager_check(pager);
}

Test(kv_restore, a_chain_is_found_under_its_isolation_key_only) {
    restore(5, KV_NO_PAGE, &mine, 1, 0);
    restore(2, 5, &mine, 1, 1);
    restore(7, 2, &mine, 1, 2);
    cr_expect_eq(found(&mine, 1), 3);
    cr_expect_eq(found(&yours, 1), 0);
    cr_expect_eq(found(&mine, 2), 0);
}

Test(kv_restore, what_does_not_fit_is_refused) {
    restore(5, KV_NO_PAGE, &mine, 1, 0);
    cr_expect_eq(kv_pager_restore(pager, 5, KV_NO_PAGE, &mine, tokens_of(2, 0)), -EINVAL);
    cr_expect_eq(kv_pager_restore(pager, 8, KV_NO_PAGE, &mine, tokens_of(2, 0)), -EINVAL);
    cr_expect_eq(kv_pager_restore(pager, 3, 4, &mine, tokens_of(1, 1)), -EINVAL);
    cr_expect_eq(kv_pager_restore(pager, 3, 5, &yours, tokens_of(1, 1)), -EINVAL);
    cr_expect_eq(kv_pager_restore(pager, 3, KV_NO_PAGE, &mine, tokens_of(1, 0)), -EEXIST);
    cr_expect_eq(found(&mine, 1), 1);
}

Test(kv_restore, who_was_used_last_goes_last_and_leaves_go_first) {
    struct kv_seq *s;

    restore(0, KV_NO_PAGE, &mine, 1, 0); /* the latest */
    restore(1, 0, &mine, 1, 1);
    restore(2, KV_NO_PAGE, &mine, 2, 0);
    restore(3, 2, &mine, 2, 1);
    restore(4, 3, &mine, 2, 2);
    cr_assert_eq(kv_seq_new(&s, pager, &yours), 0);
    cr_assert_eq(kv_seq_grow(s, 4 * T), 0); /* three are free */
    cr_expect_eq(found(&mine, 2), 2);
    cr_assert_eq(kv_seq_grow(s, 6 * T), 0);
    cr_expect_eq(found(&mine, 2), 0);
    cr_expect_eq(found(&mine, 1), 2);
    cr_assert_eq(kv_seq_grow(s, 7 * T), 0);
    cr_expect_eq(found(&mine, 1), 1);
    kv_seq_free(s);
}

Test(kv_restore, a_page_is_forgotten_with_all_behind_it) {
    struct kv_seq *s;

    restore(0, KV_NO_PAGE, &mine, 1, 0);
    restore(1, 0, &mine, 1, 1);
    restore(2, 1, &mine, 1, 2);
    restore(3, 0, &mine, 2, 1); /* another one behind the first */
    restore(4, KV_NO_PAGE, &yours, 1, 0);
    cr_assert_eq(kv_seq_new(&s, pager, &mine), 0);
    cr_assert_eq(kv_seq_attach(s, tokens_of(1, 0), 3 * T), 3 * T);
    cr_expect_eq(kv_pager_forget(pager, 1), -EBUSY);
    cr_expect_eq(found(&mine, 1), 3);
    kv_seq_free(s);
    cr_assert_eq(kv_seq_new(&s, pager, &mine), 0);
    cr_assert_eq(kv_seq_attach(s, tokens_of(1, 0), T), T);
    cr_expect_eq(kv_pager_forget(pager, 0), -EBUSY, "the first page alone is held");
    cr_expect_eq(found(&mine, 1), 3);
    kv_seq_free(s);
    cr_expect_eq(kv_pager_forget(pager, 1), 0);
    kv_pager_check(pager);
    cr_expect_eq(found(&mine, 1), 1);
    cr_expect_eq(found(&yours, 1), 1);
    cr_expect_eq(kv_pager_available(pager), 8);
    cr_expect_eq(kv_pager_forget(pager, 0), 0);
    cr_expect_eq(found(&mine, 1), 0);
    cr_expect_eq(found(&yours, 1), 1);
}

/* Returns the tokens up to the last snapshot. */
static uint32_t found_state(int32_t c) {
    return kv_pager_match(pager, &mine, tokens_of(c, 0), 8 * T).n_tokens / T;
}

Test(kv_restore, a_snapshot_comes_back_to_its_page) {
    restore(5, KV_NO_PAGE, &mine, 1, 0);
    restore(2, 5, &mine, 1, 1);
    restore(7, 2, &mine, 1, 2);
    cr_expect_eq(found_state(1), 0);
    cr_expect_eq(kv_pager_restore_snapshot(pager, 1, 2), 0);
    kv_pager_check(pager);
    cr_expect_eq(found_state(1), 2);
    cr_expect_eq(kv_pager_restore_snapshot(pager, 1, 7), -EINVAL);
    cr_expect_eq(kv_pager_restore_snapshot(pager, 3, 7), -EINVAL);
    cr_expect_eq(kv_pager_restore_snapshot(pager, 0, 6), -EINVAL);
    cr_expect_eq(kv_pager_restore_snapshot(pager, 0, 2), -EEXIST);
    cr_expect_eq(kv_pager_forget_snapshot(pager, 1), 0);
    cr_expect_eq(kv_pager_forget_snapshot(pager, 0), 0);
    cr_expect_eq(found_state(1), 0);
    cr_expect_eq(found(&mine, 1), 3);
}

/* A snapshot that is read or written is kept, whatever else needs room. */
Test(kv_restore, a_snapshot_that_is_held_stays) {
    struct kv_seq *s;
    uint32_t got[2];

    for (uint32_t i = 0; i < 3; i++) {
        restore(i, i ? i - 1 : KV_NO_PAGE, &mine, 1, i);
        cr_assert_eq(kv_pager_restore_snapshot(pager, i, i), 0);
    }
    cr_assert_eq(kv_seq_new(&s, pager, &mine), 0);
    cr_assert_eq(kv_seq_attach(s, tokens_of(1, 0), 3 * T), 3 * T);
    cr_expect_eq(kv_seq_snapshot_at(s, 1), 1);
    kv_snapshot_hold(pager, 1);
    kv_snapshot_hold(pager, 1);
    cr_expect_eq(kv_snapshot_untaken(pager), 2);
    for (uint32_t i = 0; i < 2; i++) {
        got[i] = kv_snapshot_acquire(pager, NULL);
        cr_expect(got[i] == 0 || got[i] == 2);
        kv_pager_check(pager);
    }
    cr_expect_eq(kv_snapshot_acquire(pager, NULL), KV_NO_SNAPSHOT);
    cr_expect_eq(kv_pager_forget_snapshot(pager, 1), -EBUSY);
    cr_expect_eq(kv_pager_forget_snapshot(pager, got[0]), -EBUSY);
    kv_snapshot_release(pager, 1);
    cr_expect_eq(kv_snapshot_acquire(pager, NULL), KV_NO_SNAPSHOT);
    kv_snapshot_release(pager, 1);
    kv_seq_attach_snapshot_at(s, got[0], 1); /* the page has a snapshot */
    kv_seq_attach_snapshot_at(s, got[1], 2);
    kv_pager_check(pager);
    cr_expect_eq(kv_seq_snapshot_at(s, 1), 1);
    cr_expect_eq(kv_seq_snapshot_at(s, 2), got[1]);
    cr_expect_eq(found_state(1), 3);
    kv_seq_free(s);
}

/* A snapshot held by one of two peers is not taken for a page of the other. */
Test(kv_restore, a_snapshot_that_is_held_stays_for_the_peer) {
    struct kv_opts o = {.n_pages = 8,
                        .page_tokens = T,
                        .max_seqs = 4,
                        .max_seq_tokens = 8 * T,
                        .n_snapshots = 3,
                        .peer = pager};
    struct kv_pager *host;
    struct kv_seq *s, *h;

    cr_assert_eq(kv_pager_new(&host, &o), 0);
    restore(0, KV_NO_PAGE, &mine, 1, 0);
    cr_assert_eq(kv_pager_restore(host, 4, KV_NO_PAGE, &mine, tokens_of(1, 0)), 0);
    cr_assert_eq(kv_pager_restore_snapshot(host, 2, 4), 0);
    cr_assert_eq(kv_seq_new(&h, host, &mine), 0);
    cr_assert_eq(kv_seq_attach(h, tokens_of(1, 0), T), T);
    kv_snapshot_hold(host, 2);
    cr_expect_eq(kv_snapshot_untaken(pager), 2);
    cr_assert_eq(kv_seq_new(&s, pager, &mine), 0);
    cr_assert_eq(kv_seq_attach(s, tokens_of(1, 0), T), T);
    kv_seq_share_snapshot(s, 0, 4); /* the snapshot may be read meanwhile */
    cr_expect_eq(kv_seq_snapshot(s), 2);
    uint32_t a = kv_snapshot_acquire(pager, NULL), b = kv_snapshot_acquire(pager, NULL);
    cr_expect_eq(kv_snapshot_acquire(pager, NULL), KV_NO_SNAPSHOT);
    kv_pager_check(pager);
    kv_pager_check(host);
    kv_snapshot_free(pager, a);
    kv_snapshot_free(pager, b);
    kv_snapshot_release(host, 2);
    kv_seq_free(s);
    kv_seq_free(h);
    kv_pager_free(host);
}

/* ---- pictures ---- */

/* Writes four tokens of page @n; a token below 0 is a row of picture @of[0], [1], ... */
static int put_tokens(uint32_t slot, uint64_t n, const int32_t tokens[T],
                      const struct kv_medium *of) {
    struct store_head h = {
        .id = {9, n}, .parent = {n > 1 ? 9 : 0, n - 1}, .depth = (uint32_t)n - 1, .stamp = n};

    return go_through(store_write(&io, store, slot, &h, tokens, of, page));
}

static struct kv_medium medium(uint8_t i) {
    return (struct kv_medium){.digest = {[31] = i}, .n_rows = 3};
}

/* Three pictures in two pages, the second of which begins within one; another worker has assigned
 * other numbers meanwhile. */
Test(kv_store, pictures_get_the_numbers_of_the_new_worker) {
    const struct kv_medium all[] = {medium(1), medium(2), medium(3)};
    struct kv_opts o = {.n_pages = 8, .page_tokens = T, .max_seqs = 1, .max_seq_tokens = 32};
    struct kv_isolation none = {{0}};
    struct kv_media numbers;
    struct store_id id[8] = {0};
    bool written[8] = {0};
    uint64_t stamp = 0, n_bad = 0;
    int32_t n[3], first[8];
    struct kv_pager *p;

    cr_assert_eq(put_tokens(2, 1, (int32_t[T]){5, -1, -1, -2}, all), 0);
    cr_assert_eq(put_tokens(5, 2, (int32_t[T]){-2, -2, 0, -3}, all), 0);
    cr_assert_eq(kv_media_init(&numbers, 8), 0);
    for (uint8_t i = 3; i > 0; i--)
        n[i - 1] = kv_media_number(&numbers, &all[i - 1]);
    cr_assert_eq(kv_pager_new(&p, &o), 0);
    cr_assert_eq(store_enter(store, p, &numbers, id, written, &stamp, &n_bad), 0);
    cr_expect_eq(n_bad, 0);
    memcpy(first, (int32_t[]){5, n[0], n[0], n[1], n[1], n[1], 0, n[2]}, sizeof(first));
    cr_expect_eq(kv_pager_match(p, &none, first, 8).n_tokens, 8);
    first[7] = n[0];
    cr_expect_eq(kv_pager_match(p, &none, first, 8).n_tokens, 4);
    p = kv_pager_free(p);
    memset(written, 0, sizeof(written));
    cr_assert_eq(kv_pager_new(&p, &o), 0); /* a worker without a projector */
    cr_assert_eq(store_enter(store, p, NULL, id, written, &stamp, &n_bad), 0);
    cr_expect_eq(kv_pager_match(p, &none, first, 8).n_tokens, 0);
    cr_expect_eq(n_bad, 0);
    kv_pager_free(p);
    kv_media_deinit(&numbers);
}

Test(kv_store, a_page_may_have_as_many_pictures_as_its_head_holds) {
    struct store_opts o = {.fd = fd,
                           .n_bytes = 4096 + 8 * SLOT,
                           .page_tokens = STORE_MEDIA,
                           .page_bytes = BYTES,
                           .identity = "m",
                           .n_identity = 1};
    struct store_head h = head_of(1);
    struct kv_medium all[STORE_MEDIA];
    int32_t tokens[STORE_MEDIA], read[STORE_MEDIA];

    for (uint8_t i = 0; i < STORE_MEDIA; i++) {
        all[i] = medium(i);
        tokens[i] = -1 - i;
    }
    store = store_free(store);
    cr_assert_eq(store_open(&store, &o), STORE_CLEARED);
    cr_assert_eq(go_through(store_write(&io, store, 2, &h, tokens, all, page)), 0);
    cr_assert_eq(store_read_head(store, 2, &h, read, media), 0);
    cr_expect_arr_eq(read, tokens, sizeof(tokens));
    cr_expect_arr_eq(media, all, sizeof(all));
}

/* ---- the content of a file ---- */

/* Writes the page of chain @c at @depth, or the state behind it. */
static void put_of(uint32_t slot, struct store_id id, struct store_id parent, int32_t c,
                   uint32_t depth, uint64_t stamp) {
    struct store_head h = {
        .id = id, .parent = parent, .isolation = mine, .depth = depth, .stamp = stamp};

    cr_assert_eq(go_through(store_write(&io, store, slot, &h, tokens_of(c, depth), NULL, page)), 0);
}

/* Pages of several runs, and states of which the oldest is replaced first when room is needed. */
Test(kv_store, pages_and_states_of_other_runs_are_entered) {
    const struct store_id none = {0}, a = {7, 5}, a2 = {9, 2}, b = {8, 1}, c = {9, 1};
    struct store_id id[9] = {0};
    bool written[9] = {0};
    uint64_t stamp = 3, n_bad = 0;
    struct kv_stats kv;

    open_with_states();
    put_of(1, a, none, 1, 0, 1);
    put_of(3, a2, a, 1, 1, 2);
    put_of(4, b, none, 2, 0, 3);
    put_of(5, c, none, 3, 0, 4);
    put_of(6, (struct store_id){9, 10}, a, 1, 0, 10);
    put_of(7, (struct store_id){9, 30}, b, 2, 0, 30);
    put_of(8, (struct store_id){9, 20}, c, 3, 0, 20);
    put_of(2, (struct store_id){9, 40}, none, 4, 0, 40);
    flip(4096 + STATE_SLOT + GROUP + 40, 1); /* the head of slot 2 */
    struct kv_opts o = {
        .n_pages = 6, .page_tokens = T, .max_seqs = 1, .max_seq_tokens = 8 * T, .n_snapshots = 3};

    cr_assert_eq(kv_pager_new(&pager, &o), 0);
    cr_assert_eq(store_enter(store, pager, NULL, id, written, &stamp, &n_bad), 0);
    kv_pager_check(pager);
    kv_pager_stats(pager, &kv);
    cr_expect_eq(kv.n_cached, 4);
    cr_expect_eq(kv.n_snapshots, 3);
    cr_expect_eq(n_bad, 1);
    cr_expect_eq(stamp, 30);
    for (uint32_t i = 0; i < 9; i++)
        cr_expect_eq(written[i], i != 0 && i != 2, "slot %u", i);
    cr_expect(id[3].run == 9 && id[3].n == 2);
    cr_expect(id[7].run == 9 && id[7].n == 30);
    cr_expect_eq(found(&mine, 1), 2);
    for (int32_t i = 1; i <= 3; i++)
        cr_expect_eq(kv_pager_match(pager, &mine, tokens_of(i, 0), 8 * T).n_tokens, T, "%d", i);
    cr_expect_eq(kv_snapshot_acquire(pager, NULL), 0, "that of the first chain is the oldest");
    cr_expect_eq(kv_snapshot_acquire(pager, NULL), 2);
    cr_expect_eq(kv_snapshot_acquire(pager, NULL), 1);
    for (uint32_t i = 0; i < 3; i++)
        kv_snapshot_free(pager, i);
    kv_pager_free(pager);
}
