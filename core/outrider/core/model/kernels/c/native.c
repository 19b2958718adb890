/* Fused steps of a decode pass on a CPU, for `native.py`: norms, gates, and the best of a row of logits. */

#include "native_steps.h"

parallel_fn parallel;

/* Threads for long work: the address of GOMP_parallel. */
void use_threads(void *found) { parallel = (parallel_fn)found; }

void norm_row(const void *job, long row) {
    const struct rows *j = job;
    const void *x = at(j->x, row * j->n, j->half);
    void *out = (void *)at(j->out, row * j->n, j->half);
    if (j->half)
        norm(x, j->weight, out, j->n, j->eps, 1);
    else
        norm(x, j->weight, out, j->n, j->eps, 0);
}

void rms_norm(const void *x, const void *weight, void *out, long rows, long n, float eps, int half, long threads) {
    struct rows job = {x, weight, out, n, eps, half, 0};
    spread(norm_row, &job, rows, 4.0 * rows * n, threads);
}

enum { SILU, GELU_TANH, CLAMPED };

static INLINE vf gate(vf x, vf up, const int activation, const int half) {
    if (activation == CLAMPED) {
        vf most = splat(7), least = splat(-7);
        x = pick(x > most, most, x);
        up = pick(up > most, most, pick(up < least, least, up));
        vf steep = rounded(x * 1.702f, half), open = rounded(1 / (1 + exponential(-steep)), half);
        return rounded(rounded(up + 1, half) * x, half) * open;
    }
    vf steep = x;
    if (activation == GELU_TANH)
        steep = 1.5957691216057308f * (x + 0.044715f * (x * x * x));
    return rounded(x / (1 + exponential(-steep)), half) * up;
}

static INLINE void gate_each(const void *both, void *out, long n, const int activation, const int half) {
    const void *up = at(both, n, half);
    for (long i = 0; i < n; i += LANES)
        store_some(out, i, n, gate(load_some(both, i, n, half), load_some(up, i, n, half), activation, half), half);
}

static INLINE void gate_as(const struct rows *j, const void *both, void *out, const int half) {
    if (j->activation == SILU)
        gate_each(both, out, j->n, SILU, half);
    else if (j->activation == GELU_TANH)
        gate_each(both, out, j->n, GELU_TANH, half);
    else
        gate_each(both, out, j->n, CLAMPED, half);
}

void gate_row(const void *job, long row) {
    const struct rows *j = job;
    const void *both = at(j->x, 2 * row * j->n, j->half);
    void *out = (void *)at(j->out, row * j->n, j->half);
    if (j->half)
        gate_as(j, both, out, 1);
    else
        gate_as(j, both, out, 0);
}

void gated(const void *both, void *out, long rows, long n, int activation, int half, long threads) {
    struct rows job = {both, 0, out, n, 0, half, activation};
    spread(gate_row, &job, rows, 16.0 * rows * n, threads);
}

struct best {
    const void *x;
    long n;
    int half;
    float *largest;
    int64_t *ids;
    float *shares; /* none, or e^largest over the sum of all e^x */
};

/* The largest number, the first place where it stands, and its share; all that is told of a row with a NaN is a NaN. */
static INLINE void best(const struct best *j, long row, const int half) {
    const void *x = at(j->x, row * j->n, half);
    const long whole = j->n / LANES * LANES;
    vf most = splat(-INFINITY), total_of = {0};
    vi places = {0}, odd = {0};
    for (long i = 0; i < whole; i += LANES) {
        vf y = load(x, i, half);
        vi more = y > most;
        odd |= y != y;
        most = pick(more, y, most);
        places = (more & (int32_t)i) | (~more & places);
    }
    float top = -INFINITY, sum = 0;
    long id = 0;
    int bad = 0;
    for (int lane = 0; whole && lane < LANES; lane++) {
        long place = places[lane] + lane;
        bad |= odd[lane];
        if (most[lane] > top || (most[lane] == top && place < id) || !lane)
            top = most[lane], id = place;
    }
    for (long i = whole; i < j->n; i++) {
        float y = load_some(x, i, i + 1, half)[0];
        bad |= y != y;
        if (y > top)
            top = y, id = i;
    }
    j->largest[row] = bad ? NAN : top;
    j->ids[row] = id;
    if (!j->shares)
        return;
    for (long i = 0; i < whole; i += LANES)
        total_of += exponential(load(x, i, half) - top);
    for (long i = whole; i < j->n; i++)
        sum += exponential_of(load_some(x, i, i + 1, half)[0] - top);
    sum += total(total_of);
    j->shares[row] = bad || !isfinite(top) ? NAN : 1 / sum;
}

static void best_row(const void *job, long row) {
    const struct best *j = job;
    if (j->half)
        best(j, row, 1);
    else
        best(j, row, 0);
}

void best_of(const void *x, float *largest, int64_t *ids, float *shares, long rows, long n, int half, long threads) {
    struct best job = {x, n, half, largest, ids, shares};
    spread(best_row, &job, rows, (shares ? 4.0 : 1.0) * rows * n, threads);
}
