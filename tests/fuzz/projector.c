/* Headers of projector files: one that projector_read() accepts has a layout for pictures of every
 * size, whose sides are whole patches; a refusal has a reason on one line. */

#include "vision/projector.h"

#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tests/support/gguf_writer.h"

static void check_layout(const struct projector *p, uint32_t width, uint32_t height) {
    const struct picture_budget own = {0};
    struct picture_layout l;

    projector_layout(p, width, height, &own, &l);
    FUZZ_ASSERT(l.width > 0 && (p->side || l.width % (p->patch * p->merge) == 0));
    FUZZ_ASSERT(l.height > 0 && (p->side || l.height % (p->patch * p->merge) == 0));
    FUZZ_ASSERT(!p->side || MAX(l.width, l.height) <= PICTURE_SIDE_MAX);
    FUZZ_ASSERT(l.n_rows >= l.n_columns * l.n_lines && l.n_positions <= l.n_rows);
    FUZZ_ASSERT(projector_parts(p, &l) > 0);
    FUZZ_ASSERT(p->side || l.n_columns * l.n_lines <= p->most + l.n_columns + l.n_lines);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    static const uint32_t sizes[][2] = {{1, 1}, {97, 61}, {1920, 1080}, {16384, 1}, {8192, 8192}};
    CLEANUP(gguf_freep) struct gguf *g = NULL;
    struct projector p;
    struct err err = {0};

    if (gguf_open(&g, fuzz_file(data, len), &err) < 0)
        return -1;
    if (projector_read(&p, g, &err) < 0) {
        FUZZ_ASSERT(err.message[0] && !strchr(err.message, '\n'));
        return 0;
    }
    FUZZ_ASSERT(!p.n_layer || p.n_embd % (4 * p.n_head) == 0);
    FUZZ_ASSERT(p.eps > 0 && p.patch > 0 && p.merge > 0);
    for (size_t i = 0; i < ARRAY_SIZE(sizes); i++)
        check_layout(&p, sizes[i][0], sizes[i][1]);
    return 0;
}

bool fuzz_seed(size_t i, struct buf *out) {
    static const float thirds[] = {0.5f, 0.5f, 0.5f};
    struct gguf_writer w;

    if (i >= PROJECTOR_KINDS)
        return false;
    gw_init(&w);
    gw_string(&w, "general.architecture", "clip");
    gw_string(&w, i % 2 ? "clip.projector_type" : "clip.vision.projector_type",
              projector_kind_name((enum projector_kind)i));
    gw_u32(&w, "clip.vision.embedding_length", 32);
    gw_u32(&w, "clip.vision.feed_forward_length", 80);
    gw_u32(&w, "clip.vision.block_count", 2);
    gw_u32(&w, "clip.vision.attention.head_count", 2);
    gw_u32(&w, "clip.vision.patch_size", 14);
    gw_u32(&w, "clip.vision.image_size", 112);
    gw_u32(&w, "clip.vision.projection_dim", 48);
    gw_u32(&w, "clip.vision.n_wa_pattern", 2);
    gw_u32(&w, "clip.vision.projector.scale_factor", 2);
    gw_u32(&w, "clip.vision.spatial_merge_size", 2);
    gw_u32(&w, "clip.vision.preproc_image_size", 448);
    gw_f32(&w, "clip.vision.attention.layer_norm_epsilon", 1e-6f);
    gw_array(&w, "clip.vision.image_mean", GGUF_F32, 3, thirds, sizeof(thirds));
    gw_array(&w, "clip.vision.image_std", GGUF_F32, 3, thirds, sizeof(thirds));
    gw_finish(&w);
    FUZZ_ASSERT(buf_add(out, w.file.data, w.file.len) == 0);
    gw_deinit(&w);
    return true;
}
