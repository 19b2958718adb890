/* Whole blocks of a pass on a CPU, for `stack.py`, in one go: their steps are those of the other files, in the same order and
   with the same bits. A pass wider than FEW attends FEW rows at a time, each behind those before, as narrower passes would.

   The threads of one parallel region walk through all steps together. Items of a step are taken from a counter; the next step
   begins when all items are done, whoever did them, so a thread that the system has put aside holds up the others only where
   it has an item in hand.

   Letters: S rows of the pass, d width, I inner width of the MLP, H query heads, h head size. */

#include "native_steps.h"

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <sched.h>
#endif

#define FEW 64      /* rows that attend together, at most */
#define WIDEST 256  /* rows, at most */
#define STAGES 10   /* steps of a block where all rows attend together */
#define TURN 3      /* steps of some rows that attend after others */
#define PARTS 3     /* matrices of different forms whose outputs lie side by side, at most */
#define SPINS 1000L /* looks at a counter before a thread goes to sleep: longer than any item takes */

struct normed { /* as `stack._Normed` */
    const void *weight;
    float eps;
    int there;
};

struct block { /* as `stack._Block` */
    struct normed before_mixer, after_mixer, before_channel, after_channel;
    const struct layer *layer;
    const struct matrix *mix[PARTS], *gate_up[PARTS], *out[PARTS], *down[PARTS]; /* none behind the last one */
    const void *cos, *sin; /* tables by position; none: no rope */
    long activation;
};

struct held { /* keys and values of a block in a conversation, as `stack._Held` */
    void *kv;
    long ring;
};

struct stage {
    int32_t next, done, asleep;
} ALIGNED;

struct task {
    const struct block *blocks;
    const struct held *held;
    long count;
    const void *x;     /* [S, d] */
    const void *entry; /* [S, inputs]: what the first mixer reads in place of the normed `x`; may be none */
    void *out;         /* [S, d]; the residual after each block */
    void *const *exports; /* [count], none or [S, d]: the residual before a block */
    long rows, width;
    float scale; /* of what is added to the residual */
    int half;
    struct sight sight;
    int64_t start, line[WIDEST], bits[FEW];
    void *y;    /* inputs of the next product */
    void *wide; /* outputs of a product that go on to another step */
    void *apart; /* [S, d] outputs of a product that are not added at once */
    void *room;
    float *scores;
    struct stage *stages; /* none: one thread */
};

struct member {
    const struct task *task;
    const struct block *block;
    struct stage *stage;
    const void *x;              /* the residual: the task's own in the first half of the first block */
    const struct normed *after; /* what the last product gave, is still to be normed so and added */
    struct product products[PARTS]; /* the next one; no rows behind its last part */
    struct sight sight;
    struct attention attention;
    void *export;
    int64_t slots[FEW];
};

/* Steps. */

static INLINE void rest(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void await(struct stage *s, int32_t items) {
    long spins = 0;
    int32_t done;
    while ((done = __atomic_load_n(&s->done, __ATOMIC_SEQ_CST)) < items) {
        if (spins++ < SPINS) {
            rest();
            continue;
        }
#if defined(__linux__)
        __atomic_store_n(&s->asleep, 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, &s->done, FUTEX_WAIT_PRIVATE, done, 0, 0, 0); /* returns at once where that has changed */
#else
        sched_yield();
#endif
    }
}

static void finished(struct stage *s) {
#if defined(__linux__)
    if (__atomic_load_n(&s->asleep, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, &s->done, FUTEX_WAKE_PRIVATE, INT32_MAX, 0, 0, 0);
#else
    (void)s;
#endif
}

static void go(struct member *m, step_fn step, const void *job, long items) {
    struct stage *s = m->stage++;
    int32_t mine = 0;
    if (!m->task->stages) {
        for (long item = 0; item < items; item++)
            step(job, item);
        return;
    }
    for (long item; (item = __atomic_fetch_add(&s->next, 1, __ATOMIC_RELAXED)) < items; mine++)
        step(job, item);
    if (mine && __atomic_add_fetch(&s->done, mine, __ATOMIC_SEQ_CST) == items)
        finished(s);
    else
        await(s, items);
}

/* Rows. */

static const void *row_of(const struct task *t, const void *x, long row) { return at(x, row * t->width, t->half); }

static INLINE void add_row(const void *x, const void *y, void *out, long n, const int half) {
    for (long i = 0; i < n; i += LANES)
        store_some(out, i, n, load_some(x, i, n, half) + load_some(y, i, n, half), half);
}

/* Apart from the addition, which would not round in between. */
static __attribute__((noinline)) void scale_row(void *x, long n, float scale, int half) {
    for (long i = 0; i < n; i += LANES)
        store_some(x, i, n, load_some(x, i, n, half) * scale, half);
}

/* To the residual what the last product gave. */
static void join(const struct member *m, long row) {
    const struct task *t = m->task;
    if (!m->after)
        return;
    if (m->after->there) {
        struct rows job = {t->apart, m->after->weight, t->apart, t->width, m->after->eps, t->half, 0};
        norm_row(&job, row);
    }
    const void *x = row_of(t, m->x, row);
    void *y = (void *)row_of(t, t->apart, row), *out = (void *)row_of(t, t->out, row);
    if (t->scale != 1)
        scale_row(y, t->width, t->scale, t->half);
    if (t->half)
        add_row(x, y, out, t->width, 1);
    else
        add_row(x, y, out, t->width, 0);
}

/* A row of inputs is there. */
static void take_row(const struct member *m, long row) {
    for (int i = 0; i < PARTS && m->products[i].rows; i++)
        product_row(m->products + i, row);
}

/* Inputs of the next product from the residual. */
static void norm_to(const struct member *m, const struct normed *norm, const void *x, long row) {
    const struct task *t = m->task;
    struct rows job = {x, norm->weight, t->y, t->width, norm->eps, t->half, 0};
    if (norm->there)
        norm_row(&job, row);
    else
        memcpy((void *)row_of(t, t->y, row), row_of(t, x, row), t->width * (t->half ? 2 : 4));
    take_row(m, row);
}

static void before_mixer(const void *job, long row) {
    const struct member *m = job;
    const struct task *t = m->task;
    const void *x = m->after ? t->out : m->x;
    join(m, row);
    if (m->export)
        memcpy((void *)row_of(t, m->export, row), row_of(t, x, row), t->width * (t->half ? 2 : 4));
    if (m->products->given == t->entry)
        take_row(m, row);
    else
        norm_to(m, &m->block->before_mixer, x, row);
}

static void after_heads(const void *job, long row) {
    const struct member *m = job;
    if (m->task->rows <= FEW)
        finish_row(&m->attention, row);
    take_row(m, row);
}

static void before_channel(const void *job, long row) {
    const struct member *m = job;
    join(m, row);
    norm_to(m, &m->block->before_channel, m->task->out, row);
}

static void after_gates(const void *job, long row) {
    const struct member *m = job;
    const struct task *t = m->task;
    struct rows gates = {t->wide, 0, t->y, m->block->down[0]->inputs, 0, t->half, m->block->activation};
    gate_row(&gates, row);
    take_row(m, row);
}

static void at_the_end(const void *job, long row) { join(job, row); }

/* Blocks. */

static long outputs_of(const struct matrix *const *parts) {
    long outputs = 0;
    for (int i = 0; i < PARTS && parts[i]; i++)
        outputs += parts[i]->outputs;
    return outputs;
}

static long lines(long bytes) { return (bytes + 63) / 64 * 64; }

static long room_of(const struct matrix *m, const struct task *t) { return lines(product_room(m, t->rows, t->half)); }

/* A residual belongs to one part alone. */
static void next_product(
    struct member *m, const struct matrix *const *parts, const void *given, const void *residual, void *out) {
    const struct task *t = m->task;
    char *room = t->room;
    long at = 0;
    for (int i = 0; i < PARTS; i++) {
        struct product *p = m->products + i;
        *p = (struct product){.m = parts[i]};
        if (!p->m)
            break;
        p->given = given, p->residual = residual, p->rows = t->rows, p->half = p->out_half = t->half;
        p->out = (char *)out + at * (t->half ? 2 : 4), p->line = outputs_of(parts);
        product_begin(p, room);
        room += room_of(p->m, t);
        at += p->m->outputs;
    }
}

static void part_item(const void *job, long item) {
    const struct member *m = job;
    const struct product *p = m->products;
    for (; item >= p->items; p++)
        item -= p->items;
    product_item(p, item);
}

static void multiply(struct member *m) {
    long items = 0;
    for (int i = 0; i < PARTS && m->products[i].rows; i++)
        items += m->products[i].items;
    go(m, part_item, m, items);
}

/* One whose outputs are added to the residual, at once or by the next step. */
static void next_sum(struct member *m, const struct matrix *const *matrix, const struct normed *after) {
    const struct task *t = m->task;
    m->after = after->there || t->scale != 1 ? after : 0;
    next_product(m, matrix, m->task->y, m->after ? 0 : m->x, m->after ? t->apart : t->out);
}

/* Attention of the rows from `first` on, FEW at most. `sight`: whom each of them sees. */
static struct attention heads_of(const struct task *t, const struct sight *sight, long index, long first) {
    const struct block *b = t->blocks + index;
    const struct held *held = t->held + index;
    const int size = t->half ? 2 : 4;
    struct attention a = {.layer = b->layer, .sight = sight, .stride = outputs_of(b->mix)};
    a.mixed = (char *)t->wide + first * a.stride * size, a.out = (char *)t->y + first * b->out[0]->inputs * size;
    a.kv = held->kv, a.ring = held->ring, a.rows = MIN(FEW, t->rows - first), a.half = t->half;
    a.cos = b->cos, a.sin = b->sin, a.tables = 1;
    attention_begin(&a);
    return a;
}

/* Whom rows from `first` on see: the task's own sight where all rows attend together. */
static struct sight sight_of(const struct task *t, long first) {
    if (t->rows <= FEW)
        return t->sight;
    return (struct sight){t->line + first, t->line + first, t->line + first, t->bits, MIN(FEW, t->rows - first)};
}

static void attend_to(struct member *m, long index) {
    const struct task *t = m->task;
    for (long first = 0; first < t->rows; first += FEW) {
        m->sight = sight_of(t, first);
        m->attention = heads_of(t, &m->sight, index, first);
        m->attention.slots = m->slots;
        attention_take(&m->attention, t->scores);
        for (long row = 0; row < m->attention.rows; row++) {
            const long at = t->start + first + row;
            m->slots[row] = m->attention.ring ? at % m->attention.ring : at;
        }
        go(m, prepare_item, &m->attention, m->attention.preparations);
        go(m, tile_of, &m->attention, m->attention.items);
        if (t->rows > FEW)
            go(m, finish_row, &m->attention, m->attention.rows);
    }
}

static void walk_block(struct member *m, long index) {
    const struct task *t = m->task;
    const struct block *b = m->block = t->blocks + index;
    m->export = t->exports ? t->exports[index] : 0;
    next_product(m, b->mix, t->entry && !index ? t->entry : t->y, 0, t->wide);
    go(m, before_mixer, m, t->rows);
    multiply(m);
    attend_to(m, index);
    next_sum(m, b->out, &b->after_mixer);
    go(m, after_heads, m, t->rows);
    multiply(m);
    next_product(m, b->gate_up, t->y, 0, t->wide);
    go(m, before_channel, m, t->rows);
    m->x = t->out;
    multiply(m);
    next_sum(m, b->down, &b->after_channel);
    go(m, after_gates, m, t->rows);
    multiply(m);
}

static void walk(void *shared) {
    const struct task *t = shared;
    struct member m = {.task = t, .stage = t->stages, .x = t->x};
    for (long index = 0; index < t->count; index++)
        walk_block(&m, index);
    if (m.after)
        go(&m, at_the_end, &m, t->rows);
}

/* Memory of a pass: bytes of `y`, `wide`, `apart`, `room`, `scores` and `stages`. */
struct sizes {
    long y, wide, apart, room, scores, stages;
};

static struct sizes sizes_of(const struct task *t) {
    struct sizes s = {0};
    long each = t->rows * (t->half ? 2 : 4);
    for (long index = 0; index < t->count; index++) {
        const struct block *b = t->blocks + index;
        const struct matrix *const *all[4] = {b->mix, b->gate_up, b->out, b->down};
        for (long first = 0; first < t->rows; first += FEW) {
            const struct sight sight = sight_of(t, first);
            const struct attention a = heads_of(t, &sight, index, first);
            s.scores = MAX(s.scores, lines(attention_room(&a) * (long)sizeof(float)));
        }
        for (int i = 0; i < 4; i++) {
            long room = 0;
            for (int part = 0; part < PARTS && all[i][part]; part++)
                room += room_of(all[i][part], t);
            s.y = MAX(s.y, lines(each * all[i][0]->inputs));
            s.room = MAX(s.room, room);
        }
        s.wide = MAX(s.wide, lines(each * MAX(outputs_of(b->mix), outputs_of(b->gate_up))));
    }
    s.apart = lines(each * t->width);
    s.stages = ((STAGES + (t->rows + FEW - 1) / FEW * TURN) * t->count + 1) * (long)sizeof(struct stage);
    return s;
}

static double work_of(const struct task *t) {
    double work = 0;
    for (const struct block *b = t->blocks; b < t->blocks + t->count; b++) {
        const struct matrix *const *all[4] = {b->mix, b->gate_up, b->out, b->down};
        for (int i = 0; i < 4; i++)
            work += (double)outputs_of(all[i]) * all[i][0]->inputs;
    }
    return work;
}

/* x [S, d] through some blocks to `out`, rows being written from `start` on: up to WIDEST in one line, up to FEW in a tree. `entry`, `exports`: as in a task. No
   `positions`: the rows stand in one line. Gives 1 where there is no memory. */
int stack(
    const struct block *blocks, const struct held *held, long count, const void *x, const void *entry, void *out,
    void *const *exports,
    long rows, long width, long start, const int64_t *base, const int64_t *positions, const int64_t *loose, long loose_count,
    const int64_t *bits, float scale, int half, long threads) {
    struct task t = {blocks, held, count, x, entry, out, exports, rows, width, scale, half, .start = start};
    t.sight = (struct sight){base, positions, loose, bits, loose_count};
    for (long row = 0; !positions && row < rows; row++) {
        t.line[row] = start + row;
        if (row < FEW)
            t.bits[row] = (int64_t)((UINT64_C(2) << row) - 1);
    }
    if (!positions)
        t.sight = (struct sight){&t.start, t.line, t.line, t.bits, rows};
    struct sizes s = sizes_of(&t);
    char *memory = aligned_alloc(64, s.y + s.wide + s.apart + s.room + s.scores + s.stages);
    if (!memory)
        return 1;
    t.y = memory;
    t.wide = memory += s.y;
    t.apart = memory += s.wide;
    t.room = memory += s.apart;
    t.scores = (float *)(memory += s.room);
    if (threads > 1 && parallel && work_of(&t) >= SPREAD) {
        t.stages = (struct stage *)(memory += s.scores);
        memset(t.stages, 0, s.stages);
        parallel(walk, &t, (unsigned)threads, 0);
    } else
        walk(&t);
    free(t.y);
    return 0;
}
