/* The store of responses: for how long, how many bytes, and for which tenants it keeps them. */

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yyjson.h>

#include "api/parts.h"
#include "api/responses/store.h"
#include "base/clock.h"
#include "base/rng.h"
#include "responses_support.h"

/* ---- the store itself ---- */

struct shelf {
    uv_loop_t loop;
    struct clock_virtual clock;
    struct store store;
};

static bool on_loop; /* true in store_watch(); the other functions may run on any thread */

static void shelf_init(struct shelf *s, uint32_t n, uint64_t bytes, uint32_t ttl_s) {
    struct store_limits limits = {.n = n, .bytes = bytes, .ttl_s = ttl_s};

    uv_loop_init(&s->loop);
    clock_virtual_init(&s->clock, 1000000000000);
    store_init(&s->store, &s->loop, &s->clock.clock, &limits);
}

static void shelf_deinit(struct shelf *s) {
    store_close(&s->store);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    store_deinit(&s->store); /* asserts that no byte is left */
    cr_expect_eq(uv_loop_close(&s->loop), 0);
}

static void add(struct shelf *s, uint32_t tenant, const char *id, const char *parent, size_t size) {
    struct stored *p = parent ? store_get(&s->store, tenant, parent, strlen(parent)) : NULL;
    struct stored_parts parts;
    struct buf head = {.max = size};

    cr_assert(!parent || p, "%s is gone", parent);
    stored_parts_init(&parts);
    cr_assert_eq(buf_reserve(&head, size), 0);
    memset(head.data, 'x', size);
    head.len = size;
    cr_assert_not_null(parts.head.text = blob_new(&head));
    cr_assert_eq(buf_add(&parts.input, "[]", 2), 0);
    on_loop = true;
    store_watch(&s->store, tenant);
    on_loop = false;
    cr_assert_eq(store_add(&s->store, tenant, id, p, &parts), 0);
    stored_unref(p);
}

static bool has(struct shelf *s, uint32_t tenant, const char *id) {
    struct stored *r = store_get(&s->store, tenant, id, strlen(id));

    stored_unref(r);
    return r;
}

Test(store, the_oldest_make_room) {
    struct shelf s;

    shelf_init(&s, 3, 1 << 20, 100);
    add(&s, 0, "a", NULL, 10);
    add(&s, 0, "b", NULL, 10);
    add(&s, 0, "c", NULL, 10);
    add(&s, 0, "d", NULL, 10);
    cr_expect(!has(&s, 0, "a") && has(&s, 0, "b") && has(&s, 0, "c") && has(&s, 0, "d"));
    add(&s, 0, "e", "b", 10); /* b was continued, so c is the oldest now */
    cr_expect(has(&s, 0, "b") && !has(&s, 0, "c") && has(&s, 0, "d") && has(&s, 0, "e"));
    cr_expect_eq(s.store.n, 3);
    shelf_deinit(&s);
}

/* Runs the timer of the store now. */
static void tick(struct shelf *s) {
    cr_assert(uv_is_active((uv_handle_t *)&s->store.tick));
    s->store.tick.timer_cb(&s->store.tick);
}

static void name(char id[16], int i) {
    snprintf(id, 16, "r%d", i);
}

Test(store, old_responses_are_forgotten_in_parts) {
    struct shelf s;
    char id[16];

    shelf_init(&s, 1000, 1 << 20, 100);
    for (int i = 0; i < 150; i++) {
        name(id, i);
        add(&s, (uint32_t)i % 2, id, NULL, 10);
    }
    s.clock.ns += INT64_C(100000000000);
    for (uint32_t left = 150; left > 0; left -= MIN(left, 64u)) {
        cr_expect_eq(s.store.n, left);
        tick(&s);
        cr_expect(left < 64 || uv_timer_get_due_in(&s.store.tick) <= 1);
    }
    cr_expect_eq(s.store.n, 0);
    add(&s, 0, "old", NULL, 10);
    s.clock.ns += INT64_C(100000000000);
    cr_expect(!has(&s, 0, "old"), "without the timer, too");
    shelf_deinit(&s);
}

Test(store, a_long_conversation_is_freed_in_parts) {
    struct shelf s;
    char id[16], last[16];
    uint32_t n = 1;

    shelf_init(&s, 1000, 1 << 20, 100);
    add(&s, 0, "r0", NULL, 10);
    for (int i = 1; i < 200; i++) { /* only the next one holds each */
        name(id, i);
        name(last, i - 1);
        add(&s, 0, id, last, 10);
        cr_assert(store_remove(&s.store, 0, last, strlen(last)));
    }
    uint64_t bytes = s.store.bytes;
    cr_assert(store_remove(&s.store, 0, "r199", 4));
    cr_expect(s.store.bytes > 0 && s.store.bytes < bytes);
    for (; s.store.bytes > 0 && n < 10; n++)
        tick(&s);
    cr_expect_eq(n, 200 / 64 + 1);
    shelf_deinit(&s);
}

Test(store, what_waits_to_be_freed_makes_room) {
    struct shelf s;
    char id[16], last[16];

    shelf_init(&s, 1000, 240 * sizeof(struct stored), 100);
    add(&s, 0, "r0", NULL, 10);
    for (int i = 1; i < 150; i++) {
        name(id, i);
        name(last, i - 1);
        add(&s, 0, id, last, 10);
        cr_assert(store_remove(&s.store, 0, last, strlen(last)));
    }
    add(&s, 0, "kept", NULL, 10);
    cr_assert(store_remove(&s.store, 0, "r149", 4));
    for (int i = 0; i < 4; i++) {
        name(id, i);
        add(&s, 0, id, NULL, 54 * sizeof(struct stored));
    }
    cr_expect(has(&s, 0, "kept") && has(&s, 0, "r0") && has(&s, 0, "r3"));
    shelf_deinit(&s);
}

Test(store, conversations_have_a_length) {
    struct shelf s;

    shelf_init(&s, 1000, 1 << 20, 100);
    add(&s, 0, "a", NULL, 10);
    struct stored *r = store_get(&s.store, 0, "a", 1);
    r->depth = STORE_DEPTH - 2;
    stored_unref(r);
    add(&s, 0, "b", "a", 10);
    cr_expect(has(&s, 0, "b"));
    add(&s, 0, "c", "b", 10);
    cr_expect(!has(&s, 0, "c"));
    shelf_deinit(&s);
}

Test(store, a_conversation_is_forgotten_from_its_end) {
    struct shelf s;

    shelf_init(&s, 5, 1 << 20, 100);
    add(&s, 0, "a", NULL, 10);
    add(&s, 0, "b", "a", 10);
    add(&s, 0, "c", "b", 10);
    for (int i = 0; i < 5; i++) {
        static const char *const ids[] = {"1", "2", "3", "4", "5"};

        add(&s, 0, ids[i], NULL, 10);
        cr_expect_eq(has(&s, 0, "c"), i < 2);
        cr_expect_eq(has(&s, 0, "b"), i < 3);
        cr_expect_eq(has(&s, 0, "a"), i < 4);
    }
    shelf_deinit(&s);
}

Test(store, bytes_are_bounded_and_one_may_not_take_all) {
    struct shelf s;

    shelf_init(&s, 1000, 10000, 100);
    add(&s, 0, "large", NULL, 3000);
    cr_expect(!has(&s, 0, "large"));
    for (int i = 0; i < 100; i++) {
        char id[16];

        snprintf(id, sizeof(id), "r%d", i);
        add(&s, 0, id, NULL, 1000);
        cr_expect(has(&s, 0, id));
        cr_expect_leq(s.store.bytes, 10000);
    }
    cr_expect_lt(s.store.n, 10);
    shelf_deinit(&s);
}

/* The log of a response that was generated in the background counts. */
Test(store, a_log_is_charged) {
    struct buf event = {.max = 1 << 10};
    struct stored_parts parts;
    struct shelf s;

    shelf_init(&s, 1000, 1 << 20, 100);
    add(&s, 0, "a", NULL, 10);
    uint64_t one = s.store.bytes;
    stored_parts_init(&parts);
    cr_assert_not_null(parts.log = event_log_new());
    cr_assert_eq(buf_add_str(&event, "{}"), 0);
    for (int i = 0; i < 10; i++)
        event_log_add(parts.log, "e", &event, NULL);
    size_t of_log = event_log_bytes(parts.log);
    cr_assert_eq(store_add(&s.store, 0, "b", NULL, &parts), 0);
    cr_expect_gt(of_log, 20);
    cr_expect_geq(s.store.bytes - one, sizeof(struct stored) + of_log);
    cr_expect_lt(s.store.bytes - one, sizeof(struct stored) + of_log + 100);
    buf_deinit(&event);
    shelf_deinit(&s);
}

Test(store, who_keeps_most_makes_room_for_others) {
    struct shelf s;
    char id[16];

    shelf_init(&s, 1000, 10000, 100);
    add(&s, 3, "mine", NULL, 100);
    for (int i = 0; i < 50; i++) {
        snprintf(id, sizeof(id), "r%d", i);
        add(&s, 1, id, NULL, 1000);
    }
    cr_expect(has(&s, 3, "mine"));
    cr_expect(has(&s, 1, "r49"));
    cr_expect(!has(&s, 1, "mine") && !has(&s, 3, "r49"), "of another tenant");
    cr_expect(!store_remove(&s.store, 1, "mine", 4));
    shelf_deinit(&s);
}

/* A removed response that others continue is charged as long as it exists: whatever a tenant does
 * with it, its own responses are evicted and not those of others. */
Test(store, what_is_held_is_charged_to_its_tenant) {
    struct shelf s;
    char id[16], next[16];

    shelf_init(&s, 1000, 20000, 100);
    for (int i = 0; i < 10; i++) {
        snprintf(id, sizeof(id), "b%d", i);
        add(&s, 2, id, NULL, 200);
    }
    for (int i = 0; i < 20; i++) {
        snprintf(id, sizeof(id), "a%d", i);
        snprintf(next, sizeof(next), "n%d", i);
        add(&s, 1, id, NULL, 4000);
        add(&s, 1, next, id, 10);
        cr_assert(store_remove(&s.store, 1, id, strlen(id)));
        cr_assert(has(&s, 1, next));
        for (int k = 0; k < 10; k++) {
            snprintf(id, sizeof(id), "b%d", k);
            cr_assert(has(&s, 2, id), "%s after %d", id, i);
        }
    }
    shelf_deinit(&s);
}

/* Responses that requests use cannot be freed; even then a tenant below its share loses nothing. */
Test(store, what_requests_hold_costs_others_nothing) {
    struct shelf s;
    struct stored *kept[4];
    char id[16];

    shelf_init(&s, 1000, 20000, 100);
    for (int i = 0; i < 4; i++) {
        snprintf(id, sizeof(id), "a%d", i);
        add(&s, 1, id, NULL, 4300);
        kept[i] = store_get(&s.store, 1, id, strlen(id));
        cr_assert(store_remove(&s.store, 1, id, strlen(id)));
    }
    add(&s, 2, "b", NULL, 300);
    cr_assert(has(&s, 2, "b"));
    add(&s, 1, "more", NULL, 4300);
    add(&s, 3, "c", NULL, 4300);
    cr_expect(has(&s, 2, "b") && !has(&s, 1, "more") && !has(&s, 3, "c"));
    for (int i = 0; i < 4; i++)
        stored_unref(kept[i]);
    add(&s, 3, "c", NULL, 4300);
    cr_expect(has(&s, 2, "b") && has(&s, 3, "c"));
    shelf_deinit(&s);
}

Test(store, many_small_ones_cost_others_nothing) {
    struct shelf s;
    char id[16];

    shelf_init(&s, 20, 1 << 20, 100);
    for (int i = 0; i < 5; i++) {
        snprintf(id, sizeof(id), "b%d", i);
        add(&s, 2, id, NULL, 50000);
    }
    for (int i = 0; i < 100; i++) {
        snprintf(id, sizeof(id), "a%d", i);
        add(&s, 1, id, NULL, 1);
        cr_assert(has(&s, 1, id));
    }
    for (int i = 0; i < 5; i++) {
        snprintf(id, sizeof(id), "b%d", i);
        cr_expect(has(&s, 2, id), "%s", id);
    }
    shelf_deinit(&s);
}

static double weight_of(void *ctx, uint32_t tenant) {
    cr_assert(on_loop);
    return ((const double *)ctx)[tenant];
}

/* Tenant 1 stores as much as it may, then tenant 2. @left: number of responses that remain of
 * each. */
static void compete(struct shelf *s, size_t size, uint32_t left[3]) {
    char id[16];

    for (uint32_t tenant = 1; tenant <= 2; tenant++)
        for (int i = 0; i < 100; i++) {
            snprintf(id, sizeof(id), "%u-%d", tenant, i);
            add(s, tenant, id, NULL, size);
        }
    for (uint32_t tenant = 1; tenant <= 2; tenant++) {
        left[tenant] = 0;
        for (int i = 0; i < 100; i++) {
            snprintf(id, sizeof(id), "%u-%d", tenant, i);
            left[tenant] += has(s, tenant, id);
        }
    }
}

Test(store, shares_are_by_weight) {
    double weight[3] = {1, 3, 1};
    uint32_t left[3];
    struct shelf s;

    shelf_init(&s, 40, 1 << 20, 100);
    s.store.limits.weight = weight_of;
    s.store.limits.ctx = weight;
    compete(&s, 10, left);
    cr_expect(left[1] == 30 && left[2] == 10, "by number: %u, %u", left[1], left[2]);
    weight[2] = 3; /* as after a reload */
    compete(&s, 10, left);
    cr_expect(left[1] == 20 && left[2] == 20, "by number: %u, %u", left[1], left[2]);
    shelf_deinit(&s);

    weight[2] = 1;
    shelf_init(&s, 1000, 100000, 100);
    s.store.limits.weight = weight_of;
    s.store.limits.ctx = weight;
    compete(&s, 2000, left);
    cr_expect(left[1] >= 2 * left[2] && left[1] <= 4 * left[2], "%u, %u", left[1], left[2]);
    cr_expect_geq(left[1] + left[2], 30);
    shelf_deinit(&s);
}

Test(store, age_counts_from_the_last_use) {
    struct shelf s;

    shelf_init(&s, 10, 1 << 20, 100);
    add(&s, 0, "a", NULL, 10);
    add(&s, 0, "b", NULL, 10);
    s.clock.ns += 60000000000;
    cr_expect(has(&s, 0, "b"), "looking at it is no use of it");
    add(&s, 0, "c", "a", 10);
    s.clock.ns += 60000000000;
    cr_expect(has(&s, 0, "a") && has(&s, 0, "c") && !has(&s, 0, "b"));
    s.clock.ns += 60000000000;
    cr_expect(!has(&s, 0, "a") && !has(&s, 0, "c"));
    cr_expect_eq(s.store.bytes, 0);
    shelf_deinit(&s);
}

Test(store, what_is_removed_stays_with_who_continues_it) {
    struct shelf s;

    shelf_init(&s, 10, 1 << 20, 100);
    add(&s, 0, "a", NULL, 10);
    add(&s, 0, "b", "a", 10);
    cr_expect(store_remove(&s.store, 0, "a", 1));
    cr_expect(!store_remove(&s.store, 0, "a", 1));
    cr_expect(!has(&s, 0, "a"));
    struct stored *b = store_get(&s.store, 0, "b", 1);
    cr_expect_str_eq(b->parent->id, "a");
    cr_expect(store_remove(&s.store, 0, "b", 1));
    cr_expect_gt(s.store.bytes, 0, "a request holds it");
    stored_unref(b);
    cr_expect_eq(s.store.bytes, 0);
    shelf_deinit(&s);
}

/* Random use stays within the limits, and each response that is found has all responses that it
 * continues. */
Test(store, random_use_keeps_the_promises) {
    struct shelf s;
    struct rng rng = {1};
    char id[16], parent[16];

    shelf_init(&s, 20, 12000, 50);
    for (int i = 0; i < 5000; i++) {
        uint32_t tenant = (uint32_t)(rng_next(&rng) % 3);
        size_t k = rng_next(&rng) % 40, size = rng_next(&rng) % 1500;

        snprintf(id, sizeof(id), "r%d", i);
        snprintf(parent, sizeof(parent), "r%d", (int)MAX(i - (int)k, 0));
        if (rng_next(&rng) % 8 == 0)
            store_remove(&s.store, tenant, parent, strlen(parent));
        else
            add(&s, tenant, id, has(&s, tenant, parent) ? parent : NULL, size);
        s.clock.ns += (int64_t)(rng_next(&rng) % 2000000000);
        cr_assert_leq(s.store.n, 20);
        cr_assert_leq(s.store.bytes, 12000);
    }
    shelf_deinit(&s);
}

/* ---- over HTTP ---- */

/* Copies a string member, which must exist. */
static void copy_member(char out[64], yyjson_val *v, const char *key) {
    const char *text = yyjson_get_str(yyjson_obj_get(v, key));

    cr_assert(text, "no %s", key);
    snprintf(out, 64, "%s", text ? text : "");
}

static void id_of(struct reply *r, char id[64]) {
    yyjson_doc *doc = yyjson_read(r->body.data, r->body.len, 0);

    cr_assert_eq(r->status, 200, "%s", r->body.data);
    copy_member(id, yyjson_doc_get_root(doc), "id");
    yyjson_doc_free(doc);
    reply_deinit(r);
}

static void ask_id(struct world *w, const char *fields, const char *output, char id[64]) {
    struct reply r;

    responses_ask(w, fields, output, &r);
    id_of(&r, id);
}

static int request(struct world *w, const char *method, const char *key, const char *path,
                   struct reply *r) {
    int fd = world_connect(w);

    world_say(w, fd,
              "%s %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Length: "
              "0\r\n\r\n",
              method, path, key);
    world_receive(w, fd, r);
    world_drop(w, fd);
    return r->status;
}

static int status(struct world *w, const char *method, const char *fmt, const char *id) {
    char path[128];
    struct reply r;

    snprintf(path, sizeof(path), fmt, id);
    int s = request(w, method, "k", path, &r);
    reply_deinit(&r);
    return s;
}

#define ONE "/v1/responses/%s"

Test(kept, a_response_is_what_it_was) {
    struct world w;
    struct reply r, again;
    char id[64], path[128];

    responses_start(&w);
    responses_ask(&w, R"("input":"hi")", "Hello", &r);
    struct buf copy = {.max = 1 << 20};
    buf_add(&copy, r.body.data, r.body.len);
    id_of(&r, id);
    snprintf(path, sizeof(path), ONE, id);
    world_get(&w, path, &again);
    cr_expect_eq(again.status, 200);
    cr_expect_str_eq(again.body.data, copy.data);
    reply_deinit(&again);
    buf_deinit(&copy);
    cr_expect_eq(status(&w, "GET", ONE "?stream=true", id), 400);
    cr_expect_eq(status(&w, "POST", ONE "/cancel", id), 400, "it has ended");
    cr_expect_eq(status(&w, "PUT", ONE, id), 405);
    cr_expect_eq(status(&w, "DELETE", ONE, id), 200);
    cr_expect_eq(status(&w, "DELETE", ONE, id), 404);
    cr_expect_eq(status(&w, "GET", ONE, id), 404);
    cr_expect_eq(status(&w, "POST", ONE "/cancel", id), 404);
    cr_expect_eq(status(&w, "GET", ONE "/input_items", id), 404);
    world_stop(&w);
}

Test(kept, only_what_was_asked_for) {
    struct world w;
    char id[64];

    responses_start(&w);
    ask_id(&w, R"("input":"hi","store":false)", "Hello", id);
    cr_expect_eq(status(&w, "GET", ONE, id), 404);
    world_stop(&w);
    responses_init(&w);
    w.opts.max_stored = 0;
    world_start(&w);
    ask_id(&w, R"("input":"hi")", "Hello", id);
    cr_expect_eq(status(&w, "GET", ONE, id), 404);
    world_stop(&w);
}

/* Returns a value of /metrics. */
static double metric(struct world *w, const char *name) {
    struct reply r;

    world_get(w, "/metrics", &r);
    const char *at = strstr(r.body.data, name);
    cr_assert(at, "%s", name);
    double v = strtod(strchr(at, '}') + 1, NULL);
    reply_deinit(&r);
    return v;
}

Test(kept, metrics_name_the_memory) {
    struct world w;
    char id[64];

    responses_start(&w);
    cr_expect_eq(metric(&w, "\nweft_stored_responses{"), 0);
    cr_expect_eq(metric(&w, "\nweft_stored_bytes{"), 0);
    ask_id(&w, R"("input":"hi")", "Hello", id);
    double one = metric(&w, "\nweft_stored_bytes{");
    cr_expect_gt(one, sizeof(struct stored));
    ask_id(&w, R"("input":"hi")", "Hello", id);
    cr_expect_eq(metric(&w, "\nweft_stored_responses{"), 2);
    cr_expect_gt(metric(&w, "\nweft_stored_bytes{"), one);
    cr_expect_eq(status(&w, "DELETE", ONE, id), 200);
    cr_expect_eq(metric(&w, "\nweft_stored_responses{"), 1);
    cr_expect_eq(metric(&w, "\nweft_stored_bytes{"), one);
    world_stop(&w);
}

#define TOOLS R"("tools":[{"type":"function","name":"f"},{"type":"custom","name":"p"}])"

Test(kept, a_conversation_goes_on) {
    struct world w;
    struct reply r;
    char id[64], fields[600], call[64];
    CLEANUP(buf_deinit) struct buf line = {.max = 1 << 20};

    responses_start(&w);
    responses_ask(&w, R"("input":"hi","instructions":"first","stream":true,)" TOOLS,
                  R"(<think>R</think>C<tool_call>{"name":"p","arguments":{"input":"x\n"}}</)"
                  "tool_call>",
                  &r);
    yyjson_doc *doc = responses_read(&r, &line);
    yyjson_val *root = yyjson_doc_get_root(doc), *output = yyjson_obj_get(root, "output");
    copy_member(id, root, "id");
    copy_member(call, yyjson_arr_get_last(output), "call_id");
    yyjson_doc_free(doc);
    snprintf(fields, sizeof(fields),
             R"("previous_response_id":"%s","instructions":"second","input":[{"type":)"
             R"("custom_tool_call_output","call_id":"%s","output":"ok"}])",
             id, call);
    ask_id(&w, fields, "Done.", id);
    cr_expect_str_eq(responses_prompt(&w),
                     "<|im_start|>system\nsecond<|im_end|><|im_start|>user\nhi<|im_end|>"
                     "<|im_start|>assistant\n"
                     R"(<think>R</think>C<tool_call>p {"input": "x\n"})"
                     "</tool_call><|im_end|><|im_start|>tool=p\nok<|im_end|><|im_start|>assistant");
    snprintf(fields, sizeof(fields), R"("previous_response_id":"%s","input":"more")", id);
    ask_id(&w, fields, "x", id);
    cr_expect(strstr(responses_prompt(&w), "ok<|im_end|><|im_start|>assistant\nDone.<|im_end|>"
                                           "<|im_start|>user\nmore<|im_end|>"),
              "%s", responses_prompt(&w));
    snprintf(fields, sizeof(fields), R"("previous_response_id":"%s")", id);
    ask_id(&w, fields, "y", id); /* `input` is optional here */
    cr_expect(strstr(responses_prompt(&w), "more<|im_end|><|im_start|>assistant\nx<|im_end|>"
                                           "<|im_start|>assistant"),
              "%s", responses_prompt(&w));
    snprintf(fields, sizeof(fields), R"("previous_response_id":"%s","input":"last")", id);
    ask_id(&w, fields, "z", id);
    cr_expect(strstr(responses_prompt(&w), "y<|im_end|><|im_start|>user\nlast<|im_end|>"), "%s",
              responses_prompt(&w));
    world_stop(&w);
}

Test(kept, items_may_be_referred_to) {
    static const char *const forms[] = {R"("type":"item_reference",)", R"("type":null,)", ""};
    struct world w;
    char hello[64], id[64], fields[600];

    responses_start(&w);
    ask_id(&w, R"("input":"hi")", "Hello", hello);
    for (size_t i = 0; i < ARRAY_SIZE(forms); i++) {
        snprintf(fields, sizeof(fields),
                 R"("input":[{"role":"user","content":"hi"},{%s"id":)"
                 R"("msg_%s_0"},{"role":"user","content":"more"}])",
                 forms[i], hello + 5);
        ask_id(&w, fields, "x", id);
        cr_expect_str_eq(responses_prompt(&w),
                         "<|im_start|>user\nhi<|im_end|><|im_start|>assistant\nHello<|im_end|>"
                         "<|im_start|>user\nmore<|im_end|><|im_start|>assistant");
    }
    world_stop(&w);
}

/* A request reads only the items that it needs from the store, however large their responses
 * are. */
Test(kept, only_what_is_asked_for_is_read) {
    CLEANUP(buf_deinit) struct buf fields = {.max = 1 << 20};
    struct world w;
    char id[64], next[64];

    responses_start(&w);
    buf_printf(&fields,
               R"("input":[{"role":"user","content":"hi"},{"type":"web_search_)"
               R"(call","junk":"%0*d"}],"tools":[{"type":"web_search","junk":"%0*d"}])",
               60000, 0, 60000, 0);
    ask_id(&w, fields.data, "Hello", id);
    cr_expect_eq(w.api->store.n_read, 0);
    buf_clear(&fields);
    buf_printf(&fields, R"("previous_response_id":"%s","input":"more")", id);
    ask_id(&w, fields.data, "x", next);
    uint64_t once = w.api->store.n_read;
    cr_expect(once > 0 && once < 400, "%u", (unsigned)once);
    buf_clear(&fields);
    buf_add_str(&fields, R"("input":[{"role":"user","content":"hi"})");
    for (int i = 0; i < 119; i++)
        buf_printf(&fields, R"(,{"type":"item_reference","id":"msg_%s_0"})", id + 5);
    buf_add_str(&fields, "]");
    ask_id(&w, fields.data, "x", next);
    cr_expect_lt(w.api->store.n_read - once, 119 * 300);
    world_stop(&w);
}

/* References are small for the client and large for the service, so their sum is bounded like a
 * body. */
Test(kept, references_are_bounded_in_all) {
    CLEANUP(buf_deinit) struct buf fields = {.max = 1 << 20};
    CLEANUP(freep) char *said = malloc(1001);
    struct world w;
    struct reply r;
    char id[64];

    responses_init(&w);
    w.opts.max_body_bytes = 16 << 10;
    world_start(&w);
    memset(said, 'x', 1000);
    said[1000] = 0;
    ask_id(&w, R"("input":"hi")", said, id);
    for (int n = 10; n <= 20; n += 10) {
        buf_clear(&fields);
        buf_add_str(&fields, R"("input":[{"role":"user","content":"hi"})");
        for (int i = 0; i < n; i++)
            buf_printf(&fields, R"(,{"type":"item_reference","id":"msg_%s_0"})", id + 5);
        buf_add_str(&fields, R"(],"max_output_tokens":1)");
        responses_ask(&w, fields.data, "x", &r);
        cr_expect_eq(r.status, n == 20 ? 400 : 200, "%s", r.body.data);
        cr_expect_eq(strstr(r.body.data, "stored items") != NULL, n == 20, "%s", r.body.data);
        reply_deinit(&r);
    }
    world_stop(&w);
}

static void expect_items(struct world *w, const char *id, const char *query, const char *want,
                         bool more) {
    CLEANUP(buf_deinit) struct buf line = {.max = 1 << 16};
    char path[500];
    struct reply r;
    size_t i, n;
    yyjson_val *item;

    snprintf(path, sizeof(path), ONE "/input_items%s", id, query);
    world_get(w, path, &r);
    cr_assert_eq(r.status, 200, "%s", r.body.data);
    yyjson_doc *doc = yyjson_read(r.body.data, r.body.len, 0);
    yyjson_val *root = yyjson_doc_get_root(doc), *data = yyjson_obj_get(root, "data");
    yyjson_arr_foreach(data, i, n, item) {
        bool own = yyjson_equals_str(yyjson_obj_get(item, "role"), "assistant");

        cr_expect(yyjson_is_str(yyjson_obj_get(item, "id")));
        cr_expect(yyjson_equals_str(yyjson_obj_get(item, "type"), "message"));
        cr_expect(yyjson_is_str(yyjson_obj_get(item, "status")));
        cr_expect(yyjson_equals_str(yyjson_ptr_get(item, "/content/0/type"),
                                    own ? "output_text" : "input_text"));
        cr_expect_eq(yyjson_is_arr(yyjson_ptr_get(item, "/content/0/annotations")), own);
        buf_printf(&line, "%s ", yyjson_get_str(yyjson_ptr_get(item, "/content/0/text")));
    }
    cr_expect_str_eq(line.data, want);
    cr_expect_eq(yyjson_get_bool(yyjson_obj_get(root, "has_more")), more);
    cr_expect(yyjson_equals(yyjson_obj_get(root, "first_id"),
                            yyjson_obj_get(yyjson_arr_get_first(data), "id")));
    yyjson_doc_free(doc);
    reply_deinit(&r);
}

Test(kept, input_items_are_listed) {
    struct world w;
    char id[64], fields[300], after[128];

    responses_start(&w);
    ask_id(&w, R"("input":"a")", "b", id);
    snprintf(after, sizeof(after), "?order=asc&after=msg_%s_0", id + 5);
    snprintf(fields, sizeof(fields),
             R"("previous_response_id":"%s","input":[{"role":"user","content":"c"},)"
             R"({"role":"assistant","content":"d"}])",
             id);
    ask_id(&w, fields, "e", id);
    expect_items(&w, id, "", "d c b a ", false);
    expect_items(&w, id, "?order=asc", "a b c d ", false);
    expect_items(&w, id, "?order=asc&limit=2", "a b ", true);
    expect_items(&w, id, after, "c d ", false);
    world_stop(&w);
}

/* Ids of a client may be long: a page names its last item, and the next page begins after it. */
Test(kept, a_wrong_query_of_input_items_is_refused) {
    static const struct {
        const char *query, *names;
        int status;
    } cases[] = {
        {"limit=0", R"("limit")", 400},          {"limit=101", R"("limit")", 400},
        {"limit=-1", R"("limit")", 400},         {"limit=2x", R"("limit")", 400},
        {"limit=", R"("limit")", 400},           {"order=down", R"("order")", 400},
        {"after=msg_none", "msg_none", 404},     {"after=msg_none&order=asc", "msg_none", 404},
        {"order=desc&limit=100", R"("b")", 200}, {"after=", R"("b")", 200},
    };
    struct world w;
    char id[64], path[600], fields[700], own[301];

    responses_start(&w);
    memset(own, 'i', 300);
    own[300] = 0;
    snprintf(fields, sizeof(fields),
             R"("input":[{"role":"user","id":"%s","content":"a"},)"
             R"({"role":"user","content":"b"}])",
             own);
    ask_id(&w, fields, "c", id);
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct reply r;

        snprintf(path, sizeof(path), ONE "/input_items?%s", id, cases[i].query);
        world_get(&w, path, &r);
        cr_expect_eq(r.status, cases[i].status, "%s: %s", cases[i].query, r.body.data);
        cr_expect(strstr(r.body.data, cases[i].names), "%s: %s", cases[i].query, r.body.data);
        reply_deinit(&r);
    }
    snprintf(path, sizeof(path), "?order=asc&limit=1&after=%s", own);
    expect_items(&w, id, path, "b ", false);
    world_stop(&w);
}

/* Returns the number of pool jobs for GET @path, whose answer has at least @least bytes. */
static uint64_t jobs_of(struct world *w, const char *path, size_t least) {
    struct jobs_stats before, after;
    struct reply r;

    jobs_stats(w->api->env.pool.jobs, &before);
    world_get(w, path, &r);
    jobs_stats(w->api->env.pool.jobs, &after);
    cr_expect_eq(r.status, 200, "%s", r.body.data);
    cr_expect(r.body.len >= least, "%s: %zu bytes", path, r.body.len);
    reply_deinit(&r);
    return after.n_done - before.n_done;
}

Test(kept, a_long_one_is_written_on_the_pool) {
    static const size_t sizes[] = {100, 200000};
    struct world w;

    responses_init(&w);
    w.model.max_context = 1 << 20;
    w.opts.stored_bytes = 16 << 20;
    world_start(&w);
    for (int i = 0; i < 2; i++) {
        CLEANUP(buf_deinit) struct buf fields = {.max = 1 << 20};
        char id[64], path[200];

        buf_add_str(&fields, R"("input":")");
        for (size_t n = 0; n < sizes[i]; n++)
            buf_add_char(&fields, 'a');
        buf_add_str(&fields, R"(","instructions":")");
        for (size_t n = 0; n < sizes[i]; n++)
            buf_add_char(&fields, 'b');
        buf_add_char(&fields, '"');
        ask_id(&w, fields.data, "c", id);
        snprintf(path, sizeof(path), ONE, id);
        cr_expect_eq(jobs_of(&w, path, sizes[i]), 0, "it is sent as it is kept");
        snprintf(path, sizeof(path), ONE "/input_items", id);
        cr_expect_eq(jobs_of(&w, path, sizes[i]), (uint64_t)i);
    }
    world_stop(&w);
}

/* The client leaves while the pool writes; nothing of the answer remains. */
Test(kept, a_client_that_leaves_gets_nothing) {
    CLEANUP(buf_deinit) struct buf fields = {.max = 1 << 20};
    struct world w;
    char id[64], path[200];

    responses_init(&w);
    w.model.max_context = 1 << 20;
    w.opts.stored_bytes = 16 << 20;
    world_start(&w);
    buf_add_str(&fields, R"("input":")");
    for (size_t n = 0; n < 200000; n++)
        buf_add_char(&fields, 'a');
    buf_add_char(&fields, '"');
    ask_id(&w, fields.data, "c", id);
    snprintf(path, sizeof(path), "GET " ONE "/input_items HTTP/1.1\r\nHost: x\r\n\r\n", id);
    for (int i = 0; i < 20; i++) {
        int fd = world_connect(&w);

        cr_assert_eq(write(fd, path, strlen(path)), (ssize_t)strlen(path));
        world_turns(&w, i % 4);
        close(fd);
    }
    for (uint64_t end = world_limit(); jobs_n(w.api->env.pool.jobs) > 0 && uv_hrtime() < end;)
        world_turn(&w);
    cr_expect_eq(jobs_n(w.api->env.pool.jobs), 0u);
    cr_expect_eq(status(&w, "GET", ONE "/input_items", id), 200);
    world_stop(&w);
}

Test(kept, a_response_under_way_is_seen_and_cancelled) {
    struct world w;
    struct reply r;
    CLEANUP(buf_deinit) struct buf got = {.max = 1 << 20};
    char id[64] = "", path[128];

    responses_start(&w);
    int fd = world_connect(&w);
    world_post(&w, fd, RESPONSES, R"({"input":"hi","stream":true})");
    world_turns(&w, 4);
    fake_accept(&w.port, 0);
    fake_tokens(&w.port, 0, "Oh");
    cr_assert(world_read_until(&w, fd, &got, R"("delta":"Oh")"));
    snprintf(id, sizeof(id), "%.29s", strstr(got.data, "resp_"));
    snprintf(path, sizeof(path), ONE, id);
    world_get(&w, path, &r);
    cr_expect_eq(r.status, 200);
    cr_expect(strstr(r.body.data, R"("status":"in_progress")"), "%s", r.body.data);
    reply_deinit(&r);
    snprintf(path, sizeof(path), ONE "/cancel", id);
    cr_expect_eq(request(&w, "POST", "k", path, &r), 200);
    cr_expect(strstr(r.body.data, R"("status":"cancelled")"), "%s", r.body.data);
    reply_deinit(&r);
    cr_expect(w.port.r[0].cancelled);
    cr_assert(world_read_until(&w, fd, &got, "event: response.failed"));
    snprintf(path, sizeof(path), ONE, id);
    world_get(&w, path, &r);
    cr_expect(strstr(r.body.data, R"("status":"cancelled")"), "%s", r.body.data);
    reply_deinit(&r);
    world_drop(&w, fd);
    world_stop(&w);
}

Test(kept, each_tenant_sees_its_own) {
    struct world w;
    struct reply r;
    char path[128], id[64];
    const char *body = R"({"input":"hi"})";

    snprintf(path, sizeof(path), "/tmp/weft-test-kept-%d", getpid());
    FILE *f = fopen(path, "w");
    fputs("a:k1\na:k2\nb:k3\n", f);
    fclose(f);
    responses_init(&w);
    w.opts.api_keys_file = path;
    world_start(&w);
    unlink(path);
    w.port.script = "x";
    int fd = world_connect(&w);
    world_say(&w, fd,
              "POST " RESPONSES " HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer k1\r\n"
              "Content-Length: %zu\r\n\r\n%s",
              strlen(body), body);
    world_receive(&w, fd, &r);
    world_drop(&w, fd);
    id_of(&r, id);
    snprintf(path, sizeof(path), ONE, id);
    cr_expect_eq(request(&w, "GET", "k3", path, &r), 404);
    reply_deinit(&r);
    cr_expect_eq(request(&w, "DELETE", "k3", path, &r), 404);
    reply_deinit(&r);
    cr_expect_eq(request(&w, "GET", "none", path, &r), 401);
    reply_deinit(&r);
    cr_expect_eq(request(&w, "GET", "k2", path, &r), 200);
    reply_deinit(&r);
    world_stop(&w);
}
