/* Rows times a matrix on a CPU, one of 4- or 8-bit codes or of plain bf16, for `packed_linear.py`.

   Outputs are in blocks of 32, side by side in vectors. Codes are expanded to whole numbers (or entries of a table), some
   inputs of a block at a time, and multiplied by many rows, GROUP at a time, while they are in the cache nearest to the core.
   Sums over inputs that share a scale are exact but for the rounding of fp32; then the scale and the offset are applied.

   bf16 goes through the matrix units (AMX), which cost the same for 1 to 16 rows; fp32, and bf16 elsewhere, through fused
   multiply-adds of floats. Either adds up a row in an order that depends on the matrix alone: a row has the same bits in
   every pass, whatever shares it.

   A code's place: in each 32-bit word lie 8 codes (4 bits), 4 codes (8 bits) or 2 numbers of one output, those of even
   inputs in the lower half, those of odd ones in the upper half: so pairs of 16-bit lanes are what AMX wants. Plain weights
   are multiplied from where they lie. */

#include "native_steps.h"

#ifdef TILES
#include <sys/syscall.h>
#include <unistd.h>
#endif

#define BLOCK 32 /* outputs */
#define VECTORS (BLOCK / LANES)
#define SPAN 128 /* inputs worked on at a time, at most */
#define PIECE 16 /* inputs that share a scale, at least */
#define GROUP 32 /* rows multiplied together: two tiles of them */
#define TILE_ROWS 16
#define PANEL 512 /* rows of an item, at most */
#define FEW 64 /* rows of an item of a pass that has as many, at least */
#define NEAR (1L << 20) /* bytes of inputs that stay in a core's own cache while it goes through the outputs */
#define STACK 4  /* rows of a tile that several pieces share, at most: more are more zeros to write and to read */
#define TALL (LANES / 4) /* rows that share what is loaded */
#define HIGH (LANES < 16 ? TALL : 8) /* rows whose sums are scaled together: enough additions to hide how long one takes */
#define AHEAD 2048 /* words of codes that are asked for before they are needed */
#define ITEM (1L << 16) /* weights that a thread takes at a time, at least */

enum { FULL, BF16, FP16 }; /* numbers of scales and offsets */

int tiles_there;

/* Numbers of a vector. */
int lanes(void) { return LANES; }

/* Asks the system for the matrix units; gives whether there are some. */
int use_tiles(void) {
#ifdef TILES
    tiles_there = syscall(SYS_arch_prctl, 0x1023, 18) == 0;
#endif
    return tiles_there;
}

/* Codes. */

static INLINE vu word_at(const uint32_t *codes, long i) {
    vu word;
    __builtin_prefetch(codes + i + AHEAD);
    memcpy(&word, codes + i, sizeof word);
    return word;
}

/* Entries of a table by the lowest 4 bits. */
static INLINE vf entries(const float *table, vu code) {
#if LANES == 16
    return (vf)_mm512_permutexvar_ps((__m512i)code, _mm512_loadu_ps(table));
#elif LANES == 8
    __m256 lower = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), (__m256i)code);
    __m256 upper = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), (__m256i)code);
    return (vf)_mm256_blendv_ps(lower, upper, (__m256)(code << 28));
#else
    float value[LANES];
    for (int i = 0; i < LANES; i++)
        value[i] = table[code[i] & 15];
    return load(value, 0, 0);
#endif
}

enum { EVEN, TABLE, SIGNED, UNSIGNED, PLAIN }; /* codes: of even steps in 4 bits, any 4 bits, 8 bits */

static INLINE vf code_at(const struct matrix *m, vu word, const int codes, const int at) {
    if (codes == EVEN)
        return __builtin_convertvector((vi)(word >> (4 * at) & 15) + (int)m->least, vf);
    if (codes == TABLE)
        return entries(m->table, word >> (4 * at));
    if (codes == SIGNED)
        return __builtin_convertvector((vi)(word << (24 - 8 * at)) >> 24, vf);
    if (codes == UNSIGNED)
        return __builtin_convertvector((vi)((word >> (8 * at)) & 255), vf);
    return (vf)(at ? word & 0xffff0000 : word << 16);
}

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

/* Products by floats: out [pieces, rows, BLOCK] of some inputs of some rows. */

struct some { /* rows that are worked on together, up to GROUP */
    long first, rows;
    int even; /* whether all rows of their item fill tiles */
};

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

static void multiply(
    const struct product *p, struct some some, const float *weights, long start, long pieces, float *out) {
    const long inputs = p->m->inputs, piece = p->m->piece;
    for (long i = 0; i < pieces; i++, weights += piece * BLOCK) {
        const float *x = (const float *)p->x + some.first * inputs + (start + i) * piece;
        long row = 0;
        for (; row + TALL <= some.rows; row += TALL, out += TALL * BLOCK)
            dots(weights, piece, x + row * inputs, inputs, out, TALL);
        for (; row < some.rows; row++, out += BLOCK)
            dots(weights, piece, x + row * inputs, inputs, out, 1);
    }
}

#ifdef TILES
#include "native_tiles.h"
#endif

/* Add the sums of some pieces [pieces, all, BLOCK], scaled, to `total` [rows, BLOCK]; x: sums of inputs, `stride` apart. */
static INLINE void add_rows(const float *x, long stride, long pieces, const float *sums, long all, const float *scales,
                            float *total, const int lows, const int rows) {
    vf y[HIGH][VECTORS];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++)
            y[r][v] = load(total, r * BLOCK + v * LANES, 0);
    for (long i = 0; i < pieces; i++, sums += all * BLOCK, scales += (1 + lows) * BLOCK) {
        vf scale[VECTORS], low[VECTORS];
        for (int v = 0; v < VECTORS; v++) {
            scale[v] = load(scales, v * LANES, 0);
            low[v] = lows ? load(scales, BLOCK + v * LANES, 0) : scale[v];
        }
        for (int r = 0; r < rows; r++) {
            vf input = splat(lows ? x[r * stride + i] : 0);
            for (int v = 0; v < VECTORS; v++) {
                y[r][v] += load(sums, r * BLOCK + v * LANES, 0) * scale[v];
                if (lows)
                    y[r][v] += low[v] * input;
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < VECTORS; v++)
            store(total, r * BLOCK + v * LANES, y[r][v], 0);
}

static INLINE void add_as(const struct product *p, struct some some, long start, long pieces, const float *sums,
                          const float *scales, float *total, const int lows) {
    const float *x = lows ? p->sums + some.first * p->pieces + start : 0;
    long row = 0;
    for (; row + HIGH <= some.rows; row += HIGH, sums += HIGH * BLOCK, total += HIGH * BLOCK)
        add_rows(x + row * p->pieces, p->pieces, pieces, sums, some.rows, scales, total, lows, HIGH);
    for (; row + TALL <= some.rows; row += TALL, sums += TALL * BLOCK, total += TALL * BLOCK)
        add_rows(x + row * p->pieces, p->pieces, pieces, sums, some.rows, scales, total, lows, TALL);
    for (; row < some.rows; row++, sums += BLOCK, total += BLOCK)
        add_rows(x + row * p->pieces, p->pieces, pieces, sums, some.rows, scales, total, lows, 1);
}

static void add(const struct product *p, struct some some, long start, long pieces, const float *sums, const float *scales,
                float *total) {
    if (p->m->lows)
        add_as(p, some, start, pieces, sums, scales, total, 1);
    else
        add_as(p, some, start, pieces, sums, scales, total, 0);
}

/* The outputs of a block, of all rows of an item: `total` [rows, BLOCK] rounded, with what is added to them. */
static void finish(const struct product *p, struct some some, long block, const float *total) {
    const struct matrix *m = p->m;
    for (long row = some.first; row < some.first + some.rows; row++, total += BLOCK)
        for (long v = 0, o = block * BLOCK; v < BLOCK && o < m->outputs; v += LANES, o += LANES) {
            vf y = load(total, v, 0);
            if (m->bias)
                y += load_some(m->bias, o, m->outputs, 0);
            if (p->residual)
                y += load_some(at(p->residual, row * m->outputs, p->half), o, m->outputs, p->half);
            store_some((void *)at(p->out, row * p->line, p->out_half), o, m->outputs, y, p->out_half);
        }
}

static INLINE struct some group_of(struct some all, long from) {
    return (struct some){all.first + from, MIN(GROUP, all.rows - from), all.even};
}

static void product_block(const struct product *p, struct some all, long block, float *total) {
    const struct matrix *m = p->m;
    union {
        float full[SPAN * BLOCK];
        uint16_t half[2 * SPAN * BLOCK];
    } weights ALIGNED;
    float sums[SPAN / PIECE * GROUP * BLOCK] ALIGNED, scales[SPAN / PIECE * 2 * BLOCK] ALIGNED;
    memset(total, 0, all.rows * BLOCK * sizeof *total);
    for (long start = 0; start < p->pieces; start += m->parts) {
        const long n = MIN(m->parts, p->pieces - start);
        const uint32_t *codes = codes_of(m, block, start * m->piece);
        factors(m, block, m->group == m->piece ? start : start * m->piece / m->group, n, scales);
#ifdef TILES
        if (p->tiles)
            expand_tiles(m, codes, n * m->piece, weights.half);
        else
#endif
            expand(m, codes, n * m->piece, weights.full);
        for (long from = 0; from < all.rows; from += GROUP) {
            const struct some some = group_of(all, from);
#ifdef TILES
            if (p->tiles)
                multiply_tiles(p, some, weights.half, start, n, sums);
            else
#endif
                multiply(p, some, weights.full, start, n, sums);
            add(p, some, start, n, sums, scales, total + from * BLOCK);
        }
    }
}

#ifdef TILES
/* A block of plain weights: one piece, no scales. */
static void plain_product(const struct product *p, struct some all, long block, float *total) {
    for (long from = 0; from < all.rows; from += GROUP)
        multiply_tiles(p, group_of(all, from), (const uint16_t *)codes_of(p->m, block, 0), 0, 1, total + from * BLOCK);
}
#endif

/* Rows of a pass that are shared out among items; those that fill no tile are by themselves where there are many. */
static long whole_of(const struct product *p) { return p->rows > FEW ? p->rows / TILE_ROWS * TILE_ROWS : p->rows; }

static struct some panel_of(const struct product *p, long number) {
    const long first = number * p->panel, whole = whole_of(p);
    const long rows = first < whole ? MIN(p->panel, whole - first) : p->rows - whole;
    return (struct some){MIN(first, whole), rows, rows % TILE_ROWS == 0};
}

static long panels(const struct product *p) {
    const long whole = whole_of(p);
    return (whole + p->panel - 1) / p->panel + (whole < p->rows);
}

void product_item(const void *job, long item) {
    const struct product *p = job;
    const struct matrix *m = p->m;
    const long column = item % p->columns;
    const struct some all = panel_of(p, item / p->columns);
    const long last = MIN((column + 1) * p->each, (m->outputs + BLOCK - 1) / BLOCK);
    float total[PANEL * BLOCK] ALIGNED;
#ifdef TILES
    if (p->tiles)
        configure(p, all.rows);
#endif
    for (long block = column * p->each; block < last; block++) {
#ifdef TILES
        if (m->bits == 16)
            plain_product(p, all, block, total);
        else
#endif
            product_block(p, all, block, total);
        finish(p, all, block, total);
    }
#ifdef TILES
    if (p->tiles)
        _tile_release();
#endif
}

/* Sums of the inputs of each piece, [pieces]. */
static void add_inputs(const struct product *p, long row) {
    const struct matrix *m = p->m;
    float *out = p->sums + row * p->pieces;
    for (long start = 0; start < m->inputs; start += m->piece) {
        vf sum = {0};
        for (long i = start; i < start + m->piece; i += LANES)
            sum += load(p->given, row * m->inputs + i, p->half);
        *out++ = total(sum);
    }
}

void product_row(const void *job, long row) {
    const struct product *p = job;
    const long inputs = p->m->inputs;
    if (p->sums)
        add_inputs(p, row);
    if (p->own && !p->tiles)
        for (long i = row * inputs; i < (row + 1) * inputs; i += LANES)
            store(p->own, i, load(p->given, i, 1), 0);
#ifdef TILES
    else if (p->own)
        stacked(p, row);
#endif
}

static long stack_of(const struct matrix *m, long rows) { return MAX(1, MIN(m->parts, STACK / rows)); }

/* Bytes of `own` in a whole number of lines. */
static long own_room(const struct matrix *m, long rows, int half) {
    long each = !half ? 0 : !tiles_there ? 4 : stack_of(m, rows) > 1 ? 2 * stack_of(m, rows) : 0;
    return (rows * m->inputs * each + 63) / 64 * 64;
}

long product_room(const struct matrix *m, long rows, int half) {
    return own_room(m, rows, half) + (m->lows ? rows * (m->inputs / m->piece) * (long)sizeof(float) : 0);
}

void product_begin(struct product *p, void *room) {
    const struct matrix *m = p->m;
    const long own = own_room(m, p->rows, p->half), blocks = (m->outputs + BLOCK - 1) / BLOCK;
    p->pieces = m->inputs / m->piece;
    p->each = MAX(1, ITEM / (BLOCK * m->inputs));
    p->columns = (blocks + p->each - 1) / p->each;
    p->panel = MAX(FEW, MIN(PANEL, NEAR / (m->inputs * (p->half ? 2 : 4)) / GROUP * GROUP));
    const long whole = whole_of(p), parts = MAX(1, (whole + p->panel - 1) / p->panel);
    p->panel = MAX(FEW, (whole + parts * GROUP - 1) / (parts * GROUP) * GROUP); /* of equal length: each expands all codes */
    p->items = p->columns * panels(p);
    p->tiles = p->half && tiles_there;
    p->stack = stack_of(m, p->rows);
    p->stride = m->inputs;
    p->advance = m->piece;
    if (p->tiles && p->stack > 1) {
        p->stride = m->piece;
        p->advance = p->stack * p->rows * m->piece;
    }
    p->own = own ? room : 0;
    p->x = own ? room : p->given;
    p->sums = m->lows ? (float *)((char *)room + own) : 0;
}

/* out [rows, outputs] = given [rows, inputs] times the transpose of a matrix, plus bias and residual. Gives 1
   where memory is short. */
int product(
    const struct matrix *m, const void *given, const void *residual, void *out, long rows, int half, int out_half,
    long threads) {
    struct product job = {m, given, residual, out, m->outputs, rows, half, out_half};
    if (!rows)
        return 0;
    long bytes = product_room(m, rows, half);
    void *room = bytes ? aligned_alloc(64, (bytes + 63) / 64 * 64) : 0;
    if (bytes && !room)
        return 1;
    product_begin(&job, room);
    if (bytes)
        spread(product_row, &job, rows, (double)rows * m->inputs, threads);
    spread(product_item, &job, job.items, (double)m->outputs * m->inputs * (1 + rows / 8), threads);
    free(room);
    return 0;
}

/* Some blocks as plain numbers [inputs, BLOCK * blocks]. */

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
            vu word = word_at(codes, v);
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
    float weights[SPAN * BLOCK] ALIGNED, scales[2 * BLOCK];
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
