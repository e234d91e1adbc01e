/*
 * op_list - the kinds of ops, one row each: OP(kind, name, feature, cost), with the formula above
 * it. A file that includes this list defines OP. A new kind is a row here and its functions,
 * which the row names: ref_NAME() and ops_NAME() of the backends in host memory, cuda_op_NAME of
 * CUDA.
 *
 * feature: what models with the op have, for refusals; NULL: every backend computes the op.
 * cost: how op_measure() counts it (op_table.c).
 *
 * The letters of the formulas are those of op.h.
 */

/* x = scale * the token's row of w[0]; w[1], if present, adds its row of the token's position;
 * w[2], if present, adds its only row. A picture's row replaces x by its first n_embd values,
 * unscaled. */
OP(EMBED, embed, NULL, rows)
/* For rows of pictures only: x += values [part n_embd, (part + 1) n_embd) of the picture's row
 * (deepstack) */
OP(DEEP, deep, "rows of pictures", products)
/* x = (x - mean) / sqrt(variance + eps) * norm + norm_bias; with @rms,
 * x / sqrt(mean of x^2 + eps) * norm, and without @norm the same without the factor */
OP(NORM, norm, "norms outside of branches", products)
/* p = (post_norm(w[0] x / sqrt(n_embd)) + sqrt(n) e) / sqrt(2), where e is the token's row of w[1]
 * (row 0 for a picture's row). p has n = n_layer_input values for each layer; post_norm is applied
 * to each layer's values separately. */
OP(LAYER_INPUT, layer_input, "inputs of layers", products)
/* Writes q, and keys and values to the pages of @kv at the positions of the rows:
 *   q = temper rope(q_norm(w[0] y + b)), k = rope(k_norm(w[1] y + b)), v = w[2] y + b
 * With @v_unit, v gets an RMS norm without weights. w[2] NULL: v = w[1] y + b. w[1] and w[2] NULL:
 * only q is written. @gated: each head's rows of w[0] are followed by as many rows that compute its
 * gate. @norm_all: q_norm and k_norm are over all heads together, not per head. @norm_each: they
 * have weights for each head. @norm_late: they are applied after RoPE. */
OP(QKV, qkv, NULL, products)
/* Writes k (w[0]) and v (w[1]) as QKV does, with their biases, and no q: the layer's queries have
 * an op of their own. */
OP(KEYS, keys, "multi-token prediction", products)
/* Writes placeholder keys and values to the pages of @kv at the positions of the rows. The scores
 * of such a key are not finite, and ATTEND with attn.holes gives it no weight. */
OP(HOLES, holes, "multi-token prediction", products)
/* o = attention of q to the pages of @kv, as @attn says */
OP(ATTEND, attend, NULL, products)
/* o *= sigmoid(gate), where the preceding QKV op with @gated computed the gate. With w[0]: o *=
 * softplus(w[0] y), or sigmoid(w[0] y) with @sigmoid; w[0] has one row for each head or one for
 * each value of o. */
OP(GATE, gate, "gated attention", products)
/* x = (x + gain t) * scale, t = post_norm(w[0] in + b). @post_eps, if not 0, replaces the epsilon
 * of post_norm. @branch: b = t instead. */
OP(PROJ, proj, NULL, products)
/* x = (x + post_norm(b)) * scale */
OP(JOIN, join, "norms behind branches", products)
/* h = glu(w[0] y + b, w[1] y + b). w[1] NULL: the up value is 1. @sparsity, if not 0: the gates are
 * max(g - (mean + sparsity * deviation), 0) before glu, with the mean and the standard deviation
 * (of a sample) of the row's gates g. */
OP(GATE_UP, gate_up, NULL, products)
/* h = glu(w[0] x, u), where u is the layer's part of p */
OP(GATE_IN, gate_in, "inputs of layers", products)
/* Picks n_expert_used experts for each row: p = gating of scale * (w[0] y + b); the experts with
 * the largest p + pick_bias are picked (ties: the lower number). Their weights are p divided by the
 * sum of the picked p; not divided if model_shape.unnormed. With @table, the picks are the expert
 * numbers in the token's row of @table instead. w[1], if present: d = w[1] y. */
OP(ROUTE, route, "mixtures of experts", products)
/* Follows ROUTE: x += post_norm(expert_scale * sum of p e(y)), summed in the order of the picks,
 * where e(y) = weigh[e] (down glu(gate y + b, up y + b) + b). y is that of ROUTE unless the op has
 * a norm. @early: e(p y) in place of p e(y). @joined: w[0] has each expert's gate rows, then its up
 * rows, and w[1] is NULL. w[1] NULL without @joined: the up value is 1. @branch (also in SHARED):
 * adds to b instead of x. @latent: d is in place of y, and becomes the sum. */
OP(EXPERTS, experts, "mixtures of experts", experts)
/* The shared expert. Follows EXPERTS: x += sigmoid(w[3] y) down (silu(gate y) * up y), with the y
 * of ROUTE; w[3] has one row. */
OP(SHARED, shared, "mixtures of experts", products)
/* Input products of the recurrent op that follows: in[first + i] = w[i] y. The recurrent op
 * computes d from them and from the state of the row's sequence, and updates the state. @parts: the
 * products of w[0], w[1] and w[2] are concatenated in in[0]; another STATE_IN computes the rest.
 * LOW_DOWN: l[i] = w[i] y instead, for the STATE_IN with LOW_UP that follows: in[first + i] = w[i]
 * l[i]. */
OP(STATE_IN, state_in, "recurrent layers", products)
/* A gated delta net. in: u, z, beta, alpha before their functions. @joined: in[3] is absent, and
 * in[2] has, for each key head, the betas of its value heads, then the alphas. For each token in
 * order:
 *   c = silu(sum over j of conv[.][j] u of token t - kernel + 1 + j); c is q, k, v of all heads
 *   q, k: scaled to unit length per head (delta.eps under the root); q /= sqrt(dim)
 *   g = decay softplus(alpha + dt), b = sigmoid(beta)
 *   M = e^g M; M += k (b (v - M^T k))^T; d = norm(M^T q) silu(z), per value head */
OP(DELTA, delta, "gated delta nets", products)
/* Kimi delta attention (Kimi Team 2025, "Kimi Linear"): a delta net with a decay for each element
 * of the key. in: u, z, raw decays, betas before the sigmoid. The rows of conv are divided among
 * three tensors (conv, conv_more). As DELTA, but per head and for each element i of the key:
 *   g[i] = lower sigmoid(|decay| (raw[i] + dt[i])), b = sigmoid(beta); if lower is 0,
 *   g[i] = decay softplus(raw[i] + dt[i])
 *   M[i] = e^g[i] M[i]; M += k (b (v - M^T k))^T; d = norm(M^T q) sigmoid(z) */
OP(KDA, kda, "Kimi delta attention", products)
/* A short convolution (LFM2). in: b, c, u. For each token: t = b u, d = c times the sum over j of
 * conv[.][j] t of token t - kernel + 1 + j */
OP(CONV, conv, "short convolutions", products)
/* Mamba-2. in: u, z, step before softplus. For each token in order, per head:
 *   c = silu(conv_bias + sum over j of conv[.][j] u of token t - kernel + 1 + j): x, B, C
 *   s = softplus(step + dt); M = e^(s decay) M + (s x) B^T; y = M C + skip x
 *   d = norm(y silu(z)), the norm over the heads of a group; without @norm y silu(z) */
OP(MAMBA, mamba, "Mamba-2 layers", products)
/* Mamba-1. in: u, z. The convolution gives x, as that of MAMBA does. For each token in order, with
 * a step s, a row of M and a decay for each channel:
 *   t, B, C = the parts of w[0] x, each with its RMS norm
 *   s = softplus(w[1] t + dt); M = e^(s decay) M + (s x) B^T; y = M C + skip x
 *   d = y silu(z)
 * @by_head (PLaMo 2): in[3] has z, then u of each head; the parts are B, C, t; step, decay and skip
 * are those of a head, as in MAMBA. */
OP(SCAN, scan, "Mamba-1 layers", products)
/* Down projections of latent attention: l = w[0] y (key), r = w[1] y (query). mla.q_rank 0: w[1] y
 * is q already, and MLA_Q is absent. */
OP(MLA_IN, mla_in, "latent attention", products)
/* q = w[0] norm(r): for each head, n_nope values without RoPE, then n_rot values with RoPE */
OP(MLA_Q, mla_q, "latent attention", products)
/* Writes the key, which is the value too, to the pages of @kv: (norm of the first mla.rank values
 * of l, rope of the rest). Writes the queries for ATTEND in absorbed form: temper (w[0][head] times
 * the head's first n_nope values of q, rope of the rest). */
OP(MLA_KV, mla_kv, "latent attention", products)
/* Follows ATTEND: for each head, d = w[0][head] times the first mla.rank values of o */
OP(MLA_OUT, mla_out, "latent attention", products)
/* Keeps hidden states for DRAFT_IN. x = norm x; with @centred x = (x - mean) / sqrt(variance + eps)
 * * norm; without norm x stays. The hidden state is x, or w[0] x. It is kept for every row of this
 * step, and per slot for the last ENGINE_KEPT positions. A row with n_ahead counts as position pos0
 * + n_ahead. @streams: the hidden state is all residual streams, and x stays. */
OP(KEEP, keep, "multi-token prediction", products)
/* Input of a draft block: x = w[0] (q_norm x, k_norm h), where the two vectors are concatenated and
 * h is the hidden state kept for the preceding position, or zeros if none is kept. A norm that is
 * NULL changes nothing. From here on x has as many values as w[0] has rows. Pass 0 has one DRAFT_IN
 * for each draft block; @part of them follow this one. @streams: each stream of h yields one stream
 * of s, and x is undefined afterwards. */
OP(DRAFT_IN, draft_in, "multi-token prediction", products)
/* copies x to part @part of the tap buffer, of n_taps parts */
OP(TAP, tap, "block drafters", products)
/* x = w[0] t, where t is the tap buffer that TAP filled */
OP(FUSE, fuse, "block drafters", products)
/* Before a branch of a block drafter: c = norm x, the dynamic taps d = w[0] c, x = convolution of c
 * on side 0 with taps d and @weigh (engine/blocks.h). BLOCK_OUT needs the former x, which is
 * saved. */
OP(BLOCK_IN, block_in, "block drafters", products)
/* After the branch: x = (saved x + post_norm(c)) * scale, c = convolution of b on side 1 with the
 * taps d of BLOCK_IN and @weigh */
OP(BLOCK_OUT, block_out, "block drafters", products)
/* Follows LOGITS: g = w[0] y for the rows with a want; block_select() then chooses the tokens with
 * the tables w[1] of predecessors and w[2] of successors. */
OP(SELECT, select, "block drafters", rows)
/* Follows LOGITS, whose output is c: for the wanted rows of each sequence from row first_draft on,
 * in order, c += w[0] (row a of w[1]), where a is the token before the one that c predicts
 * (block_before()). */
OP(CHAIN, chain, "block drafters", chain)
/* Adds a branch to the residual streams: s[i] += weight[i] b with the weights of the preceding MIX,
 * or s[i] = weight[i] b + the sum over j of share[j][i] s[j] with those of the preceding HC_IN.
 * @begins: s[i] = x. */
OP(HC_OUT, hc_out, "residual streams", products)
/* f = q_norm of each stream; g = sigmoid(w[0] silu(w[1] f / n)), n streams; x = the mean of the
 * streams of f g; weight = 2 sigmoid(w[2] f / n), one for each stream; b = 0 */
OP(MIX, mix, "residual streams", products)
/* Forms x from the residual streams: m = w[0] s / sqrt(mean of s^2 + eps), where s is all streams
 * concatenated; sinkhorn.h turns m into weights, with scales @weigh and biases @pick_bias; x =
 * weighted sum of the streams; b = 0. After the last layer, m has only the weights of this sum, and
 * none for HC_OUT. */
OP(HC_IN, hc_in, "residual streams", products)
/* Alternating updates (AltUp, Baykal et al. 2023) of n residual streams. Begins them: s[0] = x,
 * s[i] = w[i - 1] x, scaled to the length of x (ALT_LEAST). */
OP(ALT_BEGIN, alt_begin, "alternating updates", products)
/* r = tanh(w[0] y / n_embd), y = norm s[0]; s[i] += sum over j of (row i n + j of weigh . r) s[j],
 * with s[j] before the op; x = s[0] */
OP(ALT_PREDICT, alt_predict, "alternating updates", products)
/* r = tanh(w[0] y / n_embd); s[i] += (1 + row i of weigh . r) (x - s[0]), with s[0] before the op;
 * x = pick_bias s[0], element by element. The next HC_OUT adds b to all streams but s[0]. */
OP(ALT_CORRECT, alt_correct, "alternating updates", products)
/* x = the mean of s[0] and of all w[i - 1] s[i], scaled to the length of s[0] */
OP(ALT_END, alt_end, "alternating updates", products)
/* Learned residual of low rank (LAuReL, Menghani et al. 2024): b += y + post_norm(w[1] w[0] y), y =
 * q_norm x */
OP(LAUREL, laurel, "alternating updates", products)
/* e = the token's rows of the table, concatenated; for each stream, norms by stream:
 *   z = k_norm(w[0] e) . q_norm(s) / sqrt(n_embd)
 *   v = sigmoid(sign(z) sqrt(max(|z|, 1e-6))) w[1] e; c = post_norm v
 *   s += v + silu(sum over j of conv[.][j] c of token t - (kernel - 1 - j) ngram.n)
 * x and b are overwritten. State, at @more: the last tokens, the latest first, in NGRAM_STATE
 * floats; then c of the last (kernel - 1) ngram.n tokens, the oldest first. */
OP(NGRAM, ngram, "tables of n-grams", products)
/* Chooses the keys that the rows see in the ATTEND that follows. A block's key, to the pages:
 * rope(k_norm(mean of w[1] x over its tokens)), by the block's first position. A row's queries: q =
 * rope(q_norm(w[0] x)) of each head. It sees, of the whole blocks up to its position, the n_block
 * with the largest sums of max(0, q . key) (ties: the first), and all keys after the whole blocks.
 * State, at @more: w[1] x of the tokens of the block that is not whole, by their place in it. */
OP(INDEX, index, "sparse attention", products)
/* Stores what POOL_INDEX reads. For each row, k = layer norm (k_norm, norm_bias, sparse.eps) of
 * w[0] y, g = w[1] y, t = w[2] y / sqrt(dim n_head). The key of a whole block, to the pages: for
 * each channel the mean of its tokens' k, weighted by the softmax of g + weigh[place of the token].
 * State, at @more: k and g of the tokens of the block that is not whole, in row position %
 * pool_rows(). */
OP(POOL_KEYS, pool_keys, "pooled keys", products)
/* Follows POOL_KEYS and MLA_IN, and precedes MLA_Q. Chooses keys as INDEX does, with q = w[0]
 * norm(r) and the sums of t max(0, q . key). Keys and queries are not rotated. */
OP(POOL_INDEX, pool_index, "pooled keys", products)
/* Chooses keys for each head of keys, whose queries see them in the ATTEND that follows. The key of
 * a position, to the pages: rope(k_norm(w[1] y)). A row's query of head h: q = rope(q_norm(w[0]
 * y)). A block has sparse.block positions and scores the largest q . key up to the row's position.
 * A head sees the n_local last blocks, the row's own included, and those with the largest scores
 * (ties: the first), n_block together. */
OP(HEAD_INDEX, head_index, "blocks of each key head", products)
/* x = the mean of the residual streams */
OP(HC_MEAN, hc_mean, "means of residual streams", products)
/* Down projections of attention to compressed keys: r = q_norm(w[0] y), k = rope(k_norm(w[1] y)),
 * and for the indexer t = w[2] y / sqrt(index_dim n_index). w[2] NULL: the layer has no indexer. */
OP(CSA_IN, csa_in, "compressed keys", products)
/* Stores k in the window of the op's layer, for rows without queries in that layer. */
OP(CSA_KEYS, csa_keys, "drafts behind compressed keys", products)
/* q = rope(RMS norm, without weights, of w[0] r), per head */
OP(CSA_Q, csa_q, "compressed keys", products)
/* Writes the compressed keys of the blocks that end in this step to the pages. For each channel:
 * the mean of u = w[0] y over the block's tokens, weighted by the softmax of w[1] y + weigh[index
 * of the token in the block]; then rope(k_norm(mean)) at the block's first position. For short
 * blocks u and the weights are twice as wide, because a key covers two blocks in one softmax: the
 * second half belongs to tokens of the block itself, the first half to tokens of the block before.
 * State, at @more: u and w[1] y of the last tokens (two short blocks or one long block), at index
 * position % number of tokens. */
OP(COMPRESS, compress, "compressed keys", products)
/* Picks the short blocks that each row sees in the following CSA_ATTEND: the n_block blocks with
 * the largest sums over heads of t max(0, q . key), q = rope(w[0] r) (ties: the first block). */
OP(CSA_INDEX, csa_index, "compressed keys", products)
/* o = attention of q to k of the positions in the window and to the keys of the complete blocks up
 * to the row's position. As keys are values too, the rotation of the output's rotary values is
 * undone by the row's position. */
OP(CSA_ATTEND, csa_attend, "compressed keys", products)
/* d[part n, (part + 1) n) = w[0] times part @part of o; n is the number of rows of w[0] */
OP(CSA_OUT, csa_out, "compressed keys", products)
/* For the rows with a want: c = scale (w[0] y + b), then cap tanh(c / cap) if @cap is not 0. A want
 * of WANT_HIDDEN gets y instead. w[0] NULL: only WANT_HIDDEN may be asked for. */
OP(LOGITS, logits, NULL, logits)
