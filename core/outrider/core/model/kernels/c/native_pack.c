/* Rows of codes or of plain bf16, one below the other, to the blocks that `native_linear.c` multiplies by. */

#include "native.h"

#define BLOCK 32 /* outputs, as there */

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
            for (long i = 0; i < length / 4; i++, row += 4) {
                uint32_t codes;
                memcpy(&codes, row, 4);
                out[i * BLOCK] = s->bits == 16 ? codes : (codes & 0xff0000ff) | (codes >> 8 & 0xff00) | (codes & 0xff00) << 8;
            }
    }
}

void pack(const uint8_t *codes, uint32_t *out, long outputs, long inputs, long group, long bits, long threads) {
    struct stored job = {codes, out, outputs, inputs, group, bits};
    spread(pack_block, &job, (outputs + BLOCK - 1) / BLOCK, (double)outputs * inputs, threads);
}
