/* Attention by matrix units (AMX), a part of `native_attend.c`: bf16, heads of a multiple of 32.

   Keys are multiplied as they lie: [16 keys, 16 queries], turned afterwards. Values are summed in steps of WIDE keys at
   absolute positions; a weight of zero adds an exact zero. Two keys share a word of values, with even dims before odd ones:
   `part` has them so, too. */

struct work {
    struct tile t;
    int line;                                 /* whether each row sees the loose ones up to some number */
    uint16_t weights[QUERIES * TILE] ALIGNED; /* as those of the tile */
    uint32_t values[TILE / 2 * HEAD] ALIGNED; /* [steps, h / 16, 16 pairs of keys, 16 dims] */
    uint32_t own[WIDE / 2 * HEAD] ALIGNED;    /* a step */
};

static void use_registers(void) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int tile = 0; tile < 8; tile++)
        config.bytes[tile] = 64, config.rows[tile] = 16;
    __asm__ volatile("" : : "r"(&config) : "memory"); /* tiles are set up and read behind the compiler's back */
    _tile_loadconfig(&config);
}

/* Scores of all queries with n <= 16 keys from `row` on, [queries, stride]. */
static void score_keys(struct tile *t, long row, long n, float *out, long stride) {
    const struct attention *p = t->job;
    const long queries = t->rows * t->groups, size = t->h * sizeof(uint16_t);
    const uint32_t *q = (const uint32_t *)p->q + (t->kv_head * p->blocks + t->row / p->share) * p->tall * 8 * t->h;
    const void *keys = row_of(t, row, 0, 1);
    long line = 2 * p->layer->kv_heads * size;
    if (n < 16 || (p->ring && row % p->ring + 16 > p->ring)) {
        memset(t->keys, 0, 16 * size);
        for (long i = 0; i < n; i++)
            memcpy((char *)t->keys + i * size, row_of(t, row + i, 0, 1), size);
        keys = t->keys, line = size;
    }
    for (long first = 0; first < queries; first += 16, q += 8 * t->h) {
        float square[256] ALIGNED;
        vf x[16];
        __asm__ volatile("" ::: "memory");
        _tile_zero(0);
        for (long d = 0; d < t->h; d += 32) {
            _tile_loadd(1, (const uint16_t *)keys + d, line);
            _tile_loadd(2, q + d * 8, 64);
            _tile_dpbf16ps(0, 1, 2);
        }
        _tile_stored(0, square, 64);
        __asm__ volatile("" : : "r"(square) : "memory");
        for (int i = 0; i < 16; i++)
            x[i] = load(square, i * 16, 0) * p->layer->scale;
        transpose(x);
        for (int i = 0; i < 16; i++)
            if (first + i < queries)
                store(out, (first + i) * stride, x[i], 0);
    }
}

/* As `score`. */
static void score_by_units(struct tile *t, long row, long n, float *scores, long stride) {
    for (long i = 0; i < WIDE; i++) {
        ahead(t, row + i, 0, 1);
        ahead(t, row + i - AHEAD, 1, 1); /* its value: scores come first */
    }
    score_keys(t, row, MIN(n, 16), scores, stride);
    score_keys(t, row + 16, MAX(0, n - 16), scores + 16, stride);
}

/* Values of WIDE keys to [h / 16, 16 pairs, 16 dims]; none stands for zeros. */
static void pair_values(const uint16_t *const *rows, long h, uint32_t *out) {
    static const uint16_t zeros[HEAD];
    for (long pair = 0; pair < WIDE / 2; pair++) {
        const uint16_t *first = rows[2 * pair] ? rows[2 * pair] : zeros;
        const uint16_t *second = rows[2 * pair + 1] ? rows[2 * pair + 1] : zeros;
        for (long d = 0; d < h; d += 32) {
            vu a, b;
            memcpy(&a, first + d, sizeof a);
            memcpy(&b, second + d, sizeof b);
            store(out, (d + pair) * 16, (vf)((a & 0xffff) | b << 16), 0);
            store(out, (d + 16 + pair) * 16, (vf)(a >> 16 | (b & 0xffff0000u)), 0);
        }
    }
}

/* Whether rows do not share the values of the step that begins at a position. */
static INLINE int apart(const struct work *w, long at) { return !w->line && at + WIDE > w->t.base; }

/* The values of a step as one row sees them. */
static void own_values(struct work *w, long row, long at) {
    const uint16_t *rows[WIDE] = {0};
    long position = w->t.base;
    for (long i = 0; i < WIDE && at + i < w->t.base; i++)
        rows[i] = row_of(&w->t, at + i, 1, 1);
    for (uint64_t bits = w->t.job->sight->bits[w->t.row + row]; bits; bits &= bits - 1, position++)
        if (position >= at && position < at + WIDE)
            rows[position - at] = row_of(&w->t, w->t.base + __builtin_ctzll(bits), 1, 1);
    pair_values(rows, w->t.h, w->own);
}

static void take_values(struct work *w) {
    const struct tile *t = &w->t;
    const long stop = w->line ? t->base + t->job->sight->count : t->base;
    for (long at = t->from; at < t->to && !apart(w, at); at += WIDE) {
        const uint16_t *rows[WIDE];
        for (long i = 0; i < WIDE; i++)
            rows[i] = at + i < stop ? row_of(t, at + i, 1, 1) : 0;
        pair_values(rows, t->h, w->values + (at - t->start) / 2 * t->h);
    }
}

static INLINE void add_step(const uint16_t *weights, long line, const uint32_t *values, const int wide) {
    _tile_loadd(6, weights, line);
    _tile_loadd(7, values, 64);
    _tile_dpbf16ps(0, 6, 7);
    _tile_loadd(7, values + 256, 64);
    _tile_dpbf16ps(1, 6, 7);
    if (wide == 4) {
        _tile_loadd(7, values + 512, 64);
        _tile_dpbf16ps(2, 6, 7);
        _tile_loadd(7, values + 768, 64);
        _tile_dpbf16ps(3, 6, 7);
    }
}

/* Steps of values that each row has for itself: the weights of all other rows are zeros. */
static INLINE void add_own(struct work *w, long first, long dims, const int wide) {
    const struct tile *t = &w->t;
    for (long row = first / t->groups; row < t->rows && row * t->groups < first + 16; row++)
        for (long at = MAX(t->from, t->base / WIDE * WIDE); at < t->to; at += WIDE) {
            uint16_t weights[16 * WIDE] ALIGNED = {0};
            const long last = MIN(first + 16, (row + 1) * t->groups);
            for (long query = MAX(first, row * t->groups); query < last; query++)
                memcpy(weights + (query - first) * WIDE, w->weights + query * TILE + at - t->start, 64);
            own_values(w, row, at);
            __asm__ volatile("" : : "r"(weights) : "memory");
            add_step(weights, 64, w->own + dims * 16, wide);
            __asm__ volatile("" : : "r"(weights) : "memory");
        }
}

/* Sums of some dims over all keys, of 16 queries from `first` on. */
static INLINE void sum_dims(struct work *w, long first, long dims, const int wide) {
    struct tile *t = &w->t;
    float sums[4 * 256] ALIGNED;
    __asm__ volatile("" ::: "memory");
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (long at = t->from; at < t->to && !apart(w, at); at += WIDE)
        add_step(w->weights + first * TILE + at - t->start, 2 * TILE, w->values + (at - t->start) / 2 * t->h + dims * 16, wide);
    if (!w->line)
        add_own(w, first, dims, wide);
    _tile_stored(0, sums, 64 * wide);
    _tile_stored(1, sums + 16, 64 * wide);
    if (wide == 4) {
        _tile_stored(2, sums + 32, 64 * wide);
        _tile_stored(3, sums + 48, 64 * wide);
    }
    __asm__ volatile("" : : "r"(sums) : "memory");
    for (long i = 0; i < 16 && first + i < t->rows * t->groups; i++)
        memcpy(t->part + (first + i) * t->step + dims, sums + i * 16 * wide, 16 * wide * sizeof *sums);
}

/* As `sum_up`. */
static void sum_by_units(struct work *w) {
    const struct tile *t = &w->t;
    const long queries = t->rows * t->groups;
    w->line = 1;
    for (long row = 0; row < t->rows; row++) {
        const uint64_t bits = t->job->sight->bits[t->row + row];
        w->line &= !(bits & (bits + 1));
    }
    for (long query = 0; query < queries; query++)
        for (long i = t->from - t->start; i < t->to - t->start; i += LANES)
            store(w->weights, query * TILE + i, load(t->weights, query * TILE + i, 0), 1);
    take_values(w);
    for (long first = 0; first < queries; first += 16) {
        long dims = 0;
        for (; dims + 64 <= t->h; dims += 64)
            sum_dims(w, first, dims, 4);
        if (dims < t->h)
            sum_dims(w, first, dims, 2);
    }
}
