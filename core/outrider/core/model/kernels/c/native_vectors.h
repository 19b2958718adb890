/* Products by vectors, a part of `native_linear.c`: fused multiply-adds of floats, or of pairs of bf16 where the processor has
   these, which are twice as many at a time. Sums of a piece stay in registers until they are scaled. */

#define TOGETHER (LANES < 16 ? LANES / 4 : 8) /* rows that share what is loaded */

/* [inputs, BLOCK] floats of some inputs. */
static INLINE void expand_as(const struct matrix *m, const uint32_t *words, long inputs, float *out, const int codes) {
    const int each = codes == PLAIN ? 2 : codes > TABLE ? 4 : 8;
    for (long i = 0; i < inputs; i += each, words += BLOCK)
        for (int v = 0; v < BLOCK; v += LANES) {
            vu word = word_at(words, v);
            for (int at = 0; at < each; at++) {
                int input = 2 * (at % (each / 2)) + at / (each / 2);
                store(out, (i + input) * BLOCK + v, code_at(m, word, codes, at), 0);
            }
        }
}

static void expand(const struct matrix *m, const uint32_t *codes, long inputs, float *out) {
    if (m->bits == 16)
        expand_as(m, codes, inputs, out, PLAIN);
    else if (m->bits == 8 && m->is_signed)
        expand_as(m, codes, inputs, out, SIGNED);
    else if (m->bits == 8)
        expand_as(m, codes, inputs, out, UNSIGNED);
    else if (m->even && LANES < 16) /* a table is no slower there */
        expand_as(m, codes, inputs, out, EVEN);
    else
        expand_as(m, codes, inputs, out, TABLE);
}

#if PAIRS
/* The same as pairs of bf16 [inputs / 2, BLOCK, 2]. */
static INLINE void expand_pairs_as(const struct matrix *m, const uint32_t *words, long inputs, uint16_t *out,
                                   const int codes) {
    const __m512i halves = _mm512_loadu_si512(m->halves);
    const int each = codes == TABLE ? 4 : 2; /* pairs of a word */
    for (long i = 0; i < inputs; i += 2 * each, words += BLOCK, out += 2 * each * BLOCK)
        for (int v = 0; v < BLOCK; v += LANES) {
            vu word = word_at(words, v);
            for (int at = 0; at < each; at++) {
                __m512i pair; /* codes of 8 bits are exact in bf16 */
                if (codes == TABLE) /* of an index the lowest 5 bits count */
                    pair = _mm512_permutexvar_epi16(_mm512_srli_epi16((__m512i)word, 4 * at), halves);
                else
                    pair = (__m512i)((vu)code_at(m, word, codes, at) >> 16 | (vu)code_at(m, word, codes, at + 2));
                _mm512_store_si512(out + 2 * (at * BLOCK + v), pair);
            }
        }
}

static void expand_pairs(const struct matrix *m, const uint32_t *codes, long inputs, uint16_t *out) {
    if (m->bits == 4)
        expand_pairs_as(m, codes, inputs, out, TABLE);
    else if (m->is_signed)
        expand_pairs_as(m, codes, inputs, out, SIGNED);
    else
        expand_pairs_as(m, codes, inputs, out, UNSIGNED);
}
#endif

enum { SCALED, OFFSET, BARE }; /* sums of a piece: scaled, with an offset besides, or those of `total` carried on */

/* One input, or a pair of them, of the outputs of a block. */
static INLINE void step(vf sum[][VECTORS], const float *weights, const float *x, long stride, const int rows,
                        const int pairs) {
    vf w[VECTORS];
    for (int v = 0; v < VECTORS; v++)
        w[v] = load(weights, v * LANES, 0);
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++)
#if PAIRS
            if (pairs)
                sum[r][v] = (vf)_mm512_dpbf16_ps(
                    (__m512)sum[r][v], (__m512bh)w[v], (__m512bh)_mm512_set1_ps(x[r * stride]));
            else
#endif
                sum[r][v] += w[v] * x[r * stride];
}

/* Adds to `total` [rows, BLOCK] the products of some pieces. x: inputs or pairs of them, `steps` in a piece. */
static INLINE void multiply_as(const struct product *p, const float *x, const float *weights, const float *inputs,
                               const float *scales, long pieces, long steps, float *total, const int rows,
                               const int pairs, const int form) {
    const long stride = p->m->inputs >> pairs;
    for (long i = 0; i < pieces; i++, scales += form == OFFSET ? 2 * BLOCK : BLOCK) {
        vf sum[TOGETHER][VECTORS];
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < VECTORS; v++)
                sum[r][v] = form == BARE ? load(total, r * BLOCK + v * LANES, 0) : (vf){0};
        const float *end = x + steps;
        do {
            step(sum, weights, x, stride, rows, pairs);
            weights += BLOCK;
        } while (++x < end);
        for (int v = 0; v < VECTORS; v++)
            for (int r = 0; r < rows; r++) {
                vf y = sum[r][v];
                if (form != BARE)
                    y = load(total, r * BLOCK + v * LANES, 0) + y * load(scales, v * LANES, 0);
                if (form == OFFSET)
                    y += load(scales, BLOCK + v * LANES, 0) * inputs[r * p->pieces + i];
                store(total, r * BLOCK + v * LANES, y, 0);
            }
    }
}

/* Rows of an item by `inputs` from the one numbered `start` on, TOGETHER at a time; those left have a loop of their own,
   whatever their number. */
static INLINE void multiply_rows(const struct product *p, struct some all, const void *weights, long start, long inputs,
                                 const float *scales, float *total, const int pairs, const int form) {
    const long piece = MIN(p->m->piece, inputs), stride = p->m->inputs >> pairs;
    const float *x = (const float *)p->x + ((all.first * p->m->inputs + start) >> pairs);
    const float *sums = form == OFFSET ? p->sums + all.first * p->pieces + start / piece : 0;
#define ROWS(n)                                                                                                        \
    case n:                                                                                                            \
        multiply_as(p, x, weights, sums, scales, inputs / piece, piece >> pairs, total, n, pairs, form);               \
        break;
    for (long left = all.rows; left > 0; left -= TOGETHER) {
        switch (MIN(left, TOGETHER)) {
            ROWS(1)
#if LANES > 4
            ROWS(2)
#endif
#if LANES > 8
            ROWS(3)
            ROWS(4)
            ROWS(5)
            ROWS(6)
            ROWS(7)
            ROWS(8)
#endif
        }
        x += TOGETHER * stride, total += TOGETHER * BLOCK;
        if (form == OFFSET)
            sums += TOGETHER * p->pieces;
    }
#undef ROWS
}

static void multiply_vectors(const struct product *p, struct some all, const void *weights, long start, long inputs,
                             const float *scales, float *total) {
#if PAIRS
    if (p->pairs && !scales)
        multiply_rows(p, all, weights, start, inputs, scales, total, 1, BARE);
    else if (p->pairs && p->m->lows)
        multiply_rows(p, all, weights, start, inputs, scales, total, 1, OFFSET);
    else if (p->pairs)
        multiply_rows(p, all, weights, start, inputs, scales, total, 1, SCALED);
    else
#endif
        if (p->m->lows)
        multiply_rows(p, all, weights, start, inputs, scales, total, 0, OFFSET);
    else
        multiply_rows(p, all, weights, start, inputs, scales, total, 0, SCALED);
}
