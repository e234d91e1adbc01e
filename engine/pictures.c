#include "engine/pictures.h"

#include <string.h>

#include "base/try.h"
#include "engine/vision/ops.h"

/* Kinds of projectors, and the architectures that were trained with them. */
static const struct {
    enum projector_kind kind;
    const char *arch;
} pairs[] = {
    {PROJECTOR_QWEN3VL, "qwen3vl"},
    {PROJECTOR_QWEN3VL, "qwen3vlmoe"},
    {PROJECTOR_QWEN3VL, "qwen35"},
    {PROJECTOR_QWEN3VL, "qwen35moe"},
    {PROJECTOR_QWEN25VL, "qwen2vl"},
    {PROJECTOR_GEMMA3, "gemma3"},
    {PROJECTOR_GEMMA4V, "gemma4"},
    {PROJECTOR_GEMMA4UV, "gemma4"},
    {PROJECTOR_PIXTRAL, "mistral3"},
    {PROJECTOR_PIXTRAL, "llama"},
    {PROJECTOR_LFM2, "lfm2"},
    {PROJECTOR_LFM2, "lfm2moe"},
    {PROJECTOR_IDEFICS3, "llama"},
    {PROJECTOR_INTERNVL, "qwen2"},
    {PROJECTOR_INTERNVL, "qwen3"},
    {PROJECTOR_INTERNVL, "qwen3moe"},
    {PROJECTOR_INTERNVL, "gpt-oss"},
    {PROJECTOR_INTERNVL, "internlm2"},
    {PROJECTOR_INTERNVL, "llama"},
    {PROJECTOR_KIMIVL, "deepseek2"},
    {PROJECTOR_GLM4V, "glm4"},
    {PROJECTOR_GLM4V, "glm4moe"},
    {PROJECTOR_HUNYUANVL, "hunyuan_vl"},
};

/* Checks that the projector's kind fits the model. Returns 0, or -EINVAL with @err, which names the
 * architectures that it fits. */
static int pictures_check_kind(const struct model *m, const struct projector *p, struct err *err) {
    char known[128] = "";

    for (size_t i = 0; i < ARRAY_SIZE(pairs); i++) {
        if (pairs[i].kind != p->kind)
            continue;
        if (strcmp(pairs[i].arch, m->arch) == 0)
            return 0;
        note_add(known, sizeof(known), ", ", "%s", pairs[i].arch);
    }
    return err_set(err, 0, NULL,
                   "the projector is of kind %s, which belongs to models of architecture %s; this "
                   "one is %s",
                   p->name, known, m->arch);
}

/* Checks that rows and positions of the encoder are those that the model expects. */
static int pictures_check_shape(const struct model *m, const struct projector *p, struct err *err) {
    const struct model_shape *s = &m->shape;
    uint32_t n_deep = s->n_picture / s->n_embd - 1;

    if (p->n_out != s->n_embd)
        return err_set(err, 0, NULL,
                       "the projector belongs to another model: its rows have %u values, the "
                       "model's embedding has %u",
                       p->n_out, s->n_embd);
    if (p->n_deep != n_deep)
        return err_set(err, 0, NULL,
                       "the projector belongs to another model: its rows have parts for %u layers, "
                       "the model takes them in %u",
                       p->n_deep, n_deep);
    bool placed = p->positions || p->kind == PROJECTOR_HUNYUANVL;
    if (placed && !s->rope[0].axis)
        return err_set(err, 0, NULL,
                       "the model file has no '%s.rope.dimension_sections', which pictures need: "
                       "take a file that was converted with them",
                       m->arch);
    return 0;
}

/* Chooses the most rows of a picture. If they see each other, all rows of a picture must fit one
 * step. */
static int choose_rows(const struct model *m, const struct projector *p, struct engine_opts *o,
                       struct err *err) {
    uint32_t side = p->side / p->patch / p->merge, fixed = side * side;
    uint32_t most = p->most;

    if (o->picture_rows)
        most = o->picture_rows;
    if (fixed)
        most = fixed;
    if (m->shape.two_way && fixed > o->max_rows)
        return err_set(err, 0, NULL,
                       "a picture has %u rows, which must be in one step: max_rows is %u", fixed,
                       o->max_rows);
    if (m->shape.two_way)
        o->picture_rows = MIN(most, o->max_rows);
    else
        o->picture_rows = most;
    return 0;
}

/* Returns the reason why a device does not compute the encoder, or NULL. */
static const char *not_on_device(const struct be_ops *ops, const struct gguf *projector) {
    struct projector p;

    if (!ops->vision)
        return "there are several devices";
    if (projector_read(&p, projector, NULL) < 0)
        return "no projector";
    return ops->vision->lacks(&p);
}

/* Returns the encoder's options: it runs on the device if that supports it, else on the CPU. */
static struct image_encoder_opts encoder_opts(const struct be_ops *ops, struct be *be,
                                              const struct engine_opts *o) {
    bool device = ops->device && !not_on_device(ops, o->projector);

    return (struct image_encoder_opts){
        .backend = ops->device ? "cpu" : ops->name,
        .isa = o->isa,
        .n_threads = o->n_threads,
        .max_rows = o->picture_rows,
        .text = o->file,
        .device = device ? ops->vision : NULL,
        .be = be,
    };
}

int pictures_fit(struct model *m, const struct be_ops *ops, struct engine_opts *o,
                 struct err *err) {
    struct image_encoder_fit fit;
    struct projector p;

    if (!o->projector)
        return 0;
    TRY(projector_read(&p, o->projector, err));
    TRY(pictures_check_kind(m, &p, err));
    TRY(pictures_check_shape(m, &p, err));
    TRY(choose_rows(m, &p, o, err));
    const struct image_encoder_opts e = encoder_opts(ops, NULL, o);
    TRY(image_encoder_fit(&fit, o->projector, &e, err));
    m->encoder_weights = fit.weights;
    m->encoder_buffers = fit.buffers;
    if (e.device) {
        m->shape.picture_weights = fit.weights;
        m->shape.picture_buffers = fit.buffers;
    }
    return 0;
}

/* Largest error of a proof, relative. Half precision gives a tenth of it per layer; 8-bit
 * activations (be_ops.coarse) give 1.3e-2. */
#define PROOF_LIMIT 1e-2
#define PROOF_LIMIT_COARSE 5e-2

/* Checks that the opened encoder agrees with the reference. Returns 1, 0: it does not, or
 * -errno. */
static int proved(struct image_encoder *e, const struct be_ops *ops, struct be *be,
                  const struct engine_opts *o, struct err *err) {
    double error = 0;

    if (!ops->proving || !ops->proving(be, true))
        return 1;
    TRY(image_encoder_prove(e, o->projector, &error, err));
    ops->proving(be, false);
    return error <= (ops->coarse && ops->coarse(be) ? PROOF_LIMIT_COARSE : PROOF_LIMIT);
}

int pictures_open(struct image_encoder **out, const struct be_ops *ops, struct be *be,
                  const struct engine_opts *o, const char **why, struct err *err) {
    CLEANUP(image_encoder_freep) struct image_encoder *e = NULL;

    if (!o->projector)
        return 0;
    struct image_encoder_opts opts = encoder_opts(ops, be, o);
    if (ops->device)
        *why = not_on_device(ops, o->projector);
    else
        *why = NULL;
    TRY(image_encoder_new(&e, o->projector, &opts, err));
    int right = 1;

    if (opts.device)
        right = proved(e, ops, be, o, err);
    if (right == 0) {
        *why = "the device's results are wrong";
        opts.device = NULL;
        e = image_encoder_free(e);
        TRY(image_encoder_new(&e, o->projector, &opts, err));
    }
    if (right >= 0)
        *out = STEAL(e);
    return MIN(right, 0);
}

void pictures_describe(const struct gguf *projector, const struct engine_opts *o,
                       const struct model_shape *s, struct engine_info *out) {
    uint8_t of[16];

    gguf_fingerprint(projector, of);
    /* rotated, so that mixing a file with itself does not give zero */
    for (size_t i = 0; i < sizeof(of); i++)
        out->fingerprint[i] ^= (uint8_t)(of[i] << 1 | of[i] >> 7);
    out->picture_width = s->n_picture;
    out->picture_rows = o->picture_rows;
    out->two_way = s->two_way;
}
