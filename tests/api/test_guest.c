/* Requests of another front: in the turns of their tenant, across deaths of the worker, and the
 * events that they get. */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "stream.h"

/* Events of one request. */
struct told {
    struct buf text;
    uint32_t n, kind, finish, status;
    /* output tokens that the request had */
    uint32_t from;
    char code[40];
    float logprob;
    /* log probabilities of the prompt, of all events together, and their sum */
    uint32_t n_prompt_lp, n_prompt_top;
    float prompt_lp;
    /* number of requests for its pictures, and the last picture */
    uint32_t n_asked, asked;
};

static void on_told(void *ctx, struct api_guest *g, const struct event *e) {
    struct told *t = ctx;

    cr_expect_eq(api_guest_id(g), 77);
    cr_expect_eq(e->id, 77);
    cr_assert_eq(e->from, t->from + t->text.len, "each token once");
    for (uint32_t i = 0; i < e->n_tokens; i++) {
        buf_add_char(&t->text, (char)e->tokens[i]);
        t->logprob = e->logprobs ? e->logprobs[i] : 1;
    }
    for (uint32_t i = 0; i < e->n_prompt_lp; i++)
        t->prompt_lp += e->prompt_lp[i];
    t->n_prompt_lp += e->n_prompt_lp;
    t->n_prompt_top = MAX(t->n_prompt_top, e->n_prompt_top);
    t->n++;
    t->kind = e->kind;
    t->finish = e->finish;
    t->status = e->status;
    snprintf(t->code, sizeof(t->code), "%.*s", (int)e->code.len, e->code.len ? e->code.data : "");
}

static void on_asked(void *ctx, struct api_guest *g, uint32_t index) {
    struct told *t = ctx;

    cr_expect_eq(api_guest_id(g), 77);
    t->n_asked++;
    t->asked = index;
}

/* Makes a request for "hi" with two tokens of output, as another front sends it. */
static struct submit request(void) {
    static const int32_t tokens[] = {'h', 'i', 'a', 'b'};
    struct submit m = {.id = 77,
                       .seed = 3,
                       .tenant = 9,
                       .n_prompt = 2,
                       .n_tokens = 4,
                       .tokens = tokens,
                       .max_new = 20,
                       .n_faults = 1,
                       .flags = SUBMIT_LOGPROBS,
                       .n_stops = 1,
                       .stops = {{"stop", 4}},
                       .tenant_name = {"alice", 5}};

    params_init(&m.sampling);
    return m;
}

struct scene {
    struct world w;
    struct submit m;
    struct api_guest *g;
    struct told t;
};

static void setup(struct scene *s, uint32_t max_running) {
    *s = (struct scene){.m = request()};
    world_init(&s->w);
    s->w.opts.max_running = max_running;
    world_start(&s->w);
}

/* @cut: number of missing bytes. */
static int add(struct world *w, const struct submit *m, uint32_t cut, struct told *t,
               struct api_guest **out) {
    struct buf b = {.max = 65536};

    *t = (struct told){.text = {.max = 4096}, .from = m->n_tokens - m->n_prompt};
    cr_assert_eq(msg_submit_pack(&b, m), 0);
    b.len -= cut;
    int r = api_guest_new(out, api_first_model(w->api), &b, on_told, on_asked, t);
    buf_deinit(&b);
    return r;
}

/* The file of a picture stays at the other front, which is asked for the pixels and sends them in
 * parts. */
Test(guest, pictures_come_from_the_other_front) {
    static const struct submit_picture pictures[] = {{.at = 0,
                                                      .n_rows = 1,
                                                      .n_columns = 1,
                                                      .n_lines = 1,
                                                      .n_positions = 1,
                                                      .width = 2,
                                                      .height = 2}};
    static const char pixels[] = "abcdefghijkl";
    struct msg_picture part = {.id = 77, .total = 12, .rgb = {pixels, 5}};
    struct msg_need_picture need = {0};
    struct scene s;

    setup(&s, 8);
    s.m.n_pictures = 1;
    s.m.pictures = pictures;
    cr_assert_eq(add(&s.w, &s.m, 0, &s.t, &s.g), 0);
    need.id = s.w.port.r[0].id;
    api_on_need_picture(s.w.port.model, &need);
    api_on_need_picture(s.w.port.model, &need);
    cr_expect(s.t.n_asked == 1 && s.t.asked == 0);
    cr_expect(api_guest_picture(s.g, &part));
    cr_expect_not(api_guest_picture(s.g, &part), "it came before");
    part.offset = 5;
    part.rgb = (struct str){pixels + 5, 7};
    cr_expect_eq(s.w.port.n_pictures, 0);
    cr_expect(api_guest_picture(s.g, &part));
    cr_assert_eq(s.w.port.n_pictures, 1);
    cr_expect_eq(memcmp(s.w.port.pixels, pixels, 12), 0);
    api_on_need_picture(s.w.port.model, &need);
    part = (struct msg_picture){.id = 77, .status = 503, .why = {"gone", 4}, .code = {"c", 1}};
    cr_expect(api_guest_picture(s.g, &part));
    cr_expect_eq(s.w.port.n_picture_errors, 1);
    cr_expect_str_eq(s.w.port.picture_error, "503 c gone");
    api_on_need_picture(s.w.port.model, &need);
    api_guest_free(s.g);
    buf_deinit(&s.t.text);
    world_stop(&s.w);
}

static uint32_t one_fault(struct api_port *p, uint64_t id) {
    return 1;
}

static struct tenant_stats of_alice(struct world *w) {
    struct api_tenant_info rows[4];
    uint32_t n = api_tenants(w->api, rows, 4);

    for (uint32_t i = 0; i < n; i++)
        if (strcmp(rows[i].name, "alice") == 0)
            return rows[i].stats;
    return (struct tenant_stats){0};
}

Test(guest, tells_each_token_once_through_a_death_of_the_worker) {
    struct scene s;

    setup(&s, 8);
    cr_assert_eq(add(&s.w, &s.m, 0, &s.t, &s.g), 0);
    cr_assert_eq(s.w.port.n, 1);
    cr_expect_neq(s.w.port.r[0].id, 77, "its id is one of this front's");
    cr_expect_neq(s.w.port.r[0].m.tenant, 9, "so is its tenant's number");
    cr_expect_eq(s.w.port.r[0].m.n_tokens, 4);
    cr_expect_eq(s.w.port.r[0].m.n_faults, 1);
    cr_expect_str_eq(s.w.port.r[0].stops[0], "stop");
    cr_expect_eq(of_alice(&s.w).n_running, 1);
    fake_accept(&s.w.port, 0);
    fake_tokens_from(&s.w.port, 0, 2, "cd");
    api_worker_down(api_first_model(s.w.api));
    api_worker_up(api_first_model(s.w.api), one_fault);
    cr_assert_eq(s.w.port.r[0].n_submits, 2);
    cr_expect_eq(s.w.port.r[0].m.n_tokens, 6);
    cr_expect_eq(s.w.port.r[0].m.n_faults, 2, "deaths at the other front count");
    fake_accept(&s.w.port, 0);
    fake_tokens_from(&s.w.port, 0, 3, "de"); /* overlaps the tokens sent before */
    fake_finish(&s.w.port, 0, FINISH_STOP);
    cr_expect(s.t.text.len == 3 && memcmp(s.t.text.data, "cde", 3) == 0);
    cr_expect_eq(s.t.kind, EVENT_FINISH);
    cr_expect_eq(s.t.finish, FINISH_STOP);
    cr_expect_eq(s.t.logprob, -0.5f);
    cr_expect_eq(of_alice(&s.w).n_running, 0);
    buf_deinit(&s.t.text);
    world_stop(&s.w);
}

Test(guest, waits_for_its_place_and_is_cancelled_silently) {
    struct api_guest *g[3];
    struct told t[3];
    struct scene s;

    setup(&s, 1);
    for (int i = 0; i < 3; i++)
        cr_assert_eq(add(&s.w, &s.m, 0, &t[i], &g[i]), 0);
    cr_expect_eq(s.w.port.n, 1);
    api_guest_free(g[1]);
    cr_expect_eq(s.w.port.n_cancels, 0, "the worker did not have it");
    api_guest_free(g[0]);
    cr_expect_eq(s.w.port.n_cancels, 1);
    cr_assert_eq(s.w.port.n, 2, "the place is the next one's");
    fake_reject(&s.w.port, 1, 400, "no");
    cr_expect_eq(t[2].kind, EVENT_REJECTED);
    cr_expect_eq(t[2].status, 400);
    cr_expect_eq(t[0].n + t[1].n, 0);
    cr_expect_eq(of_alice(&s.w).n_running + of_alice(&s.w).n_queued, 0);
    buf_deinit(&t[2].text);
    world_stop(&s.w);
}

Test(guest, what_makes_no_sense_is_refused) {
    static const int32_t foreign[] = {'h', 'i', 'a', 1 << 20};
    struct submit other = request(), nameless = request();
    struct scene s;

    setup(&s, 8);
    other.tokens = foreign;
    nameless.tenant_name.len = 0;
    cr_expect_eq(add(&s.w, &s.m, 8, &s.t, &s.g), -EPROTO);
    cr_expect_eq(add(&s.w, &other, 0, &s.t, &s.g), -EPROTO);
    cr_expect_eq(add(&s.w, &nameless, 0, &s.t, &s.g), -EPROTO);
    cr_expect_eq(s.w.port.n, 0);
    cr_expect_eq(of_alice(&s.w).n_running, 0);
    world_stop(&s.w);
}

Test(guest, ends_with_503_where_the_model_cannot_be_loaded) {
    struct scene s;

    setup(&s, 8);
    cr_assert_eq(add(&s.w, &s.m, 0, &s.t, &s.g), 0);
    api_worker_down(api_first_model(s.w.api));
    api_worker_failed(api_first_model(s.w.api), "it is gone", 1000);
    cr_expect_eq(s.t.status, 503);
    cr_expect_str_eq(s.t.code, "model_unavailable");
    cr_expect_eq(s.w.port.n_cancels, 0);
    world_stop(&s.w);
}

/* The values of the prompt are told once, with the first tokens. */
Test(guest, is_told_the_values_of_its_prompt) {
    static const int32_t tokens[] = {'h', 'i', ' ', 'y', 'o', 'u'};
    struct scene s;

    setup(&s, 8);
    s.m.tokens = tokens;
    s.m.n_prompt = 4;
    s.m.n_tokens = 4;
    s.m.n_prompt_top = 2;
    s.m.flags |= SUBMIT_PROMPT_LOGPROBS;
    cr_assert_eq(add(&s.w, &s.m, 0, &s.t, &s.g), 0);
    cr_assert_eq(s.w.port.n, 1);
    fake_accept(&s.w.port, 0);
    fake_tokens(&s.w.port, 0, "c");
    cr_expect_eq(s.t.n_prompt_lp, 3, "each token but the first has one");
    cr_expect_eq(s.t.n_prompt_top, 2);
    cr_expect_eq(s.t.prompt_lp, -1.5f, "%f", s.t.prompt_lp);
    fake_tokens(&s.w.port, 0, "d");
    cr_expect_eq(s.t.n_prompt_lp, 3);
    fake_finish(&s.w.port, 0, FINISH_LENGTH);
    cr_expect(s.t.text.len == 2 && memcmp(s.t.text.data, "cd", 2) == 0);
    cr_expect_eq(s.t.finish, FINISH_LENGTH);
    buf_deinit(&s.t.text);
    world_stop(&s.w);
}
