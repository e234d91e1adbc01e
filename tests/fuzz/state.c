/* The database of the state, read and written as usage and responses: any bytes behind a "#",
 * otherwise changes of a good one, each its place in two bytes and a byte. Without a byte behind
 * them its rows have no checksum, as those of version 0.2.0. A file that cannot be used is left or
 * put aside; rows are valid whatever the file has. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/limits/usage.h"
#include "api/responses/store.h"
#include "api/state/db.h"
#include "base/clock.h"
#include "base/files.h"
#include "tests/fuzz/fuzz.h"

static char folder[40], path[60];

static void write_input(const uint8_t *data, size_t len) {
    FILE *f = fopen(path, "w");

    FUZZ_ASSERT(f && fwrite(data, 1, len, f) == len);
    fclose(f);
}

/* Removes the files of the last input. */
static void remove_all(void) {
    static const char *const endings[] = {"", "-wal", "-shm", ".damaged", ".damaged-wal"};
    char name[80];

    for (size_t i = 0; i < ARRAY_SIZE(endings); i++) {
        snprintf(name, sizeof(name), "%s%s", path, endings[i]);
        unlink(name);
    }
}

static void remove_folder(void) {
    remove_all();
    rmdir(folder);
}

static void on_trouble(void *ctx, int r) {
    (void)ctx;
    FUZZ_ASSERT(r <= 0);
}

static int64_t time_of(void *ctx) {
    (void)ctx;
    return 1795392000;
}

static const char *name_of(void *ctx, uint32_t tenant) {
    (void)ctx;
    (void)tenant;
    return "t";
}

static bool number_of(void *ctx, const char *name, uint32_t *tenant) {
    (void)ctx;
    *tenant = *name & 3;
    return true;
}

/* Adds a response with an item and events. What it continues may have been read. */
static void add_response(struct store *s) {
    CLEANUP(buf_deinit) struct buf event = {.max = 1 << 10};
    struct buf text = {.max = 1 << 10};
    struct stored *parent = store_get(s, 0, "resp_1", 6);
    struct stored_parts p;

    stored_parts_init(&p);
    FUZZ_ASSERT(buf_add_str(&text, "{\"output\":[{\"id\":\"msg_1\"}],") == 0);
    p.head.text = blob_new(&text);
    FUZZ_ASSERT(buf_add_str(&text, "\"echo\":1") == 0);
    p.echo = blob_new(&text);
    FUZZ_ASSERT(buf_add_str(&p.input, "[{\"role\":\"user\"}]") == 0);
    item_list_add(&p.output, (struct item_entry){.at = 11, .len = 14}, "msg_1", 5);
    item_list_add(&p.items, (struct item_entry){.at = 1, .len = 15, .message = true}, NULL, 0);
    FUZZ_ASSERT((p.log = event_log_new()) && buf_add_str(&event, "{}") == 0);
    event_log_add(p.log, "e", &event, NULL);
    event_log_close(p.log);
    store_watch(s, 0);
    store_remove(s, 0, "resp_1", 6);
    store_add(s, 0, "resp_1", parent, &p);
    stored_unref(parent);
}

/* Uses the database as a daemon does from its start to its end. */
static void use(void) {
    static struct state s;
    static struct usage u;
    static struct store store;
    const struct store_limits limits = {.n = 10,
                                        .bytes = 1 << 20,
                                        .ttl_s = 1000,
                                        .state = &s,
                                        .name = name_of,
                                        .named = number_of,
                                        .unix_s = time_of};
    uint64_t n_lost;
    uint32_t n_responses;
    uv_loop_t loop;

    uv_loop_init(&loop);
    const struct state_opts so = {.loop = &loop, .path = path, .trouble = on_trouble};
    const struct usage_opts uo = {
        .loop = &loop, .state = &s, .unix_s = time_of, .trouble = on_trouble};
    FUZZ_ASSERT(state_init(&s, &so) == 0);
    FUZZ_ASSERT(usage_init(&u, &uo) == 0);
    for (uint32_t i = 0; i < u.all.n; i++)
        FUZZ_ASSERT(usage_is_date(u.all.rows[i].date));
    usage_start(&u);
    store_init(&store, &loop, clock_monotonic(), &limits);
    store_load(&store);
    add_response(&store);
    store_close(&store);
    usage_count(&u, "t", "k", "m", &(struct usage_sum){1, 2, 3, 4});
    usage_close(&u);
    uv_run(&loop, UV_RUN_DEFAULT);
    store_save_end(&store, &n_responses);
    usage_save(&u, &n_lost);
    store_deinit(&store);
    usage_deinit(&u);
    state_deinit(&s);
    FUZZ_ASSERT(uv_loop_close(&loop) == 0);
}

/* The callback state_job.run: takes the checksums away, so that what they cover is parsed. */
static int take_checksums(struct state_job *j, struct db *db) {
    (void)j;
    return db_run(db, "UPDATE responses SET events = substr(events, 72)", NULL, 0);
}

/* Makes the folder, and good databases: with checksums, and without. */
static void begin(struct buf good[2]) {
    static struct state s;
    struct state_job job = {.run = take_checksums};
    uv_loop_t loop;

    snprintf(folder, sizeof(folder), "/tmp/weft-fuzz-state-XXXXXX");
    FUZZ_ASSERT(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/db", folder);
    atexit(remove_folder);
    use();
    FUZZ_ASSERT(files_read(path, &good[0], NULL) == 0 && good[0].len > 4096);
    uv_loop_init(&loop);
    FUZZ_ASSERT(state_init(&s, &(struct state_opts){
                                   .loop = &loop, .path = path, .trouble = on_trouble}) == 0);
    FUZZ_ASSERT(state_run(&s, &job) == 0);
    state_deinit(&s);
    FUZZ_ASSERT(uv_loop_close(&loop) == 0);
    FUZZ_ASSERT(files_read(path, &good[1], NULL) == 0 && good[1].len > 4096);
    FUZZ_ASSERT(memmem(good[0].data, good[0].len, "sha256:", 7));
    FUZZ_ASSERT(!memmem(good[1].data, good[1].len, "sha256:", 7));
    remove_all();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    static struct buf good[2] = {{.max = 1 << 20}, {.max = 1 << 20}};
    CLEANUP(buf_deinit) struct buf changed = {.max = 1 << 20};
    const struct buf *from = &good[len % 3 == 0];

    if (!*folder)
        begin(good);
    if (len > 0 && *data == '#') {
        write_input(data + 1, len - 1);
    } else {
        FUZZ_ASSERT(buf_add(&changed, from->data, from->len) == 0);
        for (; len >= 3; data += 3, len -= 3)
            changed.data[(data[0] << 8 | data[1]) % changed.len] = (char)data[2];
        write_input((const uint8_t *)changed.data, changed.len);
    }
    use();
    remove_all();
    return 0;
}
