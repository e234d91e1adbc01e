/*
 * Tests encoders: the reference gives the values of another implementation, the CPU backend is
 * close to it, and a vector has the same bits alone and in company, with any number of threads and
 * instruction set.
 */

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/rng.h"
#include "engine/engine.h"
#include "tests/support/few.h"
#include "tests/support/tiny_model.h"

enum { N_EMBD = 192, N_LONG = FEWER(300, 100), MAX_ROWS = 512, N_PAGES = 64 };

struct run {
    struct gguf *file;
    struct engine *engine;
    uint64_t step;
};

static void open_run(struct run *r, const char *arch, const char *backend, const char *isa,
                     uint32_t n_threads) {
    struct err err = {0};
    char path[64];
    struct tiny_model t = {
        .arch = arch, .n_embd = N_EMBD, .n_head = 6, .n_ff = 128, .n_vocab = 300, .seed = 3};

    tiny_model_temp(&t, path);
    cr_assert_eq(gguf_open(&r->file, path, &err), 0);
    unlink(path);
    struct engine_opts o = {
        .file = r->file,
        .backend = backend,
        .isa = isa,
        .n_threads = n_threads,
        .n_pages = N_PAGES,
        .page_tokens = 16,
        .max_rows = MAX_ROWS,
        .max_seqs = 4,
        .max_wants = MAX_ROWS,
    };
    cr_assert_eq(engine_new(&r->engine, &o, &err), 0, "%s", err.message);
    cr_assert(engine_info(r->engine)->encoder);
    r->step = 0;
}

static void close_run(struct run *r) {
    engine_free(r->engine);
    gguf_free(r->file);
}

/* One step with the sequences @token[i] of @n[i] tokens; *v[i] gets the vectors of all their
 * rows. */
static void compute(struct run *r, uint32_t n_seqs, const int32_t *const *token, const uint32_t *n,
                    float (*const *v)[N_EMBD]) {
    static struct engine_want want[MAX_ROWS];
    static int32_t tokens[MAX_ROWS];
    static uint32_t pages[N_PAGES];
    uint32_t start[5] = {0};
    struct engine_seq seq[4];
    struct engine_param param[4];
    struct engine_batch b = {.step = ++r->step, .n_seqs = n_seqs, .n_params = n_seqs};
    struct engine_result res;

    for (uint32_t s = 0; s < n_seqs; s++) {
        seq[s] =
            (struct engine_seq){.row0 = b.n_rows, .n_rows = n[s], .n_prompt = n[s], .feed = -1};
        param[s] = (struct engine_param){
            .top_p = 1, .repetition = 1, .tokens = token[s], .n_prompt = n[s], .n_tokens = n[s]};
        start[s + 1] = start[s] + (n[s] + 15) / 16;
        for (uint32_t i = start[s]; i < start[s + 1]; i++)
            pages[i] = i * 37 % N_PAGES;
        for (uint32_t i = 0; i < n[s]; i++) {
            want[b.n_wants++] =
                (struct engine_want){.row = b.n_rows, .param = s, .what = WANT_HIDDEN};
            tokens[b.n_rows++] = token[s][i];
        }
    }
    b.token = tokens;
    b.seq = seq;
    b.want = want;
    b.param = param;
    b.table[KV_GLOBAL].start = start;
    b.table[KV_GLOBAL].page = pages;
    cr_assert_eq(engine_launch(r->engine, &b), 0);
    cr_assert_eq(engine_seal(r->engine, b.step), 0);
    cr_assert_eq(engine_wait(r->engine, b.step, &res), 0);
    for (uint32_t s = 0, k = 0; s < n_seqs; s++)
        for (uint32_t i = 0; i < n[s]; i++, k++)
            memcpy(v[s][i], res.out[k].vector, sizeof(v[s][i]));
}

static void make_tokens(int32_t *t, uint32_t n, uint64_t seed) {
    struct rng rng = {seed};

    for (uint32_t i = 0; i < n; i++)
        t[i] = (int32_t)rng_below(&rng, 300);
}

static const char *const archs[] = {
    "bert",         "nomic-bert",  "jina-bert-v2",    "nomic-bert-moe",
    "jina-bert-v3", "modern-bert", "gemma-embedding", "eurobert"};
enum { N_ARCHS = sizeof(archs) / sizeof(*archs) };

/*
 * llama.cpp 0.7.0 on the files that tiny_model makes with the options above, llama-server
 * --embedding
 * --pooling none, the token ids below given as `content` of /embedding: the first and the last four
 * values of the first and the last token's vector. Its attention keeps keys as f32 and its GELU
 * comes from a table of halves, hence the tolerance.
 */
static const int32_t golden_ids[] = {2, 100, 37, 210, 64, 64, 150, 9, 277, 131, 18, 3};
static const struct {
    const char *arch;
    float first[8], last[8];
} golden[] = {
    {"bert",
     {-1.240328f, 0.888198f, -0.091433f, 0.260409f, 0.250460f, 0.224204f, 0.181990f, -0.605187f},
     {-1.361483f, 0.985911f, 0.068209f, 0.839807f, -0.695717f, 0.368190f, 0.851751f, -0.343532f}},
    {"nomic-bert",
     {1.511629f, 0.683634f, -0.019466f, 0.644545f, -0.183109f, 0.287893f, -1.558884f, -0.285593f},
     {-0.609040f, 1.222719f, 0.198190f, -0.285154f, -0.962429f, 1.801214f, -0.558760f, -1.246710f}},
    {"jina-bert-v2",
     {1.467287f, 0.529337f, 0.120631f, -0.003699f, 1.700616f, -0.068167f, 2.038504f, 0.774638f},
     {-0.146910f, 0.003411f, 0.644533f, 1.860050f, 0.799709f, 0.378399f, 0.187390f, -0.010415f}},
    {"nomic-bert-moe",
     {1.257822f, -0.017807f, -0.723303f, -0.513540f, 0.721073f, -1.217077f, 0.187267f, 0.053860f},
     {-0.124082f, 1.426760f, -0.827102f, -0.064574f, -0.158311f, -0.916429f, -0.780652f,
      0.013442f}},
    {"jina-bert-v3",
     {-0.887069f, 0.650221f, -0.152370f, -1.267510f, 0.111582f, 0.255088f, 0.718629f, -0.716512f},
     {-0.145538f, 0.598242f, 0.790207f, -0.557720f, -0.321899f, -1.058455f, -0.088225f, 0.308972f}},
    {"modern-bert",
     {1.621499f, 1.518020f, 1.173894f, 0.622714f, 0.786790f, 0.828028f, -0.731487f, -0.917654f},
     {-0.467305f, 1.412399f, 0.884674f, 0.920514f, -0.715070f, 0.947933f, 0.305637f, -0.399309f}},
    {"gemma-embedding",
     {-0.420909f, 2.209805f, -1.071735f, -0.835362f, 1.289739f, 0.274919f, -0.624518f, -1.216356f},
     {-0.289657f, 0.631452f, 0.163943f, 0.446470f, 0.928703f, 0.768747f, 0.291996f, 0.454143f}},
    {"eurobert",
     {-0.409414f, 2.162442f, -0.144702f, -1.344567f, 0.720695f, 1.079188f, 1.202796f, -0.971690f},
     {-0.870626f, 2.221723f, 0.373169f, -1.365447f, -0.343205f, -0.453837f, 0.633614f, -1.786374f}},
};

Test(encoder, reference_computes_what_llama_cpp_does) {
    static float out[16][N_EMBD];
    struct run r;

    for (size_t g = 0; g < sizeof(golden) / sizeof(*golden); g++) {
        const int32_t *token = golden_ids;
        uint32_t n = sizeof(golden_ids) / sizeof(*golden_ids);
        float(*v)[N_EMBD] = out;

        open_run(&r, golden[g].arch, "reference", "auto", 1);
        compute(&r, 1, &token, &n, &v);
        for (int i = 0; i < 8; i++) {
            uint32_t at = i < 4 ? (uint32_t)i : N_EMBD - 8 + (uint32_t)i;

            cr_expect_float_eq(out[0][at], golden[g].first[i], 4e-3, "%s first %u: %g, not %g",
                               golden[g].arch, at, (double)out[0][at], (double)golden[g].first[i]);
            cr_expect_float_eq(out[n - 1][at], golden[g].last[i], 4e-3, "%s last %u: %g, not %g",
                               golden[g].arch, at, (double)out[n - 1][at],
                               (double)golden[g].last[i]);
        }
        close_run(&r);
    }
}

Test(encoder, cpu_stays_near_the_reference) {
    static float a[N_LONG][N_EMBD], b[N_LONG][N_EMBD];
    int32_t token[N_LONG];
    const int32_t *t = token;
    uint32_t n = N_LONG;
    struct run r;

    make_tokens(token, n, 1);
    for (size_t i = 0; i < N_ARCHS; i++) {
        float(*va)[N_EMBD] = a, (*vb)[N_EMBD] = b;
        double worst = 0;

        open_run(&r, archs[i], "reference", "auto", 1);
        compute(&r, 1, &t, &n, &va);
        close_run(&r);
        open_run(&r, archs[i], "cpu", "auto", 2);
        compute(&r, 1, &t, &n, &vb);
        close_run(&r);
        for (uint32_t k = 0; k < N_LONG; k++)
            for (uint32_t j = 0; j < N_EMBD; j++)
                worst = fmax(worst, fabs((double)(a[k][j] - b[k][j])));
        cr_expect_lt(worst, 2e-3, "%s: %g", archs[i], worst);
    }
}

/* long enough for two chunks of attention and for blocks of several rows */
static void check_identity(const char *backend, const char *isa, uint32_t n_threads) {
    static float alone[3][N_LONG][N_EMBD], beside[3][N_LONG][N_EMBD];
    static int32_t token[3][N_LONG];
    const uint32_t n[3] = {N_LONG, 7, 90};
    struct run r;

    for (size_t a = 0; a < N_ARCHS; a++) {
        const int32_t *t[3];
        float(*v[3])[N_EMBD];

        for (uint32_t s = 0; s < 3; s++) {
            float(*one)[N_EMBD] = alone[s];

            make_tokens(token[s], n[s], 10 + s);
            t[s] = token[s];
            v[s] = beside[s];
            open_run(&r, archs[a], backend, s ? isa : "generic", s ? n_threads : 1);
            compute(&r, 1, &t[s], &n[s], &one);
            close_run(&r);
        }
        open_run(&r, archs[a], backend, isa, n_threads);
        compute(&r, 3, t, n, v);
        close_run(&r);
        for (uint32_t s = 0; s < 3; s++)
            cr_expect_eq(memcmp(alone[s], beside[s], n[s] * sizeof(alone[s][0])), 0, "%s %s: %u",
                         archs[a], backend, s);
    }
}

Test(encoder, vectors_are_the_same_alone_and_beside_others) {
    check_identity("cpu", "auto", 2);
    check_identity("cpu", "auto", 5);
    check_identity("reference", "auto", 1);
}

/* A row attends to later rows: the first vector depends on the last token. */
Test(encoder, rows_see_their_whole_sequence) {
    static float a[20][N_EMBD], b[20][N_EMBD];
    int32_t token[20];
    const int32_t *t = token;
    float(*va)[N_EMBD] = a, (*vb)[N_EMBD] = b;
    uint32_t n = 20;
    struct run r;

    make_tokens(token, n, 2);
    open_run(&r, "bert", "cpu", "auto", 2);
    compute(&r, 1, &t, &n, &va);
    token[19] = (token[19] + 1) % 300;
    compute(&r, 1, &t, &n, &vb);
    close_run(&r);
    cr_expect_neq(memcmp(a[0], b[0], sizeof(a[0])), 0);
}
