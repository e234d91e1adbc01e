#include "api/generation/sight.h"

#include <stdio.h>
#include <string.h>

#include "text/tokenizer.h"
#include "vision/projector.h"

/* Tokens around a picture in each family's prompts: before its rows, in place of them, and behind
 * them. */
static const struct {
    const char *open, *pad, *close;
} families[PROJECTOR_KINDS] = {
    [PROJECTOR_QWEN3VL] = {"<|vision_start|>", "<|image_pad|>", "<|vision_end|>"},
    [PROJECTOR_QWEN25VL] = {"<|vision_start|>", "<|image_pad|>", "<|vision_end|>"},
    [PROJECTOR_GEMMA3] = {"<start_of_image>", "<image_soft_token>", "<end_of_image>"},
    [PROJECTOR_GEMMA4V] = {"<|image>", "<|image|>", "<image|>"},
    [PROJECTOR_GEMMA4UV] = {"<|image>", "<|image|>", "<image|>"},
    [PROJECTOR_PIXTRAL] = {"", "[IMG]", "[IMG_END]"},
    [PROJECTOR_LFM2] = {"<|image_start|>", "<image>", "<|image_end|>"},
    [PROJECTOR_KIMIVL] = {"<|media_start|>image<|media_content|>", "<|media_pad|>",
                          "<|media_end|>"},
    [PROJECTOR_GLM4V] = {"<|begin_of_image|>", "<|image|>", "<|end_of_image|>"},
    [PROJECTOR_HUNYUANVL] = {"<｜hy_place▁holder▁no▁100｜>", "<｜hy_place▁holder▁no▁102｜>",
                             "<｜hy_place▁holder▁no▁101｜>"},
    [PROJECTOR_INTERNVL] = {"<img>", "<IMG_CONTEXT>", "</img>"},
    [PROJECTOR_IDEFICS3] = {"<fake_token_around_image>", "<image>", "<fake_token_around_image>"},
};

static int32_t sight_find(const struct tokenizer *t, const char *text) {
    int32_t id = *text ? tokenizer_find(t, text, strlen(text)) : -1;

    if (id < 0 || !tokenizer_is_special(t, id))
        return -1;
    return id;
}

/* Returns true if what is between each < and > in @text is a special token. */
static bool sight_has(const struct tokenizer *t, const char *text) {
    char token[48];
    const char *end;

    while ((text = strchr(text, '<')) && (end = strchr(text, '>'))) {
        snprintf(token, sizeof(token), "%.*s", (int)(end + 1 - text), text);
        if (sight_find(t, token) < 0)
            return false;
        text = end;
    }
    return true;
}

bool sight_init(struct sight *s, const struct projector *p, const struct tokenizer *t) {
    const char *open = families[p->kind].open, *pad = families[p->kind].pad,
               *close = families[p->kind].close;
    int32_t mark = sight_find(t, pad);

    *s = (struct sight){0};
    if (!sight_has(t, open) || sight_find(t, close) < 0 || (mark < 0 && !*open))
        return false;
    s->stays = mark < 0;
    s->mark = s->stays ? sight_find(t, open) : mark;
    s->split = (uint32_t)strlen(open);
    s->mark_len = s->stays ? 0 : (uint32_t)strlen(pad);
    snprintf(s->text, sizeof(s->text), "%s%s%s", open, s->stays ? "" : pad, close);
    return true;
}
