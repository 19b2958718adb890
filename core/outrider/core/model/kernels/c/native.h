/* What the fused steps share: vectors as wide as the machine's registers, bf16, threads, and the norm of a row.

   `half`: numbers are bf16, else fp32; sums are fp32 in both. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif

#define SPREAD (1L << 18) /* multiplications from which more threads pay */

#define INLINE inline __attribute__((always_inline))
#define ALIGNED __attribute__((aligned(64)))
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
typedef uint16_t vh __attribute__((vector_size(2 * LANES)));

/* Threads: those of the runtime that torch uses; `use_threads` gets its GOMP_parallel. */

typedef void (*parallel_fn)(void (*)(void *), void *, unsigned, unsigned);
typedef void (*step_fn)(const void *job, long item);

extern parallel_fn parallel __attribute__((visibility("hidden")));

struct team {
    step_fn step;
    const void *job;
    long items, next;
};

static void member(void *shared) {
    struct team *team = shared;
    long item;
    while ((item = __atomic_fetch_add(&team->next, 1, __ATOMIC_RELAXED)) < team->items)
        team->step(team->job, item);
}

/* Do `step` for each item, by several threads where the work is worth it. */
static inline void spread(step_fn step, const void *job, long items, double work, long threads) {
    struct team team = {step, job, items, 0};
    threads = MIN(threads, items);
    if (threads > 1 && parallel && work >= SPREAD)
        parallel(member, &team, (unsigned)threads, 0);
    else
        member(&team);
}

/* Vectors. */

static INLINE vf splat(float x) { return x - (vf){0}; }
static INLINE vf pick(vi mask, vf a, vf b) { return (vf)(((vi)a & mask) | ((vi)b & ~mask)); }

/* y where one of them is not a number. */
static INLINE vf larger(vf x, vf y) {
#if LANES == 16
    return (vf)_mm512_max_ps((__m512)x, (__m512)y);
#elif LANES == 8
    return (vf)_mm256_max_ps((__m256)x, (__m256)y);
#else
    return pick(x > y, x, y);
#endif
}

static INLINE vf smaller(vf x, vf y) {
#if LANES == 16
    return (vf)_mm512_min_ps((__m512)x, (__m512)y);
#elif LANES == 8
    return (vf)_mm256_min_ps((__m256)x, (__m256)y);
#else
    return pick(x < y, x, y);
#endif
}

static INLINE vf widen(vh x) { return (vf)(__builtin_convertvector(x, vu) << 16); }

/* To the nearest bf16, ties to even, in the upper half of each lane. A NaN stays one: its lower half is 0 in all that comes
   of bf16. */
static INLINE vu nearest(vf x) { return (vu)x + 0x7fff + (((vu)x >> 16) & 1); }

static INLINE vf rounded(vf x, const int half) { return half ? (vf)(nearest(x) & 0xffff0000u) : x; }
static INLINE const void *at(const void *p, long i, const int half) { return (const char *)p + i * (half ? 2 : 4); }

static INLINE vf load(const void *p, long i, const int half) {
    vh narrow;
    vf full;
    if (half) {
        memcpy(&narrow, at(p, i, half), sizeof narrow);
        return widen(narrow);
    }
    memcpy(&full, at(p, i, half), sizeof full);
    return full;
}

static INLINE void store(void *p, long i, vf x, const int half) {
    void *to = (void *)at(p, i, half);
    if (half) {
        vh narrow = __builtin_convertvector(nearest(x) >> 16, vh);
        memcpy(to, &narrow, sizeof narrow);
    } else
        memcpy(to, &x, sizeof x);
}

/* As `load` and `store`, of at most n numbers in all; zeros stand for those beyond. */
static INLINE vf load_some(const void *p, long i, long n, const int half) {
    float rest[LANES] = {0};
    if (i + LANES <= n)
        return load(p, i, half);
    memcpy(rest, at(p, i, half), (n - i) * (half ? 2 : 4));
    return load(rest, 0, half);
}

static INLINE void store_some(void *p, long i, long n, vf x, const int half) {
    float rest[LANES];
    if (i + LANES <= n) {
        store(p, i, x, half);
        return;
    }
    store(rest, 0, x, half);
    memcpy((void *)at(p, i, half), rest, (n - i) * (half ? 2 : 4));
}

static INLINE float total(vf x) {
    float lane[LANES];
    memcpy(lane, &x, sizeof x);
    for (int step = LANES / 2; step; step /= 2)
        for (int i = 0; i < step; i++)
            lane[i] += lane[i + step];
    return lane[0];
}

static INLINE float largest(vf x) {
    float lane[LANES];
    memcpy(lane, &x, sizeof x);
    for (int step = LANES / 2; step; step /= 2)
        for (int i = 0; i < step; i++)
            lane[i] = MAX(lane[i], lane[i + step]);
    return lane[0];
}

/* e^x to the last place or two: 0 below -87, infinity above 88.4, exactly 1 at 0. */
static INLINE vf exponential(vf x) {
    vf low = splat(-87), high = splat(89), shift = splat(12582912.0f); /* 1.5 * 2^23: whole numbers in the last bits */
    vi none = x < low;
    x = larger(low, smaller(high, x));
    vf whole = x * 1.44269504088896341f + shift, n = whole - shift;
    vf r = x - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    vf y = splat(1.9875691500e-4f);
    y = y * r + 1.3981999507e-3f;
    y = y * r + 8.3334519073e-3f;
    y = y * r + 4.1665795894e-2f;
    y = y * r + 1.6666665459e-1f;
    y = y * r + 5.0000001201e-1f;
    y = y * (r * r) + r + 1;
    vi power = ((vi)whole - (vi)shift + 127) << 23;
    return (vf)((vi)(y * (vf)power) & ~none);
}

static INLINE float exponential_of(float x) { return exponential(splat(x))[0]; }

/* x / rms(x) * weight, rounded once, as torch does. */
static INLINE void norm(const void *x, const void *weight, void *out, long n, float eps, const int half) {
    vf a = {0}, b = {0};
    for (long i = 0; i < n; i += 2 * LANES) {
        vf one = load_some(x, i, n, half);
        a += one * one;
        if (i + LANES < n) {
            vf two = load_some(x, i + LANES, n, half);
            b += two * two;
        }
    }
    float inverse = 1 / sqrtf(total(a + b) / n + eps);
    for (long i = 0; i < n; i += LANES) {
        vf y = load_some(x, i, n, half) * inverse;
        if (weight)
            y *= load_some(weight, i, n, half);
        store_some(out, i, n, y, half);
    }
}
