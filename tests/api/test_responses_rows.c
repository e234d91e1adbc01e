/* The store of responses with a database: it has what a store that never ends would have. */

#include <criterion/criterion.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/responses/store.h"
#include "base/clock.h"
#include "base/rng.h"

#define IDS 40u
#define TTL_S 300

static char folder[40], path[80];
static struct clock_virtual virtual_clock;
static int n_troubles;
static bool beside;
static int64_t wrong_s; /* seconds that the machine's time is ahead */
static size_t memory;   /* the option stored-memory */

static void setup(void) {
    strcpy(folder, "/tmp/weft-test-rows-XXXXXX");
    cr_assert(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/state.db", folder);
    clock_virtual_init(&virtual_clock, INT64_C(1000000000000));
    n_troubles = 0;
    beside = false;
    wrong_s = 0;
    memory = 32 << 10;
}

static void teardown(void) {
    char command[80];

    snprintf(command, sizeof(command), "rm -r %s", folder);
    cr_assert_eq(system(command), 0);
}

static int64_t unix_s(void *ctx) {
    return 1795392000 + wrong_s + clock_now(&virtual_clock.clock) / 1000000000;
}

static const char *name_of(void *ctx, uint32_t tenant) {
    return tenant ? "bob" : "alice";
}

static bool number_of(void *ctx, const char *name, uint32_t *tenant) {
    *tenant = strcmp(name, "bob") == 0;
    return true;
}

static void on_trouble(void *ctx, int r) {
    n_troubles++;
}

struct shelf {
    uv_loop_t loop;
    struct state state;
    struct store store;
    bool has_state;
};

static void shelf_init(struct shelf *s, bool has_state) {
    const struct state_opts so = {.loop = &s->loop, .path = path, .trouble = on_trouble};
    struct store_limits limits = {
        .n = 20, .bytes = memory, .ttl_s = TTL_S, .name = name_of, .named = number_of};

    s->has_state = has_state;
    uv_loop_init(&s->loop);
    limits.unix_s = unix_s;
    limits.beside = beside;
    if (has_state) {
        cr_assert_eq(state_init(&s->state, &so), 0);
        cr_assert_eq(state_start(&s->state), 0);
        limits.state = &s->state;
    }
    store_init(&s->store, &s->loop, &virtual_clock.clock, &limits);
    for (int i = 0; i < 3; i++) /* the later looks free what nothing continues */
        store_load(&s->store);
}

static void shelf_deinit(struct shelf *s) {
    uint32_t n_lost;

    store_close(&s->store);
    if (s->has_state)
        state_close(&s->state);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    cr_expect_eq(store_save_end(&s->store, &n_lost), 0);
    cr_expect_eq(n_lost, 0);
    store_deinit(&s->store);
    if (s->has_state)
        state_deinit(&s->state);
    cr_expect_eq(uv_loop_close(&s->loop), 0);
}

static void name(char id[16], uint64_t i) {
    snprintf(id, 16, "resp_%llu", (unsigned long long)i);
}

/* Adds response @i, of @size bytes, that continues response @parent if there is one. */
static void add(struct shelf *s, uint32_t tenant, uint64_t i, uint64_t parent, size_t size) {
    struct buf head = {.max = 1 << 20};
    struct stored_parts parts;
    char id[16], parent_id[16];

    name(id, i);
    name(parent_id, parent);
    store_remove(&s->store, tenant, id, strlen(id));
    struct stored *p = store_get(&s->store, tenant, parent_id, strlen(parent_id));
    stored_parts_init(&parts);
    cr_assert_eq(buf_printf(&head, R"({"id":"%s","output":[{"a":"%0*d"}],)", id, (int)size, 1), 0);
    cr_assert_eq(buf_printf(&parts.input, R"([{"role":"user"},{"id":"x"}])"), 0);
    cr_assert_eq(item_list_add(&parts.items,
                               (struct item_entry){.at = 1, .len = 15, .message = true}, NULL, 0),
                 0);
    cr_assert_eq(item_list_add(&parts.items,
                               (struct item_entry){.at = 17, .len = 10, .silent = true}, "x", 1),
                 0);
    parts.head.text = blob_new(&head);
    cr_assert_eq(buf_printf(&head, R"("echo":%llu)", (unsigned long long)i), 0);
    parts.echo = blob_new(&head);
    parts.cancelled = i % 2;
    store_watch(&s->store, tenant);
    cr_assert_eq(store_add(&s->store, tenant, id, p, &parts), 0);
    stored_unref(p);
}

static void drop(struct shelf *s, uint32_t tenant, uint64_t i) {
    char id[16];

    name(id, i);
    store_remove(&s->store, tenant, id, strlen(id));
}

/* Compares two responses with all that they continue. */
static void compare(const struct stored *a, const struct stored *b) {
    for (; a && b; a = a->parent, b = b->parent) {
        cr_assert_str_eq(a->id, b->id);
        cr_assert_str_eq(blob_data(a->parts.head.text), blob_data(b->parts.head.text));
        cr_assert_str_eq(blob_data(a->parts.echo), blob_data(b->parts.echo));
        cr_assert_str_eq(a->parts.input.data, b->parts.input.data);
        cr_assert_eq(a->parts.cancelled, b->parts.cancelled);
        cr_assert_eq(item_list_n(&a->parts.items), item_list_n(&b->parts.items));
        cr_assert_eq(a->parts.items.n_said, b->parts.items.n_said);
        for (size_t i = 0; i < item_list_n(&a->parts.items); i++) {
            const struct item_entry *x = item_list_get(&a->parts.items, i);
            const struct item_entry *y = item_list_get(&b->parts.items, i);

            cr_assert(memcmp(x, y, sizeof(*x)) == 0);
        }
    }
    cr_assert(!a && !b, "one has more of its past");
}

static void compare_all(struct shelf *a, struct shelf *b, uint32_t round) {
    struct store *both[] = {&a->store, &b->store};

    for (int i = 0; i < 2; i++) { /* forget what is old */
        store_watch(both[i], 0);
        both[i]->tick.timer_cb(&both[i]->tick);
    }
    cr_assert_eq(a->store.bytes, b->store.bytes, "round %u: %u %llu, %u %llu", round, a->store.n,
                 (unsigned long long)a->store.bytes, b->store.n,
                 (unsigned long long)b->store.bytes);
    for (uint32_t tenant = 0; tenant < 2; tenant++)
        for (uint32_t i = 0; i < IDS; i++) {
            char id[16];

            name(id, i);
            struct stored *x = store_get(&a->store, tenant, id, strlen(id));
            struct stored *y = store_get(&b->store, tenant, id, strlen(id));
            cr_assert_eq(!x, !y, "%u: %s of %u: %u in %llu bytes, %u in %llu", round, id, tenant,
                         a->store.n, (unsigned long long)a->store.bytes, b->store.n,
                         (unsigned long long)b->store.bytes);
            compare(x, y);
            stored_unref(x);
            stored_unref(y);
        }
}

/* Random additions, removals and expiries; the store with the database ends and begins anew. */
Test(rows, a_store_that_begins_anew_has_the_same, .init = setup, .fini = teardown) {
    static struct shelf s, naive;
    struct rng rng = {63};

    shelf_init(&s, true);
    shelf_init(&naive, false);
    for (uint32_t round = 0; round < 1500; round++) {
        uint32_t tenant = (uint32_t)rng_below(&rng, 2);
        uint64_t i = rng_below(&rng, IDS), parent = rng_below(&rng, IDS),
                 what = rng_below(&rng, 100);
        size_t size = 1 + rng_below(&rng, what % 10 == 0 ? 5000 : 200);

        virtual_clock.ns += (what == 50 ? 250 : 1) * INT64_C(1000000000);
        if (what < 60) {
            add(&s, tenant, i, parent, size);
            add(&naive, tenant, i, parent, size);
        } else if (what < 75) {
            drop(&s, tenant, i);
            drop(&naive, tenant, i);
        } else if (what < 80) {
            uv_run(&s.loop, UV_RUN_NOWAIT);
        } else if (what < 84) {
            shelf_deinit(&s);
            shelf_init(&s, true);
        }
        compare_all(&s, &naive, round);
    }
    shelf_deinit(&s);
    shelf_deinit(&naive);
    cr_expect_eq(n_troubles, 0);
}

/* Returns true if @s finds response 1. */
static bool has_first(struct shelf *s) {
    struct stored *r = store_get(&s->store, 0, "resp_1", 6);

    stored_unref(r);
    return r;
}

/* Holds response 1 as one that failed if the process is killed, until it is on the disk. */
static struct stored *promise_first(struct shelf *s) {
    struct buf head = {.max = 1 << 20};
    struct stored_parts parts;
    struct stored *r;

    stored_parts_init(&parts);
    cr_assert_eq(buf_printf(&head, R"({"id":"resp_1")"), 0);
    parts.head.text = blob_new(&head);
    store_watch(&s->store, 0);
    cr_assert_eq(store_hold(&s->store, 0, "resp_1", NULL, &parts, &r), 0);
    store_promise(r);
    while (r->row == 0)
        uv_run(&s->loop, UV_RUN_ONCE);
    return r;
}

Test(rows, a_promised_response_is_in_processes_that_begin_later, .init = setup, .fini = teardown) {
    static struct shelf s, next, heir, last;

    shelf_init(&s, true);
    struct stored *r = promise_first(&s);
    cr_expect(!has_first(&s));
    beside = true;
    shelf_init(&next, true);
    cr_expect(!has_first(&next), "an upgrade lets it go on");
    beside = false;
    shelf_init(&heir, true);
    cr_expect(has_first(&heir));
    shelf_deinit(&heir);
    beside = true;
    shelf_init(&heir, true);
    cr_expect(has_first(&heir), "it is an ordinary response from then on");
    stored_unref(r);
    shelf_deinit(&s);
    shelf_deinit(&next);
    shelf_deinit(&heir);
    beside = false;
    shelf_init(&last, true);
    cr_expect(!has_first(&last), "the process that promised it has ended it");
    shelf_deinit(&last);
}

Test(rows, a_promise_of_another_process_under_way_is_not_read, .init = setup, .fini = teardown) {
    static struct shelf s, other;

    shelf_init(&other, true);
    shelf_init(&s, true);
    struct stored *r = promise_first(&s);
    for (int i = 0; i < 3; i++)
        store_load(&other.store);
    cr_expect(!has_first(&other));
    stored_unref(r);
    shelf_deinit(&s);
    shelf_deinit(&other);
}

Test(rows, an_idle_store_does_not_lock_the_database, .init = setup, .fini = teardown) {
    static struct shelf s, other;
    sqlite3 *writer;

    shelf_init(&s, true);
    cr_assert_eq(sqlite3_open(path, &writer), SQLITE_OK);
    cr_assert_eq(sqlite3_exec(writer, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    store_load(&s.store);
    cr_expect_eq(n_troubles, 0, "another writes, and the store has nothing to write");
    cr_assert_eq(sqlite3_exec(writer, "COMMIT", NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(writer);
    shelf_init(&other, true);
    add(&other, 0, 1, 2, 10);
    shelf_deinit(&other);
    store_load(&s.store);
    cr_expect(has_first(&s), "what another has added is found");
    shelf_deinit(&s);
}

/* Lets time pass for all clocks. */
static void pass(int64_t seconds) {
    virtual_clock.ns += seconds * 1000000000;
}

/* Returns true if a store that begins now has response @i, after it forgot what is old. */
static bool begins_with(uint64_t i) {
    static struct shelf s;
    char id[16];

    name(id, i);
    shelf_init(&s, true);
    store_watch(&s.store, 0);
    s.store.tick.timer_cb(&s.store.tick);
    struct stored *r = store_get(&s.store, 0, id, strlen(id));
    stored_unref(r);
    shelf_deinit(&s);
    return r;
}

/* Stores response @i in a process of its own. */
static void store_one(uint64_t i) {
    static struct shelf s;

    shelf_init(&s, true);
    add(&s, 0, i, IDS, 10);
    shelf_deinit(&s);
}

Test(rows, a_start_with_a_clock_that_is_ahead_keeps_all, .init = setup, .fini = teardown) {
    store_one(1);
    pass(TTL_S / 2);
    store_one(2);
    wrong_s = INT64_C(315360000);
    cr_expect(begins_with(1));
    cr_expect(begins_with(2));
    pass(TTL_S / 2 + 1);
    cr_expect_not(begins_with(1), "the first is older than the second");
    cr_expect(begins_with(2));
    store_one(3);
    pass(TTL_S / 2);
    cr_expect_not(begins_with(2), "it is the oldest, and the third is new");
    cr_expect(begins_with(3));
}

Test(rows, rows_of_a_clock_that_was_ahead_expire, .init = setup, .fini = teardown) {
    wrong_s = INT64_C(315360000);
    store_one(1);
    wrong_s = 0;
    cr_expect(begins_with(1));
    pass(TTL_S - 10);
    cr_expect(begins_with(1));
    store_one(2);
    pass(11);
    cr_expect_not(begins_with(1), "it counts from the start with the right clock");
    cr_expect(begins_with(2));
}

Test(rows, a_clock_that_is_set_meanwhile_changes_no_age, .init = setup, .fini = teardown) {
    static struct shelf s;

    shelf_init(&s, true);
    add(&s, 0, 1, IDS, 10);
    pass(TTL_S / 2);
    wrong_s = INT64_C(315360000);
    add(&s, 0, 2, IDS, 10);
    shelf_deinit(&s);
    cr_expect(begins_with(1));
    wrong_s = 0;
    cr_expect(begins_with(1));
    cr_expect(begins_with(2));
}

Test(rows, a_start_with_less_memory_has_what_fits, .init = setup, .fini = teardown) {
    static struct shelf s;
    uint64_t bytes;
    uint32_t n;

    shelf_init(&s, true);
    add(&s, 0, 1, IDS, 10);
    add(&s, 0, 2, IDS, 3000);
    shelf_deinit(&s);
    cr_expect(begins_with(2));
    memory = 8 << 10;
    cr_expect(begins_with(1));
    cr_expect_not(begins_with(2));
    shelf_init(&s, true);
    store_size(&s.store, &n, &bytes);
    cr_expect_eq(n, 1);
    cr_expect(bytes > 0 && bytes < memory, "%zu", (size_t)bytes);
    shelf_deinit(&s);
}
