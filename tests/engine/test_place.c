/*
 * Tests the placement of experts between device and host: by their counts, with as few on the host
 * as leave room, and stable over loads. The model consists only of experts; the device has a given
 * number of bytes for them.
 */

#include <criterion/criterion.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/rng.h"
#include "engine/place.h"
#include "tests/support/tiny_model.h"

enum { LAYERS = 6, EXPERTS = 40, USED = 4, ALL = LAYERS * EXPERTS, ROWS = 2000 };

static uint64_t device_bytes, n_asked; /* bytes for experts and pages */
static struct tensor tensors[LAYERS];
static struct model_op ops[LAYERS];
static struct gguf *file; /* name of the counts */

static uint64_t device_part(const struct model_shape *s) {
    uint64_t n = 0;

    for (uint32_t l = 1; l < LAYERS; l++)
        n += (EXPERTS - n_host_experts(s, l)) * (tensors[l].n_bytes / EXPERTS);
    return n;
}

static int room(const struct model_shape *s, const struct engine_opts *o, uint64_t *bytes,
                struct err *err) {
    uint64_t n = device_part(s);

    n_asked++;
    *bytes = device_bytes - MIN(n, device_bytes);
    return 0;
}

static const struct be_ops device = {.name = "made up", .device = true, .room = room};

/* Layer 0 has no experts; those of other layers have different sizes. */
static struct model made(void) {
    struct model m = {.op = calloc(LAYERS, sizeof(*m.op)), .n_ops = LAYERS};

    m.shape = (struct model_shape){
        .n_layer = LAYERS, .n_expert = EXPERTS, .n_expert_used = USED, .max_context = 64};
    for (uint32_t l = 0; l < LAYERS; l++) {
        uint64_t n = 250 + 25 * (l % 3);

        tensors[l] = (struct tensor){.format = tensor_format(TENSOR_F32),
                                     .ne = {n, 1, EXPERTS, 1},
                                     .n_bytes = EXPERTS * n * sizeof(float)};
        ops[l] = (struct model_op){.kind = l ? OP_EXPERTS : OP_NORM, .layer = l};
        if (l)
            ops[l].w[0] = &tensors[l];
        m.op[l] = ops[l];
    }
    return m;
}

static const struct fit_sizes sizes = {.page = 500};

static struct engine_opts opts(uint32_t host_experts, bool keeps) {
    return (struct engine_opts){.host_experts = host_experts,
                                .keeps_place = keeps,
                                .n_pages = 2,
                                .page_tokens = 16,
                                .max_rows = 4,
                                .max_seqs = 1,
                                .max_wants = 1,
                                .memory = 1 << 30};
}

static int new_file(void) {
    int fd = memfd_create("experts", MFD_CLOEXEC);
    struct err err;
    char path[64];

    if (!file) {
        tiny_model_temp(&(struct tiny_model){.n_layer = 1, .n_vocab = 64}, path);
        cr_assert(gguf_open(&file, path, &err) == 0);
        unlink(path);
    }
    cr_assert(fd > 0);
    return fd;
}

/* Fills counts of @n_rows rows from @seed; if @skewed, experts with higher numbers are picked less
 * often. */
static void fill(int fd, bool skewed, uint32_t n_rows, uint64_t seed) {
    struct model m = made();
    uint64_t now[ALL] = {0}, sum = 0;
    struct picks k;

    for (uint32_t l = 1; l < LAYERS; l++)
        for (uint32_t i = 0; i < n_rows * USED; i++) {
            const struct rng_block b = rng_philox(seed, l, i, 0, 0);
            uint32_t e = b.v[0] % EXPERTS, other = b.v[1] % EXPERTS;

            e = skewed ? MIN(e, other) * (e % 4 + 1) / 4 : e;
            now[l * EXPERTS + (e + l * 7) % EXPERTS]++;
            sum++;
        }
    picks_open(&k, fd, file, &m.shape);
    cr_assert(k.head && sum > 0);
    picks_count(&k, now);
    picks_close(&k);
    free(m.op);
}

/* Places experts as opening a model does. The caller frees the result. */
static struct model placed(int fd, const struct engine_opts *o, char note[200]) {
    struct model m = made();
    struct picks k = {0};
    struct err err;

    picks_open(&k, fd, file, &m.shape);
    note[0] = 0;
    cr_assert(place(&m, &device, o, &sizes, &k, note, 200, &err) == 0);
    picks_close(&k);
    return m;
}

static const uint64_t *counts(int fd, struct picks *k) {
    struct model m = made();

    picks_open(k, fd, file, &m.shape);
    free(m.op);
    return picks_counts(k);
}

Test(place, an_order_is_by_picks_then_by_number) {
    const bool has[3] = {true, false, true};
    const uint64_t picks[12] = {5, 1, 5, 0, 0, 0, 0, 0, 1, 9, 5, 0};
    const uint32_t right[8] = {3, 11, 1, 8, 0, 2, 10, 9};
    const struct place_case c = {3, 4, 1, picks, has};
    uint32_t order[12];

    cr_assert_eq(place_order(&c, order), 8);
    cr_expect_arr_eq(order, right, sizeof(right));
}

/* Takes each layer's rarest experts first, one from each layer in turn. */
Test(place, an_even_order_takes_of_all_layers_alike) {
    const bool has[3] = {true, false, true};
    const uint64_t picks[12] = {5, 1, 5, 0, 0, 0, 0, 0, 1, 9, 5, 0};
    const uint32_t right[8] = {3, 11, 1, 8, 0, 10, 2, 9};
    const struct place_case c = {3, 4, 1, picks, has};
    uint32_t order[12];

    cr_assert_eq(place_evenly(&c, order, place_order(&c, order)), 0);
    cr_expect_arr_eq(order, right, sizeof(right));
}

Test(place, costs_are_picks_and_calls) {
    const bool has[2] = {true, true};
    const uint64_t picks[8] = {1, 2, 3, 4, 4, 3, 2, 1};
    const struct place_case c = {2, 4, 2, picks, has};
    const uint32_t one[2] = {1 | 2, 0}, both[2] = {1, 8};

    cr_expect(place_cost(&c, NULL) == 0 && place_share(&c, NULL) == 0);
    cr_expect_float_eq(place_share(&c, one), 0.15, 1e-9);
    cr_expect_float_eq(place_cost(&c, one), 0.15 * 4 + 1, 1e-9);
    cr_expect_float_eq(place_cost(&c, both), 0.1 * 4 + 2, 1e-9);
}

/* Moves one expert after another to the host until the rest fits: the rarest remaining one, or the
 * first. Returns the cost. */
static double naive(const uint64_t *n, bool rarest, uint32_t bits[LAYERS * 2]) {
    const bool has[LAYERS] = {false, true, true, true, true, true};
    const struct place_case c = {LAYERS, EXPERTS, USED, n, has};
    struct model_shape s = {.n_layer = LAYERS, .n_expert = EXPERTS, .host_experts = bits};

    memset(bits, 0, LAYERS * 2 * sizeof(*bits));
    while (device_part(&s) + 1000 > device_bytes) {
        uint32_t next = 0;

        for (uint32_t i = EXPERTS; i < ALL; i++)
            if (!expert_is_hosts(&s, i / EXPERTS, i % EXPERTS) &&
                (!next || (rarest && n[i] < n[next])))
                next = i;
        bits[next / EXPERTS * 2 + next % EXPERTS / 32] |= 1u << next % EXPERTS % 32;
    }
    return place_cost(&c, bits);
}

/* Whatever the room is, the placement fits, with no more on the host than necessary: the rarest
 * experts, or, if few are moved, those of the first layers. */
Test(place, the_rarest_are_the_hosts_and_no_more_than_must) {
    const struct engine_opts o = opts(ENGINE_HOST_AUTO, false);
    uint32_t rare[LAYERS * 2], first[LAYERS * 2], n_rare = 0, n_first = 0;
    const uint32_t none[LAYERS * 2] = {0};
    int fd = new_file();
    char note[200];
    struct picks k;

    fill(fd, true, ROWS, 1);
    const uint64_t *n = counts(fd, &k);
    for (device_bytes = 20000; device_bytes < 250000; device_bytes += 7717) {
        bool is_rare = naive(n, true, rare) < naive(n, false, first);
        struct model m = placed(fd, &o, note);

        cr_expect(device_part(&m.shape) + 1000 <= device_bytes, "%lu", device_bytes);
        cr_expect(memcmp(m.host_experts, is_rare ? rare : first, sizeof(rare)) == 0, "%lu: %s",
                  device_bytes, is_rare ? "rarest" : "first");
        n_rare += is_rare;
        n_first += !is_rare && m.shape.host_experts;
        model_deinit(&m);
        picks_place(&k, none); /* nothing stays on the device */
    }
    cr_expect(n_rare > 5 && n_first > 2, "%u, %u", n_rare, n_first);
    picks_close(&k);
    close(fd);
}

static uint32_t n_layers_of(const struct model *m) {
    uint32_t n = 0;

    for (uint32_t l = 0; l < LAYERS; l++)
        n += n_host_experts(&m->shape, l) > 0;
    return n;
}

/* Without enough rows, or if experts are picked equally often, the host gets the experts of a few
 * layers. */
Test(place, without_a_skew_the_first_layers_are_the_hosts) {
    const struct engine_opts o = opts(ENGINE_HOST_AUTO, false);
    char note[200];

    device_bytes = 120000;
    for (int i = 0; i < 3; i++) {
        int fd = i ? new_file() : 0;

        if (fd)
            fill(fd, i == 1, i == 1 ? 900 : ROWS, 3);
        struct model m = placed(fd, &o, note);
        cr_expect(n_layers_of(&m) == 3, "%d: %u layers", i, n_layers_of(&m));
        cr_expect(n_host_experts(&m.shape, 1) == EXPERTS && n_host_experts(&m.shape, 4) == 0);
        uint64_t stored = 0; /* bytes of the file's weights in whole panels of rows */
        for (uint32_t l = 1; l < LAYERS; l++)
            stored += n_host_experts(&m.shape, l) * backend_cpu.stored_bytes(&tensors[l]) / EXPERTS;
        cr_expect(m.shape.host_bytes == stored && stored > 3 * tensors[LAYERS - 1].n_bytes);
        cr_expect(place_report(&m, note, sizeof(note)).host_bytes == stored, "%s", note);
        model_deinit(&m);
        if (fd)
            close(fd);
    }
}

/* If the device fetches experts, all layers have equally many slots, first for those that were
 * picked most; the host has all experts, and results do not depend on the placement. */
Test(place, slots_of_layers_are_as_many) {
    struct engine_opts o = opts(ENGINE_HOST_AUTO, false);
    uint8_t sources[20] = {0};
    const uint8_t none[20] = {0};
    int fd = new_file();
    char note[200];
    struct picks k;

    o.fetches_experts = true;
    fill(fd, true, ROWS, 1);
    const uint64_t *n = counts(fd, &k);
    for (device_bytes = 20000; device_bytes < 250000; device_bytes += 7717) {
        struct model m = placed(fd, &o, note);
        uint32_t least = EXPERTS, most = 0;
        uint64_t bytes = 0;

        cr_expect(device_part(&m.shape) + 1000 <= device_bytes, "%lu", device_bytes);
        cr_expect(m.shape.fetches == (m.shape.host_experts != NULL) && !has_host_part(&m.shape));
        for (uint32_t l = 1; l < LAYERS; l++) {
            least = MIN(least, n_host_experts(&m.shape, l));
            most = MAX(most, n_host_experts(&m.shape, l));
            bytes += n_host_experts(&m.shape, l) ? tensors[l].n_bytes : 0;
            for (uint32_t e = 0; e < EXPERTS; e++)
                for (uint32_t f = 0; f < EXPERTS && !expert_is_hosts(&m.shape, l, e); f++)
                    cr_expect(!expert_is_hosts(&m.shape, l, f) ||
                              n[l * EXPERTS + f] <= n[l * EXPERTS + e]);
        }
        cr_expect(most - least <= 1, "%lu: %u to %u", device_bytes, least, most);
        cr_expect(m.shape.host_bytes == bytes && place_report(&m, note, 200).host_bytes == bytes);
        cr_expect(most == 0 || strstr(note, "the device fetches"), "%s", note);
        place_mark(&m, sources);
        cr_expect_arr_eq(sources, none, sizeof(none));
        model_deinit(&m);
    }
    device_bytes = 1 << 20;
    struct model whole = placed(fd, &o, note), divided = made();
    struct err err = {0};
    cr_expect(!whole.shape.fetches && !whole.shape.host_experts);
    o.devices = "0,1";
    cr_expect(place(&divided, &device, &o, &sizes, &k, note, 200, &err) == -EINVAL);
    cr_expect(strstr(err.message, "fetch-experts") != NULL, "%s", err.message);
    model_deinit(&whole);
    model_deinit(&divided);
    picks_close(&k);
    close(fd);
}

/* A file may name experts although no layer has any: all are dense, or the blocks with experts are
 * not served. */
Test(place, without_experts_there_is_nothing_to_place) {
    const struct engine_opts o = opts(ENGINE_HOST_AUTO, false);
    struct model m = made();
    struct picks k = {0};
    char note[200] = "";
    struct err err;

    device_bytes = 120000;
    for (uint32_t i = 0; i < m.n_ops; i++)
        m.op[i].kind = OP_NORM;
    cr_assert(place(&m, &device, &o, &sizes, &k, note, sizeof(note), &err) == 0);
    cr_expect(m.shape.host_experts == NULL && !*note);
    model_deinit(&m);
}

/* The next load of the model moves experts if that gains enough, and says so; a worker that
 * replaces another one moves none. */
Test(place, only_a_load_moves_experts) {
    struct engine_opts o = opts(ENGINE_HOST_AUTO, false), keeps = opts(ENGINE_HOST_AUTO, true);
    struct engine_opts number = opts(2, false), kept = opts(0, true);
    int fd = new_file();
    char note[200];

    device_bytes = 120000;
    struct model first = placed(fd, &o, note);
    cr_expect(n_layers_of(&first) == 3 && !*note, "%s", note);
    fill(fd, true, ROWS, 5);
    struct model second = placed(fd, &keeps, note);
    cr_expect_arr_eq(first.host_experts, second.host_experts, LAYERS * 8);
    struct model third = placed(fd, &o, note);
    cr_expect(n_layers_of(&third) == LAYERS - 1);
    cr_expect(strstr(note, "moved since") != NULL, "%s", note);
    fill(fd, true, ROWS / 10, 6); /* of the same kind, so nothing is gained */
    struct model fourth = placed(fd, &o, note);
    cr_expect_arr_eq(third.host_experts, fourth.host_experts, LAYERS * 8);
    device_bytes = 100000; /* too little room */
    struct model fifth = placed(fd, &o, note);
    cr_expect(device_part(&fifth.shape) + 1000 <= device_bytes);
    struct model sixth = placed(fd, &number, note);
    cr_expect(n_host_experts(&sixth.shape, 1) == EXPERTS && n_layers_of(&sixth) == 1);
    struct model seventh = placed(fd, &kept, note);
    cr_expect_arr_eq(sixth.host_experts, seventh.host_experts, LAYERS * 8);
    number.host_experts = 0;
    struct model eighth = placed(fd, &number, note), ninth = placed(fd, &keeps, note);
    cr_expect(eighth.shape.host_experts == NULL && ninth.shape.host_experts == NULL);
    struct model *all[] = {&first, &second,  &third,  &fourth, &fifth,
                           &sixth, &seventh, &eighth, &ninth};
    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        model_deinit(all[i]);
    close(fd);
}

/* Counts rows that pick the first, or the last, half of all experts: in steps, by processes of
 * @each rows. */
static void work(int fd, bool last, uint64_t n_rows, uint64_t each) {
    struct model m = made();
    uint64_t now[ALL];
    struct picks k;

    for (uint64_t i = 0; i < n_rows; i += each) {
        memset(now, 0, sizeof(now));
        picks_open(&k, fd, file, &m.shape);
        for (uint64_t row = 0; row < each; row += PICKS_HALF_LIFE / 64) {
            for (uint32_t e = EXPERTS; e < ALL; e++)
                if ((e % EXPERTS >= EXPERTS / 2) == last)
                    now[e] += PICKS_HALF_LIFE / 64 * USED / (EXPERTS / 2);
            picks_count(&k, now);
        }
        picks_close(&k);
    }
    free(m.op);
}

/* Returns the first half's part of the kept counts. */
static double part_of_first(int fd) {
    struct picks k;
    const uint64_t *n = counts(fd, &k);
    uint64_t first = 0, all = 0;

    for (uint32_t e = EXPERTS; e < ALL; e++) {
        first += e % EXPERTS < EXPERTS / 2 ? n[e] : 0;
        all += n[e];
    }
    picks_close(&k);
    return (double)first / (double)all;
}

/* A change of work moves the placement after the half-life in rows, however long the earlier work
 * lasted, and whether workers end meanwhile or not. */
Test(place, counts_age) {
    const uint64_t h = PICKS_HALF_LIFE;

    for (uint32_t i = 0; i < 2; i++) {
        const struct engine_opts o = opts(ENGINE_HOST_AUTO, false);
        uint64_t each = i ? h / 4 : 2 * h;
        int fd = new_file();
        char note[200];

        device_bytes = 5600 * EXPERTS / 2 + 1000; /* for half of all experts */
        work(fd, false, 40 * h, each);
        struct model before = placed(fd, &o, note);
        work(fd, true, 2 * h, each);
        cr_expect_float_eq(part_of_first(fd), 0.25, 0.05, "%f", part_of_first(fd));
        struct model after = placed(fd, &o, note);
        work(fd, false, h / 4, h / 4);
        cr_expect_float_eq(part_of_first(fd), 0.25 * 0.84 + 0.16, 0.07, "%f", part_of_first(fd));
        for (uint32_t e = EXPERTS; e < ALL; e++) {
            bool last = e % EXPERTS >= EXPERTS / 2;

            cr_expect_eq(expert_is_hosts(&before.shape, e / EXPERTS, e % EXPERTS), last, "%u", e);
            cr_expect_eq(expert_is_hosts(&after.shape, e / EXPERTS, e % EXPERTS), !last, "%u", e);
        }
        model_deinit(&before);
        model_deinit(&after);
        close(fd);
    }
}

/* Counts of another model, or a truncated file, count as none. */
Test(place, a_file_of_another_model_is_emptied) {
    int fd = new_file();
    struct model_shape s = {.n_layer = LAYERS, .n_expert = EXPERTS - 1};
    struct picks k;

    fill(fd, true, ROWS, 1);
    picks_open(&k, fd, file, &s);
    cr_assert(k.head != NULL);
    for (uint32_t i = 0; i < LAYERS * (EXPERTS - 1); i++)
        cr_expect(picks_counts(&k)[i] == 0);
    cr_expect(picks_placed(&k) == NULL);
    picks_close(&k);
    cr_assert(ftruncate(fd, 100) == 0);
    picks_open(&k, fd, file, &s);
    cr_expect(k.head && picks_placed(&k) == NULL && picks_counts(&k)[7] == 0);
    picks_close(&k);
    close(fd);
    picks_open(&k, 0, file, &s);
    cr_expect(k.head == NULL && !picks_counts(&k) && !picks_placed(&k));
    picks_place(&k, NULL);
    picks_count(&k, NULL);
    picks_close(&k);
}

/* Bits after the last expert are ignored. */
Test(place, a_placement_names_experts_that_there_are) {
    uint32_t bits[LAYERS * 2];
    const struct engine_opts o = opts(0, true);
    int fd = new_file();
    struct model m = made();
    struct picks k;
    char note[200];

    memset(bits, 0xFF, sizeof(bits));
    picks_open(&k, fd, file, &m.shape);
    picks_place(&k, bits);
    picks_close(&k);
    free(m.op);
    m = placed(fd, &o, note);
    for (uint32_t l = 0; l < LAYERS; l++)
        cr_expect(n_host_experts(&m.shape, l) == EXPERTS);
    model_deinit(&m);
    close(fd);
}

/* A model without experts: the FFN of each layer has one tensor each for gate, up and down, and
 * takes FFN bytes on the device. */
enum { DENSE = 20, FFN = 3 * 32 * 32 * 4 };

static int dense_room(const struct model_shape *s, const struct engine_opts *o, uint64_t *bytes,
                      struct err *err) {
    uint64_t n = (uint64_t)(DENSE - s->n_host_ffn) * FFN;

    *bytes = device_bytes - MIN(n, device_bytes);
    return 0;
}

static struct model made_dense(void) {
    static struct tensor w[3];
    struct model m = {.op = calloc(2 * DENSE, sizeof(*m.op)), .n_ops = 2 * DENSE, .arch = "made"};

    m.shape = (struct model_shape){.n_layer = DENSE, .max_context = 64};
    for (int i = 0; i < 3; i++)
        w[i] = (struct tensor){.format = tensor_format(TENSOR_F32),
                               .ne = {32, 32, 1, 1},
                               .n_bytes = 32 * 32 * sizeof(float)};
    for (uint32_t l = 0; l < DENSE; l++) {
        m.op[2 * l] =
            (struct model_op){.kind = OP_GATE_UP, .layer = l, .norm = &w[0], .w = {&w[0], &w[1]}};
        m.op[2 * l + 1] = (struct model_op){.kind = OP_PROJ, .layer = l, .in = ACT_H, .w = {&w[2]}};
    }
    return m;
}

/* Places the FFNs of @m and frees the model. Returns how many are the host's, or -errno with
 * @err. */
static int host_ffns(struct model *m, const struct engine_opts *o, int fd, char note[200],
                     struct err *err) {
    static const struct be_ops dense = {.name = "made up", .device = true, .room = dense_room};
    struct picks k = {0};

    *err = (struct err){0};
    *note = 0;
    picks_open(&k, fd, file, &m->shape);
    int r = place(m, &dense, o, &sizes, &k, note, 200, err);
    picks_close(&k);
    if (r == 0) {
        struct placement p = place_report(m, note, 200);

        r = (int)m->shape.n_host_ffn;
        cr_expect_eq(p.n_host_ffn, m->shape.n_host_ffn);
        cr_expect_eq(p.ffn_bytes, (uint64_t)r * FFN, "%lu", p.ffn_bytes);
        cr_expect_eq(m->shape.host_bytes, p.ffn_bytes);
        cr_expect_eq(p.n_host + p.n_experts + p.n_layers, 0);
    }
    model_deinit(m);
    return r;
}

static int ffns_of(const struct engine_opts *o, int fd) {
    struct model m = made_dense();
    struct err err;
    char note[200];
    int r = host_ffns(&m, o, fd, note, &err);

    cr_expect(r >= 0, "%s", err.message);
    return r;
}

Test(place, as_few_ffns_are_the_hosts_as_leave_room) {
    struct engine_opts o = opts(0, false);

    o.device_layers = ENGINE_HOST_AUTO;
    for (int n = 0; n <= DENSE; n++) { /* the two pages take 1000 bytes */
        device_bytes = (uint64_t)(DENSE - n) * FFN + 1000;
        cr_expect_eq(ffns_of(&o, 0), n);
        device_bytes--;
        cr_expect_eq(ffns_of(&o, 0), MIN(n + 1, DENSE));
    }
    o.device_layers = 0;
    cr_expect_eq(ffns_of(&o, 0), 0, "none unless it is asked for");
    for (uint32_t n = 1; n < DENSE + 2; n++) {
        o.device_layers = n;
        cr_expect_eq(ffns_of(&o, 0), n < DENSE ? (int)(DENSE - n) : 0);
    }
}

/* A load moves FFNs if that gains more than a tenth of the layers, here two, or if it is
 * necessary. */
Test(place, a_worker_in_anothers_place_moves_no_ffns) {
    struct engine_opts o = opts(0, false), keeps = opts(0, true);
    int fd = new_file();

    o.device_layers = keeps.device_layers = ENGINE_HOST_AUTO;
    device_bytes = (DENSE - 2) * FFN + 1000;
    cr_expect_eq(ffns_of(&keeps, fd), 2, "nothing was placed yet");
    device_bytes -= 3 * FFN;
    cr_expect_eq(ffns_of(&keeps, fd), 2);
    cr_expect_eq(ffns_of(&o, fd), 5);
    device_bytes += 2 * FFN;
    cr_expect_eq(ffns_of(&o, fd), 5);
    device_bytes += FFN;
    cr_expect_eq(ffns_of(&keeps, fd), 5);
    cr_expect_eq(ffns_of(&o, fd), 2);
    o.device_layers = 2;
    cr_expect_eq(ffns_of(&o, fd), DENSE - 2);
    cr_expect_eq(ffns_of(&keeps, fd), DENSE - 2);
    close(fd);
}

Test(place, ffns_that_the_host_cannot_compute_or_keep_are_refused) {
    struct engine_opts o = opts(0, false), few = opts(0, false);
    struct model m = made_dense();
    char note[200];
    struct err err;

    o.device_layers = few.device_layers = DENSE - 2;
    device_bytes = 0;
    cr_expect_eq(host_ffns(&m, &o, 0, note, &err), 2);
    cr_expect_str_eq(note, "the FFNs of the last 2 of 20 layers are in host memory (24.0 KiB); the "
                           "CPU computes them");
    few.memory = 2 * FFN;
    cr_expect_eq(ffns_of(&few, 0), 2);
    m = made_dense();
    few.memory--;
    cr_expect_eq(host_ffns(&m, &few, 0, note, &err), -ENOMEM);
    cr_expect(strstr(err.message, "the FFNs of 2 of 20 layers are not on the device and take"),
              "%s", err.message);
    m = made_dense();
    m.shape.cut[1] = 3;
    cr_expect_lt(host_ffns(&m, &o, 0, note, &err), 0);
    cr_expect_str_eq(err.param, "device-layers");
    o.device_layers = ENGINE_HOST_AUTO;
    m = made_dense();
    m.shape.cut[1] = 3;
    cr_expect_eq(host_ffns(&m, &o, 0, note, &err), 0);
    for (int i = 0; i < 6; i++) { /* each is an FFN of another form */
        for (int fixed = 0; fixed < 2; fixed++) {
            m = made_dense();
            struct model_op *op = &m.op[i == 0 ? 2 * DENSE - 2 : 4];

            if (i == 0)
                m.n_ops -= 2; /* the last layer has none */
            if (i == 1)
                op[0].norm = NULL;
            if (i == 2)
                op[0].w[1] = op[0].w[0];
            if (i == 3)
                op[1].kind = OP_NORM;
            if (i == 4)
                op[1].in = ACT_X;
            if (i == 5)
                op[1].branch = true;
            o.device_layers = fixed ? DENSE - 2 : ENGINE_HOST_AUTO;
            cr_expect_eq(host_ffns(&m, &o, 0, note, &err) < 0, fixed, "%d", i);
            cr_expect(!fixed || strstr(err.message, "the FFNs of made models are not computed"),
                      "%s", err.message);
        }
    }
}
