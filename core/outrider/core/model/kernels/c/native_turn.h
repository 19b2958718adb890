/* Squares of LANES by LANES numbers, turned about; a part of `native_attend.c`. */

/* Lanes of two vectors, by number. */
#if defined(__clang__)
#define MIX(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define MIX(a, b, ...) __builtin_shuffle(a, b, (vi){__VA_ARGS__})
#endif
#define UPPER(i, s) ((i) & (s) ? LANES + (i) - (s) : (i))
#define LOWER(i, s) ((i) & (s) ? LANES + (i) : (i) + (s))
#define FOUR(of, i, s) of(i, s), of((i) + 1, s), of((i) + 2, s), of((i) + 3, s)
#if LANES == 16
#define ALL(of, s) FOUR(of, 0, s), FOUR(of, 4, s), FOUR(of, 8, s), FOUR(of, 12, s)
#elif LANES == 8
#define ALL(of, s) FOUR(of, 0, s), FOUR(of, 4, s)
#else
#define ALL(of, s) FOUR(of, 0, s)
#endif
#define SWAP(x, s)                                                     \
    _Pragma("GCC unroll 16") for (int i = 0; i < LANES; i++) if (!(i & (s))) { \
        vf upper = MIX(x[i], x[i + (s)], ALL(UPPER, s));               \
        x[i + (s)] = MIX(x[i], x[i + (s)], ALL(LOWER, s));             \
        x[i] = upper;                                                  \
    }

static INLINE void transpose(vf x[LANES]) {
#if LANES >= 16
    SWAP(x, 8)
#endif
#if LANES >= 8
    SWAP(x, 4)
#endif
    SWAP(x, 2)
    SWAP(x, 1)
}
