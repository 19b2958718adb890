/* Products by matrix units (AMX), a part of `native_linear.c`: tiles of 16 rows, or of several pieces of fewer rows. */

static INLINE long step_of(const struct matrix *m) { return m->piece % 32 ? 16 : 32; } /* inputs of a tile */

/* Tiles of weights, one after the other: [steps, planes, 2, step / 2, 16 outputs, 2 inputs] bf16, for either half of a block;
   8 bits are the sum of two planes. */
static INLINE void expand_tiles_as(const struct matrix *m, const uint32_t *codes, long inputs, uint16_t *out,
                                   const int bits) {
    const __m512i lower = _mm512_loadu_si512(m->halves), upper = _mm512_loadu_si512(m->halves + 32);
    const long step = step_of(m), tile = step * 16, plane = bits == 4 ? 0 : 2 * tile;
    for (long i = 0; i < inputs; i += step, out += 2 * tile + plane)
        for (uint16_t *to = out; to < out + tile; to += bits == 4 ? 128 : 64, codes += BLOCK)
            for (int side = 0; side < 2; side++) {
                __m512i word = _mm512_loadu_si512(codes + side * 16), parts[4];
                __builtin_prefetch(codes + side * 16 + AHEAD);
                for (int n = 0; n < 4; n++) /* of an index the lowest 5 bits count */
                    parts[n] = _mm512_permutexvar_epi16(_mm512_srli_epi16(word, 4 * n), bits == 8 && n % 2 ? upper : lower);
                for (int n = 0; n < 4; n++)
                    _mm512_store_si512(to + side * tile + (bits == 4 ? n * 32 : n / 2 * 32 + n % 2 * plane), parts[n]);
            }
}

static void expand_tiles(const struct matrix *m, const uint32_t *codes, long inputs, uint16_t *out) {
    if (m->bits == 4)
        expand_tiles_as(m, codes, inputs, out, 4);
    else
        expand_tiles_as(m, codes, inputs, out, 8);
}

/* Tiles 0 to 2 are for 16 rows (sums of both halves, inputs), 3 to 5 for 16 more or for those left, 6 and 7 for weights. */
static void configure(const struct product *p, long rows) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    long step = step_of(p->m);
    for (int tile = 0; tile < 8; tile++) {
        config.bytes[tile] = tile == 2 || tile == 5 ? 2 * step : 64;
        config.rows[tile] = tile > 5 ? step / 2 : tile < 3 ? 16 : rows % 16 ? rows % 16 * p->stack : 16;
    }
    __asm__ volatile("" : : "r"(&config) : "memory"); /* tiles are set up and read behind the compiler's back */
    _tile_loadconfig(&config);
}

/* Sums of some pieces for the rows of a tile (`first`, `second`: either half of a block), and of another one beside it. */
#define MULTIPLY(first, second, inputs, both)                                                                          \
    do {                                                                                                               \
        _tile_zero(first);                                                                                             \
        _tile_zero(second);                                                                                            \
        if (both) {                                                                                                    \
            _tile_zero(3);                                                                                             \
            _tile_zero(4);                                                                                             \
        }                                                                                                              \
        for (long part = 0; part < parts; part++)                                                                      \
            for (long k = 0; k < piece; k += step) {                                                                   \
                _tile_loadd(inputs, x + part * p->advance + k, 2 * p->stride);                                         \
                if (both)                                                                                              \
                    _tile_loadd(5, x + 16 * p->stride + k, 2 * p->stride);                                             \
                for (long ahead = 0; ahead < lines; ahead += 32)                                                       \
                    __builtin_prefetch(w + 2 * AHEAD + ahead);                                                         \
                for (long plane = 0; plane < planes; plane++, w += 2 * tile) {                                         \
                    _tile_loadd(6, w, line);                                                                           \
                    _tile_dpbf16ps(first, inputs, 6);                                                                  \
                    if (both)                                                                                          \
                        _tile_dpbf16ps(3, 5, 6);                                                                       \
                    _tile_loadd(7, w + side, line);                                                                    \
                    _tile_dpbf16ps(second, inputs, 7);                                                                 \
                    if (both)                                                                                          \
                        _tile_dpbf16ps(4, 5, 7);                                                                       \
                }                                                                                                      \
            }                                                                                                          \
        _tile_stored(first, to, 4 * BLOCK);                                                                            \
        _tile_stored(second, to + 16, 4 * BLOCK);                                                                      \
        if (both) {                                                                                                    \
            _tile_stored(3, to + 16 * BLOCK, 4 * BLOCK);                                                               \
            _tile_stored(4, to + 16 * BLOCK + 16, 4 * BLOCK);                                                          \
        }                                                                                                              \
    } while (0)

/* out [pieces, rows, BLOCK] of some rows, up to GROUP. */
static void multiply_tiles(
    const struct product *p, struct some some, const uint16_t *weights, long start, long pieces, float *out) {
    const int plain = p->m->bits == 16; /* then both halves of a block are side by side, as in `codes` */
    const long piece = p->m->piece, step = step_of(p->m), tile = step * 16, planes = plain ? 1 : p->m->bits / 4;
    const long line = plain ? 128 : 64, side = plain ? 32 : tile, lines = plain ? 2 * tile : 0;
    __asm__ volatile("" ::: "memory");
    for (long i = 0; i < pieces; i += p->stack) {
        const uint16_t *x = (const uint16_t *)p->x + some.first * p->stride + (start + i) * p->advance;
        const long parts = MIN(p->stack, pieces - i);
        float *to = out + i * some.rows * BLOCK;
        const uint16_t *w = weights + i * piece * BLOCK * planes;
        if (some.rows == GROUP && some.even) {
            MULTIPLY(0, 1, 2, 1);
            continue;
        }
        for (long row = 0; row + 16 <= some.rows; row += 16, x += 16 * p->stride, to += 16 * BLOCK) {
            MULTIPLY(0, 1, 2, 0);
            w = weights + i * piece * BLOCK * planes;
        }
        if (some.rows % 16)
            MULTIPLY(3, 4, 5, 0);
    }
    __asm__ volatile("" ::: "memory");
}

/* With few rows, tiles of several pieces, in each piece's own rows: [pieces, stack, rows, piece] with zeros beside. */
static void stacked(const struct product *p, long row) {
    const long piece = p->m->piece, size = piece * sizeof(uint16_t);
    const uint16_t *from = (const uint16_t *)p->given + row * p->m->inputs;
    uint16_t *to = (uint16_t *)p->own + row * piece;
    for (long i = 0; i < p->pieces; i++, from += piece)
        for (long part = 0; part < p->stack; part++, to += p->rows * piece)
            if (part == i % p->stack)
                memcpy(to, from, size);
            else
                memset(to, 0, size);
}
