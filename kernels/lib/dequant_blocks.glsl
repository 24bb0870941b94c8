// dequant_blocks.glsl - dequant.glsl for one block format: FORMATS is its word (args.h), a constant, so that
// a driver drops the code of all others. src/base/format_blocks.c has the formulas in plain C.
//
// All block formats are read in the same form. A part is 32 neighbouring columns of a row; four quarters of
// eight columns each have codes of one byte, its two halves a scale and an offset each:
//   value = (byte - ZERO) * scale + bias
// Every product is exact in float32, so a value is rounded once at most, as in ggml's formulas.
//
// Matrices begin at multiples of 16 bytes, so a block begins at a multiple of what divides both 16 and its
// size: of 16, 8, 4 or 2 bytes, or at any byte. All loads are of whole words that contain a byte of the part.
#include "codebooks.h"
#include "lib/small_floats.glsl"

#define BY_FORMAT(format, call)          \
    {                                    \
        const uint FORMAT = FORMAT_NONE; \
        call;                            \
    }

const uint NUMBER = FORMAT_WORD_NUMBER(FORMATS);
#define IS(name)                               (NUMBER == FORMAT_G_##name)
#define ROW_COLS(name, number, cols, bytes, x) +(NUMBER == (number) ? cols : 0u)
#define ROW_BYTES(name, number, cols, bytes, x) +(NUMBER == (number) ? bytes : 0u)
const uint BLOCK_COLS = 0u FORMAT_TABLE_BLOCKS(ROW_COLS, 0);
const uint BLOCK_BYTES = 0u FORMAT_TABLE_BLOCKS(ROW_BYTES, 0);
const uint PARTS = BLOCK_COLS / 32; // parts of a block
const bool IS_ALIGNED = BLOCK_BYTES % 4 == 0;
const bool IS_ALIGNED_8 = BLOCK_BYTES % 8 == 0, IS_ALIGNED_16 = BLOCK_BYTES % 16 == 0;
// The number 4 as a constant that only a driver knows: glslc must not multiply the code by unrolling.
const uint QUARTERS = BLOCK_COLS > 0 ? 4 : 0;

// Sets of formats with a common form.
const bool IS_IQ2 = IS(IQ2_XXS) || IS(IQ2_XS) || IS(IQ2_S);
const bool IS_IQ3 = IS(IQ3_XXS) || IS(IQ3_S);
const bool IS_IQ1 = IS(IQ1_S) || IS(IQ1_M);
const bool IS_E2M1 = IS(MXFP4) || IS(NVFP4);
const bool IS_IQ4 = IS(IQ4_NL) || IS(IQ4_XS);
// 16 bytes are the codes of a part: the lower halves of the bytes, then the upper ones.
const bool HAS_NIBBLES = IS(Q4_0) || IS(Q4_1) || IS(Q5_0) || IS(Q5_1) || IS_IQ4 || IS(MXFP4);
// The first word has a float16 scale and a float16 offset.
const bool HAS_PAIR = IS(Q4_1) || IS(Q5_1) || IS(Q4_K) || IS(Q5_K);
const bool HAS_BIAS = HAS_PAIR || IS(Q2_K);
const bool HAS_ENTRIES = IS_IQ1 || IS_IQ2 || IS_IQ3; // codes are entries of a code book
const bool HAS_HIGH = IS(Q3_K) || IS(Q5_K) || IS(Q6_K);

#ifdef LARGE_BOOKS
// 4-bit codes are looked up one by one: 16 float32 numbers have no bank conflicts.
const bool HAS_NUMBERS = IS_IQ4 || IS_E2M1;
// Entries are spread over bytes once, in shared memory: 4 of IQ3, 8 of IQ2. (IQ2_S and IQ1 have too many.)
const bool HAS_SPREAD = IS_IQ3 || IS(IQ2_XXS) || IS(IQ2_XS);
#else
const bool HAS_NUMBERS = false, HAS_SPREAD = false;
#endif

const uint ZERO = HAS_NUMBERS                           ? 0 :
                  IS(Q4_0)                              ? 8 :
                  IS(Q5_0) || IS_IQ1                    ? 16 :
                  IS(Q3_K)                              ? 4 :
                  IS(Q6_K)                              ? 32 :
                  IS(TQ1_0) || IS(TQ2_0)                ? 1 :
                  IS(Q8_0) || IS_IQ2 || IS_IQ3 || IS_IQ4 || IS_E2M1 ? 128 :
                                                          0;

// ---------------------------------------------------------------------------------------------- code books

// Words of the code book in shared memory: entries of 16 bits, two a word; with HAS_SPREAD their bytes; for
// each pair of 4-bit codes a word with their two bytes; or with HAS_NUMBERS their numbers.
const uint ENTRIES = IS(IQ2_XXS) ? CODEBOOK_IQ2_XXS_ENTRIES :
                     IS(IQ2_XS)  ? CODEBOOK_IQ2_XS_ENTRIES :
                     IS(IQ2_S)   ? CODEBOOK_IQ2_S_ENTRIES :
                     IS(IQ3_XXS) ? CODEBOOK_IQ3_XXS_ENTRIES :
                     IS(IQ3_S)   ? CODEBOOK_IQ3_S_ENTRIES :
                     IS_IQ1      ? CODEBOOK_IQ1_ENTRIES :
                                   0;
const uint BOOK_WORDS = HAS_SPREAD        ? (IS_IQ2 ? 2 * ENTRIES : ENTRIES) :
                        HAS_ENTRIES       ? ENTRIES / 2 :
                        HAS_NUMBERS       ? 16 :
                        IS_IQ4 || IS_E2M1 ? 256 :
                                            0;
const bool HAS_BOOK = BOOK_WORDS > 0;
shared uint book[BOOK_WORDS > 0 ? BOOK_WORDS : 1];

#define BOOK_WORD(word) uint(word)
const uvec4 IQ4_BYTES = uvec4(CODEBOOK_IQ4(BOOK_WORD));
// Twice the values of E2M1 numbers: 0, 1, 2, 3, 4, 6, 8, 12 and their negatives.
const uvec4 E2M1_BYTES = uvec4(0x03020100u, 0x0c080604u, 0xfdfeff00u, 0xf4f8fafcu);

uint byte_of_16(uvec4 bytes, uint i)
{
    uint word = (i & 8u) == 0 ? ((i & 4u) == 0 ? bytes.x : bytes.y) : ((i & 4u) == 0 ? bytes.z : bytes.w);
    return word >> 8 * (i & 3u) & 0xffu;
}

// The first word of the format's code book in memory (src/exec/code_books.h).
const uint XS_AT = CODEBOOK_IQ2_XXS_ENTRIES / 2, S_AT = XS_AT + CODEBOOK_IQ2_XS_ENTRIES / 2;
const uint IQ3_AT = S_AT + CODEBOOK_IQ2_S_ENTRIES / 2, IQ3_S_AT = IQ3_AT + CODEBOOK_IQ3_XXS_ENTRIES / 2;
const uint IQ1_AT = IQ3_S_AT + CODEBOOK_IQ3_S_ENTRIES / 2;
const uint BOOK_AT = IS(IQ2_XS)  ? XS_AT :
                     IS(IQ2_S)   ? S_AT :
                     IS(IQ3_XXS) ? IQ3_AT :
                     IS(IQ3_S)   ? IQ3_S_AT :
                     IS_IQ1      ? IQ1_AT :
                                   0;

// Spreads four numbers of two bits over four bytes.
uint spread_twos(uint bits)
{
    return (bits | bits << 6 | bits << 12 | bits << 18) & 0x03030303u;
}

// Spreads four numbers of four bits over four bytes.
uint spread_fours(uint bits)
{
    return (bits & 15u) | (bits << 4 & 0xf00u) | (bits << 8 & 0xf0000u) | (bits << 12 & 0xf000000u);
}

// Returns the magnitudes, bytes, of eight numbers of IQ2: 0, 1, 2 mean 8, 25, 43.
uvec2 iq2_magnitudes(uint entry)
{
    uvec2 v = uvec2(spread_twos(entry & 0xffu), spread_twos(entry >> 8));
    return 0x08080808u + 17 * v + (v >> 1 & 0x01010101u);
}

// Returns those of four numbers of IQ3: c means 4 + 8 c, 7 means 62; IQ3_S: 1 + 2 c.
uint iq3_magnitudes(uint entry)
{
    uint c = spread_fours(entry);
    return IS(IQ3_XXS) ? 0x04040404u + 8 * c + 2 * (c & c >> 1 & c >> 2 & 0x01010101u) : 0x01010101u + 2 * c;
}

// Fills the code book in shared memory; books: the address of all. All invocations call it, and a barrier
// follows before the first product.
void fill_book(uvec2 books)
{
    // Mesa 22 folds a constant choice between vectors wrongly, between numbers correctly.
    uvec4 bytes = uvec4(IS_IQ4 ? IQ4_BYTES.x : E2M1_BYTES.x, IS_IQ4 ? IQ4_BYTES.y : E2M1_BYTES.y,
                        IS_IQ4 ? IQ4_BYTES.z : E2M1_BYTES.z, IS_IQ4 ? IQ4_BYTES.w : E2M1_BYTES.w);
    for (uint i = gl_LocalInvocationID.x; i < BOOK_WORDS; i += WORKGROUP) {
        if (HAS_SPREAD) {
            uint n = IS_IQ2 ? i >> 1 : i, two = Words(books).v[BOOK_AT + (n >> 1)];
            uvec2 eight = iq2_magnitudes(two >> 16 * (n & 1u) & 0xffffu);
            book[i] = IS_IQ3        ? iq3_magnitudes(two >> 16 * (n & 1u) & 0xffffu) :
                      (i & 1u) == 0 ? eight.x :
                                      eight.y;
        } else if (HAS_ENTRIES)
            book[i] = Words(books).v[BOOK_AT + i];
        else if (HAS_NUMBERS)
            book[i] = floatBitsToUint(float(int(byte_of_16(bytes, i) << 24) >> 24));
        else
            book[i] = (byte_of_16(bytes, i & 15u) | byte_of_16(bytes, i >> 4) << 8) ^ 0x8080u;
    }
}

// Returns entry i of 16 bits.
uint book_entry(uint i)
{
    return book[i >> 1] >> 16 * (i & 1u) & 0xffffu;
}

// ------------------------------------------------------------------------------------------------- loading

// A block in memory: the word that contains its first byte, and that byte's place in the word.
struct Block {
    uvec2 words;
    uint from;
};

// Returns a matrix's block number `i`.
Block block_at(uvec2 weight, uint i)
{
    uint high, low;
    umulExtended(i, BLOCK_BYTES, high, low);
    uvec2 at = addr_add(weight + uvec2(0, high), low);
    return Block(uvec2(at.x & ~3u, at.y), IS_ALIGNED ? 0 : at.x & 3u);
}

// These return numbers that begin at a byte of the block. A half does not span two words.
uint byte_at(Block b, uint byte)
{
    uint at = b.from + byte;
    return Words(b.words).v[at >> 2] >> 8 * (at & 3u) & 0xffu;
}

uint half_at(Block b, uint byte)
{
    uint at = b.from + byte;
    return Words(b.words).v[at >> 2] >> 8 * (at & 2u) & 0xffffu;
}

uint word_at(Block b, uint byte)
{
    uint at = b.from + byte, shift = 8 * (at & 3u), v = Words(b.words).v[at >> 2];
    if (!IS_ALIGNED) {
        uint high = Words(b.words).v[at + 3 >> 2];
        v = shift == 0 ? v : v >> shift | high << (32 - shift & 31u);
    }
    return v;
}

uvec2 words_at(Block b, uint byte)
{
    uint at = b.from + byte, shift = 8 * (at & 3u);
    uvec2 v = uvec2(Words(b.words).v[at >> 2], Words(b.words).v[(at >> 2) + 1]);
    if (!IS_ALIGNED) {
        uint last = Words(b.words).v[at + 7 >> 2];
        v = shift == 0 ? v : v >> shift | uvec2(v.y, last) << (32 - shift & 31u);
    }
    return v;
}

// Returns 16 bytes of a block that is IS_ALIGNED_16; byte: a multiple of 16.
uvec4 wide_at(Block b, uint byte)
{
    return Words4(addr_add(b.words, byte)).v[0];
}

// Loads n times 8 bytes from `byte` on: a multiple of 16 in a block that is IS_ALIGNED_16, of 8 in one that
// is IS_ALIGNED_8, of 4 in one that is IS_ALIGNED.
void load_run(Block b, uint byte, const uint n, out uvec2 v[4])
{
    uint at = b.from + byte, first = at >> 2, shift = 8 * (at & 3u), last = at + 8 * n - 1 >> 2;
    uint w = IS_ALIGNED_8 ? 0 : Words(b.words).v[first];
    [[unroll]] for (uint j = 0; j < QUARTERS; j++) {
        if (j >= n) {
            v[j] = uvec2(0);
        } else if (IS_ALIGNED_16) {
            if ((j & 1u) == 0) {
                uvec4 both = wide_at(b, byte + 8 * j);
                v[j] = both.xy;
                v[j + 1] = both.zw;
            }
        } else if (IS_ALIGNED_8) {
            v[j] = two_at(b.words, (byte >> 3) + j);
        } else if (IS_ALIGNED) {
            v[j] = uvec2(w, Words(b.words).v[first + 2 * j + 1]);
            w = j + 1 < n ? Words(b.words).v[first + 2 * j + 2] : 0;
        } else {
            uint mid = Words(b.words).v[first + 2 * j + 1];
            uint end = Words(b.words).v[j + 1 < n ? first + 2 * j + 2 : last];
            v[j] = uvec2(w, mid);
            if (shift != 0)
                v[j] = v[j] >> shift | uvec2(mid, end) << 32 - shift;
            w = end;
        }
    }
}

// A part as it is loaded: `head` has the scales, and codes that are no bytes of quarters; `low` and `high`
// have each quarter's bytes.
struct Part {
    uvec4 head;
    uvec2 low[4], high[4];
};

// The place of the float16 scale in a block.
const uint SCALE_AT = IS(Q3_K) ? 108 : IS(Q6_K) ? 208 : IS(TQ1_0) ? 52 : IS(TQ2_0) ? 64 : 0;

uvec4 load_entry_head(Block b, uint part)
{
    uvec4 h = uvec4(0);
    if (!IS(IQ1_M))
        h.x = half_at(b, 0);
    if (IS(IQ2_XXS) || IS(IQ2_XS) || IS_IQ3)
        h.yz = words_at(b, 2 + 8 * part);
    if (IS(IQ1_S)) {
        h.y = word_at(b, 2 + 4 * part);
        h.z = half_at(b, 34 + 2 * part);
    } else if (IS(IQ1_M)) {
        h.xy = words_at(b, 48);
        h.z = word_at(b, 4 * part);
        h.w = half_at(b, 32 + 2 * part);
    } else if (IS(IQ2_XS)) {
        h.w = byte_at(b, 66 + part);
    } else if (IS(IQ2_S)) {
        h.y = word_at(b, 2 + 4 * part);
        h.z = word_at(b, 34 + 4 * part);
        h.w = byte_at(b, 74 + part) | byte_at(b, 66 + part) << 8;
    } else if (IS(IQ3_XXS)) {
        h.w = word_at(b, 66 + 4 * part);
    } else if (IS(IQ3_S)) {
        h.x |= byte_at(b, 66 + part) << 16 | (byte_at(b, 106 + (part >> 1)) >> 4 * (part & 1u) & 15u) << 24;
        h.w = word_at(b, 74 + 4 * part);
    }
    return h;
}

uvec4 load_head(Block b, uint part)
{
    uvec4 h = uvec4(0);
    if (HAS_ENTRIES) {
        h = load_entry_head(b, part);
    } else if (IS(MXFP4)) {
        h.x = byte_at(b, 0);
    } else if (IS(Q4_1) || IS(Q5_1) || IS(IQ4_XS) || IS(NVFP4)) {
        h.x = word_at(b, 0);
    } else if (IS(Q2_K)) {
        h.x = word_at(b, 80);
    } else if (!HAS_PAIR) {
        h.x = half_at(b, SCALE_AT);
    }
    if (IS(Q5_0))
        h.y = word_at(b, 2);
    if (IS(Q5_1) || IS(IQ4_XS))
        h.y = word_at(b, 4);
    if (IS(Q2_K))
        h.y = half_at(b, 2 * part);
    if (IS(Q3_K)) // the two scales, 6 bits each: four lower bits, two upper ones
        h.y = half_at(b, 96 + (2 * part & 7u)) >> 4 * (part >> 2) & 0x0f0fu |
              (half_at(b, 104 + (2 * part & 3u)) >> 2 * (part >> 1) & 0x0303u) << 4;
    if (IS(Q6_K))
        h.y = half_at(b, 192 + 2 * part);
    if (IS(Q4_K) || IS(Q5_K))
        h = wide_at(b, 0);
    return h;
}

// Returns where the bytes of a quarter begin.
uint low_place(uint part, uint j)
{
    uint at = IS(Q8_0) || IS(Q4_0) || IS(IQ4_NL) ? 2 :
              IS(Q4_1) || IS(NVFP4)              ? 4 :
              IS(Q5_0)                           ? 6 :
              IS(Q5_1) || IS(IQ4_XS)             ? 8 :
              IS(MXFP4)                          ? 1 :
              IS(Q2_K) || IS(Q4_K)               ? 16 :
              IS(Q3_K)                           ? 32 :
              IS(Q5_K)                           ? 48 :
                                                   0;
    if (IS(NVFP4))
        at += 16 * part + 8 * (j >> 1);
    else if (HAS_NIBBLES)
        at += (IS(IQ4_XS) ? 16 * part : 0) + 8 * (j & 1u);
    else if (IS(TQ1_0))
        at += part < 5 ? 8 * j : part < 7 || j < 2 ? 32 + 8 * (j & 1u) : 0;
    else if (IS(Q6_K))
        at += 64 * (part >> 2) + 32 * (part & 1u) + 8 * j;
    else if (IS(Q4_K) || IS(Q5_K))
        at += 32 * (part >> 1) + 8 * j;
    else
        at += (IS(Q8_0) ? 0 : 32 * (part >> 2)) + 8 * j;
    return at;
}

// Returns where the bytes of `high` begin.
uint high_place(uint part)
{
    return IS(Q6_K) ? 128 + 32 * (part >> 2) : IS(Q5_K) ? 16 : 0;
}

void load_quarter(Block b, uint part, uint j, out uvec2 low, out uvec2 high)
{
    low = high = uvec2(0);
    if (!HAS_ENTRIES)
        low = words_at(b, low_place(part, j));
    if (IS(TQ1_0) && part == 7 && j > 1)
        low = uvec2(word_at(b, 48));
    if (HAS_HIGH)
        high = words_at(b, high_place(part) + 8 * j);
}

Part load_part_of(Block b, uint part)
{
    Part p;
    p.head = load_head(b, part);
    if (IS(NVFP4) || IS(TQ1_0) || HAS_ENTRIES) {
        [[unroll]] for (uint j = 0; j < QUARTERS; j++)
            load_quarter(b, part, j, p.low[j], p.high[j]);
        return p;
    }
    load_run(b, low_place(part, 0), HAS_NIBBLES ? 2 : 4, p.low);
    if (HAS_NIBBLES) {
        p.low[2] = p.low[0];
        p.low[3] = p.low[1];
    }
    if (HAS_HIGH)
        load_run(b, high_place(part), 4, p.high);
    return p;
}

// Whether parts 2 apart have the same `low` in each 128 columns.
const bool SHARES_LOW = IS(Q2_K) || IS(Q3_K) || IS(Q6_K) || IS(TQ2_0);

// Loads a part. follows: p is the one 2 before it, if the block has that, and bytes of both stay.
void load_next_part_of(Block b, uint part, const bool follows, inout Part p)
{
    if (!follows || (!SHARES_LOW && !IS(Q5_K))) {
        p = load_part_of(b, part);
        return;
    }
    p.head = load_head(b, part);
    if (!SHARES_LOW || (part & 2u) == 0)
        load_run(b, low_place(part, 0), 4, p.low);
    if (HAS_HIGH && (part & (IS(Q6_K) ? 2u : 6u)) == 0)
        load_run(b, high_place(part), 4, p.high);
}

// --------------------------------------------------------------------------------------------------- pieces
//
// A byte of some formats has codes of four parts. A piece is what a lane takes in a product of few
// tokens: quarter g of each of the parts 4 h .. 4 h + 3 is piece 4 h + g, so that each byte is loaded
// once. In other formats, and with BY_PARTS, a piece is a part. (Q4_K's bytes have codes of two parts,
// each with one scale: pieces of both need twice as many scales and are no faster.)
#ifdef BY_PARTS
const bool IS_STRIDED = false;
#else
const bool IS_STRIDED = IS(Q2_K) || IS(Q3_K) || IS(Q6_K) || IS(TQ2_0);
#endif
// Quarters of a piece that have a scale in common.
const uint SCALED = BLOCK_COLS > 0 ? (IS_STRIDED ? 1 : 2) : 0;

// Return the part, and the quarter in it, that is quarter j of a piece.
uint piece_part(uint piece, uint j)
{
    return IS_STRIDED ? (piece & 4u) + j : piece;
}

uint piece_quarter(uint piece, uint j)
{
    return IS_STRIDED ? piece & 3u : j;
}

// Returns columns 4 * c4 .. in the order of pieces: eight times the piece's number plus their place in it.
uint piece_vec(uint c4)
{
    uint part = c4 >> 3 & 7u, quarter = c4 >> 1 & 3u;
    return IS_STRIDED ? (c4 & ~63u) + 8 * ((part & 4u) + quarter) + 2 * (part & 3u) + (c4 & 1u) : c4;
}

// Loads the scales of a strided piece's parts: a block's scale and offset, then the bytes.
uvec4 load_strided_head(Block b, uint piece)
{
    uint scales = 8 * (piece >> 2);
    uvec4 h = uvec4(0);
    if (IS(Q2_K))
        h.x = word_at(b, 80);
    else
        h.x = half_at(b, SCALE_AT);
    if (IS(Q2_K))
        h.yz = words_at(b, scales);
    if (IS(Q6_K))
        h.yz = words_at(b, 192 + scales);
    if (IS(Q3_K)) {
        h.yz = words_at(b, 96);
        h.w = word_at(b, 104);
    }
    return h;
}

Part load_piece_of(Block b, uint piece)
{
    if (!IS_STRIDED)
        return load_part_of(b, piece);
    uint part = piece_part(piece, 0), quarter = piece_quarter(piece, 0);
    uvec2 low = words_at(b, low_place(part, quarter)), other = low, high = uvec2(0);
    if (IS(Q6_K))
        other = words_at(b, low_place(part + 1, quarter));
    if (HAS_HIGH)
        high = words_at(b, high_place(part) + 8 * quarter);
    Part p;
    p.head = load_strided_head(b, piece);
    [[unroll]] for (uint j = 0; j < QUARTERS; j++) {
        p.low[j] = (j & 1u) == 0 ? low : other;
        p.high[j] = high;
    }
    return p;
}

// Loads columns 32 * i .. of a row. follows: p has those 64 before them.
void load_next_part(Matrix m, uint row, uint i, const bool follows, inout Part p)
{
    load_next_part_of(block_at(m.weight, row * (m.cols / BLOCK_COLS) + i / PARTS), i % PARTS, follows, p);
}

// ------------------------------------------------------------------------------------------------ decoding

// Returns the scale of E8M0, half of 2^(e - 127).
float e8m0_half(uint e)
{
    return uintBitsToFloat(e < 2 ? 0x00200000u << e : e - 1 << 23);
}

// Returns the scale of half `k` of a part whose codes are entries of a code book.
float entry_scale(uvec4 h, uint part, uint k)
{
    float d = f16_value(h.x & 0xffffu), s = 0.0;
    if (IS(IQ1_S)) {
        s = d * 0.125 * float(2 * (h.z >> 12 & 7u) + 1);
    } else if (IS(IQ1_M)) {
        uint bits = h.x >> 12 & 0xfu | h.x >> 24 & 0xf0u | h.y >> 4 & 0xf00u | h.y >> 16 & 0xf000u;
        uint both = (part < 4 ? h.x : h.y) >> 16 * (part >> 1 & 1u) >> 6 * (part & 1u);
        s = f16_value(bits) * 0.125 * float(2 * (both >> 3 * k & 7u) + 1);
    } else if (IS(IQ2_XXS)) {
        s = d * (0.5 + float(h.z >> 28)) * 0.25;
    } else if (IS_IQ2) {
        s = d * (0.5 + float(h.w >> 4 * k & 15u)) * 0.25;
    } else if (IS(IQ3_XXS)) {
        s = d * (0.5 + float(h.w >> 28)) * 0.5;
    } else {
        s = d * float(1 + 2 * (h.x >> 24));
    }
    return s;
}

// Returns scale and bias of half `k` of a part.
vec2 scales_of(uvec4 h, uint part, uint k)
{
    vec2 v = vec2(0.0);
    if (HAS_ENTRIES) {
        v.x = entry_scale(h, part, k);
    } else if (IS(MXFP4)) {
        v.x = e8m0_half(h.x);
    } else if (IS(NVFP4)) {
        uint bits = h.x >> 16 * (part & 1u) + 8 * k & 0xffu;
        v.x = bits == 0x7fu ? 0.0 : e4m3_value(bits & 0x7fu) * 0.5;
    } else {
        float d = f16_value(h.x & 0xffffu), m = f16_value(h.x >> 16);
        v.x = d;
        if (IS(Q4_1) || IS(Q5_1))
            v.y = m;
        if (IS(Q2_K)) {
            uint both = h.y >> 8 * k;
            v = vec2(d * float(both & 15u), -m * float(both >> 4 & 15u));
        }
        if (IS(Q3_K))
            v.x = d * float(int(h.y >> 8 * k & 63u) - 32);
        if (IS(Q6_K))
            v.x = d * float(int(h.y << 24 - 8 * k) >> 24);
        if (IS(Q4_K) || IS(Q5_K)) {
            uvec3 bytes = h.yzw >> 8 * (part & 3u) & 0xffu;
            uint scale = part < 4 ? bytes.x & 63u : bytes.z & 15u | bytes.x >> 6 << 4;
            uint minimum = part < 4 ? bytes.y & 63u : bytes.z >> 4 | bytes.y >> 6 << 4;
            v = vec2(d * float(scale), -m * float(minimum));
        }
        if (IS(IQ4_XS)) {
            uint bits = h.y >> 4 * part & 15u | (h.x >> 16 + 2 * part & 3u) << 4;
            v.x = d * float(int(bits) - 32);
        }
    }
    return v;
}

// Returns scale and bias of a strided piece's quarter j.
vec2 strided_scales(uvec4 h, uint piece, uint j)
{
    float d = f16_value(h.x & 0xffffu);
    uint bytes = (j < 2 ? h.y : h.z) >> 16 * (j & 1u) + 8 * (piece >> 1 & 1u) & 0xffu;
    vec2 v = vec2(d, 0.0);
    if (IS(Q6_K))
        v.x = d * float(int(bytes << 24) >> 24);
    if (IS(Q2_K))
        v = vec2(d * float(bytes & 15u), -f16_value(h.x >> 16) * float(bytes >> 4));
    if (IS(Q3_K)) {
        uint low = bytes >> (piece & 4u) & 15u;
        uint high = h.w >> 16 * (j & 1u) + 8 * (piece >> 1 & 1u) >> (piece & 4u) + 2 * (j >> 1) & 3u;
        v.x = d * float(int(low | high << 4) - 32);
    }
    return v;
}

// Returns scale and bias of the quarters of a piece from j on that have them in common.
vec2 piece_scales(uvec4 h, uint piece, uint j)
{
    if (IS_STRIDED)
        return strided_scales(h, piece, j);
    return scales_of(h, piece, j >> 1);
}

// Spreads four bits over the lowest bits of four bytes.
uint spread_bits(uint bits)
{
    return (bits & 15u) * 0x00204081u & 0x01010101u;
}

// Returns 128 + v for bytes v < 128, or 128 - v where the byte of `signs` is 1.
uint signed_bytes(uint v, uint signs)
{
    return (v ^ 0x80808080u ^ signs * 0xffu) + signs;
}

// Returns seven bits of signs with the eighth, which makes their number even.
uint all_signs(uint bits)
{
    uint seven = bits & 0x7fu;
    return seven | (uint(bitCount(seven)) & 1u) << 7;
}

uvec2 iq2_bytes(uvec4 h, uint j)
{
    uint entry, signs;
    if (IS(IQ2_XXS)) {
        entry = h.y >> 8 * j & 0xffu;
        signs = all_signs(h.z >> 7 * j);
    } else if (IS(IQ2_XS)) {
        uint code = (j < 2 ? h.y : h.z) >> 16 * (j & 1u) & 0xffffu;
        entry = code & 0x1ffu;
        signs = all_signs(code >> 9);
    } else {
        entry = h.y >> 8 * j & 0xffu | (h.w >> 8 + 2 * j & 3u) << 8;
        signs = h.z >> 8 * j & 0xffu;
    }
    uvec2 v;
    if (HAS_SPREAD)
        v = uvec2(book[2 * entry], book[2 * entry + 1]);
    else
        v = iq2_magnitudes(book_entry(entry));
    return uvec2(signed_bytes(v.x, spread_bits(signs)), signed_bytes(v.y, spread_bits(signs >> 4)));
}

uvec2 iq3_bytes(uvec4 h, uint j)
{
    uint codes = (j < 2 ? h.y : h.z) >> 16 * (j & 1u);
    uint first = codes & 0xffu, second = codes >> 8 & 0xffu, signs;
    if (IS(IQ3_XXS)) {
        signs = all_signs(h.w >> 7 * j);
    } else {
        uint high = h.x >> 16 + 2 * j;
        first |= (high & 1u) << 8;
        second |= (high >> 1 & 1u) << 8;
        signs = h.w >> 8 * j & 0xffu;
    }
    uvec2 v;
    if (HAS_SPREAD)
        v = uvec2(book[first], book[second]);
    else
        v = uvec2(iq3_magnitudes(book_entry(first)), iq3_magnitudes(book_entry(second)));
    return uvec2(signed_bytes(v.x, spread_bits(signs)), signed_bytes(v.y, spread_bits(signs >> 4)));
}

// A code c means c - 1, to which 1/8 is added or from which 1/8 is subtracted. The bytes are eight times
// that, plus ZERO.
uvec2 iq1_bytes(uvec4 h, uint j)
{
    uint entry, bits;
    if (IS(IQ1_S)) {
        entry = h.y >> 8 * j & 0xffu | (h.z >> 3 * j & 7u) << 8;
        bits = h.z >> 15;
    } else {
        bits = h.w >> 4 * j;
        entry = h.z >> 8 * j & 0xffu | (bits & 7u) << 8;
        bits >>= 3;
    }
    uint twos = book_entry(entry), least = (bits & 1u) != 0 ? 0x07070707u : 0x09090909u;
    return least + 8 * uvec2(spread_twos(twos & 0xffu), spread_twos(twos >> 8));
}

// Returns the digits 0 to 2 of four bytes that are fractions of 256, after a multiplication by a power of 3.
uint ternary_digits(uint bytes, uint power)
{
    uvec2 v = uvec2(bytes, bytes >> 8) & 0x00ff00ffu;
    v = ((v * power & 0x00ff00ffu) * 3 >> 8) & 0x00030003u;
    return v.x | v.y << 8;
}

// Returns 3^n for n < 5.
uint power_of_3(uint n)
{
    return (n & 4u) != 0 ? 81 : ((n & 1u) != 0 ? 3 : 1) * ((n & 2u) != 0 ? 9 : 1);
}

uvec2 ternary_bytes(uvec2 low, uint part, uint j)
{
    uint n = part < 5 ? part : part < 7 ? 2 * (part - 5) + (j >> 1) : 4, first = n, second = n;
    if (part == 7 && j > 1) { // the last four bytes have four digits each
        first = 2 * (j - 2);
        second = first + 1;
    }
    return uvec2(ternary_digits(low.x, power_of_3(first)), ternary_digits(low.y, power_of_3(second)));
}

// Returns the bytes for 4-bit codes in the lower halves of bytes.
uint book_bytes(uint nibbles)
{
    uint pairs = nibbles | nibbles >> 4;
    return book[pairs & 0xffu] | book[pairs >> 16 & 0xffu] << 16;
}

// HAS_NUMBERS: returns the numbers for 4-bit codes in the lower halves of bytes.
vec4 book_numbers(uint nibbles)
{
    return uintBitsToFloat(uvec4(book[nibbles & 15u], book[nibbles >> 8 & 15u], book[nibbles >> 16 & 15u],
                                 book[nibbles >> 24]));
}

// Returns the bytes of the codes of quarter j; with HAS_NUMBERS the codes.
uvec2 bytes_of(uvec4 h, uvec2 low, uvec2 high, uint part, uint j)
{
    uvec2 v = low;
    if (HAS_NIBBLES)
        v = v >> 4 * (j >> 1) & 0x0f0f0f0fu;
    if (IS(NVFP4))
        v = v >> 4 * (j & 1u) & 0x0f0f0f0fu;
    if ((IS_IQ4 || IS_E2M1) && !HAS_NUMBERS)
        v = uvec2(book_bytes(v.x), book_bytes(v.y));
    if (IS(Q5_0) || IS(Q5_1))
        v |= uvec2(spread_bits(h.y >> 8 * j), spread_bits(h.y >> 8 * j + 4)) << 4;
    if (IS(Q8_0))
        v ^= 0x80808080u;
    if (IS(Q2_K) || IS(Q3_K) || IS(TQ2_0))
        v = v >> 2 * (part & 3u) & 0x03030303u;
    if (IS(Q3_K))
        v |= (high >> part & 0x01010101u) << 2;
    if (IS(Q4_K) || IS(Q5_K))
        v = v >> 4 * (part & 1u) & 0x0f0f0f0fu;
    if (IS(Q5_K))
        v |= (high >> part & 0x01010101u) << 4;
    if (IS(Q6_K))
        v = v >> 4 * (part >> 1 & 1u) & 0x0f0f0f0fu | (high >> 2 * (part & 3u) & 0x03030303u) << 4;
    if (IS(TQ1_0))
        v = ternary_bytes(low, part, j);
    if (IS_IQ2)
        v = iq2_bytes(h, j);
    if (IS_IQ3)
        v = iq3_bytes(h, j);
    if (IS_IQ1)
        v = iq1_bytes(h, j);
    return v;
}

// Returns four bytes minus ZERO. The bits 0x4b0000xx are the float 2^23 + xx.
vec4 codes_in(uint bytes)
{
    uvec4 v = uvec4(bytes, bytes >> 8, bytes >> 16, bytes >> 24) & 0xffu;
    return uintBitsToFloat(v | 0x4b000000u) - (8388608.0 + float(ZERO));
}

Eight eight_of(uvec2 bytes, vec2 s)
{
    Eight e = Eight(codes_in(bytes.x) * s.x, codes_in(bytes.y) * s.x);
    if (HAS_BIAS) {
        e.a += s.y;
        e.b += s.y;
    }
    return e;
}

// Returns columns 8 * i .. of a row.
Eight load_eight(const uint format, Matrix m, uint row, uint i)
{
    uint part = (i >> 2) % PARTS, j = i & 3u;
    Block b = block_at(m.weight, row * (m.cols / BLOCK_COLS) + (i >> 2) / PARTS);
    uvec4 h = load_head(b, part);
    uvec2 low, high;
    load_quarter(b, part, j, low, high);
    return eight_of(bytes_of(h, low, high, part, j), scales_of(h, part, j >> 1));
}
