/* Few rows times a matrix of 4- or 8-bit codes on a CPU, for `packed_linear.py`.

   Outputs lie in blocks of 32, side by side in vectors. Codes are expanded to whole numbers (or entries of a table), some
   inputs of a block at a time, and multiplied by all rows of the pass while they are in the cache nearest to the core. Sums
   over inputs that share a scale are exact but for the rounding of fp32; then the scale and the offset are applied.

   bf16 goes through the matrix units (AMX), which cost the same for 1 to 16 rows; fp32, and bf16 elsewhere, through fused
   multiply-adds of floats. Either adds up a row in an order that hangs on the matrix alone.

   A code's place: of each 32-bit word, lane by lane, 8 codes (4 bits) or 4 codes (8 bits) of one output, those of even
   inputs in the lower half, those of odd ones in the upper half: so 16-bit lanes hold pairs of inputs as AMX wants them. */

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
#define FEW 64    /* rows, at most */
#define TALL (LANES == 16 ? 6 : LANES == 8 ? 2 : 1) /* rows that share a load of weights */
#define ITEM (1L << 16) /* weights that a thread takes at a time, at least */

parallel_fn parallel;

enum { FULL, BF16, FP16 }; /* numbers of scales and offsets */

struct matrix {
    const uint32_t *codes;  /* [blocks, inputs / (32 / bits), BLOCK] */
    const void *factors;    /* [blocks, inputs / group, 1 or 2, BLOCK]: scales, then offsets */
    const float *table;     /* [16]: what 4-bit codes stand for */
    const uint16_t *halves; /* [2, 32] bf16: the same for the lower and the upper 4 bits of a code, twice over */
    const float *bias;      /* [outputs] */
    long outputs, inputs, group, piece, span; /* a span is of one group or of whole ones, a piece lies in one */
    long bits, is_signed, kind, lows;
};

struct pass {
    const struct matrix *m;
    const void *x, *residual;
    const float *sums; /* [rows, inputs / piece] */
    void *out;
    long rows, each; /* blocks of an item */
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
    else
        expand_as(m, codes, inputs, out, 8);
}

static const uint32_t *codes_of(const struct matrix *m, long block, long input) {
    return m->codes + (block * m->inputs + input) * BLOCK * m->bits / 32;
}

/* Scales and offsets of some groups as floats [groups, 1 or 2, BLOCK], from the first one of a block. */
static INLINE void factors_as(const void *from, long n, float *out, const int kind) {
    for (long i = 0; i < n; i += LANES) {
        vf value;
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

static void multiply(const struct pass *p, const float *weights, long start, long inputs, float *out) {
    const struct matrix *m = p->m;
    for (long i = 0; i < inputs; i += m->piece, weights += m->piece * BLOCK) {
        const float *x = (const float *)p->x + start + i;
        long row = 0;
        for (; row + TALL <= p->rows; row += TALL, out += TALL * BLOCK)
            dots(weights, m->piece, x + row * m->inputs, m->inputs, out, TALL);
        for (; row < p->rows; row++, out += BLOCK)
            dots(weights, m->piece, x + row * m->inputs, m->inputs, out, 1);
    }
}

/* Products by matrix units. */

#ifdef TILES

/* Both halves of a block as [planes, 2, SPAN / 2, 16 outputs, 2 inputs] bf16; 8 bits are the sum of two planes. */
static void expand_halves(const struct matrix *m, const uint32_t *codes, long inputs, uint16_t *out) {
    const __m512i lower = _mm512_loadu_si512(m->halves), upper = _mm512_loadu_si512(m->halves + 32);
    const long half = SPAN / 2 * 32, plane = 2 * half;
    for (long i = 0; i < inputs * m->bits / 32; i++)
        for (int side = 0; side < 2; side++) {
            __m512i word = _mm512_loadu_si512(codes + i * BLOCK + side * 16); /* of an index the lowest 5 bits count */
            __m512i second = _mm512_srli_epi16(word, 4), third = _mm512_srli_epi16(word, 8);
            __m512i fourth = _mm512_srli_epi16(word, 12);
            uint16_t *to = out + side * half;
            if (m->bits == 4) {
                to += i * 4 * 32;
                _mm512_store_si512(to, _mm512_permutexvar_epi16(word, lower));
                _mm512_store_si512(to + 32, _mm512_permutexvar_epi16(second, lower));
                _mm512_store_si512(to + 64, _mm512_permutexvar_epi16(third, lower));
                _mm512_store_si512(to + 96, _mm512_permutexvar_epi16(fourth, lower));
            } else {
                to += i * 2 * 32;
                _mm512_store_si512(to, _mm512_permutexvar_epi16(word, lower));
                _mm512_store_si512(to + 32, _mm512_permutexvar_epi16(third, lower));
                _mm512_store_si512(to + plane, _mm512_permutexvar_epi16(second, upper));
                _mm512_store_si512(to + plane + 32, _mm512_permutexvar_epi16(fourth, upper));
            }
        }
}

/* Tiles 0 to 2 are for 16 rows (sums of both halves, inputs), 3 to 5 for those left, 6 and 7 for weights. */
static void configure(const struct pass *p) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    long step = p->m->piece % 32 ? 16 : 32;
    for (int tile = 0; tile < 8; tile++) {
        config.bytes[tile] = tile == 2 || tile == 5 ? 2 * step : 64;
        config.rows[tile] = tile > 5 ? step / 2 : tile < 3 ? 16 : MAX(1, p->rows % 16);
    }
    _tile_loadconfig(&config);
}

#define TILE(first, second, rows)                                                                                      \
    do {                                                                                                               \
        _tile_zero(first);                                                                                             \
        _tile_zero(second);                                                                                            \
        for (long k = 0; k < m->piece; k += step) {                                                                    \
            _tile_loadd(rows, x + k, 2 * m->inputs);                                                                   \
            for (int plane = 0; plane < m->bits / 4; plane++) {                                                        \
                const uint16_t *w = weights + plane * SPAN * 32 + k * 16;                                              \
                _tile_loadd(6, w, 64);                                                                                 \
                _tile_dpbf16ps(first, rows, 6);                                                                        \
                _tile_loadd(7, w + SPAN * 16, 64);                                                                     \
                _tile_dpbf16ps(second, rows, 7);                                                                       \
            }                                                                                                          \
        }                                                                                                              \
        _tile_stored(first, to, 4 * BLOCK);                                                                            \
        _tile_stored(second, to + 16, 4 * BLOCK);                                                                      \
    } while (0)

static void multiply_tiles(const struct pass *p, const uint32_t *codes, long start, long inputs, uint16_t *weights,
                           float *out) {
    const struct matrix *m = p->m;
    long step = m->piece % 32 ? 16 : 32;
    for (long i = 0; i < inputs; i += m->piece, weights += m->piece * 16, codes += m->piece * m->bits) {
        expand_halves(m, codes, m->piece, weights);
        __asm__ volatile("" ::: "memory"); /* tiles are read behind the compiler's back */
        for (long row = 0; row < p->rows; row += 16) {
            const uint16_t *x = (const uint16_t *)p->x + row * m->inputs + start + i;
            float *to = out + row * BLOCK;
            if (row + 16 <= p->rows)
                TILE(0, 1, 2);
            else
                TILE(3, 4, 5);
        }
        out += p->rows * BLOCK;
    }
    __asm__ volatile("" ::: "memory");
}

#endif

/* Add the sums of some inputs [pieces, rows, BLOCK], scaled, to `total` [rows, BLOCK]; x: sums of inputs [rows, pieces]. */
static INLINE void add_as(const struct pass *p, const float *x, long pieces, const float *sums, const float *scales,
                          float *total, const int lows) {
    const long each = (1 + lows) * BLOCK, stride = p->m->inputs / p->m->piece;
    for (long row = 0; row < p->rows; row++)
        for (int v = 0; v < BLOCK; v += LANES) {
            vf y = load(total, row * BLOCK + v, 0);
            for (long i = 0; i < pieces; i++) {
                y += load(sums, (i * p->rows + row) * BLOCK + v, 0) * load(scales, i * each + v, 0);
                if (lows)
                    y += load(scales, i * each + BLOCK + v, 0) * x[row * stride + i];
            }
            store(total, row * BLOCK + v, y, 0);
        }
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

static void product_blocks(const void *job, long item) {
    const struct pass *p = job;
    const struct matrix *m = p->m;
    union {
        float full[SPAN * BLOCK];
        uint16_t half[2 * SPAN * BLOCK];
    } weights __attribute__((aligned(64)));
    float sums[SPAN / PIECE * FEW * BLOCK] __attribute__((aligned(64)));
    float scales[SPAN / PIECE * 2 * BLOCK], total[FEW * BLOCK] __attribute__((aligned(64)));
    long last = MIN((item + 1) * p->each, (m->outputs + BLOCK - 1) / BLOCK);
#ifdef TILES
    if (p->tiles)
        configure(p);
#endif
    for (long block = item * p->each; block < last; block++) {
        memset(total, 0, p->rows * BLOCK * sizeof *total);
        for (long start = 0; start < m->inputs; start += m->span) {
            long inputs = MIN(m->span, m->inputs - start), pieces = inputs / m->piece;
            const uint32_t *codes = codes_of(m, block, start);
            factors(m, block, start / m->group, pieces, scales);
#ifdef TILES
            if (p->tiles)
                multiply_tiles(p, codes, start, inputs, weights.half, sums);
            else
#endif
            {
                expand(m, codes, inputs, weights.full);
                multiply(p, weights.full, start, inputs, sums);
            }
            if (m->lows)
                add_as(p, p->sums + start / m->piece, pieces, sums, scales, total, 1);
            else
                add_as(p, 0, pieces, sums, scales, total, 0);
        }
        finish(p, block, total);
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

/* out [rows, outputs] = x [rows, inputs] times the transpose of a matrix, plus bias and residual; of up to `FEW` rows.
   Gives 1 where memory is short. */
int product(const struct matrix *m, const void *x, const void *residual, void *out, long rows, int half, long threads) {
    long blocks = (m->outputs + BLOCK - 1) / BLOCK, each = MAX(1, ITEM / (BLOCK * m->inputs));
    struct pass pass = {m, x, residual, 0, out, rows, each, half, half && tiles_there};
    float *sums = 0, *full = 0;
    int failed = 0;
    if (m->lows) {
        pass.sums = sums = malloc(rows * (m->inputs / m->piece) * sizeof *sums);
        if ((failed = !sums))
            goto done;
        add_inputs(&pass, sums);
    }
    if (half && !pass.tiles) {
        pass.x = full = malloc(rows * m->inputs * sizeof *full);
        if ((failed = !full))
            goto done;
        for (long i = 0; i < rows * m->inputs; i += LANES)
            store(full, i, load(x, i, half), 0);
    }
    spread(product_blocks, &pass, (blocks + each - 1) / each, (double)m->outputs * m->inputs, threads);
done:
    free(sums);
    free(full);
    return failed;
}

/* Many rows: some blocks as plain numbers [inputs, BLOCK * blocks]. */

struct plain {
    const struct matrix *m;
    void *out;
    long first, blocks;
    int half;
};

static void plain_block(const void *job, long item) {
    const struct plain *j = job;
    const struct matrix *m = j->m;
    float weights[SPAN * BLOCK] __attribute__((aligned(64))), scales[2 * BLOCK];
    for (long start = 0; start < m->inputs; start += m->piece) {
        expand(m, codes_of(m, j->first + item, start), m->piece, weights);
        factors(m, j->first + item, start / m->group, 1, scales);
        for (long i = 0; i < m->piece; i++) {
            for (int v = 0; v < BLOCK; v += LANES) {
                vf w = load(weights, i * BLOCK + v, 0) * load(scales, v, 0);
                if (m->lows)
                    w += load(scales, BLOCK + v, 0);
                store(j->out, ((start + i) * j->blocks + item) * BLOCK + v, w, j->half);
            }
        }
    }
}

void plain(const struct matrix *m, void *out, long first, long blocks, int half, long threads) {
    struct plain job = {m, out, first, blocks, half};
    spread(plain_block, &job, blocks, (double)blocks * BLOCK * m->inputs, threads);
}

/* From rows of codes, one below the other, to blocks. */

struct stored {
    const uint8_t *codes; /* [outputs, inputs * bits / 8]; of 4 bits each group's first half in lower nibbles */
    uint32_t *out;        /* as `codes` of a matrix */
    long outputs, inputs, group, bits;
};

/* 8 codes, one in a byte: those of even inputs to the lower 4 nibbles, of odd ones to the upper. */
static INLINE uint32_t eight(uint64_t codes) {
    uint64_t even = codes & 0x000f000f000f000f, odd = codes >> 8 & 0x000f000f000f000f;
    even = (even | even >> 12) & 0x000000ff000000ff;
    odd = (odd | odd >> 12) & 0x000000ff000000ff;
    return (uint32_t)((even | even >> 24) & 0xffff) | (uint32_t)((odd | odd >> 24) & 0xffff) << 16;
}

static void pack_block(const void *job, long block) {
    const struct stored *s = job;
    long length = s->inputs * s->bits / 8, half = s->group / 2;
    uint32_t *out = s->out + block * BLOCK * length / 4;
    for (long o = 0; o < BLOCK && block * BLOCK + o < s->outputs; o++, out++) {
        const uint8_t *row = s->codes + (block * BLOCK + o) * length;
        if (s->bits == 4)
            for (long start = 0; start < s->inputs; start += s->group)
                for (long i = start; i < start + half; i += 8, row += 8) {
                    uint64_t codes;
                    memcpy(&codes, row, 8);
                    out[i / 8 * BLOCK] = eight(codes & 0x0f0f0f0f0f0f0f0f);
                    out[(i + half) / 8 * BLOCK] = eight(codes >> 4 & 0x0f0f0f0f0f0f0f0f);
                }
        else
            for (long i = 0; i < s->inputs / 4; i++, row += 4) {
                uint32_t codes;
                memcpy(&codes, row, 4);
                out[i * BLOCK] = (codes & 0xff0000ff) | (codes >> 8 & 0xff00) | (codes & 0xff00) << 8;
            }
    }
}

void pack(const uint8_t *codes, uint32_t *out, long outputs, long inputs, long group, long bits, long threads) {
    struct stored job = {codes, out, outputs, inputs, group, bits};
    spread(pack_block, &job, (outputs + BLOCK - 1) / BLOCK, (double)outputs * inputs, threads);
}
