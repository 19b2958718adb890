/* The steps of a pass in pieces, each an item that any thread may do: as calls of their own spread them, and as a stack of
   blocks (`native_stack.c`) goes through them. Every member of a team may set up the same job for itself. */

#include "native.h"

#define HIDDEN __attribute__((visibility("hidden")))

#if defined(__AMX_BF16__) && defined(__AVX512BW__) && defined(__linux__)
#define TILES 1
#endif

extern int tiles_there HIDDEN; /* matrix units (AMX) that the system lets us use */

/* Norms and gates, an item for each row. */

struct rows {
    const void *x, *weight;
    void *out;
    long n; /* numbers of a row of `out` */
    float eps;
    int half, activation;
};

HIDDEN void norm_row(const void *rows, long row);
HIDDEN void gate_row(const void *rows, long row);

/* Attention: heads are prepared, then tiles worked on, then rows finished.

   Letters: S rows of the pass, H query heads, K key/value heads, G = H / K, h head size, C rows held, T loose rows. */

struct layer { /* what never changes; as `native._Layer` */
    long heads, kv_heads, head, window, reads, q_normed, k_normed;
    const void *q_weight, *k_weight;
    const float *sinks;
    float scale, q_eps, k_eps;
};

struct sight { /* whom each row sees, as `ops.Sight` */
    const int64_t *base, *positions, *loose, *bits;
    long count; /* T */
};

struct attention {
    const struct layer *layer;
    const struct sight *sight;
    const void *mixed;
    long stride; /* numbers from row to row of `mixed` */
    void *kv;    /* [C, 2K, h] */
    const int64_t *slots;
    long ring;
    const void *cos, *sin; /* [S, h], or tables by position */
    int tables;
    long rows; /* S */
    void *out; /* [S, H, h] */
    int half;
    float *q;     /* [K, S, G, h], normed, turned and scaled */
    float *parts; /* [K, S, G, tiles, h + 16]: sums, the largest score, the sum of weights */
    long first, tiles, share, blocks, items; /* number of the first tile, how many, rows of a block, blocks, items of `tile_of` */
    int units; /* whether matrix units do it: then q is bf16 [K, blocks, tall, h / 2, 16 queries, 2] */
    long tall;
    long some, preparations; /* rows of an item of `prepare_item`, and its items */
};

HIDDEN void attention_begin(struct attention *a); /* finds what follows `parts` from what stands above `q` */
HIDDEN long attention_room(const struct attention *a); /* floats of `q` and `parts`, once it has begun */
HIDDEN void attention_take(struct attention *a, float *room);
HIDDEN void prepare_item(const void *attention, long item);
HIDDEN void tile_of(const void *attention, long item);
HIDDEN void finish_row(const void *attention, long row);

/* Products: rows of inputs are brought to the form they are wanted in, then blocks of outputs are made. */

struct matrix {             /* as `packed_linear._Matrix` */
    const uint32_t *codes;  /* [blocks, inputs / (32 / bits), BLOCK] */
    const void *factors;    /* [blocks, inputs / group, 1 or 2, BLOCK]: scales, then offsets; none for plain weights */
    const float *table;     /* [16]: what 4-bit codes stand for */
    const uint16_t *halves; /* [2, 32] bf16: the same for the lower and the upper 4 bits of a code, twice over */
    const float *bias;      /* [outputs] */
    long outputs, inputs, group, piece, parts; /* a piece lies in one group; parts: pieces worked on at a time */
    long bits, is_signed, even, least, kind, lows; /* even: 4-bit codes stand for whole numbers from `least` on */
};

struct product {
    const struct matrix *m;
    const void *given, *residual; /* inputs as they come */
    void *out;
    long line, rows; /* numbers from row to row of `out` */
    int half, out_half;
    const void *x; /* inputs as they are multiplied: the given ones or `own` */
    void *own;
    float *sums;                 /* [rows, pieces] of the inputs */
    long pieces, each, columns, panel, items; /* each: blocks of an item; columns: items of as many rows; panel: these rows */
    long stack, stride, advance; /* of tiles: pieces in one, numbers of a row, numbers from piece to piece */
    int tiles;
};

HIDDEN void product_begin(struct product *p, void *room); /* finds the rest; `room` may come later, but before the first item */
HIDDEN long product_room(const struct matrix *m, long rows, int half); /* bytes */
HIDDEN void product_row(const void *product, long row);
HIDDEN void product_item(const void *product, long item);
