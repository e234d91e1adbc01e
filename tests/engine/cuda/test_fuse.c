/*
 * Tests which ops the CUDA backend and the CPU compute together, by the list that weft-gguf info
 * prints, and where devices that divide the layers begin anew.
 */

#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "engine/engine.h"
#include "engine/fuse.h"
#include "tests/support/tiny_model.h"

/* Returns the printed list of the model's ops on @backend; the caller frees it. */
static struct buf list_of(const struct tiny_model *t, const char *backend) {
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    struct buf out = {.max = 1 << 20};
    struct err err = {0};
    char path[64];

    tiny_model_temp(t, path);
    cr_assert_eq(gguf_open(&g, path, &err), 0, "%s", err.message);
    unlink(path);
    const struct engine_opts o = {.file = g,
                                  .backend = backend,
                                  .drafts = t->n_blocks > 0,
                                  .isa = "auto",
                                  .page_tokens = 32,
                                  .max_rows = 8,
                                  .max_seqs = 2,
                                  .max_wants = 8};
    cr_assert_eq(engine_print_ops(&out, &o, &err), 0, "%s", err.message);
    cr_assert_eq(buf_add_char(&out, 0), 0);
    return out;
}

static void expect_list(const struct tiny_model *t, const char *backend, const char *right) {
    CLEANUP(buf_deinit) struct buf got = list_of(t, backend);

    cr_expect_str_eq(got.data, right, "%s on %s:\n%s", t->arch, backend, (char *)got.data);
}

static const struct tiny_model dense = {.arch = "qwen3"}, mixed = {.arch = "qwen35moe"},
                               latent = {.arch = "deepseek2"};

Test(fuse, norms_include_the_addition_before_them_and_work_lists_are_made_once) {
    expect_list(&dense, "cuda",
                "pass 0\n"
                "    0 embed 0\n"
                "    1 qkv 0\n"
                "    2 attend 0: completes 1 qkv, lists\n"
                "    3 proj 0: completes 2 attend\n"
                "    4 gate_up 0: adds 3 proj\n"
                "    5 proj 0: completes 4 gate_up\n"
                "    6 qkv 1: adds 5 proj\n"
                "    7 attend 1: completes 6 qkv\n"
                "    8 proj 1: completes 7 attend\n"
                "    9 gate_up 1: adds 8 proj\n"
                "   10 proj 1: completes 9 gate_up\n"
                "   11 logits 0\n");
}

Test(fuse, host_backends_compute_each_op_alone) {
    expect_list(&dense, "cpu",
                "pass 0\n"
                "    0 embed 0\n"
                "    1 qkv 0\n"
                "    2 attend 0\n"
                "    3 proj 0\n"
                "    4 gate_up 0\n"
                "    5 proj 0\n"
                "    6 qkv 1\n"
                "    7 attend 1\n"
                "    8 proj 1: wanted rows\n"
                "    9 gate_up 1\n"
                "   10 proj 1\n"
                "   11 logits 0\n");
}

/* Checks that the CPU leaves rows out from the op @first on, and the device none; "": neither. */
static void expect_narrow(const struct tiny_model *t, const char *first) {
    CLEANUP(buf_deinit) struct buf host = list_of(t, "cpu"), device = list_of(t, "cuda");
    static const char mark[] = ": wanted rows\n";
    const char *found = strstr((char *)host.data, mark);

    cr_expect(!strstr((char *)device.data, "wanted"));
    cr_expect_eq(found != NULL, *first != 0, "%s:\n%s", t->arch, (char *)host.data);
    if (!found || !*first)
        return;
    size_t n = strlen(first);
    cr_expect_eq(strncmp(found - n, first, n), 0, "%s:\n%s", t->arch, (char *)host.data);
    cr_expect(!strstr(found + strlen(mark), mark));
}

/* Gates that QKV has computed lie in the order of all rows, and drafts read all hidden states. */
Test(fuse, rows_without_a_want_are_left_out_behind_the_last_attention) {
    struct tiny_model blocks = mixed;

    blocks.n_blocks = 1;
    expect_narrow(&mixed, "10 proj 1");
    expect_narrow(&latent, "11 mla_out 1");
    expect_narrow(&blocks, "");
    expect_narrow(&(struct tiny_model){.arch = "gemma3n"}, "");
}

Test(fuse, the_shared_expert_completes_the_sum_of_the_experts) {
    expect_list(&mixed, "cuda",
                "pass 0\n"
                "    0 embed 0\n"
                "    1 state_in 0\n"
                "    2 delta 0\n"
                "    3 proj 0: completes 2 delta\n"
                "    4 route 0: adds 3 proj\n"
                "    5 experts 0: completes 4 route\n"
                "    6 shared 0: completes 5 experts\n"
                "    7 qkv 1: adds 6 shared\n"
                "    8 attend 1: completes 7 qkv, lists\n"
                "    9 gate 1\n"
                "   10 proj 1: completes 9 gate\n"
                "   11 route 1: adds 10 proj\n"
                "   12 experts 1: completes 11 route\n"
                "   13 shared 1: completes 12 experts\n"
                "   14 logits 0\n");
}

Test(fuse, latent_attention_packs_for_its_projection) {
    expect_list(&latent, "cuda",
                "pass 0\n"
                "    0 embed 0\n"
                "    1 mla_in 0\n"
                "    2 mla_kv 0: lists\n"
                "    3 attend 0: lists\n"
                "    4 mla_out 0\n"
                "    5 proj 0: completes 4 mla_out\n"
                "    6 route 0: adds 5 proj\n"
                "    7 experts 0: completes 6 route\n"
                "    8 mla_in 1: adds 7 experts\n"
                "    9 mla_kv 1\n"
                "   10 attend 1\n"
                "   11 mla_out 1\n"
                "   12 proj 1: completes 11 mla_out\n"
                "   13 route 1: adds 12 proj\n"
                "   14 experts 1: completes 13 route\n"
                "   15 logits 0\n");
}

/* Returns a backend with the rows @code, one for each kind. */
static struct be_ops backend_of(const struct op_code *code) {
    static const struct op_code *rows[OP_KINDS];

    for (uint32_t i = 0; i < OP_KINDS; i++)
        rows[i] = &code[i];
    return (struct be_ops){.op = rows};
}

/* Links @n ops of a model with @shape whose backend has the rows @code. */
static void link_shape(struct model_op *op, uint32_t n, const struct model_shape *shape,
                       const struct op_code *code) {
    const struct be_ops ops = backend_of(code);

    fuse_list(op, n, shape, &ops);
}

static const struct op_code attends[OP_KINDS] = {
    [OP_QKV] = {.adds = OP_BIT(OP_PROJ)},
    [OP_ATTEND] = {.list = LIST_KEYS},
};

Test(fuse, the_first_op_of_a_device_neither_adds_nor_shares_a_list) {
    struct model_op op[9] = {[0] = {.kind = OP_EMBED}};
    struct model_shape shape = {.n_layer = 2};

    for (uint32_t i = 0; i < 6; i++) {
        static const enum op_kind kinds[] = {OP_QKV, OP_ATTEND, OP_PROJ};

        op[1 + i] = (struct model_op){.kind = kinds[i % 3], .layer = i / 3, .heads = {4, 2, 16}};
    }
    link_shape(op, 7, &shape, attends);
    cr_expect(op[4].links.adds == &op[3] && op[3].links.into == &op[4]);
    cr_expect(op[2].links.first == 1 && op[5].links.first == 0);
    shape.cut[1] = 1;
    shape.cut[2] = 2;
    link_shape(op, 7, &shape, attends);
    cr_expect(!op[4].links.adds && !op[3].links.into);
    cr_expect(op[2].links.first == 1 && op[5].links.first == 1);
}

Test(fuse, a_branch_is_not_added_to_x) {
    struct model_op op[2] = {{.kind = OP_PROJ, .branch = true}, {.kind = OP_QKV}};
    const struct model_shape shape = {.n_layer = 1};

    link_shape(op, 2, &shape, attends);
    cr_expect(!op[1].links.adds && !op[0].links.into);
}

/* Links @n ops of a model of one layer whose backend has the rows @code. */
static void link_ops(struct model_op *op, uint32_t n, const struct op_code *code) {
    const struct model_shape shape = {.n_layer = 1};

    link_shape(op, n, &shape, code);
}

static const struct op_code completes[OP_KINDS] = {
    [OP_QKV] = {.adds = OP_BIT(OP_PROJ) | OP_BIT(OP_DEEP)},
    [OP_DEEP] = {.adds = OP_BIT(OP_PROJ)},
    [OP_PROJ] = {.takes = OP_BIT(OP_GATE) | OP_BIT(OP_GATE_UP)},
    [OP_ATTEND] = {.list = LIST_KEYS},
    [OP_MLA_OUT] = {.list = LIST_HEADS},
};

Test(fuse, a_deep_is_relied_on_only_if_it_completes_x) {
    struct model_op op[3] = {{.kind = OP_PROJ}, {.kind = OP_DEEP}, {.kind = OP_QKV}};

    link_ops(op, 3, completes);
    cr_expect(op[1].links.adds == &op[0] && op[2].links.adds == &op[1]);
    op[0].kind = OP_EMBED;
    link_ops(op, 3, completes);
    cr_expect(!op[1].links.adds && !op[2].links.adds);
}

Test(fuse, lists_are_of_heads_and_not_of_sparse_attention) {
    struct model_op op[5] = {{.kind = OP_ATTEND, .attn.sparse = true, .heads = {4, 2, 16}},
                             {.kind = OP_ATTEND, .heads = {4, 2, 16}},
                             {.kind = OP_ATTEND, .heads = {8, 2, 16}},
                             {.kind = OP_MLA_OUT},
                             {.kind = OP_MLA_OUT}};

    link_ops(op, 5, completes);
    cr_expect(op[0].links.first == 0 && op[1].links.first == 1 && op[2].links.first == 1);
    cr_expect(op[3].links.first == 1 && op[4].links.first == 0);
}

Test(fuse, a_projection_completes_what_it_reads_in_its_layer) {
    const struct tensor matrix = {.n_bytes = 1};
    struct model_op op[3] = {
        {.kind = OP_GATE}, {.kind = OP_ATTEND}, {.kind = OP_PROJ, .in = ACT_O}};

    link_ops(op, 3, completes);
    cr_expect(op[2].links.from == &op[0] && op[0].links.into == &op[2]);
    op[2].in = ACT_H;
    link_ops(op, 3, completes);
    cr_expect(!op[2].links.from && !op[0].links.into);
    op[2].in = ACT_O;
    op[0].w[0] = &matrix;
    link_ops(op, 3, completes);
    cr_expect(!op[2].links.from);
    op[0].w[0] = NULL;
    op[1].layer = op[2].layer = 1;
    link_ops(op, 3, completes);
    cr_expect(!op[2].links.from);
}

Test(fuse, attention_packs_only_for_the_next_op) {
    static const struct op_code packs[OP_KINDS] = {
        [OP_PROJ] = {.takes = OP_BIT(OP_ATTEND) | OP_BIT(OP_GATE)}};
    const struct tensor matrix = {.n_bytes = 1};
    struct model_op op[3] = {
        {.kind = OP_ATTEND}, {.kind = OP_GATE}, {.kind = OP_PROJ, .in = ACT_O}};

    link_ops(op, 3, packs);
    cr_expect(op[2].links.from == &op[1] && !op[0].links.into);
    op[1].w[0] = &matrix; /* it multiplies the result of attention itself */
    link_ops(op, 3, packs);
    cr_expect(!op[2].links.from && !op[0].links.into);
    op[1].kind = OP_ATTEND;
    link_ops(op, 3, packs);
    cr_expect(op[2].links.from == &op[1] && op[1].links.into == &op[2] && !op[0].links.into);
}

/* Work lists of attention that stores keys have larger items. */
Test(fuse, attention_stores_keys_of_the_op_before_only) {
    static const struct op_code stores[OP_KINDS] = {
        [OP_ATTEND] = {.takes = OP_BIT(OP_QKV), .list = LIST_KEYS}};
    struct model_op op[5] = {{.kind = OP_QKV},
                             {.kind = OP_ATTEND},
                             {.kind = OP_QKV},
                             {.kind = OP_INDEX},
                             {.kind = OP_ATTEND}};

    for (uint32_t i = 0; i < 5; i++)
        op[i].heads = (struct heads){.n = 4, .n_kv = 2, .dim = 16};
    link_ops(op, 5, stores);
    cr_expect(op[1].links.from == &op[0] && op[0].links.into == &op[1]);
    cr_expect(!op[4].links.from && !op[2].links.into);
    cr_expect(op[1].links.first == 1 && op[4].links.first == 1);
    op[3] = op[2];
    link_ops(op, 5, stores);
    cr_expect(op[4].links.from == &op[3] && op[4].links.first == 0);
}

/* Rows that a recurrent layer has packed are lost when another op packs its own. */
Test(fuse, packed_rows_are_for_the_next_op) {
    static const struct op_code packs[OP_KINDS] = {[OP_PROJ] = {.takes = OP_BIT(OP_MAMBA)}};
    struct model_op op[3] = {
        {.kind = OP_MAMBA}, {.kind = OP_PROJ, .in = ACT_O}, {.kind = OP_PROJ, .in = ACT_D}};

    link_ops(op, 3, packs);
    cr_expect(!op[2].links.from && !op[0].links.into);
    op[1].in = ACT_D;
    link_ops(op, 3, packs);
    cr_expect(op[1].links.from == &op[0] && op[0].links.into == &op[1]);
}

Test(fuse, a_list_counts_as_made_in_its_pass) {
    const struct be_ops ops = backend_of(completes);
    struct model_op op[] = {{.kind = OP_ATTEND, .heads = {4, 2, 16}},
                            {.kind = OP_ATTEND, .heads = {4, 2, 16}}};
    struct model m = {.n_ops = 2, .op = op, .shape.n_layer = 1};

    for (uint32_t p = 0; p < 2; p++) {
        m.pass[p].run[0].begin = p;
        m.pass[p].run[0].end = p + 1;
        m.pass[p].run[1].begin = m.pass[p].run[1].end = p + 1;
    }
    fuse_model(&m, &ops);
    cr_expect(op[0].links.first == 1 && op[1].links.first == 2);
}

Test(fuse, logits_begin_anew_where_devices_divide_the_layers) {
    static const struct op_code logits[OP_KINDS] = {
        [OP_LOGITS] = {.adds = OP_BIT(OP_PROJ)}, [OP_QKV] = {.adds = OP_BIT(OP_PROJ)}};
    struct model_op last[2] = {{.kind = OP_PROJ, .layer = 1}, {.kind = OP_LOGITS, .layer = 1}};
    struct model_shape shape = {.n_layer = 2};

    link_shape(last, 2, &shape, logits);
    cr_expect(last[1].links.adds == &last[0]);
    shape.cut[1] = 1;
    shape.cut[2] = 2;
    link_shape(last, 2, &shape, logits);
    cr_expect(!last[1].links.adds);
}

Test(fuse, an_embedding_does_not_end_the_work_of_a_device) {
    struct model_op op[3] = {{.kind = OP_ATTEND, .layer = 1, .heads = {4, 2, 16}},
                             {.kind = OP_EMBED},
                             {.kind = OP_ATTEND, .layer = 1, .heads = {4, 2, 16}}};
    const struct model_shape shape = {.n_layer = 2, .cut = {0, 1, 2}};

    link_shape(op, 3, &shape, completes);
    cr_expect(op[0].links.first == 1 && op[2].links.first == 0);
}
