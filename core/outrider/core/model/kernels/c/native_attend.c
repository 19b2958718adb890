/* Attention of a decode pass on a CPU, for `native.py`: from the projections to its output.

   A row's result hangs on that row alone. Each sum has one fixed order: a score runs over the dims of a head; keys are summed
   at their positions, in tiles that start at multiples of TILE, and the tiles are put together in order. What a row does not
   see adds an exact zero or is left out, which is the same. */

#include "native_steps.h"
#include "native_turn.h"

#define WIDE (2 * LANES) /* keys whose scores are computed together */
#define TILE 256         /* keys of one softmax, at absolute positions */
#define QUERIES 64       /* queries of one key head that share a tile */
#define LOOSE 64         /* loose rows of a pass at most */
#define AHEAD WIDE       /* rows that are asked for before they are needed */
#define HEAD 256         /* the largest head size */

#define PART(h) ((h) + 16)

/* One head turned by rope, as floats. */
static INLINE void turn(const void *x, const void *cos, const void *sin, long h, float *out, const int half) {
    float twice[2 * HEAD];
    for (long i = 0; i < h; i += LANES) {
        vf y = load(x, i, half);
        store(twice, i, y, 0);
        store(twice, i + h, y, 0);
    }
    for (long i = 0; i < h; i += LANES) {
        vf y = load(twice, i, 0);
        if (cos)
            y = rounded(rounded(y * load(cos, i, half), half) + load(twice, i + h / 2, 0) * load(sin, i, half), half);
        store(out, i, y, 0);
    }
}

static INLINE uint32_t half_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits >> 16;
}

/* A head of a row, normed and turned: a query for `tile_of`, or a key for the state. */
static INLINE void prepare_head(const struct attention *p, long row, long head, void *kv, const int half) {
    const struct layer *l = p->layer;
    long h = l->head, groups = l->heads / l->kv_heads;
    long turn_at = (p->tables ? p->sight->positions[row] : row) * h;
    const void *cos = p->cos ? at(p->cos, turn_at, half) : 0, *sin = p->cos ? at(p->sin, turn_at, half) : 0;
    const void *x = at(p->mixed, row * p->stride + head * h, half);
    float normed[HEAD], turned[HEAD];
    int query = head < l->heads;
    if (query ? l->q_normed : l->k_normed) {
        norm(x, query ? l->q_weight : l->k_weight, normed, h, query ? l->q_eps : l->k_eps, half);
        x = normed;
    }
    turn(x, cos, sin, h, turned, half);
    if (query && p->units) {
        long at = row % p->share * groups + head % groups;
        long tile = (head / groups * p->blocks + row / p->share) * p->tall + at / 16;
        uint32_t *pairs = (uint32_t *)p->q + tile * 8 * h + at % 16;
        for (long i = 0; i < h; i += 2)
            pairs[8 * i] = half_of(turned[i]) | half_of(turned[i + 1]) << 16;
        return;
    }
    float *q = p->q + ((head / groups * p->rows + row) * groups + head % groups) * h;
    for (long i = 0; i < h; i += LANES) {
        if (query)
            store(q, i, load(turned, i, 0) * l->scale, 0);
        else
            store(kv, (head - l->heads) * h + i, load(turned, i, 0), half);
    }
}

/* What belongs to a key head, of as many rows as fill a tile of queries: other threads write to other lines of memory. */
static INLINE void prepare(const struct attention *p, long item, const int half) {
    const struct layer *l = p->layer;
    long h = l->head, groups = l->heads / l->kv_heads, kv_head = item % l->kv_heads, first = item / l->kv_heads * p->some;
    for (long row = first; row < MIN(first + p->some, p->rows); row++) {
        void *kv = (void *)at(p->kv, p->slots[row] * 2 * l->kv_heads * h, half);
        for (long head = kv_head * groups; head < (kv_head + 1) * groups; head++)
            prepare_head(p, row, head, kv, half);
        if (l->reads)
            continue;
        prepare_head(p, row, l->heads + kv_head, kv, half);
        const void *value = at(p->mixed, row * p->stride + (l->heads + l->kv_heads + kv_head) * h, half);
        memcpy((void *)at(kv, (l->kv_heads + kv_head) * h, half), value, h * (half ? 2 : 4));
    }
}

/* Keys of up to WIDE rows, turned so that each dim of all of them is one run: [h, WIDE]. bf16 goes in pairs of dims. */
static INLINE void keys_of(const void *const *rows, long h, vf *out, const int half) {
    for (int part = 0; part < 2; part++)
        for (long d = 0; d < (half ? h / 2 : h); d += LANES) {
            vf x[LANES];
            long some = MIN(LANES, (half ? h / 2 : h) - d);
            for (int i = 0; i < LANES; i++)
                x[i] = load_some(rows[part * LANES + i], d, d + some, 0);
            transpose(x);
            _Pragma("GCC unroll 16") for (int i = 0; i < LANES; i++) {
                if (i >= some)
                    break;
                if (half) {
                    out[4 * (d + i) + part] = (vf)((vu)x[i] << 16);
                    out[4 * (d + i) + 2 + part] = (vf)((vu)x[i] & 0xffff0000u);
                } else
                    out[2 * (d + i) + part] = x[i];
            }
        }
}

static INLINE void dots(const float *q, const vf *keys, long h, float *scores, long stride, const int count) {
    vf a[4] = {0}, b[4] = {0};
    for (long d = 0; d < h; d++) {
        vf lower = keys[2 * d], upper = keys[2 * d + 1];
        _Pragma("GCC unroll 4") for (int j = 0; j < count; j++) {
            a[j] += q[j * h + d] * lower;
            b[j] += q[j * h + d] * upper;
        }
    }
    _Pragma("GCC unroll 4") for (int j = 0; j < count; j++) {
        store(scores + j * stride, 0, a[j], 0);
        store(scores + j * stride, LANES, b[j], 0);
    }
}

/* Scores of all queries with WIDE keys, [queries, stride]. */
static void scores_of(const float *q, long queries, const vf *keys, long h, float *scores, long stride) {
    long j = 0;
    for (; j + 4 <= queries; j += 4)
        dots(q + j * h, keys, h, scores + j * stride, stride, 4);
    q += j * h, scores += j * stride;
    if (queries - j == 3)
        dots(q, keys, h, scores, stride, 3);
    else if (queries - j == 2)
        dots(q, keys, h, scores, stride, 2);
    else if (queries - j == 1)
        dots(q, keys, h, scores, stride, 1);
}

static INLINE void weigh(
    const float *weights, const float *values, long n, long h, float *sums, long part, const int count, const int wide) {
    vf sum[4][4];
    for (int j = 0; j < count; j++)
        for (int i = 0; i < wide; i++)
            sum[j][i] = load(sums + j * part, i * LANES, 0);
    for (long key = 0; key < n; key++) {
        vf value[4];
        _Pragma("GCC unroll 4") for (int i = 0; i < wide; i++) value[i] = load(values + key * h, i * LANES, 0);
        _Pragma("GCC unroll 4") for (int j = 0; j < count; j++)
            _Pragma("GCC unroll 4") for (int i = 0; i < wide; i++) sum[j][i] += weights[j * TILE + key] * value[i];
    }
    for (int j = 0; j < count; j++)
        for (int i = 0; i < wide; i++)
            store(sums + j * part, i * LANES, sum[j][i], 0);
}

static INLINE void weigh_all(
    const float *weights, const float *values, long n, long h, float *sums, long part, const int count) {
    long d = 0;
    for (; d + 4 * LANES <= h; d += 4 * LANES)
        weigh(weights, values + d, n, h, sums + d, part, count, 4);
    for (; d < h; d += LANES)
        weigh(weights, values + d, n, h, sums + d, part, count, 1);
}

/* Add n values [n, h], each times a weight, to the sums of all queries. */
static void add_values(
    const float *weights, long queries, const float *values, long n, long h, float *sums, long part) {
    long j = 0;
    for (; j + 4 <= queries; j += 4)
        weigh_all(weights + j * TILE, values, n, h, sums + j * part, part, 4);
    weights += j * TILE, sums += j * part;
    if (queries - j == 3)
        weigh_all(weights, values, n, h, sums, part, 3);
    else if (queries - j == 2)
        weigh_all(weights, values, n, h, sums, part, 2);
    else if (queries - j == 1)
        weigh_all(weights, values, n, h, sums, part, 1);
}

/* One tile of keys and a block of queries, as `tile_of` works on them. */
struct tile {
    const struct attention *job;
    long h, groups, kv_head;
    long row, rows;    /* the block's first row, and how many */
    long start;        /* first position of the tile */
    long from, to;     /* positions that a row of the block may see, multiples of WIDE */
    long base, end;    /* first loose row; end of the committed ones in this tile */
    const float *q;    /* [rows, G, h] */
    float *part;       /* [rows, G] parts, `step` apart */
    long step;
    float weights[QUERIES * TILE] ALIGNED; /* scores, then weights, by position */
    float loose[QUERIES * LOOSE] ALIGNED;  /* scores of loose rows, by number */
    vf keys[WIDE / LANES * HEAD];
    float values[WIDE * HEAD] ALIGNED;
};

static INLINE const void *row_of(const struct tile *t, long row, int value, const int half) {
    const struct attention *p = t->job;
    long heads = p->layer->kv_heads, slot = p->ring ? row % p->ring : row;
    return at(p->kv, ((slot * 2 + value) * heads + t->kv_head) * t->h, half);
}

/* Ask for what is needed a little later. */
static INLINE void ahead(const struct tile *t, long row, int value, const int half) {
    const char *later = row_of(t, row + AHEAD, value, half);
    for (long i = 0; i < t->h * (half ? 2 : 4); i += 64)
        __builtin_prefetch(later + i, 0, 2);
}

#ifdef TILES
#include "native_heads.h"
#endif

/* Scores with n keys from `row` on, of all queries. */
static INLINE void score(struct tile *t, long row, long n, float *scores, long stride, const int half) {
    const void *rows[WIDE];
#ifdef TILES
    if (half && t->job->units) {
        score_by_units(t, row, n, scores, stride);
        return;
    }
#endif
    for (long i = 0; i < WIDE; i++) {
        rows[i] = i < n ? row_of(t, row + i, 0, half) : rows[n - 1];
        ahead(t, row + i, 0, half);
    }
    keys_of(rows, t->h, t->keys, half);
    scores_of(t->q, t->rows * t->groups, t->keys, t->h, scores, stride);
}

static INLINE void hide(float *scores, long from, long to) {
    for (long i = from; i < to; i++)
        scores[i] = -INFINITY;
}

/* Scores of what each row sees, at its position: the i-th loose row that a row sees counts as position base + i. */
static INLINE void score_all(struct tile *t, const int half) {
    const struct attention *p = t->job;
    long window = p->layer->window, stop = t->base + p->sight->count;
    int some_loose = stop > t->start && t->base < t->start + TILE;
    for (long at = t->from; at < t->end; at += WIDE)
        score(t, at, MIN(WIDE, t->end - at), t->weights + at - t->start, TILE, half);
    for (long i = 0; some_loose && i < p->sight->count; i += WIDE)
        score(t, t->base + i, MIN(WIDE, p->sight->count - i), t->loose + i, LOOSE, half);
    for (long query = 0; query < t->rows * t->groups; query++) {
        float *scores = t->weights + query * TILE - t->start, *loose = t->loose + query * LOOSE;
        long row = t->row + query / t->groups, least = window ? p->sight->positions[row] - window + 1 : 0;
        long at = t->base, tile_end = t->start + TILE;
        hide(scores, MAX(t->from, t->end), t->to);
        hide(scores, t->from, MIN(least, t->end));
        for (uint64_t bits = some_loose ? p->sight->bits[row] : 0; bits && at < tile_end; bits &= bits - 1, at++) {
            int i = __builtin_ctzll(bits);
            if (at >= t->start)
                scores[at] = p->sight->loose[i] < least ? -INFINITY : loose[i];
        }
    }
}

/* Scores become weights, their exponentials against the largest; a part keeps that and their sum. */
static INLINE void soften(struct tile *t) {
    for (long query = 0; query < t->rows * t->groups; query++) {
        float *scores = t->weights + query * TILE - t->start, *part = t->part + query * t->step;
        vf most = splat(-INFINITY), sum = {0};
        for (long i = t->from; i < t->to; i += LANES) {
            vf x = load(scores, i, 0);
            most = larger(x, most);
        }
        float peak = largest(most), shift = peak == -INFINITY ? 0 : peak;
        for (long i = t->from; i < t->to; i += LANES) {
            vf x = exponential(load(scores, i, 0) - shift);
            sum += x;
            store(scores, i, x, 0);
        }
        part[t->h] = peak;
        part[t->h + 1] = total(sum);
        memset(part, 0, t->h * sizeof(float));
    }
}

static INLINE void take_value(struct tile *t, long row, long i, const int half) {
    const void *value = row_of(t, row, 1, half);
    for (long d = 0; d < t->h; d += LANES)
        store(t->values, i * t->h + d, load(value, d, half), 0);
}

/* Values times weights: committed rows for all queries at once, loose ones for each row those that it sees. */
static INLINE void sum_up(struct tile *t, const int half) {
    const struct attention *p = t->job;
    float *weights = t->weights - t->start;
    for (long at = t->from; at < t->end; at += WIDE) {
        long n = MIN(WIDE, t->end - at);
        for (long i = 0; i < n; i++) {
            ahead(t, at + i, 1, half);
            take_value(t, at + i, i, half);
        }
        add_values(weights + at, t->rows * t->groups, t->values, n, t->h, t->part, t->step);
    }
    for (long row = 0; row < t->rows; row++) {
        long at = t->base, tile_end = t->start + TILE, n = 0;
        for (uint64_t bits = p->sight->bits[t->row + row]; bits && at < tile_end; bits &= bits - 1) {
            if (at++ >= t->start)
                take_value(t, t->base + __builtin_ctzll(bits), n++, half);
            if (n && (n == WIDE || bits == (bits & -bits) || at == tile_end)) {
                float *part = t->part + row * t->groups * t->step;
                add_values(weights + row * t->groups * TILE + at - n, t->groups, t->values, n, t->h, part, t->step);
                n = 0;
            }
        }
    }
}

static INLINE void begin_tile(struct tile *t, const struct attention *p, long item) {
    const struct layer *l = p->layer;
    long number = item / l->kv_heads % p->tiles, stop = *p->sight->base + p->sight->count, least = INT64_MAX;
    t->job = p, t->h = l->head, t->groups = l->heads / l->kv_heads, t->kv_head = item % l->kv_heads;
    t->row = item / l->kv_heads / p->tiles * p->share, t->rows = MIN(p->share, p->rows - t->row);
    for (long row = 0; row < t->rows; row++)
        least = MIN(least, p->sight->positions[t->row + row] - l->window + 1);
    t->start = (p->first + number) * TILE, t->base = *p->sight->base;
    t->end = MIN(t->base, t->start + TILE);
    t->from = l->window ? MAX(t->start, MIN(least, t->base) / WIDE * WIDE) : t->start;
    t->to = MIN(t->start + TILE, (stop + WIDE - 1) / WIDE * WIDE);
    long query = (t->kv_head * p->rows + t->row) * t->groups;
    t->step = p->tiles * PART(t->h);
    t->q = p->q + query * t->h, t->part = p->parts + query * t->step + number * PART(t->h);
}

static INLINE void work_on(const struct attention *p, long item, const int half) {
    struct tile tile;
    begin_tile(&tile, p, item);
    score_all(&tile, half);
    soften(&tile);
    sum_up(&tile, half);
}

#ifdef TILES
static void work_by_units(const struct attention *p, long item) {
    struct work work;
    begin_tile(&work.t, p, item);
    use_registers();
    score_all(&work.t, 1);
    soften(&work.t);
    sum_by_units(&work);
    _tile_release();
}
#endif

/* A row's parts put together, in order, and its output. */
static INLINE void finish(const struct attention *p, long row, const int half) {
    const struct layer *l = p->layer;
    long h = l->head, groups = l->heads / l->kv_heads;
    for (long head = 0; head < l->heads; head++) {
        long query = (head / groups * p->rows + row) * groups + head % groups;
        const float *part = p->parts + query * p->tiles * PART(h);
        float sums[HEAD] = {0}, peak = -INFINITY, weight = 0;
        for (long i = 0; i < p->tiles; i++, part += PART(h)) {
            if (part[h + 1] == 0) /* nothing seen in this tile */
                continue;
            float next = MAX(peak, part[h]), old = exponential_of(peak - next), new = exponential_of(part[h] - next);
            weight = weight * old + part[h + 1] * new;
            for (long d = 0; d < h; d += LANES)
                store(sums, d, load(sums, d, 0) * old + load(part, d, 0) * new, 0);
            peak = next;
        }
        float scale = 1;
        if (l->sinks) {
            float next = MAX(peak, l->sinks[head]);
            scale = exponential_of(peak - next);
            weight = weight * scale + exponential_of(l->sinks[head] - next);
        }
        const long out = (row * l->heads + head) * h;
        if (p->units) /* even dims, then odd ones */
            for (long d = 0; d < h; d += 2 * LANES) {
                vf even = load(sums, d, 0) * scale / weight, odd = load(sums, d + LANES, 0) * scale / weight;
                store((uint16_t *)p->out + out + d, 0, (vf)(nearest(even) >> 16 | (nearest(odd) & 0xffff0000u)), 0);
            }
        else
            for (long d = 0; d < h; d += LANES)
                store(p->out, out + d, load(sums, d, 0) * scale / weight, half);
    }
}

#define BY_KIND(name, does)                  \
    void name(const void *job, long item) { \
        const struct attention *p = job;    \
        if (p->half)                        \
            does(p, item, 1);               \
        else                                \
            does(p, item, 0);               \
    }
BY_KIND(prepare_item, prepare)
BY_KIND(finish_row, finish)

void tile_of(const void *job, long item) {
    const struct attention *p = job;
#ifdef TILES
    if (p->units) {
        work_by_units(p, item);
        return;
    }
#endif
    if (p->half)
        work_on(p, item, 1);
    else
        work_on(p, item, 0);
}

void attention_begin(struct attention *p) {
    const struct layer *l = p->layer;
    const struct sight *s = p->sight;
    p->first = 0;
    if (l->window) {
        long least = INT64_MAX;
        for (long row = 0; row < p->rows; row++)
            least = MIN(least, s->positions[row] - l->window + 1);
        p->first = MAX(0, MIN(least, *s->base)) / TILE;
    }
    const long groups = l->heads / l->kv_heads;
    p->tiles = (*s->base + s->count + TILE - 1) / TILE - p->first;
    p->some = MAX(1, 16 / groups);
    p->preparations = l->kv_heads * ((p->rows + p->some - 1) / p->some);
    p->share = MAX(1, QUERIES / groups);
    p->blocks = (p->rows + p->share - 1) / p->share;
    p->items = p->blocks * p->tiles * l->kv_heads;
    p->units = p->half && tiles_there && l->head % 32 == 0 && p->ring % 16 == 0;
    p->tall = (MIN(p->share, p->rows) * groups + 15) / 16;
}

/* Floats of `q`. */
static long q_room(const struct attention *p) {
    const struct layer *l = p->layer;
    return l->head * (p->units ? l->kv_heads * p->blocks * p->tall * 8 : p->rows * l->heads);
}

long attention_room(const struct attention *p) {
    return q_room(p) + p->rows * p->layer->heads * p->tiles * PART(p->layer->head);
}

void attention_take(struct attention *p, float *room) {
    p->q = room;
    p->parts = room + q_room(p);
}

/* 0, or 1 where there is no memory. */
int attend(
    const struct layer *layer, const void *mixed, long stride, void *kv, const int64_t *slots, long ring,
    const void *cos, const void *sin, const int64_t *base, const int64_t *positions, const int64_t *loose, long count,
    const int64_t *bits, long rows, void *out, int half, long threads) {
    struct sight sight = {base, positions, loose, bits, count};
    struct attention job = {layer, &sight, mixed, stride, kv, slots, ring, cos, sin, 0, rows, out, half};
    double each = (double)rows * layer->heads * layer->head;
    attention_begin(&job);
    float *room = aligned_alloc(64, (attention_room(&job) * sizeof(float) + 63) / 64 * 64);
    if (!room)
        return 1;
    attention_take(&job, room);
    spread(prepare_item, &job, job.preparations, 8 * each, threads);
    spread(tile_of, &job, job.items, 2 * each * MIN(TILE * job.tiles, *base + count), threads);
    spread(finish_row, &job, rows, each * job.tiles, threads);
    free(room);
    return 0;
}

struct share { /* what one conversation has of a pass; as `native._Share` */
    void *kv;
    const int64_t *slots;
    long ring;
    const void *cos, *sin;
    const int64_t *base, *positions, *loose, *bits;
    long count, rows, first; /* T, S, and the number of its first row among those of all */
};

struct crowd {
    const struct layer *layer;
    const void *mixed;
    long stride;
    const struct share *shares;
    void *out;
    int half;
    long threads; /* for one share */
    int *failed;  /* for each */
};

static void share_of(const void *job, long number) {
    const struct crowd *c = job;
    const struct share *s = c->shares + number;
    c->failed[number] = attend(
        c->layer, at(c->mixed, s->first * c->stride, c->half), c->stride, s->kv, s->slots, s->ring, s->cos, s->sin, s->base,
        s->positions, s->loose, s->count, s->bits, s->rows,
        (void *)at(c->out, s->first * c->layer->heads * c->layer->head, c->half), c->half, c->threads);
}

/* `attend` for several conversations: by one thread each, unless there are fewer of them than threads. */
int attend_each(
    const struct layer *layer, const void *mixed, long stride, const struct share *shares, long number, void *out, int half,
    long threads) {
    int failed[number], any = 0;
    struct crowd crowd = {layer, mixed, stride, shares, out, half, number < threads ? threads : 1, failed};
    double work = 0;
    for (long i = 0; i < number; i++)
        work += 2.0 * shares[i].rows * layer->heads * layer->head * (*shares[i].base + shares[i].count);
    spread(share_of, &crowd, number, work, number < threads ? 1 : threads);
    for (long i = 0; i < number; i++)
        any |= failed[i];
    return any;
}
