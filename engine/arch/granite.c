#include "engine/arch/granite.h"

#include "engine/arch/nemotron.h"
#include "engine/bind/meta.h"

void granite_bind(struct binder *b, struct model *m, const struct decoder *d) {
    nemotron_read_mamba(b, &m->shape);
    decoder_hybrid(b, m, d, nemotron_mamba, decoder_mlp);
}
