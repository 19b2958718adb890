/* Few rows times a matrix on a CPU, one of 4- or 8-bit codes or of plain bf16, for `packed_linear.py`.

   Outputs lie in blocks of 32, side by side in vectors. Codes are expanded to whole numbers (or entries of a table), some
   inputs of a block at a time, and multiplied by all rows of the pass while they are in the cache nearest to the core. Sums
   over inputs that share a scale are exact but for the rounding of fp32; then the scale and the offset are applied.

   bf16 goes through the matrix units (AMX), which cost the same for 1 to 16 rows; fp32, and bf16 elsewhere, through fused
   multiply-adds of floats. Either adds up a row in an order that hangs on the matrix alone.

   A code's place: in each 32-bit word lie 8 codes (4 bits), 4 codes (8 bits) or 2 numbers of one output, those of even
   inputs in the lower half, those of odd ones in the upper half: so pairs of 16-bit lanes are what AMX wants. Plain weights
   are multiplied from where they lie. */

#include "native.h"

#if defined(__AMX_BF16__) && defined(__AVX512BW__) && defined(__linux__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>
#define TILES 1
#elif LANES == 16
#include <immintrin.h>
#endif

#define BLOCK 32 /* outputs */
#define VECTORS (BLOCK / LANES)
#define SPAN 128 /* inputs worked on at a time, at most */
#define PIECE 16 /* inputs that share a scale, at least */
#define FEW 64   /* rows, at most */
#define STACK 8  /* rows of a tile that several pieces share, at most */
#define TALL (LANES / 4) /* rows that share what is loaded */
#define AHEAD 2048 /* words of codes that are asked for before they are needed */
#define ITEM (1L << 16) /* weights that a thread takes at a time, at least */

parallel_fn parallel;

enum { FULL, BF16, FP16 }; /* numbers of scales and offsets */

struct matrix {
    const uint32_t *codes;  /* [blocks, inputs / (32 / bits), BLOCK] */
    const void *factors;    /* [blocks, inputs / group, 1 or 2, BLOCK]: scales, then offsets; none for plain weights */
    const float *table;     /* [16]: what 4-bit codes stand for */
    const uint16_t *halves; /* [2, 32] bf16: the same for the lower and the upper 4 bits of a code, twice over */
    const float *bias;      /* [outputs] */
    long outputs, inputs, group, piece, parts; /* a piece lies in one group; parts: pieces worked on at a time */
    long bits, is_signed, kind, lows;
};

struct pass {
    const struct matrix *m;
    const void *x, *residual;
    const float *sums; /* [rows, pieces] */
    void *out;
    long rows, pieces, each;     /* blocks of an item */
    long stack, stride, advance; /* of tiles: pieces in one, numbers of a row, numbers from piece to piece */
    int half, tiles;
};

static int tiles_there;

/* Threads for long work: the address of GOMP_parallel, or none. Gives whether there are matrix units. */
int use_threads(void *found) {
    parallel = (parallel_fn)found;
#ifdef TILES
    tiles_there = syscall(SYS_arch_prctl, 0x1023, 18) == 0; /* asks the system for the registers */
#endif
    return tiles_there;
}

/* Codes. */

static INLINE vu words(const uint32_t *codes, long i) {
    vu word;
    __builtin_prefetch(codes + i + AHEAD);
    memcpy(&word, codes + i, sizeof word);
    return word;
}

static INLINE vf entries(const float *table, vu code) {
#if LANES == 16
    return (vf)_mm512_permutexvar_ps((__m512i)code, _mm512_loadu_ps(table)); /* the lowest 4 bits count */
#else
    float value[LANES];
    for (int i = 0; i < LANES; i++)
        value[i] = table[code[i] & 15];
    return load(value, 0, 0);
#endif
}

static INLINE vf code_at(const struct matrix *m, vu word, const int bits, const int at) {
    if (bits == 4)
        return entries(m->table, word >> (4 * at));
    if (bits == 16)
        return (vf)(at ? word & 0xffff0000 : word << 16);
    if (m->is_signed)
        return __builtin_convertvector((vi)(word << (24 - 8 * at)) >> 24, vf);
    return __builtin_convertvector((vi)((word >> (8 * at)) & 255), vf);
}

/* [inputs, BLOCK] floats of some inputs. */
static INLINE void expand_as(const struct matrix *m, const uint32_t *codes, long inputs, float *out, const int bits) {
    const int each = 32 / bits;
    for (long i = 0; i < inputs; i += each, codes += BLOCK)
        for (int v = 0; v < BLOCK; v += LANES) {
            vu word = words(codes, v);
            for (int at = 0; at < each; at++) {
                int input = 2 * (at % (each / 2)) + at / (each / 2);
                store(out, (i + input) * BLOCK + v, code_at(m, word, bits, at), 0);
            }
        }
}

static void expand(const struct matrix *m, const uint32_t *codes, long inputs, float *out) {
    if (m->bits == 4)
        expand_as(m, codes, inputs, out, 4);
    else if (m->bits == 8)
        expand_as(m, codes, inputs, out, 8);
    else
        expand_as(m, codes, inputs, out, 16);
}

static const uint32_t *codes_of(const struct matrix *m, long block, long input) {
    return m->codes + (block * m->inputs + input) * BLOCK * m->bits / 32;
}

/* Scales and offsets of some groups as floats [groups, 1 or 2, BLOCK], from the first one of a block. */
static INLINE void factors_as(const void *from, long n, float *out, const int kind) {
    for (long i = 0; i < n; i += LANES) {
        vf value;
        __builtin_prefetch((const uint16_t *)from + i + AHEAD / 2);
        if (kind == FP16) {
#if LANES == 16
            value = (vf)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)((const uint16_t *)from + i)));
#else
            vh narrow;
            memcpy(&narrow, (const uint16_t *)from + i, sizeof narrow);
            vu bits = __builtin_convertvector(narrow, vu);
            value = (vf)((bits & 0x7fff) << 13) * 0x1p112f;
            value = (vf)((vu)value | (bits & 0x8000) << 16);
#endif
        } else
            value = load(from, i, kind == BF16);
        store(out, i, value, 0);
    }
}

static void factors(const struct matrix *m, long block, long group, long groups, float *out) {
    long each = (1 + m->lows) * BLOCK;
    const void *from = at(m->factors, (block * (m->inputs / m->group) + group) * each, m->kind != FULL);
    if (m->kind == FP16)
        factors_as(from, groups * each, out, FP16);
    else if (m->kind == BF16)
        factors_as(from, groups * each, out, BF16);
    else
        factors_as(from, groups * each, out, FULL);
}

/* Products by floats: out [rows, BLOCK] of some inputs. */

static INLINE void dots(const float *weights, long inputs, const float *x, long stride, float *out, const int rows) {
    vf sum[TALL][VECTORS] = {0};
    for (long i = 0; i < inputs; i++)
        for (int v = 0; v < VECTORS; v++) {
            vf w = load(weights, i * BLOCK + v * LANES, 0);
            for (int r = 0; r < rows; r++)
                sum[r][v] += w * x[r * stride + i];
        }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++)
            store(out, r * BLOCK + v * LANES, sum[r][v], 0);
}

static void multiply(const struct pass *p, const float *weights, long start, long pieces, float *out) {
    const long inputs = p->m->inputs, piece = p->m->piece;
    for (long i = 0; i < pieces; i++, weights += piece * BLOCK) {
        const float *x = (const float *)p->x + (start + i) * piece;
        long row = 0;
        for (; row + TALL <= p->rows; row += TALL, out += TALL * BLOCK)
            dots(weights, piece, x + row * inputs, inputs, out, TALL);
        for (; row < p->rows; row++, out += BLOCK)
            dots(weights, piece, x + row * inputs, inputs, out, 1);
    }
}

/* Products by matrix units. */

#ifdef TILES

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

/* Tiles 0 to 2 are for 16 rows (sums of both halves, inputs), 3 to 5 for those left, 6 and 7 for weights. */
static void configure(const struct pass *p) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    long step = step_of(p->m);
    for (int tile = 0; tile < 8; tile++) {
        config.bytes[tile] = tile == 2 || tile == 5 ? 2 * step : 64;
        config.rows[tile] = tile > 5 ? step / 2 : tile < 3 ? 16 : MAX(1, p->rows % 16) * p->stack;
    }
    __asm__ volatile("" : : "r"(&config) : "memory"); /* tiles are set up and read behind the compiler's back */
    _tile_loadconfig(&config);
}

#define TILE(first, second, rows)                                                                                      \
    do {                                                                                                               \
        _tile_zero(first);                                                                                             \
        _tile_zero(second);                                                                                            \
        for (long part = 0; part < parts; part++)                                                                      \
            for (long k = 0; k < piece; k += step) {                                                                   \
                _tile_loadd(rows, x + part * p->advance + k, 2 * p->stride);                                           \
                for (long ahead = 0; ahead < lines; ahead += 32)                                                       \
                    __builtin_prefetch(w + 2 * AHEAD + ahead);                                                         \
                for (long plane = 0; plane < planes; plane++, w += 2 * tile) {                                         \
                    _tile_loadd(6, w, line);                                                                           \
                    _tile_dpbf16ps(first, rows, 6);                                                                    \
                    _tile_loadd(7, w + side, line);                                                                    \
                    _tile_dpbf16ps(second, rows, 7);                                                                   \
                }                                                                                                      \
            }                                                                                                          \
        _tile_stored(first, to, 4 * BLOCK);                                                                            \
        _tile_stored(second, to + 16, 4 * BLOCK);                                                                      \
    } while (0)

static void multiply_tiles(const struct pass *p, const uint16_t *weights, long start, long pieces, float *out) {
    const int plain = p->m->bits == 16; /* then both halves of a block lie side by side, as in `codes` */
    const long piece = p->m->piece, step = step_of(p->m), tile = step * 16, planes = plain ? 1 : p->m->bits / 4;
    const long line = plain ? 128 : 64, side = plain ? 32 : tile, lines = plain ? 2 * tile : 0;
    __asm__ volatile("" ::: "memory");
    for (long i = 0; i < pieces; i += p->stack) {
        const uint16_t *x = (const uint16_t *)p->x + (start + i) * p->advance;
        const long parts = MIN(p->stack, pieces - i);
        float *to = out + i * p->rows * BLOCK;
        long left = p->rows;
        for (; left >= 16; left -= 16, x += 16 * p->stride, to += 16 * BLOCK) {
            const uint16_t *w = weights + i * piece * BLOCK * planes;
            TILE(0, 1, 2);
        }
        if (left) {
            const uint16_t *w = weights + i * piece * BLOCK * planes;
            TILE(3, 4, 5);
        }
    }
    __asm__ volatile("" ::: "memory");
}

/* With few rows, tiles of several pieces, in each piece's own rows: [pieces, stack, rows, piece] with zeros beside. */
static uint16_t *stacked(struct pass *p) {
    const struct matrix *m = p->m;
    uint16_t *out = calloc(m->inputs * p->rows * p->stack, sizeof *out), *to = out;
    p->stride = m->piece;
    p->advance = p->stack * p->rows * m->piece;
    for (long i = 0; out && i < p->pieces; i++, to += p->advance)
        for (long row = 0; row < p->rows; row++)
            memcpy(to + (i % p->stack * p->rows + row) * m->piece,
                   (const uint16_t *)p->x + row * m->inputs + i * m->piece, m->piece * sizeof *out);
    return out;
}

#endif

/* Add the sums of some pieces [pieces, rows, BLOCK], scaled, to `total` [rows, BLOCK]; x: sums of inputs [rows, pieces]. */
static INLINE void add_rows(const struct pass *p, const float *x, long pieces, const float *sums, const float *scales,
                            float *total, const int lows, const int rows) {
    vf y[TALL][VECTORS];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++)
            y[r][v] = load(total, r * BLOCK + v * LANES, 0);
    for (long i = 0; i < pieces; i++, sums += p->rows * BLOCK, scales += (1 + lows) * BLOCK)
        for (int v = 0; v < VECTORS; v++) {
            vf scale = load(scales, v * LANES, 0), low = lows ? load(scales, BLOCK + v * LANES, 0) : scale;
            for (int r = 0; r < rows; r++) {
                y[r][v] += load(sums, r * BLOCK + v * LANES, 0) * scale;
                if (lows)
                    y[r][v] += low * x[r * p->pieces + i];
            }
        }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++)
            store(total, r * BLOCK + v * LANES, y[r][v], 0);
}

static INLINE void add(const struct pass *p, const float *x, long pieces, const float *sums, const float *scales,
                       float *total, const int lows) {
    long row = 0;
    for (; row + TALL <= p->rows; row += TALL)
        add_rows(p, x + row * p->pieces, pieces, sums + row * BLOCK, scales, total + row * BLOCK, lows, TALL);
    for (; row < p->rows; row++)
        add_rows(p, x + row * p->pieces, pieces, sums + row * BLOCK, scales, total + row * BLOCK, lows, 1);
}

static void finish(const struct pass *p, long block, const float *total) {
    const struct matrix *m = p->m;
    for (long row = 0; row < p->rows; row++)
        for (long v = 0, o = block * BLOCK; v < BLOCK && o < m->outputs; v += LANES, o += LANES) {
            vf y = load(total, row * BLOCK + v, 0);
            if (m->bias)
                y += load_some(m->bias, o, m->outputs, 0);
            if (p->residual)
                y += load_some(at(p->residual, row * m->outputs, p->half), o, m->outputs, p->half);
            store_some((void *)at(p->out, row * m->outputs, p->half), o, m->outputs, y, p->half);
        }
}

static void product_block(const struct pass *p, long block) {
    const struct matrix *m = p->m;
    union {
        float full[SPAN * BLOCK];
        uint16_t half[2 * SPAN * BLOCK];
    } weights __attribute__((aligned(64)));
    float sums[SPAN / PIECE * FEW * BLOCK] __attribute__((aligned(64)));
    float scales[SPAN / PIECE * 2 * BLOCK], total[FEW * BLOCK] __attribute__((aligned(64)));
    memset(total, 0, p->rows * BLOCK * sizeof *total);
    for (long start = 0; start < p->pieces; start += m->parts) {
        const long n = MIN(m->parts, p->pieces - start);
        const uint32_t *codes = codes_of(m, block, start * m->piece);
        factors(m, block, m->group == m->piece ? start : start * m->piece / m->group, n, scales);
#ifdef TILES
        if (p->tiles) {
            expand_tiles(m, codes, n * m->piece, weights.half);
            multiply_tiles(p, weights.half, start, n, sums);
        } else
#endif
        {
            expand(m, codes, n * m->piece, weights.full);
            multiply(p, weights.full, start, n, sums);
        }
        if (m->lows)
            add(p, p->sums + start, n, sums, scales, total, 1);
        else
            add(p, sums, n, sums, scales, total, 0);
    }
    finish(p, block, total);
}

static void product_blocks(const void *job, long item) {
    const struct pass *p = job;
    const struct matrix *m = p->m;
    const long last = MIN((item + 1) * p->each, (m->outputs + BLOCK - 1) / BLOCK);
#ifdef TILES
    if (p->tiles)
        configure(p);
#endif
    for (long block = item * p->each; block < last; block++) {
#ifdef TILES
        if (m->bits == 16) { /* one piece, no scales */
            float total[FEW * BLOCK] __attribute__((aligned(64)));
            multiply_tiles(p, (const uint16_t *)codes_of(m, block, 0), 0, 1, total);
            finish(p, block, total);
            continue;
        }
#endif
        product_block(p, block);
    }
#ifdef TILES
    if (p->tiles)
        _tile_release();
#endif
}

/* Sums of the inputs of each piece, [rows, pieces]. */
static void add_inputs(const struct pass *p, float *out) {
    const struct matrix *m = p->m;
    for (long row = 0; row < p->rows; row++)
        for (long start = 0; start < m->inputs; start += m->piece) {
            vf sum = {0};
            for (long i = start; i < start + m->piece; i += LANES)
                sum += load(p->x, row * m->inputs + i, p->half);
            *out++ = total(sum);
        }
}

static float *widened(const struct pass *p) {
    long n = p->rows * p->m->inputs;
    float *out = malloc(n * sizeof *out);
    for (long i = 0; out && i < n; i += LANES)
        store(out, i, load(p->x, i, 1), 0);
    return out;
}

/* out [rows, outputs] = x [rows, inputs] times the transpose of a matrix, plus bias and residual; of up to `FEW` rows.
   Gives 1 where memory is short. */
int product(const struct matrix *m, const void *x, const void *residual, void *out, long rows, int half, long threads) {
    long blocks = (m->outputs + BLOCK - 1) / BLOCK, each = MAX(1, ITEM / (BLOCK * m->inputs));
    struct pass pass = {.m = m, .x = x, .residual = residual, .out = out, .rows = rows, .each = each, .half = half};
    float *sums = 0;
    void *own = 0; /* inputs in another form */
    int failed = 0;
    if (!rows)
        return 0;
    pass.pieces = m->inputs / m->piece;
    pass.tiles = half && tiles_there;
    pass.stack = MAX(1, MIN(m->parts, STACK / rows));
    pass.stride = m->inputs;
    pass.advance = m->piece;
    if (m->lows) {
        pass.sums = sums = malloc(rows * pass.pieces * sizeof *sums);
        if (sums)
            add_inputs(&pass, sums);
        failed = !sums;
    }
#ifdef TILES
    if (pass.tiles && pass.stack > 1)
        own = stacked(&pass);
#endif
    if (half && !pass.tiles)
        own = widened(&pass);
    if (own)
        pass.x = own;
    failed |= !own && half && (!pass.tiles || pass.stack > 1);
    if (!failed)
        spread(product_blocks, &pass, (blocks + each - 1) / each, (double)m->outputs * m->inputs * (1 + rows / 8), threads);
    free(sums);
    free(own);
    return failed;
}

/* Many rows: some blocks as plain numbers [inputs, BLOCK * blocks]. */

struct plain {
    const struct matrix *m;
    void *out;
    long first, blocks;
    int half;
};

/* Plain weights: numbers of even inputs and of odd ones lie side by side. */
static void apart(const struct plain *j, long item) {
    const uint32_t *codes = codes_of(j->m, j->first + item, 0);
    uint16_t *out = (uint16_t *)j->out + item * BLOCK;
    const long line = j->blocks * BLOCK;
    for (long i = 0; i < j->m->inputs; i += 2, codes += BLOCK, out += 2 * line)
        for (int v = 0; v < BLOCK; v += LANES) {
            vu word = words(codes, v);
            vh even = __builtin_convertvector(word & 0xffff, vh), odd = __builtin_convertvector(word >> 16, vh);
            memcpy(out + v, &even, sizeof even);
            memcpy(out + line + v, &odd, sizeof odd);
        }
}

static void plain_block(const void *job, long item) {
    const struct plain *j = job;
    const struct matrix *m = j->m;
    if (m->bits == 16 && j->half) {
        apart(j, item);
        return;
    }
    const long block = j->first + item, piece = MIN(m->piece, SPAN);
    float weights[SPAN * BLOCK] __attribute__((aligned(64))), scales[2 * BLOCK];
    for (long start = 0; start < m->inputs; start += piece) {
        long inputs = MIN(piece, m->inputs - start);
        expand(m, codes_of(m, block, start), inputs, weights);
        if (m->factors)
            factors(m, block, start / m->group, 1, scales);
        for (long i = 0; i < inputs; i++)
            for (int v = 0; v < BLOCK; v += LANES) {
                vf w = load(weights, i * BLOCK + v, 0);
                if (m->factors)
                    w *= load(scales, v, 0);
                if (m->lows)
                    w += load(scales, BLOCK + v, 0);
                store(j->out, ((start + i) * j->blocks + item) * BLOCK + v, w, j->half);
            }
    }
}

void plain(const struct matrix *m, void *out, long first, long blocks, int half, long threads) {
    struct plain job = {m, out, first, blocks, half};
    spread(plain_block, &job, blocks, (double)blocks * BLOCK * m->inputs, threads);
}
